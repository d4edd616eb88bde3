"""Operators about shapes: they read a tensor's dims, or keep its elements in order and change its dims."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import dtypes
from ..dims import Dim, product, prove_equal
from ..opdef import OpDefinition, Trait, op
from ..types import Type
from .common import (
    Shape,
    TensorOp,
    broadcast,
    constant_ints,
    element_dim,
    elements_of,
    error,
    format_shape,
    has_operand,
    length_of,
    normalize_axes,
    operand_elements,
    shape_of,
    unknown_dims,
    vector_elements,
)
from .values import as_elements, convert

if TYPE_CHECKING:
    from ..builder import OpBuilder
    from ..core import Operation, Value
    from ..dtypes import DType
    from ..infer import InferenceContext, SymbolicArray


@op("Shape")
class ShapeOf(TensorOp):
    """The dims of the operand from `start` up to `end`, as i64."""

    traits = frozenset({Trait.SHAPE_ONLY})

    def result_dtype(self, op: Operation) -> DType | None:
        return dtypes.i64

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        shape = shape_of(op, 0)
        return [context.fresh()] if shape is None else [len(self._selected(op, shape))]

    def propagate(self, op: Operation, context: InferenceContext) -> SymbolicArray | None:
        shape = shape_of(op, 0)
        return None if shape is None else as_elements(list(self._selected(op, shape)))

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return np.array(self._selected(op, operands[0].shape), np.int64)

    def decompose(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        """Part of a shape as a slice of the whole, for opsets that know no `start` and `end`."""
        start, end = op.attr("start", 0), op.attr("end")
        if not start and end is None:
            return None
        return [builder.slice(builder.shape(op.operands[0]), [start], [2**63 - 1 if end is None else end], [0])]

    def _selected(self, op: Operation, shape: Shape) -> Shape:
        return shape[slice(op.attr("start", 0), op.attr("end"))]


@op("Size")
class Size(TensorOp):
    """The number of elements, an i64 scalar."""

    traits = frozenset({Trait.SHAPE_ONLY})

    def result_dtype(self, op: Operation) -> DType | None:
        return dtypes.i64

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        return ()

    def propagate(self, op: Operation, context: InferenceContext) -> SymbolicArray | None:
        elements = elements_of(shape_of(op, 0))
        return None if elements is None else as_elements([elements], ())

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return np.array(operands[0].size, np.int64)


class KeepsOrder(TensorOp):
    """All elements of the operand in the same order, under other dims."""

    traits = frozenset({Trait.INJECTIVE})

    def propagate(self, op: Operation, context: InferenceContext) -> SymbolicArray | None:
        elements = operand_elements(op, 0, context)
        shape = self.result_shape(op, context)
        if elements is None or shape is None:
            return None
        static = [dim for dim in shape if isinstance(dim, int)]
        return elements.reshape(static) if len(static) == len(shape) and product(static) == elements.size else None


@op("Identity")
class Identity(OpDefinition):
    traits = frozenset({Trait.INJECTIVE})

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        return [value.type for value in op.operand_values]

    def propagate(self, op: Operation, context: InferenceContext) -> SymbolicArray | None:
        return context.symbolic(op.operands[0])

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return operands[0]


@op("Flatten")
class Flatten(KeepsOrder):
    """A matrix: the dims before `axis` multiplied, and those from it on."""

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        shape, axis = shape_of(op, 0), op.attr("axis", 1)
        if shape is None:
            return unknown_dims(2, context)
        if not -len(shape) <= axis <= len(shape):
            raise error("shape/axis", f"flatten has axis {axis}, but the rank is {len(shape)}")
        if axis < 0:
            axis += len(shape)
        return [product(shape[:axis]), product(shape[axis:])]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        shape, axis = operands[0].shape, op.attr("axis", 1)
        axis += len(shape) if axis < 0 else 0
        return operands[0].reshape(math.prod(shape[:axis]), math.prod(shape[axis:]))


@op("Squeeze")
class Squeeze(KeepsOrder):
    """Drops the dims at `axes`, which must be 1; without axes every dim that is 1."""

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        shape = shape_of(op, 0)
        if not has_operand(op, 1):
            return None if shape is None else _without_ones(shape)
        axes = constant_ints(op, 1, context)
        if axes is None:
            count = length_of(op, 1)
            if shape is None or count is None:
                return None
            if count > len(shape):
                raise error("shape/axis", f"squeeze has {count} axes, but the rank is {len(shape)}")
            return unknown_dims(len(shape) - count, context)
        if shape is None:
            return None
        dropped = normalize_axes(axes, len(shape), op)
        for axis in dropped:
            if prove_equal(shape[axis], 1) is False:
                raise error("shape/squeeze", f"squeeze needs dim {axis} of {format_shape(shape)} to be 1")
        return [dim for axis, dim in enumerate(shape) if axis not in dropped]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        axes = operands[1] if len(operands) > 1 else None
        return np.squeeze(operands[0], None if axes is None else tuple(int(axis) for axis in np.ravel(axes)))


def _without_ones(shape: Shape) -> Shape | None:
    """The dims that are not 1; None if for some that is open, for then so is the rank."""
    is_one = [prove_equal(dim, 1) for dim in shape]
    if None in is_one:
        return None
    return tuple(dim for dim, one in zip(shape, is_one, strict=True) if not one)


@op("Unsqueeze")
class Unsqueeze(KeepsOrder):
    """Inserts dims of 1, so that they are at `axes` of the result."""

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        shape, axes = shape_of(op, 0), constant_ints(op, 1, context)
        if shape is None:
            return None
        if axes is None:
            count = length_of(op, 1)
            return None if count is None else unknown_dims(len(shape) + count, context)
        inserted = set(normalize_axes(axes, len(shape) + len(axes), op))
        remaining = iter(shape)
        return [1 if axis in inserted else next(remaining) for axis in range(len(shape) + len(axes))]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return np.expand_dims(operands[0], tuple(int(axis) for axis in np.ravel(operands[1])))


@op("Expand")
class Expand(TensorOp):
    """Broadcasts the operand with the shape that `shape` holds (both ways: a 1 there keeps the operand's dim)."""

    traits = frozenset({Trait.INJECTIVE})

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        target = vector_elements(op, 1, context)
        if target is not None:
            for item in target:
                if isinstance(item, int) and item < 0:
                    raise error("shape/expand", f"expand to {target}: {item} is no dim")
            wanted: Shape | None = tuple(element_dim(item, context) for item in target)
        else:
            wanted = unknown_dims(length_of(op, 1), context)
        return broadcast(op, [shape_of(op, 0), wanted], context)

    def propagate(self, op: Operation, context: InferenceContext) -> SymbolicArray | None:
        elements, target = operand_elements(op, 0, context), operand_elements(op, 1, context)
        if elements is None or target is None or not all(isinstance(item, int) for item in target.flat):
            return None
        shape = np.broadcast_shapes(elements.shape, tuple(target.flat))
        return np.broadcast_to(elements, shape).copy() if np.prod(shape, dtype=np.int64) <= 1024 else None

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        data, target = operands
        return np.broadcast_to(data, np.broadcast_shapes(data.shape, tuple(int(dim) for dim in target))).copy()


@op("ConstantOfShape")
class ConstantOfShape(TensorOp):
    """A tensor of the shape that the operand holds, filled with `value` (default: f32 zero)."""

    def result_dtype(self, op: Operation) -> DType | None:
        value = op.attr("value")
        return dtypes.f32 if value is None else value.dtype

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        target = vector_elements(op, 0, context)
        if target is not None:
            return [element_dim(item, context) for item in target]
        return unknown_dims(length_of(op, 0), context)

    def propagate(self, op: Operation, context: InferenceContext) -> SymbolicArray | None:
        target, value = constant_ints(op, 0, context), op.attr("value")
        if target is None or value is None or int(np.prod(target)) > 1024:
            return None
        result = np.empty(target, object)
        result.reshape(-1)[:] = convert(value.numpy().reshape(-1)[0].item(), value.dtype)
        return result

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        value, dims = op.attr("value"), [int(dim) for dim in operands[0]]
        return np.zeros(dims, np.float32) if value is None else np.full(dims, value.numpy().reshape(-1)[0])

    def flops(self, op: Operation) -> Dim | None:
        return 0
