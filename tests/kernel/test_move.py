"""Copies between layouts: interpreted and compiled, every dtype's width, turned squares with edges, fills, flips."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from loop_running import NARROW, WIDE, WIDTHS, run_both, run_compiled

from tilewright.backends.cpu.kernels.move import build_copy, copy_arguments, copy_units, moved_as, ordered
from tilewright.backends.cpu.machine import Machine, machine_of_width
from tilewright.graph.dtypes import f32, from_numpy
from tilewright.graph.kernel.interpreter import run_loops

random = np.random.default_rng(13)


def memory_of(array: np.ndarray) -> tuple[np.ndarray, int]:
    """The whole memory behind an array as unsigned integers, and where its first element lies."""
    base = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    start = (array.ctypes.data - base.ctypes.data) // array.itemsize
    return base.reshape(-1).view(moved_as(from_numpy(array.dtype)).numpy), start


def planned(
    source: np.ndarray, target: np.ndarray, machine: Machine, static: bool, streams: bool = False
) -> tuple[Any, list[Any]]:
    plan = ordered(target.shape, *([s // a.itemsize for s in a.strides] for a in (source, target)))
    kernel = replace(plan.of(from_numpy(source.dtype), static), streams=streams)
    assert not streams or plan.can_stream(kernel.dtype, machine)
    (y, y_start), (x, x_start) = memory_of(target), memory_of(source)
    known: dict[str, Any] = {"y": y, "x": x, "source_start": x_start, "target_start": y_start}
    for axis in range(len(plan.extents)):
        known |= {f"outer{axis}": plan.extents[axis], f"x_outer{axis}": plan.source[axis]}
        known[f"y_outer{axis}"] = plan.target[axis]
    known |= {"begin": 0, "end": copy_units(kernel, machine, plan.extents), "thread": 0}
    return build_copy("copy", kernel, machine), [known[name] for name in copy_arguments(kernel)]


def check(source: np.ndarray, target: np.ndarray, width: int = 256, static: bool = True, streams: bool = False) -> None:
    """The copy does what numpy's assignment does, and touches nothing else."""
    module, given = planned(source, target, machine_of_width(width), static, streams)
    ours, compiled = run_both(module, given, width)
    target[...] = source
    assert np.array_equal(ours[0], given[0])
    assert np.array_equal(compiled[0], given[0])


def numbers(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return random.integers(0, 200, shape).astype(dtype)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("shape", [(5, 7), (16, 16), (33, 18), (4, 3), (70, 4), (1, 9)])
def test_matrices_are_turned(shape: tuple[int, int], width: int) -> None:
    check(numbers(*shape).T, numbers(*shape[::-1]), width, static=shape[0] % 2 == 0)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("static", [True, False])
def test_every_order_of_three_dims(order: tuple[int, ...], static: bool) -> None:
    source = numbers(5, 6, 19).transpose(order)
    check(source, np.zeros(source.shape, np.float32), 256, static)


@pytest.mark.parametrize("dtype", [np.uint8, np.bool_, np.float16, np.int64, np.float64])
def test_dtypes(dtype: Any) -> None:
    source = numbers(18, 21, dtype=dtype)
    check(source.T, np.zeros((21, 18), dtype), 512)
    check(source, np.zeros((18, 21), dtype), 512)


@pytest.mark.parametrize("width", [256, 512])
@pytest.mark.parametrize("dtype", [np.uint8, np.float16])
def test_columns_of_short_numbers_fill_registers(dtype: Any, width: int) -> None:
    for shape in ((66, 19), (64, 33)):
        check(numbers(*shape, dtype=dtype).T, np.zeros(shape[::-1], dtype), width, static=width == 512)


def on_line(count: int, dtype: Any, behind: int) -> np.ndarray:
    """Memory that begins so many elements behind the beginning of a cache line."""
    room = np.zeros(count * np.dtype(dtype).itemsize + 128, np.uint8)
    start = -room.ctypes.data % 64 + behind * np.dtype(dtype).itemsize
    return room[start : start + count * np.dtype(dtype).itemsize].view(dtype)


@pytest.mark.parametrize("behind", [0, 1, 4])
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64])
def test_squares_that_go_past_the_caches(dtype: Any, behind: int) -> None:
    """Rows of the target are whole lines apart, and begin anywhere in them."""
    source = numbers(150, 19, dtype=dtype)
    pitch = 192
    for static in (True, False):
        whole = on_line(19 * pitch, dtype, behind).reshape(19, pitch)
        target = whole[:, :150]
        module, given = planned(source.T, target, WIDE, static, streams=True)
        # Interpreted where it lies, since a copy of it may begin elsewhere in a line.
        for run in (run_loops, lambda m, a: run_compiled(m, a, 512)):
            target[...] = 0
            run(module, given)
            assert np.array_equal(target, source.T)
            assert not whole[:, 150:].any()


