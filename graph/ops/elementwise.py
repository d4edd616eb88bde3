"""Elementwise operators: a row each. `body` is the meaning in scalar operations (see `scalar`), `known` the same for
elements known as dims (see `values`); types follow from numpy's broadcasting rules.

Operators with a rule of their own for shapes or dtypes (Cast, Clip, PRelu, Where, ...) are classes at the end.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .. import dtypes
from ..dims import Dim
from ..opdef import Trait, op, register
from ..types import TensorType
from . import values
from .activation_parts import gelu_parts, hard_swish_parts, mish_parts, swiglu_parts, swish_parts
from .common import (
    TensorOp,
    WithParts,
    broadcast,
    dtype_attribute,
    dtype_of,
    error,
    format_shape,
    has_operand,
    operand_elements,
    result_elements,
    same_dim,
    shape_of,
    tensor_of,
    times,
)
from .numeric import NUMERIC, cast, check_same_dtype, clip, modulo
from .scalar import Body, count_operations

if TYPE_CHECKING:
    from ..builder import OpBuilder
    from ..core import Operation, Value
    from ..dtypes import DType
    from ..infer import InferenceContext, SymbolicArray

Known = Callable[..., Any]
Parts = Callable[["Operation", "OpBuilder"], "Sequence[Value] | None"]


class Elementwise(TensorOp):
    """Each result element depends on one element of each operand, after broadcasting."""

    traits = frozenset({Trait.ELEMENTWISE})
    body: ClassVar[Body | None] = None
    body_attributes: ClassVar[tuple[str, ...]] = ()
    known: ClassVar[Known | None] = None
    dtype: ClassVar[DType | None] = None  # None: that of the operands

    def result_dtype(self, op: Operation) -> DType | None:
        if self.dtype is not None:
            return self.dtype
        return dtype_of(op, *range(len(op.operands)))

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        return broadcast(op, [shape_of(op, index) for index in range(len(op.operands))], context)

    def propagate(self, op: Operation, context: InferenceContext) -> SymbolicArray | None:
        known = type(self).known
        if known is None:
            return None
        return values.map_elements(known, *[context.symbolic(operand) for operand in op.operands])

    def scalar(self, op: Operation, handler: Any, *operands: Any) -> Any:
        """The body for the attributes of `op`, interpreted by `handler`."""
        body = type(self).body
        if body is None:
            raise NotImplementedError(f"{self.name} has no scalar body")
        return body(handler, *operands, **self._attributes(op))

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        function = NUMERIC.get(self.op_type)
        if function is None or self.domain:
            return super().evaluate(op, *operands)
        if self.op_type != "Pow":
            check_same_dtype(self.name, *operands)
        return function(*operands)

    def _attributes(self, op: Operation) -> dict[str, Any]:
        return {name: op.attr(name) for name in self.body_attributes}

    def flops(self, op: Operation) -> Dim | None:
        body = type(self).body
        count = 1 if body is None else count_operations(body, len(op.operands), self._attributes(op))
        return times(count, result_elements(op))


def _row(
    name: str,
    body: Body | None,
    traits: set[Trait],
    known: Known | None = None,
    attributes: tuple[str, ...] = (),
    dtype: DType | None = None,
    parts: Parts | None = None,
) -> None:
    facts = {
        "traits": frozenset(traits | {Trait.ELEMENTWISE}),
        "body": None if body is None else staticmethod(body),
        "body_attributes": attributes,
        "known": None if known is None else staticmethod(known),
        "dtype": dtype,
        "__doc__": None,
    }
    if parts is not None:
        facts["parts"] = staticmethod(parts)
    register(type(name, (Elementwise,) if parts is None else (WithParts, Elementwise), facts)("", name))


def unary(
    name: str,
    body: Body | None,
    known: Known | None = None,
    *,
    attributes: tuple[str, ...] = (),
    dtype: DType | None = None,
    parts: Parts | None = None,
) -> None:
    """A row for one operand. `dtype` is the result's where it is not the operand's; for `parts` see `WithParts`."""
    _row(name, body, set(), known, attributes, dtype, parts)


def binary(
    name: str,
    body: Body | None,
    known: Known | None = None,
    *,
    attributes: tuple[str, ...] = (),
    dtype: DType | None = None,
    commutative: bool = False,
) -> None:
    """A row for two operands (or more) that are broadcast."""
    traits = {Trait.BROADCAST, Trait.COMMUTATIVE} if commutative else {Trait.BROADCAST}
    _row(name, body, traits, known, attributes, dtype)


# ---- bodies that need a name -----------------------------------------------------------------------------------------


def softplus(s: Any, x: Any) -> Any:
    """log(1 + exp(x)), written so that it does not overflow."""
    return s.add(s.maximum(x, 0), s.log1p(s.exp(s.neg(s.abs(x)))))


def elu(s: Any, x: Any, alpha: float) -> Any:
    return s.select(s.less(x, 0), s.mul(alpha, s.expm1(x)), x)


def celu(s: Any, x: Any, alpha: float) -> Any:
    return s.select(s.less(x, 0), s.mul(alpha, s.expm1(s.div(x, alpha))), x)


def selu(s: Any, x: Any, alpha: float, gamma: float) -> Any:
    return s.mul(gamma, s.select(s.less(0, x), x, s.mul(alpha, s.expm1(x))))


def hard_sigmoid(s: Any, x: Any, alpha: float, beta: float) -> Any:
    return s.maximum(s.minimum(s.add(s.mul(x, alpha), beta), 1), 0)


def shrink(s: Any, x: Any, bias: float, lambd: float) -> Any:
    above = s.select(s.less(lambd, x), s.sub(x, bias), 0)
    return s.select(s.less(x, -lambd), s.add(x, bias), above)


def gelu(s: Any, x: Any, approximate: str) -> Any:
    """Hendrycks & Gimpel 2016 (arXiv 1606.08415); "tanh" is their approximation."""
    half = s.mul(x, 0.5)
    if approximate == "tanh":
        cubic = s.add(x, s.mul(0.044715, s.mul(x, s.mul(x, x))))
        return s.mul(half, s.add(1, s.tanh(s.mul(math.sqrt(2 / math.pi), cubic))))
    return s.mul(half, s.add(1, s.erf(s.mul(x, math.sqrt(0.5)))))


def swish(s: Any, x: Any, alpha: float) -> Any:
    return s.mul(x, s.sigmoid(s.mul(x, alpha)))


def is_infinite(s: Any, x: Any, detect_negative: int, detect_positive: int) -> Any:
    magnitude = {(1, 1): s.abs(x), (0, 1): x, (1, 0): s.neg(x)}.get((detect_negative, detect_positive))
    return s.less(x, -math.inf) if magnitude is None else s.equal(magnitude, math.inf)


def shift(s: Any, x: Any, y: Any, direction: str) -> Any:
    return s.shift_left(x, y) if direction == "LEFT" else s.shift_right(x, y)


def mod(s: Any, x: Any, y: Any, fmod: int) -> Any:
    return s.fmod(x, y) if fmod else s.mod(x, y)


def fold(name: str) -> Body:
    """A variadic body: the scalar operation `name` over all operands, from the left."""

    def body(s: Any, *operands: Any) -> Any:
        return functools.reduce(getattr(s, name), operands)

    return body


def mean(s: Any, *operands: Any) -> Any:
    return s.div(fold("add")(s, *operands), len(operands))


# ---- rows ------------------------------------------------------------------------------------------------------------

unary("Abs", lambda s, x: s.abs(x), values.absolute)
unary("Neg", lambda s, x: s.neg(x), values.negate)
unary("Sign", lambda s, x: s.sign(x), values.sign)
unary("Floor", lambda s, x: s.floor(x), values.floor)
unary("Ceil", lambda s, x: s.ceil(x), values.ceil)
unary("Round", lambda s, x: s.round(x), values.round_half_even)
unary("Sqrt", lambda s, x: s.sqrt(x))
unary("Reciprocal", lambda s, x: s.div(1, x))
unary("Exp", lambda s, x: s.exp(x))
unary("Log", lambda s, x: s.log(x))
unary("Sin", lambda s, x: s.sin(x))
unary("Cos", lambda s, x: s.cos(x))
unary("Tan", lambda s, x: s.tan(x))
unary("Asin", lambda s, x: s.asin(x))
unary("Acos", lambda s, x: s.acos(x))
unary("Atan", lambda s, x: s.atan(x))
unary("Sinh", lambda s, x: s.sinh(x))
unary("Cosh", lambda s, x: s.cosh(x))
unary("Tanh", lambda s, x: s.tanh(x))
unary("Asinh", lambda s, x: s.asinh(x))
unary("Acosh", lambda s, x: s.acosh(x))
unary("Atanh", lambda s, x: s.atanh(x))
unary("Erf", lambda s, x: s.erf(x))
unary("Relu", lambda s, x: s.maximum(x, 0))
unary("LeakyRelu", lambda s, x, alpha: s.select(s.less(x, 0), s.mul(x, alpha), x), attributes=("alpha",))
unary("ThresholdedRelu", lambda s, x, alpha: s.select(s.less(alpha, x), x, 0), attributes=("alpha",))
unary("Elu", elu, attributes=("alpha",))
unary("Celu", celu, attributes=("alpha",))
unary("Selu", selu, attributes=("alpha", "gamma"))
unary("Sigmoid", lambda s, x: s.sigmoid(x))
unary("HardSigmoid", hard_sigmoid, attributes=("alpha", "beta"))
unary("HardSwish", lambda s, x: s.mul(x, hard_sigmoid(s, x, 1 / 6, 0.5)), parts=hard_swish_parts)
unary("Softplus", softplus)
unary("Softsign", lambda s, x: s.div(x, s.add(1, s.abs(x))))
unary("Mish", lambda s, x: s.mul(x, s.tanh(softplus(s, x))), parts=mish_parts)
unary("Gelu", gelu, attributes=("approximate",), parts=gelu_parts)
unary("Swish", swish, attributes=("alpha",), parts=swish_parts)
unary("Shrink", shrink, attributes=("bias", "lambd"))
unary("Not", lambda s, x: s.logical_not(x), lambda x: not x)
unary("BitwiseNot", lambda s, x: s.bit_not(x))
unary("IsNaN", lambda s, x: s.is_nan(x), dtype=dtypes.bool_)
unary("IsInf", is_infinite, attributes=("detect_negative", "detect_positive"), dtype=dtypes.bool_)

binary("Add", lambda s, x, y: s.add(x, y), values.add, commutative=True)
binary("Sub", lambda s, x, y: s.sub(x, y), values.sub)
binary("Mul", lambda s, x, y: s.mul(x, y), values.mul, commutative=True)
binary("Div", lambda s, x, y: s.div(x, y), values.divide)
binary("Pow", lambda s, x, y: s.pow(x, y), values.power)
binary("Equal", lambda s, x, y: s.equal(x, y), values.equal, dtype=dtypes.bool_, commutative=True)
binary("Less", lambda s, x, y: s.less(x, y), values.less, dtype=dtypes.bool_)
binary("LessOrEqual", lambda s, x, y: s.less_equal(x, y), values.less_equal, dtype=dtypes.bool_)
binary("Greater", lambda s, x, y: s.less(y, x), values.greater, dtype=dtypes.bool_)
binary("GreaterOrEqual", lambda s, x, y: s.less_equal(y, x), values.greater_equal, dtype=dtypes.bool_)
binary("And", lambda s, x, y: s.logical_and(x, y), lambda x, y: x and y, commutative=True)
binary("Or", lambda s, x, y: s.logical_or(x, y), lambda x, y: x or y, commutative=True)
binary("Xor", lambda s, x, y: s.logical_xor(x, y), lambda x, y: x != y, commutative=True)
binary("BitwiseAnd", lambda s, x, y: s.bit_and(x, y), commutative=True)
binary("BitwiseOr", lambda s, x, y: s.bit_or(x, y), commutative=True)
binary("BitwiseXor", lambda s, x, y: s.bit_xor(x, y), commutative=True)
binary("BitShift", shift, attributes=("direction",))
binary("Max", fold("maximum"), values.greatest, commutative=True)
binary("Min", fold("minimum"), values.least, commutative=True)
binary("Sum", fold("add"), values.total, commutative=True)
binary("Mean", mean, commutative=True)


# ---- operators with a rule of their own ------------------------------------------------------------------------------


@op("Mod")
class Mod(Elementwise):
    traits = frozenset({Trait.ELEMENTWISE, Trait.BROADCAST})
    body = staticmethod(mod)
    body_attributes = ("fmod",)

    def propagate(self, op: Operation, context: InferenceContext) -> SymbolicArray | None:
        function = values.remainder if op.attr("fmod") else values.modulo
        return values.map_elements(function, operand_elements(op, 0, context), operand_elements(op, 1, context))

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        check_same_dtype("mod", *operands)
        x, y = operands
        return modulo(x, y, op.attr("fmod"))


@op("Where")
class Where(Elementwise):
    traits = frozenset({Trait.ELEMENTWISE, Trait.BROADCAST})
    body = staticmethod(lambda s, condition, x, y: s.select(condition, x, y))
    known = staticmethod(values.choose)

    def result_dtype(self, op: Operation) -> DType | None:
        return dtype_of(op, 1, 2)

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        condition, x, y = operands
        check_same_dtype("where", x, y)
        return np.where(condition, x, y)


@op("Cast")
class Cast(Elementwise):
    """`to` gives the result's element type; a value that does not fit is converted as ONNX says in "Cast"."""

    def result_dtype(self, op: Operation) -> DType | None:
        return dtype_attribute(op, "to")

    def propagate(self, op: Operation, context: InferenceContext) -> SymbolicArray | None:
        to = self.result_dtype(op)
        if to is None:
            return None
        return values.map_elements(lambda item: values.convert(item, to), operand_elements(op, 0, context))

    def scalar(self, op: Operation, handler: Any, *operands: Any) -> Any:
        type = op.results[0].type
        assert isinstance(type, TensorType)
        return handler.cast(operands[0], type.dtype)

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        wanted = dtypes.from_numpy(operands[1].dtype) if len(operands) > 1 else dtype_attribute(op, "to")
        converted = None if wanted is None else cast(operands[0], wanted)
        return super().evaluate(op, *operands) if converted is None else converted

    def flops(self, op: Operation) -> Dim | None:
        return 0


