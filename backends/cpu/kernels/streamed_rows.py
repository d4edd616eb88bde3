"""Rows whose results go to memory past the caches, at nearly the speed of a copy.

A copy reads and writes memory at the same time. The passes on a row do not: one waits for what is read, one for
arithmetic, one for what is written. So the last pass on a unit is laid within a pass on the next one, which meanwhile
computes and asks for the unit after that:

    y[previous] = result(stage); stage = exp(x - greatest); sum += stage; ask for x[next]

That is the pass that puts elements on the stage: each leaves its place just before the next one takes it, so the line
is in the first cache already. How a unit is computed, and in which order it is added up, does not depend on the one
that it is laid together with, nor on where its results lie.

On one core with 2 MiB of second cache, where a copy past the caches takes 0.42 ns for an f32: reading alone 0.55 (page
after page) or 0.21 (four pages at a time), writing alone 0.22, exp and its sum from the second cache 0.21. A softmax of
32,000 columns, pass after pass, took 0.59 and takes 0.41-0.43. Slower than 80 % of a copy are rows of 512 KiB, of which
three nearly fill that cache (0.52); columns of 512 rows and more, whose blocks touch few lines in each of as many pages
(0.66, 1,000 rows 0.85); and columns whose rows begin anywhere in a line, which are stored like anything else, so that
each line is read before it is written (0.73-0.99).
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
            first = self.unit_statistics(begin)
            with b.loop(b.add(begin, 1), end, 1, [value for values in first for value in values]) as state:
                here, there = (self.unit_starts(unit) for unit in (state.index, b.sub(state.index, 1)))
                distances = {name: b.sub(there[name], place) for name, place in here.items()}
                self.before = _Before(distances, self.by_statistic(state.values))
                found = self.unit_statistics(state.index)
                self.before = None
                state.yields([value for values in found for value in values])
            self.unit_results(b.sub(end, 1), self.by_statistic(state.results))

    def by_statistic(self, values: Sequence[Value]) -> list[list[Value]]:
        """What a loop carries, as `found` has it."""
        each = self.width if self.by_column else 1
        return [list(values[start : start + each]) for start in range(0, len(values), each)]

    def unit_indices(self, unit: Operand) -> list[Operand]:
        if self.by_column:
            return self.column_block(unit, self.outers, self.width * self.lanes)[0]
        return self.unravel(unit, self.outers)

    def unit_starts(self, unit: Operand) -> dict[str, Operand]:
        return self.starts(self.unit_indices(unit))

    def unit_statistics(self, unit: Operand) -> list[list[Value]]:
        indices = self.unit_indices(unit)
        return self.found(self.starts(indices), indices)

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
        if self.prefetches:
            self.prefetch_block(places)
        return super().block(places, totals, step, row)

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
