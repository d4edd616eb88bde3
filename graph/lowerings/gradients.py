"""The gradient operators of the domain "tilewright"."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import Operation, Value
from ..dtypes import f32, f64
from ..ops.attention_parts import heads_of
from .attention import attention_attributes, covers_keys, head_views, joined_heads
from .builder import KernelBuilder, all_native, dtype_of, rank_of, shape_of, tensor_type
from .matmul import narrowed, widened
from .rules import lowers


@lowers("ConvWeightGrad", domain="tilewright")
def conv_weight(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    """Halves are multiplied as f32."""
    if not all_native(op) or not dtype_of(op.result).is_float or rank_of(op.result) not in (3, 4, 5):
        return None
    x, grad = (widened(k, value) for value in op.operand_values)
    type = tensor_type(op.result).with_dtype(dtype_of(x))
    return [narrowed(k, k.kernel("conv_weight", [x, grad], type, **op.attributes), op.result)]


@lowers("MaxPoolGrad", domain="tilewright")
def max_pool_grad(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    """Where it is known which windows may name an element; else a scatter."""
    kernel = op.attr("kernel_shape")
    if not all_native(op) or dtype_of(op.result) not in (f32, f64) or len(kernel) not in (1, 2, 3):
        return None
    return [k.kernel("max_pool_grad", op.operands, op.result.type, **op.attributes)]


@lowers("AttentionGrad", domain="tilewright")
def attention_grad(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    """Heads are views, as in the forward pass. Without windows; those are made of parts."""
    heads = heads_of(op) if all_native(op) else None
    dtype = dtype_of(op.results[0])
    if heads is None or dtype not in (f32, f64) or op.attr("masking") == "nan-to-zero":
        return None
    if any(op.attr(name, -1) != -1 for name in ("left_window_size", "right_window_size")):
        return None
    mask = op.input(4)
    if mask is not None and (not covers_keys(op, mask) or (dtype_of(mask).is_float and dtype_of(mask) is not dtype)):
        return None
    counts = (heads.queries, heads.keys, heads.keys, heads.queries)
    sizes = (heads.size, heads.size, heads.value_size, heads.value_size)
    operands = [
        head_views(k, value, count, size, heads.packed)
        for value, count, size in zip(op.operand_values[:4], counts, sizes, strict=True)
    ]
    types = [tensor_type(op.results[index]).with_shape(shape_of(operands[index])) for index in range(3)]
    made = k.create(
        "kernel.attention_grad", [*operands, mask], attention_attributes(op, heads), result_types=types
    ).results  # fmt: skip
    if not heads.packed:
        return list(made)
    return [joined_heads(k, value, op.results[index]) for index, value in enumerate(made)]
