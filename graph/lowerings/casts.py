"""Conversions between element types."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import Operation, Value
from ..types import TensorType
from .builder import NATIVE, KernelBuilder, dtype_of, tensor_type
from .narrow import can_encode, decoded, encoded, is_narrow
from .rules import lowers


def _is_lowerable(value: Value) -> bool:
    """A tensor of known rank whose elements lie in bytes of their own."""
    type = value.type
    return isinstance(type, TensorType) and type.shape is not None and (type.dtype in NATIVE or is_narrow(type.dtype))


@lowers("Cast", "CastLike")
def cast(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    """Numbers of 8 bits or less by way of f32 or bytes; nothing where the type is there already, as bodies of the
    standard have it that compute in a stated type."""
    x, to = op.operand_values[0], op.result
    if not _is_lowerable(x) or not _is_lowerable(to):
        return None
    if x.type == to.type and not is_narrow(dtype_of(to)):
        return [x]
    wanted = dtype_of(to)
    x = decoded(k, x)
    if is_narrow(wanted):
        if not can_encode(dtype_of(x), wanted):
            return None
        return [encoded(k, x, wanted, bool(op.attr("saturate", 1)), str(op.attr("round_mode", "up")))]
    return [k.map(lambda s, element: s.cast(element, wanted), [x], tensor_type(to))]


@lowers("BitCast")
def bit_cast(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    if not _is_lowerable(op.operand_values[0]) or not _is_lowerable(op.result):
        return None
    return [k.bits(op.operand_values[0], dtype_of(op.result))]
