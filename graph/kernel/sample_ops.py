"""Kernels that read images between their elements, at places that are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ..opdef import op
from .index_ops import AsInOnnx
from .kernel_base import Known

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
