"""byte-tables: a function of one byte is looked up rather than computed. Level kernel.

Invariant: the table holds what the map's body gives for each of the 256 bytes, computed by its numpy meaning; the same
functions compiled may differ from that in the last bit of floats on the way.

    %1 = kernel.map %0, 0.02, 128 : u8[n, 64] body {dequantize, exp, quantize ...}     // %0 : u8[n, 64]
                                                      ->   %1 = kernel.table %0, %table : u8[n, 64]  // %table : u8[256]
"""

from __future__ import annotations

from dataclasses import dataclass
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
    """kernel.map(x, numbers...) of a tensor of bytes to bytes -> kernel.table(x, table)"""

    root = ("kernel.map",)

    def when(self, m: Match) -> Verdict:
        if len(m.root.results) != 1 or dtype_of(m.root.result) not in (u8, i8):
            return m.fail("the results are not one tensor of bytes")
        x = _source(m.root)
        if x is None:
            return m.fail("it is not a function of one byte")
        return cost(m.root.regions["body"].block) >= LEAST_COST or m.fail("there is little to compute")

    def build(self, b: OpBuilder, m: Match) -> Value:
        x, op = _source(m.root), m.root
        assert x is not None
        given = []
        for value in op.operand_values:
            data = data_of(value)
            assert value is x or data is not None
            given.append(all_bytes(dtype_of(x)) if data is None else data.numpy().reshape(()))
        table = np.asarray(op.definition.evaluate(op, *given)).reshape(256)
        constant = b.const(table, dtype_of(op.result))
        return b.create("kernel.table", [x, constant], result_types=[op.result.type]).result


def _source(op: Operation) -> Value | None:
    """The only operand of a map that is no number, if it is a tensor of bytes of the result's shape."""
    found = [value for value in op.operand_values if data_of(value) is None or not _is_number(value)]
    if len(found) != 1 or data_of(found[0]) is not None or dtype_of(found[0]) not in (u8, i8):
        return None
    type, result = found[0].type, op.result.type
    is_whole = isinstance(type, TensorType) and isinstance(result, TensorType) and type.shape == result.shape
    return found[0] if is_whole else None


def _is_number(value: Value) -> bool:
    data = data_of(value)
    return data is not None and all(size == 1 for size in data.shape)


@dataclass(frozen=True)
class ByteTables(RulePass):
    """Look functions of one byte up in tables."""

    name = "byte-tables"
    exactness = "approximate"
    level_in = "kernel"
    level_out = "kernel"
    rules = (MapToTable,)
