"""When two operations, or two functions, compute the same with the same operations."""

from __future__ import annotations

from collections.abc import Callable

from ...graph.core import Operation, Value
from ...graph.data import TensorData
from ...graph.module import Function


def operation_content(op: Operation, name: Callable[[Value | None], object]) -> tuple[object, ...] | None:
    """Equal for operations that give the same; `name` stands for an operand. None where that is not easily told."""
    if op.regions or any(isinstance(value, TensorData) for value in op.attributes.values()):
        data = op.attributes.get("value")
        if op.name != "const" or not isinstance(data, TensorData):
            return None
        return (op.definition, data.type, data.sha256)
    attributes = tuple(sorted(op.attributes.items(), key=lambda item: item[0]))
    return (op.definition, attributes, tuple(map(name, op.operands)), len(op.results))


def function_content(function: Function) -> tuple[object, ...] | None:
    """Equal for functions with equal operations, and inputs and outputs of equal names."""
    numbers: dict[Value | None, int] = {None: -1}
    for argument in function.inputs:
        numbers[argument] = len(numbers)
    contents: list[tuple[object, ...]] = []
    for op in function.block:
        content = operation_content(op, numbers.__getitem__)
        if content is None:
            return None
        contents.append(content)
        for result in op.results:
            numbers[result] = len(numbers)
    names = (*(argument.name for argument in function.inputs), *function.output_names)
    return (names, tuple(sorted(function.opsets.items())), *contents)


__all__ = ["function_content", "operation_content"]
