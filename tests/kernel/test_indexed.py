"""Gathers and scatters: every form of ONNX, against numpy; indices out of range are reported and touch nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from loop_running import WIDTHS, run_both

from tilewright.backends.cpu.kernels.indexed import (
    Gather,
    Indexed,
    Scatter,
    build_gather,
    build_scatter,
    can_stream,
    gather_units,
    indexed_arguments,
    scatter_units,
)
from tilewright.backends.cpu.kernels.move import moved_as
from tilewright.backends.cpu.machine import machine_of_width
from tilewright.graph.dtypes import from_numpy

random = np.random.default_rng(31)


def strides_of(array: np.ndarray) -> list[int]:
    return [stride // array.itemsize for stride in array.strides]


def run(
    build: Any, units: int, space: Indexed, extents: tuple[int, ...], whole: np.ndarray, part: np.ndarray,
    indices: np.ndarray, axes: list[int], width: int, bits: bool, component: int = 1,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Whole, part and fault afterwards, equal for both ways of running."""
    kind = moved_as(from_numpy(whole.dtype)).numpy if bits else whole.dtype
    known: dict[str, Any] = {
        "whole": whole.reshape(-1).view(kind), "part": part.reshape(-1).view(kind), "indices": indices.reshape(-1),
        "fault": np.zeros(2, np.int64), "indices_component": component, "begin": 0, "end": units, "thread": 0,
    }  # fmt: skip
    known |= {f"outer{axis}": size for axis, size in enumerate(extents)}
    for name in ("whole", "part", "indices"):
        known |= {f"{name}_outer{axis}": stride for axis, stride in enumerate(getattr(space, name))}
    for position, axis in enumerate(axes):
        known |= {f"step{position}": strides_of(whole)[axis], f"limit{position}": whole.shape[axis]}
    given = [known[name] for name in indexed_arguments(space)]
    ours, compiled = run_both(build, given, width)
    for x, y in zip(ours[:4], compiled[:4], strict=True):
        assert np.array_equal(x, y)
    return ours[0].view(whole.dtype).reshape(whole.shape), ours[1].view(part.dtype).reshape(part.shape), ours[3]


def gathered(
    space: Indexed, extents: tuple[int, ...], whole: np.ndarray, indices: np.ndarray, axes: list[int],
    shape: tuple[int, ...], width: int = 256, component: int = 1, streams: bool = False,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    kernel = Gather(space, streams)
    module = build_gather("gather", kernel, machine_of_width(width))
    part = np.zeros(shape, whole.dtype)
    units = gather_units(kernel, extents)
    _, part, fault = run(module, units, space, extents, whole, part, indices, axes, width, True, component)
    return part, fault


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("inner", [1, 5, 37])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_gather_along_an_axis(index: Any, inner: int, width: int) -> None:
    whole = random.normal(size=(3, 11, inner)).astype(np.float32)
    indices = random.integers(-11, 11, 21).astype(index)
    dtype, kind = from_numpy(whole.dtype), from_numpy(indices.dtype)
    expected = np.take(whole, indices, axis=1)
    if inner == 1:
        extents = (3, 21)
        space = Indexed(dtype, kind, extents, (11, 0), (21, 1), (0, 1))
    else:
        extents = (3, 21, inner)
        space = Indexed(dtype, kind, (None,) * 3, (11 * inner, 0, 1), (21 * inner, inner, 1), (0, 1, 0))
    found, fault = gathered(space, extents, whole, indices, [1], expected.shape, width)
    assert np.array_equal(found, expected)
    assert not fault.any()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64])
@pytest.mark.parametrize(("length", "static"), [(64, True), (131, True), (300, False), (7, False)])
def test_gather_long_rows(length: int, static: bool, dtype: Any, streams: bool, width: int) -> None:
    """In sets of vectors, perhaps past the caches from the first whole line on; the last row asks for itself."""
    whole = random.integers(0, 100, (9, length)).astype(dtype)
    indices = random.integers(-9, 9, (2, 5))
    extents = (2, 5, length)
    space = Indexed(from_numpy(whole.dtype), from_numpy(indices.dtype), extents if static else (None,) * 3,
                    (0, 0, 1), (5 * length, length, 1), (5, 1, 0))  # fmt: skip
    found, fault = gathered(space, extents, whole, indices, [0], extents, width, streams=streams)
    assert np.array_equal(found, whole[indices])
    assert not fault.any()


def test_which_rows_can_go_past_the_caches() -> None:
    kind, index = from_numpy(np.dtype(np.float32)), from_numpy(np.dtype(np.int64))
    rows = Indexed(kind, index, (None, None), (0, 1), (None, 1), (1, 0))
    assert can_stream(rows, (8, 1024))
    assert not can_stream(rows, (8, 1023))
    assert not can_stream(replace(rows, whole=(0, None)), (8, 1024))
    assert not can_stream(replace(rows, indices=(0, 1)), (8, 1024))


@pytest.mark.parametrize("dtype", [np.bool_, np.float16, np.int64])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gather_elements(axis: int, dtype: Any) -> None:
    whole = random.integers(0, 100, (6, 7, 8)).astype(dtype)
    shape = (5, 6, 19) if axis == 2 else (5, 6, 7)
    indices = random.integers(-whole.shape[axis], whole.shape[axis], shape)
    steps = strides_of(whole)
    steps[axis] = 0
    space = Indexed(from_numpy(whole.dtype), from_numpy(indices.dtype), shape, tuple(steps),
                    tuple(strides_of(indices)), tuple(strides_of(indices)))  # fmt: skip
    found, _ = gathered(space, shape, whole, indices, [axis], shape)
    cut = whole[tuple(slice(0, n if a != axis else None) for a, n in enumerate(shape))]
    assert np.array_equal(found, np.take_along_axis(cut, indices, axis))


