"""Can a mask keep a query from seeing any key at all?

Where it can, what attention gives there depends on how it is written: a softmax over nothing but -inf is NaN, over
nothing but one large negative number uniform, and the operator Attention of the standard says zeros (ONNX Runtime also
for rows of the lowest finite number).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ..core import Operation, Value
    from ..infer import InferenceContext

# A bias above this share of the lowest finite number leaves a key visible, in every runtime.
_VISIBLE = 0.5


def rows_may_be_masked(mask: Value, context: InferenceContext, causal: bool = False) -> bool:
    """Whether some row of `mask` (with the causal mask, too) may leave no key visible, as far as is known.

    `mask` is boolean, true where a key counts, or is added to the scores.
    """
    data = context.data(mask)
    if data is not None:
        return not _rows_are_visible(data.numpy(), causal)
    return not (is_lower_triangular(mask, context) is not None)


def _rows_are_visible(array: np.ndarray, causal: bool) -> bool:
    if array.size == 0 or array.ndim == 0:
        return False
    if array.dtype.kind == "b":
        visible = array
    else:
        wide = array.astype(np.float64) if array.dtype.itemsize < 8 else array
        lowest = float(np.finfo(array.dtype).min) if array.dtype.kind == "f" else -np.inf
        visible = np.isfinite(wide) & (wide > _VISIBLE * lowest)
        if np.isnan(wide).any() or np.isposinf(wide).any():
            return False
    # The first key is visible to every query under the causal mask.
    return bool(visible[..., 0].all()) if causal else bool(visible.any(axis=-1).all())


def is_lower_triangular(mask: Value, context: InferenceContext) -> Operation | None:
    """The Trilu at the origin of a mask that lets query i see keys 0 to i; None if the mask is not known to be so.

    Such as `where(equal(trilu(expand(1, size), upper=0), 0), lowest, 0)`, which torch writes for `is_causal`.
    """
    producer = mask.producer
    if producer is None:
        return None
    if producer.name == "where":
        condition, masked, visible = producer.operands
        low, zero = _number(masked, context), _number(visible, context)
        if low is None or zero != 0 or condition is None or not _is_hiding(low, masked):
            return None
        return _is_upper_part(condition, context)
    return None


def _is_hiding(number: float, like: Value | None) -> bool:
    """Whether a key with this bias gets no weight beside a visible one."""
    return number <= -1e9


def _is_upper_part(condition: Value, context: InferenceContext) -> Operation | None:
    producer = condition.producer
    if producer is None:
        return None
    if producer.name == "equal":
        sides = producer.operands
        for left, right in (sides, sides[::-1]):
            if left is not None and _number(right, context) == 0:
                return _is_lower_ones(left, context)
    if producer.name == "not":
        inner = producer.input(0)
        return None if inner is None else _is_lower_ones(inner, context)
    return None


def _is_lower_ones(value: Value, context: InferenceContext) -> Operation | None:
    """A Trilu that keeps ones on and below the main diagonal."""
    producer = value.producer
    if producer is None or producer.name != "trilu" or producer.attr("upper", 1):
        return None
    diagonal = producer.input(1)
    if diagonal is not None and _number(diagonal, context) != 0:
        return None
    filled = producer.input(0)
    expand = filled.producer if filled is not None else None
    if expand is None or expand.name != "expand":
        return None
    one = _number(expand.input(0), context)
    return producer if one is not None and one == 1 else None


def _number(value: Value | None, context: InferenceContext) -> float | None:
    """The number that every element of a constant is."""
    data = context.data(value)
    if data is None or not data.elements or data.elements > 1 or data.dtype.kind == "string":
        return None
    return float(data.numpy().reshape(()).item())
