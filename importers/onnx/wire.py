"""Take the weights out of a serialised ONNX model without parsing or copying them.

Protobuf copies every byte it parses and stops at 2 GiB. `split` walks the wire format instead and cuts large
tensor contents out: what remains, the skeleton, is a small ordinary ModelProto in which each cut tensor
carries a marker, an `external_data` entry under a private key. stream.py puts contents back in their place.

Source: protobuf's encoding guide (protobuf.dev/programming-guides/encoding); the field numbers are read from
onnx's descriptors.
"""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ...graph.diagnostics import ModelError

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from onnx import ModelProto, TensorProto

Buffer = bytes | bytearray | memoryview | mmap.mmap

# Contents up to this many bytes stay in the skeleton.
THRESHOLD = 1024
# Attributes of more bytes than this are looked at more closely, after so many of their fields.
LONG_ATTRIBUTE = 1 << 16
FIRST_FIELDS = 32
# protobuf refuses messages nested deeper than this; so do we, long before Python's own recursion limit.
MAX_DEPTH = 100
# Key of the marker. NULs keep it apart from text that a person writes; `split` refuses files that hold it.
MARKER_KEY = "\0tilewright-payload\0"
MARKER_BYTES = MARKER_KEY.encode()

VARINT, FIXED64, BYTES, GROUP_START, GROUP_END, FIXED32 = range(6)

# What people hand over instead of a model: its first bytes, and what to say.
_FOREIGN: tuple[tuple[bytes, str], ...] = (
    (b"version https://git-lfs", "a Git LFS pointer, not the model itself: fetch it with `git lfs pull`"),
    (b"PK\x03\x04", "a zip archive (PyTorch checkpoints are zip archives, too), not an ONNX model"),
    (b"\x1f\x8b", "gzip-compressed: unpack it first"),
    (b"GGUF", "a GGUF model, not an ONNX model"),
    (b"\x89HDF", "an HDF5 file (a Keras model?), not an ONNX model"),
    (b"\x80\x02", "a Python pickle (a PyTorch checkpoint?), not an ONNX model"),
    (b"<", "an HTML or XML page, not a model: the download probably failed"),
    (b"{", "JSON text, not a binary ONNX model"),
)


class WireError(ModelError):
    """The bytes are no protobuf-encoded ONNX model; `offset` is the byte where reading stopped."""

    def __init__(self, offset: int, message: str, code: str = "onnx/damaged-file", *, cut_short: bool = False) -> None:
        """Of a file that is `cut_short`, the message says all; where its last whole field began helps nobody."""
        super().__init__(code, f"{message} (at byte {offset:,})" if offset and not cut_short else message)
        self.offset = offset


class Payload(NamedTuple):
    """Bytes cut out of a buffer: `length` bytes at `offset`."""

    offset: int
    length: int


class Marker(NamedTuple):
    """What stands in a skeleton for a payload: its index, and the TensorProto field whose bytes it is.

    `field` is "raw_data", or "float_data"/"double_data", whose packed form has the same little-endian layout.
    """

    payload: int
    field: str


@dataclass(slots=True, eq=False)
class Message:
    """A message type: its length-delimited tags below which a tensor can occur."""

    name: str
    children: dict[int, Message] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Layout:
    """The part of onnx.proto that matters here, as tags (field number << 3 | wire type)."""

    model: Message
    graph: Message
    attribute: Message
    tensor: Message
    model_graph: int
    graph_initializer: int
    contents: dict[int, tuple[str, int]]  # tag of a tensor's content -> field name, bytes per element
    external_data: int
    data_location: int
    entry_key: int
    entry_value: int
    external: int  # the value of data_location that says so


