"""Checks an installed wheel from outside the checkout: what it holds, and that all of it imports.

Run by the Python of an environment that has the wheel and its run-time dependencies, and no extras.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CODE_FOLDERS = ("graph", "passes", "backends", "importers", "tools")


def main(wheel: str) -> None:
    import tilewright

    files = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    sources = list(ROOT.glob("*.py"))
    for folder in CODE_FOLDERS:
        sources += (ROOT / folder).rglob("*.py")
    expected = {"tilewright/py.typed"} | {f"tilewright/{path.relative_to(ROOT).as_posix()}" for path in sources}
    assert files == expected, f"missing: {expected - files}, not wanted: {files - expected}"

    assert tilewright.__file__ is not None
    assert ROOT not in Path(tilewright.__file__).resolve().parents, "this is the checkout, not the wheel"
    assert tilewright.__version__ == importlib.metadata.version("tilewright")
    assert importlib.util.find_spec("onnxruntime") is None, "the check is for an environment without extras"
    modules = [name.removesuffix(".py").replace("/", ".") for name in sorted(files) if name.endswith(".py")]
    for module in modules:
        if not module.endswith("__main__"):
            importlib.import_module(module.removesuffix(".__init__"))
    print(f"{len(modules)} modules import without any extra")


if __name__ == "__main__":
    main(*sys.argv[1:])
