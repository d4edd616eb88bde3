"""Attention made of simpler operators, in as few as there are for each case.

What makes an operand is looked through where that saves an operation: the keys of `transpose(reshape(x))` are needed
transposed, which is one other Transpose of the same reshape.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import dtypes
from ..dims import prove_equal
from ..types import TensorType
from .attention_masks import AttentionMask, masks_of
from .masked_rows import rows_may_be_masked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..builder import OpBuilder
    from ..core import Operation, Value
    from ..dims import Dim
    from ..infer import InferenceContext


def shape_of_value(value: Value | None) -> tuple[Dim, ...] | None:
    """The dims of a tensor; None if its rank is unknown or the value is left out."""
    return value.type.shape if value is not None and isinstance(value.type, TensorType) else None


def dtype_of_value(value: Value) -> dtypes.DType:
    assert isinstance(value.type, TensorType)
    return value.type.dtype


@dataclass
class Heads:
    """The operands of an attention per head: numbers of heads, sizes of a head, whether they come packed."""

    queries: int
    keys: int
    size: int
    value_size: int
    packed: bool

    @property
    def repeats(self) -> int:
        """How many heads of queries share a head of keys."""
        return self.queries // self.keys


def heads_of(op: Operation) -> Heads | None:
    """None if a rank, a number of heads or the size of a head is not known."""
    shapes = [shape_of_value(op.input(index)) for index in range(3)]
    query, key, value = shapes
    if query is None or key is None or value is None or not len(query) == len(key) == len(value):
        return None
    if len(query) == 4:
        return _whole(query[1], key[1], query[3], value[3], packed=False)
    queries, keys = op.attr("q_num_heads"), op.attr("kv_num_heads")
    if len(query) != 3 or not queries or not keys:
        return None
    if not isinstance(query[2], int) or not isinstance(value[2], int):
        return None
    return _whole(queries, keys, query[2] // queries, value[2] // keys, packed=True)


def _whole(queries: Dim, keys: Dim, size: Dim, value_size: Dim, packed: bool) -> Heads | None:
    """The numbers, if all of them are known and queries can share keys evenly."""
    if not (isinstance(queries, int) and isinstance(keys, int) and isinstance(size, int)):
        return None
    if not isinstance(value_size, int) or min(queries, keys, size, value_size) < 1 or queries % keys:
        return None
    return Heads(queries, keys, size, value_size, packed)


class AttentionParts:
    """Builds one attention. `build` gives its results, or None if a part of the operator is not covered here."""

    def __init__(self, op: Operation, builder: OpBuilder, context: InferenceContext) -> None:
        self.op, self.b, self.context = op, builder, context

    def build(self) -> list[Value] | None:
        op, b = self.op, self.b
        heads = heads_of(op) or self._any_heads()
        if heads is None or self._has_other_parts():
            return None
        total, masks = self._total_length(), masks_of(op)
        if not all(self._mask_is_broadcast(mask.value, total) for mask in masks):
            return None
        dtype = dtype_of_value(self._operand(0))
        scale = op.attr("scale")
        if scale is None:
            scale = 1.0 / heads.size**0.5
        flat = self._one_head(heads, scale)
        if flat is not None:
            return [flat]
        keys, present_key = self._keys(heads)
        values, present_value = self._values(heads)
        scores = self._capped(b.matmul(self._scaled(self._queries(heads), scale), keys))
        weights = self._weights(self._masked(scores, masks), dtype)
        result = b.matmul(weights, values)
        if heads.packed:
            result = b.reshape(b.transpose(result, perm=[0, 2, 1, 3]), [0, 0, heads.queries * heads.value_size])
        return [result, present_key, present_value][: max(1, len(op.results))]

    def _any_heads(self) -> Heads | None:
        """Heads of which only is known that each one of queries has its own keys, or all have the same: nothing depends
        on how many there are, nor on their sizes if the scale is given."""
        shapes = [shape_of_value(self.op.input(index)) for index in range(3)]
        query, key, value = shapes
        if query is None or key is None or value is None or not len(query) == len(key) == len(value) == 4:
            return None
        size = query[3] if isinstance(query[3], int) else 0
        is_one_to_one = key[1] == 1 or prove_equal(query[1], key[1]) is True
        if not is_one_to_one or not (size or self.op.attr("scale") is not None):
            return None
        return Heads(1, 1, size, 0, packed=False)

    def _has_other_parts(self) -> bool:
        op = self.op
        # One that a file leaves out has the name "", one that was just made has none yet, and no users.
        used = [result for result in op.results[3:] if result.use_count or result.name != ""]
        windows = [op.attr(name, -1) for name in ("left_window_size", "right_window_size")]
        return bool(used) or op.input(6) is not None or any(size != -1 for size in windows)

    def _operand(self, index: int) -> Value:
        """An operand; keys and values that are repeated for each of the batch are left to the products to broadcast."""
        value = self.op.input(index)
        assert value is not None
        if index in (1, 2) and self.op.input(4) is None and len(self.op.results) == 1:
            value = _before_batch(value)
        return self._before_repetition(value) if index == 1 else value

    def _before_repetition(self, key: Value) -> Value:
        """The key that an Expand repeated for each key of the mask: the mask repeats its score as well."""
        producer, mask = key.producer, shape_of_value(self.op.input(3))
        if producer is None or producer.name != "expand" or mask is None or len(masks_of(self.op)) != 1:
            return key
        inner, target = producer.input(0), self.context.symbolic(producer.input(1))
        before = shape_of_value(inner)
        if inner is None or before is None or target is None or len(before) != target.size:
            return key
        lengthens = all(dim == 1 for place, dim in enumerate(target) if place != target.size - 2)
        return inner if lengthens and prove_equal(target[-2], mask[-1]) is True else key

    def _one_head(self, heads: Heads, scale: float) -> Value | None:
        """[batch, length, size] with one head are their own heads: nothing needs to be moved."""
        op, b = self.op, self.b
        if not heads.packed or heads.queries > 1 or op.input(4) is not None or len(op.results) > 1:
            return None
        masks = []
        for mask in masks_of(op):
            shape = shape_of_value(mask.value)
            flat = mask.value if shape is not None and len(shape) <= 2 else _without_heads(mask.value, self.context)
            if flat is None:
                return None
            masks.append(replace(mask, value=flat))
        query, key, value = (self._operand(index) for index in range(3))
        scores = self._capped(b.matmul(self._scaled(query, scale), transposed_through(b, key, (0, 2, 1))))
        result: Value = b.matmul(self._weights(self._masked(scores, masks), dtype_of_value(query)), value)
        return result

    def _capped(self, scores: Value) -> Value:
        if not self.op.attr("softcap"):
            return scores
        cap = self.b.const(np.asarray(self.op.attr("softcap"), dtype_of_value(scores).numpy))
        result: Value = self.b.mul(self.b.tanh(self.b.div(scores, cap)), cap)
        return result

    # ---- query, key, value -----------------------------------------------------------------------------------------

    def _queries(self, heads: Heads) -> Value:
        query = self._operand(0)
        if not heads.packed:
            return query
        result: Value = self.b.transpose(self._split(query, heads.queries, heads.size), perm=[0, 2, 1, 3])
        return result

    def _scaled(self, query: Value, scale: float) -> Value:
        if scale == 1.0:
            return query
        result: Value = self.b.mul(query, self.b.const(np.asarray(scale, dtype_of_value(query).numpy)))
        return result

    def _keys(self, heads: Heads) -> tuple[Value, Value]:
        """The keys of all heads of queries, transposed, and all keys as they are (if those are asked for)."""
        key, past = self._operand(1), self.op.input(4)
        if past is None and (heads.repeats == 1 or heads.keys == 1) and len(self.op.results) < 2:
            if heads.packed:
                split = self._split(key, heads.keys, heads.size)
                transposed: Value = self.b.transpose(split, perm=[0, 2, 3, 1])
                return transposed, key
            return transposed_through(self.b, key, (0, 1, 3, 2)), key
        whole = self._with_past(key, past, heads.keys, heads.size, heads.packed)
        repeated = self._repeated(whole, heads.keys, heads.repeats, heads.size)
        return self.b.transpose(repeated, perm=[0, 1, 3, 2]), whole

    def _values(self, heads: Heads) -> tuple[Value, Value]:
        whole = self._with_past(self._operand(2), self.op.input(5), heads.keys, heads.value_size, heads.packed)
        return self._repeated(whole, heads.keys, heads.repeats, heads.value_size), whole

    def _with_past(self, new: Value, past: Value | None, count: int, size: int, packed: bool) -> Value:
        if packed:
            new = self.b.transpose(self._split(new, count, size), perm=[0, 2, 1, 3])
        result: Value = new if past is None else self.b.concat(past, new, axis=2)
        return result

    def _split(self, value: Value, count: int, size: int) -> Value:
        """[batch, length, heads * size] as [batch, length, heads, size]."""
        source, target = value, [0, 0, count, size]
        producer = value.producer
        # A reshape with a constant target gives the split dims at once.
        if producer is not None and producer.name == "reshape":
            data = self.context.data(producer.input(1))
            if data is not None and not producer.attr("allowzero", 0):
                inner = producer.input(0)
                assert inner is not None
                source, target = inner, [*(int(dim) for dim in data.numpy()[:2]), count, size]
        result: Value = self.b.reshape(source, target)
        return result

    def _repeated(self, value: Value, count: int, repeats: int, size: int) -> Value:
        """Each head `repeats` times in a row; a single one is repeated by the products."""
        if repeats == 1 or count == 1:
            return value
        wide = self.b.expand(self.b.unsqueeze(value, [2]), [1, 1, repeats, 1, 1])
        result: Value = self.b.reshape(wide, [0, count * repeats, -1, size])
        return result

    # ---- scores ------------------------------------------------------------------------------------------------------

    def _total_length(self) -> Dim | None:
        keys, past = shape_of_value(self.op.input(1)), shape_of_value(self.op.input(4))
        assert keys is not None
        if self.op.input(4) is None:
            return keys[-2]
        return None if past is None else keys[-2] + past[2]

    def _mask_is_broadcast(self, mask: Value, total: Dim | None) -> bool:
        """Whether the mask covers all keys: the standard fills up a shorter one, also one of length 1."""
        if self.op.attr("masking") != "standard":
            return True
        shape = shape_of_value(mask)
        return shape is not None and total is not None and bool(shape) and prove_equal(shape[-1], total) is True

    def _masked(self, scores: Value, masks: Sequence[AttentionMask]) -> Value:
        """The scores, masked: those of a key that does not count are a number, or have the mask added."""
        b = self.b
        dtype = dtype_of_value(scores)
        for mask in masks:
            if mask.score is None:
                scores = b.add(scores, mask.value)
                continue
            fill = b.const(np.asarray(mask.score, dtype.numpy))
            maker = mask.value.producer
            hidden = maker.input(0) if maker is not None and maker.name == "not" else None
            scores = b.where(mask.value, scores, fill) if hidden is None else b.where(hidden, fill, scores)
        return b.add(scores, self._causal(dtype)) if self.op.attr("is_causal") else scores

    def _causal(self, dtype: dtypes.DType) -> Value:
        """[queries, keys]: -inf where a key comes after the query, else 0."""
        b = self.b
        query, keys, past = self._operand(0), shape_of_value(self.op.input(1)), self.op.input(4)
        queries = shape_of_value(query)
        assert queries is not None
        assert keys is not None
        past_shape = shape_of_value(past)
        old: Any = 0 if past is None else past_shape[2] if past_shape is not None else None
        rows, columns = queries[-2], keys[-2]
        if isinstance(rows, int) and isinstance(columns, int) and isinstance(old, int):
            sizes: Any = [rows, columns + old]
            diagonal: Any = old + 1
        else:
            length = b.shape(self._operand(1), start=-2, end=-1)
            diagonal = b.const(1)
            if past is not None:
                before = b.shape(past, start=2, end=3)
                length = b.add(length, before)
                diagonal = b.add(b.squeeze(before), 1)
            sizes = b.concat(b.shape(query, start=-2, end=-1), length, axis=0)
        filled = b.expand(b.const(np.asarray(-np.inf, dtype.numpy)), sizes)
        result: Value = b.trilu(filled, diagonal, upper=1)
        return result

    def _weights(self, scores: Value, dtype: dtypes.DType) -> Value:
        """The softmax of the scores, in the precision asked for, with rows that have no key handled."""
        op, b = self.op, self.b
        precision = op.attr("softmax_precision")
        cast = precision is not None and dtypes.BY_ONNX_CODE[precision] is not dtype
        weights: Value = b.softmax(b.cast(scores, to=precision) if cast else scores, axis=-1)
        if cast:
            weights = b.cast(weights, to=dtype.onnx_code)
        masking = op.attr("masking")
        if masking == "nan-to-zero":
            zero = b.const(np.zeros((), dtype.numpy))
            weights = b.where(b.isnan(weights), zero, weights)
        elif masking == "standard":
            weights = self._zero_where_all_masked(weights, dtype)
        return weights

    def _zero_where_all_masked(self, weights: Value, dtype: dtypes.DType) -> Value:
        """The standard: a query that may see no key at all gives zeros."""
        op, b = self.op, self.b
        mask = op.input(3)
        if mask is None or not rows_may_be_masked(mask, self.context, bool(op.attr("is_causal"))):
            return weights
        bias = mask
        if dtype_of_value(mask) is dtypes.bool_:
            bias = b.where(mask, b.const(np.zeros((), dtype.numpy)), b.const(np.asarray(-np.inf, dtype.numpy)))
        if op.attr("is_causal"):
            bias = b.add(bias, self._causal(dtype))
        none = b.equal(b.reduce_max(bias, [-1], keepdims=1), b.const(np.asarray(-np.inf, dtype.numpy)))
        result: Value = b.where(none, b.const(np.zeros((), dtype.numpy)), weights)
        return result


def _before_batch(value: Value) -> Value:
    """What an Expand gave nothing but its first dim; `value` itself if it was not made so."""
    producer = value.producer
    if producer is None or producer.name != "expand":
        return value
    inner = producer.input(0)
    before, after = shape_of_value(inner), shape_of_value(value)
    if inner is None or before is None or after is None or len(before) != len(after):
        return value
    same = all(prove_equal(a, b) is True for a, b in zip(before[1:], after[1:], strict=True))
    return inner if same else value


def _without_heads(mask: Value, context: InferenceContext) -> Value | None:
    """What an Unsqueeze gave the axis of heads; None if the mask was not made so."""
    producer = mask.producer
    if producer is None or producer.name != "unsqueeze":
        return None
    axes = context.constant(producer.input(1))
    return producer.input(0) if axes is not None and axes.tolist() == [1] else None


def transposed_through(builder: OpBuilder, value: Value, perm: Sequence[int]) -> Value:
    """`value` transposed, by one Transpose of what it is a Transpose of itself; nothing if both cancel."""
    producer = value.producer
    source = value
    if producer is not None and producer.name == "transpose":
        inner = producer.attr("perm")
        operand = producer.input(0)
        if inner is not None and operand is not None and len(inner) == len(perm):
            source, perm = operand, [inner[axis] for axis in perm]
    if list(perm) == list(range(len(perm))):
        return source
    result: Value = builder.transpose(source, perm=list(perm))
    return result
