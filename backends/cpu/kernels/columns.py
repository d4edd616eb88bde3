"""Columns added up into an image: each block of elements at its place, the adjoint of cutting an image into blocks.

    work unit (image, channel, piece of the rows)
      rows; vectors of places along the last dim
        taps of the block that fall on the row
          taps that fall on the vector

So each element of the image is written once, and its sum has one order. With a stride s the elements of a row that are
s apart see the same taps, one place further on: they are summed in lanes and then laid between those of the other
phases. Where taps or phases are many, loops go over them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....graph import types
from ....graph.core import Value
from ....graph.dtypes import DType
from ....graph.kernel.loop_builder import Operand
from ....graph.kernel.scalar_emitter import computed_in
from ....graph.module import Module
from ..machine import Machine
from .image import share
from .strided import Size, StridedBuilder, argument_names

# More phases or taps along the last dim than these are gone through by loops.
_PHASES, _TAPS = 8, 32


@dataclass(frozen=True)
class Columns:
    """`x` are the strides of n, of c and the block (as one dim), and of the places; `y` those of the image [n, c,
    *spatial]. `before` is the padding in front."""

    dtype: DType
    block: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    x: tuple[Size, ...]
    y: tuple[Size, ...]


def columns_sizes(kernel: Columns) -> dict[str, Size]:
    """Extents and strides by name; those that are None are arguments: `size0` of the image, `places0` of blocks."""
    rank = len(kernel.block)
    sizes: dict[str, Size] = dict.fromkeys(
        ("channels", "pieces", *(f"size{axis}" for axis in range(rank)), *(f"places{axis}" for axis in range(rank)))
    )
    for name, strides in (("x", kernel.x), ("y", kernel.y)):
        sizes |= {f"{name}_outer{axis}": stride for axis, stride in enumerate(strides)}
    return sizes


def columns_arguments(kernel: Columns) -> list[str]:
    """The names of the kernel's arguments, in order."""
    return argument_names(["y", "x"], columns_sizes(kernel))


