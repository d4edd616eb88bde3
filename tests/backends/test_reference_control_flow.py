"""If, Loop, Scan, SequenceMap and calls of model-local functions, against ONNX Runtime or plain numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright.backends.target import compile_module
from tilewright.graph.diagnostics import ExecutionError
from tilewright.graph.module import Module

F32 = np.float32


def run(module: Module | str, *arrays: Any) -> list[Any]:
    executable = compile_module(tilewright.parse(module) if isinstance(module, str) else module)
    results = executable(*arrays)
    return [results] if len(executable.outputs) == 1 else list(results)


def check_against_onnxruntime(text: str, *arrays: np.ndarray) -> list[Any]:
    runtime = pytest.importorskip("onnxruntime")
    module = tilewright.parse(text)
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = runtime.InferenceSession(tilewright.to_bytes(module), options, providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_inputs()]
    expected = session.run(None, dict(zip(names, arrays, strict=True)))
    results = run(module, *arrays)
    for result, wanted in zip(results, expected, strict=True):
        assert result.dtype == wanted.dtype
        np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-6)
    return results


LOOP = """
module onnx opsets={"": 21} <ir_version=10>
func @main(%n: i64[], %c: bool[], %x: f32[2], %w: f32[2]) -> (%last: f32[2], %steps: f32[k, 2], %counts: i64[k]) {
  %last, %steps, %counts = loop %n, %c, %x : f32[2], f32[k, 2], i64[k]
    body(%i: i64[], %going: bool[], %s: f32[2]) -> (%again: bool[], %next: f32[2], %step: f32[2], %count: i64[]) {
      %next = mul %s, %w : f32[2]
      %limit = const 100.0 : f32[]
      %total = reduce_sum %next {keepdims=0} : f32[]
      %again = less %total, %limit : bool[]
      %step = neg %next : f32[2]
      %count = identity %i : i64[]
      return %again, %next, %step, %count
    }
  return %last, %steps, %counts
}"""


@pytest.mark.parametrize("trips", [1, 3, 50])
def test_loop_carries_captures_stacks_and_stops(trips: int) -> None:
    arrays = [np.array(trips), np.array(True), np.array([1, 2], F32), np.array([2, 3], F32)]
    _, steps, counts = check_against_onnxruntime(LOOP, *arrays)
    assert len(steps) == len(counts) == min(trips, 4)  # 2^n + 2 * 3^n exceeds 100 at n = 4


@pytest.mark.parametrize(("trips", "going"), [(0, True), (3, False)])
def test_loop_that_does_not_run_stacks_nothing(trips: int, going: bool) -> None:
    last, steps, counts = run(LOOP, np.array(trips), np.array(going), np.array([1, 2], F32), np.array([2, 3], F32))
    np.testing.assert_array_equal(last, [1, 2])
    assert (steps.shape, steps.dtype) == ((0, 2), np.float32)
    assert (counts.shape, counts.dtype) == ((0,), np.int64)


def test_loop_needs_neither_count_nor_condition() -> None:
    text = """
    func @main(%x: f32[]) -> (%y: f32[]) {
      %y = loop none, none, %x : f32[]
        body(%i: i64[], %going: bool[], %s: f32[]) -> (%again, %t) {
          %limit = const 10.0 : f32[]
          %t = add %s, %s : f32[]
          %again = less %t, %limit : bool[]
          return %again, %t
        }
      return %y
    }"""
    np.testing.assert_array_equal(run(text, F32(1)), [16])


def test_loop_body_may_declare_one_element_vectors() -> None:
    text = """
    func @main(%n: i64[1], %x: f32[]) -> (%y: f32[], %at: i64[k, 1]) {
      %c = const [true] : bool[1]
      %y, %at = loop %n, %c, %x : f32[], i64[k, 1]
        body(%i: i64[1], %going: bool[1], %s: f32[]) -> (%again, %t, %at) {
          %t = add %s, %s : f32[]
          return %going, %t, %i
        }
      return %y, %at
    }"""
    y, at = run(text, np.array([3]), F32(1))
    assert y == 8
    np.testing.assert_array_equal(at, [[0], [1], [2]])


def test_loop_output_that_changes_its_shape_is_an_error() -> None:
    text = """
    func @main(%x: f32[n]) -> (%y: f32[n]) {
      %n = const 2 : i64[]
      %y, %all = loop %n, none, %x : f32[n], f32[*]
        body(%i: i64[], %going: bool[], %s: f32[n]) -> (%again, %t, %all) {
          %t = concat %s, %s {axis=0} : f32[*]
          return %going, %t, %s
        }
      %z = add %y, %all : f32[*]
      return %z
    }"""
    with pytest.raises(ExecutionError, match="changes its shape between iterations"):
        run(text, np.zeros(2, F32))


SCAN = """
module onnx opsets={"": 21} <ir_version=10>
func @main(%s: f32[3], %a: f32[%A%], %b: f32[%B%]) -> (%final: f32[3], %sums: f32[%S%], %products: f32[%P%]) {
  %final, %sums, %products = scan %s, %a, %b {num_scan_inputs=2%OPTIONS%} : f32[3], f32[%S%], f32[%P%]
    body(%state: f32[3], %x: f32[3], %y: f32[3]) -> (%after: f32[3], %sum: f32[3], %product: f32[3]) {
      %scaled = mul %x, %y : f32[3]
      %after = add %state, %scaled : f32[3]
      %sum = identity %after : f32[3]
      %product = sub %after, %s : f32[3]
      return %after, %sum, %product
    }
  return %final, %sums, %products
}"""


@pytest.mark.parametrize(
    ("options", "dims"),
    [
        ("", ("4, 3", "4, 3", "4, 3", "4, 3")),
        (", scan_input_directions=[1, 0]", ("4, 3", "4, 3", "4, 3", "4, 3")),
        (", scan_input_axes=[1, -2], scan_output_axes=[-1, 0]", ("3, 4", "4, 3", "3, 4", "4, 3")),
        (", scan_output_directions=[1, 0], scan_output_axes=[1, 1]", ("4, 3", "4, 3", "3, 4", "3, 4")),
    ],
)
def test_scan(options: str, dims: tuple[str, str, str, str]) -> None:
    text = SCAN.replace("%OPTIONS%", options)
    for mark, shape in zip(("%A%", "%B%", "%S%", "%P%"), dims, strict=True):
        text = text.replace(mark, shape)
    random = np.random.default_rng(0)
    a, b = [random.standard_normal([int(d) for d in shape.split(",")]).astype(F32) for shape in dims[:2]]
    check_against_onnxruntime(text, random.standard_normal(3).astype(F32), a, b)


def test_scan_of_different_lengths_is_an_error() -> None:
    text = SCAN.replace("%OPTIONS%", "").replace("%A%", "m, 3").replace("%B%", "n, 3")
    text = text.replace("%S%", "k, 3").replace("%P%", "k, 3")
    with pytest.raises(ExecutionError, match=r"different lengths: \[2, 4\]"):
        run(text, np.zeros(3, F32), np.zeros((2, 3), F32), np.zeros((4, 3), F32))


def test_scan_of_nothing_stacks_nothing() -> None:
    text = SCAN.replace("%OPTIONS%", ", scan_output_axes=[1, 0]").replace("%A%", "n, 3").replace("%B%", "n, 3")
    text = text.replace("%S%", "3, k").replace("%P%", "k, 3")
    final, sums, products = run(text, np.ones(3, F32), np.zeros((0, 3), F32), np.zeros((0, 3), F32))
    np.testing.assert_array_equal(final, [1, 1, 1])
    assert (sums.shape, products.shape) == ((3, 0), (0, 3))


def test_if_runs_one_branch_and_captures() -> None:
    text = """
    module onnx opsets={"": 21} <ir_version=10>
    func @main(%c: bool[], %x: f32[2]) -> (%y: f32[2]) {
      %h = exp %x : f32[2]
      %y = if %c : f32[2]
        then_branch() -> (%t: f32[2]) {
          %t = neg %h : f32[2]
          return %t
        }
        else_branch() -> (%e: f32[2]) {
          %e = identity %x : f32[2]
          return %e
        }
      return %y
    }"""
    for condition in (True, False):
        check_against_onnxruntime(text, np.array(condition), np.array([1, 2], F32))
    executable = compile_module(tilewright.parse(text))
    names: list[str] = []
    executable.trace = lambda op, operands, results: names.append(op.name)  # type: ignore[attr-defined]
    executable(True, np.zeros(2, F32))
    assert names == ["exp", "neg", "if"]


def test_if_needs_one_truth_value() -> None:
    text = """
    func @main(%c: bool[n], %x: f32[2]) -> (%y: f32[2]) {
      %y = if %c : f32[2]
        then_branch() -> (%t) { return %x }
        else_branch() -> (%e) { return %x }
      return %y
    }"""
    assert len(run(text, np.array([True]), np.zeros(2, F32))) == 1
    with pytest.raises(ExecutionError, match=r"must be one element, got bool\[2\]"):
        run(text, np.array([True, False]), np.zeros(2, F32))


MAP = """
func @main(%s: sequence<f32[*]>, %t: sequence<f32[*]>, %k: f32[]) -> (
  %sums: sequence<f32[*]>, %sizes: sequence<i64[]>
) {
  %sums, %sizes = sequence_map %s, %t, %k : sequence<f32[*]>, sequence<i64[]>
    body(%a: f32[*], %b: f32[*], %c: f32[]) -> (%sum, %size) {
      %d = add %a, %b : f32[*]
      %sum = mul %d, %c : f32[*]
      %size = size %a : i64[]
      return %sum, %size
    }
  return %sums, %sizes
}"""


def test_sequence_map_zips_sequences_and_repeats_tensors() -> None:
    first = [np.ones(2, F32), np.ones((2, 3), F32)]
    sums, sizes = run(MAP, first, [np.full(2, 2, F32), np.full((2, 3), 3, F32)], F32(10))
    np.testing.assert_array_equal(sums[0], [30, 30])
    np.testing.assert_array_equal(sums[1], np.full((2, 3), 40))
    assert [int(size) for size in sizes] == [2, 6]
    assert run(MAP, [], [], F32(1)) == [[], []]
    with pytest.raises(ExecutionError, match="different lengths: 2, 1"):
        run(MAP, first, first[:1], F32(1))


# ---- model-local functions -------------------------------------------------------------------------------------------

FUNCTIONS = """
module onnx opsets={"": 21, "my": 1} <ir_version=10>
func @main(%x: f32[3], %y: f32[3]) -> (%a: f32[3], %b: f32[3], %c: f32[3]) {
  %a = my.Scaled %x, %y {slope=0.5} : f32[3]
  %b = my.Scaled %x, %y : f32[3]
  %c = my.Twice %x {factor=3.0} : f32[3]
  return %a, %b, %c
}
func @my::Scaled opsets={"": 21} attributes={slope=0.25} (%p: unknown, %q: unknown) -> (%r) {
  %l = leaky_relu %p {alpha=$slope: float} : unknown
  %r = add %l, %q : unknown
  return %r
}
func @my::Twice opsets={"": 21, "my": 1} attributes={factor} (%p: unknown) -> (%r) {
  %k = const $factor: float : unknown <constant_node="value_float">
  %s = my.Scaled %p, %k {slope=$factor: float} : unknown
  %r = my.Scaled %s, %k : unknown
  return %r
}"""


def test_functions_have_attributes_with_defaults_and_call_functions() -> None:
    x, y = np.array([-4, 0, 4], F32), np.array([1, 1, 1], F32)
    a, b, c = check_against_onnxruntime(FUNCTIONS, x, y)
    np.testing.assert_array_equal(a, [-1, 1, 5])
    np.testing.assert_array_equal(b, [0, 1, 5])
    np.testing.assert_array_equal(c, [0.75, 6, 10])


def test_a_reference_to_an_attribute_that_was_not_given_is_left_out() -> None:
    text = """
    module onnx opsets={"": 21, "my": 1}
    func @main(%x: f32[2, 3]) -> (%y: f32[*], %z: f32[*]) {
      %y = my.Turn %x : f32[*]
      %z = my.Turn %x {order=[0, 1]} : f32[*]
      return %y, %z
    }
    func @my::Turn opsets={"": 21} attributes={order} (%p: unknown) -> (%r) {
      %r = transpose %p {perm=$order: ints} : unknown
      return %r
    }"""
    y, z = run(text, np.zeros((2, 3), F32))
    assert (y.shape, z.shape) == ((3, 2), (2, 3))


def test_a_function_may_leave_out_inputs_but_not_take_more() -> None:
    text = """
    module onnx opsets={"": 21, "my": 1}
    func @main(%x: f32[4]) -> (%y: f32[4]) {
      %y = my.Cut %x, %x, %x, %x : f32[4]
      return %y
    }
    func @my::Cut opsets={"": 21} (%p: unknown, %low: unknown, %high: unknown) -> (%r) {
      %r = clip %p, %low, %high : unknown
      return %r
    }"""
    with pytest.raises(ExecutionError, match="takes 3 inputs, the call gives 4"):
        run(text, np.zeros(4, F32))
    text = text.replace("%x, %x, %x, %x", "%x, none, %c").replace("%y = my", "%c = const 2.0 : f32[]\n%y = my")
    np.testing.assert_array_equal(run(text, np.array([-1, 1, 2, 3], F32))[0], [-1, 1, 2, 2])


def test_a_local_function_goes_before_an_operator_of_its_name() -> None:
    text = """
    module onnx opsets={"": 21, "ai.onnx.ml": 3}
    func @main(%x: f32[2]) -> (%y: f32[2]) {
      %y = ai.onnx.ml.Binarizer %x : f32[2]
      return %y
    }
    func @ai.onnx.ml::Binarizer opsets={"": 21} (%p: unknown) -> (%r) {
      %r = neg %p : unknown
      return %r
    }"""
    np.testing.assert_array_equal(run(text, np.array([1, 2], F32))[0], [-1, -2])
