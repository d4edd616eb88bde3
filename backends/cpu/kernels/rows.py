"""Row functions: softmax, the norms, and whatever else makes a row from a row and a few numbers about it.

A row is read from memory once, by `prologue`, and written once, by `epilogue`; what lies between stays in registers if
the row is short, else in the first caches: where it lies, or, if elements are computed, in the place of the result (in
scratch memory if that has another dtype). So a result may take the memory of an operand, but not of one of `others`.
Statistics take as many passes as depend on each other: the variance is that of differences from the mean, a softmax
subtracts the greatest element. A row is one unit of work, or, where each lane has a row of its own, a block of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeAlias

from ....graph import types
from ....graph.core import Value
from ....graph.dtypes import DType, f32
from ....graph.kernel import vector_math
from ....graph.kernel.loop_builder import LoopBuilder, Operand
from ....graph.module import Module
from ..machine import Machine
from .exponential import exp_of_negative
from .row_walk import CHAINS, RowWalk, Spot, Step
from .strided import (
    Along,
    Body,
    Size,
    View,
    argument_names,
    column_units,
    column_vectors,
    extent_sizes,
    lowest,
    view_sizes,
    widest_of,
)

# From an element and the statistics that are known to a number.
ElementBody: TypeAlias = Callable[[LoopBuilder, Value, Sequence[Value]], Value]


@dataclass(frozen=True)
class Statistic:
    """One number of each row: `value` of the elements (None: they themselves), added up or the greatest of them.

    `finish(b, total, count)` makes the number that is kept. With `keeps`, the values take the elements' place from then
    on. "greatest" looks past NaN; of NaN alone it is -infinity.
    """

    combine: str
    value: ElementBody | None = None
    keeps: bool = False
    finish: Callable[[LoopBuilder, Value, Any], Value] | None = None


@dataclass(frozen=True)
class RowFunction:
    """Statistics in the order in which they are found, and the result of an element."""

    statistics: tuple[Statistic, ...]
    result: ElementBody


@cache
def softmax() -> RowFunction:
    """exp(x) / sum(exp(x)), in differences from the greatest. NaN, or -infinity alone, makes the row NaN."""
    total = Statistic("sum", _exp_of_difference, True, lambda b, total, count: b.div(1.0, total))
    return RowFunction((Statistic("greatest"), total), lambda b, x, s: b.mul(x, s[1]))


@cache
def log_softmax() -> RowFunction:
    """The logarithm of softmax, without computing that."""
    total = Statistic("sum", _exp_of_difference, finish=lambda b, total, count: vector_math.log(b, total))
    return RowFunction((Statistic("greatest"), total), lambda b, x, s: b.sub(b.sub(x, s[0]), s[1]))


def _exp_of_difference(b: LoopBuilder, x: Value, statistics: Sequence[Value]) -> Value:
    return exp_of_negative(b, b.sub(x, statistics[0]))


@cache
def layer_norm(epsilon: float) -> RowFunction:
    """(x - mean) / sqrt(variance + epsilon); the statistics are the mean and one over the root."""

    def square(b: LoopBuilder, x: Value, s: Sequence[Value]) -> Value:
        difference = b.sub(x, s[0])
        return b.mul(difference, difference)

    statistics = Statistic("sum", finish=_mean), Statistic("sum", square, finish=_inverse_root(epsilon))
    return RowFunction(statistics, lambda b, x, s: b.mul(b.sub(x, s[0]), s[1]))


@cache
def rms_norm(epsilon: float) -> RowFunction:
    """x / sqrt(mean of squares + epsilon)."""
    squares = Statistic("sum", lambda b, x, s: b.mul(x, x), finish=_inverse_root(epsilon))
    return RowFunction((squares,), lambda b, x, s: b.mul(x, s[0]))


def _mean(b: LoopBuilder, total: Value, count: Any) -> Value:
    if isinstance(count, Value):
        return b.div(total, count)
    return b.mul(total, 1.0 / count if count else math.nan)


def _inverse_root(epsilon: float) -> Callable[[LoopBuilder, Value, Any], Value]:
    return lambda b, total, count: b.div(1.0, b.sqrt(b.add(_mean(b, total, count), epsilon)))


@dataclass(frozen=True)
class RowKernel:
    """`function` of rows. Elements are `prologue` of `operands` (None: there is one, and it is the element).

    A prologue may give more than the element: these are stored to `extras`, as a residual sum that is needed again.
    `epilogue` makes the results of the function's result and of `others`, which have strides in both kinds of dims
    (a scale for each column: 0 and 1). `kept` are results with one number for each row: which statistic, and where.
    With `streams` the only result goes to memory past the caches; see `can_stream`.
    """

    function: RowFunction
    outer: tuple[Size, ...]
    row: tuple[Size, ...]
    operands: tuple[View, ...]
    results: tuple[View, ...]
    others: tuple[View, ...] = ()
    extras: tuple[View, ...] = ()
    kept: tuple[tuple[int, View], ...] = ()
    prologue: Body | None = None
    epilogue: Body | None = None
    along: Along = "row"
    streams: bool = False


def can_stream(kernel: RowKernel, machine: Machine) -> bool:
    """Whether the result can go past the caches: there is one, without gaps in a row, or between the columns of a
    block, too long for registers. Of columns, those blocks do that are full and lie at multiples of a vector."""
    if len(kernel.row) != 1 or len(kernel.results) != 1 or kernel.extras or _fits_registers(kernel, machine):
        return False
    return (kernel.results[0].row if kernel.along == "row" else kernel.results[0].outer[-1:]) == (1,)


def streamed(kernel: RowKernel, machine: Machine, outer: Sequence[int], row: Sequence[int]) -> RowKernel:
    """The kernel, past the caches if its result can go there and, with these extents, is large.

    The rows of a block of columns wait in the cache of a core, so they must fit there.
    """
    if not can_stream(kernel, machine):
        return kernel
    result = math.prod(outer) * math.prod(row) * (kernel.results[0].dtype.bits // 8)
    if bool(result < machine.streamed_bytes):
        return kernel
    past = replace(kernel, streams=True)
    room = row_scratch(past, machine, row) * (_widest(kernel).bits // 8)
    return past if kernel.along == "row" or bool(room <= machine.l2 // 2) else kernel


def _fits_registers(kernel: RowKernel, machine: Machine) -> bool:
    """Whether the elements of a row, or of a block of rows side by side, can stay in registers."""
    if len(kernel.row) != 1 or kernel.row[0] is None:
        return False
    lanes = machine.lanes(_widest(kernel))
    vectors = -(-kernel.row[0] // lanes) if kernel.along == "row" else kernel.row[0] * _columns(kernel, machine)
    return 0 < vectors <= machine.registers * 3 // 4


def _views(kernel: RowKernel) -> dict[str, View]:
    groups = {
        "y": kernel.results, "x": kernel.operands, "o": kernel.others, "e": kernel.extras,
        "s": tuple(view for _, view in kernel.kept),
    }  # fmt: skip
    return {f"{kind}{index}": view for kind, views in groups.items() for index, view in enumerate(views)}


def row_sizes(kernel: RowKernel) -> dict[str, Size]:
    """Extents and strides by name; those that are None are arguments of the kernel."""
    sizes = extent_sizes(kernel.outer, kernel.row)
    for name, view in _views(kernel).items():
        sizes |= view_sizes(name, view)
    return sizes


def row_buffers(kernel: RowKernel) -> dict[str, DType]:
    """Results y, operands x, others o, extras e, kept statistics s, and scratch memory."""
    return {name: view.dtype for name, view in _views(kernel).items()} | {"scratch": _widest(kernel)}


def row_arguments(kernel: RowKernel) -> list[str]:
    """The names of the kernel's arguments, in order."""
    return argument_names(list(row_buffers(kernel)), row_sizes(kernel))


