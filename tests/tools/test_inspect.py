"""`tilewright inspect`, and `tilewright.inspect`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tilewright
from tilewright import Builder, bool_, f32, f64


def test_report_for_people(command: Callable[..., Any], model: Path) -> None:
    done = command("inspect", model)
    assert done.code == 0, done.err
    assert "input    x: f32[batch, 4]" in done.out
    assert "output   y: f32[batch, 3]" in done.out
    assert "parameters       56 in 2 constants" in done.out
    assert "opsets           ai.onnx 17, IR version" in done.out
    assert "FLOPs            120*batch" in done.out


def test_json(command: Callable[..., Any], model: Path) -> None:
    facts = json.loads(command("inspect", model, "--json", "--dim", "batch=10").out)
    assert facts["operators"] == {"MatMul": 2, "Relu": 1, "Identity": 1}
    assert facts["parameters"] == 4 * 8 + 8 * 3
    # Two products of 2 * 4 * 8 and 2 * 8 * 3, and one comparison for each of 8 hidden elements.
    assert facts["flops"] == 10 * (64 + 48 + 8)
    assert facts["weight_bytes_by_dtype"] == {"f32": 56 * 4}
    assert facts["file_bytes"] == model.stat().st_size
    assert facts["dims"] == ["batch"]


def test_control_flow_and_unknown_operators() -> None:
    b = Builder()
    x, flag = b.input("x", f32[8]), b.input("flag", bool_[()])
    b.output(b.if_(flag, lambda: b.exp(b.exp(x)), lambda: b.exp(x)), "y")
    b.output(x.astype(f64) if hasattr(x, "astype") else b.cast(x, to=f64), "wide")
    module = b.build()
    facts = tilewright.inspect(module)
    assert facts.control_flow == {"If": 1}
    assert facts.operators["Exp"] == 3
    assert facts.flops == 16, "the larger branch counts"


def test_custom_operators_are_named() -> None:
    text = 'module onnx opsets={"": 21, "my.ops": 1}\nfunc @main(%x: f32[4]) -> (%y: f32[4]) {\n'
    text += "  %y = my.ops.Twist %x : f32[4]\n  return %y\n}\n"
    facts = tilewright.inspect(tilewright.parse(text))
    assert facts.custom_operators == {"my.ops::Twist": 1}
    assert facts.flops is None
    assert facts.unknown_flops == {"Twist": 1}


def test_only_weights_count_as_parameters() -> None:
    b = Builder()
    x = b.input("x", f32[100])
    quantized = b.const(np.zeros(100, np.int8))
    b.output(b.reshape(b.dequantize_linear(quantized, np.float32(0.1)) + x, [10, 10]), "y")
    facts = tilewright.inspect(b.build())
    assert facts.parameters == 100


def test_bad_input(command: Callable[..., Any], model: Path) -> None:
    assert command("inspect", model.parent / "missing.onnx").code == 2
    done = command("inspect", model, "--dim", "height=3")
    assert (done.code, done.out) == (2, "")
    assert "no input has a dim called 'height'" in done.err


def test_arithmetic_that_depends_on_the_data_names_the_dims_without_a_size(
    command: Callable[..., Any], tmp_path: Path
) -> None:
    b = Builder("found")
    places = b.nonzero(b.input("x", f32["batch", "seq"]))
    b.output(b.exp(b.cast(places, to=f32)), "y")
    path = tmp_path / "found.onnx"
    tilewright.save(b.build(), path)
    assert "depend on batch, seq; give sizes: --dim batch=1 --dim seq=1" in command("inspect", path).out
    assert "depend on seq; give sizes: --dim seq=1" in command("inspect", path, "--dim", "batch=1").out
    both = command("inspect", path, "--input-shape", "x:1,2").out
    assert "depend on sizes that only a run tells" in both


FUNCTION = """
module onnx opsets={"": 18, "my": 1}

func @main(%x: f32[4, 8]) -> (%y: f32[4, 8]) {
  %0 = my.Gate %x : f32[4, 8]
  %1 = my.Gate %0 : f32[4, 8]
  return %1
}

func @my::Gate opsets={"": 18}(%x: unknown) -> (%y) {
  %r = relu %x : unknown
  %y = mul %x, %r : unknown
  return %y
}
"""


def test_arithmetic_of_functions_is_counted_at_each_call() -> None:
    facts = tilewright.inspect(tilewright.parse(FUNCTION))
    assert facts.flops == 2 * (32 + 32)
    assert not facts.unknown_flops
    assert facts.operators == {"my::Gate": 2, "Relu": 1, "Mul": 1}  # as they stand in the file
