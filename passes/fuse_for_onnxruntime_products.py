"""Products and convolutions with what is done to their factors and results. Rules of fuse-for-onnxruntime.

FusedMatMul takes transposed factors and a scale, FusedGemm an activation, FusedConv a further addend and an activation.
All but FusedMatMul, which has f64, take f32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from ..graph.builder import OpBuilder
from ..graph.core import AttributeValue, Operation, Value
from ..graph.opdef import lookup
from .formulas import number_of
from .fuse_for_onnxruntime_activations import DOMAIN, is_f32
from .pattern import PatternBuilder, PatternValue
from .proofs import is_everywhere, same_dims
from .rules import Match, Mismatch, OpRule, Replacement, Rule, Verdict

# Activations that the fused kernels know by name, with the attributes that become their parameters, in order.
_GEMM_ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "relu": (), "tanh": (), "sigmoid": (), "softplus": (), "softsign": (), "elu": ("alpha",), "leaky_relu": ("alpha",),
    "thresholded_relu": ("alpha",), "hard_sigmoid": ("alpha", "beta"), "selu": ("alpha", "gamma"),
}  # fmt: skip
_CONV_ACTIVATIONS: dict[str, tuple[str, ...]] = {
    name: _GEMM_ACTIVATIONS[name] for name in ("relu", "tanh", "sigmoid", "leaky_relu", "hard_sigmoid")
}


class UnflattenedGemm(Rule):
    """reshape(gemm(reshape(x), w, row)) -> add(matmul(x, w), row), for the operator that follows to take the row"""

    name = "unflattened-gemm"
    exactness = "reassociates"

    def match(self, p: PatternBuilder, x: PatternValue, w: PatternValue, row: PatternValue) -> PatternValue:
        flat = p.shared(p.reshape(x, p.any_value))
        product = p.named("product", p.gemm(flat, p.const(w), p.optional(row), transA=0, alpha=1.0, beta=1.0))
        result: PatternValue = p.reshape(product, p.any_value)
        return result

    def when(self, m: Match) -> Verdict:
        shape, wanted, flat = m.shape(m.x), m.shape(m.value), m.shape(m.product)
        if shape is None or wanted is None or flat is None or len(shape) < 3:
            return m.fail("the tensor is not known to have three dims or more", m.x)
        weights = m.shape(m.w)
        assert weights is not None
        width = weights[1] if _gemm(m).attr("transB") else weights[0]
        if not same_dims(shape[:-1], wanted[:-1]) or not same_dims((shape[-1], flat[-1]), (width, wanted[-1])):
            return m.fail("the reshapes do more than to join and split the first dims", m.root)
        if m.row is not None and m.rank(m.row) != 1:
            return m.fail("the addend is no row", m.row)
        return True

    def build(self, b: OpBuilder, m: Match) -> Value:
        weights = m.w
        if _gemm(m).attr("transB"):
            data = m.data(m.w)
            assert data is not None
            weights = b.const(np.ascontiguousarray(data.numpy().T))
        product: Value = b.matmul(m.x, weights)
        return product if m.row is None or is_everywhere(m, m.row, 0.0) else b.add(product, m.row)


def _gemm(m: Match) -> Operation:
    gemm = m.op("product")
    assert gemm is not None
    return gemm


class TransposedMatMul(OpRule):
    """matmul(transpose(a), transpose(b)), either of them transposed -> FusedMatMul(a, b)"""

    name = "transposed-matmul"
    exactness = "reassociates"
    root: ClassVar[str] = "matmul"

    def when(self, m: Match) -> Verdict:
        if str(m.dtype(m.root.operands[0])) not in ("f32", "f64"):
            return m.fail("ONNX Runtime's kernel takes f32 and f64", m.root)
        if any((m.rank(value) or 0) < 2 for value in m.root.operands):
            return m.fail("a factor is not known to have two dims", m.root)
        return any(_transposed(value) for value in m.root.operands) or m.fail("no factor is transposed", m.root)

    def build(self, b: OpBuilder, m: Match) -> Value:
        sources = [_transposed(value) for value in m.root.operands]
        operands = [value if source is None else source for value, source in zip(m.root.operands, sources, strict=True)]
        attributes = {name: int(source is not None) for name, source in zip(("transA", "transB"), sources, strict=True)}
        return b.create(lookup(DOMAIN, "FusedMatMul"), operands, attributes).result


def _transposed(value: Value | None) -> Value | None:
    """The tensor of which `value`, which has no other user, is the transpose of the last two dims."""
    producer = value.producer if value is not None else None
    if value is None or producer is None or producer.name != "transpose" or value.use_count != 1:
        return None
    perm = tuple(producer.attr("perm") or ())
    rank = len(perm)
    return producer.operands[0] if perm == (*range(rank - 2), rank - 1, rank - 2) else None


class ScaledMatMul(Rule):
    """mul(matmul(a, b), number) -> FusedMatMul(a, b, alpha=number)"""

    name = "scaled-matmul"
    exactness = "reassociates"

    def match(self, p: PatternBuilder, a: PatternValue, b: PatternValue, factor: PatternValue) -> PatternValue:
        product = p.named("product", p.op(("matmul", "com.microsoft.FusedMatMul"), a, b))
        result: PatternValue = p.either(p.mul(product, p.const(factor)), p.div(product, p.const(factor)))
        return result

    def when(self, m: Match) -> Verdict:
        wrong = is_f32(m, m.a)
        if isinstance(wrong, Mismatch):
            return wrong
        found = self._attributes(m)
        return found if isinstance(found, Mismatch) else True

    def build(self, b: OpBuilder, m: Match) -> Value:
        found = self._attributes(m)
        assert not isinstance(found, Mismatch)
        return b.create(lookup(DOMAIN, "FusedMatMul"), [m.a, m.b], found).result

    @staticmethod
    def _attributes(m: Match) -> dict[str, AttributeValue] | Mismatch:
        """Those of the product, with alpha times the factor."""
        factor, product = number_of(m, m.factor, m.product), m.op("product")
        assert product is not None
        if factor is None or factor == 0:
            return m.fail("the factor is not one number", m.factor)
        known: Mapping[str, AttributeValue] = product.attributes if product.domain == DOMAIN else {}
        alpha = float(known.get("alpha", 1.0))
        alpha = alpha / factor if m.root.name == "div" else alpha * factor
        limits = np.finfo(np.float32)
        if not float(limits.tiny) <= abs(alpha) <= float(limits.max):
            return m.fail("the factor is too large or too small for an attribute", m.factor)
        return {**known, "alpha": alpha}


class GemmActivation(OpRule):
    """activation(gemm(a, b, c)) -> FusedGemm(a, b, c)"""

    name = "gemm-activation"
    exactness = "reassociates"
    root: ClassVar[tuple[str, ...]] = tuple(_GEMM_ACTIVATIONS)

    def when(self, m: Match) -> Verdict:
        gemm = _private_producer(m, "gemm")
        return gemm if isinstance(gemm, Mismatch) else is_f32(m, gemm.operands[0])

    def build(self, b: OpBuilder, m: Match) -> Replacement:
        gemm = _private_producer(m, "gemm")
        assert isinstance(gemm, Operation)
        names = _GEMM_ACTIVATIONS[m.root.name]
        parameters = {f"activation_{name}": m.root.attr(name) for name in names}
        attributes = {**gemm.attributes, "activation": m.root.op_type, **parameters}
        return b.create(lookup(DOMAIN, "FusedGemm"), gemm.operands, attributes).result


class ConvActivation(OpRule):
    """activation(conv(x, w, b)) -> FusedConv(x, w, b), also with an addend before the activation"""

    name = "conv-activation"
    exactness = "reassociates"
    root: ClassVar[tuple[str, ...]] = (*_CONV_ACTIVATIONS, "clip")

    def when(self, m: Match) -> Verdict:
        conv = _private_producer(m, "conv", "com.microsoft.FusedConv")
        if isinstance(conv, Mismatch):
            return conv
        if conv.attr("activation"):
            return m.fail("the convolution has an activation", conv)
        if m.root.name == "clip" and _bounds(m) is None:
            return m.fail("the bounds are not numbers", m.root)
        return is_f32(m, conv.operands[0])

    def build(self, b: OpBuilder, m: Match) -> Replacement:
        conv = _private_producer(m, "conv", "com.microsoft.FusedConv")
        assert isinstance(conv, Operation)
        if m.root.name == "clip":
            parameters = _bounds(m)
        else:
            parameters = tuple(m.root.attr(name) for name in _CONV_ACTIVATIONS[m.root.name])
        attributes = {**conv.attributes, "activation": m.root.op_type}
        if parameters:
            attributes["activation_params"] = parameters
        return b.create(lookup(DOMAIN, "FusedConv"), conv.operands, attributes).result


class ConvAdd(Rule):
    """add(conv(x, w, b), z) -> FusedConv(x, w, b, z), which adds z"""

    name = "conv-add"
    exactness = "reassociates"

    def match(self, p: PatternBuilder, z: PatternValue) -> PatternValue:
        result: PatternValue = p.add(p.named("product", p.conv(p.variadic())), z)
        return result

    def when(self, m: Match) -> Verdict:
        conv = m.op("product")
        assert conv is not None
        wrong = is_f32(m, conv.operands[0])
        if isinstance(wrong, Mismatch):
            return wrong
        if m.rank(conv.operands[0]) != 4:
            return m.fail("ONNX Runtime adds to convolutions of images alone", conv)
        return same_dims(m.shape(m.z), m.shape(m.product)) or m.fail("the addend has other dims", m.z)

    def build(self, b: OpBuilder, m: Match) -> Value:
        conv = m.op("product")
        assert conv is not None
        operands = [*conv.operands, *[None] * (3 - len(conv.operands)), m.z]
        return b.create(lookup(DOMAIN, "FusedConv"), operands, conv.attributes).result


def _private_producer(m: Match, *names: str) -> Operation | Mismatch:
    """What makes the root's operand, if it is one of these operations and nobody else uses it."""
    value = m.root.operands[0]
    producer = value.producer if value is not None else None
    if value is None or producer is None or producer.name not in names:
        return m.fail(f"it does not follow {' or '.join(names)}", m.root)
    if value.use_count != 1 or producer.parent is not m.root.parent:
        return m.fail(f"the {producer.name} has another user", producer)
    return producer


def _bounds(m: Match) -> tuple[float, float] | None:
    """The bounds of a Clip that has both as numbers."""
    low, high = (m.scalar(m.root.input(index)) for index in (1, 2))
    return None if low is None or high is None else (float(low), float(high))


# Before everything else: what other rules read is the product of the tensor as it is.
PREPARING_RULES = (UnflattenedGemm,)
PRODUCT_RULES = (TransposedMatMul, ScaledMatMul, ConvAdd, ConvActivation, GemmActivation)

__all__ = [
    "PREPARING_RULES", "PRODUCT_RULES", "ConvActivation", "ConvAdd", "GemmActivation", "ScaledMatMul",
    "TransposedMatMul", "UnflattenedGemm",
]  # fmt: skip
