"""fold-scale-shift: put a multiplication or addition by constants into the linear operator before it. Level onnx.

Invariant: the constant is a number, or runs along the output channels and nothing else, so that the result keeps its
shape; the linear operator and its weight have no other users. Rounding differs.

    %0 = conv %x, %w : f32[n, 8, h, w]       // %k : f32[8, 1, 1]
    %1 = mul %0, %k : f32[n, 8, h, w]                              ->      %1 = conv %x, %w', %b' : f32[n, 8, h, w]
"""

from __future__ import annotations

import numpy as np

from ..graph.builder import OpBuilder
from ..graph.core import Operation, Value
from ..graph.data import UnresolvedData, derived
from .affine import LINEAR, TOO_FAR, Linear, can_be_scaled, per_channel, read_linear, scaled
from .base import RulePass
from .pattern import PatternBuilder, PatternValue
from .proofs import same_tensor_type
from .rules import Match, Mismatch, OpRule, Rule, Verdict

# Operations that a multiplication by one number may pass: they only move elements.
_MOVEMENT = ("reshape", "transpose", "squeeze", "unsqueeze", "flatten")


class ScaleOfLinear(Rule):
    """mul(conv(x, w), k) -> conv(x, w * k), likewise for div, and for conv_transpose, gemm and matmul"""

    exactness = "reassociates"

    def match(self, p: PatternBuilder, x: PatternValue, k: PatternValue) -> PatternValue:
        linear = p.op(LINEAR, x, p.const(), p.optional(p.const()))
        result: PatternValue = p.either(p.mul(linear, p.const(k)), p.div(linear, p.const(k)))
        return result

    def when(self, m: Match) -> Verdict:
        read = _read(m)
        if isinstance(read, Mismatch):
            return read
        if m.root.name == "div" and not read[1].all():
            return m.fail("the divisor has a zero", m.k)
        linear, factor = read
        fits = linear.can_scale_outputs(1.0 / factor if m.root.name == "div" else factor)
        return fits or m.fail(TOO_FAR, m.k)

    def build(self, b: OpBuilder, m: Match) -> Value | Mismatch:
        read = _read(m)
        assert not isinstance(read, Mismatch)
        linear, factor = read
        linear.scale_outputs(1.0 / factor if m.root.name == "div" else factor)
        return linear.build(b) if linear.bias_fits else m.fail(TOO_FAR, m.k)


class ShiftOfLinear(Rule):
    """add(conv(x, w), k) -> conv(x, w, k), likewise for sub, and for conv_transpose, gemm and matmul"""

    exactness = "reassociates"

    def match(self, p: PatternBuilder, x: PatternValue, k: PatternValue) -> PatternValue:
        linear = p.op(LINEAR, x, p.const(), p.optional(p.const()))
        result: PatternValue = p.either(p.add(linear, p.const(k)), p.sub(linear, p.const(k)))
        return result

    def when(self, m: Match) -> Verdict:
        read = _read(m)
        return read if isinstance(read, Mismatch) else True

    def build(self, b: OpBuilder, m: Match) -> Value | Mismatch:
        read = _read(m)
        assert not isinstance(read, Mismatch)
        linear, term = read
        linear.shift_outputs(-term if m.root.name == "sub" else term)
        return linear.build(b) if linear.bias_fits else m.fail(TOO_FAR, m.k)


class NumberBehindMovement(OpRule):
    """mul(transpose(reshape(matmul(x, w))), 0.125) -> transpose(reshape(matmul(x, w * 0.125)))

    The scale of attention, as exporters write it: behind the split into heads, a pass over the whole tensor that the
    weights can do once.
    """

    root = ("mul", "div")
    exactness = "reassociates"

    def when(self, m: Match) -> Verdict:
        found = _scaled_product(m)
        return found if isinstance(found, Mismatch) else True

    def build(self, b: OpBuilder, m: Match) -> Value:
        found = _scaled_product(m)
        assert not isinstance(found, Mismatch)
        tensor, factor, targets = found
        scale_constants(m, targets, factor)
        return tensor


