"""Activations made of simpler operations, in as few as possible, and spelled as runtimes know them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .common import dtype_of

if TYPE_CHECKING:
    from ..builder import OpBuilder
    from ..core import Operation, Value


def gelu_parts(op: Operation, b: OpBuilder) -> list[Value] | None:
    """x * (1 + erf(x / sqrt(2))) * 0.5, in 5 operations.

    The approximation by tanh takes 6, since 0.5 * (1 + tanh(u)) is sigmoid(2 * u). None if the type of x is not known.
    """
    x = op.operands[0]
    if x is None or dtype_of(op, 0) is None:
        return None
    if op.attr("approximate") == "tanh":
        factor = 2 * math.sqrt(2 / math.pi)
        return [_gated(b, x, b.mul(b.add(b.mul(b.mul(x, x), factor * 0.044715), factor), x))]
    return [b.mul(b.mul(x, b.add(b.erf(b.div(x, math.sqrt(2))), 1.0)), 0.5)]


def swish_parts(op: Operation, b: OpBuilder) -> list[Value] | None:
    """x * sigmoid(alpha * x) in 2 operations, or 3. None if the type of x is not known."""
    x, alpha = op.operands[0], op.attr("alpha")
    if x is None or dtype_of(op, 0) is None:
        return None
    return [_gated(b, x, x if alpha == 1.0 else b.mul(x, alpha))]


def swiglu_parts(op: Operation, b: OpBuilder) -> list[Value] | None:
    """The swish of the gate, times the linear operand."""
    swish = swish_parts(op, b)
    return None if swish is None else [b.mul(swish[0], op.operands[1])]


def hard_swish_parts(op: Operation, b: OpBuilder) -> list[Value]:
    """x * hard_sigmoid(x)."""
    return [b.mul(op.operands[0], b.hard_sigmoid(op.operands[0], alpha=1 / 6, beta=0.5))]


def mish_parts(op: Operation, b: OpBuilder) -> list[Value]:
    """x * tanh(softplus(x))."""
    return [b.mul(op.operands[0], b.tanh(b.softplus(op.operands[0])))]


def _gated(b: OpBuilder, x: Value, argument: Value) -> Value:
    result: Value = b.mul(x, b.sigmoid(argument))
    return result
