"""recompose-layer-norm: the parts of a normalization become LayerNormalization or RMSNormalization. Level onnx.

y = (x - mean) / sqrt(variance + epsilon) * scale + bias over the last axes (Ba et al., 2016, arXiv 1607.06450), and
y = x / sqrt(mean of squares + epsilon) * scale (Zhang & Sennrich, 2019, arXiv 1910.07467), as exporters write them out.
Small rules, each on what the others leave: the normalization itself (with a scale of one), casts to f32 around it, a
scale, a bias; so any of these may be missing.

Invariant: all means run over the same last axes and keep them; epsilon is one number; both operators compute in f32,
so x is f32, or narrower and cast to f32 and back where the operator does that; scale and bias have the normalized dims,
for more dims would widen the result.

    %0 = reduce_mean %x, [-1] : f32[n, 1]          %3 = reduce_mean %2, [-1] : f32[n, 1]
    %1 = sub %x, %0 : f32[n, 8]                    %4 = add %3, 1e-05 : f32[n, 1]
    %2 = mul %1, %1 : f32[n, 8]                    %5 = sqrt %4 : f32[n, 1]
    %6 = div %1, %5 : f32[n, 8]                    ->      %6 = layer_normalization %x, [1.0] : f32[n, 8]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..graph import dtypes
from ..graph.builder import OpBuilder
from ..graph.core import Operation, Value
from .base import RulePass
from .means import Mean, axes_of_means, mean_of
from .pattern import PatternBuilder, PatternValue
from .proofs import same_dims
from .rules import Match, Mismatch, Rule, Verdict

_NORMS = ("layer_normalization", "rms_normalization")
_NARROW = ("f16", "bf16")


def _ones(array: np.ndarray) -> bool:
    return bool(np.all(array == 1))


class _Normalize(Rule):
    """Common to the two kinds of normalization, which differ in what is divided by the root."""

    exactness = "reassociates"
    means: tuple[Mean, ...] = ()
    result = ""

    def divided(
        self, p: PatternBuilder, x: PatternValue, variance: PatternValue, eps: PatternValue, gain: PatternValue
    ) -> PatternValue:
        """`x` over the root of `variance` and epsilon, in the ways that exporters write it; also times a scale."""
        total = p.add(variance, p.const(eps))
        root = p.either(p.sqrt(total), p.pow(total, 0.5))
        inverse = p.either(p.reciprocal(root), p.div(1.0, root), p.pow(total, -0.5))
        result: PatternValue = p.either(p.div(x, root), p.mul(x, inverse), p.mul(x, p.mul(inverse, gain)))
        return result

    def when(self, m: Match) -> Verdict:
        axes = self.axes(m)
        if isinstance(axes, Mismatch):
            return axes
        if str(m.dtype(m.x)) != "f32":
            return m.fail(f"the normalization computes in f32, not in {m.dtype(m.x)}", m.x)
        if m.scalar(m.eps) is None:
            return m.fail("epsilon is not one number", m.eps)
        if not same_dims(m.shape(m.value), m.shape(m.x)):
            return m.fail("epsilon widens the result", m.eps)
        fits = None if m.gain is None else _fitting(m, m.gain, m.x, len(axes))
        return fits if isinstance(fits, Mismatch) else True

    def axes(self, m: Match) -> list[int] | Mismatch:
        """The axes of the normalization, counted from the front: the last ones."""
        axes, rank = axes_of_means(m, m.x, self.means), m.rank(m.x)
        if isinstance(axes, Mismatch):
            return axes
        assert rank is not None
        last = axes == list(range(rank - len(axes), rank)) and bool(axes)
        return axes if last else m.fail("the axes are not the last ones", m.root)

    def build(self, b: OpBuilder, m: Match) -> Value:
        axes = self.axes(m)
        assert not isinstance(axes, Mismatch)
        facts = {"axis": -len(axes), "epsilon": float(m.scalar(m.eps))}
        scale = np.ones(1, np.float32) if m.gain is None else _fitted(b, m, m.gain, len(axes))
        return b.create(self.result, [m.x, scale], facts).result


class Standardize(_Normalize):
    """div(sub(x, mean), sqrt(variance + epsilon)) -> layer_normalization(x, 1)"""

    name = "recompose-normalization"
    means = (Mean("axes", "part", "count"), Mean("again", "part_again", "count_again"))
    result = "layer_normalization"

    def match(self, p: PatternBuilder, x: PatternValue, eps: PatternValue, gain: PatternValue) -> PatternValue:
        centered = p.sub(x, mean_of(p, x, self.means[0]))
        square = p.either(p.pow(centered, 2), p.mul(centered, centered))
        return self.divided(p, centered, mean_of(p, square, self.means[1]), eps, gain)


class DivideByRootMeanSquare(_Normalize):
    """div(x, sqrt(mean(x ** 2) + epsilon)) -> rms_normalization(x, 1)"""

    name = "recompose-root-mean-square"
    means = (Mean("axes", "part", "count"),)
    result = "rms_normalization"

    def match(self, p: PatternBuilder, x: PatternValue, eps: PatternValue, gain: PatternValue) -> PatternValue:
        square = p.either(p.pow(x, 2), p.mul(x, x))
        return self.divided(p, x, mean_of(p, square, self.means[0]), eps, gain)


class ShiftedByMean(_Normalize):
    """x * g + (bias - mean * g) with g = gain / sqrt(variance + epsilon) -> layer_normalization(x, gain, bias)

    The form that TensorFlow writes.
    """

    name = "recompose-shifted-normalization"
    means = Standardize.means
    result = "layer_normalization"

    def match(
        self, p: PatternBuilder, x: PatternValue, eps: PatternValue, gain: PatternValue, bias: PatternValue
    ) -> PatternValue:
        mean = mean_of(p, x, self.means[0])
        centered = p.sub(x, mean)
        square = p.either(p.pow(centered, 2), p.mul(centered, centered))
        total = p.add(mean_of(p, square, self.means[1]), p.const(eps))
        factor = p.mul(p.either(p.reciprocal(p.sqrt(total)), p.pow(total, -0.5)), gain)
        result: PatternValue = p.add(p.mul(x, factor), p.sub(bias, p.mul(mean, factor)))
        return result

    def when(self, m: Match) -> Verdict:
        verdict = super().when(m)
        axes = self.axes(m)
        if isinstance(verdict, Mismatch) or isinstance(axes, Mismatch):
            return verdict
        fits = _fitting(m, m.bias, m.x, len(axes))
        return fits if isinstance(fits, Mismatch) else verdict

    def build(self, b: OpBuilder, m: Match) -> Value:
        axes = self.axes(m)
        assert not isinstance(axes, Mismatch)
        facts = {"axis": -len(axes), "epsilon": float(m.scalar(m.eps))}
        operands = [m.x, *(_fitted(b, m, value, len(axes)) for value in (m.gain, m.bias))]
        return b.create(self.result, operands, facts).result


class NormalizeInF32(Rule):
    """cast(normalization(cast(x))) -> normalization(x), which computes in f32 and rounds as the casts do"""

    name = "recompose-normalization-in-f32"
    exactness = "reassociates"

    def match(self, p: PatternBuilder, x: PatternValue) -> PatternValue:
        wide = p.shared(p.cast(x))
        normal = p.either(
            p.rms_normalization(wide, p.const("ones", _ones), stash_type=1),
            p.layer_normalization(wide, p.const("ones", _ones), p.absent, stash_type=1),
        )
        result: PatternValue = p.cast(normal)
        return result

    def when(self, m: Match) -> Verdict:
        norm = m.matched(*_NORMS)
        if len(norm.results) > 1:
            return m.fail("mean or deviation are results, too", norm)
        if str(m.dtype(m.x)) not in _NARROW or m.dtype(m.value) is not m.dtype(m.x):
            return m.fail("it is not cast from f16 or bf16 and back", m.x, m.value)
        return m.dtype(norm.result) is dtypes.f32 or m.fail("it is not cast to f32", norm)

    def build(self, b: OpBuilder, m: Match) -> Value:
        norm = m.matched(*_NORMS)
        one = b.const(np.ones(1, np.float32), m.dtype(m.x))
        return b.create(norm.definition, [m.x, one], norm.attributes).result


class NormalizeScale(Rule):
    """mul(normalization(x, 1), scale) -> normalization(x, scale)"""

    exactness = "reassociates"

    def match(self, p: PatternBuilder, x: PatternValue, scale: PatternValue) -> PatternValue:
        normal = p.either(
            p.layer_normalization(x, p.const("ones", _ones), p.absent),
            p.rms_normalization(x, p.const("ones", _ones)),
        )
        result: PatternValue = p.mul(normal, scale)
        return result

    def when(self, m: Match) -> Verdict:
        return _verdict(m, m.scale)

    def build(self, b: OpBuilder, m: Match) -> Value:
        norm = m.matched(*_NORMS)
        scale = _fitted(b, m, m.scale, _normalized_dims(m, norm))
        return b.create(norm.definition, [m.x, scale], norm.attributes).result


class NormalizeBias(Rule):
    """add(layer_normalization(x, scale), bias) -> layer_normalization(x, scale, bias)"""

    exactness = "reassociates"

    def match(self, p: PatternBuilder, x: PatternValue, scale: PatternValue, bias: PatternValue) -> PatternValue:
        result: PatternValue = p.add(p.layer_normalization(x, scale, p.absent), bias)
        return result

    def when(self, m: Match) -> Verdict:
        return _verdict(m, m.bias)

    def build(self, b: OpBuilder, m: Match) -> Value:
        norm = m.matched(*_NORMS)
        bias = _fitted(b, m, m.bias, _normalized_dims(m, norm))
        return b.create("layer_normalization", [m.x, m.scale, bias], norm.attributes).result


def _verdict(m: Match, value: Value) -> Verdict:
    norm = m.matched(*_NORMS)
    if len(norm.results) > 1:
        return m.fail("mean or deviation are results, too", norm)
    if m.rank(m.x) is None:
        return m.fail("the rank is not known", m.x)
    if m.dtype(norm.result) is not m.dtype(m.x):
        return m.fail("the scale gives the result another type", norm)
    fits = _fitting(m, value, m.x, _normalized_dims(m, norm))
    return fits if isinstance(fits, Mismatch) else True


def _normalized_dims(m: Match, norm: Operation) -> int:
    """How many dims are normalized, the last ones; `axis` may be counted from either side."""
    axis: int = norm.attr("axis")
    return -axis if axis < 0 else (m.rank(m.x) or 0) - axis


def _fitting(m: Match, value: Value, x: Value, count: int) -> tuple[Any, ...] | Mismatch:
    """The normalized dims, if a scale or bias has exactly these (runtimes want them), or leading 1s before them."""
    shape, own = m.shape(x), m.shape(value)
    if shape is None or own is None or m.dtype(value) is not m.dtype(x):
        return m.fail("the types are not known to be equal", value)
    wanted = shape[len(shape) - count :]
    if same_dims(own, wanted):
        return wanted
    is_led = len(own) <= len(shape) and all(dim == 1 for dim in own[: len(own) - count])
    if m.data(value) is not None and is_led and same_dims(own[len(own) - count :], wanted):
        return wanted
    return m.fail("it does not have the normalized dims", value)


def _fitted(b: OpBuilder, m: Match, value: Value, count: int) -> Value:
    """A scale or bias with exactly `count` dims."""
    shape = m.shape(value)
    data = m.data(value)
    if data is None or shape is None or len(shape) <= count:
        return value
    return b.const(data.numpy().reshape(data.shape[len(shape) - count :]), data.dtype)


class RecomposeLayerNorm(RulePass):
    """Recompose LayerNormalization and RMSNormalization."""

    name = "recompose-layer-norm"
    exactness = "reassociates"
    fuses = True
    rules = (Standardize, ShiftedByMean, DivideByRootMeanSquare, NormalizeInF32, NormalizeScale, NormalizeBias)
