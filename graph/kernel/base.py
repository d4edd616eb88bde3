"""What the operators of the level "loop" have in common: how their types are read and checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from .. import types
from ..diagnostics import TypeInferenceError
from ..dtypes import DType, i64
from ..opdef import OpDefinition
from ..types import BufferType, ScalarType, Type, VectorType

if TYPE_CHECKING:
    from ..core import Operation
    from ..infer import InferenceContext
    from ..onnx_schema import Schema

# A value that arithmetic works on: one number, or a number in each lane.
Number: TypeAlias = "ScalarType | VectorType"


class LoopOp(OpDefinition):
    """An operator with a signature of its own: ONNX is not asked, so nothing of `onnx` is imported."""

    @property
    def schema(self) -> Schema | None:
        return None

    def infer(self, op: Operation, context: InferenceContext | None = None) -> Sequence[Type]:
        """The types of the results. They follow from operands and attributes alone, so no context is needed."""
        raise NotImplementedError(self.name)

    def flops(self, op: Operation) -> None:
        return None


def fault(op: Operation, message: str) -> TypeInferenceError:
    return TypeInferenceError("loop/type", f"{op.name} {message}")


def number(op: Operation, index: int) -> Number:
    """The type of operand `index`, which must be a scalar or a vector."""
    value = op.operands[index] if index < len(op.operands) else None
    if value is None or not isinstance(value.type, ScalarType | VectorType):
        raise fault(op, f"needs a scalar or a vector as operand {index}, got {value and value.type}")
    return value.type


def scalar_of(op: Operation, index: int, dtype: DType) -> None:
    """Insist that operand `index` is one number of `dtype`."""
    value = op.operands[index] if index < len(op.operands) else None
    if value is None or value.type is not types.scalar(dtype):
        raise fault(op, f"needs scalar<{dtype}> as operand {index}, got {value and value.type}")


def index_of(op: Operation, index: int) -> None:
    scalar_of(op, index, i64)


def buffer_of(op: Operation, index: int) -> BufferType:
    """The type of operand `index`, which must be a buffer."""
    value = op.operands[index] if index < len(op.operands) else None
    if value is None or not isinstance(value.type, BufferType):
        raise fault(op, f"needs a buffer as operand {index}, got {value and value.type}")
    return value.type


def vector_of(op: Operation, index: int) -> VectorType:
    """The type of operand `index`, which must be a vector."""
    value = op.operands[index] if index < len(op.operands) else None
    if value is None or not isinstance(value.type, VectorType):
        raise fault(op, f"needs a vector as operand {index}, got {value and value.type}")
    return value.type


def like(type: Number, dtype: DType) -> Number:
    """A type of as many lanes as `type`."""
    return types.vector(dtype, type.lanes) if isinstance(type, VectorType) else types.scalar(dtype)


def lanes_of(type: Type) -> int:
    """The number of lanes of a vector, 0 for a scalar."""
    return type.lanes if isinstance(type, VectorType) else 0
