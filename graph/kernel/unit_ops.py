"""Bytes in words and in tables, and the matrix unit that multiplies blocks of them (domain `loop`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .. import types
from ..dtypes import i32, u8
from ..opdef import op
from .base import LoopOp, buffer_of, fault, index_of, vector_of
from .loop_ops import EFFECT

if TYPE_CHECKING:
    from ..core import Operation
    from ..infer import InferenceContext
    from ..types import Type

# Words that a row of the unit's left factor has, and its rows and columns.
UNIT = 16


@op("reinterpret", domain="loop")
class Reinterpret(LoopOp):
    """The rest of a buffer as numbers of another dtype, as they lie in memory."""

    inputs = ("buffer",)
    outputs = ("result",)
    attributes: ClassVar[dict[str, Any]] = {"to": None}

    def infer(self, op: Operation, context: InferenceContext | None = None) -> Sequence[Type]:
        to = op.attributes["to"]
        if not isinstance(to, types.ScalarType):
            raise fault(op, f"needs a type such as scalar<i32> for `to`, got {to}")
        return [types.buffer(to.dtype, buffer_of(op, 0).space)]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        size = np.dtype(op.attributes["to"].dtype.numpy).itemsize // operands[0].dtype.itemsize or 1
        whole = operands[0][: operands[0].size // size * size]
        return whole.view(op.attributes["to"].dtype.numpy)


@op("lookup", domain="loop")
class Lookup(LoopOp):
    """The elements of a table of 256 bytes at the places in the lanes of `x`, a vector of u8."""

    inputs = ("table", "x")
    outputs = ("result",)
    traits = EFFECT

    def infer(self, op: Operation, context: InferenceContext | None = None) -> Sequence[Type]:
        table, x = buffer_of(op, 0), vector_of(op, 1)
        if table.dtype is not u8 or x.dtype is not u8:
            raise fault(op, f"needs a table and a vector of u8, got {table} and {x}")
        return [x]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        table, x = operands
        return table[x]


class _Switch(LoopOp):
    inputs = ()
    outputs = ()
    traits = EFFECT

    def infer(self, op: Operation, context: InferenceContext | None = None) -> Sequence[Type]:
        return []

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return ()


@op("unit_begin", domain="loop")
class UnitBegin(_Switch):
    """The thread will use the matrix unit."""


@op("unit_end", domain="loop")
class UnitEnd(_Switch):
    """The thread does not use the matrix unit any more."""


@op("unit_products", domain="loop")
class UnitProducts(LoopOp):
    """sums[i * columns + j] = the sum over w < steps of dot4(left[i * left_row + w], right[w * width + j]).

    All buffers are of i32. `steps` is a multiple of 16; `rows` and `columns` are 16 or 32. Meanwhile the memory of
    `ahead` is asked for from `place` on, which may lie outside: `lines` cache lines for each 16 steps.
    """

    inputs = ("sums", "left", "left_row", "right", "steps", "ahead", "place")
    outputs = ()
    attributes: ClassVar[dict[str, Any]] = {"rows": None, "columns": None, "width": None, "lines": 0}
    traits = EFFECT

    def infer(self, op: Operation, context: InferenceContext | None = None) -> Sequence[Type]:
        if any(buffer_of(op, index).dtype is not i32 for index in (0, 1, 3, 5)):
            raise fault(op, "needs buffers of i32")
        for index in (2, 4, 6):
            index_of(op, index)
        if any(op.attributes[name] not in (UNIT, 2 * UNIT) for name in ("rows", "columns")):
            raise fault(op, f"has tiles of {UNIT} or {2 * UNIT} rows and columns")
        return []

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        sums, left, left_row, right, steps = operands[:5]
        rows, columns, width = (int(op.attributes[name]) for name in ("rows", "columns", "width"))
        places = np.arange(rows)[:, None] * int(left_row) + np.arange(int(steps))
        words = right[np.arange(int(steps))[:, None] * width + np.arange(columns)]
        unsigned = np.ascontiguousarray(left[places]).view(np.uint8).astype(np.float64)
        signed = np.ascontiguousarray(words).view(np.int8).reshape(int(steps), columns, 4)
        factor = signed.transpose(0, 2, 1).reshape(-1, columns).astype(np.float64)
        totals = (unsigned @ factor).astype(np.int64).astype(np.int32)
        sums[: rows * columns] = totals.reshape(-1)
        return ()