@op("CastLike")
class CastLike(Cast):
    """Only the second operand's element type matters, not its shape; so it is not elementwise in that one."""

    traits = frozenset()

    def result_dtype(self, op: Operation) -> DType | None:
        return dtype_of(op, 1)

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        return shape_of(op, 0)


@op("BitCast")
class BitCast(Elementwise):
    """The same bits read as another element type of the same width."""

    def result_dtype(self, op: Operation) -> DType | None:
        wanted, given = dtype_attribute(op, "to"), dtype_of(op, 0)
        if wanted is not None and given is not None and wanted.bits != given.bits:
            raise error("dtype/mismatch", f"bit_cast needs types of one width, got {given} and {wanted}")
        return wanted

    def flops(self, op: Operation) -> Dim | None:
        return 0


@op("Clip")
class Clip(Elementwise):
    """The bounds are scalars, and either may be left out."""

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        for index in (1, 2):
            bound = shape_of(op, index)
            if bound:
                raise error("shape/rank", f"clip needs scalar bounds, got {tensor_of(op, index)}")
        return shape_of(op, 0)

    body = staticmethod(lambda s, x, low=None, high=None: _clip(s, x, low, high))

    def scalar(self, op: Operation, handler: Any, *operands: Any) -> Any:
        low, high = [operands[index] if has_operand(op, index) else None for index in (1, 2)]
        return _clip(handler, operands[0], low, high)

    def propagate(self, op: Operation, context: InferenceContext) -> SymbolicArray | None:
        result = operand_elements(op, 0, context)
        for index, function in ((1, values.greatest), (2, values.least)):
            if has_operand(op, index):
                result = values.map_elements(function, result, operand_elements(op, index, context))
        return result

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        x, low, high = (*operands, None, None)[:3]
        check_same_dtype("clip", x, low, high)
        return clip(x, low, high)

    def flops(self, op: Operation) -> Dim | None:
        return times(sum(has_operand(op, index) for index in (1, 2)), result_elements(op))


