"""Reductions: interpreted and compiled, both forms, any axes, strides and sizes, prologues, epilogues, pieces."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from loop_running import WIDTHS, compiled, run_both, run_compiled

import tilewright
from tilewright.backends.cpu.kernels import reduce
from tilewright.backends.cpu.kernels.reduce import (
    Reduce,
    Total,
    build_reduce,
    piece_length,
    reduce_arguments,
    reduce_units,
)
from tilewright.backends.cpu.kernels.strided import View, split_rows
from tilewright.backends.cpu.machine import machine_of_width
from tilewright.graph.dtypes import DType, bf16, f16, f32, f64, from_numpy, i32, i64, u8
from tilewright.graph.kernel.interpreter import run_loops

random = np.random.default_rng(7)
NUMPY = {"sum": np.sum, "product": np.prod, "min": np.min, "max": np.max}


def strides_of(array: np.ndarray) -> list[int]:
    return [stride // array.itemsize for stride in array.strides]


def flat(array: np.ndarray) -> np.ndarray:
    """The memory of an array, whatever the order of its axes."""
    base = array if array.base is None else array.base
    return base.reshape(-1)


def planned(
    x: np.ndarray, axes: Sequence[int], total: Total, static: bool, width: int, piece: int = 0, **options: Any
) -> tuple[Any, list[Any], int]:
    """The kernel for one operand and a contiguous result; its arguments, and how many elements the result has."""
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    result = np.zeros([x.shape[axis] for axis in kept], total.dtype.numpy)
    steps = [0] * x.ndim
    for axis, stride in zip(kept, strides_of(result), strict=True):
        steps[axis] = stride
    rows = split_rows(x.shape, axes, [strides_of(x), steps])

    def sizes(numbers: tuple[int, ...]) -> tuple[int | None, ...]:
        return numbers if static else tuple(number if number in (0, 1) else None for number in numbers)

    def extents(numbers: tuple[int, ...]) -> tuple[int | None, ...]:
        return numbers if static else (None,) * len(numbers)

    kernel = Reduce(
        extents(rows.outer), extents(rows.row), (View(from_numpy(x.dtype), sizes(rows.outer_strides[0]),
        sizes(rows.row_strides[0])),), (total,), (View(total.dtype, sizes(rows.outer_strides[1])),),
        along=rows.along, piece=piece, **options,
    )  # fmt: skip
    machine = machine_of_width(width)
    pieces = -(-rows.row[0] // piece) if piece else 1
    count = result.size * pieces
    known: dict[str, Any] = {"x0": flat(x), "y0": np.zeros(max(1, count), total.dtype.numpy), "y0_piece": result.size}
    known |= {f"outer{axis}": size for axis, size in enumerate(rows.outer)}
    known |= {f"row{axis}": size for axis, size in enumerate(rows.row)}
    for name, index in (("x0", 0), ("y0", 1)):
        known |= {f"{name}_outer{axis}": stride for axis, stride in enumerate(rows.outer_strides[index])}
        known |= {f"{name}_row{axis}": stride for axis, stride in enumerate(rows.row_strides[index])}
    units = reduce_units(kernel, machine, rows.outer, rows.row, piece)
    known |= {"begin": 0, "end": units, "thread": 0}
    return build_reduce("reduce", kernel, machine), [known[name] for name in reduce_arguments(kernel)], count


def integers(shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    return random.integers(0, 5, shape).astype(dtype.numpy)


CASES = [
    ((37,), (0,)), ((5, 19), (1,)), ((5, 19), (0,)), ((3, 4, 35), (0, 2)), ((3, 5, 7), (1,)), ((2, 3, 4, 5), (1, 3)),
    ((4, 1), (0,)), ((3, 4), ()), ((2, 70), (1,)), ((70, 3), (0,)), ((0, 3), (0,)), ((3, 0), (0,)),
]  # fmt: skip


@pytest.mark.parametrize(("width", "static"), [(128, False), (256, True), (512, False)])
@pytest.mark.parametrize(("shape", "axes"), CASES, ids=str)
def test_any_axes(shape: tuple[int, ...], axes: tuple[int, ...], static: bool, width: int) -> None:
    x = integers(shape, f32)
    module, given, count = planned(x, axes, Total("sum", f32), static, width)
    ours, compiled = run_both(module, given, width)
    expected = np.sum(x, axis=axes).reshape(-1)
    assert np.array_equal(ours[0][:count], expected)
    assert np.array_equal(compiled[0][:count], expected)


@pytest.mark.parametrize("how", ["sum", "product", "min", "max"])
@pytest.mark.parametrize("dtype", [f32, f64, i32, i64, u8], ids=str)
@pytest.mark.parametrize("axes", [(0,), (1,)])
def test_ways_of_combining(how: str, dtype: DType, axes: tuple[int, ...]) -> None:
    x = integers((21, 22), dtype)
    module, given, count = planned(x, axes, Total(how, dtype), True, 256)
    ours, compiled = run_both(module, given, 256)
    with np.errstate(over="ignore"):
        expected = NUMPY[how](x, axis=axes).astype(dtype.numpy)
    assert np.array_equal(ours[0][:count], compiled[0][:count])
    assert np.array_equal(ours[0][:count], expected)


@pytest.mark.parametrize("width", [128, 256, 512])
@pytest.mark.parametrize("dtype", [f32, f64, u8, f16], ids=str)
@pytest.mark.parametrize("count", [9, 16, 37])
def test_every_second_column(count: int, dtype: DType, width: int) -> None:
    """Vectors of them are put together from two, of which nothing behind the last one is read."""
    base = integers((7, 2 * count - 1), dtype)
    module, given, size = planned(base[:, ::2], (0,), Total("sum", f32 if dtype is f16 else dtype), True, width)
    ours, compiled = run_both(module, given, width)
    expected = base[:, ::2].astype(np.float64).sum(axis=0)
    assert np.array_equal(ours[0][:size], expected)
    assert np.array_equal(compiled[0][:size], expected)


@pytest.mark.parametrize("order", [(2, 0, 1), (1, 2, 0), (0, 2, 1)])
@pytest.mark.parametrize("axes", [(0,), (1, 2), (0, 2)])
def test_strided_operands(order: tuple[int, ...], axes: tuple[int, ...]) -> None:
    x = integers((6, 9, 20), f32).transpose(order)
    module, given, count = planned(x, axes, Total("sum", f32), True, 256)
    ours, compiled = run_both(module, given, 256)
    assert np.array_equal(ours[0][:count], x.sum(axis=axes).reshape(-1))
    assert np.array_equal(compiled[0][:count], x.sum(axis=axes).reshape(-1))


@pytest.mark.parametrize("how", ["min", "max"])
@pytest.mark.parametrize("axes", [(0,), (1,)])
def test_nan_is_found_by_min_and_max(how: str, axes: tuple[int, ...]) -> None:
    x = random.normal(size=(67, 67)).astype(np.float32)
    x[3, 40] = math.nan
    x[11, 5], x[12, 5] = math.inf, -math.inf
    module, given, count = planned(x, axes, Total(how, f32), True, 512)
    ours, compiled = run_both(module, given, 512)
    for side in (ours, compiled):
        assert np.array_equal(side[0][:count], NUMPY[how](x, axis=axes), equal_nan=True)


def test_reducing_nothing_gives_the_neutral_number() -> None:
    for how, dtype, neutral in (("sum", f32, 0), ("product", i64, 1), ("max", f32, -math.inf), ("min", i32, 2**31 - 1)):
        module, given, _ = planned(np.zeros((0, 3), dtype.numpy), (0,), Total(how, dtype), False, 256)
        run_compiled(module, given, 256)
        assert given[0].tolist() == [neutral] * 3


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_narrow_floats_are_added_in_f32(dtype: DType) -> None:
    x = random.normal(size=(9, 40)).astype(dtype.numpy)
    module, given, count = planned(x, (1,), Total("sum", f32), True, 256)
    ours, compiled = run_both(module, given, 256)
    assert np.array_equal(ours[0], compiled[0])
    assert np.allclose(ours[0][:count], x.astype(np.float32).sum(axis=1), atol=1e-5)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("axes", [(0,), (1,)])
def test_prologue_and_epilogue(axes: tuple[int, ...], width: int) -> None:
    """The root of the mean of squares."""
    x = random.normal(size=(33, 35)).astype(np.float32)
    count = x.shape[axes[0]]
    module, given, size = planned(
        x, axes, Total("sum", f32), True, width, prologue=lambda b, v: [b.mul(v[0], v[0])],
        epilogue=lambda b, v: [b.sqrt(b.mul(v[0], 1 / count))],
    )  # fmt: skip
    ours, compiled = run_both(module, given, width)
    expected = np.sqrt(np.mean(x.astype(np.float64) ** 2, axis=axes))
    assert np.allclose(ours[0][:size], expected, rtol=1e-6)
    assert np.array_equal(ours[0], compiled[0])


def test_several_totals_and_operands_at_once() -> None:
    """Sum of products and greatest difference of two operands, one of them broadcast; an operand for each row."""
    x, y = integers((6, 23), f32), integers((23,), f32)
    scale = integers((6,), f32)
    kernel = Reduce(
        (6,), (23,), (View(f32, (23,), (1,)), View(f32, (0,), (1,))), (Total("sum", f32), Total("max", f32)),
        (View(f32, (2,)), View(f32, (2,))), (View(f32, (1,)),),
        prologue=lambda b, v: [b.mul(v[0], v[1]), b.sub(v[0], v[1])],
        epilogue=lambda b, v: [b.mul(v[0], v[2]), v[1]],
    )  # fmt: skip
    machine = machine_of_width(256)
    result = np.zeros(12, np.float32)
    given = [result, result[1:], x.reshape(-1), y, scale, 0, reduce_units(kernel, machine, (6,), (23,)), 0]
    run_compiled(build_reduce("reduce", kernel, machine), given, 256)
    assert np.array_equal(result[::2], (x * y).sum(1) * scale)
    assert np.array_equal(result[1::2], (x - y).max(1))


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("piece", [4, 16, 64])
def test_pieces_are_combined_by_a_second_stage(axes: tuple[int, ...], piece: int) -> None:
    x = integers((29, 37), f32)
    module, given, count = planned(x, axes, Total("sum", f32), True, 256, piece=piece)
    ours, compiled = run_both(module, given, 256)
    assert np.array_equal(ours[0], compiled[0])
    rows = count // x.sum(axis=axes).size
    assert np.array_equal(ours[0].reshape(rows, -1).sum(0), x.sum(axis=axes).reshape(-1))


@pytest.mark.parametrize("parts", [2, 3, 7])
@pytest.mark.parametrize("axes", [(0,), (1,)])
def test_work_can_be_shared_out_anywhere(parts: int, axes: tuple[int, ...]) -> None:
    x = random.normal(size=(45, 46)).astype(np.float32)
    module, given, _ = planned(x, axes, Total("sum", f32), True, 128)
    run_loops(module, given)
    whole, units = given[0].copy(), given[-2]
    given[0][:] = 0
    for part in range(parts):
        run_loops(module, [*given[:-3], part * units // parts, (part + 1) * units // parts, part])
    assert np.array_equal(given[0], whole)


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors are read as large ones are."""
    monkeypatch.setattr(reduce, "_LARGE", 1)
    monkeypatch.setattr(reduce, "_WIDE", 512)


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("how", ["sum", "max"])
@pytest.mark.parametrize("dtype", [f32, f64, f16, i32, u8], ids=str)
@pytest.mark.parametrize(("shape", "axes"), [((5, 600), (0,)), ((2, 3, 1030), (1,)), ((3, 2, 512), (0, 1))], ids=str)
def test_totals_of_wide_blocks(shape: Any, axes: Any, dtype: DType, how: str, width: int) -> None:
    x = integers(shape, dtype)
    module, given, count = planned(x, axes, Total(how, f32 if dtype is f16 else dtype), True, width)
    ours, compiled = run_both(module, given, width)
    expected = NUMPY[how](x, axis=axes).reshape(-1)
    assert np.array_equal(ours[0][:count], expected)
    assert np.array_equal(compiled[0][:count], expected)


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("parts", [1, 3])
def test_wide_blocks_in_pieces_with_what_comes_before_and_after(parts: int) -> None:
    x = random.normal(size=(21, 1100)).astype(np.float32)
    options: Any = {"prologue": lambda b, v: [b.mul(v[0], v[0])], "epilogue": lambda b, v: [b.sqrt(v[0])]}
    for piece in (0, 8):
        module, given, count = planned(x, (0,), Total("sum", f32), True, 256, piece=piece, **options)
        units, run = given[-2], compiled(module, 256)
        for part in range(parts):
            run([*given[:-3], part * units // parts, (part + 1) * units // parts, part])
        rows = np.split(x.astype(np.float64), range(8, 21, 8) if piece else [])
        expected = np.sqrt(np.stack([(each**2).sum(0) for each in rows]))
        assert np.allclose(given[0][:count].reshape(expected.shape), expected, rtol=1e-6)


@pytest.mark.parametrize("shape", [(4100, 1030), (16, 4, 70_000)], ids=str)
def test_large_tensors_give_the_same_bits_with_any_threads(shape: tuple[int, ...]) -> None:
    x = random.random(shape).astype(np.float32)
    b = tilewright.Builder("sum")
    b.output(b.reduce_mean(b.input("x", f32[shape]), np.array([0]), keepdims=0), "y")
    found = [tilewright.compile(b.build(), target="cpu", threads=threads).run({"x": x})["y"] for threads in (1, 2, 3)]
    assert np.allclose(found[0], x.mean(0, dtype=np.float64), rtol=1e-6)
    assert all(np.array_equal(found[0], other) for other in found)


def test_long_rows_alone_are_cut() -> None:
    assert piece_length("column", (1024,), (1 << 14,)) == 64  # which is read in wide blocks
    assert piece_length("column", (1024,), (1 << 11,)) == 32
    assert piece_length("row", (), (1 << 20,)) == 1 << 15
    assert piece_length("row", (1000,), (1 << 20,)) == 0
    assert piece_length("row", (), (1000,)) == 0
    assert piece_length("column", (64,), (1 << 20,)) == 512


def test_errors_of_long_sums_do_not_grow_with_their_length() -> None:
    x = random.random(1 << 20).astype(np.float32)
    piece = piece_length("row", (), x.shape)
    module, given, count = planned(x, (0,), Total("sum", f32), True, 512, piece=piece)
    run_compiled(module, given, 512)
    assert abs(given[0][:count].sum() / x.sum(dtype=np.float64) - 1) < 1e-6
