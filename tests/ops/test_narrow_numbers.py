"""Floats and integers of 8 bits or less on the target cpu, against `ml_dtypes` and what ONNX says of saturation."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright
from tilewright.graph.dtypes import DType, by_name, f16, f32
from tilewright.graph.model_builder import Builder

FLOATS = ("f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f6e2m3", "f6e3m2", "f4e2m1")
INTEGERS = ("i4", "u4", "i2", "u2")


def cast(x: np.ndarray, given: DType, to: DType, saturate: int = 1) -> np.ndarray:
    """The model `cast` on the cpu, which must have a kernel for it."""
    b = Builder("cast")
    operand = b.input("x", given[x.shape])
    b.output(b.cast(operand, to=to.onnx_code, saturate=saturate), "y")
    executable = tilewright.compile(b.build(), target="cpu", threads=1)
    assert executable.report()["host_steps"] == []
    result: np.ndarray = executable(x)
    assert result.dtype == to.numpy
    return result


def some_floats() -> np.ndarray:
    """Every f16, then f32 of all sizes around."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    random = np.random.default_rng(0)
    more = random.normal(size=4000) * 2.0 ** random.integers(-30, 30, 4000)
    return np.concatenate([halves, more.astype(np.float32), np.float32([np.inf, -np.inf, 1e38, -1e38, 1e-40])])


@pytest.mark.parametrize("name", [*FLOATS, "f8e8m0"])
def test_every_code_is_read_exactly(name: str) -> None:
    dtype = by_name(name)
    codes = np.arange(1 << dtype.bits, dtype=np.uint8).view(dtype.numpy)
    got, wanted = cast(codes, dtype, f32), codes.astype(np.float32)
    np.testing.assert_array_equal(got, wanted)
    is_number = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(got)[is_number], np.signbit(wanted)[is_number])


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("name", FLOATS)
def test_floats_are_rounded_to_the_nearest(name: str, saturate: int) -> None:
    dtype = by_name(name)
    x = some_floats()
    limit = float(ml_dtypes.finfo(dtype.numpy).max)
    with np.errstate(invalid="ignore"):
        wanted = (np.clip(x, -limit, limit) if saturate or dtype.bits < 8 else x).astype(dtype.numpy)
    got = cast(x, f32, dtype, saturate)
    is_number = ~np.isnan(x)
    np.testing.assert_array_equal(got.view(np.uint8)[is_number], wanted.view(np.uint8)[is_number])
    np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), np.isnan(wanted.astype(np.float32)))


@pytest.mark.parametrize("given", [f16, f32])
@pytest.mark.parametrize("name", INTEGERS)
def test_integers_of_few_bits(name: str, given: DType) -> None:
    dtype = by_name(name)
    limits = ml_dtypes.iinfo(dtype.numpy)
    x = np.arange(int(limits.min), int(limits.max) + 1).astype(given.numpy)
    narrow = cast(x, given, dtype)
    np.testing.assert_array_equal(narrow.astype(np.int32), x.astype(np.int32))
    np.testing.assert_array_equal(cast(narrow, dtype, given), x)


@pytest.mark.parametrize("name", ["f8e4m3fn", "f8e5m2fnuz", "i4", "u4", "u8", "i16"])
@pytest.mark.parametrize("form", ["one", "axis", "blocks"])
def test_quantizing_there_and_back(name: str, form: str) -> None:
    """As the reference backend has it: with one scale, with one per channel, with one for each block of 4."""
    dtype = by_name(name)
    b = Builder("quantize")
    random = np.random.default_rng(1)
    x = b.input("x", f32[3, 8, 5])
    shape = {"one": (), "axis": (8,), "blocks": (3, 2, 5)}[form]
    scale = random.uniform(0.1, 0.4, shape).astype(np.float32)
    zero = np.zeros(shape, dtype.numpy) if dtype.is_float else random.integers(0, 3, shape).astype(dtype.numpy)
    attributes = {"axis": 1, "block_size": 4 if form == "blocks" else 0}
    q = b.quantize_linear(x, b.const(scale), b.const(zero), **attributes)
    b.output(q, "q")
    b.output(b.dequantize_linear(q, b.const(scale), b.const(zero), **attributes), "y")
    model = b.build()
    executable = tilewright.compile(model, target="cpu", threads=1)
    assert executable.report()["host_steps"] == []
    feeds = {"x": random.normal(size=(3, 8, 5)).astype(np.float32)}
    got, wanted = executable.run(feeds), tilewright.compile(model, target="reference").run(feeds)
    np.testing.assert_array_equal(got["q"].astype(np.float32), wanted["q"].astype(np.float32))
    np.testing.assert_allclose(got["y"], wanted["y"], rtol=1e-6)
