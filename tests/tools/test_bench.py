"""tilewright bench: tables for people, JSON for programs, errors for bad usage."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import Builder, bf16, f32


def test_json_has_medians_and_ratios(command: Callable[..., Any], model: Path) -> None:
    pytest.importorskip("onnxruntime")
    done = command("bench", model, "--dim", "batch=2", "--runs", "3", "--threads", "1,2", "--json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["precision"] == "float32"
    assert report["inputs"] == [{"name": "x", "type": "f32[2, 4]", "made_up": True}]
    assert [timing["threads"] for timing in report["timings"]] == [1, 2]
    for timing in report["timings"]:
        ours, theirs = timing["median_ms"]["tilewright"], timing["median_ms"]["onnxruntime"]
        assert 0 < timing["least_ms"]["tilewright"] <= ours
        assert timing["ratio"]["onnxruntime"] == pytest.approx(theirs / ours)
        assert timing["largest_error"] < 1e-5


def test_alone(command: Callable[..., Any], model: Path) -> None:
    done = command("bench", model, "--dim", "batch=2", "--runs", "1", "--against", "none")
    assert done.code == 0, done.err
    assert "tilewright" in done.out
    assert "inputs: x f32[2, 4]" in done.out
    assert "onnxruntime" not in done.out


def test_precision_is_that_of_the_model(command: Callable[..., Any], tmp_path: Path) -> None:
    b = Builder()
    scale, zero = b.const(0.5), b.const(np.array(3, np.uint8))
    b.output(b.dequantize_linear(b.quantize_linear(b.input("x", f32[2, 4]), scale, zero), scale, zero))
    tilewright.save(b.build(), tmp_path / "quantized.onnx")
    done = command("bench", tmp_path / "quantized.onnx", "--runs", "1", "--against", "none", "--json")
    assert json.loads(done.out)["precision"] == "float32, uint8"


@pytest.mark.parametrize(
    ("arguments", "words"), [(["--against", "abacus"], "abacus"), (["--threads", "0"], "--threads")], ids=str
)
def test_bad_usage(command: Callable[..., Any], model: Path, arguments: list[str], words: str) -> None:
    done = command("bench", model, *arguments)
    assert done.code == 2
    assert words in done.err


def test_a_peer_that_refuses_the_model_is_left_out(command: Callable[..., Any], tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    b = Builder()
    b.output(b.relu(b.input("x", bf16[2, 4])), "y")
    tilewright.save(b.build(), tmp_path / "bf16.onnx")  # ONNX Runtime takes no arrays of bf16
    done = command("bench", tmp_path / "bf16.onnx", "--runs", "1")
    assert done.code == 0, done.err
    assert "not compared with onnxruntime: it does not run the model; it says: " in done.err
    assert "tilewright" in done.out
    report = json.loads(command("bench", tmp_path / "bf16.onnx", "--runs", "1", "--json").out)
    assert list(report["not_compared"]) == ["onnxruntime"]
    assert list(report["timings"][0]["median_ms"]) == ["tilewright"]


def test_text_is_written_for_the_peers(command: Callable[..., Any], model: Path) -> None:
    pytest.importorskip("onnxruntime")
    text = model.with_suffix(".tw")
    assert command("ir", model, "-o", text).code == 0
    done = command("bench", text, "--runs", "1", "--json")
    assert done.code == 0, done.err
    assert list(json.loads(done.out)["timings"][0]["median_ms"]) == ["tilewright", "onnxruntime"]
