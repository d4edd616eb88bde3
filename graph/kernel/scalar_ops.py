"""Arithmetic of the level "loop" (domain `scalar`). Every operator works on scalars and on vectors alike.

All operands have one type, and so has the result, where nothing else is said; comparisons give bool. Integers wrap.
Integer division truncates towards zero; by zero it gives 0 (the remainder then is the dividend). The remainder has the
sign of the dividend. A float that does not fit the integer it is cast to gives the nearest one that exists, NaN gives
0. Shifting by the width or more gives 0, or -1 for a negative number shifted right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .. import types
from ..dtypes import DType, bool_, from_numpy, i32
from ..opdef import op, register
from .base import LoopOp, fault, like, number

if TYPE_CHECKING:
    from ..core import Operation
    from ..infer import InferenceContext
    from ..types import Type

FLOAT, INTEGER, BOOL = "float", "int uint", "bool"
NUMBERS = f"{FLOAT} {INTEGER}"
ANY = f"{NUMBERS} {BOOL}"


class ScalarOp(LoopOp):
    """One row of the table below: `kinds` are the kinds of dtype it takes, `function` its meaning in numpy."""

    outputs = ("result",)
    kinds: ClassVar[frozenset[str]]
    compares: ClassVar[bool] = False
    function: ClassVar[Callable[..., Any]]

    def infer(self, op: Operation, context: InferenceContext | None = None) -> Sequence[Type]:
        type = number(op, 0)
        for index in range(1, len(op.operands)):
            if number(op, index) is not type:
                raise fault(op, f"needs operands of one type, got {type} and {number(op, index)}")
        if type.dtype.kind not in self.kinds:
            raise fault(op, f"is not defined for {type}")
        return [like(type, bool_) if self.compares else type]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        result = type(self).function(*operands)
        return result if self.compares else result.astype(operands[0].dtype, copy=False)


def _rows(inputs: tuple[str, ...], kinds: str, compares: bool = False, **functions: Callable[..., Any]) -> None:
    for name, function in functions.items():
        facts = {
            "inputs": inputs,
            "kinds": frozenset(kinds.split()),
            "compares": compares,
            "function": staticmethod(function),
            "__doc__": None,
        }
        op_type = name.rstrip("_")
        register(type(f"Scalar{op_type.capitalize()}", (ScalarOp,), facts)("scalar", op_type))


def _width(x: Any) -> int:
    return int(x.dtype.itemsize) * 8


def _divide(x: Any, y: Any) -> Any:
    if from_numpy(x.dtype).is_float:
        return x / y
    divisor = np.where(y == 0, 1, y).astype(x.dtype)
    quotient = (x - np.fmod(x, divisor)) // divisor
    return np.where(y == 0, 0, quotient)


def _remainder(x: Any, y: Any) -> Any:
    if from_numpy(x.dtype).is_float:
        return np.fmod(x, y)
    return np.where(y == 0, x, np.fmod(x, np.where(y == 0, 1, y).astype(x.dtype)))


def _shift_left(x: Any, y: Any) -> Any:
    inside = y.astype(np.uint64) < _width(x)
    return np.where(inside, x << np.where(inside, y, 0).astype(x.dtype), 0)


def _shift_right(x: Any, y: Any) -> Any:
    inside = y.astype(np.uint64) < _width(x)
    return x >> np.where(inside, y, _width(x) - 1).astype(x.dtype) if x.dtype.kind == "i" else np.where(
        inside, x >> np.where(inside, y, 0).astype(x.dtype), 0
    )  # fmt: skip


def fused_multiply_add(x: Any, y: Any, z: Any) -> Any:
    """x * y + z, rounded once but for rare cases: f64 holds the exact product of two f32.

    For f64 the error of the product is found by splitting the factors (Dekker 1971) and added at the end.
    """
    if x.dtype != np.float64:
        return x.astype(np.float64) * y.astype(np.float64) + z.astype(np.float64)
    product, total = x * y, x * y + z
    (a, b), (c, d) = _halves(x), _halves(y)
    lost = b * d - (((product - a * c) - b * c) - a * d)
    part = total - product
    lost = lost + ((product - (total - part)) + (z - part))
    return np.where(np.isfinite(lost), total + lost, total)[()]


def _halves(x: Any) -> tuple[Any, Any]:
    """The upper 26 bits of each number, and the rest."""
    scaled = 134217729.0 * x
    upper = scaled - (scaled - x)
    return upper, x - upper


def _scale(x: Any, n: Any) -> Any:
    return np.ldexp(x, np.nan_to_num(n).astype(np.int32))


UNARY, BINARY, TERNARY = ("x",), ("x", "y"), ("x", "y", "z")

_rows(BINARY, NUMBERS, add=np.add, sub=np.subtract, mul=np.multiply, div=_divide, rem=_remainder)
# NaN if either operand is NaN.
_rows(BINARY, NUMBERS, min=np.minimum, max=np.maximum)
# A division that only has to be exact as far as rounding it to an integer of at most 2**22 shows.
_rows(BINARY, FLOAT, quotient=_divide)
_rows(TERNARY, FLOAT, fma=fused_multiply_add)
_rows(UNARY, NUMBERS, neg=np.negative, abs=np.abs)
# `round` takes halves to the even neighbour.
_rows(UNARY, FLOAT, sqrt=np.sqrt, floor=np.floor, ceil=np.ceil, round=np.rint, trunc=np.trunc)
_rows(BINARY, f"{INTEGER} {BOOL}", and_=np.bitwise_and, or_=np.bitwise_or, xor=np.bitwise_xor)
_rows(UNARY, f"{INTEGER} {BOOL}", not_=np.invert)
_rows(BINARY, INTEGER, shl=_shift_left, shr=_shift_right)
# x * 2**n for an integral n of x's own dtype, rounded once; n of a size that a dtype's exponents have.
# `scale_normal` is for an x and a result that are normal numbers, or NaN.
_rows(("x", "n"), FLOAT, scale=_scale, scale_normal=_scale)
# Of floats, `ne` is true where one is NaN, the others are false.
_rows(BINARY, ANY, compares=True, eq=np.equal, ne=np.not_equal)
_rows(BINARY, NUMBERS, compares=True, lt=np.less, le=np.less_equal)


@op("constant", domain="scalar")
class Constant(LoopOp):
    """A number, in every lane if the result is a vector. The result's type says which dtype."""

    inputs = ()
    outputs = ("result",)
    attributes: ClassVar[dict[str, Any]] = {"value": None}

    def infer(self, op: Operation, context: InferenceContext | None = None) -> Sequence[Type]:
        return [op.results[0].type]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        type = op.results[0].type
        assert isinstance(type, types.ScalarType | types.VectorType)
        value = np.asarray(op.attributes["value"]).astype(type.dtype.numpy)
        return np.full(type.lanes, value) if isinstance(type, types.VectorType) else value[()]


