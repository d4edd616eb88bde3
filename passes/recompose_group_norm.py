"""recompose-group-norm: a normalization per channel or group of channels becomes one operation. Level onnx.

InstanceNormalization (Ulyanov et al., 2016, arXiv 1607.08022) from a normalization over all dims after the channels
with a scale and bias per channel; GroupNormalization (Wu & He, 2018, arXiv 1803.08494) from an instance normalization
of reshaped groups, as exporters write it. Works on what recompose-layer-norm leaves.

Invariant: x is f32 (one operator has no type to compute in, the other takes f32) with dims [n, channels, ...]; the
first reshape only splits the channels, the second gives the old shape back; scale and bias have an element per channel.

    %0 = reshape %x, [0, 2, -1] : f32[n, 2, 256]
    %1 = instance_normalization %0, [1.0, 1.0], [0.0, 0.0] : f32[n, 2, 256]
    %2 = reshape %1, [0, 8, 8, 8] : f32[n, 8, 8, 8]
    %3 = mul %2, %scale : f32[n, 8, 8, 8]          // %scale : f32[8, 1, 1], %bias likewise
    %4 = add %3, %bias : f32[n, 8, 8, 8]  ->  %4 = group_normalization %x, %s, %b {num_groups=2} : f32[n, 8, 8, 8]
"""

from __future__ import annotations

import numpy as np

from ..graph.builder import OpBuilder
from ..graph.core import Operation, Value
from .base import RulePass
from .pattern import PatternBuilder, PatternValue
from .proofs import same_dims
from .rules import Match, Mismatch, Rule, Verdict


def _ones(array: np.ndarray) -> bool:
    return bool(np.all(array == 1))


def _zeros(array: np.ndarray) -> bool:
    return not np.any(array)


def _channels(m: Match, x: Value) -> int | Mismatch:
    """The number of channels of an f32 tensor [n, channels, ...]."""
    shape = m.shape(x)
    if str(m.dtype(x)) != "f32" or shape is None or len(shape) < 3:
        return m.fail("it is not an f32 tensor with channels", x)
    channels = shape[1]
    return channels if isinstance(channels, int) else m.fail("the number of channels is not known", x)


def _vector(m: Match, value: Value, x: Value) -> np.ndarray | Mismatch:
    """A constant [channels, 1, ...], possibly with 1s before it, as a vector."""
    channels, rank = _channels(m, x), m.rank(x)
    if isinstance(channels, Mismatch):
        return channels
    data = m.data(value)
    if data is None or rank is None or data.dtype is not m.dtype(x):
        return m.fail("scale or bias is no constant of the operand's type", value)
    shape = (1,) * (rank - len(data.shape)) + data.shape
    if shape != (1, channels, *[1] * (rank - 2)):
        return m.fail("scale or bias does not run along the channels", value)
    return data.numpy().reshape(-1)


def _epsilon(op: Operation | None) -> float:
    assert op is not None
    return float(op.attr("epsilon"))


class _PerChannel(Rule):
    """A normalization and one more operation with a constant [channels, 1, ...]."""

    exactness = "reassociates"

    def when(self, m: Match) -> Verdict:
        found = _vector(m, m.k, m.x)
        return found if isinstance(found, Mismatch) else True


class InstanceScale(_PerChannel):
    """mul(normalization of each channel, scale) -> instance_normalization(x, scale, zeros)"""

    def match(self, p: PatternBuilder, x: PatternValue, k: PatternValue) -> PatternValue:
        normal = p.either(
            p.layer_normalization(x, p.const("ones", _ones), p.absent, axis=p.attr("axis"), stash_type=1),
            p.instance_normalization(x, p.const("ones", _ones), p.const("zeros", _zeros)),
        )
        result: PatternValue = p.mul(p.named("normal", normal), p.const(k))
        return result

    def when(self, m: Match) -> Verdict:
        if m.axis is not None and m.axis != 2 - (m.rank(m.x) or 0) and m.axis != 2:
            return m.fail("it is not normalized over all dims after the channels", m.x)
        normal = m.op("normal")
        if normal is not None and len(normal.results) > 1:
            return m.fail("mean or deviation are results, too", normal)
        return super().when(m)

    def build(self, b: OpBuilder, m: Match) -> Value:
        scale = _vector(m, m.k, m.x)
        assert not isinstance(scale, Mismatch)
        facts = {"epsilon": _epsilon(m.op("normal"))}
        return b.create("instance_normalization", [m.x, scale, np.zeros_like(scale)], facts).result


