"""Operators that read images between their elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core import Operation, Value
from ..dtypes import i64
from ..types import tensor
from .builder import KernelBuilder, all_native, data_of, dtype_of, rank_of, shape_of, tensor_type
from .matmul import narrowed, widened
from .rules import lowers


@lowers("RoiAlign")
def roi_align(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    if not all_native(op) or dtype_of(op.operand_values[2]) is not i64:
        return None
    names = (
        "mode", "output_height", "output_width", "sampling_ratio", "spatial_scale", "coordinate_transformation_mode",
    )  # fmt: skip
    attributes = {name: op.attr(name) for name in names if op.attr(name) is not None}
    return [k.kernel("roi_align", op.operands, op.result.type, **attributes)]


@lowers("MaxRoiPool")
def max_roi_pool(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    if not all_native(op) or not dtype_of(op.result).is_float:
        return None
    attributes = {name: op.attr(name) for name in ("pooled_shape", "spatial_scale") if op.attr(name) is not None}
    return [k.kernel("max_roi_pool", op.operands, op.result.type, **attributes)]


@lowers("GridSample")
def grid_sample(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    """The coordinates are views of the grid, the last spatial dim first."""
    x, grid = op.operand_values
    if not all_native(op) or not dtype_of(x).is_float or not dtype_of(grid).is_float:
        return None
    rank, mode = rank_of(x) - 2, op.attr("mode")
    if rank not in (1, 2, 3) or (rank == 3 and mode == "cubic"):
        return None
    attributes = {"mode": mode, "padding": op.attr("padding_mode"), "align_corners": op.attr("align_corners") or 0}
    places = [_part(k, grid, rank_of(grid) - 1, axis, rank) for axis in reversed(range(rank))]
    return [k.kernel("sample", [x, *places], op.result.type, normalized=1, **attributes)]


def _part(k: KernelBuilder, x: Value, axis: int, index: int, count: int) -> Value:
    """Number `index` of `count` along a dim, which is dropped."""
    shape = list(shape_of(x))
    shape[axis] = 1
    part = k.kernel("part", [x], tensor_type(x).with_shape(shape), axis=axis, index=index, count=count)
    return k.squeeze(part, [axis])


@lowers("DeformConv")
def deform_conv(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    """What each place of the window sees is read at its offset, as rows of a product with the filters."""
    w, bias = op.operand_values[1], op.input(3)
    filters = tensor_type(w).static_shape if all_native(op) and rank_of(w) == 4 else None
    if filters is None or not dtype_of(op.result).is_float:
        return None
    sizes = op.attr("kernel_shape") or filters[2:]
    if tuple(sizes) != filters[2:]:
        return None
    group = op.attr("group") or 1
    columns = _columns(op, k, filters[2:])  # [n, c, oh, ow, taps]
    n, _, height, width, _ = shape_of(columns)
    outputs, inputs = filters[0] // group, filters[1]
    cut = k.transpose(k.split_axis(columns, 1, [group, inputs]), [0, 1, 3, 4, 5, 2])
    rows = k.merge_axes(k.merge_axes(cut, 2), 3)
    type = tensor(dtype_of(columns), [n, group, height * width, outputs])
    product = k.gemm(rows, _filters(k, w, filters, group), type)
    merged = k.merge_axes(k.transpose(product, [0, 1, 3, 2]), 1)
    counts = [_count(op, k, filters[2:], axis) for axis in range(2)]
    result_type = tensor_type(op.result).with_dtype(dtype_of(columns))
    result = k.reshape(merged, k.concat(np.zeros(2, np.int64), *counts, axis=0), result_type)
    if bias is not None:
        column = k.unsqueeze(widened(k, bias), [1, 2])
        result = k.map(lambda s, total, term: s.add(total, term), [result, column], result_type)
    return [narrowed(k, result, op.result)]


def _filters(k: KernelBuilder, w: Value, shape: Sequence[int], group: int) -> Value:
    """Filters [m, c, *kernel] as matrices [group, taps * c, m / group]."""
    data = data_of(w)
    outputs, inputs = shape[:2]
    if data is not None:
        cut = data.numpy().reshape(group, outputs // group, inputs, -1).transpose(0, 3, 2, 1)
        return widened(k, k.const(np.ascontiguousarray(cut.reshape(group, -1, outputs // group)), dtype_of(w)))
    flat = k.merge_axes(k.split_axis(widened(k, w), 0, [group, outputs // group]), 3)
    return k.merge_axes(k.transpose(flat, [0, 3, 2, 1]), 1)


def _columns(op: Operation, k: KernelBuilder, kernel: Sequence[int]) -> Value:
    """What the window sees: [n, c, *places, taps], computed in f32 at least."""
    x, offset = (widened(k, op.operand_values[index]) for index in (0, 2))
    mask = op.input(4)
    groups, taps = op.attr("offset_group") or 1, int(np.prod(kernel))
    cut = k.split_axis(offset, 1, [groups, taps, 2])
    places = [_placed(op, k, _part(k, cut, 3, axis, 2), kernel, axis) for axis in range(2)]
    if mask is not None:
        places.append(k.split_axis(widened(k, mask), 1, [groups, taps]))
    operands = [k.transpose(k.merge_axes(value, 0), [0, 2, 3, 1]) for value in places]
    if groups > 1:
        x = k.merge_axes(k.split_axis(x, 1, [groups, -1]), 0)
    images, own = shape_of(x)[:2]
    seen = tensor(dtype_of(x), [images, own, *shape_of(operands[0])[1:]])
    attributes: dict[str, Any] = {"has_factor": int(mask is not None), "channels_last": 1}
    found = k.kernel("sample", [x, *operands], seen, **attributes)
    return k.merge_axes(k.split_axis(found, 0, [-1, groups]), 1) if groups > 1 else found


def _placed(op: Operation, k: KernelBuilder, offset: Value, kernel: Sequence[int], axis: int) -> Value:
    """Offsets [n, groups, taps, oh, ow] along a dim as places in the image."""
    stride, dilation, before, _ = _window(op, axis)
    dtype = dtype_of(offset)
    count = k.squeeze_(_count(op, k, kernel, axis), np.array([0]))
    steps = k.cast(k.mul(k.range(np.array(0), count, np.array(1)), np.array(stride)), to=dtype.onnx_code)
    column = k.unsqueeze_(steps, np.array([1])) if axis == 0 else steps
    taps = np.indices(kernel)[axis].reshape(-1, 1, 1) * dilation - before
    across = k.add(column, k.const(taps.astype(dtype.numpy), dtype))
    return k.map(lambda s, moved, place: s.add(moved, place), [offset, across], tensor_type(offset))


def _window(op: Operation, axis: int) -> tuple[int, int, int, int]:
    """Stride and dilation of the window along a dim, and the padding before and after it."""
    strides, dilations, pads = op.attr("strides") or (1, 1), op.attr("dilations") or (1, 1), op.attr("pads") or (0,) * 4
    return strides[axis], dilations[axis], pads[axis], pads[axis + 2]


def _count(op: Operation, k: KernelBuilder, kernel: Sequence[int], axis: int) -> Value:
    """How many places the window has along a dim, [1]. Offsets for others do not fit."""
    stride, dilation, before, after = _window(op, axis)
    room = before + after - dilation * (kernel[axis] - 1) - 1
    size = k.shape(op.operand_values[0], start=2 + axis, end=3 + axis)
    count: Value = k.div(k.add(size, np.array([room + stride])), np.array([stride]))
    return count
