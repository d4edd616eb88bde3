"""Determinants: the kernel in the interpreter and compiled, and the operator, against numpy in f64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from loop_running import WIDTHS, run_both, run_compiled

import tilewright
from tilewright.backends.cpu.kernels.determinant import (
    Determinant,
    build_determinant,
    determinant_arguments,
    determinant_scratch,
    determinant_units,
)
from tilewright.backends.cpu.machine import machine_of_width
from tilewright.graph.dtypes import DType, bf16, f16, f32, f64


def matrices(count: int, rows: int, dtype: DType) -> np.ndarray:
    """Some that need other pivots than the diagonal's, some singular, one of them with a column of zeros."""
    x = np.random.default_rng(rows).normal(size=(count, rows, rows))
    x[::3, 0] *= 1e-3
    x[1::4, -1] = x[1::4, 0]
    x[2::5, :, rows // 2] = 0
    return x.astype(dtype.numpy)


def check(got: np.ndarray, x: np.ndarray, error: float) -> None:
    """Against products of the rows' lengths, which bound a determinant (Hadamard)."""
    wanted = np.linalg.det(x.astype(np.float64))
    bound = np.linalg.norm(x.astype(np.float64), axis=-1).prod(-1)
    assert (np.abs(got - wanted) <= error * bound).all()


def arguments(kernel: Determinant, x: np.ndarray, width: int) -> tuple[list[str], list[Any]]:
    machine = machine_of_width(width)
    count, rows = x.shape[:2]
    known: dict[str, Any] = {
        "x": x.reshape(-1), "y": np.full(count, np.nan, x.dtype), "matrices": count, "rows": rows,
        "scratch": np.full(max(1, determinant_scratch(kernel, machine, rows)), np.nan, x.dtype),
        "begin": 0, "end": determinant_units(kernel, machine, count), "thread": 0,
    }  # fmt: skip
    names = determinant_arguments(kernel)
    return names, [known[name] for name in names]


@pytest.mark.parametrize(("rows", "size"), [(1, 1), (4, 4), (5, 5), (5, None), (9, 9), (17, None)])
def test_both_ways(rows: int, size: int | None) -> None:
    x, kernel = matrices(11, rows, f32), Determinant(f32, size)
    names, given = arguments(kernel, x, 256)
    sides = run_both(build_determinant("det", kernel, machine_of_width(256)), given, 256)
    for side in sides:
        check(side[names.index("y")], x, 1e-6 * rows)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("rows", [2, 4, 8, 33])
def test_compiled(rows: int, dtype: DType, width: int) -> None:
    x, kernel = matrices(37, rows, dtype), Determinant(dtype, rows)
    names, given = arguments(kernel, x, width)
    run_compiled(build_determinant("det", kernel, machine_of_width(width)), given, width)
    check(given[names.index("y")], x, rows * (1e-6 if dtype is f32 else 1e-14))


def compiled(x: np.ndarray, dtype: DType, *dims: Any, threads: int = 1) -> np.ndarray:
    b = tilewright.Builder("determinants", opset=20)
    b.output(b.det(b.input("x", dtype[dims or x.shape])), "y")
    executable = tilewright.compile(b.build(), target="cpu", threads=threads)
    assert not executable.report()["host_steps"]
    return executable.run({"x": x})["y"]


@pytest.mark.parametrize("dtype", [f32, f64, f16, bf16], ids=str)
def test_operator(dtype: DType) -> None:
    large = 20 if dtype.bits > 16 else 9  # a narrow float holds no larger determinants
    for shape, threads in (((2, 3, 4, 4), 1), ((50, 5, 5), 3), ((3, large, large), 2), ((9, 9), 1), ((0, 4, 4), 1)):
        x = matrices(int(np.prod(shape[:-2])), shape[-1], dtype).reshape(shape)
        got = compiled(x, dtype, threads=threads)
        assert got.shape == shape[:-2]
        assert got.dtype == dtype.numpy
        check(got.astype(np.float64), x, {f32: 1e-5, f64: 1e-13, f16: 1e-3, bf16: 1e-2}[dtype])


def test_sizes_of_a_run() -> None:
    x = matrices(6, 10, f32)
    check(compiled(x, f32, "n", "m", "m"), x, 1e-5)
    check(compiled(x[:, :4, :4], f32, "n", 4, 4), x[:, :4, :4], 1e-5)


@pytest.mark.parametrize("rows", [4, 12])
def test_what_is_not_finite(rows: int) -> None:
    """Of no rows it is 1, the product of nothing; with NaN it is NaN."""
    x = matrices(3, rows, f32)
    x[1, rows - 1, 0] = np.nan
    got = compiled(x, f32)
    assert np.isnan(got[1])
    assert not np.isnan(got[[0, 2]]).any()
    assert compiled(np.zeros((2, 0, 0), np.float32), f32).tolist() == [1, 1]
