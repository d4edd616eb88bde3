"""recompose-gelu: a written-out Gaussian error linear unit becomes Gelu. Level onnx.

y = x * Phi(x) (Hendrycks & Gimpel, 2016, arXiv 1606.08415), exactly by erf or approximated by tanh. The three factors
x, 0.5 and 1 + erf(x / sqrt(2)) come in any order and grouping, as products or quotients; the argument of tanh is read
as a polynomial, so it may be written in any way.

Invariant: x is a floating-point tensor; every constant is one number that does not add dims, and equals what the
formula says within the precision of x's type.

    %0 = div %x, 1.4142135 : f32[n, 8]
    %1 = erf %0 : f32[n, 8]
    %2 = add %1, 1.0 : f32[n, 8]
    %3 = mul %x, %2 : f32[n, 8]
    %4 = mul %3, 0.5 : f32[n, 8]                   ->      %4 = gelu %x : f32[n, 8]
"""

from __future__ import annotations

import math
from typing import ClassVar

from ..graph.builder import OpBuilder
from ..graph.core import AttributeValue, Value
from .base import RulePass
from .formulas import Coefficients, Polynomial, has_form, is_elementwise_of, location_of, number_of, polynomial
from .pattern import PatternBuilder, PatternValue
from .rules import Match, Mismatch, Rule, Verdict

_ROOT = math.sqrt(2 / math.pi)
ERF_ARGUMENT: Coefficients = {1: math.sqrt(0.5)}
TANH_ARGUMENT: Coefficients = {1: _ROOT, 3: _ROOT * 0.044715}
# 0.5 * (1 + tanh(u)) is sigmoid(2 * u).
SIGMOID_ARGUMENT: Coefficients = {degree: 2 * c for degree, c in TANH_ARGUMENT.items()}


class _Gelu(Rule):
    """x * 0.5 * (1 + function(argument)), in any order."""

    exactness = "reassociates"
    function: ClassVar[str]
    argument: ClassVar[Coefficients]
    attributes: ClassVar[dict[str, AttributeValue]] = {}

    def match(
        self, p: PatternBuilder, x: PatternValue, u: PatternValue, half: PatternValue, two: PatternValue
    ) -> PatternValue:
        curve = p.op(self.function, u)
        gate, h, twice = p.add(curve, 1.0), p.const(half), p.const(two)
        result: PatternValue = p.either(
            p.mul(p.mul(x, gate), h),
            p.mul(p.mul(x, h), gate),
            p.mul(p.mul(gate, h), x),
            p.mul(p.add(p.mul(curve, h), 0.5), x),
            p.div(p.mul(x, gate), twice),
            p.mul(p.div(x, twice), gate),
            p.mul(p.div(gate, twice), x),
            p.mul(p.add(p.div(curve, twice), 0.5), x),
        )
        return result

    def when(self, m: Match) -> Verdict:
        wrong = is_elementwise_of(m, m.x)
        if wrong is not None:
            return wrong
        if m.half is not None and number_of(m, m.half, m.x) != 0.5:
            return m.fail("the factor is not 0.5", m.half)
        if m.two is not None and number_of(m, m.two, m.x) != 2.0:
            return m.fail("the divisor is not 2", m.two)
        found = polynomial(m, m.u, m.x)
        if isinstance(found, Mismatch):
            return found
        return has_form(found.coefficients, self.argument, m.dtype(m.x)) or m.fail(
            f"the argument of {self.function} is not that of a Gelu: {_text(found)}", m.u
        )

    def build(self, b: OpBuilder, m: Match) -> Value:
        b.location = location_of(m, polynomial(m, m.u, m.x))
        return b.create("gelu", [m.x], self.attributes).result


class GeluByErf(_Gelu):
    """x * 0.5 * (1 + erf(x / sqrt(2))), in any order -> gelu(x)"""

    name = "recompose-gelu-erf"
    function = "erf"
    argument = ERF_ARGUMENT


class GeluByTanh(_Gelu):
    """x * 0.5 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3))), in any order -> gelu(x, approximate="tanh")"""

    name = "recompose-gelu-tanh"
    function = "tanh"
    argument = TANH_ARGUMENT
    attributes: ClassVar[dict[str, AttributeValue]] = {"approximate": "tanh"}


class GeluBySigmoid(Rule):
    """x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 * x ** 3)) -> gelu(x, approximate="tanh")"""

    name = "recompose-gelu-sigmoid"
    exactness = "reassociates"

    def match(self, p: PatternBuilder, x: PatternValue, u: PatternValue) -> PatternValue:
        result: PatternValue = p.mul(x, p.sigmoid(u))
        return result

    def when(self, m: Match) -> Verdict:
        wrong = is_elementwise_of(m, m.x)
        if wrong is not None:
            return wrong
        found = polynomial(m, m.u, m.x)
        if isinstance(found, Mismatch):
            return found
        return has_form(found.coefficients, SIGMOID_ARGUMENT, m.dtype(m.x)) or m.fail(
            f"the argument of sigmoid is not that of a Gelu: {_text(found)}", m.u
        )

    def build(self, b: OpBuilder, m: Match) -> Value:
        b.location = location_of(m, polynomial(m, m.u, m.x))
        return b.create("gelu", [m.x], {"approximate": "tanh"}).result


def _text(found: Polynomial) -> str:
    terms = [f"{c:.8g} * x ** {degree}" for degree, c in sorted(found.coefficients.items())]
    return " + ".join(terms) or "0"


class RecomposeGelu(RulePass):
    """Recompose Gelu, exact or approximated by tanh."""

    name = "recompose-gelu"
    exactness = "reassociates"
    fuses = True
    rules = (GeluByErf, GeluByTanh, GeluBySigmoid)


__all__ = ["GeluByErf", "GeluBySigmoid", "GeluByTanh", "RecomposeGelu"]
