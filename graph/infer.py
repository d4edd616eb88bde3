"""Type inference with symbolic dims, and propagation of integer values (shapes) through Shape/Gather/Concat/... chains.

`InferenceContext` is what an operator's `infer` and `propagate` may ask; `infer_types` runs them for one operation and
puts the operation's location on any error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from . import types
from .core import Operation, Value
from .data import TensorData, UnresolvedData
from .diagnostics import TypeInferenceError
from .dims import Dim, DimComplexityError, DimExpr, FreshSymbols, bounds
from .dtypes import DType, f32, f64
from .quotient import Quotient
from .types import TensorType, Type

# A small tensor whose elements are known: a numpy object array of int and DimExpr, of bool, or (for f32 and f64, where
# exporters compute sizes in floating point) of Quotient.
SymbolicArray: TypeAlias = npt.NDArray[Any]

# Shape computations are short vectors; anything longer is data, not a shape.
MAX_SYMBOLIC_ELEMENTS = 1024
# Up to this many elements, each unknown one gets a symbol, so that what is known beside it is not lost.
MAX_UNKNOWN_ELEMENTS = 16
# A dim expression of more parts, or of calls nested deeper, is given a name. Real networks stay far below.
MAX_DIM_PARTS = 100
MAX_DIM_NESTING = 16


class InferenceContext:
    """Answers questions about operand values while types are inferred.

    Results are remembered per value: use one context for one walk over a graph, and a new one after changing it.
    """

    def __init__(self, symbols: FreshSymbols) -> None:
        self.symbols = symbols
        self._symbolic: dict[Value, SymbolicArray | None] = {}
        self._derived: dict[tuple[Any, ...], Dim] = {}

    def fresh(self, minimum: int = 0) -> Dim:
        """A dim that is equal to no other known dim."""
        return self.symbols.fresh(minimum)

    def derived(self, *key: Any, minimum: int | None = 0) -> Dim:
        """A fresh dim that follows from `key` alone, in a way no dim expression says: the same one for the same key."""
        if key not in self._derived:
            self._derived[key] = self.symbols.fresh(minimum)
        return self._derived[key]

    def shortened(self, dim: Dim) -> Dim:
        """`dim`, or a symbol that stands for it if it is too large to work with (and to read)."""
        if isinstance(dim, int) or not _is_large(dim):
            return dim
        return self.derived("shortened", dim, minimum=bounds(dim)[0])

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
            return None if isinstance(data, UnresolvedData) else data.numpy()
        symbolic = self.symbolic(value)
        if symbolic is None or value is None or not isinstance(value.type, TensorType):
            return None
        numbers = [float(item) if isinstance(item, Quotient) and item.is_number else item for item in symbolic.flat]
        if not all(isinstance(item, int | float) for item in numbers):
            return None
        return np.array(numbers, value.type.dtype.numpy).reshape(symbolic.shape)

    def symbolic(self, value: Value | None) -> SymbolicArray | None:
        """The elements of a short integer operand as dims; shape as the operand's. Of a bool operand they are bools,
        of a float one Quotients.

        In a very short vector an element that does not follow from shapes and constants is a symbol without bounds;
        otherwise the answer is None unless all elements are known.
        """
        if value is None or not _may_hold_shape(value.type):
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
                self._propagate(current)
        return self._symbolic[value]

    def _unknown_operands(self, value: Value) -> list[Value]:
        producer = value.producer
        if producer is None or producer.name == "const" or not producer.definition.propagates:
            return []
        return [
            operand
            for operand in producer.operand_values
            if operand not in self._symbolic and _may_hold_shape(operand.type) and operand is not value
        ]

    def _propagate(self, value: Value) -> None:
        """Find the elements of `value` and of the other results of its producer."""
        data = self.data(value)
        producer = value.producer
        if data is not None:
            self._symbolic[value] = _elements_of(data)
            return
        try:
            found = None if producer is None else producer.definition.propagate(producer, self)
        except (DimComplexityError, TypeInferenceError, ValueError, IndexError):
            # Operands that do not fit each other (declared types may be wrong) are reported where types are inferred.
            found = None
        if found is None or isinstance(found, np.ndarray):
            found = [found]
        for index, result in enumerate([value] if producer is None else producer.results):
            elements = found[index] if index < len(found) else None
            self._symbolic[result] = self._checked(result, elements)

    def _checked(self, value: Value, elements: SymbolicArray | None) -> SymbolicArray | None:
        if not isinstance(value.type, TensorType):
            return None
        shape = value.type.static_shape
        if elements is not None and elements.size <= MAX_SYMBOLIC_ELEMENTS and _fits(elements, value.type.dtype):
            return self._shortened(elements) if shape is None or shape == elements.shape else None
        # Nothing is known of the elements; if there are few, give each a name of its own.
        if not value.type.dtype.is_integer or shape is None or len(shape) > 1 or sum(shape) > MAX_UNKNOWN_ELEMENTS:
            return None
        unknown = np.empty(shape, object)
        unknown.reshape(-1)[:] = [self.symbols.fresh(None) for _ in range(unknown.size)]
        return unknown

    def _shortened(self, elements: SymbolicArray) -> SymbolicArray:
        for index, item in enumerate(elements.flat):
            if isinstance(item, DimExpr) and _is_large(item):
                elements = elements.copy()
                elements.reshape(-1)[index] = self.shortened(item)
        return elements


@cache
def _is_large(dim: DimExpr) -> bool:
    atoms = [atom for monomial, _ in dim.terms for atom in monomial]
    return sum(atom.size for atom in atoms) > MAX_DIM_PARTS or max(atom.height for atom in atoms) > MAX_DIM_NESTING


def _may_hold_shape(type: Type) -> bool:
    if not isinstance(type, TensorType):
        return False
    static = type.static_shape
    if type.dtype.is_integer or type.dtype.kind == "bool":
        return static is None or math.prod(static) <= MAX_SYMBOLIC_ELEMENTS
    return type.dtype in (f32, f64) and static is not None and math.prod(static) <= MAX_UNKNOWN_ELEMENTS


def _elements_of(data: TensorData) -> SymbolicArray | None:
    if data.dtype.bits < 8 or data.elements > MAX_SYMBOLIC_ELEMENTS or isinstance(data, UnresolvedData):
        return None
    items: list[Any] = data.numpy().ravel().tolist()
    if data.dtype.is_float:
        items = [Quotient.exactly(item) for item in items]
        if None in items:
            return None
    elements = np.empty(data.shape, object)
    elements.reshape(-1)[:] = items
    return elements


def _fits(elements: SymbolicArray, dtype: DType) -> bool:
    """Whether all elements are of the dtype's kind, and numbers in its range: what would have wrapped is not known."""
    if dtype.is_float:
        return all(isinstance(item, Quotient) for item in elements.flat)
    if dtype.kind == "bool":
        return all(isinstance(item, bool) for item in elements.flat)
    low = -(1 << (dtype.bits - 1)) if dtype.kind == "int" else 0
    high = (1 << (dtype.bits - (dtype.kind == "int"))) - 1
    return all(low <= item <= high for item in elements.flat if isinstance(item, int))


