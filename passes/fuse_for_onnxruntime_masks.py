"""Masks as ONNX Runtime's attention operators take them. Part of fuse-for-onnxruntime.

They add a bias of [batch or 1, heads or 1, queries, keys] to the scores, and then make a plain softmax: a row of -inf
gives NaN, one of the lowest finite number a uniform row, as if written out. So nothing has to be known of masked rows,
but where an attention promises zeros for them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..graph.builder import OpBuilder
from ..graph.core import Operation, Value
from ..graph.dims import Dim, prove_equal
from ..graph.dtypes import f32
from ..graph.ops.attention_masks import AttentionMask, has_further_masks, masks_of, not_absorbing, sum_of_masks
from ..graph.ops.masked_rows import is_lower_triangular, lowest, rows_may_be_masked
from ..graph.types import TensorType
from .fuse_attention_views import shape_of
from .rules import Match, Mismatch

_LOWEST = lowest(np.dtype(np.float32))


@dataclass(frozen=True)
class RuntimeMask:
    """What is done to the scores. `bias` is the mask that is added, or a condition that stands for 0 and `fill`;
    `several` are masks to be summed up instead; `guarded`: queries without keys give zeros."""

    causal: bool = False
    bias: Value | None = None
    fill: float | None = None
    guarded: bool = False
    several: tuple[AttentionMask, ...] = ()


def read_mask(m: Match, op: Operation, queries: Dim, keys: Dim) -> RuntimeMask | Mismatch:
    """The mask of an attention, or why ONNX Runtime's operators cannot say it."""
    mask, causal = op.input(3), bool(op.attr("is_causal"))
    square = prove_equal(queries, keys) is True
    if causal and not square:
        return m.fail("it is causal, and queries and keys are not known to be equally many", op)
    if mask is None:
        return RuntimeMask(causal)
    if has_further_masks(op):
        return _several(m, op)
    shape, fill = shape_of(mask), float(op.attr("masked_score"))
    if shape is None or not 2 <= len(shape) <= 4:
        return m.fail("the mask has not 2 to 4 dims", mask)
    if not causal and square and fill <= _LOWEST and _is_causal(m, mask, queries):
        return RuntimeMask(True)
    is_bool = str(m.dtype(mask)) == "bool"
    if not is_bool and str(m.dtype(mask)) != "f32":
        return m.fail("the mask is neither bool nor f32", mask)
    if is_bool and fill != -np.inf and fill > _LOWEST:
        return m.fail(f"scores are replaced by {fill:g}", mask)
    masking, hides = op.attr("masking"), rows_may_be_masked(mask, m.inference, causal)
    if masking == "standard" and prove_equal(shape[-1], keys) is not True:
        return m.fail("the mask may be too short, for which the standard has a rule", mask)
    if masking == "standard" and hides and not is_bool:
        # ONNX Runtime's Attention gives zeros for rows of the lowest number, too, so the original may do either.
        return m.fail("the mask may leave a query no key, for which the standard gives zeros", mask)
    if causal and hides:
        return m.fail("the mask may leave a query no key that is not hidden by being causal", mask)
    # Half of the lowest number, so that adding a score to it does not overflow.
    number = (-np.inf if fill == -np.inf else _LOWEST / 2) if is_bool else None
    guarded = masking != "plain" and hides
    if guarded and len(shape) > 2 and shape[-3] != 1:
        return m.fail("heads have masks of their own, and queries without keys give zeros", mask)
    return RuntimeMask(causal, mask, number, guarded)