@cache
def layout(everything: bool = False) -> Layout:
    """Read the tags from onnx's descriptors; `everything` keeps children that hold no tensor, too."""
    from onnx import AttributeProto, GraphProto, ModelProto, StringStringEntryProto, TensorProto

    types = {d.full_name: d for d in _reachable(ModelProto.DESCRIPTOR)}
    wanted = set(types) if everything else {TensorProto.DESCRIPTOR.full_name}
    known = 0
    while known != len(wanted):
        known = len(wanted)
        wanted |= {name for name, d in types.items() if any(_child(f) in wanted for f in d.fields)}
    messages = {name: Message(types[name].name) for name in wanted}
    for name, message in messages.items():
        for below in types[name].fields:
            if _child(below) in messages:
                message.children[below.number << 3 | BYTES] = messages[_child(below)]

    def tag(kind: Any, name: str, wire: int = BYTES) -> int:
        return int(kind.DESCRIPTOR.fields_by_name[name].number) << 3 | wire

    return Layout(
        model=messages[ModelProto.DESCRIPTOR.full_name],
        graph=messages[GraphProto.DESCRIPTOR.full_name],
        attribute=messages[AttributeProto.DESCRIPTOR.full_name],
        tensor=messages[TensorProto.DESCRIPTOR.full_name],
        model_graph=tag(ModelProto, "graph"),
        graph_initializer=tag(GraphProto, "initializer"),
        contents={tag(TensorProto, name): (name, width) for name, width in _CONTENT_WIDTHS.items()},
        external_data=tag(TensorProto, "external_data"),
        data_location=tag(TensorProto, "data_location", VARINT),
        entry_key=tag(StringStringEntryProto, "key"),
        entry_value=tag(StringStringEntryProto, "value"),
        external=int(TensorProto.EXTERNAL),
    )


# Fields of TensorProto whose wire form is the elements themselves, little-endian; the others hold varints.
_CONTENT_WIDTHS = {"raw_data": 1, "float_data": 4, "double_data": 8}


def _reachable(root: Any) -> Iterator[Descriptor]:
    found, work = {root.full_name}, [root]
    while work:
        descriptor = work.pop()
        yield descriptor
        for below in (f.message_type for f in descriptor.fields):
            if below is not None and below.full_name not in found:
                found.add(below.full_name)
                work.append(below)


def _child(descriptor: FieldDescriptor) -> str:
    return descriptor.message_type.full_name if descriptor.message_type is not None else ""


