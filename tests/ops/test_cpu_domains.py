"""Elementwise operators on the cpu target over all that a number may be, against float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright
from tilewright.graph.dtypes import DType, bf16, f16, f32

COUNT = 1 << 16
ROOT_HALF = math.sqrt(0.5)
SELU = (1.67326319217681884765625, 1.05070102214813232421875)

_erf = np.vectorize(math.erf, otypes=[float])


def _sigmoid(x: np.ndarray) -> np.ndarray:
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1) / (1 + small)  # type: ignore[no-any-return]


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))  # type: ignore[no-any-return]


# Each operator's meaning in float64, how many units in the last place it may be off, and by how much besides: what is
# computed from 1 plus a number near -1, or as the inverse of a power, cannot be as exact as its size where it is tiny.
UNARY: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float, float]] = {
    "sqrt": (np.sqrt, 0.5, 0),
    "reciprocal": (np.reciprocal, 0.5, 0),
    "exp": (np.exp, 1.5, 0),
    "log": (np.log, 1.5, 0),
    "sin": (np.sin, 1.5, 0),
    "cos": (np.cos, 1.5, 0),
    "tan": (np.tan, 3, 0),
    "asin": (np.arcsin, 2, 0),
    "acos": (np.arccos, 1.5, 0),
    "atan": (np.arctan, 2.5, 0),
    "sinh": (np.sinh, 4, 0),
    "cosh": (np.cosh, 3, 0),
    "tanh": (np.tanh, 5, 0),
    "asinh": (np.arcsinh, 2, 0),
    "acosh": (np.arccosh, 3, 0),
    "atanh": (np.arctanh, 3, 0),
    "erf": (_erf, 6, 0),
    "elu": (lambda x: np.where(x < 0, np.expm1(x), x), 2, 0),
    "celu": (lambda x: np.where(x < 0, np.expm1(x), x), 2, 0),
    "selu": (lambda x: SELU[1] * np.where(x < 0, SELU[0] * np.expm1(x), x), 4, 0),
    "softplus": (_softplus, 3, 0),
    "softsign": (lambda x: x / (1 + np.abs(x)), 2, 0),
    "sigmoid": (_sigmoid, 3, 3e-39),
    "swish": (lambda x: x * _sigmoid(x), 4, 3e-37),
    "mish": (lambda x: x * np.tanh(_softplus(x)), 8, 2e-43),
    "gelu": (lambda x: 0.5 * x * (1 + _erf(x * ROOT_HALF)), 3, 1e-6),
}


def compute(name: str, dtype: DType, *operands: np.ndarray, **attributes: Any) -> np.ndarray:
    b = tilewright.Builder("domain", opset=24)
    inputs = [b.input(f"x{index}", dtype[operand.shape]) for index, operand in enumerate(operands)]
    b.output(getattr(b, name)(*inputs, **attributes), "y")
    executable = tilewright.compile(b.build(), target="cpu", threads=1)
    return executable.run({f"x{index}": operand for index, operand in enumerate(operands)})["y"]


def random_bits(count: int = 1) -> np.ndarray:
    """Subnormals, infinities and NaN are among them."""
    bits = np.random.default_rng(8).integers(0, 1 << 32, (count, COUNT), dtype=np.uint64)
    return bits.astype(np.uint32).view(np.float32)


def check(got: np.ndarray, wanted: np.ndarray, units: float, besides: float = 0) -> None:
    """Against float64, in units in the last place of `got`'s dtype."""
    info = ml_dtypes.finfo(got.dtype)
    with np.errstate(all="ignore"):
        rounded, given = wanted.astype(got.dtype).astype(np.float64), got.astype(np.float64)
    missing, infinite = np.isnan(rounded), np.isinf(rounded)
    assert np.array_equal(np.isnan(given), missing)
    assert np.array_equal(given[infinite], rounded[infinite])
    nonzero = ~missing & (given != 0)
    assert np.array_equal(np.signbit(given[nonzero]), np.signbit(rounded[nonzero]))
    given, wanted = given[~(missing | infinite)], wanted[~(missing | infinite)]
    unit = 2.0 ** (np.floor(np.log2(np.maximum(np.abs(wanted), float(info.smallest_normal)))) - info.nmant)
    over = np.abs(given - wanted) - units * unit - besides
    assert over.max() <= 0, f"{given[over.argmax()]} is not {wanted[over.argmax()]}"


@pytest.mark.parametrize("name", UNARY)
def test_f32_of_any_bits(name: str) -> None:
    meaning, units, besides = UNARY[name]
    (x,) = random_bits()
    x[::2] = np.exp2(np.linspace(-30, 8, COUNT // 2)) * np.resize([1, -1], COUNT // 2)
    with np.errstate(all="ignore"):
        wanted = meaning(x.astype(np.float64))
    check(compute(name, f32, x), wanted, units, besides)


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
@pytest.mark.parametrize("name", ["sin", "cos", "tan", "exp", "log", "tanh", "erf", "sigmoid", "elu", "sqrt"])
def test_all_narrow_numbers(name: str, dtype: DType) -> None:
    """Computed in f32 and rounded once."""
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype.numpy)
    with np.errstate(all="ignore"):
        wanted = UNARY[name][0](x.astype(np.float64))
    check(compute(name, dtype, x), wanted, 0.51, UNARY[name][2])


@pytest.mark.parametrize(
    ("name", "meaning", "attributes"),
    [("mod", np.fmod, {"fmod": 1}), ("pow", np.power, {}), ("div", np.divide, {})],
    ids=["fmod", "pow", "div"],
)
def test_two_operands_of_any_bits(name: str, meaning: Any, attributes: dict[str, Any]) -> None:
    operands = random_bits(2)
    with np.errstate(all="ignore"):
        wanted = meaning(*operands.astype(np.float64))
    check(compute(name, f32, *operands, **attributes), wanted, 1)


def test_encodings_of_places_have_no_largest_place() -> None:
    """sin and cos of positions times powers of two, as networks that see coordinates begin."""
    places = np.random.default_rng(9).uniform(-1, 1, (64, 3)).astype(np.float32)
    frequencies = (np.float32(math.pi) * np.exp2(np.arange(0, 100, 4))).astype(np.float32)
    b = tilewright.Builder("encoding", opset=20)
    angles = b.mul(b.unsqueeze(b.input("x", f32[64, 3]), np.array([2])), frequencies)
    b.output(b.concat(b.sin(angles), b.cos(angles), axis=2), "y")
    got = tilewright.compile(b.build(), target="cpu", threads=1).run({"x": places})["y"]
    wide = (places[:, :, None] * frequencies).astype(np.float64)
    np.testing.assert_allclose(got, np.concatenate([np.sin(wide), np.cos(wide)], 2), rtol=0, atol=1.5e-7)
