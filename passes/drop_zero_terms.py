"""drop-zero-terms: adding zeros to a sum of products changes nothing. Level onnx.

-0.0 + 0.0 is +0.0, and 1 / -0.0 is not 1 / +0.0, so zeros are only dropped behind an operation that sums: the sign of a
zero there already depends on the order of summation, which reassociating rewrites may change. (For integers, and for a
term of -0.0, the bit-exact `simplify-arithmetic` drops them anywhere.) Exporters write such zeros as biases.

Invariant: the zeros do not widen the result.

    %0 = matmul %x, %w : f32[n, 8]
    %1 = add %0, 0.0 : f32[n, 8]          ->      %0
"""

from __future__ import annotations

from ..graph.builder import OpBuilder
from ..graph.core import Value
from ..graph.opdef import Trait
from .base import RulePass
from .pattern import PatternBuilder, PatternValue
from .proofs import keeps_type
from .rules import Match, Rule, Verdict


class ZeroTerm(Rule):
    """add(matmul(x, w), 0) -> matmul(x, w), likewise for sub and for other operations that sum"""

    exactness = "reassociates"

    def match(self, p: PatternBuilder, x: PatternValue) -> PatternValue:
        result: PatternValue = p.either(p.add(x, 0.0), p.sub(x, 0.0))
        return result

    def when(self, m: Match) -> Verdict:
        producer = m.x.producer
        if producer is None or not producer.definition.traits & {Trait.CONTRACTION, Trait.REDUCTION}:
            return m.fail("what zeros are added to may be -0.0, which they make +0.0", m.x)
        return keeps_type(m, m.x) or m.fail("the zeros widen the result", m.root)

    def build(self, b: OpBuilder, m: Match) -> Value:
        x: Value = m.x
        return x


class DropZeroTerms(RulePass):
    """Drop additions of zeros."""

    name = "drop-zero-terms"
    exactness = "reassociates"
    rules = (ZeroTerm,)
