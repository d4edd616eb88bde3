"""Folding into linear operators keeps results: every form against the unchanged model, and what must not be folded."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
from tilewright import Builder, PassManager, f16, f32, f64

RANDOM = np.random.default_rng(7)
PIPELINE = "fold-batch-norm,fold-scale-shift,fold-pads,matmul-to-gemm,dce"


def values(*shape: int, low: float = -1.0, high: float = 1.0) -> np.ndarray:
    return RANDOM.uniform(low, high, shape).astype(np.float32)


def batch_norm(b, x, channels):
    return b.batch_normalization(
        x, values(channels), values(channels), values(channels), values(channels, low=0.2, high=2.0), epsilon=1e-3
    )


def names(model) -> list[str]:
    return [op.name for op in model.walk() if op.name not in ("const", "return")]


def run(model, feeds):
    return tilewright.compile(model, target="reference").run(feeds)["y"]


def check(build, shape, expected_names, dtype=f32):
    """Build a model of one input, optimize it, and compare operators and results."""
    b = Builder()
    x = b.input("x", dtype[("n", *shape)])
    b.output(build(b, x), "y")
    model = b.build()
    feeds = {"x": RANDOM.uniform(-1, 1, (2, *shape)).astype(dtype.numpy)}
    before = run(model, feeds)
    PassManager.parse(PIPELINE).run(model)
    after = run(model, feeds)
    assert names(model) == expected_names
    assert after.shape == before.shape
    assert after.dtype == before.dtype
    largest = float(np.abs(before[np.isfinite(before)]).max(initial=1.0))
    np.testing.assert_allclose(after, before, rtol=0, atol=2e-6 * largest)


LINEAR_FORMS = {
    "conv": (lambda b, x: b.conv(x, values(6, 4, 3, 3), pads=(1, 1, 1, 1)), (4, 7, 7), "conv"),
    "conv with bias": (lambda b, x: b.conv(x, values(6, 4, 3, 3), values(6)), (4, 7, 7), "conv"),
    "grouped conv": (lambda b, x: b.conv(x, values(6, 2, 3, 3), group=2), (4, 7, 7), "conv"),
    "1-d conv": (lambda b, x: b.conv(x, values(6, 4, 3)), (4, 9), "conv"),
    "conv_transpose": (lambda b, x: b.conv_transpose(x, values(4, 6, 3, 3)), (4, 5, 5), "conv_transpose"),
    "grouped conv_transpose": (
        lambda b, x: b.conv_transpose(x, values(4, 3, 3, 3), values(6), group=2),
        (4, 5, 5),
        "conv_transpose",
    ),
    "gemm": (lambda b, x: b.gemm(x, values(4, 6), values(6), alpha=0.5, beta=3.0), (4,), "gemm"),
    "gemm, transposed": (lambda b, x: b.gemm(x, values(6, 4), transB=1), (4,), "gemm"),
    "matmul": (lambda b, x: x @ values(4, 6), (4,), "gemm"),
}


@pytest.mark.parametrize("form", LINEAR_FORMS)
def test_batch_norm_after(form):
    linear, shape, result = LINEAR_FORMS[form]
    check(lambda b, x: batch_norm(b, linear(b, x), 6), shape, [result])


@pytest.mark.parametrize("form", LINEAR_FORMS)
@pytest.mark.parametrize("operator", ["mul", "div", "add", "sub"])
@pytest.mark.parametrize("constant", ["number", "channels"])
def test_scale_and_shift_after(form, operator, constant):
    linear, shape, result = LINEAR_FORMS[form]
    spatial = len(shape) - 1
    operand = values(1, low=0.5) if constant == "number" else values(6, *(1,) * spatial, low=0.5)
    check(lambda b, x: getattr(b, operator)(linear(b, x), operand), shape, [result])


@pytest.mark.parametrize("groups", [1, 2])
def test_batch_norm_before_an_unpadded_convolution(groups):
    weight = values(6, 4 // groups, 3, 3)
    check(lambda b, x: b.conv(batch_norm(b, x, 4), weight, group=groups), (4, 7, 7), ["conv"])


@pytest.mark.parametrize("transposed", [0, 1])
def test_batch_norm_before_gemm(transposed):
    weight = values(6, 4) if transposed else values(4, 6)
    check(lambda b, x: b.gemm(batch_norm(b, x, 4), weight, transB=transposed, alpha=0.5), (4,), ["gemm"])


def test_float64_is_folded_in_float64():
    weight = RANDOM.uniform(-1, 1, (4, 6))
    check(lambda b, x: (x @ weight) * RANDOM.uniform(1, 2, (6,)), (4,), ["gemm"], f64)


@pytest.mark.parametrize(
    ("build", "kept"),
    [
        # A constant with more dims than the result widens it.
        (lambda b, x: b.conv(x, values(6, 4, 1, 1)) * values(2, 1, 6, 1, 1), ["conv", "mul"]),
        # A constant along the width is not one per channel.
        (lambda b, x: b.conv(x, values(6, 4, 1, 1)) * values(7), ["conv", "mul"]),
        # One output channel would become six.
        (lambda b, x: b.conv(x, values(1, 4, 1, 1)) * values(6, 1, 1), ["conv", "mul"]),
        # Dividing by zero is not multiplying by its inverse.
        (lambda b, x: b.conv(x, values(6, 4, 1, 1)) / np.float32(0), ["conv", "div"]),
        # number - conv is not conv - number.
        (lambda b, x: 1.0 - b.conv(x, values(6, 4, 1, 1)), ["conv", "sub"]),
        (lambda b, x: 1.0 / b.conv(x, values(6, 4, 1, 1)), ["conv", "div"]),
        # Training mode normalizes by the batch's own statistics.
        (
            lambda b, x: b.batch_normalization(
                b.conv(x, values(6, 4, 1, 1)), *(values(6, low=0.5) for _ in range(4)), training_mode=1, outputs=3
            )[0],
            ["conv", "batch_normalization"],
        ),
    ],
)
@pytest.mark.refusal
def test_left_alone(build, kept):
    check(build, (4, 7, 7), kept)


@pytest.mark.refusal
def test_shared_weights_are_left_alone():
    weight_values = values(6, 4, 1, 1)

    def build(b, x):
        weight = b.const(weight_values)
        return b.conv(x, weight) * 2.0 + b.conv(x, weight) * 3.0

    check(build, (4, 5, 5), ["conv", "mul", "conv", "mul", "add"])


@pytest.mark.parametrize(
    ("window", "value", "folded"),
    [
        (lambda b, x: b.conv(x, values(6, 4, 3, 3), pads=(0, 1, 0, 1)), 0.0, ["conv"]),
        (lambda b, x: b.conv(x, values(6, 4, 3, 3), auto_pad="VALID"), 0.0, ["conv"]),
        (lambda b, x: b.conv(x, values(6, 4, 3, 3), auto_pad="SAME_UPPER"), 0.0, ["pad", "conv"]),
        (lambda b, x: b.conv(x, values(6, 4, 3, 3)), 1.0, ["pad", "conv"]),
        (lambda b, x: b.average_pool(x, kernel_shape=(3, 3)), 0.0, ["average_pool"]),
        (lambda b, x: b.average_pool(x, kernel_shape=(3, 3), pads=(1, 1, 1, 1)), 0.0, ["pad", "average_pool"]),
        (
            lambda b, x: b.average_pool(x, kernel_shape=(4, 4), pads=(1, 1, 1, 1), count_include_pad=1),
            0.0,
            ["average_pool"],
        ),
        (
            lambda b, x: b.average_pool(x, kernel_shape=(3, 3), strides=(2, 2), ceil_mode=1),
            0.0,
            ["pad", "average_pool"],
        ),
        (lambda b, x: b.max_pool(x, kernel_shape=(3, 3)), 0.0, ["pad", "max_pool"]),
        (lambda b, x: b.max_pool(x, kernel_shape=(3, 3)), -np.inf, ["max_pool"]),
        (lambda b, x: b.max_pool(x, kernel_shape=(1, 1)), -np.inf, ["pad", "max_pool"]),
    ],
)
def test_pads(window, value, folded):
    pads = np.array([0, 0, 1, 2, 0, 0, 0, 1], np.int64)
    check(lambda b, x: window(b, b.pad(x, pads, np.float32(value))), (4, 6, 6), folded)


@pytest.mark.parametrize(
    ("pads", "mode"),
    [
        ((0, 1, 1, 1, 0, 0, 0, 0), "constant"),
        ((0, 0, -1, 0, 0, 0, 0, 0), "constant"),
        ((0, 0, 1, 1, 0, 0, 1, 1), "edge"),
    ],
)
@pytest.mark.refusal
def test_pads_that_conv_does_not_have(pads, mode):
    channels = 5 if pads[1] else 4
    check(
        lambda b, x: b.conv(b.pad(x, np.array(pads, np.int64), mode=mode), values(6, channels, 3, 3)),
        (4, 6, 6),
        ["pad", "conv"],
    )


def test_matmul_with_a_computed_addend_becomes_gemm():
    def build(b, x):
        return b.matmul(x, values(4, 6)) + b.relu(b.const(values(6)))

    check(build, (4,), ["relu", "gemm"])


@pytest.mark.parametrize("shape", [(3, 1), (2, 1, 6)])
@pytest.mark.refusal
def test_matmul_with_an_addend_that_widens_is_left_alone(shape):
    """n rows against 3: whether they agree is not known; and three dims against two."""
    b = Builder()
    x = b.input("x", f32["n", 4])
    b.output(b.matmul(x, values(4, 6)) + b.input("c", f32[shape]), "y")
    model = b.build()
    PassManager.parse(PIPELINE).run(model)
    assert names(model) == ["matmul", "add"]


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("dtype", "weight", "factor", "folds"),
    [
        (f16, 300.0, 300.0, False), (f16, 1.0, 1e-5, False), (f16, 1.0, 0.125, True),
        (f32, 1e25, 1e25, False), (f32, 1e-30, 1e-30, False), (f32, 1.0, 0.125, True),
    ],
)  # fmt: skip
@pytest.mark.parametrize("moved", [False, True])
def test_weights_stay_in_the_range_of_their_type(dtype, weight: float, factor: float, folds: bool, moved: bool) -> None:
    b = Builder()
    x = b.input("x", dtype[2, 4])
    y = b.matmul(x, np.full((4, 4), weight, dtype.numpy))
    y = b.transpose(b.reshape(y, [2, 2, 2]), perm=[1, 0, 2]) if moved else y
    b.output(b.mul(y, np.asarray(factor, dtype.numpy)), "y")
    model = b.build()
    PassManager.parse("fold-scale-shift,dce").run(model)
    assert ("mul" not in names(model)) == folds


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("operator", "before"),
    [("conv", False), ("gemm", False), ("conv_transpose", False), ("conv", True), ("gemm", True)],
)
@pytest.mark.parametrize(
    ("dtype", "weight", "scale", "shift", "folds"),
    [
        (f32, 1e-20, 1e-25, 0.0, False), (f32, 1e25, 1e25, 0.0, False), (f16, 300.0, 300.0, 0.0, False),
        (f32, 1.0, 1.0, 0.5, True), (f16, 0.5, 2.0, 0.5, True), (f32, 3e38, 1.0, 3e38, False),
    ],
)  # fmt: skip
def test_normalized_weights_stay_in_the_range_of_their_type(
    dtype, weight: float, scale: float, shift: float, folds: bool, operator: str, before: bool
) -> None:
    b = Builder()
    sizes = [2, 4] if operator == "gemm" else [2, 4, 3, 3]
    x = b.input("x", dtype[tuple(sizes)])
    weights = np.full([4, 4] if operator == "gemm" else [4, 4, 1, 1], weight, dtype.numpy)
    bias = np.full(4, shift, dtype.numpy)

    def normalized(value):
        # The last channel is dead, as it may be after training.
        factors = np.array([scale, scale, scale, 1e-7 * scale], dtype.numpy)
        zeros, ones = np.zeros(4, dtype.numpy), np.ones(4, dtype.numpy)
        return b.batch_normalization(value, factors, np.full(4, shift, dtype.numpy), zeros, ones, epsilon=0.0)

    def linear(value):
        return getattr(b, operator)(value, weights, bias)

    b.output(linear(normalized(x)) if before else normalized(linear(x)), "y")
    model = b.build()
    PassManager.parse("fold-batch-norm,dce").run(model)
    assert ("batch_normalization" not in names(model)) == folds


def test_a_bias_of_infinity_is_no_obstacle():
    """Some logits are ruled out."""
    term = np.array([0.0, -np.inf, 0.0, 1.0], np.float32)
    b = Builder()
    b.output(b.add(b.matmul(b.input("x", f32["n", 4]), values(4, 4)), b.const(term)), "y")
    model = b.build()
    PassManager.parse("fold-scale-shift,dce").run(model)
    assert names(model) == ["gemm"]
