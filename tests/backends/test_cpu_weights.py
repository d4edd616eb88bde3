"""Arrays that threads fill while plans are made."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

import tilewright
from tilewright.backends.cpu import plan_gemm
from tilewright.backends.cpu import weights as weights_module
from tilewright.backends.cpu.weights import WORTH_A_THREAD, Weights
from tilewright.graph.diagnostics import ExecutionError
from tilewright.graph.dtypes import f32
from tilewright.graph.model_builder import Builder

F32 = np.dtype(np.float32)
MANY = WORTH_A_THREAD // F32.itemsize


def test_large_arrays_are_filled_until_finish() -> None:
    weights = Weights()
    found = [
        weights.filled(index, MANY, F32, lambda array, index=index: array.fill(index)) for index in range(20)
    ]  # fmt: skip
    weights.finish()
    for index, array in enumerate(found):
        assert array.ctypes.data % 64 == 0
        assert (array == index).all()
        assert weights.filled(index, MANY, F32, pytest.fail) is array
    assert list(weights) == list(range(20))


def test_small_arrays_are_filled_at_once() -> None:
    here: list[int] = []
    array = Weights().filled("key", 3, F32, lambda array: here.append(threading.get_ident()))
    assert array.shape == (3,)
    assert here == [threading.get_ident()]


def test_what_goes_wrong_is_raised_and_not_kept() -> None:
    weights = Weights()

    def fail(array: np.ndarray) -> None:
        raise OSError("the file has become shorter")

    weights.filled("key", MANY, F32, fail)
    with pytest.raises(OSError, match="shorter"):
        weights.finish()
    assert list(weights) == []
    weights.finish()
    array = weights.filled("key", MANY, F32, lambda array: array.fill(1))
    weights.finish()
    assert (array == 1).all()


def test_several_that_go_wrong_are_told_once() -> None:
    weights = Weights()

    def fail(array: np.ndarray) -> None:
        raise MemoryError("none left")

    for key in range(3):
        weights.filled(key, MANY, F32, fail)
    with pytest.raises(MemoryError, match="none left"):
        weights.finish()
    weights.finish()
    assert list(weights) == []


@pytest.mark.parametrize("rows", [3, "n"])
def test_a_model_is_told_that_memory_is_short(rows: int | str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise MemoryError("none left")

    b = Builder("product")
    b.output(b.input("x", f32[rows, 200]) @ np.ones((200, 200), np.float32), "y")
    model = b.build()
    with monkeypatch.context() as patch:
        patch.setattr(plan_gemm, "fill_panels", fail)
        with pytest.raises(ExecutionError, match=r"run/memory.*packed weights: none left"):
            tilewright.compile(model, target="cpu").run({"x": np.ones((3, 200), np.float32)})
    y = tilewright.compile(model, target="cpu").run({"x": np.ones((3, 200), np.float32)})["y"]
    assert (y == 200).all()


def test_without_threads_finish_fills(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(weights_module, "start_new_thread", refuse)
    weights = Weights()
    arrays = [weights.filled(key, MANY, F32, lambda array, key=key: array.fill(key)) for key in range(5)]
    weights.finish()
    assert all((array == key).all() for key, array in enumerate(arrays))


def test_one_that_was_interrupted_is_filled_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_module, "start_new_thread", lambda *arguments: None)
    weights, interrupts = Weights(), [KeyboardInterrupt]

    def fill(array: np.ndarray) -> None:
        while interrupts:
            raise interrupts.pop()
        array.fill(1)

    array = weights.filled("key", MANY, F32, fill)
    with pytest.raises(KeyboardInterrupt):
        weights.finish()
    assert weights.filled("key", MANY, F32, pytest.fail) is array
    weights.finish()
    assert (array == 1).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes to fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_forked_meanwhile_fills_its_own() -> None:
    weights, go = Weights(), threading.Event()
    weights.filled("done", MANY, F32, lambda array: array.fill(1))
    weights.finish()
    weights.filled("under way", MANY, F32, lambda array: go.wait() and array.fill(2))
    child = os.fork()
    if child == 0:
        kept = list(weights)
        array = weights.filled("under way", MANY, F32, lambda array: array.fill(2))
        weights.finish()
        os._exit(0 if kept == ["done"] and (array == 2).all() else 1)
    go.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    weights.finish()
    assert list(weights) == ["done", "under way"]