def columns_pieces(threads: int, *shape: int) -> int:
    """In how many pieces the rows of each channel are shared out, for images [n, c, *spatial]."""
    if threads == 1 or len(shape) < 4:
        return 1
    return max(1, min(shape[2], -(-4 * threads // max(1, shape[0] * shape[1]))))


def build_columns(name: str, kernel: Columns, machine: Machine) -> Module:
    """The kernel as a module of the level "loop"; see `columns_arguments` for what it takes. There are as many units
    of work as images, channels and pieces."""
    builder = _ColumnsBuilder(name, kernel, machine)
    builder.units()
    return builder.b.module()


@dataclass(frozen=True)
class _Taps:
    """The taps of a dim that fall on one place of the image: the first, one behind the last, and the step; and the
    place, from the first block's first element on."""

    first: Operand
    end: Operand
    step: int
    place: Operand


class _ColumnsBuilder(StridedBuilder):
    def __init__(self, name: str, kernel: Columns, machine: Machine) -> None:
        self.wide = computed_in(kernel.dtype)
        super().__init__(name, machine, dict.fromkeys(("y", "x"), kernel.dtype), columns_sizes(kernel), self.wide)
        self.kernel, self.rank = kernel, len(kernel.block)
        self.zero = self.b.constant(0, types.vector(self.wide, self.lanes))

    def units(self) -> None:
        b = self.b
        with b.loop(b["begin"], b["end"]) as unit:
            piece, rest = b.rem(unit, b["pieces"]), b.div(unit, b["pieces"])
            channel, image = b.rem(rest, b["channels"]), b.div(rest, b["channels"])
            taps = math.prod(self.kernel.block)
            x = self.place("x", "outer", [image, b.mul(channel, taps)])
            self.rows(0, piece, x, self.place("y", "outer", [image, channel]), [])

    def rows(self, axis: int, piece: Operand, x: Operand, y: Operand, seen: list[_Taps]) -> None:
        """Loops over all dims of the image but the last."""
        b = self.b
        if axis == self.rank - 1:
            self.row(x, y, seen)
            return
        size = self.size(f"size{axis}")
        bounds: tuple[Operand, Operand] = share(b, piece, size, b["pieces"]) if axis == 0 else (0, size)
        with b.loop(*bounds) as index:
            here = b.add(y, b.mul(index, self.stride("y", "outer", 2 + axis)))
            self.rows(axis + 1, piece, x, here, [*seen, self.taps(axis, index)])

    def taps(self, axis: int, index: Operand) -> _Taps:
        """Of a dim those taps a for which index + before - a dilation is a place of a block."""
        b, kernel = self.b, self.kernel
        count, stride, gap = kernel.block[axis], kernel.strides[axis], kernel.dilations[axis]
        place = b.add(index, kernel.before[axis])
        last = b.mul(b.sub(self.size(f"places{axis}"), 1), stride)
        first = b.div(b.add(b.max(b.sub(place, last), 0), gap - 1), gap)
        return self.fitting(axis, place, first, b.min(b.add(b.div(place, gap), 1), count))

    def fitting(self, axis: int, place: Operand, first: Operand, end: Operand) -> _Taps:
        """Of the taps from `first` to `end` those for which the rest up to `place` is a multiple of the stride."""
        b, stride, gap = self.b, self.kernel.strides[axis], self.kernel.dilations[axis]
        shared = math.gcd(stride, gap)
        step = stride // shared
        if step > 1:
            wanted = b.rem(b.mul(b.div(place, shared), pow(gap // shared, -1, step)), step)
            first = b.add(first, b.rem(b.sub(b.add(wanted, step), b.rem(first, step)), step))
        if shared > 1:
            end = b.select(b.eq(b.rem(place, shared), 0), b.index(end), 0)
        return _Taps(first, end, step, place)

    def summed(self, x: Operand, seen: Sequence[_Taps], totals: Sequence[Value], body: _Body) -> list[Value]:
        """`body(x, totals)` for all combinations of the taps of the dims before the last."""
        b, kernel = self.b, self.kernel

        def nest(axis: int, x: Operand, totals: Sequence[Value]) -> list[Value]:
            if axis == len(seen):
                return list(body(x, totals))
            each = seen[axis]
            with b.loop(each.first, each.end, each.step, totals) as state:
                tap = state.index
                block = b.div(b.sub(each.place, b.mul(tap, kernel.dilations[axis])), kernel.strides[axis])
                state.yields(nest(axis + 1, b.add(x, self.offset(axis, tap, block)), state.values))
            return list(state.results)

        return nest(0, x, totals)

    def offset(self, axis: int, tap: Operand, block: Operand) -> Operand:
        """How far in the columns a tap of a dim and a place of the block along it lead."""
        b = self.b
        after: Operand = 1
        for later in range(axis + 1, self.rank):
            after = b.mul(after, self.size(f"places{later}"))
        taps = math.prod(self.kernel.block[axis + 1 :])
        moved = b.mul(b.mul(tap, taps), self.stride("x", "outer", 1))
        return b.add(moved, b.mul(b.mul(block, after), self.stride("x", "outer", 2)))

    # ---- rows --------------------------------------------------------------------------------------------------------

    def row(self, x: Operand, y: Operand, seen: list[_Taps]) -> None:
        kernel = self.kernel
        phases = kernel.strides[-1]
        if phases > _PHASES or kernel.block[-1] > _TAPS or kernel.y[-1] != 1:
            self.looped(x, y, seen)
            return
        self.unrolled(x, y, seen, [self.shifts(phase) for phase in range(phases)])

    def shifts(self, phase: int) -> list[tuple[int, int]]:
        """The taps that elements of a phase see, each with the place of its block, from the element's own on."""
        kernel = self.kernel
        found = []
        for tap in range(kernel.block[-1]):
            place = phase + kernel.before[-1] - tap * kernel.dilations[-1]
            if place % kernel.strides[-1] == 0:
                found.append((tap, place // kernel.strides[-1]))
        return found

    def unrolled(self, x: Operand, y: Operand, seen: list[_Taps], taps: list[list[tuple[int, int]]]) -> None:
        """Vectors of all phases; between the edges, where all taps are of blocks that are there, without masks."""
        b, lanes, phases = self.b, self.lanes, self.kernel.strides[-1]
        shifts = [shift for those in taps for _, shift in those] or [0]
        size, places = self.size(f"size{self.rank - 1}"), self.size(f"places{self.rank - 1}")
        vectors = b.div(b.add(size, phases * lanes - 1), phases * lanes)
        left = b.min(-(min(shifts) // lanes) if min(shifts) < 0 else 0, vectors)
        whole = b.div(size, phases * lanes)
        right = b.max(b.min(b.div(b.max(b.sub(places, max(shifts)), 0), lanes), whole), left)
        for first, end, is_inside in ((0, left, False), (left, right, True), (right, vectors, False)):
            with b.loop(first, end) as vector:
                place = b.mul(vector, lanes)
                totals = self.vectors(x, place, seen, taps, is_inside)
                for part, total in enumerate(interleaved(self, totals)):
                    at = b.add(b.mul(place, phases), part * lanes)
                    mask = None if is_inside else b.tail_mask(b.index(b.sub(size, at)), lanes)
                    self.store(total, "y", b.add(y, at), 1, mask)

    def vectors(
        self, x: Operand, place: Operand, seen: list[_Taps], taps: list[list[tuple[int, int]]], is_inside: bool
    ) -> list[Value]:
        """The sums of each phase, for as many places as there are lanes."""
        b = self.b
        masks = {shift: None if is_inside else self.inside(b.add(place, shift)) for those in taps for _, shift in those}
        steps = self.stride("x", "outer", 1), self.stride("x", "outer", 2)

        def body(here: Operand, totals: Sequence[Value]) -> Sequence[Value]:
            found = list(totals)
            for phase, those in enumerate(taps):
                for tap, shift in those:
                    at = b.add(b.add(here, b.mul(tap, steps[0])), b.mul(b.add(place, shift), steps[1]))
                    found[phase] = b.add(found[phase], self.load("x", at, steps[1], masks[shift]))
            return found

        return self.summed(x, seen, [self.zero] * len(taps), body)

    def inside(self, block: Operand) -> Value:
        """Which lanes, from the place `block` on, are places of blocks."""
        b = self.b
        places = b.add(b.iota(self.lanes), block)
        mask: Value = b.and_(b.le(0, places), b.lt(places, self.size(f"places{self.rank - 1}")))
        return mask

    def looped(self, x: Operand, y: Operand, seen: list[_Taps]) -> None:
        """One phase after the other, and for each vector one tap after the other."""
        b, kernel, lanes, axis = self.b, self.kernel, self.lanes, self.rank - 1
        stride, gap, step = kernel.strides[-1], kernel.dilations[-1], self.stride("y", "outer", self.rank + 1)
        size, x_steps = self.size(f"size{axis}"), (self.stride("x", "outer", 1), self.stride("x", "outer", 2))
        with b.loop(0, b.min(stride, size)) as phase:
            count = b.div(b.add(b.sub(size, phase), stride - 1), stride)
            # As if blocks were everywhere: masks say where they are.
            taps = self.fitting(axis, b.add(phase, kernel.before[-1]), 0, kernel.block[-1])
            with b.loop(0, count, lanes) as first:

                def body(here: Operand, totals: Sequence[Value], first: Operand = first) -> Sequence[Value]:
                    with b.loop(taps.first, taps.end, taps.step, totals) as state:
                        tap = state.index
                        shift = b.div(b.sub(taps.place, b.mul(tap, gap)), stride)
                        block = b.add(first, shift)
                        at = b.add(b.add(here, b.mul(tap, x_steps[0])), b.mul(block, x_steps[1]))
                        loaded = self.load("x", at, x_steps[1], self.inside(block))
                        state.yields([b.add(state.values[0], loaded)])
                    return list(state.results)

                [total] = self.summed(x, seen, [self.zero], body)
                mask = b.tail_mask(b.index(b.sub(count, first)), lanes)
                at = b.add(y, b.mul(b.add(b.mul(first, stride), phase), step))
                self.store(total, "y", at, b.mul(step, stride), mask)


_Body = Callable[[Operand, Sequence[Value]], Sequence[Value]]


def interleaved(builder: StridedBuilder, vectors: Sequence[Value]) -> list[Value]:
    """The first elements of all vectors, then the second ones, ..., in as many vectors."""
    b, lanes, count = builder.b, builder.lanes, len(vectors)
    found = []
    for part in range(count):
        sources = [divmod(part * lanes + lane, count) for lane in range(lanes)]
        merged = vectors[0]
        for number in range(count):
            if number == 0:
                merged = b.shuffle(merged, merged, [place for place, _ in sources]) if count > 1 else merged
                continue
            order = [lanes + place if source == number else lane for lane, (place, source) in enumerate(sources)]
            merged = b.shuffle(merged, vectors[number], order)
        found.append(merged)
    return found