def test_gather_nd() -> None:
    whole = random.normal(size=(4, 5, 6)).astype(np.float32)
    indices = np.stack([random.integers(-4, 4, 9), random.integers(-5, 5, 9)], axis=1)
    space = Indexed(from_numpy(whole.dtype), from_numpy(indices.dtype), (9, 6), (0, 1), (6, 1), (2, 0), 2)
    found, _ = gathered(space, (9, 6), whole, indices, [0, 1], (9, 6))
    assert np.array_equal(found, whole[indices[:, 0], indices[:, 1]])


@pytest.mark.parametrize("wrong", [-12, 11, 2**40, -(2**62)])
@pytest.mark.parametrize("by_row", [True, False])
def test_an_index_out_of_range_is_reported(by_row: bool, wrong: int) -> None:
    whole = np.arange(1, 34, dtype=np.float32).reshape(11, 3)
    indices = np.array([3, wrong, 0, 7])
    dtype, kind = from_numpy(whole.dtype), from_numpy(indices.dtype)
    if by_row:
        space, extents = Indexed(dtype, kind, (4, 3), (0, 1), (3, 1), (1, 0)), (4, 3)
    else:
        space, extents = Indexed(dtype, kind, (3, 4), (1, 0), (1, 3), (0, 1)), (3, 4)
    found, fault = gathered(space, extents, whole, indices, [0], (4, 3))
    assert fault.tolist() == [1, wrong]
    assert np.array_equal(found[[0, 2, 3]], whole[[3, 0, 7]])
    assert not found[1].any()


@pytest.mark.parametrize("combine", ["none", "add", "mul", "min", "max"])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.float16])
@pytest.mark.parametrize("axis", [0, 1])
def test_scatter_elements(axis: int, dtype: Any, combine: str) -> None:
    whole = random.integers(0, 9, (5, 20)).astype(dtype)
    part = random.integers(1, 9, (4, 19)).astype(dtype)
    indices = random.integers(-whole.shape[axis], whole.shape[axis], part.shape)
    expected = whole.copy()
    update = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}.get(combine)
    for position in np.ndindex(*part.shape):
        place = list(position)
        place[axis] = indices[position]
        old = expected[tuple(place)]
        expected[tuple(place)] = part[position] if update is None else update(old, part[position])
    steps = strides_of(whole)
    if axis == 0:
        order, lanes, apart = (0, 1), True, 0
    else:
        order, lanes, apart = (0, 1), False, 1
    extents = tuple(part.shape[a] for a in order)
    space = Indexed(
        from_numpy(whole.dtype), from_numpy(indices.dtype), extents, tuple(0 if a == axis else steps[a] for a in order),
        tuple(strides_of(part)[a] for a in order), tuple(strides_of(indices)[a] for a in order),
    )  # fmt: skip
    kernel = Scatter(space, combine, apart, lanes)
    module = build_scatter("scatter", kernel, machine_of_width(256))
    units = scatter_units(kernel, extents)
    found, _, fault = run(
        module, units, space, extents, whole, part, indices, [axis], 256, combine == "none"
    )  # fmt: skip
    assert np.array_equal(found, expected)
    assert not fault.any()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("combine", ["none", "add"])
def test_scatter_nd_of_rows(combine: str, width: int) -> None:
    whole = random.integers(0, 9, (4, 5, 21)).astype(np.float32)
    indices = np.stack([random.integers(-4, 4, 7), random.integers(-5, 5, 7)], axis=1)
    part = random.integers(0, 9, (7, 21)).astype(np.float32)
    expected = whole.copy()
    for row, (i, j) in enumerate(indices):
        expected[i, j] = part[row] + (expected[i, j] if combine == "add" else 0)
    space = Indexed(from_numpy(whole.dtype), from_numpy(indices.dtype), (7, 21), (0, 1), (21, 1), (2, 0), 2)
    kernel = Scatter(space, combine, 0, True)
    module = build_scatter("scatter", kernel, machine_of_width(width))
    found, _, _ = run(
        module, scatter_units(kernel, (7, 21)), space, (7, 21), whole, part, indices, [0, 1], width, combine == "none"
    )
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("ignores", [True, False])
def test_one_hot_is_a_scatter_of_one_number(ignores: bool) -> None:
    """Along the last axis, over what was filled with the other number; indices out of range give no 1."""
    indices = np.array([2, -1, 9, 0])
    whole, part = np.zeros((4, 5), np.float32), np.ones(1, np.float32)
    space = Indexed(from_numpy(whole.dtype), from_numpy(indices.dtype), (4, 1), (5, 0), (0, 0), (1, 0))
    kernel = Scatter(space, apart=1, ignores=ignores)
    module = build_scatter("scatter", kernel, machine_of_width(256))
    found, _, fault = run(module, scatter_units(kernel, (4, 1)), space, (4, 1), whole, part, indices, [1], 256, True)
    expected = np.zeros((4, 5))
    expected[[0, 1, 3], [2, 4, 0]] = 1
    assert np.array_equal(found, expected)
    assert fault.tolist() == ([0, 0] if ignores else [1, 9])


def test_work_of_a_gather_can_be_shared_out() -> None:
    space = Indexed(from_numpy(np.dtype(np.float32)), from_numpy(np.dtype(np.int64)), (400, 100), (0, 1), (100, 1),
                    (1, 0))  # fmt: skip
    assert gather_units(Gather(space), (400, 100)) == math.ceil(400 / 81)
