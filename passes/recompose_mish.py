"""recompose-mish: x * tanh(softplus(x)) becomes Mish. Level onnx.

Mish (Misra, 2019, arXiv 1908.08681). The softplus may be written as log(1 + exp(x)): where that overflows, tanh of it
is 1 all the same.

Invariant: x is f32 or f16; constants are numbers that add no dims.

    %0 = softplus %x : f32[n, 8]
    %1 = tanh %0 : f32[n, 8]
    %2 = mul %x, %1 : f32[n, 8]                    ->      %2 = mish %x : f32[n, 8]
"""

from __future__ import annotations

from ..graph.builder import OpBuilder
from ..graph.core import Value
from .base import RulePass
from .formulas import is_elementwise_of
from .pattern import PatternBuilder, PatternValue
from .rules import Match, Rule, Verdict


class Mish(Rule):
    """mul(x, tanh(softplus(x))) -> mish(x)"""

    name = "recompose-mish"
    exactness = "reassociates"

    def match(self, p: PatternBuilder, x: PatternValue) -> PatternValue:
        softplus = p.either(p.softplus(x), p.log(p.add(p.exp(x), 1.0)))
        result: PatternValue = p.mul(x, p.tanh(softplus))
        return result

    def when(self, m: Match) -> Verdict:
        if str(m.dtype(m.x)) not in ("f32", "f16"):
            return m.fail("the operand is not f32 or f16", m.x)
        return is_elementwise_of(m, m.x)

    def build(self, b: OpBuilder, m: Match) -> Value:
        result: Value = b.mish(m.x)
        return result


class RecomposeMish(RulePass):
    """Recompose Mish."""

    name = "recompose-mish"
    exactness = "reassociates"
    fuses = True
    rules = (Mish,)