def row_units(kernel: RowKernel, machine: Machine, outer: Sequence[int]) -> int:
    """How many units of work there are for these outer extents."""
    if kernel.along == "row":
        return math.prod(outer)
    return column_units(outer, _columns(kernel, machine) * machine.lanes(_widest(kernel)))


def row_scratch(kernel: RowKernel, machine: Machine, row: Sequence[int]) -> int:
    """Elements of memory of its own (of the dtype that `row_buffers` says) that each thread needs."""
    if not _is_staged(kernel) or _has_room(kernel):
        return 0
    lanes = machine.lanes(_widest(kernel))
    width = lanes if kernel.along == "row" else lanes * _columns(kernel, machine)
    elements = math.prod(row) if kernel.along == "row" else math.prod(row) * width
    return -(-elements // 16) * 16


def _widest(kernel: RowKernel) -> DType:
    return widest_of([f32, *(view.dtype for view in (*kernel.operands, *kernel.results) if view.dtype.is_float)])


def _columns(kernel: RowKernel, machine: Machine) -> int:
    """Vectors of columns in a block."""
    return column_vectors(kernel.outer, machine.lanes(_widest(kernel)), CHAINS)


def _is_staged(kernel: RowKernel) -> bool:
    """Whether elements are computed, so that they have to be put somewhere until they are needed again."""
    return kernel.prologue is not None or any(statistic.keeps for statistic in kernel.function.statistics)


def _has_room(kernel: RowKernel) -> bool:
    """Whether computed elements can wait in the place of the result."""
    return bool(kernel.results) and kernel.results[0].dtype is _widest(kernel) and not kernel.streams


def build_rows(name: str, kernel: RowKernel, machine: Machine) -> Module:
    """The kernel as a module of the level "loop"; see `row_arguments` for what it takes."""
    if not kernel.row or (kernel.along == "column" and not kernel.outer):
        raise ValueError("a row has at least one dim, and so have the outer dims if lanes run along them")
    from .streamed_rows import StreamedRows  # which builds on this module

    builder = (StreamedRows if kernel.streams else RowsBuilder)(name, kernel, machine)
    builder.units()
    return builder.b.module()


class RowsBuilder(RowWalk):
    """Each unit by itself, its result stored like anything else."""

    def __init__(self, name: str, kernel: RowKernel, machine: Machine) -> None:
        self.dtype = _widest(kernel)
        super().__init__(
            name, machine, row_buffers(kernel), row_sizes(kernel), self.dtype,
            kernel.outer, kernel.row, kernel.along, _columns(kernel, machine) if kernel.along == "column" else CHAINS,
        )  # fmt: skip
        self.kernel = kernel
        self.operands = [f"x{index}" for index in range(len(kernel.operands))]
        self.tensors = [name for name in _views(kernel) if name[0] in "yxoe"]
        self.staged = _is_staged(kernel)
        self.stage = "y0" if _has_room(kernel) else "scratch"
        # Elements in registers, if the row is short and its length known.
        self.held: dict[int, Value] = {}
        self.is_held = _fits_registers(kernel, machine)
        # Then lines of the next rows are not asked for just before they are read.
        self.asks_for_rows = self.asks_for_rows and not self.is_held

    def stride(self, name: str, part: str, axis: int) -> Operand:
        if name != "scratch":
            return super().stride(name, part, axis)
        step: Operand = self.width * self.lanes if self.by_column else 1
        stride: Operand = self.b.mul(self.product(self.rows[axis + 1 :]), step)
        return stride

    def units(self) -> None:
        self.take_scratch()
        self.one_by_one()

    def take_scratch(self) -> None:
        """Where this thread's part of the scratch memory begins."""
        b = self.b
        self.scratch_place: Operand = 0
        if self.staged and not self.is_held and self.stage == "scratch":
            lanes = self.width * self.lanes if self.by_column else 1
            own = b.mul(self.product(self.rows), lanes)
            own = b.mul(b.div(b.add(own, 15), 16), 16)
            self.scratch_place = b.mul(own, b["thread"])

    def one_by_one(self) -> None:
        with self.b.loop(self.b["begin"], self.b["end"]) as unit:
            if self.by_column:
                self.column_unit(unit)
            else:
                self.row_unit(self.unravel(unit, self.outers), [None] * self.width)

    def column_unit(self, unit: Operand) -> None:
        """A block of columns, with masks if it is the last one and not full."""
        indices, rest = self.column_block(unit, self.outers, self.width * self.lanes)
        self.with_masks(rest, self.width, lambda masks: self.row_unit(indices, masks))

    def row_unit(self, indices: Sequence[Operand], masks: Sequence[Value | None]) -> None:
        """A row, or a block of them, one for each lane."""
        self.masks = masks
        starts = self.starts(indices)
        found = self.found(starts, indices)

        def last(spot: Spot, _: list[Value]) -> None:
            self.finish(spot, self.known(found, spot))

        self.sweep(starts, [], last)

    def starts(self, indices: Sequence[Operand]) -> dict[str, Operand]:
        """Where a row, or a block of them, begins in each tensor."""
        return {name: self.place(name, "outer", indices) for name in self.tensors} | {"scratch": self.scratch_place}

    def found(self, starts: dict[str, Operand], indices: Sequence[Operand]) -> list[list[Value]]:
        """All statistics of a row, or of a block of them."""
        self.held = {}
        self.is_put = False
        found = self.found_before()
        for position, statistic in enumerate(self.kernel.function.statistics):
            if position >= len(found):
                found.append(self.statistic(position, statistic, found, starts))
        for index, (position, _) in enumerate(self.kernel.kept):
            self.keep(f"s{index}", found[position], indices)
        self.prefetches = False
        return found

    def found_before(self) -> list[list[Value]]:
        """The first statistics of a unit that need not be looked for, since its elements were read before."""
        return []

    def known(self, found: Sequence[Sequence[Value]], spot: Spot) -> list[Value]:
        """The statistics for a vector of elements."""
        return [values[spot.number % self.width if self.by_column else 0] for values in found]

    # ---- statistics --------------------------------------------------------------------------------------------------

    def statistic(
        self, position: int, statistic: Statistic, found: list[list[Value]], starts: dict[str, Operand]
    ) -> list[Value]:
        """A vector with the number in every lane, or for each vector of columns one with those of its lanes."""
        b, neutral = self.b, self.neutral(statistic)
        self.prefetches = position == len(self.kernel.function.statistics) - 1

        def step(spot: Spot, totals: list[Value]) -> None:
            x = self.element(position, spot)
            value = x if statistic.value is None else statistic.value(b, x, self.known(found, spot))
            if statistic.keeps:
                self.put(spot, value)
            if spot.mask is not None and not self.by_column:
                value = b.select(spot.mask, value, neutral)
            chain = spot.number % len(totals)
            totals[chain] = self.combine(statistic.combine, totals[chain], value)

        totals = self.sweep(starts, [neutral] * self.width, step)
        self.is_put |= statistic.keeps or self.kernel.prologue is not None
        return self.total(statistic, totals)

    def neutral(self, statistic: Statistic) -> Value:
        """What totals begin with."""
        vector = types.vector(self.dtype, self.lanes)
        return self.b.constant(0 if statistic.combine == "sum" else lowest(self.dtype), vector)

    def total(self, statistic: Statistic, totals: list[Value]) -> list[Value]:
        """The statistic itself, of totals that were kept apart."""
        b = self.b
        if self.by_column:
            return [self.finished(statistic, total) for total in totals]
        while len(totals) > 1:
            half = len(totals) // 2
            totals = [self.combine(statistic.combine, totals[i], totals[i + half]) for i in range(half)]
        return [b.broadcast(self.finished(statistic, self.across(statistic.combine, totals[0])), self.lanes)]

    def combine(self, how: str, total: Value, value: Value) -> Value:
        b = self.b
        if how == "sum":
            return b.add(total, value)
        # Unlike the maximum, one instruction: NaN is never greater.
        return b.select(b.lt(total, value), value, total)

    def across(self, how: str, vector: Value) -> Value:
        """All lanes as one number: halves are combined until one is left."""
        b, lanes = self.b, self.lanes
        while lanes > 1:
            lanes //= 2
            low, high = (b.shuffle(vector, vector, range(start, start + lanes)) for start in (0, lanes))
            vector = self.combine(how, low, high)
        return b.extract(vector, 0)

    def finished(self, statistic: Statistic, total: Value) -> Value:
        if statistic.finish is None:
            return total
        count: Any = self.product(self.rows)
        if isinstance(count, Value):
            count = self.b.cast(count, self.dtype)
        return statistic.finish(self.b, total, count)

    # ---- elements ----------------------------------------------------------------------------------------------------

    def element(self, position: int, spot: Spot) -> Value:
        """The element in the pass `position`: read at first, later from where it was put."""
        if position:
            return self.again(spot)
        if not self.asks_for_rows:
            for index in range(len(self.kernel.operands)):
                self.ask(f"x{index}", spot)
        loaded = [self.read(f"x{index}", spot) for index in range(len(self.kernel.operands))]
        prologue = self.kernel.prologue
        values = loaded if prologue is None else list(prologue(self.b, loaded))
        x = self.b.value(values[0], types.vector(self.dtype, self.lanes))
        x = self.b.cast(x, self.dtype)
        for index, value in enumerate(values[1:]):
            self.write(value, f"e{index}", spot)
        if prologue is not None or self.is_held:
            self.put(spot, x)
        return x

    def again(self, spot: Spot) -> Value:
        if self.is_held:
            return self.held[spot.number]
        if not self.is_put:
            return self.b.cast(self.read("x0", spot), self.dtype)
        return self.read(self.stage, spot)

    def put(self, spot: Spot, value: Value) -> None:
        if self.is_held:
            self.held[spot.number] = value
        else:
            self.write(value, self.stage, spot)
            if not self.is_put:
                self.ask(self.stage, spot)

    def read(self, name: str, spot: Spot) -> Value:
        return self.load(name, spot.places[name], self.inner_stride(name), spot.mask)

    def write(self, value: Any, name: str, spot: Spot) -> None:
        self.store(value, name, spot.places[name], self.inner_stride(name), spot.mask)

    def inner_stride(self, name: str) -> Operand:
        return 1 if name == "scratch" else super().inner_stride(name)

    def finish(self, spot: Spot, statistics: Sequence[Value]) -> None:
        b, kernel = self.b, self.kernel
        result: Any = kernel.function.result(b, self.again(spot), statistics)
        values: Sequence[Any] = [result]
        if kernel.epilogue is not None:
            values = kernel.epilogue(
                b, [result, *(self.read(f"o{index}", spot) for index in range(len(kernel.others)))]
            )
        for index, value in enumerate(values):
            self.write(value, f"y{index}", spot)
            if self.is_held or not self.staged or index or self.stage != "y0":
                self.ask(f"y{index}", spot)

    def ask(self, name: str, spot: Spot) -> None:
        if name != "scratch":
            super().ask(name, spot)

    # ---- passes ------------------------------------------------------------------------------------------------------

    def sweep(self, starts: dict[str, Operand], carried: Sequence[Value], step: Step) -> list[Value]:
        """`step` on every vector of the row; the totals that it was given and gave."""
        names = [*self.tensors, *(["scratch"] if self.staged and self.stage == "scratch" else [])]
        if self.is_held:
            return self.sweep_held(names, starts, list(carried), step)
        return self.walk(names, starts, carried, step)

    def sweep_held(
        self, names: Sequence[str], starts: dict[str, Operand], totals: list[Value], step: Step
    ) -> list[Value]:
        """All vectors of a short row, one after another in the code."""
        (length,) = self.kernel.row
        assert length is not None
        if self.by_column:
            for row in range(length):
                places = {
                    name: self.b.add(starts[name], self.b.mul(row, self.stride(name, "row", 0))) for name in names
                }
                totals = self.block(places, totals, step, row)
            return totals
        for number, start in enumerate(range(0, length, self.lanes)):
            step(self.spot(starts, start, self.tail(length - start), number), totals)
        return totals

    def set(self, places: dict[str, Operand], i: Operand, totals: list[Value], step: Step) -> None:
        """Vectors side by side. In the last pass for statistics, which as a rule computes from a cache while memory has
        time, the next rows are asked for."""

        def asking(spot: Spot, totals: list[Value]) -> None:
            step(spot, totals)
            self.prefetch_next(self.operands, spot)

        super().set(places, i, totals, asking if self.prefetches and self.asks_for_rows else step)
