"""Memory of large outputs is used again once nobody has it."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tilewright
from tilewright.backends.cpu.output_memory import LARGE, OutputMemory
from tilewright.graph.dtypes import f32
from tilewright.graph.model_builder import Builder

F32 = np.dtype(np.float32)
MANY = LARGE // F32.itemsize


def place(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def test_memory_comes_back_with_the_last_view_of_it() -> None:
    memory = OutputMemory()
    new = memory.maker([LARGE])
    first = new((MANY,), F32)
    address, part = place(first), first.reshape(2, -1)[1, 5:9]
    part[...] = 7
    del first
    gc.collect()
    second = new((MANY,), F32)
    second[...] = 1
    assert place(second) != address
    assert (part == 7).all()
    del part
    assert place(new((MANY // 2, 2), F32)) == address
    assert second.flags.writeable


def test_no_more_is_kept_than_one_run_needs() -> None:
    memory = OutputMemory()
    new = memory.maker([LARGE, LARGE, 100])
    held = [new((MANY,), F32) for _ in range(5)]
    held.clear()
    assert [each.nbytes for each in memory._free] == [LARGE, LARGE]
    larger = new((MANY + 1,), F32)  # neither is large enough
    assert place(larger) not in map(place, memory._free)
    assert len(memory._free) == 2


@pytest.mark.parametrize("sizes", [[], [100], [LARGE - 1, LARGE - 1]])
def test_small_outputs_are_numpys_own(sizes: list[int]) -> None:
    assert OutputMemory().maker(sizes) is np.empty


def test_results_of_an_executable_stay_what_they_are() -> None:
    b = Builder("double")
    b.output(b.input("x", f32["n"]) * np.float32(2), "y")
    executable = tilewright.compile(b.build(), target="cpu", threads=1)
    sizes = [MANY, MANY + 3, 2 * MANY, 5]

    def run(index: int) -> bool:
        size = sizes[index % 4]
        y = executable.run({"x": np.full(size, index, np.float32)})["y"]
        tail = y[-3:]
        again = executable.run({"x": np.full(size, index + 1, np.float32)})["y"]
        return bool((y == 2 * index).all() and (tail == 2 * index).all() and (again == 2 * index + 2).all())

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(run, range(12)))


def test_a_result_that_is_lent_is_not_copied() -> None:
    b = Builder("twice")
    y = b.input("x", f32["n"]) * np.float32(2)
    for name in "yz":
        b.output(y, name)
    executable = tilewright.compile(b.build(), target="cpu", threads=1)
    for size in (5, MANY):
        y, z = executable.run({"x": np.ones(size, np.float32)}).values()
        y[...] = 3
        assert (z == 2).all()
        lent = place(y)
        del y
        gc.collect()
        again = executable.run({"x": np.ones(size, np.float32)})["y"]
        assert size < MANY or place(again) == lent
        assert (z == 2).all()
