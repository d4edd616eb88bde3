"""Quantized models on the target cpu: computed with integers, with the numbers that ONNX's meaning gives."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import f32, i8, i32, u8
from tilewright.backends.target import compile_module

random = np.random.default_rng(3)
LIMITS = {np.uint8: (0, 256), np.int8: (-128, 128)}
DTYPES = {np.uint8: u8, np.int8: i8}


def whole(dtype: Any, *shape: int) -> np.ndarray:
    """Random bytes, the least and the greatest among them."""
    array = random.integers(*LIMITS[dtype], shape).astype(dtype)
    array.reshape(-1)[:2] = LIMITS[dtype][0], LIMITS[dtype][1] - 1
    return array


def run(builder: Any, **feeds: np.ndarray) -> tuple[Any, dict[str, Any]]:
    """What the cpu target gives, and its report; any number of threads must give the same."""
    module = builder.build()
    executable = compile_module(module, target="cpu", threads=1)
    results = executable.run(feeds)
    again = compile_module(module, target="cpu", threads=3).run(feeds)
    assert all(np.array_equal(results[name], again[name]) for name in results)
    assert executable.report()["host_steps"] == []
    return results, executable.report()


def reference(builder: Any, **feeds: np.ndarray) -> Any:
    return compile_module(builder.build(), target="reference").run(feeds)


def integer_steps(report: dict[str, Any]) -> int:
    return sum(count for name, count in report["kernels"].items() if name.startswith(("integers", "depthwise")))


@pytest.mark.parametrize("left", [np.uint8, np.int8])
@pytest.mark.parametrize("right", [np.uint8, np.int8])
@pytest.mark.parametrize("is_weight", [True, False])
@pytest.mark.parametrize("shape", [(3, 5, 9), (1, 64, 64), (37, 130, 33)])
def test_matmul_integer(shape: tuple[int, int, int], is_weight: bool, right: Any, left: Any) -> None:
    m, k, n = shape
    a, b, zero = whole(left, 2, m, k), whole(right, k, n), whole(left, 2)[:1]
    model = tilewright.Builder()
    x = model.input("x", DTYPES[left][2, m, k])
    y = model.const(b) if is_weight else model.input("y", DTYPES[right][k, n])
    model.output(model.matmul_integer(x, y, model.const(zero.reshape(())), model.const(whole(right, n))), "z")
    feeds = {"x": a} if is_weight else {"x": a, "y": b}
    results, report = run(model, **feeds)
    assert integer_steps(report)
    assert np.array_equal(results["z"], reference(model, **feeds)["z"])


def test_stacks_of_products_with_zero_points_of_rows() -> None:
    a, b = whole(np.uint8, 2, 3, 7, 20), whole(np.int8, 2, 3, 20, 6)
    model = tilewright.Builder()
    x, y = model.input("x", u8[2, 3, 7, 20]), model.input("y", i8[2, 3, 20, 6])
    zero = model.const(whole(np.uint8, 2, 3, 7, 1))
    model.output(model.matmul_integer(x, y, zero, model.const(whole(np.int8, 2, 3, 1, 6))), "z")
    model.output(model.matmul_integer(model.transpose(x, perm=[0, 1, 2, 3]), y), "w")
    results, _ = run(model, x=a, y=b)
    expected = reference(model, x=a, y=b)
    assert all(np.array_equal(results[name], expected[name]) for name in "zw")


WINDOWS = [
    ((8, 4, 3, 3), {"pads": [1, 1, 1, 1]}), ((8, 4, 3, 3), {"strides": [2, 2], "pads": [0, 1, 1, 0]}),
    ((8, 4, 1, 1), {}), ((8, 4, 1, 1), {"strides": [2, 2]}), ((40, 4, 2, 3), {"dilations": [2, 2]}),
    ((8, 2, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}), ((4, 1, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}),
    ((4, 1, 5, 5), {"group": 4, "strides": [2, 2], "auto_pad": "SAME_UPPER"}), ((8, 1, 3, 3), {"group": 4}),
]  # fmt: skip


@pytest.mark.parametrize(("filters", "attributes"), WINDOWS)
@pytest.mark.parametrize("left", [np.uint8, np.int8])
@pytest.mark.parametrize("is_weight", [True, False])
def test_conv_integer(filters: tuple[int, ...], attributes: dict[str, Any], is_weight: bool, left: Any) -> None:
    x, w, zero = whole(left, 2, 4, 9, 10), whole(np.int8, *filters), whole(left, 2)[1:]
    model = tilewright.Builder()
    image, number = model.input("x", DTYPES[left][2, 4, 9, 10]), model.input("zero", DTYPES[left][()])
    given = model.const(w) if is_weight else model.input("w", i8[filters])
    constant = model.const(zero.reshape(()))
    model.output(model.conv_integer(image, given, constant, **attributes), "y")
    zeros = model.const(whole(np.int8, filters[0]))
    model.output(model.conv_integer(image, given, number, zeros, **attributes), "z")
    feeds = {"x": x, "zero": zero.reshape(())} | ({} if is_weight else {"w": w})
    results, report = run(model, **feeds)
    assert integer_steps(report) >= 2
    expected = reference(model, **feeds)
    assert all(np.array_equal(results[name], expected[name]) for name in "yz")


def quantized(model: Any, value: Any, scale: float, zero: int, dtype: Any = np.uint8) -> Any:
    numbers = model.const(np.float32(scale)), model.const(np.asarray(zero, dtype))
    return model.dequantize_linear(model.quantize_linear(value, *numbers), *numbers)


def weights(model: Any, scale: Any, axis: int, *shape: int) -> Any:
    return model.dequantize_linear(model.const(whole(np.int8, *shape)), model.const(scale), axis=axis)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("by_channel", [True, False])
def test_a_network_between_quantizations_has_nothing_but_bytes(by_channel: bool, dtype: Any) -> None:
    """Convolutions, a residual, a depthwise one, a pool: floats in between may round elsewhere, by one step."""
    zero = 3 if dtype is np.uint8 else -125
    model = tilewright.Builder()
    scales = np.linspace(0.001, 0.002, 16, dtype=np.float32) if by_channel else np.float32(0.001)
    x = quantized(model, model.input("x", f32[1, 16, 12, 12]), 0.02, zero, dtype)
    first = quantized(model, model.relu(model.conv(x, weights(model, scales, 0, 16, 16, 1, 1))), 0.03, zero, dtype)
    middle = model.conv(first, weights(model, scales, 0, 16, 1, 3, 3), group=16, pads=[1, 1, 1, 1])
    middle = quantized(model, model.relu(middle), 0.02, zero, dtype)
    last = model.conv(middle, weights(model, scales, 0, 16, 16, 3, 3), pads=[1, 1, 1, 1])
    total = quantized(model, model.add(x, quantized(model, last, 0.05, zero, dtype)), 0.05, zero, dtype)
    pooled = quantized(model, model.max_pool(total, kernel_shape=[2, 2], strides=[2, 2]), 0.05, zero, dtype)
    model.output(pooled, "y")
    feeds = {"x": random.standard_normal((1, 16, 12, 12)).astype(np.float32)}
    results, report = run(model, **feeds)
    assert integer_steps(report) == 3
    expected = reference(model, **feeds)["y"]
    assert np.abs(results["y"] - expected).max() <= 0.05 * 1.001
    assert (results["y"] != expected).mean() < 0.02


def test_quantized_when_it_runs() -> None:
    """DynamicQuantizeLinear and MatMulInteger, for any number of rows."""
    model = tilewright.Builder()
    x = model.input("x", f32["n", 40])
    integers, scale, zero = model.dynamic_quantize_linear(x)
    sums = model.matmul_integer(integers, model.const(whole(np.int8, 40, 24)), zero)
    scaled = model.mul(model.cast(sums, to=f32), model.mul(scale, model.const(np.float32(0.01))))
    model.output(model.add(scaled, model.const(random.random(24).astype(np.float32))), "y")
    for rows in (1, 5, 70):
        feeds = {"x": random.standard_normal((rows, 40)).astype(np.float32)}
        results, report = run(model, **feeds)
        assert integer_steps(report) == 1
        np.testing.assert_allclose(results["y"], reference(model, **feeds)["y"], rtol=1e-5, atol=1e-5)


def test_images_of_any_size() -> None:
    """A plan for each size, the second and third from the trace of the first."""
    model = tilewright.Builder()
    x = quantized(model, model.input("x", f32["n", 8, "h", "w"]), 0.0213, 128)
    first = quantized(model, model.conv(x, weights(model, np.float32(0.0107), 0, 24, 8, 1, 1)), 0.0519, 120)
    depthwise = model.conv(first, weights(model, np.float32(0.0107), 0, 24, 1, 3, 3), group=24, pads=[1, 1, 1, 1])
    middle = quantized(model, depthwise, 0.0531, 128)
    last = model.conv(middle, weights(model, np.float32(0.0107), 0, 8, 24, 3, 3), pads=[1, 1, 1, 1], strides=[2, 2])
    model.output(quantized(model, last, 0.2071, 128), "y")
    executable = compile_module(model.build(), target="cpu", threads=2)
    for shape in ((1, 8, 9, 10), (2, 8, 5, 7), (1, 8, 16, 12), (3, 8, 6, 6), (1, 8, 9, 10)):
        feeds = {"x": random.standard_normal(shape).astype(np.float32)}
        found, expected = executable.run(feeds)["y"], reference(model, **feeds)["y"]
        assert np.abs(found - expected).max() <= 0.2071 * 1.001
        assert (found != expected).mean() < 0.02
    assert executable.report()["host_steps"] == []


def test_sums_that_other_integers_follow() -> None:
    """Epilogues that need sums of integers, not floats: of a depthwise convolution too."""
    model = tilewright.Builder()
    x = model.input("x", u8[1, 4, 6, 6])
    for name, filters, group in (("y", (4, 1, 3, 3), 4), ("z", (5, 4, 3, 3), 1)):
        sums = model.conv_integer(x, model.const(whole(np.int8, *filters)), group=group)
        bias = model.const(random.integers(-999, 999, (filters[0], 1, 1)).astype(np.int32))
        model.output(model.mod(model.add(sums, bias), model.const(np.int32(97))), name)
    feeds = {"x": whole(np.uint8, 1, 4, 6, 6)}
    results, _ = run(model, **feeds)
    expected = reference(model, **feeds)
    assert results["y"].dtype == i32.numpy
    assert all(np.array_equal(results[name], expected[name]) for name in "yz")


def test_the_matrix_unit_can_be_left_alone() -> None:
    """Where there is one, the environment can say no; the same integers come out."""
    program = (
        "import numpy as np, tilewright\n"
        "from tilewright.backends.cpu.machine import machine\n"
        "b = tilewright.Builder()\n"
        "x = b.input('x', tilewright.u8[40, 70])\n"
        "b.output(b.matmul_integer(x, (np.arange(70 * 33) % 251 - 125).astype(np.int8).reshape(70, 33)), 'y')\n"
        "feeds = {'x': (np.arange(40 * 70) % 256).astype(np.uint8).reshape(40, 70)}\n"
        "print(machine().matrix_unit, tilewright.compile(b.build(), target='cpu').run(feeds)['y'].tolist())\n"
    )
    with_unit, without = (
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={**os.environ, **extra}
        ).stdout.split(" ", 1)
        for extra in ({}, {"TILEWRIGHT_MATRIX_UNIT": "0"})
    )
    assert without[0] == "False"
    assert with_unit[1] == without[1]
