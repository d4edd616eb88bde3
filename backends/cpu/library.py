"""The kernels of an executable: each compiled once, found again by what it is, in memory and on disk.

`get` gives a kernel at once; its code is made when an address is first asked for, for all that wait together.

On disk a kernel is found in two ways. Its key, if that is plain data, leads to its text's without building it; that
holds as long as no source file of the generators changes. Its LLVM IR leads to the object file.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from ...graph.forks import renew_after_fork
from ...graph.module import Module
from .bounds import checks_bounds
from .cache import default_cache, key_of
from .compile_queue import CompileQueue, Task
from .emit_llvm import emit_module
from .jit import Code
from .keys import spelled
from .machine import Machine

# What the entry point of a kernel is called until its text, and with it its own name, is known.
_ENTRY = "kernel_entry"
_NAME = "tilewright_"


class Store(Protocol):
    """Keeps compiled code by key."""

    def read(self, key: str) -> bytes | None:
        """What was written under `key`, if it is still there."""

    def write(self, key: str, code: bytes) -> None:
        """Keep `code`, or do nothing."""


class Kernel:
    """A kernel: its name for people, and the address that a program calls."""

    def __init__(self, name: str, library: KernelLibrary) -> None:
        self.name = name
        self._library = library
        self._entry = 0

    @property
    def entry(self) -> int:
        """Compiles what is not compiled yet, this kernel and all that wait with it."""
        if not self._entry:
            self._library.finish()
        return self._entry


@dataclass
class _Waiting:
    """A kernel that has no address yet: its symbol, and its object file or the task that makes it."""

    kernel: Kernel
    symbol: str
    code: bytes = b""
    task: Task | None = None
    disk_key: str = ""


class KernelLibrary:
    """Compiles for `machine`. `compiled` counts kernels that were compiled, `loaded` those found on disk."""

    def __init__(self, machine: Machine, store: Store | None = None) -> None:
        """`store` keeps compiled code (default: the user's cache on disk)."""
        self.machine = machine
        self.compiled = 0
        self.loaded = 0
        self.checked = checks_bounds()
        # Checked code has addresses of this process in it.
        self._disk: Store | None = None if self.checked else default_cache() if store is None else store
        self._by_key: dict[Hashable, Kernel] = {}
        self._by_symbol: dict[str, Kernel] = {}
        self._waiting: list[_Waiting] = []
        self._queue = CompileQueue(machine)
        self._code: list[Code] = []
        self._lock = threading.RLock()
        renew_after_fork(self)

    def renew(self) -> None:
        self._lock = threading.RLock()
        self._queue = CompileQueue(self.machine)
        for each in self._waiting:
            if each.task is not None:
                each.task = self._queue.keep(each.task.text)

    @property
    def kernels(self) -> list[Kernel]:
        return list(self._by_symbol.values())

    def get(self, key: Hashable, build: Callable[[str], Module], name: str) -> Kernel:
        """The kernel of `key`; `build(name)` makes a module of its own if it is new. Equal code is compiled once."""
        with self._lock:
            found = self._by_key.get(key)
            if found is None:
                found = self._by_key[key] = self._known(key, name) or self._new(key, build(name), name)
            return found

    def finish(self) -> None:
        """Compile and load all kernels that wait. Raises what LLVM has against one of them."""
        with self._lock:
            waiting = self._waiting
            if not waiting:
                return
            self._queue.finish([each.task for each in waiting if each.task is not None])
            for each in waiting:
                if each.task is not None:
                    each.code = each.task.code
                    if self._disk is not None:
                        self._disk.write(each.disk_key, each.code)
            code = Code([each.code for each in waiting], self.machine)
            self._code.append(code)
            for each in waiting:
                each.kernel._entry = code.address(each.symbol)
            # Only now: after an error nothing has an address, and whoever asks for one meets it again.
            self._waiting = []

    def _known(self, key: Hashable, name: str) -> Kernel | None:
        """The kernel that the disk has for `key`."""
        place = self._place(key, name)
        link = self._disk.read(place) if self._disk is not None and place else None
        if link is None:
            return None
        symbol, disk_key = link.decode().split()
        return self._by_symbol.get(symbol) or self._stored(symbol, disk_key, name)

    def _new(self, key: Hashable, module: Module, name: str) -> Kernel:
        text = emit_module(module, self.machine, _ENTRY, self.checked)
        module.dissolve()
        symbol = _NAME + hashlib.sha256(text.encode()).hexdigest()[:24]
        disk_key = key_of(text, self.machine)
        place = self._place(key, name)
        if self._disk is not None and place:
            self._disk.write(place, f"{symbol} {disk_key}".encode())
        found = self._by_symbol.get(symbol) or self._stored(symbol, disk_key, name)
        if found is not None:
            return found
        self.compiled += 1
        task = self._queue.submit(text.replace(f"@{_ENTRY}(", f"@{symbol}("))
        return self._add(_Waiting(Kernel(name, self), symbol, task=task, disk_key=disk_key))

    def _stored(self, symbol: str, disk_key: str, name: str) -> Kernel | None:
        """The kernel whose object file is on disk."""
        code = self._disk.read(disk_key) if self._disk is not None else None
        if code is None:
            return None
        self.loaded += 1
        return self._add(_Waiting(Kernel(name, self), symbol, code))

    def _add(self, waiting: _Waiting) -> Kernel:
        self._waiting.append(waiting)
        self._by_symbol[waiting.symbol] = waiting.kernel
        return waiting.kernel

    def _place(self, key: Hashable, name: str) -> str:
        """What names the link on disk from `key` to a text; empty if the key says too little of what it stands for."""
        text, sources = spelled(key), _sources()
        return key_of("\0".join((name, text, sources)), self.machine) if text and sources else ""


@cache
def _sources() -> str:
    """A digest of the source files that generate code; empty if they are not there to read."""
    package = Path(__file__).parent.parent.parent
    digest = hashlib.sha256()
    try:
        files = [
            path
            for folder in ("graph/kernel", "graph/ops", "backends/cpu")
            for path in sorted((package / folder).rglob("*.py"))
        ]
        for path in files:
            digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    except OSError:
        return ""
    return digest.hexdigest() if files else ""
