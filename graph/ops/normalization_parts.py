"""Normalizations made of simpler operations, in as few as possible; and the numpy meaning of those with a stash type.

The parts are spelled as runtimes know them: ONNX Runtime recognizes `pow(x, 2)`, a mean, and a division by the root as
one normalization, and does not if the square is a product or the division a reciprocal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .. import dtypes
from ..types import TensorType
from .common import dtype_attribute, dtype_of, has_operand, shape_of

if TYPE_CHECKING:
    from ..builder import OpBuilder
    from ..core import Operation, Value
    from ..dims import Dim
    from ..dtypes import DType


def constant_of(value: Value | None) -> np.ndarray | None:
    """The elements of a constant; None for any other value."""
    producer = value.producer if value is not None else None
    if producer is None or producer.name != "const":
        return None
    elements: np.ndarray = producer.attributes["value"].numpy()
    return elements


def is_all(value: Value | None, number: float) -> bool:
    """Whether `value` is a constant whose every element is `number`."""
    elements = constant_of(value)
    return elements is not None and elements.size > 0 and bool(np.all(elements == number))


def layer_norm_parts(op: Operation, b: OpBuilder) -> list[Value] | None:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias in 9 operations, fewer without scale or bias.

    None if mean or deviation are results, too, or if the type of x is not known.
    """
    axes, x = _axes(op), op.operands[0]
    if axes is None or x is None or any(result.use_count or result.name for result in op.results[1:]):
        return None
    wide, narrow = _stash(op, x, b)
    centered = b.sub(wide, b.reduce_mean(wide, axes))
    variance = b.reduce_mean(b.pow(centered, 2.0), axes)
    result = _cast(b, b.div(centered, _root(b, op, variance)), narrow)
    result = _scaled(b, result, op.operands[1])
    if has_operand(op, 2) and not _is_made_up(op.operands[2], 0.0):
        result = b.add(result, op.operands[2])
    return [result]


def rms_norm_parts(op: Operation, b: OpBuilder) -> list[Value] | None:
    """x / sqrt(mean of squares + epsilon) * scale in 6 operations. None if the type of x is not known."""
    axes, x = _axes(op), op.operands[0]
    if axes is None or x is None:
        return None
    wide, narrow = _stash(op, x, b)
    mean = b.reduce_mean(b.pow(wide, 2.0), axes)
    result = _cast(b, b.div(wide, _root(b, op, mean)), narrow)
    return [_scaled(b, _cast(b, result, dtype_of(op, 1, 0) or narrow), op.operands[1])]


def group_norm_parts(op: Operation, b: OpBuilder) -> list[Value] | None:
    """An instance normalization of the groups between two reshapes, then scale and bias: 5 operations.

    None unless x is an f32 tensor of known rank: InstanceNormalization has no wider type to compute in.
    """
    shape, groups = shape_of(op, 0), op.attr("num_groups")
    x, scale, bias = op.operands[:3]
    if shape is None or len(shape) < 3 or dtype_of(op, 0) is not dtypes.f32:
        return None
    ones, zeros = np.ones(groups, np.float32), np.zeros(groups, np.float32)
    grouped = b.reshape(x, [0, groups, -1])
    normal = b.instance_normalization(grouped, ones, zeros, epsilon=op.attr("epsilon"))
    target = _reshape_target(shape)
    result: Value = b.reshape(normal, b.shape(x) if target is None else target)
    if not is_all(scale, 1.0):
        result = b.mul(result, per_channel(b, scale, len(shape)))
    if not is_all(bias, 0.0):
        result = b.add(result, per_channel(b, bias, len(shape)))
    return [result]


def per_channel(b: OpBuilder, vector: Value | None, rank: int) -> Value:
    """A vector with an element per channel as [channels, 1, ...], for a tensor of `rank` with the channels at dim 1."""
    elements = constant_of(vector)
    if elements is not None:
        return b.const(elements.reshape(-1, *[1] * (rank - 2)))
    result: Value = b.unsqueeze(vector, list(range(1, rank - 1)))
    return result


def normalized_by_root_mean_square(
    x: np.ndarray, scale: np.ndarray, axis: int, epsilon: float, stash: DType
) -> np.ndarray:
    """RMSNormalization-23: computed in `stash`, rounded to the type of x, then scaled in the type of `scale`."""
    wide = x.astype(stash.numpy)
    axes = tuple(range(axis % x.ndim, x.ndim))
    mean = np.mean(wide * wide, axis=axes, keepdims=True, dtype=stash.numpy)
    normal = (wide / np.sqrt(mean + np.asarray(epsilon, stash.numpy))).astype(x.dtype)
    result: np.ndarray = (normal.astype(scale.dtype) * scale).astype(scale.dtype)
    return result


def standardized(
    x: np.ndarray, scale: np.ndarray, bias: np.ndarray | None, axis: int, epsilon: float, stash: DType
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """LayerNormalization-17: computed in `stash`, rounded to the type of x, then scaled and shifted in that type.

    The further results are the mean and the inverse deviation, in `stash`.
    """
    wide = x.astype(stash.numpy)
    axes = tuple(range(axis % x.ndim, x.ndim))
    mean = np.mean(wide, axis=axes, keepdims=True, dtype=stash.numpy)
    centered = wide - mean
    variance = np.mean(centered * centered, axis=axes, keepdims=True, dtype=stash.numpy)
    inverse = (1 / np.sqrt(variance + np.asarray(epsilon, stash.numpy))).astype(stash.numpy)
    result = (centered * inverse).astype(x.dtype) * scale
    if bias is not None:
        result = result + bias
    return result.astype(x.dtype), mean, inverse


def _axes(op: Operation) -> list[int] | None:
    """The axes from `axis` to the last, counted from the end; None if that takes a rank that is not known."""
    axis, shape = op.attr("axis"), shape_of(op, 0)
    if dtype_of(op, 0) is None or (axis >= 0 and shape is None):
        return None
    first = axis - len(shape) if axis >= 0 and shape is not None else axis
    return list(range(first, 0))


def _stash(op: Operation, x: Value, b: OpBuilder) -> tuple[Value, DType]:
    """x in the type to compute in, and the type it has."""
    assert isinstance(x.type, TensorType)
    return _cast(b, x, dtype_attribute(op, "stash_type", dtypes.f32) or dtypes.f32), x.type.dtype


def _cast(b: OpBuilder, value: Value, dtype: DType) -> Value:
    known = isinstance(value.type, TensorType) and value.type.dtype is dtype
    return value if known else b.create("cast", [value], {"to": dtype.onnx_code}).result


def _root(b: OpBuilder, op: Operation, mean: Value) -> Value:
    epsilon = op.attr("epsilon")
    result: Value = b.sqrt(b.add(mean, epsilon) if epsilon else mean)
    return result


def _scaled(b: OpBuilder, value: Value, scale: Value | None) -> Value:
    result: Value = value if _is_made_up(scale, 1.0) else b.mul(value, scale)
    return result


def _is_made_up(operand: Value | None, neutral: float) -> bool:
    """Whether an operand changes nothing and has no name: one with a name may be a parameter that is yet to be trained,
    and is left out by rewrites only."""
    return operand is None or (operand.name is None and is_all(operand, neutral))


def _reshape_target(shape: Sequence[Dim]) -> list[int] | None:
    """The constant with which Reshape gives [n, groups, rest] the dims `shape` again; None if there is none."""
    rest = [dim if isinstance(dim, int) else -1 for dim in shape[1:]]
    return [0, *rest] if rest.count(-1) <= 1 and 0 not in rest else None
