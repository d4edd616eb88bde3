"""Write an ONNX model whose weights never pass through this process's memory.

The exporter builds a ModelProto with markers (wire.py's `mark`) and hands over one source per marker. The
encoding is streamed to a temporary file in the target's folder, sources copy themselves in where markers
stand, and the file is renamed over the target at the end. So a failure leaves what was there before, and a
model can be written over the file that its weights are mapped from: the mapping keeps the old file alive.

A model too large for protobuf (2 GiB) has its weights in a second file, `NAME.onnx.data`
(https://github.com/onnx/onnx/blob/main/docs/ExternalData.md).
"""

from __future__ import annotations

import errno
import io
import os
import secrets
import stat
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from ...graph.data import replace_file
from ...graph.diagnostics import ExportError
from .wire import (
    MARKER_BYTES,
    MARKER_KEY,
    Marker,
    Message,
    Reader,
    WireError,
    delimited,
    explained,
    layout,
    parse_marker,
    varint,
)

if TYPE_CHECKING:
    from onnx import ModelProto

# protobuf's limit is 2**31 - 1; the margin lets other tools add shapes and metadata before they write again.
INLINE_LIMIT = 2**31 - 2**26
# Weights smaller than this stay in the model file even when there is a data file (as in onnx.save).
EXTERNAL_THRESHOLD = 1024


class PayloadSource(Protocol):
    """Content of a tensor in ONNX's raw form; graph.data.TensorData is one."""

    @property
    def nbytes(self) -> int: ...

    def write_to(self, file: BinaryIO) -> None: ...


@dataclass(frozen=True, slots=True)
class WrittenModel:
    """What `write_model` wrote: the model file, the data file if there is one, and the bytes of both.

    `operators` counts the model's nodes as `node_counts` does, `in_functions` how many of them lie in bodies of
    functions; `save` fills them in.
    """

    path: Path
    data_path: Path | None
    nbytes: int
    operators: Counter[str] = field(default_factory=Counter)
    in_functions: int = 0


@dataclass(frozen=True, slots=True)
class Slot:
    """A place in a skeleton where a payload belongs: a graph's initializer, or a tensor in an attribute."""

    marker: Marker
    initializer: bool


@dataclass(slots=True)
class _Opened:
    """A message of a skeleton that holds slots: its tag, and its content in order."""

    tag: int
    parts: list[bytes | Slot | _Opened]


class _Opener(Reader):
    """Opens only the messages that hold a marker; the marker's key is searched for, not walked to."""

    def __init__(self, skeleton: bytes) -> None:
        super().__init__(skeleton)
        self.skeleton = skeleton
        self.layout = layout()
        self.slots: list[Slot] = []
        self.following = skeleton.find(MARKER_BYTES)

    def message(self, start: int, end: int, kind: Message) -> list[bytes | Slot | _Opened]:
        parts: list[bytes | Slot | _Opened] = []
        kept = start
        for tag, field_start, body, after in self.fields(start, end):
            if self.following < 0:
                break
            if self.following >= after:
                continue
            child = kind.children.get(tag)
            if child is None:
                raise self.misplaced(field_start)
            if child is self.layout.tensor:
                initializer = kind is self.layout.graph and tag == self.layout.graph_initializer
                inner = self.tensor(body, after, initializer)
            else:
                inner = self.message(body, after, child)
            parts += (self.skeleton[kept:field_start], _Opened(tag, inner))
            kept = after
        parts.append(self.skeleton[kept:end])
        return parts

    def tensor(self, start: int, end: int, initializer: bool) -> list[bytes | Slot | _Opened]:
        """A marked tensor. Its `data_location` goes: whoever fills the slot writes one where it is needed."""
        tags = self.layout
        parts: list[bytes | Slot | _Opened] = []
        for tag, field_start, body, after in self.fields(start, end):
            if tag == tags.external_data and field_start <= self.following < after:
                slot = Slot(self.marker(body, after), initializer)
                self.slots.append(slot)
                parts.append(slot)
                self.following = self.skeleton.find(MARKER_BYTES, after)
            elif tag != tags.data_location or self.varint(body)[0] != tags.external:
                parts.append(self.skeleton[field_start:after])
        if start <= self.following < end:
            raise self.misplaced(self.following)
        return parts

    def marker(self, start: int, end: int) -> Marker:
        entry = {tag: self.skeleton[body:after] for tag, _, body, after in self.fields(start, end)}
        if entry.get(self.layout.entry_key) != MARKER_BYTES:
            raise self.misplaced(start)
        return parse_marker(entry[self.layout.entry_value].decode())

    def misplaced(self, offset: int) -> WireError:
        return WireError(offset, f"the reserved text {MARKER_KEY!r} stands where no tensor content belongs")