class Reader:
    """Wire-format primitives. Past the buffer's end: IndexError, which `explained` makes a WireError."""

    def __init__(self, data: memoryview | bytes) -> None:
        self.data = data

    def varint(self, position: int) -> tuple[int, int]:
        """The number at `position` and the position after it; at most ten bytes."""
        data, value, shift, first = self.data, 0, 0, position
        while shift < 70:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, position
            shift += 7
        raise WireError(first, "a number is longer than ten bytes")

    def tag(self, position: int) -> tuple[int, int]:
        """The tag at `position` and the position after it."""
        tag, after = self.varint(position)
        if not 8 <= tag < 1 << 32:
            raise WireError(position, "no field of a protobuf message starts here")
        return tag, after

    def fields(self, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Each field between `start` and `end`: its tag, where it starts, where its body starts and ends."""
        while start < end:
            tag, body = self.tag(start)
            if tag & 7 == BYTES:
                length, body = self.varint(body)
                after = body + length
                if after > end:
                    raise self.overrun(start, after, end)
            else:
                after = self.skip(tag, start, body, end)
            yield tag, start, body, after
            start = after

    def skip(self, tag: int, field_start: int, position: int, end: int) -> int:
        """The end of a field that is not length-delimited and whose tag ends at `position`."""
        wire = tag & 7
        if wire == VARINT:
            position = self.varint(position)[1]
        elif wire == FIXED32:
            position += 4
        elif wire == FIXED64:
            position += 8
        elif wire == GROUP_START:
            position = self._skip_group(tag, position, end)
        else:
            raise WireError(field_start, "no field of a protobuf message starts here")
        if position > end:
            raise self.overrun(field_start, position, end)
        return position

    def _skip_group(self, tag: int, position: int, end: int) -> int:
        """Groups are a retired protobuf feature that ONNX never used; as unknown fields they are legal."""
        opened = [tag >> 3]
        while opened:
            start = position
            tag, position = self.tag(position)
            if tag & 7 == GROUP_START:
                opened.append(tag >> 3)
                if len(opened) > MAX_DEPTH:
                    raise WireError(start, f"groups are nested deeper than {MAX_DEPTH}")
            elif tag & 7 == GROUP_END:
                if opened.pop() != tag >> 3:
                    raise WireError(start, "a group ends that was not open")
            elif tag & 7 == BYTES:
                length, position = self.varint(position)
                position += length
            else:
                position = self.skip(tag, start, position, end)
            if position > end:
                raise self.overrun(start, position, end)
        return position

    def overrun(self, start: int, claimed_end: int, end: int) -> WireError:
        """The error for a field that starts at `start` in a message up to `end` and says it is longer."""
        size = len(self.data)
        if end == size:
            return WireError(
                start,
                f"the file is cut short: it has {size:,} bytes, but a field of it ends at byte "
                f"{claimed_end:,}; was it downloaded completely?",
                cut_short=True,
            )
        return WireError(start, f"a field ends {claimed_end - end:,} bytes after the message that holds it")


class _Splitter(Reader):
    """Cuts tensor contents longer than `threshold`; messages no longer than that are stepped over unread."""

    def __init__(self, data: memoryview, threshold: int, layout: Layout) -> None:
        super().__init__(data)
        self.threshold = threshold
        self.layout = layout
        self.payloads: list[Payload] = []

    def message(self, start: int, end: int, kind: Message, depth: int = 0) -> list[bytes | memoryview] | None:
        """The message's new encoding in pieces, None if nothing in it was cut. This is load's inner loop."""
        if depth > MAX_DEPTH:
            raise WireError(start, f"messages are nested deeper than {MAX_DEPTH}")
        if kind is self.layout.tensor:
            return self.tensor(start, end)
        if end - start > LONG_ATTRIBUTE and kind is self.layout.attribute and self.has_no_tensor(start, end):
            return None
        data, threshold, children = self.data, self.threshold, kind.children
        pieces: list[bytes | memoryview] = []
        kept = position = start
        while position < end:
            field_start = position
            tag = data[position]
            position += 1
            if tag >= 0x80 or tag < 8:
                tag, position = self.tag(field_start)
            if tag & 7 != BYTES:
                position = self.skip(tag, field_start, position, end)
                continue
            length = data[position]
            position += 1
            if length >= 0x80:
                length, position = self.varint(position - 1)
            body = position
            position += length
            if position > end:
                raise self.overrun(field_start, position, end)
            if length <= threshold or tag not in children:
                continue
            changed = self.message(body, position, children[tag], depth + 1)
            if changed is not None:
                pieces += (data[kept:field_start], varint(tag), varint(sum(map(len, changed))), *changed)
                kept = position
        if not pieces:
            return None
        pieces.append(data[kept:end])
        return pieces

    def has_no_tensor(self, start: int, end: int) -> bool:
        """Whether an attribute starts with many fields that are no messages, but for instance millions of numbers.

        They stand there one by one. A tensor behind them, which would make no sense, is left to protobuf uncut.
        """
        children = self.layout.attribute.children
        first = itertools.islice(self.fields(start, end), FIRST_FIELDS)
        return not any(tag in children for tag, *_ in first)

    def tensor(self, start: int, end: int) -> list[bytes | memoryview] | None:
        """Cut the content of a tensor if it is long, the only one in it, and not said to be elsewhere.

        A `data_location` goes with it, for the marker has its own: onnx writes one, DEFAULT, behind the content of a
        tensor that was external once.
        """
        contents, location = self.layout.contents, self.layout.data_location
        found: list[tuple[int, int, int, int]] = []
        replaced: list[tuple[int, int, int, int]] = []
        for item in self.fields(start, end):
            if item[0] == self.layout.external_data:
                return None
            if item[0] in contents:
                found.append(item)
            if item[0] in contents or item[0] == location:
                replaced.append(item)
        # Protobuf joins repeated packed fields and lets the last raw_data win: such oddities are left to it.
        if len(found) != 1 or found[0][3] - found[0][2] <= self.threshold:
            return None
        tag, field_start, body, after = found[0]
        name, width = contents[tag]
        if (after - body) % width:
            raise WireError(field_start, f"{name} has {after - body:,} bytes, not a multiple of {width}")
        pieces: list[bytes | memoryview] = []
        for tag, field_start, _, after in replaced:
            pieces.append(self.data[start:field_start])
            if tag != location:
                pieces.append(_encode_marker(Marker(len(self.payloads), name)))
            start = after
        self.payloads.append(Payload(body, found[0][3] - body))
        return [*pieces, self.data[start:end]]


def split(buffer: Buffer, threshold: int = THRESHOLD) -> tuple[bytes, list[Payload]]:
    """Separate a serialised ModelProto into a skeleton and its large tensor contents.

    Args:
        buffer: the file's bytes, usually a memory map; only pages with headers and small fields are read.
        threshold: contents (raw_data, packed float_data or double_data) of more bytes than this are cut out.

    Returns:
        The skeleton, a ModelProto encoding in which a marker replaces each cut content (`marker_of` reads it)
        and all else is kept byte for byte; and the cut ranges of `buffer`, in file order.

    Raises:
        WireError: the bytes are no protobuf message, or none with a graph.
    """
    data = memoryview(buffer).cast("B")
    if not data:
        raise WireError(0, "the file is empty", "onnx/not-a-model")
    tags = layout()
    splitter = _Splitter(data, threshold, tags)
    with explained(data):
        pieces = splitter.message(0, len(data), tags.model)
        if all(tag != tags.model_graph for tag, *_ in splitter.fields(0, len(data))):
            raise WireError(0, "the file holds no graph, so it is not an ONNX model", "onnx/not-a-model")
    skeleton = bytes(data) if pieces is None else b"".join(pieces)
    if skeleton.count(MARKER_BYTES) != len(splitter.payloads):
        raise WireError(0, f"the file holds the reserved text {MARKER_KEY!r}")
    return skeleton, splitter.payloads


def read_model(buffer: Buffer, threshold: int = THRESHOLD) -> tuple[ModelProto, list[Payload]]:
    """`split`, then parse the skeleton. Raises WireError also for bytes that only protobuf refuses."""
    from google.protobuf.message import DecodeError
    from onnx import ModelProto

    skeleton, payloads = split(buffer, threshold)
    model = ModelProto()
    try:
        model.ParseFromString(skeleton)
    except DecodeError as error:
        data, tags = memoryview(buffer).cast("B"), layout(everything=True)
        with explained(data):
            # The fault lies in a message that `split` stepped over: visit all of them to name the byte.
            _Splitter(data, 0, tags).message(0, len(data), tags.model)
            raise WireError(0, f"protobuf cannot read the model: {error}") from None
    return model, payloads


@contextmanager
def explained(data: memoryview | bytes) -> Iterator[None]:
    """Make reading past the end a WireError, and let a WireError say what the file is if its start tells."""
    try:
        try:
            yield
        except IndexError:
            raise WireError(len(data), "the file is cut short: it ends inside a field", cut_short=True) from None
    except WireError as error:
        foreign = _foreign_format(bytes(data[:64]))
        if foreign is None:
            raise
        raise WireError(0, f"the file is {foreign}", "onnx/not-a-model") from error


def _foreign_format(head: bytes) -> str | None:
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    for magic, meaning in _FOREIGN:
        if start.startswith(magic):
            return meaning
    if head[4:8] == b"ORTM":
        return "in ONNX Runtime's ORT format, not an ONNX model"
    first_line = start.splitlines()[0][:24] if start else b""
    if start.isascii() and len(first_line) > 2 and first_line.decode().isprintable():
        return f"text, not an ONNX model; it starts with {first_line.decode()!r}"
    return None


def mark(tensor: TensorProto, index: int) -> None:
    """Make `tensor` stand for payload `index`: written out, that payload becomes its raw_data."""
    for name in (*_CONTENT_WIDTHS, "int32_data", "int64_data", "uint64_data", "external_data"):
        tensor.ClearField(name)
    tensor.external_data.add(key=MARKER_KEY, value=f"{index} raw_data")
    tensor.data_location = type(tensor).EXTERNAL


def marker_of(tensor: TensorProto) -> Marker | None:
    """The marker that `tensor` carries, or None. Raises WireError if it holds other content as well."""
    found = [entry.value for entry in tensor.external_data if entry.key == MARKER_KEY]
    if not found:
        return None
    if len(tensor.external_data) > 1 or any(len(getattr(tensor, name)) for name in _CONTENT_WIDTHS):
        raise WireError(0, f"the content of the tensor {tensor.name!r} is stored more than once")
    return parse_marker(found[0])


def parse_marker(text: str) -> Marker:
    index, name = text.split(" ")
    return Marker(int(index), name)


def _encode_marker(marker: Marker) -> bytes:
    tags = layout()
    value = f"{marker.payload} {marker.field}".encode()
    entry = delimited(tags.entry_key, MARKER_BYTES) + delimited(tags.entry_value, value)
    return delimited(tags.external_data, entry) + varint(tags.data_location) + varint(tags.external)


def delimited(tag: int, body: bytes) -> bytes:
    """A length-delimited field."""
    return varint(tag) + varint(len(body)) + body


def varint(value: int) -> bytes:
    """`value` (not negative) in protobuf's variable-length form, the shortest one."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
