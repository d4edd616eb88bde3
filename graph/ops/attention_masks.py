"""The masks of an attention: what is done to its scores before the softmax, one after the other.

A boolean mask chooses: where it is false, a number takes the place of the score, whatever that was. Any other mask is
added, which does not hide a score of NaN or infinity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .. import dtypes
from ..core import Value
from ..types import TensorType
from .masked_rows import lowest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..builder import OpBuilder
    from ..core import Operation
    from ..dtypes import DType
    from ..infer import InferenceContext

FIRST = 3
# Masks that are applied after the first follow the operands of the standard.
FURTHER = 7


@dataclass(frozen=True)
class AttentionMask:
    """`score` is what a boolean mask puts in the place of a score that it rules out; None for one that is added."""

    value: Value
    score: float | None


def masks_of(op: Operation) -> list[AttentionMask]:
    """The masks of an `attention`, in the order in which they are applied."""
    found = [] if op.input(FIRST) is None else [(op.input(FIRST), op.attr("masked_score"))]
    further = op.operands[FURTHER:]
    found += zip(further, op.attr("further_scores") or [-np.inf] * len(further), strict=True)
    return [
        AttentionMask(value, float(score) if _dtype(value) is dtypes.bool_ else None)
        for value, score in found
        if value is not None
    ]


def has_further_masks(op: Operation) -> bool:
    return len(op.operands) > FURTHER


def replaces_scores(op: Operation) -> bool:
    """Whether the model puts numbers in the place of scores.

    The standard's operator, which a file may have, only adds; it has no `masked_score`.
    """
    is_written_out = "masked_score" in op.attributes or has_further_masks(op)
    return is_written_out and any(mask.score is not None for mask in masks_of(op))


def not_absorbing(masks: Sequence[AttentionMask], dtype: DType) -> float | None:
    """A number in the place of scores of which adding it to them leaves something; None if there is none.

    The lowest number of f16 is -65504: scores are not lost beside it, and lead beyond it.
    """
    for mask in masks:
        absorbs = mask.score == -np.inf or (dtype is not dtypes.f16 and (mask.score or 0.0) <= lowest(dtype.numpy))
        if mask.score is not None and not absorbs:
            return mask.score
    return None


def sum_of_masks(masks: Sequence[AttentionMask], dtype: DType, b: OpBuilder) -> Value:
    """All masks as one that is added to scores of `dtype`; to those that are finite it does the same."""
    total: Value | None = None
    for mask in masks:
        if mask.score is None:
            total = mask.value if total is None else b.add(total, mask.value)
            continue
        zero = b.const(np.zeros((), dtype.numpy)) if total is None else total
        total = b.where(mask.value, zero, b.const(np.asarray(mask.score, dtype.numpy)))
    assert total is not None
    return total


def constant_sum(masks: Sequence[AttentionMask], dtype: DType, context: InferenceContext) -> np.ndarray | None:
    """The numbers of `sum_of_masks`, if all masks are constants."""
    total = np.zeros((), dtype.numpy)
    for mask in masks:
        array = context.constant(mask.value)
        if array is None:
            return None
        with np.errstate(all="ignore"):
            total = total + array if mask.score is None else np.where(array, total, dtype.numpy.type(mask.score))
    return total


def _dtype(value: Value | None) -> DType | None:
    return value.type.dtype if value is not None and isinstance(value.type, TensorType) else None
