"""The greatest element of each window with its place, and the adjoint: channels last, vectors hold channels.

    work unit (image, plane, row)
      pixels, vectors of channels: taps that lie inside the image

A place is the element's number in the whole x [image, channel, plane, row, pixel]. Of equal elements the first counts,
a NaN more than any number. In the adjoint a unit is a row of x: each of its elements looks at the windows that see it,
and adds the adjoints of those that name it. So units write what is theirs, and each sum has one order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ....graph import types
from ....graph.core import Value
from ....graph.dtypes import DType, i64
from ....graph.kernel.loop_builder import LoopBuilder, Operand
from ....graph.module import Module
from ..machine import Machine
from .image import ImageEpilogue, Layout, Numbers, Window, argument_names, argument_types, layout_sizes
from .tile import Size

_DIMS = ("plane", "row", "pixel")


@dataclass(frozen=True)
class MaxPool:
    """A max pool of `channels`, padded by `before` in front. `planes`, `rows` and `pixels` are the extents of what
    windows give. `x` is the image, `y` what is chosen, `places` where; of the adjoint x and y are adjoints, too."""

    window: Window
    dtype: DType
    before: tuple[int, int, int] = (0, 0, 0)
    channels: Size = None
    planes: Size = 1
    rows: Size = None
    pixels: Size = None
    x: Layout = field(default_factory=Layout)
    y: Layout = field(default_factory=Layout)
    places: Layout = field(default_factory=Layout)
    is_adjoint: bool = False


def _sizes(kernel: MaxPool) -> dict[str, Size]:
    extents = {"planes": kernel.planes, "rows": kernel.rows, "pixels": kernel.pixels}
    return {
        "images": None, "channels": kernel.channels, **extents, "x_planes": None, "x_rows": None, "x_pixels": None,
        **layout_sizes("x", kernel.x), **layout_sizes("y", kernel.y), **layout_sizes("places", kernel.places),
    }  # fmt: skip


def max_pool_arguments(kernel: MaxPool) -> list[str]:
    """The names of the kernel's arguments, in order; `x_planes`, `x_rows` and `x_pixels` are the extents of x."""
    return argument_names(["x", "y", "places"], ImageEpilogue(), _sizes(kernel))


def max_pool_units(images: int, planes: int, rows: int) -> int:
    """How many units of work there are: of `rows` of what is written."""
    return images * planes * rows


def build_max_pool(name: str, kernel: MaxPool, machine: Machine) -> Module:
    """The kernel, or its adjoint, as a module of the level "loop"; see `max_pool_arguments` for what it takes."""
    return _PoolBuilder(name, kernel, machine).module()


