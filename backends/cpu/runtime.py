"""The native runtime: a program is a table of steps, each shared out among threads that meet after it.

Worker threads are Python threads parked inside native code, where they hold no lock of Python's. They spin for new work
for a short while, then come back to Python and sleep. A caller who finds the pool busy runs alone.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from functools import cache
from typing import Any

import numpy as np

from .jit import Code, object_code_of_text
from .machine import Machine, machine_of_width

STEP_WORDS = 4  # entry point, argument table, work units, parts
SPINS = 2000  # about 0.1 ms of waiting

# Words of the state that threads share, on cache lines of their own: the number of the job, how many have arrived at
# the barrier, how often it opened, whether to stop, and the job.
_EPOCH, _ARRIVED, _OPENED, _STOP, _JOB, _STATE_WORDS = 0, 16, 32, 48, 64, 80

_TEXT = """
declare i32 @sched_yield()
{declare_pause}

define internal void @barrier(ptr %state, i64 %threads) {{
entry:
  %opened_at = getelementptr i64, ptr %state, i64 {opened}
  %opened = load atomic i64, ptr %opened_at acquire, align 8
  %arrived_at = getelementptr i64, ptr %state, i64 {arrived}
  %before = atomicrmw add ptr %arrived_at, i64 1 acq_rel
  %now = add i64 %before, 1
  %last = icmp eq i64 %now, %threads
  br i1 %last, label %open, label %wait
open:
  store atomic i64 0, ptr %arrived_at release, align 8
  %next = add i64 %opened, 1
  store atomic i64 %next, ptr %opened_at release, align 8
  ret void
wait:
  %spins = phi i64 [ 0, %entry ], [ %more, %again ]
  %current = load atomic i64, ptr %opened_at acquire, align 8
  %closed = icmp eq i64 %current, %opened
  br i1 %closed, label %idle, label %done
idle:
  %more = add i64 %spins, 1
  %patient = icmp ult i64 %more, {spins}
  br i1 %patient, label %pause, label %yield
pause:
  {pause}
  br label %again
yield:
  %ignored = call i32 @sched_yield()
  br label %again
again:
  br label %wait
done:
  ret void
}}

define void @tilewright_run(ptr %steps, i64 %count, ptr %bases, i64 %thread, i64 %threads, ptr %state) {{
entry:
  %several = icmp ugt i64 %threads, 1
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %following ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %step, label %done
step:
  %offset = mul i64 %i, {step_words}
  %record = getelementptr i64, ptr %steps, i64 %offset
  %function = load ptr, ptr %record
  %arguments_at = getelementptr i64, ptr %record, i64 1
  %arguments = load ptr, ptr %arguments_at
  %units_at = getelementptr i64, ptr %record, i64 2
  %units = load i64, ptr %units_at
  %parts_at = getelementptr i64, ptr %record, i64 3
  %wanted = load i64, ptr %parts_at
  %few = icmp ult i64 %wanted, %threads
  %parts = select i1 %few, i64 %wanted, i64 %threads
  %takes_part = icmp ult i64 %thread, %parts
  br i1 %takes_part, label %share, label %meet
share:
  %below = mul i64 %units, %thread
  %begin = udiv i64 %below, %parts
  %above = add i64 %below, %units
  %end = udiv i64 %above, %parts
  %some = icmp ult i64 %begin, %end
  br i1 %some, label %work, label %meet
work:
  call void %function(ptr %arguments, ptr %bases, i64 %begin, i64 %end, i64 %thread)
  br label %meet
meet:
  br i1 %several, label %barrier, label %following
barrier:
  call void @barrier(ptr %state, i64 %threads)
  br label %following
following:
  %next = add i64 %i, 1
  br label %head
done:
  ret void
}}

define void @tilewright_publish(ptr %state, ptr %steps, i64 %count, ptr %bases, i64 %threads) {{
  %job = getelementptr i64, ptr %state, i64 {job}
  store ptr %steps, ptr %job
  %count_at = getelementptr i64, ptr %job, i64 1
  store i64 %count, ptr %count_at
  %bases_at = getelementptr i64, ptr %job, i64 2
  store ptr %bases, ptr %bases_at
  %threads_at = getelementptr i64, ptr %job, i64 3
  store i64 %threads, ptr %threads_at
  %old = atomicrmw add ptr %state, i64 1 acq_rel
  ret void
}}

