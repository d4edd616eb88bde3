"""What the operators of ONNX Runtime share: signatures without versions, meaning by decomposition, small builders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ... import dtypes, types
from ...cached import cached_property
from ...core import AttributeReference
from ...diagnostics import ExecutionError
from ...opdef import AttributeSpec, OpDefinition, ParameterKind
from ..legacy.base import types_by_decomposition

if TYPE_CHECKING:
    from ...builder import OpBuilder
    from ...core import Operation, Value
    from ...dims import Dim
    from ...dtypes import DType
    from ...infer import InferenceContext
    from ...types import Type

DOMAIN = "com.microsoft"


class MicrosoftOp(OpDefinition):
    """An operator that ONNX Runtime defines (docs/ContribOperators.md there lists them).

    These operators have no versions: a newer ONNX Runtime may add inputs, outputs and attributes. A node that has any
    that the signature here does not list is carried through untouched, with results of unknown type.

    Beside `attributes` a subclass names attributes without a default, by kind: those a node must have in `required`,
    others in `optional`. It implements `parts`, or `evaluate` where the standard has no operators for the meaning.
    """

    closed = False
    required: ClassVar[dict[str, str]] = {}
    optional: ClassVar[dict[str, str]] = {}

    @cached_property
    def attribute_specs(self) -> dict[str, AttributeSpec]:
        specs = {name: AttributeSpec(name, kind, required=True) for name, kind in self.required.items()}
        specs.update({name: AttributeSpec(name, kind) for name, kind in self.optional.items()})
        return specs | super().attribute_specs

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        """The results made of standard operators; None if what they depend on (a rank, say) is not known."""
        return None

    def refusal(self, op: Operation) -> str | None:
        """Why this node has no meaning here although its operator has: a phrase for messages. None: it has."""
        return None

    def decompose(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        unresolved = any(isinstance(value, AttributeReference) for value in op.attributes.values())
        if unresolved or self._stranger(op) or self.refusal(op):
            return None
        parts = self.parts(op, builder)
        return None if parts is None else parts[: len(op.results)]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        from ...evaluation import evaluate_by_decomposition

        reason = self._stranger(op) or self.refusal(op)
        if reason is None:
            results = evaluate_by_decomposition(op, operands)
            if results is not None:
                return tuple(results)
            reason = "is not defined for these operands"
        raise ExecutionError("run/no-meaning", f"{self.name} {reason}", notes=["other operators around it can be run"])

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        unresolved = any(isinstance(value, AttributeReference) for value in op.attributes.values())
        if unresolved or self._stranger(op):
            return [types.UNKNOWN] * len(op.results)
        inferred = list(self.result_types(op, context))
        return inferred + [types.UNKNOWN] * (len(op.results) - len(inferred))

    def result_types(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        """As `OpDefinition.infer`, for a node that has nothing the signature does not list."""
        return super().infer(op, context)

    def _stranger(self, op: Operation) -> str | None:
        """What `op` has that the signature does not list, as a phrase."""
        for name in (*op.attributes, *op.regions):
            if name not in self.attribute_specs:
                return f"has an attribute {name!r} that is not known here"
        for values, parameters in ((op.operands, self.parameters), (op.results, self.result_parameters)):
            variadic = bool(parameters) and parameters[-1].kind is ParameterKind.VARIADIC
            if len(values) > len(parameters) and not variadic:
                return f"has {len(values)} operands or results, of which {len(parameters)} are known here"
        return None


class TypedByParts(MicrosoftOp):
    """Result types are those that the decomposition has; unknown where there is none."""

    def result_types(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        if any(value.type is types.UNKNOWN for value in op.operand_values):
            return []
        return types_by_decomposition(self, op, context) or []


# ---- small builders --------------------------------------------------------------------------------------------------


def operand(op: Operation, index: int) -> Value | None:
    """Operand `index`; None if it is left out."""
    return op.operands[index] if index < len(op.operands) else None


def present(op: Operation, index: int) -> Value:
    """Operand `index`, which the signature requires."""
    value = op.operands[index]
    assert value is not None, f"{op.name} has no input {index}"
    return value


def tensor_dtype(value: Value) -> DType:
    """The element type of a value whose type is known, as in a decomposition."""
    if not isinstance(value.type, types.TensorType):
        raise ExecutionError("run/no-meaning", f"a tensor is needed, not {value.type}")
    return value.type.dtype


def rank_of(value: Value | None) -> int | None:
    """The rank of a tensor; None if it is unknown or the value is left out."""
    shape = value.type.shape if value is not None and isinstance(value.type, types.TensorType) else None
    return None if shape is None else len(shape)


def dims_of(value: Value | None) -> tuple[Dim, ...] | None:
    """The dims of a tensor; None if its rank is unknown or the value is left out."""
    return value.type.shape if value is not None and isinstance(value.type, types.TensorType) else None


def size_along(builder: OpBuilder, value: Value, axis: int) -> Any:
    """The size of one axis: a number if it is known, else a scalar i64 value."""
    dims = dims_of(value)
    if dims is not None and isinstance(dims[axis], int):
        return dims[axis]
    end = None if axis == -1 else axis + 1
    return builder.squeeze(builder.shape(value, start=axis, end=end), [0])


def indices(builder: OpBuilder, count: Any) -> Value:
    """0, 1, ..., count - 1 as i64, for a number or a scalar value."""
    result: Value = builder.range(0, count, 1)
    return result


def zero(builder: OpBuilder, dtype: DType) -> Value:
    """A scalar 0 of `dtype`."""
    return builder.const(np.zeros((), dtype.numpy))


def filled(builder: OpBuilder, number: float, dtype: DType) -> Value:
    """A scalar of `dtype`."""
    return builder.const(np.asarray(number, np.float64).astype(dtype.numpy))


def lowest(dtype: DType) -> float:
    """The least finite number of a floating-point type."""
    return {dtypes.f16: -65504.0, dtypes.bf16: -3.3895313892515355e38, dtypes.f64: float(np.finfo(np.float64).min)}.get(
        dtype, float(np.finfo(np.float32).min)
    )


def add_all(builder: OpBuilder, *terms: Value | None) -> Value:
    """The sum, from the left, of the terms that are there (at least one)."""
    total: Value | None = None
    for term in terms:
        if term is not None:
            total = term if total is None else builder.add(total, term)
    assert total is not None
    return total


def activate(
    builder: OpBuilder, name: str, value: Value, alpha: float | None = None, beta: float | None = None,
    gamma: float | None = None, axis: int | None = None,
) -> Value:  # fmt: skip
    """The activation that a fused operator names, with the parameters that it gives (others at their defaults)."""
    from ...opdef import lookup

    if name == "Clip":
        clipped: Value = builder.clip(value, lowest(tensor_dtype(value)) if alpha is None else alpha, beta)
        return clipped
    definition = lookup("", name)
    given = {"alpha": alpha, "beta": beta, "gamma": gamma, "axis": axis}
    attributes = {key: number for key, number in given.items() if key in definition.attribute_specs}
    return builder.create(definition, [value], attributes).result


ACTIVATIONS = frozenset({
    "Relu", "Tanh", "Sigmoid", "LeakyRelu", "HardSigmoid", "HardSwish", "Clip", "Elu", "Selu", "Softplus", "Softsign",
    "ThresholdedRelu", "Celu", "Gelu", "Mish", "Softmax", "LogSoftmax",
})  # fmt: skip


def unknown_activation(op: Operation) -> str | None:
    """A phrase for `refusal` if the activation that `op` names is none of those above."""
    name = op.attr("activation")
    name = name.decode() if isinstance(name, bytes) else name
    return None if not name or name in ACTIVATIONS else f"has an activation {name!r} that is not known here"
