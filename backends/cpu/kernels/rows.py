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
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from ....graph import types
from ....graph.core import Value
from ....graph.dtypes import DType, f32
from ....graph.kernel import vector_math
from ....graph.kernel.loop_builder import LoopBuilder, Operand
from ....graph.kernel.scalar_emitter import computed_in
from ....graph.module import Module
from ..machine import Machine
from .elementwise import AHEAD_BYTES
from .exponential import exp_of_negative
from .strided import (
    Along,
    Body,
    Size,
    StridedBuilder,
    View,
    argument_names,
    extent_sizes,
    lowest,
    view_sizes,
    widest_of,
)

# Vectors of totals along a row, and vectors of columns in a block.
_CHAINS = 4
# Rows from this length on are asked for before they are read.
_PREFETCHED = 256

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
    """Whether the result can go past the caches: there is one, without gaps in a row too long for registers."""
    is_plain = kernel.along == "row" and len(kernel.row) == len(kernel.results) == 1 and not kernel.extras
    return is_plain and kernel.results[0].row == (1,) and not _fits_registers(kernel, machine)


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
    return math.prod(outer[:-1]) * -(-outer[-1] // (_columns(kernel, machine) * machine.lanes(_widest(kernel))))


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
    columns = kernel.outer[-1] if kernel.outer else 1
    lanes = machine.lanes(_widest(kernel))
    return _CHAINS if columns is None else max(1, min(_CHAINS, -(-columns // lanes)))


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
    builder = _RowsBuilder(name, kernel, machine)
    builder.units()
    return builder.b.module()


@dataclass(frozen=True)
class _Spot:
    """A vector of elements: its place in each tensor, its mask, and which it is of those that are worked on at once."""

    places: dict[str, Operand]
    mask: Value | None
    number: int


# What is done with a vector of elements; takes and gives a total, or None in the last pass.
Step: TypeAlias = Callable[[_Spot, "Value | None"], "Value | None"]


class _RowsBuilder(StridedBuilder):
    def __init__(self, name: str, kernel: RowKernel, machine: Machine) -> None:
        self.dtype = _widest(kernel)
        super().__init__(name, machine, row_buffers(kernel), row_sizes(kernel), self.dtype)
        self.kernel = kernel
        self.outers = [f"outer{axis}" for axis in range(len(kernel.outer))]
        self.rows = [f"row{axis}" for axis in range(len(kernel.row))]
        self.by_column = kernel.along == "column"
        self.width = _columns(kernel, machine) if self.by_column else _CHAINS
        self.tensors = [name for name in _views(kernel) if name[0] in "yxoe"]
        self.staged = _is_staged(kernel)
        self.stage = "y0" if _has_room(kernel) else "scratch"
        # Elements in registers, if the row is short and its length known.
        self.held: dict[int, Value] = {}
        self.is_held = _fits_registers(kernel, machine)
        length = kernel.row[-1]
        # Whether the next rows are asked for while this one is worked on, not their lines just before they are read.
        self.asks_for_rows = (
            bool(self.outers)
            and len(kernel.row) == 1
            and (length is None or length >= _PREFETCHED)
            and not self.is_held
        )
        # Whether stores go past the caches: those of the last pass, if the kernel's result does.
        self.is_last = False

    def stride(self, name: str, part: str, axis: int) -> Operand:
        if name != "scratch":
            return super().stride(name, part, axis)
        step: Operand = self.width * self.lanes if self.by_column else 1
        stride: Operand = self.b.mul(self.product(self.rows[axis + 1 :]), step)
        return stride

    def units(self) -> None:
        b = self.b
        self.scratch_place: Operand = 0
        if self.staged and not self.is_held and self.stage == "scratch":
            lanes = self.width * self.lanes if self.by_column else 1
            own = b.mul(self.product(self.rows), lanes)
            own = b.mul(b.div(b.add(own, 15), 16), 16)
            self.scratch_place = b.mul(own, b["thread"])
        with b.loop(b["begin"], b["end"]) as unit:
            if self.by_column:
                self.column_unit(unit)
            else:
                self.row_unit(self.unravel(unit, self.outers), [None] * self.width)
        if self.kernel.streams:
            b.fence()

    def column_unit(self, unit: Operand) -> None:
        """A block of columns, with masks if it is the last one and not full."""
        b, width = self.b, self.width * self.lanes
        blocks = b.div(b.add(self.size(self.outers[-1]), width - 1), width)
        column = b.mul(b.rem(unit, blocks), width)
        indices = [*self.unravel(b.div(unit, blocks), self.outers[:-1]), column]
        rest = b.sub(self.size(self.outers[-1]), column)
        masks = [b.tail_mask(b.index(b.sub(rest, v * self.lanes)), self.lanes) for v in range(self.width)]
        b.branch(
            b.le(width, rest),
            lambda: self.row_unit(indices, [None] * self.width),
            lambda: self.row_unit(indices, masks),
        )

    def row_unit(self, indices: Sequence[Operand], masks: Sequence[Value | None]) -> None:
        """A row, or a block of them, one for each lane."""
        self.masks = masks
        self.held = {}
        self.is_put = False
        starts = {name: self.place(name, "outer", indices) for name in self.tensors}
        starts["scratch"] = self.scratch_place
        found: list[list[Value]] = []
        for position, statistic in enumerate(self.kernel.function.statistics):
            found.append(self.statistic(position, statistic, found, starts))
        for index, (position, _) in enumerate(self.kernel.kept):
            self.keep_statistic(f"s{index}", found[position], indices)
        self.prefetches = False

        def last(spot: _Spot, _: Value | None) -> None:
            self.finish(spot, self.known(found, spot))

        if self.kernel.streams:
            self.stream(starts, last)
        else:
            self.sweep(starts, [], last)

    def known(self, found: Sequence[Sequence[Value]], spot: _Spot) -> list[Value]:
        """The statistics for a vector of elements."""
        return [values[spot.number % self.width if self.by_column else 0] for values in found]

    # ---- statistics --------------------------------------------------------------------------------------------------

    def statistic(
        self, position: int, statistic: Statistic, found: list[list[Value]], starts: dict[str, Operand]
    ) -> list[Value]:
        """A vector with the number in every lane, or for each vector of columns one with those of its lanes."""
        b = self.b
        vector = types.vector(self.dtype, self.lanes)
        neutral = b.constant(0 if statistic.combine == "sum" else lowest(self.dtype), vector)
        self.prefetches = position == len(self.kernel.function.statistics) - 1

        def step(spot: _Spot, total: Value | None) -> Value:
            x = self.element(position, spot)
            value = x if statistic.value is None else statistic.value(b, x, self.known(found, spot))
            if statistic.keeps:
                self.put(spot, value)
            if spot.mask is not None and not self.by_column:
                value = b.select(spot.mask, value, neutral)
            assert total is not None
            return self.combine(statistic.combine, total, value)

        totals = self.sweep(starts, [neutral] * self.width, step)
        self.is_put |= statistic.keeps or self.kernel.prologue is not None
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

    def keep_statistic(self, name: str, values: Sequence[Value], indices: Sequence[Operand]) -> None:
        place = self.place(name, "outer", indices)
        if not self.by_column:
            self.store_one(self.b.extract(values[0], 0), name, place)
            return
        stride = self.stride(name, "outer", len(self.outers) - 1)
        for v, value in enumerate(values):
            self.store(value, name, self.b.add(place, self.b.mul(v * self.lanes, stride)), stride, self.masks[v])

    # ---- elements ----------------------------------------------------------------------------------------------------

    def element(self, position: int, spot: _Spot) -> Value:
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

    def again(self, spot: _Spot) -> Value:
        if self.is_held:
            return self.held[spot.number]
        if not self.is_put:
            return self.b.cast(self.read("x0", spot), self.dtype)
        return self.read(self.stage, spot)

    def put(self, spot: _Spot, value: Value) -> None:
        if self.is_held:
            self.held[spot.number] = value
        else:
            self.write(value, self.stage, spot)
            if not self.is_put:
                self.ask(self.stage, spot)

    def read(self, name: str, spot: _Spot) -> Value:
        return self.load(name, spot.places[name], self.inner_stride(name), spot.mask)

    def write(self, value: Any, name: str, spot: _Spot) -> None:
        if self.is_last and spot.mask is None:
            dtype = self.kernel.results[0].dtype
            vector = self.b.value(value, types.vector(computed_in(dtype), self.lanes))
            self.b.store(self.b.cast(vector, dtype), self.b[name], spot.places[name], streams=True)
            return
        self.store(value, name, spot.places[name], self.inner_stride(name), spot.mask)

    def inner_stride(self, name: str) -> Operand:
        if name == "scratch":
            return 1
        part, axis = ("outer", len(self.outers) - 1) if self.by_column else ("row", len(self.rows) - 1)
        return self.stride(name, part, axis)

    def finish(self, spot: _Spot, statistics: Sequence[Value]) -> None:
        b, kernel = self.b, self.kernel
        result: Any = kernel.function.result(b, self.again(spot), statistics)
        values: Sequence[Any] = [result]
        if kernel.epilogue is not None:
            values = kernel.epilogue(
                b, [result, *(self.read(f"o{index}", spot) for index in range(len(kernel.others)))]
            )
        for index, value in enumerate(values):
            self.write(value, f"y{index}", spot)
            if not self.is_last and (self.is_held or not self.staged or index or self.stage != "y0"):
                self.ask(f"y{index}", spot)

    def ask(self, name: str, spot: _Spot) -> None:
        """Ask for the line that will be needed a little later; of a short row, it is in another one."""
        b = self.b
        stride = self.inner_stride(name)
        if name == "scratch" or self.by_column or isinstance(stride, Value) or stride != 1:
            return
        buffer = b[name]
        assert isinstance(buffer.type, types.BufferType)
        bytes = max(1, buffer.type.dtype.bits // 8)
        b.prefetch(buffer, b.add(spot.places[name], AHEAD_BYTES // bytes), writes=name[0] != "x")

    # ---- passes ------------------------------------------------------------------------------------------------------

    def sweep(self, starts: dict[str, Operand], carried: Sequence[Value], step: Step) -> list[Value]:
        """`step` on every vector of the row; the totals that it was given and gave."""
        names = [*self.tensors, *(["scratch"] if self.staged and self.stage == "scratch" else [])]
        if self.is_held:
            return self.sweep_held(names, starts, list(carried), step)
        begin = [starts[name] for name in names]
        if self.by_column:
            return self.nest(
                self.rows, names, begin, carried,
                lambda places, totals: self.block(dict(zip(names, places, strict=True)), totals, step),
            )  # fmt: skip
        return self.nest(
            self.rows[:-1], names, begin, carried,
            lambda places, totals: self.stretch(dict(zip(names, places, strict=True)), totals, step),
        )  # fmt: skip

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
            spot = self.spot(starts, start, self.tail(length - start), number)
            self.advance(spot, totals, step)
        return totals

    def block(self, places: dict[str, Operand], totals: Sequence[Value], step: Step, row: int = 0) -> list[Value]:
        """One step of the row dims for each vector of columns."""
        following = list(totals)
        for v, mask in enumerate(self.masks):
            spot = self.spot(places, v * self.lanes, mask, row * self.width + v)
            self.advance(spot, following, step)
        return following

    def stretch(self, places: dict[str, Operand], totals: Sequence[Value], step: Step) -> list[Value]:
        """The innermost dim of a row: sets of vectors, then what is left."""
        b, length = self.b, self.size(self.rows[-1])
        width = self.lanes * _CHAINS
        whole = b.mul(b.div(length, width), width)
        following = list(totals)
        if isinstance(whole, Value) or whole:
            following = self.repeated(0, whole, width, following, lambda i, values: self.set(places, i, values, step))
        if isinstance(whole, int) and isinstance(length, int):
            for number, start in enumerate(range(whole, length, self.lanes)):
                self.advance(self.spot(places, start, self.tail(length - start), number), following, step)
            return following

        def rest(i: Operand, values: list[Value]) -> None:
            mask = b.tail_mask(b.index(b.sub(length, i)), self.lanes)
            self.advance(self.spot(places, i, mask, 0), values, step)

        return self.repeated(whole, length, self.lanes, following, rest)

    def stream(self, starts: dict[str, Operand], step: Step) -> None:
        """The last pass on a row whose vectors lie where the result's are aligned; before them and behind are masks."""
        b, length = self.b, self.size(self.rows[-1])
        places = {name: starts[name] for name in [*self.tensors, *(["scratch"] if self.staged else [])]}
        bytes = self.lanes * (self.kernel.results[0].dtype.bits // 8)
        first = b.min(b.until_aligned(b["y0"], starts["y0"], bytes), length)
        whole = b.add(first, b.mul(b.div(b.sub(length, first), self.lanes), self.lanes))
        self.is_last = True
        with b.when(b.lt(0, first)):
            self.advance(self.spot(places, 0, b.tail_mask(first, self.lanes), 0), [], step)
        with b.loop(first, whole, self.lanes) as i:
            self.advance(self.spot(places, i, None, 0), [], step)
        with b.when(b.lt(whole, length)):
            self.advance(self.spot(places, whole, b.tail_mask(b.sub(length, whole), self.lanes), 0), [], step)
        self.is_last = False

    def set(self, places: dict[str, Operand], i: Operand, totals: list[Value], step: Step) -> None:
        """Vectors that are worked on side by side."""
        for chain in range(_CHAINS):
            spot = self.spot(places, self.b.add(i, chain * self.lanes), None, chain)
            self.advance(spot, totals, step)
            if self.prefetches and self.asks_for_rows:
                self.prefetch_next(spot)

    def prefetch_next(self, spot: _Spot) -> None:
        """Ask for the same place of the row that is read next, or of a later one if rows are short.

        This is done in the last pass for statistics: as a rule it computes, from a cache, while memory has time.
        """
        for index, view in enumerate(self.kernel.operands):
            name = f"x{index}"
            distance = self.stride(name, "outer", len(self.outers) - 1)
            length = self.kernel.row[-1]
            count = 1 if length is None else max(1, -(-AHEAD_BYTES * 8 // (length * view.dtype.bits)))
            if isinstance(distance, Value) or distance:
                self.b.prefetch(self.b[name], self.b.add(spot.places[name], self.b.mul(distance, count)))

    def repeated(
        self, begin: Operand, end: Operand, step: int, totals: list[Value], body: Callable[[Operand, list[Value]], None]
    ) -> list[Value]:
        """A loop over `body`, which changes the totals it is given."""
        with self.b.loop(begin, end, step, totals) as state:
            values = list(state.values) if totals else []
            body(state.index if totals else state, values)
            if totals:
                state.yields(values)
        return list(state.results) if totals else []

    def advance(self, spot: _Spot, totals: list[Value], step: Step) -> None:
        """One vector, which changes the total of its chain, if there are totals."""
        if not totals:
            step(spot, None)
            return
        chain = spot.number % len(totals)
        following = step(spot, totals[chain])
        assert following is not None
        totals[chain] = following

    def spot(self, places: dict[str, Operand], ahead: Operand, mask: Value | None, number: int) -> _Spot:
        b = self.b
        here = {name: b.add(place, b.mul(ahead, self.inner_stride(name))) for name, place in places.items()}
        return _Spot(here, mask, number)

    def tail(self, count: int) -> Value | None:
        """The mask for the first `count` lanes; None if it is all of them."""
        return None if count >= self.lanes else self.b.tail_mask(self.b.index(count), self.lanes)
