"""Images read between their elements, at places that are computed: GridSample, and the columns of DeformConv.

A place has a coordinate for each spatial dim. Along each it sees one, two or four elements (nearest, linear, cubic),
together some taps with a weight each; what lies outside of the image is 0, or read at the border or mirrored there.
Nothing that is not there is read, so a NaN at the border stays out of places beyond it.

Vectors lie along the channels if these are contiguous on both sides (`by_channel`: what a place sees is worked out once
for all of them), else along the last dim of places, where taps are gathered. A unit of work is a row of places.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ....graph.core import Value
from ....graph.dtypes import DType, f64, i64
from ....graph.kernel.loop_builder import Operand
from ....graph.kernel.scalar_emitter import computed_in
from ....graph.module import Module
from ....graph.ops.grid_sample_numeric import built_cubic_weights
from ..machine import Machine
from .strided import Size, StridedBuilder, argument_names

# Vectors of channels that are summed up together, if there are few taps.
_BLOCK, _FEW_TAPS = 4, 4


@dataclass(frozen=True)
class Sample:
    """Strides of x are along n, c and the spatial dims, those of y along n, c and the dims of places; those of the
    coordinates (one tensor for each spatial dim) and of the factor that a place's result is multiplied with, along n
    and the dims of places. `normalized` coordinates go from -1 to 1: over the middles of the outer elements
    (`align_corners`), or over their edges."""

    dtype: DType
    place_dtype: DType
    x: tuple[Size, ...]
    y: tuple[Size, ...]
    places: tuple[tuple[Size, ...], ...]
    factor: tuple[Size, ...] | None = None
    mode: str = "linear"
    padding: str = "zeros"
    align_corners: bool = False
    normalized: bool = False
    by_channel: bool = False

    @property
    def rank(self) -> int:
        return len(self.places)


def sample_sizes(kernel: Sample) -> dict[str, Size]:
    """Extents and strides by name; those that are None are arguments of the kernel."""
    sizes: dict[str, Size] = dict.fromkeys(("images", "channels"))
    sizes |= dict.fromkeys([f"size{axis}" for axis in range(kernel.rank)])
    sizes |= dict.fromkeys([f"outer{axis}" for axis in range(len(kernel.y) - 2)])
    tensors = {"x": kernel.x, "y": kernel.y} | {f"place{axis}": line for axis, line in enumerate(kernel.places)}
    if kernel.factor is not None:
        tensors["factor"] = kernel.factor
    for name, strides in tensors.items():
        sizes |= {f"{name}_outer{axis}": stride for axis, stride in enumerate(strides)}
    return sizes


def sample_arguments(kernel: Sample) -> list[str]:
    """The names of the kernel's arguments, in order."""
    return argument_names(list(_buffers(kernel)), sample_sizes(kernel))


def sample_units(images: int, *places: int) -> int:
    """How many units of work there are for these extents: rows of places."""
    return images * math.prod(places[:-1])


def build_sample(name: str, kernel: Sample, machine: Machine) -> Module:
    """The kernel as a module of the level "loop"; see `sample_arguments` for what it takes."""
    builder = _SampleBuilder(name, kernel, machine)
    builder.units()
    return builder.b.module()


def _buffers(kernel: Sample) -> dict[str, DType]:
    places = dict.fromkeys([f"place{axis}" for axis in range(kernel.rank)], kernel.place_dtype)
    factor = {} if kernel.factor is None else {"factor": kernel.place_dtype}
    return {"y": kernel.dtype, "x": kernel.dtype, **places, **factor}


@dataclass(frozen=True)
class _Tap:
    """What a place sees of an image, in lanes or alone: how far it lies into the image, or along one dim its index; its
    weight; and whether it is there at all."""

    place: Value
    weight: Value | None
    present: Value


