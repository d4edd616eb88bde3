"""exp, log and their kin: error in units in the last place, special values, and the same bits interpreted."""

from __future__ import annotations

import ctypes
import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from loop_running import run_both

from tilewright.backends.cpu.jit import Code, compile_modules
from tilewright.backends.cpu.machine import machine_of_width
from tilewright.graph import types
from tilewright.graph.dtypes import DType, f32, f64, i64
from tilewright.graph.kernel import vector_math
from tilewright.graph.kernel.loop_builder import LoopBuilder
from tilewright.graph.kernel.polynomials import TWO_OVER_PI, TWO_OVER_PI_BITS
from tilewright.graph.module import Module

NUMPY = {"asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh", "asin": "arcsin", "acos": "arccos",
         "atan": "arctan"}  # fmt: skip
COUNT = 1 << 16
# As many as fill vectors.
EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, math.inf, -math.inf, math.nan, 1e-30, -1e-30, 1e-42, 88.5, -88.5, 2.0, -2.0,
         9e8, -9e8, 3.0, -3.0, 1e-3, -1e-3, 0.99, -0.99, 10.0, -10.0, 7.5, -7.5, 0.25, -0.25, 1e4, -1e4]  # fmt: skip


def module_of(name: str, dtype: DType, lanes: int) -> Module:
    binary = name in ("pow", "remainder")
    operands = {"x": types.buffer(dtype), **({"z": types.buffer(dtype)} if binary else {})}
    b = LoopBuilder("apply", **operands, y=types.buffer(dtype), n=types.scalar(i64))
    function: Any = getattr(vector_math, name) if binary else vector_math.FUNCTIONS[name]
    with b.loop(0, b["n"], max(lanes, 1)) as i:
        b.store(function(b, *(b.load(b[operand], i, lanes) for operand in operands)), b["y"], i)
    return b.module()


@cache
def compiled(name: str, dtype: DType, width: int) -> Code:
    machine = machine_of_width(width)
    return compile_modules([module_of(name, dtype, machine.lanes(dtype))], machine)


def apply(name: str, dtype: DType, width: int, *operands: np.ndarray) -> np.ndarray:
    result = np.empty_like(operands[0])
    addresses = [array.ctypes.data for array in (*operands, result)]
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * (len(addresses) + 1))
    function(compiled(name, dtype, width).address("apply"))(*addresses, result.size)
    return result


def exact(name: str, *operands: np.ndarray, dtype: Any = np.float64) -> np.ndarray:
    with np.errstate(all="ignore"):
        if name == "erf":
            return np.vectorize(math.erf, otypes=[float])(operands[0].astype(np.float64))
        if name == "sigmoid":
            (x,) = (operand.astype(dtype) for operand in operands)
            small = np.exp(-np.abs(x))
            least = 3e-39 if operands[0].dtype == np.float32 else 6e-309
            result = np.where(x < 0, small, 1) / (1 + small)
            return np.where(result < least, 0, result)  # type: ignore[no-any-return]
        function = getattr(np, NUMPY.get(name, {"pow": "power"}.get(name, name)))
        return function(*(operand.astype(dtype) for operand in operands))  # type: ignore[no-any-return]