define i64 @tilewright_work(ptr %state, i64 %thread, i64 %known) {{
entry:
  br label %wait
wait:
  %seen = phi i64 [ %known, %entry ], [ %seen, %pause ], [ %epoch, %run ]
  %spins = phi i64 [ 0, %entry ], [ %more, %pause ], [ 0, %run ]
  %epoch = load atomic i64, ptr %state acquire, align 8
  %same = icmp eq i64 %epoch, %seen
  br i1 %same, label %idle, label %check
idle:
  %more = add i64 %spins, 1
  %patient = icmp ult i64 %more, {spins}
  br i1 %patient, label %pause, label %tired
pause:
  {pause}
  br label %wait
tired:
  ret i64 %seen
check:
  %stop_at = getelementptr i64, ptr %state, i64 {stop}
  %stop = load i64, ptr %stop_at
  %stopped = icmp ne i64 %stop, 0
  br i1 %stopped, label %quit, label %run
quit:
  ret i64 -1
run:
  %job = getelementptr i64, ptr %state, i64 {job}
  %steps = load ptr, ptr %job
  %count_at = getelementptr i64, ptr %job, i64 1
  %count = load i64, ptr %count_at
  %bases_at = getelementptr i64, ptr %job, i64 2
  %bases = load ptr, ptr %bases_at
  %threads_at = getelementptr i64, ptr %job, i64 3
  %threads = load i64, ptr %threads_at
  call void @tilewright_run(ptr %steps, i64 %count, ptr %bases, i64 %thread, i64 %threads, ptr %state)
  br label %wait
}}
"""


def _runtime_text(machine: Machine) -> str:
    if machine.triple.startswith(("x86_64", "i686")):
        declare, pause = "declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"
    elif machine.triple.startswith(("aarch64", "arm64")):
        declare, pause = "declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"
    else:
        declare, pause = "", "%nothing = add i64 0, 0"
    return _TEXT.format(
        declare_pause=declare, pause=pause, opened=_OPENED, arrived=_ARRIVED, stop=_STOP, job=_JOB, spins=SPINS,
        step_words=STEP_WORDS,
    )  # fmt: skip


class Runtime:
    """The compiled runtime's functions, which release Python's lock while they run."""

    def __init__(self) -> None:
        machine = machine_of_width(0)
        self._code = Code([object_code_of_text(_runtime_text(machine), machine)], machine)
        word = ctypes.c_int64
        self.run = self._function("tilewright_run", None, 6)
        self.publish = self._function("tilewright_publish", None, 5)
        self.work = self._function("tilewright_work", word, 3)

    def _function(self, name: str, result: Any, count: int) -> Any:
        return ctypes.CFUNCTYPE(result, *[ctypes.c_int64] * count)(self._code.address(name))


@cache
def runtime() -> Runtime:
    return Runtime()


class Pool:
    """`threads` - 1 workers, and the caller."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._runtime = runtime()
        self._state = np.zeros(_STATE_WORDS, np.int64)
        self._address = self._state.ctypes.data
        self._sleeping = 0
        self._awake = threading.Condition()
        self._busy = threading.Lock()
        self._workers = [
            threading.Thread(target=self._work, args=(index,), daemon=True, name=f"tilewright-{index}")
            for index in range(1, threads)
        ]
        for worker in self._workers:
            worker.start()

    def run(self, steps: int, count: int, bases: int) -> None:
        """Run the program at the address `steps`; alone if the pool is at work for somebody else."""
        if self.threads == 1 or not self._busy.acquire(blocking=False):
            self._runtime.run(steps, count, bases, 0, 1, self._address)
            return
        try:
            self._runtime.publish(self._address, steps, count, bases, self.threads)
            self._wake()
            self._runtime.run(steps, count, bases, 0, self.threads, self._address)
        finally:
            self._busy.release()

    def _wake(self) -> None:
        # The job was published before `_sleeping` is read; a worker counts itself in before it looks for a job. So
        # either it sees the job, or it is seen here.
        if self._sleeping:
            with self._awake:
                self._awake.notify_all()

    def _work(self, thread: int) -> None:
        seen = 0
        while True:
            seen = self._runtime.work(self._address, thread, seen)
            if seen < 0:
                return
            with self._awake:
                self._sleeping += 1
                while int(self._state[_EPOCH]) == seen:
                    self._awake.wait()
                self._sleeping -= 1

    def stop(self) -> None:
        """Let the workers end, and wait for them. Waits for a program that is running."""
        with self._busy:
            self._state[_STOP] = 1
            self._runtime.publish(self._address, 0, 0, 0, 1)
            self._wake()
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
