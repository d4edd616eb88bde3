"""The mask of an attention: one value for all that is added to the scores or chosen in their place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..graph import dtypes
from ..graph.core import Value
from ..graph.dims import prove_equal
from ..graph.ops.masked_rows import lowest, rows_may_be_masked
from .fuse_attention_forms import Operands, scores_dims
from .fuse_attention_scores import Scores, Term, dtype_of, near
from .fuse_attention_views import shape_of
from .fuse_attention_windows import Windows, for_batch_of_windows, mask_objection
from .proofs import same_dims
from .rules import Mismatch

if TYPE_CHECKING:
    from ..graph.builder import OpBuilder
    from ..graph.dims import Dim
    from ..graph.dtypes import DType
    from ..graph.infer import InferenceContext


@dataclass
class Mask:
    """The terms that make the mask, the one that is applied first in front. `few_dims`: they have no axis of heads."""

    terms: list[Term]
    dtype: DType
    few_dims: bool
    windows: Windows | None = None


def choose_mask(
    scores: Scores, operands: Operands, inference: InferenceContext, may_add: bool = True
) -> Mask | Mismatch | None:
    """How to make the mask; None if there is none, a NearMiss if it cannot be said as one.

    `may_add`: the mask of windows may take some operations to make.
    """
    if not scores.terms:
        return None
    dtype = dtype_of(scores.product.results[0])
    assert dtype is not None
    terms = scores.terms[::-1]
    for term in terms:
        rank = shape_of(term.value)
        if rank is None:
            return near("the rank of a mask is not known", term.op, term.value)
        if len(rank) > len(shape_of(term.op.results[0]) or ()):
            return near("the mask may widen the scores", term.op, term.value)
        if term.fill is not None and len(terms) > 1 and not _absorbs(term.fill, dtype):
            return near(f"scores are replaced by {term.fill:g}, and there is another mask", term.op)
        if scores.windows is not None and _is_apart(term):
            reason = mask_objection(scores.windows, term.value, may_add)
            if reason is not None:
                return near(reason, term.op, term.value)
    objection = _widening(scores, operands)
    if objection is not None:
        return objection
    return Mask(terms, dtype, len(scores_dims(scores)) == 3 and not scores.reshaped, scores.windows)


def _is_apart(term: Term) -> bool:
    """Whether the mask is for scores with batch and windows apart."""
    return len(shape_of(term.op.results[0]) or ()) == 5


def _absorbs(fill: float, dtype: DType) -> bool:
    """Whether adding `fill` to a score is as good as putting it in its place.

    The lowest number of f16 is -65504: scores are not lost beside it, and lead beyond it.
    """
    return bool(fill == -np.inf or (dtype is not dtypes.f16 and fill <= lowest(dtype.numpy)))


def _widening(scores: Scores, operands: Operands) -> Mismatch | None:
    """A mask of other dims may give more scores than the product has."""
    before = operands.dims if scores.reshaped else scores_dims(scores)
    values, keys = shape_of(scores.context.operands[1]), scores_dims(scores)[-1]
    assert values is not None
    for term in scores.terms:
        after = shape_of(term.op.results[0])
        if scores.windows is not None and after is not None and _is_apart(term):
            apart = shape_of(scores.windows.split.results[0])
            if apart is None or not same_dims(after[:2], apart[:2]):
                return near("the mask may widen the scores", term.op, term.value)
            after = (before[0], *after[2:])
        first = 1 if operands.broadcast else 0
        fits = after is not None and len(after) == len(before) and same_dims(after[first:-1], before[first:-1])
        if after is None or not fits:
            return near("the mask may widen the scores", term.op, term.value)
        # With as many values as keys, the second product would not fit scores that were widened.
        if prove_equal(after[-1], before[-1]) is not True and prove_equal(keys, values[-2]) is not True:
            return near("the mask may widen the scores", term.op, term.value)
    return None


def build_mask(b: OpBuilder, mask: Mask, keys: Dim, inference: InferenceContext) -> tuple[Value, dict[str, object]]:
    """The mask, and the attributes that say what it does."""
    attributes: dict[str, object] = {}
    if mask.windows is not None:
        terms = [for_batch_of_windows(b, term, mask.windows) if _is_apart(term) else term for term in mask.terms]
        mask = replace(mask, terms=terms)
    if len(mask.terms) == 1 and mask.terms[0].fill is not None:
        term = mask.terms[0]
        value = _negated(b, term.value) if term.inverted else term.value
        fill = mask.terms[0].fill
        attributes["masked_score"] = fill
    else:
        value = _sum(b, mask)
        fill = -np.inf
    shape = shape_of(value)
    if mask.few_dims and shape is not None and len(shape) == 3:
        value = b.unsqueeze(value, [1])
    covers = bool(shape) and prove_equal(shape[-1], keys) is True if shape is not None else False
    hides = fill == -np.inf or fill <= lowest(mask.dtype.numpy)
    if covers and hides and not rows_may_be_masked(value, inference):
        return value, {}
    if fill == -np.inf:
        attributes.pop("masked_score", None)
    return value, {**attributes, "masking": "plain"}


def _negated(b: OpBuilder, value: Value) -> Value:
    producer = value.producer
    if producer is not None and producer.name == "not":
        inner = producer.operands[0]
        assert inner is not None
        return inner
    result: Value = b.create("not", [value]).result
    return result


def _sum(b: OpBuilder, mask: Mask) -> Value:
    """All terms as one that is added."""
    total: Value | None = None
    for term in mask.terms:
        if term.fill is None:
            total = term.value if total is None else b.add(total, term.value)
            continue
        zero = b.const(np.zeros((), mask.dtype.numpy)) if total is None else total
        fill = b.const(np.asarray(term.fill, mask.dtype.numpy))
        total = b.where(term.value, *((fill, zero) if term.inverted else (zero, fill)))
    assert total is not None
    return total