def arguments(name: str, dtype: DType) -> np.ndarray:
    """Arguments of all sizes that the function takes, densest where it is steep."""
    random = np.random.default_rng(3)
    largest = 88 if dtype is f32 else 700
    spread = {"exp": largest, "expm1": largest, "tanh": 12, "sinh": largest, "cosh": largest, "sigmoid": largest,
              "erf": 6, "atanh": 1, "asin": 1, "acos": 1, "sin": 1000, "cos": 1000, "tan": 1000}  # fmt: skip
    x = np.exp2(random.uniform(-30, 30, COUNT)) * random.choice([-1, 1], COUNT)
    if name in spread:
        x = random.uniform(-spread[name], spread[name], COUNT)
        x[::2] *= np.exp2(random.uniform(-20, 0, COUNT // 2))
    if name == "log":
        x = np.exp2(random.uniform(-120, 120, COUNT))
        x[::2] = 1 + np.exp2(random.uniform(-20, 0, COUNT // 2)) * random.choice([-0.9, 1], COUNT // 2)
    if name == "log1p":
        x[x < -0.9] *= -1
    if name == "acosh":
        x = 1 + np.abs(x)
    return x.astype(dtype.numpy)


def units(got: np.ndarray, wanted: np.ndarray, dtype: DType) -> np.ndarray:
    """The distance in units in the last place of `wanted`."""
    digits, least = (23, 2.0**-126) if dtype is f32 else (52, 2.0**-1022)
    size = np.maximum(np.abs(wanted), least)
    return np.abs(got.astype(np.longdouble) - wanted) / 2.0 ** (np.floor(np.log2(size)) - digits)


@pytest.mark.parametrize("width", [256, 512])
@pytest.mark.parametrize("name", vector_math.FUNCTIONS)
def test_error_for_f32(name: str, width: int) -> None:
    x = arguments(name, f32)
    got, wanted = apply(name, f32, width, x), exact(name, x)
    inside = np.abs(wanted) < 3.4e38
    assert np.isfinite(got[inside]).all()
    assert units(got[inside], wanted[inside], f32).max() <= vector_math.UNITS[name]


@pytest.mark.parametrize("name", vector_math.FUNCTIONS)
def test_error_for_f64(name: str) -> None:
    x = arguments(name, f64)
    got, wanted = apply(name, f64, 512, x), exact(name, x, dtype=np.longdouble)
    # Where there are no longer numbers, and of erf, the C library's f64 has an error of its own.
    exact_enough = np.finfo(np.longdouble).nmant > 60 and name != "erf"
    assert units(got, wanted, f64).max() <= vector_math.UNITS[name] + (0 if exact_enough else 2)


@pytest.mark.parametrize("width", [256, 512])
@pytest.mark.parametrize("name", [*vector_math.FUNCTIONS, "pow"])
def test_arguments_of_any_size(name: str, width: int) -> None:
    """Any bits that an f32 may have: subnormals, infinities and NaN are among them."""
    bits = np.random.default_rng(5).integers(0, 1 << 32, (2, COUNT), dtype=np.uint64).astype(np.uint32)
    operands = bits.view(np.float32)[: 2 if name == "pow" else 1]
    with np.errstate(all="ignore"):
        wanted = exact(name, *operands)
        rounded = wanted.astype(np.float32)
    got = apply(name, f32, width, *operands)
    missing, infinite = np.isnan(rounded), np.isinf(rounded)
    assert np.array_equal(np.isnan(got), missing)
    assert np.array_equal(got[infinite], rounded[infinite])
    signed = ~missing & (operands[0] != 0 if name in ("expm1", "log1p") else True)
    assert np.array_equal(np.signbit(got[signed]), np.signbit(rounded[signed]))
    finite = ~(missing | infinite)
    assert units(got[finite], wanted[finite], f32).max() <= vector_math.UNITS.get(name, 1)


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_angles_of_f64_of_any_size(name: str) -> None:
    """Whatever the exponent, and those nearest to a multiple of pi / 2, whose angles are small."""
    random = np.random.default_rng(6)
    x = np.ldexp(random.uniform(0.5, 1, COUNT), random.integers(-20, 1025, COUNT)) * random.choice([-1, 1], COUNT)
    x[: COUNT // 4] = random.integers(1, 1 << 24, COUNT // 4) * (math.pi / 2)
    got, wanted = apply(name, f64, 512, x), exact(name, x, dtype=np.longdouble)
    exact_enough = np.finfo(np.longdouble).nmant > 60
    assert units(got, wanted, f64).max() <= vector_math.UNITS[name] + (0 if exact_enough else 8)


def test_known_sines_and_cosines() -> None:
    """The largest number; a power of ten that many get wrong (Ng 1992); the f64 that is nearest to a multiple of pi / 2
    (Kahan 1983)."""
    largest, nearest = float(np.finfo(np.float64).max), 6381956970095103 * 2.0**797
    known = {largest: 0.004961954789184062, 1e22: -0.8522008497671888, -1e22: 0.8522008497671888}
    x = np.resize(np.array([*known]), 16)
    np.testing.assert_allclose(apply("sin", f64, 512, x), np.resize(np.array([*known.values()]), 16), rtol=4e-16)
    x = np.resize(np.array([largest, nearest]), 16)
    wanted = np.resize(np.array([-0.9999876894265599, -4.687165924254628e-19]), 16)
    np.testing.assert_allclose(apply("cos", f64, 512, x), wanted, rtol=4e-16)


def test_bits_of_two_over_pi() -> None:
    """By Machin's formula, pi = 16 arctan(1/5) - 4 arctan(1/239)."""
    bits = TWO_OVER_PI_BITS + 64

    def inverse_arctan(number: int) -> int:
        total, term, divisor = 0, (1 << bits) // number, 1
        while term:
            total += term // divisor if divisor % 4 == 1 else -(term // divisor)
            term, divisor = term // number**2, divisor + 2
        return total

    pi = 16 * inverse_arctan(5) - 4 * inverse_arctan(239)
    assert (2 << 2 * bits) // pi >> 64 == TWO_OVER_PI


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("name", vector_math.FUNCTIONS)
def test_special_values(name: str, dtype: DType) -> None:
    x = np.array(EDGES, dtype.numpy)
    got, wanted = apply(name, dtype, 512, x), exact(name, x).astype(dtype.numpy)
    if name in ("expm1", "log1p"):  # they only serve the others, which see to -0.0
        kept = ~((x == 0) & np.signbit(x))
        got, wanted = got[kept], wanted[kept]
    assert np.array_equal(np.isnan(got), np.isnan(wanted))
    assert np.array_equal(np.isinf(got), np.isinf(wanted))
    assert np.array_equal(np.signbit(got)[~np.isnan(got)], np.signbit(wanted)[~np.isnan(wanted)])
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


@pytest.mark.parametrize("name", [*vector_math.FUNCTIONS, "pow"])
def test_the_interpreter_computes_the_same(name: str) -> None:
    """Bit for bit, but where the interpreter's multiply-add rounds twice."""
    x = arguments(name, f32)[:64]
    if name in ("sin", "cos", "tan"):
        x[::5] *= np.float32(1e30)
    operands = [x, *([np.linspace(-3, 3, 64, dtype=np.float32)] if name == "pow" else [])]
    for lanes, width in ((0, 128), (8, 256)):
        ours, theirs = run_both(module_of(name, f32, lanes), [*operands, np.zeros(64, np.float32), 64], width)
        np.testing.assert_array_max_ulp(ours[-2], theirs[-2], 1)


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_the_interpreter_reduces_large_angles_of_f64(name: str) -> None:
    x = np.ldexp(np.linspace(-1, 1, 32), np.arange(32) * 32)
    ours, theirs = run_both(module_of(name, f64, 4), [x, np.zeros(32), 32], 256)
    np.testing.assert_array_max_ulp(ours[-2], theirs[-2], 1)


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_pow(dtype: DType) -> None:
    values = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, -3.0, math.inf, -math.inf, math.nan, 1e-20, 7.5, -8.0]
    x, y = (grid.reshape(-1).astype(dtype.numpy) for grid in np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        got, wanted = apply("pow", dtype, 512, x, y), exact("pow", x, y).astype(dtype.numpy)
        near = np.abs(got - wanted) <= 1e-6 * np.abs(wanted)
    wrong = ~((got == wanted) | (np.isnan(got) & np.isnan(wanted)) | near)
    assert not wrong.any(), list(zip(x[wrong], y[wrong], got[wrong], wanted[wrong], strict=True))
    random = np.random.default_rng(0)
    x, y = random.uniform(0, 20, COUNT).astype(dtype.numpy), random.uniform(-10, 10, COUNT).astype(dtype.numpy)
    error = units(apply("pow", dtype, 512, x, y), exact("pow", x, y), dtype)
    assert error.max() <= (1 if dtype is f32 else 100)


@pytest.mark.parametrize("width", [128, 256, 512])
def test_remainders_are_exact(width: int) -> None:
    """Of any bits; of multiples of the divisor and their neighbours, whose quotients are rounded to whole numbers."""
    random = np.random.default_rng(1)
    x, y = random.integers(0, 1 << 32, (2, COUNT), dtype=np.uint64).astype(np.uint32).view(np.float32).copy()
    special = (
        [0.0, -0.0, 5.0, -5.0, math.inf, 1.0, 3.0, math.nan],
        [3.0, -3.0, math.inf, -math.inf, 2.0, 0.0, -1.5, 1.0],
    )
    x[:8], y[:8] = special
    y[8 : COUNT // 2] = random.uniform(-3, 3, COUNT // 2 - 8)
    x[8 : COUNT // 2] = y[8 : COUNT // 2].astype(np.float64) * random.integers(0, 1 << 28, COUNT // 2 - 8)
    x[9 : COUNT // 2 : 3] = np.nextafter(x[9 : COUNT // 2 : 3], np.float32(0))
    x[10 : COUNT // 2 : 3] = random.uniform(-1000, 1000, x[10 : COUNT // 2 : 3].size)
    with np.errstate(all="ignore"):
        wanted = np.fmod(x, y)
    got = apply("remainder", f32, width, x, y)
    missing = np.isnan(wanted)
    assert np.array_equal(np.isnan(got), missing)
    assert np.array_equal(got[~missing].view(np.uint32), wanted[~missing].view(np.uint32))
    few = [x[:64].copy(), y[:64].copy(), np.zeros(64, np.float32), 64]
    ours, theirs = run_both(module_of("remainder", f32, 8 if width > 128 else 0), few, width)
    np.testing.assert_array_equal(ours[-2], theirs[-2])


def test_subnormal_results_are_rounded_like_others() -> None:
    x = np.linspace(-104, -87, 1024, dtype=np.float32)
    for width in (128, 256, 512):
        got = apply("exp", f32, width, x)
        assert np.abs(got.astype(np.float64) - np.exp(x.astype(np.float64))).max() <= 2.0**-149
