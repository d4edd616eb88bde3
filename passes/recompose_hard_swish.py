"""recompose-hard-swish: clipped lines become HardSigmoid, and times their operand HardSwish. Level onnx.

HardSigmoid is max(0, min(1, alpha * x + beta)); HardSwish (Howard et al., 2019, arXiv 1905.02244) is x times the one
with alpha = 1/6 and beta = 0.5, written as x * clip(x + 3, 0, 6) / 6 in several orders.

Invariant: x is f32 or f16 (no runtime has kernels for more); constants are numbers that add no dims.

    %0 = add %x, 3.0 : f32[n, 8]
    %1 = clip %0, 0.0, 6.0 : f32[n, 8]
    %2 = mul %x, %1 : f32[n, 8]
    %3 = div %2, 6.0 : f32[n, 8]                   ->      %3 = hard_swish %x : f32[n, 8]
"""

from __future__ import annotations

from ..graph.builder import OpBuilder
from ..graph.core import Value
from .base import RulePass
from .formulas import has_form, is_elementwise_of, is_near, location_of, number_of, polynomial
from .pattern import PatternBuilder, PatternValue
from .rules import Match, Mismatch, Rule, Verdict

_DTYPES = ("f32", "f16")


class HardSigmoid(Rule):
    """clip(a * x + b, 0, c) / c -> hard_sigmoid(x)"""

    name = "recompose-hard-sigmoid"
    exactness = "reassociates"

    def match(
        self, p: PatternBuilder, u: PatternValue, high: PatternValue, factor: PatternValue, divisor: PatternValue
    ) -> PatternValue:
        clip = p.clip(u, 0.0, p.const(high))
        result: PatternValue = p.either(p.mul(clip, p.const(factor)), p.div(clip, p.const(divisor)), clip)
        return result

    def when(self, m: Match) -> Verdict:
        found = _line(m)
        return found if isinstance(found, Mismatch) else True

    def build(self, b: OpBuilder, m: Match) -> Value:
        found = _line(m)
        assert not isinstance(found, Mismatch)
        x, alpha, beta = found
        b.location = location_of(m, polynomial(m, m.u, x))
        return b.create("hard_sigmoid", [x], {"alpha": alpha, "beta": beta}).result


def _line(m: Match) -> tuple[Value, float, float] | Mismatch:
    """The operand x, alpha and beta of the hard sigmoid that the match is."""
    found: tuple[Value, float, float] | Mismatch = m.fail(
        "what is clipped is no multiple of a tensor plus a number", m.u
    )
    for x in reversed(_operands_of_line(m, m.u)):
        found = _line_of(m, x)
        if not isinstance(found, Mismatch):
            break
    return found


def _line_of(m: Match, x: Value) -> tuple[Value, float, float] | Mismatch:
    if str(m.dtype(x)) not in _DTYPES:
        return m.fail("the operand is not f32 or f16", x)
    wrong = is_elementwise_of(m, x)
    line = polynomial(m, m.u, x)
    if wrong is not None or isinstance(line, Mismatch):
        return wrong if wrong is not None else m.fail("what is clipped is no line", m.u)
    scale = 1.0
    if m.factor is not None or m.divisor is not None:
        number = number_of(m, m.divisor if m.factor is None else m.factor, x)
        if not number:
            return m.fail("the result is not scaled by one number", m.root)
        scale = number if m.factor is not None else 1.0 / number
    high = m.scalar(m.high)
    if high is None or not is_near(high * scale, 1.0, m.dtype(x)):
        return m.fail("the upper bound is not 1 after scaling", m.high)
    if not line.ops or not {1} <= line.coefficients.keys() <= {0, 1}:
        return m.fail("what is clipped is no multiple of the operand plus a number", m.u)
    return x, line.coefficients[1] * scale, line.coefficients.get(0, 0.0) * scale


def _operands_of_line(m: Match, value: Value) -> list[Value]:
    """What lies below one, and below two, operations with constants."""
    found = [value]
    for _ in range(2):
        op = found[-1].producer
        if op is None or op.name not in ("add", "sub", "mul", "div"):
            break
        others = [operand for operand in op.operand_values if m.data(operand) is None]
        if len(others) != 1:
            break
        found.append(others[0])
    return found[1:]


class HardSwish(Rule):
    """x * clip(x + 3, 0, 6) / 6, in any order, or x * hard_sigmoid(x) -> hard_swish(x)"""

    name = "recompose-hard-swish"
    exactness = "reassociates"

    def match(
        self, p: PatternBuilder, x: PatternValue, u: PatternValue, factor: PatternValue, divisor: PatternValue
    ) -> PatternValue:
        gate = p.clip(u, 0.0, 6.0)
        sigmoid = p.hard_sigmoid(x, alpha=p.attr("alpha"), beta=p.attr("beta"))
        k, d = p.const(factor), p.const(divisor)
        result: PatternValue = p.either(
            p.mul(x, sigmoid),
            p.mul(p.mul(x, gate), k),
            p.mul(p.mul(x, k), gate),
            p.mul(p.mul(gate, k), x),
            p.div(p.mul(x, gate), d),
            p.mul(p.div(x, d), gate),
            p.mul(p.div(gate, d), x),
        )
        return result

    def when(self, m: Match) -> Verdict:
        if str(m.dtype(m.x)) not in _DTYPES:
            return m.fail("the operand is not f32 or f16", m.x)
        wrong = is_elementwise_of(m, m.x)
        if wrong is not None:
            return wrong
        dtype = m.dtype(m.x)
        if m.u is None:
            fits = is_near(m.alpha, 1 / 6, dtype) and is_near(m.beta, 0.5, dtype)
            return fits or m.fail("HardSwish has alpha = 1/6 and beta = 0.5", m.root)
        number = number_of(m, m.divisor if m.factor is None else m.factor, m.x)
        if not number or not is_near(number if m.factor is None else 1 / number, 6.0, dtype):
            return m.fail("the divisor is not 6", m.root)
        line = polynomial(m, m.u, m.x)
        if isinstance(line, Mismatch):
            return line
        return has_form(line.coefficients, {1: 1.0, 0: 3.0}, dtype) or m.fail("what is clipped is not x + 3", m.u)

    def build(self, b: OpBuilder, m: Match) -> Value:
        if m.u is not None:
            b.location = location_of(m, polynomial(m, m.u, m.x))
        result: Value = b.hard_swish(m.x)
        return result


class RecomposeHardSwish(RulePass):
    """Recompose HardSigmoid and HardSwish."""

    name = "recompose-hard-swish"
    after = ("recompose-clip",)
    exactness = "reassociates"
    fuses = True
    rules = (HardSwish, HardSigmoid)
