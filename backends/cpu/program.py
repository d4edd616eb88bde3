"""A plan that is ready to run: a table of steps over one arena, for one native call. See `runtime`."""

from __future__ import annotations

import ctypes
import math
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...graph.core import Operation, Value
from ...graph.diagnostics import ExecutionError
from . import bounds
from .memory_plan import Lifetime, place
from .planner import Buffer, Call, Planner, Storage, View, dtype_of
from .runtime import STEP_WORDS, Pool, runtime

if TYPE_CHECKING:
    from ...graph.kernel.strided import Shape

# Bases that every program has: address 0, for constants given by their address, and the arena.
NULL, ARENA, FIRST_FREE = 0, 1, 2
# So many runs of a program at the same time find an arena that was used before.
MOST_ARENAS = 4
_BYTE = ctypes.c_char


class Program:
    """The table of a segment's calls for one set of input sizes. Immutable, so that many threads may run it.

    `known` are the outputs that were worked out when it was planned, by their place among the outputs.
    """

    def __init__(self, planner: Planner) -> None:
        segment = planner.segment
        self.outputs: list[tuple[Shape, np.dtype]] = []
        self.known: dict[int, np.ndarray] = {}
        slots: dict[Storage, int] = {}
        for index, value in enumerate(segment.outputs):
            if planner.is_known(value):
                self.known[index] = planner.known(value)
            else:
                slots[_output(planner, value, slots)] = FIRST_FREE + len(segment.inputs) + len(self.outputs)
                self.outputs.append((planner.shape(value), dtype_of(value).numpy))
        self.calls, self._faults = planner.calls, planner.faults
        self._fault_base = FIRST_FREE + len(segment.inputs) + len(self.outputs)
        self._checked = planner.library.checked
        self._input_bytes = [math.prod(planner.shape(v)) * dtype_of(v).numpy.itemsize for v in segment.inputs]
        self._arenas: list[tuple[np.ndarray, int]] = []
        self.parallel = any(call.parts > 1 for call in self.calls)
        self._keep: list[np.ndarray] = []
        self._threads = planner.threads
        scratch = self._place(slots, planner.threads)
        self._tables = [self._table(call, slots, offset) for call, offset in zip(self.calls, scratch, strict=True)]
        rows = [
            [call.kernel.entry, table.ctypes.data, call.units, call.parts]
            for call, table in zip(self.calls, self._tables, strict=True)
        ]
        self._steps = np.array(rows, np.int64).reshape(len(rows), STEP_WORDS)
        self._job = address_of(self._steps), len(rows)

    def _place(self, slots: dict[Storage, int], threads: int) -> list[int]:
        """Offsets of the storages in the arena (kept) and of each call's scratch memory (returned)."""
        first: dict[Storage, int] = {}
        last: dict[Storage, int] = {}
        for position, call in enumerate(self.calls):
            for argument in call.arguments:
                if isinstance(argument, Buffer) and argument.storage is not None:
                    first.setdefault(argument.storage, position)
                    last[argument.storage] = position
        own = [s for s in first if s not in slots and s.array is None and s.slot is None and s.fault is None]
        lifetimes = [Lifetime(storage.bytes, first[storage], last[storage]) for storage in own]
        for position, call in enumerate(self.calls):
            lifetimes.append(Lifetime(call.scratch * max(1, min(threads, call.parts)), position, position))
        offsets, self.arena_bytes = place(lifetimes)
        self._offsets = dict(zip(own, offsets, strict=False))
        return offsets[len(own) :]

    def _table(self, call: Call, slots: dict[Storage, int], scratch: int) -> np.ndarray:
        words: list[int] = []
        for argument in call.arguments:
            if isinstance(argument, int | np.integer):
                words.append(int(argument))
                continue
            storage = argument.storage
            if storage is None:
                base, start, size = ARENA, scratch, call.scratch * max(1, min(self._threads, call.parts))
            else:
                base, start, size = self._memory(storage, slots)
            words += [base, start + argument.offset]
            if self._checked:
                words += [start, start + size]
        return np.array(words, np.int64)

    def _memory(self, storage: Storage, slots: dict[Storage, int]) -> tuple[int, int, int]:
        """Where a storage lies: the number of its base, its first byte from there, and how many it has."""
        if storage.array is not None:
            self._keep.append(storage.array)
            return NULL, storage.array.ctypes.data, storage.array.nbytes
        if storage in slots:
            return slots[storage], 0, storage.bytes
        if storage.fault is not None:
            return self._fault_base, 16 * storage.fault, 16
        if storage.slot is not None:
            return FIRST_FREE + storage.slot, 0, self._input_bytes[storage.slot]
        return ARENA, self._offsets[storage], storage.bytes

    def run(self, pool: Pool | None, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs for contiguous input arrays; those that were not known before are fresh arrays."""
        made = [np.empty(shape, dtype) for shape, dtype in self.outputs]
        if self.calls:
            self._call(pool, [*arrays, *made])
        if not self.known:
            return made
        fresh = iter(made)
        count = len(made) + len(self.known)
        return [self.known[index] if index in self.known else next(fresh) for index in range(count)]

    def _call(self, pool: Pool | None, arrays: list[np.ndarray]) -> None:
        """Run the steps on inputs and outputs. Arenas are used again: fresh memory would have to be cleared first."""
        try:
            memory = self._arenas.pop()
        except IndexError:
            arena = np.empty(self.arena_bytes + 64, np.uint8)
            memory = arena, -(-address_of(arena) // 64) * 64
        if self._checked:
            bounds.forget()
            for fresh in (memory[0], *arrays[len(self._input_bytes) :]):
                fresh.reshape(-1).view(np.uint8).fill(bounds.UNWRITTEN)
        addresses = [0, memory[1], *(address_of(each) for each in arrays)]
        if self._faults:
            faults = np.zeros((len(self._faults), 2), np.int64)
            addresses.append(address_of(faults))
        bases = array("q", addresses)
        if pool is not None and self.parallel:
            pool.run(*self._job, bases.buffer_info()[0])
        else:
            runtime().run(*self._job, bases.buffer_info()[0])
        if len(self._arenas) < MOST_ARENAS:
            self._arenas.append(memory)
        if self._checked:
            bounds.complain()
        if self._faults and faults[:, 0].any():
            place = int(np.flatnonzero(faults[:, 0])[0])
            raise _fault(self._faults[place], int(faults[place, 1]))


def address_of(array: np.ndarray) -> int:
    """Where a contiguous array's elements begin."""
    try:
        # Several times faster than `array.ctypes.data`, but only for memory that may be written to, and some of it.
        return ctypes.addressof(_BYTE.from_buffer(array))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return int(array.ctypes.data)


def _fault(op: Operation, index: int) -> ExecutionError:
    name = op.name.removeprefix("kernel.")
    return ExecutionError("run/index", f"{name}: the index {index} is out of range", op.location)


def _output(planner: Planner, value: Value, taken: dict[Storage, int]) -> Storage:
    """The storage of an output: its own if nothing else is in it and it is row-major, else that of a copy."""
    view = planner.view(value)
    storage = view.storage
    is_own = storage.array is None and storage.slot is None and storage not in taken
    if is_own and _fills(view):
        return storage
    copied = planner.copied(view)
    return copied.storage


def _fills(view: View) -> bool:
    layout = view.layout
    return layout.offset == 0 and layout.is_contiguous and layout.size * view.dtype.numpy.itemsize == view.storage.bytes
