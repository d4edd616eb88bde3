"""Running functions of the level "loop" both ways: by the interpreter, and compiled for vectors of a given width."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.backends.cpu.jit import compile_modules
from tilewright.backends.cpu.machine import Machine, machine_of_width
from tilewright.graph import types
from tilewright.graph.kernel.interpreter import run_loops
from tilewright.graph.module import Module
from tilewright.graph.verifier import verify

WIDTHS = (128, 256, 512)


def run_compiled(module: Module, arguments: Sequence[Any], width: int, machine: Machine | None = None) -> None:
    """Call the function compiled (for `machine`, if given); buffers are written to in place."""
    verify(module, types=True)
    code = compile_modules([module], machine or machine_of_width(width))
    kinds: list[Any] = []
    given: list[Any] = []
    for value, argument in zip(module.main.inputs, arguments, strict=True):
        if isinstance(value.type, types.BufferType):
            kinds.append(ctypes.c_void_p)
            given.append(argument.ctypes.data)
        else:
            kinds.append(ctypes.c_int64)
            given.append(int(argument))
    ctypes.CFUNCTYPE(None, *kinds)(code.address(module.main.key.name))(*given)


def run_both(module: Module, arguments: Sequence[Any], width: int) -> tuple[list[Any], list[Any]]:
    """The arguments after a run by the interpreter, and after one of the compiled function."""
    sides = []
    for run in (run_loops, lambda m, a: run_compiled(m, a, width)):
        copies = [argument.copy() if isinstance(argument, np.ndarray) else argument for argument in arguments]
        run(module, copies)
        sides.append(copies)
    return sides[0], sides[1]
