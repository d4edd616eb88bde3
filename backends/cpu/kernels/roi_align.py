"""RoiAlign: regions of images brought to one size (He et al. 2017, arXiv 1703.06870).

A region is cut into bins; each holds a grid of samples, and a sample is a weighted sum of the four elements around it.
Vectors lie along the channels. A unit of work is a row of bins. Samples outside of the image are 0; of those in a bin
only the ones that can lie inside are visited, so that a region may be as large as numbers are. Places are computed in
f32 (f64 for f64), in the order that the standard's reference has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ....graph import types
from ....graph.core import Value
from ....graph.dtypes import DType, f64, i64
from ....graph.kernel.loop_builder import Operand
from ....graph.kernel.scalar_emitter import computed_in
from ....graph.module import Module
from ..machine import Machine
from .strided import Size, StridedBuilder, argument_names

# Vectors of channels that are summed up together.
_BLOCK = 8


@dataclass(frozen=True)
class RoiAlign:
    """`x` are the strides of n, c, h and w, `y` of region, c and the bins' rows and columns. `takes_greatest` keeps the
    greatest part of all samples instead of their mean; `samples` are those of a bin along a dim (0: as many as it has
    elements); `half_pixel` says where an element lies."""

    dtype: DType
    x: tuple[Size, ...]
    y: tuple[Size, ...]
    bins: tuple[int, int]
    samples: int
    scale: float
    half_pixel: bool = True
    takes_greatest: bool = False


def roi_align_sizes(kernel: RoiAlign) -> dict[str, Size]:
    """Extents and strides by name; those that are None are arguments of the kernel."""
    sizes: dict[str, Size] = dict.fromkeys(("images", "channels", "height", "width"))
    for name, strides in (("x", kernel.x), ("y", kernel.y)):
        sizes |= {f"{name}_outer{axis}": stride for axis, stride in enumerate(strides)}
    return sizes


def roi_align_arguments(kernel: RoiAlign) -> list[str]:
    """The names of the kernel's arguments, in order. Regions [r, 4] and the images that they are of [r] (i64) are
    contiguous; an image that there is not is reported in `fault`, as gathers do."""
    return argument_names(["y", "x", "regions", "batch", "fault"], roi_align_sizes(kernel))


def roi_align_units(kernel: RoiAlign, regions: int) -> int:
    """How many units of work there are: rows of bins."""
    return regions * kernel.bins[0]


def build_roi_align(name: str, kernel: RoiAlign, machine: Machine) -> Module:
    """The kernel as a module of the level "loop"; see `roi_align_arguments` for what it takes."""
    builder = _RoiAlignBuilder(name, kernel, machine)
    builder.units()
    return builder.b.module()


@dataclass(frozen=True)
class _Axis:
    """A dim of a region: where bins begin, how far they reach, how many samples each has, and the image's size."""

    start: Value
    step: Value
    count: Value
    size: Operand


