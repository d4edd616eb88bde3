"""Kernels that read images between their elements, at places that are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..opdef import op
from ..ops.grid_sample_numeric import sample, scaled
from .index_ops import AsInOnnx
from .kernel_base import KernelOp, Known

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..core import Operation
    from .strided import Shape


@op("roi_align", domain="kernel")
class RoiAlign(AsInOnnx):
    """Regions [r, 4] of images x [n, c, h, w], each brought to one size: [r, c, output_height, output_width].

    Each element is the mean ("avg") of samples on a grid in its part of the region, or the greatest of their parts
    ("max"). `batch` has the image of each region. Regions may be of any size, and need not be numbers.
    """

    onnx = "RoiAlign"
    inputs = ("x", "regions", "batch")
    attributes: ClassVar[dict[str, Any]] = {
        "mode": "avg", "output_height": 1, "output_width": 1, "sampling_ratio": 0, "spatial_scale": 1.0,
        "coordinate_transformation_mode": "half_pixel",
    }  # fmt: skip

    def result_shapes(self, op: Operation, shapes: Sequence[Shape], known: Known) -> list[Shape]:
        x, regions, batch = shapes
        if len(x) != 4 or len(regions) != 2 or regions[1] != 4 or tuple(batch) != (regions[0],):
            raise ValueError(f"regions {list(regions)} of the images {list(batch)} of {list(x)}")
        return [(regions[0], x[1], int(op.attr("output_height")), int(op.attr("output_width")))]


@op("max_roi_pool", domain="kernel")
class MaxRoiPool(AsInOnnx):
    """Regions [r, 5] (image and corners) of images x [n, c, h, w], each brought to one size by greatest elements."""

    onnx = "MaxRoiPool"
    inputs = ("x", "regions")
    attributes: ClassVar[dict[str, Any]] = {"pooled_shape": (1, 1), "spatial_scale": 1.0}

    def result_shapes(self, op: Operation, shapes: Sequence[Shape], known: Known) -> list[Shape]:
        x, regions = shapes
        if len(x) != 4 or len(regions) != 2 or regions[1] != 5:
            raise ValueError(f"regions {list(regions)} of {list(x)}")
        return [(regions[0], x[1], *op.attr("pooled_shape"))]


@op("sample", domain="kernel")
class Sample(KernelOp):
    """x [n, c, *spatial] read at places [n, *result], one operand for each spatial dim: [n, c, *result].

    A place counts elements or, if `normalized`, goes from -1 to 1; attributes are as GridSample has them. `factor`
    [n, *result], the last operand if `has_factor`, is what is read multiplied with. `channels_last` asks for a result
    whose channels lie together.
    """

    inputs = ("x", "operands*")
    attributes: ClassVar[dict[str, Any]] = {
        "mode": "linear", "padding": "zeros", "align_corners": 0, "normalized": 0, "has_factor": 0, "channels_last": 0,
    }  # fmt: skip

    def fixed_count(self, op: Operation) -> int:
        return len(op.operands)

    def result_shapes(self, op: Operation, shapes: Sequence[Shape], known: Known) -> list[Shape]:
        x, *places = shapes
        rank = len(x) - 2
        if len(places) != rank + op.attr("has_factor") or any(p != places[0] for p in places) or places[0][0] != x[0]:
            raise ValueError(f"places {', '.join(str(list(place)) for place in places)} in {list(x)}")
        return [(*x[:2], *places[0][1:])]

    def compute(self, op: Operation, *operands: Any) -> Any:
        x, *places = operands
        factor = places.pop() if op.attr("has_factor") else None
        corners = bool(op.attr("align_corners"))
        if op.attr("normalized"):
            places = [scaled(place, size, corners) for place, size in zip(places, x.shape[2:], strict=True)]
        found = sample(x, places, op.attr("mode"), op.attr("padding"), corners)
        return found if factor is None else (found * np.expand_dims(factor, 1)).astype(x.dtype)
