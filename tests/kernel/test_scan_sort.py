"""Running sums and products; sorted rows and the first k: against numpy, with ties, NaN, every dtype."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from loop_running import WIDTHS, run_both, run_compiled

from tilewright.backends.cpu.kernels.scan import Scan, build_scan, scan_arguments, scan_units
from tilewright.backends.cpu.kernels.sort import FEW, Sort, build_sort, sort_arguments, sort_scratch, sort_units
from tilewright.backends.cpu.kernels.strided import View, split_rows
from tilewright.backends.cpu.machine import machine_of_width
from tilewright.graph.dtypes import from_numpy

random = np.random.default_rng(23)


def scanned(
    x: np.ndarray, axis: int, static: bool, width: int, **options: Any
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    y = np.zeros(x.shape, x.dtype)
    steps = [[s // a.itemsize for s in a.strides] for a in (x, y)]
    rows = split_rows(x.shape, [axis], steps)
    views = [View(from_numpy(x.dtype), rows.outer_strides[index], rows.row_strides[index]) for index in range(2)]
    kernel = Scan(
        rows.outer if static else (None,) * len(rows.outer), rows.row[0] if static else None, *views, along=rows.along,
        **options,
    )  # fmt: skip
    machine = machine_of_width(width)
    known: dict[str, Any] = {"y0": y.reshape(-1), "x0": (x if x.base is None else x.base).reshape(-1)}
    known |= {f"outer{position}": size for position, size in enumerate(rows.outer)}
    known |= {"row0": rows.row[0], "begin": 0, "end": scan_units(kernel, machine, rows.outer), "thread": 0}
    given = [known[name] for name in scan_arguments(kernel)]
    ours, compiled = run_both(build_scan("scan", kernel, machine), given, width)
    return ours[0].reshape(x.shape), compiled[0].reshape(x.shape)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_running_sums(reverse: bool, exclusive: bool, axis: int, width: int) -> None:
    x = random.integers(-5, 9, (19, 37)).astype(np.float32)
    expected = np.flip(np.cumsum(np.flip(x, axis), axis), axis) if reverse else np.cumsum(x, axis)
    if exclusive:
        expected = expected - x
    for found in scanned(x, axis, axis == 0, width, exclusive=exclusive, reverse=reverse):
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float64])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_running_products_of_strided_operands(axis: int, dtype: Any) -> None:
    x = random.integers(1, 3, (5, 6, 18)).astype(dtype).transpose(2, 0, 1)
    for found in scanned(x, axis, True, 256, combine="product"):
        assert np.array_equal(found, np.cumprod(x, axis))


def ordered(x: np.ndarray, largest: bool) -> np.ndarray:
    """Indices along the last axis; the lower one first among equals, NaN beyond every number."""
    keys = [np.unique(row, return_inverse=True)[1] for row in x.reshape(-1, x.shape[-1])]
    signs = -1 if largest else 1
    return np.stack([np.argsort(signs * key, kind="stable") for key in keys]).reshape(x.shape)


def check(x: np.ndarray, k: int, largest: bool, static: bool = True, both: bool = True) -> None:
    shape = (*x.shape[:-1], k)
    y, i = np.zeros(shape, x.dtype), np.zeros(shape, np.int64)
    strides = [tuple(s // a.itemsize for s in a.strides) for a in (x, y, i)]
    outer = x.shape[:-1]
    if static:
        numbers: Any = (outer, x.shape[-1], k)
    else:
        numbers = ((None,) * len(outer), None, None)
    for few in [True, False] if k <= FEW else [False]:
        kernel = Sort(from_numpy(x.dtype), *numbers, *strides, largest, few)
        room = np.zeros(sort_scratch(kernel, x.shape[-1]), np.int64)
        known: dict[str, Any] = {"y": y.reshape(-1), "i": i.reshape(-1), "x": x.reshape(-1), "scratch": room}
        known |= {f"outer{axis}": size for axis, size in enumerate(outer)}
        known |= {"row0": x.shape[-1], "k": k, "begin": 0, "end": sort_units(outer), "thread": 0}
        given = [known[name] for name in sort_arguments(kernel)]
        module = build_sort("sort", kernel, machine_of_width(256))
        expected = ordered(x, largest)[..., :k]
        if both:
            sides = run_both(module, given, 256)
        else:
            run_compiled(module, given, 256)
            sides = (given,)
        for side in sides:
            assert np.array_equal(side[1].reshape(shape), expected)
            values = np.take_along_axis(x, expected, -1)
            assert np.array_equal(side[0].reshape(shape), values, equal_nan=x.dtype.kind == "f")


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (9, 4), (33, 33), (20, 0)])
def test_first_k_with_ties(n: int, k: int, static: bool, largest: bool) -> None:
    check(random.integers(0, 12, (2, n)).astype(np.float32), k, largest, static)


@pytest.mark.parametrize("largest", [False, True])
def test_many(largest: bool) -> None:
    x = random.normal(size=(1, 3001)).astype(np.float32)
    check(x, 3001, largest, both=False)
    check(x, 50, largest, both=False)
    check(x, 700, largest, both=False)
    check(x, 128, largest, both=False)
    check(random.integers(0, 50, (2, 3000)), 100, largest, static=False, both=False)
    check(random.integers(0, 3, (2, 300)).astype(np.float32), 70, largest)


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int64, np.uint8])
@pytest.mark.parametrize("k", [1, 64])
def test_a_few_of_a_long_row(k: int, dtype: Any, largest: bool) -> None:
    """Its parts tell which keys need no look: with many equal ones, all equal ones, and few that are not NaN."""
    for x in (random.integers(0, 200, (2, 2051)), np.ones((1, 2048)), np.arange(4000)[::-1] % 251):
        check(np.atleast_2d(x).astype(dtype), k, largest, static=False, both=False)
    if np.dtype(dtype).kind == "f":
        x = np.full((2, 5000), np.nan, dtype)
        x[:, 17::500] = 3
        check(x, k, largest, both=False)


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64])
def test_dtypes(dtype: Any, largest: bool) -> None:
    x = random.integers(0, 100, (2, 21)).astype(dtype)
    limits = np.iinfo(dtype) if np.dtype(dtype).kind in "iu" else np.finfo(dtype)
    x[0, 3], x[0, 9], x[1, 3], x[1, 4] = limits.min, limits.max, limits.max, limits.max
    check(x, 21, largest)


@pytest.mark.parametrize("largest", [False, True])
def test_nan_is_greatest_and_zeros_are_equal(largest: bool) -> None:
    x = np.array([[3, math.nan, -math.inf, 0.0, -0.0, math.inf, -math.nan, -5]], np.float32)
    expected = [1, 6, 5, 0, 3, 4, 7, 2] if largest else [2, 7, 3, 4, 0, 5, 1, 6]
    y, i = np.zeros((1, 8), np.float32), np.zeros((1, 8), np.int64)
    for few in (True, False):
        kernel = Sort(from_numpy(x.dtype), (1,), 8, 8, (8, 1), (8, 1), (8, 1), largest, few)
        room = np.zeros(sort_scratch(kernel, 8), np.int64)
        given = [y.reshape(-1), i.reshape(-1), x.reshape(-1), room, 0, 1, 0]
        run_compiled(build_sort("sort", kernel, machine_of_width(512)), given, 512)
        assert i[0].tolist() == expected