class _RoiAlignBuilder(StridedBuilder):
    def __init__(self, name: str, kernel: RoiAlign, machine: Machine) -> None:
        buffers = dict.fromkeys(("y", "x", "regions"), kernel.dtype) | {"batch": i64, "fault": i64}
        super().__init__(name, machine, buffers, roi_align_sizes(kernel), computed_in(kernel.dtype))
        self.kernel, self.wide = kernel, computed_in(kernel.dtype)
        self.scalar, self.vector = types.scalar(self.wide), types.vector(self.wide, self.lanes)

    def number(self, value: float) -> Value:
        return self.b.constant(value, self.scalar)

    def units(self) -> None:
        b, rows = self.b, self.kernel.bins[0]
        with b.loop(b["begin"], b["end"]) as unit:
            region, row = b.div(unit, rows), b.rem(unit, rows)
            image = b.load(b["batch"], region)
            exists = b.and_(b.le(0, image), b.lt(image, self.size("images")))

            def report(image: Value = image) -> None:
                b.store(1, b["fault"], 0)
                b.store(image, b["fault"], 1)

            b.branch(exists, lambda: self.row(region, row, image), report)

    def row(self, region: Value, row: Value, image: Value) -> None:
        b = self.b
        across, down = (self.axis(region, first, size) for first, size in ((0, "width"), (1, "height")))
        top = self.bin_start(down, row)
        rows = self.inside(down, top)
        x, y = self.place("x", "outer", [image]), self.place("y", "outer", [region, 0, row])
        with b.loop(0, self.kernel.bins[1]) as column:
            left = self.bin_start(across, column)
            columns = self.inside(across, left)
            self.channels(x, b.add(y, b.mul(column, self.stride("y", "outer", 3))), (down, across), (top, left),
                          (rows, columns))  # fmt: skip

    # ---- where samples lie -------------------------------------------------------------------------------------------

    def axis(self, region: Value, first: int, size: str) -> _Axis:
        b, kernel = self.b, self.kernel
        low, high = (
            b.mul(b.cast(b.load(b["regions"], b.add(b.mul(region, 4), at)), self.wide), kernel.scale)
            for at in (first, first + 2)
        )
        if kernel.half_pixel:
            low, high = b.sub(low, 0.5), b.sub(high, 0.5)
        extent = b.sub(high, low)
        if not kernel.half_pixel:
            extent = b.select(b.lt(extent, 1.0), 1.0, extent)
        step = b.div(extent, float(kernel.bins[1 - first]))
        count = self.number(kernel.samples) if kernel.samples else b.ceil(step)
        return _Axis(low, step, count, self.size(size))

    def bin_start(self, axis: _Axis, index: Operand) -> Value:
        b = self.b
        found: Value = b.add(axis.start, b.mul(b.cast(b.index(index), self.wide), axis.step))
        return found

    def inside(self, axis: _Axis, start: Value) -> tuple[Value, Value]:
        """Of the samples of a bin the first that may lie in the image, and the one behind the last."""
        b = self.b
        count = b.max(b.cast(axis.count, i64), 0)
        if self.kernel.samples:
            return b.index(0), count
        # Ends that are no numbers become 0, those beyond all integers the farthest ones.
        per_sample = b.div(b.cast(axis.count, f64), b.cast(axis.step, f64))

        def sample(place: Value) -> Value:
            found: Value = b.cast(b.mul(b.sub(place, b.cast(start, f64)), per_sample), i64)
            return found

        limit = 1 << 62  # so that the margins below overflow nothing
        first = b.max(b.min(sample(b.constant(-1.0, types.scalar(f64))), limit), -limit)
        last = b.max(b.min(sample(b.cast(b.index(axis.size), f64)), limit), -limit)
        begin = b.min(b.max(b.sub(first, 3), 0), count)
        return begin, b.min(b.max(b.add(last, 3), begin), count)

    def at(self, axis: _Axis, start: Value, index: Value) -> Value:
        """Where a sample lies along a dim."""
        b = self.b
        part = b.mul(b.add(b.cast(index, self.wide), 0.5), axis.step)
        found: Value = b.add(start, b.div(part, axis.count))
        return found

    def is_inside(self, axis: _Axis, place: Value) -> Value:
        b = self.b
        found: Value = b.and_(b.le(-1.0, place), b.le(place, b.cast(b.index(axis.size), self.wide)))
        return found

    def taps(self, axis: _Axis, place: Value) -> list[tuple[Value, Value]]:
        """The elements on both sides of a place inside, and their weights."""
        b = self.b
        place = b.select(b.lt(place, 0.0), 0.0, place)
        end = b.index(b.sub(axis.size, 1))
        low = b.cast(place, i64)
        is_last = b.le(end, low)
        low = b.min(low, end)
        part = b.select(is_last, 0.0, b.sub(place, b.cast(low, self.wide)))
        return [(low, b.sub(1.0, part)), (b.min(b.add(low, 1), end), part)]

    # ---- what they are -----------------------------------------------------------------------------------------------

    def channels(
        self,
        x: Operand,
        y: Operand,
        axes: tuple[_Axis, _Axis],
        starts: tuple[Value, Value],
        bounds: tuple[tuple[Value, Value], tuple[Value, Value]],
    ) -> None:
        """All channels of one bin: blocks of vectors, then vector by vector."""
        b, channels = self.b, self.size("channels")
        width = _BLOCK * self.lanes
        whole = b.mul(b.div(channels, width), width)
        with b.loop(0, whole, width) as channel:
            self.bin(x, y, axes, starts, bounds, channel, [None] * _BLOCK)
        with b.loop(whole, channels, self.lanes) as channel:
            mask = b.tail_mask(b.index(b.sub(channels, channel)), self.lanes)
            self.bin(x, y, axes, starts, bounds, channel, [mask])

    def bin(
        self,
        x: Operand,
        y: Operand,
        axes: tuple[_Axis, _Axis],
        starts: tuple[Value, Value],
        bounds: tuple[tuple[Value, Value], tuple[Value, Value]],
        channel: Operand,
        masks: Sequence[Value | None],
    ) -> None:
        """Vectors of channels of one bin, beginning with `channel`."""
        b, (down, across), greatest = self.b, axes, self.kernel.takes_greatest
        beside = self.stride("x", "outer", 1)
        first = b.add(x, b.mul(channel, beside))
        start = b.constant(-math.inf if greatest else 0.0, self.vector)
        with b.loop(*bounds[0], 1, [start] * len(masks)) as rows:
            v = self.at(down, starts[0], rows.index)
            row_taps, is_inside = self.taps(down, v), self.is_inside(down, v)
            with b.loop(*bounds[1], 1, rows.values) as columns:
                u = self.at(across, starts[1], columns.index)
                state = columns.values

                def sample(u: Value = u, state: Sequence[Value] = state) -> list[Value]:
                    return self.sample(first, row_taps, self.taps(across, u), state, masks)

                def outside(state: Sequence[Value] = state) -> list[Value]:
                    return [b.max(value, 0.0) for value in state] if greatest else list(state)

                columns.yields(b.branch(b.and_(is_inside, self.is_inside(across, u)), sample, outside))
            rows.yields(columns.results)
        results = self.finished(list(rows.results), axes, bounds)
        stride = self.stride("y", "outer", 1)
        for number, (value, mask) in enumerate(zip(results, masks, strict=True)):
            place = b.add(y, b.mul(b.add(channel, number * self.lanes), stride))
            self.store(value, "y", place, stride, mask)

    def sample(
        self,
        first: Operand,
        rows: Sequence[tuple[Value, Value]],
        columns: Sequence[tuple[Value, Value]],
        state: Sequence[Value],
        masks: Sequence[Value | None],
    ) -> list[Value]:
        b, beside = self.b, self.stride("x", "outer", 1)
        values = list(state)
        for row, down in rows:
            for column, across in columns:
                place = b.add(first, b.add(b.mul(row, self.stride("x", "outer", 2)),
                                           b.mul(column, self.stride("x", "outer", 3))))  # fmt: skip
                weight = b.broadcast(b.mul(down, across), self.lanes)
                for number, mask in enumerate(masks):
                    element = self.load("x", b.add(place, b.mul(number * self.lanes, beside)), beside, mask)
                    old = values[number]
                    values[number] = (
                        b.max(old, b.mul(weight, element))
                        if self.kernel.takes_greatest
                        else b.fma(weight, element, old)
                    )
        return values

    def finished(
        self, values: list[Value], axes: tuple[_Axis, _Axis], bounds: Sequence[tuple[Value, Value]]
    ) -> list[Value]:
        """The mean of all samples, or the greatest one. Those that were not visited are 0."""
        b = self.b
        total = b.mul(axes[0].count, axes[1].count)
        if not self.kernel.takes_greatest:
            count = b.select(b.lt(1.0, total), total, 1.0)
            return [b.div(value, count) for value in values]
        visited = b.and_(b.lt(bounds[0][0], bounds[0][1]), b.lt(bounds[1][0], bounds[1][1]))
        all_seen = visited
        for axis, (begin, end) in zip(axes, bounds, strict=True):
            all_seen = b.and_(all_seen, b.le(b.cast(axis.count, i64), b.sub(end, begin)))
        values = [b.select(visited, value, 0.0) for value in values]
        return [b.select(all_seen, value, b.max(value, 0.0)) for value in values]