class _PoolBuilder:
    def __init__(self, name: str, kernel: MaxPool, machine: Machine) -> None:
        self.kernel, self.lanes = kernel, machine.lanes(kernel.dtype)
        buffers = {"x": kernel.dtype, "y": kernel.dtype, "places": i64}
        self.b = LoopBuilder(name, **argument_types(max_pool_arguments(kernel), buffers, ImageEpilogue()))
        self.n = Numbers(self.b, _sizes(kernel))

    def module(self) -> Module:
        b, n = self.b, self.n
        extents = [n[f"x_{dim}s" if self.kernel.is_adjoint else f"{dim}s"] for dim in _DIMS]
        with b.loop(b["begin"], b["end"]) as unit:
            row, rest = b.rem(unit, extents[1]), b.div(unit, extents[1])
            plane, image = b.rem(rest, extents[0]), b.div(rest, extents[0])
            with b.loop(0, extents[2]) as pixel:
                whole = b.mul(b.div(n["channels"], self.lanes), self.lanes)
                self.with_channels(image, (plane, row, pixel), whole)
        return b.module()

    def with_channels(self, image: Operand, at: tuple[Operand, ...], whole: Operand) -> None:
        b, n = self.b, self.n
        build = self.adjoint if self.kernel.is_adjoint else self.greatest
        bounds = [self.bounds(axis, place) for axis, place in enumerate(at)]
        with b.loop(0, whole, self.lanes) as channel:
            build(image, at, bounds, channel, None)
        rest = b.sub(n["channels"], whole)
        if not isinstance(rest, Value) and not rest:
            return
        with b.when(b.lt(0, b.index(rest))):
            build(image, at, bounds, whole, b.tail_mask(b.index(rest), self.lanes))

    def bounds(self, axis: int, place: Operand) -> tuple[Operand, Operand]:
        """The taps of the window at `place` that are inside of x along a dim; of the adjoint the windows that see it:
        the first, and the one behind the last."""
        b, n, window, before = self.b, self.n, self.kernel.window, self.kernel.before[axis]
        size, step, gap = window.kernel[axis], window.strides[axis], window.dilations[axis]
        if self.kernel.is_adjoint:
            shifted = b.add(place, before)
            first = b.div(b.add(b.max(b.sub(shifted, (size - 1) * gap), 0), step - 1), step)
            return first, b.max(b.min(b.add(b.div(shifted, step), 1), n[f"{_DIMS[axis]}s"]), first)
        start = b.sub(before, b.mul(place, step))  # the first place that counts, from the first tap on
        first, last = (
            b.min(b.div(b.add(b.max(b.add(bound, start), 0), gap - 1), gap), size)
            for bound in (0, n[f"x_{_DIMS[axis]}s"])
        )
        return first, b.max(last, first)

    def nest(
        self,
        bounds: Sequence[tuple[Operand, Operand]],
        carried: Sequence[Value],
        body: Callable[[list[Operand], Sequence[Value]], Sequence[Value]],
    ) -> Sequence[Value]:
        """Loops over all dims: `body(indices, carried)` gives what is carried on."""
        b = self.b

        def level(axis: int, indices: list[Operand], values: Sequence[Value]) -> Sequence[Value]:
            if axis == len(bounds):
                return body(indices, values)
            with b.loop(*bounds[axis], 1, values) as state:
                state.yields(level(axis + 1, [*indices, state.index], state.values))
            return list(state.results)

        return level(0, [], carried)

    def number(self, place: Sequence[Operand]) -> Operand:
        """The number of an element among those of its channel."""
        b, n = self.b, self.n
        plane, row, pixel = place
        return b.add(b.mul(b.add(b.mul(plane, n["x_rows"]), row), n["x_pixels"]), pixel)

    def first_numbers(self, image: Operand, channel: Operand) -> Value:
        """The numbers of the first elements of a vector of channels."""
        b, n = self.b, self.n
        size = b.mul(b.mul(n["x_planes"], n["x_rows"]), n["x_pixels"])
        first = b.add(b.mul(image, n["channels"]), channel)
        result: Value = b.mul(b.add(b.iota(self.lanes), first), size)
        return result

    def offset(self, buffer: str, image: Operand, place: Sequence[Operand], channel: Operand) -> Operand:
        return self.n.offset(buffer, image=image, channel=channel, **dict(zip(_DIMS, place, strict=True)))

    def greatest(
        self,
        image: Operand,
        at: tuple[Operand, ...],
        bounds: Sequence[tuple[Operand, Operand]],
        channel: Operand,
        mask: Value | None,
    ) -> None:
        """The greatest element of a window, and its place."""
        b, window, before, lanes = self.b, self.kernel.window, self.kernel.before, self.lanes

        def seen(taps: Sequence[Operand]) -> list[Operand]:
            steps = zip(at, window.strides, taps, window.dilations, before, strict=True)
            return [b.sub(b.add(b.mul(p, step), b.mul(tap, gap)), pad) for p, step, tap, gap, pad in steps]

        def body(taps: list[Operand], values: Sequence[Value]) -> Sequence[Value]:
            here = seen(taps)
            element = b.load(b["x"], self.offset("x", image, here, channel), lanes, mask)
            best, place = values
            is_number = b.eq(best, best)
            better = b.or_(b.lt(best, element), b.and_(is_number, b.ne(element, element)))
            return [
                b.select(better, element, best),
                b.select(better, b.broadcast(b.index(self.number(here)), lanes), place),
            ]

        start = b.broadcast(b.index(self.number(seen([first for first, _ in bounds]))), lanes)
        least = b.constant(-math.inf, types.vector(self.kernel.dtype, lanes))
        best, place = self.nest(bounds, [least, start], body)
        b.store(best, b["y"], self.offset("y", image, at, channel), mask)
        numbers = b.add(place, self.first_numbers(image, channel))
        b.store(numbers, b["places"], self.offset("places", image, at, channel), mask)

    def adjoint(
        self,
        image: Operand,
        at: tuple[Operand, ...],
        bounds: Sequence[tuple[Operand, Operand]],
        channel: Operand,
        mask: Value | None,
    ) -> None:
        """The sum of the adjoints of the windows that name an element."""
        b, lanes = self.b, self.lanes
        own = b.add(self.first_numbers(image, channel), self.number(at))
        zero = b.constant(0, types.vector(self.kernel.dtype, lanes))

        def body(windows: list[Operand], values: Sequence[Value]) -> Sequence[Value]:
            named = b.load(b["places"], self.offset("places", image, windows, channel), lanes, mask)
            grad = b.load(b["y"], self.offset("y", image, windows, channel), lanes, mask)
            return [b.add(values[0], b.select(b.eq(named, own), grad, zero))]

        [total] = self.nest(bounds, [zero], body)
        b.store(total, b["x"], self.offset("x", image, at, channel), mask)