class InstanceBias(_PerChannel):
    """add(instance_normalization(x, scale, zeros), bias) -> instance_normalization(x, scale, bias)"""

    def match(self, p: PatternBuilder, x: PatternValue, scale: PatternValue, k: PatternValue) -> PatternValue:
        normal = p.instance_normalization(x, scale, p.const("zeros", _zeros))
        result: PatternValue = p.add(p.named("normal", normal), p.const(k))
        return result

    def build(self, b: OpBuilder, m: Match) -> Value:
        bias = _vector(m, m.k, m.x)
        assert not isinstance(bias, Mismatch)
        return b.create("instance_normalization", [m.x, m.scale, bias], {"epsilon": _epsilon(m.op("normal"))}).result


class Group(Rule):
    """mul(reshape(normalization(reshape(x, groups))), scale), then add(..., bias) -> group_normalization"""

    name = "recompose-group-normalization"
    exactness = "reassociates"

    def match(self, p: PatternBuilder, x: PatternValue, scale: PatternValue, bias: PatternValue) -> PatternValue:
        groups = p.named("groups", p.reshape(x, p.any_value))
        normal = p.either(
            p.layer_normalization(groups, p.const("ones", _ones), p.absent, axis=p.attr("axis"), stash_type=1),
            p.instance_normalization(groups, p.const("ones", _ones), p.const("zeros", _zeros)),
        )
        back = p.reshape(p.named("normal", normal), p.any_value)
        result: PatternValue = p.add(p.mul(back, p.const(scale)), p.const(bias))
        return result

    def when(self, m: Match) -> Verdict:
        shape, groups = m.shape(m.x), m.shape(m.groups)
        channels, normal = _channels(m, m.x), m.op("normal")
        if isinstance(channels, Mismatch):
            return channels
        assert shape is not None
        assert normal is not None
        if groups is None or len(groups) < 3 or not same_dims(groups[:1], shape[:1]):
            return m.fail("the first reshape does not keep the batch", m.groups)
        if not isinstance(groups[1], int) or groups[1] < 1 or channels % groups[1]:
            return m.fail("the first reshape does not split the channels", m.groups)
        if m.axis is not None and m.axis not in (2, 2 - len(groups)):
            return m.fail("it is not normalized over all dims after the groups", m.groups)
        if len(normal.results) > 1:
            return m.fail("mean or deviation are results, too", normal)
        if not same_dims(m.shape(m.value), shape):
            return m.fail("the second reshape does not give the old shape back", m.value)
        for value in (m.scale, m.bias):
            vector = _vector(m, value, m.x)
            if isinstance(vector, Mismatch):
                return vector
        return True

    def build(self, b: OpBuilder, m: Match) -> Value:
        scale, bias, groups = _vector(m, m.scale, m.x), _vector(m, m.bias, m.x), m.shape(m.groups)
        assert not isinstance(scale, Mismatch)
        assert not isinstance(bias, Mismatch)
        assert groups is not None
        facts = {"num_groups": groups[1], "epsilon": _epsilon(m.op("normal"))}
        return b.create("group_normalization", [m.x, scale, bias], facts).result


class RecomposeGroupNorm(RulePass):
    """Recompose InstanceNormalization and GroupNormalization."""

    name = "recompose-group-norm"
    after = ("recompose-layer-norm",)
    exactness = "reassociates"
    fuses = True
    rules = (Group, InstanceScale, InstanceBias)
