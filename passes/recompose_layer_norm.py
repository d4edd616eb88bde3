"""recompose-layer-norm: the parts of a layer normalization become LayerNormalization. Level onnx.

y = (x - mean) / sqrt(var + epsilon) * scale + bias over the last axes (Ba, Kiros & Hinton, 2016), as exporters write
it out for opsets before 17. Three small rules: the normalization itself (with a scale of ones), then a scale, then a
bias; so any of them may be missing.

Invariant: both means run over the same last axes and keep them; x, scale and result have shapes that are shown to fit,
for a scale with more dims would widen the result; the element type is f32, for LayerNormalization computes in f32.

    %0 = reduce_mean %x, [-1] : f32[n, 1]          %3 = reduce_mean %2, [-1] : f32[n, 1]
    %1 = sub %x, %0 : f32[n, 8]                    %4 = add %3, 1e-05 : f32[n, 1]
    %2 = mul %1, %1 : f32[n, 8]                    %5 = sqrt %4 : f32[n, 1]
    %6 = div %1, %5 : f32[n, 8]                    ->      %6 = layer_normalization %x, %ones : f32[n, 8]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..graph.builder import OpBuilder
from ..graph.core import Operation, Value
from .base import RulePass
from .context import PassContext
from .pattern import PatternBuilder, PatternValue
from .proofs import normalized, same_dims
from .rules import Match, Mismatch, Rule, Verdict

if TYPE_CHECKING:
    from ..graph.module import Module

# The opset since which the standard has LayerNormalization.
FIRST_OPSET = 17


class Normalize(Rule):
    """div(sub(x, mean), sqrt(variance + epsilon)) -> layer_normalization(x, ones)"""

    name = "recompose-normalization"
    exactness = "reassociates"

    def match(
        self, p: PatternBuilder, x: PatternValue, axes: PatternValue, again: PatternValue, eps: PatternValue
    ) -> PatternValue:
        centered = p.sub(x, p.reduce_mean(x, p.const(axes), keepdims=1))
        square = p.either(p.pow(centered, 2), p.mul(centered, centered))
        variance = p.reduce_mean(square, p.const(again), keepdims=1)
        deviation = p.sqrt(p.add(variance, p.const(eps)))
        result: PatternValue = p.either(p.div(centered, deviation), p.mul(centered, p.reciprocal(deviation)))
        return result

    def when(self, m: Match) -> Verdict:
        shape = m.shape(m.x)
        if shape is None or m.dtype(m.x) is None or m.dtype(m.x) is not m.dtype(m.value):
            return m.fail("the type of the normalized tensor is not known", m.x)
        if str(m.dtype(m.x)) != "f32":
            return m.fail(f"LayerNormalization computes in f32, not in {m.dtype(m.x)}", m.x)
        count = _trailing_axes(m, len(shape))
        if isinstance(count, Mismatch):
            return count
        if not all(isinstance(dim, int) for dim in shape[len(shape) - count :]):
            return m.fail("the size of the normalized axes is not known", m.x)
        if m.scalar(m.eps) is None:
            return m.fail("epsilon is not one number", m.eps)
        return same_dims(m.shape(m.value), shape) or m.fail("epsilon widens the result", m.eps)

    def build(self, b: OpBuilder, m: Match) -> Value:
        shape = m.shape(m.x)
        assert shape is not None
        count = _trailing_axes(m, len(shape))
        assert isinstance(count, int)
        ones = np.ones([int(dim) for dim in shape[len(shape) - count :] if isinstance(dim, int)], np.float32)
        return b.create("layer_normalization", [m.x, ones], {"axis": -count, "epsilon": float(m.scalar(m.eps))}).result


def _trailing_axes(m: Match, rank: int) -> int | Mismatch:
    """How many last axes both means run over."""
    first, second = m.constant(m.axes), m.constant(m.again)
    assert first is not None
    assert second is not None
    axes = sorted(normalized([int(axis) for axis in first.ravel()], rank))
    if axes != sorted(normalized([int(axis) for axis in second.ravel()], rank)):
        return m.fail("mean and variance run over different axes", m.axes, m.again)
    if not axes or axes != list(range(rank - len(axes), rank)):
        return m.fail("the axes are not the last ones", m.axes)
    return len(axes)


class NormalizeScale(Rule):
    """mul(layer_normalization(x, ones), scale) -> layer_normalization(x, scale)"""

    exactness = "reassociates"

    def match(self, p: PatternBuilder, x: PatternValue, scale: PatternValue) -> PatternValue:
        normal = p.layer_normalization(x, p.const("ones", lambda array: bool(np.all(array == 1))), p.absent)
        result: PatternValue = p.mul(normal, scale)
        return result

    def when(self, m: Match) -> Verdict:
        return _fits(m, m.scale)

    def build(self, b: OpBuilder, m: Match) -> Value:
        norm = _normalization(m)
        return b.create("layer_normalization", [m.x, m.scale], norm.attributes).result


class NormalizeBias(Rule):
    """add(layer_normalization(x, scale), bias) -> layer_normalization(x, scale, bias)"""

    exactness = "reassociates"

    def match(self, p: PatternBuilder, x: PatternValue, scale: PatternValue, bias: PatternValue) -> PatternValue:
        result: PatternValue = p.add(p.layer_normalization(x, scale, p.absent), bias)
        return result

    def when(self, m: Match) -> Verdict:
        return _fits(m, m.bias)

    def build(self, b: OpBuilder, m: Match) -> Value:
        norm = _normalization(m)
        return b.create("layer_normalization", [m.x, m.scale, m.bias], norm.attributes).result


def _normalization(m: Match) -> Operation:
    return next(op for op in m.ops if op.name == "layer_normalization")


def _fits(m: Match, value: Value) -> Verdict:
    """Whether `value` has exactly the normalized dims and the type of x, as runtimes want it of scale and bias."""
    norm = _normalization(m)
    if len(norm.results) > 1:
        return m.fail("mean or deviation are results, too", norm)
    shape = m.shape(m.x)
    if shape is None or m.dtype(value) is not m.dtype(m.x):
        return m.fail("the types are not known to be equal", value)
    axis = norm.attr("axis")
    return same_dims(m.shape(value), shape[axis:]) or m.fail("it does not have the normalized dims", value)


@dataclass(frozen=True)
class RecomposeLayerNorm(RulePass):
    """Recompose LayerNormalization, for models written at an opset that has it."""

    name = "recompose-layer-norm"
    exactness = "reassociates"
    rules = (Normalize, NormalizeScale, NormalizeBias)

    def run(self, module: Module, context: PassContext) -> bool:
        """Written at an older opset, the one node would be taken apart again, into more nodes than it was made of."""
        return module.opsets.get("", FIRST_OPSET) >= FIRST_OPSET and super().run(module, context)
