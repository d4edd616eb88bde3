"""What the operator families share: questions about operand types, axes and broadcasting, and the errors they raise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from .. import dtypes, types
from ..core import AttributeReference
from ..diagnostics import TypeInferenceError
from ..dims import Dim, bounds, product, prove_equal
from ..opdef import OpDefinition
from ..types import TensorType, Type

if TYPE_CHECKING:
    from ..builder import OpBuilder
    from ..core import Operation, Value
    from ..dtypes import DType
    from ..infer import InferenceContext, SymbolicArray

Shape: TypeAlias = tuple[Dim, ...]


class TensorOp(OpDefinition):
    """An operator with one tensor result. A subclass says the result's shape, and its dtype where it is not that of
    the first operand."""

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        dtype = self.result_dtype(op)
        if dtype is None:
            return [types.UNKNOWN]
        return [types.tensor(dtype, self.result_shape(op, context))]

    def result_dtype(self, op: Operation) -> DType | None:
        """The element type of the result; None if it cannot be known."""
        return dtype_of(op, 0)

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        """The dims of the result; None if not even its rank can be known."""
        raise NotImplementedError(type(self).__name__)


class SameShape(TensorOp):
    """The result has the shape and dtype of the first operand."""

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        return shape_of(op, 0)


class WithParts(OpDefinition):
    """An operator for which there is a shorter decomposition than its function body in the standard."""

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        """The results made of simpler operations; None where what that depends on (a rank, say) is not known.

        Attributes are values here, never references.
        """
        raise NotImplementedError(type(self).__name__)

    def decompose(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        unresolved = any(isinstance(value, AttributeReference) for value in op.attributes.values())
        found = None if unresolved else self.parts(op, builder)
        return super().decompose(op, builder) if found is None else found


def error(code: str, message: str, *notes: str) -> TypeInferenceError:
    """An error about operand types; `infer_types` adds the operation's location and operands."""
    return TypeInferenceError(code, message, notes=notes)


# ---- operands --------------------------------------------------------------------------------------------------------


def tensor_of(op: Operation, index: int) -> TensorType | None:
    """The tensor type of operand `index`; None if it is left out or unknown. Raises for a sequence, map, ..."""
    # `input` and not `operands`, which copies: a Concat may have thousands.
    value = op.input(index)
    if value is None or value.type is types.UNKNOWN:
        return None
    if not isinstance(value.type, TensorType):
        raise error("dtype/mismatch", f"{op.name} needs a tensor as its input {index}, got {value.type}")
    return value.type


def shape_of(op: Operation, index: int) -> Shape | None:
    """The dims of operand `index`; None if it is left out or its rank is unknown."""
    tensor = tensor_of(op, index)
    return None if tensor is None else tensor.shape


def dtype_of(op: Operation, *indices: int) -> DType | None:
    """The element type of the first of these operands that has a known one."""
    for index in indices:
        tensor = tensor_of(op, index)
        if tensor is not None:
            return tensor.dtype
    return None


def has_operand(op: Operation, index: int) -> bool:
    return op.input(index) is not None


def operand_elements(op: Operation, index: int, context: InferenceContext) -> SymbolicArray | None:
    """The known elements of integer operand `index`, see `InferenceContext.symbolic`."""
    return context.symbolic(op.input(index)) if has_operand(op, index) else None


def vector_elements(op: Operation, index: int, context: InferenceContext) -> list[Any] | None:
    """The known elements of integer operand `index`, which must be a vector: `shape/rank` otherwise."""
    shape = shape_of(op, index)
    if shape is not None:
        require_rank(op, index, shape, 1)
    elements = operand_elements(op, index, context)
    return None if elements is None else list(elements.flat)


def constant_ints(op: Operation, index: int, context: InferenceContext) -> list[int] | None:
    """The elements of integer operand `index`, flattened, if all are known numbers."""
    if not has_operand(op, index):
        return None
    constant = context.constant(op.operands[index])
    return None if constant is None else [int(item) for item in np.ravel(constant)]


def length_of(op: Operation, index: int) -> int | None:
    """The length of vector operand `index`, if it is a known number."""
    shape = shape_of(op, index)
    return shape[0] if shape is not None and len(shape) == 1 and isinstance(shape[0], int) else None


def dtype_attribute(op: Operation, name: str, default: DType | None = None) -> DType | None:
    """The DType that attribute `name` gives as an ONNX code; `default` where it is not set (or 0)."""
    code = op.attr(name)
    if not isinstance(code, int) or code == 0:
        return default
    dtype = dtypes.BY_ONNX_CODE.get(code)
    if dtype is None:
        raise error("dtype/unknown", f"{op.name} has {name}={code}, which is no ONNX element type")
    return dtype


# ---- axes ------------------------------------------------------------------------------------------------------------


def normalize_axis(axis: int, rank: int, op: Operation) -> int:
    """`axis` counted from the front. Raises `shape/axis` if it is not within [-rank, rank - 1]."""
    if not -rank <= axis < rank:
        raise error("shape/axis", f"{op.name} has axis {axis}, but the rank is {rank}")
    return axis % rank


