"""ArgMax and ArgMin: both forms, ties, NaN, strides, integers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from loop_running import WIDTHS, run_both

from tilewright.backends.cpu.kernels.arg_extreme import (
    ArgExtreme,
    arg_extreme_arguments,
    arg_extreme_units,
    build_arg_extreme,
)
from tilewright.backends.cpu.kernels.strided import Along, View, split_rows
from tilewright.backends.cpu.machine import machine_of_width
from tilewright.graph.dtypes import from_numpy, i64

random = np.random.default_rng(3)


def check(
    x: np.ndarray, axis: int, greatest: bool, last: bool, width: int, static: bool = True, along: Along | None = None
) -> None:
    kept = [other for other in range(x.ndim) if other != axis]
    expected = _expected(x, axis, greatest, last)
    steps = [0] * x.ndim
    for other, stride in zip(kept, expected.strides, strict=True):
        steps[other] = stride // 8
    rows = split_rows(x.shape, [axis], [[stride // x.itemsize for stride in x.strides], steps])
    (row,) = rows.row
    outer = rows.outer if static else (None,) * len(rows.outer)
    kernel = ArgExtreme(
        outer, row if static else None, View(from_numpy(x.dtype), rows.outer_strides[0], rows.row_strides[0]),
        View(i64, rows.outer_strides[1]), greatest, last, along=along or rows.along,
    )  # fmt: skip
    machine = machine_of_width(width)
    memory = (x if x.base is None else x.base).reshape(-1)
    known = {"x0": memory, "y0": np.full(max(1, expected.size), -1), "row0": row, "begin": 0, "thread": 0}
    known |= {f"outer{position}": size for position, size in enumerate(rows.outer)}
    known["end"] = arg_extreme_units(kernel, machine, rows.outer)
    given = [known[name] for name in arg_extreme_arguments(kernel)]
    ours, compiled = run_both(build_arg_extreme("arg", kernel, machine), given, width)
    assert np.array_equal(ours[0][: expected.size], expected.reshape(-1))
    assert np.array_equal(compiled[0][: expected.size], expected.reshape(-1))


def _expected(x: np.ndarray, axis: int, greatest: bool, last: bool) -> np.ndarray:
    function = np.argmax if greatest else np.argmin
    if not last:
        return function(x, axis=axis)
    return x.shape[axis] - 1 - function(np.flip(x, axis), axis=axis)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("greatest", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_ties(axis: int, greatest: bool, last: bool, width: int) -> None:
    check(random.integers(0, 4, (5, 37, 18)).astype(np.float32), axis, greatest, last, width)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("greatest", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_nan_and_infinity(axis: int, greatest: bool, last: bool) -> None:
    x = random.integers(0, 9, (35, 36)).astype(np.float32)
    x[random.random(x.shape) < 0.02] = math.nan
    x[random.random(x.shape) < 0.05] = math.inf
    x[4] = -math.inf
    check(x, axis, greatest, last, 512, static=False)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.float64, np.float16])
def test_dtypes_and_strides(dtype: type) -> None:
    x = random.integers(0, 200, (19, 7, 21)).astype(dtype)
    for axis in range(3):
        check(x.transpose(2, 0, 1), axis, True, False, 256)


def test_all_elements_lowest() -> None:
    check(np.full((3, 33), -math.inf, np.float32), 1, True, False, 256)
    check(np.full((3, 33), -math.inf, np.float32), 1, True, True, 256)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("row", [1, 2, 21])
def test_short_rows_side_by_side(row: int, last: bool, width: int) -> None:
    x = random.integers(0, 4, (37, row)).astype(np.float32)
    x[random.random(x.shape) < 0.1] = math.nan
    for static in (True, False):
        check(x, 1, True, last, width, static, along="column")
