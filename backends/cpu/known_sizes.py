"""Arithmetic on shapes while a plan is traced: what reads sizes and puts them together, on arrays of `Number`s.

An array that has Numbers of a trace among its elements is one of objects. Operations that are not known here get plain
numbers, under the condition that they are the same.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...graph.builder import OpBuilder
from ...graph.core import Block, Operation, Value
from ...graph.diagnostics import TilewrightError
from ...graph.dims import FreshSymbols
from ...graph.dtypes import i32, i64
from ...graph.evaluation import evaluate_op
from ...graph.kernel.strided import Shape
from ...graph.kernel.tracing import Number, UntraceableError, apply, choose, is_traced
from ...graph.kernel.view_ops import taken_by_slice
from ...graph.types import TensorType
from .machine import memory_bytes

# So many elements of an array may be looked at one by one.
_MOST_ELEMENTS = 64
# Numbers whose product is at most this make no large array.
_MUCH = 1 << 24

_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


def computed_sizes(op: Operation, shape: Callable[[Value], Shape], known: Callable[[Value], Any]) -> np.ndarray | None:
    """The result of an operation on Numbers; None if there are none among its operands, or it is not one of these."""
    if op.name == "shape":
        sizes = shape(op.operand_values[0])
        rank = len(sizes)
        end = op.attr("end")
        taken = sizes[slice(op.attr("start") or 0, rank if end is None else end)]
        return _array(taken) if is_traced(taken) else None
    rule = _RULES.get(op.name)
    if rule is None or op.definition.domain or any(value is None for value in op.operands):
        return None
    operands = [known(value) for value in op.operand_values]
    if any(isinstance(array, TracedArray) for array in operands):
        return None
    if not _is_of_integers(op.result) or not any(map(_has_numbers, operands)):
        return None
    found = rule(op, operands)
    type = op.result.type
    assert isinstance(type, TensorType)
    limits = np.iinfo(type.dtype.numpy)
    is_exact = found is not None and all(limits.min <= number <= limits.max for number in found.reshape(-1).tolist())
    if found is None or not is_exact:
        return None
    return found if _has_numbers(found) else found.astype(type.dtype.numpy)


def as_numbers(array: np.ndarray, value: Value) -> np.ndarray:
    """The elements of `value` as plain numbers."""
    elements = array.reshape(-1).tolist() if array.dtype == object else []
    if not is_traced(elements):
        return array
    assert isinstance(value.type, TensorType)
    numbers = [element.known() if isinstance(element, Number) else element for element in elements]
    return np.array(numbers, value.type.dtype.numpy).reshape(array.shape)


def require_room(op: Operation, operands: Sequence[Any]) -> None:
    """Raise MemoryError if the results of an operation that numpy computes take more memory than there is."""
    if op.regions or not any(isinstance(array, np.ndarray) and _asks_for_much(array) for array in operands):
        return
    if not all(array is None or isinstance(array, np.ndarray) for array in operands):
        return
    b = OpBuilder(Block([]), FreshSymbols())
    values = [None if array is None else b.const(array) for array in operands]
    try:
        types = [
            result.type for result in b.create(op.definition, values, op.attributes, outputs=len(op.results)).results
        ]
    except TilewrightError:  # evaluating it says what is wrong
        return
    shapes = [(type.static_shape, type.dtype) for type in types if isinstance(type, TensorType)]
    total = sum(math.prod(shape) * dtype.numpy.itemsize for shape, dtype in shapes if shape is not None)
    if total > memory_bytes():
        there = memory_bytes()
        raise MemoryError(f"the result takes {total / 1e9:.1f} GB of memory, and there are {there / 1e9:.1f} GB")


def _asks_for_much(array: np.ndarray) -> bool:
    """Whether the numbers of a small array could be sizes of a large one."""
    if array.dtype.kind not in "iuf" or array.size > _MOST_ELEMENTS:
        return False
    return math.prod(max(1.0, abs(float(number))) for number in array.reshape(-1).tolist()) > _MUCH


@dataclass(frozen=True, eq=False)
class TracedArray:
    """An array that follows from sizes: the number of a trace that stands for it, and its shape."""

    number: Number
    shape: Shape

    def elements(self) -> np.ndarray:
        """The array with a Number for each element. Raises UntraceableError if it has many."""
        shape = tuple(map(int, self.shape))
        if math.prod(shape) > _MOST_ELEMENTS:
            raise UntraceableError("all elements of a large array are looked at")
        flat = [apply(_element, self.number, place) for place in range(math.prod(shape))]
        return _array(flat).reshape(shape)


def traced_results(op: Operation, operands: Sequence[np.ndarray | TracedArray | None]) -> list[TracedArray] | None:
    """The results of any operation as arrays of the trace that is in its operands; None if there is none."""
    numbers: list[Number] = []
    # For each operand where its numbers begin, how many there are, and its shape if they are its elements.
    places: list[tuple[int, int, Shape | None]] = []
    for operand in operands:
        begin = len(numbers)
        if isinstance(operand, TracedArray):
            numbers.append(operand.number)
            places.append((begin, 1, None))
        elif operand is not None and _has_numbers(operand):
            numbers += operand.reshape(-1).tolist()
            places.append((begin, operand.size, operand.shape))
        else:
            places.append((begin, 0, None))
    if not numbers:
        return None

    def results(*values: Any) -> list[Any]:
        given: list[Any] = list(operands)
        for index, (begin, count, shape) in enumerate(places):
            if count:
                whole = values[begin : begin + count]
                given[index] = whole[0] if shape is None else _of_type(whole, shape, op.operands[index])
        return evaluate_op(op, given)

    together = apply(results, *numbers)
    found = []
    for index in range(len(op.results)):
        number = apply(operator.getitem, together, index)
        rank = choose(np.ndim, number)
        found.append(TracedArray(number, tuple(apply(_size, number, axis) for axis in range(rank))))
    return found


def _has_numbers(array: np.ndarray) -> bool:
    return array.dtype == object and is_traced(array.reshape(-1).tolist())


def _of_type(elements: Sequence[Any], shape: Shape, value: Value | None) -> np.ndarray:
    assert value is not None
    assert isinstance(value.type, TensorType)
    return np.array(elements, value.type.dtype.numpy).reshape(shape)


def _element(array: np.ndarray, place: int) -> Any:
    return array.reshape(-1)[place].item()


def _size(array: np.ndarray, axis: int) -> int:
    return array.shape[axis]


def _is_of_integers(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype in (i32, i64)


def _array(elements: Any) -> np.ndarray:
    array = np.empty(len(elements), object)
    array[:] = elements
    return array


def _gather(op: Operation, operands: list[np.ndarray]) -> np.ndarray | None:
    data, indices = operands
    if indices.dtype == object or data.ndim != 1 or op.attr("axis") not in (0, -1):
        return None
    return np.asarray(np.take(data, indices, 0), object)


def _slice(op: Operation, operands: list[np.ndarray]) -> np.ndarray | None:
    data, *bounds = operands
    if data.ndim != 1 or len(bounds) < 2 or any(each.dtype == object or each.size != 1 for each in bounds):
        return None
    start, end = (int(each.item()) for each in bounds[:2])
    step = int(bounds[3].item()) if len(bounds) > 3 else 1
    first, count = taken_by_slice(start, end, step, data.size)
    return data[[first + step * place for place in range(count)]]


def _concat(op: Operation, operands: list[np.ndarray]) -> np.ndarray | None:
    if any(array.ndim != 1 for array in operands):
        return None
    return np.concatenate([array.astype(object) for array in operands])


def _unsqueeze(op: Operation, operands: list[np.ndarray]) -> np.ndarray | None:
    return operands[0].reshape(1) if operands[0].ndim == 0 else None


def _squeeze(op: Operation, operands: list[np.ndarray]) -> np.ndarray | None:
    return operands[0].reshape(()) if operands[0].shape == (1,) else None


def _same(op: Operation, operands: list[np.ndarray]) -> np.ndarray | None:
    return operands[0]


def _arithmetic(op: Operation, operands: list[np.ndarray]) -> np.ndarray | None:
    x, y = (array.astype(object) for array in operands)
    return np.asarray(_ARITHMETIC[op.name](x, y), object)


_RULES: dict[str, Callable[[Operation, list[np.ndarray]], np.ndarray | None]] = {
    "gather": _gather, "slice": _slice, "concat": _concat, "unsqueeze": _unsqueeze, "squeeze": _squeeze,
    "cast": _same, "identity": _same, **dict.fromkeys(_ARITHMETIC, _arithmetic),
}  # fmt: skip
