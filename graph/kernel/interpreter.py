"""Running functions of the level "loop" on numpy: slow, plain, bounds-checked. What compiled code is held against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import types
from ..core import Block, Operation, Value
from ..diagnostics import ExecutionError
from ..module import Function, FunctionKey, Module


def run_loops(module: Module, arguments: Sequence[Any], function: str | None = None) -> list[Any]:
    """Run a function of `module` (default: main); returns what it returns.

    A buffer is given as a flat array, which is written to; a scalar as a number. Raises ExecutionError with the
    operation's place where memory outside a buffer would be touched, or arguments do not fit.
    """
    with np.errstate(all="ignore"):
        called = module.main if function is None else module.functions[FunctionKey("", function)]
        return _Interpreter(module).call(called, arguments)


class _Interpreter:
    def __init__(self, module: Module) -> None:
        self.module = module
        self.values: dict[Value, Any] = {}

    def call(self, function: Function, arguments: Sequence[Any]) -> list[Any]:
        if len(arguments) != len(function.inputs):
            raise ExecutionError(
                "loop/arguments", f"@{function.key} takes {len(function.inputs)} arguments, got {len(arguments)}"
            )
        caller, self.values = self.values, {}
        given = [_argument(value, argument) for value, argument in zip(function.inputs, arguments, strict=True)]
        results = self.block(function.block, given)
        self.values = caller
        return results

    def block(self, block: Block, arguments: Sequence[Any]) -> list[Any]:
        values = self.values
        values.update(zip(block.arguments, arguments, strict=True))
        for op in block:
            operands = [values[operand] for operand in op.operand_values]
            if op.is_terminator:
                return operands
            results = self.operation(op, operands)
            values.update(zip(op.results, results, strict=True))
        raise ExecutionError("loop/terminator", "a block does not end with `return`")

    def operation(self, op: Operation, operands: list[Any]) -> Sequence[Any]:
        match op.name:
            case "loop.for":
                return self.loop(op, operands)
            case "loop.if":
                return self.block(op.regions["then" if operands[0] else "else"].block, [])
            case "loop.call":
                return self.call(self.module.functions[FunctionKey("", op.attributes["callee"])], operands)
        try:
            result = op.definition.evaluate(op, *operands)
        except IndexError as error:
            raise ExecutionError("loop/bounds", str(error), op.location) from error
        return result if isinstance(result, tuple) else (result,)

    def loop(self, op: Operation, operands: list[Any]) -> list[Any]:
        begin, end, step, *carried = operands
        if step <= 0:
            raise ExecutionError("loop/step", f"the step of a loop is more than 0, not {step}", op.location)
        body = op.regions["body"].block
        for index in range(int(begin), int(end), int(step)):
            carried = self.block(body, [np.int64(index), *carried])
        return carried


def _argument(value: Value, given: Any) -> Any:
    if isinstance(value.type, types.ScalarType):
        return np.asarray(given).astype(value.type.dtype.numpy)[()]
    if isinstance(value.type, types.VectorType):
        return given
    assert isinstance(value.type, types.BufferType)
    if not isinstance(given, np.ndarray) or given.ndim != 1 or given.dtype != value.type.dtype.numpy:
        raise ExecutionError("loop/arguments", f"%{value.name} takes a flat array of {value.type.dtype}")
    return given
