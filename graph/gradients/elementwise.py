"""Derivatives of elementwise operators.

A row gives the derivative as a function of the operand x and the result y. Where a function has a kink, its value there
is a subgradient: 0 for Abs and Relu, half for each of equal operands of Max and Min, 1 at the bounds of Clip.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from .rules import QUANTIZED, Adjoint, Refusal, gradient_of, parts_of

if TYPE_CHECKING:
    from ..core import Operation, Value
    from .builder import GradientBuilder

    Derivative: TypeAlias = Callable[[GradientBuilder, Value, Value, Operation], Value]
    Grads: TypeAlias = Sequence[Value | None]


def derivative(name: str, function: Derivative, *, singular: bool = False) -> None:
    """A row: the adjoint of the operand is that of the result times `function(b, x, y, op)`.

    `singular`: the derivative is infinite or undefined somewhere.
    """

    def rule(op: Operation, grads: Grads, b: GradientBuilder) -> Sequence[Adjoint]:
        (x, *_), (grad, *_) = op.operands, grads
        assert x is not None
        assert grad is not None
        return [b.chain(grad, function(b, x, op.results[0], op), singular)]

    gradient_of(name)(rule)


def _square_root_of_square(b: GradientBuilder, x: Value, sign: float, offset: float) -> Value:
    """sqrt(offset + sign * x^2)"""
    square = b.mul(x, x)
    shifted = b.add(square, offset) if sign > 0 else b.sub(offset, square)
    result: Value = b.sqrt(shifted)
    return result


def _choice(b: GradientBuilder, condition: Value, one: Value | float, other: Value | float, like: Value) -> Value:
    values = [item if not isinstance(item, int | float) else b.number(like, item) for item in (one, other)]
    result: Value = b.where(condition, *values)
    return result


def _gelu(b: GradientBuilder, x: Value, y: Value, op: Operation) -> Value:
    """Phi(x) + x phi(x), or the same of the approximation by tanh."""
    if op.attr("approximate") == "tanh":
        root = math.sqrt(2 / math.pi)
        square = b.mul(x, x)
        t = b.tanh(b.mul(b.mul(x, root), b.add(b.mul(square, 0.044715), 1.0)))
        slope = b.mul(b.sub(1.0, b.mul(t, t)), b.add(b.mul(square, 3 * 0.044715 * root), root))
        result: Value = b.mul(b.add(b.add(t, 1.0), b.mul(x, slope)), 0.5)
        return result
    cumulative = b.mul(b.add(b.erf(b.mul(x, math.sqrt(0.5))), 1.0), 0.5)
    density = b.mul(b.exp(b.mul(b.mul(x, x), -0.5)), 1 / math.sqrt(2 * math.pi))
    result = b.add(cumulative, b.mul(x, density))
    return result


def _swish(b: GradientBuilder, x: Value, y: Value, op: Operation) -> Value:
    """s + alpha y (1 - s) with s = sigmoid(alpha x)"""
    alpha = op.attr("alpha", 1.0)
    s = b.sigmoid(x if alpha == 1.0 else b.mul(x, alpha))
    rest = b.mul(y, b.sub(1.0, s))
    result: Value = b.add(s, rest if alpha == 1.0 else b.mul(rest, alpha))
    return result


def _mish(b: GradientBuilder, x: Value, y: Value, op: Operation) -> Value:
    """t + x (1 - t^2) sigmoid(x) with t = tanh(softplus(x))"""
    t = b.tanh(b.softplus(x))
    result: Value = b.add(t, b.mul(b.mul(x, b.sigmoid(x)), b.sub(1.0, b.mul(t, t))))
    return result


def _within(b: GradientBuilder, x: Value, low: float, high: float) -> Value:
    """1 where low < x < high, in x's type."""
    inside = b.and_(b.less(b.number(x, low), x), b.less(x, b.number(x, high)))
    return _choice(b, inside, 1.0, 0.0, x)


def _hard_sigmoid(b: GradientBuilder, x: Value, y: Value, op: Operation) -> Value:
    alpha, beta = op.attr("alpha"), op.attr("beta")
    if alpha == 0:
        return b.number(x, 0.0)
    ends = sorted((-beta / alpha, (1 - beta) / alpha))
    result: Value = b.mul(_within(b, x, *ends), alpha)
    return result


