"""Whether a node is one of a given opset: attributes, inputs, outputs and element types against the schema there."""

from __future__ import annotations

from functools import cache

import onnx
import onnx.defs

from ....graph.core import AttributeReference
from ....graph.data import TensorData
from ....graph.onnx_schema import Schema, find_schema
from ....graph.opdef import ParameterKind
from ....graph.signature import onnx_text
from .node import CannotDowngrade, Facts, Node


@cache
def schema_at(domain: str, op_type: str, opset: int | None) -> Schema | None:
    """The schema in force at `opset` (None: today); None if the operator does not exist there (or no longer)."""
    if opset is None:
        return find_schema(domain, op_type, None)
    try:
        found = onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None
    return None if found.deprecated else find_schema(domain, op_type, int(found.since_version))


def conform(node: Node, version: int | None, opset: int, facts: Facts) -> None:
    """Make `node` one of `opset` by dropping attributes that say their default and are unknown there.

    Raises CannotDowngrade for everything else that is unknown there. `version` is the one whose defaults the
    attributes have: that of the form in memory (None: today's).
    """
    schema = schema_at(node.domain, node.op_type, opset)
    if schema is None:
        of_domain = f" of domain {node.domain!r}" if node.domain else ""
        raise CannotDowngrade(f"{node.op_type} does not exist at opset {opset}{of_domain}")
    _check_attributes(schema, node, schema_at(node.domain, node.op_type, version), opset)
    _check_counts(schema, node, opset)
    _check_input_types(schema, node, opset, facts)
    _check_output_types(schema, node, opset)


def _check_attributes(schema: Schema, node: Node, current: Schema | None, opset: int) -> None:
    for name, value in list(node.attributes.items()):
        if name in schema.attributes:
            continue
        default = current.attributes[name].default if current is not None and name in current.attributes else None
        if isinstance(value, AttributeReference) or default is None or value != default:
            raise CannotDowngrade(f"{node.op_type} has no attribute {name!r} at opset {opset}")
        del node.attributes[name]
    for spec in schema.attributes.values():
        # Graphs are not among the attributes: they are regions.
        if spec.required and spec.name not in node.attributes and spec.kind not in ("graph", "graphs"):
            raise CannotDowngrade(f"{node.op_type} needs an attribute {spec.name!r} at opset {opset}")


def _check_counts(schema: Schema, node: Node, opset: int) -> None:
    limits = schema.onnx
    if not limits.min_input <= len(node.inputs) <= limits.max_input:
        raise CannotDowngrade(f"{node.op_type} does not take {len(node.inputs)} inputs at opset {opset}")
    if not limits.min_output <= node.output_count <= limits.max_output:
        raise CannotDowngrade(f"{node.op_type} does not give {node.output_count} results at opset {opset}")


def _check_input_types(schema: Schema, node: Node, opset: int, facts: Facts) -> None:
    seen: dict[str, str] = {}
    for index, value in enumerate(node.inputs):
        position = min(index, len(schema.inputs) - 1)
        formal = schema.inputs[position]
        if value is None:
            if formal.kind is ParameterKind.REQUIRED:
                raise CannotDowngrade(f"{node.op_type} needs its input {formal.name!r} at opset {opset}")
            continue
        text = onnx_text(value.type if isinstance(value, TensorData) else facts.type(value))
        if text is None:
            continue
        if formal.types and text not in formal.types:
            raise CannotDowngrade(f"{node.op_type} does not take {text} as {formal.name!r} at opset {opset}")
        variable = schema.dtype_variables[position]
        if isinstance(variable, str) and seen.setdefault(variable, text) != text:
            raise CannotDowngrade(f"{node.op_type} wants one type for its inputs at opset {opset}")


def _check_output_types(schema: Schema, node: Node, opset: int) -> None:
    for index, found in enumerate(node.output_types):
        allowed = schema.outputs[min(index, len(schema.outputs) - 1)].types
        text = onnx_text(found)
        if text is not None and allowed and text not in allowed:
            raise CannotDowngrade(f"{node.op_type} does not give {text} at opset {opset}")
