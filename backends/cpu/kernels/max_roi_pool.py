"""MaxRoiPool: regions of images brought to one size, by their greatest elements (Girshick 2015, arXiv 1504.08083).

A region is its image and four corners, both ends included, rounded to whole elements; it is cut into bins, whose edges
are computed in f32. A bin without elements is 0. Vectors lie along the channels; a unit of work is a row of bins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ....graph import types
from ....graph.core import Value
from ....graph.dtypes import DType, f32, i64
from ....graph.kernel.loop_builder import Operand
from ....graph.kernel.scalar_emitter import computed_in
from ....graph.module import Module
from ..machine import Machine
from .strided import Size, StridedBuilder, argument_names

# Vectors of channels that are done together.
_BLOCK = 8
# Farther than any element, and near enough for sums of places.
_FAR = 1 << 40


@dataclass(frozen=True)
class MaxRoiPool:
    """`x` are the strides of n, c, h and w, `y` those of region, c and the bins' rows and columns."""

    dtype: DType
    x: tuple[Size, ...]
    y: tuple[Size, ...]
    bins: tuple[int, int]
    scale: float


def max_roi_pool_sizes(kernel: MaxRoiPool) -> dict[str, Size]:
    """Extents and strides by name; those that are None are arguments of the kernel."""
    sizes: dict[str, Size] = dict.fromkeys(("images", "channels", "height", "width"))
    for name, strides in (("x", kernel.x), ("y", kernel.y)):
        sizes |= {f"{name}_outer{axis}": stride for axis, stride in enumerate(strides)}
    return sizes


def max_roi_pool_arguments(kernel: MaxRoiPool) -> list[str]:
    """The names of the kernel's arguments, in order. Regions [r, 5] are contiguous; an image that there is not is
    reported in `fault`, as gathers do."""
    return argument_names(["y", "x", "regions", "fault"], max_roi_pool_sizes(kernel))


def max_roi_pool_units(kernel: MaxRoiPool, regions: int) -> int:
    """How many units of work there are: rows of bins."""
    return regions * kernel.bins[0]


def build_max_roi_pool(name: str, kernel: MaxRoiPool, machine: Machine) -> Module:
    """The kernel as a module of the level "loop"; see `max_roi_pool_arguments` for what it takes."""
    builder = _MaxRoiPoolBuilder(name, kernel, machine)
    builder.units()
    return builder.b.module()


class _MaxRoiPoolBuilder(StridedBuilder):
    def __init__(self, name: str, kernel: MaxRoiPool, machine: Machine) -> None:
        buffers = dict.fromkeys(("y", "x", "regions"), kernel.dtype) | {"fault": i64}
        super().__init__(name, machine, buffers, max_roi_pool_sizes(kernel), computed_in(kernel.dtype))
        self.kernel, self.wide = kernel, computed_in(kernel.dtype)

    def units(self) -> None:
        b, (rows, columns) = self.b, self.kernel.bins
        with b.loop(b["begin"], b["end"]) as unit:
            region, row = b.div(unit, rows), b.rem(unit, rows)
            image = b.cast(self.number(region, 0), i64)
            exists = b.and_(b.le(0, image), b.lt(image, self.size("images")))

            def report(image: Value = image) -> None:
                b.store(1, b["fault"], 0)
                b.store(image, b["fault"], 1)

            def pool(region: Value = region, row: Value = row, image: Value = image) -> None:
                top, bottom = self.edges(region, 2, row, rows, "height")
                x, y = self.place("x", "outer", [image]), self.place("y", "outer", [region, 0, row])
                with b.loop(0, columns) as column:
                    left, right = self.edges(region, 1, column, columns, "width")
                    target = b.add(y, b.mul(column, self.stride("y", "outer", 3)))
                    self.channels(x, target, (top, bottom, left, right))

            b.branch(exists, pool, report)

    def number(self, region: Value, at: int) -> Value:
        return self.b.cast(self.b.load(self.b["regions"], self.b.add(self.b.mul(region, 5), at)), self.wide)

    def edges(self, region: Value, at: int, part: Value, count: int, size: str) -> tuple[Value, Value]:
        """The elements along a dim of a part of a region: the first, and the one behind the last."""
        b = self.b
        first, last = (
            b.max(
                b.min(b.cast(b.floor(b.add(b.mul(self.number(region, i), self.kernel.scale), 0.5)), i64), _FAR), -_FAR
            )
            for i in (at, at + 2)
        )
        extent = b.max(b.add(b.sub(last, first), 1), 1)
        step = b.div(b.cast(extent, f32), float(count))
        begin = b.cast(b.floor(b.mul(b.cast(part, f32), step)), i64)
        end = b.cast(b.ceil(b.mul(b.cast(b.add(part, 1), f32), step)), i64)
        low, high = (b.max(b.min(b.add(first, edge), self.size(size)), 0) for edge in (begin, end))
        return low, b.max(low, high)

    def channels(self, x: Operand, y: Operand, edges: tuple[Value, Value, Value, Value]) -> None:
        b, channels = self.b, self.size("channels")
        width = _BLOCK * self.lanes
        whole = b.mul(b.div(channels, width), width)
        with b.loop(0, whole, width) as channel:
            self.bin(x, y, edges, channel, [None] * _BLOCK)
        with b.loop(whole, channels, self.lanes) as channel:
            self.bin(x, y, edges, channel, [b.tail_mask(b.index(b.sub(channels, channel)), self.lanes)])

    def bin(
        self,
        x: Operand,
        y: Operand,
        edges: tuple[Value, Value, Value, Value],
        channel: Operand,
        masks: Sequence[Value | None],
    ) -> None:
        """Vectors of channels of one bin, beginning with `channel`."""
        b, (top, bottom, left, right) = self.b, edges
        beside = self.stride("x", "outer", 1)
        first = b.add(x, b.mul(channel, beside))
        start = b.constant(-math.inf, types.vector(self.wide, self.lanes))
        with b.loop(top, bottom, 1, [start] * len(masks)) as rows:
            line = b.add(first, b.mul(rows.index, self.stride("x", "outer", 2)))
            with b.loop(left, right, 1, rows.values) as columns:
                place = b.add(line, b.mul(columns.index, self.stride("x", "outer", 3)))
                columns.yields([
                    b.max(old, self.load("x", b.add(place, b.mul(i * self.lanes, beside)), beside, mask))
                    for i, (old, mask) in enumerate(zip(columns.values, masks, strict=True))
                ])  # fmt: skip
            rows.yields(columns.results)
        is_there = b.and_(b.lt(top, bottom), b.lt(left, right))
        stride = self.stride("y", "outer", 1)
        for i, (value, mask) in enumerate(zip(rows.results, masks, strict=True)):
            self.store(
                b.select(is_there, value, 0.0),
                "y",
                b.add(y, b.mul(b.add(channel, i * self.lanes), stride)),
                stride,
                mask,
            )
