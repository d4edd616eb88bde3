"""The numpy meaning of Resize (ONNX Resize-19), one axis after the other.

Places in the operand are computed in f32, as ONNX Runtime does: with scales that are no sums of powers of two, the
nearest element depends on that. (onnx.reference computes them in f64.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .numeric import summable

if TYPE_CHECKING:
    from ..core import Operation


@dataclass(frozen=True)
class Axis:
    """How one axis changes: from `size` to `result` elements by `scale`; `start` and `end` crop it (0 to 1)."""

    index: int
    size: int
    result: int
    scale: np.float32
    start: float
    end: float


def resize(op: Operation, x: np.ndarray, roi: Any, scales: Any, sizes: Any) -> np.ndarray:
    """`x` resized; one of `scales` and `sizes` is given (None or empty otherwise), per axis of the `axes` attribute."""
    mode = op.attr("mode")
    cropped = op.attr("coordinate_transformation_mode") == "tf_crop_and_resize"
    result: Any = x if mode == "nearest" else summable(x) if x.dtype.kind not in "iu" else x.astype(np.float32)
    outside = np.zeros([1] * x.ndim, np.bool_)
    for axis in _axes(op, x.shape, roi, scales, sizes):
        if axis.size == axis.result and axis.scale == 1 and not cropped:
            continue
        places = _places(op, axis)
        if cropped:
            beyond = (places < 0) | (places > axis.size - 1)
            outside = outside | beyond.reshape([-1 if k == axis.index else 1 for k in range(x.ndim)])
        if mode == "nearest":
            result = np.take(result, _nearest(op.attr("nearest_mode"), places, axis.size), axis.index)
        else:
            weights = _interpolation(op, axis, places)
            product = np.tensordot(result, weights.astype(result.dtype), ([axis.index], [1]))
            result = np.moveaxis(product, -1, axis.index)
    if cropped:
        result = np.where(outside, result.dtype.type(op.attr("extrapolation_value")), result)
    if mode == "cubic" and x.dtype.kind in "iu":  # such curves go beyond the numbers that they join
        limits = np.iinfo(x.dtype)
        result = np.clip(result, limits.min, limits.max)
    return np.asarray(result).astype(x.dtype, copy=False)


def _axes(op: Operation, shape: tuple[int, ...], roi: Any, scales: Any, sizes: Any) -> list[Axis]:
    given = op.attr("axes")
    chosen = [axis % len(shape) for axis in (range(len(shape)) if given is None else given)]
    dims = [shape[axis] for axis in chosen]
    starts = [0.0] * len(chosen) if roi is None or not roi.size else [float(item) for item in roi[: len(chosen)]]
    ends = [1.0] * len(chosen) if roi is None or not roi.size else [float(item) for item in roi[len(chosen) :]]
    if sizes is not None and sizes.size:
        factors, results = _from_sizes(op, dims, [int(size) for size in sizes])
    else:
        factors = [np.float32(scale) for scale in scales]
        spans = zip(factors, starts, ends, strict=True)
        cropped = op.attr("coordinate_transformation_mode") == "tf_crop_and_resize"
        kept = [factor * np.float32(end - start) if cropped else factor for factor, start, end in spans]
        results = [math.floor(np.float32(dim) * factor) for dim, factor in zip(dims, kept, strict=True)]
    columns = zip(chosen, dims, results, factors, starts, ends, strict=True)
    return [Axis(*column) for column in columns]


def _from_sizes(op: Operation, dims: list[int], sizes: list[int]) -> tuple[list[np.float32], list[int]]:
    factors = [np.float32(size) / np.float32(dim) for size, dim in zip(sizes, dims, strict=True)]
    policy = op.attr("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return factors, sizes
    factor = min(factors) if policy == "not_larger" else max(factors)
    return [factor] * len(dims), [math.floor(float(factor) * dim + 0.5) for dim in dims]


def _places(op: Operation, axis: Axis) -> np.ndarray:
    """For each result element its fractional place in the operand, by `coordinate_transformation_mode`."""
    mode = op.attr("coordinate_transformation_mode")
    index = np.arange(axis.result, dtype=np.float32)
    half, one = np.float32(0.5), np.float32(1)
    if mode == "asymmetric":
        return index / axis.scale
    if mode == "align_corners":
        # The size before it is rounded down, as in ONNX's own tests; ONNX Runtime takes the rounded one.
        resized = axis.scale * np.float32(axis.size)
        return np.zeros_like(index) if axis.result == 1 else index * np.float32(axis.size - 1) / (resized - one)
    if mode == "tf_crop_and_resize":
        last, start, end = np.float32(axis.size - 1), np.float32(axis.start), np.float32(axis.end)
        if axis.result > 1:
            return start * last + index * (end - start) * last / np.float32(axis.result - 1)
        return half * (start + end) * last + index
    if mode == "pytorch_half_pixel" and axis.result <= 1:
        return np.zeros_like(index)
    if mode == "tf_half_pixel_for_nn":  # until opset 12
        return (index + half) / axis.scale
    offset = np.float32(0)
    if mode == "half_pixel_symmetric":
        # What rounding down the result's size cut off is taken from both ends.
        adjustment = np.float32(axis.result) / (axis.scale * np.float32(axis.size))
        offset = np.float32(axis.size) * half * (one - adjustment)
    return offset + (index + half) / axis.scale - half


def _nearest(mode: str, places: np.ndarray, size: int) -> np.ndarray:
    half = np.float32(0.5)
    if mode in ("floor", "round_prefer_ceil"):
        rounded = np.floor(places if mode == "floor" else places + half)
    else:
        rounded = np.ceil(places if mode == "ceil" else places - half)
    return np.asarray(np.clip(rounded.astype(np.int64), 0, size - 1))


def _interpolation(op: Operation, axis: Axis, places: np.ndarray) -> np.ndarray:
    """[result, operand] weights of the modes "linear" and "cubic"."""
    if op.attr("antialias"):
        return _antialiased(op, axis, places)
    return _linear(places, axis.size) if op.attr("mode") == "linear" else _cubic(op, places, axis.size)


def _linear(places: np.ndarray, size: int) -> np.ndarray:
    """[result, operand] weights; beyond the ends the end elements count."""
    inside = np.clip(places, 0, size - 1)
    low = np.floor(inside).astype(np.int64)
    fraction = inside - low
    return _weights(np.stack([low, np.minimum(low + 1, size - 1)], 1), np.stack([1 - fraction, fraction], 1), size)


def _cubic(op: Operation, places: np.ndarray, size: int) -> np.ndarray:
    """[result, operand] weights of Keys 1981 with the free parameter `cubic_coeff_a`."""
    taps = np.floor(places)[:, None] + np.arange(-1, 3, dtype=np.float32)
    weights = _keys(op, np.abs(places[:, None] - taps))
    return _at_the_ends(op, taps, weights, size)


def _keys(op: Operation, distance: np.ndarray) -> np.ndarray:
    """The weight of an element at a distance of 0 to 2, and 0 beyond."""
    a = np.float32(op.attr("cubic_coeff_a"))
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0))


def _antialiased(op: Operation, axis: Axis, places: np.ndarray) -> np.ndarray:
    """[result, operand] weights: where the result has fewer elements, each sees as many more as there are fewer."""
    scale = min(axis.scale, np.float32(1))
    reach = math.floor((1 if op.attr("mode") == "linear" else 2) / scale) + 1
    taps = np.floor(places)[:, None] + np.arange(-reach, reach + 1, dtype=np.float32)
    distance = np.abs(places[:, None] - taps) * scale
    weights = np.maximum(1 - distance, 0) if op.attr("mode") == "linear" else _keys(op, distance)
    return _at_the_ends(op, taps, weights / weights.sum(axis=1, keepdims=True), axis.size)


def _at_the_ends(op: Operation, taps: np.ndarray, weights: np.ndarray, size: int) -> np.ndarray:
    """[result, operand] weights: what lies outside counts as the element at the end, or with `exclude_outside` not."""
    if op.attr("exclude_outside"):
        weights = np.where((taps >= 0) & (taps < size), weights, 0)
        weights = weights / weights.sum(axis=1, keepdims=True)
    return _weights(np.clip(taps, 0, size - 1).astype(np.int64), weights, size)


def _weights(taps: np.ndarray, weights: np.ndarray, size: int) -> np.ndarray:
    matrix = np.zeros((len(taps), size), np.float32)
    np.add.at(matrix, (np.arange(len(taps))[:, None], taps), weights)
    return matrix


def resized(op: Operation, shape: tuple[int, ...], roi: Any, scales: Any, sizes: Any) -> tuple[int, ...]:
    """The shape of the result."""
    result = list(shape)
    for axis in _axes(op, shape, roi, scales, sizes):
        result[axis.index] = axis.result
    return tuple(result)


def matrices(op: Operation, shape: tuple[int, ...], roi: Any, scales: Any, sizes: Any) -> list[tuple[int, np.ndarray]]:
    """For each axis that changes, the matrix [result, operand] by which Resize multiplies along it."""
    found: list[tuple[int, np.ndarray]] = []
    cropped = op.attr("coordinate_transformation_mode") == "tf_crop_and_resize"
    for axis in _axes(op, shape, roi, scales, sizes):
        if axis.size == axis.result and axis.scale == 1 and not cropped:
            continue
        places = _places(op, axis)
        if op.attr("mode") == "nearest":
            chosen = _nearest(op.attr("nearest_mode"), places, axis.size)
            matrix = np.eye(axis.size, dtype=np.float32)[chosen]
        else:
            matrix = _interpolation(op, axis, places)
        if cropped:
            matrix = np.where(((places < 0) | (places > axis.size - 1))[:, None], np.float32(0), matrix)
        found.append((axis.index, matrix))
    return found
