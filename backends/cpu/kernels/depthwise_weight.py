"""The adjoint of a depthwise convolution's filters: vectors hold channels, each with sums of its own.

    work unit (part of the rows of places, block of channels)
      rows of places, rows of the window that lie inside of x, vectors of channels
        pixels that see all taps of a row: registers; those at the edges tap by tap

Sums of a unit are kept in scratch memory as [taps, channels of a block], and put into the order of filters at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....graph import types
from ....graph.core import Value
from ....graph.kernel.loop_builder import LoopBuilder, Operand
from ....graph.module import Module
from ..machine import Machine
from .conv_weight import LEAST_PLACES, MOST_PARTS, ConvWeight
from .image import ImageEpilogue, Numbers, argument_names, argument_types, layout_sizes, share
from .tile import Size

# Vectors of channels of a unit, at most.
VECTORS = 8


@dataclass(frozen=True)
class DepthwiseWeightTiling:
    """`vectors` of `lanes` channels to a unit; places in `parts` parts."""

    lanes: int
    vectors: int
    parts: int

    @property
    def block(self) -> int:
        return self.lanes * self.vectors


def depthwise_weight_tiling(kernel: ConvWeight, machine: Machine, places: int, units: int) -> DepthwiseWeightTiling:
    """A tiling for sums over `places`, cut into parts so that there are about `units` units of work."""
    lanes = machine.lanes(kernel.dtype)
    vectors = min(VECTORS, -(-kernel.groups // lanes))
    blocks = -(-kernel.groups // (lanes * vectors))
    return DepthwiseWeightTiling(lanes, vectors, max(1, min(MOST_PARTS, units // blocks, places // LEAST_PLACES)))


def _sizes(kernel: ConvWeight) -> dict[str, Size]:
    return {
        "images": None, "planes": kernel.planes, "rows": kernel.rows, "pixels": kernel.pixels, "x_planes": None,
        "x_rows": None, "x_pixels": None, **layout_sizes("x", kernel.x), **layout_sizes("grad", kernel.grad),
    }  # fmt: skip


def depthwise_weight_arguments(kernel: ConvWeight) -> list[str]:
    """The names of the kernel's arguments, in order; those of `conv_weight`, without blocks."""
    return argument_names(["x", "grad", "w", "scratch"], ImageEpilogue(), _sizes(kernel))


