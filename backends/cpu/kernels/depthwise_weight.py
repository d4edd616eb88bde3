"""The adjoint of a depthwise convolution's filters: vectors hold channels, each with sums of its own.

    work unit (part of the rows of places, block of channels)
      rows of places, rows of the window (several at once if all of them lie inside of x), vectors of channels
        pixels that see all taps of those rows: registers; those at the edges column of taps by column

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
VECTORS = 16


@dataclass(frozen=True)
class DepthwiseWeightTiling:
    """`vectors` of `lanes` channels to a unit; places in `parts` parts; `together` rows of the window at once."""

    lanes: int
    vectors: int
    parts: int
    together: int = 1

    @property
    def block(self) -> int:
        return self.lanes * self.vectors


def depthwise_weight_tiling(kernel: ConvWeight, machine: Machine, places: int, units: int) -> DepthwiseWeightTiling:
    """A tiling for sums over `places`, cut into parts so that there are about `units` units of work."""
    lanes = machine.lanes(kernel.dtype)
    vectors = min(VECTORS, -(-kernel.groups // lanes))
    blocks = -(-kernel.groups // (lanes * vectors))
    parts = max(1, min(MOST_PARTS, units // blocks, places // LEAST_PLACES))
    # Three quarters of the registers hold sums, so that each of the adjoint's numbers is loaded once for many products.
    most = max(1, machine.registers * 3 // 4 // kernel.window.kernel[2])
    rows = kernel.window.kernel[1]
    return DepthwiseWeightTiling(lanes, vectors, parts, -(-rows // -(-rows // most)))


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
        window, together = kernel.window, self.tiling.together
        row, rest = b.rem(number, n["rows"]), b.div(number, n["rows"])
        plane, image = b.rem(rest, n["planes"]), b.div(rest, n["planes"])
        grad = b.view(b["grad"], n.offset("grad", image=image, plane=plane, row=row, channel=first))

        def seen(axis: int, place: Operand, tap: Operand) -> Operand:
            """Where a tap looks for this place."""
            start = b.mul(place, window.strides[axis])
            found: Operand = b.sub(b.add(start, b.mul(tap, window.dilations[axis])), kernel.before[axis])
            return found

        # Where the rows lie that the next row of places needs for the first time.
        below = seen(1, b.add(row, 1), window.kernel[1] - 1)
        following = [
            n.offset("grad", image=image, plane=plane, row=b.add(row, 1), channel=first),
            n.offset("x", image=image, plane=plane, row=below, channel=first),
        ]

        def within(axis: int, low: Operand, high: Operand) -> Value:
            extent = n["x_planes" if axis == 0 else "x_rows"]
            return b.and_(b.le(0, b.index(low)), b.lt(b.index(high), extent))

        def lines(deep: Operand, z: Operand, start: Operand, rows: int) -> None:
            """Those rows of the window, from `start` on."""
            with b.loop(0, count, self.tiling.lanes) as channel:
                views = [
                    b.view(b["x"], b.add(n.offset("x", image=image, plane=z, row=y, channel=first), channel))
                    for y in (seen(1, row, b.add(start, tap)) for tap in range(rows))
                ]
                tap = b.mul(b.add(b.mul(deep, window.kernel[1]), start), window.kernel[2] * self.tiling.block)
                sums = b.view(self.scratch, b.add(tap, channel))
                ahead = [b.add(place, b.mul(channel, n["pixels"])) for place in following]
                self.lines(views, b.view(grad, channel), sums, b.sub(count, channel), ahead)

        def one_by_one(deep: Operand, z: Operand, start: int, rows: int) -> None:
            with b.loop(start, start + rows) as high:
                y = seen(1, row, high)
                with b.when(within(1, y, y)):
                    lines(deep, z, high, 1)

        with b.loop(0, window.kernel[0]) as deep:
            z = seen(0, plane, deep)
            with b.when(within(0, z, z)):
                for start in range(0, window.kernel[1], together):
                    rows = min(together, window.kernel[1] - start)
                    all_within = within(1, seen(1, row, start), seen(1, row, start + rows - 1))
                    b.branch(
                        all_within,
                        lambda start=start, rows=rows: lines(deep, z, start, rows),
                        lambda start=start, rows=rows: one_by_one(deep, z, start, rows) if rows > 1 else None,
                    )

    def bounds(self, tap: int) -> tuple[Operand, Operand]:
        """The places of a row, from the first to the one behind the last, at which a tap sees a pixel of x."""
        b, n, window = self.b, self.n, self.kernel.window
        step, start = window.strides[2], self.kernel.before[2] - tap * window.dilations[2]
        first, last = (
            b.min(b.div(b.add(b.max(b.add(bound, start), 0), step - 1), step), n["pixels"])
            for bound in (0, n["x_pixels"])
        )
        return first, b.max(last, first)

    def lines(self, x: Sequence[Value], grad: Value, sums: Value, count: Operand, ahead: Sequence[Operand]) -> None:
        """Add the products of a row of places and rows of taps, which see the rows x, for a vector of `count`
        channels. Meanwhile lines from the places `ahead` on are asked for in their order: those of one vector of
        channels lie too far apart for the processor to do so."""
        b, kernel, tiling = self.b, self.kernel, self.tiling
        lanes, width = tiling.lanes, kernel.window.kernel[2]
        is_whole = kernel.groups % lanes == 0
        mask = None if is_whole else b.tail_mask(b.index(count), lanes)
        bounds = [self.bounds(tap) for tap in range(width)]
        begin, end = bounds[0]
        for first, last in bounds[1:]:
            begin, end = b.max(begin, first), b.min(end, last)
        end = b.max(end, begin)
        totals = [b.load(sums, tap * tiling.block, lanes) for tap in range(len(x) * width)]
        totals = self.places((x, grad), (begin, end), range(width), totals, mask, ahead)
        for tap, (first, last) in enumerate(bounds):
            for piece in ((first, b.max(b.min(begin, last), first)), (b.min(b.max(end, first), last), last)):
                totals[tap::width] = self.places((x, grad), piece, [tap], totals[tap::width], mask)
        for tap, total in enumerate(totals):
            b.store(total, sums, tap * tiling.block)

    def places(
        self,
        sources: tuple[Sequence[Value], Value],
        bounds: tuple[Operand, Operand],
        taps: Sequence[int],
        totals: Sequence[Value],
        mask: Value | None,
        ahead: Sequence[Operand] = (),
    ) -> list[Value]:
        """The sums of `taps` of each row after the places from the first of `bounds` to before the last."""
        b, n, kernel, lanes = self.b, self.n, self.kernel, self.tiling.lanes
        window, (rows, grad) = kernel.window, sources
        with b.loop(*bounds, 1, totals) as state:
            for name, place in zip(("grad", "x"), ahead, strict=False):
                b.prefetch(b[name], b.add(place, b.mul(state.index, lanes)))
            factor = b.load(grad, b.mul(state.index, n["grad_pixel"]), lanes, mask)
            left = b.sub(b.mul(state.index, window.strides[2]), kernel.before[2])
            seen = [(x, b.mul(b.add(left, tap * window.dilations[2]), n["x_pixel"])) for x in rows for tap in taps]
            state.yields([
                b.fma(b.load(x, place, lanes, mask), factor, total)
                for (x, place), total in zip(seen, state.values, strict=True)
            ])  # fmt: skip
        return list(state.results)

    def put(self, row: Operand, first: Operand, count: Operand) -> None:
        """Write the sums [taps, channels] as filters [channels, taps]; `row` is the first one of the part."""
        b, taps, lanes = self.b, self.kernel.window.taps, self.tiling.lanes
        with b.loop(0, count, lanes) as channel, b.loop(0, taps) as tap:
            total = b.load(self.scratch, b.add(b.mul(tap, self.tiling.block), channel), lanes)
            places = b.mul(b.add(b.iota(lanes), b.add(b.add(row, first), channel)), taps)
            b.scatter(total, b["w"], b.add(places, tap), b.tail_mask(b.index(b.sub(count, channel)), lanes))
