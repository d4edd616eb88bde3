"""What elementwise operators compute, one element at a time.

An elementwise operator has a `body`: a function `body(s, x, y, ..., **attributes)` that says its meaning in the
scalar operations of a handler `s`. The same body is interpreted in several ways, by several handlers: `NumpyScalars`
computes, `OperationCounter` counts; code generators emit.

Operands may be Python numbers wherever another operand gives the dtype: `s.maximum(x, 0)`. Integer division
truncates, as C and ONNX have it. Comparisons give booleans.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from ..dtypes import DType

# A scalar of the handler's own kind, or a Python number.
Scalar: TypeAlias = Any
Body: TypeAlias = Callable[..., Scalar]

UNARY = (
    "neg", "abs", "sign", "floor", "ceil", "round", "sqrt", "exp", "expm1", "log", "log1p", "sin", "cos", "tan",
    "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "sigmoid", "is_nan",
    "logical_not", "bit_not",
)  # fmt: skip
BINARY = (
    "add", "sub", "mul", "div", "mod", "fmod", "pow", "minimum", "maximum", "equal", "less", "less_equal",
    "logical_and", "logical_or", "logical_xor", "bit_and", "bit_or", "bit_xor", "shift_left", "shift_right", "quotient",
)  # fmt: skip


class OperationCounter:
    """Counts the operations a body performs per element; every arithmetic, comparing or transcendental one counts 1.

    Casts and constants are free.
    """

    def __init__(self) -> None:
        self.count = 0

    def constant(self, value: float) -> Scalar:
        return None

    def cast(self, x: Scalar, dtype: DType) -> Scalar:
        return None

    def bitcast(self, x: Scalar, dtype: DType) -> Scalar:
        return None

    def select(self, condition: Scalar, x: Scalar, y: Scalar) -> Scalar:
        self.count += 1

    def sigmoid(self, x: Scalar) -> Scalar:
        self.count += 4

    def __getattr__(self, name: str) -> Callable[..., Scalar]:
        if name not in UNARY and name not in BINARY:
            raise AttributeError(f"there is no scalar operation {name!r}")
        return self._operation

    def _operation(self, *operands: Scalar) -> Scalar:
        self.count += 1


def count_operations(body: Body, operands: int, attributes: Mapping[str, Any]) -> int:
    """Operations that `body` performs for one element of its result."""
    counter = OperationCounter()
    body(counter, *[None] * operands, **attributes)
    return counter.count


class NumpyScalars:
    """Computes on whole numpy arrays, in the operands' own dtype."""

    def constant(self, value: float) -> Scalar:
        return value

    def number(self, value: float, dtype: DType, company: Scalar) -> Scalar:
        """A number of `dtype`; a code generator makes as many as its company has lanes."""
        return np.asarray(value, dtype.numpy)

    def cast(self, x: Scalar, dtype: DType) -> Scalar:
        return np.asarray(x).astype(dtype.numpy)

    def bitcast(self, x: Scalar, dtype: DType) -> Scalar:
        """The bits of x as a number of `dtype`, which is as wide."""
        return np.ascontiguousarray(x).view(dtype.numpy).reshape(np.shape(x))

    def select(self, condition: Scalar, x: Scalar, y: Scalar) -> Scalar:
        dtype = next((item.dtype for item in (x, y) if isinstance(item, np.ndarray | np.generic)), None)
        return np.where(condition, np.asarray(x, dtype), np.asarray(y, dtype))

    def div(self, x: Scalar, y: Scalar) -> Scalar:
        x, y = _alike(x, y)
        if x.dtype.kind not in "iu":
            return x / y
        # numpy floors; the remainder of C, which has the dividend's sign, makes the rest divide exactly.
        return ((x - np.fmod(x, y)) // y).astype(x.dtype)

    def quotient(self, x: Scalar, y: Scalar) -> Scalar:
        """x / y of floats, for what is rounded to an integer next. A code generator may give another float where that
        is less than 1/4, and where it is more than 2**22 (which what it gives is, too)."""
        return self.div(x, y)

    def pow(self, x: Scalar, y: Scalar) -> Scalar:
        dtype = np.asarray(x).dtype
        return np.power(np.asarray(x), np.asarray(y)).astype(dtype)

    def shift_left(self, x: Scalar, y: Scalar) -> Scalar:
        return np.left_shift(x, y)

    def shift_right(self, x: Scalar, y: Scalar) -> Scalar:
        return np.right_shift(x, y)

    def sigmoid(self, x: Scalar) -> Scalar:
        return self.div(1, self.add(1, self.exp(self.neg(x))))

    def erf(self, x: Scalar) -> Scalar:
        array = np.asarray(x)
        return np.vectorize(math.erf, otypes=[np.float64])(array.astype(np.float64)).astype(array.dtype)

    def __getattr__(self, name: str) -> Callable[..., Scalar]:
        numpy_name = _NUMPY_NAMES.get(name)
        if numpy_name is None:
            raise AttributeError(f"there is no scalar operation {name!r}")
        function = getattr(np, numpy_name)
        return function if name in UNARY else lambda x, y: function(*_alike(x, y))


def _alike(x: Scalar, y: Scalar) -> tuple[np.ndarray, np.ndarray]:
    """Both as arrays of one dtype: that of the operand which is no Python number, or one that suits two of those."""
    if _is_plain(x):
        dtype = np.result_type(x, y) if _is_plain(y) else np.asarray(y).dtype
        return np.asarray(x, dtype), np.asarray(y, dtype)
    x = np.asarray(x)
    return x, np.asarray(y, x.dtype)


def _is_plain(x: Scalar) -> bool:
    """Whether x is a Python number, which is of no dtype."""
    return isinstance(x, int | float) and not isinstance(x, np.generic)


_NUMPY_NAMES = {
    "neg": "negative", "abs": "abs", "sign": "sign", "floor": "floor", "ceil": "ceil", "round": "rint",
    "sqrt": "sqrt", "exp": "exp", "expm1": "expm1", "log": "log", "log1p": "log1p", "sin": "sin", "cos": "cos",
    "tan": "tan", "asin": "arcsin", "acos": "arccos", "atan": "arctan", "sinh": "sinh", "cosh": "cosh",
    "tanh": "tanh", "asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh", "is_nan": "isnan",
    "logical_not": "logical_not", "bit_not": "bitwise_not",
    "add": "add", "sub": "subtract", "mul": "multiply", "mod": "mod", "fmod": "fmod",
    "minimum": "minimum", "maximum": "maximum", "equal": "equal", "less": "less", "less_equal": "less_equal",
    "logical_and": "logical_and", "logical_or": "logical_or", "logical_xor": "logical_xor",
    "bit_and": "bitwise_and", "bit_or": "bitwise_or", "bit_xor": "bitwise_xor",
}  # fmt: skip
