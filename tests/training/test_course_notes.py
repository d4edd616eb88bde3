"""The mathematics that courses on deep learning derive by hand (10-414 and its like), found again in the graphs.

The gradient of a two-layer network is in test_step.py, optimizers step by step in test_optimizers.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import Builder, f32, f64, nn

RANDOM = np.random.default_rng(0)


def run(module: Any, **feeds: np.ndarray) -> dict[str, np.ndarray]:
    result: dict[str, np.ndarray] = tilewright.compile(module, target="reference").run(feeds)
    return result


# ---- ln(x1) + x1 x2 - sin(x2), the usual example of both modes (Baydin et al. 2018, tables 2 and 3) ------------------


def traced() -> Any:
    """v1, ..., v7 of the notes, each an output; v7 is the result."""
    b = Builder()
    v1, v2 = b.input("v1", f64[()]), b.input("v2", f64[()])
    v3, v4, v5 = b.log(v1), v1 * v2, b.sin(v2)
    v6 = v3 + v4
    for name, value in {"v3": v3, "v4": v4, "v5": v5, "v6": v6, "v7": v6 - v5}.items():
        b.output(value, name)
    return b.build()


POINT = {"v1": np.array(2.0), "v2": np.array(5.0)}


def test_the_forward_trace() -> None:
    found = run(traced(), **POINT)
    expected = {"v3": 0.693, "v4": 10.0, "v5": -0.959, "v6": 10.693, "v7": 11.652}
    assert {name: round(float(value), 3) for name, value in found.items()} == expected


def test_the_adjoints_of_the_reverse_trace() -> None:
    names = ["v1", "v2", "v3", "v4", "v5", "v6"]
    found = run(tilewright.gradient(traced(), "v7", names), **POINT)
    expected = {"v1": 5.5, "v2": 1.716, "v3": 1.0, "v4": 1.0, "v5": -1.0, "v6": 1.0}
    assert {name: round(float(found[f"{name}_grad"]), 3) for name in names} == expected


@pytest.mark.parametrize(("direction", "expected"), [((1.0, 0.0), 5.5), ((0.0, 1.0), 1.716)])
def test_the_tangents_of_the_forward_mode(direction: tuple[float, float], expected: float) -> None:
    graph = tilewright.jvp(traced(), ["v4", "v6", "v7"], ["v1", "v2"])
    tangents = {f"v{index}_tangent": np.array(number) for index, number in enumerate(direction, start=1)}
    found = run(graph, **POINT, **tangents)
    assert round(float(found["v7_tangent"]), 3) == expected
    x1, x2 = direction
    assert found["v4_tangent"] == pytest.approx(5 * x1 + 2 * x2)
    assert found["v6_tangent"] == pytest.approx(x1 / 2 + 5 * x1 + 2 * x2)


def test_partial_adjoints_are_summed_over_uses() -> None:
    """v2 and v3 both read v1: its adjoint is the sum of what comes back from each (the notes' multiple pathways)."""
    b = Builder()
    v1 = b.input("v1", f64[()])
    v2, v3 = v1 * 2.0, b.exp(v1)
    b.output(v2 * v3, "v4")
    found = run(tilewright.gradient(b.build(), "v4", ["v1"]), v1=np.array(0.5))
    assert found["v1_grad"] == pytest.approx(2 * np.exp(0.5) + 2 * 0.5 * np.exp(0.5))


def test_a_gradient_of_a_gradient() -> None:
    b = Builder()
    x = b.input("x", f64[()])
    b.output(x * x * x, "y")
    once = tilewright.gradient(b.build(), "y", ["x"])
    twice = tilewright.gradient(once, "x_grad", ["x"])
    assert list(run(twice, x=np.array(3.0)).values()) == pytest.approx([27.0, 27.0, 18.0])


# ---- softmax regression ----------------------------------------------------------------------------------------------


def test_softmax_regression() -> None:
    """X^T (softmax(X W) - onehot) / B"""
    x, w = RANDOM.standard_normal((7, 4)).astype(np.float32), RANDOM.standard_normal((4, 3)).astype(np.float32)
    target = RANDOM.integers(0, 3, 7)
    b = Builder()
    scores = b.input("x", f32[7, 4]) @ b.const(w, name="w")
    b.output(nn.CrossEntropyLoss()(scores, b.const(target)), "loss")
    found = run(tilewright.gradient(b.build(), "loss", ["w"]), x=x)["w_grad"]
    exponentials = np.exp(x @ w)
    softmax = exponentials / exponentials.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found, x.T @ (softmax - np.eye(3)[target]) / 7, rtol=1e-4, atol=1e-6)


def test_the_hessian_of_softmax_regression() -> None:
    """H v = X^T (diag(p) - p p^T)(X v) / B, column by column, through the product with a vector."""
    x, w, v = (RANDOM.standard_normal(shape) for shape in ((7, 4), (4, 3), (4, 3)))
    b = Builder()
    scores = b.input("x", f64[7, 4]) @ b.const(w, name="w")
    b.output(nn.CrossEntropyLoss()(scores, b.const(RANDOM.integers(0, 3, 7))), "loss")
    found = run(tilewright.hvp(b.build(), "loss", ["w"]), x=x, w_vector=v)["w_hvp"]
    exponentials = np.exp(x @ w)
    p = exponentials / exponentials.sum(axis=1, keepdims=True)
    moved = x @ v
    np.testing.assert_allclose(found, x.T @ (p * moved - p * (p * moved).sum(axis=1, keepdims=True)) / 7, rtol=1e-9)


# ---- convolution -----------------------------------------------------------------------------------------------------


def convolution(padding: int) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
    x, w = RANDOM.standard_normal((2, 3, 6, 6)), RANDOM.standard_normal((4, 3, 3, 3))
    b = Builder()
    y = b.conv(b.input("x", f64[2, 3, 6, 6]), b.const(w, name="w"), pads=[padding] * 4)
    b.output(y, "y")
    size = 6 + 2 * padding - 2
    return tilewright.vjp(b.build(), ["y"], ["x", "w"]), x, w, RANDOM.standard_normal((2, 4, size, size))


@pytest.mark.parametrize("padding", [0, 1])
def test_the_adjoint_in_x_is_a_convolution_with_the_flipped_kernel(padding: int) -> None:
    graph, x, w, v = convolution(padding)
    flipped = w[:, :, ::-1, ::-1].transpose(1, 0, 2, 3)
    b = Builder()
    b.output(b.conv(b.const(v), b.const(np.ascontiguousarray(flipped)), pads=[2 - padding] * 4), "y")
    expected = run(b.build())["y"]
    np.testing.assert_allclose(run(graph, x=x, y_cotangent=v)["x_grad"], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("padding", [0, 1])
def test_the_adjoint_in_w_is_im2col_transposed(padding: int) -> None:
    graph, x, w, v = convolution(padding)
    around = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(around, (3, 3), axis=(2, 3))
    im2col = windows.transpose(0, 2, 3, 1, 4, 5).reshape(-1, 27)
    rows = v.transpose(0, 2, 3, 1).reshape(-1, 4)
    found = run(graph, x=x, y_cotangent=v)
    forward = found["y"].transpose(0, 2, 3, 1).reshape(-1, 4)
    np.testing.assert_allclose(forward, im2col @ w.reshape(4, 27).T, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found["w_grad"], (im2col.T @ rows).T.reshape(w.shape), rtol=1e-10)
