"""The place of the greatest or least element of each row, as ArgMax and ArgMin mean it.

Among equal elements the first one counts, or the last one; a NaN is beyond every number. A row has one dim, of one
element at least and fewer than 2^31.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ....graph import types
from ....graph.core import Value
from ....graph.dtypes import DType, f32, i32, i64
from ....graph.kernel.loop_builder import Operand
from ....graph.kernel.scalar_emitter import computed_in
from ....graph.module import Module
from ..machine import Machine
from .strided import Along, Body, Size, StridedBuilder, View, argument_names, extent_sizes, view_sizes, widest_of


@dataclass(frozen=True)
class ArgExtreme:
    """`greatest` or least; `last` among equals or first. `result` is of type i64, with strides along the outer dims."""

    outer: tuple[Size, ...]
    row: Size
    operand: View
    result: View
    greatest: bool = True
    last: bool = False
    prologue: Body | None = None
    along: Along = "row"


def arg_extreme_sizes(kernel: ArgExtreme) -> dict[str, Size]:
    """Extents and strides by name; those that are None are arguments of the kernel."""
    sizes = extent_sizes(kernel.outer, (kernel.row,))
    return sizes | view_sizes("x0", kernel.operand) | view_sizes("y0", kernel.result)


def arg_extreme_arguments(kernel: ArgExtreme) -> list[str]:
    """The names of the kernel's arguments, in order."""
    return argument_names(["y0", "x0"], arg_extreme_sizes(kernel))


def arg_extreme_units(kernel: ArgExtreme, machine: Machine, outer: Sequence[int]) -> int:
    """How many units of work there are: rows, or vectors of them."""
    if kernel.along == "row":
        return math.prod(outer)
    return math.prod(outer[:-1]) * -(-outer[-1] // machine.lanes(_widest(kernel)))


def _widest(kernel: ArgExtreme) -> DType:
    return widest_of([kernel.operand.dtype, f32])


def build_arg_extreme(name: str, kernel: ArgExtreme, machine: Machine) -> Module:
    """The kernel as a module of the level "loop"; see `arg_extreme_arguments` for what it takes."""
    builder = _ArgExtremeBuilder(name, kernel, machine)
    builder.units()
    return builder.b.module()


class _ArgExtremeBuilder(StridedBuilder):
    def __init__(self, name: str, kernel: ArgExtreme, machine: Machine) -> None:
        buffers = {"y0": i64, "x0": kernel.operand.dtype}
        super().__init__(name, machine, buffers, arg_extreme_sizes(kernel), _widest(kernel))
        self.kernel = kernel
        self.dtype = computed_in(kernel.operand.dtype)
        self.outers = [f"outer{axis}" for axis in range(len(kernel.outer))]

    def units(self) -> None:
        b = self.b
        with b.loop(b["begin"], b["end"]) as unit:
            if self.kernel.along == "row":
                self.row_unit(self.unravel(unit, self.outers))
            else:
                blocks = b.div(b.add(self.size(self.outers[-1]), self.lanes - 1), self.lanes)
                indices = self.unravel(b.div(unit, blocks), self.outers[:-1])
                self.column_unit(indices, b.mul(b.rem(unit, blocks), self.lanes))

    def element(self, place: Operand, stride: Operand, mask: Value | None) -> Value:
        value = self.load("x0", place, stride, mask)
        if self.kernel.prologue is not None:
            (result,) = self.kernel.prologue(self.b, [value])
            value = self.b.value(result, types.vector(self.dtype, self.lanes))
        return value

    def is_better(self, new: Value, best: Value) -> Value:
        """Whether an element that comes later takes the place of the best one so far."""
        b, kernel = self.b, self.kernel
        low, high = (best, new) if kernel.greatest else (new, best)
        found: Value = b.le(low, high) if kernel.last else b.lt(low, high)
        if self.dtype.is_float:
            missing = b.ne(new, new)
            found = b.or_(found, missing if kernel.last else b.and_(missing, b.eq(best, best)))
        return found

    def row_unit(self, indices: Sequence[Operand]) -> None:
        b = self.b
        start, stride, end = self.place("x0", "outer", indices), self.stride("x0", "row", 0), self.size("row0")
        # Each lane begins with the first element, which may be the one that is looked for.
        first = self.element(start, 0, None)
        nothing = b.constant(0, types.vector(i32, self.lanes))
        counted = b.cast(b.iota(self.lanes), i32)

        def vector(state: Sequence[Value], i: Operand, mask: Value | None) -> list[Value]:
            best, place = state
            new = self.element(b.add(start, b.mul(i, stride)), stride, mask)
            better = self.is_better(new, best)
            if mask is not None:
                better = b.and_(better, mask)
            here = b.add(counted, b.cast(b.index(i), i32))
            return [b.select(better, new, best), b.select(better, here, place)]

        whole = b.mul(b.div(end, self.lanes), self.lanes)
        with b.loop(0, whole, self.lanes, [first, nothing]) as state:
            state.yields(vector(state.values, state.index, None))
        with b.loop(whole, end, self.lanes, state.results) as rest:
            mask = b.tail_mask(b.index(b.sub(end, rest.index)), self.lanes)
            rest.yields(vector(rest.values, rest.index, mask))
        found = self.best_lane(*rest.results)
        b.store(b.cast(found, i64), b["y0"], self.place("y0", "outer", indices))

    def best_lane(self, values: Value, places: Value) -> Value:
        """The place in the best lane; of equal ones the lowest, or the highest."""
        b, kernel = self.b, self.kernel
        best, place = b.extract(values, 0), b.extract(places, 0)
        for lane in range(1, self.lanes):
            new, here = b.extract(values, lane), b.extract(places, lane)
            low, high = (best, new) if kernel.greatest else (new, best)
            better = b.lt(low, high)
            same = b.eq(new, best)
            if self.dtype.is_float:
                new_missing, best_missing = b.ne(new, new), b.ne(best, best)
                better = b.or_(better, b.and_(new_missing, b.not_(best_missing)))
                same = b.or_(same, b.and_(new_missing, best_missing))
            nearer = b.lt(place, here) if kernel.last else b.lt(here, place)
            chosen = b.or_(better, b.and_(same, nearer))
            best, place = b.select(chosen, new, best), b.select(chosen, here, place)
        return place

    def column_unit(self, indices: Sequence[Operand], column: Operand) -> None:
        b, last = self.b, len(self.kernel.outer) - 1
        here = [*indices, column]
        start, stride = self.place("x0", "outer", here), self.stride("x0", "outer", last)
        mask = b.tail_mask(b.index(b.sub(self.size(self.outers[-1]), column)), self.lanes)
        first = self.element(start, stride, mask)
        nothing = b.constant(0, types.vector(i32, self.lanes))
        with b.loop(1, self.size("row0"), 1, [first, nothing]) as state:
            new = self.element(b.add(start, b.mul(state.index, self.stride("x0", "row", 0))), stride, mask)
            better = self.is_better(new, state[0])
            position = b.broadcast(b.cast(state.index, i32), self.lanes)
            state.yields([b.select(better, new, state[0]), b.select(better, position, state[1])])
        place, step = self.place("y0", "outer", here), self.stride("y0", "outer", last)
        self.store(b.cast(state.results[1], i64), "y0", place, step, mask)
