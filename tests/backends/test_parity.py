"""Parity of two models, and of one model on two runtimes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import Builder, Module, bf16, bool_, f32, i64
from tilewright.backends import onnxruntime_oracle
from tilewright.backends.onnxruntime_oracle import OnnxRuntime
from tilewright.backends.parity import ParityReport
from tilewright.backends.sensitivity import sensitivity
from tilewright.graph.diagnostics import ExecutionError, UsageError

needs_onnxruntime = pytest.mark.skipif(not onnxruntime_oracle.is_available(), reason="onnxruntime is not installed")


def scaled(factor: float, width: Any = "n", name: str = "y") -> Module:
    b = Builder()
    x = b.input("x", f32["batch", width])
    b.output(x * np.float32(factor), name)
    return b.build()


@pytest.fixture
def no_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime_oracle, "is_available", lambda: False)


@needs_onnxruntime
def test_models_that_agree() -> None:
    report = tilewright.parity(scaled(2.0), scaled(2.00001))
    assert report.passed
    assert [run.inputs for run in report.runs] == ["batch=1 n=16", "batch=2 n=7"]
    assert report.worst["y"].relative_error == pytest.approx(5e-6, rel=0.1)
    assert "ONNX Runtime" in report.notes[0]
    assert "optimizations off" in report.notes[0]


@needs_onnxruntime
def test_models_that_differ() -> None:
    report = tilewright.parity(scaled(2.0), scaled(2.1))
    assert (report.passed, report.verdict) == (False, "differs")
    assert report.reason.startswith("y: the largest difference is at")
    assert tilewright.parity(scaled(2.0), scaled(2.1), rtol=0.1).passed


def test_a_difference_that_only_one_size_shows(no_onnxruntime: None) -> None:
    """A rewrite that took the batch to be 1 is found out, since runs differ in their sizes."""
    b = Builder()
    x = b.input("x", f32["batch", 4])
    b.output(b.slice(x, [0], [1], [0]), "y")
    wrong = b.build()
    b = Builder()
    b.output(b.identity(b.input("x", f32["batch", 4])), "y")
    report = tilewright.parity(b.build(), wrong)
    assert report.verdict == "differs"
    assert report.runs[0].outputs["y"].passed
    assert report.reason == "y: the shape is [1, 4], expected [2, 4]"


def test_interfaces_that_differ() -> None:
    report = tilewright.parity(scaled(2.0), scaled(2.0, name="z"))
    assert report.verdict == "differs"
    assert (report.expected, report.actual) == ("the module", "the new module")
    assert report.reason == "the outputs are not the same: missing are y; new are z"


@needs_onnxruntime
def test_given_inputs() -> None:
    feeds = {"x": np.ones((3, 5), np.float32)}
    report = tilewright.parity(scaled(2.0), scaled(2.0), feeds=feeds)
    assert report.passed
    assert [run.outputs["y"].type for run in report.runs] == ["f32[3, 5]"]


@needs_onnxruntime
def test_sizes_that_only_one_model_takes() -> None:
    """The narrower of the two interfaces decides, as after binding a dim."""
    report = tilewright.parity(scaled(2.0, width=3), scaled(2.0))
    assert report.passed
    assert report.runs[0].outputs["y"].type == "f32[1, 3]"


def test_without_onnxruntime_the_reference_is_used(no_onnxruntime: None) -> None:
    report = tilewright.parity(scaled(2.0), scaled(2.0))
    assert report.passed
    assert report.notes[0].startswith("ONNX Runtime is not installed, so the reference interpreter ran the models")
    with pytest.raises(UsageError, match="ONNX Runtime is not installed"):
        tilewright.parity(scaled(2.0))


@needs_onnxruntime
def test_a_model_that_onnxruntime_does_not_take() -> None:
    """bf16 products are not among what ONNX Runtime computes on a CPU."""
    b = Builder(opset=22)
    x = b.input("x", bf16[4, 4])
    b.output(b.round(x), "y")
    module = b.build()
    report = tilewright.parity(module, module)
    assert report.passed
    assert report.notes[0].startswith("run by the reference interpreter, because in ONNX Runtime the module cannot be")


@needs_onnxruntime
def test_a_model_that_onnxruntime_loads_but_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """An original that fails there in every run says nothing about the new model."""

    def refuse(self: OnnxRuntime, feeds: Any) -> Any:
        raise ExecutionError("onnxruntime/run", "ONNX Runtime does not run the model", notes=["it says: no"])

    monkeypatch.setattr(OnnxRuntime, "run", refuse)
    report = tilewright.parity(scaled(2.0), scaled(2.0))
    assert report.passed
    assert "ONNX Runtime does not run the model; it says: no" in report.notes[0]
    assert tilewright.parity(scaled(2.0), scaled(3.0)).verdict == "differs"


@needs_onnxruntime
def test_a_model_that_onnxruntime_runs_with_sizes_of_one_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """They agree there, as a product of one number may; the reference interpreter takes other sizes and tells."""
    run = OnnxRuntime.run

    def picky(self: OnnxRuntime, feeds: Any) -> Any:
        if feeds["x"].size > 1:
            raise ExecutionError("onnxruntime/run", "ONNX Runtime does not run the model", notes=["it says: too large"])
        return run(self, feeds)

    def summed(axis: int) -> Module:
        b = Builder()
        b.output(b.reduce_sum(b.input("x", f32["n", "m"]), [axis], keepdims=1), "y")
        return b.build()

    monkeypatch.setattr(OnnxRuntime, "run", picky)
    report = tilewright.parity(scaled(2.0), scaled(2.0))
    assert report.passed
    assert "runs only where all sizes are 1 (it agrees there): ONNX Runtime does not run the model" in report.notes[0]
    assert {run.inputs for run in report.runs} != {"batch=1 n=1"}
    assert tilewright.parity(summed(0), summed(1)).verdict == "differs"
    assert "ONNX Runtime 1" in tilewright.parity(scaled(2.0), scaled(3.0)).notes[0]


@needs_onnxruntime
def test_a_new_model_that_onnxruntime_does_not_run_differs() -> None:
    """The original says what runs: whoever used it in ONNX Runtime could not use the new one."""
    b = Builder(opset=22)
    x = b.input("x", f32["batch", "n"])
    b.output(b.cast(b.round(b.cast(x, to=bf16)), to=f32), "y")
    b2 = Builder(opset=22)
    x = b2.input("x", f32["batch", "n"])
    b2.output(b2.cast(b2.cast(x, to=bf16), to=f32), "y")
    report = tilewright.parity(b2.build(), b.build())
    assert report.verdict == "differs"
    assert "the new module cannot be run: ONNX Runtime does not load the model" in report.reason


@needs_onnxruntime
def test_against_a_runtime() -> None:
    report = tilewright.parity(scaled(2.0))
    assert report.passed
    assert report.actual == "the module compiled for reference"
    with pytest.raises(UsageError, match="compared with itself"):
        tilewright.parity(scaled(2.0), "reference")


@needs_onnxruntime
def test_paths_bytes_and_messages(tmp_path: Path) -> None:
    path = tmp_path / "scaled.onnx"
    tilewright.save(scaled(2.0), path)
    assert tilewright.parity(path, scaled(2.0)).passed
    assert tilewright.parity(path.read_bytes(), str(path)).passed
    assert tilewright.parity(tilewright.to_proto(scaled(2.0)), path).passed
    (tmp_path / "scaled.tw").write_text(str(scaled(2.0)), encoding="utf-8")
    assert tilewright.parity(tmp_path / "scaled.tw", path).passed
    with pytest.raises(UsageError, match="a model is a path"):
        tilewright.parity(3, path)  # type: ignore[arg-type]


def test_a_model_that_cannot_be_run_is_not_checked(no_onnxruntime: None) -> None:
    b = Builder()
    x = b.input("x", f32["n"])
    b.output(b.reshape(x, [1234567, -1]), "y")
    module = b.build()
    report = tilewright.parity(module, module)
    assert (report.passed, report.verdict) == (False, "not checked")
    assert "cannot be run" in report.reason
    assert "--input" in report.reason


@needs_onnxruntime
@pytest.mark.parametrize(("target", "options"), [("cpu", "--engine"), ("reference", "--target cpu --engine")])
def test_what_onnxruntime_cannot_run_has_another_engine(target: str, options: str) -> None:
    b = Builder()
    x = b.input("x", bf16[2, 3])
    b.output(x @ np.ones((3, 4), bf16.numpy), "y")
    module = b.build()
    report = tilewright.parity(module, "onnxruntime", target=target)
    assert report.verdict == "not checked"
    assert report.notes[-1].startswith(f"{options} reference (parity(model, 'reference', target='cpu')")
    assert tilewright.parity(module, "reference", target="cpu").passed


@needs_onnxruntime
def test_known_deviations_are_noted() -> None:
    random = np.random.default_rng(0)
    b = Builder()
    x = b.input("x", f32[4, 2, 5])
    weights = [random.integers(-128, 128, (1, rows, 12)).astype(np.int8) for rows in (5, 3)]
    scale, point = np.full(1, 0.003, np.float32), np.zeros(1, np.int8)
    operands = [x, *weights, None, None, None, None, None, scale, point, scale, point]
    y, *_ = b.create("com.microsoft.DynamicQuantizeLSTM", *operands, outputs=3, hidden_size=3)
    b.output(y, "y")
    report = tilewright.parity(tilewright.to_proto(b.build(), keep_fused=True), "onnxruntime")
    assert report.verdict == "differs"
    assert report.notes[-1].startswith("DynamicQuantizeLSTM: ONNX Runtime rounds its input and its state to 8 bits")


def scaled_in(dtype: str, factor: float, inside_if: bool = False) -> Module:
    """y = x * factor, computed in `dtype`."""
    wide, narrow = ("", "") if dtype == "f32" else (f"%h = cast %x {{to=10}} : {dtype}[64]", "%y = cast %p {to=1}")
    given, made = ("%x", "%y") if dtype == "f32" else ("%h", "%p")
    body = f"""
        %k = const {factor} : {dtype}[]
        {wide}
        {made} = mul {given}, %k : {dtype}[64]
        {narrow + " : f32[64]" if narrow else ""}
        return %y"""
    if inside_if:
        branches = "".join(f"{name}() -> (%y: f32[64]) {{ {body} }}\n" for name in ("then_branch", "else_branch"))
        body = f"%c = const true : bool[]\n%z = if %c : f32[64] {branches} return %z"
    return tilewright.parse(
        f'module onnx opsets={{"": 21}} func @main(%x: f32[64]) -> (%{"z" if inside_if else "y"}: f32[64]) {{ {body} }}'
    )


@pytest.mark.parametrize("inside_if", [False, True])
def test_the_type_of_the_output_decides(no_onnxruntime: None, inside_if: bool) -> None:
    """An f32 output is held to the tolerance of f32 though it was computed in f16; the report says why it may fail."""
    whole, half = scaled_in("f32", 3.0, inside_if), scaled_in("f16", 3.0, inside_if)
    name = "z" if inside_if else "y"
    report = tilewright.parity(half, whole)
    assert report.verdict == "differs"
    assert report.worst[name].tolerance == 1e-4
    assert report.notes[-1] == (
        f"{name} is computed in f16, which rounds more than the type of the output tells; --rtol 0.004 (rtol in "
        f"Python) is what f16 can keep"
    )
    assert tilewright.parity(half, whole, rtol=0.004).passed
    assert not tilewright.parity(half, scaled_in("f32", 3.1, inside_if), rtol=0.004).passed
    assert tilewright.parity(half, half).notes == tilewright.parity(whole, whole).notes


def test_no_inputs_help_a_model_with_an_unknown_operator(no_onnxruntime: None) -> None:
    module = tilewright.parse("""
        module onnx opsets={"": 21, "acme": 1}
        func @main(%x: f32[n]) -> (%y: f32[n]) {
          %y = acme.Mystery %x : f32[n]
          return %y
        }""")
    report = tilewright.parity(module, module)
    assert report.verdict == "not checked"
    assert "no numpy meaning for the operator acme.Mystery" in report.reason
    assert "--input" not in report.reason


def test_random_operators_are_compared_by_type(no_onnxruntime: None) -> None:
    b = Builder()
    x = b.input("x", f32[8])
    b.output(x + b.random_normal(shape=[8]), "noisy")
    b.output(x * np.float32(2), "y")
    module = b.build()
    report = tilewright.parity(module, module)
    assert report.passed
    assert report.notes[-1] == "random from run to run, so only their types were compared: noisy"
    assert {name: found.random for name, found in report.worst.items()} == {"noisy": True, "y": False}
    assert [row["random"] for row in report.runs[0].to_dict()["outputs"]] == [True, False]
    assert "noisy: f32[8], random" in str(report)


def test_a_model_of_which_all_is_random_is_not_checked(no_onnxruntime: None) -> None:
    def noisy(size: int) -> Module:
        b = Builder()
        b.output(b.input("x", f32["n"]) + b.random_normal(shape=[size]), "y")
        return b.build()

    report = tilewright.parity(noisy(8), noisy(8))
    assert (report.passed, report.verdict) == (False, "not checked")
    assert report.reason == "every output is random (RandomNormal), so only their types could be compared"
    report = tilewright.parity(noisy(4), noisy(8), dims={"n": 1})
    assert report.verdict == "differs"


def test_outputs_without_a_number_are_mentioned(no_onnxruntime: None) -> None:
    b = Builder()
    b.output(b.sqrt(b.neg(b.abs(b.input("x", f32[8])))), "y")
    module = b.build()
    report = tilewright.parity(module, module)
    assert report.passed
    assert "y has no finite element in any run, so its values say nothing" in report.notes


def test_a_run_count_of_zero() -> None:
    with pytest.raises(UsageError, match="at least one run"):
        tilewright.parity(scaled(2.0), scaled(2.0), runs=0)


def test_report_as_text_and_json(no_onnxruntime: None) -> None:
    report = tilewright.parity(scaled(2.0), scaled(3.0))
    assert "differs from" in str(report)
    as_json = json.loads(json.dumps(report.to_dict()))
    assert as_json["verdict"] == "differs"
    assert as_json["runs"][0]["outputs"][0]["name"] == "y"
    assert str(ParityReport("a", "b")).startswith("b was not checked against a")


# ---- ONNX Runtime ----------------------------------------------------------------------------------------------------


@needs_onnxruntime
@pytest.mark.parametrize("dtype", [bf16, f32, i64])
def test_types_that_numpy_does_not_have(dtype: tilewright.graph.dtypes.DType) -> None:
    b = Builder(opset=21)
    x = b.input("x", dtype[2, 3])
    b.output(b.identity(x), "y")
    array = np.arange(6).reshape(2, 3).astype(dtype.numpy)
    result = OnnxRuntime(b.build()).run({"x": array})["y"]
    assert result.dtype == dtype.numpy
    assert np.array_equal(result.astype(np.float32), array.astype(np.float32))


@needs_onnxruntime
def test_its_reasons_come_without_its_source_paths() -> None:
    runner = OnnxRuntime(scaled(2.0, width=3))
    with pytest.raises(ExecutionError, match="does not run the model") as error:
        runner.run({"x": np.zeros((1, 5), np.float32)})
    assert "Got invalid dimensions for input: x for the following indices index: 1 Got: 5 Expected: 3" in str(
        error.value
    )
    assert "onnxruntime/core" not in str(error.value)
    with pytest.raises(ExecutionError, match="does not load the model"):
        OnnxRuntime(b"nonsense")


# ---- sensitivity -----------------------------------------------------------------------------------------------------


def sine(*factors: float) -> Module:
    """The sine of a large product: hardly a digit of its argument is left."""
    b = Builder()
    x = b.input("x", f32[64])
    for factor in factors:
        x = x * np.float32(factor)
    b.output(b.sin(x), "y")
    return b.build()


def test_a_difference_is_one_however_sensitive_the_original_is(no_onnxruntime: None) -> None:
    report = tilewright.parity(sine(997, 1009), sine(997 * 1009))
    assert report.verdict == "differs"
    assert report.worst["y"].tolerance == 1e-4
    (note,) = [note for note in report.notes if "last bit" in note]
    moved = float(note.removeprefix("y of the module itself moves by ").split()[0])
    assert 0.01 < moved < 2
    assert tilewright.parity(sine(997, 1009), sine(997 * 1009), rtol=0.5).passed


def test_sensitivity_is_measured_relative_to_the_last_bit_of_the_inputs() -> None:
    feeds = {"x": np.full(8, 1.5, np.float32), "n": np.array([3])}
    seen = []

    def run(given: Any) -> dict[str, Any]:
        seen.append(given)
        return {"y": given["x"] * 2, "n": given["n"]}

    found = sensitivity(run, feeds, run(feeds), ["y", "n"])
    assert found["y"] == pytest.approx(3 * 2.0**-23, rel=0.5)
    assert found["n"] == 0.0
    assert all(np.array_equal(given["n"], feeds["n"]) for given in seen)


def attention(mask_dtype: Any, written: str) -> Module:
    """One attention with a mask; `written`: "softmax", or as the standard's operator, which has rules of its own."""
    b = Builder(opset=23)
    q, k, v = (b.input(name, f32["batch", 2, "length", 8]) for name in "qkv")
    mask = b.input("keep" if mask_dtype is bool_ else "bias", mask_dtype["batch", 1, 1, "length"])
    if written == "softmax":
        scores = b.mul(q @ b.transpose(k, perm=[0, 1, 3, 2]), 8**-0.5)
        lowest = float(np.finfo(np.float32).min)
        scores = b.where(mask, scores, lowest) if mask_dtype is bool_ else b.add(scores, mask)
        b.output(b.softmax(scores) @ v, "y")
    else:
        lengths = b.concat([1, 1], b.shape(q, start=2, end=3), b.shape(q, start=2, end=3), axis=0)
        b.output(b.attention(q, k, v, b.expand(mask, lengths)), "y")
    return b.build()


