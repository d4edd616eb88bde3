"""Compiling many kernels at once: a queue that processes work off, or the caller where it is short.

While processes compile, this one builds what they compile next, and then waits: LLVM here would take memory that is
never given back.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from . import compile_worker
from .jit import object_code_of_text
from .machine import Machine, usable_cores

# Starting a process takes about as long as compiling so many kernels.
WORTH_A_PROCESS = 3
MAX_PROCESSES = 15


@dataclass
class Task:
    """LLVM IR to compile; `code` is there when `done` is set, unless it is in `error` what went wrong."""

    text: str
    code: bytes = b""
    error: BaseException | None = None
    done: threading.Event = field(default_factory=threading.Event)


class CompileQueue:
    """Compiles for `machine`. Processes are started when enough is waiting, and end when `finish` is through."""

    def __init__(self, machine: Machine, processes: int | None = None) -> None:
        self.machine = machine
        self.processes = min(usable_cores(), MAX_PROCESSES) if processes is None else processes
        self._waiting: deque[Task] = deque()
        self._feeders: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._closed = False

    def keep(self, text: str) -> Task:
        """Ask for the code of `text` when `finish` is called, if not before."""
        task = Task(text)
        with self._changed:
            self._waiting.append(task)
            self._changed.notify()
        return task

    def submit(self, text: str) -> Task:
        """Ask for the code of `text`; `finish` makes sure it is there."""
        task = self.keep(text)
        with self._changed:
            if not self._feeders and len(self._waiting) >= WORTH_A_PROCESS:
                self._start()
        return task

    def finish(self, tasks: list[Task]) -> None:
        """Wait until all `tasks` are done; without processes, compile. Raises what went wrong with one of them."""
        while not self._feeders and (task := self._next(wait=False)) is not None:
            self._compile_here(task)
        for task in tasks:
            task.done.wait()
        self.close()
        for task in tasks:
            if task.error is not None:
                raise task.error

    def close(self) -> None:
        """Let the processes end, and wait for them."""
        with self._changed:
            feeders, self._feeders = self._feeders, []
            self._closed = True
            self._changed.notify_all()
        try:
            for feeder in feeders:
                feeder.join()
        finally:
            self._closed = False

    def _start(self) -> None:
        if not sys.executable or getattr(sys, "frozen", False):
            return  # no interpreter that could be started
        for _ in range(self.processes):
            feeder = threading.Thread(target=self._feed, daemon=True, name="tilewright-compile")
            self._feeders.append(feeder)
            feeder.start()

    def _next(self, wait: bool) -> Task | None:
        with self._changed:
            while wait and not self._waiting and not self._closed:
                self._changed.wait()
            return self._waiting.popleft() if self._waiting else None

    def _compile_here(self, task: Task) -> None:
        try:
            task.code = object_code_of_text(task.text, self.machine)
        except Exception as error:
            task.error = error
        except BaseException:  # an interrupt: whoever asks again finds it waiting
            with self._changed:
                self._waiting.appendleft(task)
            raise
        task.done.set()

    def _feed(self) -> None:
        """Give tasks to a process of this thread's own. Whatever happens to it, a task that it has is done here."""
        process = _started()
        while (task := self._next(wait=True)) is not None:
            answer = None if process is None else _asked(process, _message(task.text, self.machine))
            if not answer:
                _ended(process)
                process = None
                self._compile_here(task)
                continue
            if answer[0]:
                task.code = answer[1:]
            else:
                task.error = RuntimeError(f"LLVM: {answer[1:].decode(errors='replace')}")
            task.done.set()
        _ended(process)


def asked_once(text: str = "", machine: Machine | None = None) -> bytes | None:
    """What a process of its own makes of `text`, or the facts of the host, so that LLVM need not be loaded here.

    None if that went wrong: whoever wants to know why tries it here.
    """
    process = _started() if sys.executable and not getattr(sys, "frozen", False) else None
    if process is None:
        return None
    try:
        answer = _asked(process, b"" if machine is None else _message(text, machine))
    finally:
        _ended(process)
    return answer[1:] if answer and answer[0] else None


def _message(text: str, machine: Machine) -> bytes:
    return f"{machine.triple}\n{machine.cpu}\n{machine.features}\n\n{text}".encode()


def _started() -> subprocess.Popen[bytes] | None:
    import llvmlite

    script, library = Path(compile_worker.__file__), Path(llvmlite.__file__).parent.parent
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(script), str(library)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except OSError:
        return None


def _asked(process: subprocess.Popen[bytes], task: bytes) -> bytes | None:
    """The process's answer; None if it has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        compile_worker.send(process.stdin, task)  # type: ignore[arg-type]
        return compile_worker.receive(process.stdout)  # type: ignore[arg-type]
    except OSError:
        return None


def _ended(process: subprocess.Popen[bytes] | None) -> None:
    """End a process. It does so by itself where its input ends, but a child that this process was forked into meanwhile
    holds that open, too."""
    if process is None:
        return
    process.kill()
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        with contextlib.suppress(OSError):
            stream.close()
    process.wait()
