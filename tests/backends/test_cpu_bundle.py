"""Executables in files: equal results without compiling, whole or not at all, refused where they do not fit."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import Builder, f32
from tilewright.graph.diagnostics import UsageError

pytestmark = pytest.mark.usefixtures("unchecked")
random = np.random.default_rng(41)
x = random.normal(size=(3, 40)).astype(np.float32)


def build(dim: Any = 3) -> tilewright.Module:
    b = Builder("bundled")
    value = b.input("x", f32[dim, 40])
    for _ in range(2):
        value = b.relu(value @ random.normal(size=(40, 40)).astype(np.float32))
    b.output(b.softmax(value, axis=-1), "y")
    return b.build()


@pytest.mark.parametrize("dim", [3, "n"])
def test_a_loaded_executable_compiles_nothing(dim: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable: Any = tilewright.compile(build(dim), threads=1)
    expected = executable.run({"x": x})["y"]
    executable.save(tmp_path / "model.twx")
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")
    loaded = tilewright.load_executable(tmp_path / "model.twx", threads=1)
    assert np.array_equal(loaded.run({"x": x})["y"], expected)
    assert loaded.report()["compiled"] == 0
    assert loaded.report()["loaded"] > 0
    assert [str(port) for port in loaded.inputs] == [str(port) for port in executable.inputs]


def test_nothing_is_left_of_a_write_that_fails(tmp_path: Path) -> None:
    executable: Any = tilewright.compile(build(), threads=1)
    with pytest.raises(UsageError, match="cannot write"):
        executable.save(tmp_path / "missing" / "model.twx")
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    executable: Any = tilewright.compile(build(), threads=1)
    whole = tmp_path / "model.twx"
    executable.save(whole)
    for change, words in (({"machine": "abacus"}, "another processor"), ({"version": "0"}, "was made by")):
        changed = tmp_path / "changed.twx"
        with zipfile.ZipFile(whole) as source, zipfile.ZipFile(changed, "w") as target:
            for name in source.namelist():
                content = source.read(name)
                if name == "manifest.json":
                    content = json.dumps({**json.loads(content), **change}).encode()
                target.writestr(name, content)
        with pytest.raises(UsageError, match=words):
            tilewright.load_executable(changed)
    damaged = tmp_path / "damaged.twx"
    shutil.copy(whole, damaged)
    damaged.write_bytes(damaged.read_bytes()[: whole.stat().st_size // 2])
    with pytest.raises(UsageError, match="damaged"):
        tilewright.load_executable(damaged)
    with pytest.raises(UsageError, match="no file"):
        tilewright.load_executable(tmp_path / "nowhere.twx")
    with pytest.raises(UsageError, match="is a folder"):
        tilewright.load_executable(tmp_path)


def test_a_changed_weight_is_found(tmp_path: Path) -> None:
    path = tmp_path / "model.twx"
    tilewright.compile(build(), threads=1).save(path)  # type: ignore[attr-defined]
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        weights = [info for info in archive.infolist() if info.filename.startswith("weights/")]
        assert len(weights) == 2
        for info in weights:
            changed = bytearray(content)
            changed[info.header_offset + 30 + len(info.filename) + info.file_size // 2] ^= 1
            (tmp_path / "changed.twx").write_bytes(changed)
            with pytest.raises(UsageError, match=r"damaged: the weights .* are not what was written"):
                tilewright.load_executable(tmp_path / "changed.twx")


def test_command(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from tilewright.tools.compile_model import compile_model

    tilewright.save(build("n"), tmp_path / "model.onnx")
    arguments = [str(tmp_path / "model.onnx"), "-o", str(tmp_path / "model.twx"), "--dim", "n=3", "--json"]
    done = CliRunner().invoke(compile_model, arguments)
    assert done.exit_code == 0, done.output
    facts = json.loads(done.output)
    assert facts["host_steps"] == []
    assert facts["bytes"] == (tmp_path / "model.twx").stat().st_size
    assert tilewright.load_executable(tmp_path / "model.twx").run({"x": x})["y"].shape == (3, 40)


def test_command_does_not_write_over_the_model(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from tilewright.tools.compile_model import compile_model

    path = tmp_path / "model.onnx"
    tilewright.save(build(), path)
    before = path.read_bytes()
    done = CliRunner().invoke(compile_model, [str(path), "-o", str(path)])
    assert isinstance(done.exception, UsageError)
    assert "is a name for an ONNX model, but an executable is written" in str(done.exception)
    assert path.read_bytes() == before


def test_a_model_is_no_executable(tmp_path: Path) -> None:
    tilewright.save(build(), tmp_path / "model.onnx")
    with pytest.raises(UsageError, match="no executable of Tilewright") as caught:
        tilewright.load_executable(tmp_path / "model.onnx")
    assert "tilewright.compile(path)" in str(caught.value)
