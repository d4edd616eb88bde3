"""drop-zero-terms: adding zeros changes nothing but the sign of a zero. Level onnx.

-0.0 + 0.0 is +0.0, so the rewrite is not bit-exact in floating point (for integers, and for a term of -0.0, the
bit-exact `simplify-arithmetic` does it).

Invariant: the zeros do not widen the result.

    %1 = add %x, 0.0 : f32[n]          ->      %x
"""

from __future__ import annotations

from dataclasses import dataclass

from ..graph.builder import OpBuilder
from ..graph.core import Value
from .base import RulePass
from .pattern import PatternBuilder, PatternValue
from .proofs import keeps_type
from .rules import Match, Rule, Verdict


class ZeroTerm(Rule):
    """add(x, 0) -> x, and sub(x, 0) -> x"""

    exactness = "reassociates"

    def match(self, p: PatternBuilder, x: PatternValue) -> PatternValue:
        result: PatternValue = p.either(p.add(x, 0.0), p.sub(x, 0.0))
        return result

    def when(self, m: Match) -> Verdict:
        return keeps_type(m, m.x) or m.fail("the zeros widen the result", m.root)

    def build(self, b: OpBuilder, m: Match) -> Value:
        x: Value = m.x
        return x


@dataclass(frozen=True)
class DropZeroTerms(RulePass):
    """Drop additions of zeros."""

    name = "drop-zero-terms"
    exactness = "reassociates"
    rules = (ZeroTerm,)
