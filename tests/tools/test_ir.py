"""`tilewright ir`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import Builder, f32
from tilewright.passes.reproducer import write_reproducer


def test_text_is_what_print_gives(command: Callable[..., Any], model: Path) -> None:
    done = command("ir", model)
    assert done.code == 0, done.err
    assert done.out == str(tilewright.load(model))
    assert tilewright.parse(done.out).main.output_names == ("y",)


def test_after_passes_and_into_a_file(command: Callable[..., Any], model: Path) -> None:
    out = model.with_name("after.tw")
    done = command("ir", model, "--passes", "remove-identity,dce", "-o", out, "--timing", "--print-ir-after-all")
    assert (done.code, done.out) == (0, "")
    assert "identity" not in out.read_text(encoding="utf-8")
    assert "pipeline" in done.err
    assert done.err.count("// ---- after") == 2
    assert command("ir", out).out == out.read_text(encoding="utf-8")


def test_without_locations_and_weights(command: Callable[..., Any], model: Path) -> None:
    assert "sha256" not in command("ir", model, "--weights", "none").out
    assert '"#' not in command("ir", model, "--no-locations").out


def test_why_a_rule_does_not_apply(command: Callable[..., Any], model: Path) -> None:
    done = command("ir", model, "--why", "identity-to-input")
    assert done.code == 0
    assert "identity(x) -> x" in done.out
    assert "applies to identity" in done.out
    assert "has no identity" in command("ir", model, "--passes", "remove-identity", "--why", "identity-to-input").out


def test_a_reproducer_runs_again(command: Callable[..., Any], model: Path, tmp_path: Path) -> None:
    path = write_reproducer(tilewright.load(model), "remove-identity,dce", directory=tmp_path)
    done = command("ir", "--reproduce", path)
    assert done.code == 0, done.err
    assert "identity" not in done.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "name a MODEL, or a reproducer with --reproduce"),
        (["small.onnx", "--reproduce", "small.onnx"], "name a MODEL, or a reproducer"),
        (["missing.onnx"], "missing.onnx"),
        (["missing.tw"], "error[file/missing]: there is no file missing.tw"),
        (["brokan.tw"], "did you mean broken.tw?"),
        (["small.onnx", "-o", "."], "the output . is a folder"),
        (["--reproduce", "missing.tw"], "there is no file missing.tw"),
        (["broken.tw"], "broken.tw"),
        (["binary.tw"], "binary.tw is not UTF-8 text: invalid start byte at byte 4"),
        (["--reproduce", "binary.tw"], "a reproducer begins with"),
        (["small.onnx", "--passes", "fold{"], "error[pipeline/"),
        (["small.onnx", "--why", "identity-to-inputs"], "did you mean identity-to-input?"),
        (["small.onnx", "--why", "fold-batch-norm"], "its rules are: batch-norm-after-linear"),
        (["small.onnx", "-o", "nowhere/out.tw"], "nowhere"),
        (["small.onnx", "-o", "small.onnx"], "small.onnx is a name for an ONNX model, but IR text is written"),
        (["--reproduce", "broken.tw"], "a reproducer begins with"),
    ],
)
def test_bad_input(
    command: Callable[..., Any], model: Path, options: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    Path("broken.tw").write_text("func @main(", encoding="utf-8")
    Path("binary.tw").write_bytes(b"func\xff\xfe")
    done = command("ir", *options)
    assert (done.code, done.out) == (2, "")
    assert message in done.err


@pytest.mark.parametrize(("folder", "warned"), [(".", False), ("elsewhere", True)])
def test_text_says_where_it_finds_no_weights(
    command: Callable[..., Any], tmp_path: Path, folder: str, warned: bool
) -> None:
    b = Builder()
    b.output(b.input("x", f32[2, 64]) @ np.ones((64, 64), np.float32), "y")
    tilewright.save(b.build(), tmp_path / "model.onnx")
    (tmp_path / "elsewhere").mkdir()
    done = command("ir", tmp_path / "model.onnx", "-o", tmp_path / folder / "model.tw")
    assert done.code == 0, done.err
    assert ("1 weight is in no model file beside" in done.err) == warned
    assert (command("run", tmp_path / folder / "model.tw").code == 0) != warned
