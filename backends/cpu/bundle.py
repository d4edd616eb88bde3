"""Executables in a file (`.twx`): the kernels of a model as IR text, its weights, and their machine code.

A zip archive that is not compressed, so that weights are mapped from it where they lie:

    manifest.json     format, versions, the machine that the code is for
    model.tw          the module at the level "kernel"
    weights/HASH      elements of large constants
    code/KEY          object files, and links to them, as the disk cache has them

It is machine code: load it only from where you would run a program from.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

from ...graph.data import MappedData, MappedFile, TensorData, UnresolvedData
from ...graph.diagnostics import UsageError
from ...graph.module import Module
from ...graph.parser import parse
from ...graph.printer import LISTED_BYTES, print_module
from ...graph.weights import WeightEntry
from .cache import DiskCache, default_cache
from .machine import machine

FORMAT = 1


class RecordingStore:
    """A store of compiled code that remembers what passes through it, before the user's own on disk."""

    def __init__(self, entries: dict[str, bytes] | None = None, behind: DiskCache | None = None) -> None:
        self.entries: dict[str, bytes] = dict(entries or {})
        self.behind = behind

    def read(self, key: str) -> bytes | None:
        found = self.entries.get(key)
        if found is None and self.behind is not None:
            found = self.behind.read(key)
            if found is not None:
                self.entries[key] = found
        return found

    def write(self, key: str, code: bytes) -> None:
        self.entries[key] = code
        if self.behind is not None:
            self.behind.write(key, code)


def recording_store() -> RecordingStore:
    return RecordingStore(behind=default_cache())


def write_bundle(path: str | os.PathLike[str], module: Module, store: RecordingStore) -> None:
    """Write the executable of `module` (level "kernel") whose code went through `store`; all or nothing."""
    from ... import __version__

    target = Path(path)
    facts = {"format": FORMAT, "version": __version__, "machine": machine().key}
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise UsageError("executable/write", f"cannot write {target}: {error.strerror}") from error
    try:
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr("manifest.json", json.dumps(facts))
            archive.writestr("model.tw", print_module(module))
            for digest, data in sorted(_large_constants(module).items()):
                archive.writestr(f"weights/{digest}", bytes(data.raw()))
            for key, code in sorted(store.entries.items()):
                archive.writestr(f"code/{key}", code)
        os.chmod(temporary, 0o644)  # what mkstemp made is for its owner alone
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def read_bundle(path: str | os.PathLike[str]) -> tuple[Module, RecordingStore]:
    """The module and the code of an executable. Raises UsageError if it is none, or is for another machine."""
    place = Path(path)
    if not place.is_file():
        raise UsageError(
            "executable/missing", f"{place} is a folder" if place.is_dir() else f"there is no file {place}"
        )
    if not zipfile.is_zipfile(place):
        notes = [
            "tilewright.compile(path) compiles a model, `tilewright compile MODEL -o OUT.twx` writes an executable"
        ]
        raise UsageError("executable/damaged", f"{place} is no executable of Tilewright, or damaged", notes=notes)
    try:
        with zipfile.ZipFile(place) as archive:
            facts = json.loads(archive.read("manifest.json"))
            _check(facts, place)
            text = archive.read("model.tw").decode()
            codes = [name for name in archive.namelist() if name.startswith("code/")]
            entries = {name.removeprefix("code/"): archive.read(name) for name in codes}
            weights = _ArchiveWeights(place, archive)
            return parse(text, weights, str(place)), RecordingStore(entries, default_cache())
    except (zipfile.BadZipFile, KeyError, ValueError, UnicodeDecodeError) as error:
        message = f"{place} is no executable of Tilewright, or damaged: {error}"
        raise UsageError("executable/damaged", message) from error


def _check(facts: Any, place: Path) -> None:
    from ... import __version__

    if facts.get("format") != FORMAT or facts.get("version") != __version__:
        raise UsageError(
            "executable/version",
            f"{place} was made by Tilewright {facts.get('version')}, this is {__version__}",
            notes=["make it again with `tilewright compile`"],
        )
    if facts.get("machine") != machine().key:
        raise UsageError(
            "executable/machine",
            f"{place} is machine code for another processor than this one",
            notes=[f"for: {facts.get('machine')}", f"here: {machine().key}", "compile it on this machine"],
        )


class _ArchiveWeights:
    """Constants that lie in the archive, mapped."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.file = MappedFile.open(path)
        self.members = {
            info.filename.removeprefix("weights/"): info
            for info in archive.infolist()
            if info.filename.startswith("weights/")
        }

    def _start(self, info: zipfile.ZipInfo) -> int:
        """Where an entry's content begins: behind its local header, 30 bytes and two texts (zip APPNOTE 4.3.7)."""
        name, extra = struct.unpack_from("<HH", self.file.view, info.header_offset + 26)
        return int(info.header_offset + 30 + name + extra)

    def find(self, entry: WeightEntry) -> TensorData | None:
        info = self.members.get(entry.sha256)
        if info is None:
            return None
        start = self._start(info)
        length = UnresolvedData(entry.dtype, entry.shape, entry.sha256).nbytes
        data = MappedData(self.file, start, length, entry.dtype, entry.shape)
        if info.file_size != length or zlib.crc32(data.raw()) != info.CRC:
            raise zipfile.BadZipFile(f"the weights {entry.sha256[:12]}... are not what was written")
        data.release()
        return data


def _large_constants(module: Module) -> dict[str, TensorData]:
    """The constants whose elements the text does not have, by hash."""
    found: dict[str, TensorData] = {}
    values = [value for op in module.walk() for value in op.attributes.values()]
    values += [data for function in module.all_functions() for data in function.defaults.values()]
    for value in values:
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, TensorData) and item.nbytes > LISTED_BYTES:
                found[item.sha256] = item
    return found
