"""A plan that is ready to run: a table of steps over one arena, for one native call. See `runtime`."""

from __future__ import annotations

import ctypes
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ...graph.core import Operation, Value
from ...graph.data import TensorData
from ...graph.diagnostics import ExecutionError
from ...graph.kernel.tracing import Number, Recipe, apply
from . import bounds
from .known_sizes import as_numbers
from .machine import memory_bytes
from .memory_plan import Lifetime, place, restack, stack_of
from .planner import Buffer, Call, Planner, Storage, View, dtype_of
from .runtime import STEP_WORDS, Pool, runtime
from .runtime_text import FIRST_ARRAY

if TYPE_CHECKING:
    from ...graph.kernel.strided import Shape
    from .profile import Recorder

# Bases that every program has: address 0, for constants given by their address, and the arena.
NULL, ARENA, FIRST_FREE = 0, 1, FIRST_ARRAY
# So many runs at the same time find an arena that was used before, by whatever plan.
MOST_ARENAS = 4
_BYTE = ctypes.c_char
_STEP_BYTES = 8 * STEP_WORDS
# How many calls are made before something is looked at, and what looks at it; it may raise.
Check: TypeAlias = tuple[int, Callable[[], None]]
_PAGE = 4096
# Constants of files that are copied if kernels read them as they are: biases and the like.
_SMALL = 1 << 18
# Runs that take no more than this need not ask how much memory there is.
_MUCH = 1 << 28


