"""Where elements are not zero: NonZero, and the positions that Compress keeps.

How many there are is known when they have been counted, so this is two kernels over chunks of a contiguous operand: the
first counts those of each chunk, the second writes their positions, each chunk behind those before it. Positions are
i64, [rank, total], a row for each dim; the second kernel says the total, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ....graph import types
from ....graph.core import Value
from ....graph.dtypes import DType, i32, i64
from ....graph.kernel.loop_builder import Operand
from ....graph.kernel.scalar_emitter import computed_in
from ....graph.module import Module
from ..machine import Machine
from .strided import Size, StridedBuilder, argument_names

# Elements of a chunk.
CHUNK = 1 << 12


@dataclass(frozen=True)
class NonZero:
    """Both kernels for operands of `dtype` and of `rank` dims, at least one."""

    dtype: DType
    rank: int


def nonzero_sizes(kernel: NonZero) -> dict[str, Size]:
    """The extents and the number of elements; all are arguments."""
    return {**{f"outer{axis}": None for axis in range(kernel.rank)}, "size": None}


def nonzero_arguments(kernel: NonZero) -> list[str]:
    """The names of the arguments of both kernels, in order: positions y, their total, operand x, counts of chunks."""
    return argument_names(["y", "total", "x", "counts"], nonzero_sizes(kernel))


def nonzero_units(shape: Sequence[int]) -> int:
    """How many units of work there are, and how many counts: chunks, at least one."""
    return max(1, -(-math.prod(shape) // CHUNK))


def build_nonzero_count(name: str, kernel: NonZero, machine: Machine) -> Module:
    """The first kernel: counts[chunk] becomes how many of its elements are not zero. Other results are not touched."""
    builder = _NonZeroBuilder(name, kernel, machine)
    builder.count()
    return builder.b.module()


def build_nonzero_positions(name: str, kernel: NonZero, machine: Machine) -> Module:
    """The second kernel: the positions, and `total[0]`, how many there are; `counts` are those of the first."""
    builder = _NonZeroBuilder(name, kernel, machine)
    builder.positions()
    return builder.b.module()


class _NonZeroBuilder(StridedBuilder):
    def __init__(self, name: str, kernel: NonZero, machine: Machine) -> None:
        buffers = {"y": i64, "total": i64, "x": kernel.dtype, "counts": i64}
        super().__init__(name, machine, buffers, nonzero_sizes(kernel), computed_in(kernel.dtype))
        self.lanes = min(16, self.lanes)
        self.kernel = kernel

    def bounds(self, chunk: Operand) -> tuple[Operand, Operand]:
        b = self.b
        start = b.mul(chunk, CHUNK)
        return start, b.min(b.add(start, CHUNK), self.size("size"))

    def marks(self, i: Operand, end: Operand) -> Value:
        """Which lanes hold elements that are not zero. NaN is not."""
        b = self.b
        mask = b.tail_mask(b.index(b.sub(end, i)), self.lanes)
        value = self.load("x", i, 1, mask)
        assert isinstance(value.type, types.VectorType)
        marks = value if value.type.dtype.kind == "bool" else b.ne(value, b.constant(0, value.type))
        return b.cast(b.and_(marks, mask), i32)

    def count(self) -> None:
        b = self.b
        with b.loop(b["begin"], b["end"]) as chunk:
            begin, end = self.bounds(chunk)
            with b.loop(begin, end, self.lanes, [b.constant(0, types.vector(i32, self.lanes))]) as state:
                state.yields([b.add(state[0], self.marks(state.index, end))])
            b.store(b.cast(b.reduce("add", state.results[0]), i64), b["counts"], chunk)

    def summed(self, begin: Operand, end: Operand) -> Value:
        """The counts of some chunks together."""
        b = self.b
        with b.loop(begin, end, 1, [b.constant(0, types.scalar(i64))]) as state:
            state.yields([b.add(state[0], b.load(b["counts"], state.index))])
        total: Value = state.results[0]
        return total

    def positions(self) -> None:
        b = self.b
        chunks = b.max(b.div(b.add(self.size("size"), CHUNK - 1), CHUNK), 1)
        before = self.summed(0, b["begin"])
        total = b.add(before, self.summed(b["begin"], chunks))
        with b.when(b.eq(b["begin"], 0)):
            b.store(total, b["total"], 0)
        found = b.alloc(i32, self.lanes)
        with b.loop(b["begin"], b["end"], 1, [before]) as state:
            begin, end = self.bounds(state.index)
            last = b.add(state[0], b.load(b["counts"], state.index))
            end = b.select(b.eq(last, state[0]), begin, end)  # a chunk without any is not looked at again
            with b.loop(begin, end, self.lanes, [state[0]]) as places:
                i, at = places.index, places[0]
                marks = self.marks(i, end)

                def write(i: Value = i, at: Value = at, marks: Value = marks, last: Value = last) -> list[Value]:
                    b.store(marks, found, 0)
                    return [self.write(i, b.min(self.lanes, b.sub(end, i)), found, (at, last, total))]

                places.yields(b.branch(b.lt(0, b.reduce("max", marks)), write, lambda at=at: [at]))
            state.yields([last])

    def write(self, first: Value, count: Operand, found: Value, bounds: tuple[Value, Value, Value]) -> Value:
        """The positions of the marked ones among `count` elements from `first` on; where the next ones go.

        Each position is written where the next one that is marked goes, so that no branch depends on the marks.
        """
        b, (at, last, total) = self.b, bounds
        extents = [f"outer{axis}" for axis in range(self.kernel.rank)]
        start = [b.index(index) for index in self.unravel(first, extents)]
        with b.loop(0, count, 1, [at, *start]) as state:
            at, *indices = state.values
            with b.when(b.lt(at, last)):
                for axis, index in enumerate(indices):
                    b.store(index, b["y"], b.add(b.mul(axis, total), at))
            following = []
            carry: Value = b.index(1)
            for axis in reversed(range(len(indices))):
                index = b.add(indices[axis], carry)
                wraps = b.eq(index, self.size(extents[axis]))
                following.append(b.select(wraps, 0, index) if axis else index)
                carry = b.cast(wraps, i64)
            state.yields([b.add(at, b.cast(b.load(found, state.index), i64)), *following[::-1]])
        result: Value = state.results[0]
        return result