def _hard_swish(b: GradientBuilder, x: Value, y: Value, op: Operation) -> Value:
    """x / 3 + 1 / 2 between -3 and 3, 1 above."""
    ramp = b.mul(_within(b, x, -3.0, 3.0), b.add(b.mul(x, 1 / 3), 0.5))
    result: Value = b.where(b.greater_or_equal(x, 3.0), b.number(x, 1.0), ramp)
    return result


derivative("Abs", lambda b, x, y, op: b.sign(x))
derivative("Neg", lambda b, x, y, op: b.number(x, -1.0))
derivative("Sqrt", lambda b, x, y, op: b.div(0.5, y), singular=True)
derivative("Reciprocal", lambda b, x, y, op: b.neg(b.mul(y, y)), singular=True)
derivative("Exp", lambda b, x, y, op: y)
derivative("Log", lambda b, x, y, op: b.reciprocal(x), singular=True)
derivative("Sin", lambda b, x, y, op: b.cos(x))
derivative("Cos", lambda b, x, y, op: b.neg(b.sin(x)))
derivative("Tan", lambda b, x, y, op: b.add(b.mul(y, y), 1.0))
derivative("Asin", lambda b, x, y, op: b.reciprocal(_square_root_of_square(b, x, -1, 1.0)), singular=True)
derivative("Acos", lambda b, x, y, op: b.neg(b.reciprocal(_square_root_of_square(b, x, -1, 1.0))), singular=True)
derivative("Atan", lambda b, x, y, op: b.reciprocal(b.add(b.mul(x, x), 1.0)))
derivative("Sinh", lambda b, x, y, op: b.cosh(x))
derivative("Cosh", lambda b, x, y, op: b.sinh(x))
derivative("Tanh", lambda b, x, y, op: b.sub(1.0, b.mul(y, y)))
derivative("Asinh", lambda b, x, y, op: b.reciprocal(_square_root_of_square(b, x, 1, 1.0)))
derivative("Acosh", lambda b, x, y, op: b.reciprocal(_square_root_of_square(b, x, 1, -1.0)), singular=True)
derivative("Atanh", lambda b, x, y, op: b.reciprocal(b.sub(1.0, b.mul(x, x))), singular=True)
derivative("Erf", lambda b, x, y, op: b.mul(b.exp(b.neg(b.mul(x, x))), 2 / math.sqrt(math.pi)))
derivative("Sigmoid", lambda b, x, y, op: b.mul(y, b.sub(1.0, y)))
derivative("Softplus", lambda b, x, y, op: b.sigmoid(x))
derivative("Softsign", lambda b, x, y, op: _reciprocal_square(b, b.add(b.abs(x), 1.0)))
derivative("LeakyRelu", lambda b, x, y, op: _choice(b, b.less(x, 0.0), op.attr("alpha"), 1.0, x))
derivative("Elu", lambda b, x, y, op: _choice(b, b.less(x, 0.0), b.add(y, op.attr("alpha")), 1.0, x))
derivative("Celu", lambda b, x, y, op: b.exp(b.mul(b.min(x, 0.0), 1 / op.attr("alpha"))))
derivative("Selu", lambda b, x, y, op: _selu(b, x, y, op))
derivative("HardSigmoid", _hard_sigmoid)
derivative("HardSwish", _hard_swish)
derivative("Gelu", _gelu)
derivative("Swish", _swish)
derivative("Mish", _mish)


def _reciprocal_square(b: GradientBuilder, x: Value) -> Value:
    result: Value = b.reciprocal(b.mul(x, x))
    return result


def _selu(b: GradientBuilder, x: Value, y: Value, op: Operation) -> Value:
    alpha, gamma = op.attr("alpha"), op.attr("gamma")
    return _choice(b, b.greater(x, 0.0), gamma, b.add(y, alpha * gamma), x)


# ---- choices: the adjoint goes one way or the other ------------------------------------------------------------------


@gradient_of("Relu")
def relu(op: Operation, grads: Grads, b: GradientBuilder) -> Sequence[Adjoint]:
    return [b.keep_where(b.greater(op.results[0], 0.0), _first(grads))]


@gradient_of("ThresholdedRelu")
def thresholded_relu(op: Operation, grads: Grads, b: GradientBuilder) -> Sequence[Adjoint]:
    return [b.keep_where(b.greater(op.operands[0], op.attr("alpha")), _first(grads))]


