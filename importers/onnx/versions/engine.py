"""Walks a node through the versions of its operator, applying the registered steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import onnx.defs

from ....graph.core import AttributeReference, AttributeValue
from ....graph.module import INTERNAL_OPSET
from ....graph.onnx_schema import Schema, find_schema
from ....graph.opdef import ParameterKind
from ....graph.types import OptionalType, SequenceType, TensorType, Type
from .node import CannotDowngrade, Facts, Node

Step: TypeAlias = Callable[[Node, Facts], None]

_up: dict[tuple[str, int], list[Step]] = {}
_down: dict[tuple[str, int], list[Step]] = {}


def step_up(version: int, *op_types: str) -> Callable[[Step], Step]:
    """Register the step that takes `op_types` from the version before `version` to `version`, in place.

    A step that calls `node.keep_old(...)` ends the walk: the node stays in its old form.
    """

    def register(step: Step) -> Step:
        for op_type in op_types:
            _up.setdefault((op_type, version), []).append(step)
        return step

    return register


def step_down(version: int, *op_types: str) -> Callable[[Step], Step]:
    """Register the step that takes `op_types` from `version` to the version before it, in place."""

    def register(step: Step) -> Step:
        for op_type in op_types:
            _down.setdefault((op_type, version), []).append(step)
        return step

    return register


@cache
def versions(op_type: str, domain: str = "") -> tuple[int, ...]:
    """All versions at which ONNX (re)defined the operator, oldest first, up to the internal opset."""
    found = {
        int(schema.since_version)
        for schema in onnx.defs.get_all_schemas_with_history()
        if schema.name == op_type and schema.domain == domain
    }
    return tuple(sorted(v for v in found if domain or v <= INTERNAL_OPSET))


def upgrade(node: Node, opset: int, facts: Facts) -> Node:
    """The form of `node`, written for `opset` of its domain, that is held in memory.

    An operator outside of the standard domains is returned unchanged. The result has `version` set if it stays in
    its old form.
    """
    result = node.copy()
    if node.domain == "ai.onnx.ml":
        return _keep_deprecated(result, opset)
    if node.domain != "":
        return result
    # A step may rename the operator (Upsample becomes Resize); its own history then goes on.
    reached = opset
    while True:
        pending = [version for version in versions(result.op_type) if reached < version]
        if not pending:
            return result
        reached = pending[0]
        old_name = result.op_type
        before = result.copy()
        for step in _up.get((result.op_type, reached), ()):
            step(result, facts)
            if result.version is not None:
                before.version = _version_at(old_name, reached - 1)
                return _as_written(node, opset, before)
        if find_schema("", result.op_type, None) is None and result.op_type == old_name and reached == pending[-1]:
            raise ValueError(f"{old_name} was removed from ONNX at opset {reached} and no step says what replaced it")


def _as_written(node: Node, opset: int, before: Node) -> Node:
    """The node exactly as the file has it, at the version in force there."""
    kept = node.copy()
    kept.version = _version_at(node.op_type, opset)
    return kept


def _version_at(op_type: str, opset: int, domain: str = "") -> int:
    return max(version for version in versions(op_type, domain) if version <= opset)


def _keep_deprecated(node: Node, opset: int) -> Node:
    """Operators of ai.onnx.ml changed only by additions, except those later deprecated or given a new meaning."""
    known = versions(node.op_type, node.domain)
    if known:
        current = _version_at(node.op_type, opset, node.domain)
        incompatible = node.op_type == "LabelEncoder" and current == 1
        if incompatible or find_schema(node.domain, node.op_type, None) is None:
            node.version = current
    return node


def downgrade(node: Node, opset: int, facts: Facts) -> Node:
    """The form of `node`, held in memory, at `opset` of its domain. Raises CannotDowngrade if there is none."""
    result = node.copy()
    if node.domain not in ("", "ai.onnx.ml"):
        return result
    if node.version is not None:
        return _downgrade_old_form(result, opset)
    if node.domain == "":
        _walk_down(result, opset, facts)
    schema = find_schema_at(result.domain, result.op_type, opset)
    if schema is None:
        raise CannotDowngrade(
            f"{result.op_type} does not exist at opset {opset} of domain {result.domain or 'ai.onnx'!r}"
        )
    _check_against(schema, result, opset, facts)
    return result


def _downgrade_old_form(node: Node, opset: int) -> Node:
    later = [v for v in versions(node.op_type, node.domain) if node.version is not None and node.version < v <= opset]
    removed = find_schema_at(node.domain, node.op_type, opset) is None
    if later or removed:
        raise CannotDowngrade(f"{node.op_type} of opset {node.version} has another meaning at opset {opset}")
    if node.version is not None and node.version > opset:
        raise CannotDowngrade(f"{node.op_type} of opset {node.version} does not exist at opset {opset}")
    return node


def _walk_down(node: Node, opset: int, facts: Facts) -> None:
    ceiling = INTERNAL_OPSET
    while True:
        pending = [version for version in versions(node.op_type) if opset < version <= ceiling]
        if not pending:
            return
        version = pending[-1]
        for step in _down.get((node.op_type, version), ()):
            step(node, facts)
        ceiling = version - 1


@cache
def find_schema_at(domain: str, op_type: str, opset: int) -> Schema | None:
    """The schema in force at `opset`; None if the operator does not exist there (or no longer)."""
    try:
        found = onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None
    return None if found.deprecated else find_schema(domain, op_type, int(found.since_version))


def _check_against(schema: Schema, node: Node, opset: int, facts: Facts) -> None:
    """Drop attributes that say their default and are unknown at `opset`; refuse everything else unknown there."""
    current = find_schema(node.domain, node.op_type, None)
    for name, value in list(node.attributes.items()):
        if name in schema.attributes:
            continue
        spec = current.attributes.get(name) if current is not None else None
        if spec is None or not _is_default(value, spec.default):
            raise CannotDowngrade(f"{node.op_type} has no attribute {name!r} at opset {opset}")
        del node.attributes[name]
    absent = [s.name for s in schema.attributes.values() if s.required and s.name not in node.attributes]
    if absent and not _is_graph(schema, absent[0]):
        raise CannotDowngrade(f"{node.op_type} needs an attribute {absent[0]!r} at opset {opset}")
    formals = schema.inputs
    variadic = bool(formals) and formals[-1].kind is ParameterKind.VARIADIC
    if len(node.inputs) > len(formals) and not variadic:
        raise CannotDowngrade(f"{node.op_type} takes only {len(formals)} inputs at opset {opset}")
    outputs = schema.outputs
    if node.output_count > len(outputs) and not (outputs and outputs[-1].kind is ParameterKind.VARIADIC):
        raise CannotDowngrade(f"{node.op_type} gives only {len(outputs)} results at opset {opset}")
    for index, value in enumerate(node.inputs):
        formal = formals[min(index, len(formals) - 1)]
        if value is None:
            if formal.kind is ParameterKind.REQUIRED:
                raise CannotDowngrade(f"{node.op_type} needs its input {formal.name!r} at opset {opset}")
            continue
        text = onnx_type_text(value.type if not hasattr(value, "owner") else facts.type(value))
        if text is not None and formal.types and text not in formal.types:
            raise CannotDowngrade(f"{node.op_type} does not take {text} as {formal.name!r} at opset {opset}")


def _is_graph(schema: Schema, name: str) -> bool:
    return schema.attributes[name].kind in ("graph", "graphs")


def _is_default(value: AttributeValue, default: AttributeValue) -> bool:
    if isinstance(value, AttributeReference):
        return False
    return default is not None and value == default


# TensorProto.DataType names in ONNX's type strings.
_ONNX_NAMES = {
    "f32": "float", "f64": "double", "f16": "float16", "bf16": "bfloat16", "i8": "int8", "i16": "int16",
    "i32": "int32", "i64": "int64", "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "bool": "bool", "string": "string", "c64": "complex64", "c128": "complex128", "f8e4m3fn": "float8e4m3fn",
    "f8e4m3fnuz": "float8e4m3fnuz", "f8e5m2": "float8e5m2", "f8e5m2fnuz": "float8e5m2fnuz", "i4": "int4",
    "u4": "uint4", "f4e2m1": "float4e2m1", "f8e8m0": "float8e8m0", "i2": "int2", "u2": "uint2",
    "f6e2m3": "float6e2m3", "f6e3m2": "float6e3m2",
}  # fmt: skip


def onnx_type_text(type: Type) -> str | None:
    """`tensor(float)`, `seq(tensor(int64))`, `optional(...)`: a type as schemas write it; None if it is not known."""
    if isinstance(type, TensorType):
        return f"tensor({_ONNX_NAMES[type.dtype.name]})"
    if isinstance(type, SequenceType):
        inner = onnx_type_text(type.element)
        return f"seq({inner})" if inner else None
    if isinstance(type, OptionalType):
        inner = onnx_type_text(type.element)
        return f"optional({inner})" if inner else None
    return None
