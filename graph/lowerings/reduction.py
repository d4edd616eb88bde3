"""Reductions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..core import Operation, Value
from ..dtypes import bool_, u8
from .builder import KernelBuilder, all_native, constant_ints, dtype_of, is_float, rank_of, shape_of, tensor_type
from .rules import lowers

# Kind of the reduction; what is done to each element before, and to each result after.
_KINDS: dict[str, tuple[str, str, str]] = {
    "reduce_sum": ("sum", "", ""), "reduce_mean": ("mean", "", ""), "reduce_max": ("max", "", ""),
    "reduce_min": ("min", "", ""), "reduce_prod": ("prod", "", ""), "reduce_sum_square": ("sum", "square", ""),
    "reduce_l1": ("sum", "abs", ""), "reduce_l2": ("sum", "square", "sqrt"), "reduce_log_sum": ("sum", "", "log"),
}  # fmt: skip


@lowers(
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSumSquare", "ReduceL1", "ReduceL2",
    "ReduceLogSum",
)  # fmt: skip
def reduce(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    """Axes must be constants. Without any, all are reduced or, on demand, none."""
    x = op.operand_values[0]
    axes = constant_ints(op.input(1))
    if not all_native(op) or (axes is None and op.input(1) is not None):
        return None
    if dtype_of(x) is bool_:
        x = k.bits(x, u8)
    if not axes and op.attr("noop_with_empty_axes"):
        axes = []
    else:
        axes = sorted({axis % rank_of(x) for axis in axes}) if axes else list(range(rank_of(x)))
    kind, before, after = _KINDS[op.name]
    if dtype_of(x).kind != "float" and (kind == "mean" or after):
        return None
    if before:
        x = k.map(lambda s, element: _unary(s, before, element), [x], tensor_type(x))
    if dtype_of(op.result) is bool_ and _KINDS[op.name] not in (("max", "", ""), ("min", "", "")):
        return None
    type = tensor_type(op.result).with_dtype(dtype_of(x))
    result = k.reduce(x, kind, axes, bool(op.attr("keepdims")), type) if axes else x
    if after:
        result = k.map(lambda s, element: _unary(s, after, element), [result], type)
    if dtype_of(op.result) is bool_:
        result = k.map(lambda s, element: s.cast(element, bool_), [result], tensor_type(op.result))
    return [result]


@lowers("ReduceLogSumExp")
def log_sum_exp(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    """The greatest element, plus the logarithm of the sum of exponentials of what is left."""
    x, axes = op.operand_values[0], constant_ints(op.input(1))
    if not all_native(op) or not dtype_of(x).is_float or (axes is None and op.input(1) is not None):
        return None
    if not axes and op.attr("noop_with_empty_axes"):
        return None
    axes = sorted({axis % rank_of(x) for axis in axes}) if axes else list(range(rank_of(x)))
    kept = tensor_type(x).with_shape([1 if axis in axes else dim for axis, dim in enumerate(shape_of(x))])
    greatest = k.reduce(x, "max", axes, True, kept)
    # An infinite greatest element would make NaN of what is equal to it.
    finite = k.map(lambda s, m: s.select(s.less(s.abs(m), math.inf), m, 0), [greatest], kept)
    powers = k.map(lambda s, e, m: s.exp(s.sub(e, m)), [x, finite], tensor_type(x))
    total = k.reduce(powers, "sum", axes, True, kept)
    result = k.map(lambda s, t, m: s.add(s.log(t), m), [total, finite], kept)
    return [result if op.attr("keepdims") else k.squeeze(result, axes)]


def _unary(s: Any, name: str, x: Any) -> Any:
    return s.mul(x, x) if name == "square" else getattr(s, name)(x)


@lowers("Det")
def determinant(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    """Of matrices of up to 3 rows it is a map (`expand_linear`)."""
    x = op.operand_values[0]
    if not all_native(op) or not is_float(x) or shape_of(x)[-1] in (1, 2, 3):
        return None
    return [k.kernel("determinant", [x], op.result.type)]