@gradient_of("Shrink")
def shrink(op: Operation, grads: Grads, b: GradientBuilder) -> Sequence[Adjoint]:
    x, limit = op.operands[0], op.attr("lambd")
    assert x is not None
    return [b.keep_where(b.or_(b.less(x, -limit), b.greater(x, limit)), _first(grads))]


@gradient_of("Clip")
def clip(op: Operation, grads: Grads, b: GradientBuilder) -> Sequence[Adjoint]:
    """As min(max(x, low), high): what is cut off at a bound is the bound's."""
    x, low, high = (*op.operands, None, None)[:3]
    grad = _first(grads)
    inside = above = below = None
    if high is not None:
        above = b.greater(x if low is None else b.max(x, low), high)
        inside = b.not_(above)
    if low is not None:
        below = b.less(x, low)
        inside = b.not_(below) if inside is None else b.and_(inside, b.not_(below))
        below = below if above is None else b.and_(below, b.not_(above))
    parts: list[Adjoint] = [grad if inside is None else b.keep_where(inside, grad)]
    for bound, taken in ((low, below), (high, above)):
        needed = taken is not None and b.needs(bound)
        parts.append(b.sum_to(b.keep_where(taken, grad), bound) if needed and taken and bound else None)
    return parts


@gradient_of("PRelu")
def prelu(op: Operation, grads: Grads, b: GradientBuilder) -> Sequence[Adjoint]:
    x, slope = op.operand_values
    grad, negative = _first(grads), b.less(x, 0.0)
    to_x = b.sum_to(b.where(negative, b.mul(grad, slope), grad), x)
    to_slope = b.sum_to(b.keep_where(negative, b.mul(grad, x)), slope) if b.needs(slope) else None
    return [to_x, to_slope]


@gradient_of("Where")
def where(op: Operation, grads: Grads, b: GradientBuilder) -> Sequence[Adjoint]:
    condition, x, y = op.operand_values
    grad = _first(grads)
    to_x = b.sum_to(b.keep_where(condition, grad), x) if b.needs(x) else None
    to_y = b.sum_to(b.keep_where(b.not_(condition), grad), y) if b.needs(y) else None
    return [None, to_x and b.sweep.mark_masked(to_x), to_y and b.sweep.mark_masked(to_y)]


@gradient_of("Max", "Min")
def extreme(op: Operation, grads: Grads, b: GradientBuilder) -> Sequence[Adjoint]:
    """Equal operands share the adjoint equally."""
    grad, y = _first(grads), op.results[0]
    if len(op.operands) == 1:
        return [grad]
    chosen = [b.cast(b.equal(operand, y), to=b.dtype(grad)) for operand in op.operand_values]
    count = chosen[0]
    for each in chosen[1:]:
        count = b.add(count, each)
    share = b.div(grad, b.max(count, 1.0))  # a NaN equals nothing
    return [
        b.sum_to(b.sweep.mark_masked(b.mul(share, each)), operand) if b.needs(operand) else None
        for operand, each in zip(op.operand_values, chosen, strict=True)
    ]


# ---- arithmetic ------------------------------------------------------------------------------------------------------


def _first(grads: Grads) -> Value:
    grad = grads[0]
    assert grad is not None
    return grad


@gradient_of("Identity")
def identity(op: Operation, grads: Grads, b: GradientBuilder) -> Sequence[Adjoint]:
    return [_first(grads)]


@gradient_of("Add", "Sum")
def add(op: Operation, grads: Grads, b: GradientBuilder) -> Sequence[Adjoint]:
    return [b.sum_to(_first(grads), operand) if b.needs(operand) else None for operand in op.operand_values]


@gradient_of("Mean")
def mean(op: Operation, grads: Grads, b: GradientBuilder) -> Sequence[Adjoint]:
    share = b.mul(_first(grads), 1 / len(op.operands))
    return [b.sum_to(share, operand) if b.needs(operand) else None for operand in op.operand_values]


@gradient_of("Sub")
def sub(op: Operation, grads: Grads, b: GradientBuilder) -> Sequence[Adjoint]:
    x, y = op.operand_values
    grad = _first(grads)
    return [b.sum_to(grad, x) if b.needs(x) else None, b.neg(b.sum_to(grad, y)) if b.needs(y) else None]


