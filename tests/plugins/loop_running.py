"""Running functions of the level "loop" both ways: by the interpreter, and compiled for vectors of a given width."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.backends.cpu.jit import compile_modules
from tilewright.backends.cpu.machine import Machine, machine_of_width
from tilewright.graph import types
from tilewright.graph.kernel.interpreter import run_loops
from tilewright.graph.module import Module
from tilewright.graph.verifier import verify

WIDTHS = (128, 256, 512)

# For what is decided by a machine's figures, so that it is the same wherever tests run.
WIDE = Machine(
    "x86-64-v4", "", "x86_64-unknown-linux-gnu", vector_bits=512, registers=32, fma=True, scalef=True,
    l1=48 << 10, l2=2 << 20, l3=32 << 20,
)  # fmt: skip
NARROW = replace(WIDE, cpu="x86-64-v3", vector_bits=256, registers=16, scalef=False)


def compiled(module: Module, width: int, machine: Machine | None = None) -> Callable[[Sequence[Any]], None]:
    """The function compiled (for `machine`, if given) as one of its arguments; buffers are written to in place."""
    verify(module, types=True)
    code = compile_modules([module], machine or machine_of_width(width))
    buffers = [isinstance(value.type, types.BufferType) for value in module.main.inputs]
    kinds = [ctypes.c_void_p if is_buffer else ctypes.c_int64 for is_buffer in buffers]
    function = ctypes.CFUNCTYPE(None, *kinds)(code.address(module.main.key.name))

    def run(arguments: Sequence[Any], keep: Any = code) -> None:
        pairs = zip(buffers, arguments, strict=True)
        function(*(argument.ctypes.data if is_buffer else int(argument) for is_buffer, argument in pairs))

    return run


def run_compiled(module: Module, arguments: Sequence[Any], width: int, machine: Machine | None = None) -> None:
    """Call the function compiled (for `machine`, if given); buffers are written to in place."""
    compiled(module, width, machine)(arguments)


def run_both(module: Module, arguments: Sequence[Any], width: int) -> tuple[list[Any], list[Any]]:
    """The arguments after a run by the interpreter, and after one of the compiled function."""
    sides = []
    for run in (run_loops, lambda m, a: run_compiled(m, a, width)):
        copies = [argument.copy() if isinstance(argument, np.ndarray) else argument for argument in arguments]
        run(module, copies)
        sides.append(copies)
    return sides[0], sides[1]
