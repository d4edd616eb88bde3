"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core import Operation, Value
from ..dtypes import f32, f64
from .builder import KernelBuilder, all_native, dtype_of, rank_of, shape_of, tensor_type
from .rules import lowers


@lowers("MatMul")
def matmul(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    """A product; a vector is a matrix of one row, or of one column on the right. Halves are multiplied as f32."""
    if not all_native(op) or not dtype_of(op.result).is_float:
        return None
    a, b = (widened(k, value) for value in op.operand_values)
    rank_a, rank_b = rank_of(a), rank_of(b)
    if rank_a == 1:
        a = k.unsqueeze(a, [0])
    if rank_b == 1:
        b = k.unsqueeze(b, [1])
    type = tensor_type(op.result).with_dtype(dtype_of(a))
    if rank_a > 1 and rank_b > 1:
        return [narrowed(k, k.gemm(a, b, type), op.result)]
    batch = list(shape_of(op.result))
    rows = [shape_of(a)[-2]] if rank_a > 1 else []
    columns = [shape_of(b)[-1]] if rank_b > 1 else []
    batch = batch[: len(batch) - len(rows) - len(columns)]
    full = type.with_shape([*batch, *(rows or [1]), *(columns or [1])])
    product = k.gemm(a, b, full)
    dropped = ([len(batch)] if rank_a == 1 else []) + ([len(batch) + 1] if rank_b == 1 else [])
    return [narrowed(k, k.squeeze(product, dropped), op.result)]


def widened(k: KernelBuilder, value: Value) -> Value:
    """A narrow float as f32."""
    type = tensor_type(value)
    if type.dtype in (f32, f64):
        return value
    return k.map(lambda s, x: s.cast(x, f32), [value], type.with_dtype(f32))


def narrowed(k: KernelBuilder, value: Value, wanted: Value) -> Value:
    """A value in the dtype of `wanted`."""
    type = tensor_type(value)
    if type.dtype is dtype_of(wanted):
        return value
    return k.map(lambda s, x: s.cast(x, dtype_of(wanted)), [value], type.with_dtype(dtype_of(wanted)))


@lowers("Gemm")
def gemm(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    """alpha A B + beta C, with A and B transposed by views. Halves are multiplied as f32."""
    if not all_native(op) or not dtype_of(op.result).is_float:
        return None
    a, b = (widened(k, value) for value in op.operand_values[:2])
    a = k.transpose(a, [1, 0]) if op.attr("transA") else a
    b = k.transpose(b, [1, 0]) if op.attr("transB") else b
    type = tensor_type(op.result).with_dtype(dtype_of(a))
    product = k.gemm(a, b, type)
    alpha, beta, bias = op.attr("alpha"), op.attr("beta"), op.input(2)
    bias = None if beta == 0 or bias is None else widened(k, bias)
    if alpha == 1 and bias is None:
        return [narrowed(k, product, op.result)]

    def finish(s: Any, total: Any, term: Any) -> Any:
        total = total if alpha == 1 else s.mul(total, alpha)
        if term is None:
            return total
        return s.add(total, term if beta == 1 else s.mul(term, beta))

    return [narrowed(k, k.map(finish, [product, bias], type), op.result)]
