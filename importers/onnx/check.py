"""Check nodes against the schemas of the opset they were written for, before anything is made of them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import onnx.defs
from onnx import AttributeProto, NodeProto

from ...graph import opdef
from ...graph.core import Value
from ...graph.diagnostics import DiagnosticLog
from ...graph.location import Location
from ...graph.signature import onnx_text
from ...graph.types import Type

_OPTIONS = onnx.defs.OpSchema.FormalParameterOption


@cache
def newest_opsets() -> dict[str, int]:
    """The newest version of each standard domain that the installed onnx knows."""
    newest: dict[str, int] = {}
    for schema in onnx.defs.get_all_schemas():
        newest[schema.domain] = max(newest.get(schema.domain, 1), int(schema.since_version))
    newest[""] = int(onnx.defs.onnx_opset_version())
    return newest


def newest_opset(domain: str) -> int | None:
    """That of one domain, None if it is not ONNX's; of the default one without a look at all operators."""
    return int(onnx.defs.onnx_opset_version()) if domain == "" else newest_opsets().get(domain)


@cache
def _is_foreign(domain: str, op_type: str) -> bool:
    """Whether there is a form of the operator, of a standard domain, that ONNX does not define but we do."""
    forms = (opdef.find(domain, op_type), opdef.find(domain, op_type, 1))
    return any(form is not None and form.schema is None and not form.is_terminator for form in forms)


@cache
def kinds_of(domain: str, op_type: str, opset: int) -> dict[str, str]:
    """Attribute name -> ONNX type in lower case, for a standard operator; empty for others."""
    try:
        schema = onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return {}
    return {
        name: AttributeProto.AttributeType.Name(_kind_code(item)).lower() for name, item in schema.attributes.items()
    }


@cache
def constant_may_be(type: Type, opset: int) -> bool:
    """Whether a Constant node of `opset` may hold a tensor of `type`; old ones hold only floating-point numbers."""
    schema = onnx.defs.get_schema("Constant", opset, "")
    return any(onnx_text(type) in item.allowed_type_strs for item in schema.type_constraints)


class Signature:
    """What a node of one operator, at one version, must look like."""

    def __init__(self, schema: onnx.defs.OpSchema) -> None:
        self.domain, self.name = schema.domain, schema.name
        self.attributes = {name: _kind_code(item) for name, item in schema.attributes.items()}
        self.required = [name for name, item in schema.attributes.items() if item.required]
        # Facts of the schema are copied out once: each look into it crosses from Python into C++.
        self.input_names = [item.name for item in schema.inputs]
        self.required_inputs = [
            (index, item.name) for index, item in enumerate(schema.inputs) if item.option == _OPTIONS.Single
        ]
        last = schema.inputs[-1] if schema.inputs else None
        self.variadic = last is not None and last.option == _OPTIONS.Variadic
        # Whether values of a variadic input have types of their own each.
        self.mixed = self.variadic and last is not None and not last.is_homogeneous
        self.least_variadic = int(last.min_arity) if self.variadic and last is not None else 0
        self.minimum, self.maximum = int(schema.min_input), int(schema.max_input)
        self.minimum_output, self.maximum_output = int(schema.min_output), int(schema.max_output)
        allowed = {item.type_param_str: frozenset(item.allowed_type_strs) for item in schema.type_constraints}
        # Per input: the type variable (None if the type stands there itself) and the types it may have.
        self.input_types = [
            (
                item.type_str if item.type_str in allowed else None,
                allowed.get(item.type_str, frozenset({item.type_str})),
            )
            for item in schema.inputs
        ]

    def input_position(self, index: int) -> int:
        return min(index, len(self.input_names) - 1)


