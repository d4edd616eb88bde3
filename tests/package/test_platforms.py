"""What only some systems have must not be needed to read, optimize and run a model: Windows and macOS, simulated.

The standard library and other packages are imported first, since they have their own ways; then the modules and
functions of POSIX and Linux are taken away, and ours are imported and used.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tilewright
from tilewright import Builder, f32
from tilewright.graph import data
from tilewright.graph.data import MappedFile, replace_file

ABSENT = """
import asyncio, concurrent.futures, ctypes, importlib, logging, mmap, os, pkgutil, random, selectors, shutil, signal
import socket, subprocess, sys, tempfile, threading, uuid, zipfile, multiprocessing, hashlib, secrets, platform
import click, ml_dtypes, numpy, numpy.testing, onnx, onnx.checker, onnx.defs, onnx.helper, onnx.numpy_helper
import onnx.reference, onnx.reference.ops, onnx.shape_inference, onnx.version_converter
import rich.console, rich.progress, rich.table, platformdirs

for name in ("fcntl", "grp", "posix", "pwd", "readline", "resource", "syslog", "termios", "tty"):
    sys.modules[name] = None
for name in (
    "chown", "copy_file_range", "fchmod", "fork", "forkpty", "geteuid", "getuid", "kill", "link", "memfd_create",
    "mkfifo", "pipe2", "posix_fadvise", "posix_fallocate", "pread", "pwrite", "register_at_fork", "sched_getaffinity",
    "sendfile", "setsid", "statvfs", "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_TMPFILE",
):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGHUP", "SIGKILL", "SIGPIPE", "SIGUSR1", "SIGUSR2", "SIGALRM", "alarm", "pthread_sigmask"):
    if hasattr(signal, name):
        delattr(signal, name)
for name in ("MAP_PRIVATE", "MAP_SHARED", "MAP_POPULATE", "PROT_READ", "MADV_SEQUENTIAL", "MADV_WILLNEED"):
    if hasattr(mmap, name):
        delattr(mmap, name)
"""


def run(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", ABSENT + code, *arguments],
        capture_output=True, encoding="utf-8", timeout=120, env={**os.environ, **environment},
    )  # fmt: skip


def test_every_module_can_be_imported() -> None:
    done = run("""
import tilewright
names = [each.name for each in pkgutil.walk_packages(tilewright.__path__, "tilewright.")]
kept = ("graph", "passes", "importers", "tools", "backends", "api")
names = [name for name in names if name.split(".")[1] in kept and not name.startswith("tilewright.tools._script")]
for name in names:
    importlib.import_module(name)
print(len(names))
""")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 250


@pytest.fixture
def model(tmp_path: Path) -> Path:
    b = Builder()
    x = b.input("x", f32["n", 300])
    w = b.const([[0.5] * 300] * 300)
    b.output(b.identity(x) @ w, "y")
    tilewright.save(b.build(), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_a_model_is_optimized_checked_and_run(model: Path) -> None:
    done = run(
        """
import sys
from tilewright.tools.cli import main
path, out = sys.argv[1:]
assert main(["optimize", path, "-o", out, "--json", "--require-parity"]) == 0
assert main(["run", out, "--dim", "n=2", "--json"]) == 0
assert main(["optimize", path, "-o", path, "--no-parity", "--json"]) == 0
""",
        str(model),
        str(model.with_name("out.onnx")),
    )
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in model.parent.iterdir()) == ["model.onnx", "out.onnx"]
    assert model.read_bytes() == model.with_name("out.onnx").read_bytes()


def test_a_mapped_file_that_cannot_be_replaced_is_explained(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, where a file that is mapped stays."""
    module = tilewright.load(model)
    before = model.read_bytes()

    def refuse(source: object, target: object) -> None:
        raise PermissionError(13, "Access is denied", os.fspath(target))  # type: ignore[call-overload]

    monkeypatch.setattr(data.os, "replace", refuse)
    with pytest.raises(PermissionError, match="does not let it be replaced; write another file") as error:
        tilewright.save(module, model)
    assert error.value.filename == str(model)
    assert [path.name for path in model.parent.iterdir()] == ["model.onnx"]
    assert model.read_bytes() == before
    other = model.with_name("other.onnx")
    assert MappedFile.is_open(model)
    assert not MappedFile.is_open(other)
    with pytest.raises(PermissionError, match="Access is denied"):
        replace_file(model, other)


@pytest.mark.parametrize(
    ("environment", "shown"),
    [
        ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, "λ"),
        ({"PYTHONIOENCODING": "latin-1"}, "\\u03bb"),
    ],
)
def test_output_that_is_redirected_is_utf_8(environment: dict[str, str], shown: str, tmp_path: Path) -> None:
    b = Builder()
    b.output(b.relu(b.input("λ", f32[3])), "y")
    path = tmp_path / "m.onnx"
    tilewright.save(b.build(), path)
    done = run("from tilewright.tools.cli import main\nsys.argv[1:] = ['ir', sys.argv[1]]\nsys.exit(main())", str(path),
               **environment)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout
