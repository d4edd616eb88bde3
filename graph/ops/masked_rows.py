"""Can a mask keep a query from seeing any key at all?

Where it can, what attention gives there depends on how it is written: a softmax over nothing but -inf is NaN, over
nothing but one large negative number uniform, and the operator Attention of the standard says zeros (ONNX Runtime also
for rows of the lowest finite number).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ..core import Value
    from ..infer import InferenceContext

# A bias above this share of the lowest finite number leaves a key visible, in every runtime.
_VISIBLE = 0.5


def rows_may_be_masked(mask: Value, context: InferenceContext, causal: bool = False) -> bool:
    """Whether some row of `mask` (with the causal mask, too) may leave no key visible, as far as is known.

    `mask` is boolean, true where a key counts, or is added to the scores.
    """
    data = context.data(mask)
    if data is not None:
        return not rows_are_visible(data.numpy(), causal)
    least = _least(mask, context)
    if least is not None and least > _VISIBLE * lowest(_dtype(mask)):
        return False  # nothing is hidden
    return not is_lower_triangular(mask, context)


_MOVEMENTS = frozenset({"reshape", "expand", "squeeze", "unsqueeze", "transpose", "tile", "identity"})


def _least(value: Value, context: InferenceContext, depth: int = 8) -> float | None:
    """A number that no element of a sum of constants is less than; None if there is none, or NaN or +inf in it."""
    data = context.data(value)
    if data is not None:
        array = data.numpy()
        if not data.dtype.is_float or not array.size:
            return None
        wide = array.astype(np.float64)
        return float(wide.min()) if np.isfinite(wide).all() else None
    producer = value.producer
    if producer is None or not depth:
        return None
    if producer.name in _MOVEMENTS and producer.operands[0] is not None:
        return _least(producer.operands[0], context, depth - 1)
    if producer.name == "add":
        terms = [_least(operand, context, depth - 1) for operand in producer.operand_values]
        return sum(term for term in terms if term is not None) if None not in terms else None
    return None


def _dtype(value: Value) -> np.dtype:
    from ..types import TensorType

    assert isinstance(value.type, TensorType)
    return value.type.dtype.numpy


def rows_are_visible(array: np.ndarray, causal: bool = False) -> bool:
    """Whether each row of a mask leaves a key visible."""
    if array.size == 0 or array.ndim == 0:
        return False
    if array.dtype.kind == "b":
        visible = array
    else:
        wide = array.astype(np.float64)
        if np.isnan(wide).any() or np.isposinf(wide).any():
            return False
        visible = wide > _VISIBLE * lowest(array.dtype)
    # The first key is visible to every query under the causal mask.
    return bool(visible[..., 0].all()) if causal else bool(visible.any(axis=-1).all())


def lowest(dtype: np.dtype) -> float:
    """The least finite number of a floating-point type."""
    from ml_dtypes import finfo

    limits: Any = finfo  # its package has no annotations
    return float(limits(dtype).min)


def is_lower_triangular(mask: Value, context: InferenceContext) -> bool:
    """Whether `mask` lets query i see keys 0 to i, and no others; False if that is not known.

    A constant, or `where(equal(trilu(expand(1, size), upper=0), 0), lowest, 0)`, which torch writes for `is_causal`.
    """
    data = context.data(mask)
    if data is not None:
        return _is_lower_constant(data.numpy())
    producer = mask.producer
    if producer is None or producer.name != "where":
        return False
    condition, masked, visible = producer.operands
    low, zero = _number(masked, context), _number(visible, context)
    if low is None or zero != 0 or condition is None:
        return False
    data = context.data(masked)
    assert data is not None
    return low <= _VISIBLE * lowest(data.dtype.numpy) and _is_upper_part(condition, context)


def _is_lower_constant(array: np.ndarray) -> bool:
    if array.ndim < 2 or not array.size or array.shape[:-2] != (1,) * (array.ndim - 2):
        return False
    lower = np.tri(array.shape[-2], array.shape[-1]) > 0
    if array.dtype.kind == "b":
        return bool((array == lower).all())
    hidden = array <= _VISIBLE * lowest(array.dtype)
    return bool((hidden == ~lower).all() and (array[np.broadcast_to(lower, array.shape)] == 0).all())


def _is_upper_part(condition: Value, context: InferenceContext) -> bool:
    producer = condition.producer
    if producer is None:
        return False
    if producer.name == "equal":
        sides = producer.operands
        for left, right in (sides, sides[::-1]):
            if left is not None and _number(right, context) == 0:
                return _is_lower_ones(left, context)
    if producer.name == "not":
        inner = producer.input(0)
        return inner is not None and _is_lower_ones(inner, context)
    return False


def _is_lower_ones(value: Value, context: InferenceContext) -> bool:
    """A Trilu that keeps ones on and below the main diagonal."""
    producer = value.producer
    if producer is None or producer.name != "trilu" or producer.attr("upper", 1):
        return False
    diagonal = producer.input(1)
    if diagonal is not None and _number(diagonal, context) != 0:
        return False
    filled = producer.input(0)
    expand = filled.producer if filled is not None else None
    return expand is not None and expand.name == "expand" and _number(expand.input(0), context) == 1


def _number(value: Value | None, context: InferenceContext) -> float | None:
    """The number that every element of a constant is."""
    data = context.data(value)
    if data is None or not data.elements or data.elements > 1 or data.dtype.kind == "string":
        return None
    return float(data.numpy().reshape(()).item())
