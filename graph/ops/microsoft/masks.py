"""What the attention operators share: heads, masks as terms added to the scores, and the attention itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...dims import prove_equal
from .base import dims_of, filled, indices, lowest, rank_of, size_along, tensor_dtype, zero

if TYPE_CHECKING:
    from ...builder import OpBuilder
    from ...core import Value


def split_heads(builder: OpBuilder, packed: Value, heads: int) -> Value:
    """[batch, length, heads * size] as [batch, heads, length, size]."""
    width = (dims_of(packed) or (None,))[-1]
    # A -1 cannot be worked out where there are no elements.
    size = width // heads if isinstance(width, int) else -1
    result: Value = builder.transpose(builder.reshape(packed, [0, 0, heads, size]), perm=[0, 2, 1, 3])
    return result


def join_heads(builder: OpBuilder, value: Value) -> Value:
    """[batch, heads, length, size] as [batch, length, heads * size]."""
    _, heads, _, size = dims_of(value) or (None,) * 4
    width = heads * size if isinstance(heads, int) and isinstance(size, int) else -1
    result: Value = builder.reshape(builder.transpose(value, perm=[0, 2, 1, 3]), [0, 0, width])
    return result


def attend(
    builder: OpBuilder, q: Value, k: Value, v: Value, scale: float | None, terms: Sequence[Value | None] = ()
) -> Value:
    """softmax(q @ k^T * scale + terms) @ v, all [batch, heads, length, size]; the scale defaults to 1 / sqrt(size)."""
    result: Value = builder.matmul(builder.softmax(scores(builder, q, k, scale, terms), axis=-1), v)
    return result


def scores(builder: OpBuilder, q: Value, k: Value, scale: float | None, terms: Sequence[Value | None] = ()) -> Value:
    """q @ k^T * scale + terms."""
    product: Value = builder.matmul(q, builder.transpose(k, perm=[0, 1, 3, 2]))
    product = builder.mul(product, scale or inverse_root(builder, size_along(builder, q, -1), q))
    for term in terms:
        if term is not None:
            product = builder.add(product, term)
    return product


def inverse_root(builder: OpBuilder, size: Any, like: Value) -> Any:
    """1 / sqrt(size), for a number or a scalar value."""
    if isinstance(size, int):
        return 1.0 / float(size) ** 0.5
    return builder.reciprocal(builder.sqrt(builder.cast_like(size, like)))


def penalty(builder: OpBuilder, allowed: Value, amount: float, like: Value) -> Value:
    """0 where `allowed`, else `amount`, in the element type of `like`."""
    dtype = tensor_dtype(like)
    result: Value = builder.where(allowed, zero(builder, dtype), filled(builder, amount, dtype))
    return result


def causal(builder: OpBuilder, queries: Any, keys: Any) -> Value:
    """[queries, keys]: whether a key does not come after a query; the last query is at the place of the last key."""
    rows = builder.add(indices(builder, queries), builder.sub(keys, queries) if _dynamic(queries, keys) else
                       builder.const(keys - queries))  # fmt: skip
    result: Value = builder.less_or_equal(indices(builder, keys), builder.unsqueeze(rows, [1]))
    return result


def _dynamic(*sizes: Any) -> bool:
    return not all(isinstance(size, int) for size in sizes)


def padding_mask(builder: OpBuilder, mask: Value, batch_of: Value, queries: Any, keys: Any) -> Value | None:
    """The mask input of an attention operator as bools that broadcast to [batch, heads, queries, keys].

    By rank: [batch] lengths; [2 * batch] ends, then starts; [3 * batch + 2] lengths, then what only some kernels read;
    [batch, keys], [batch, queries, keys], and [batch, 1, longest, longest] elements, positive where a key counts.
    None if it is not known which of these it is.
    """
    rank, dims, batch = rank_of(mask), dims_of(mask), dims_of(batch_of)
    if rank is None or dims is None or batch is None:
        return None
    if rank == 1:
        return _lengths_mask(builder, mask, batch[0], dims[0], keys)
    if rank == 4:
        start = builder.sub(keys, queries) if _dynamic(queries, keys) else keys - queries
        mask = builder.slice(mask, _vector(builder, start), _vector(builder, keys), [2])
        mask = builder.slice(mask, [0], _vector(builder, keys), [3])
    allowed: Value = builder.greater(mask, zero(builder, tensor_dtype(mask)))
    return builder.unsqueeze(allowed, {2: [1, 2], 3: [1]}[rank]) if rank in (2, 3) else allowed


def _lengths_mask(builder: OpBuilder, mask: Value, batch: Any, length: Any, keys: Any) -> Value | None:
    places = builder.cast_like(indices(builder, keys), mask)
    column = builder.unsqueeze
    if prove_equal(length, batch) or prove_equal(length, 3 * batch + 2):
        ends = builder.slice(mask, [0], _vector(builder, batch), [0]) if length != batch else mask
        result: Value = builder.less(places, column(ends, [1, 2, 3]))
        return result
    if not prove_equal(length, 2 * batch):
        return None
    ends, starts = builder.split(mask, axis=0, num_outputs=2, outputs=2)
    inside = builder.and_(
        builder.less(places, column(ends, [1, 2, 3])), builder.greater_or_equal(places, column(starts, [1, 2, 3]))
    )
    result = inside
    return result


def _vector(builder: OpBuilder, number: Any) -> Value:
    """One number, or scalar value, as a vector of one element."""
    if isinstance(number, int):
        return builder.const([number])
    result: Value = builder.reshape(number, [1])
    return result


def mask_terms(
    builder: OpBuilder, q: Value, k: Value, mask: Value | None, filter_value: float, unidirectional: bool,
    bias: Value | None,
) -> list[Value | None] | None:  # fmt: skip
    """Everything that is added to the scores of q and k; None if the mask's form is not known."""
    queries, keys = size_along(builder, q, 2), size_along(builder, k, 2)
    terms: list[Value | None] = []
    allowed = None
    if mask is not None:
        allowed = padding_mask(builder, mask, q, queries, keys)
        if allowed is None:
            return None
        terms.append(penalty(builder, allowed, filter_value, q))
    if unidirectional:
        terms.append(penalty(builder, causal(builder, queries, keys), lowest(tensor_dtype(q)), q))
    if bias is not None:
        terms.append(bias)
    return terms