class Joint:
    """A skeleton taken apart at its markers, ready to be put together with their payloads."""

    def __init__(self, skeleton: bytes) -> None:
        opener = _Opener(skeleton)
        with explained(skeleton):
            self._parts = opener.message(0, len(skeleton), layout().model)
        self.slots = opener.slots

    def render(self, fill: Callable[[Slot], bytes | int]) -> tuple[list[bytes | int], int]:
        """Encode the model.

        Args:
            fill: for each slot either the encoded tensor fields to put there (`_external_fields`), or the
                number of bytes of its payload, which then goes into the stream itself.

        Returns:
            The encoding as pieces in order, an int standing for the payload of that index; and its bytes.
        """
        tags = {name: tag for tag, (name, _) in layout().contents.items()}

        def encode(parts: Sequence[bytes | Slot | _Opened]) -> tuple[list[bytes | int], int]:
            pieces: list[bytes | int] = []
            size = 0
            for part in parts:
                inner: Sequence[bytes | int] = ()
                length = 0
                if isinstance(part, _Opened):
                    inner, length = encode(part.parts)
                    head = varint(part.tag) + varint(length)
                elif isinstance(part, Slot):
                    filled = fill(part)
                    if isinstance(filled, int):
                        inner, length = (part.marker.payload,), filled
                        head = varint(tags[part.marker.field]) + varint(filled)
                    else:
                        head = filled
                else:
                    head = part
                pieces += (head, *inner)
                size += len(head) + length
            return pieces, size

        return encode(self._parts)


def write_model(
    path: str | os.PathLike[str],
    skeleton: ModelProto | bytes,
    sources: Sequence[PayloadSource],
    *,
    external: bool | None = None,
    inline_limit: int = INLINE_LIMIT,
    fsync: bool = False,
) -> WrittenModel:
    """Write a model file, and a data file beside it if one is needed, all or nothing.

    Args:
        path: the target; replaced at the end, also when `sources` are mapped from it. A symbolic link is
            replaced, not followed. A device such as /dev/null is written to.
        skeleton: the model; each tensor with a marker gets the content of the source of that index.
        sources: the contents. A source that many markers name is in the data file once.
        external: True writes a data file, False never does; None does if the model exceeds `inline_limit`.
        inline_limit: the most bytes that a model file may have.
        fsync: wait until the disk has the files (only needed to survive a power cut).

    Raises:
        ExportError: the model cannot be written in the form asked for.
        OSError: the disk or folder refuses; nothing is left behind.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"the folder {target.parent} does not exist", os.fspath(target))
    data_target = target.with_name(target.name + ".data")
    if _is_special(target):
        content = write_bytes(skeleton, sources)
        try:
            target.write_bytes(content)
        except OSError as error:
            raise _named(error, target) from None
        return WrittenModel(target, None, 0)
    joint = Joint(_encoded(skeleton))
    placed, pieces, size = _place(joint, sources, data_target.name, external, inline_limit)
    written: list[_NewFile] = []
    total = size
    try:
        if placed:
            data = _NewFile(data_target)
            written.append(data)
            total += _write_data(data.file, placed, sources)
        model = _NewFile(target)
        written.append(model)
        _write_pieces(model.file, pieces, sources)
        for new in written:
            new.finish(fsync)
        _publish(written)
    except BaseException as error:
        for new in written:
            new.discard()
        if isinstance(error, OSError):
            raise _named(error, written[-1].target if written else target) from None
        raise
    return WrittenModel(target, data_target if placed else None, total)


def _named(error: OSError, target: Path) -> OSError:
    """The error with the file that was to be written: the system names the temporary one, or, of a full disk, none."""
    return error if error.errno is None else OSError(error.errno, error.strerror, os.fspath(target))


def write_bytes(skeleton: ModelProto | bytes, sources: Sequence[PayloadSource]) -> bytes:
    """The encoded model with all weights inside. Raises ExportError if it exceeds protobuf's 2 GiB."""
    joint = Joint(_encoded(skeleton))
    pieces, size = joint.render(lambda slot: sources[slot.marker.payload].nbytes)
    if size > INLINE_LIMIT:
        raise _too_large(size)
    file = io.BytesIO()
    _write_pieces(file, pieces, sources)
    return file.getvalue()


def encoded_size(skeleton: ModelProto | bytes, sources: Sequence[PayloadSource]) -> int:
    """Bytes of the encoded model with all weights inside, which are not read for it."""
    return Joint(_encoded(skeleton)).render(lambda slot: sources[slot.marker.payload].nbytes)[1]


def _encoded(skeleton: ModelProto | bytes) -> bytes:
    return skeleton if isinstance(skeleton, bytes) else skeleton.SerializeToString()


def _too_large(size: int) -> ExportError:
    return ExportError(
        "export/too-large",
        f"the model takes {size:,} bytes, more than the 2 GiB that one ONNX file can hold",
        notes=["save it to a path with external data allowed; weights then go to a file beside the model"],
    )