@gradient_of("Mul")
def mul(op: Operation, grads: Grads, b: GradientBuilder) -> Sequence[Adjoint]:
    x, y = op.operand_values
    grad = _first(grads)
    to_x = b.sum_to(b.mul(grad, y), x) if b.needs(x) else None
    to_y = b.sum_to(b.mul(grad, x), y) if b.needs(y) else None
    return [to_x, to_y]


@gradient_of("Div")
def div(op: Operation, grads: Grads, b: GradientBuilder) -> Sequence[Adjoint]:
    x, y = op.operand_values
    grad = _first(grads)
    if b.sweep.is_masked(grad):
        slope = b.reciprocal(y)
        to_x = b.chain(grad, slope, True)
        to_y = b.chain(grad, b.neg(b.mul(op.results[0], slope)), True) if b.needs(y) else None
    else:
        to_x = b.div(grad, y)
        to_y = b.neg(b.mul(to_x, op.results[0])) if b.needs(y) else None
    return [b.sum_to(to_x, x) if b.needs(x) else None, to_y and b.sum_to(to_y, y)]


@gradient_of("Pow")
def power(op: Operation, grads: Grads, b: GradientBuilder) -> Sequence[Adjoint]:
    """y x^(y - 1), which takes no logarithm of x; and x^y log(x), 0 where x is 0 (and where x^y is no number)."""
    from ..ops.normalization_parts import constant_of

    x, exponent = op.operand_values
    grad = _first(grads)
    adjoints: list[Adjoint] = [None, None]
    if b.needs(x):
        known = constant_of(exponent)
        if known is not None and known.size == 1 and float(known.reshape(())) in (2.0, 3.0):
            n = float(known.reshape(()))
            slope = b.mul(x if n == 2 else b.mul(x, x), n)
            adjoints[0] = b.sum_to(b.mul(grad, slope), x)
        else:
            n_value = exponent if b.dtype(exponent) is b.dtype(x) else b.cast(exponent, to=b.dtype(x))
            lower = b.pow(x, b.sub(n_value, 1.0))
            # With exponent 0 the derivative is 0 also at 0, where x^(-1) is infinite.
            lower = b.where(b.equal(n_value, 0.0), b.number(x, 0.0), lower)
            adjoints[0] = b.sum_to(b.chain(grad, b.mul(n_value, lower), True), x)
    if b.needs(exponent):
        positive = b.greater(x, 0.0)
        logarithm = b.log(b.where(positive, x, b.number(x, 1.0)))
        to_exponent = b.keep_where(positive, b.mul(grad, b.mul(op.results[0], logarithm)))
        if b.dtype(exponent) is not b.dtype(to_exponent):
            to_exponent = b.cast(to_exponent, to=b.dtype(exponent))
        adjoints[1] = b.sum_to(to_exponent, exponent)
    return adjoints


@gradient_of("Mod")
def modulo(op: Operation, grads: Grads, b: GradientBuilder) -> Sequence[Adjoint]:
    """x - y * n with a whole number n, which does not change nearby."""
    x, y = op.operand_values
    grad = _first(grads)
    to_y = None
    if b.needs(y):
        whole = b.round(b.div(b.sub(op.results[0], x), y))
        to_y = b.sum_to(b.mul(grad, whole), y)
    return [b.sum_to(grad, x) if b.needs(x) else None, to_y]


@gradient_of("Cast", "CastLike")
def cast(op: Operation, grads: Grads, b: GradientBuilder) -> Sequence[Adjoint]:
    x = op.operand_values[0]
    return [b.cast(_first(grads), to=b.dtype(x))]


@parts_of("SwiGLU")
def swiglu(op: Operation, b: GradientBuilder) -> Sequence[Value]:
    gate, linear = op.operand_values
    return [b.mul(b.swish(gate, alpha=op.attr("alpha")), linear)]


@gradient_of("DynamicQuantizeLinear")
def dynamic_quantize_linear(op: Operation, grads: Grads, b: GradientBuilder) -> Sequence[Adjoint]:
    """What remains differentiable, its scale, says next to nothing of how its operand matters."""
    return [Refusal(f"it rounds to integers; {QUANTIZED}")]


# ---- steps -----------------------------------------------------------------------------------------------------------


@gradient_of("Floor", "Ceil", "Round", "Sign", "BitCast")
def step(op: Operation, grads: Grads, b: GradientBuilder) -> Sequence[Adjoint]:
    """The derivative is zero wherever there is one: the path ends here."""
    return [None]
