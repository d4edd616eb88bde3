"""Compiling LLVM IR in this process: text to machine code, and machine code to addresses that can be called."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from ...graph.forks import hold_while_forking
from ...graph.module import Module
from . import compile_worker
from .elf import PlacedCode, UnsupportedObjectError, is_supported
from .emit_llvm import emit_module
from .machine import Machine

# LLVM through llvmlite is used by one thread at a time, and has come to an end when this process is forked.
_lock = threading.Lock()
hold_while_forking(_lock)


def _llvm() -> Any:
    """LLVM's binding, imported when the first kernel is compiled."""
    from llvmlite import binding

    return binding


def target_machine(machine: Machine) -> Any:
    return compile_worker.target_machine(machine.triple, machine.cpu, machine.features)


def object_code(module: Module, machine: Machine) -> bytes:
    """Machine code of a module of the level "loop", as a relocatable object file."""
    return object_code_of_text(emit_module(module, machine), machine)


def object_code_of_text(text: str, machine: Machine) -> bytes:
    """Machine code of LLVM IR."""
    with _lock:
        return compile_worker.compiled(text, machine.triple, machine.cpu, machine.features)


def stored_object_code(text: str, machine: Machine) -> bytes:
    """Machine code of LLVM IR that every process needs: from the user's cache, if it is there."""
    from .cache import default_cache, key_of
    from .compile_queue import asked_once

    disk, key = default_cache(), key_of(text, machine)
    if disk is None:
        return object_code_of_text(text, machine)
    code = disk.read(key)
    if code is None:
        code = asked_once(text, machine) or object_code_of_text(text, machine)
        disk.write(key, code)
    return code


def assembly(module: Module, machine: Machine) -> str:
    """The machine code as text, for people."""
    with _lock:
        text = emit_module(module, machine)
        compiled, target = compile_worker.optimized(text, machine.triple, machine.cpu, machine.features)
        return str(target.emit_assembly(compiled))


class Code:
    """Machine code in memory, for as long as this object lives. `address(name)` is that of a main function."""

    def __init__(self, objects: Sequence[bytes], machine: Machine) -> None:
        self._placed = _placed(objects)
        if self._placed is not None:
            return
        llvm = _llvm()
        with _lock:
            host = llvm.parse_assembly("")
            host.triple = machine.triple
            self._engine = llvm.create_mcjit_compiler(host, target_machine(machine))
            for code in objects:
                self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
            self._engine.finalize_object()

    def address(self, name: str) -> int:
        """Raises KeyError if there is no function of that name."""
        if self._placed is not None:
            return self._placed.address(name)
        with _lock:
            found = int(self._engine.get_function_address(name))
        if not found:
            raise KeyError(f"the compiled code has no function {name!r}")
        return found


def _placed(objects: Sequence[bytes]) -> PlacedCode | None:
    """The code without LLVM; None where that has to place it."""
    if not is_supported():
        return None
    try:
        return PlacedCode(objects)
    except UnsupportedObjectError:
        return None


def compile_modules(modules: Sequence[Module], machine: Machine) -> Code:
    """Compile modules of the level "loop", whose main functions have different names."""
    return Code([object_code(module, machine) for module in modules], machine)
