"""Products of many rows with few, all lying along k in memory: C[i, j] = f(sum over k of X[i, k] * Y[j, k]).

`x` has the many rows, `y` the few, so this is A times a vector (x = A, y = B's columns) as well as a vector times a
transposed matrix (x = B's columns, y = A). Vectors run along k; each number of x is read once. A register of results
is filled from the sums of as many rows, so that what follows is computed for all of them at once.

A work unit is a block of rows of one matrix of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ....graph import types
from ....graph.core import Value
from ....graph.dtypes import DType, i64
from ....graph.kernel.loop_builder import LoopBuilder, Operand
from ....graph.kernel.scalar_emitter import computed_in
from ....graph.module import Module
from ..machine import Machine
from .tile import Epilogue, EpilogueOperand, Size

# More than so many rows of y are better computed as a matrix product.
FEW = 4
# Registers of sums that are under way at once.
_SUMS = 8


@dataclass(frozen=True)
class Dot:
    """`few` is the number of y's rows. Strides count elements and are numbers or None (arguments of the kernel).

    `c_row` and the epilogue operands' `row` are the strides along x's rows, `c_few` that along y's, as arguments
    `NAME_few` are for operands, whatever their `column` is.
    """

    rows: Size
    k: Size
    few: int
    dtype: DType
    x_row: Size
    y_row: Size
    c_row: Size = 1
    c_few: Size = None
    batched: bool = False
    epilogue: Epilogue = field(default_factory=Epilogue)

    @property
    def sums(self) -> DType:
        return computed_in(self.dtype)


def dot_arguments(dot: Dot) -> list[str]:
    """The names of the kernel's arguments, in order."""
    sizes = [name for name in ("rows", "k", "x_row", "y_row", "c_row", "c_few") if getattr(dot, name) is None]
    names = ["x", "y", "c", *sizes, *(["x_batch", "y_batch", "c_batch"] if dot.batched else [])]
    for operand in dot.epilogue.operands:
        names.append(operand.name)
        names += [f"{operand.name}_row"] if operand.row is None else []
        names.append(f"{operand.name}_few")
        names += [f"{operand.name}_batch"] if dot.batched else []
    return [*names, "begin", "end", "thread"]


def dot_lanes(dot: Dot, machine: Machine) -> int:
    return machine.lanes(dot.sums)


