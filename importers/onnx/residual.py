"""What a message says that the IR does not model: kept as bytes, and merged back when the model is written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from ...graph.diagnostics import ModelError

if TYPE_CHECKING:
    from onnx import ModelProto

# A model of more bytes than this is not copied to find out whether it holds unknown fields.
_COPY_LIMIT = 1 << 26
# With so few nodes, initializers, ..., or so many bytes for each, it is faster to look at each message than to copy the
# model: that of a tree ensemble is one node with millions of numbers.
_FEW_ENTRIES = 16
_LONG_ENTRY = 1 << 13


class Modelled:
    """The fields of one message type that the importer reads itself; `leftover` serialises all others."""

    def __init__(self, kind: type[Message], names: Iterable[str]) -> None:
        self.kind = kind
        self.names = tuple(names)
        self.numbers = frozenset(kind.DESCRIPTOR.fields_by_name[name].number for name in self.names)

    def leftover(self, message: Message, look_for_unknown: bool) -> bytes:
        """The serialised rest of `message`; empty if there is none.

        Fields that the installed onnx does not know are seen only if `look_for_unknown` is set, which costs time;
        `has_unknown_fields` tells for a whole model whether that is needed.
        """
        if look_for_unknown and len(UnknownFieldSet(message)):
            rest = self.kind()
            rest.CopyFrom(message)
            for name in self.names:
                rest.ClearField(name)
            return rest.SerializeToString(deterministic=True)
        others = [(field.name, value) for field, value in message.ListFields() if field.number not in self.numbers]
        if not others:
            return b""
        rest = self.kind()
        for name, value in others:
            if isinstance(value, Message):
                getattr(rest, name).CopyFrom(value)
            elif hasattr(value, "extend"):
                getattr(rest, name).extend(value)
            else:
                setattr(rest, name, value)
        return rest.SerializeToString(deterministic=True)


def check_text(message: Message) -> None:
    """Raise ModelError if a text field of `message`, at any depth, is no UTF-8; protobuf lets such a file pass."""
    stack = [message]
    while stack:
        current = stack.pop()
        for field, value in current.ListFields():
            if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
                if isinstance(value, Message):
                    stack.append(value)
                else:
                    stack.extend(value)
            elif field.type == FieldDescriptor.TYPE_STRING:
                items = [value] if isinstance(value, str | bytes) else value
                wrong = next((item for item in items if not isinstance(item, str)), None)
                if wrong is not None:
                    where = f"{current.DESCRIPTOR.name}.{field.name}"
                    raise ModelError("onnx/not-text", f"the file is damaged: {where} is no UTF-8 text: {wrong!r}")


def has_unknown_fields(model: ModelProto) -> bool:
    """Whether `model` may hold fields, at any depth, that the installed onnx does not know."""
    graph = model.graph
    entries = len(graph.node) + len(graph.initializer) + len(graph.value_info) + len(graph.input) + len(model.functions)
    if entries <= _FEW_ENTRIES:
        return _any_unknown(model)
    size = model.ByteSize()
    if size > _LONG_ENTRY * entries:
        return _any_unknown(model)
    if size > _COPY_LIMIT:
        return True
    known = type(model)()
    known.CopyFrom(model)
    known.DiscardUnknownFields()
    return known.ByteSize() != size


def _any_unknown(message: Message) -> bool:
    """Whether a message, at any depth, has unknown fields: looks at each message, but at no number or string."""
    stack = [message]
    while stack:
        current = stack.pop()
        if len(UnknownFieldSet(current)):
            return True
        for field, value in current.ListFields():
            if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
                if isinstance(value, Message):
                    stack.append(value)
                else:
                    stack.extend(value)
    return False
