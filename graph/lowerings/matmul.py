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
    """A product; a vector is a matrix of one row, or of one column on the right."""
    if not all_native(op) or dtype_of(op.result) not in (f32, f64):
        return None
    a, b = op.operand_values
    rank_a, rank_b = rank_of(a), rank_of(b)
    if rank_a == 1:
        a = k.unsqueeze(a, [0])
    if rank_b == 1:
        b = k.unsqueeze(b, [1])
    if rank_a > 1 and rank_b > 1:
        return [k.gemm(a, b, tensor_type(op.result))]
    batch = list(shape_of(op.result))
    rows = [shape_of(a)[-2]] if rank_a > 1 else []
    columns = [shape_of(b)[-1]] if rank_b > 1 else []
    batch = batch[: len(batch) - len(rows) - len(columns)]
    full = tensor_type(op.result).with_shape([*batch, *(rows or [1]), *(columns or [1])])
    product = k.gemm(a, b, full)
    dropped = ([len(batch)] if rank_a == 1 else []) + ([len(batch) + 1] if rank_b == 1 else [])
    return [k.squeeze(product, dropped)]


@lowers("Gemm")
def gemm(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    """alpha A B + beta C, with A and B transposed by views."""
    if not all_native(op) or dtype_of(op.result) not in (f32, f64):
        return None
    a, b = op.operand_values[:2]
    a = k.transpose(a, [1, 0]) if op.attr("transA") else a
    b = k.transpose(b, [1, 0]) if op.attr("transB") else b
    type = tensor_type(op.result)
    product = k.gemm(a, b, type)
    alpha, beta, bias = op.attr("alpha"), op.attr("beta"), op.input(2)
    if beta == 0:
        bias = None
    if alpha == 1 and bias is None:
        return [product]

    def finish(s: Any, total: Any, term: Any) -> Any:
        total = total if alpha == 1 else s.mul(total, alpha)
        if term is None:
            return total
        return s.add(total, term if beta == 1 else s.mul(term, beta))

    return [k.map(finish, [product, bias], type)]