def _several(m: Match, op: Operation) -> RuntimeMask | Mismatch:
    """Masks that are added and conditions, as one that is added."""
    masks, guarded = masks_of(op), op.attr("masking") == "nan-to-zero"
    for mask in masks:
        shape = shape_of(mask.value)
        if shape is None or len(shape) > 4:
            return m.fail("a mask has not up to 4 dims", mask.value)
        if mask.score is None and str(m.dtype(mask.value)) != "f32":
            return m.fail("a mask is neither bool nor f32", mask.value)
        if guarded and len(shape) > 2 and shape[-3] != 1:
            return m.fail("heads have masks of their own, and queries without keys give zeros", mask.value)
    remaining = not_absorbing(masks, f32)
    if remaining is not None:
        return m.fail(f"scores are replaced by {remaining:g}, and there is another mask", op)
    if op.attr("is_causal"):
        return m.fail("it is causal and has several masks", op)
    return RuntimeMask(guarded=guarded, several=tuple(masks))


def _is_causal(m: Match, mask: Value, queries: Dim) -> bool:
    shape = shape_of(mask)
    fits = shape is not None and all(prove_equal(dim, queries) is True for dim in shape[-2:])
    return fits and all(dim == 1 for dim in (shape or ())[:-2]) and is_lower_triangular(mask, m.inference)


def build_bias(b: OpBuilder, mask: RuntimeMask, query: Value, key: Value, past: Value | None = None) -> Value | None:
    """The mask as a bias of four dims, the last two those of queries and keys.

    These are [batch, length, width] or [batch, heads, length, size]; `past` has keys that come before `key`.
    """
    bias = sum_of_masks(mask.several, f32, b) if mask.several else mask.bias
    if bias is None:
        return None
    if mask.fill is not None:
        bias = b.where(bias, np.zeros((), np.float32), np.asarray(mask.fill, np.float32))
    shape = shape_of(bias)
    assert shape is not None
    if len(shape) < 4:
        bias = b.unsqueeze(bias, list(range(4 - len(shape))))
        shape = (*[1] * (4 - len(shape)), *shape)
    return _expanded(b, bias, shape, query, key, past)


def _expanded(b: OpBuilder, bias: Value, shape: tuple[Dim, ...], query: Value, key: Value, past: Value | None) -> Value:
    lengths = [(shape_of(value) or ())[-2] for value in (query, key)]
    if past is not None:
        lengths[1] = lengths[1] + (shape_of(past) or ())[-2]
    fits = [prove_equal(have, length) is True for have, length in zip(shape[-2:], lengths, strict=True)]
    if all(fits):
        return bias
    if all(isinstance(length, int) for length in lengths):
        wide = b.expand(bias, lengths)
    else:
        square = prove_equal(lengths[0], lengths[1]) is True
        queries = b.const([1]) if fits[0] else length_of(b, query)
        keys = b.const([1]) if fits[1] else queries if square and not fits[0] else all_keys(b, key, past)
        wide = b.expand(bias, b.concat(queries, keys, axis=0))
    result: Value = wide
    # A mask is broadcast to the scores, never the other way round.
    if isinstance(result.type, TensorType):
        result.type = result.type.with_shape([*shape[:-2], *lengths])
    return result


def length_of(b: OpBuilder, value: Value) -> Value:
    """The last dim but one, as a vector of one element."""
    result: Value = b.shape(value, start=-2, end=-1)
    return result


def all_keys(b: OpBuilder, key: Value, past: Value | None) -> Value:
    """The number of keys, those of the past included, as a vector of one element."""
    new = length_of(b, key)
    result: Value = new if past is None else b.add(new, length_of(b, past))
    return result


def zeros_for_hidden(b: OpBuilder, bias: Value, result: Value) -> Value:
    """`result`, [batch, queries, width], with zeros for queries that `bias`, of one head, leaves no key."""
    most = b.reduce_max(b.squeeze(bias, [1]), [-1], keepdims=1)
    visible = b.greater(most, np.asarray(-np.inf, np.float32))
    chosen: Value = b.where(visible, result, np.zeros((), np.float32))
    return chosen


__all__ = ["RuntimeMask", "all_keys", "build_bias", "length_of", "read_mask", "zeros_for_hidden"]
