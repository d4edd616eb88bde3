"""Where the operands of an attention come from, as ONNX Runtime takes them: side by side, and from one projection.

Its operators take [batch, length, heads * size], of which [batch, heads, length, size] is a reshape and a transpose.
Attention also does the projections x @ weights + bias itself, if all three start from one x.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ..graph.builder import OpBuilder
from ..graph.core import Operation, Value
from ..graph.data import UnresolvedData
from ..graph.dims import Dim, bounds, product, prove_equal
from .fuse_attention_views import shape_of
from .proofs import ints, made_by, reshape_target, same_dims
from .rules import Match

HEADS_FIRST = (0, 2, 1, 3)
LENGTH_FIRST = (2, 0, 1, 3)

# Makes a value at the place of a builder.
Make: TypeAlias = Callable[[OpBuilder], Value]


@dataclass(frozen=True)
class Packed:
    """An operand as [batch, length, heads * size]. `flat` is what it is a reshape of, [batch * length, width], or
    itself; a transpose of it if `is_transposed`."""

    make: Make
    flat: Value
    is_transposed: bool = False


def pack(value: Value, dims: tuple[Dim, Dim, int, int]) -> Packed | None:
    """An operand of [batch, length, heads, size] `dims` as [batch, length, heads * size], without new transposes."""
    batch, length, heads, size = dims
    wanted = (batch, length, heads * size)
    shape = shape_of(value)
    if shape is None:
        return None
    if len(shape) == 3:
        return Packed(lambda b: value, value)
    rotary = made_by(value, "rotary_embedding")
    if rotary is not None:
        return _packed_rotary(value, rotary, dims)
    first = _pack_length_first(value, dims)
    if first is not None:
        return first
    transpose = made_by(value, "transpose")
    if transpose is None or tuple(transpose.attr("perm") or ()) != HEADS_FIRST:
        return None
    split = transpose.operands[0]
    if split is None or not same_dims(shape_of(split), dims):
        return None
    # A reshape in the place of the transpose, if no better is found.
    joined = Packed(lambda b: b.reshape(split, [0, 0, heads * size]), split)
    reshape = made_by(split, "reshape")
    source = reshape.operands[0] if reshape is not None else None
    own = shape_of(source)
    if source is None or own is None:
        return joined
    if same_dims(own, wanted) or equal_by_count(own, wanted):
        return Packed(lambda b: source, source)
    target = reshape_target(own, wanted)
    rows_fit = len(own) == 2 and prove_equal(own[1], wanted[2]) is True and prove_equal(own[0], product(wanted[:2]))
    if not rows_fit or target is None:
        return joined
    return Packed(lambda b: b.reshape(source, target), source)


def _pack_length_first(value: Value, dims: tuple[Dim, Dim, int, int]) -> Packed | None:
    """An operand that was made from [length, batch, heads * size] by way of [length, batch * heads, size].

    torch's multi-head attention works so; instead of a reshape, a transpose and a reshape it takes one transpose.
    """
    batch, length, heads, size = dims
    swapped = made_by(value, "transpose")
    turned = swapped is not None and tuple(swapped.attr("perm") or ()) == (0, 1, 3, 2)
    outer = made_by(swapped.operands[0] if swapped is not None and turned else value, "reshape")
    transpose = made_by(outer.operands[0], "transpose") if outer is not None else None
    inner = made_by(transpose.operands[0], "reshape") if transpose is not None else None
    if transpose is None or inner is None:
        return None
    source, joined = inner.operands[0], batch * heads
    fits = tuple(transpose.attr("perm") or ()) == ((1, 2, 0) if turned else (1, 0, 2))
    fits = fits and same_dims(shape_of(inner.result), (length, joined, size))
    if source is None or not fits or not same_dims(shape_of(source), (length, batch, heads * size)):
        return None
    return Packed(lambda b: b.transpose(source, perm=[1, 0, 2]), source, is_transposed=True)


def equal_by_count(left: Sequence[Dim], right: Sequence[Dim]) -> bool:
    """Whether two shapes with as many elements are equal, because all dims but one are, and none of these is 0."""
    if len(left) != len(right):
        return False
    unequal = [pair for pair in zip(left, right, strict=True) if prove_equal(*pair) is not True]
    others = [a for a, b in zip(left, right, strict=True) if prove_equal(a, b) is True]
    return len(unequal) <= 1 and all((bounds(dim)[0] or 0) >= 1 for dim in others)


def _packed_rotary(value: Value, rotary: Operation, dims: tuple[Dim, Dim, int, int]) -> Packed | None:
    """Pairs are turned in the same way whether heads stand side by side or not."""
    x = rotary.operands[0]
    if x is None or value.use_count != 1 or not same_dims(shape_of(x), shape_of(value)):
        return None
    inner = pack(x, dims)
    if inner is None or len(shape_of(x) or ()) != 4:
        return None
    attributes = {**rotary.attributes, "num_heads": dims[2]}

    def make(b: OpBuilder) -> Value:
        return b.create(rotary.definition, [inner.make(b), *rotary.operands[1:]], attributes).result

    return Packed(make, value)


@dataclass(frozen=True)
class Projection:
    """x @ weights + bias; no bias is None."""

    x: Value
    weights: np.ndarray
    bias: np.ndarray | None


def projection_of(m: Match, value: Value) -> Projection | None:
    """The projection that `value`, which has no other user, is, or is some columns of."""
    if value.use_count != 1:
        return None
    found = _columns(m, value)
    if found is None:
        return _whole_projection(m, value)
    source, columns = found
    whole = _whole_projection(m, source)
    if whole is None:
        return None
    bias = None if whole.bias is None else whole.bias[columns]
    return Projection(whole.x, whole.weights[:, columns], bias)


def _columns(m: Match, value: Value) -> tuple[Value, slice] | None:
    """The tensor that `value` has some columns of, and which, if nobody needs it but for its columns."""
    producer = made_by(value, "split", "slice")
    source = producer.operands[0] if producer is not None else None
    shape = shape_of(source)
    if producer is None or source is None or not shape:
        return None
    if producer.name == "split":
        widths = [(shape_of(result) or (None,))[-1] for result in producer.results]
        known = [width for width in widths if isinstance(width, int)]
        if source.use_count != 1 or len(known) < len(widths) or producer.attr("axis") not in (-1, len(shape) - 1):
            return None
        start = sum(known[: value.index])
        return source, slice(start, start + known[value.index])
    first, end, axis, step = (ints(m, producer.input(index)) for index in range(1, 5))
    whole = shape[-1]
    if any(user.name != "slice" for user in source.users) or axis not in ([-1], [len(shape) - 1]):
        return None
    if first is None or end is None or len(first) != 1 or step not in (None, [1]) or not isinstance(whole, int):
        return None
    return source, slice(*slice(first[0], end[0]).indices(whole))


def _whole_projection(m: Match, value: Value) -> Projection | None:
    producer = value.producer
    if producer is not None and producer.name == "gemm":
        return _gemm_projection(m, producer)
    bias = None
    if producer is not None and producer.name == "add":
        for product_side, bias_side in (producer.operands, producer.operands[::-1]):
            found = _constant(m, bias_side)
            inner = made_by(product_side, "matmul")
            if found is not None and found.ndim == 1 and inner is not None and product_side is not None:
                bias, value, producer = found, product_side, inner
                break
    if producer is None or producer.name != "matmul":
        return None
    if bias is not None and value.use_count != 1:
        return None
    x, weights = producer.operands[0], _constant(m, producer.operands[1])
    if x is None or weights is None or weights.ndim != 2 or (bias is not None and bias.shape[0] != weights.shape[1]):
        return None
    return Projection(x, weights, bias)


def _gemm_projection(m: Match, gemm: Operation) -> Projection | None:
    x, weights = gemm.operands[0], _constant(m, gemm.operands[1])
    plain = gemm.attr("alpha") == 1.0 and not gemm.attr("transA")
    if x is None or weights is None or not plain:
        return None
    weights = weights.T if gemm.attr("transB") else weights
    if gemm.input(2) is None:
        return Projection(x, weights, None)
    bias = _constant(m, gemm.input(2))
    if bias is None or bias.shape != (weights.shape[1],) or gemm.attr("beta") != 1.0:
        return None
    return Projection(x, weights, bias)


def _constant(m: Match, value: Value | None) -> np.ndarray | None:
    """The elements of a constant f32 tensor."""
    data = m.data(value)
    if data is None or isinstance(data, UnresolvedData) or str(data.dtype) != "f32":
        return None
    return data.numpy()


__all__ = ["HEADS_FIRST", "LENGTH_FIRST", "Make", "Packed", "Projection", "equal_by_count", "pack", "projection_of"]