def infer_types(op: Operation, context: InferenceContext) -> list[Type]:
    """The types of `op`'s results. Raises TypeInferenceError, with the operation's location, if operands do not fit."""
    try:
        check_dtypes(op)
        inferred = list(op.definition.infer(op, context))
    except DimComplexityError:
        return [types.UNKNOWN] * len(op.results)
    except (ArithmeticError, types.NegativeDimError) as error:
        raise TypeInferenceError(
            "infer/arithmetic", f"the shape of {op.name}'s result cannot be computed: {error}", op.location,
            notes=[describe_operands(op)],
        ) from None  # fmt: skip
    except (ValueError, IndexError) as error:
        # Lists among the attributes, such as axes or pads, may have any length.
        raise TypeInferenceError(
            "infer/attributes", f"the attributes of {op.name} do not fit its operands: {error}", op.location,
            notes=[describe_operands(op)],
        ) from error  # fmt: skip
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
    return [_with_short_dims(type, context) for type in inferred[: len(op.results)]]


def _with_short_dims(type: Type, context: InferenceContext) -> Type:
    if not isinstance(type, TensorType) or type.is_static or type.shape is None:
        return type
    if not any(isinstance(dim, DimExpr) and _is_large(dim) for dim in type.shape):
        return type
    return type.with_shape([context.shortened(dim) for dim in type.shape])


def check_dtypes(op: Operation) -> None:
    """Raise `dtype/mismatch` if operands that ONNX's schema ties to one element type have different ones."""
    schema = op.definition.schema
    if schema is None or not schema.dtype_variables:
        return
    seen: dict[str, tuple[int, DType]] = {}
    for index, operand in enumerate(op.operands):
        variable = schema.dtype_variables[min(index, len(schema.dtype_variables) - 1)]
        if operand is None or variable is None or not isinstance(operand.type, TensorType):
            continue
        dtype = operand.type.dtype
        if isinstance(variable, DType):
            if dtype is not variable:
                raise TypeInferenceError(
                    "dtype/mismatch", f"{op.name} needs {variable} as its input {index}, got {dtype}"
                )
            continue
        first, wanted = seen.setdefault(variable, (index, dtype))
        if dtype is not wanted:
            raise TypeInferenceError(
                "dtype/mismatch",
                f"{op.name} needs one element type for its inputs {first} and {index}, got {wanted} and {dtype}",
            )


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
    if isinstance(declared, types.MapType) and isinstance(inferred, types.MapType):
        value = refine(declared.value, inferred.value) if declared.key is inferred.key else None
        return None if value is None else types.map_of(declared.key, value)
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
