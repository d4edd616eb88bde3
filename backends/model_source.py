"""What a user may give where a model is wanted: a file, bytes, an ONNX message, a module, or a builder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ..graph.data import MappedData
from ..graph.diagnostics import DiagnosticLog, ParseError, UsageError
from ..graph.module import Module
from ..graph.paths import check_source

if TYPE_CHECKING:
    from onnx import ModelProto

    from ..graph.model_builder import Builder

ModelLike: TypeAlias = "str | os.PathLike[str] | bytes | ModelProto | Module | Builder"

# Files of this name hold IR text.
TEXT_SUFFIX = ".tw"


class Model(NamedTuple):
    """A model that was opened: the module, a name for messages, and the file or bytes it came from, if it did.

    `source` is what another runtime is given, so that it sees what the user gave and not what became of it here.
    """

    module: Module
    label: str
    source: Path | bytes | None


def open_model(model: Any, log: DiagnosticLog | None = None) -> Model:
    """Open a `ModelLike`. A path ending in `.tw` is IR text, whose weights are looked for beside it.

    Warnings go to `log` (without one they are Python warnings). Raises ModelError or ParseError for a bad model,
    OSError for a file that cannot be read, UsageError for an object that is no model.
    """
    if isinstance(model, Module):
        return Model(model, "the module", None)
    if isinstance(model, str | os.PathLike):
        path = Path(model)
        if path.suffix == TEXT_SUFFIX:
            return Model(parse_file(path), path.name, None)
        return Model(_load(path, log), path.name, path)
    if isinstance(model, bytes | bytearray | memoryview):
        return Model(_load(bytes(model), log), "the model", bytes(model))
    from ..graph.model_builder import Builder

    if isinstance(model, Builder):
        return Model(model.build(), "the module", None)
    # A builder answers to any attribute, so it was asked for first.
    serialize = getattr(model, "SerializeToString", None)
    if serialize is None:
        raise UsageError(
            "model/kind",
            f"a model is a path, bytes, an onnx.ModelProto, a Module or a Builder, not {type(model).__name__}",
        )
    return Model(_load(model, log), "the model", serialize())


def parse_file(path: Path) -> Module:
    """The module whose IR text is in `path`. Raises ParseError, UsageError if it is no file, OSError."""
    from ..graph.parser import parse

    check_source(path)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ParseError(
            "parse/not-text",
            f"{path} is not UTF-8 text: {error.reason} at byte {error.start}",
            notes=[f"files named *{TEXT_SUFFIX} hold IR text"],
        ) from None
    return parse(text, weights=path.parent, source=str(path))


def _load(source: Any, log: DiagnosticLog | None) -> Module:
    from ..importers.onnx import load

    return load(source, log=log)


def stored_bytes(model: Model) -> int:
    """The size of the model's file and of the external files its weights are in; 0 for one without a file."""
    if isinstance(model.source, bytes):
        return len(model.source)
    if model.source is None:
        return 0
    return model.source.stat().st_size + sum(path.stat().st_size for path in external_files(model.module, model.source))


def external_files(module: Module, path: Path) -> list[Path]:
    """The files other than `path` that hold weights of `module`."""
    files: dict[Path, None] = {}
    for op in module.walk():
        data = op.attributes.get("value") if op.name == "const" else None
        if isinstance(data, MappedData):
            files[data.file.path] = None
    files.pop(path.resolve(), None)
    return list(files)
