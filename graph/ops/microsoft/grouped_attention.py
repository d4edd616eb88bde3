"""What decoders are made of: rotary embedding, attention with fewer heads for keys, relative position biases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ... import dtypes, types
from ...dims import Dim, dim_max, product
from ...opdef import Trait, op
from ..common import (
    SameShape,
    constant_ints,
    dtype_of,
    has_operand,
    operand_size,
    quotient,
    require_rank,
    shape_of,
    times,
)
from .base import (
    DOMAIN,
    MicrosoftOp,
    dims_of,
    indices,
    lowest,
    operand,
    present,
    rank_of,
    size_along,
    tensor_dtype,
)
from .masks import join_heads, penalty, scores, split_heads

if TYPE_CHECKING:
    from ...builder import OpBuilder
    from ...core import Operation, Value
    from ...infer import InferenceContext
    from ...types import Type


@op("RotaryEmbedding", domain=DOMAIN)
class RotaryEmbedding(MicrosoftOp, SameShape):
    """Su et al. 2021 (arXiv 2104.09864): pairs of elements rotated by the angles of their position.

    [batch, length, heads * size] or [batch, heads, length, size]. `position_ids` gives the position of each element,
    or, as a vector of one, that of the first. The caches hold a row per position and a column per pair.
    """

    inputs = ("input", "position_ids", "cos_cache", "sin_cache")
    outputs = ("output",)
    optional: ClassVar[dict[str, str]] = {
        "interleaved": "int", "num_heads": "int", "rotary_embedding_dim": "int", "scale": "float",
        "is_packed_batching": "int",
    }  # fmt: skip

    def refusal(self, op: Operation) -> str | None:
        if op.attr("is_packed_batching"):
            return "with is_packed_batching is not known here"
        return None if op.attr("scale", 1.0) == 1.0 else "with a scale is not known here"

    def flops(self, op: Operation) -> Dim | None:
        return times(3, operand_size(op))

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        x, positions = present(op, 0), present(op, 1)
        rank, places, heads = rank_of(x), rank_of(positions), op.attr("num_heads") or 0
        dims, cache = dims_of(x), dims_of(present(op, 2))
        if rank is None or places is None or dims is None or cache is None:
            return None
        rotated = op.attr("rotary_embedding_dim") or 0
        if rank == 3 and not heads:
            if not isinstance(dims[2], int) or not isinstance(cache[1], int):
                return None
            heads = dims[2] // (2 * cache[1])
        if places == 1:
            length = size_along(builder, x, 1 if rank == 3 else 2)
            row = builder.unsqueeze(builder.add(indices(builder, length), positions), [0])
            batch = builder.concat(builder.shape(x, end=1), [1], axis=0)
            positions = builder.expand(row, batch)
        return [
            builder.rotary_embedding(
                x, present(op, 2), present(op, 3), positions, interleaved=op.attr("interleaved") or 0,
                rotary_embedding_dim=rotated, **({"num_heads": heads} if rank == 3 else {}),
            )
        ]  # fmt: skip


@op("GroupQueryAttention", domain=DOMAIN)
class GroupQueryAttention(MicrosoftOp):
    """Ainslie et al. 2023 (arXiv 2305.13245): several query heads share a head of keys and values. Causal.

    query is [batch, length, num_heads * size] and key and value [batch, length, kv_num_heads * size], or the query
    holds all three side by side. Past and present are [batch, kv_num_heads, places, size]. A sequence has
    `seqlens_k` + 1 keys in all, the new ones put right after its past; the places after that are zero.
    """

    inputs = (
        "query", "key?", "value?", "past_key?", "past_value?", "seqlens_k", "total_sequence_length", "cos_cache?",
        "sin_cache?", "position_ids?", "attention_bias?", "head_sink?", "k_scale?", "v_scale?", "q_norm_weight?",
        "k_norm_weight?", "query_seqlens?",
    )  # fmt: skip
    outputs = ("output", "present_key?", "present_value?", "output_qk?")
    traits = frozenset({Trait.CONTRACTION})
    attributes: ClassVar[dict[str, Any]] = {
        "causal": 1, "k_quant_type": "NONE", "local_window_size": -1, "qk_norm_epsilon": 9.999999974752427e-07,
        "qk_output": 0, "sliding_window_cache": 0, "smooth_softmax": -1, "v_quant_type": "NONE",
    }  # fmt: skip
    required: ClassVar[dict[str, str]] = {"num_heads": "int", "kv_num_heads": "int"}
    optional: ClassVar[dict[str, str]] = {
        "do_rotary": "int", "rotary_interleaved": "int", "scale": "float", "softcap": "float",
        "kv_cache_bit_width": "int", "q_norm_epsilon": "float", "k_norm_epsilon": "float",
    }  # fmt: skip

    def needs_all_results(self, op: Operation) -> bool:
        return has_operand(op, 3)

    def refusal(self, op: Operation) -> str | None:
        if any(has_operand(op, index) for index in range(12, 17)):
            return "with a quantized cache, normalized heads or query lengths is not known here"
        if len(op.results) > 3 or op.attr("qk_output"):
            return "with its scores as a result is not known here"
        if op.attr("sliding_window_cache"):
            return "with a sliding cache is not known here"
        return None

    def _head_size(self, op: Operation) -> Dim | None:
        query = shape_of(op, 0)
        if query is None:
            return None
        require_rank(op, 0, query, 3)
        heads = op.attr("num_heads") + (0 if has_operand(op, 1) else 2 * op.attr("kv_num_heads"))
        return quotient(query[2], heads, op, "the last dim of the query")

    def result_types(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        dtype, query, size = dtype_of(op, 0), shape_of(op, 0), self._head_size(op)
        if dtype is None:
            return []
        cache = dtype_of(op, 3) or dtype
        if query is None or size is None:
            return [types.tensor(dtype, None), types.tensor(cache, None), types.tensor(cache, None)]
        past = shape_of(op, 3)
        total = constant_ints(op, 6, context)
        room: Dim = context.fresh()
        if total is not None and not (past is None and has_operand(op, 3)):
            room = total[0] if past is None else dim_max(past[2], total[0])
        present = types.tensor(cache, [query[0], op.attr("kv_num_heads"), room, size])
        return [types.tensor(dtype, [query[0], query[1], op.attr("num_heads") * size]), present, present]

    def flops(self, op: Operation) -> Dim | None:
        query, size = shape_of(op, 0), self._head_size(op)
        keys = op.results[1].type if len(op.results) > 1 else None
        if query is None or size is None or not isinstance(keys, types.TensorType) or keys.shape is None:
            return None
        return product([*query[:2], op.attr("num_heads"), keys.shape[2], 4 * size + 5])

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        query, heads, shared = present(op, 0), op.attr("num_heads"), op.attr("kv_num_heads")
        if has_operand(op, 1):
            packed = [query, present(op, 1), present(op, 2)]
        else:
            size = self._head_size(op)
            if not isinstance(size, int):
                return None
            packed = builder.split(query, [heads * size, shared * size, shared * size], axis=-1, outputs=3)
        q, k, v = (split_heads(builder, item, n) for item, n in zip(packed, (heads, shared, shared), strict=True))
        length = builder.shape(q, start=2, end=3)
        # [batch, 1] each: how many keys a sequence has with the new ones, and where those begin.
        totals = builder.unsqueeze(builder.cast(builder.add(present(op, 5), 1), to=dtypes.i64), [1])
        first = builder.max(builder.sub(totals, length), 0)
        longest = builder.reshape(builder.cast(present(op, 6), to=dtypes.i64), [1])
        # A prompt may be padded after its end; it begins at 0 all the same.
        first = builder.where(builder.equal(longest, length), 0, first)
        if op.attr("do_rotary"):
            q, k = self._rotated(op, builder, q, k, first)
        k = _appended(builder, operand(op, 3), k, first, longest)
        v = _appended(builder, operand(op, 4), v, first, longest)
        weights = self._weights(op, builder, q, k, first, totals)
        spread = v if heads == shared else _repeated(builder, v, heads // shared)
        return [join_heads(builder, builder.matmul(weights, spread)), k, v]

    def _rotated(self, op: Operation, builder: OpBuilder, q: Value, k: Value, first: Value) -> tuple[Value, Value]:
        positions = operand(op, 9)
        if positions is None:
            positions = builder.add(first, indices(builder, size_along(builder, q, 2)))
        cache, dims = present(op, 7), dims_of(q)
        width = dims_of(cache)
        partial = 0
        if width is not None and dims is not None and isinstance(width[1], int) and dims[3] != 2 * width[1]:
            partial = 2 * width[1]
        options = {"interleaved": op.attr("rotary_interleaved") or 0, "rotary_embedding_dim": partial}
        rotate = builder.rotary_embedding
        sine = present(op, 8)
        return rotate(q, cache, sine, positions, **options), rotate(k, cache, sine, positions, **options)

    def _weights(self, op: Operation, builder: OpBuilder, q: Value, k: Value, first: Value, totals: Value) -> Value:
        """The share that each key has in each query's result."""
        heads, shared = op.attr("num_heads"), op.attr("kv_num_heads")
        keys = k if heads == shared else _repeated(builder, k, heads // shared)
        raw = scores(builder, q, keys, op.attr("scale"))
        softcap = op.attr("softcap")
        if softcap:
            raw = builder.mul(builder.tanh(builder.div(raw, softcap)), softcap)
        if has_operand(op, 10):
            # The bias may be longer than the keys that are there.
            count = builder.shape(raw, start=3, end=4)
            raw = builder.add(raw, builder.slice(present(op, 10), [0], count, [3]))
        rows = builder.unsqueeze(builder.add(first, indices(builder, size_along(builder, q, 2))), [1, 3])
        columns = indices(builder, size_along(builder, k, 2))
        allowed = builder.less(columns, builder.unsqueeze(totals, [2, 3]))
        if op.attr("causal"):
            allowed = builder.and_(allowed, builder.less_or_equal(columns, rows))
        window = op.attr("local_window_size")
        if window > 0:
            allowed = builder.and_(allowed, builder.greater(columns, builder.sub(rows, window)))
        masked = builder.add(raw, penalty(builder, allowed, lowest(tensor_dtype(q)), q))
        sink = operand(op, 11)
        if sink is None and op.attr("smooth_softmax") != 1:
            result: Value = builder.softmax(masked, axis=-1)
            return result
        # One more key, which only takes a share: with a score of 0, or the head's own.
        own = builder.mul(builder.slice(masked, [0], [1], [3]), 0.0)
        if sink is not None:
            own = builder.add(own, builder.reshape(sink, [1, -1, 1, 1]))
        shares = builder.softmax(builder.concat(masked, own, axis=3), axis=-1)
        result = builder.slice(shares, [0], [-1], [3])
        return result


def _repeated(builder: OpBuilder, value: Value, times: int) -> Value:
    """Each head of [batch, heads, length, size] `times` times in a row."""
    wide = builder.concat(*[builder.unsqueeze(value, [2])] * times, axis=2)
    shape = builder.concat([0, -1], builder.shape(value, start=2), axis=0)
    result: Value = builder.reshape(wide, shape)
    return result


def _appended(builder: OpBuilder, past: Value | None, new: Value, first: Value, longest: Value) -> Value:
    """The new places put after each sequence's past, which ends at `first` ([batch, 1]); zeros after them."""
    length = builder.shape(new, start=2, end=3)
    old_length = builder.const([0]) if past is None else builder.shape(past, start=2, end=3)
    room = builder.max(old_length, longest)
    zeros = builder.mul(builder.slice(new, [0], [1], [2]), 0.0)
    everything = builder.concat(*([] if past is None else [past]), new, zeros, axis=2)
    places = indices(builder, builder.squeeze(room, [0]))
    offset = builder.sub(places, first)
    source = builder.where(builder.less(places, first), places, builder.add(offset, old_length))
    source = builder.where(builder.less(offset, length), source, builder.add(old_length, length))
    shape = builder.concat(builder.shape(new, end=2), room, builder.shape(new, start=3), axis=0)
    result: Value = builder.gather_elements(
        everything, builder.expand(builder.unsqueeze(source, [1, 3]), shape), axis=2
    )
    return result
