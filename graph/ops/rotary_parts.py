"""Rotary position embeddings made of simpler operations (RotaryEmbedding-23), in as few as possible."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .common import dtype_of, has_operand, shape_of
from .normalization_parts import constant_of

if TYPE_CHECKING:
    from ..builder import OpBuilder
    from ..core import Operation, Value


@dataclass(frozen=True)
class _Layout:
    """Where the parts of the operand are: the dim of the heads (of 4), the size of a head, how much of it turns."""

    heads_dim: int
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
    packed = shape is not None and len(shape) == 3
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
    return _Layout(1 if len(shape) == 4 else 2, size, rotated) if rotated % 2 == 0 else None


def _cache(op: Operation, b: OpBuilder, index: int) -> Value:
    """Cosines or sines as [batch, length, rotated / 2]."""
    cache = op.operands[index]
    assert cache is not None
    return b.gather(cache, op.operands[3], axis=0) if has_operand(op, 3) else cache


def _halves(b: OpBuilder, x: Value, caches: list[Value], layout: _Layout) -> Value:
    """Element i turns with element i + rotated / 2."""
    cos, sin = (_per_head(b, _doubled(b, cache), layout) for cache in caches)
    half = layout.rotated // 2
    first, second = b.split(x, [half, half], axis=-1, outputs=2)
    result: Value = b.add(b.mul(x, cos), b.mul(b.concat(b.neg(second), first, axis=-1), sin))
    return result


def _neighbours(b: OpBuilder, x: Value, caches: list[Value], layout: _Layout) -> Value:
    """Element 2 i turns with element 2 i + 1: both are taken apart along a new last dim."""
    cos, sin = (_per_head(b, cache, layout, trailing=1) for cache in caches)
    half = layout.rotated // 2
    first, second = b.split(b.reshape(x, [0, 0, 0, half, 2]), [1, 1], axis=-1, outputs=2)
    real = b.sub(b.mul(first, cos), b.mul(second, sin))
    imaginary = b.add(b.mul(second, cos), b.mul(first, sin))
    result: Value = b.reshape(b.concat(real, imaginary, axis=-1), [0, 0, 0, layout.rotated])
    return result


def _doubled(b: OpBuilder, cache: Value) -> Value:
    """The cache for both halves of a head."""
    elements = constant_of(cache)
    if elements is not None:
        return b.const(np.concatenate([elements, elements], axis=-1))
    result: Value = b.concat(cache, cache, axis=-1)
    return result


def _per_head(b: OpBuilder, cache: Value, layout: _Layout, trailing: int = 0) -> Value:
    """[batch, length, size] with a dim for the heads, and `trailing` dims at the end."""
    axes = [layout.heads_dim, *range(4, 4 + trailing)]
    elements = constant_of(cache)
    if elements is not None:
        return b.const(np.expand_dims(elements, tuple(axes)))
    result: Value = b.unsqueeze(cache, axes)
    return result
