"""Convolutions and pools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core import Operation, Value
from ..dtypes import f32, f64, i8, u8
from .builder import KernelBuilder, all_native, dtype_of, rank_of, shape_of, tensor_type
from .matmul import narrowed, widened
from .rules import lowers

_WINDOW = ("strides", "pads", "dilations", "auto_pad")


@lowers("Conv", "ConvTranspose")
def conv(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    """The bias becomes the epilogue. Halves are multiplied as f32."""
    if not all_native(op) or not dtype_of(op.result).is_float or rank_of(op.result) not in (3, 4, 5):
        return None
    x, w = (widened(k, value) for value in op.operand_values[:2])
    bias = op.input(2)
    type = tensor_type(op.result).with_dtype(dtype_of(x))
    names = _WINDOW if op.name == "conv" else (*_WINDOW, "output_padding", "output_shape")
    attributes = {name: op.attr(name) for name in names if op.attr(name) is not None}
    result = k.kernel(op.name, [x, w], type, group=op.attr("group"), **attributes)
    if bias is not None:
        column = k.unsqueeze(widened(k, bias), range(1, rank_of(result) - 1))
        result = k.map(lambda s, total, term: s.add(total, term), [result, column], type)
    return [narrowed(k, result, op.result)]


@lowers("MaxPool", "AveragePool")
def pool(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    """A max pool whose places are asked for, in row-major order, is a kernel of its own."""
    dtype = dtype_of(op.results[0]) if all_native(op) else None
    attributes: dict[str, Any] = {name: op.attr(name) for name in _WINDOW if op.attr(name) is not None}
    attributes |= {"kernel_shape": op.attr("kernel_shape"), "ceil_mode": op.attr("ceil_mode", 0)}
    if any(result.uses for result in op.results[1:]):
        if dtype not in (f32, f64) or op.attr("storage_order") or rank_of(op.results[0]) not in (3, 4, 5):
            return None
        types = [result.type for result in op.results]
        return list(k.create("kernel.max_pool", op.operands, attributes, result_types=types).results)
    if dtype is not f32 and (dtype not in (u8, i8) or op.name != "max_pool"):
        return None
    attributes["kind"] = "max" if op.name == "max_pool" else "average"
    attributes["count_include_pad"] = op.attr("count_include_pad", 0) or 0
    result = k.kernel("pool", op.operands, op.results[0].type, **attributes)
    return [result] * len(op.results)


@lowers("GlobalAveragePool", "GlobalMaxPool")
def global_pool(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    """A reduction of the spatial dims."""
    x = op.operand_values[0]
    if not all_native(op):
        return None
    kind = "mean" if op.name == "global_average_pool" else "max"
    return [k.reduce(x, kind, range(2, len(shape_of(x))), True, tensor_type(op.result))]
