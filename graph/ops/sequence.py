"""Sequences and optional values.

A sequence's element type describes every element. Symbols in it say nothing from one element to the next, so taking an
element out renews them, unless it can be seen which element it is.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import dtypes, types
from ..core import Operation, Value
from ..diagnostics import ExecutionError
from ..dims import Dim
from ..opdef import OpDefinition, op
from ..types import OptionalType, SequenceType, TensorType, Type
from .common import (
    constant_ints,
    dtype_attribute,
    error,
    has_operand,
    normalize_axis,
    tensor_of,
)
from .control import carried_out, join
from .values import as_elements

if TYPE_CHECKING:
    from ..infer import InferenceContext, SymbolicArray


def element_type(op: Operation, index: int) -> Type:
    """The element type of sequence operand `index`. Raises `dtype/mismatch` for something else."""
    value = op.operands[index] if index < len(op.operands) else None
    if value is None or value.type is types.UNKNOWN:
        return types.UNKNOWN
    if not isinstance(value.type, SequenceType):
        raise error("dtype/mismatch", f"{op.name} needs a sequence as its input {index}, got {value.type}")
    return value.type.element


def _position(op: Operation, position: Any, length: int, last: int) -> int:
    """A run-time position, counted from the end of `length` elements if negative and at most `last`.

    Raises ExecutionError for one out of range.
    """
    place = int(np.reshape(position, ()))
    if not -length <= place <= last:
        raise ExecutionError("run/sequence-position", f"{op.name}: position {place} of a sequence of {length}")
    return place + length if place < 0 else place


def _producer(value: Value | None, name: str) -> Operation | None:
    return value.producer if value is not None and value.producer is not None and value.producer.name == name else None


@op("SequenceEmpty")
class SequenceEmpty(OpDefinition):
    """No elements; `dtype` says what kind they would be."""

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        dtype = dtype_attribute(op, "dtype", dtypes.f32) or dtypes.f32
        return [types.sequence(types.tensor(dtype, None))]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return []


@op("SequenceConstruct")
class SequenceConstruct(OpDefinition):
    """The operands as a sequence."""

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        elements = [value.type for value in op.operand_values]
        return [types.sequence(functools.reduce(lambda a, b: join(a, b, op, context), elements))]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return list(operands)


@op("SequenceInsert")
class SequenceInsert(OpDefinition):
    """The sequence with one more tensor at a position (by default at the end)."""

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        element, tensor = element_type(op, 0), tensor_of(op, 1)
        if tensor is None or element is types.UNKNOWN:
            return [types.sequence(element)]
        if _producer(op.operands[0], "sequence_empty") is not None:
            if isinstance(element, TensorType) and element.dtype is not tensor.dtype:
                raise error("dtype/mismatch", f"{tensor} does not go into a sequence of {element}")
            return [types.sequence(tensor)]
        return [types.sequence(join(element, tensor, op, context))]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        sequence, tensor, position = (*operands, None)[:3]
        length = len(sequence)
        place = length if position is None else _position(op, position, length, length)
        return [*sequence[:place], tensor, *sequence[place:]]


@op("SequenceErase")
class SequenceErase(OpDefinition):
    """The sequence without the element at a position (by default the last)."""

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        return [types.sequence(element_type(op, 0))]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        sequence, position = (*operands, None)[:2]
        place = _position(op, -1 if position is None else position, len(sequence), len(sequence) - 1)
        return [*sequence[:place], *sequence[place + 1 :]]


@op("SequenceAt")
class SequenceAt(OpDefinition):
    """The element at a position, counted from the end if negative."""

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        element, position = element_type(op, 0), constant_ints(op, 1, context)
        built = _producer(op.operands[0], "sequence_construct")
        if built is not None and position is not None and len(position) == 1:
            if not -len(built.operands) <= position[0] < len(built.operands):
                raise error("shape/sequence", f"position {position[0]} of a sequence of {len(built.operands)}")
            return [built.operand_values[position[0]].type]
        split = _producer(op.operands[0], "split_to_sequence")
        if split is not None:
            return [_one_part(split, context) or carried_out(element, set(), context)]
        return [carried_out(element, set(), context)]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        sequence, position = operands
        return sequence[_position(op, position, len(sequence), len(sequence) - 1)]


def _one_part(split: Operation, context: InferenceContext) -> Type | None:
    """One part of a split tensor: all dims but the split one are those of the tensor."""
    tensor = tensor_of(split, 0)
    if tensor is None or tensor.shape is None:
        return None
    axis = normalize_axis(split.attr("axis", 0), len(tensor.shape), split)
    part = _part_dims(split, tensor.shape[axis], context)
    return tensor.with_shape([*tensor.shape[:axis], *part, *tensor.shape[axis + 1 :]])


def _part_dims(split: Operation, dim: Dim, context: InferenceContext) -> list[Dim]:
    """What stands in place of the split dim: nothing, a number that all parts have, or a fresh dim."""
    if not has_operand(split, 1):
        return [1] if split.attr("keepdims", 1) else []
    sizes = constant_ints(split, 1, context)
    if sizes is None:
        return [context.fresh()]
    if len(sizes) > 1 and len(set(sizes)) > 1:
        return [context.fresh()]
    tensor = tensor_of(split, 1)
    chunked = tensor is not None and tensor.shape == ()
    # Chunks of one size leave a smaller last one, unless they fit.
    if chunked and not (isinstance(dim, int) and sizes[0] > 0 and dim % sizes[0] == 0):
        return [context.fresh()]
    return [sizes[0]] if sizes else [context.fresh()]


@op("SplitToSequence")
class SplitToSequence(OpDefinition):
    """Parts of a tensor along `axis`: of the sizes in a vector, of one size, or single entries."""

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        tensor = tensor_of(op, 0)
        return [types.sequence(_one_part(op, context) or tensor or types.UNKNOWN)]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        data, sizes = (*operands, None)[:2]
        axis = op.attr("axis", 0)
        length = data.shape[axis]
        if sizes is None or sizes.ndim == 0:
            part = 1 if sizes is None else int(sizes)
            cuts = list(range(part, length, part))
        else:
            if sizes.sum() != length:
                raise ExecutionError("run/split", f"split of {length} into parts of sizes {sizes.tolist()}")
            cuts = np.cumsum(sizes)[:-1].tolist()
        parts = np.split(data, cuts, axis)
        single = sizes is None and not op.attr("keepdims", 1)
        return [np.squeeze(part, axis) for part in parts] if single else parts


@op("ConcatFromSequence")
class ConcatFromSequence(OpDefinition):
    """The elements side by side along `axis`, or stacked along a new one."""

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        element = carried_out(element_type(op, 0), set(), context)
        if not isinstance(element, TensorType) or element.shape is None:
            return [element]
        new_axis, dims = bool(op.attr("new_axis", 0)), list(element.shape)
        axis = normalize_axis(op.attr("axis"), len(dims) + new_axis, op)
        dims[axis : axis + (not new_axis)] = [context.fresh()]
        return [element.with_shape(dims)]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        (sequence,) = operands
        return (np.stack if op.attr("new_axis", 0) else np.concatenate)(sequence, op.attr("axis"))


@op("SequenceLength")
class SequenceLength(OpDefinition):
    """The number of elements, an i64 scalar."""

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        element_type(op, 0)
        return [types.tensor(dtypes.i64, ())]

    def propagate(self, op: Operation, context: InferenceContext) -> SymbolicArray | None:
        built = _producer(op.operands[0], "sequence_construct")
        return None if built is None else as_elements([len(built.operands)], ())

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return np.array(len(operands[0]), np.int64)


# ---- optional values -------------------------------------------------------------------------------------------------


@op("Optional")
class Optional(OpDefinition):
    """The operand as an optional value, or none of `type`."""

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        if has_operand(op, 0):
            return [types.optional(op.operand_values[0].type)]
        declared = op.attr("type")
        return [types.optional(declared if isinstance(declared, Type) else types.UNKNOWN)]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return operands[0] if operands else None


@op("OptionalGetElement")
class OptionalGetElement(OpDefinition):
    """What an optional value holds; anything else is passed on."""

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        type = op.operand_values[0].type
        return [type.element if isinstance(type, OptionalType) else type]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        if operands[0] is None:
            raise ExecutionError("run/empty-optional", "the optional value holds nothing")
        return operands[0]


@op("OptionalHasElement")
class OptionalHasElement(OpDefinition):
    """Whether an optional value holds something: a bool scalar."""

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        return [types.tensor(dtypes.bool_, ())]

    def propagate(self, op: Operation, context: InferenceContext) -> SymbolicArray | None:
        if has_operand(op, 0) and isinstance(op.operand_values[0].type, OptionalType):
            return None
        return as_elements([has_operand(op, 0)], ())

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return np.array(bool(operands) and operands[0] is not None)
