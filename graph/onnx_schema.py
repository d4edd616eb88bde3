"""What the `onnx` package knows about an operator: schema, fallback inference, function body, reference kernel.

Kept apart from `opdef` so that `onnx` is imported only when a definition is first asked for its signature.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import onnx
import onnx.defs

from .dtypes import BY_ONNX_CODE, DType
from .module import INTERNAL_OPSET
from .opdef import AttributeSpec, Parameter, ParameterKind, mnemonic

if TYPE_CHECKING:
    from .builder import OpBuilder
    from .core import Operation, Value
    from .infer import InferenceContext
    from .opdef import OpDefinition
    from .types import Type


# Operators that took more element types in an older version than they take today; such files are good models.
_NARROWED = frozenset({"Erf", "ReduceLogSum", "ReduceLogSumExp"})


@dataclass(frozen=True, slots=True)
class Schema:
    """An operator's signature as ONNX defines it, in the terms of `opdef`; `onnx` is the schema itself."""

    onnx: onnx.defs.OpSchema
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    attributes: dict[str, AttributeSpec]
    # Per input, what ties its element type: a type variable such as "T", or the one DType it must have; None where
    # ONNX ties nothing (heterogeneous variadic inputs, sequences). The last stands for all that follow.
    dtype_variables: tuple[str | DType | None, ...]

    @property
    def since_version(self) -> int:
        return int(self.onnx.since_version)

    @property
    def differentiable_inputs(self) -> tuple[str, ...]:
        """Names of the inputs that ONNX tags differentiable."""
        tag = onnx.defs.OpSchema.DifferentiationCategory.Differentiable
        return tuple(item.name for item in self.onnx.inputs if item.differentiation_category == tag)


def find_schema(domain: str, op_type: str, version: int | None) -> Schema | None:
    """The schema in force at `version` (None: the internal opset); None if ONNX defines no such operator there.

    With None, types that only an older version takes are included.
    """
    ceiling = version if version is not None else (INTERNAL_OPSET if domain == "" else 2**31 - 1)
    try:
        schema = onnx.defs.get_schema(op_type, ceiling, domain)
    except onnx.defs.SchemaError:
        return None
    if schema.deprecated or (version is not None and schema.since_version != version):
        return None
    older = _older_schemas(schema) if version is None and domain == "" and op_type in _NARROWED else []
    return Schema(
        schema,
        tuple(_parameter(item, [other for each in older for other in each.inputs]) for item in schema.inputs),
        tuple(_parameter(item, [other for each in older for other in each.outputs]) for item in schema.outputs),
        {name: _attribute(item) for name, item in schema.attributes.items()},
        _dtype_variables(schema),
    )


@cache
def standard_names() -> dict[str, str]:
    """IR name -> ONNX name for every operator of the default domain."""
    return {mnemonic(schema.name): schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}


def _older_schemas(schema: onnx.defs.OpSchema) -> list[onnx.defs.OpSchema]:
    found = []
    version = schema.since_version - 1
    while version > 0 and onnx.defs.has(schema.name, version, schema.domain):
        found.append(onnx.defs.get_schema(schema.name, version, schema.domain))
        version = found[-1].since_version - 1
    return found


def _parameter(item: Any, older: Sequence[Any]) -> Parameter:
    """`item` of a schema; `older` are those of older versions, of which one with its name may widen its types."""
    option = onnx.defs.OpSchema.FormalParameterOption
    kinds = {
        option.Single: ParameterKind.REQUIRED,
        option.Optional: ParameterKind.OPTIONAL,
        option.Variadic: ParameterKind.VARIADIC,
    }
    allowed = frozenset(
        _as_documented(text) for form in (item, *older) if form.name == item.name for text in form.types
    )
    return Parameter(item.name, kinds[item.option], allowed, int(item.min_arity))


def _dtype_variables(schema: onnx.defs.OpSchema) -> tuple[str | DType | None, ...]:
    found = tuple(map(_dtype_variable, schema.inputs))
    is_variadic = bool(schema.inputs) and schema.inputs[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic
    # Operands that only we know may follow those of the standard.
    return found if is_variadic else (*found, None)


def _dtype_variable(item: Any) -> str | DType | None:
    if not item.is_homogeneous:
        return None
    text = str(item.type_str)
    if text.startswith("tensor("):
        return BY_ONNX_CODE[onnx.TensorProto.DataType.Value(text[7:-1].upper())]
    return text if "(" not in text else None


def _as_documented(text: str) -> str:
    """The documented `map(int64, float)` for `map(int64,tensor(float))`, which is how this one property spells it."""
    return re.sub(r"map\((\w+),tensor\((\w+)\)\)", r"map(\1, \2)", text)


def _attribute(item: Any) -> AttributeSpec:
    from .onnx_values import attribute_value

    has_default = item.default_value.type != onnx.AttributeProto.UNDEFINED
    kind = item.type.name.lower()
    return AttributeSpec(
        item.name, kind, bool(item.required), attribute_value(item.default_value) if has_default else None
    )


def infer_with_onnx(schema: Schema, op: Operation, context: InferenceContext) -> Sequence[Type]:
    """Result types by ONNX's own single-node inference; dims it leaves open become fresh symbols."""
    from .onnx_inference import infer

    return infer(schema, op, context)


def evaluate_with_onnx(definition: OpDefinition, op: Operation, operands: Sequence[Any]) -> Any:
    """Results by ONNX's reference implementation of this one operator."""
    from .onnx_reference import evaluate

    return evaluate(definition, op, operands)


def expand_function_body(schema: Schema, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
    """The operator's function body in the standard, built in place of `op`; None if it has none."""
    from .onnx_functions import expand

    return expand(schema, op, builder)
