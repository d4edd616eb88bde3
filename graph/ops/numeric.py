"""The numpy meaning of elementwise operators, where it is a line or two and exact; the others ask onnx.reference.

A function takes the operands as arrays of one dtype and gives an array of the result's dtype. It is written apart from
the scalar bodies (see `scalar`) on purpose: code is generated from those, and checked against these.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from .. import dtypes
from ..diagnostics import ExecutionError
from ..dtypes import DType

Numeric: TypeAlias = Callable[..., np.ndarray]


def divide(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Division; of integers truncated towards zero (ONNX Div-14: "equivalent to integer division in C++").

    Raises ExecutionError where C++ leaves the result open: division by 0, and the least integer by -1.
    """
    if x.dtype.kind not in "iu":
        return np.asarray(x / y)
    _check_divisor("div", y)
    if x.dtype.kind == "i" and np.any((x == np.iinfo(x.dtype).min) & (y == -1)):
        raise ExecutionError("run/integer-overflow", f"div of {np.iinfo(x.dtype).min} by -1 does not fit {x.dtype}")
    quotient, remainder = np.divmod(x, y)
    return np.asarray(quotient + ((remainder != 0) & ((x < 0) != (y < 0))).astype(x.dtype))


def modulo(x: np.ndarray, y: np.ndarray, fmod: int) -> np.ndarray:
    """The remainder with the sign of the divisor, or of the dividend if `fmod` is 1 (ONNX Mod-13)."""
    if x.dtype.kind in "iu":
        _check_divisor("mod", y)
    return np.asarray(np.fmod(x, y) if fmod else np.mod(x, y))


def _check_divisor(name: str, y: np.ndarray) -> None:
    if not np.all(y):
        raise ExecutionError("run/division-by-zero", f"{name} of integers by zero")


