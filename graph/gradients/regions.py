"""Pools over regions of an image, made of matrix products and reductions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .rules import Adjoint, Refusal, gradient_of, parts_of

if TYPE_CHECKING:
    from ..core import Operation, Value
    from .builder import GradientBuilder


def _column(b: GradientBuilder, regions: Value, index: int) -> Value:
    """One coordinate of all regions, [regions, 1, 1]."""
    found = b.gather(regions, b.integer(index), axis=1)
    result: Value = b.unsqueeze(found, b.ints([1, 2]))
    return result


@gradient_of("RoiAlign")
def roi_align_of_maxima(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint] | None:
    """Only averages are linear in the image."""
    return None if op.attr("mode") == "avg" else [Refusal('mode "max" has no rule, mode "avg" has one')] * 2


@parts_of("RoiAlign")
def roi_align(op: Operation, b: GradientBuilder) -> Sequence[Value]:
    """Bilinear samples on a grid, averaged per cell (He et al. 2017): rows and columns of an image are weighted apart,
    so each region is rows @ image @ columns^T."""
    x, regions, batch = op.operand_values
    images = b.gather(x, batch, axis=0)
    rows = _sample_weights(op, b, x, regions, 1, op.attr("output_height"), 2)
    columns = _sample_weights(op, b, x, regions, 0, op.attr("output_width"), 3)
    one = b.ints([1])
    across = b.transpose(b.unsqueeze(columns, one), perm=[0, 1, 3, 2])
    return [b.matmul(b.matmul(b.unsqueeze(rows, one), images), across)]


def _sample_weights(
    op: Operation, b: GradientBuilder, x: Value, regions: Value, first: int, cells: int, axis: int
) -> Value:
    """[regions, cells, size of the axis]: how much each element of x along `axis` counts for each cell."""
    scale, ratio = op.attr("spatial_scale"), op.attr("sampling_ratio")
    half = op.attr("coordinate_transformation_mode") == "half_pixel"
    low, high = (b.mul(_column(b, regions, first + k), scale) for k in (0, 2))
    extent = b.sub(high, low)
    if half:
        low = b.sub(low, 0.5)
    else:
        extent = b.max(extent, 1.0)
    cell = b.mul(extent, 1 / cells)
    count = b.number(x, float(ratio)) if ratio else b.max(b.ceil(cell), 1.0)
    most = b.reduce_max(count, keepdims=0)
    samples = b.range(b.number(x, 0.0), most, b.number(x, 1.0))
    numbers = b.const(np.arange(cells).reshape(1, cells, 1), b.dtype(x))
    offset = b.div(b.mul(b.add(samples, 0.5), cell), count)
    places = b.add(b.add(low, b.mul(numbers, cell)), offset)
    size = b.cast(b.squeeze(b.dim(x, axis), b.ints([0])), to=b.dtype(x))
    inside = b.and_(b.greater_or_equal(places, -1.0), b.less_or_equal(places, size))
    counted = b.and_(inside, b.less(samples, count))
    clamped = b.unsqueeze(b.min(b.max(places, 0.0), b.sub(size, 1.0)), b.ints([-1]))
    elements = b.range(b.number(x, 0.0), size, b.number(x, 1.0))
    tent = b.relu(b.sub(1.0, b.abs(b.sub(clamped, elements))))
    weights = b.where(b.unsqueeze(counted, b.ints([-1])), tent, b.number(x, 0.0))
    result: Value = b.div(b.reduce_sum(weights, b.ints([2]), keepdims=0), count)
    return result


@parts_of("MaxRoiPool")
def max_roi_pool(op: Operation, b: GradientBuilder) -> Sequence[Value]:
    """The greatest element of each part: over masked rows, then over masked columns. An empty part gives 0."""
    from ..dtypes import i64

    x, regions = op.operand_values
    images = b.gather(x, b.cast(b.gather(regions, b.integer(0), axis=1), to=i64), axis=0)
    height, width = op.attr("pooled_shape")
    rows = _part_mask(op, b, x, regions, 2, height, 2)
    columns = _part_mask(op, b, x, regions, 1, width, 3)
    lowest = b.number(x, float(np.finfo(np.float32).min))
    # [regions, c, part, h, w] over h, then [regions, c, part, part, w] over w.
    tall = b.where(b.unsqueeze(rows, b.ints([1, 4])), b.unsqueeze(images, b.ints([2])), lowest)
    tall = b.reduce_max(tall, b.ints([3]), keepdims=0)
    wide = b.where(b.unsqueeze(columns, b.ints([1, 2])), b.unsqueeze(tall, b.ints([3])), lowest)
    found = b.reduce_max(wide, b.ints([4]), keepdims=0)
    return [b.where(b.greater(found, lowest), found, b.number(x, 0.0))]


def _part_mask(op: Operation, b: GradientBuilder, x: Value, regions: Value, first: int, parts: int, axis: int) -> Value:
    """[regions, parts, size of the axis]: which elements belong to each part."""
    low, high = (b.floor(b.add(b.mul(_column(b, regions, first + k), op.attr("spatial_scale")), 0.5)) for k in (0, 2))
    step = b.mul(b.max(b.add(b.sub(high, low), 1.0), 1.0), 1 / parts)
    numbers = b.const(np.arange(parts).reshape(1, parts, 1), b.dtype(x))
    start = b.add(low, b.floor(b.mul(numbers, step)))
    stop = b.add(low, b.ceil(b.mul(b.add(numbers, 1.0), step)))
    elements = b.cast(b.arange(b.dim(x, axis)), to=b.dtype(x))
    result: Value = b.and_(b.greater_or_equal(elements, start), b.less(elements, stop))
    return result
