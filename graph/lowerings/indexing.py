"""Operators that pick, place, repeat and order elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core import Operation, Value
from ..dims import product
from ..dtypes import bool_, i32, i64
from ..types import TensorType, tensor
from .builder import KernelBuilder, all_native, constant_ints, dtype_of, rank_of, shape_of, tensor_type
from .rules import lowers


def _same(op: Operation, k: KernelBuilder, name: str, *attributes: str) -> Sequence[Value] | None:
    """The kernel `name` with the operands, results and these attributes of `op`."""
    if not all_native(op):
        return None
    given = {attribute: op.attr(attribute) for attribute in attributes if op.attr(attribute) is not None}
    types = [result.type for result in op.results]
    made = k.create(f"kernel.{name}", op.operands, given, result_types=types)
    return made.results


@lowers("Gather")
def gather(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    return _same(op, k, "gather", "axis")


@lowers("GatherElements")
def gather_elements(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    return _same(op, k, "gather_elements", "axis")


@lowers("GatherND")
def gather_nd(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    return _same(op, k, "gather_nd", "batch_dims")


@lowers("ScatterElements")
def scatter_elements(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    return _same(op, k, "scatter_elements", "axis", "reduction")


@lowers("ScatterND")
def scatter_nd(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    return _same(op, k, "scatter_nd", "reduction")


@lowers("Pad")
def pad(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    return _same(op, k, "pad", "mode")


@lowers("Col2Im")
def columns_to_image(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    """Of any image, blocks whose size is known; wide ones side by side are but moved."""
    block = constant_ints(op.input(2))
    if not all_native(op) or dtype_of(op.result) is bool_ or not block or are_side_by_side(op, block):
        return None
    rank = len(block)
    attributes: dict[str, Any] = {
        "strides": op.attr("strides") or (1,) * rank,
        "dilations": op.attr("dilations") or (1,) * rank,
        "pads": op.attr("pads") or (0,) * (2 * rank),
    }
    return [k.kernel("columns_to_image", op.operands, op.result.type, **attributes)]


# Blocks that are wider than this are moved; narrower ones are faster laid between each other by the kernel.
_NARROW = 4


def are_side_by_side(op: Operation, block: Sequence[int]) -> bool:
    """Whether wide blocks of a Col2Im neither overlap nor leave a gap, and it is known how many there are."""
    rank = len(block)
    strides, dilations = op.attr("strides") or (1,) * rank, op.attr("dilations") or (1,) * rank
    is_known = tensor_type(op.operand_values[0]).is_static and constant_ints(op.input(1)) is not None
    is_wide = block[-1] > _NARROW
    return is_known and is_wide and tuple(strides) == tuple(block) and all(gap == 1 for gap in dilations)


@lowers("Tile")
def tile(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    return _same(op, k, "tile")


@lowers("TopK")
def topk(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    x, count = op.operand_values
    is_first = op.attr("largest") != 0 or not dtype_of(x).is_float  # NaN is the last of all, but no least number either
    if constant_ints(count) == [1] and is_first and all_native(op):
        axis, (values, places) = op.attr("axis", -1), (result.type for result in op.results)
        place = k.kernel("arg_extreme", [x], places, kind="max" if op.attr("largest") != 0 else "min", axis=axis)
        return [k.kernel("gather_elements", [x, place], values, axis=axis), place]
    return _same(op, k, "sort", "axis", "largest", "sorted")


@lowers("CumSum", "CumProd")
def running(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    if not all_native(op):
        return None
    attributes: dict[str, Any] = {"exclusive": op.attr("exclusive") or 0, "reverse": op.attr("reverse") or 0}
    kind = "sum" if op.name == "cumsum" else "prod"
    return [k.kernel("scan", op.operands, op.result.type, kind=kind, **attributes)]


@lowers("ArgMax", "ArgMin")
def arg_extreme(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    if not all_native(op):
        return None
    names = ("axis", "keepdims", "select_last_index")
    attributes: dict[str, Any] = {name: op.attr(name) for name in names if op.attr(name) is not None}
    kind = "max" if op.name == "argmax" else "min"
    return [k.kernel("arg_extreme", op.operands, op.result.type, kind=kind, **attributes)]


@lowers("NonZero")
def nonzero(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    x = op.operand_values[0]
    if not all_native(op) or not rank_of(x):
        return None
    return [k.kernel("nonzero", [x], [op.result.type, tensor(i64, ())])]


@lowers("NonMaxSuppression")
def non_max_suppression(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    if not all_native(op):
        return None
    limit = constant_ints(op.input(2))
    attributes: dict[str, Any] = {"center_point_box": op.attr("center_point_box") or 0}
    if limit:
        attributes["most"] = limit[0]
    return [k.kernel("suppress", op.operands, [op.result.type, tensor(i64, ())], **attributes)]


@lowers("Unique")
def unique(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    """Where the different rows are first is found; what they are is gathered from there."""
    x, axis = op.operand_values[0], op.attr("axis")
    if not all_native(op) or (axis is not None and not rank_of(x)):
        return None
    if axis is None:
        whole, axis, rank = k.kernel("reshape", [x], _matrix(x, rank_of(x)), how="flatten", axis=rank_of(x)), 0, 1
    else:
        rank, axis = rank_of(x), axis % rank_of(x)
        moved = k.transpose(x, [axis, *(other for other in range(rank) if other != axis)])
        whole = k.kernel("reshape", [moved], _matrix(moved, 1), how="flatten", axis=1)
    rows = shape_of(whole)[0]
    counts = tensor(i64, [shape_of(op.results[0])[axis]])
    types = [counts, tensor(i64, [rows]), counts, tensor(i64, ())]
    made = k.create("kernel.unique", [whole], {"sorted": op.attr("sorted")}, result_types=types)
    first, inverse, repeats, _ = made.results
    data = k.squeeze(whole, [1]) if op.attr("axis") is None else x
    values = k.kernel("gather", [data, first], op.results[0].type, axis=axis)
    return [values, first, inverse, repeats][: len(op.results)]


def _matrix(x: Value, axis: int) -> TensorType:
    """The type of x as a matrix whose rows begin at dim `axis`."""
    shape = shape_of(x)
    return tensor_type(x).with_shape([product(shape[:axis]), product(shape[axis:])])


@lowers("DepthToSpace", "SpaceToDepth")
def blocks(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    """Dims are cut, moved and joined again."""
    x, size = op.operand_values[0], int(op.attr("blocksize"))
    if not all_native(op) or rank_of(x) != 4:
        return None
    if op.name == "depth_to_space":
        is_depth_first = op.attr("mode", "DCR") != "CRD"
        cut = k.split_axis(x, 1, [size, size, -1] if is_depth_first else [-1, size, size])
        moved = k.transpose(cut, [0, 3, 4, 1, 5, 2] if is_depth_first else [0, 1, 4, 2, 5, 3])
        return [k.merge_axes(k.merge_axes(moved, 2), 3)]
    cut = k.split_axis(k.split_axis(x, 3, [-1, size]), 2, [-1, size])
    is_depth_first = op.attr("mode", "DCR") != "CRD"
    moved = k.transpose(cut, [0, 3, 5, 1, 2, 4] if is_depth_first else [0, 1, 3, 5, 2, 4])
    return [k.merge_axes(k.merge_axes(moved, 1), 1)]


@lowers("Trilu")
def trilu(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    """Zeros where the triangle, which follows from the shape, is not."""
    x, diagonal = op.operand_values[0], op.input(1)
    if not all_native(op) or (diagonal is not None and constant_ints(diagonal) is None):
        return None
    ones = k.expand(k.const(np.array(True)), k.shape(x, start=-2))
    triangle = k.trilu(ones, diagonal, upper=op.attr("upper"))
    return [k.map(lambda s, inside, element: s.select(inside, element, 0), [triangle, x], tensor_type(x))]


@lowers("OneHot")
def one_hot(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    """Compare each index with all places; negative ones count from the end, those outside are nowhere."""
    indices, depth, values = op.operand_values
    if not all_native(op) or constant_ints(depth) is None:
        return None
    if dtype_of(indices) not in (i32, i64):
        indices = k.map(lambda s, index: s.cast(index, i64), [indices], tensor_type(indices).with_dtype(i64))
    count = (constant_ints(depth) or [0])[0]
    rank = rank_of(op.result)
    axis = int(op.attr("axis")) % rank
    column = k.unsqueeze(indices, [axis])
    dtype = dtype_of(indices).numpy
    places = k.const(np.arange(count, dtype=dtype).reshape([-1 if a == axis else 1 for a in range(rank)]))
    shape = shape_of(op.result)
    hit_type = tensor(bool_, shape)

    def hits(s: Any, index: Any, place: Any) -> Any:
        return s.logical_or(s.equal(index, place), s.equal(s.add(index, count), place))

    hit = k.map(hits, [column, places], hit_type)
    parts = [
        k.kernel("part", [values], tensor_type(values).with_shape([1]), axis=0, index=index, count=2)
        for index in range(2)
    ]
    return [k.map(lambda s, hit, off, on: s.select(hit, on, off), [hit, *parts], tensor_type(op.result))]


@lowers("Resize")
def resize(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    names = (
        "mode", "coordinate_transformation_mode", "nearest_mode", "cubic_coeff_a", "exclude_outside",
        "extrapolation_value", "antialias", "axes", "keep_aspect_ratio_policy",
    )  # fmt: skip
    return _same(op, k, "resample", *names)
