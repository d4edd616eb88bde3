"""What an import costs, and that there is one copy of the package, however it is reached."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ["numpy", "onnx", "onnxruntime", "llvmlite", "rich", "ml_dtypes"]


def modules_after(code: str) -> set[str]:
    """The names in sys.modules after a fresh interpreter has run `code`."""
    probe = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, cwd="/")
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_version_imports_no_heavy_library() -> None:
    code = "from tilewright.tools.cli import main\nassert main(['--version']) == 0"
    assert not modules_after(code) & set(HEAVY)


def test_help_imports_no_command() -> None:
    loaded = modules_after("from tilewright.tools.cli import main\nassert main(['--help']) == 0")
    assert not loaded & set(HEAVY)
    assert {name for name in loaded if name.startswith("tilewright.tools.")} == {"tilewright.tools.cli"}


def test_importing_the_package_is_light() -> None:
    assert not modules_after("import tilewright") & {"onnxruntime", "llvmlite", "onnx.reference", "torch"}


def test_the_whole_public_interface_needs_no_optional_library() -> None:
    code = "import tilewright\nfor name in dir(tilewright): getattr(tilewright, name)"
    assert not modules_after(code) & {"onnxruntime", "llvmlite", "onnx.reference", "torch"}


def test_the_package_is_imported_once() -> None:
    """One registry, one set of types: no second copy under the checkout folder's name or a bare folder's."""
    copies = {}
    for name, module in list(sys.modules.items()):
        origin = getattr(module, "__file__", None)
        if origin and Path(origin).resolve().parent in {ROOT, ROOT / "graph", ROOT / "passes"}:
            copies[name] = origin
    strangers = {name for name in copies if name != "tilewright" and not name.startswith("tilewright.")}
    assert not strangers


def test_running_the_suite_by_any_path_gives_one_copy() -> None:
    """A test that is named from the root, or from its own folder, meets the same package."""
    test = f"{Path(__file__).name}::test_the_package_is_imported_once"
    for folder, target in [(ROOT, f"tests/package/{test}"), (ROOT / "tests" / "package", test)]:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", target]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
        assert "1 passed" in done.stdout


def test_a_run_without_our_configuration_says_how() -> None:
    done = subprocess.run([sys.executable, "-m", "pytest"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 4
    assert "run the suite as `pytest tests`" in done.stdout + done.stderr


def test_type_information_is_shipped() -> None:
    import tilewright

    assert (Path(tilewright.__file__).parent / "py.typed").exists()


@pytest.mark.parametrize("how", [["-m", "tilewright"], [str(ROOT / "tools" / "cli.py")]])
def test_every_way_in_prints_the_version(how: list[str]) -> None:
    import tilewright

    done = subprocess.run([sys.executable, *how, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"tilewright {tilewright.__version__}\n"
