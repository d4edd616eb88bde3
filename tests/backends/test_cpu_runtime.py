"""The thread pool: programs shared among threads, sleeping workers, a busy pool, fork, exit."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from tilewright.backends.cpu import machine as machines
from tilewright.backends.cpu.jit import Code, compile_modules
from tilewright.backends.cpu.kernels.elementwise import GRAIN, Map, MapOperand, build_map
from tilewright.backends.cpu.memory_plan import ALIGNMENT, Lifetime, place
from tilewright.backends.cpu.runtime import Pool, pool, stop_pools
from tilewright.backends.cpu.runtime_text import BUSY, EPOCH
from tilewright.graph.diagnostics import UsageError
from tilewright.graph.dtypes import f32


@dataclass
class Counting:
    """A program of `steps` steps, each of which adds 1 to every element of `x`."""

    code: Code
    x: np.ndarray
    steps: np.ndarray
    bases: np.ndarray
    arguments: np.ndarray

    def run(self, workers: Pool) -> None:
        workers.run(self.steps.ctypes.data, len(self.steps), self.bases.ctypes.data)


@pytest.fixture(scope="module")
def code() -> Code:
    kernel = Map(1, (MapOperand(f32, 1),), (MapOperand(f32, 1),), lambda b, x: [b.add(x[0], 1)])
    return compile_modules([build_map("count", kernel, machines.machine())], machines.machine())


def counting(code: Code, steps: int = 5, elements: int = 10 * GRAIN + 3) -> Counting:
    x = np.zeros(elements, np.float32)
    arguments = np.array([1, 0, 1, 0, elements], np.int64)
    record = [code.address("count_entry"), arguments.ctypes.data, -(-elements // GRAIN), 99]
    return Counting(code, x, np.array([record] * steps, np.int64), np.array([0, x.ctypes.data], np.int64), arguments)


@pytest.fixture(autouse=True)
def fresh_pools() -> Iterator[None]:
    yield
    stop_pools()


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_every_element_is_done_once_in_each_step(code: Code, threads: int) -> None:
    program = counting(code)
    for _ in range(3):
        program.run(pool(threads))
    assert (program.x == 15).all()


def test_workers_that_fell_asleep_are_woken(code: Code) -> None:
    program, workers = counting(code), pool(2)
    for round_index in range(1, 4):
        program.run(workers)
        assert (program.x == 5 * round_index).all()
        deadline = time.monotonic() + 60
        while not workers._asleep[1] and time.monotonic() < deadline:
            time.sleep(0.01)
        assert workers._asleep == [False, True]


def test_a_caller_who_finds_the_pool_busy_runs_alone(code: Code) -> None:
    program, workers = counting(code), pool(2)
    workers._state[BUSY] = 1
    try:
        job = int(workers._state[EPOCH])
        program.run(workers)
        assert (int(workers._state[EPOCH]), int(workers._state[BUSY])) == (job, 1)  # nothing was shared or given back
    finally:
        workers._state[BUSY] = 0
    assert (program.x == 5).all()
    program.run(workers)
    assert (int(workers._state[EPOCH]), int(workers._state[BUSY])) == (job + 1, 0)
    assert (program.x == 10).all()


def test_a_pool_ends_in_whatever_its_workers_do(code: Code) -> None:
    program = counting(code)
    for pause in (0.0, 0.0002, 0.05):  # they spin, fall asleep, sleep
        workers = Pool(3)
        program.run(workers)
        time.sleep(pause)
        workers.stop()
        assert not any(worker.is_alive() for worker in workers._workers)
        program.x[:] = 0
        program.run(workers)  # alone
        assert (program.x == 5).all()


@dataclass
class Recording:
    """A program whose steps are Python functions, which write down what they were given: step, units, thread."""

    calls: list[tuple[int, int, int, int]]
    steps: np.ndarray
    functions: list[object]

    def run(self, workers: Pool) -> None:
        self.calls.clear()
        workers.run(self.steps.ctypes.data, len(self.steps), 0)


def recording(shapes: list[tuple[int, int]], act: Callable[[int, int], None] = lambda step, thread: None) -> Recording:
    """`shapes` are units and parts of each step."""
    calls: list[tuple[int, int, int, int]] = []
    functions: list[object] = []
    rows = []
    for step, (units, parts) in enumerate(shapes):

        def function(arguments: int, bases: int, begin: int, end: int, thread: int, step: int = step) -> None:
            act(step, thread)
            calls.append((step, begin, end, thread))

        functions.append(ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)(function))
        rows.append([ctypes.cast(functions[-1], ctypes.c_void_p).value, 0, units, parts])
    return Recording(calls, np.array(rows, np.int64), functions)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_units_are_done_once_by_threads_that_may_and_steps_follow_each_other(threads: int) -> None:
    shapes = [(100, 99), (1, 1), (7, 2), (0, 3), (3, 99), (64, 1), (1000, 3)]
    program = recording(shapes)
    for _ in range(5):
        program.run(pool(threads))
        assert [step for step, *_ in program.calls] == sorted(step for step, *_ in program.calls)
        for step, (units, parts) in enumerate(shapes):
            mine = [call for call in program.calls if call[0] == step]
            done = sorted(unit for _, begin, end, _ in mine for unit in range(begin, end))
            assert done == list(range(units))
            assert all(thread < min(parts, threads) for *_, thread in mine)


def test_nobody_waits_for_a_thread_that_is_held_up() -> None:
    held = []

    def act(step: int, thread: int) -> None:
        if thread == 1 and not held:
            held.append(step)
            time.sleep(0.3)
        time.sleep(0.002)

    program = recording([(64, 2)], act)
    program.run(pool(2))
    by_thread = [sum(end - begin for _, begin, end, thread in program.calls if thread == t) for t in (0, 1)]
    assert sum(by_thread) == 64
    if held:
        assert by_thread[1] <= 4  # the chunk it had in hand; the rest of its part was done by the other


def test_jobs_of_any_size_follow_each_other_quickly() -> None:
    small, large = recording([(1, 1)]), recording([(16, 4)] * 3)
    workers = pool(4)
    for _ in range(200):
        small.run(workers)
        large.run(workers)
        assert len(small.calls) == 1
        assert sum(end - begin for _, begin, end, _ in large.calls) == 48


def test_callers_side_by_side(code: Code) -> None:
    programs = [counting(code) for _ in range(4)]
    callers = [
        threading.Thread(target=lambda each=each: [each.run(pool(2)) for _ in range(20)]) for each in programs
    ]  # fmt: skip
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert all((each.x == 100).all() for each in programs)


def test_pools_can_be_stopped_and_come_back(code: Code) -> None:
    program = counting(code)
    program.run(pool(2))
    before = threading.active_count()
    stop_pools()
    assert threading.active_count() == before - 1
    program.run(pool(2))
    assert (program.x == 10).all()


SCRIPT = """
import os, sys, numpy as np, tilewright
from tilewright.graph.dtypes import f32
b = tilewright.Builder("m")
b.output(b.exp(b.input("x", f32[500, 500]) @ np.eye(500, dtype=np.float32)), "y")
run = tilewright.compile(b.build(), target="cpu", threads=2).run
feeds = {"x": np.zeros((500, 500), np.float32)}
assert (run(feeds)["y"] == 1).all()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_computes_too() -> None:
    child = """
pid = os.fork()
if pid == 0:
    assert (run(feeds)["y"] == 1).all()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert (run(feeds)["y"] == 1).all()
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT + child], timeout=120, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_process_ends_while_a_model_runs() -> None:
    background = """
