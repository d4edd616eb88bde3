"""The kernels of an executable: each compiled once, found again by what it is."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from ...graph.module import Module
from .cache import default_cache, key_of
from .emit_llvm import emit_module
from .jit import Code, object_code_of_text
from .machine import Machine


@dataclass(frozen=True)
class Kernel:
    """A kernel in memory: its name for people, and the address a program calls."""

    name: str
    entry: int


class KernelLibrary:
    """Compiles for `machine`. `compiled` counts kernels that were compiled, `loaded` those found on disk."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.compiled = 0
        self.loaded = 0
        self._disk = default_cache()
        self._by_key: dict[Hashable, Kernel] = {}
        self._by_text: dict[str, Kernel] = {}
        self._code: list[Code] = []
        self._lock = threading.Lock()

    @property
    def kernels(self) -> list[Kernel]:
        return list(self._by_text.values())

    def get(self, key: Hashable, build: Callable[[str], Module], name: str) -> Kernel:
        """The kernel of `key`; `build(name)` makes its module if it is new. Equal code is compiled once."""
        with self._lock:
            found = self._by_key.get(key)
            if found is None:
                found = self._by_key[key] = self._compile(build(name), name)
            return found

    def _compile(self, module: Module, name: str) -> Kernel:
        text = emit_module(module, self.machine)
        digest = hashlib.sha256(text.encode()).hexdigest()
        found = self._by_text.get(digest)
        if found is None:
            code = Code([self._object(text)], self.machine)
            self._code.append(code)
            found = self._by_text[digest] = Kernel(name, code.address(f"{name}_entry"))
        return found

    def _object(self, text: str) -> bytes:
        """The object code of LLVM IR, from disk if it is there."""
        key = key_of(text, self.machine)
        stored = self._disk.read(key) if self._disk is not None else None
        if stored is not None:
            self.loaded += 1
            return stored
        self.compiled += 1
        code = object_code_of_text(text, self.machine)
        if self._disk is not None:
            self._disk.write(key, code)
        return code
