"""`tilewright parity`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import Builder, f32
from tilewright.backends import onnxruntime_oracle

pytestmark = pytest.mark.skipif(not onnxruntime_oracle.is_available(), reason="onnxruntime is not installed")


@pytest.fixture
def changed(model: Path) -> Path:
    """The small model with outputs 0.1 % larger."""
    path = model.with_name("changed.onnx")
    module = tilewright.load(model)
    b = Builder(opset=17)
    x = b.input("x", f32["batch", 4])
    w1, w2 = (op.attributes["value"] for op in module.walk() if op.name == "const")
    b.output(b.relu(x @ w1) @ (w2.numpy() * np.float32(1.001)), "y")
    tilewright.save(b.build(), path)
    return path


def test_two_models(command: Callable[..., Any], model: Path, changed: Path) -> None:
    assert command("parity", model, model).code == 0
    done = command("parity", model, changed)
    assert done.code == 1
    assert "differs: y: the largest difference is at" in done.out
    done = command("parity", model, changed, "--rtol", "1e-2")
    assert done.code == 0
    assert "changed.onnx gives what small.onnx gives, in 2 runs (batch=1; batch=2)" in done.out


def test_one_model_against_onnxruntime(command: Callable[..., Any], model: Path) -> None:
    done = command("parity", model, "--json", "--dim", "batch=3", "--runs", "1")
    report = json.loads(done.out)
    assert (done.code, report["passed"]) == (0, True)
    assert report["runs"][0]["outputs"][0]["type"] == "f32[3, 3]"
    assert "ONNX Runtime" in report["expected"]


def test_given_inputs(command: Callable[..., Any], model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "feeds.npz", x=np.ones((7, 4), np.float32))
    done = command("parity", model, model, "--input", tmp_path / "feeds.npz", "--json")
    assert [run["outputs"][0]["type"] for run in json.loads(done.out)["runs"]] == ["f32[7, 3]"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--target", "abacus"], "there is no target called 'abacus'"),
        (["--engine", "reference"], "would be compared with itself"),
        (["--dim", "height=1"], "no input has a dim called 'height'"),
        (["--runs", "0"], "0 is not in the range"),
        (["missing.onnx"], "missing.onnx"),
    ],
)
def test_bad_input(command: Callable[..., Any], model: Path, options: list[str], message: str) -> None:
    done = command("parity", model, *options)
    assert done.code == 2
    assert message in done.err
    assert done.out == ""


def test_a_model_that_does_not_load_is_no_difference(command: Callable[..., Any], model: Path) -> None:
    bad = model.with_name("bad.onnx")
    bad.write_bytes(b"nonsense")
    assert command("parity", model, bad).code == 2
