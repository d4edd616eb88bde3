"""Arrays made of constants, in the order in which kernels read them: there once for all plans of an executable.

Large ones are filled by threads while plans are made. Most of that time goes to memory that the system hands out and to
files, for which Python's lock is not needed.
"""

from __future__ import annotations

import threading
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Hashable, Iterator

import numpy as np

from ...graph.core import Value
from ...graph.forks import renew_after_fork
from ...graph.lowerings.builder import data_of
from .kernels.pack import on_cache_lines
from .machine import usable_cores

# Fewer bytes are filled in the time that it takes to hand the task over.
WORTH_A_THREAD = 1 << 16


class _Task:
    """Something that is done once, by whoever comes to it first; others wait for that."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._run, self._lock = run, threading.Lock()
        self.is_done = False
        self.error: Exception | None = None

    def complete(self) -> None:
        """Have it done. What goes wrong is the task's `error`; one that is interrupted is still to be done."""
        with self._lock:
            if self.is_done:
                return
            try:
                self._run()
            except Exception as error:  # raised by `finish`
                self.error = error
            self.is_done = True


class Weights:
    """Arrays by key. Constants of the model in a key are what its array is made from; their own pages are hardly needed
    after that, and given back. For one plan at a time."""

    def __init__(self) -> None:
        self._arrays: dict[Hashable, np.ndarray] = {}
        self._tasks: dict[Hashable, _Task] = {}  # that `finish` has not seen done
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[_Task] = deque()
        self._threads = 0
        for key, task in list(self._tasks.items()):
            if not task.is_done:  # the thread that fills it is not here
                self._drop(key)

    def __iter__(self) -> Iterator[Hashable]:
        """The keys of all arrays, in the order in which they were first asked for."""
        return iter(list(self._arrays))

    def kept(self, key: Hashable, make: Callable[[], np.ndarray]) -> np.ndarray:
        """The array of `key`; `make` makes it when it is first asked for."""
        found = self._arrays.get(key)
        if found is None:
            found = self._arrays[key] = make()
            _release(key)
        return found

    def filled(self, key: Hashable, count: int, dtype: np.dtype, fill: Callable[[np.ndarray], None]) -> np.ndarray:
        """The array of `key`, of `count` elements, from the start of a cache line on. `fill` writes them all, at the
        latest when `finish` is called."""
        found = self._arrays.get(key)
        if found is None:
            empty = on_cache_lines(count, dtype)

            def run() -> None:
                fill(empty)
                _release(key)

            if empty.nbytes < WORTH_A_THREAD:
                run()
            else:
                self._submit(key, _Task(run))
            found = self._arrays[key] = empty
        return found

    def finish(self) -> None:
        """Have all arrays filled. Raises what went wrong with the first of those that could not be, of which none is
        kept."""
        errors = []
        for key, task in list(self._tasks.items()):
            task.complete()
            self._tasks.pop(key, None)
            if task.error is not None:
                self._drop(key)
                errors.append(task.error)
        if errors:
            raise errors[0]

    def _submit(self, key: Hashable, task: _Task) -> None:
        self._tasks[key] = task
        with self._lock:
            self._waiting.append(task)
            is_short = self._threads < usable_cores()
            self._threads += is_short
        if is_short:
            try:
                # `Thread.start` waits until the thread runs: for ever, if memory is too short for that.
                start_new_thread(self._work, ())
            except RuntimeError:  # the system has no more of them, or Python is about to end; `finish` does it then
                with self._lock:
                    self._threads -= 1

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    return
                task = self._waiting.popleft()
            task.complete()

    def _drop(self, key: Hashable) -> None:
        self._tasks.pop(key, None)
        self._arrays.pop(key, None)


def _release(key: Hashable) -> None:
    for part in key if isinstance(key, tuple) else ():
        data = data_of(part) if isinstance(part, Value) else None
        if data is not None:
            data.release()
