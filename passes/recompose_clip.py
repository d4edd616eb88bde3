"""recompose-clip: bounds from above and below become one Clip. Level onnx.

Max and Min with numbers, Relu, and Clip itself, one after the other. Clip bounds from below first, so a lower bound
above the upper one gives the upper one; such bounds are left alone.

Invariant: bounds are numbers that add no dims and that an attribute of type f32, which Clip had before opset 11, holds.

    %0 = relu %x : f32[n, 8]
    %1 = min %0, 6.0 : f32[n, 8]                   ->      %1 = clip %x, 0.0, 6.0 : f32[n, 8]
"""

from __future__ import annotations

import math

import numpy as np

from ..graph.builder import OpBuilder
from ..graph.core import Operation, Value
from ..graph.data import UnresolvedData
from .base import RulePass
from .pattern import PatternBuilder, PatternValue
from .rules import Match, Mismatch, Rule, Verdict

# The lower and upper bound of one step; infinite where there is none.
Bounds = tuple[float, float]

_BOUNDING = ("relu", "max", "min", "clip")


class TwoBounds(Rule):
    """min(max(x, low), high), relu and clip included, in any order -> clip(x, low, high)"""

    name = "recompose-clip"
    exactness = "reassociates"

    def match(self, p: PatternBuilder, a: PatternValue) -> PatternValue:
        inner = p.named("inner", p.op(_BOUNDING, p.variadic()))
        result: PatternValue = p.either(
            p.relu(inner),
            p.max(inner, a),
            p.min(inner, a),
            p.clip(inner, p.optional(p.const()), p.optional(p.const())),
        )
        return result

    def when(self, m: Match) -> Verdict:
        found = _bounds(m)
        return found if isinstance(found, Mismatch) else True

    def build(self, b: OpBuilder, m: Match) -> Value:
        found = _bounds(m)
        assert not isinstance(found, Mismatch)
        x, low, high = found
        dtype = m.dtype(x)
        operands = [None if math.isinf(bound) else b.const(bound, dtype) for bound in (low, high)]
        result: Value = b.create("clip", [x, *operands]).result
        return result


def _bounds(m: Match) -> tuple[Value, float, float] | Mismatch:
    """What is bounded by both operations of the match, and how."""
    inner = m.op("inner")
    assert inner is not None
    first, second = _step(m, inner, None), _step(m, m.root, m.inner)
    if isinstance(first, Mismatch):
        return first
    if isinstance(second, Mismatch):
        return second
    x, (low, high), (below, above) = first[0], first[1], second[1]
    combined = (min(max(low, below), above), min(max(high, below), above))
    if combined[0] == -math.inf or combined[1] == math.inf:
        # Two bounds on one side are one operation already, or become one as it is.
        return m.fail("it is bounded on one side only", m.root)
    return x, *combined


def _step(m: Match, op: Operation, operand: Value | None) -> tuple[Value, Bounds] | Mismatch:
    """The operand that `op` bounds, and the bounds."""
    values = op.operands
    if op.name == "relu":
        return _checked(m, op, values[0], (0.0, math.inf))
    if op.name == "clip":
        numbers = [_number(m, value, values[0]) for value in (*values[1:], None, None)[:2]]
        if any(number is None and value is not None for number, value in zip(numbers, values[1:], strict=False)):
            return m.fail("its bounds are not known", op)
        low, high = numbers
        return _checked(m, op, values[0], (-math.inf if low is None else low, math.inf if high is None else high))
    if len(values) != 2:
        return m.fail(f"it is no {op.name} of two", op)
    for x, other in ((values[0], values[1]), (values[1], values[0])):
        number = _number(m, other, x)
        if number is not None and (operand is None or x is operand):
            return _checked(m, op, x, (number, math.inf) if op.name == "max" else (-math.inf, number))
    return m.fail("no operand is a number that keeps the shape", op)


def _checked(m: Match, op: Operation, x: Value | None, bounds: Bounds) -> tuple[Value, Bounds] | Mismatch:
    if x is None or m.dtype(x) is None:
        return m.fail("the type is not known", op)
    if not bounds[0] <= bounds[1]:
        return m.fail(f"the lower bound {bounds[0]} is above the upper bound {bounds[1]}", op)
    return x, bounds


def _number(m: Match, value: Value | None, x: Value | None) -> float | None:
    """The number that a constant bounds `x` by; None if it is none, or one that f32 does not hold."""
    data = m.data(value)
    if x is None or data is None or isinstance(data, UnresolvedData) or data.elements != 1:
        return None
    rank = m.rank(x)
    if data.dtype.kind == "string" or (data.shape and (rank is None or len(data.shape) > rank)):
        return None
    number = data.numpy().reshape(()).item()
    is_kept = isinstance(number, int | float) and float(np.float32(number)) == number
    return float(number) if is_kept else None


class RecomposeClip(RulePass):
    """Recompose Clip from Max, Min, Relu and other Clips."""

    name = "recompose-clip"
    exactness = "reassociates"
    fuses = True
    rules = (TwoBounds,)
