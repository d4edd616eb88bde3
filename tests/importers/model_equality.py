"""Equality of ONNX models as a user means it: everything a file says, whatever way it is encoded.

Ignored are only: attributes written at their default, how a tensor stores its content (raw, typed or external), whether
a field that holds its default is written, and who produced the file. The comparison knows nothing of our importer: it
walks the messages by their descriptors and reads tensors with onnx.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.defs
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

_IGNORED = {ModelProto: {"producer_name", "producer_version"}}
_TENSOR_CONTENT = frozenset(
    ("float_data", "int32_data", "string_data", "int64_data", "raw_data", "external_data", "data_location",
     "double_data", "uint64_data")
)  # fmt: skip


def first_difference(left: ModelProto, right: ModelProto, folder: Path | str = "") -> str | None:
    """Where and how the two models differ first, in a sentence; None if they are equal.

    `folder` is where both keep external data.
    """
    return next(_Comparison(left, str(folder)).messages(left, right, "model"), None)


class _Comparison:
    def __init__(self, model: ModelProto, folder: str) -> None:
        self.folder = folder
        self.opsets = {item.domain: item.version for item in model.opset_import} or {"": 1}

    def messages(self, left: Message, right: Message, path: str) -> Iterator[str]:
        """All differences between two messages of one type."""
        if isinstance(left, TensorProto) and isinstance(right, TensorProto):
            yield from self.contents(left, right, path)
        unknown = len(UnknownFieldSet(left)), len(UnknownFieldSet(right))
        if unknown[0] != unknown[1]:
            yield f"{path}: {unknown[0]} and {unknown[1]} unknown fields"
        ignored = _IGNORED.get(type(left), _TENSOR_CONTENT if isinstance(left, TensorProto) else frozenset())
        outer = self.opsets
        if isinstance(left, FunctionProto):
            self.opsets = {item.domain: item.version for item in left.opset_import}
        for field in left.DESCRIPTOR.fields:
            if field.name in ignored:
                continue
            ours, theirs = getattr(left, field.name), getattr(right, field.name)
            where = f"{path}.{field.name}"
            if isinstance(left, NodeProto) and field.name == "attribute":
                yield from self.attributes(left, right, where)
            elif isinstance(left, AttributeProto) and field.name == "type":
                yield from _scalar(_kind(left), _kind(right), where)
            elif hasattr(ours, "extend"):
                yield from self.lists(list(ours), list(theirs), where)
            elif isinstance(ours, Message):
                if left.HasField(field.name) != right.HasField(field.name):
                    yield f"{where}: only one of the two has it"
                elif left.HasField(field.name):
                    yield from self.messages(ours, theirs, where)
            else:
                yield from _scalar(ours, theirs, where)
        self.opsets = outer

    def lists(self, left: list[Any], right: list[Any], path: str) -> Iterator[str]:
        if len(left) != len(right):
            yield f"{path}: {len(left)} and {len(right)} items; {_only_in_one(left, right)}"
            return
        for index, (ours, theirs) in enumerate(zip(left, right, strict=True)):
            where = f"{path}[{index}]{_label(ours)}"
            if isinstance(ours, Message):
                yield from self.messages(ours, theirs, where)
            else:
                yield from _scalar(ours, theirs, where)

    def attributes(self, left: NodeProto, right: NodeProto, path: str) -> Iterator[str]:
        """Attributes are a set; one at its default may be left out."""
        defaults = _defaults(left.domain, left.op_type, self.opsets.get(left.domain, 1))
        ours = {item.name: item for item in left.attribute if not _is_default(item, defaults)}
        theirs = {item.name: item for item in right.attribute if not _is_default(item, defaults)}
        if ours.keys() != theirs.keys():
            yield f"{path} of {left.op_type} {left.name!r}: {sorted(ours)} and {sorted(theirs)}"
            return
        for name in ours:
            yield from self.messages(ours[name], theirs[name], f"{path}[{name}]")

    def contents(self, left: TensorProto, right: TensorProto, path: str) -> Iterator[str]:
        """The elements of two tensors, bit by bit."""
        if left.data_type != right.data_type or left.dims != right.dims:
            return  # reported as fields
        if left.raw_data and left.raw_data == right.raw_data:
            return
        if left.data_type == TensorProto.STRING:
            yield from self.lists(list(left.string_data), list(right.string_data), f"{path}.string_data")
            return
        ours, theirs = numpy_helper.to_array(left, self.folder), numpy_helper.to_array(right, self.folder)
        if ours.tobytes() != theirs.tobytes():
            where = np.flatnonzero(ours.ravel() != theirs.ravel())
            first = (
                f"first at {where[0]}: {ours.ravel()[where[0]]}, {theirs.ravel()[where[0]]}" if where.size else "bits"
            )
            yield f"{path}: the contents of {left.name!r} differ, {first}"


def _scalar(left: Any, right: Any, path: str) -> Iterator[str]:
    same = struct.pack("d", left) == struct.pack("d", right) if isinstance(left, float) else left == right
    if not same:
        yield f"{path}: {left!r} and {right!r}"


def _label(item: Any) -> str:
    name = getattr(item, "name", "") or getattr(item, "key", "")
    return f" {name!r}" if isinstance(name, str) and name else ""


def _only_in_one(left: Iterable[Any], right: Iterable[Any]) -> str:
    ours = [_label(item) or repr(item) for item in left]
    theirs = [_label(item) or repr(item) for item in right]
    missing = [item for item in ours if item not in theirs][:3]
    added = [item for item in theirs if item not in ours][:3]
    return f"only the first has {missing}, only the second {added}"


def _kind(attribute: AttributeProto) -> int:
    """The type of an attribute; files of IR version 1 let the field that is set tell it."""
    if attribute.type:
        return attribute.type
    kinds = {"f": 1, "i": 2, "s": 3, "t": 4, "g": 5, "floats": 6, "ints": 7, "strings": 8, "tensors": 9, "graphs": 10}
    for name, kind in kinds.items():
        value = getattr(attribute, name)
        if len(value) if hasattr(value, "extend") else attribute.HasField(name):
            return kind
    return AttributeProto.INTS


@cache
def _defaults(domain: str, op_type: str, opset: int) -> Mapping[str, AttributeProto]:
    try:
        schema = onnx.defs.get_schema(op_type, opset, "" if domain == "ai.onnx" else domain)
    except onnx.defs.SchemaError:
        return {}
    return {name: item.default_value for name, item in schema.attributes.items() if item.default_value.type}


def _is_default(attribute: AttributeProto, defaults: Mapping[str, AttributeProto]) -> bool:
    default = defaults.get(attribute.name)
    if default is None or attribute.ref_attr_name or attribute.doc_string:
        return False
    return onnx.helper.get_attribute_value(attribute) == onnx.helper.get_attribute_value(default)


def graphs_in(model: ModelProto) -> Iterator[GraphProto]:
    """All graphs of a model, nested ones included."""
    stack = [model.graph]
    while stack:
        graph = stack.pop()
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                stack.extend(attribute.graphs)
                if attribute.HasField("g"):
                    stack.append(attribute.g)