@pytest.mark.parametrize("mask_dtype", [bool_, f32])
def test_masks_that_hide_all_keys_of_a_query(mask_dtype: Any) -> None:
    """The standard gives zeros where no key is left, a softmax the mean of the values, or NaN."""
    plain = attention(mask_dtype, "softmax")
    report = tilewright.parity(plain, attention(mask_dtype, "operator"), engine="reference")
    inputs = [run.inputs for run in report.runs]
    assert inputs[:2] == ["batch=1 length=16", "batch=2 length=7"]
    hidden = [text for text in inputs[2:] if text.endswith("(masks with a row that hides all)")]
    assert len(hidden) == len(inputs) - 2 == (1 if mask_dtype is bool_ else 2)
    passed = [all(each.passed for each in run.outputs.values()) for run in report.runs]
    assert passed[:2] == [True, True]
    assert not passed[-1]
    again = tilewright.parity(plain, tilewright.optimize(attention(mask_dtype, "softmax")).module, engine="reference")
    assert again.passed
    assert len(again.runs) == len(inputs)


def test_a_mask_that_is_given_is_the_only_one() -> None:
    model = attention(f32, "softmax")
    feeds = {"bias": np.zeros((1, 1, 1, 5), np.float32)}
    assert len(tilewright.parity(model, model, feeds=feeds, engine="reference").runs) == 1