class SchemaChecker:
    """Checks the nodes of one graph or function body, whose opset imports are `opsets`, and logs what is wrong."""

    def __init__(self, opsets: Mapping[str, int], log: DiagnosticLog) -> None:
        self.opsets = opsets
        self.log = log
        self._signatures: dict[tuple[str, str], Signature | None] = {}
        self._reported_domains: set[str] = set()

    def signature(self, domain: str, op_type: str, location: Location) -> Signature | None:
        """The signature for a standard operator; None, and an error, if there is none.

        Of an operator of another domain nothing is known to ONNX: None, without an error.
        """
        key = (domain, op_type)
        if key not in self._signatures:
            self._signatures[key] = self._find(domain, op_type)
        found = self._signatures[key]
        if found is None and self.must_be_standard(domain, op_type):
            self._report_unknown(domain, op_type, location)
        return found

    def check_import(self, domain: str, location: Location) -> None:
        """Say once of each domain that is used and not imported so; without a version a standard one has no meaning."""
        if domain in self.opsets or domain in self._reported_domains:
            return
        self._reported_domains.add(domain)
        message = f"operators of {domain or 'ai.onnx'} are used, but no version of it is imported"
        if self.is_standard(domain):
            self.log.error("onnx/opset-missing", message, location)
        else:
            self.log.warning("onnx/opset-missing", message, location)

    def is_standard(self, domain: str) -> bool:
        """Whether ONNX defines `domain`, so that an operator it does not know there is an error."""
        return newest_opset(domain) is not None

    def must_be_standard(self, domain: str, op_type: str) -> bool:
        """Whether an operator of this name that ONNX does not know is an error.

        ONNX Runtime puts a few of its own into the standard's domain; those have a definition of ours.
        """
        return self.is_standard(domain) and not _is_foreign(domain, op_type)

    def _find(self, domain: str, op_type: str) -> Signature | None:
        version = self.opsets.get(domain)
        if version is None or not self.is_standard(domain):
            return None
        try:
            schema = onnx.defs.get_schema(op_type, version, domain)
        except onnx.defs.SchemaError:
            return None
        # GroupNormalization-18 is called deprecated since there is a better version, not because it is gone.
        is_gone = schema.deprecated and onnx.defs.get_schema(op_type, domain=domain).deprecated
        return None if is_gone else Signature(schema)

    def _report_unknown(self, domain: str, op_type: str, location: Location) -> None:
        shown = domain or "ai.onnx"
        version = self.opsets.get(domain)
        if version is None:
            return  # `check_import` reported that
        notes = _hints(domain, op_type, version)
        self.log.error("onnx/unknown-op", f"{shown} opset {version} has no operator {op_type!r}", location, *notes)

    def check(self, node: NodeProto, signature: Signature, location: Location) -> bool:
        """Log everything wrong with the counts of inputs and outputs and with the attributes; whether all is well."""
        before = len(self.log.diagnostics)
        _check_counts(node, signature, self.log, location)
        given: dict[str, AttributeProto] = {}
        for attribute in node.attribute:
            given[attribute.name] = attribute
            wanted = signature.attributes.get(attribute.name)
            if wanted is None:
                near = difflib.get_close_matches(attribute.name, signature.attributes, n=1)
                notes = (
                    [f"did you mean {near[0]!r}?"] if near else [f"it has {', '.join(signature.attributes) or 'none'}"]
                )
                self.log.error(
                    "onnx/unknown-attribute", f"{signature.name} has no attribute {attribute.name!r}", location, *notes
                )
            elif kind_of(attribute) != wanted:
                found = _name(kind_of(attribute))
                self.log.error(
                    "onnx/attribute-type",
                    f"attribute {attribute.name!r} of {signature.name} is {found}, not {_name(wanted)}",
                    location,
                )
        for name in signature.required:
            if name not in given:
                self.log.error("onnx/attribute-missing", f"{signature.name} needs its attribute {name!r}", location)
        return not self.log.errors_since(before)

    def check_types(self, operands: Sequence[Value | None], signature: Signature, location: Location) -> bool:
        """Log an error for the first operand whose type the schema does not allow; whether there is none."""
        bound: dict[str, tuple[str, int]] = {}
        for index, operand in enumerate(operands):
            text = onnx_text(operand.type) if operand is not None else None
            if operand is None or text is None:
                continue
            position = signature.input_position(index)
            variable, allowed = signature.input_types[position]
            name = signature.input_names[position]
            if text not in allowed:
                self.log.error(
                    "onnx/operand-type",
                    f"input {name!r} of {signature.name} is {operand.type}, which opset "
                    f"{self.opsets.get(signature.domain)} does not allow",
                    location,
                    f"allowed are {', '.join(sorted(allowed))}",
                )
                return False
            if variable is None or (signature.mixed and position == len(signature.input_names) - 1):
                continue
            first, first_index = bound.setdefault(variable, (text, index))
            if first != text:
                other = signature.input_names[signature.input_position(first_index)]
                self.log.error(
                    "onnx/operand-type",
                    f"inputs {other!r} ({first}) and {name!r} ({text}) of {signature.name} must have one type",
                    location,
                )
                return False
        return True