def depthwise_weight_units(kernel: ConvWeight, tiling: DepthwiseWeightTiling) -> int:
    """How many units of work there are."""
    return tiling.parts * -(-kernel.groups // tiling.block)


def depthwise_weight_scratch(kernel: ConvWeight, tiling: DepthwiseWeightTiling) -> int:
    """Elements of scratch memory that each thread needs."""
    return -(-kernel.window.taps * tiling.block // 16) * 16


def build_depthwise_weight(name: str, kernel: ConvWeight, tiling: DepthwiseWeightTiling) -> Module:
    """The kernel as a module of the level "loop"; see `depthwise_weight_arguments` for what it takes."""
    return _Builder(name, kernel, tiling).module()


class _Builder:
    def __init__(self, name: str, kernel: ConvWeight, tiling: DepthwiseWeightTiling) -> None:
        self.kernel, self.tiling = kernel, tiling
        buffers = dict.fromkeys(("x", "grad", "w", "scratch"), kernel.dtype)
        self.b = LoopBuilder(name, **argument_types(depthwise_weight_arguments(kernel), buffers, ImageEpilogue()))
        self.n = Numbers(self.b, _sizes(kernel))
        self.scratch = self.b.view(
            self.b["scratch"], self.b.mul(self.b["thread"], depthwise_weight_scratch(kernel, tiling))
        )

    def module(self) -> Module:
        b, n, kernel, tiling = self.b, self.n, self.kernel, self.tiling
        blocks = -(-kernel.groups // tiling.block)
        rows = b.mul(b.mul(n["images"], n["planes"]), n["rows"])
        zero = b.constant(0, types.vector(kernel.dtype, tiling.lanes))
        with b.loop(b["begin"], b["end"]) as unit:
            block, part = b.rem(unit, blocks), b.div(unit, blocks)
            first = b.mul(block, tiling.block)
            count = b.min(b.sub(kernel.groups, first), tiling.block)
            with b.loop(0, kernel.window.taps * tiling.block, tiling.lanes) as place:
                b.store(zero, self.scratch, place)
            with b.loop(*share(b, part, rows, tiling.parts)) as number:
                self.row(number, first, count)
            self.put(b.mul(part, kernel.groups), first, count)
        return b.module()

    def row(self, number: Operand, first: Operand, count: Operand) -> None:
        """Add the products of a row of places."""
        b, n, kernel = self.b, self.n, self.kernel
        window, before = kernel.window, kernel.before
        row, rest = b.rem(number, n["rows"]), b.div(number, n["rows"])
        plane, image = b.rem(rest, n["planes"]), b.div(rest, n["planes"])
        grad = b.view(b["grad"], n.offset("grad", image=image, plane=plane, row=row, channel=first))
        with b.loop(0, window.kernel[0]) as deep, b.loop(0, window.kernel[1]) as high:
            z, y = (
                b.sub(b.add(b.mul(place, window.strides[axis]), b.mul(tap, window.dilations[axis])), before[axis])
                for axis, place, tap in ((0, plane, deep), (1, row, high))
            )
            inside = b.and_(
                b.and_(b.le(0, b.index(z)), b.lt(b.index(z), n["x_planes"])),
                b.and_(b.le(0, b.index(y)), b.lt(b.index(y), n["x_rows"])),
            )
            with b.when(inside), b.loop(0, count, self.tiling.lanes) as channel:
                x = b.view(b["x"], b.add(n.offset("x", image=image, plane=z, row=y, channel=first), channel))
                tap = b.mul(b.add(b.mul(deep, window.kernel[1]), high), window.kernel[2] * self.tiling.block)
                sums = b.view(self.scratch, b.add(tap, channel))
                rest_of = b.sub(count, channel)
                self.line((x, b.view(grad, channel)), sums, rest_of)

    def bounds(self, tap: int) -> tuple[Operand, Operand]:
        """The places of a row, from the first to the one behind the last, at which a tap sees a pixel of x."""
        b, n, window = self.b, self.n, self.kernel.window
        step, start = window.strides[2], self.kernel.before[2] - tap * window.dilations[2]
        first, last = (
            b.min(b.div(b.add(b.max(b.add(bound, start), 0), step - 1), step), n["pixels"])
            for bound in (0, n["x_pixels"])
        )
        return first, b.max(last, first)

    def line(self, sources: tuple[Value, Value], sums: Value, count: Operand) -> None:
        """Add the products of a row of places and a row of taps, for a vector of `count` channels."""
        b, kernel, tiling = self.b, self.kernel, self.tiling
        lanes, width = tiling.lanes, kernel.window.kernel[2]
        is_whole = kernel.groups % lanes == 0
        mask = None if is_whole else b.tail_mask(b.index(count), lanes)
        bounds = [self.bounds(tap) for tap in range(width)]
        begin, end = bounds[0]
        for first, last in bounds[1:]:
            begin, end = b.max(begin, first), b.min(end, last)
        end = b.max(end, begin)
        totals = [b.load(sums, tap * tiling.block, lanes) for tap in range(width)]
        taps = list(range(width))
        totals = self.places(sources, (begin, end), taps, totals, mask)
        for tap, (first, last) in enumerate(bounds):
            for piece in ((first, b.max(b.min(begin, last), first)), (b.min(b.max(end, first), last), last)):
                totals[tap : tap + 1] = self.places(sources, piece, [tap], totals[tap : tap + 1], mask)
        for tap, total in enumerate(totals):
            b.store(total, sums, tap * tiling.block)

    def places(
        self,
        sources: tuple[Value, Value],
        bounds: tuple[Operand, Operand],
        taps: Sequence[int],
        totals: Sequence[Value],
        mask: Value | None,
    ) -> list[Value]:
        """The sums of `taps` after the places from the first of `bounds` to before the last."""
        b, n, kernel, lanes = self.b, self.n, self.kernel, self.tiling.lanes
        window, (x, grad) = kernel.window, sources
        with b.loop(*bounds, 1, totals) as state:
            factor = b.load(grad, b.mul(state.index, n["grad_pixel"]), lanes, mask)
            left = b.sub(b.mul(state.index, window.strides[2]), kernel.before[2])
            state.yields([
                b.fma(
                    b.load(x, b.mul(b.add(left, tap * window.dilations[2]), n["x_pixel"]), lanes, mask), factor, total
                )
                for tap, total in zip(taps, state.values, strict=True)
            ])  # fmt: skip
        return list(state.results)

    def put(self, row: Operand, first: Operand, count: Operand) -> None:
        """Write the sums [taps, channels] as filters [channels, taps]; `row` is the first one of the part."""
        b, taps, lanes = self.b, self.kernel.window.taps, self.tiling.lanes
        with b.loop(0, count, lanes) as channel, b.loop(0, taps) as tap:
            total = b.load(self.scratch, b.add(b.mul(tap, self.tiling.block), channel), lanes)
            places = b.mul(b.add(b.iota(lanes), b.add(b.add(row, first), channel)), taps)
            b.scatter(total, b["w"], b.add(places, tap), b.tail_mask(b.index(b.sub(count, channel)), lanes))
