"""ONNX files in and out: `load` reads a model into a `Module`, `save` writes one back.

The functions import their parts when they are called, so that importing this package costs nothing.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto

    from ...graph.diagnostics import DiagnosticLog
    from ...graph.module import Module


def load(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview | ModelProto,
    *,
    folder: str | os.PathLike[str] | None = None,
    log: DiagnosticLog | None = None,
) -> Module:
    """Read an ONNX model; see `read.load`."""
    from .read import load as load_model

    return load_model(source, folder=folder, log=log)


__all__ = ["load"]
