"""Attention as ONNX Runtime fuses it: with the projection of its inputs, masks in several forms, and past keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ... import types
from ...dims import Dim
from ...opdef import Trait, op
from ..common import Shape, dtype_of, has_operand, quotient, require_rank, result_elements, shape_of
from .base import DOMAIN, MicrosoftOp, operand, present, rank_of
from .masks import attend, join_heads, mask_terms, split_heads

if TYPE_CHECKING:
    from ...builder import OpBuilder
    from ...core import Operation, Value
    from ...infer import InferenceContext
    from ...types import Type

DEFAULT_FILTER = -10000.0  # what is added to the scores of masked keys


class ProjectedAttention(MicrosoftOp):
    """Attention whose inputs are projected here: q, k, v = input @ weights + bias, each split into heads.

    [batch, length, width] gives [batch, length, width of v]. `past` and `present` are [2, batch, heads, length, size]:
    all keys, then all values. The mask's forms are told in `masks.padding_mask`.
    """

    outputs = ("output", "present?")
    traits = frozenset({Trait.CONTRACTION})
    required: ClassVar[dict[str, str]] = {"num_heads": "int"}
    mask_input: ClassVar[int] = 3
    past_input: ClassVar[int] = 4
    bias_input: ClassVar[int | None] = 5
    dtype_input: ClassVar[int] = 0

    def refusal(self, op: Operation) -> str | None:
        if op.attr("do_rotary"):
            return "with do_rotary is not known here"
        if op.attr("past_present_share_buffer"):
            return "shares a buffer between past and present, which values cannot say"
        return None

    def widths(self, op: Operation) -> tuple[Dim, Dim, Dim] | None:
        """The widths of q, k and v, over all heads."""
        sizes, weights = op.attr("qkv_hidden_sizes"), shape_of(op, 1)
        if sizes:
            return (sizes[0], sizes[1], sizes[2])
        if weights is None:
            return None
        third = quotient(weights[-1], 3, op, "the last dim of the weights")
        return (third, third, third)

    def result_types(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        dtype, x, past = dtype_of(op, self.dtype_input), shape_of(op, 0), shape_of(op, self.past_input)
        if dtype is None:
            return []
        widths = self.widths(op)
        if x is None or widths is None:
            return [types.tensor(dtype, None)] * 2
        require_rank(op, 0, x, 3)
        heads = op.attr("num_heads")
        length = context.fresh() if past is None and has_operand(op, self.past_input) else x[1]
        length = length if past is None else length + past[3]
        size = quotient(widths[1], heads, op, "the width of the keys")
        return [
            types.tensor(dtype, [x[0], x[1], widths[2]]),
            types.tensor(dtype, [2, x[0], heads, length, size]),
        ]

    def flops(self, op: Operation) -> Dim | None:
        x, weights, elements = shape_of(op, 0), shape_of(op, 1), result_elements(op)
        if x is None or weights is None or elements is None:
            return None
        # The projection, then two products over all pairs of places.
        return 2 * x[0] * x[1] * weights[0] * weights[1] + 4 * elements * x[1]

    def needs_all_results(self, op: Operation) -> bool:
        return has_operand(op, self.past_input)

    def projected(self, op: Operation, builder: OpBuilder) -> Value:
        """input @ weights + bias."""
        raise NotImplementedError(type(self).__name__)

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        widths = self.widths(op)
        if widths is None or not all(isinstance(width, int) for width in widths):
            return None
        q, k, v = builder.split(self.projected(op, builder), list(widths), axis=-1, outputs=3)
        q, k, v = (split_heads(builder, value, op.attr("num_heads")) for value in (q, k, v))
        past = operand(op, self.past_input)
        if past is not None:
            halves = builder.split(past, axis=0, num_outputs=2, outputs=2)
            k, v = (
                builder.concat(builder.squeeze(old, [0]), new, axis=2) for old, new in zip(halves, (k, v), strict=True)
            )
        bias = None if self.bias_input is None else operand(op, self.bias_input)
        terms = mask_terms(
            builder, q, k, operand(op, self.mask_input), op.attr("mask_filter_value", DEFAULT_FILTER),
            bool(op.attr("unidirectional")), bias,
        )  # fmt: skip
        if terms is None:
            return None
        result = join_heads(builder, attend(builder, q, k, v, op.attr("scale"), terms))
        if len(op.results) < 2:
            return [result]
        return [result, builder.concat(builder.unsqueeze(k, [0]), builder.unsqueeze(v, [0]), axis=0)]


@op("Attention", domain=DOMAIN)
class Attention(ProjectedAttention):
    """Vaswani et al. 2017 (arXiv 1706.03762), projections included; `attention_bias` is added to the scores."""

    inputs = ("input", "weights", "bias?", "mask_index?", "past?", "attention_bias?", "past_sequence_length?")
    attributes: ClassVar[dict[str, Any]] = {"unidirectional": 0}
    optional: ClassVar[dict[str, str]] = {
        "qkv_hidden_sizes": "ints", "mask_filter_value": "float", "scale": "float", "do_rotary": "int",
        "rotary_embedding_dim": "int", "past_present_share_buffer": "int",
    }  # fmt: skip

    def projected(self, op: Operation, builder: OpBuilder) -> Value:
        product: Value = builder.matmul(present(op, 0), present(op, 1))
        bias = operand(op, 2)
        return product if bias is None else builder.add(product, bias)


@op("MultiHeadAttention", domain=DOMAIN)
class MultiHeadAttention(MicrosoftOp):
    """Attention of projected inputs, each [batch, length, heads * size].

    key and value may be [batch, heads, length, size]; or the query holds all three as [batch, length, heads, 3, size],
    or the key both as [batch, length, heads, 2, size]. `bias` is added to query, key and value, but to none that comes
    as [batch, heads, length, size], as those of an encoder do. Past keys and values, of that form too, come before the
    new ones. (ONNX Runtime's CPU kernel gives something else if it has a past and no present is asked for.)
    """

    inputs = (
        "query", "key?", "value?", "bias?", "key_padding_mask?", "attention_bias?", "past_key?", "past_value?",
        "past_sequence_length?", "cache_indirection?",
    )  # fmt: skip
    outputs = ("output", "present_key?", "present_value?", "qk?")
    traits = frozenset({Trait.CONTRACTION})
    attributes: ClassVar[dict[str, Any]] = {"unidirectional": 0}
    required: ClassVar[dict[str, str]] = {"num_heads": "int"}
    optional: ClassVar[dict[str, str]] = {"mask_filter_value": "float", "scale": "float"}

    def needs_all_results(self, op: Operation) -> bool:
        return has_operand(op, 6)

    def refusal(self, op: Operation) -> str | None:
        if has_operand(op, 8) or has_operand(op, 9):
            return "with a buffer that past and present share is not known here"
        return None

    def _shapes(self, op: Operation) -> tuple[Shape, Shape, Shape] | None:
        """The shapes of query, key and value as [batch, heads, length, size]."""
        heads = op.attr("num_heads")
        query, key, value = (shape_of(op, index) for index in range(3))
        if query is not None and len(query) == 5:
            whole = (query[0], heads, query[1], query[4])
            return whole, whole, whole
        if query is None or key is None:
            return None
        if len(key) == 5:
            key = value = (key[0], heads, key[1], key[4])
        found = []
        for index, shape in enumerate((query, key, value)):
            if shape is None:
                return None
            if len(shape) == 3:
                size = quotient(shape[2], heads, op, f"the last dim of input {index}")
                shape = (shape[0], heads, shape[1], size)
            found.append(shape)
        return found[0], found[1], found[2]

    def result_types(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        dtype, shapes = dtype_of(op, 0), self._shapes(op)
        if dtype is None:
            return []
        if shapes is None:
            return [types.tensor(dtype, None)] * 4
        query, key, value = shapes
        past = shape_of(op, 6)
        total: Dim = key[2] if past is None else key[2] + past[2]
        if past is None and has_operand(op, 6):
            total = context.fresh()
        return [
            types.tensor(dtype, [query[0], query[2], query[1] * value[3]]),
            types.tensor(dtype, [*key[:2], total, key[3]]),
            types.tensor(dtype, [*value[:2], total, value[3]]),
            types.tensor(dtype, [query[0], query[1], query[2], total]),
        ]

    def flops(self, op: Operation) -> Dim | None:
        shapes = self._shapes(op)
        if shapes is None:
            return None
        query, key, value = shapes
        return query[0] * query[1] * query[2] * key[2] * (2 * query[3] + 2 * value[3] + 5)

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        from .masks import scores

        taken = self._heads(op, builder)
        if taken is None:
            return None
        q, k, v = taken
        if has_operand(op, 6) and has_operand(op, 7):
            k = builder.concat(present(op, 6), k, axis=2)
            v = builder.concat(present(op, 7), v, axis=2)
        terms = mask_terms(
            builder, q, k, operand(op, 4), op.attr("mask_filter_value", DEFAULT_FILTER),
            bool(op.attr("unidirectional")), operand(op, 5),
        )  # fmt: skip
        if terms is None:
            return None
        weights = scores(builder, q, k, op.attr("scale"), terms)
        result = builder.matmul(builder.softmax(weights, axis=-1), v)
        return [join_heads(builder, result), k, v, weights]

    def _heads(self, op: Operation, builder: OpBuilder) -> tuple[Value, Value, Value] | None:
        """Query, key and value as [batch, heads, length, size], with the bias added."""
        shapes, heads, bias = self._shapes(op), op.attr("num_heads"), operand(op, 3)
        if shapes is None:
            return None
        query, key, value = present(op, 0), operand(op, 1), operand(op, 2)
        biases: Sequence[Value | None] = (None, None, None)
        if bias is not None:
            widths = [shape[1] * shape[3] for shape in shapes]
            if not all(isinstance(width, int) for width in widths):
                return None
            biases = builder.split(bias, widths, axis=0, outputs=3)
        whole, pair = rank_of(query) == 5, rank_of(key) == 5
        if whole:
            packed = _unpack(builder, query, 3)
        elif pair and key is not None:
            packed = [query, *_unpack(builder, key, 2)]
        else:
            assert key is not None
            assert value is not None
            packed = [query, key, value]
        found = []
        for item, term in zip(packed, biases, strict=True):
            if rank_of(item) == 3:
                found.append(split_heads(builder, item if term is None else builder.add(item, term), heads))
            elif term is None or not (whole or pair):
                found.append(item)
            else:
                row = builder.transpose(builder.reshape(term, [1, 1, heads, -1]), perm=[0, 2, 1, 3])
                found.append(builder.add(item, row))
        return found[0], found[1], found[2]


def _unpack(builder: OpBuilder, packed: Value, count: int) -> list[Value]:
    """[batch, length, heads, count, size] as `count` values [batch, heads, length, size]."""
    pieces = builder.split(packed, axis=3, num_outputs=count, outputs=count)
    return [builder.transpose(builder.squeeze(piece, [3]), perm=[0, 2, 1, 3]) for piece in pieces]
