"""Running one operation on numpy values: what folding, bisection and the reference backend share.

A value at run time is a numpy array for a tensor (strings: an object array of str), a list for a sequence, a dict for
a map, and the value itself or None for an optional. `evaluator` runs whole blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import dtypes, types
from .core import Block, Operation, Value
from .diagnostics import ExecutionError, TilewrightError

if TYPE_CHECKING:
    from .types import Type


def evaluate_op(op: Operation, operands: Sequence[Any]) -> list[Any]:
    """The results of an operation without regions for `operands` (None where left out), with exact dtypes.

    Raises ExecutionError if the operation has no numpy meaning, is not defined for these operands, or gives a result
    of another dtype than its type says; the error names the operation, its place and its operands.
    """
    with np.errstate(all="ignore"):
        try:
            return as_results(op, op.definition.evaluate(op, *operands))
        except Exception as error:
            raise located(error, op, operands) from error


def evaluate_by_decomposition(op: Operation, operands: Sequence[Any]) -> list[Any] | None:
    """The results by way of `op`'s decomposition for exactly these operands; None if it has none."""
    from .builder import OpBuilder
    from .dims import FreshSymbols
    from .evaluator import Evaluator
    from .infer import InferenceContext, infer_types

    present = [operand for operand in operands if operand is not None]
    block = Block([type_of(operand) for operand in present])
    arguments = iter(block.arguments)
    builder = OpBuilder(block, FreshSymbols(), location=op.location)
    # Small integer operands (axes, shapes, pads) become constants: a decomposition may need to know them.
    values = [None if operand is None else _known(builder, next(arguments), operand) for operand in operands]
    twin = Operation(
        op.definition, values, op.attributes, [types.UNKNOWN] * len(op.results),
        result_names=[result.name for result in op.results], location=op.location, metadata=op.metadata,
    )  # fmt: skip
    for result, inferred in zip(twin.results, infer_types(twin, InferenceContext(builder.symbols)), strict=True):
        result.type = inferred
    built = op.definition.decompose(twin, builder)
    twin._drop_operands()
    if built is None:
        return None
    builder.returns(list(built))
    return Evaluator().run(block, present)


def type_of(value: Any) -> Type:
    """The static type of a run-time value; UNKNOWN where the value does not tell (an empty list, None)."""
    if isinstance(value, np.ndarray):
        return types.tensor(dtypes.from_numpy(value.dtype), value.shape)
    if isinstance(value, list) and value:
        elements = {type_of(item) for item in value}
        if len(elements) == 1:
            return types.sequence(elements.pop())
        kinds = {item.dtype for item in elements if isinstance(item, types.TensorType)}
        return types.sequence(types.tensor(kinds.pop(), None)) if len(kinds) == 1 else types.UNKNOWN
    return types.UNKNOWN


def describe(value: Any) -> str:
    """A run-time value in a few characters for messages: `f32[2, 3]`, `sequence of 4`, `none`."""
    if value is None:
        return "none"
    if isinstance(value, list):
        return f"sequence of {len(value)}"
    if isinstance(value, np.ndarray):
        try:
            return str(type_of(value))
        except TypeError:
            return f"{value.dtype}{list(value.shape)}"
    return type(value).__name__


def located(error: Exception, op: Operation, operands: Sequence[Any]) -> ExecutionError:
    """`error` as an ExecutionError that says in which operation, where, and on which operands it happened."""
    call = f"{op.name}({', '.join(map(describe, operands))})"
    if isinstance(error, TilewrightError):
        first = error.diagnostics[0]
        if isinstance(error, ExecutionError) and first.location is not None:
            return error
        return ExecutionError(first.code, first.message, op.location, notes=[*first.notes, f"in {call}"])
    reason = str(error).strip() or type(error).__name__
    return ExecutionError("run/failed", f"{op.name} failed: {reason}", op.location, notes=[f"in {call}"])


def _known(builder: Any, argument: Value, operand: Any) -> Value:
    small = isinstance(operand, np.ndarray) and operand.size <= 64 and operand.dtype.kind in "iub"
    constant: Value = builder.const(operand) if small else argument
    return constant


def as_results(op: Operation, raw: Any) -> list[Any]:
    """What a definition's `evaluate` returned, as one run-time value per result of `op`."""
    found = list(raw) if isinstance(raw, tuple) else [raw]
    if len(found) < len(op.results):
        found += [None] * (len(op.results) - len(found))
    results = [_settled(item) for item in found[: len(op.results)]]
    for result, value in zip(op.results, results, strict=True):
        if isinstance(result.type, types.TensorType):
            _check_dtype(op, result, value)
    return results


def _settled(value: Any) -> Any:
    """Numpy scalars as 0-d arrays, any kind of string array as an object array of str, in sequences too."""
    if isinstance(value, list):
        return [_settled(item) for item in value]
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "UST":
        return value.astype(object)
    return value


def _check_dtype(op: Operation, result: Value, value: Any) -> None:
    wanted = result.type.dtype if isinstance(result.type, types.TensorType) else None
    if value is None and not result.uses:
        return
    if not isinstance(value, np.ndarray) or dtypes.from_numpy(value.dtype) is not wanted:
        raise ExecutionError(
            "run/result-dtype",
            f"result %{result.name or result.index} of {op.name} is declared {result.type}, but is {describe(value)}",
            op.location,
            notes=["either the model declares a wrong element type, or the operator is implemented wrongly"],
        )
