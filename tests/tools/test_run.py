"""`tilewright run`, and how every command reads inputs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx.numpy_helper
import pytest

import tilewright
from tilewright import Builder, bf16, f32, i64, string
from tilewright.graph import types
from tilewright.graph.diagnostics import ExecutionError


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


def test_compiling_and_running_are_timed_apart(command: Callable[..., Any], model: Path) -> None:
    done = command("run", model, "--dim", "batch=2")
    assert re.search(r"compiled in [\d.]+ m?s, ran in [\d.e-]+ ms on cpu", done.out)
    report = json.loads(command("run", model, "--dim", "batch=2", "--json").out)
    assert report["compile_seconds"] > 0
    assert report["seconds"] > 0
    assert "explain" not in report
    reference = command("run", model, "--dim", "batch=2", "--target", "reference")
    assert "ran in" in reference.out
    assert "compiled" not in reference.out


def test_explain(command: Callable[..., Any], tmp_path: Path) -> None:
    b = Builder(opset=21)
    x = b.input("x", f32[4, 4])
    b.output(b.relu(x @ x), "y")
    b.output(b.sequence_at(b.split_to_sequence(x), np.array(1)), "row")  # sequences have no kernels
    tilewright.save(b.build(), tmp_path / "mixed.onnx")
    done = command("run", tmp_path / "mixed.onnx", "--explain", "--threads", "1")
    assert done.code == 0, done.err
    for words in ("kernel", "host steps", "split_to_sequence", "segments", "arena", "vector bits", "threads"):
        assert words in done.out
    assert "\n\nkernels" in done.out
    assert re.search(r"copies of inputs +0", done.out)
    report = json.loads(command("run", tmp_path / "mixed.onnx", "--explain", "--json").out)["explain"]
    assert report["kernels"]
    assert [step["operator"] for step in report["host_steps"]] == ["split_to_sequence", "sequence_at"]
    assert "operator" in command("run", tmp_path / "mixed.onnx", "--explain", "--target", "reference").out


@pytest.mark.usefixtures("unchecked")
def test_an_executable_is_run(command: Callable[..., Any], model: Path, tmp_path: Path) -> None:
    twx = tmp_path / "small.twx"
    assert command("compile", model).code == 0  # beside the model
    x = np.ones((2, 4), np.float32)
    np.save(tmp_path / "x.npy", x)
    done = command("run", twx, "--input", f"x={tmp_path / 'x.npy'}", "--output-dir", tmp_path / "results")
    assert done.code == 0, done.err
    expected = tilewright.compile(model).run({"x": x})["y"]
    assert np.array_equal(np.load(tmp_path / "results" / "y.npy"), expected)
    assert "loaded in " in command("run", twx, "--dim", "batch=3").out
    refused = command("run", twx, "--target", "reference")
    assert refused.code == 2
    assert "compiled for the target cpu" in refused.err


@pytest.mark.parametrize("name", ["inspect", "bench"])
def test_an_executable_is_no_model(command: Callable[..., Any], tmp_path: Path, name: str) -> None:
    (tmp_path / "small.twx").write_bytes(b"PK")
    done = command(name, tmp_path / "small.twx")
    assert done.code == 2
    assert "is an executable of Tilewright, not a model" in done.err
    assert "tilewright.load_executable" in done.err


def windows(path: Path, kernel: int) -> Path:
    """A convolution over a signal of any length, for which most of those made up are too short."""
    b = Builder(opset=17)
    x = b.input("x", f32[1, 1, "length"])
    b.output(b.conv(x, np.ones((1, 1, kernel), np.float32)), "y")
    tilewright.save(b.build(), path)
    return path


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", ["run", "bench", "compile"])
def test_made_up_sizes_are_tried_until_one_fits(command: Callable[..., Any], tmp_path: Path, name: str) -> None:
    path = windows(tmp_path / "long.onnx", 200)
    options = {"bench": ["--runs", "1", "--against", "none"], "compile": ["-o", tmp_path / "long.twx"]}
    done = command(name, path, *options.get(name, []))
    assert done.code == 0, done.err


@pytest.mark.parametrize("name", ["run", "bench", "compile"])
def test_what_was_tried_is_told_if_no_size_fits(command: Callable[..., Any], tmp_path: Path, name: str) -> None:
    path = windows(tmp_path / "long.onnx", 100_000)
    done = command(name, path, *(["-o", tmp_path / "long.twx"] if name == "compile" else []))
    assert done.code == 2
    assert "kernel [100000] is larger than" in done.err
    assert "made-up inputs that do not run: x f32[1, 1, " in done.err
    assert "--input-shape" in done.err


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_an_error_inside_tells_what_the_model_was_given(tmp_path: Path, target: str) -> None:
    executable = tilewright.compile(windows(tmp_path / "long.onnx", 200), target=target)
    with pytest.raises(ExecutionError) as caught:
        executable.run({"x": np.zeros((1, 1, 7), np.float32)})
    assert "the model was given x f32[1, 1, 7]" in str(caught.value)
    assert caught.value.diagnostics[0].location is not None


def test_compile_looks_at_the_output_first(command: Callable[..., Any], model: Path, tmp_path: Path) -> None:
    missing = command("compile", model, "-o", tmp_path / "nodir" / "x.twx")
    assert missing.code == 2
    assert f"the folder of the output, {tmp_path / 'nodir'}, does not exist" in missing.err
    folder = command("compile", model, "-o", tmp_path)
    assert folder.code == 2
    assert f"the output {tmp_path} is a folder" in folder.err


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_text_without_its_weights(command: Callable[..., Any], tmp_path: Path, target: str) -> None:
    b = Builder()
    b.output(b.input("x", f32[2, 64]) @ np.ones((64, 64), np.float32), "y")
    (tmp_path / "small.tw").write_text(str(b.build()), encoding="utf-8")
    done = command("run", tmp_path / "small.tw", "--target", target)
    assert done.code == 2
    assert "error[data/unresolved]: 1 weight is not loaded: %" in done.err
    assert "f32[64, 64]" in done.err
    assert "finds its weights in the model files of its own folder" in done.err


def test_strings_are_shown(command: Callable[..., Any], tmp_path: Path) -> None:
    b = Builder()
    x = b.input("x", string[4])
    b.output(b.string_concat(x, np.array(["!"], object)), "y")
    tilewright.save(b.build(), tmp_path / "words.onnx")
    np.save(tmp_path / "x.npy", np.array(["a", "b", "c", "d"]))
    done = command("run", tmp_path / "words.onnx", "--input", f"x={tmp_path / 'x.npy'}")
    assert done.code == 0, done.err
    assert "'a', 'b', 'c'" in done.out
    assert "'a!', 'b!', 'c!'" in done.out
    assert "'d!'" not in done.out


@pytest.mark.usefixtures("unchecked")
def test_a_warning_is_told_once(
    command: Callable[..., Any], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "file" / "cache"))
    done = command("run", model)
    assert done.code == 0, done.err
    assert done.err.count("kernels are not kept on disk") == 1
