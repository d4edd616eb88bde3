"""Whether one operation fits its definition: counts, attributes, regions, and element types with their type variables.

Part of `verifier`, which looks at the graph around the operation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from . import types
from .core import AttributeReference, AttributeValue, Operation, Value
from .data import SparseData, TensorData
from .opdef import OpDefinition, Parameter, ParameterKind
from .types import Type

# (code without "verify/", what is wrong)
Finding = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Formal:
    """An input or output of a signature. Values of the same `variable` (such as "T") have the same type."""

    parameter: Parameter
    variable: str


@dataclass(frozen=True, slots=True)
class Signature:
    definition: OpDefinition
    inputs: tuple[Formal, ...]
    outputs: tuple[Formal, ...]


@cache
def signature_of(definition: OpDefinition) -> Signature:
    schema = definition.schema if definition.inputs is None else None
    if schema is None:
        plain = [
            tuple(Formal(parameter, "") for parameter in parameters)
            for parameters in (definition.parameters, definition.result_parameters)
        ]
        return Signature(definition, plain[0], plain[1])
    inputs, outputs = (
        tuple(
            Formal(parameter, item.type_str if item.is_homogeneous and "(" not in item.type_str else "")
            for parameter, item in zip(parameters, items, strict=True)
        )
        for parameters, items in ((schema.inputs, schema.onnx.inputs), (schema.outputs, schema.onnx.outputs))
    )
    # Operands that only we know follow those of the standard.
    own = tuple(Formal(parameter, "") for parameter in definition.parameters[len(inputs) :])
    return Signature(definition, inputs + own, outputs)


def check_signature(op: Operation) -> Iterator[Finding]:
    """All that is wrong with `op` alone; nothing is known about an operator of an unknown domain."""
    if not op.definition.is_known:
        return
    signature = signature_of(op.definition)
    yield from _check_count(op, "operand", "input", op.operands, signature.inputs)
    yield from _check_count(op, "result", "output", op.results, signature.outputs)
    if not op.is_terminator:
        yield from _check_attributes(op)
        yield from _check_control_flow(op)
    yield from _check_types(op, signature)


def _check_count(
    op: Operation, kind: str, word: str, values: Sequence[Value | None], formals: Sequence[Formal]
) -> Iterator[Finding]:
    variadic = bool(formals) and formals[-1].parameter.kind is ParameterKind.VARIADIC
    if len(values) > len(formals) and not variadic and op.definition.closed:
        yield f"{kind}-count", f"{op.name} has at most {len(formals)} {word}s, here are {len(values)}"
    for index, formal in enumerate(formals):
        parameter = formal.parameter
        if parameter.kind is ParameterKind.VARIADIC and max(len(values) - index, 0) < parameter.minimum:
            yield f"{kind}-count", f"{op.name} needs at least {parameter.minimum} {word}s {parameter.name!r}"
        if parameter.kind is ParameterKind.REQUIRED and (index >= len(values) or values[index] is None):
            yield f"{kind}-count", f"{op.name} needs its {word} {parameter.name!r}"


def _check_attributes(op: Operation) -> Iterator[Finding]:
    specs = op.definition.attribute_specs
    for name, value in op.attributes.items():
        spec = specs.get(name)
        if spec is None and not op.definition.closed:
            continue
        if spec is None:
            yield "attribute-unknown", f"{op.name} has no attribute {name!r}; it has {', '.join(specs) or 'none'}"
        elif not _is_kind(value, spec.kind):
            yield "attribute-kind", f"the attribute {name!r} of {op.name} is of kind {spec.kind}, not {value!r:.60}"
    for name in op.regions:
        if op.definition.closed and (name not in specs or specs[name].kind not in ("graph", "any")):
            yield "region-unknown", f"{op.name} has no region {name!r}"
    for spec in specs.values():
        if spec.required and spec.name not in op.attributes and spec.name not in op.regions:
            what = "region" if spec.kind == "graph" else "attribute"
            yield f"{what}-missing", f"{op.name} needs its {what} {spec.name!r}"


def _check_control_flow(op: Operation) -> Iterator[Finding]:
    """What the regions of If, Loop and Scan take and return: as many values as the operation has for them."""
    count, operands = len(op.results), len(op.operands) if op.name != "loop" else max(len(op.operands), 2)
    blocks = [region.block for region in op.regions.values()]
    if op.name == "if" and any(len(block.outputs) != count for block in blocks):
        yield "region-results", f"if has {count} results, its branches return {[len(b.outputs) for b in blocks]}"
    if op.name not in ("loop", "scan") or len(blocks) != 1:
        return
    [body] = blocks
    scanned = op.attr("num_scan_inputs") if op.name == "scan" else 0
    if op.name == "scan" and not (isinstance(scanned, int) and 0 < scanned <= operands):
        yield "region-arguments", f"scan of {operands} operands has num_scan_inputs={scanned}"
        return
    # A Loop gives its body the iteration and the condition, and gets a condition back.
    own = op.name == "loop"
    states = operands - (2 if own else scanned)
    if len(body.arguments) != operands:
        yield "region-arguments", f"{op.name} has {operands} operands, its body takes {len(body.arguments)} values"
    if len(body.outputs) != count + own or count < states:
        returned = f"its body returns {len(body.outputs)} values"
        yield "region-results", f"{op.name} has {states} states and {count} results, {returned}"


_PLAIN_KINDS: dict[str, tuple[type, ...]] = {
    "int": (int, np.integer),
    # An integer in a float's place is written as a float.
    "float": (float, int, np.floating),
    "string": (str, bytes),
    "tensor": (TensorData,),
    "sparse_tensor": (SparseData,),
    "type_proto": (Type,),
}


def _is_kind(value: AttributeValue, kind: str) -> bool:
    if kind == "any":
        return True
    if isinstance(value, AttributeReference):
        return value.kind == kind
    if kind in _PLAIN_KINDS:
        return isinstance(value, _PLAIN_KINDS[kind])
    if not isinstance(value, tuple | list):
        return False
    plain = _PLAIN_KINDS.get(kind.removesuffix("s"), ())
    # A tree ensemble has millions of numbers, all of one type.
    return all(issubclass(each, plain) for each in set(map(type, value)))


def _check_types(op: Operation, signature: Signature) -> Iterator[Finding]:
    """Constraints of the schema, and one type for all that share a type variable (shapes may differ)."""
    bound: dict[str, tuple[str, str]] = {}
    for word, values, formals in (("input", op.operands, signature.inputs), ("output", op.results, signature.outputs)):
        if not formals:
            continue
        for index, value in enumerate(values):
            text = onnx_text(value.type) if value is not None else None
            formal = formals[min(index, len(formals) - 1)]
            if text is None or value is None:
                continue
            name = formal.parameter.name
            if formal.parameter.types and text not in formal.parameter.types:
                yield "type-constraint", f"the {word} {name!r} of {op.name} cannot be {value.type}"
            if not formal.variable:
                continue
            other, known = bound.setdefault(formal.variable, (name, text))
            if known != text:
                yield "type-variable", f"{other!r} and {name!r} of {op.name} must agree in type: {known} and {text}"


_SPELLED = {
    "f32": "float", "f64": "double", "f16": "float16", "bf16": "bfloat16", "c64": "complex64", "c128": "complex128",
}  # fmt: skip


@cache
def onnx_text(type: Type) -> str | None:
    """How ONNX spells `type` in a schema, without its shape: `tensor(float)`; None where something is unknown."""
    if isinstance(type, types.TensorType):
        return f"tensor({_dtype_text(type.dtype.name)})"
    if isinstance(type, types.SparseTensorType):
        return f"sparse_tensor({_dtype_text(type.dtype.name)})"
    if isinstance(type, types.MapType):
        # Schemas leave out that the value is a tensor.
        if not isinstance(type.value, types.TensorType):
            return None
        return f"map({_dtype_text(type.key.name)}, {_dtype_text(type.value.dtype.name)})"
    if isinstance(type, types.SequenceType | types.OptionalType):
        element = onnx_text(type.element)
        word = "seq" if isinstance(type, types.SequenceType) else "optional"
        return f"{word}({element})" if element else None
    return None


def _dtype_text(name: str) -> str:
    if name in _SPELLED or name in ("bool", "string"):
        return _SPELLED.get(name, name)
    # f8e4m3fn, u8, i4 are float8e4m3fn, uint8, int4.
    return {"f": "float", "u": "uint", "i": "int"}[name[0]] + name[1:]
