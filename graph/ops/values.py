"""Arithmetic on known elements: how integer tensors that hold shapes move through Add, Mul, Equal, Where, ...

Each function takes elements (int or DimExpr, bool, or Quotient for floats) and gives the exact result, or None if it is
not known.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..dims import Dim, DimExpr, bounds, dim_max, dim_min, prove_equal, prove_less, prove_less_equal
from ..quotient import Quotient

if TYPE_CHECKING:
    from ..dtypes import DType
    from ..infer import SymbolicArray


def map_elements(function: Callable[..., Any], *arrays: SymbolicArray | None) -> SymbolicArray | None:
    """`function` applied element by element to arrays that are broadcast; None if any element comes out None."""
    present = [array for array in arrays if array is not None]
    if len(present) < len(arrays):
        return None
    broadcast = np.broadcast_arrays(*present)
    result = np.empty(broadcast[0].shape, object)
    flat = result.reshape(-1)
    for index, items in enumerate(zip(*(array.flat for array in broadcast), strict=True)):
        item = function(*items)
        if item is None:
            return None
        flat[index] = item
    return result


def as_elements(items: list[Any], shape: tuple[int, ...] | None = None) -> SymbolicArray:
    """`items` as an array of objects, of `shape` (default: a vector)."""
    array = np.empty(len(items), object)
    array[:] = items
    return array if shape is None else array.reshape(shape)


def is_non_negative(dim: Dim) -> bool:
    low = bounds(dim)[0]
    return low is not None and low >= 0


def is_positive(dim: Dim) -> bool:
    low = bounds(dim)[0]
    return low is not None and low > 0


def add(x: Any, y: Any) -> Any:
    return x.plus(y) if isinstance(x, Quotient) else x + y


def sub(x: Any, y: Any) -> Any:
    return x.plus(y.negative()) if isinstance(x, Quotient) else x - y


def mul(x: Any, y: Any) -> Any:
    return x.times(y) if isinstance(x, Quotient) else x * y


def divide(x: Any, y: Any) -> Any:
    """Integers divide toward zero in ONNX, but dims toward minus infinity: so signs must be known."""
    if isinstance(x, Quotient):
        return x.over(y)
    if isinstance(x, int) and isinstance(y, int):
        if y == 0:
            return None
        return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
    # A divisor that is a dim is taken as non-zero: dividing by zero has no result to be wrong about.
    return x // y if is_non_negative(x) and is_non_negative(y) and not _is_zero(y) else None


def modulo(x: Any, y: Any) -> Dim | None:
    """`Mod` with fmod=0: the remainder has the sign of the divisor, as in Python."""
    return None if isinstance(x, Quotient) or _is_zero(y) else x % y


def remainder(x: Any, y: Any) -> Dim | None:
    """`Mod` with fmod=1: the remainder has the sign of the dividend, as in C."""
    if isinstance(x, Quotient):
        return None
    if isinstance(x, int) and isinstance(y, int):
        return None if y == 0 else abs(x) % abs(y) * (-1 if x < 0 else 1)
    return x % y if is_non_negative(x) and is_non_negative(y) and not _is_zero(y) else None


def _is_zero(dim: Dim) -> bool:
    return isinstance(dim, int) and dim == 0


def power(x: Any, y: Any) -> Dim | None:
    """Small constant exponents only."""
    if isinstance(x, Quotient) or not isinstance(y, int) or not 0 <= y <= 4:
        return None
    result: Dim = 1
    for _ in range(y):
        result = result * x
    return result


def negate(x: Any) -> Any:
    return x.negative() if isinstance(x, Quotient) else -x


def floor(x: Quotient) -> Quotient:
    return Quotient(x.floor())


def ceil(x: Quotient) -> Quotient:
    return Quotient(x.ceil())


def round_half_even(x: Quotient) -> Quotient | None:
    return x if x.divisor == 1 else None


def absolute(x: Any) -> Any:
    if isinstance(x, Quotient):
        return x if is_non_negative(x.dividend) else None
    if isinstance(x, int):
        return abs(x)
    if is_non_negative(x):
        return x
    return -x if is_non_negative(-x) else dim_max(x, -x)


def sign(x: Any) -> Any:
    if isinstance(x, int):
        return (x > 0) - (x < 0)
    return 1 if not isinstance(x, Quotient) and is_positive(x) else None


def _integers(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of dims, for quotients as well as long as they are whole."""

    def apply(*items: Any) -> Any:
        if not any(isinstance(item, Quotient) for item in items):
            return function(*items)
        if any(not isinstance(item, Quotient) or item.divisor != 1 for item in items):
            return None
        result = function(*[item.dividend for item in items])
        return Quotient(result) if isinstance(result, int | DimExpr) and not isinstance(result, bool) else result

    return apply


least = _integers(dim_min)
greatest = _integers(dim_max)
equal = _integers(lambda x, y: x == y if isinstance(x, bool) else prove_equal(x, y))
less = _integers(prove_less)
less_equal = _integers(prove_less_equal)
greater = _integers(lambda x, y: prove_less(y, x))
greater_equal = _integers(lambda x, y: prove_less_equal(y, x))


def total(*items: Any) -> Any:
    return functools.reduce(add, items)


def choose(condition: bool, x: Any, y: Any) -> Any:
    return x if condition else y


def convert(item: Any, to: DType) -> Any:
    """`Cast` of one element; a number that the target type cannot hold is refused where elements are checked."""
    if to.kind == "bool":
        dividend = item.dividend if isinstance(item, Quotient) else item
        zero = dividend == 0 if isinstance(dividend, int) else prove_equal(dividend, 0)
        return None if zero is None else not zero
    if to.is_float:
        if isinstance(item, Quotient):
            return item
        return Quotient.exactly(item) if isinstance(item, int | float) else Quotient(item)
    if isinstance(item, Quotient):
        return item.truncated()
    return int(item) if isinstance(item, bool) else item
