"""Operators that move elements by position: the result's elements are copies of operand elements, or a filling."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import types
from ..diagnostics import ExecutionError
from ..dims import Dim, bounds, ceildiv, dim_max, dim_min
from ..opdef import OpDefinition, Trait, op
from ..types import Type
from .common import (
    SameShape,
    Shape,
    TensorOp,
    constant_ints,
    dtype_of,
    element_dim,
    error,
    format_shape,
    has_operand,
    length_of,
    normalize_axes,
    normalize_axis,
    operand_elements,
    quotient,
    require_rank,
    same_dim,
    shape_of,
    unknown_dims,
    vector_elements,
)
from .numeric import check_same_dtype
from .values import is_non_negative

if TYPE_CHECKING:
    from ..builder import OpBuilder
    from ..core import Operation, Value
    from ..infer import InferenceContext, SymbolicArray

INJECTIVE = frozenset({Trait.INJECTIVE})
# Exporters write "to the end" as the largest number of some integer type; no real dim comes near the smallest of them.
TO_THE_END = 2**31 - 1


@op("Transpose")
class Transpose(TensorOp):
    """Dim i of the result is dim perm[i] of the operand; by default the dims are reversed."""

    traits = INJECTIVE

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        shape, perm = shape_of(op, 0), op.attr("perm")
        if shape is None:
            return None if perm is None else unknown_dims(len(perm), context)
        if perm is None:
            return shape[::-1]
        if sorted(perm) != list(range(len(shape))):
            raise error("shape/transpose", f"perm={list(perm)} is no permutation of the axes of {format_shape(shape)}")
        return [shape[axis] for axis in perm]

    def propagate(self, op: Operation, context: InferenceContext) -> SymbolicArray | None:
        elements = operand_elements(op, 0, context)
        return None if elements is None else elements.transpose(op.attr("perm"))

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return np.transpose(operands[0], op.attr("perm"))


@op("Concat")
class Concat(TensorOp):
    """Operands side by side along `axis`; all other dims are equal."""

    traits = INJECTIVE

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        shapes = [shape_of(op, index) for index in range(len(op.operands))]
        known = [shape for shape in shapes if shape is not None]
        if not known:
            return None
        rank = len(known[0])
        axis = normalize_axis(op.attr("axis"), rank, op)
        mismatch = functools.partial(
            error, "shape/concat", f"concat along axis {axis} does not fit {', '.join(map(format_shape, known))}"
        )
        if any(len(shape) != rank for shape in known):
            raise mismatch()
        result = list(known[0])
        for shape in known[1:]:
            for position in range(rank):
                if position != axis:
                    result[position] = same_dim(result[position], shape[position], context, mismatch)
        result[axis] = context.fresh() if len(known) < len(shapes) else sum((s[axis] for s in known), start=0)
        return result

    def propagate(self, op: Operation, context: InferenceContext) -> SymbolicArray | None:
        parts = [context.symbolic(operand) for operand in op.operands]
        present = [part for part in parts if part is not None]
        return np.concatenate(present, op.attr("axis")) if len(present) == len(parts) else None

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        check_same_dtype("concat", *operands)
        return np.concatenate(operands, op.attr("axis"))


@op("Split")
class Split(OpDefinition):
    """Parts along `axis`: of the sizes in `split`, else equal ones (the last may be smaller)."""

    traits = INJECTIVE

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        dtype, shape, count = dtype_of(op, 0), shape_of(op, 0), len(op.results)
        if dtype is None:
            return [types.UNKNOWN] * count
        if shape is None:
            return [types.tensor(dtype, None)] * count
        axis = normalize_axis(op.attr("axis", 0), len(shape), op)
        return [
            types.tensor(dtype, (*shape[:axis], size, *shape[axis + 1 :]))
            for size in self._sizes(op, shape[axis], count, context)
        ]

    def _sizes(self, op: Operation, dim: Dim, count: int, context: InferenceContext) -> list[Dim]:
        if has_operand(op, 1):
            given = vector_elements(op, 1, context)
            if given is None:
                return [context.fresh() for _ in range(count)]
            sizes = [element_dim(item, context) for item in given]
            total = sum(sizes, start=0)
            if len(sizes) != count or (isinstance(total, int) and isinstance(dim, int) and total != dim):
                raise error("shape/split", f"split of {dim} into {count} parts of sizes {[*map(str, sizes)]}")
            return sizes
        if op.attr("num_outputs", count) != count:
            wanted = op.attr("num_outputs")
            text = f"split has num_outputs={wanted}, but {count} results; a Builder takes outputs={wanted} as well"
            raise error("shape/split", text)
        part = ceildiv(dim, count)
        last = dim - part * (count - 1)
        if isinstance(last, int) and last < 0:
            raise error("shape/split", f"{dim} cannot be split into {count} parts")
        return [part] * (count - 1) + [last]

    def propagate(self, op: Operation, context: InferenceContext) -> Sequence[SymbolicArray | None] | None:
        elements = operand_elements(op, 0, context)
        if elements is None:
            return None
        axis = normalize_axis(op.attr("axis", 0), elements.ndim, op)
        sizes = self._sizes(op, elements.shape[axis], len(op.results), context)
        static = [size for size in sizes if isinstance(size, int)]
        if len(static) < len(sizes) or sum(static) != elements.shape[axis]:
            return None
        return np.split(elements, np.cumsum(static)[:-1].tolist(), axis)

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        axis, count = op.attr("axis", 0), len(op.results)
        size = operands[0].shape[axis]
        if len(operands) > 1:
            sizes = [int(part) for part in operands[1]]
        else:
            part = -(-size // count)
            sizes = [part] * (count - 1) + [size - part * (count - 1)]
        if len(sizes) != count or sum(sizes) != size or min(sizes) < 0:
            raise ExecutionError("run/split", f"split of {size} into {count} parts of sizes {sizes}")
        return tuple(np.split(operands[0], np.cumsum(sizes)[:-1], axis))


@op("Slice")
class Slice(TensorOp):
    """From `starts` to `ends` in `steps` along `axes`, both counted from the end if negative, and clamped."""

    traits = INJECTIVE

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        shape = shape_of(op, 0)
        if shape is None:
            return None
        starts, ends, steps = [vector_elements(op, index, context) for index in (1, 2, 4)]
        lengths = {length for index in (1, 2, 3, 4) if (length := length_of(op, index)) is not None}
        if len(lengths) > 1:
            raise error("shape/slice", "slice has starts, ends, axes and steps of different lengths")
        axes = self._axes(op, len(shape), context)
        if axes is None:
            return unknown_dims(len(shape), context)
        result = list(shape)
        for position, axis in enumerate(axes):
            if starts is None or ends is None or (steps is None and has_operand(op, 4)):
                result[axis] = context.fresh()
                continue
            step = 1 if steps is None else steps[position]
            result[axis] = slice_dim(shape[axis], starts[position], ends[position], step, context)
        return result

    def _axes(self, op: Operation, rank: int, context: InferenceContext) -> list[int] | None:
        if has_operand(op, 3):
            axes = constant_ints(op, 3, context)
            return None if axes is None else normalize_axes(axes, rank, op)
        count = length_of(op, 1)
        if count is not None and count > rank:
            raise error("shape/slice", f"slice has {count} starts for {rank} dims")
        return None if count is None else list(range(count))

    def propagate(self, op: Operation, context: InferenceContext) -> SymbolicArray | None:
        elements = operand_elements(op, 0, context)
        starts, ends = constant_ints(op, 1, context), constant_ints(op, 2, context)
        if elements is None or starts is None or ends is None:
            return None
        axes = self._axes(op, elements.ndim, context)
        steps = constant_ints(op, 4, context) if has_operand(op, 4) else [1] * len(starts)
        if axes is None or steps is None:
            return None
        selection = [slice(None)] * elements.ndim
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
            selection[axis] = python_slice(start, end, step, elements.shape[axis])
        return elements[tuple(selection)]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        data, starts, ends, axes, steps = (*operands, None, None)[:5]
        selection = [slice(None)] * data.ndim
        positions = range(len(starts)) if axes is None else axes
        strides = [1] * len(starts) if steps is None else steps
        for axis, start, end, step in zip(positions, starts, ends, strides, strict=True):
            selection[axis] = python_slice(int(start), int(end), int(step), data.shape[axis])
        return data[tuple(selection)]


def python_slice(start: int, end: int, step: int, size: int) -> slice:
    """The Python slice that takes what Slice takes of `size` elements (ONNX Slice-13).

    Python clamps alike, but for a start before the first element in a backward slice: there ONNX begins with the first.
    """
    return slice(0 if step < 0 and start < -size else start, end, step)


def slice_dim(dim: Dim, start: Dim, end: Dim, step: Dim, context: InferenceContext) -> Dim:
    """The number of elements from `start` to `end` in steps of `step` along a dim; fresh if a sign is not known."""
    if not isinstance(step, int):
        return context.fresh()
    if step == 0:
        raise error("shape/slice", "slice has a step of 0")
    low, high = (0, dim) if step > 0 else (-1, dim - 1)
    first = _clamped(start, dim, 0, high)
    last = _clamped(end, dim, low, high)
    if first is None or last is None:
        return context.fresh()
    count = ceildiv(last - first, step) if step > 0 else ceildiv(first - last, -step)
    return dim_max(count, 0)


def _clamped(position: Dim, dim: Dim, low: int, high: Dim) -> Dim | None:
    """`position`, counted from the end if negative, within [low, high]; None if its sign is not known."""
    if isinstance(position, int) and position >= TO_THE_END:
        return high
    if isinstance(position, int) and position <= -TO_THE_END:
        return low
    if not is_non_negative(position):
        if not is_non_negative(-1 - position):
            return None
        position = position + dim
    return dim_min(dim_max(position, low), high)


@op("Pad")
class Pad(TensorOp):
    """Elements added (or, if negative, removed) before and after along each of `axes`."""

    traits = INJECTIVE

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        shape, elements = shape_of(op, 0), operand_elements(op, 1, context)
        # Runtimes take [1, 2 * axes] for a vector, too.
        pads = None if elements is None else list(elements.flat)
        if shape is None:
            return None
        axes: list[int] | None = list(range(len(shape)))
        if has_operand(op, 3):
            given = constant_ints(op, 3, context)
            axes = None if given is None else normalize_axes(given, len(shape), op)
        if axes is None or pads is None:
            return unknown_dims(len(shape), context)
        if len(pads) != 2 * len(axes):
            raise error("shape/pad", f"pad of {format_shape(shape)} needs {2 * len(axes)} pads, got {len(pads)}")
        result = list(shape)
        for position, axis in enumerate(axes):
            padding = pads[position] + pads[position + len(axes)]
            padded = shape[axis] + padding
            if isinstance(padded, int) and padded < 0:
                raise error("shape/pad", f"pad leaves {padded} elements of dim {axis} of {format_shape(shape)}")
            unbounded = bounds(padding)[0] is None
            result[axis] = context.fresh() if unbounded else padded
        return result

    def decompose(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        """Pads of some axes as pads of all, which is what opset 17 takes: zeros for the others, where pads are
        computed. None if axes or rank are not known."""
        from ..infer import InferenceContext

        shape, pads = shape_of(op, 0), shape_of(op, 1)
        if shape is None or pads is None or len(pads) != 1 or not has_operand(op, 3):
            return None
        given = constant_ints(op, 3, InferenceContext(builder.symbols))
        if given is None:
            return None
        axes, rank = normalize_axes(given, len(shape), op), len(shape)
        places = np.full((2, rank), 2 * len(axes))
        places[:, axes] = np.arange(2 * len(axes)).reshape(2, -1)
        whole = builder.gather(builder.concat(op.operands[1], np.array([0]), axis=0), places.ravel())
        return [builder.pad(op.operands[0], whole, op.input(2), mode=op.attr("mode", "constant"))]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        """Elements are removed before others are added (as ONNX Runtime does)."""
        data, pads, value, axes = (*operands, None, None)[:4]
        widths, kept = [(0, 0)] * data.ndim, [slice(None)] * data.ndim
        chosen = range(data.ndim) if axes is None else [int(axis) for axis in axes]
        for axis, before, after in zip(chosen, pads[: len(chosen)], pads[len(chosen) :], strict=True):
            widths[axis] = (max(int(before), 0), max(int(after), 0))
            kept[axis] = slice(max(-int(before), 0), data.shape[axis] - max(-int(after), 0))
        mode = op.attr("mode", "constant")
        if mode != "constant":
            return np.pad(data[tuple(kept)], widths, mode)
        zero = np.array("", object) if data.dtype == object else np.zeros((), data.dtype)
        fill = zero if value is None else np.reshape(value, ())
        return np.pad(data[tuple(kept)], widths, constant_values=fill)


@op("Tile")
class Tile(TensorOp):
    """The operand repeated along each axis."""

    traits = INJECTIVE

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        shape, repeats = shape_of(op, 0), vector_elements(op, 1, context)
        if shape is None:
            return None
        if repeats is None:
            return unknown_dims(len(shape), context)
        if len(repeats) != len(shape):
            raise error("shape/tile", f"tile of {format_shape(shape)} has {len(repeats)} repeats")
        return [dim * element_dim(count, context) for dim, count in zip(shape, repeats, strict=True)]

    def propagate(self, op: Operation, context: InferenceContext) -> SymbolicArray | None:
        elements, repeats = operand_elements(op, 0, context), constant_ints(op, 1, context)
        if elements is None or repeats is None or elements.size * int(np.prod(repeats)) > 1024:
            return None
        return np.tile(elements, repeats)

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        data, repeats = operands
        if len(repeats) != data.ndim:
            raise ExecutionError("run/tile", f"tile of rank {data.ndim} has {len(repeats)} repeats")
        return np.tile(data, repeats)


@op("DepthToSpace")
class DepthToSpace(TensorOp):
    """[n, c, h, w] to [n, c / blocksize^2, h * blocksize, w * blocksize]."""

    traits = INJECTIVE

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        shape, block = shape_of(op, 0), op.attr("blocksize")
        if shape is None:
            return unknown_dims(4, context)
        require_rank(op, 0, shape, 4)
        n, c, h, w = shape
        return [n, quotient(c, block * block, op, "channels"), h * block, w * block]


@op("SpaceToDepth")
class SpaceToDepth(TensorOp):
    """[n, c, h, w] to [n, c * blocksize^2, h / blocksize, w / blocksize]."""

    traits = INJECTIVE

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        shape, block = shape_of(op, 0), op.attr("blocksize")
        if shape is None:
            return unknown_dims(4, context)
        require_rank(op, 0, shape, 4)
        n, c, h, w = shape
        return [n, c * block * block, quotient(h, block, op, "height"), quotient(w, block, op, "width")]


@op("Trilu")
class Trilu(SameShape):
    """One triangle of each matrix; the rest is zero."""

    traits = INJECTIVE

    def evaluate(self, op: Operation, x: Any, diagonal: Any = None) -> Any:
        rows, columns = x.shape[-2:]
        # No diagonal lies farther off.
        k = 0 if diagonal is None else min(max(int(diagonal.reshape(())), -rows), columns)
        return np.triu(x, k) if op.attr("upper", 1) else np.tril(x, k)


@op("ReverseSequence")
class ReverseSequence(SameShape):
    """The first sequence_lens[i] elements of each sequence in reverse order."""

    traits = INJECTIVE


@op("CenterCropPad")
class CenterCropPad(TensorOp):
    """Cropped or zero-padded around the centre to the dims in `shape`, along `axes`."""

    traits = INJECTIVE

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        shape, target, axes = shape_of(op, 0), vector_elements(op, 1, context), op.attr("axes")
        if shape is None:
            return None
        chosen = normalize_axes(range(len(shape)) if axes is None else axes, len(shape), op)
        if target is not None and len(target) != len(chosen):
            raise error("shape/pad", f"center_crop_pad has {len(target)} dims for {len(chosen)} axes")
        result = list(shape)
        for position, axis in enumerate(chosen):
            result[axis] = context.fresh() if target is None else element_dim(target[position], context)
        return result


def replaced(shape: Shape, axis: int, *dims: Dim) -> Shape:
    """`shape` with `dims` in place of the dim at `axis`."""
    return (*shape[:axis], *dims, *shape[axis + 1 :])
