"""The numpy meaning of the pools, on strided views of the padded operand; onnx.reference loops in Python instead."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..diagnostics import ExecutionError
from .numeric import summable

if TYPE_CHECKING:
    from ..dims import Dim
    from .convolution import Window


def max_pool(x: np.ndarray, window: Window, column_major: bool) -> tuple[np.ndarray, np.ndarray]:
    """The greatest element of each window, and its index in the flattened operand (ONNX MaxPool-22).

    The index counts the spatial dims in column-major order on demand; of equal elements the first one counts.
    """
    lowest = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else x.dtype.type(-np.inf)
    values = _flat(_windows(x, window, lowest), x.ndim)
    chosen = values.argmax(axis=-1)
    spatial = x.shape[2:]
    size = int(np.prod(spatial))
    places = np.arange(size).reshape(spatial[::-1]).T if column_major else np.arange(size).reshape(spatial)
    indices = _flat(_windows(places[None, None], window, -1), x.ndim)[0, 0]
    found = np.take_along_axis(np.broadcast_to(indices, (*x.shape[:2], *indices.shape)), chosen[..., None], -1)
    planes = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *[1] * len(spatial))
    return values.max(axis=-1), found[..., 0] + planes * size


def average_pool(x: np.ndarray, window: Window, count_padding: bool) -> np.ndarray:
    """The mean of each window over the elements that are there, or over the padding too (ONNX AveragePool-22)."""
    total = _flat(_windows(summable(x), window, 0), x.ndim).sum(axis=-1)
    here = np.ones((1, 1, *x.shape[2:]), np.int64)
    if count_padding:
        before, after = pads_of(window, x.shape[2:])
        here = np.pad(here, [(0, 0), (0, 0), *zip(before, after, strict=True)], constant_values=1)
        counted = _flat(_windows(here, window, 0, padded=True, of=x.shape[2:]), x.ndim)
    else:
        counted = _flat(_windows(here, window, 0), x.ndim)
    return np.asarray(total / counted.sum(axis=-1).astype(total.dtype)).astype(x.dtype)


def lp_pool(x: np.ndarray, window: Window, p: int) -> np.ndarray:
    """(sum |x|^p)^(1/p) over each window (ONNX LpPool-22)."""
    return lp_norm(_flat(_windows(x, window, 0), x.ndim), p, -1)


def lp_norm(x: np.ndarray, p: int, axes: int | tuple[int, ...], keepdims: bool = False) -> np.ndarray:
    """(sum |x|^p)^(1/p) along `axes`, in the dtype of x."""
    powers = np.abs(summable(x)) ** p
    return np.asarray(powers.sum(axis=axes, keepdims=keepdims) ** (1.0 / p)).astype(x.dtype)


def _windows(
    x: np.ndarray, window: Window, fill: Any, padded: bool = False, of: Sequence[int] | None = None
) -> np.ndarray:
    """A view [n, c, *positions, *kernel] of x, padded with `fill`. `padded` says that the declared pads are there
    already, `of` then gives the spatial dims without them."""
    spatial = x.shape[2:] if of is None else tuple(of)
    before, after = pads_of(window, spatial)
    if 0 in spatial:
        raise ExecutionError("run/window", f"there are no windows over {list(spatial)}: a pool takes no dims of 0")
    counts = [number(window.positions(axis, size)) for axis, size in enumerate(spatial)]
    if min(counts, default=1) < 0:
        raise ExecutionError("run/window", f"a window of {list(window.kernel)} is larger than {list(spatial)}")
    if 0 in counts:
        return np.empty((*x.shape[:2], *counts, *map(number, window.kernel)), x.dtype)
    spans, widths = [], []
    for axis, size in enumerate(spatial):
        span, there = number(window.span(axis)), size + before[axis] + after[axis]
        if counts[axis] == 1 and span > there:
            # Some exports pool "everything" with a window of thousands of elements: only what meets the operand counts.
            span = (there - 1) // window.dilations[axis] * window.dilations[axis] + 1
        missing = max((counts[axis] - 1) * window.strides[axis] + span - there, 0)
        widths.append((0, missing) if padded else (before[axis], after[axis] + missing))
        spans.append(span)
    wide = np.pad(x, [(0, 0), (0, 0), *widths], constant_values=fill)
    views = np.lib.stride_tricks.sliding_window_view(wide, spans, tuple(range(2, x.ndim)))
    steps = [
        slice(0, max((count - 1) * stride + 1, 0), stride) for count, stride in zip(counts, window.strides, strict=True)
    ]
    dilated = [slice(None, None, dilation) for dilation in window.dilations]
    return views[(slice(None), slice(None), *steps, *dilated)]


def _flat(windows: np.ndarray, rank: int) -> np.ndarray:
    """The kernel dims as one last dim."""
    return windows.reshape(*windows.shape[:rank], math.prod(windows.shape[rank:]))


def pads_of(window: Window, spatial: Sequence[int]) -> tuple[list[int], list[int]]:
    """Elements before and after each spatial dim; SAME_* takes what the positions need, an odd one after or before."""
    if not window.auto_pad.startswith("SAME"):
        return list(window.before), list(window.after)
    before, after = [], []
    for axis, size in enumerate(spatial):
        count = -(-size // window.strides[axis])
        total = max((count - 1) * window.strides[axis] + number(window.span(axis)) - size, 0)
        smaller = total // 2
        before.append(smaller if window.auto_pad == "SAME_UPPER" else total - smaller)
        after.append(total - before[-1])
    return before, after


def number(dim: Dim) -> int:
    """A dim of a window over an array, where none is symbolic."""
    assert isinstance(dim, int)
    return dim