def _clip(s: Any, x: Any, low: Any, high: Any) -> Any:
    bounded = x if low is None else s.maximum(x, low)
    return bounded if high is None else s.minimum(bounded, high)


@op("PRelu")
class PRelu(Elementwise):
    """x * slope below 0. The standard broadcasts the slope to the shape of x alone; ONNX Runtime and onnx.reference
    broadcast both ways, and so does this."""

    traits = frozenset({Trait.ELEMENTWISE, Trait.BROADCAST})
    body = staticmethod(lambda s, x, slope: s.select(s.less(x, 0), s.mul(x, slope), x))


@op("SwiGLU")
class SwiGLU(WithParts, Elementwise):
    """Swish of the gate times the linear operand; both have one shape (no broadcasting)."""

    body = staticmethod(lambda s, gate, linear, alpha: s.mul(swish(s, gate, alpha), linear))
    body_attributes = ("alpha",)

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        return swiglu_parts(op, builder)

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        gate, linear = shape_of(op, 0), shape_of(op, 1)
        if gate is None or linear is None:
            return gate if linear is None else linear
        mismatch = functools.partial(
            error, "shape/mismatch", f"swiglu needs equal shapes, got {format_shape(gate)} and {format_shape(linear)}"
        )
        if len(gate) != len(linear):
            raise mismatch()
        return [same_dim(a, b, context, mismatch) for a, b in zip(gate, linear, strict=True)]
