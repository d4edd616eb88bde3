"""The form of one node while it moves between opsets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np

from ....graph.core import AttributeReference, AttributeValue, Operation, Value
from ....graph.data import TensorData
from ....graph.dims import Dim
from ....graph.infer import SymbolicArray
from ....graph.types import TensorType, Type

Input: TypeAlias = Value | TensorData | None


@dataclass
class Node:
    """One node: what a NodeProto says, with values for inputs.

    A TensorData among the inputs is a constant that was an attribute in the old form; `from_attribute` maps its
    position to the attribute's name. `version` is set if the node stays in its old form. `legacy` keeps facts of the
    old written form (a `broadcast=1` that says nothing new, an `Upsample` that became `Resize`): hints for
    `downgrade`, without meaning of their own. `output_types` are checked by `downgrade`, where they are known.
    """

    domain: str
    op_type: str
    attributes: dict[str, AttributeValue] = field(default_factory=dict)
    inputs: list[Input] = field(default_factory=list)
    output_count: int = 1
    version: int | None = None
    legacy: dict[str, Any] = field(default_factory=dict)
    from_attribute: dict[int, str] = field(default_factory=dict)
    output_types: tuple[Type, ...] = ()

    def copy(self) -> Node:
        """An independent node with the same content."""
        return Node(
            self.domain, self.op_type, dict(self.attributes), list(self.inputs), self.output_count, self.version,
            dict(self.legacy), dict(self.from_attribute), self.output_types,
        )  # fmt: skip

    def input(self, index: int) -> Input:
        return self.inputs[index] if index < len(self.inputs) else None

    def set_input(self, index: int, value: Input) -> None:
        """Put `value` at position `index`, with absent inputs before it as needed; absent inputs at the end go."""
        self.inputs.extend([None] * (index + 1 - len(self.inputs)))
        self.inputs[index] = value
        while self.inputs and self.inputs[-1] is None:
            self.inputs.pop()

    def has_reference(self, *names: str) -> bool:
        """Whether one of these attributes is a reference, so that its value is not known."""
        return any(isinstance(self.attributes.get(name), AttributeReference) for name in names)

    def imply(self, name: str, value: AttributeValue) -> None:
        """Say what the old form means where the attribute is left out; `forget` takes it back."""
        if name not in self.attributes:
            self.attributes[name] = value
            self.legacy["implied"] = (*self.legacy.get("implied", ()), name)

    def forget(self, name: str, value: AttributeValue) -> None:
        """Leave the attribute out again if `imply` set it and it still has that value."""
        if name in self.legacy.get("implied", ()) and self.attributes.get(name) == value:
            del self.attributes[name]


def node_of(op: Operation) -> Node:
    """The node of an operation, in the form that it has in memory."""
    return Node(
        op.domain, op.op_type, dict(op.attributes), list(op.operands), len(op.results), op.definition.version,
        dict(op.metadata.get("legacy", {})), output_types=tuple(result.type for result in op.results),
    )  # fmt: skip


class CannotDowngrade(Exception):
    """The node has no form at the target opset; the text says why, as the end of a sentence."""


class KeepOldForm(Exception):
    """Raised by a step upwards: no operator of the next version means the same, the node keeps its old form."""


class Facts(Protocol):
    """What the steps may ask about inputs."""

    def type(self, value: Value) -> Type:
        """The type of an input."""

    def constant(self, value: Value) -> np.ndarray | None:
        """The elements of an input, if it is a constant."""

    def elements(self, value: Value) -> SymbolicArray | None:
        """The elements of an integer input as far as they follow from shapes."""


def tensor_type(facts: Facts, value: Input) -> TensorType | None:
    """The tensor type of an input; None if it is absent or not known to be a tensor."""
    if value is None:
        return None
    found = value.type if isinstance(value, TensorData) else facts.type(value)
    return found if isinstance(found, TensorType) else None


def shape(facts: Facts, value: Input) -> tuple[Dim, ...] | None:
    found = tensor_type(facts, value)
    return found.shape if found is not None else None


def rank(facts: Facts, value: Input) -> int | None:
    found = tensor_type(facts, value)
    return found.rank if found is not None else None


def constant(facts: Facts, value: Input) -> np.ndarray | None:
    """The elements of an input that is a constant."""
    if value is None:
        return None
    return value.numpy() if isinstance(value, TensorData) else facts.constant(value)
