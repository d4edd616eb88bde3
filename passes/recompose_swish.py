"""recompose-swish: x * sigmoid(alpha * x) becomes Swish, and Swish of a gate times a value SwiGLU. Level onnx.

Swish (Ramachandran et al., 2017, arXiv 1710.05941), also called SiLU for alpha = 1 and quick GELU for alpha = 1.702;
SwiGLU (Shazeer, 2020, arXiv 2002.05202). Before that, a written-out sigmoid becomes Sigmoid.

Invariant: floating-point operands; constants are numbers that add no dims; alpha survives rounding to f32, as an
attribute is stored; both operands of SwiGLU have shapes that are shown to be equal, for SwiGLU does not broadcast.

    %0 = sigmoid %g : f32[n, 8]
    %1 = mul %g, %0 : f32[n, 8]
    %2 = mul %1, %u : f32[n, 8]                    ->      %2 = swiglu %g, %u : f32[n, 8]
"""

from __future__ import annotations

import numpy as np

from ..graph.builder import OpBuilder
from ..graph.core import Value
from ..graph.dtypes import DType
from .base import RulePass
from .formulas import is_elementwise_of, is_near, location_of, polynomial
from .pattern import PatternBuilder, PatternValue
from .proofs import same_dims
from .rules import Match, Mismatch, Rule, Verdict


class Sigmoid(Rule):
    """1 / (1 + exp(-x)) -> sigmoid(x)"""

    name = "recompose-sigmoid"
    exactness = "reassociates"

    def match(self, p: PatternBuilder, x: PatternValue) -> PatternValue:
        total = p.add(p.exp(p.either(p.neg(x), p.mul(x, -1.0))), 1.0)
        result: PatternValue = p.either(p.div(1.0, total), p.reciprocal(total))
        return result

    def when(self, m: Match) -> Verdict:
        return is_elementwise_of(m, m.x)

    def build(self, b: OpBuilder, m: Match) -> Value:
        result: Value = b.sigmoid(m.x)
        return result


class Swish(Rule):
    """mul(x, sigmoid(alpha * x)), or x / (1 + exp(-alpha * x)) -> swish(x)"""

    name = "recompose-swish"
    exactness = "reassociates"

    def match(self, p: PatternBuilder, x: PatternValue, u: PatternValue, v: PatternValue) -> PatternValue:
        result: PatternValue = p.either(p.mul(x, p.sigmoid(u)), p.div(x, p.add(p.exp(v), 1.0)))
        return result

    def when(self, m: Match) -> Verdict:
        wrong = is_elementwise_of(m, m.x)
        if wrong is not None:
            return wrong
        alpha = self._alpha(m)
        if isinstance(alpha, Mismatch):
            return alpha
        stored = float(np.float32(alpha))
        return is_near(stored, alpha, m.dtype(m.x)) or m.fail(f"alpha = {alpha} does not survive rounding to f32", m.x)

    def _alpha(self, m: Match) -> float | Mismatch:
        found = polynomial(m, m.v if m.u is None else m.u, m.x)
        if isinstance(found, Mismatch):
            return found
        if found.coefficients.keys() != {1}:
            return m.fail("the argument is not a multiple of the operand", m.x)
        factor = found.coefficients[1]
        return _rounded(factor if m.u is not None else -factor, m.dtype(m.x))

    def build(self, b: OpBuilder, m: Match) -> Value:
        b.location = location_of(m, polynomial(m, m.v if m.u is None else m.u, m.x))
        alpha = self._alpha(m)
        assert not isinstance(alpha, Mismatch)
        return b.create("swish", [m.x], {} if alpha == 1.0 else {"alpha": alpha}).result


def _rounded(alpha: float, dtype: DType | None) -> float:
    """A known alpha exactly, where what was written is that up to rounding."""
    return next((known for known in (1.0, 1.702) if is_near(alpha, known, dtype)), alpha)


class SwiGLU(Rule):
    """mul(swish(gate), value) -> swiglu(gate, value)"""

    name = "recompose-swiglu"
    exactness = "reassociates"

    def match(self, p: PatternBuilder, gate: PatternValue, linear: PatternValue) -> PatternValue:
        result: PatternValue = p.mul(p.swish(gate, alpha=p.attr("alpha")), linear)
        return result

    def when(self, m: Match) -> Verdict:
        if m.data(m.linear) is not None:
            return m.fail("the other operand is a constant", m.linear)
        return same_dims(m.shape(m.gate), m.shape(m.linear)) or m.fail(
            "the operands are not known to have one shape", m.gate, m.linear
        )

    def build(self, b: OpBuilder, m: Match) -> Value:
        return b.create("swiglu", [m.gate, m.linear], {} if m.alpha == 1.0 else {"alpha": m.alpha}).result


class RecomposeSwish(RulePass):
    """Recompose Sigmoid, Swish (SiLU, quick GELU) and SwiGLU."""

    name = "recompose-swish"
    after = ("recompose-gelu",)
    exactness = "reassociates"
    fuses = True
    rules = (Sigmoid, Swish, SwiGLU)