def normalize_axes(axes: Iterable[int], rank: int, op: Operation) -> list[int]:
    """`axes` counted from the front, in the given order. Raises `shape/axis` for one out of range or named twice."""
    normalized = [normalize_axis(int(axis), rank, op) for axis in axes]
    if len(set(normalized)) != len(normalized):
        raise error("shape/axis", f"{op.name} names an axis twice: {list(axes)} of rank {rank}")
    return normalized


def require_rank(op: Operation, index: int, shape: Shape, rank: int, *, at_least: bool = False) -> None:
    """Raise `shape/rank` unless operand `index`, of this shape, has rank `rank` (or more)."""
    if len(shape) == rank or (at_least and len(shape) > rank):
        return
    wanted = f"at least rank {rank}" if at_least else f"rank {rank}"
    raise error("shape/rank", f"{op.name} needs input {index} of {wanted}, got {tensor_of(op, index)}")


# ---- dims ------------------------------------------------------------------------------------------------------------


def same_dim(left: Dim, right: Dim, context: InferenceContext, mismatch: Callable[[], TypeInferenceError]) -> Dim:
    """The one value of two dims that must be equal: the number if either is one, else `left`.

    Raises what `mismatch` makes if they can never be equal.
    """
    if left is right or left == right:
        return left
    if prove_equal(left, right) is False:
        raise mismatch()
    return right if isinstance(right, int) else left


def broadcast_dims(left: Dim, right: Dim, context: InferenceContext) -> Dim | None:
    """The dim of two that are broadcast against each other; None if they can never fit.

    Two that are neither provably equal nor 1 give a fresh dim: which of them is 1 shows only at run time.
    """
    if left is right or left == right or right == 1:
        return left
    if left == 1:
        return right
    equal = prove_equal(left, right)
    if equal:
        return right if isinstance(right, int) else left
    left_is_one, right_is_one = prove_equal(left, 1), prove_equal(right, 1)
    if equal is False and left_is_one is False and right_is_one is False:
        return None
    # What is certainly not 1 decides: the other side is 1 or equal to it.
    if left_is_one is False:
        return right if right_is_one is False and isinstance(right, int) else left
    if right_is_one is False:
        return right
    least = max(min(bounds(left)[0] or 0, bounds(right)[0] or 0, 1), 0)
    return context.derived("broadcast", frozenset((left, right)), minimum=least)


def broadcast(op: Operation, shapes: Sequence[Shape | None], context: InferenceContext) -> Shape | None:
    """The shape of operands broadcast against each other (ONNX "Multidirectional Broadcasting").

    None if any rank is unknown. Raises `shape/broadcast` if they can never fit.
    """
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return None
    rank = max(map(len, known), default=0)
    result: list[Dim] = [1] * rank
    for shape in known:
        offset = rank - len(shape)
        for position, dim in enumerate(shape, offset):
            combined = broadcast_dims(result[position], dim, context)
            if combined is None:
                raise error(
                    "shape/broadcast",
                    f"{op.name} cannot broadcast {' and '.join(map(format_shape, known))}: "
                    f"{result[position]} and {dim} differ and neither is 1",
                )
            result[position] = combined
    return tuple(result)


def format_shape(shape: Sequence[Dim | str] | None) -> str:
    return "[*]" if shape is None else f"[{', '.join(map(str, shape))}]"


def elements_of(shape: Sequence[Dim] | None) -> Dim | None:
    """The number of elements; None if the rank is unknown."""
    return None if shape is None else product(shape)


def result_elements(op: Operation, index: int = 0) -> Dim | None:
    """The number of elements of result `index`; None if it is no tensor of known rank."""
    type = op.results[index].type if index < len(op.results) else None
    return type.elements if isinstance(type, TensorType) else None


def operand_size(op: Operation, index: int = 0) -> Dim | None:
    """The number of elements of operand `index`; None if it is no tensor of known rank."""
    return elements_of(shape_of(op, index))


def times(factor: int, elements: Dim | None) -> Dim | None:
    return None if elements is None else factor * elements


def unknown_dims(rank: int | None, context: InferenceContext) -> Shape | None:
    """A shape of which only the rank is known; None if not even that."""
    return None if rank is None else tuple(context.fresh() for _ in range(rank))


def quotient(dividend: Dim, divisor: int, op: Operation, what: str) -> Dim:
    """`dividend / divisor`, which must leave no remainder. Raises `shape/divisible` for numbers that do."""
    if isinstance(dividend, int) and dividend % divisor:
        raise error("shape/divisible", f"{op.name} needs {what} divisible by {divisor}, got {dividend}")
    return dividend // divisor


def element_dim(element: Dim, context: InferenceContext) -> Dim:
    """A known element used as a dim: itself, or a fresh dim if it may be negative."""
    low = bounds(element)[0]
    return element if low is not None and low >= 0 else context.fresh()
