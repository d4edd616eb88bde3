"""Sorting rows, or finding their first k elements: TopK, in either order.

Elements are compared by keys (`order.py`): the lower index comes first among equals. A few are found by insertion: what
is not below the k-th key so far is passed over, a vector at a time; of a long row also what is above the k-th of the
lowest keys of its parts. Many are found by ordering all elements or, if they
are far fewer, those whose keys' first bits may be among them. Indices are i64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ....graph import types
from ....graph.core import Value
from ....graph.dtypes import DType, i32, i64
from ....graph.kernel.loop_builder import Operand
from ....graph.module import Module
from ..machine import Machine
from .order import Ordering, key_dtype, keys_of
from .strided import Size, StridedBuilder, argument_names

# Up to so many are found by insertion, in a list of so many keys and one of as many places. Before each list there is
# room for the element before its first one.
FEW = 128
_GUARD = 8
_KEYS, _PLACES = _GUARD, FEW + 2 * _GUARD
# A row of so many elements at least is cut into parts, if half as many or fewer are to be found.
_LONG, _PARTS = 2048, 128
# Of many, keys are counted by so many first bits.
_FIRST_BITS = 11


@dataclass(frozen=True)
class Sort:
    """The first `k` of each row in ascending order, or descending if `largest`.

    Strides of x, values y and indices i are along the outer dims and the sorted dim, which is last in each. `few` says
    that k is at most 128 (`FEW`); then insertion is used.
    """

    dtype: DType
    outer: tuple[Size, ...]
    row: Size
    k: Size
    x: tuple[Size, ...]
    y: tuple[Size, ...]
    i: tuple[Size, ...]
    largest: bool = True
    few: bool = False


def sort_sizes(kernel: Sort) -> dict[str, Size]:
    """Extents and strides by name; those that are None are arguments of the kernel."""
    sizes: dict[str, Size] = {f"outer{axis}": extent for axis, extent in enumerate(kernel.outer)}
    sizes |= {"row0": kernel.row, "k": kernel.k}
    for name, strides in (("x", kernel.x), ("y", kernel.y), ("i", kernel.i)):
        sizes |= {f"{name}_outer{axis}": stride for axis, stride in enumerate(strides)}
    return sizes


def sort_arguments(kernel: Sort) -> list[str]:
    """The names of the kernel's arguments, in order: values, indices, operand, scratch memory of keys (i64)."""
    return argument_names(["y", "i", "x", "scratch"], sort_sizes(kernel))


def sort_units(outer: Sequence[int]) -> int:
    """How many units of work there are: rows."""
    return math.prod(outer)


def sort_scratch(kernel: Sort, row: int) -> int:
    """Numbers (i64) of memory of its own that each thread needs."""
    return 2 * (FEW + _GUARD) if kernel.few else 4 * row


def build_sort(name: str, kernel: Sort, machine: Machine) -> Module:
    """The kernel as a module of the level "loop"; see `sort_arguments` for what it takes."""
    builder = _SortBuilder(name, kernel, machine)
    builder.units()
    return builder.b.module()


