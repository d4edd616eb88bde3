"""Attention and what goes with it: rotary embedding, linear attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import types
from ..diagnostics import TypeInferenceError
from ..dims import Dim, product
from ..opdef import OpDefinition, op
from ..types import TensorType, Type
from .common import (
    SameShape,
    Shape,
    dtype_of,
    error,
    format_shape,
    operand_size,
    quotient,
    require_rank,
    same_dim,
    shape_of,
    times,
    unknown_dims,
)

if TYPE_CHECKING:
    from ..core import Operation
    from ..infer import InferenceContext


def _heads(op: Operation, index: int, heads: str, context: InferenceContext) -> Shape | None:
    """Operand `index` as [batch, heads, length, size]; a packed [batch, length, heads * size] is taken apart."""
    shape = shape_of(op, index)
    if shape is None or len(shape) == 4:
        return shape
    require_rank(op, index, shape, 3)
    count = op.attr(heads)
    if not count or count < 0:
        raise error("shape/attention", f"{op.name} needs {heads} for its input {index}, {format_shape(shape)}")
    return (shape[0], count, shape[1], quotient(shape[2], count, op, f"the last dim of input {index}"))


def _join_heads(shape: Shape, packed: bool) -> Shape:
    batch, heads, length, size = shape
    return (batch, length, heads * size) if packed else shape


@op("Attention")
class Attention(OpDefinition):
    """Vaswani et al. 2017 (arXiv 1706.03762): softmax(q @ k^T * scale + mask) @ v, per head.

    q, k and v are [batch, heads, length, size], or [batch, length, heads * size] with the numbers of heads as
    attributes. Past keys and values come before the new ones; the results hold both.
    """

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        q_dtype, v_dtype = dtype_of(op, 0, 1), dtype_of(op, 2)
        shapes = self.shapes(op, context)
        dtypes = (q_dtype, q_dtype, v_dtype or q_dtype, q_dtype)
        return [
            types.UNKNOWN if dtype is None else types.tensor(dtype, shape)
            for dtype, shape in zip(dtypes, shapes, strict=True)
        ]

    def shapes(self, op: Operation, context: InferenceContext) -> list[Shape | None]:
        """The shapes of the result, all keys, all values, and the scores."""
        query = shape_of(op, 0)
        q = _heads(op, 0, "q_num_heads", context)
        k, v = _heads(op, 1, "kv_num_heads", context), _heads(op, 2, "kv_num_heads", context)
        if query is None or q is None or k is None or v is None:
            rank = None if query is None else len(query)
            return [unknown_dims(rank, context), *[unknown_dims(4, context) for _ in range(3)]]
        self._check(q, k, v, context)
        past = _heads(op, 4, "kv_num_heads", context)
        total = k[2] if past is None else k[2] + past[2]
        if past is None and len(op.operands) > 4 and op.operands[4] is not None:
            total = context.fresh()
        return [
            _join_heads((q[0], q[1], q[2], v[3]), len(query) == 3),
            (k[0], k[1], total, k[3]),
            (v[0], v[1], total, v[3]),
            (q[0], q[1], q[2], total),
        ]

    def _check(self, q: Shape, k: Shape, v: Shape, context: InferenceContext) -> None:
        def mismatch() -> TypeInferenceError:
            shown = ", ".join(map(format_shape, (q, k, v)))
            return error("shape/attention", f"attention of query, key and value {shown} (per head) does not fit")

        same_dim(q[0], k[0], context, mismatch)
        same_dim(k[0], v[0], context, mismatch)
        same_dim(q[3], k[3], context, mismatch)
        same_dim(k[1], v[1], context, mismatch)
        same_dim(k[2], v[2], context, mismatch)

    def flops(self, op: Operation) -> Dim | None:
        q, k, v, past = shape_of(op, 0), shape_of(op, 1), shape_of(op, 2), shape_of(op, 4)
        if q is None or k is None or v is None:
            return None
        length = k[-2] + (past[2] if past is not None else 0)
        value = v[-1] * q[1] if len(v) == 4 else v[-1] * (op.attr("q_num_heads") or 1) // (op.attr("kv_num_heads") or 1)
        # Two products over all pairs of places, and about five operations for each in the softmax.
        heads = q[1] if len(q) == 4 else op.attr("q_num_heads") or 1
        places = q[0] * q[-2] * length
        width = q[-1] * q[1] if len(q) == 4 else q[-1]
        return places * (2 * width + 2 * value + 5 * heads)


@op("RotaryEmbedding")
class RotaryEmbedding(SameShape):
    """Su et al. 2021 (arXiv 2104.09864): pairs of elements rotated by an angle that grows with the position."""

    def flops(self, op: Operation) -> Dim | None:
        return times(3, operand_size(op))


@op("LinearAttention")
class LinearAttention(OpDefinition):
    """Recurrent attention over packed [batch, length, heads * size]; the state is [batch, kv_heads, dk, dv]."""

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        dtype, state = dtype_of(op, 0, 1, 2), dtype_of(op, 3, 0)
        if dtype is None or state is None:
            return [types.UNKNOWN] * len(op.results)
        for index in (0, 1, 2):
            shape = shape_of(op, index)
            if shape is not None:
                require_rank(op, index, shape, 3)
        q, v = _heads(op, 0, "q_num_heads", context), _heads(op, 2, "kv_num_heads", context)
        if q is None or v is None:
            return [types.tensor(dtype, unknown_dims(3, context)), types.tensor(state, unknown_dims(4, context))]
        output: TensorType = types.tensor(dtype, [q[0], q[2], q[1] * v[3]])
        return [output, types.tensor(state, [q[0], v[1], q[3], v[3]])]

    def flops(self, op: Operation) -> Dim | None:
        q, v = shape_of(op, 0), shape_of(op, 2)
        if q is None or v is None:
            return None
        # Per place and head the state is updated and read: about four operations for each of its dk * dv elements.
        kv_heads: int = op.attr("kv_num_heads")
        return 4 * product(q) * (v[-1] // kv_heads)
