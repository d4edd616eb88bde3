"""ONNX files in and out: `load` reads a model into a `Module`, `save` writes one back.

Each function is imported when it is first asked for, so that importing this package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .read import ModelWarning, load
    from .write import save, to_bytes, to_proto, written_contents

_HOMES = {
    "ModelWarning": "read",
    "load": "read",
    "save": "write",
    "to_bytes": "write",
    "to_proto": "write",
    "written_contents": "write",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


__all__ = ["ModelWarning", "load", "save", "to_bytes", "to_proto", "written_contents"]
