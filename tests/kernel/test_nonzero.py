"""Positions of elements that are not zero: counted, then written, by any number of threads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from loop_running import run_both, run_compiled

from tilewright.backends.cpu.kernels.nonzero import (
    NonZero,
    build_nonzero_count,
    build_nonzero_positions,
    nonzero_arguments,
    nonzero_units,
)
from tilewright.backends.cpu.machine import machine_of_width
from tilewright.graph.dtypes import from_numpy

random = np.random.default_rng(19)


def positions(x: np.ndarray, width: int = 256, parts: int = 1, both: bool = True) -> np.ndarray:
    kernel, machine, units = NonZero(from_numpy(x.dtype), x.ndim), machine_of_width(width), nonzero_units(x.shape)
    counts = np.zeros(max(1, units), np.int64)
    known: dict[str, Any] = {f"outer{axis}": size for axis, size in enumerate(x.shape)}
    known |= {"x": x.reshape(-1), "size": x.size, "counts": counts, "thread": 0}
    known |= {"total": np.zeros(1, np.int64), "y": np.zeros(max(1, x.ndim * x.size), np.int64)}
    for build in (build_nonzero_count, build_nonzero_positions):
        module = build("nonzero", kernel, machine)
        for part in range(parts):
            share = {"begin": part * units // parts, "end": (part + 1) * units // parts}
            given = [{**known, **share}[name] for name in nonzero_arguments(kernel)]
            if both:
                ours, compiled = run_both(module, given, width)
                assert all(np.array_equal(ours[index], compiled[index]) for index in (0, 1, 3))
            run_compiled(module, given, width)
    total = int(known["total"][0])
    return known["y"][: x.ndim * total].reshape(x.ndim, total)


@pytest.mark.parametrize("dtype", [np.bool_, np.float32, np.uint8, np.int64, np.float16])
@pytest.mark.parametrize("shape", [(7,), (3, 5, 4), (1, 40)])
def test_positions(shape: tuple[int, ...], dtype: Any) -> None:
    x = (random.integers(-3, 4, shape) * (random.random(shape) < 0.6)).astype(dtype)
    assert np.array_equal(positions(x), np.stack(np.nonzero(x)))


def test_nan_counts_and_minus_zero_does_not() -> None:
    x = np.array([0.0, -0.0, math.nan, 1e-45], np.float32)
    assert positions(x, 512).tolist() == [[2, 3]]


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_many_chunks(parts: int) -> None:
    x = random.random((130, 131)) < 0.1
    assert np.array_equal(positions(x, 512, parts, both=False), np.stack(np.nonzero(x)))


@pytest.mark.parametrize("shape", [(0,), (2, 0), (5,)])
def test_nothing(shape: tuple[int, ...]) -> None:
    assert positions(np.zeros(shape, np.float32)).shape == (len(shape), 0)
