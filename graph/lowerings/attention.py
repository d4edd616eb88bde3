"""Attention: heads are views, the rest is one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core import Operation, Value
from ..dims import prove_equal
from ..dtypes import bool_, f32
from ..ops.attention_parts import Heads, heads_of
from .builder import KernelBuilder, all_native, dtype_of, rank_of, shape_of, tensor_type
from .rules import lowers


@lowers("Attention")
def attention(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    """Without past keys, windows, further masks, or scores as a result; those are made of parts."""
    heads = heads_of(op) if all_native(op) else None
    if heads is None or dtype_of(op.results[0]) is not f32 or not _is_plain(op):
        return None
    mask = op.input(3)
    if mask is not None and not covers_keys(op, mask):
        return None
    q, key, value = (head_views(k, operand, count, size, heads.packed) for operand, count, size in zip(
        op.operand_values[:3], (heads.queries, heads.keys, heads.keys), (heads.size, heads.size, heads.value_size),
        strict=True,
    ))  # fmt: skip
    shape = shape_of(q)
    type = tensor_type(op.results[0]).with_shape([*shape[:3], heads.value_size])
    result = k.kernel("attention", [q, key, value, mask], type, **attention_attributes(op, heads))
    if heads.packed:
        result = joined_heads(k, result, op.results[0])
    return [result]


def attention_attributes(op: Operation, heads: Heads) -> dict[str, Any]:
    """The attributes of the kernel, from those of the operator."""
    scale = op.attr("scale")
    return {
        "scale": 1.0 / heads.size**0.5 if scale is None else scale, "softcap": op.attr("softcap") or 0.0,
        "causal": int(op.attr("is_causal") or 0), "masked_score": op.attr("masked_score"),
        "masking": "zero" if op.attr("masking") == "standard" else op.attr("masking"),
    }  # fmt: skip


def _is_plain(op: Operation) -> bool:
    # A result without users counts: those of an operation that was just made have none yet.
    if any(op.operands[4:]) or len(op.results) > 1:
        return False
    windows = [op.attr(name, -1) for name in ("left_window_size", "right_window_size")]
    return all(size == -1 for size in windows) and op.attr("softmax_precision") in (None, 0, 1)


def covers_keys(op: Operation, mask: Value) -> bool:
    """Whether the mask is broadcast to the scores: the standard fills up a shorter one, which is another thing."""
    if dtype_of(mask) not in (bool_, f32) or rank_of(mask) > 4:
        return False
    if op.attr("masking") != "standard":
        return True
    shape = shape_of(mask)
    return bool(shape) and prove_equal(shape[-1], shape_of(op.operand_values[1])[-2]) is True


def head_views(k: KernelBuilder, x: Value, count: int, size: int, packed: bool) -> Value:
    """[batch, heads, length, size] as a view."""
    if not packed:
        return x
    batch, length, _ = shape_of(x)
    split = k.reshape(x, [0, 0, count, size], tensor_type(x).with_shape([batch, length, count, size]))
    return k.transpose(split, [0, 2, 1, 3])


def joined_heads(k: KernelBuilder, x: Value, result: Value) -> Value:
    """[batch, length, heads * size] as a view, in the type of `result`."""
    _, heads, _, size = shape_of(x)
    assert isinstance(heads, int)
    assert isinstance(size, int)
    return k.reshape(k.transpose(x, [0, 2, 1, 3]), [0, 0, heads * size], tensor_type(result))
