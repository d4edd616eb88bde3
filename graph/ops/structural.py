"""Operators that give the IR its structure: constants and terminators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from .. import types
from ..data import TensorData
from ..opdef import OpDefinition, Trait, op

if TYPE_CHECKING:
    from ..core import Operation
    from ..infer import InferenceContext
    from ..types import Type


@op("Constant")
class Constant(OpDefinition):
    """A constant tensor: an ONNX initializer, or a Constant node if `metadata["constant_node"]` names the attribute
    ("value", "value_float", "value_ints", "sparse_value", ...) that held it.

    Inside a model-local function `value` may be an `AttributeReference`.
    """

    inputs = ()
    outputs = ("output",)
    attributes: ClassVar[dict[str, Any]] = {"value": None}

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        value = op.attributes["value"]
        return [value.type if isinstance(value, TensorData) else types.UNKNOWN]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return op.attributes["value"].numpy()


@op("return", domain="")
class Return(OpDefinition):
    """Ends a block: its operands are the block's outputs, in order."""

    inputs = ("values*",)
    outputs = ()
    traits = frozenset({Trait.TERMINATOR})

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        return []
