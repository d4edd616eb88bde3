"""`ScalarEmitter`: the handler under which the bodies of elementwise operators build operations of the level "loop".

See `graph/ops/scalar.py` for what a body is. Every operator whose meaning is written as a body thereby has a kernel.
"""

from __future__ import annotations

import math
from typing import Any

from .. import types
from ..core import Value
from ..dtypes import DType, bf16, f16, f32, f64
from ..ops.scalar import BINARY, UNARY, NumpyScalars, Scalar
from . import vector_math
from .base import like
from .loop_builder import LoopBuilder

# Scalar operators that do what a handler's operation of (nearly) the same name does.
_DIRECT = {
    "neg": "neg", "abs": "abs", "floor": "floor", "ceil": "ceil", "round": "round", "sqrt": "sqrt", "add": "add",
    "sub": "sub", "mul": "mul", "div": "div", "minimum": "min", "maximum": "max", "equal": "eq",
    "less": "lt", "less_equal": "le", "logical_and": "and", "logical_or": "or", "logical_xor": "xor",
    "logical_not": "not", "bit_and": "and", "bit_or": "or", "bit_xor": "xor", "bit_not": "not", "shift_left": "shl",
    "shift_right": "shr", "quotient": "quotient",
}  # fmt: skip
_ROUNDINGS = frozenset({"floor", "ceil", "round"})


def computed_in(dtype: DType) -> DType:
    """The dtype that a number of `dtype` is computed in: narrow floats are widened when they are loaded."""
    return f32 if dtype in (f16, bf16) else dtype


class ScalarEmitter:
    """Builds with `builder`; operands are scalars or vectors of it, or Python numbers."""

    def __init__(self, builder: LoopBuilder) -> None:
        self.b = builder
        self._numbers = NumpyScalars()

    def constant(self, value: float) -> Scalar:
        return value

    def number(self, value: float, dtype: DType, company: Value) -> Scalar:
        """A number of `dtype`, in as many lanes as its company."""
        assert isinstance(company.type, types.ScalarType | types.VectorType)
        return self.b.constant(value, like(company.type, computed_in(dtype)))

    def cast(self, x: Scalar, dtype: DType) -> Scalar:
        """Of a narrow float the precision is lost, though it is carried in a wider one."""
        return x if not isinstance(x, Value) else self.b.cast(self.b.cast(x, dtype), computed_in(dtype))

    def bitcast(self, x: Value, dtype: DType) -> Scalar:
        """Between dtypes that numbers are computed in."""
        return self.b.bitcast(x, dtype)

    def select(self, condition: Scalar, x: Scalar, y: Scalar) -> Scalar:
        if not isinstance(condition, Value):
            return x if condition else y
        return self.b.select(condition, x, y)

    def __getattr__(self, name: str) -> Any:
        if name not in UNARY and name not in BINARY:
            raise AttributeError(f"there is no scalar operation {name!r}")

        def call(*operands: Scalar) -> Scalar:
            if not any(isinstance(operand, Value) for operand in operands):
                return getattr(self._numbers, name)(*operands)
            return self._emit(name, *operands)

        return call

    def _emit(self, name: str, *operands: Any) -> Any:
        special = getattr(self, f"_{name}", None)
        if special is not None:
            return special(*operands)
        first = next(operand for operand in operands if isinstance(operand, Value))
        if name in _ROUNDINGS and not _dtype(first).is_float:
            return first
        if name in _DIRECT:
            return self.b.scalar(_DIRECT[name], *operands)
        return vector_math.FUNCTIONS[name](self.b, first)

    def _sign(self, x: Value) -> Any:
        b = self.b
        below = b.select(b.lt(x, 0), -1, x) if _dtype(x).kind != "uint" else x
        return b.select(b.lt(0, x), 1, below)

    def _is_nan(self, x: Value) -> Any:
        return self.b.ne(x, x)

    def _fmod(self, x: Scalar, y: Scalar) -> Any:
        """The remainder with the sign of the dividend."""
        company = x if isinstance(x, Value) else y
        if _dtype(company) is not f32:
            return self.b.rem(x, y)
        return vector_math.remainder(self.b, self._value(x, company), self._value(y, company))

    def _mod(self, x: Scalar, y: Scalar) -> Any:
        """The remainder with the sign of the divisor."""
        b = self.b
        rest = self._fmod(x, y)
        if _dtype(rest).kind == "uint":
            return rest
        crosses = b.and_(b.ne(rest, 0), b.xor(b.lt(rest, 0), b.lt(self._value(y, rest), 0)))
        return b.select(crosses, b.add(rest, y), rest)

    def _value(self, x: Scalar, company: Value) -> Value:
        return self.b.value(x, company.type)

    def _pow(self, x: Scalar, y: Scalar) -> Any:
        """The base's dtype decides. Small whole exponents are products."""
        b = self.b
        if not isinstance(x, Value):
            x = self._value(x, y)
        dtype = _dtype(x)
        if not dtype.is_float:
            return self._integer_pow(x, y)
        if not isinstance(y, Value):
            return self._constant_pow(x, y)
        return vector_math.pow(b, x, b.cast(y, dtype))

    def _constant_pow(self, x: Value, y: float) -> Any:
        b = self.b
        if y in (1, 2, 3, 4):
            square = b.mul(x, x) if y > 1 else x
            return {1: x, 2: square, 3: b.mul(square, x), 4: b.mul(square, square)}[int(y)]
        if y == -1:
            return b.div(1, x)
        if y == 0.5:
            # Adding 0 makes -0.0 positive; a power of -infinity is not NaN as its root is.
            return b.select(b.eq(x, -math.inf), math.inf, b.sqrt(b.add(x, b.constant(0.0, x.type))))
        return vector_math.pow(b, x, b.constant(y, x.type))

    def _integer_pow(self, x: Value, y: Scalar) -> Any:
        """By way of f64 for a float exponent, else by squaring; a negative exponent leaves only 1 and -1 not 0."""
        b = self.b
        dtype = _dtype(x)
        if not isinstance(y, Value):
            y = b.constant(y, x.type if isinstance(y, int) else like(x.type, f64))  # type: ignore[arg-type]
        if _dtype(y).is_float:
            power = vector_math.pow(b, b.cast(x, f64), b.cast(y, f64))
            # The power of whole numbers is whole; what is just below it must not be cut to the next one.
            whole = b.round(power)
            near = b.le(b.abs(b.sub(power, whole)), b.mul(b.abs(power), 1e-12))
            return b.cast(b.select(near, whole, power), dtype)
        y = b.cast(y, dtype)
        one = b.constant(1, x.type)
        with b.loop(0, dtype.bits, 1, [one, x, y]) as state:
            result, power, rest = state.values
            product = b.select(b.ne(b.and_(rest, 1), 0), b.mul(result, power), result)
            state.yields([product, b.mul(power, power), b.shr(rest, 1)])
        result = state.results[0]
        if dtype.kind == "uint":
            return result
        odd = b.ne(b.and_(y, 1), 0)
        inverse = b.select(b.eq(x, 1), 1, b.select(b.eq(x, -1), b.select(odd, x, b.neg(x)), b.constant(0, x.type)))
        return b.select(b.lt(y, 0), inverse, result)


def _dtype(x: Value) -> DType:
    assert isinstance(x.type, types.ScalarType | types.VectorType)
    return x.type.dtype
