"""What a message says that the IR does not model: kept as bytes, and merged back when the model is written."""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

# A model of more bytes than this is not copied to find out whether it holds unknown fields.
_COPY_LIMIT = 1 << 26


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


def has_unknown_fields(message: Message) -> bool:
    """Whether `message` may hold fields, at any depth, that the installed onnx does not know."""
    size = message.ByteSize()
    if size > _COPY_LIMIT:
        return True
    known = type(message)()
    known.CopyFrom(message)
    known.DiscardUnknownFields()
    return known.ByteSize() != size
