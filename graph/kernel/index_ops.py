"""Kernels that move elements to places that data or sizes decide: gather, scatter, pad, repeat, order, running sums.

They mean what ONNX's operators of like names mean; attributes are called as there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .. import opdef
from ..cached import cached_property
from ..opdef import AttributeSpec, Trait, op
from ..ops.numeric import running
from ..ops.resize_numeric import resized
from .kernel_base import KernelOp, Known, checked_axis

if TYPE_CHECKING:
    from ..core import Operation
    from .strided import Shape


class AsInOnnx(KernelOp):
    """A kernel with the numpy meaning of one operator of ONNX."""

    onnx: ClassVar[str]

    def fixed_count(self, op: Operation) -> int:
        return len(op.operands)

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return opdef.lookup("", type(self).onnx).evaluate(op, *operands)


def _axis(op: Operation, rank: int) -> int:
    return checked_axis(int(op.attr("axis")), rank)


@op("gather", domain="kernel")
class Gather(AsInOnnx):
    """The slices of `data` along `axis` that `indices` name. An index outside of the dim is an error."""

    onnx = "Gather"
    inputs = ("data", "indices")
    attributes: ClassVar[dict[str, Any]] = {"axis": 0}

    def result_shapes(self, op: Operation, shapes: Sequence[Shape], known: Known) -> list[Shape]:
        data, indices = shapes
        axis = _axis(op, len(data))
        return [(*data[:axis], *indices, *data[axis + 1 :])]


@op("gather_elements", domain="kernel")
class GatherElements(AsInOnnx):
    """result[i, j] = data[indices[i, j], j] for axis 0, and so on."""

    onnx = "GatherElements"
    inputs = ("data", "indices")
    attributes: ClassVar[dict[str, Any]] = {"axis": 0}

    def result_shapes(self, op: Operation, shapes: Sequence[Shape], known: Known) -> list[Shape]:
        data, indices = shapes
        axis = _axis(op, len(data))
        if len(data) != len(indices) or any(
            n > d for i, (n, d) in enumerate(zip(indices, data, strict=True)) if i != axis
        ):
            raise ValueError(f"indices {list(indices)} reach beyond {list(data)}")
        return [indices]


@op("gather_nd", domain="kernel")
class GatherND(AsInOnnx):
    """The slices of `data` that the rows of `indices` name, after `batch_dims` shared dims."""

    onnx = "GatherND"
    inputs = ("data", "indices")
    attributes: ClassVar[dict[str, Any]] = {"batch_dims": 0}

    def result_shapes(self, op: Operation, shapes: Sequence[Shape], known: Known) -> list[Shape]:
        data, indices = shapes
        batch = int(op.attr("batch_dims"))
        depth = indices[-1]
        if not depth or batch + depth > len(data) or data[:batch] != indices[:batch]:
            raise ValueError(f"indices {list(indices)} do not fit {list(data)}")
        return [(*indices[:-1], *data[batch + depth :])]


class Scatter(AsInOnnx):
    """A copy of `data` in which some elements are replaced by, or combined with, `updates`."""

    inputs = ("data", "indices", "updates")


@op("scatter_elements", domain="kernel")
class ScatterElements(Scatter):
    """result[indices[i, j], j] = updates[i, j] for axis 0, and so on."""

    onnx = "ScatterElements"
    attributes: ClassVar[dict[str, Any]] = {"axis": 0, "reduction": "none"}

    def result_shapes(self, op: Operation, shapes: Sequence[Shape], known: Known) -> list[Shape]:
        data, indices, updates = shapes
        axis = _axis(op, len(data))
        if (
            indices != updates
            or len(data) != len(indices)
            or any(n > d for i, (n, d) in enumerate(zip(indices, data, strict=True)) if i != axis)
        ):
            raise ValueError(f"indices {list(indices)} and updates {list(updates)} do not fit {list(data)}")
        return [data]


@op("scatter_nd", domain="kernel")
class ScatterND(Scatter):
    """The slices that the rows of `indices` name become `updates`."""

    onnx = "ScatterND"
    attributes: ClassVar[dict[str, Any]] = {"reduction": "none"}

    def result_shapes(self, op: Operation, shapes: Sequence[Shape], known: Known) -> list[Shape]:
        data, indices, updates = shapes
        depth = indices[-1]
        if depth > len(data) or updates != (*indices[:-1], *data[depth:]):
            raise ValueError(f"indices {list(indices)} and updates {list(updates)} do not fit {list(data)}")
        return [data]


@op("pad", domain="kernel")
class Pad(AsInOnnx):
    """Elements around `x`: `pads` has as many before each dim of `axes`, then as many after it; negative ones cut."""

    onnx = "Pad"
    inputs = ("x", "pads", "value?", "axes?")
    attributes: ClassVar[dict[str, Any]] = {"mode": "constant"}
    known_operands = (1, 3)

    def widths(self, op: Operation, rank: int, known: Known) -> list[tuple[int, int]]:
        """How many elements there are before and after each dim."""
        pads = [int(pad) for pad in known(1)]
        axes = [checked_axis(int(axis), rank) for axis in known(3)] if op.input(3) is not None else list(range(rank))
        if len(pads) != 2 * len(axes):
            raise ValueError(f"{len(pads)} pads for {len(axes)} dims")
        widths = [(0, 0)] * rank
        for axis, before, after in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
            widths[axis] = before, after
        return widths

    def result_shapes(self, op: Operation, shapes: Sequence[Shape], known: Known) -> list[Shape]:
        widths = self.widths(op, len(shapes[0]), known)
        sizes = tuple(before + size + after for size, (before, after) in zip(shapes[0], widths, strict=True))
        if any(size < 0 for size in sizes):
            raise ValueError(f"pads {widths} leave less than nothing of {list(shapes[0])}")
        for size, (before, after), whole in zip(shapes[0], widths, sizes, strict=True):
            if op.attr("mode") != "constant" and whole and size + min(before, 0) + min(after, 0) <= 0:
                raise ValueError(f"there is nothing of {list(shapes[0])} to repeat in pads {widths}")
        return [sizes]


@op("columns_to_image", domain="kernel")
class ColumnsToImage(AsInOnnx):
    """Blocks [n, c * product(block), places] added up at their places in images [n, c, *image]."""

    onnx = "Col2Im"
    inputs = ("x", "image", "block")
    attributes: ClassVar[dict[str, Any]] = {"strides": (), "dilations": (), "pads": ()}
    known_operands = (1, 2)

    def result_shapes(self, op: Operation, shapes: Sequence[Shape], known: Known) -> list[Shape]:
        x, image, block = shapes[0], [int(size) for size in known(1)], [int(size) for size in known(2)]
        strides, dilations, pads = (tuple(op.attr(name)) for name in ("strides", "dilations", "pads"))
        places = block_places(image, block, strides, dilations, pads)
        taps = math.prod(block)
        if len(x) != 3 or not taps or x[1] % taps or x[2] != math.prod(places):
            raise ValueError(f"columns {list(x)} of blocks {block} at {list(places)} places of an image {image}")
        return [(x[0], x[1] // taps, *image)]


def block_places(
    image: Sequence[int], block: Sequence[int], strides: Sequence[int], dilations: Sequence[int], pads: Sequence[int]
) -> tuple[int, ...]:
    """At how many places along each dim a block fits into a padded image."""
    rank = len(image)
    return tuple(
        max(0, (image[a] + pads[a] + pads[a + rank] - dilations[a] * (block[a] - 1) - 1) // strides[a] + 1)
        for a in range(rank)
    )


@op("tile", domain="kernel")
class Tile(AsInOnnx):
    """x repeated as often as `repeats` says along each dim."""

    onnx = "Tile"
    inputs = ("x", "repeats")
    known_operands = (1,)

    def result_shapes(self, op: Operation, shapes: Sequence[Shape], known: Known) -> list[Shape]:
        repeats = [int(count) for count in known(1)]
        if len(repeats) != len(shapes[0]) or any(count < 0 for count in repeats):
            raise ValueError(f"cannot repeat {list(shapes[0])} {repeats} times")
        return [tuple(size * count for size, count in zip(shapes[0], repeats, strict=True))]


@op("arg_extreme", domain="kernel")
class ArgExtreme(KernelOp):
    """The index (i64) of the greatest ("max") or least element along `axis`, the first or last of equal ones."""

    inputs = ("x",)
    attributes: ClassVar[dict[str, Any]] = {"kind": None, "axis": 0, "keepdims": 1, "select_last_index": 0}
    traits = frozenset({Trait.REDUCTION})
    fixed = 1

    def result_shapes(self, op: Operation, shapes: Sequence[Shape], known: Known) -> list[Shape]:
        axis = _axis(op, len(shapes[0]))
        kept = (1,) if op.attr("keepdims") else ()
        result = (*shapes[0][:axis], *kept, *shapes[0][axis + 1 :])
        if shapes[0][axis] == 0 and 0 not in result:
            raise ValueError("there is no greatest or least of no elements")
        return [result]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        x, axis = operands[0], _axis(op, operands[0].ndim)
        if x.shape[axis] == 0:
            return np.zeros(self.result_shapes(op, [x.shape], lambda index: operands[index])[0], np.int64)
        find: Any = np.argmax if op.attr("kind") == "max" else np.argmin
        if op.attr("select_last_index"):
            found = x.shape[axis] - 1 - find(np.flip(x, axis), axis)
        else:
            found = find(x, axis)
        return np.expand_dims(found, axis) if op.attr("keepdims") else np.asarray(found)


@op("scan", domain="kernel")
class Scan(KernelOp):
    """The running sum or product of elements along the dim that `axis`, an operand, names."""

    inputs = ("x", "axis")
    attributes: ClassVar[dict[str, Any]] = {"kind": "sum", "exclusive": 0, "reverse": 0}
    known_operands = (1,)
    fixed = 2

    def result_shapes(self, op: Operation, shapes: Sequence[Shape], known: Known) -> list[Shape]:
        checked_axis(int(np.reshape(known(1), -1)[0]), max(1, len(shapes[0])))
        return [shapes[0]]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        combine = np.add if op.attr("kind") == "sum" else np.multiply
        flags = (bool(op.attr(name)) for name in ("exclusive", "reverse"))
        return running(combine, operands[0], int(np.reshape(operands[1], -1)[0]), *flags)


@op("sort", domain="kernel")
class Sort(AsInOnnx):
    """The k greatest (or least) elements along `axis` in order, and their indices (i64)."""

    onnx = "TopK"
    inputs = ("x", "k")
    outputs = ("values", "indices")
    attributes: ClassVar[dict[str, Any]] = {"axis": -1, "largest": 1, "sorted": 1}
    known_operands = (1,)

    def result_shapes(self, op: Operation, shapes: Sequence[Shape], known: Known) -> list[Shape]:
        shape = list(shapes[0])
        axis, count = _axis(op, len(shape)), int(np.reshape(known(1), -1)[0])
        if not 0 <= count <= shape[axis]:
            raise ValueError(f"there are no {count} of {shape[axis]} elements")
        shape[axis] = count
        return [tuple(shape)] * 2


@op("resample", domain="kernel")
class Resample(AsInOnnx):
    """x interpolated to `sizes`, or by `scales`, along `axes`."""

    onnx = "Resize"
    inputs = ("x", "roi?", "scales?", "sizes?")
    attributes: ClassVar[dict[str, Any]] = {
        "mode": "nearest", "coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_floor",
        "cubic_coeff_a": -0.75, "exclude_outside": 0, "extrapolation_value": 0.0, "antialias": 0, "axes": None,
        "keep_aspect_ratio_policy": "stretch",
    }  # fmt: skip
    known_operands = (1, 2, 3)

    @cached_property
    def attribute_specs(self) -> dict[str, AttributeSpec]:
        return {**super().attribute_specs, "axes": AttributeSpec("axes", "ints")}

    def given(self, op: Operation, known: Known) -> tuple[np.ndarray | None, np.ndarray | None, np.ndarray | None]:
        """roi, scales and sizes; None for one that is not there."""
        found = [known(index) if op.input(index) is not None else None for index in (1, 2, 3)]
        return found[0], found[1], found[2]

    def result_shapes(self, op: Operation, shapes: Sequence[Shape], known: Known) -> list[Shape]:
        return [resized(op, shapes[0], *self.given(op, known))]
