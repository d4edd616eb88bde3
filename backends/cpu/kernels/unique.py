"""Unique: which rows of a matrix are different, where each is first, which one each row is, and how often it is there.

Rows are put in order column by column, the last one first, by keys (`order.py`), so NaNs are alike, and -0 is 0. Equal
rows are then neighbours, in the order that they had. It is one unit of work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ....graph import types
from ....graph.core import Value
from ....graph.dtypes import DType, bool_, i32, i64
from ....graph.kernel.loop_builder import Operand
from ....graph.kernel.scalar_emitter import computed_in
from ....graph.module import Module
from ..machine import Machine
from .order import Ordering, key_dtype, keys_of
from .strided import Size, StridedBuilder, argument_names

_SIZES: dict[str, Size] = {"rows": None, "columns": None}


@dataclass(frozen=True)
class Unique:
    """Rows in ascending order if `ascending`, else in the order in which they are first; `single` says that there is
    one column."""

    dtype: DType
    single: bool = False
    ascending: bool = True


def unique_arguments() -> list[str]:
    """The names of the arguments, in order: places of the first ones, number of each row, counts, how many there are;
    a contiguous matrix, scratch memory. All but the matrix are i64."""
    return argument_names(["first", "inverse", "counts", "total", "x", "scratch"], _SIZES)


def unique_scratch(rows: int) -> int:
    """Numbers (i64) of memory that the kernel needs."""
    return 4 * rows


def build_unique(name: str, kernel: Unique, machine: Machine) -> Module:
    """The kernel as a module of the level "loop"; see `unique_arguments` for what it takes."""
    builder = _UniqueBuilder(name, kernel, machine)
    builder.unit()
    return builder.b.module()


class _UniqueBuilder(StridedBuilder):
    def __init__(self, name: str, kernel: Unique, machine: Machine) -> None:
        integers = dict.fromkeys(("first", "inverse", "counts", "total"), i64)
        buffers = {**integers, "x": kernel.dtype, "scratch": i64}
        super().__init__(name, machine, buffers, _SIZES, computed_in(kernel.dtype))
        self.lanes = min(16, self.lanes)
        self.kernel = kernel
        self.room, self.rows = self.b["scratch"], self.size("rows")

    def unit(self) -> None:
        b, rows = self.b, self.rows
        with b.loop(b["begin"], b["end"]):
            offset = self.ordered()
            kept = b.sub(b.mul(rows, 2), offset)
            if self.kernel.ascending:
                total = self.groups(offset, lambda number: (b["first"], number, b["counts"], number))
            else:
                total = self.groups(offset, lambda number: (
                    self.room, b.add(kept, number), self.room, b.add(b.add(kept, rows), number)))  # fmt: skip
                self.as_they_come(kept, offset)
            b.store(total, b["total"], 0)

    # ---- in order ----------------------------------------------------------------------------------------------------

    def ordered(self) -> Value:
        """Bring the places of all rows in order; the offset in the room where they and the keys of the first column
        are then."""
        b, rows, columns = self.b, self.rows, self.size("columns")
        ordering = Ordering(b, self.room, rows, key_dtype(self.kernel.dtype).bits, self.machine.lanes(i64))
        if self.kernel.single:
            with b.loop(0, rows, self.lanes) as i:
                mask = b.tail_mask(b.index(b.sub(rows, i)), self.lanes)
                key = self.keys(b.load(b["x"], i, self.lanes, mask))
                b.store(b.cast(key, i64), self.room, i, mask)
                b.store(b.add(b.iota(self.lanes), i), self.room, b.add(rows, i), mask)
            return ordering.ascending(b.index(rows))
        with b.loop(0, rows) as i:
            b.store(i, self.room, b.add(rows, i))
        with b.loop(0, columns, 1, [b.constant(0, types.scalar(i64))]) as state:
            column = b.sub(b.sub(columns, 1), state.index)
            with b.loop(0, rows) as i:
                place = b.load(self.room, b.add(b.add(state[0], rows), i))
                key = self.keys(b.load(b["x"], b.add(b.mul(place, columns), column)))
                b.store(b.cast(key, i64), self.room, i)
                b.store(place, self.room, b.add(rows, i))
            state.yields([ordering.ascending(b.index(rows))])
        offset: Value = state.results[0]
        return offset

    def keys(self, value: Value) -> Value:
        return keys_of(self.b, value, self.kernel.dtype)

    # ---- groups of equal ones ----------------------------------------------------------------------------------------

    def groups(self, offset: Value, places: Callable[[Value], tuple[Value, Operand, Value, Operand]]) -> Value:
        """Number the groups of equal rows. `places` says where the first row of one, and how many it has, are kept."""
        b, rows = self.b, self.rows
        zero = b.constant(0, types.scalar(i64))
        with b.loop(0, rows, 1, [zero, zero]) as state:
            i, (number, begin) = state.index, state.values
            place = b.load(self.room, b.add(b.add(offset, rows), i))
            is_new = b.or_(b.eq(i, 0), self.differs(offset, b.max(b.sub(i, 1), 0), i))
            following = b.add(number, b.cast(is_new, i64))
            begin = b.select(is_new, i, begin)
            first, at, counts, count_at = places(b.sub(following, 1))
            with b.when(is_new):
                b.store(place, first, at)
            b.store(b.add(b.sub(i, begin), 1), counts, count_at)
            b.store(b.sub(following, 1), b["inverse"], place)
            state.yields([following, begin])
        total: Value = state.results[0]
        return total

    def differs(self, offset: Value, before: Value, here: Value) -> Value:
        """Whether two rows are not alike."""
        b, columns = self.b, self.size("columns")
        if self.kernel.single:
            one, other = (b.load(self.room, b.add(offset, i)) for i in (before, here))
            found: Value = b.ne(one, other)
            return found
        starts = [b.mul(b.load(self.room, b.add(b.add(offset, self.rows), i)), columns) for i in (before, here)]
        with b.loop(0, columns, self.lanes, [b.constant(0, types.scalar(i32))]) as state:
            mask = b.tail_mask(b.index(b.sub(columns, state.index)), self.lanes)
            left, right = (self.keys(b.load(b["x"], b.add(s, state.index), self.lanes, mask)) for s in starts)
            state.yields([b.max(state[0], b.reduce("max", b.cast(b.ne(left, right), i32)))])
        return b.cast(state.results[0], bool_)

    def as_they_come(self, kept: Value, free: Value) -> None:
        """Number the groups anew, in the order of their first rows."""
        b, rows = self.b, self.rows
        with b.loop(0, rows, 1, [b.constant(0, types.scalar(i64))]) as state:
            i, number = state.index, state[0]
            old = b.load(b["inverse"], i)
            is_first = b.eq(b.load(self.room, b.add(kept, old)), i)
            with b.when(is_first):
                b.store(number, self.room, b.add(free, old))
                b.store(i, b["first"], number)
                b.store(b.load(self.room, b.add(b.add(kept, rows), old)), b["counts"], number)
            b.store(b.load(self.room, b.add(free, old)), b["inverse"], i)
            state.yields([b.add(number, b.cast(is_first, i64))])