class Outline:
    """What the table of a plan is made of. Everything that sizes decide is in `numbers`, which may be traced ones."""

    def __init__(self, planner: Planner) -> None:
        segment, threads = planner.segment, planner.threads
        self.outputs: list[tuple[Shape, np.dtype]] = []
        self.storages: list[Storage] = []  # of those
        self.known: dict[int, np.ndarray] = {}
        places: dict[Value, int] = {}
        self._slots: dict[Storage, int] = {}
        for index, value in enumerate(segment.outputs):
            if planner.is_known(value):
                # As a view: who gets the elements as a result gets a copy, see `owned`.
                self.known[index] = as_numbers(planner.known(value), value).view()
            else:
                base = FIRST_FREE + len(segment.inputs) + len(self.outputs)
                self.storages.append(_output(planner, value, self._slots))
                self._slots[self.storages[-1]] = base
                places[value] = len(self.outputs)
                self.outputs.append((planner.shape(value), dtype_of(value).numpy))
        # Outputs whose sizes are counted: their dim, and which output is the count.
        self.cuts = {places[value]: (axis, places[count]) for value, (axis, count) in segment.cuts.items()}
        self.calls, self.faults, self.shapes = planner.calls, planner.faults, planner.shapes
        self.input_bytes = [math.prod(planner.shape(v)) * dtype_of(v).numpy.itemsize for v in segment.inputs]
        self.fault_base = FIRST_FREE + len(segment.inputs) + len(self.outputs)
        self.checked = planner.library.checked
        self.shared = planner.shared
        self.keep: list[np.ndarray] = []
        self._find_lifetimes()
        # The words of all tables: what they are but for places in the arena, and to which of those they belong.
        self._words: list[int] = []
        self._fixed: list[int] = []
        self._placed: list[tuple[int, int]] = []
        self._valued: list[tuple[int, int, np.dtype]] = []
        self.values: list[Any] = []
        self.starts: list[int] = []
        for position, call in enumerate(self.calls):
            self.starts.append(len(self._words))
            self._add_call(call, len(self._own) + position, threads)
        self._scratch = [apply(_scratch_bytes, call.scratch, threads, call.parts) for call in self.calls]
        self.fixed = np.array(self._fixed, np.int64)
        self.placed = np.array(self._placed, np.int64).reshape(-1, 2)
        self._stack: list[list[int]] | None = None

    @property
    def numbers(self) -> list[Any]:
        """Words, sizes in the arena, units of work and parts, dims of outputs."""
        sizes = [*(storage.bytes for storage in self._own), *self._scratch]
        work = [*(call.units for call in self.calls), *(call.parts for call in self.calls)]
        return [*self._words, *sizes, *work, *(size for shape, _ in self.outputs for size in shape)]

    def cut(self, numbers: np.ndarray) -> list[np.ndarray]:
        """`numbers` in the parts that they consist of."""
        count = len(self.calls)
        lengths = [len(self._words), len(self._own) + count, count, count]
        return np.split(numbers, np.cumsum(lengths))

    def constants(self, values: Sequence[Any]) -> list[tuple[int, np.ndarray]]:
        """The constants that follow from sizes, with the words that say where they lie."""
        return [(word, np.ascontiguousarray(np.asarray(values[index], dtype))) for word, index, dtype in self._valued]

    def place(self, sizes: Sequence[int]) -> tuple[list[int], int]:
        """Offsets in the arena of what it holds, and its bytes. Once it is known what lies on what, that stays so."""
        if self._stack is None:
            lifetimes = [Lifetime(size, *life) for size, life in zip(sizes, self._lives, strict=True)]
            offsets, total = place(lifetimes)
            self._stack = stack_of(lifetimes, offsets)
            return offsets, total
        return restack(self._stack, sizes)

    def _find_lifetimes(self) -> None:
        first: dict[Storage, int] = {}
        last: dict[Storage, int] = {}
        for position, call in enumerate(self.calls):
            for argument in call.arguments:
                if isinstance(argument, Buffer) and argument.storage is not None:
                    first.setdefault(argument.storage, position)
                    last[argument.storage] = position
        replaced = self._find_replaced(first, last)
        self._own = [s for s in first if s not in self._slots and s.is_own and s not in replaced]
        self._numbers = {storage: number for number, storage in enumerate(self._own)}
        self._numbers |= {storage: self._numbers[place] for storage, place in replaced.items()}
        self._lives = [(first[storage], last[storage]) for storage in self._own]
        self._lives += [(position, position) for position in range(len(self.calls))]

    def _find_replaced(self, first: Mapping[Storage, int], last: dict[Storage, int]) -> dict[Storage, Storage]:
        """The results that lie where an operand of their kernel did, and whose memory that was at first.

        What is written is then in the caches, and takes no room in them beside what was read. `last` is put right.
        """
        replaced: dict[Storage, Storage] = {}
        for position, call in enumerate(self.calls):
            read = [argument.storage for argument in call.arguments if isinstance(argument, Buffer)]
            taken: set[Storage] = set()
            for result, operand in call.replaceable:
                place = replaced.get(operand, operand)
                is_fresh = first[result] == position and result not in replaced and result not in self._slots
                is_free = last[place] == position and read.count(operand) == 1 and operand not in self._slots
                if is_fresh and is_free and place not in taken:
                    replaced[result] = place
                    last[place] = last[result]
                    taken.add(place)
        return replaced

    def _add_call(self, call: Call, scratch: int, threads: int) -> None:
        for argument in call.arguments:
            if not isinstance(argument, Buffer):
                self._word(argument)
                continue
            storage = argument.storage
            address = 0
            if storage is None:
                base, place, size = ARENA, scratch, apply(_scratch_bytes, call.scratch, threads, call.parts)
            elif storage in self._numbers:
                base, place, size = ARENA, self._numbers[storage], storage.bytes
            else:
                base, address, size = self._elsewhere(storage)
                place = None
            self._word(base)
            self._word(argument.offset, address, place)
            if storage is not None and storage.value is not None:
                self._valued.append((len(self._words) - 1, len(self.values) - 1, storage.value[1]))
            if self.checked:
                self._word(0, address, place)
                self._word(size, address, place)

    def _word(self, number: int, fixed: int = 0, place: int | None = None) -> None:
        if place is not None:
            self._placed.append((len(self._words), place))
        self._words.append(number)
        self._fixed.append(fixed)

    def _constant(self, storage: Storage) -> np.ndarray | None:
        """A constant as kernels read it. Small ones leave the file that they lie in: a page of it may be of 2 MB."""
        data = storage.constant
        if isinstance(data, TensorData) and not data.held_bytes and storage.bytes <= _SMALL:
            copied = self.shared.weights.kept(("copy", data), lambda: data.numpy().copy())
            data.release()
            return copied
        return storage.array

    def _elsewhere(self, storage: Storage) -> tuple[int, int, int]:
        """Where a storage outside the arena lies: its base, its first byte from there, and how many it has."""
        if storage.value is not None:
            self.values.append(storage.value[0])
            return NULL, 0, storage.bytes
        array = self._constant(storage)
        if array is not None:
            storage.constant = array
            self.keep.append(array)
            return NULL, array.ctypes.data, array.nbytes
        if storage in self._slots:
            return self._slots[storage], 0, storage.bytes
        if storage.fault is not None:
            return self.fault_base, 16 * storage.fault, 16
        assert storage.slot is not None
        return FIRST_FREE + storage.slot, 0, self.input_bytes[storage.slot]


