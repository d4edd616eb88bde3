"""The folder is the package: what is listed, what may import what, and which file names are taken."""

from __future__ import annotations

import ast
import importlib.metadata
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CODE_FOLDERS = ("graph", "passes", "backends", "importers", "tools")
SOURCES = sorted(path for folder in CODE_FOLDERS for path in (ROOT / folder).rglob("*.py"))

# What each folder may import of the others. Files at the root stand on all but tools.
MAY_IMPORT = {
    "graph": {"graph"},
    "passes": {"graph", "passes"},
    "importers": {"graph", "importers"},
    "backends": {"graph", "passes", "importers", "backends"},
    "tools": set(CODE_FOLDERS),
}
# Slow or optional libraries; a module may import them only inside the function that needs them.
ONLY_INSIDE_FUNCTIONS = ("onnxruntime", "llvmlite", "onnx.reference", "PIL")


def test_listed_packages_are_the_folders_on_disk() -> None:
    found = {"tilewright"}
    for folder in CODE_FOLDERS:
        for init in (ROOT / folder).rglob("__init__.py"):
            found.add(".".join(("tilewright", *init.parent.relative_to(ROOT).parts)))
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == found


def test_every_folder_with_code_is_a_package() -> None:
    bare = {path.parent for path in SOURCES if not (path.parent / "__init__.py").exists()}
    assert not bare, f"these folders have no __init__.py, so they would not be installed: {bare}"


def imports(node: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """The modules imported below `node`: absolute name and line; `package` resolves relative imports."""
    for child in ast.walk(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name, child.lineno) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = package[: len(package) - child.level + 1] if child.level else ()
            stem = ".".join((*base, *(child.module or "").split("."))).strip(".")
            yield stem, child.lineno
            yield from ((f"{stem}.{alias.name}", child.lineno) for alias in child.names)


def package_of(path: Path) -> tuple[str, ...]:
    return ("tilewright", *path.relative_to(ROOT).parent.parts)


def test_relative_imports_are_resolved() -> None:
    tree = ast.parse("from ..graph.core import Value\nfrom . import fold\nfrom .. import load\nimport onnx.helper")
    names = {name for name, _ in imports(tree, ("tilewright", "passes"))}
    assert {
        "tilewright.graph.core.Value",
        "tilewright.passes.fold",
        "tilewright.load",
        "onnx.helper",
    } <= names


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_point_downwards(path: Path) -> None:
    """graph <- passes <- backends, graph <- importers, tools on top of all."""
    folder = path.relative_to(ROOT).parts[0]
    wrong = []
    for name, line in imports(ast.parse(path.read_text(encoding="utf-8")), package_of(path)):
        target = (*name.split("."), "")[1]
        if name.startswith("tilewright.") and target in CODE_FOLDERS and target not in MAY_IMPORT[folder]:
            wrong.append(f"line {line}: {name}")
    assert not wrong, f"{folder}/ may import only {sorted(MAY_IMPORT[folder])}"


@pytest.mark.parametrize("path", sorted(ROOT.glob("*.py")), ids=lambda path: path.name)
def test_only_the_entry_point_imports_tools(path: Path) -> None:
    names = {name for name, _ in imports(ast.parse(path.read_text(encoding="utf-8")), package_of(path))}
    uses_tools = any(name.startswith("tilewright.tools") for name in names)
    assert uses_tools == (path.name == "__main__.py")


def at_import_time(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements that run when the module is imported: not function bodies, not TYPE_CHECKING blocks."""
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        statement = waiting.pop()
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            continue
        inner = [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt)]
        waiting.extend(inner)
        if not inner:
            yield statement


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_optional_libraries_are_not_imported_with_the_module(path: Path) -> None:
    found = [
        f"line {line}: {name}"
        for statement in at_import_time(ast.parse(path.read_text(encoding="utf-8")))
        for name, line in imports(statement, package_of(path))
        if any(f"{name}.".startswith(f"{library}.") for library in ONLY_INSIDE_FUNCTIONS)
    ]
    assert not found


@pytest.mark.parametrize("folder", ["tools", "examples", "benchmarks"])
def test_scripts_do_not_hide_other_modules(folder: str) -> None:
    """Python puts a script's folder first on sys.path, so `tools/inspect.py` would break numpy."""
    names = {path.stem for path in (ROOT / folder).glob("*.py")}
    assert not names & set(sys.stdlib_module_names)
    assert not names & (set(importlib.metadata.packages_distributions()) - {"__init__"})


def test_folders_of_tests_do_not_hide_other_modules() -> None:
    """pytest names a test module after its folders, so `tests/onnx` would put itself in the place of onnx."""
    folders = [path for path in (ROOT / "tests").iterdir() if path.is_dir()]
    names = {path.name for path in folders if not path.name.startswith((".", "__"))}
    assert not names & set(sys.stdlib_module_names)
    assert not names & set(importlib.metadata.packages_distributions())


def test_files_are_short() -> None:
    long = {str(path): lines for path in SOURCES if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 700}
    assert not long, "split the file along what its parts are about"