@pytest.mark.parametrize("width", WIDTHS)
def test_rows_that_go_past_the_caches(width: int) -> None:
    source, target = numbers(2, 5001), np.zeros((2, 5003), np.float32)
    check(source, target[:, 1:5002], width, static=width == 256, streams=True)


def test_what_goes_past_the_caches() -> None:
    assert ordered((64, 64), (1, 64), (64, 1)).can_stream(f32, WIDE)
    assert not ordered((64, 63), (1, 64), (63, 1)).can_stream(f32, WIDE)
    assert not ordered((64, 64), (1, 64), (64, 1)).can_stream(f32, NARROW)
    assert ordered((8, 5000), (5001, 1), (5002, 1)).can_stream(f32, WIDE)
    assert not ordered((5000, 8), (9, 1), (10, 1)).can_stream(f32, WIDE)


def test_channels_last_and_back_with_a_halo() -> None:
    source = numbers(2, 20, 5, 6)
    halo = numbers(2, 7, 8, 20)
    inside = halo[:, 1:6, 1:7, :].transpose(0, 3, 1, 2)
    check(source, inside)
    back = np.zeros_like(source)
    check(inside, back)
    assert np.array_equal(source, back)


def test_concatenating_filling_broadcasting_and_flipping() -> None:
    target = numbers(6, 20, 3)
    check(numbers(6, 7, 3), target[:, 4:11])
    check(np.broadcast_to(np.float32(5), (6, 2, 3)), target[:, 0:2])
    check(np.broadcast_to(numbers(1, 20, 1), (6, 20, 3)), target)
    check(numbers(6, 20, 3)[:, ::-1], target)
    check(numbers(6, 20, 3)[::2, ::-3, ::-1], target[:3, :7])
    check(numbers(12, 20, 3)[::2], target[..., ::-1])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_every_second_element_and_the_last_one_first(dtype: Any, width: int) -> None:
    """Whole vectors and a rest; the source ends with the last element that is read."""
    source = numbers(2, 289, dtype=dtype)
    check(source[:, ::2], np.zeros((2, 145), dtype), width)
    check(source[:, ::-1], np.zeros((2, 289), dtype), width)


@pytest.mark.parametrize("shape", [(0, 4), (), (1, 1)])
def test_little_or_nothing(shape: tuple[int, ...]) -> None:
    source, target = numbers(*shape), np.zeros(shape, np.float32)
    module, given = planned(source, target, machine_of_width(256), False)
    run_compiled(module, given, 256)
    assert np.array_equal(source, target)


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("turned", [True, False])
def test_work_can_be_shared_out_anywhere(turned: bool, parts: int) -> None:
    source = numbers(90, 300)
    target = np.zeros((300, 90) if turned else (90, 300), np.float32)
    source = source.T if turned else source
    module, given = planned(source, target, machine_of_width(256), True)
    units = given[-2]
    assert units > 1
    run = run_loops if turned else lambda m, a: run_compiled(m, a, 256)
    for part in range(parts):
        run(module, [*given[:-3], part * units // parts, (part + 1) * units // parts, part])
    assert np.array_equal(source, target)


def test_long_rows_are_cut_into_pieces() -> None:
    source, target = numbers(2, 40001), np.zeros((2, 40003), np.float32)
    module, given = planned(source, target[:, 1:40002], WIDE, False)
    run_compiled(module, given, 512)
    assert np.array_equal(source, target[:, 1:40002])
    assert not target[:, 0].any()
    assert not target[:, 40002].any()
