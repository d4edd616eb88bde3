"""The numpy meaning of Conv and ConvTranspose (ONNX Conv-22, ConvTranspose-22) for any rank and number of groups.

Both go over the places of the kernel, and multiply the matrices of one place at a time: no more memory than the
result takes twice, and numpy's matrix product does the work.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .numeric import summable
from .pooling_numeric import number, pads_of

if TYPE_CHECKING:
    from ..core import Operation
    from .convolution import Window


def conv(window: Window, groups: int, x: np.ndarray, w: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """x [n, c, *spatial] and w [m, c / group, *kernel] give [n, m, *places of the window]."""
    spatial, kernel = x.shape[2:], w.shape[2:]
    count, channels, outputs = x.shape[0], x.shape[1] // groups, w.shape[0] // groups
    before, after = pads_of(window, spatial)
    padded = np.pad(summable(x), [(0, 0), (0, 0), *zip(before, after, strict=True)])
    filters = summable(w).reshape(groups, outputs, channels, *kernel)
    places = [number(window.positions(axis, size)) for axis, size in enumerate(spatial)]
    result = np.zeros((count, groups, outputs, math.prod(places)), np.result_type(padded, filters))
    for place in itertools.product(*map(range, kernel)):
        steps = zip(place, window.dilations, window.strides, places, strict=True)
        source = [slice(k * d, k * d + (size - 1) * stride + 1, stride) for k, d, stride, size in steps]
        where, weights = cast(Any, (..., *source)), cast(Any, (..., *place))
        result += _products(filters[weights], padded[where].reshape(count, groups, channels, math.prod(places)))
    if bias is not None:
        result += summable(bias).reshape(groups, outputs, 1)
    return result.reshape(count, groups * outputs, *places).astype(x.dtype, copy=False)


def _products(filters: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """filters [g, o, c] times columns [n, g, c, places]: [n, g, o, places]."""
    # With one channel a group (depthwise) a product of matrices is many tiny ones.
    return np.asarray(filters * columns if columns.shape[2] == 1 else filters @ columns)


def conv_transpose(op: Operation, window: Window, x: np.ndarray, w: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """x [n, c, *spatial] and w [c, m / group, *kernel] give [n, m, *result]: each element adds a scaled kernel.
    Raises ValueError as `transposed_sizes` does."""
    spatial, groups, count, outputs = x.shape[2:], op.attr("group"), x.shape[0], w.shape[1]
    _, sizes = transposed_sizes(op, window, spatial)
    if 0 in spatial:
        result = np.zeros((count, groups * outputs, *sizes), summable(x).dtype)
    else:
        result = _cropped(op, window, _added_kernels(op, window, x, w), spatial)
    if bias is not None:
        result = result + summable(bias).reshape(-1, *[1] * len(spatial))
    return result.astype(x.dtype, copy=False)


def _added_kernels(op: Operation, window: Window, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """All of the result, before pads are taken off; there is an element at least along each dim of x."""
    spatial, kernel, groups = x.shape[2:], w.shape[2:], op.attr("group")
    count, channels, outputs = x.shape[0], x.shape[1] // groups, w.shape[1]
    columns = summable(x).reshape(count, groups, channels, *spatial)
    filters = summable(w).reshape(groups, channels, outputs, *kernel)
    extra = op.attr("output_padding") or [0] * len(spatial)
    spans = [dilation * (size - 1) + 1 for dilation, size in zip(window.dilations, kernel, strict=True)]
    full = [
        stride * (size - 1) + span + more
        for stride, size, span, more in zip(window.strides, spatial, spans, extra, strict=True)
    ]
    result = np.zeros((count, groups, outputs, *full), np.result_type(columns, filters))
    flat = columns.reshape(count, groups, channels, math.prod(spatial))
    for place in itertools.product(*map(range, kernel)):
        weights: Any = (..., *place)
        part = _products(filters[weights].swapaxes(1, 2), flat).reshape(count, groups, outputs, *spatial)
        steps = zip(place, window.dilations, window.strides, spatial, strict=True)
        target = [
            slice(k * dilation, k * dilation + (size - 1) * stride + 1, stride) for k, dilation, stride, size in steps
        ]
        where: Any = (..., *target)
        result[where] += part
    return result.reshape(count, groups * outputs, *full)


def _cropped(op: Operation, window: Window, full: np.ndarray, spatial: tuple[int, ...]) -> np.ndarray:
    """`full` without its pads; a negative pad adds zeros."""
    for axis, size in enumerate(full.shape[2:]):
        before, after = _pads(op, window, axis, size, spatial[axis])
        full = np.pad(
            full, [(0, 0)] * (axis + 2) + [(max(-before, 0), max(-after, 0))] + [(0, 0)] * (full.ndim - axis - 3)
        )
        kept = slice(max(before, 0), full.shape[axis + 2] - max(after, 0))
        full = full[(slice(None),) * (axis + 2) + (kept,)]
    return full


def _pads(op: Operation, window: Window, axis: int, full: int, size: int) -> tuple[int, int]:
    """What to take off at both ends: the pads, or what makes the result as large as it is asked to be."""
    fixed = op.attr("output_shape")
    if not fixed and not window.auto_pad.startswith("SAME"):
        return window.before[axis], window.after[axis]
    wanted = fixed[len(fixed) - len(window.strides) + axis] if fixed else size * window.strides[axis]
    total = full - wanted
    smaller = total // 2
    return (smaller, total - smaller) if window.auto_pad == "SAME_UPPER" else (total - smaller, smaller)


def conv_weight_gradient(op: Operation, x: np.ndarray, grad: np.ndarray) -> np.ndarray:
    """The adjoint of Conv's weight, [m, c / group, *kernel], for x [n, c, *spatial] and grad [n, m, *places]."""
    kernel, groups = tuple(op.attr("kernel_shape")), op.attr("group")
    rank = len(kernel)
    strides, dilations = op.attr("strides") or (1,) * rank, op.attr("dilations") or (1,) * rank
    pads = op.attr("pads") or (0,) * (2 * rank)
    count, channels, outputs = x.shape[0], x.shape[1] // groups, grad.shape[1] // groups
    places = grad.shape[2:]
    padded = np.pad(summable(x), [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    flat = summable(grad).reshape(count, groups, outputs, -1)
    result = np.zeros((groups, outputs, channels, *kernel), np.result_type(padded, flat))
    for place in itertools.product(*map(range, kernel)):
        steps = zip(place, dilations, strides, places, strict=True)
        source = [slice(k * d, k * d + (size - 1) * stride + 1, stride) for k, d, stride, size in steps]
        where, weights = cast(Any, (..., *source)), cast(Any, (..., *place))
        columns = padded[where].reshape(count, groups, channels, -1)
        result[weights] = np.einsum("ngop,ngcp->goc", flat, columns)
    return result.reshape(groups * outputs, channels, *kernel).astype(x.dtype, copy=False)


def transposed_sizes(op: Operation, window: Window, spatial: Sequence[int]) -> tuple[list[int], list[int]]:
    """What is taken off the full result of a transposed convolution in front of each dim, and the sizes of what is
    left. Raises ValueError where a size would be negative."""
    extra = op.attr("output_padding") or [0] * len(spatial)
    before, sizes = [], []
    for axis, size in enumerate(spatial):
        span = window.dilations[axis] * (number(window.kernel[axis]) - 1) + 1
        full = window.strides[axis] * (size - 1) + span + extra[axis]
        low, high = _pads(op, window, axis, full, size)
        before.append(low)
        sizes.append(full - low - high)
    if any(size < 0 for size in sizes):
        raise ValueError(f"pads leave less than nothing of {list(spatial)}")
    return before, sizes
