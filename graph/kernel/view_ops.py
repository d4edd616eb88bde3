"""Kernels that move: views of one tensor, which cost nothing by themselves, and tensors put together from others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..opdef import Trait, op
from ..types import TensorType
from .kernel_base import KernelOp, Known, ViewOp, checked_axis, product_of
from .strided import Strided, broadcast_shapes

if TYPE_CHECKING:
    from ..core import Operation
    from .strided import Shape


@op("transpose", domain="kernel")
class Transpose(ViewOp):
    """Dim i of the result is dim perm[i] of the operand."""

    inputs = ("x",)
    attributes: ClassVar[dict[str, Any]] = {"perm": ()}

    def view(self, op: Operation, operand: Strided, known: Known) -> Strided | None:
        return operand.transposed(op.attr("perm"))


@op("reshape", domain="kernel")
class Reshape(ViewOp):
    """The elements in their order as another shape.

    `how` says which: the elements of `shape`, read as ONNX Reshape does (-1 takes what is left, 0 the size of the same
    dim unless `allowzero`); without the dims `axes` of size 1 (squeeze; all of size 1 if `axes` is empty); with dims of
    size 1 at `axes` of the result (unsqueeze); as a matrix whose rows begin at dim `axis` (flatten); dim `axis` cut
    into dims of the sizes `axes`, one of which may be -1 (split); dim `axis` and the one after it as one (merge).
    """

    inputs = ("x", "shape?")
    attributes: ClassVar[dict[str, Any]] = {"how": "reshape", "axes": (), "axis": 1, "allowzero": 0}
    known_operands = (1,)

    def view(self, op: Operation, operand: Strided, known: Known) -> Strided | None:
        return operand.reshaped(self.target(op, operand.shape, known))

    def target(self, op: Operation, shape: Shape, known: Known) -> Shape:
        """The shape of the result. Raises ValueError if the elements do not fit into it."""
        how, axes = op.attr("how"), tuple(op.attr("axes"))
        match how:
            case "squeeze":
                rank = len(shape)
                named = axes or [axis for axis, size in enumerate(shape) if size == 1]
                dropped = {checked_axis(axis, rank) for axis in named}
                if any(shape[axis] != 1 for axis in dropped):
                    raise ValueError(f"cannot squeeze the dims {list(axes)} of {list(shape)}")
                return tuple(n for axis, n in enumerate(shape) if axis not in dropped)
            case "unsqueeze":
                rank = len(shape) + len(axes)
                added = {checked_axis(axis, rank) for axis in axes}
                rest = iter(shape)
                return tuple(1 if axis in added else next(rest) for axis in range(rank))
            case "flatten":
                axis = op.attr("axis")
                axis = axis + len(shape) if axis < 0 else axis
                return product_of(shape[:axis]), product_of(shape[axis:])
            case "split":
                axis = op.attr("axis")
                return (*shape[:axis], *_filled(axes, shape[axis]), *shape[axis + 1 :])
            case "merge":
                axis = op.attr("axis")
                return (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
        wanted = known(1).reshape(-1).tolist()
        if not op.attr("allowzero"):
            wanted = [shape[axis] if size == 0 else size for axis, size in enumerate(wanted)]
        return _filled(wanted, product_of(shape))


def _filled(wanted: Sequence[int], elements: int) -> Shape:
    """The sizes, with what is left of `elements` for one that is -1. Raises ValueError if they do not fit."""
    sizes = list(wanted)
    if -1 in sizes:
        others = product_of([size for size in sizes if size != -1])
        if others == 0 or elements % others:
            raise ValueError(f"{elements} elements do not fit into {sizes}")
        sizes[sizes.index(-1)] = elements // others
    if product_of(sizes) != elements:
        raise ValueError(f"{elements} elements do not fit into {sizes}")
    return tuple(sizes)


@op("bits", domain="kernel")
class Bits(ViewOp):
    """The operand's bytes as elements of the result's dtype, which takes as many.

    Numbers of fewer than 8 bits lie in the low bits of a byte.
    """

    inputs = ("x",)

    def view(self, op: Operation, operand: Strided, known: Known) -> Strided | None:
        return operand

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        type = op.result.type
        assert isinstance(type, TensorType)
        return np.ascontiguousarray(operands[0]).view(type.dtype.numpy).reshape(np.shape(operands[0]))


@op("broadcast", domain="kernel")
class Broadcast(ViewOp):
    """The operand repeated to what it and `shape` broadcast to, as ONNX Expand has it."""

    inputs = ("x", "shape")
    known_operands = (1,)

    def view(self, op: Operation, operand: Strided, known: Known) -> Strided | None:
        return operand.broadcast(broadcast_shapes(operand.shape, known(1).reshape(-1).tolist()))


@op("slice", domain="kernel")
class Slice(ViewOp):
    """Every step-th element from start to end along some axes, as ONNX Slice has it."""

    inputs = ("x", "starts", "ends", "axes?", "steps?")
    known_operands = (1, 2, 3, 4)

    def view(self, op: Operation, operand: Strided, known: Known) -> Strided | None:
        starts, ends = known(1).reshape(-1).tolist(), known(2).reshape(-1).tolist()
        axes = known(3).reshape(-1).tolist() if op.input(3) is not None else range(len(starts))
        steps = known(4).reshape(-1).tolist() if op.input(4) is not None else [1] * len(starts)
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
            axis = checked_axis(int(axis), operand.rank)
            first, count = taken_by_slice(start, end, int(step), operand.shape[axis])
            operand = operand.sliced(axis, first, count, int(step))
        return operand


def taken_by_slice(start: int, end: int, step: int, size: int) -> tuple[int, int]:
    """The first element, and how many, that ONNX Slice takes of `size`. Raises ValueError for a step of 0."""
    if step == 0:
        raise ValueError("slice step cannot be zero")
    low, high = (0, size) if step > 0 else (-1, size - 1)
    start, end = (place + size if place < 0 else place for place in (start, end))
    # A start before the first element is the first, also in a backward slice.
    first, last = min(max(start, 0), high), min(max(end, low), high)
    count = -(-(last - first) // step) if step > 0 else -(-(first - last) // -step)
    return first, max(count, 0)


@op("part", domain="kernel")
class Part(ViewOp):
    """One of the parts that ONNX Split cuts `axis` into: the `index`-th of `count`, of the sizes `split` if given."""

    inputs = ("x", "split?")
    attributes: ClassVar[dict[str, Any]] = {"axis": 0, "index": 0, "count": 1}
    known_operands = (1,)

    def view(self, op: Operation, operand: Strided, known: Known) -> Strided | None:
        axis, index, count = op.attr("axis") % operand.rank, op.attr("index"), op.attr("count")
        size = operand.shape[axis]
        if op.input(1) is not None:
            sizes = known(1).reshape(-1).tolist()
        else:
            chunk = -(-size // count)
            sizes = [max(0, min(chunk, size - chunk * part)) for part in range(count)]
        if sum(sizes) != size:
            raise ValueError(f"parts of {sizes} are not the {size} elements of dim {axis}")
        return operand.sliced(axis, sum(sizes[:index]), sizes[index])


@op("concat", domain="kernel")
class Concat(KernelOp):
    """The operands one after the other along `axis`."""

    inputs = ("operands*",)
    attributes: ClassVar[dict[str, Any]] = {"axis": 0}
    traits = frozenset({Trait.INJECTIVE})

    def result_shapes(self, op: Operation, shapes: Sequence[Shape], known: Known) -> list[Shape]:
        first = shapes[0]
        axis = op.attr("axis") % len(first)
        rest = first[:axis], first[axis + 1 :]
        if any((shape[:axis], shape[axis + 1 :]) != rest for shape in shapes):
            raise ValueError(f"cannot put together {', '.join(str(list(shape)) for shape in shapes)} along dim {axis}")
        return [(*rest[0], sum(shape[axis] for shape in shapes), *rest[1])]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return np.concatenate(operands, op.attr("axis"))
