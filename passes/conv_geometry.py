"""What there is to know of a convolution before it can be written otherwise: sizes, steps and pads as numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..graph.core import Operation
from ..graph.dims import Dim
from ..graph.ops.convolution import Window
from ..graph.ops.pooling_numeric import pads_of
from ..graph.types import TensorType


@dataclass(frozen=True)
class Geometry:
    """A convolution of x [n, groups * channels, *spatial] with w [groups * filters, channels, *kernel]."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    groups: int
    channels: int  # of the input, in one group
    filters: int  # in one group

    @property
    def rank(self) -> int:
        """The number of spatial dims."""
        return len(self.kernel)

    @property
    def taps(self) -> int:
        """Elements of the window, in one channel."""
        return math.prod(self.kernel)

    @property
    def is_pointwise(self) -> bool:
        """Whether the window is one element, never outside the image."""
        return all(size == 1 for size in self.kernel) and not any(self.before + self.after)

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.channels == self.filters == 1

    def span(self, axis: int) -> int:
        """Elements from the first to the last that the window touches."""
        return self.dilations[axis] * (self.kernel[axis] - 1) + 1


def geometry_of(op: Operation) -> Geometry | str:
    """The geometry of the convolution `op`, or a sentence about what of it is not known."""
    x, w = (operand.type if operand is not None else None for operand in op.operands[:2])
    if not isinstance(x, TensorType) or x.shape is None:
        return "the rank of the image is not known"
    if not isinstance(w, TensorType) or w.static_shape is None:
        return "the shape of the weights is not known"
    filters, channels, *kernel = w.static_shape
    window = Window.of(op, kernel)
    pads = _pads(window, x.shape[2:])
    if pads is None:
        return f"its pads ({window.auto_pad}) depend on the size of the image, which is not known"
    groups = op.attr("group")
    return Geometry(
        tuple(kernel), window.strides, window.dilations, *pads, groups=groups, channels=channels,
        filters=filters // groups,
    )  # fmt: skip


def _pads(window: Window, spatial: tuple[Dim, ...]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Pads before and after each spatial dim. With stride 1, SAME does not depend on the size."""
    if not window.auto_pad.startswith("SAME"):
        return window.before, window.after
    sizes: list[Dim] = []
    for size, stride in zip(spatial, window.strides, strict=True):
        if not isinstance(size, int) and stride != 1:
            return None
        sizes.append(size if isinstance(size, int) else window.span(len(sizes)))
    before, after = pads_of(window, [size for size in sizes if isinstance(size, int)])
    return tuple(before), tuple(after)
