"""Rows whose results go to memory past the caches, at nearly the speed of a copy.

A copy reads and writes memory at the same time. The passes on a row do not: one waits for what is read, one for
arithmetic, one for what is written. So the last pass on a unit is laid within a pass on the next one, which meanwhile
computes and asks for the unit after that:

    y[previous] = result(stage); stage = exp(x - greatest); sum += stage; ask for x[next]

That is the pass that puts elements on the stage: each leaves its place just before the next one takes it, so the line
is in the first cache already. How a unit is computed, and in which order it is added up, does not depend on the one
that it is laid together with, nor on where its results lie.

A processor does not fetch the next rows of a block of columns by itself. So the first statistic of the next block is
found within the same pass, too, with each row asked for a little before.

On one core with 2 MiB of second cache, where a copy past the caches takes 0.42 ns for an f32: reading alone 0.55 (page
after page) or 0.21 (four pages at a time), writing alone 0.22, exp and its sum from the second cache 0.21. A softmax of
32,000 columns, pass after pass, took 0.59 and takes 0.41-0.43. Slower than 80 % of such a copy, though not of one that
goes through the caches, are rows of 512 KiB, of which three nearly fill that cache (0.52), and columns of 512 rows,
whose blocks touch few lines in each of as many pages and fill some sets of that cache (0.54, without a look ahead 0.58;
2,048 rows 0.82). Slower than either are columns whose rows begin anywhere in a line, which are stored like anything
else, so that each line is read before it is written (0.73-0.99).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ....graph import types
from ....graph.core import Value
from ....graph.kernel.loop_builder import Operand
from ....graph.kernel.scalar_emitter import computed_in
from ..machine import Machine
from .row_walk import RowWalk, Spot, Step
from .rows import RowKernel, RowsBuilder, Statistic

# Rows of the next block of columns are asked for so many rows before they are read.
ROWS_AHEAD = 6


@dataclass(frozen=True)
class _Before:
    """The unit whose results are not stored yet: how far from this one it lies in each tensor, and its statistics."""

    distances: dict[str, Operand]
    found: list[list[Value]]


class StreamedRows(RowsBuilder):
    """Units with the results of each laid within a pass on the next one."""

    def __init__(self, name: str, kernel: RowKernel, machine: Machine) -> None:
        super().__init__(name, kernel, machine)
        statistics = kernel.function.statistics
        keeping = [index for index, statistic in enumerate(statistics) if statistic.keeps]
        # The pass that the results of the unit before are laid within, and the one that is being built.
        self.joined = 0 if kernel.prologue is not None else keeping[0] if keeping else len(statistics) - 1
        self.position = 0
        self.before: _Before | None = None
        # Whether the first statistic is found within that pass of the block of columns before, how far away the next
        # block is, and what was found of this one and of the next.
        self.looks_ahead = self.by_column and self.joined == 1 == len(statistics) - 1 and statistics[0].value is None
        self.ahead: dict[str, Operand] | None = None
        self.found_here: list[list[Value]] = []
        self.found_ahead: list[Value] = []
        self.makes_results = False
        # Of which tensors the next block of columns is asked for.
        self.asked = self.operands

    # ---- units one after another -------------------------------------------------------------------------------------

    def units(self) -> None:
        self.take_scratch()
        if self.by_column:
            self.b.branch(self.has_whole_vectors(), self.chained, self.in_caches)
        else:
            self.chained()
        self.b.fence()

    def in_caches(self) -> None:
        """Units whose results cannot go past the caches: elements wait in the result, whose lines are needed anyway."""
        if self.kernel.results[0].dtype is self.dtype:
            self.stage = "y0"
        self.asked = [*self.operands, "y0"]
        self.one_by_one()

    def has_whole_vectors(self) -> Operand:
        """Whether blocks of columns are full, and all their vectors lie in the result at multiples of their size."""
        b, lanes = self.b, self.lanes
        steps = [self.stride("y0", "outer", axis) for axis in range(len(self.outers) - 1)]
        steps += [self.stride("y0", "row", axis) for axis in range(len(self.rows))]
        rests = [b.rem(self.size(self.outers[-1]), self.width * lanes), *(b.rem(step, lanes) for step in steps)]
        rests.append(b.until_aligned(b["y0"], 0, self.vector_bytes()))
        total: Operand = 0
        for rest in rests:
            total = b.add(total, rest)
        return b.eq(total, 0)

    def vector_bytes(self) -> int:
        return self.lanes * (self.kernel.results[0].dtype.bits // 8)

    def chained(self) -> None:
        """The first unit's statistics; those of each other one with the results of the one before; the last results."""
        b = self.b
        self.masks = [None] * self.width
        begin, end = b["begin"], b["end"]
        with b.when(b.lt(begin, end)):
            if self.looks_ahead:
                self.found_ahead = self.first_statistic(begin)
            first = self.unit_statistics(begin, end)
            carried = [value for values in (*first, self.found_ahead) for value in values]
            with b.loop(b.add(begin, 1), end, 1, carried) as state:
                before, self.found_ahead = self.by_statistic(state.values)
                self.before = _Before(self.distances(state.index, b.sub(state.index, 1)), before)
                found = self.unit_statistics(state.index, end)
                self.before = None
                state.yields([value for values in (*found, self.found_ahead) for value in values])
            self.unit_results(b.sub(end, 1), self.by_statistic(state.results)[0])

    def by_statistic(self, values: Sequence[Value]) -> tuple[list[list[Value]], list[Value]]:
        """What a loop carries: as `found` has it, and the first statistic of the next unit."""
        each = self.width if self.by_column else 1
        parts = [list(values[start : start + each]) for start in range(0, len(values), each)]
        count = len(self.kernel.function.statistics)
        return parts[:count], [value for part in parts[count:] for value in part]

    def distances(self, unit: Operand, other: Operand) -> dict[str, Operand]:
        """How far from a unit another one lies in each tensor."""
        here, there = self.unit_starts(unit), self.unit_starts(other)
        return {name: self.b.sub(there[name], place) for name, place in here.items()}

    def unit_indices(self, unit: Operand) -> list[Operand]:
        if self.by_column:
            return self.column_block(unit, self.outers, self.width * self.lanes)[0]
        return self.unravel(unit, self.outers)

    def unit_starts(self, unit: Operand) -> dict[str, Operand]:
        return self.starts(self.unit_indices(unit))

    def unit_statistics(self, unit: Operand, end: Operand) -> list[list[Value]]:
        indices = self.unit_indices(unit)
        if not self.looks_ahead:
            return self.found(self.starts(indices), indices)
        b = self.b
        self.found_here = [self.found_ahead]
        self.ahead = self.distances(unit, b.min(b.add(unit, 1), b.sub(end, 1)))  # the last one reads itself again
        found = self.found(self.starts(indices), indices)
        self.ahead = None
        return found

    def found_before(self) -> list[list[Value]]:
        found, self.found_here = self.found_here, []
        return found

    def first_statistic(self, unit: Operand) -> list[Value]:
        self.is_put = False
        return self.statistic(0, self.kernel.function.statistics[0], [], self.unit_starts(unit))

    def unit_results(self, unit: Operand, found: list[list[Value]]) -> None:
        starts = self.unit_starts(unit)
        if not self.by_column:
            self.results_from(starts, found, self.results_to_line(starts, found))
            return

        def block(places: list[Operand], _: list[Value]) -> list[Value]:
            self.block_results(dict(zip(starts, places, strict=True)), found)
            return []

        self.nest(self.rows, list(starts), list(starts.values()), [], block)

    # ---- passes ------------------------------------------------------------------------------------------------------

    def statistic(
        self, position: int, statistic: Statistic, found: list[list[Value]], starts: dict[str, Operand]
    ) -> list[Value]:
        self.position = position
        return super().statistic(position, statistic, found, starts)

    def behind(self, places: dict[str, Operand]) -> tuple[dict[str, Operand], list[list[Value]]] | None:
        """The same places in the unit before and its statistics, if its results belong into this pass."""
        if self.before is None or self.position != self.joined:
            return None
        distances = self.before.distances
        return {name: self.b.add(place, distances[name]) for name, place in places.items()}, self.before.found

    def block(self, places: dict[str, Operand], totals: Sequence[Value], step: Step, row: int = 0) -> list[Value]:
        before = self.behind(places)
        if before is not None:
            self.block_results(*before)
        if self.ahead is not None:
            following = super().block(places, totals[: self.width], step, row)
            return [*following, *self.block_ahead(places, totals[self.width :])]
        if self.prefetches:
            self.prefetch_block(places)
        return super().block(places, totals, step, row)

    def sweep(self, starts: dict[str, Operand], carried: Sequence[Value], step: Step) -> list[Value]:
        if self.ahead is None:
            return super().sweep(starts, carried, step)
        statistic = self.kernel.function.statistics[0]
        totals = super().sweep(starts, [*carried, *[self.neutral(statistic)] * self.width], step)
        self.found_ahead = self.total(statistic, totals[self.width :])
        return totals[: self.width]

    def block_ahead(self, places: dict[str, Operand], totals: Sequence[Value]) -> list[Value]:
        """The totals of the first statistic with the same row of the next block, some rows after asking for it."""
        assert self.ahead is not None
        b, (name,) = self.b, self.operands
        start = b.add(places[name], self.ahead[name])
        later = b.add(start, b.mul(self.stride(name, "row", 0), ROWS_AHEAD))
        inner, how = self.inner_stride(name), self.kernel.function.statistics[0].combine
        following = []
        for v, total in enumerate(totals):
            column = b.mul(v * self.lanes, inner)
            b.prefetch(b[name], b.add(later, column))
            value = b.cast(self.load(name, b.add(start, column), inner, None), self.dtype)
            following.append(self.combine(how, total, value))
        return following

    def prefetch_block(self, places: dict[str, Operand]) -> None:
        """Ask for the same place of the next block of columns."""
        b, columns = self.b, self.width * self.lanes
        for name in self.asked:
            stride = self.inner_stride(name)
            if isinstance(stride, Value) or stride != 1:
                continue
            for column in range(0, columns, max(self.lanes, 512 // self._bits(name))):
                b.prefetch(b[name], b.add(places[name], columns + column), level=2, writes=name[0] == "y")

    def stretch(
        self, places: dict[str, Operand], totals: Sequence[Value], step: Step, begin: Operand = 0
    ) -> list[Value]:
        """With the results of the row before in sets of vectors, too, which begin where they are aligned. So they lie
        up to a vector ahead, and what is left of them comes before the rest of this row takes its place."""
        before = self.behind(places)
        if before is None:
            return super().stretch(places, totals, step, begin)
        b, width = self.b, self.lanes * self.width
        first = self.results_to_line(*before)
        shared = b.mul(b.div(b.sub(self.size(self.rows[-1]), first), width), width)

        def together(i: Operand, values: list[Value]) -> None:
            for chain in range(self.width):
                self.result(self.spot(before[0], b.add(b.add(first, i), chain * self.lanes), None, chain), before[1])
            self.set(places, i, values, step)

        following = self.repeated(0, shared, width, list(totals), together)
        self.results_from(*before, b.add(first, shared))
        return super().stretch(places, following, step, shared)

    def set(self, places: dict[str, Operand], i: Operand, totals: list[Value], step: Step) -> None:
        RowWalk.set(self, places, i, totals, step)
        if self.prefetches and self.asks_for_rows:
            self.prefetch_parts(self.operands, places, i)

    # ---- results -----------------------------------------------------------------------------------------------------

    def block_results(self, places: dict[str, Operand], found: list[list[Value]]) -> None:
        """One step of the row dims for each vector of columns."""
        for v in range(self.width):
            self.result(self.spot(places, v * self.lanes, None, v), found)

    def results_to_line(self, places: dict[str, Operand], found: list[list[Value]]) -> Operand:
        """The results before the first aligned vector, and how many those are."""
        b = self.b
        first = b.min(b.until_aligned(b["y0"], places["y0"], self.vector_bytes()), self.size(self.rows[-1]))
        with b.when(b.lt(0, first)):
            self.result(self.spot(places, 0, b.tail_mask(first, self.lanes), 0), found)
        return first

    def results_from(self, places: dict[str, Operand], found: list[list[Value]], begin: Operand) -> None:
        """The results of a row from an aligned vector on."""
        b, length = self.b, self.size(self.rows[-1])
        whole = b.add(begin, b.mul(b.div(b.sub(length, begin), self.lanes), self.lanes))
        with b.loop(begin, whole, self.lanes) as i:
            self.result(self.spot(places, i, None, 0), found)
        with b.when(b.lt(whole, length)):
            self.result(self.spot(places, whole, b.tail_mask(b.sub(length, whole), self.lanes), 0), found)

    def result(self, spot: Spot, found: list[list[Value]]) -> None:
        is_put, self.is_put, self.makes_results = self.is_put, self.staged, True
        self.finish(spot, self.known(found, spot))
        self.is_put, self.makes_results = is_put, False

    def write(self, value: Any, name: str, spot: Spot) -> None:
        if not self.makes_results or spot.mask is not None:
            super().write(value, name, spot)
            return
        dtype = self.kernel.results[0].dtype
        vector = self.b.value(value, types.vector(computed_in(dtype), self.lanes))
        self.b.store(self.b.cast(vector, dtype), self.b[name], spot.places[name], streams=True)

    def ask(self, name: str, spot: Spot) -> None:
        if not self.makes_results:
            super().ask(name, spot)
