"""Softmax and normalizations: rows, with their scale and bias as epilogue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..core import Operation, Value
from ..dtypes import f32
from .builder import KernelBuilder, all_native, dtype_of, rank_of, shape_of, tensor_type
from .rules import lowers


@lowers("Softmax", "LogSoftmax")
def softmax(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    x = op.operand_values[0]
    if not all_native(op) or dtype_of(x) is not f32 or not rank_of(x):
        return None
    return [_along(k, x, op.attr("axis"), lambda rows: k.rows(rows, op.name))]


@lowers("LayerNormalization", "RMSNormalization")
def layer_norm(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    """Over the last axis; several axes are one first."""
    x, scale = op.operand_values[:2]
    if not all_native(op) or dtype_of(x) is not f32 or any(result.uses for result in op.results[1:]):
        return None
    rank, axis = rank_of(x), op.attr("axis")
    axis = axis + rank if axis < 0 else axis
    if axis != rank - 1 or op.attr("stash_type", 1) != 1:
        return None
    kind = "layer_norm" if op.name == "layer_normalization" else "rms_norm"
    rows = k.rows(x, kind, op.attr("epsilon"))

    def finish(s: Any, element: Any, factor: Any, term: Any) -> Any:
        product = s.mul(element, factor)
        return product if term is None else s.add(product, term)

    result = k.map(finish, [rows, scale, op.input(2)], tensor_type(op.results[0]))
    return [result] * len(op.results)


def _along(k: KernelBuilder, x: Value, axis: int, build: Callable[[Value], Value]) -> Value:
    """What `build` makes of the rows of x along `axis`."""
    rank = rank_of(x)
    axis = axis + rank if axis < 0 else axis
    if axis == rank - 1:
        return build(x)
    perm = [other for other in range(rank) if other != axis] + [axis]
    back = [perm.index(position) for position in range(rank)]
    return k.transpose(build(k.transpose(x, perm)), back)


@lowers("InstanceNormalization")
def instance_norm(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    """Each channel of each image is a row."""
    x, scale, bias = op.operand_values
    shape = shape_of(x) if all_native(op) else ()
    if not shape or dtype_of(x) is not f32 or rank_of(x) < 3:
        return None
    flat = x
    while rank_of(flat) > 3:
        flat = k.merge_axes(flat, 2)
    flat_type = tensor_type(flat)
    rows = k.rows(flat, "layer_norm", op.attr("epsilon"))
    operands = [rows, k.unsqueeze(scale, [1]), k.unsqueeze(bias, [1])]
    result = k.map(lambda s, element, factor, term: s.add(s.mul(element, factor), term), operands, flat_type)
    if rank_of(x) == 3:
        return [result]
    return [k.reshape(result, _sizes(k, x), tensor_type(x), is_exact=True)]


@lowers("BatchNormalization")
def batch_norm(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    """With running statistics: one map of the elements, and one that makes a factor of each channel's variance."""
    x = op.operand_values[0]
    if not all_native(op) or op.attr("training_mode") or rank_of(x) < 2 or len(op.results) > 1:
        return None
    later = range(1, rank_of(x) - 1)
    columns = [k.unsqueeze(value, later) if later else value for value in op.operand_values[1:]]
    scale, bias, mean, variance = columns
    epsilon, dtype = op.attr("epsilon"), dtype_of(scale)

    def factor(s: Any, scale: Any, variance: Any) -> Any:
        return s.div(scale, s.sqrt(s.add(s.cast(variance, dtype), epsilon)))

    def normalize(s: Any, element: Any, factor: Any, bias: Any, mean: Any) -> Any:
        return s.add(s.mul(s.sub(s.cast(element, dtype), s.cast(mean, dtype)), factor), bias)

    factors = k.map(factor, [scale, variance], tensor_type(scale))
    return [k.map(normalize, [x, factors, bias, mean], tensor_type(op.results[0]))]


@lowers("GroupNormalization")
def group_norm(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    """Each group of channels of each image is a row."""
    x, scale, bias = op.operand_values
    shape = shape_of(x) if all_native(op) else ()
    groups = op.attr("num_groups")
    if len(shape) < 3 or dtype_of(x) is not f32 or op.attr("stash_type", 1) != 1:
        return None
    joined = k.split_axis(x, 1, [groups, -1])
    while rank_of(joined) > 3:
        joined = k.merge_axes(joined, 2)
    rows = k.rows(joined, "layer_norm", op.attr("epsilon"))
    whole = k.reshape(rows, _sizes(k, x), tensor_type(x), is_exact=True)
    later = range(1, len(shape) - 1)
    operands = [whole, k.unsqueeze(scale, later), k.unsqueeze(bias, later)]
    return [k.map(lambda s, element, factor, term: s.add(s.mul(element, factor), term), operands, tensor_type(x))]


@lowers("LpNormalization")
def lp_norm(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    """Over the root of the sum of powers; rows of zeros stay zeros."""
    x = op.operand_values[0]
    if not all_native(op):
        return None
    axis = int(op.attr("axis")) % rank_of(x)
    order = op.attr("p")
    powers = k.map(lambda s, e: s.abs(e) if order == 1 else s.mul(e, e), [x], tensor_type(x))
    shape = [1 if position == axis else dim for position, dim in enumerate(shape_of(x))]
    total = k.reduce(powers, "sum", [axis], True, tensor_type(x).with_shape(shape))

    def scaled(s: Any, element: Any, total: Any) -> Any:
        norm = total if order == 1 else s.sqrt(total)
        return s.select(s.equal(norm, 0), 0, s.div(element, norm))

    return [k.map(scaled, [x, total], tensor_type(x))]


def _sizes(k: KernelBuilder, x: Value) -> Value | Sequence[int]:
    """The shape of x: numbers, or a value that follows from x."""
    shape = tensor_type(x).static_shape
    if shape is not None:
        return shape
    sizes: Value = k.shape(x)
    return sizes
