"""byte-tables: a function of one byte is looked up rather than computed. Level kernel.

Invariant: the table holds what the map's body gives for each of the 256 bytes, computed by its numpy meaning; the same
functions compiled may differ from that in the last bit of floats on the way.

    %1 = kernel.map %0, 0.02, 128 : u8[n, 64] body {dequantize, exp, quantize ...}     // %0 : u8[n, 64]
                                                      ->   %1 = kernel.table %0, %table : u8[n, 64]  // %table : u8[256]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..graph.core import Operation, Value
from ..graph.dtypes import i8, u8
from ..graph.kernel.bodies import cost
from ..graph.kernel.integer_ops import all_bytes
from ..graph.lowerings.builder import data_of, dtype_of
from ..graph.types import TensorType
from .base import RulePass
from .rules import Match, OpRule, Verdict

if TYPE_CHECKING:
    from ..graph.builder import OpBuilder

# A body of less arithmetic is computed as fast as looked up where there is no instruction for tables.
LEAST_COST = 4


class MapToTable(OpRule):
    """kernel.map(x, tables of x, numbers...) of one tensor of bytes to bytes -> kernel.table(x, table)"""

    root = ("kernel.map",)

    def when(self, m: Match) -> Verdict:
        if len(m.root.results) != 1 or dtype_of(m.root.result) not in (u8, i8):
            return m.fail("the results are not one tensor of bytes")
        if _source(m.root) is None:
            return m.fail("it is not a function of one byte")
        return cost(m.root.regions["body"].block) >= LEAST_COST or m.fail("there is little to compute")

    def build(self, b: OpBuilder, m: Match) -> Value:
        x, op = _source(m.root), m.root
        assert x is not None
        given = [_of_all_bytes(value, x) for value in op.operand_values]
        table = np.asarray(op.definition.evaluate(op, *given)).reshape(256)
        constant = b.const(table, dtype_of(op.result))
        return b.create("kernel.table", [x, constant], result_types=[op.result.type]).result


class TableOfTable(OpRule):
    """kernel.table(kernel.table(x)) -> kernel.table(x)"""

    root = ("kernel.table",)

    def when(self, m: Match) -> Verdict:
        inner = _inner(m.root.operand_values[0])
        is_one = inner is not m.root.operand_values[0] and data_of(m.root.operand_values[1]) is not None
        return is_one or m.fail("what is looked up is no element of a table")

    def build(self, b: OpBuilder, m: Match) -> Value:
        value, op = m.root.operand_values[0], m.root
        x = _inner(value)
        outer = data_of(op.operand_values[1])
        assert outer is not None
        table = outer.numpy()[_of_all_bytes(value, x).view(np.uint8)]
        constant = b.const(table, dtype_of(op.result))
        return b.create("kernel.table", [x, constant], result_types=[op.result.type]).result


def _inner(value: Value) -> Value:
    """What a value is looked up by in constant tables, or the value itself."""
    op = value.producer
    while op is not None and op.name == "kernel.table" and data_of(op.operand_values[1]) is not None:
        value = op.operand_values[0]
        op = value.producer
    return value


def _of_all_bytes(value: Value, x: Value) -> np.ndarray:
    """The elements of a value where x is each of the 256 bytes in turn; a number is the same everywhere."""
    if value is x:
        return all_bytes(dtype_of(x))
    op = value.producer
    assert op is not None
    if op.name != "kernel.table":
        data = data_of(value)
        assert data is not None
        return data.numpy().reshape(())
    table = data_of(op.operand_values[1])
    assert table is not None
    return table.numpy()[_of_all_bytes(op.operand_values[0], x).view(np.uint8)]


def _source(op: Operation) -> Value | None:
    """The tensor of bytes, of the result's shape, that all operands of a map but numbers are functions of."""
    found = {_inner(value) for value in op.operand_values if not _is_number(value)}
    if len(found) != 1:
        return None
    [x] = found
    type, result = x.type, op.result.type
    is_whole = isinstance(type, TensorType) and isinstance(result, TensorType) and type.shape == result.shape
    return x if is_whole and data_of(x) is None and dtype_of(x) in (u8, i8) else None


def _is_number(value: Value) -> bool:
    data = data_of(value)
    return data is not None and all(size == 1 for size in data.shape)


class ByteTables(RulePass):
    """Look functions of one byte up in tables."""

    name = "byte-tables"
    exactness = "approximate"
    level_in = "kernel"
    level_out = "kernel"
    rules = (MapToTable, TableOfTable)
