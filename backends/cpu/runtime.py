"""The native runtime: a program is a table of steps, each shared out among threads. `runtime_text` says how.

Worker threads are Python threads parked inside native code, where they hold no lock of Python's. They spin for new work
for a short while, then come back to Python and sleep. Nobody depends on them: the caller does what they do not, so
workers that are late, or that the system has no core for, only help less. A caller who finds the pool busy runs alone.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import sys
import threading
from functools import cache
from typing import Any

import numpy as np

from .jit import Code, stored_object_code
from .machine import machine_of_width, usable_cores
from .runtime_text import ARRAY_DATA, EPOCH, STEP_WORDS, runtime_text, state_words

__all__ = ["STEP_WORDS", "Pool", "Runtime", "pool", "runtime", "stop_pools"]

_IS_CPYTHON = sys.implementation.name == "cpython"  # where an object's id is its address
SPINS = 8000  # about 0.4 ms of waiting


class Runtime:
    """The compiled runtime's functions, which release Python's lock while they run.

    `reads_arrays`: native code finds the elements of a numpy array by the object's address. Asking numpy for them takes
    ten times as long.
    """

    def __init__(self) -> None:
        machine = machine_of_width(0)
        self._code = Code([stored_object_code(runtime_text(machine.triple), machine)], machine)
        self.run = self._function("run", 4)
        self.share = self._function("share", 7)
        self.work = self._function("work", 4, ctypes.c_int64)
        self.stop = self._function("stop", 1)
        sample = np.zeros(3)
        field = ctypes.c_void_p.from_address(id(sample) + ARRAY_DATA) if _IS_CPYTHON else ctypes.c_void_p()
        self.reads_arrays = field.value == sample.ctypes.data

    def _function(self, name: str, count: int, result: Any = None) -> Any:
        return ctypes.CFUNCTYPE(result, *[ctypes.c_int64] * count)(self._code.address(f"tilewright_{name}"))


@cache
def runtime() -> Runtime:
    return Runtime()


class Pool:
    """`threads` - 1 workers, or as many of them as the system grants, and the caller."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._runtime = runtime()
        # Threads without a core of their own only keep others from working while they spin.
        self._spins = SPINS if threads <= usable_cores() else 0
        self._state = np.zeros(state_words(threads), np.int64)
        self._address = self._state.ctypes.data
        # A worker that sleeps waits for its bell, a lock that is held until it is rung.
        self._bells = [threading.Lock() for _ in range(threads)]
        self._asleep = [False] * threads
        for bell in self._bells:
            bell.acquire()
        self._workers: list[threading.Thread] = []
        for index in range(1, threads):
            worker = threading.Thread(target=self._work, args=(index,), daemon=True, name=f"tilewright-{index}")
            try:
                worker.start()
            except RuntimeError:  # no more threads; those that there are do the work
                break
            self._workers.append(worker)

    def run(self, steps: int, count: int, bases: int, arrays: int = 0) -> None:
        """Run the program at the address `steps`; alone if the pool is at work for somebody else.

        Of so many `arrays` among the bases the objects are given (see `reads_arrays`).
        """
        if self.threads == 1:
            self._runtime.run(steps, count, bases, arrays)
            return
        # Who is woken finds the job when it looks; one that falls asleep just now misses it, and is woken for the
        # next. Whether the pool is free is asked, and said again, in the one native call that does the job: an
        # interrupt comes before it or after it, and leaves nothing held.
        if True in self._asleep:
            self._wake()
        self._runtime.share(self._address, steps, count, bases, arrays, self.threads, self._spins)

    def _wake(self) -> None:
        for thread, asleep in enumerate(self._asleep):
            if asleep:
                self._ring(thread)

    def _ring(self, thread: int) -> None:
        with contextlib.suppress(RuntimeError):  # it was rung already
            self._bells[thread].release()

    def _work(self, thread: int) -> None:
        seen = 0
        while True:
            seen = self._runtime.work(self._address, thread, seen, self._spins)
            if seen < 0:
                return
            self._asleep[thread] = True
            # The job's number is looked at after that was said: either it is seen here, or the bell will be rung. A
            # bell that is rung for nothing costs one more look.
            if int(self._state[EPOCH]) == seen:
                self._bells[thread].acquire()
            self._asleep[thread] = False

    def stop(self) -> None:
        """Let the workers end, and wait for them. One that works on a program ends when that is done."""
        self._runtime.stop(self._address)
        for thread in range(self.threads):
            self._ring(thread)
        for worker in self._workers:
            worker.join()


_pools: dict[int, Pool] = {}
_pools_lock = threading.Lock()


def pool(threads: int) -> Pool:
    """The process's pool of so many threads."""
    with _pools_lock:
        found = _pools.get(threads)
        if found is None:
            found = _pools[threads] = Pool(threads)
        return found


def stop_pools() -> None:
    """End all worker threads; the next program starts new ones."""
    with _pools_lock:
        for each in _pools.values():
            each.stop()
        _pools.clear()


def _forget_pools() -> None:
    """A forked child has none of its parent's threads."""
    global _pools_lock
    _pools_lock = threading.Lock()
    _pools.clear()


atexit.register(stop_pools)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pools)
