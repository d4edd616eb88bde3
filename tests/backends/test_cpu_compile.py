"""Compiling kernels: many at once in several processes, whatever happens to those, and found again by their keys."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.backends.cpu import compile_queue
from tilewright.backends.cpu.compile_queue import CompileQueue
from tilewright.backends.cpu.emit_llvm import emit_module
from tilewright.backends.cpu.jit import Code
from tilewright.backends.cpu.keys import spelled
from tilewright.backends.cpu.library import KernelLibrary
from tilewright.backends.cpu.machine import machine
from tilewright.graph import types
from tilewright.graph.dtypes import f32, f64
from tilewright.graph.kernel.loop_builder import LoopBuilder
from tilewright.graph.module import Module

pytestmark = pytest.mark.usefixtures("unchecked")


def adding(name: str, number: int) -> Module:
    """x[0] += number."""
    b = LoopBuilder(name, x=types.buffer(f32))
    b.store(b.add(b.load(b["x"], 0), number), b["x"], 0)
    return b.module()


def run(entry: int) -> float:
    """What a kernel made by `adding` makes of 0."""
    import ctypes

    x = np.zeros(1, np.float32)
    arguments, bases = np.array([0, 0], np.int64), np.array([x.ctypes.data], np.int64)
    word = ctypes.c_int64
    ctypes.CFUNCTYPE(None, *[word] * 5)(entry)(arguments.ctypes.data, bases.ctypes.data, 0, 1, 0)
    return float(x[0])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    chosen = tmp_path / "kernels"
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(chosen))
    return chosen


@pytest.mark.parametrize("processes", [0, 1, 3])
def test_a_queue_compiles_everything(processes: int) -> None:
    queue = CompileQueue(machine(), processes)
    for _ in range(2):
        tasks = [queue.submit(emit_module(adding(f"k{number}", number), machine())) for number in range(8)]
        queue.finish(tasks)
        codes = [Code([task.code], machine()) for task in tasks]
        assert [run(code.address(f"k{number}_entry")) for number, code in enumerate(codes)] == list(range(8))
        assert not queue._feeders


def test_a_process_that_dies_leaves_its_task_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    start, killed = compile_queue._started, []

    def dying() -> Any:
        process = start()
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        killed.append(process)
        return process

    monkeypatch.setattr(compile_queue, "_started", dying)
    queue = CompileQueue(machine(), 2)
    tasks = [queue.submit(emit_module(adding(f"k{number}", number), machine())) for number in range(6)]
    queue.finish(tasks)
    assert len(killed) == 2
    assert all(task.code for task in tasks)
    assert all(process.returncode is not None for process in killed)


@pytest.mark.parametrize("processes", [0, 2])
def test_what_llvm_refuses_is_an_error(processes: int) -> None:
    queue = CompileQueue(machine(), processes)
    tasks = [queue.submit("this is no IR") for _ in range(5)]
    with pytest.raises(RuntimeError, match="expected top-level entity"):
        queue.finish(tasks)
    assert not queue._feeders


def test_kernels_with_equal_names_are_compiled_together(folder: Path) -> None:
    library = KernelLibrary(machine())
    kernels = [library.get(number, lambda name, number=number: adding(name, number), "same") for number in range(5)]
    assert [run(kernel.entry) for kernel in kernels] == list(range(5))
    assert (library.compiled, library.loaded, len(library._code)) == (5, 0, 1)


def test_a_key_finds_a_kernel_on_disk_without_building_it(folder: Path) -> None:
    def never(name: str) -> Module:
        raise AssertionError("built")

    assert run(KernelLibrary(machine()).get(("add", 3, f32), lambda name: adding(name, 3), "k").entry) == 3
    library = KernelLibrary(machine())
    assert run(library.get(("add", 3, f32), never, "k").entry) == 3
    assert (library.compiled, library.loaded) == (0, 1)
    with pytest.raises(AssertionError, match="built"):
        library.get(("add", 3, f64), never, "k")


def test_equal_code_is_found_under_other_keys(folder: Path) -> None:
    library = KernelLibrary(machine())
    first, second = (library.get(key, lambda name: adding(name, 3), "k") for key in ("a", "b"))
    assert first is second
    assert run(first.entry) == 3
    again = KernelLibrary(machine())
    assert run(again.get(("c", object()), lambda name: adding(name, 3), "k").entry) == 3
    assert (again.compiled, again.loaded) == (0, 1)


def test_only_plain_keys_arespelled() -> None:
    assert spelled(("a", 1, None, (f32, 2.5))) != spelled(("a", 1, None, (f64, 2.5)))
    assert spelled((1,)) != spelled((True,)) != spelled(("1",))
    assert spelled((np.int64(3),)) == spelled((3,))
    assert spelled(("a", object())) == ""
    assert spelled(("a", lambda: 0)) == ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks on this system")
def test_a_forked_child_compiles_what_its_parent_had_begun(folder: Path) -> None:
    library = KernelLibrary(machine())
    kernels = [library.get(("k", number), lambda name, n=number: adding(name, n), "k") for number in range(6)]
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(int([run(kernel.entry) for kernel in kernels] != list(range(6))))
    assert [run(kernel.entry) for kernel in kernels] == list(range(6))
    assert os.waitpid(child, 0)[1] == 0


def test_after_an_error_no_kernel_has_an_address(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*arguments: Any) -> bytes:
        raise RuntimeError("out of memory")

    library = KernelLibrary(machine())
    kernel = library.get("a", lambda name: adding(name, 1), "k")
    monkeypatch.setattr(compile_queue, "object_code_of_text", failing)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="out of memory"):
            assert kernel.entry