def power(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x to the power y, which may have another dtype; the result has that of x (ONNX Pow-15)."""
    return np.asarray(np.power(x, y)).astype(x.dtype)


def clip(x: np.ndarray, low: np.ndarray | None, high: np.ndarray | None) -> np.ndarray:
    """min(max(x, low), high), so that `high` wins where the bounds cross (ONNX Clip-13)."""
    bounded = x if low is None else np.maximum(x, low)
    return bounded if high is None else np.minimum(bounded, high)


def cast(x: np.ndarray, dtype: DType) -> np.ndarray | None:
    """`x` as `dtype` where C's conversion is all there is to it; None for strings and narrow floats.

    A float that does not fit an integer type gives what this machine gives: ONNX Cast leaves it undefined.
    """
    if dtype.kind == "string" or (dtype.is_float and dtype.bits < 16) or x.dtype.kind in "OUST":
        return None
    if dtype.bits >= 8:
        return x.astype(dtype.numpy)
    return None if dtypes.from_numpy(x.dtype).is_float else _low_bits(x, dtype)


def _low_bits(x: np.ndarray, dtype: DType) -> np.ndarray:
    """Integers as an integer type of fewer than 8 bits: the lowest bits stay, as between C's integer types."""
    shift = 64 - dtype.bits
    kept = x.astype(np.int64) << shift
    return (kept >> shift if dtype.kind == "int" else kept.view(np.uint64) >> shift).astype(np.int8).astype(dtype.numpy)


def _booleans(function: Callable[..., np.ndarray]) -> Numeric:
    # Comparing object arrays (strings) gives an object array.
    return lambda *operands: np.asarray(function(*operands)).astype(np.bool_)


def _over_all(function: Callable[..., np.ndarray]) -> Numeric:
    return lambda *operands: functools.reduce(function, operands)


def _mean(*operands: np.ndarray) -> np.ndarray:
    return np.asarray(_over_all(np.add)(*operands) / operands[0].dtype.type(len(operands)))


_ERF = np.vectorize(math.erf, otypes=[np.float64])


def error_function(x: np.ndarray) -> np.ndarray:
    """In f64, whatever the operand's dtype; onnx.reference gives f32."""
    return np.asarray(_ERF(x.astype(np.float64))).astype(x.dtype)


NUMERIC: dict[str, Numeric] = {
    "Abs": np.abs, "Neg": np.negative, "Sign": np.sign, "Floor": np.floor, "Ceil": np.ceil, "Round": np.rint,
    "Sqrt": np.sqrt, "Reciprocal": np.reciprocal, "Exp": np.exp, "Log": np.log, "Sin": np.sin, "Cos": np.cos,
    "Tan": np.tan, "Asin": np.arcsin, "Acos": np.arccos, "Atan": np.arctan, "Sinh": np.sinh, "Cosh": np.cosh,
    "Tanh": np.tanh, "Asinh": np.arcsinh, "Acosh": np.arccosh, "Atanh": np.arctanh,
    "Relu": lambda x: np.maximum(x, x.dtype.type(0)), "Erf": error_function,
    "Not": np.logical_not, "BitwiseNot": np.bitwise_not, "IsNaN": _booleans(np.isnan),
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": divide, "Pow": power,
    "Equal": _booleans(np.equal), "Less": _booleans(np.less), "LessOrEqual": _booleans(np.less_equal),
    "Greater": _booleans(np.greater), "GreaterOrEqual": _booleans(np.greater_equal),
    "And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor,
    "BitwiseAnd": np.bitwise_and, "BitwiseOr": np.bitwise_or, "BitwiseXor": np.bitwise_xor,
    "Max": _over_all(np.maximum), "Min": _over_all(np.minimum), "Sum": _over_all(np.add),
    "Mean": _mean, "Softsign": lambda x: x / (np.abs(x) + x.dtype.type(1)),
}  # fmt: skip


def check_same_dtype(name: str, *operands: np.ndarray | None) -> None:
    """Raise ExecutionError if the operands that are there differ in dtype: numpy would promote them silently."""
    found = {operand.dtype for operand in operands if operand is not None}
    if len(found) > 1:
        given = ", ".join(str(dtypes.from_numpy(dtype)) for dtype in sorted(found, key=str))
        raise ExecutionError("run/dtype-mismatch", f"{name} needs operands of one element type, got {given}")


def summable(x: np.ndarray) -> np.ndarray:
    """`x` in a dtype in which long sums of products make sense: 16-bit and narrower floats widened to f32."""
    dtype = dtypes.from_numpy(x.dtype)
    return x.astype(np.float32) if dtype.is_float and dtype.bits < 32 else x


def running(combine: np.ufunc, x: np.ndarray, axis: int, exclusive: bool, reverse: bool) -> np.ndarray:
    """Element i combines those up to i along an axis: without itself if `exclusive`, from the end if `reverse`."""
    given = np.flip(x, axis) if reverse else x
    found = np.asarray(combine.accumulate(given, axis, given.dtype))
    if exclusive:
        found = np.roll(found, 1, axis)
        np.moveaxis(found, axis, 0)[:1] = combine.identity
    return np.flip(found, axis).copy() if reverse else found


# ---- reductions: functions of the operand, the axes, and whether these stay as dims of 1 -----------------------------


def reduce_sum(x: np.ndarray, axes: tuple[int, ...], keepdims: bool) -> np.ndarray:
    wide = summable(x)
    return np.asarray(np.sum(wide, axes, wide.dtype, keepdims=keepdims)).astype(x.dtype)


def reduce_product(x: np.ndarray, axes: tuple[int, ...], keepdims: bool) -> np.ndarray:
    wide = summable(x)
    return np.asarray(np.prod(wide, axes, wide.dtype, keepdims=keepdims)).astype(x.dtype)


def reduce_mean(x: np.ndarray, axes: tuple[int, ...], keepdims: bool) -> np.ndarray:
    """The mean; of integers truncated, of no elements NaN."""
    count = int(np.prod([x.shape[axis] for axis in axes], dtype=np.int64))
    wide = summable(x)
    total = np.asarray(np.sum(wide, axes, wide.dtype, keepdims=keepdims))
    return divide(total, np.full((), count, wide.dtype)).astype(x.dtype)


def reduce_max(x: np.ndarray, axes: tuple[int, ...], keepdims: bool) -> np.ndarray:
    """The greatest element; of none the least value of the dtype (ONNX ReduceMax-20)."""
    initial: Any = _extreme(x.dtype, least=True)
    return np.asarray(np.max(x, axes, keepdims=keepdims, initial=initial))


def reduce_min(x: np.ndarray, axes: tuple[int, ...], keepdims: bool) -> np.ndarray:
    """The least element; of none the greatest value of the dtype (ONNX ReduceMin-20)."""
    initial: Any = _extreme(x.dtype, least=False)
    return np.asarray(np.min(x, axes, keepdims=keepdims, initial=initial))


def _extreme(dtype: np.dtype, least: bool) -> np.ndarray:
    kind = dtypes.from_numpy(dtype)
    if kind is dtypes.bool_:
        return np.array(not least)
    if kind.is_integer:
        limits = np.iinfo(dtype)
        return np.array(limits.min if least else limits.max, dtype)
    return np.array(-np.inf if least else np.inf, dtype)


def reduce_l1(x: np.ndarray, axes: tuple[int, ...], keepdims: bool) -> np.ndarray:
    return reduce_sum(np.abs(x), axes, keepdims)


def reduce_l2(x: np.ndarray, axes: tuple[int, ...], keepdims: bool) -> np.ndarray:
    """The root of the sum of squares; of integers truncated."""
    wide = x.astype(np.float64) if x.dtype.kind in "iu" else summable(x)
    return np.asarray(np.sqrt(reduce_sum(wide * wide, axes, keepdims))).astype(x.dtype)


def reduce_sum_square(x: np.ndarray, axes: tuple[int, ...], keepdims: bool) -> np.ndarray:
    wide = summable(x)
    return reduce_sum(wide * wide, axes, keepdims).astype(x.dtype)


def reduce_log_sum(x: np.ndarray, axes: tuple[int, ...], keepdims: bool) -> np.ndarray:
    """The logarithm of the sum; of integers truncated."""
    wide = x.astype(np.float64) if x.dtype.kind in "iu" else summable(x)
    return np.asarray(np.log(reduce_sum(wide, axes, keepdims))).astype(x.dtype)


def reduce_log_sum_exp(x: np.ndarray, axes: tuple[int, ...], keepdims: bool) -> np.ndarray:
    """log(sum(exp(x))), with the greatest element taken out so that nothing overflows; of integers truncated."""
    wide = x.astype(np.float64) if x.dtype.kind in "iu" else summable(x)
    greatest = reduce_max(wide, axes, True)
    shift = np.where(np.isfinite(greatest), greatest, 0)
    total = reduce_sum(np.exp(wide - shift), axes, keepdims)
    return np.asarray(np.log(total) + shift.reshape(total.shape)).astype(x.dtype)


REDUCING: dict[str, Callable[[np.ndarray, tuple[int, ...], bool], np.ndarray]] = {
    "ReduceSum": reduce_sum, "ReduceProd": reduce_product, "ReduceMean": reduce_mean, "ReduceMax": reduce_max,
    "ReduceMin": reduce_min, "ReduceL1": reduce_l1, "ReduceL2": reduce_l2, "ReduceSumSquare": reduce_sum_square,
    "ReduceLogSum": reduce_log_sum, "ReduceLogSumExp": reduce_log_sum_exp,
}  # fmt: skip
