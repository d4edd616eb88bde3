"""The masks of an attention: what is added to the scores or put in their place.

Neighbours of one kind are one mask: sums, and conditions that put in the same number. Others stay apart, as an addition
and a choice are not the same where a score is NaN or infinite.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..graph import dtypes
from ..graph.core import Value
from ..graph.data import UnresolvedData
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
    """The terms that make the mask, the one that is applied first in front. `few_dims`: they have no axis of heads.

    `repeats_key`: a single key is repeated where the mask is for several.
    """

    terms: list[Term]
    dtype: DType
    few_dims: bool
    windows: Windows | None = None
    repeats_key: bool = False


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
        if scores.windows is not None and _is_apart(term):
            reason = mask_objection(scores.windows, term.value, may_add)
            if reason is not None:
                return near(reason, term.op, term.value)
    objection = _widening(scores, operands)
    if objection is not None:
        return objection
    repeats_key = _repeats_key(scores)
    if not repeats_key:
        terms = [term for term in terms if not is_neutral(term.value, inference, term.inverted)]
        if not terms:
            return None
    few_dims = len(scores_dims(scores)) == 3 and not scores.reshaped
    return Mask(terms, dtype, few_dims, scores.windows, repeats_key)


def is_neutral(mask: Value | None, inference: InferenceContext, inverted: bool = False) -> bool:
    """Whether a mask is a constant that changes no weight: zeros to be added, or a condition that hides no score.

    (-0.0 + 0.0 is 0.0, which makes no difference to a softmax.)
    """
    data = inference.data(mask)
    if data is None or isinstance(data, UnresolvedData) or not (data.dtype.is_float or data.dtype is dtypes.bool_):
        return False
    array = data.numpy()
    neutral = data.dtype is dtypes.bool_ and not inverted
    # The first element tells nearly all masks apart, whose others are not read then.
    return bool(array.size and array.flat[0] == neutral and (array == neutral).all())


def _is_apart(term: Term) -> bool:
    """Whether the mask is for scores with batch and windows apart."""
    return len(shape_of(term.op.results[0]) or ()) == 5


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
        is_as_long = prove_equal(after[-1], before[-1]) is True or prove_equal(keys, values[-2]) is True
        if not is_as_long and not _repeats_key(scores):
            return near("the mask may widen the scores", term.op, term.value)
    return None


def _repeats_key(scores: Scores) -> bool:
    """Whether the mask, which is the only one, may be for several keys where there is one: its score is repeated then,
    as it is if that key is."""
    values, keys = shape_of(scores.context.operands[1]), scores_dims(scores)[-1]
    if len(scores.terms) != 1 or scores.windows is not None or scores.reshaped or values is None:
        return False
    wide = shape_of(scores.terms[0].op.results[0])
    if wide is None or prove_equal(keys, values[-2]) is True or prove_equal(keys, wide[-1]) is True:
        return False
    return prove_equal(keys, 1) is not False


def build_masks(
    b: OpBuilder, mask: Mask, keys: Dim, inference: InferenceContext
) -> tuple[list[Value], dict[str, object]]:
    """The masks in the order in which they are applied, and the attributes that say what they do."""
    terms = mask.terms
    if mask.windows is not None:
        terms = [for_batch_of_windows(b, term, mask.windows) if _is_apart(term) else term for term in terms]
    terms = _merged(b, terms, inference)
    values = [_four_dims(b, _where_it_counts(b, term), mask.few_dims) for term in terms]
    fills = [-np.inf if term.fill is None else term.fill for term in terms]
    # Said of -inf, too: the standard's operator, which a file may have, has no such attribute and adds.
    attributes: dict[str, object] = {} if terms[0].fill is None else {"masked_score": fills[0]}
    if len(terms) > 1:
        return values, {**attributes, "further_scores": tuple(fills[1:]), "masking": "plain"}
    shape = shape_of(values[0])
    covers = bool(shape) and prove_equal(shape[-1], keys) is True if shape is not None else False
    hides = fills[0] <= lowest(mask.dtype.numpy)
    if covers and hides and not rows_may_be_masked(values[0], inference):
        return values, {} if terms[0].fill is None else {"masked_score": -np.inf}
    return values, {**attributes, "masking": "plain"}


def _merged(b: OpBuilder, terms: list[Term], inference: InferenceContext) -> list[Term]:
    """Fewer masks that do the same to every score, NaN and infinity too."""
    merged = terms[:1]
    for term in terms[1:]:
        last = merged[-1]
        both = None if term.fill != last.fill else _both(b, last, term, inference)
        if both is None:
            merged.append(term)
        else:
            merged[-1] = both
    return merged


def _both(b: OpBuilder, first: Term, second: Term, inference: InferenceContext) -> Term | None:
    """One mask for two that put in the same number, or are added; None where that takes two operations."""
    if first.fill is None:
        return replace(second, value=b.add(first.value, second.value))
    if first.inverted != second.inverted:
        turned = [(_turned(b, term, inference), other) for term, other in ((first, second), (second, first))]
        found = next(((term, other) for term, other in turned if term is not None), None)
        if found is None:
            return None
        first, second = found
    join = b.or_ if first.inverted else b.and_
    return replace(second, value=join(first.value, second.value))


def _turned(b: OpBuilder, term: Term, inference: InferenceContext) -> Term | None:
    """The term with the opposite condition, where that takes no operation."""
    array, producer = inference.constant(term.value), term.value.producer
    if array is not None:
        return replace(term, value=b.const(~array), inverted=not term.inverted)
    if producer is not None and producer.name == "not" and producer.operands[0] is not None:
        return replace(term, value=producer.operands[0], inverted=not term.inverted)
    return None


def _where_it_counts(b: OpBuilder, term: Term) -> Value:
    return _negated(b, term.value) if term.inverted else term.value


def _four_dims(b: OpBuilder, value: Value, few_dims: bool) -> Value:
    """A mask of scores that have no axis of heads, with one."""
    result: Value = b.unsqueeze(value, [1]) if few_dims and len(shape_of(value) or ()) == 3 else value
    return result


def _negated(b: OpBuilder, value: Value) -> Value:
    producer = value.producer
    if producer is not None and producer.name == "not":
        inner = producer.operands[0]
        assert inner is not None
        return inner
    result: Value = b.create("not", [value]).result
    return result
