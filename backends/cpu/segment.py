"""A run of groups without a host step between them: planned for the shapes of its inputs, then one native call."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...graph.core import Value
from .library import KernelLibrary
from .lower import Group, data_of, dtype_of
from .memory_plan import Lifetime, place
from .runtime import STEP_WORDS, Pool

Shape = tuple[int, ...]

# Bases that every program has: address 0, for constants given by their address, and the arena.
NULL, ARENA, FIRST_FREE = 0, 1, 2


@dataclass
class Call:
    """One kernel call of a plan: `arguments` holds (value or "scratch" or array, byte offset) for buffers, numbers
    for scalars."""

    entry: int
    name: str
    arguments: list[Argument]
    units: int
    parts: int
    scratch: int = 0


@dataclass(frozen=True)
class Buffer:
    """A buffer argument: a value of the program, an array that outlives it, or (None) scratch memory."""

    source: Value | np.ndarray | None
    offset: int = 0


Argument = Buffer | int


@dataclass
class Segment:
    """`groups` in order; `inputs` are values from elsewhere, `outputs` those that are needed elsewhere."""

    groups: list[Group]
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)


class Program:
    """The table of steps of a segment for one set of input shapes. Immutable, so that many threads may run it."""

    def __init__(self, segment: Segment, shapes: Mapping[Value, Shape], calls: Sequence[Call], threads: int) -> None:
        self.inputs, self.outputs = segment.inputs, segment.outputs
        self.output_shapes = [shapes[value] for value in segment.outputs]
        self.calls = [call for call in calls if call.units]
        self.parallel = any(call.parts > 1 for call in self.calls)
        self._slots = {value: FIRST_FREE + index for index, value in enumerate([*segment.inputs, *segment.outputs])}
        self._offsets: dict[Value, int] = {}
        self._keep: list[np.ndarray] = []
        scratch = self._place(shapes, threads)
        tables = [self._table(call, offset) for call, offset in zip(self.calls, scratch, strict=True)]
        self._tables = tables
        rows = [
            [call.entry, table.ctypes.data, call.units, call.parts]
            for call, table in zip(self.calls, tables, strict=True)
        ]
        self._steps = np.array(rows, np.int64).reshape(len(rows), STEP_WORDS)

    def _place(self, shapes: Mapping[Value, Shape], threads: int) -> list[int]:
        """Offsets of the intermediate values (kept) and of each call's scratch memory (returned)."""
        first: dict[Value, int] = {}
        last: dict[Value, int] = {}
        for position, call in enumerate(self.calls):
            for argument in call.arguments:
                if isinstance(argument, Buffer) and isinstance(argument.source, Value):
                    first.setdefault(argument.source, position)
                    last[argument.source] = position
        values = [value for value in first if value not in self._slots]
        lifetimes = [Lifetime(byte_size(value, shapes[value]), first[value], last[value]) for value in values]
        for position, call in enumerate(self.calls):
            lifetimes.append(Lifetime(call.scratch * max(1, min(threads, call.parts)), position, position))
        offsets, self.arena_bytes = place(lifetimes)
        self._offsets = dict(zip(values, offsets, strict=False))
        return offsets[len(values) :]

    def _table(self, call: Call, scratch: int) -> np.ndarray:
        words: list[int] = []
        for argument in call.arguments:
            if isinstance(argument, int):
                words.append(argument)
                continue
            source = argument.source
            if source is None:
                words += [ARENA, scratch]
            elif isinstance(source, np.ndarray):
                self._keep.append(source)
                words += [NULL, source.ctypes.data + argument.offset]
            elif source in self._slots:
                words += [self._slots[source], argument.offset]
            else:
                words += [ARENA, self._offsets[source] + argument.offset]
        return np.array(words, np.int64)

    def run(self, pool: Pool | None, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs for contiguous input arrays, as fresh arrays."""
        outputs = [
            np.empty(shape, dtype_of(value).numpy)
            for shape, value in zip(self.output_shapes, self.outputs, strict=True)
        ]
        arena = np.empty(self.arena_bytes + 64, np.uint8)
        start = -(-arena.ctypes.data // 64) * 64
        bases = np.array([0, start, *(array.ctypes.data for array in (*arrays, *outputs))], np.int64)
        if self.calls:
            run_program(pool if self.parallel else None, self._steps, bases)
        return outputs


def run_program(pool: Pool | None, steps: np.ndarray, bases: np.ndarray) -> None:
    from .runtime import runtime

    if pool is None:
        runtime().run(steps.ctypes.data, len(steps), bases.ctypes.data, 0, 1, 0)
    else:
        pool.run(steps.ctypes.data, len(steps), bases.ctypes.data)


def byte_size(value: Value, shape: Shape) -> int:
    return math.prod(shape) * dtype_of(value).numpy.itemsize


class Planner:
    """Plans segments: chooses kernels for actual shapes and has them compiled."""

    def __init__(self, library: KernelLibrary, threads: int) -> None:
        self.library = library
        self.threads = threads
        self.packed: dict[tuple[Value, int], np.ndarray] = {}

    def plan(self, segment: Segment, shapes: Sequence[Shape]) -> Program:
        """The program for inputs of these shapes."""
        from .plan_map import plan_map
        from .plan_product import plan_product

        known = dict(zip(segment.inputs, shapes, strict=True))
        calls: list[Call] = []
        for group in segment.groups:
            calls += plan_map(self, group, known) if group.product is None else plan_product(self, group, known)
        return Program(segment, known, calls, self.threads)

    def parts(self, operations: float) -> int:
        """Among how many threads so much work is worth sharing."""
        return max(1, min(self.threads, int(operations / OPERATIONS_PER_THREAD)))


# Below this a thread has done its part before another could be told.
OPERATIONS_PER_THREAD = 50_000


def shape_of(value: Value, known: Mapping[Value, Shape]) -> Shape:
    data = data_of(value)
    return data.shape if data is not None else known[value]


def buffer_of(value: Value, offset: int = 0) -> Buffer:
    """The buffer of a value, or of the constant that it is."""
    data = data_of(value)
    return Buffer(value if data is None else np.ascontiguousarray(data.numpy()), offset)
