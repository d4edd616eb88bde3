"""Determinants of square matrices, by elimination with the greatest pivot of each column.

Small matrices of a known size lie in lanes, one in each, and are eliminated in registers, where rows change places by
selects. A larger one is copied to scratch memory, where vectors lie along its rows.

    work unit (as many matrices as there are lanes)      work unit (matrix)
      columns: pivot, rows below                           columns: pivot, rows below, vectors
"""

from __future__ import annotations

from dataclasses import dataclass

from ....graph import types
from ....graph.core import Value
from ....graph.dtypes import DType
from ....graph.kernel.scalar_emitter import computed_in
from ....graph.module import Module
from ..machine import Machine
from .strided import Size, StridedBuilder, argument_names

# Matrices of up to so many rows are eliminated in lanes.
SMALL = 8


@dataclass(frozen=True)
class Determinant:
    """Of matrices with `rows` rows (None: an argument), one after the other."""

    dtype: DType
    rows: Size


def _in_lanes(kernel: Determinant) -> bool:
    return kernel.rows is not None and kernel.rows <= SMALL


def determinant_sizes(kernel: Determinant) -> dict[str, Size]:
    """Sizes by name; those that are None are arguments of the kernel."""
    return {"matrices": None, "rows": kernel.rows}


def determinant_arguments(kernel: Determinant) -> list[str]:
    """The names of the kernel's arguments, in order. `scratch` are numbers as they are computed with."""
    return argument_names(["y", "x", "scratch"], determinant_sizes(kernel))


def determinant_units(kernel: Determinant, machine: Machine, matrices: int) -> int:
    """How many units of work there are."""
    return -(-matrices // machine.lanes(computed_in(kernel.dtype))) if _in_lanes(kernel) else matrices


def determinant_scratch(kernel: Determinant, machine: Machine, rows: int) -> int:
    """How many numbers of scratch memory a thread needs."""
    lanes = machine.lanes(computed_in(kernel.dtype))
    return 0 if _in_lanes(kernel) else rows * (-(-rows // lanes) * lanes)


def build_determinant(name: str, kernel: Determinant, machine: Machine) -> Module:
    """The kernel as a module of the level "loop"; see `determinant_arguments` for what it takes."""
    builder = _DeterminantBuilder(name, kernel, machine)
    with builder.b.loop(builder.b["begin"], builder.b["end"]) as unit:
        if _in_lanes(kernel):
            builder.together(unit)
        else:
            builder.alone(unit)
    return builder.b.module()


class _DeterminantBuilder(StridedBuilder):
    def __init__(self, name: str, kernel: Determinant, machine: Machine) -> None:
        self.kernel, self.wide = kernel, computed_in(kernel.dtype)
        buffers = {"y": kernel.dtype, "x": kernel.dtype, "scratch": self.wide}
        super().__init__(name, machine, buffers, determinant_sizes(kernel), self.wide)
        self.scalar, self.vector = types.scalar(self.wide), types.vector(self.wide, self.lanes)

    def together(self, unit: Value) -> None:
        """As many matrices as there are lanes."""
        b, rows = self.b, self.kernel.rows
        assert rows is not None
        first = b.mul(unit, self.lanes)
        mask = b.tail_mask(b.sub(b["matrices"], first), self.lanes)
        start = b.mul(first, rows * rows)
        a = [
            [self.load("x", b.add(start, row * rows + column), rows * rows, mask) for column in range(rows)]
            for row in range(rows)
        ]
        result, zero = b.constant(1, self.vector), b.constant(0, self.vector)
        for column in range(rows):
            below = range(column + 1, rows)
            for row in below:
                exchanged = b.lt(b.abs(a[column][column]), b.abs(a[row][column]))
                result = b.select(exchanged, b.neg(result), result)
                for each in range(column, rows):
                    upper, lower = a[column][each], a[row][each]
                    a[column][each] = b.select(exchanged, lower, upper)
                    a[row][each] = b.select(exchanged, upper, lower)
            pivot = a[column][column]
            result = b.mul(result, pivot)
            for row in below:
                # A column of zeros has nothing to eliminate.
                factor = b.select(b.eq(pivot, 0), zero, b.neg(b.div(a[row][column], pivot)))
                for each in below:
                    a[row][each] = b.fma(factor, a[column][each], a[row][each])
        self.store(result, "y", first, 1, mask)

    # ---- one matrix --------------------------------------------------------------------------------------------------

    def alone(self, unit: Value) -> None:
        b, lanes = self.b, self.lanes
        rows = b.index(self.size("rows"))
        pitch = b.mul(b.div(b.add(rows, lanes - 1), lanes), lanes)
        own = b.view(b["scratch"], b.mul(b["thread"], b.mul(rows, pitch)))
        with b.loop(0, rows) as row:
            source = b.mul(b.add(b.mul(unit, rows), row), rows)
            with b.loop(0, rows, lanes) as column:
                mask = b.tail_mask(b.sub(rows, column), lanes)
                b.store(self.load("x", b.add(source, column), 1, mask), own, b.add(b.mul(row, pitch), column))
        with b.loop(0, rows, 1, [b.constant(1, self.scalar)]) as state:
            state.yields([b.mul(state[0], self.eliminated(own, rows, pitch, state.index))])
        self.store_one(state.results[0], "y", unit)

    def eliminated(self, own: Value, rows: Value, pitch: Value, column: Value) -> Value:
        """Bring the greatest element of a column on the diagonal and eliminate those below it; the element, negative
        if two rows changed places."""
        b, lanes = self.b, self.lanes
        diagonal, below = b.mul(column, pitch), b.add(column, 1)
        # Vectors begin where that of the diagonal does: what stands left of it is not needed any more.
        left = b.mul(b.div(column, lanes), lanes)
        size = b.abs(b.load(own, b.add(diagonal, column)))
        with b.loop(below, rows, 1, [size, column]) as state:
            other = b.abs(b.load(own, b.add(b.mul(state.index, pitch), column)))
            is_greater = b.lt(state[0], other)
            state.yields([b.select(is_greater, other, state[0]), b.select(is_greater, state.index, state[1])])
        best = state.results[1]
        exchanged = b.ne(best, column)
        with b.when(exchanged), b.loop(left, pitch, lanes) as place:
            upper, lower = b.add(diagonal, place), b.add(b.mul(best, pitch), place)
            vectors = b.load(own, upper, lanes), b.load(own, lower, lanes)
            b.store(vectors[0], own, lower)
            b.store(vectors[1], own, upper)
        pivot = b.load(own, b.add(diagonal, column))
        with b.loop(below, rows) as row:
            target = b.mul(row, pitch)
            quotient = b.neg(b.div(b.load(own, b.add(target, column)), pivot))
            factor = b.broadcast(b.select(b.eq(pivot, 0), 0, quotient), lanes)
            with b.loop(left, pitch, lanes) as place:
                at = b.add(target, place)
                b.store(b.fma(factor, b.load(own, b.add(diagonal, place), lanes), b.load(own, at, lanes)), own, at)
        result: Value = b.select(exchanged, b.neg(pivot), pivot)
        return result
