"""NonMaxSuppression: the boxes of each class that no better one overlaps too much.

A class of a batch is a unit of work. Its boxes whose scores are above the least one are brought in order (`order.py`);
each is then held against those chosen so far, whose corners and areas lie in vectors. A second kernel puts what all
classes have chosen one behind the other, and says how much it is.

Boxes [batch, box, 4] and scores [batch, class, box] are contiguous; `limit`, `overlap`, `least` are one number each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....graph import types
from ....graph.core import Value
from ....graph.dtypes import f32, i32, i64
from ....graph.kernel.loop_builder import Operand
from ....graph.module import Module
from ..machine import Machine
from .order import Ordering, keys_of
from .strided import Size, StridedBuilder, argument_names

# What is kept of a chosen box: its corners and its area.
_PARTS = ("left", "top", "right", "bottom", "area")
_ROUND = 16


@dataclass(frozen=True)
class Suppress:
    """`centred` boxes are given by their middle and size instead of two corners; `filters` says that there is a least
    score."""

    centred: bool
    filters: bool


_SIZES: dict[str, Size] = {"batches": None, "classes": None, "boxes": None, "most": None}


def suppress_arguments() -> list[str]:
    """The names of the arguments of the first kernel, in order; `most` are chosen of each class at most."""
    return argument_names(["chosen", "counts", "corners", "scores", "limit", "overlap", "least", "scratch"], _SIZES)


def collect_arguments() -> list[str]:
    """The names of the arguments of the second kernel, in order."""
    return argument_names(["y", "total", "chosen", "counts"], _SIZES)


def suppress_units(batches: int, classes: int) -> int:
    """How many units of work both have: classes of batches. The second one has one more if there are none."""
    return batches * classes


def suppress_scratch(boxes: int, most: int) -> int:
    """Numbers (i64) of memory of its own that each thread of the first kernel needs."""
    return 4 * _rounded(boxes) + len(_PARTS) * _rounded(most) // 2


def _rounded(count: int) -> int:
    return (count + _ROUND - 1) // _ROUND * _ROUND


def build_suppress(name: str, kernel: Suppress, machine: Machine) -> Module:
    """The first kernel: chosen[class, :counts[class]] are the boxes of a class, the best one first."""
    builder = _SuppressBuilder(name, kernel, machine)
    builder.units()
    return builder.b.module()


def build_collect(name: str, machine: Machine) -> Module:
    """The second kernel: y[total, 3] are batch, class and box of all that were chosen."""
    buffers = {"y": i64, "total": i64, "chosen": i64, "counts": i64}
    builder = StridedBuilder(name, machine, buffers, _SIZES, i64)
    b, classes = builder.b, builder.size("classes")
    units = b.mul(builder.size("batches"), classes)

    def summed(begin: Operand, end: Operand) -> Value:
        with b.loop(begin, end, 1, [b.constant(0, types.scalar(i64))]) as state:
            state.yields([b.add(state[0], b.load(b["counts"], state.index))])
        total: Value = state.results[0]
        return total

    before = summed(0, b["begin"])
    with b.when(b.eq(b["begin"], 0)):
        b.store(b.add(before, summed(b["begin"], units)), b["total"], 0)
    with b.loop(b["begin"], b.min(b["end"], units), 1, [before]) as state:
        unit = state.index
        count = b.load(b["counts"], unit)
        with b.loop(0, count) as i:
            place = b.mul(b.add(state[0], i), 3)
            box = b.load(b["chosen"], b.add(b.mul(unit, builder.size("most")), i))
            for part, number in enumerate((b.div(unit, classes), b.rem(unit, classes), box)):
                b.store(number, b["y"], b.add(place, part))
        state.yields([b.add(state[0], count)])
    return b.module()


class _SuppressBuilder(StridedBuilder):
    def __init__(self, name: str, kernel: Suppress, machine: Machine) -> None:
        numbers = dict.fromkeys(("corners", "scores", "overlap", "least"), f32)
        integers = dict.fromkeys(("chosen", "counts", "limit", "scratch"), i64)
        found = numbers | integers
        buffers = {name: found[name] for name in suppress_arguments() if name in found}
        super().__init__(name, machine, buffers, _SIZES, f32)
        self.kernel = kernel

    def rounded(self, count: Operand) -> Operand:
        b = self.b
        return b.mul(b.div(b.add(count, _ROUND - 1), _ROUND), _ROUND)

    def units(self) -> None:
        b, boxes, most = self.b, self.size("boxes"), self.size("most")
        pitch, width = self.rounded(boxes), self.rounded(most)
        room = b.add(b.mul(pitch, 4), b.div(b.mul(width, len(_PARTS)), 2))
        own = b.view(b["scratch"], b.mul(b["thread"], room))
        kept = b.reinterpret(b.view(own, b.mul(pitch, 4)), f32)
        self.kept = {part: b.view(kept, b.mul(number, width)) for number, part in enumerate(_PARTS)}
        self.count = b.alloc(i64, 1)
        ordering = Ordering(b, own, pitch, 32, self.machine.lanes(i64))
        limit = b.min(b.max(b.load(b["limit"], 0), 0), most)
        overlap = b.broadcast(b.load(b["overlap"], 0), self.lanes)
        with b.loop(b["begin"], b["end"]) as unit:
            found = self.candidates(b.mul(unit, boxes), own, pitch)
            places = b.add(ordering.ascending(found), pitch)
            corners = b.mul(b.mul(b.div(unit, self.size("classes")), boxes), 4)
            b.store(0, self.count, 0)
            with b.loop(0, found) as i, b.when(b.lt(b.load(self.count, 0), limit)):
                box = b.load(own, b.add(places, i))
                self.consider(box, b.add(corners, b.mul(box, 4)), b.mul(unit, most), overlap)
            b.store(b.load(self.count, 0), b["counts"], unit)

    def candidates(self, scores: Operand, room: Value, pitch: Operand) -> Value:
        """Keys and boxes of scores that are high enough; how many."""
        b, lanes, boxes = self.b, self.lanes, self.size("boxes")
        keys, marks = b.alloc(i32, lanes), b.alloc(i32, lanes)
        least = b.broadcast(b.load(b["least"], 0), lanes)
        zero = b.constant(0, types.scalar(i64))
        with b.loop(0, boxes, lanes, [zero]) as state:
            i, count = state.index, state[0]
            mask = b.tail_mask(b.index(b.sub(boxes, i)), lanes)
            score = b.load(b["scores"], b.add(scores, i), lanes, mask)
            high = b.and_(b.lt(least, score), mask) if self.kernel.filters else mask

            def add(i: Value = i, count: Value = count, score: Value = score, high: Value = high) -> list[Value]:
                b.store(keys_of(b, score, f32, descending=True), keys, 0)
                b.store(b.cast(high, i32), marks, 0)
                with b.loop(0, b.min(lanes, b.sub(boxes, i)), 1, [count]) as inner:
                    lane, at = inner.index, inner[0]
                    b.store(b.cast(b.load(keys, lane), i64), room, at)
                    b.store(b.add(i, lane), room, b.add(at, pitch))
                    inner.yields([b.add(at, b.cast(b.load(marks, lane), i64))])
                return list(inner.results)

            state.yields(b.branch(b.any(high), add, lambda count=count: [count]))
        found: Value = state.results[0]
        return found

    def consider(self, box: Value, place: Operand, chosen: Operand, overlap: Value) -> None:
        """Choose a box unless it overlaps one that is chosen already."""
        b = self.b
        mine = self.corners(place)
        count = b.load(self.count, 0)
        with b.loop(0, count, self.lanes, [b.constant(0, types.scalar(i64))]) as state:
            (hit,) = b.branch(
                b.eq(state[0], 0),
                lambda: [self.overlapped(mine, state.index, count, overlap)],
                lambda: [state[0]],
            )
            state.yields([hit])
        with b.when(b.eq(state.results[0], 0)):
            for part, number in zip(_PARTS, mine, strict=True):
                b.store(number, self.kept[part], count)
            b.store(box, b["chosen"], b.add(chosen, count))
            b.store(b.add(count, 1), self.count, 0)

    def corners(self, place: Operand) -> list[Value]:
        """Left, top, right, bottom and area of a box."""
        b = self.b
        first, second, third, fourth = (b.load(b["corners"], b.add(place, i)) for i in range(4))
        if self.kernel.centred:
            wide, high = b.div(third, 2.0), b.div(fourth, 2.0)
            left, right = b.sub(first, wide), b.add(first, wide)
            top, bottom = b.sub(second, high), b.add(second, high)
        else:
            left, right = self.ordered(second, fourth)
            top, bottom = self.ordered(first, third)
        return [left, top, right, bottom, b.mul(b.sub(right, left), b.sub(bottom, top))]

    def ordered(self, x: Value, y: Value) -> Sequence[Value]:
        b = self.b
        return b.select(b.le(y, x), y, x), b.select(b.le(y, x), x, y)

    def overlapped(self, mine: Sequence[Value], first: Value, count: Value, overlap: Value) -> Value:
        """1 if one of the chosen boxes from `first` on shares more than `overlap` of the union with this one."""
        b, lanes = self.b, self.lanes
        left, top, right, bottom, area = (b.broadcast(number, lanes) for number in mine)
        mask = b.tail_mask(b.index(b.sub(count, first)), lanes)
        other = {part: b.load(self.kept[part], first, lanes, mask) for part in _PARTS}
        width = b.sub(b.min(right, other["right"]), b.max(left, other["left"]))
        height = b.sub(b.min(bottom, other["bottom"]), b.max(top, other["top"]))
        shared = b.mul(width, height)
        union = b.sub(b.add(area, other["area"]), shared)
        hit = b.and_(b.lt(0.0, width), b.and_(b.lt(0.0, height), b.lt(0.0, shared)))
        hit = b.and_(hit, b.and_(b.lt(0.0, area), b.and_(b.lt(0.0, other["area"]), b.lt(0.0, union))))
        hit = b.and_(b.and_(hit, mask), b.lt(overlap, b.div(shared, union)))
        found: Value = b.cast(b.any(hit), i64)
        return found
