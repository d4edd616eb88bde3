"""recompose-softmax: exponentials over their sum become Softmax, and the logarithm of that LogSoftmax. Level onnx.

Softmax is exp(x - max(x)) / sum(exp(x - max(x))) along one axis, and does not change if anything is added along it; so
a maximum that was taken off before Softmax is dropped, too.

Invariant: maximum and sum run over one and the same axis and keep it. Without the maximum the written form overflows
where Softmax does not, so only the form with it is exact.

    %0 = reduce_max %x, [-1] : f32[n, 1]
    %1 = sub %x, %0 : f32[n, 8]
    %2 = exp %1 : f32[n, 8]
    %3 = reduce_sum %2, [-1] : f32[n, 1]
    %4 = div %2, %3 : f32[n, 8]                    ->      %4 = softmax %x {axis=1} : f32[n, 8]
"""

from __future__ import annotations

from ..graph.builder import OpBuilder
from ..graph.core import Value
from .base import RulePass
from .pattern import PatternBuilder, PatternValue
from .proofs import ints, normalized, same_dims
from .rules import Match, Mismatch, Rule, Verdict


def _axis(m: Match, *axes: Value | None) -> int | Mismatch:
    """The one axis, counted from the front, that all reductions of the match run along."""
    shape, dtype = m.shape(m.x), m.dtype(m.x)
    if shape is None or dtype is None or not dtype.is_float:
        return m.fail("it is not a floating-point tensor of known rank", m.x)
    found = [normalized(ints(m, axis) or [], len(shape)) for axis in axes if axis is not None]
    if any(each != found[0] for each in found):
        return m.fail("the reductions run along different axes", *(axis for axis in axes if axis is not None))
    if len(found[0]) != 1:
        return m.fail("the reductions do not run along one axis", m.root)
    if not same_dims(m.shape(m.value), shape):
        return m.fail("the result does not have the operand's shape", m.value)
    return found[0][0]


class _AlongAxis(Rule):
    """Common to the rules below: one axis, and an operation along it."""

    exactness = "reassociates"
    result = "softmax"
    captured: tuple[str, ...] = ("axes", "again")

    def axis(self, m: Match) -> int | Mismatch:
        return _axis(m, *(getattr(m, name) for name in self.captured))

    def when(self, m: Match) -> Verdict:
        axis = self.axis(m)
        return axis if isinstance(axis, Mismatch) else True

    def build(self, b: OpBuilder, m: Match) -> Value:
        axis = self.axis(m)
        return b.create(self.result, [m.x], {"axis": axis}).result


class Softmax(_AlongAxis):
    """exp(x - max(x)) / sum(exp(x - max(x))) -> softmax(x)"""

    name = "recompose-softmax"

    def match(self, p: PatternBuilder, x: PatternValue, axes: PatternValue, again: PatternValue) -> PatternValue:
        shifted = p.sub(x, p.reduce_max(x, p.const(axes), keepdims=1))
        power = p.exp(shifted)
        total = p.reduce_sum(power, p.const(again), keepdims=1)
        result: PatternValue = p.either(p.div(power, total), p.mul(power, p.reciprocal(total)))
        return result


class LogSoftmax(_AlongAxis):
    """x - max(x) - log(sum(exp(x - max(x)))) -> log_softmax(x)"""

    name = "recompose-log-softmax"
    result = "log_softmax"

    def match(self, p: PatternBuilder, x: PatternValue, axes: PatternValue, again: PatternValue) -> PatternValue:
        most = p.reduce_max(x, p.const(axes), keepdims=1)
        shifted = p.sub(x, most)
        power = p.exp(shifted)
        logarithm = p.either(
            p.log(p.reduce_sum(power, p.const(again), keepdims=1)),
            p.reduce_log_sum(power, p.const(again), keepdims=1),
            p.reduce_log_sum_exp(shifted, p.const(again), keepdims=1),
        )
        result: PatternValue = p.either(p.sub(shifted, logarithm), p.sub(x, p.add(most, logarithm)))
        return result


class LogSoftmaxByLogSumExp(_AlongAxis):
    """x - logsumexp(x) -> log_softmax(x)"""

    name = "recompose-log-softmax-of-log-sum-exp"
    result = "log_softmax"
    captured = ("axes",)

    def match(self, p: PatternBuilder, x: PatternValue, axes: PatternValue) -> PatternValue:
        result: PatternValue = p.sub(x, p.reduce_log_sum_exp(x, p.const(axes), keepdims=1))
        return result


class SoftmaxOfShifted(Rule):
    """softmax(x - max(x)) -> softmax(x), likewise for log_softmax"""

    name = "drop-maximum-before-softmax"
    exactness = "reassociates"

    def match(self, p: PatternBuilder, x: PatternValue, axes: PatternValue) -> PatternValue:
        shifted = p.sub(x, p.reduce_max(x, p.const(axes), keepdims=1))
        result: PatternValue = p.op(("softmax", "log_softmax"), shifted, axis=p.attr("axis"))
        return result

    def when(self, m: Match) -> Verdict:
        axis = _axis(m, m.axes)
        if isinstance(axis, Mismatch):
            return axis
        same = normalized([m.axis], m.rank(m.x) or 0) == [axis]
        return same or m.fail("the maximum runs along another axis", m.axes)

    def build(self, b: OpBuilder, m: Match) -> Value:
        return b.create(m.root.name, [m.x], {"axis": m.axis}).result


class LogOfSoftmax(Rule):
    """log(softmax(x)) -> log_softmax(x)

    Where softmax underflows to 0, the logarithm is -inf and log_softmax the true value, below about -87 for f32.
    """

    name = "recompose-log-of-softmax"
    exactness = "approximate"

    def match(self, p: PatternBuilder, x: PatternValue) -> PatternValue:
        result: PatternValue = p.log(p.softmax(x, axis=p.attr("axis")))
        return result

    def build(self, b: OpBuilder, m: Match) -> Value:
        return b.create("log_softmax", [m.x], {"axis": m.axis}).result


class RecomposeSoftmax(RulePass):
    """Recompose Softmax and LogSoftmax."""

    name = "recompose-softmax"
    exactness = "reassociates"
    fuses = True
    rules = (Softmax, LogSoftmax, LogSoftmaxByLogSumExp, SoftmaxOfShifted, LogOfSoftmax)