class _SortBuilder(StridedBuilder):
    def __init__(self, name: str, kernel: Sort, machine: Machine) -> None:
        self.key = key_dtype(kernel.dtype)
        buffers = {"y": kernel.dtype, "i": i64, "x": kernel.dtype, "scratch": i64}
        super().__init__(name, machine, buffers, sort_sizes(kernel), self.key)
        self.kernel = kernel
        # Lanes of the lists of a few.
        self.wide = machine.lanes(i64)
        self.dims = [f"outer{axis}" for axis in range(len(kernel.outer))]

    def units(self) -> None:
        b = self.b
        room: Operand = 2 * (FEW + _GUARD) if self.kernel.few else b.mul(self.size("row0"), 4)
        own = b.view(b["scratch"], b.mul(b["thread"], room))
        found, filled = b.alloc(self.key, self.lanes), b.alloc(i64, 1)
        with b.loop(b["begin"], b["end"]) as unit:
            indices = self.unravel(unit, self.dims)
            x = self.place("x", "outer", indices)
            if self.kernel.few:
                self.insert_all(x, own, found, filled)
                self.give(x, indices, lambda n, own=own: b.load(own, b.add(n, _PLACES)))
            else:
                self.order_all(x, indices, own)

    def keys(self, value: Value) -> Value:
        """The keys of numbers, in lanes or alone."""
        return keys_of(self.b, value, self.kernel.dtype, self.kernel.largest)

    def give(self, x: Operand, indices: Sequence[Operand], place_of: Any) -> None:
        """Write the results: the element at `place_of(n)` of the row is the n-th."""
        b, rank = self.b, len(self.dims)
        y, i = self.place("y", "outer", indices), self.place("i", "outer", indices)
        with b.loop(0, self.size("k")) as n:
            place = place_of(n)
            value = b.load(b["x"], b.add(x, b.mul(place, self.stride("x", "outer", rank))))
            b.store(value, b["y"], b.add(y, b.mul(n, self.stride("y", "outer", rank))))
            b.store(place, b["i"], b.add(i, b.mul(n, self.stride("i", "outer", rank))))

    # ---- a few -------------------------------------------------------------------------------------------------------

    def insert_all(self, x: Operand, own: Value, found: Value, filled: Value) -> None:
        """The k lowest keys and their places, in order, in lists in `own`; `filled[0]` counts them."""
        b, length, k = self.b, self.size("row0"), self.size("k")
        stride = self.stride("x", "outer", len(self.dims))
        (limit,) = b.branch(
            b.le(k, _PARTS // 2),
            lambda: b.branch(b.le(_LONG, length), lambda: [self.limit(x)], lambda: [self.last_key]),
            lambda: [self.last_key],
        )
        assert isinstance(limit, Value)
        b.store(0, filled, 0)
        with b.loop(0, self.room(), self.wide) as slot:
            b.store(b.constant(2**63 - 1, types.vector(i64, self.wide)), own, b.add(slot, _KEYS))
        with b.loop(0, length, self.lanes) as i:
            mask = b.tail_mask(b.index(b.sub(length, i)), self.lanes)
            vector = self.keys(self.load("x", b.add(x, b.mul(i, stride)), stride, mask))
            is_open = b.lt(b.load(filled, 0), k)
            last = b.broadcast(self.last(own), self.lanes)
            chosen = b.or_(b.lt(b.cast(vector, i64), last), b.broadcast(is_open, self.lanes))
            chosen = b.and_(chosen, b.le(vector, b.broadcast(limit, self.lanes)))
            with b.when(b.any(b.and_(chosen, mask))):
                b.store(vector, found, 0)
                with b.loop(0, b.min(b.sub(length, i), self.lanes)) as lane:
                    key = b.load(found, lane)
                    with b.when(b.le(key, limit)):
                        self.insert(b.cast(key, i64), b.add(i, lane), own, filled)

    @property
    def last_key(self) -> Value:
        """None is above this one."""
        return self.b.constant(2 ** (self.key.bits - 1) - 1, types.scalar(self.key))

    def limit(self, x: Operand) -> Value:
        """A key that the k-th one is not above: the k-th of the lowest keys of parts of the row."""
        b, lanes = self.b, self.lanes
        stride = self.stride("x", "outer", len(self.dims))
        lowest = b.alloc(self.key, _PARTS)
        most = b.broadcast(self.last_key, lanes)
        each = b.div(self.size("row0"), _PARTS)  # vectors of a group of parts, one in each lane
        with b.loop(0, _PARTS, lanes) as part:
            first = b.mul(part, each)
            with b.loop(0, each, 1, [most]) as state:
                place = b.add(x, b.mul(b.add(first, b.mul(state.index, lanes)), stride))
                state.yields([b.min(state[0], self.keys(self.load("x", place, stride)))])
            b.store(state.results[0], lowest, part)
        with b.loop(0, _PARTS, 1, [self.last_key]) as chosen:
            key = b.load(lowest, chosen.index)
            mine = b.broadcast(key, lanes)
            with b.loop(0, _PARTS, lanes, [b.constant(0, types.vector(i32, lanes))]) as counted:
                other, place = b.load(lowest, counted.index, lanes), b.add(b.iota(lanes), counted.index)
                earlier = b.or_(b.lt(other, mine), b.and_(b.eq(other, mine), b.lt(place, chosen.index)))
                counted.yields([b.add(counted[0], b.cast(earlier, i32))])
            before = b.cast(b.reduce("add", counted.results[0]), i64)
            chosen.yields([b.select(b.eq(before, b.sub(self.size("k"), 1)), key, chosen[0])])
        found: Value = chosen.results[0]
        return found

    def room(self) -> Operand:
        """Whole vectors of the list that k elements take."""
        return self.b.mul(self.b.div(self.b.add(self.size("k"), self.wide - 1), self.wide), self.wide)

    def last(self, own: Value) -> Value:
        """The k-th key of the list."""
        b = self.b
        return b.load(own, b.add(b.max(b.sub(self.size("k"), 1), 0), _KEYS))

    def insert(self, key: Value, place: Value, own: Value, filled: Value) -> None:
        """Put a key behind those that are not above it. If the list is full, the last one falls out."""
        b, k, wide = self.b, self.size("k"), self.wide
        count = b.load(filled, 0)
        is_open = b.lt(count, k)
        with b.when(b.or_(is_open, b.lt(key, self.last(own)))):
            end, mine = self.room(), b.broadcast(key, wide)
            with b.loop(0, end, wide, [b.constant(0, types.vector(i64, wide))]) as state:
                below = b.le(b.load(own, b.add(state.index, _KEYS), wide), mine)
                state.yields([b.add(state[0], b.cast(below, i64))])
            # Of the largest key that there is, free places are not above it, either.
            position = b.min(b.reduce("add", state.results[0]), count)
            first = b.mul(b.div(position, wide), wide)
            with b.loop(first, end, wide) as passed:
                # From the end, since each vector takes in the last element of the one before it.
                at = b.sub(b.sub(b.add(first, end), wide), passed)
                lane = b.add(b.iota(wide), at)
                for start, new in ((_KEYS, key), (_PLACES, place)):
                    moved = b.select(b.eq(lane, position), new, b.load(own, b.add(at, start - 1), wide))
                    kept = b.load(own, b.add(at, start), wide)
                    b.store(b.select(b.lt(lane, position), kept, moved), own, b.add(at, start))
            b.store(b.min(b.add(count, 1), k), filled, 0)

    # ---- many --------------------------------------------------------------------------------------------------------

    def order_all(self, x: Operand, indices: Sequence[Operand], room: Value) -> None:
        """Bring all keys in order; of many only those that may be among the first k."""
        b, length = self.b, self.size("row0")
        stride = self.stride("x", "outer", len(self.dims))
        with b.loop(0, length) as i:
            key = self.keys(b.load(b["x"], b.add(x, b.mul(i, stride))))
            b.store(b.cast(key, i64), room, i)
            b.store(i, room, b.add(length, i))
        few = b.lt(b.mul(self.size("k"), 4), length)
        (count,) = b.branch(few, lambda: [self.candidates(room)], lambda: [b.index(length)])
        ordering = Ordering(b, room, length, self.key.bits, self.wide)
        places = b.add(ordering.ascending(b.index(count)), length)
        self.give(x, indices, lambda n: b.load(room, b.add(places, n)))

    def candidates(self, room: Value) -> Value:
        """Keep only keys whose first bits are not above those of the k-th lowest; how many there are.

        Keys are counted by their first bits, as in the first step of a radix sort.
        """
        b, length, k = self.b, self.size("row0"), self.size("k")
        zero = b.constant(0, types.scalar(i64))
        counts = b.alloc(i64, 1 << _FIRST_BITS)

        def group(key: Value) -> Value:
            first: Value = b.add(b.shr(key, self.key.bits - _FIRST_BITS), 1 << (_FIRST_BITS - 1))
            return first

        with b.loop(0, 1 << _FIRST_BITS) as i:
            b.store(0, counts, i)
        with b.loop(0, length) as i:
            place = group(b.load(room, i))
            b.store(b.add(b.load(counts, place), 1), counts, place)
        with b.loop(0, 1 << _FIRST_BITS, 1, [zero, zero]) as state:
            below, last = state.values
            # The groups before the one in which the k-th key lies have fewer than k keys in all.
            more = b.lt(below, k)
            total = b.add(below, b.load(counts, state.index))
            state.yields([b.select(more, total, below), b.select(more, state.index, last)])
        limit = state.results[1]
        with b.loop(0, length, 1, [zero]) as kept:
            key = b.load(room, kept.index)
            b.store(key, room, kept[0])
            b.store(kept.index, room, b.add(length, kept[0]))
            kept.yields([b.add(kept[0], b.cast(b.le(group(key), limit), i64))])
        found: Value = kept.results[0]
        return found
