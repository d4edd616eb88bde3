"""The `cpu` target: segments of generated kernels, and host steps for operations that have none yet."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ...graph import types
from ...graph.clone import clone_module
from ...graph.core import Operation, Value
from ...graph.diagnostics import Diagnostic, UsageError
from ...graph.evaluator import Evaluator, captures
from ...graph.module import Module
from ..executable import Executable
from .library import KernelLibrary
from .lower import Group, data_of, lower
from .machine import machine, usable_cores
from .runtime import pool
from .segment import Planner, Program, Segment, Shape

THREADS_VARIABLE = "TILEWRIGHT_THREADS"


class CpuExecutable(Executable):
    """A module run by generated kernels. `run` may be called by many threads at once."""

    target: ClassVar[str] = "cpu"

    def __init__(self, module: Module, threads: int | None = None) -> None:
        if module.level != "onnx":
            raise UsageError("compile/level", f"the cpu target compiles the level 'onnx', not {module.level!r}")
        super().__init__(clone_module(module))
        self.threads = threads or default_threads()
        self._block = self.module.main.block
        self._planner = Planner(KernelLibrary(machine()), self.threads)
        self._evaluator = Evaluator(self.module.functions)
        self._steps = _segments(lower(self._block), self._block.returned)
        self._programs: dict[tuple[int, tuple[Shape, ...]], Program] = {}
        self._lock = threading.Lock()
        self._plan_static()

    def _plan_static(self) -> None:
        """Compile what can be compiled before the first run: segments whose inputs all have known sizes."""
        for index, step in enumerate(self._steps):
            if isinstance(step, Segment):
                shapes = [_static_shape(value) for value in step.inputs]
                if all(shape is not None for shape in shapes):
                    self._program(index, tuple(shape for shape in shapes if shape is not None))

    def _program(self, index: int, shapes: tuple[Shape, ...]) -> Program:
        key = (index, shapes)
        found = self._programs.get(key)
        if found is None:
            with self._lock:
                found = self._programs.get(key)
                if found is None:
                    segment = self._steps[index]
                    assert isinstance(segment, Segment)
                    found = self._programs[key] = self._planner.plan(segment, shapes)
        return found

    def _execute(
        self, arguments: Sequence[Any], dims: Mapping[Any, int], outputs: Sequence[int]
    ) -> tuple[list[Any], Sequence[Diagnostic]]:
        values: dict[Value, Any] = dict(zip(self._block.arguments, arguments, strict=True))
        workers = pool(self.threads) if self.threads > 1 else None
        for index, step in enumerate(self._steps):
            if isinstance(step, Operation):
                operands = [None if value is None else _fetch(values, value) for value in step.operands]
                captured = {value: _fetch(values, value) for value in captures(step)} if step.regions else None
                values.update(zip(step.results, self._evaluator.evaluate(step, operands, captured), strict=True))
                continue
            arrays = [np.asarray(_fetch(values, value), order="C") for value in step.inputs]
            program = self._program(index, tuple(array.shape for array in arrays))
            values.update(zip(step.outputs, program.run(workers, arrays), strict=True))
        returned = [_fetch(values, self._block.returned[index]) for index in outputs]
        return [_owned(result, arguments) for result in returned], ()

    def report(self) -> dict[str, Any]:
        """What was compiled.

        `kernels` (name and how often the plans so far call it), `compiled` and `loaded` (kernels made here, and found
        on disk), `host_steps` (operator and place of each operation that runs through the reference implementation),
        `segments`, `arena_bytes` of the largest plan, `threads`.
        """
        programs = list(self._programs.values())
        calls = Counter(call.name for program in programs for call in program.calls)
        host = [step for step in self._steps if isinstance(step, Operation)]
        return {
            "target": self.target,
            "threads": self.threads,
            "vector_bits": self._planner.library.machine.vector_bits,
            "segments": len(self._steps) - len(host),
            "kernels": dict(sorted(calls.items())),
            "compiled": self._planner.library.compiled,
            "loaded": self._planner.library.loaded,
            "host_steps": [{"operator": op.name, "location": str(op.location)} for op in host],
            "arena_bytes": max((program.arena_bytes for program in programs), default=0),
        }


def default_threads() -> int:
    """TILEWRIGHT_THREADS, or the cores this process may use. Raises UsageError for a strange number."""
    import os

    text = os.environ.get(THREADS_VARIABLE, "")
    if not text:
        return usable_cores()
    if not text.isdigit() or int(text) < 1:
        raise UsageError("cpu/threads", f"{THREADS_VARIABLE} is a number of threads, not {text!r}")
    return int(text)


def _segments(steps: Sequence[Group | Operation], returned: Sequence[Value]) -> list[Segment | Operation]:
    """Runs of groups as segments, each with what it reads from and leaves for the rest."""
    found: list[Segment | Operation] = []
    for step in steps:
        if isinstance(step, Operation):
            found.append(step)
        elif found and isinstance(found[-1], Segment):
            found[-1].groups.append(step)
        else:
            found.append(Segment([step]))
    needed: set[Value] = set(returned)
    for part in reversed(found):
        if isinstance(part, Operation):
            needed.update(part.operand_values)
            needed.update(captures(part) if part.regions else ())
            continue
        made = {group.result for group in part.groups}
        read: dict[Value, None] = {}
        for group in part.groups:
            read.update(dict.fromkeys(_reads(group)))
        part.inputs = [value for value in read if value not in made and data_of(value) is None]
        part.outputs = [group.result for group in part.groups if group.result in needed]
        needed.update(part.inputs)
    return found


def _reads(group: Group) -> list[Value]:
    product = [] if group.product is None else list(group.product.operand_values)
    inside = {op.result for op in group.ops}
    return [value for value in [*group.inputs(), *product] if value not in inside]


def _static_shape(value: Value) -> Shape | None:
    return value.type.static_shape if isinstance(value.type, types.TensorType) else None


def _fetch(values: Mapping[Value, Any], value: Value) -> Any:
    if value in values:
        return values[value]
    producer = value.producer
    assert producer is not None
    return producer.attributes["value"].numpy()


def _owned(result: Any, arguments: Sequence[Any]) -> Any:
    """`result`, copied if writing to it would change an argument, a constant or another result."""
    if isinstance(result, list):
        return [_owned(item, arguments) for item in result]
    if not isinstance(result, np.ndarray):
        return result
    shared = not (result.flags.owndata and result.flags.writeable) or any(result is given for given in arguments)
    return result.copy() if shared else result


def create(module: Module, threads: int | None = None, precision: str = "float32") -> CpuExecutable:
    """The factory of the target registry."""
    return CpuExecutable(module, threads)