import threading
threading.Thread(target=lambda: [run(feeds) for _ in range(100000)], daemon=True).start()
"""
    done = subprocess.run([sys.executable, "-c", SCRIPT + background], timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ---- memory plan and machine -----------------------------------------------------------------------------------------


def test_values_that_live_at_one_time_do_not_overlap() -> None:
    random = np.random.default_rng(2)
    for _ in range(50):
        starts = random.integers(0, 20, 30)
        lifetimes = [Lifetime(int(random.integers(0, 500)), int(s), int(s + random.integers(0, 8))) for s in starts]
        offsets, total = place(lifetimes)
        for i, mine in enumerate(lifetimes):
            assert offsets[i] % ALIGNMENT == 0
            assert offsets[i] + mine.size <= total
            for j, other in enumerate(lifetimes[:i]):
                together = mine.first <= other.last and other.first <= mine.last
                apart = offsets[i] + mine.size <= offsets[j] or offsets[j] + other.size <= offsets[i]
                assert apart or not together or not mine.size or not other.size


def test_a_chain_needs_two_places() -> None:
    _, total = place([Lifetime(64, step, step + 1) for step in range(100)])
    assert total == 128


def test_a_narrow_machine_has_no_wide_features() -> None:
    wide, narrow = machines.machine_of_width(0), machines.machine_of_width(128)
    assert narrow.vector_bits == 128
    assert narrow.lanes(f32) == 4
    assert "+avx512" not in narrow.features
    assert wide.key != narrow.key or wide.vector_bits == 128


def test_a_width_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_VECTOR_BITS", "1024")
    with pytest.raises(UsageError, match="128, 256 or 512"):
        machines.machine()


def test_cores_are_counted() -> None:
    assert 1 <= machines.usable_cores() <= (os.cpu_count() or 1)
