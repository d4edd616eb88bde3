"""Products of many rows with few, all running along k: interpreted and compiled, strided and batched results."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from loop_running import WIDTHS, run_both, run_compiled

from tilewright.backends.cpu.kernels.dot import FEW, Dot, build_dot, dot_arguments, dot_lanes, dot_units
from tilewright.backends.cpu.kernels.tile import Epilogue, EpilogueOperand
from tilewright.backends.cpu.machine import machine_of_width
from tilewright.graph.dtypes import DType, bf16, f16, f32, f64, i64

random = np.random.default_rng(8)


def numbers(dtype: DType, *shape: int) -> np.ndarray:
    """Small integers, so that sums are exact in any order."""
    return random.integers(-3, 4, shape).astype(dtype.numpy)


def given_of(dot: Dot, width: int, sizes: dict[str, Any]) -> list[Any]:
    machine = machine_of_width(width)
    known = {"begin": 0, "end": dot_units(sizes["rows"], dot_lanes(dot, machine), sizes.get("batch", 1)), "thread": 0}
    return [{**sizes, **known}[name] for name in dot_arguments(dot)]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("few", range(1, FEW + 1))
def test_rows_and_depths(width: int, few: int) -> None:
    """Results lie as columns of a matrix with `few` rows, or as rows of one with `few` columns."""
    machine = machine_of_width(width)
    for by_row in (True, False):
        dot = Dot(None, None, few, f32, None, None, few if by_row else 1, 1 if by_row else None)
        module = build_dot("dot", dot, machine)
        for rows, k in ((1, 1), (17, 0), (16, 16), (37, 21)):
            x, y = numbers(f32, rows, k + 3), numbers(f32, few, k + 1)
            c = np.full(rows * few, 99, np.float32)
            sizes = {"x": x.reshape(-1), "y": y.reshape(-1), "c": c, "rows": rows, "k": k, "x_row": k + 3,
                     "y_row": k + 1, "c_few": rows}  # fmt: skip
            ours, compiled = run_both(module, given_of(dot, width, sizes), width)
            expected = x[:, :k] @ y[:, :k].T
            for results in (ours, compiled):
                found = results[2].reshape(rows, few) if by_row else results[2].reshape(few, rows).T
                assert np.array_equal(found, expected), (rows, k)


@pytest.mark.parametrize("width", WIDTHS)
def test_batches_and_what_follows(width: int) -> None:
    rows, k, few, batch = 19, 18, 2, 3
    operands = (
        EpilogueOperand("along", f32, 1, 1),
        EpilogueOperand("one", f32, 0, 0),
        EpilogueOperand("strided", f32, 2, 1),
    )  # fmt: skip
    epilogue = Epilogue(operands, lambda b, x, o: b.max(b.add(b.fma(x, o[1], o[0]), o[2]), 0))
    dot = Dot(rows, k, few, f32, k, k, None, 1, True, epilogue)
    x, y = numbers(f32, batch, rows, k), numbers(f32, batch, few, k)
    along, one, strided = numbers(f32, few, rows), numbers(f32, 1), numbers(f32, batch, rows, 2)
    sizes = {
        "x": x.reshape(-1), "y": y.reshape(-1), "c": np.zeros(batch * rows * few, np.float32), "c_row": few,
        "x_batch": rows * k, "y_batch": few * k, "c_batch": rows * few, "rows": rows, "batch": batch,
        "along": along.reshape(-1), "along_few": rows, "along_batch": 0, "one": one, "one_few": 0, "one_batch": 0,
        "strided": strided.reshape(-1), "strided_few": 1, "strided_batch": rows * 2,
    }  # fmt: skip
    ours, compiled = run_both(build_dot("dot", dot, machine_of_width(width)), given_of(dot, width, sizes), width)
    expected = np.maximum(x @ y.transpose(0, 2, 1) * one + along.T + strided, 0)
    for results in (ours, compiled):
        assert np.array_equal(results[2].reshape(expected.shape), expected)


@pytest.mark.parametrize("dtype", [f64, f16, bf16, i64], ids=str)
def test_other_numbers(dtype: DType) -> None:
    for rows, k in itertools.product((3, 33), (5, 40)):
        dot = Dot(rows, k, 1, dtype, k, k)
        x, y = numbers(dtype, rows, k), numbers(dtype, 1, k)
        sizes = {"x": x.reshape(-1), "y": y.reshape(-1), "c": np.zeros(rows, dtype.numpy), "rows": rows, "c_few": 0}
        given = given_of(dot, 256, sizes)
        run_compiled(build_dot("dot", dot, machine_of_width(256)), given, 256)
        expected = (x.astype(np.float64) @ y[0].astype(np.float64)).astype(dtype.numpy)
        assert np.array_equal(given[2], expected)
