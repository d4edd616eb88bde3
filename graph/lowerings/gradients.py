"""The gradient operators of the domain "tilewright"."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import Operation, Value
from .builder import KernelBuilder, all_native, dtype_of, rank_of, tensor_type
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
