"""Arithmetic on known elements: how integer tensors that hold shapes move through Add, Mul, Equal, Where, ...

Each function takes elements (int, bool or DimExpr) and gives the exact result, or None if it is not known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..dims import Dim, bounds, dim_max, dim_min, prove_equal, prove_less, prove_less_equal

if TYPE_CHECKING:
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


def add(x: Dim, y: Dim) -> Dim:
    return x + y


def sub(x: Dim, y: Dim) -> Dim:
    return x - y


def mul(x: Dim, y: Dim) -> Dim:
    return x * y


def divide(x: Dim, y: Dim) -> Dim | None:
    """Integer division as ONNX has it: toward zero. Dims divide toward minus infinity, so signs must be known."""
    if isinstance(x, int) and isinstance(y, int):
        if y == 0:
            return None
        return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
    # A divisor that is a dim is taken as non-zero: dividing by zero has no result to be wrong about.
    return x // y if is_non_negative(x) and is_non_negative(y) and not _is_zero(y) else None


def modulo(x: Dim, y: Dim) -> Dim | None:
    """`Mod` with fmod=0: the remainder has the sign of the divisor, as in Python."""
    return None if _is_zero(y) else x % y


def remainder(x: Dim, y: Dim) -> Dim | None:
    """`Mod` with fmod=1: the remainder has the sign of the dividend, as in C."""
    if isinstance(x, int) and isinstance(y, int):
        return None if y == 0 else abs(x) % abs(y) * (-1 if x < 0 else 1)
    return x % y if is_non_negative(x) and is_non_negative(y) and not _is_zero(y) else None


def _is_zero(dim: Dim) -> bool:
    return isinstance(dim, int) and dim == 0


def power(x: Dim, y: Dim) -> Dim | None:
    """Small constant exponents only."""
    if not isinstance(y, int) or not 0 <= y <= 4:
        return None
    result: Dim = 1
    for _ in range(y):
        result = result * x
    return result


def negate(x: Dim) -> Dim:
    return -x


def absolute(x: Dim) -> Dim:
    if isinstance(x, int):
        return abs(x)
    if is_non_negative(x):
        return x
    return -x if is_non_negative(-x) else dim_max(x, -x)


def sign(x: Dim) -> Dim | None:
    if isinstance(x, int):
        return (x > 0) - (x < 0)
    return 1 if is_positive(x) else None


def least(*items: Dim) -> Dim:
    return dim_min(*items)


def greatest(*items: Dim) -> Dim:
    return dim_max(*items)


def total(*items: Dim) -> Dim:
    result: Dim = 0
    for item in items:
        result = result + item
    return result


def equal(x: Dim, y: Dim) -> bool | None:
    return x == y if isinstance(x, bool) else prove_equal(x, y)


def less(x: Dim, y: Dim) -> bool | None:
    return prove_less(x, y)


def less_equal(x: Dim, y: Dim) -> bool | None:
    return prove_less_equal(x, y)


def greater(x: Dim, y: Dim) -> bool | None:
    return prove_less(y, x)


def greater_equal(x: Dim, y: Dim) -> bool | None:
    return prove_less_equal(y, x)


def choose(condition: bool, x: Any, y: Any) -> Any:
    return x if condition else y
