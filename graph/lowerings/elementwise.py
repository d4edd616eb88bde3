"""Elementwise operators: the body of each is the body of a map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core import Operation, Value
from ..diagnostics import TypeInferenceError
from ..dtypes import f64
from ..opdef import Trait
from ..ops.elementwise import Elementwise
from .builder import KernelBuilder, all_native, dtype_of, tensor_type
from .rules import lowers


def lower_elementwise(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    """A map, if `op` is elementwise and has a body."""
    definition = op.definition
    if not isinstance(definition, Elementwise) or definition.version is not None:
        return None
    if Trait.ELEMENTWISE not in definition.traits or len(op.results) != 1 or not all_native(op):
        return None
    if definition.body is None and type(definition).scalar is Elementwise.scalar:
        return None
    body: Any = definition
    # Integers meet attributes that are fractions.
    is_mixed = any(isinstance(op.attr(name), float) for name in definition.body_attributes)

    def function(s: Any, *elements: Any) -> Any:
        if is_mixed and dtype_of(op.result).is_integer:
            elements = tuple(s.cast(element, f64) for element in elements)
        return body.scalar(op, s, *elements)

    try:
        return [k.map(function, op.operands, tensor_type(op.result))]
    except TypeInferenceError:
        return None  # of a dtype for which the body has no meaning


@lowers("Identity", "Dropout")
def identity(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    """The operand itself; Dropout only where it surely drops nothing."""
    from .builder import number_of

    if op.name == "dropout":
        training = op.input(2)
        if len(op.results) > 1 and op.results[1].uses:
            return None
        if training is not None and number_of(training) is not False:
            return None
    operand = op.operands[0]
    return None if operand is None else [operand, *[operand] * (len(op.results) - 1)]
