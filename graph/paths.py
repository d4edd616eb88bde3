"""Whether a file can be read or written at a path, asked before any work is done, and one message for each mistake."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from .diagnostics import TilewrightError, UsageError


def check_source(path: str | os.PathLike[str], error: type[TilewrightError] = UsageError) -> None:
    """Raise `error` with the code file/missing or file/folder unless there is a file to read at `path`."""
    place = Path(path)
    if place.is_dir():
        raise error("file/folder", f"{place} is a folder, not a file")
    if not place.exists():
        near = difflib.get_close_matches(place.name, names_in(place.parent), n=1)
        notes = [f"did you mean {place.parent / near[0]}?"] if near else []
        raise error("file/missing", f"there is no file {place}", notes=notes)


def names_in(folder: Path) -> list[str]:
    """The names of what is in a folder; none if it cannot be listed."""
    try:
        return [item.name for item in folder.iterdir()]
    except OSError:
        return []


def check_target(path: str | os.PathLike[str], what: str = "output") -> None:
    """Raise UsageError file/output if `path` is a folder, ends as one does, or lies in a folder that does not exist or
    in which nothing can be written.

    `what` names the file in the message, as "output" or "checkpoint".
    """
    text, place = os.fspath(path), Path(path)
    if place.is_dir():
        raise UsageError("file/output", f"the {what} {place} is a folder", notes=["name a file in it"])
    if text.endswith((os.sep, os.altsep or os.sep)):
        raise UsageError("file/output", f"the {what} {text} is a folder that does not exist", notes=["name a file"])
    if not place.parent.is_dir():
        raise UsageError("file/output", f"the folder of the {what}, {place.parent}, does not exist")
    if not os.access(place.parent, os.W_OK):
        raise UsageError("file/output", f"nothing can be written in the folder of the {what}, {place.parent}")


_KINDS = {".onnx": "an ONNX model", ".tw": "IR text", ".twx": "an executable"}


def check_kind(path: str | os.PathLike[str], suffix: str) -> None:
    """Raise UsageError file/output if `path` is a name for another kind of file than `suffix`, which is written.

    Often it is that of the model itself, which would be lost.
    """
    named = Path(path).suffix.lower()
    if named in _KINDS and named != suffix:
        text = f"{os.fspath(path)} is a name for {_KINDS[named]}, but {_KINDS[suffix]} is written"
        raise UsageError("file/output", text, notes=[f"name a file that ends in {suffix}"])


def check_folder(path: str | os.PathLike[str] | None, option: str) -> None:
    """Raise UsageError file/output if `option` wants files in the folder `path`, which is a file."""
    if path is not None and Path(path).exists() and not Path(path).is_dir():
        raise UsageError("file/output", f"{option} {Path(path)} is a file, not a folder")
