"""Type inference with symbolic dims, and propagation of integer values (shapes) through Shape/Gather/Concat/... chains.

`InferenceContext` is what an operator's `infer` and `propagate` may ask; `infer_types` runs them for one operation and
puts the operation's location on any error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from . import types
from .core import Operation, Value
from .data import TensorData
from .diagnostics import TypeInferenceError
from .dims import Dim, FreshSymbols
from .types import TensorType, Type

# An integer tensor whose elements are dims: a numpy object array of int and DimExpr.
SymbolicArray: TypeAlias = npt.NDArray[np.object_]

# Shape computations are short vectors; anything longer is data, not a shape.
MAX_SYMBOLIC_ELEMENTS = 1024


class InferenceContext:
    """Answers questions about operand values while types are inferred.

    Results are remembered per value: use one context for one walk over a graph, and a new one after changing it.
    """

    def __init__(self, symbols: FreshSymbols) -> None:
        self.symbols = symbols
        self._symbolic: dict[Value, SymbolicArray | None] = {}

    def fresh(self, minimum: int = 0) -> Dim:
        """A dim that is equal to no other known dim."""
        return self.symbols.fresh(minimum)

    def data(self, value: Value | None) -> TensorData | None:
        """The constant behind `value`, if it is one."""
        if value is None or not isinstance(value.owner, Operation) or value.owner.name != "const":
            return None
        data = value.owner.attributes.get("value")
        return data if isinstance(data, TensorData) else None

    def constant(self, value: Value | None) -> np.ndarray | None:
        """The elements of a constant operand, or of one whose propagated elements are all numbers."""
        data = self.data(value)
        if data is not None:
            return data.numpy()
        symbolic = self.symbolic(value)
        if symbolic is None or value is None or not isinstance(value.type, TensorType):
            return None
        if not all(isinstance(item, int) for item in symbolic.flat):
            return None
        return symbolic.astype(value.type.dtype.numpy)

    def symbolic(self, value: Value | None) -> SymbolicArray | None:
        """The elements of an integer operand as dims, if they are known; shape as the operand's."""
        if value is None or not isinstance(value.type, TensorType) or not value.type.dtype.is_integer:
            return None
        if value in self._symbolic:
            return self._symbolic[value]
        # A shape chain is walked with a stack of pending producers: it may be longer than Python's recursion limit.
        pending = [value]
        while pending:
            current = pending[-1]
            waiting = [] if current in self._symbolic else self._unknown_operands(current)
            if waiting:
                pending.extend(waiting)
                continue
            pending.pop()
            if current not in self._symbolic:
                self._symbolic[current] = self._propagate(current)
        return self._symbolic[value]

    def _unknown_operands(self, value: Value) -> list[Value]:
        producer = value.producer
        if producer is None or producer.name == "const" or len(producer.results) != 1:
            return []
        return [
            operand
            for operand in producer.operand_values
            if isinstance(operand.type, TensorType)
            and operand.type.dtype.is_integer
            and operand not in self._symbolic
            and _is_short(operand.type)
        ]

    def _propagate(self, value: Value) -> SymbolicArray | None:
        if not isinstance(value.type, TensorType) or not _is_short(value.type):
            return None
        data = self.data(value)
        if data is not None:
            if data.dtype.bits < 8:
                return None
            elements = np.empty(data.shape, object)
            elements.reshape(-1)[:] = [int(item) for item in data.numpy().flat]
            return elements
        producer = value.producer
        if producer is None or len(producer.results) != 1:
            return None
        result = producer.definition.propagate(producer, self)
        return None if result is None or result.size > MAX_SYMBOLIC_ELEMENTS else result


def _is_short(type: TensorType) -> bool:
    elements = type.elements
    return not isinstance(elements, int) or elements <= MAX_SYMBOLIC_ELEMENTS


def infer_types(op: Operation, context: InferenceContext) -> list[Type]:
    """The types of `op`'s results. Raises TypeInferenceError, with the operation's location, if operands do not fit."""
    try:
        inferred = list(op.definition.infer(op, context))
    except TypeInferenceError as error:
        if error.diagnostics[0].location is None:
            raise type(error)(
                error.code,
                error.diagnostics[0].message,
                op.location,
                notes=[*error.diagnostics[0].notes, describe_operands(op)],
            ) from None
        raise
    if len(inferred) < len(op.results):
        raise TypeInferenceError(
            "infer/result-count", f"{op.name} gives {len(inferred)} results, {len(op.results)} are used", op.location
        )
    return inferred[: len(op.results)]


def describe_operands(op: Operation) -> str:
    """`matmul(%x: f32[n, 768], %w: f32[512, 768])`: one line for error messages."""
    shown = [f"%{v.name or '?'}: {v.type}" if v is not None else "none" for v in op.operands]
    return f"{op.name}({', '.join(shown)})"


def tensor_type(op: Operation, index: int) -> TensorType | None:
    """The tensor type of operand `index`; None if it is left out or not (known to be) a tensor."""
    value = op.operands[index] if index < len(op.operands) else None
    return value.type if value is not None and isinstance(value.type, TensorType) else None


def refine(declared: Type, inferred: Type) -> Type | None:
    """The more precise combination of two types of the same value; None if they contradict each other.

    Where both give a symbolic dim, `inferred` is preferred only if `declared`'s dim is an unnamed symbol: a name that
    somebody wrote is kept for readers.
    """
    if declared is inferred or inferred is types.UNKNOWN:
        return declared
    if declared is types.UNKNOWN:
        return inferred
    if isinstance(declared, TensorType) and isinstance(inferred, TensorType):
        if declared.dtype is not inferred.dtype:
            return None
        if declared.shape is None or inferred.shape is None:
            return inferred if declared.shape is None else declared
        if len(declared.shape) != len(inferred.shape):
            return None
        dims = [_refine_dim(a, b) for a, b in zip(declared.shape, inferred.shape, strict=True)]
        return None if any(dim is None for dim in dims) else types.tensor(declared.dtype, _present(dims))
    if isinstance(declared, types.SequenceType) and isinstance(inferred, types.SequenceType):
        element = refine(declared.element, inferred.element)
        return None if element is None else types.sequence(element)
    if isinstance(declared, types.OptionalType) and isinstance(inferred, types.OptionalType):
        element = refine(declared.element, inferred.element)
        return None if element is None else types.optional(element)
    return None


def _present(dims: Sequence[Dim | None]) -> list[Dim]:
    return [dim for dim in dims if dim is not None]


def _refine_dim(declared: Dim, inferred: Dim) -> Dim | None:
    from .dims import is_symbol, prove_equal

    if declared is inferred or declared == inferred:
        return declared
    if isinstance(declared, int) and isinstance(inferred, int):
        return None
    if isinstance(declared, int):
        return None if prove_equal(declared, inferred) is False else declared
    if isinstance(inferred, int):
        return None if prove_equal(declared, inferred) is False else inferred
    return inferred if is_symbol(declared) and declared.label.startswith("?") else declared
