"""The numpy meaning of ConvTranspose (ONNX ConvTranspose-22) for any rank and any number of groups."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from .numeric import summable

if TYPE_CHECKING:
    from ..core import Operation
    from .convolution import Window


def conv_transpose(op: Operation, window: Window, x: np.ndarray, w: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """x [n, c, *spatial] and w [c, m / group, *kernel] give [n, m, *result]: each element adds a scaled kernel."""
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
    for place in itertools.product(*map(range, kernel)):
        weights: Any = (..., *place)
        part = np.einsum("ngc...,gco->ngo...", columns, filters[weights])
        steps = zip(place, window.dilations, window.strides, spatial, strict=True)
        target = [
            slice(k * dilation, k * dilation + (size - 1) * stride + 1, stride) for k, dilation, stride, size in steps
        ]
        where: Any = (..., *target)
        result[where] += part
    result = _cropped(op, window, result.reshape(count, groups * outputs, *full), spatial)
    if bias is not None:
        result = result + summable(bias).reshape(-1, *[1] * len(spatial))
    return result.astype(x.dtype, copy=False)


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