def _check_counts(node: NodeProto, signature: Signature, log: DiagnosticLog, location: Location) -> None:
    count, outputs = len(node.input), len(node.output)
    if count > signature.maximum:
        log.error(
            "onnx/operand-count", f"{signature.name} takes at most {signature.maximum} inputs, not {count}", location
        )
        return
    for index, name in signature.required_inputs:
        if index >= count or not node.input[index]:
            log.error("onnx/operand-missing", f"{signature.name} needs its input {name!r}", location)
    if signature.variadic and count - len(signature.input_names) + 1 < signature.least_variadic:
        least, name = signature.least_variadic, signature.input_names[-1]
        log.error("onnx/operand-missing", f"{signature.name} needs at least {least} {name!r}", location)
    if not signature.minimum_output <= outputs <= signature.maximum_output:
        least, most = signature.minimum_output, signature.maximum_output
        wanted = str(least) if least == most else f"{least} to {most}"
        log.error("onnx/result-count", f"{signature.name} gives {wanted} outputs, not {outputs}", location)


def _kind_code(attribute: Any) -> int:
    return AttributeProto.AttributeType.Value(attribute.type.name)


def _name(code: int) -> str:
    return AttributeProto.AttributeType.Name(code) if code in AttributeProto.AttributeType.values() else f"type {code}"


# For files of IR version 1, which did not write an attribute's type: the field that is set tells.
_FIELDS = (
    ("f", "FLOAT"), ("i", "INT"), ("s", "STRING"), ("t", "TENSOR"), ("g", "GRAPH"), ("tp", "TYPE_PROTO"),
    ("sparse_tensor", "SPARSE_TENSOR"), ("floats", "FLOATS"), ("ints", "INTS"), ("strings", "STRINGS"),
    ("tensors", "TENSORS"), ("graphs", "GRAPHS"), ("sparse_tensors", "SPARSE_TENSORS"), ("type_protos", "TYPE_PROTOS"),
)  # fmt: skip


def kind_of(attribute: AttributeProto) -> int:
    """The type of an attribute, also of one that does not say it."""
    if attribute.type != AttributeProto.UNDEFINED:
        return attribute.type
    for field, kind in _FIELDS:
        value = getattr(attribute, field)
        if len(value) if hasattr(value, "extend") else attribute.HasField(field):
            return AttributeProto.AttributeType.Value(kind)
    return AttributeProto.INTS


def _hints(domain: str, op_type: str, version: int) -> list[str]:
    """What the author of an unknown operator may have meant."""
    history = [
        schema
        for schema in onnx.defs.get_all_schemas_with_history()
        if schema.domain == domain and schema.name == op_type
    ]
    later = [int(schema.since_version) for schema in history if schema.since_version > version]
    if any(schema.deprecated and schema.since_version <= version for schema in history):
        gone = max(int(schema.since_version) for schema in history if schema.deprecated)
        return [f"it was removed in opset {gone}"]
    if later:
        return [f"it exists from opset {min(later)} on: the model's opset import is too old for it"]
    standard = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == domain}
    near = difflib.get_close_matches(op_type, sorted(standard), n=1)
    if near:
        return [f"did you mean {near[0]!r}?"]
    return ["an operator of your own needs a domain of its own"]
