"""Find the bytes of tensors that a model keeps in other files, and refuse what no honest model asks for.

A model file comes from somebody else; its `external_data` must not make us read /etc/passwd. A location is a
relative path that stays inside the model's folder, also after symbolic links are followed
(https://github.com/onnx/onnx/blob/main/docs/ExternalData.md). One exception makes the Hugging Face cache
work, where model and data are links into a folder of blobs: a link may lead to where the model file really is.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, NamedTuple

from ...graph.diagnostics import ModelError

if TYPE_CHECKING:
    from onnx import TensorProto

    from ...graph.location import Location

_PATH, _MISSING, _RANGE = "onnx/external-path", "onnx/external-missing", "onnx/external-range"
_NUMBER = re.compile(r"[0-9]{1,19}", re.ASCII)


class ExternalRange(NamedTuple):
    """`length` bytes at `offset` of the file at `path` (resolved: no links left in it)."""

    path: Path
    offset: int
    length: int


class ExternalFiles:
    """The files beside one model that its tensors may point into. Each file is checked once."""

    def __init__(self, folder: str | os.PathLike[str] | None, model: str | os.PathLike[str] | None = None) -> None:
        """`folder` is the model's, None for a model that came as bytes; `model` its file, if there is one."""
        self.folder = None if folder is None else Path(folder)
        self._allowed: tuple[Path, ...] = () if folder is None else (Path(os.path.realpath(folder)),)
        if model is not None:
            self._allowed += (Path(os.path.realpath(model)).parent,)
        self._known: dict[str, tuple[Path, int]] = {}

    @classmethod
    def beside(cls, model: str | os.PathLike[str]) -> ExternalFiles:
        """The files beside the model file at `model`."""
        return cls(Path(model).parent, model)

    def of_tensor(
        self, tensor: TensorProto, expected: int | None = None, where: Location | None = None
    ) -> ExternalRange:
        """`resolve` for the `external_data` entries of a tensor; of repeated keys the last counts."""
        entries: Mapping[str, str] = {entry.key: entry.value for entry in tensor.external_data}
        name = f"the tensor {tensor.name!r}"
        if "location" not in entries:
            raise ModelError(_PATH, f"{name} is stored outside of the model, but its file is not named", where)
        return self.resolve(
            entries["location"],
            entries.get("offset"),
            entries.get("length"),
            expected,
            name=name,
            where=where,
        )

    def resolve(
        self,
        location: str,
        offset: str | int | None = None,
        length: str | int | None = None,
        expected: int | None = None,
        *,
        name: str = "a tensor",
        where: Location | None = None,
    ) -> ExternalRange:
        """Where the bytes of a tensor are.

        Args:
            location, offset, length: as in the file; a missing offset is 0.
            expected: bytes that dims and data type ask for, taken where `length` is missing; without either,
                the range goes to the end of the file. That `length` fits the shape is the caller's check.
            name, where: what and where to name in errors.

        Raises:
            ModelError: onnx/external-path (leaves the folder, or there is no folder), onnx/external-missing
                (no file that we may read), onnx/external-range (not numbers, or beyond the file's end).
        """
        path, size = self._file(location, name, where)
        start = _number(offset, "offset", name, where) if offset is not None else 0
        if length is not None:
            count = _number(length, "length", name, where)
        else:
            count = expected if expected is not None else max(size - start, 0)
        if start + count > size:
            raise ModelError(
                _RANGE,
                f"{name} is bytes {start:,} to {start + count:,} of {location!r}, which has {size:,} bytes",
                where,
                notes=["the data file is cut short, or belongs to another model"],
            )
        return ExternalRange(path, start, count)

    def _file(self, location: str, name: str, where: Location | None) -> tuple[Path, int]:
        """The resolved path and size of a data file, after all checks that do not depend on the range."""
        known = self._known.get(location)
        if known is not None:
            return known
        fault = _unsafe(location)
        if fault:
            raise ModelError(_PATH, f"{name} is stored in {location!r}, which {fault}", where)
        if self.folder is None:
            raise ModelError(
                _PATH,
                f"{name} is stored in the file {location!r} beside the model, but only its bytes are known",
                where,
                notes=["load the model by its path instead of its bytes"],
            )
        path = Path(os.path.realpath(self.folder / location))
        if not any(path.is_relative_to(folder) for folder in self._allowed):
            raise ModelError(
                _PATH,
                f"{name} is stored in {location!r}, a link that leads out of the model's folder, to {path}",
                where,
                notes=["copy the data file into the model's folder if you trust the model"],
            )
        try:
            status = path.stat()
        except OSError as error:
            raise ModelError(
                _MISSING, f"{name} is stored in {self.folder / location}: {error.strerror}", where
            ) from None
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(_MISSING, f"{name} is stored in {self.folder / location}, which is no file", where)
        if not os.access(path, os.R_OK):
            raise ModelError(_MISSING, f"{name} is stored in {path}, which may not be read", where)
        self._known[location] = path, status.st_size
        return self._known[location]


def resolve_external(
    model_dir: str | os.PathLike[str] | None,
    location: str,
    offset: str | int | None = None,
    length: str | int | None = None,
    expected: int | None = None,
) -> ExternalRange:
    """`ExternalFiles.resolve` for a single tensor of a model in `model_dir`."""
    return ExternalFiles(model_dir).resolve(location, offset, length, expected)


def _unsafe(location: object) -> str:
    """Why a location is refused without looking at the disk; empty if it is fine."""
    if not isinstance(location, str) or "\0" in location:
        return "is no file name"
    # As a Windows path every separator and drive counts: a model is judged alike on every system.
    path = PureWindowsPath(location)
    if path.drive or path.root:
        return "is an absolute path; only files in the model's folder are read"
    if ".." in path.parts:
        return "contains '..'; only files in the model's folder are read"
    if not path.parts:
        return "names no file"
    return ""


def _number(value: str | int, key: str, name: str, where: Location | None) -> int:
    if isinstance(value, int) and value >= 0:
        return value
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return int(value)
    raise ModelError(_RANGE, f"the {key} of {name} in its data file is {value!r}, not a number of bytes", where)
