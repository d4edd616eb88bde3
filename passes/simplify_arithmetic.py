"""simplify-arithmetic: drop arithmetic that changes nothing, and merge what is done twice. Level onnx.

Invariant: every bit of the result stays, those of -0.0, infinities and NaN included, and so does its shape. So x + 0.0
stays (it turns -0.0 into 0.0), x - 0.0 and x + -0.0 go; x * 0 is never 0.

    %0 = mul %x, 1.0 : f32[n, 8]
    %1 = clip %0, 0.0, none : f32[n, 8]        ->      %2 = clip %x, 0.0, 6.0 : f32[n, 8]
    %2 = clip %1, none, 6.0 : f32[n, 8]
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from ..graph.builder import OpBuilder
from ..graph.core import Operation, Value
from ..graph.opdef import Trait
from .base import RulePass
from .pattern import PatternBuilder, PatternValue
from .proofs import exact_constant, is_everywhere, keeps_type, made_by
from .rules import Match, OpRule, Replacement, Rule, Verdict

# Operation -> the number that changes nothing as its second operand (or either one, where they commute).
_NEUTRAL: dict[str, float] = {
    "add": 0, "sub": 0, "mul": 1, "div": 1, "pow": 1, "and": 1, "or": 0, "xor": 0,
    "bitwise_or": 0, "bitwise_xor": 0, "bit_shift": 0,
}  # fmt: skip


class NeutralOperand(OpRule):
    """mul(x, 1) -> x, and likewise add, sub, div, pow, and, or, xor, bitwise_or, bitwise_xor and bit_shift"""

    root = tuple(_NEUTRAL)
    proves_types = True

    def when(self, m: Match) -> Verdict:
        return _kept_operand(m) is not None or m.fail("no operand changes nothing", m.root)

    def build(self, b: OpBuilder, m: Match) -> Replacement:
        return _kept_operand(m)


def _kept_operand(m: Match) -> Value | None:
    """The operand that the root gives back unchanged."""
    left, right = m.root.operands
    orders = [(left, right)]
    if Trait.COMMUTATIVE in m.root.definition.traits:
        orders.append((right, left))
    for kept, other in orders:
        number = _NEUTRAL[m.root.name]
        dtype = m.dtype(kept)
        # Only -0.0 leaves the sign of a zero alone when it is added.
        if m.root.name == "add" and dtype is not None and dtype.is_float:
            number = -0.0
        if is_everywhere(m, other, number) and keeps_type(m, kept):
            return kept
    return None


class TwiceIsNothing(Rule):
    """neg(neg(x)), not(not(x)) or bitwise_not(bitwise_not(x)) -> x"""

    proves_types = True

    def match(self, p: PatternBuilder, x: PatternValue) -> PatternValue:
        result: PatternValue = p.either(
            p.neg(p.shared(p.neg(x))), p.not_(p.shared(p.not_(x))), p.bitwise_not(p.shared(p.bitwise_not(x)))
        )
        return result

    def build(self, b: OpBuilder, m: Match) -> Replacement:
        x: Value = m.x
        return x


_ROUNDING = ("floor", "ceil", "round")


class TwiceIsOnce(Rule):
    """relu(relu(x)) -> relu(x); likewise abs and sign, and any rounding of what is rounded already"""

    proves_types = True

    def match(self, p: PatternBuilder, x: PatternValue) -> PatternValue:
        pairs = [(name, (name,)) for name in ("relu", "abs", "sign")] + [(name, _ROUNDING) for name in _ROUNDING]
        result: PatternValue = p.either(
            *(p.op(outer, p.named("inner", p.shared(p.op(inner, x)))) for outer, inner in pairs)
        )
        return result

    def build(self, b: OpBuilder, m: Match) -> Replacement:
        inner: Value = m.inner
        return inner


class WhereOfConstant(OpRule):
    """where(all true, x, y) -> x; where(all false, x, y) -> y; where(c, x, x) -> x"""

    root = "where"
    proves_types = True

    def when(self, m: Match) -> Verdict:
        return _chosen(m) is not None or m.fail("both operands may be needed, or the shape may change", m.root)

    def build(self, b: OpBuilder, m: Match) -> Replacement:
        return _chosen(m)


def _chosen(m: Match) -> Value | None:
    condition, x, y = m.root.operands
    chosen = x if x is y or is_everywhere(m, condition, 1) else y if is_everywhere(m, condition, 0) else None
    return chosen if keeps_type(m, chosen) else None


class ClipOfClip(OpRule):
    """clip(clip(x)) with constant bounds -> clip(x)"""

    root = "clip"

    def when(self, m: Match) -> Verdict:
        inner = made_by(m.root.operands[0], "clip")
        if inner is None or inner.results[0].use_count != 1:
            return m.fail("its operand is not clipped, or has another user", m.root)
        return _merged_bounds(m, inner) is not None or m.fail("a bound is not a constant", inner)

    def build(self, b: OpBuilder, m: Match) -> Replacement:
        inner = made_by(m.root.operands[0], "clip")
        assert inner is not None
        bounds = _merged_bounds(m, inner)
        assert bounds is not None
        result: Value = b.clip(inner.operands[0], *bounds)
        return result


Bounds: TypeAlias = "tuple[np.ndarray | None, np.ndarray | None]"


def _merged_bounds(m: Match, inner: Operation) -> Bounds | None:
    """The bounds of one Clip with the effect of two; None in place of one that is left out.

    Clips in a row are monotonic and leave alone what none of them clips: they clip to their values at -inf and inf.
    """
    first, second = _constant_bounds(m, inner), _constant_bounds(m, m.root)
    if first is None or second is None:
        return None
    (low, high), (outer_low, outer_high) = first, second
    # Where the lower bound is above the upper one, the upper one wins (ONNX "Clip").
    at_lowest = _extreme(np.minimum, low, high) if low is not None else None
    at_lowest = _extreme(np.maximum, at_lowest, outer_low)
    at_lowest = _extreme(np.minimum, at_lowest, outer_high) if at_lowest is not None else None
    at_highest = _extreme(np.maximum, high, outer_low) if high is not None else None
    at_highest = _extreme(np.minimum, at_highest, outer_high)
    return at_lowest, at_highest


def _extreme(function: Callable[..., np.ndarray], *bounds: np.ndarray | None) -> np.ndarray | None:
    present = [bound for bound in bounds if bound is not None]
    return functools.reduce(function, present) if present else None


def _constant_bounds(m: Match, op: Operation) -> Bounds | None:
    found: list[np.ndarray | None] = []
    for index in (1, 2):
        value = op.input(index)
        constant = exact_constant(m, value)
        if value is not None and (constant is None or np.any(np.isnan(constant.astype(np.float64)))):
            return None
        found.append(constant)
    return found[0], found[1]


class MergeExtrema(OpRule):
    """max(a, max(b, c)) -> max(a, b, c); likewise min"""

    root = ("max", "min")

    def when(self, m: Match) -> Verdict:
        return any(_same_extremum(m, value) for value in m.root.operands) or m.fail("no operand is one likewise")

    def build(self, b: OpBuilder, m: Match) -> Replacement:
        operands: list[Value | None] = []
        for value in m.root.operands:
            inner = _same_extremum(m, value)
            operands.extend([value] if inner is None else inner.operands)
        result: Value = getattr(b, m.root.name)(*operands)
        return result


def _same_extremum(m: Match, value: Value | None) -> Operation | None:
    """The operation of the root's kind that makes `value`, if only the root uses it, once."""
    inner = made_by(value, m.root.name)
    return inner if inner is not None and inner.results[0].use_count == 1 else None


class SimplifyArithmetic(RulePass):
    """Drop arithmetic that changes nothing, and merge what is done twice."""

    name = "simplify-arithmetic"
    rules = (NeutralOperand, TwiceIsNothing, TwiceIsOnce, WhereOfConstant, ClipOfClip, MergeExtrema)
