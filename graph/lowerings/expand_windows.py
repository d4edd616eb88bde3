"""What looks at windows of a tensor, in terms of pools, gathers and scatters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..builder import OpBuilder
from ..core import Operation, Value
from ..kernel.index_ops import block_places
from ..ops.convolution import Window
from ..types import TensorType
from .builder import constant_ints, dtype_of, is_native, rank_of, tensor_type
from .expansions import expands
from .indexing import are_side_by_side

_WINDOW = ("strides", "pads", "dilations", "auto_pad")


def _static(value: Value) -> tuple[int, ...] | None:
    type = value.type
    return type.static_shape if isinstance(type, TensorType) and is_native(value) else None


@expands("LpPool")
def lp_pool(op: Operation, b: OpBuilder) -> Sequence[Value] | None:
    """The root of the mean of powers, times the number of elements that it is of: all of the window, those of it that
    the padded operand has (see `Window.is_cut`) or, with `ceil_mode`, those of the operand."""
    x, result = op.operand_values[0], tensor_type(op.result).static_shape
    if not is_native(x) or not dtype_of(x).is_float:
        return None
    kernel, p = tuple(op.attr("kernel_shape")), op.attr("p")
    attributes: dict[str, Any] = {name: op.attr(name) for name in _WINDOW if op.attr(name) is not None}
    dtype = dtype_of(x).numpy
    window, shape = Window.of(op, kernel), _static(x)
    if op.attr("ceil_mode"):
        if shape is None or result is None:
            return None
        inside = (_window_places(window, shape[2:], result[2:]) >= 0).sum(axis=1).reshape(result[2:])
        count = b.const(inside.astype(dtype))
        attributes["ceil_mode"] = 1
    else:
        count = _window_count(b, x, window)
    powers = b.pow(b.abs(x), b.const(np.array(p, dtype)))
    includes_pad = int(not op.attr("ceil_mode"))
    mean = b.average_pool(powers, kernel_shape=kernel, count_include_pad=includes_pad, **attributes)
    return [b.pow(b.mul(mean, count), b.const(np.array(1 / p, dtype)))]


def _window_count(b: OpBuilder, x: Value, window: Window) -> Value:
    """How many elements of the padded operand each window has; one that is cut is the only one in its dim."""
    kernel, dtype = np.array(window.kernel, np.int64), dtype_of(x).numpy
    dilations, padded = np.array(window.dilations), np.add(window.before, window.after)
    can_be_cut = window.auto_pad not in ("SAME_UPPER", "SAME_LOWER") and max(window.strides) > 1
    shape = _static(x)
    if not can_be_cut or shape is not None:
        there = kernel if shape is None or not can_be_cut else -(-(np.array(shape[2:]) + padded) // dilations)
        return b.const(np.array(np.minimum(kernel, there).prod(), dtype))
    sizes = b.slice(b.shape(x), b.const(np.array([2])), b.const(np.array([rank_of(x)])))
    there = b.div(b.add(sizes, b.const(padded + dilations - 1)), b.const(dilations))
    count: Value = b.cast(b.reduce_prod(b.min(there, b.const(kernel)), keepdims=0), to=dtype_of(x))
    return count


@expands("GlobalLpPool")
def global_lp_pool(op: Operation, b: OpBuilder) -> Sequence[Value] | None:
    x = op.operand_values[0]
    if not is_native(x) or not dtype_of(x).is_float:
        return None
    p, dtype = op.attr("p"), dtype_of(x).numpy
    powers = b.pow(b.abs(x), b.const(np.array(p, dtype)))
    total = b.reduce_sum(powers, np.arange(2, rank_of(x)), keepdims=1)
    return [b.pow(total, b.const(np.array(1 / p, dtype)))]


@expands("LRN")
def lrn(op: Operation, b: OpBuilder) -> Sequence[Value] | None:
    """The mean of squares of neighbouring channels is a pool along the channels."""
    x = op.operand_values[0]
    if not is_native(x) or not dtype_of(x).is_float or rank_of(x) < 3:
        return None
    size, dtype = int(op.attr("size")), dtype_of(x).numpy
    before, after = (size - 1) // 2, size // 2
    shape = b.shape(x)
    # Nothing leaves -1 open, and 0 is a size.
    flat = b.concat(b.shape(x, end=2), b.reduce_prod(b.shape(x, start=2)), axis=0)
    squares = b.reshape(b.mul(x, x), flat, allowzero=1)
    pooled = b.average_pool(
        b.unsqueeze(squares, np.array([1])), kernel_shape=(size, 1), pads=(before, 0, after, 0), count_include_pad=1
    )
    mean = b.reshape(b.squeeze(pooled, np.array([1])), shape, allowzero=1)
    bias, alpha = (b.const(np.array(op.attr(name), dtype)) for name in ("bias", "alpha"))
    root = b.pow(b.add(bias, b.mul(alpha, mean)), b.const(np.array(op.attr("beta"), dtype)))
    return [b.div(x, root)]


@expands("MaxPool")
def max_pool(op: Operation, b: OpBuilder) -> Sequence[Value] | None:
    """Of bytes by way of floats; with the indices of what was chosen by gathering each window."""
    x = op.operand_values[0]
    shape = _static(x)
    wants_indices = any(result.uses for result in op.results[1:])
    attributes: dict[str, Any] = {name: op.attr(name) for name in _WINDOW if op.attr(name) is not None}
    kernel = tuple(op.attr("kernel_shape"))
    if not wants_indices:
        if not is_native(x) or dtype_of(x).name == "f32":
            return None
        if dtype_of(x).bits <= 16:
            pooled = b.max_pool(b.cast(x, to=1), kernel_shape=kernel, ceil_mode=op.attr("ceil_mode"), **attributes)
            return [b.cast(pooled, to=dtype_of(x).onnx_code)] * len(op.results)
    if shape is None or tensor_type(op.results[0]).static_shape is None:
        return None
    sizes = tensor_type(op.results[0]).static_shape or ()
    places = _window_places(Window.of(op, kernel), shape[2:], sizes[2:])
    inside = places >= 0
    flat = b.reshape(x, np.array([*shape[:2], -1]))
    taken = b.gather(flat, b.const(np.where(inside, places, 0)), axis=2)
    least = -np.inf if dtype_of(x).is_float else np.iinfo(dtype_of(x).numpy).min
    chosen = b.where(b.const(inside), taken, b.const(np.array(least, dtype_of(x).numpy)))
    greatest = b.reduce_max(chosen, np.array([3]), keepdims=0)
    results = [b.reshape(greatest, np.array(sizes))]
    if len(op.results) > 1:
        best = b.argmax(chosen, axis=3, keepdims=1)
        numbers = _numbered(places, shape[2:], bool(op.attr("storage_order")))
        spread = b.expand(b.const(numbers), b.const(np.array([*sizes[:2], *numbers.shape])))
        index = b.squeeze(b.gather_elements(spread, best, axis=3), np.array([3]))
        planes = np.arange(shape[0] * shape[1]).reshape(shape[0], shape[1], 1) * math.prod(shape[2:])
        results.append(b.reshape(b.add(index, b.const(planes)), np.array(sizes)))
    return results


def _window_places(window: Any, spatial: Sequence[int], places: Sequence[int]) -> np.ndarray:
    """For each place of the result, the flat indices that its window sees; -1 outside of the image."""
    axes = []
    for axis, count in enumerate(places):
        before = window.before[axis]
        if window.auto_pad.startswith("SAME"):
            missing = max((count - 1) * window.strides[axis] + int(window.span(axis)) - spatial[axis], 0)
            before = missing // 2 if window.auto_pad == "SAME_UPPER" else missing - missing // 2
        starts = np.arange(count) * window.strides[axis] - before
        reach = starts[:, None] + np.arange(window.kernel[axis]) * window.dilations[axis]
        axes.append(np.where((reach >= 0) & (reach < spatial[axis]), reach, -1))
    # Places of all dims, then taps of all dims.
    rank, flat, inside = len(places), np.zeros((1,) * 2 * len(places), np.int64), np.array(True)
    for axis, reach in enumerate(axes):
        seen = reach.reshape([n if i == axis else 1 for i in range(rank) for n in reach.shape[:1]]
                             + [n if i == axis else 1 for i in range(rank) for n in reach.shape[1:]])  # fmt: skip
        flat, inside = flat * spatial[axis] + seen, inside & (seen >= 0)
    return np.where(inside, flat, -1).reshape(math.prod(places), math.prod(window.kernel))


def _numbered(places: np.ndarray, spatial: Sequence[int], columns_first: bool) -> np.ndarray:
    if not columns_first:
        return np.asarray(np.maximum(places, 0))
    apart = np.unravel_index(np.maximum(places, 0), spatial)
    return np.asarray(np.ravel_multi_index(apart[::-1], tuple(spatial)[::-1]), np.int64)


@expands("MaxUnpool")
def max_unpool(op: Operation, b: OpBuilder) -> Sequence[Value] | None:
    """Each element where its index says; the rest of a larger result is 0."""
    x, indices = op.operand_values[:2]
    shape = _static(x)
    wanted = constant_ints(op.input(2))
    if shape is None or not is_native(indices) or (wanted is None and op.input(2) is not None):
        return None
    kernel = op.attr("kernel_shape")
    strides, pads = op.attr("strides") or (1,) * len(kernel), op.attr("pads") or (0,) * (2 * len(kernel))
    spatial = [
        (size - 1) * strides[a] - pads[a] - pads[a + len(kernel)] + kernel[a] for a, size in enumerate(shape[2:])
    ]
    whole = (*shape[:2], *spatial)
    zeros = b.const(np.zeros(math.prod(whole), dtype_of(x).numpy))
    flat = np.array([-1])
    placed = b.reshape(b.scatter_elements(zeros, b.reshape(indices, flat), b.reshape(x, flat)), np.array(whole))
    if wanted is None or tuple(wanted) == whole:
        return [placed]
    beyond = [size - had for size, had in zip(wanted, whole, strict=True)]
    if min(beyond) < 0:
        return None
    return [b.pad(placed, np.array([0] * len(whole) + beyond))]


@expands("Col2Im")
def col2im(op: Operation, b: OpBuilder) -> Sequence[Value] | None:
    """Blocks side by side are moved to their places; what pads cut off, and what no block reaches, is put right."""
    x = op.operand_values[0]
    shape, image, block = _static(x), constant_ints(op.input(1)), constant_ints(op.input(2))
    if shape is None or image is None or block is None or not are_side_by_side(op, block):
        return None
    rank = len(image)
    pads = tuple(op.attr("pads") or (0,) * (2 * rank))
    places = block_places(image, block, block, (1,) * rank, pads)
    apart = b.reshape(x, np.array([shape[0], shape[1] // math.prod(block), *block, *places]))
    order = [axis + offset for axis in range(rank) for offset in (2 + rank, 2)]
    whole = [count * size for count, size in zip(places, block, strict=True)]
    laid = b.reshape(b.transpose(apart, perm=[0, 1, *order]), np.array([*shape[:1], -1, *whole]))
    after = [image[axis] + pads[axis] - whole[axis] for axis in range(rank)]
    if not any((*pads[:rank], *after)):
        return [laid]
    return [b.pad(laid, np.array([0, 0, *(-pad for pad in pads[:rank]), 0, 0, *after]))]
