"""Resampling: spatial dims of another size, or elements read at places that are computed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..dims import Dim
from ..opdef import op
from .common import (
    Shape,
    TensorOp,
    constant_ints,
    element_dim,
    error,
    format_shape,
    has_operand,
    length_of,
    normalize_axes,
    quotient,
    require_rank,
    result_elements,
    shape_of,
    times,
    unknown_dims,
    vector_elements,
)
from .grid_sample_numeric import grid_sample
from .resize_numeric import resize

if TYPE_CHECKING:
    from ..core import Operation
    from ..infer import InferenceContext

# A dim times a scale is computed in f32; it is exact for a scale of this many significant bits and dims below 65536.
EXACT_SCALE_BITS = 8


@op("Resize")
class Resize(TensorOp):
    """Interpolates to `sizes`, or by `scales`, along `axes`."""

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        shape = shape_of(op, 0)
        if shape is None:
            return unknown_dims(self._rank(op), context)
        given = op.attr("axes")
        axes = normalize_axes(range(len(shape)) if given is None else given, len(shape), op)
        # Exporters leave out an operand by an empty one, too.
        by_size = has_operand(op, 3) and length_of(op, 3) != 0
        self._check_count(op, 3 if by_size else 2, len(axes), shape)
        chosen = [shape[axis] for axis in axes]
        sizes = self._sizes(op, chosen, context) if by_size else self._scaled(op, chosen, context)
        result = list(shape)
        for axis, size in zip(axes, sizes, strict=True):
            result[axis] = size
        return result

    def _rank(self, op: Operation) -> int | None:
        if op.attr("axes") is not None:
            return None
        return length_of(op, 3) or length_of(op, 2)

    def _check_count(self, op: Operation, index: int, axes: int, shape: Shape) -> None:
        count = length_of(op, index)
        if count is not None and count != axes:
            raise error(
                "shape/resize", f"resize of {format_shape(shape)} along {axes} axes has {count} sizes or scales"
            )

    def _sizes(self, op: Operation, dims: list[Dim], context: InferenceContext) -> Sequence[Dim]:
        sizes = vector_elements(op, 3, context)
        if sizes is None:
            return [context.fresh() for _ in dims]
        policy = op.attr("keep_aspect_ratio_policy", "stretch")
        if policy == "stretch":
            return [element_dim(size, context) for size in sizes]
        known = [dim for dim in dims if isinstance(dim, int) and dim > 0]
        wanted = [size for size in sizes if isinstance(size, int)]
        if len(known) < len(dims) or len(wanted) < len(dims):
            return [context.fresh() for _ in dims]
        ratios = [size / dim for size, dim in zip(wanted, known, strict=True)]
        ratio = min(ratios) if policy == "not_larger" else max(ratios)
        return [math.floor(ratio * dim + 0.5) for dim in known]

    def _scaled(self, op: Operation, dims: list[Dim], context: InferenceContext) -> Sequence[Dim]:
        scales = context.constant(op.operands[2]) if has_operand(op, 2) else None
        cropped = op.attr("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
        roi = context.constant(op.operands[1]) if cropped and has_operand(op, 1) else None
        if scales is None or (cropped and (roi is None or len(roi) != 2 * len(dims))):
            return [context.fresh() for _ in dims]
        factors = scales.ravel().astype(np.float32)
        if len(factors) != len(dims):
            raise error("shape/resize", f"resize along {len(dims)} axes has {len(factors)} scales")
        if not (np.isfinite(factors) & (factors > 0)).all():
            raise error("shape/resize", f"the scales of resize must be positive numbers, not {factors.tolist()}")
        if roi is not None:
            factors = factors * (roi[len(dims) :] - roi[: len(dims)]).astype(np.float32)
        return [scaled_dim(dim, factor, context) for dim, factor in zip(dims, factors, strict=True)]

    def flops(self, op: Operation) -> Dim | None:
        shape = shape_of(op, 0)
        if shape is None:
            return None
        axes = op.attr("axes")
        # The first two dims are batch and channels, which are not interpolated.
        spatial = len(axes) if axes is not None else max(len(shape) - 2, 0)
        taps = {"nearest": 0, "linear": 2, "cubic": 4}[op.attr("mode", "nearest")]
        return times(2 * taps**spatial if taps else 0, result_elements(op))

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        x, roi, scales, sizes = (*operands, None, None, None)[:4]
        return resize(op, x, roi, scales, sizes)


def scaled_dim(dim: Dim, scale: np.floating, context: InferenceContext) -> Dim:
    """floor(dim * scale), the product taken in f32 as ONNX Runtime does; fresh if it might not be exact."""
    if isinstance(dim, int):
        return math.floor(np.float32(dim) * np.float32(scale))
    numerator, denominator = float(scale).as_integer_ratio()
    trailing_zeros = (numerator & -numerator).bit_length() - 1
    if numerator <= 0 or numerator.bit_length() - trailing_zeros > EXACT_SCALE_BITS:
        return context.fresh()
    return dim * numerator // denominator


@op("GridSample")
class GridSample(TensorOp):
    """x[n, c, *spatial] read at grid[n, *places, rank]: [n, c, *places]."""

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        x, grid = shape_of(op, 0), shape_of(op, 1)
        rank = len(x) if x is not None else len(grid) if grid is not None else None
        if x is None or grid is None:
            return unknown_dims(rank, context)
        require_rank(op, 0, x, 3, at_least=True)
        require_rank(op, 1, grid, len(x))
        return [x[0], x[1], *grid[1:-1]]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        x, grid = operands
        return grid_sample(x, grid, op.attr("mode"), op.attr("padding_mode"), bool(op.attr("align_corners")))


@op("AffineGrid")
class AffineGrid(TensorOp):
    """Places for GridSample: theta[n, r, r + 1] and size (n, c, *spatial) give [n, *spatial, r]."""

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        size = vector_elements(op, 1, context)
        if size is None:
            return unknown_dims(length_of(op, 1), context)
        if len(size) not in (4, 5):
            raise error("shape/rank", f"affine_grid needs a size of 4 or 5 dims, got {len(size)}")
        n, _, *spatial = [element_dim(item, context) for item in size]
        return [n, *spatial, len(spatial)]


class RegionPool(TensorOp):
    """[regions, c, height, width]: each region of x[n, c, h, w] brought to one size."""

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        x, regions = shape_of(op, 0), shape_of(op, 1)
        if x is not None:
            require_rank(op, 0, x, 4)
        if regions is not None:
            require_rank(op, 1, regions, 2)
        count = context.fresh() if regions is None else regions[0]
        return [count, context.fresh() if x is None else x[1], *self._size(op)]

    def _size(self, op: Operation) -> Sequence[int]:
        raise NotImplementedError(type(self).__name__)


@op("RoiAlign")
class RoiAlign(RegionPool):
    """He et al. 2017 (arXiv 1703.06870): samples at fractional places."""

    def _size(self, op: Operation) -> Sequence[int]:
        return op.attr("output_height", 1), op.attr("output_width", 1)


@op("MaxRoiPool")
class MaxRoiPool(RegionPool):
    """Girshick 2015 (arXiv 1504.08083): the greatest element of each part."""

    def _size(self, op: Operation) -> Sequence[int]:
        return tuple(op.attr("pooled_shape"))

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        """A region is (batch, x1, y1, x2, y2), both ends included, rounded to whole elements; an empty part gives 0."""
        x, regions = operands
        scale, (height, width) = op.attr("spatial_scale"), op.attr("pooled_shape")
        result = np.zeros((len(regions), x.shape[1], height, width), x.dtype)
        for index, region in enumerate(regions.astype(np.float64)):
            left, top, right, bottom = np.floor(region[1:] * scale + 0.5).astype(int)
            for row, high in enumerate(_parts(top, bottom, height, x.shape[2])):
                for column, wide in enumerate(_parts(left, right, width, x.shape[3])):
                    part = x[int(region[0]), :, high, wide]
                    if part.size:
                        result[index, :, row, column] = part.max((1, 2))
        return result


def _parts(first: int, last: int, count: int, size: int) -> list[slice]:
    """The elements from `first` to `last` of a dim of `size` in `count` parts, which share elements at their ends.

    Edges are computed in f32, as ONNX Runtime does.
    """
    step = np.float32(max(last - first + 1, 1)) / np.float32(count)
    edges = [
        (first + math.floor(np.float32(part) * step), first + math.ceil(np.float32(part + 1) * step))
        for part in range(count)
    ]
    return [slice(min(max(start, 0), size), min(max(stop, 0), size)) for start, stop in edges]


@op("Col2Im")
class ColumnsToImage(TensorOp):
    """[n, c * product(block), places] added up into [n, c, *image]."""

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        columns, image, block = shape_of(op, 0), vector_elements(op, 1, context), constant_ints(op, 2, context)
        if image is None:
            spatial = length_of(op, 1)
            return unknown_dims(None if spatial is None else spatial + 2, context)
        dims = [element_dim(item, context) for item in image]
        if columns is not None:
            require_rank(op, 0, columns, 3)
        if columns is None or block is None:
            return [context.fresh() if columns is None else columns[0], context.fresh(), *dims]
        return [columns[0], quotient(columns[1], math.prod(block), op, "columns"), *dims]
