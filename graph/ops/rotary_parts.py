"""Rotary position embeddings made of simpler operations (RotaryEmbedding-23), in as few as possible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..dims import prove_equal
from ..types import TensorType
from .common import dtype_of, has_operand, shape_of
from .normalization_parts import constant_of

if TYPE_CHECKING:
    from ..builder import OpBuilder
    from ..core import Operation, Value

# What acts on each element of a cache alone, so that it can follow the repetition: one of them may have made it.
_FUNCTIONS = ("cos", "sin", "cast", "neg")


@dataclass(frozen=True)
class _Layout:
    """Rank of the operand per head, its dim for heads (None: it has none), the size of a head, how much of it turns."""

    rank: int
    heads_dim: int | None
    size: int
    rotated: int


def rotary_parts(op: Operation, b: OpBuilder) -> list[Value] | None:
    """x * cos + rotated(x) * sin, per head: 6 operations beside those on the caches, which uses of them can share.

    With pairs of neighbours (`interleaved`) it takes 10, for a part of a head 2 more, and 2 more for packed heads.
    None where a head's size is not known.
    """
    layout, x = _layout(op), op.operands[0]
    if layout is None or x is None:
        return None
    shape = shape_of(op, 0)
    packed = shape is not None and len(shape) < layout.rank
    if packed:
        x = b.reshape(x, [0, 0, op.attr("num_heads"), layout.size])
    caches = [_cache(op, b, index) for index in (1, 2)]
    rest = layout.size - layout.rotated
    kept = None
    if rest:
        x, kept = b.split(x, [layout.rotated, rest], axis=-1, outputs=2)
    turned = (_neighbours if op.attr("interleaved") else _halves)(b, x, caches, layout)
    if kept is not None:
        turned = b.concat(turned, kept, axis=-1)
    return [b.reshape(turned, [0, 0, op.attr("num_heads") * layout.size]) if packed else turned]


def with_expanded_caches(op: Operation, b: OpBuilder) -> list[Value] | None:
    """The standard's operator for `broadcast=1`: caches with the batch and length of x, and x with those of the caches.

    None where a rank is not known.
    """
    x, cos, sin = op.operands[:3]
    shape, cache = shape_of(op, 0), shape_of(op, 1)
    if x is None or cos is None or sin is None or shape is None or cache is None or len(cache) != 3:
        return None
    length = len(shape) - 2
    result = op.results[0].type
    wide = result.shape if isinstance(result, TensorType) else None
    kept = wide is not None and all(prove_equal(wide[i], shape[i]) is True for i in (0, length))
    if not kept:
        ones = [[1]] * (length - 1)
        x = b.expand(x, b.concat(_dim(b, cos, 0), *ones, _dim(b, cos, 1), [1], axis=0))
    target = b.concat(_dim(b, x, 0), _dim(b, x, length), [1], axis=0)
    attributes = {name: value for name, value in op.attributes.items() if name != "broadcast"}
    return [b.create("rotary_embedding", [x, b.expand(cos, target), b.expand(sin, target)], attributes).result]


def _dim(b: OpBuilder, value: Value, index: int) -> Value:
    result: Value = b.shape(value, start=index, end=index + 1)
    return result


def _layout(op: Operation) -> _Layout | None:
    shape = shape_of(op, 0)
    if shape is None or dtype_of(op, 0) is None or len(shape) not in (3, 4):
        return None
    size, heads = shape[-1], 1
    if len(shape) == 3:
        heads = op.attr("num_heads") or 0
        if not isinstance(size, int) or heads < 1 or size % heads:
            return None
        size = size // heads
    if not isinstance(size, int):
        return None
    rotated = op.attr("rotary_embedding_dim") or size
    if rotated % 2:
        return None
    if len(shape) == 4:
        return _Layout(4, 1, size, rotated)
    return _Layout(3, None, size, rotated) if heads == 1 else _Layout(4, 2, size, rotated)


def _cache(op: Operation, b: OpBuilder, index: int) -> Value:
    """Cosines or sines as [batch, length, rotated / 2]."""
    cache = op.operands[index]
    assert cache is not None
    return b.gather(cache, op.operands[3], axis=0) if has_operand(op, 3) else cache


def _halves(b: OpBuilder, x: Value, caches: list[Value], layout: _Layout) -> Value:
    """Element i turns with element i + rotated / 2."""
    cos, sin = (_mapped(b, cache, lambda value: _per_head(b, _doubled(b, value), layout)) for cache in caches)
    half = layout.rotated // 2
    first, second = b.split(x, [half, half], axis=-1, outputs=2)
    result: Value = b.add(b.mul(x, cos), b.mul(b.concat(b.neg(second), first, axis=-1), sin))
    return result


def _neighbours(b: OpBuilder, x: Value, caches: list[Value], layout: _Layout) -> Value:
    """Element 2 i turns with element 2 i + 1: both are taken apart along a new last dim."""
    cos, sin = (_mapped(b, cache, lambda value: _per_head(b, value, layout, trailing=1)) for cache in caches)
    half, kept = layout.rotated // 2, [0] * (layout.rank - 1)
    first, second = b.split(b.reshape(x, [*kept, half, 2]), [1, 1], axis=-1, outputs=2)
    real = b.sub(b.mul(first, cos), b.mul(second, sin))
    imaginary = b.add(b.mul(second, cos), b.mul(first, sin))
    result: Value = b.reshape(b.concat(real, imaginary, axis=-1), [*kept, layout.rotated])
    return result


def _mapped(b: OpBuilder, cache: Value, arrange: Callable[[Value], Value]) -> Value:
    """`arrange(cache)`, done before the functions of single elements that made the cache.

    Cosines and sines stem from the same angles, so that one arrangement serves both.
    """
    producer = cache.producer
    if producer is None or producer.name not in _FUNCTIONS or not _serves_embeddings(cache):
        return arrange(cache)
    operand = producer.operands[0]
    assert operand is not None
    return b.create(producer.definition, [_mapped(b, operand, arrange)], producer.attributes).result


def _serves_embeddings(value: Value) -> bool:
    """Whether only rotary embeddings read `value`, by way of functions of single elements at most."""
    return all(
        user.name == "rotary_embedding" or (user.name in _FUNCTIONS and _serves_embeddings(user.results[0]))
        for user in value.users
    )


def _doubled(b: OpBuilder, cache: Value) -> Value:
    """The cache for both halves of a head."""
    elements = constant_of(cache)
    if elements is not None:
        return b.const(np.concatenate([elements, elements], axis=-1))
    result: Value = b.concat(cache, cache, axis=-1)
    return result


def _per_head(b: OpBuilder, cache: Value, layout: _Layout, trailing: int = 0) -> Value:
    """[batch, length, size] with a dim for the heads where x has one, and `trailing` dims at the end."""
    heads = [] if layout.heads_dim is None else [layout.heads_dim]
    axes = [*heads, *range(layout.rank, layout.rank + trailing)]
    if not axes:
        return cache
    elements = constant_of(cache)
    if elements is not None:
        return b.const(np.expand_dims(elements, tuple(axes)))
    result: Value = b.unsqueeze(cache, axes)
    return result
