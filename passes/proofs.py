"""What several rule families ask of types and shape values; answers are proofs, never guesses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..graph.core import Operation, Value
from ..graph.data import UnresolvedData
from ..graph.diagnostics import TypeInferenceError
from ..graph.dims import Dim, bounds, product, prove_equal
from ..graph.infer import InferenceContext, infer_types
from ..graph.types import TensorType, Type
from .rules import Match


def same_dims(left: Sequence[Dim] | None, right: Sequence[Dim] | None) -> bool:
    """Whether two shapes are equal for all symbol values."""
    if left is None or right is None or len(left) != len(right):
        return False
    return all(a is b or prove_equal(a, b) is True for a, b in zip(left, right, strict=True))


def is_positive(dims: Sequence[Dim]) -> bool:
    """Whether no dim can be 0."""
    return all((bounds(dim)[0] or 0) >= 1 for dim in dims)


def same_tensor_type(left: Type, right: Type) -> bool:
    """Whether two types are tensors of one dtype and provably one shape."""
    if not (isinstance(left, TensorType) and isinstance(right, TensorType)) or left.dtype is not right.dtype:
        return False
    return same_dims(left.shape, right.shape)


def made_by(value: Value | None, *names: str) -> Operation | None:
    """The operation that makes `value`, if it is one of these; None otherwise."""
    producer = value.producer if value is not None else None
    return producer if producer is not None and producer.name in names else None


def inferred(op: Operation, inference: InferenceContext) -> Sequence[Type]:
    """The result types of `op` that follow from its operands alone; those it has where inference fails."""
    try:
        return infer_types(op, inference)
    except TypeInferenceError:
        return [result.type for result in op.results]


def keeps_type(m: Match, x: Value | None) -> bool:
    """Whether the root's result, as inferred from its operands, has the dtype and the shape of `x`."""
    return x is not None and same_tensor_type(inferred(m.root, m.inference)[0], x.type)


def ints(m: Match, value: Value | None) -> list[int] | None:
    """The elements of an integer value that are all known, flattened; None if it is left out or not known."""
    array = m.constant(value)
    if array is None or array.dtype.kind not in "iu":
        return None
    return [int(item) for item in array.reshape(-1)]


def exact_constant(m: Match, value: Value | None) -> np.ndarray | None:
    """The elements of a constant, or of an integer that follows from shapes; None if it is neither.

    (Floats that follow from shapes are known as exact numbers, where computing them would have rounded.)
    """
    dtype = m.dtype(value)
    if dtype is None or dtype.is_float:
        data = m.data(value)
        return None if data is None or isinstance(data, UnresolvedData) else data.numpy()
    return m.constant(value)


def is_everywhere(m: Match, value: Value | None, number: float) -> bool:
    """Whether `value` is a constant with elements that are all `number` (bit for bit where it is a zero)."""
    array = exact_constant(m, value)
    if array is None or array.dtype.kind not in "iufb" or not array.size:
        return False
    if array.flat[0] != number:
        return False  # so that nearly all weights are told apart without being read
    if number == 0 and array.dtype.kind == "f" and np.any(np.signbit(array) != np.signbit(np.float64(number))):
        return False
    return bool(np.all(array == number))


def normalized(axes: Sequence[int], rank: int) -> list[int]:
    """Axes counted from the front."""
    return [axis + rank if axis < 0 else axis for axis in axes]


def checks_nothing(op: Operation, inference: InferenceContext) -> bool:
    """Whether the target of a Reshape or an Expand is as inference takes it to be: each element follows from shapes and
    constants, or provably is the dim of the result. One from elsewhere may contradict that in a run, which is
    then an error that must stay. True of all other operations."""
    if op.name not in ("reshape", "expand"):
        return True
    elements, result = inference.symbolic(op.operands[1]), inferred(op, inference)[0]
    if elements is None or not isinstance(result, TensorType) or result.shape is None:
        return False
    dims = result.shape[max(0, len(result.shape) - elements.size) :]
    return all(
        isinstance(item, int) or bounds(item)[0] is not None or prove_equal(item, dim) is True
        for item, dim in zip(elements.flat, dims, strict=False)
    )


def reshape_target(shape: Sequence[Dim], dims: Sequence[Dim], open_positions: Sequence[int] = ()) -> list[int] | None:
    """The constant operand with which Reshape makes a tensor of `shape` one of `dims`; None if there is none.

    A symbolic dim is written as 0 (the dim at that position is kept) where it provably is that dim, and as -1 (what is
    left) for at most one other: where the number of elements is provably the same and no other dim can be 0, or where
    the position is one of `open_positions`, which were -1 already.
    """
    target: list[int] = []
    rest: list[int] = []
    for position, dim in enumerate(dims):
        if isinstance(dim, int):
            if dim == 0 and not (position < len(shape) and prove_equal(shape[position], 0)):
                return None
            target.append(dim)
        elif position < len(shape) and prove_equal(shape[position], dim) is True:
            target.append(0)
        else:
            rest.append(position)
            target.append(-1)
    if len(rest) > 1:
        return None
    if rest and rest[0] not in open_positions:
        others = [dim for position, dim in enumerate(dims) if position != rest[0]]
        if any((bounds(dim)[0] or 0) < 1 for dim in others) or not prove_equal(product(shape), product(dims)):
            return None
    return target
