"""Derivatives through If, Loop and Scan, once and again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gradient_checks import compare, model, normal

import tilewright
from tilewright import Builder, parse
from tilewright.passes.training.check import check_gradients


@pytest.mark.parametrize("limit", [-100.0, 100.0])
def test_only_the_branch_that_runs_counts(limit: float) -> None:
    def build(b: Any, x: Any, w: Any) -> Any:
        condition = b.greater(b.reduce_sum(x, keepdims=0), limit)
        return b.if_(condition, lambda: (x * x * w, b.exp(x)), lambda: (b.sin(w), b.neg(x)))

    compare(build, {"x": normal(3), "w": normal(3, seed=1)}, wrt=["x", "w"])


def test_a_branch_without_the_variable_gives_zeros() -> None:
    def build(b: Any, x: Any, y: Any) -> Any:
        return b.if_(b.greater(b.reduce_sum(x, keepdims=0), 0.0), lambda: b.mul(y, y), lambda: b.tanh(x))

    x, y = np.array([0.5, 0.2]), normal(2)
    graph = tilewright.vjp(model(build, {"x": x, "y": y}), ["y0"], ["x", "y"])
    found = tilewright.compile(graph, target="reference").run({"x": x, "y": y, "y0_cotangent": np.ones(2)})
    assert found["x_grad"].tolist() == [0.0, 0.0]
    np.testing.assert_allclose(found["y_grad"], 2 * y)


def power(b: Any, x: Any, w: Any, count: Any = None) -> Any:
    """Three states (one an integer, one that stays as it is) and two stacked results."""

    def body(i: Any, c: Any, s: Any, n: Any, fixed: Any) -> Any:
        t = b.tanh(s * w + fixed)
        return c, t, b.add(n, 1), fixed, t * x, s

    return b.loop(3 if count is None else count, [x, b.const(np.array(0)), b.mul(w, 0.5)], body)


def test_loops() -> None:
    def build(b: Any, x: Any, w: Any) -> Any:
        last, _, fixed, stacked, states = power(b, x, w)
        return last, fixed, stacked, states

    compare(build, {"x": normal(4), "w": normal(4, seed=1)}, open_dims=(False,))
    compare(lambda b, x, w: build(b, x, w)[2], {"x": normal(4), "w": normal(4, seed=1)}, open_dims=(False,))


def test_a_loop_of_unknown_length() -> None:
    def build(b: Any, x: Any, w: Any, count: Any) -> Any:
        last, _, _, stacked, _ = power(b, x, w, count)
        return last, stacked

    feeds = {"x": normal(2), "w": normal(2, seed=1)}
    for count in (0, 1, 4):
        given = {**feeds, "count": np.array(count)}
        module = model(lambda b, x, w, count: build(b, x, w, count)[0] + 0.0 * w, given)
        assert check_gradients(module, given, wrt=["x", "w"]).passed
    compare(build, {**feeds, "count": np.array(4)}, wrt=["x", "w"], open_dims=(False,))


def test_a_loop_that_ends_by_its_condition() -> None:
    def build(b: Any, x: Any) -> Any:
        def body(i: Any, c: Any, s: Any) -> Any:
            t = s * 1.5 + b.sin(x)
            return b.less(b.reduce_sum(b.abs(t), keepdims=0), 20.0), t

        return b.loop(50, [x], body, True)

    compare(build, {"x": normal(3)}, open_dims=(False,))


def test_a_state_that_grows_is_refused_by_name() -> None:
    def build(b: Any, x: Any) -> Any:
        return b.loop(3, [x], lambda i, c, s: (c, b.concat(s, x, axis=0)))

    with pytest.raises(tilewright.TilewrightError, match=r"its state %.* changes its shape"):
        tilewright.vjp(model(build, {"x": normal(3)}), ["y0"], ["x"])


def test_a_loop_in_a_loop_in_a_branch() -> None:
    def build(b: Any, x: Any, w: Any) -> Any:
        def inner(i: Any, c: Any, s: Any) -> Any:
            return c, b.sin(s) * w

        def outer(i: Any, c: Any, s: Any) -> Any:
            return c, b.loop(2, [s + x], inner)

        return b.if_(b.greater(b.reduce_sum(x, keepdims=0), -99.0), lambda: b.loop(2, [x], outer), lambda: b.neg(x))

    compare(build, {"x": normal(3), "w": normal(3, seed=1)}, open_dims=(False,), directions=1)


SCAN = """
module onnx opsets={"": 21}
func @main(%h: f64[2], %x: f64[SHAPE], %w: f64[2]) -> (%last: f64[2], %y: f64[...]) {
  %last, %y = scan %h, %x {num_scan_inputs=1OPTIONS} : f64[2], f64[OUT]
    body(%s: f64[2], %e: f64[2]) -> (%next, %seen) {
      %0 = mul %s, %w : f64[2]
      %1 = add %0, %e : f64[2]
      %next = tanh %1 : f64[2]
      %seen = mul %next, %e : f64[2]
      return %next, %seen
    }
  return %last, %y
}
"""


@pytest.mark.parametrize(
    ("shape", "options", "out"),
    [
        ("3, 2", "", "3, 2"),
        ("2, 3", ", scan_input_axes=[1]", "3, 2"),
        ("3, 2", ", scan_input_directions=[1]", "3, 2"),
        ("3, 2", ", scan_output_axes=[1], scan_output_directions=[1]", "2, 3"),
        ("2, 3", ", scan_input_axes=[-1], scan_input_directions=[1], scan_output_axes=[-1]", "2, 3"),
    ],
)
def test_scans(shape: str, options: str, out: str) -> None:
    text = (
        SCAN.replace("SHAPE", shape).replace("OPTIONS", options).replace("OUT", out).replace("f64[...]", f"f64[{out}]")
    )
    size = tuple(int(item) for item in shape.split(","))
    feeds = {"h": normal(2), "x": normal(*size), "w": normal(2, seed=1)}
    report = check_gradients(parse(text), feeds)
    assert report.passed, report


def test_the_gradient_of_a_loop_is_differentiated_again() -> None:
    def build(b: Any, x: Any, w: Any) -> Any:
        def body(i: Any, c: Any, s: Any) -> Any:
            return c, b.tanh(s * w + x)

        return b.reduce_sum(b.loop(2, [x], body), keepdims=0)

    feeds = {"x": normal(2), "w": normal(2, seed=1)}
    graph = tilewright.gradient(model(build, feeds), "y0", ["x", "w"])
    report = check_gradients(graph, feeds, of=["x_grad", "w_grad"], wrt=["x", "w"])
    assert report.passed, report


def test_stock_runtimes_run_the_backward_scan() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    from tilewright import f32

    x = normal(3, 2, 4).astype(np.float32)
    w = {"w": normal(1, 12, 4).astype(np.float32), "r": normal(1, 12, 3).astype(np.float32)}
    b = Builder("lstm")
    tensor = b.input("x", f32[3, 2, 4])
    found = b.lstm(tensor, b.const(w["w"], name="w"), b.const(w["r"], name="r"), hidden_size=3, outputs=3)
    b.output(b.reduce_sum(b.mul(found[0], found[0]), keepdims=0), "loss")
    graph = tilewright.gradient(b.build(), "loss", ["x", "w", "r"])
    expected = tilewright.compile(graph, target="reference").run({"x": x})
    for level in (0, 2):
        tilewright.optimize(graph, level=level)
        session = onnxruntime.InferenceSession(tilewright.to_bytes(graph), providers=["CPUExecutionProvider"])
        for output, value in zip(session.get_outputs(), session.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(value, expected[output.name], rtol=2e-4, atol=2e-5)
