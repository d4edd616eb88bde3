"""Ordering keys, each with the place it came from, inside of a kernel.

Few are ordered by counting for each how many come before it, many digit by digit, the last one first (radix sort:
Knuth, The Art of Computer Programming 3, 5.2.5). Both keep the order of equal keys.

`room` has four parts of `pitch` numbers (i64): keys, their places, and as much again to move them to. What is called an
offset is where in `room` keys begin; their places lie `pitch` behind them.
"""

from __future__ import annotations

import math

from ....graph import types
from ....graph.core import Value
from ....graph.dtypes import DType, f32, i32, i64
from ....graph.kernel.loop_builder import LoopBuilder, Operand
from ....graph.kernel.scalar_emitter import computed_in

# Up to so many are few.
FEW = 128
_DIGIT = 11


class Ordering:
    """Orders keys of `bits` bits, which are held as i64, with vectors of `lanes`."""

    def __init__(self, b: LoopBuilder, room: Value, pitch: Operand, bits: int, lanes: int) -> None:
        self.b, self.room, self.pitch, self.bits, self.lanes = b, room, pitch, bits, lanes
        self.counts = b.alloc(i64, 1 << _DIGIT)

    def ascending(self, count: Value) -> Value:
        """Bring the first `count` keys of the room, and their places, in order; the offset where they are then."""
        b = self.b
        (offset,) = b.branch(b.le(count, FEW), lambda: [self.few(count)], lambda: [self.many(count)])
        assert isinstance(offset, Value)
        return offset

    def few(self, count: Value) -> Value:
        """Each key goes to where as many others are as come before it."""
        b, lanes = self.b, self.lanes
        target = b.index(b.mul(self.pitch, 2))
        with b.loop(0, count) as i:
            key = b.load(self.room, i)
            mine = b.broadcast(key, lanes)
            with b.loop(0, count, lanes, [b.constant(0, types.vector(i64, lanes))]) as state:
                place = b.add(b.iota(lanes), state.index)
                mask = b.lt(place, count)
                other = b.load(self.room, state.index, lanes, mask)
                earlier = b.or_(b.lt(other, mine), b.and_(b.eq(other, mine), b.lt(place, i)))
                state.yields([b.add(state[0], b.cast(b.and_(earlier, mask), i64))])
            self.put(i, b.add(target, b.reduce("add", state.results[0])))
        return target

    def many(self, count: Value) -> Value:
        """A pass for each digit, unless all keys have the same one."""
        b = self.b
        source: Operand = 0
        for shift in range(0, self.bits, _DIGIT):
            begin = b.index(source)
            self.count(begin, count, shift)
            first = b.load(self.counts, self.digit(b.load(self.room, begin), shift))
            (source,) = b.branch(
                b.lt(first, count),
                lambda begin=begin, shift=shift: [self.move(begin, count, shift)],
                lambda begin=begin: [begin],
            )
        return b.index(source)

    def digit(self, key: Value, shift: int) -> Value:
        """Some bits of a key. The first ones have a sign."""
        b, rest = self.b, self.bits - shift
        moved = b.shr(key, shift)
        found: Value = b.and_(moved, (1 << _DIGIT) - 1) if rest > _DIGIT else b.add(moved, 1 << (rest - 1))
        return found

    def count(self, begin: Value, count: Value, shift: int) -> None:
        """How many keys have each digit."""
        b = self.b
        with b.loop(0, 1 << _DIGIT) as i:
            b.store(0, self.counts, i)
        with b.loop(0, count) as i:
            digit = self.digit(b.load(self.room, b.add(begin, i)), shift)
            b.store(b.add(b.load(self.counts, digit), 1), self.counts, digit)

    def move(self, begin: Value, count: Value, shift: int) -> Value:
        """Keys to the other half of the room, by their digit; the offset there."""
        b = self.b
        target = b.sub(b.mul(self.pitch, 2), begin)
        with b.loop(0, 1 << _DIGIT, 1, [target]) as state:
            next = b.add(state[0], b.load(self.counts, state.index))
            b.store(state[0], self.counts, state.index)
            state.yields([next])
        with b.loop(0, count) as i:
            digit = self.digit(b.load(self.room, b.add(begin, i)), shift)
            place = b.load(self.counts, digit)
            b.store(b.add(place, 1), self.counts, digit)
            self.put(b.add(begin, i), place)
        return target

    def put(self, source: Operand, target: Operand) -> None:
        """Move a key and its place."""
        b = self.b
        for part in (0, self.pitch):
            b.store(b.load(self.room, b.add(source, part)), self.room, b.add(target, part))


def key_dtype(dtype: DType) -> DType:
    """The integer that keys of a dtype are."""
    return i32 if dtype.bits < 32 or dtype in (f32, i32) else i64


def keys_of(b: LoopBuilder, value: Value, dtype: DType, descending: bool = False) -> Value:
    """The keys of numbers of `dtype`, in lanes or alone: integers whose order is theirs.

    NaN is beyond every number, -0 is 0. For a descending order all bits are inverted, so that the first one comes first
    among equals in both.
    """
    wide, kind = computed_in(dtype), key_dtype(dtype)
    value = b.cast(value, wide)
    if wide.is_float:
        value = b.select(b.ne(value, value), math.nan, b.add(value, b.constant(0.0, value.type)))
        bits = b.bitcast(value, kind)
        # Negative numbers are ordered against their bits, but for the sign.
        key = b.xor(bits, b.and_(b.shr(bits, kind.bits - 1), (1 << (kind.bits - 1)) - 1))
    elif dtype.kind == "uint" and dtype.bits == 64:
        key = b.xor(b.bitcast(value, i64), -(2**63))
    else:
        key = b.cast(value, kind)
    found: Value = b.not_(key) if descending else key
    return found