def _place(
    joint: Joint, sources: Sequence[PayloadSource], name: str, external: bool | None, limit: int
) -> tuple[dict[int, int], list[bytes | int], int]:
    """Decide which payloads go to the data file `name`: index -> offset there; the model's pieces and size.

    Attributes' tensors stay in the model if they can (few readers accept them outside), weights go first.
    """
    pieces, size = joint.render(lambda slot: sources[slot.marker.payload].nbytes)
    if not external and size <= limit:
        return {}, pieces, size
    if external is False:
        raise _too_large(size)
    for attributes in (False, True):
        placed: dict[int, int] = {}
        end = 0
        for slot in joint.slots:
            index = slot.marker.payload
            if index in placed or not (slot.initializer or attributes):
                continue
            if sources[index].nbytes >= EXTERNAL_THRESHOLD:
                placed[index] = _align(end, sources[index].nbytes)
                end = placed[index] + sources[index].nbytes

        def fill(slot: Slot, placed: dict[int, int] = placed, attributes: bool = attributes) -> bytes | int:
            index = slot.marker.payload
            if index in placed and (slot.initializer or attributes):
                return _external_fields(name, placed[index], sources[index].nbytes)
            return sources[index].nbytes

        pieces, size = joint.render(fill)
        if size <= limit:
            return placed, pieces, size
    raise _too_large(size)


def _align(offset: int, nbytes: int) -> int:
    """Where a tensor may start: at a page if it fills one, at Windows' mapping granularity if it is large."""
    unit = 65536 if nbytes >= 1 << 20 else 4096 if nbytes >= 4096 else 64
    return -(-offset // unit) * unit


def _external_fields(location: str, offset: int, length: int) -> bytes:
    """A tensor's `external_data` and `data_location` for content in another file (onnx.proto)."""
    tags = layout()
    encoded = b""
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        entry = delimited(tags.entry_key, key.encode()) + delimited(tags.entry_value, value.encode())
        encoded += delimited(tags.external_data, entry)
    return encoded + varint(tags.data_location) + varint(tags.external)


def _write_pieces(file: BinaryIO, pieces: Sequence[bytes | int], sources: Sequence[PayloadSource]) -> None:
    for piece in pieces:
        if isinstance(piece, bytes):
            file.write(piece)
        else:
            _write_source(file, sources[piece])


def _write_data(file: BinaryIO, placed: dict[int, int], sources: Sequence[PayloadSource]) -> int:
    """Write the data file; gaps for alignment are left to the file system. Returns its size."""
    for index, offset in placed.items():
        file.seek(offset)
        _write_source(file, sources[index])
    return file.tell()


def _write_source(file: BinaryIO, source: PayloadSource) -> None:
    file.flush()  # a source may copy file to file, below the buffer
    start = file.tell()
    source.write_to(file)
    if file.tell() - start != source.nbytes:
        raise RuntimeError(f"{source!r} wrote {file.tell() - start} bytes and said it has {source.nbytes}")


class _NewFile:
    """A file that is written under a temporary name in its target's folder."""

    def __init__(self, target: Path) -> None:
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(target))
        self.target = target
        self.temporary = _unused_name(target)
        # Created by `open` so that the usual permissions apply; "x" so that nobody's file is overwritten.
        try:
            self.file: BinaryIO = open(self.temporary, "xb")  # noqa: SIM115
        except OSError as error:
            raise _named(error, target) from None

    def finish(self, fsync: bool) -> None:
        self.file.flush()
        if fsync:
            os.fsync(self.file.fileno())
        self.file.close()
        if self.target.exists():
            self.temporary.chmod(stat.S_IMODE(self.target.stat().st_mode))

    def discard(self) -> None:
        try:
            self.file.close()
        except OSError:
            pass  # what is still buffered does not fit on the disk either
        finally:
            self.temporary.unlink(missing_ok=True)


def _publish(written: Sequence[_NewFile]) -> None:
    """Rename finished files over their targets, the model last; if that fails, restore the old data file."""
    *before, model = written
    if not before:
        replace_file(model.temporary, model.target)
        return
    data = before[0]
    backup = None
    if data.target.exists():
        backup = _unused_name(data.target)
        try:
            os.link(data.target, backup)
        except OSError:  # a file system without hard links
            os.replace(data.target, backup)
    try:
        replace_file(data.temporary, data.target)
        replace_file(model.temporary, model.target)
    except BaseException:
        if backup is not None:
            os.replace(backup, data.target)
        else:
            data.target.unlink(missing_ok=True)
        raise
    if backup is not None:
        backup.unlink()


def _unused_name(target: Path) -> Path:
    return target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")


def _is_special(target: Path) -> bool:
    return target.exists() and not target.is_file() and not target.is_dir()