class Program:
    """The table of a segment's calls for one set of input sizes. Immutable, so that many threads may run it.

    `known` are the outputs that were worked out when it was planned, by their place among the outputs.
    """

    def __init__(
        self, outline: Outline, numbers: Sequence[int] | np.ndarray, values: Sequence[Any], inputs: Sequence[int] = ()
    ) -> None:
        """`numbers` and `values` are the outline's for these sizes, which are the `inputs` of its trace."""
        self.calls, self._faults, self.known = outline.calls, outline.faults, outline.known
        self._shapes, self._traced_inputs = outline.shapes, inputs
        self._storages, self._cuts = outline.storages, outline.cuts
        self._checked, self._inputs = outline.checked, len(outline.input_bytes)
        words, sizes, units, parts, dims = outline.cut(np.array(numbers, np.int64))
        offsets, self.arena_bytes = outline.place(sizes.tolist())
        words = words + outline.fixed
        if len(outline.placed):
            words[outline.placed[:, 0]] += np.array(offsets, np.int64)[outline.placed[:, 1]]
        constants = outline.constants(values)
        for word, constant in constants:
            words[word] = constant.ctypes.data
            if outline.checked:
                words[word + 1 : word + 3] += constant.ctypes.data
        rest = iter(dims.tolist())
        self.outputs = [(tuple(next(rest) for _ in shape), dtype) for shape, dtype in outline.outputs]
        output_bytes = [math.prod(shape) * dtype.itemsize for shape, dtype in self.outputs]
        self._new = outline.shared.outputs.maker(output_bytes)
        self._needed_bytes = int(self.arena_bytes + sum(output_bytes))
        self.parallel = bool((parts > 1).any())
        self._arenas = outline.shared.arenas
        self._keep = [words, *outline.keep, *(constant for _, constant in constants)]
        begin, width = words.ctypes.data, words.itemsize
        entries = [call.kernel.entry for call in self.calls]
        tables = [begin + width * start for start in outline.starts]
        self._steps = np.array([entries, tables, units, parts], np.int64).T.reshape(-1, STEP_WORDS).copy()
        self._job = address_of(self._steps), len(entries)

    def figures(self) -> tuple[dict[Value, Shape], list[float]]:
        """The shapes of values, and about how many operations each call takes."""
        counts, shapes = [call.operations for call in self.calls], self._shapes
        numbers = [*counts, *(size for shape in shapes.values() for size in shape)]
        traced = [number for number in numbers if isinstance(number, Number)]
        if traced:
            found = iter(Recipe(traced[0].trace, [number.place for number in traced]).follow(self._traced_inputs) or ())
            numbers = [next(found) if isinstance(number, Number) else number for number in numbers]
        rest = iter(numbers[len(counts) :])
        return {value: tuple(next(rest) for _ in shape) for value, shape in shapes.items()}, numbers[: len(counts)]

    def run(
        self,
        pool: Pool | None,
        arrays: Sequence[np.ndarray],
        places: Mapping[int, np.ndarray | None] | None = None,
        recorder: Recorder | None = None,
        check: Check | None = None,
    ) -> list[np.ndarray]:
        """The outputs for contiguous input arrays; those that were not known before are fresh arrays.

        An output is made in its array of `places`, if that is not None and has the right shape. A `recorder` times
        each call. `check` is a number of calls, and what to call between those and the others.
        """
        if self._needed_bytes > _MUCH:
            self._require_memory()
        try:
            made = self._empty(places) if places else [self._new(shape, dtype) for shape, dtype in self.outputs]
            if self.calls:
                self._call(pool, [*arrays, *made], recorder, check)
        except MemoryError as error:
            raise ExecutionError("run/memory", f"there is not enough memory for a run: {error}") from error
        for index, (axis, count) in self._cuts.items():
            made[index] = _cut(made[index], axis, int(made[count]))
        if not self.known:
            return made
        fresh = iter(made)
        count = len(made) + len(self.known)
        return [self.known[index] if index in self.known else next(fresh) for index in range(count)]

    def touch(self, with_arena: bool = True) -> None:
        """Touch each page of an arena, and of constants in files, so that no run has to wait for them.

        Not of tables that rows are gathered from: few of their pages are needed, and they may be large.
        """
        storages = {
            argument.storage for call in self.calls if not call.kernel.name.startswith("gather")
            for argument in call.arguments if isinstance(argument, Buffer)
        }  # fmt: skip
        for storage in storages:
            if storage is not None and storage.array is not None and not storage.array.flags.writeable:
                storage.array.reshape(-1).view(np.uint8)[::_PAGE].sum()
        if with_arena:
            if self._needed_bytes > _MUCH:
                self._require_memory()
            memory = self._arena()
            memory[0][::_PAGE] = 0
            self._arenas.append(memory)

    def _require_memory(self) -> None:
        """Raise ExecutionError if a run would need more than there is: a system may hand out such memory all the same,
        and end the process that uses it."""
        if self._needed_bytes > memory_bytes():
            wanted, there = (f"{count / 1e9:.1f} GB" for count in (self._needed_bytes, memory_bytes()))
            raise ExecutionError("run/memory", f"a run for these sizes takes {wanted} of memory, and there are {there}")

    def _arena(self) -> tuple[np.ndarray, int]:
        """Memory for what lies in the arena, and the address where that begins: one that was used before, if it is
        large enough. Fresh memory would have to be cleared first."""
        wanted = self.arena_bytes + 64
        try:
            memory = self._arenas.pop()
            if memory[0].nbytes >= wanted:
                return memory
            del memory  # before a larger one takes its place
        except IndexError:
            pass
        arena = np.empty(wanted, np.uint8)
        return arena, -(-address_of(arena) // 64) * 64

    def _empty(self, places: Mapping[int, np.ndarray | None]) -> list[np.ndarray]:
        """The arrays that outputs are made in."""
        indices = [index for index in range(len(self.outputs) + len(self.known)) if index not in self.known]
        made = []
        for number, (index, (shape, dtype)) in enumerate(zip(indices, self.outputs, strict=True)):
            place = None if number in self._cuts else places.get(index)
            made.append(self._new(shape, dtype) if place is None or place.shape != shape else place)
        return made

    def touched(self) -> list[list[int]]:
        """The places in the table of the calls that read or write each output."""
        found: list[list[int]] = [[] for _ in self._storages]
        for position, call in enumerate(self.calls):
            mine = {argument.storage for argument in call.arguments if isinstance(argument, Buffer)}
            for output, storage in enumerate(self._storages):
                if storage in mine:
                    found[output].append(position)
        return found

    def _call(
        self, pool: Pool | None, arrays: list[np.ndarray], recorder: Recorder | None, check: Check | None
    ) -> None:
        """Run the steps on inputs and outputs."""
        memory = self._arena()
        if self._checked:
            bounds.forget()
            given = {id(each) for each in arrays[: self._inputs]}  # some may be written in their own place
            fresh = [each for each in arrays[self._inputs :] if id(each) not in given]
            for each in (memory[0][: self.arena_bytes + 64], *fresh):
                each.reshape(-1).view(np.uint8).fill(bounds.UNWRITTEN)
        if self._faults:
            faults = np.zeros((len(self._faults), 2), np.int64)
            arrays.append(faults)
        native, (begin, count) = runtime(), self._job
        is_plain = recorder is None and check is None and native.reads_arrays
        bases = array("q", [0, memory[1], *map(id if is_plain else address_of, arrays)])
        if is_plain:
            if pool is not None and self.parallel:
                pool.run(begin, count, bases.buffer_info()[0], len(arrays))
            else:
                native.run(begin, count, bases.buffer_info()[0], len(arrays))
        elif check is None:
            self._run(pool, recorder, 0, count, bases.buffer_info()[0])
        else:
            first, verify = check
            self._run(pool, recorder, 0, first, bases.buffer_info()[0])
            if self._faults:
                self._complain(faults)
            verify()
            self._run(pool, recorder, first, count, bases.buffer_info()[0])
        if len(self._arenas) < MOST_ARENAS:
            self._arenas.append(memory)
        if self._checked:
            bounds.complain()
        if self._faults:
            self._complain(faults)

    def _run(self, pool: Pool | None, recorder: Recorder | None, first: int, last: int, bases: int) -> None:
        """Run the calls from `first` up to `last`."""
        if recorder is not None:
            recorder.run(self, self.calls, self._steps, bases, pool, first, last)
        elif pool is not None and self.parallel:
            pool.run(self._job[0] + _STEP_BYTES * first, last - first, bases)
        else:
            runtime().run(self._job[0] + _STEP_BYTES * first, last - first, bases, 0)

    def _complain(self, faults: np.ndarray) -> None:
        """Raise what a kernel has reported."""
        if faults[:, 0].any():
            place = int(np.flatnonzero(faults[:, 0])[0])
            raise _fault(self._faults[place], int(faults[place, 1]))


def _scratch_bytes(each: int, threads: int, parts: int) -> int:
    return each * max(1, min(threads, parts))


def address_of(array: np.ndarray) -> int:
    """Where a contiguous array's elements begin."""
    try:
        # Several times faster than `array.ctypes.data`, but only for memory that may be written to, and some of it.
        return ctypes.addressof(_BYTE.from_buffer(array))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return int(array.ctypes.data)


def _cut(room: np.ndarray, axis: int, count: int) -> np.ndarray:
    """What a kernel has found, at the front of the room for all that it might have."""
    shape = (*room.shape[:axis], count, *room.shape[axis + 1 :])
    size = math.prod(shape)
    found = room.reshape(-1)[:size].reshape(shape)
    return found.copy() if 2 * size < room.size else found


def _fault(op: Operation, index: int) -> ExecutionError:
    name = op.name.removeprefix("kernel.")
    return ExecutionError("run/index", f"{name}: the index {index} is out of range", op.location)


def _output(planner: Planner, value: Value, taken: dict[Storage, int]) -> Storage:
    """The storage of an output: its own if nothing else is in it and it is row-major, else that of a copy."""
    view = planner.view(value)
    storage = view.storage
    is_own = value not in planner.apart and storage.constant is None and storage.slot is None and storage not in taken
    if is_own and _fills(view):
        return storage
    copied = planner.copied(view)
    return copied.storage


def _fills(view: View) -> bool:
    layout = view.layout
    return layout.offset == 0 and layout.is_contiguous and layout.size * view.dtype.numpy.itemsize == view.storage.bytes