def _scaled_product(m: Match) -> tuple[Value, float, list[tuple[Operation, int]]] | Mismatch:
    """The tensor that is scaled, the factor, and the constant operands that can be scaled instead."""
    left, right = m.root.operands
    number_side = 1 if m.root.name == "div" or m.scalar(right) is not None else 0
    tensor, number = (left, right) if number_side == 1 else (right, left)
    factor = m.scalar(number)
    if tensor is None or factor is None:
        return m.fail("it does not scale by one number", m.root)
    if not same_tensor_type(tensor.type, m.value.type):
        return m.fail("the number widens the tensor", m.root)
    if m.root.name == "div":
        factor = 1.0 / factor if factor and np.isfinite(factor) else np.nan
    if not np.isfinite(factor):
        return m.fail(f"scaling weights by {factor} is not scaling results by it", m.root)
    targets = scalable_behind_movement(m, tensor, float(factor))
    return targets if isinstance(targets, Mismatch) else (tensor, float(factor), targets)


def scalable_behind_movement(
    m: Match, tensor: Value | None, factor: float
) -> list[tuple[Operation, int]] | Mismatch:  # fmt: skip
    """The constant operands that can be scaled by `factor` in place of `tensor`: those of the product whose elements
    it holds."""
    current = tensor
    while current is not None and current.producer is not None and current.producer.name in _MOVEMENT:
        if current.use_count != 1:
            return m.fail("the tensor has other users", current)
        current = current.producer.operands[0]
    targets = _scalable_operands(m, current)
    if isinstance(targets, Mismatch):
        return targets
    constants = [m.data(op.operands[index]) for op, index in targets]
    if any(data is not None and not can_be_scaled(data, factor) for data in constants):
        return m.fail(TOO_FAR, m.root)
    return targets


def scale_constants(m: Match, targets: list[tuple[Operation, int]], factor: float) -> None:
    """Multiply these constant operands by `factor`."""
    for op, index in targets:
        data = m.data(op.operands[index])
        assert data is not None
        changed = derived(lambda weight: scaled(weight, factor), data, dtype=data.dtype, shape=data.shape)
        weight = m.rewriter.before(op).const(changed)
        m.rewriter.set_operand(op, index, weight)


def _scalable_operands(m: Match, product: Value | None) -> list[tuple[Operation, int]] | Mismatch:
    """The weight of the product, and its bias if it has one: constants that nobody else uses."""
    op = product.producer if product is not None else None
    if op is None or product is None or product.use_count != 1:
        return m.fail("the tensor has other users, or none made it", m.root)
    targets: list[tuple[Operation, int]] = []
    if op.name == "add":
        side = 1 if m.data(op.operands[1]) is not None else 0
        targets.append((op, side))
        inner = op.operands[1 - side]
        if inner is None or inner.producer is None or inner.producer.name != "matmul" or inner.use_count != 1:
            return m.fail("what is scaled is no product with a weight", op)
        op = inner.producer
    if op.name not in LINEAR:
        return m.fail("what is scaled is no product with a weight", op)
    targets.append((op, 1))
    if op.name != "matmul" and op.input(2) is not None:
        targets.append((op, 2))
    for target, index in targets:
        operand = target.operands[index]
        data = m.data(operand)
        if data is None or operand is None or not data.dtype.is_float or isinstance(data, UnresolvedData):
            return m.fail("a weight or bias is not a constant", target)
        if operand.use_count != 1 and data.numpy().any():
            return m.fail("a weight or bias has other users", operand)
    # Zeros stay zeros, so that many layers can go on sharing them.
    return [(target, index) for target, index in targets if _is_private(target.operands[index])]


def _is_private(value: Value | None) -> bool:
    return value is not None and value.use_count == 1


def _read(m: Match) -> tuple[Linear, np.ndarray] | Mismatch:
    linear = read_linear(m, m.matched(*LINEAR))
    if isinstance(linear, Mismatch):
        return linear
    values = per_channel(m, m.k, linear)
    return values if isinstance(values, Mismatch) else (linear, values)


class FoldScaleShift(RulePass):
    """Fold multiplications and additions by constants into the linear operators before them."""

    name = "fold-scale-shift"
    exactness = "reassociates"
    rules = (ScaleOfLinear, ShiftOfLinear, NumberBehindMovement)