def dot_units(rows: int, lanes: int, batch: int = 1) -> int:
    """How many units of work there are."""
    return batch * -(-rows // lanes)


def build_dot(name: str, dot: Dot, machine: Machine) -> Module:
    """The kernel as a module of the level "loop"; see `dot_arguments` for what it takes."""
    return _DotBuilder(name, dot, dot_lanes(dot, machine)).module()


class _DotBuilder:
    def __init__(self, name: str, dot: Dot, lanes: int) -> None:
        self.dot, self.lanes = dot, lanes
        buffers = dict.fromkeys(("x", "y", "c"), dot.dtype) | {o.name: o.dtype for o in dot.epilogue.operands}
        self.b = LoopBuilder(name, **{
            argument: types.buffer(buffers[argument]) if argument in buffers else types.scalar(i64)
            for argument in dot_arguments(dot)
        })  # fmt: skip

    def size(self, name: str) -> Operand:
        known = getattr(self.dot, name)
        return self.b[name] if known is None else known

    def module(self) -> Module:
        b, dot = self.b, self.dot
        rows = self.size("rows")
        blocks = b.div(b.add(rows, self.lanes - 1), self.lanes)
        with b.loop(b["begin"], b["end"]) as unit:
            batch = b.div(unit, blocks) if dot.batched else 0
            first = b.mul(b.sub(unit, b.mul(batch, blocks)), self.lanes)
            x, y, c = (self.matrix(name, batch) for name in ("x", "y", "c"))
            x = b.view(x, b.mul(first, self.size("x_row")))
            count = b.min(b.sub(rows, first), self.lanes)
            vectors = self.sums(x, y, count)
            self.store(batch, first, count, c, vectors)
        return b.module()

    def matrix(self, name: str, batch: Operand) -> Value:
        b = self.b
        return b.view(b[name], b.mul(batch, b[f"{name}_batch"])) if self.dot.batched else b[name]

    def sums(self, x: Value, y: Value, count: Operand) -> list[Value]:
        """For each row of y the sums of a register full of x's rows; those from `count` on are the last one's."""
        b, dot = self.b, self.dot
        together = max(1, _SUMS // dot.few)
        together = min(together, self.lanes)
        results = [b.constant(0, types.vector(dot.sums, self.lanes))] * dot.few
        last = b.sub(count, 1)
        for begin in range(0, self.lanes, together):
            rows = [b.mul(b.min(begin + i, last), self.size("x_row")) for i in range(together)]
            totals = self.along_k(x, y, rows)
            for j in range(dot.few):
                for i in range(together):
                    total = b.reduce("add", totals[j * together + i])
                    results[j] = b.insert(results[j], total, begin + i)
        return results

    def along_k(self, x: Value, y: Value, rows: Sequence[Operand]) -> Sequence[Value]:
        """Vectors of partial sums of these rows of x with each row of y, those of one row of y together."""
        b, dot, lanes = self.b, self.dot, self.lanes
        k = self.size("k")
        whole = b.mul(b.div(k, lanes), lanes)
        columns = [b.mul(j, self.size("y_row")) for j in range(dot.few)]

        def step(sums: Sequence[Value], at: Operand, mask: Value | None) -> list[Value]:
            left = [b.cast(b.load(x, b.add(row, at), lanes, mask), dot.sums) for row in rows]
            right = [b.cast(b.load(y, b.add(column, at), lanes, mask), dot.sums) for column in columns]
            pairs = [(i, j) for j in range(dot.few) for i in range(len(rows))]
            if dot.sums.is_float:
                return [b.fma(left[i], right[j], total) for (i, j), total in zip(pairs, sums, strict=True)]
            return [b.add(total, b.mul(left[i], right[j])) for (i, j), total in zip(pairs, sums, strict=True)]

        zero = b.constant(0, types.vector(dot.sums, lanes))
        with b.loop(0, whole, lanes, [zero] * (dot.few * len(rows))) as state:
            state.yields(step(state.values, state.index, None))
        if not isinstance(k, Value) and k % lanes == 0:
            return state.results
        # What is masked off counts as 0, so the last step may have no number at all.
        mask = b.tail_mask(b.index(b.sub(k, whole)), lanes)
        return step(state.results, whole, mask)

    def store(self, batch: Operand, first: Operand, count: Operand, c: Value, vectors: Sequence[Value]) -> None:
        b, dot = self.b, self.dot
        mask = b.tail_mask(b.index(count), self.lanes)
        for j, total in enumerate(vectors):
            result = total
            if dot.epilogue.body is not None:
                given = [self.operand(operand, batch, first, j, mask) for operand in dot.epilogue.operands]
                result = b.value(dot.epilogue.body(b, total, given), types.vector(dot.sums, self.lanes))
            result = b.cast(result, dot.dtype)
            start, stride = b.mul(j, self.size("c_few") if j else 0), self.size("c_row")
            if not isinstance(stride, Value) and stride == 1:
                b.store(result, c, b.add(start, first), mask)
            else:
                b.scatter(result, c, self.places(start, first, stride), mask)

    def operand(self, operand: EpilogueOperand, batch: Operand, first: Operand, j: int, mask: Value) -> Value:
        b = self.b
        row: Operand = b[f"{operand.name}_row"] if operand.row is None else operand.row
        start = b.mul(j, b[f"{operand.name}_few"]) if j else 0
        buffer = b[operand.name]
        if self.dot.batched:
            buffer = b.view(buffer, b.mul(batch, b[f"{operand.name}_batch"]))
        if not isinstance(row, Value) and row == 0:
            loaded = b.broadcast(b.load(buffer, start), self.lanes)
        elif not isinstance(row, Value) and row == 1:
            loaded = b.load(buffer, b.add(start, first), self.lanes, mask)
        else:
            loaded = b.gather(buffer, self.places(start, first, row), mask)
        return b.cast(loaded, computed_in(operand.dtype))

    def places(self, start: Operand, first: Operand, stride: Operand) -> Value:
        b = self.b
        found: Value = b.add(b.mul(b.add(b.iota(self.lanes), first), stride), start)
        return found