@op("select", domain="scalar")
class Select(LoopOp):
    """`x` where the condition is true, else `y`."""

    inputs = ("condition", "x", "y")
    outputs = ("result",)

    def infer(self, op: Operation, context: InferenceContext | None = None) -> Sequence[Type]:
        condition, x, y = (number(op, index) for index in range(3))
        if x is not y or condition is not like(x, bool_):
            raise fault(op, f"needs a bool and two operands of one type, got {condition}, {x} and {y}")
        return [x]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return np.where(*operands)[()]


@op("dot4", domain="scalar")
class Dot4(LoopOp):
    """x plus the sum of four products of bytes: those of y, which are unsigned, with those of z, which are signed.

    All three are i32; sums wrap. What a machine with VNNI does in one instruction.
    """

    inputs = ("x", "y", "z")
    outputs = ("result",)

    def infer(self, op: Operation, context: InferenceContext | None = None) -> Sequence[Type]:
        type = number(op, 0)
        if type.dtype is not i32 or any(number(op, index) is not type for index in (1, 2)):
            raise fault(op, "needs three operands of one type, scalars or vectors of i32")
        return [type]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        x, y, z = (np.atleast_1d(operand) for operand in operands)
        products = y.view(np.uint8).astype(np.int32) * z.view(np.int8).astype(np.int32)
        result = x + products.reshape(-1, 4).sum(axis=1, dtype=np.int32)
        return result if np.ndim(operands[0]) else result[0]


class Conversion(LoopOp):
    """`to` is the element type of the result."""

    inputs = ("x",)
    outputs = ("result",)
    attributes: ClassVar[dict[str, Any]] = {"to": None}

    def infer(self, op: Operation, context: InferenceContext | None = None) -> Sequence[Type]:
        to = op.attributes["to"]
        if not isinstance(to, types.ScalarType):
            raise fault(op, f"needs a type such as scalar<f32> for `to`, got {to}")
        return [like(number(op, 0), to.dtype)]


@op("cast", domain="scalar")
class Cast(Conversion):
    """The number as another dtype, rounded to nearest; of a bool 1 or 0; to bool whether it is not 0."""

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return convert(operands[0], op.attributes["to"].dtype)


@op("bitcast", domain="scalar")
class Bitcast(Conversion):
    """The same bits as another dtype of the same width."""

    def infer(self, op: Operation, context: InferenceContext | None = None) -> Sequence[Type]:
        types = super().infer(op, context)
        given, to = number(op, 0).dtype, op.attributes["to"].dtype
        if given.bits != to.bits or BOOL in (given.kind, to.kind):
            raise fault(op, f"needs numbers of one width, got {given} and {to}")
        return types

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return operands[0].view(op.attributes["to"].dtype.numpy)


def convert(x: Any, to: DType) -> Any:
    """`x` cast to the dtype `to`, as the head of this file says."""
    given = from_numpy(x.dtype)
    if to.kind == BOOL:
        return x != 0
    if not (given.is_float and to.is_integer):
        return x.astype(to.numpy)
    limits = np.iinfo(to.numpy)
    wide = np.nan_to_num(np.trunc(x.astype(np.float64)), nan=0.0, posinf=np.inf, neginf=-np.inf)
    inside = (wide >= float(limits.min)) & (wide < float(limits.max) + 1)
    beyond = np.where(wide < 0, np.array(limits.min, to.numpy), np.array(limits.max, to.numpy))
    return np.where(inside, np.where(inside, wide, 0).astype(to.numpy), beyond)[()]
