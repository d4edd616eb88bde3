"""What the old forms share: types that follow from the decomposition, and how versions are registered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ... import types
from ...core import AttributeReference, AttributeValue, Block
from ...dims import Dim
from ...infer import InferenceContext
from ...opdef import OpDefinition, lookup, register

if TYPE_CHECKING:
    from ...builder import OpBuilder, OperandLike
    from ...core import Operation, Value
    from ...dims import FreshSymbols
    from ...types import Type

_Class = TypeVar("_Class", bound=type[OpDefinition])


class OldForm(OpDefinition):
    """An operator as it was at `version`.

    A subclass implements `parts`; attribute references are resolved by then.
    """

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        """The results made of today's operators; None if what they depend on (a rank, say) is not known."""
        raise NotImplementedError(type(self).__name__)

    def decompose(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        if any(isinstance(value, AttributeReference) for value in op.attributes.values()):
            return None
        return self.parts(op, builder)

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        """The types that the parts have; where there are none, those that ONNX infers for the old form."""
        if all(operand.type is not types.UNKNOWN for operand in op.operand_values):
            found = types_by_decomposition(self, op, context)
            if found is not None:
                return found
        return super().infer(op, context)

    def count_parts(self, op: Operation, symbols: FreshSymbols) -> int | None:
        """How many operations `decompose` would make, constants left aside; None if it has no answer."""
        trial = _trial(self, op, InferenceContext(symbols))
        return None if trial is None else trial[1]


def types_by_decomposition(definition: OpDefinition, op: Operation, context: InferenceContext) -> list[Type] | None:
    """The types of the values that `op` decomposes into; None if it does not."""
    trial = _trial(definition, op, context)
    return None if trial is None else trial[0]


def _trial(definition: OpDefinition, op: Operation, context: InferenceContext) -> tuple[list[Type], int] | None:
    """The types and the number of an operation's parts, built in a block that is thrown away."""
    from ...builder import OpBuilder

    scratch = Block()
    try:
        values = definition.decompose(op, OpBuilder(scratch, context.symbols, location=op.location))
        count = sum(inner.name != "const" for inner in scratch)
        return None if values is None else ([value.type for value in values], count)
    finally:
        # The scratch operations used the real operands; nothing of that may stay.
        for inner in list(walk(scratch)):
            inner._drop_operands()


def walk(block: Block) -> Iterator[Operation]:
    """The operations of a block, nested ones included."""
    for op in block:
        yield op
        for region in op.regions.values():
            yield from region.walk()


def old_form(versions: Mapping[str, Sequence[int]]) -> Callable[[_Class], _Class]:
    """Class decorator: register the class for each operator and version; {"Add": (1, 6)} for Add-1 and Add-6."""

    def register_all(cls: _Class) -> _Class:
        for op_type, numbers in versions.items():
            for number in numbers:
                register(cls("", op_type, number))
        return cls

    return register_all


def today(
    builder: OpBuilder,
    op: Operation,
    operands: Sequence[OperandLike] | None = None,
    attributes: Mapping[str, AttributeValue] | None = None,
    op_type: str | None = None,
) -> Sequence[Value]:
    """The results of today's operator of the same name (or `op_type`); operands and attributes default to `op`'s.

    Attributes that today's operator does not have are left out.
    """
    definition = lookup(op.domain, op_type or op.op_type)
    given = op.attributes if attributes is None else attributes
    kept = {name: value for name, value in given.items() if name in definition.attribute_specs}
    values = op.operands if operands is None else operands
    return builder.create(definition, values, kept, outputs=len(op.results)).results


def shape_of(value: Value | None) -> tuple[Dim, ...] | None:
    """The dims of a tensor; None if it is absent, of unknown rank, or no tensor."""
    return value.type.shape if value is not None and isinstance(value.type, types.TensorType) else None


def known_elements(value: Value | None, builder: OpBuilder) -> np.ndarray | None:
    """The elements of a constant, or of a value that follows from shapes."""
    return InferenceContext(builder.symbols).constant(value)