class _SampleBuilder(StridedBuilder):
    def __init__(self, name: str, kernel: Sample, machine: Machine) -> None:
        self.wide = f64 if f64 in (kernel.dtype, kernel.place_dtype) else computed_in(kernel.dtype)
        super().__init__(name, machine, _buffers(kernel), sample_sizes(kernel), self.wide)
        self.lanes = min(16, self.lanes)
        self.kernel = kernel
        self.dims = [f"outer{axis}" for axis in range(len(kernel.y) - 2)]
        self.named = [f"place{axis}" for axis in range(kernel.rank)]
        self.named += [] if kernel.factor is None else ["factor"]

    def units(self) -> None:
        b = self.b
        with b.loop(b["begin"], b["end"]) as unit:
            indices = self.unravel(unit, ["images", *self.dims[:-1]])
            y = self.place("y", "outer", [indices[0], 0, *indices[1:]])
            x = self.place("x", "outer", indices[:1])
            starts = {name: self.place(name, "outer", indices) for name in self.named}
            build = self.along_channels if self.kernel.by_channel else self.along_places
            build(x, y, starts)

    def along_channels(self, x: Operand, y: Operand, starts: dict[str, Operand]) -> None:
        b, last = self.b, len(self.dims)
        with b.loop(0, self.size(self.dims[-1])) as column:
            numbers = {
                name: b.cast(b.load(b[name], b.add(start, b.mul(column, self.stride(name, "outer", last)))), self.wide)
                for name, start in starts.items()
            }
            taps = self.taps(numbers)
            target = b.add(y, b.mul(column, self.stride("y", "outer", last + 1)))
            everything = taps[0].present
            for tap in taps[1:]:
                everything = b.and_(everything, tap.present)
            b.branch(
                everything,
                lambda taps=taps, target=target: self.channels(x, target, taps, whole=True),
                lambda taps=taps, target=target: self.channels(x, target, taps, whole=False),
            )

    def along_places(self, x: Operand, y: Operand, starts: dict[str, Operand]) -> None:
        b, last, columns = self.b, len(self.dims), self.size(self.dims[-1])
        with b.loop(0, columns, self.lanes) as column:
            mask = b.tail_mask(b.index(b.sub(columns, column)), self.lanes)
            numbers = {}
            for name, start in starts.items():
                stride = self.stride(name, "outer", last)
                numbers[name] = b.cast(self.load(name, b.add(start, b.mul(column, stride)), stride, mask), self.wide)
            taps = self.taps(numbers)
            pitch = self.stride("y", "outer", last + 1)
            target = b.add(y, b.mul(column, pitch))
            with b.loop(0, self.size("channels")) as channel:
                source = b.add(x, b.mul(channel, self.stride("x", "outer", 1)))
                terms = [
                    (tap.weight, b.gather(b["x"], b.add(tap.place, source), b.and_(tap.present, mask))) for tap in taps
                ]
                own = b.add(target, b.mul(channel, self.stride("y", "outer", 1)))
                self.store(self.total(terms), "y", own, pitch, mask)

    def channels(self, x: Operand, y: Operand, taps: Sequence[_Tap], whole: bool) -> None:
        """All channels of a place; `whole` says that all taps are there."""
        b, channels = self.b, self.size("channels")
        count = _BLOCK if len(taps) <= _FEW_TAPS and whole else 1
        width = count * self.lanes
        blocks = b.mul(b.div(channels, width), width)
        with b.loop(0, blocks, width) as channel:
            self.block(x, y, channel, taps, whole, [None] * count)
        with b.loop(blocks, channels, self.lanes) as channel:
            mask = b.tail_mask(b.index(b.sub(channels, channel)), self.lanes)
            self.block(x, y, channel, taps, whole, [mask])

    def block(
        self, x: Operand, y: Operand, channel: Operand, taps: Sequence[_Tap], whole: bool, masks: Sequence[Value | None]
    ) -> None:
        b = self.b
        for number, mask in enumerate(masks):
            at = b.add(channel, number * self.lanes)
            terms = []
            for tap in taps:
                seen = mask
                if not whole:
                    present = b.broadcast(tap.present, self.lanes)
                    seen = present if mask is None else b.and_(present, mask)
                weight = None if tap.weight is None else b.broadcast(tap.weight, self.lanes)
                terms.append((weight, b.load(b["x"], b.add(b.add(x, tap.place), at), self.lanes, seen)))
            self.store(self.total(terms), "y", b.add(y, at), 1, mask)

    def total(self, terms: Sequence[tuple[Value | None, Value]]) -> Value:
        """The sum of weights times elements."""
        b = self.b
        found: Value | None = None
        for weight, element in terms:
            element = b.cast(element, self.wide)
            if weight is None:
                return element
            found = b.mul(weight, element) if found is None else b.fma(weight, element, found)
        assert found is not None
        return found

    # ---- what a place sees -------------------------------------------------------------------------------------------

    def taps(self, numbers: dict[str, Value]) -> list[_Tap]:
        """All taps of places with these coordinates, in lanes or alone. Those that are not there weigh 0."""
        b = self.b
        along = [self.along(numbers[f"place{axis}"], axis) for axis in range(self.kernel.rank)]
        found = []
        for chosen in itertools.product(*along):
            place: Operand = 0
            weight, present = numbers.get("factor"), chosen[0].present
            for axis, tap in enumerate(chosen):
                place = b.add(place, b.mul(tap.place, self.stride("x", "outer", axis + 2)))
                present = b.and_(present, tap.present) if axis else present
                if tap.weight is not None:
                    weight = tap.weight if weight is None else b.mul(weight, tap.weight)
            weight = None if weight is None else b.select(present, weight, 0.0)
            found.append(_Tap(b.index(place), weight, present))
        return found

    def along(self, place: Value, axis: int) -> list[_Tap]:
        """The taps along one dim."""
        b, mode = self.b, self.kernel.mode
        size = b.cast(b.index(self.size(f"size{axis}")), self.wide)
        if self.kernel.normalized:
            place = self.scaled(place, size)
        if mode == "cubic":
            low = b.floor(place)
            indices = [self.padded(b.add(low, float(offset)) if offset else low, size) for offset in (-1, 0, 1, 2)]
            weights: Sequence[Value | None] = built_cubic_weights(b, b.sub(place, low))
        elif mode == "linear":
            place = self.padded(place, size)
            low = b.floor(place)
            part = b.sub(place, low)
            indices, weights = [low, b.add(low, 1.0)], [b.sub(1.0, part), part]
        else:
            indices, weights = [b.round(self.padded(place, size))], [None]
        found = []
        for index, weight in zip(indices, weights, strict=True):
            present = b.and_(b.le(0.0, index), b.lt(index, size))
            found.append(_Tap(b.cast(b.select(present, index, 0.0), i64), weight, present))
        return found

    def scaled(self, place: Value, size: Value) -> Value:
        b = self.b
        if self.kernel.align_corners:
            found: Value = b.mul(b.div(b.add(place, 1.0), 2.0), b.sub(size, 1.0))
        else:
            found = b.div(b.sub(b.mul(b.add(place, 1.0), size), 1.0), 2.0)
        return found

    def padded(self, place: Value, size: Value) -> Value:
        """Where a place outside is read: nowhere ("zeros"), at the border, or mirrored at it."""
        b = self.b
        if self.kernel.padding == "zeros":
            return place
        end = b.sub(size, 1.0)
        if self.kernel.padding == "reflection":
            place = self.reflected(place, end)
        found: Value = b.min(b.max(place, 0.0), end)
        return found

    def reflected(self, place: Value, end: Value) -> Value:
        """A place inside of the border, which lies on the outer elements or half an element beyond them."""
        b = self.b
        low = 0.0 if self.kernel.align_corners else -0.5
        span = end if self.kernel.align_corners else b.add(end, 1.0)
        distance = b.abs(b.sub(place, low))
        extra = b.rem(distance, span)
        is_odd = b.ne(b.rem(b.floor(b.div(distance, span)), 2.0), 0.0)
        found = b.add(b.select(is_odd, b.sub(span, extra), extra), low)
        # All of a dim of one element is its border.
        result: Value = b.select(b.lt(0.0, span), found, b.mul(place, 0.0))
        return result
