"""`tilewright run`, and how every command reads inputs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx.numpy_helper
import pytest

import tilewright
from tilewright import Builder, bf16, f32, i64
from tilewright.graph import types


def test_summary_of_made_up_inputs(command: Callable[..., Any], model: Path) -> None:
    done = command("run", model, "--dim", "batch=2")
    assert done.code == 0, done.err
    assert "input x" in done.out
    assert "made up" in done.out
    assert "f32[2, 3]" in done.out
    assert "on cpu" in done.out


def test_outputs_are_written(command: Callable[..., Any], model: Path, tmp_path: Path) -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.save(tmp_path / "x.npy", x)
    done = command("run", model, "--input", f"x={tmp_path / 'x.npy'}", "--output-dir", tmp_path / "results", "--json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    written = np.load(report["files"]["y"])
    expected = tilewright.compile(model).run({"x": x})["y"]
    assert np.array_equal(written, expected)
    assert report["outputs"][0]["max"] == pytest.approx(float(expected.max()))
    assert not report["inputs"][0]["made_up"]


@pytest.fixture
def several(tmp_path: Path) -> Path:
    """Inputs of three types; a sequence among the outputs."""
    b = Builder(opset=21)
    x, scale, rate = b.input("x", f32[2, 2]), b.input("scale", bf16[2]), b.input("rate", i64[()])
    b.output(b.sequence_construct(x, x), "parts")
    b.output(b.cast(scale, to=f32), "layer/scale:0")
    b.output(rate + 1, "next_rate")
    path = tmp_path / "several.onnx"
    tilewright.save(b.build(), path)
    return path


def test_every_way_to_give_an_input(command: Callable[..., Any], several: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "scale.npy", np.array([1, 2], bf16.numpy))
    proto = onnx.numpy_helper.from_array(np.array([[1, 2], [3, 4]], np.float32))
    (tmp_path / "x.pb").write_bytes(proto.SerializeToString())
    given = [f"x={tmp_path / 'x.pb'}", f"scale={tmp_path / 'scale.npy'}", "rate=16000"]
    options = [part for item in given for part in ("--input", item)]
    done = command("run", several, *options, "--output-dir", tmp_path / "results")
    assert done.code == 0, done.err
    assert np.load(tmp_path / "results" / "next_rate.npy") == 16001
    assert np.load(tmp_path / "results" / "layer_scale_0.npy").tolist() == [1, 2]
    parts = np.load(tmp_path / "results" / "parts.npz")
    assert [parts[name].tolist() for name in parts.files] == [[[1, 2], [3, 4]]] * 2


def test_only_the_outputs_that_are_asked_for(command: Callable[..., Any], several: Path) -> None:
    done = command("run", several, "--outputs", "next_rate", "--json")
    assert [row["name"] for row in json.loads(done.out)["outputs"]] == ["next_rate"]


def test_arrays_of_an_archive(command: Callable[..., Any], several: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", values=np.full((2, 2), 5, np.float32))
    np.savez(tmp_path / "two.npz", a=np.zeros(1), b=np.zeros(1))
    assert command("run", several, "--input", f"x={tmp_path / 'one.npz'}").code == 0
    done = command("run", several, "--input", f"x={tmp_path / 'two.npz'}")
    assert done.code == 2
    assert "holds no array 'x'" in done.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--input", "x=[[1,2],[3]]"], "the value of the input 'x' does not fit its type, f32[2, 2]"),
        (["--input", "x=hello"], "neither a .npy, .npz or .pb file nor a number or list"),
        (["--input", "rate=1", "--input", "rate=2"], "the input 'rate' is given twice"),
        (["--input", "x=broken.npy"], "broken.npy does not hold numpy arrays"),
        (["--input", "x=broken.npz"], "broken.npz does not hold numpy arrays"),
        (["--input", "x=broken.pb"], "broken.pb is not an ONNX tensor"),
        (["--outputs", "nothing"], "the model has no output 'nothing'"),
        (["--target", "abacus"], "there is no target called 'abacus'"),
        (["--output-dir", "several.onnx"], "several.onnx"),
    ],
)
def test_bad_input(
    command: Callable[..., Any], several: Path, options: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(several.parent)
    for suffix in ("npy", "npz", "pb"):
        Path(f"broken.{suffix}").write_bytes(b"\xff\xff not an array")
    done = command("run", several, *options)
    assert done.code == 2
    assert message in done.err
    assert done.out == ""


def test_a_type_that_cannot_be_made_up(command: Callable[..., Any], tmp_path: Path) -> None:
    b = Builder()
    b.output(b.identity(b.input("x", types.UNKNOWN)), "y")
    (tmp_path / "odd.tw").write_text(str(b.build()), encoding="utf-8")
    done = command("run", tmp_path / "odd.tw")
    assert done.code == 2
    assert "no value can be made up for the input 'x'" in done.err
