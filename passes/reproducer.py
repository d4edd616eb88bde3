"""Reproducers: IR and pipeline in one file that `tilewright ir --reproduce FILE` runs again.

The first line is `// pipeline: ...`; lines of comment may follow; the rest is a module as text.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ..graph.diagnostics import UsageError
from ..graph.paths import check_source

if TYPE_CHECKING:
    from ..graph.module import Module

_HEADER = "// pipeline: "


def reproducer_text(module: Module | str, pipeline: str, comment: str = "") -> str:
    """The text of a reproducer; `module` is the IR before the first pass of `pipeline`."""
    comments = "".join(f"// {line}\n" for line in comment.splitlines())
    return f"{_HEADER}{pipeline}\n{comments}\n{module}"


def write_reproducer(
    module: Module | str, pipeline: str, comment: str = "", directory: str | Path | None = None
) -> Path:
    """Write a reproducer (default: into the system's folder for temporary files) and return its path."""
    text = reproducer_text(module, pipeline, comment)
    folder = Path(directory if directory is not None else tempfile.gettempdir())
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"tilewright-{hashlib.sha256(text.encode()).hexdigest()[:10]}.tw"
    path.write_text(text, encoding="utf-8")
    return path


def read_reproducer(path: str | Path) -> tuple[str, str]:
    """The IR text and the pipeline text of a reproducer. Raises UsageError if the file is none."""
    check_source(path)
    # What is no text is no reproducer either, and has no header.
    text = Path(path).read_text(encoding="utf-8", errors="replace")
    first, _, _ = text.partition("\n")
    if not first.startswith(_HEADER):
        raise UsageError("reproducer/header", f"{path}: a reproducer begins with `{_HEADER}...`")
    return text, first.removeprefix(_HEADER).strip()
