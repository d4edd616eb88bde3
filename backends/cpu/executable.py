"""The `cpu` target: segments of generated kernels, and host steps for operations that have none."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...graph import types
from ...graph.clone import clone_module
from ...graph.control_flow import run_regions
from ...graph.core import Block, Operation, Value
from ...graph.data import TensorData
from ...graph.diagnostics import Diagnostic, ExecutionError, TilewrightError, UsageError
from ...graph.evaluation import as_results
from ...graph.evaluator import Evaluator
from ...graph.forks import renew_after_fork
from ...graph.kernel.strided import Shape
from ...graph.lowerings.builder import data_of
from ...graph.module import Module
from ...passes.manager import PassManager
from ..executable import Executable, owned
from ..feed_sizes import usual_shapes
from .bounds import BOUNDS_VARIABLE
from .known_sizes import require_room
from .library import KernelLibrary
from .machine import machine, usable_cores
from .planner import Shared
from .program import Program
from .runtime import pool, runtime
from .segment import Segment, Step, planned_values, steps_of
from .specialize import Specializations
from .templates import Templates
from .tuner import Tuner, checked

if TYPE_CHECKING:
    from .profile import Recorder, Timed

THREADS_VARIABLE = "TILEWRIGHT_THREADS"

# From what was imported to kernels.
PIPELINE = "O2,integer-products,expand-legacy,lower-to-kernels,cse,fuse-kernels,fuse-rows,byte-tables,share-kernels,dce"

# So many plans are remembered, and so many things that make plans; the oldest are forgotten.
MOST_PLANS, MOST_SOURCES = 512, 64

_NO_ARRAYS: Mapping[Any, np.ndarray] = {}
_NOT_THERE = object()
# From so many bytes of weights on, memory is tidied up while compiling: that takes time in a process that holds much.
LARGE_BYTES = 4 << 20


class CpuExecutable(Executable):
    """A module run by generated kernels. `run` may be called by many threads at once."""

    target: ClassVar[str] = "cpu"
    _recorder: Recorder | None = None

    def __init__(
        self, module: Module, threads: int | None = None, shared: Shared | None = None, tune: str = "off"
    ) -> None:
        if module.level not in ("onnx", "kernel"):
            raise UsageError("compile/level", f"the cpu target compiles the level 'onnx', not {module.level!r}")
        super().__init__(clone_module(module))
        self.threads = threads or default_threads()
        if module.level == "onnx":
            PassManager.parse(PIPELINE).run(self.module)
        is_large = _release_constants(self.module) >= LARGE_BYTES
        if is_large:
            # What passes took out holds weights, too, and graphs are circular; nothing that young was looked at yet.
            gc.collect(1)
        self._block = self.module.main.block
        self._shared = shared or Shared(KernelLibrary(machine()), self.threads, tuner=_tuner(tune))
        self._evaluator = Evaluator(self.module.functions)
        self._steps: dict[Block, list[Step]] = {}
        self._split(self._block, frozenset())
        self._programs: dict[Any, Program] = {}
        self._templates: dict[Any, Templates] = {}
        self._lock = threading.Lock()
        renew_after_fork(self)
        self._special = Specializations(self._shared)
        self._last: tuple[Mapping[Any, int], Program] | None = None
        self._recent: dict[Segment, tuple[tuple[Shape, ...], Program]] = {}
        self._direct = _Direct.of(self._block, self._steps[self._block])
        self._plan_static()
        self._plan_ahead()
        if is_large:
            _release_constants(self.module)  # reading one brings in what lies around it, too
            _trim_heap()
        # What the first run would have to wait for.
        runtime()
        for program in self._programs.values():
            program.touch()

    def renew(self) -> None:
        self._lock = threading.Lock()

    def _split(self, block: Block, planned: Set[Value]) -> None:
        """The steps of a block and of those inside."""
        steps = self._steps[block] = steps_of(block, planned)
        inside = planned | planned_values(steps)
        for step in steps:
            if isinstance(step, Operation):
                for region in step.regions.values():
                    self._split(region.block, inside)

    def _plan_static(self) -> None:
        """Compile what can be compiled before the first run: segments whose inputs all have known sizes."""
        for block, steps in self._steps.items():
            # A branch that cannot run may be one that no run takes; one that does says what is wrong.
            passed_over = () if block is self._block else (ExecutionError,)
            for step in steps:
                if isinstance(step, Segment) and not step.known:
                    shapes = [_static_shape(value) for value in step.inputs]
                    if all(shape is not None for shape in shapes):
                        with contextlib.suppress(*passed_over):
                            self._program(step, tuple(shape for shape in shapes if shape is not None), ())

    def _plan_ahead(self) -> None:
        """Plan segments whose inputs have open sizes for ordinary ones, and keep the trace: it packs the weights, makes
        most kernels, and gives the plans for other sizes."""
        segments = [
            step for step in self._steps[self._block]
            if isinstance(step, Segment) and not step.known and None in map(_static_shape, step.inputs)
        ]  # fmt: skip
        if not segments or self._shared.tuner is not None:  # kernels are chosen for sizes that are really run
            return
        for shapes in usual_shapes({port.name: port.type for port in self.inputs}):
            given = dict(zip(self._block.arguments, (shapes.get(port.name) for port in self.inputs), strict=True))
            for segment in segments:
                found = tuple(shape for value in segment.inputs if (shape := given.get(value)) is not None)
                if len(found) == len(segment.inputs):
                    # The model may take no such sizes. A run that cannot be planned says why.
                    with contextlib.suppress(TilewrightError):
                        self._templates_of(segment, found, ()).program(found).touch(with_arena=False)

    def _program(self, segment: Segment, shapes: tuple[Shape, ...], known: Sequence[np.ndarray]) -> Program:
        """The plan for inputs of these shapes and elements; made when it is first needed."""
        key = (segment, shapes, tuple((array.shape, array.tobytes()) for array in known))
        found = self._programs.get(key)
        if found is None:
            with self._lock:
                found = self._programs.get(key)
                if found is None:
                    found = self._templates_of(segment, shapes, known).program(shapes)
                    _remember(self._programs, key, found, MOST_PLANS)
        return found

    def _templates_of(self, segment: Segment, shapes: tuple[Shape, ...], known: Sequence[np.ndarray]) -> Templates:
        """What makes plans for inputs of these ranks, and these elements where they must be known."""
        key = (segment, tuple(map(len, shapes)), tuple((array.shape, array.tobytes()) for array in known))
        found = self._templates.get(key)
        if found is None:
            values = dict(zip(segment.known, known, strict=True))
            found = Templates(self._shared, segment, values)
            _remember(self._templates, key, found, MOST_SOURCES)
        return found

    def _execute(
        self,
        arguments: Sequence[Any],
        dims: Mapping[Any, int],
        outputs: Sequence[int],
        places: Sequence[np.ndarray | None] = (),
    ) -> tuple[list[Any], Sequence[Diagnostic]]:
        if self._direct is not None:
            return self._execute_directly(self._direct, arguments, dims, outputs, places), ()
        values: dict[Value, Any] = {
            argument: self._row_major(given) if isinstance(given, np.ndarray) else given
            for argument, given in zip(self._block.arguments, arguments, strict=True)
        }
        wanted = [self._block.returned[index] for index in outputs]
        bound = {value: place for value, place in zip(wanted, places, strict=False) if place is not None}
        self._run(self._block, values, bound)
        results = [_fetch(values, value) for value in wanted]
        in_place = [bound.pop(value, None) is result for value, result in zip(wanted, results, strict=True)]
        placed = [result for result, is_placed in zip(results, in_place, strict=True) if is_placed]
        others = [result for result, is_placed in zip(results, in_place, strict=True) if not is_placed]
        rest = iter(owned(others, [*arguments, *placed]))
        return [result if is_placed else next(rest) for result, is_placed in zip(results, in_place, strict=True)], ()

    def _execute_directly(
        self,
        direct: _Direct,
        arguments: Sequence[Any],
        dims: Mapping[Any, int],
        outputs: Sequence[int],
        places: Sequence[np.ndarray | None],
    ) -> list[Any]:
        """Run the only segment, whose outputs are the model's: what small models have no time to look up."""
        arrays = [self._row_major(arguments[position]) for position in direct.inputs]
        last = self._last
        if last is None or last[0] is not dims:  # one mapping of dims stands for the same shapes
            self._last = last = dims, self._program(direct.segment, tuple(array.shape for array in arrays), ())
        program = last[1]
        bound = {direct.outputs[i]: place for i, place in zip(outputs, places, strict=True)} if places else None
        workers = pool(self.threads) if program.parallel and self.threads > 1 else None
        results = program.run(workers, arrays, bound, self._recorder)
        returned = [results[direct.outputs[index]] for index in outputs]
        return owned(returned, arguments) if program.known else returned

    def _row_major(self, given: Any) -> np.ndarray:
        """`given` as kernels read it; counted if that takes a copy."""
        array = np.asarray(given, order="C")
        if array is not given:
            self._count_copies("inputs")
        return array

    def _run(self, block: Block, values: dict[Value, Any], bound: Mapping[Value, np.ndarray] = _NO_ARRAYS) -> None:
        """Run the steps of a block; `values` holds its arguments and what it captures, and receives what it makes.

        Results of segments that are `bound` to an array of their shape are made there.
        """
        workers = pool(self.threads) if self.threads > 1 else None
        for step in self._steps[block]:
            if isinstance(step, Operation):
                started = time.perf_counter()
                values.update(zip(step.results, self._operation(step, values), strict=True))
                if self._recorder is not None and not is_control_flow(step):
                    self._recorder.add((id(step), 0), step, time.perf_counter() - started)
                continue
            arrays = [np.asarray(_fetch(values, value), order="C") for value in step.inputs]
            shapes = tuple([array.shape for array in arrays])
            if step.known:
                program = self._program(step, shapes, [np.asarray(_fetch(values, value)) for value in step.known])
            else:  # as a rule those of the run, or the iteration, before
                recent = self._recent.get(step)
                if recent is None or recent[0] != shapes:
                    self._recent[step] = recent = shapes, self._program(step, shapes, ())
                program = recent[1]
            places = {i: bound[value] for i, value in enumerate(step.outputs) if value in bound} if bound else {}
            values.update(zip(step.outputs, program.run(workers, arrays, places, self._recorder), strict=True))

    def _operation(self, op: Operation, values: dict[Value, Any]) -> list[Any]:
        """The results of a host step, or of control flow, whose blocks run as the main one does."""
        operands = [None if value is None else _fetch(values, value) for value in op.operands]
        if not is_control_flow(op):
            _require_room(op, operands)
            special = self._special.of(op, operands)
            return self._evaluator.evaluate(op, operands) if special is None else special(operands)
        activity = run_regions(op, operands)
        answer: list[Any] | None = None
        block: Block | None = None
        inside = values.copy()  # what an iteration makes takes the place of what the one before made
        try:
            while True:
                call = activity.send(answer)  # type: ignore[arg-type]
                if call.block is not block:
                    block, returned = call.block, call.block.returned
                inside.update(zip(block.arguments, call.arguments, strict=True))
                self._run(block, inside)
                answer = [_fetch(inside, value) for value in returned]
        except StopIteration as finished:
            return as_results(op, tuple(finished.value))
        except ExecutionError as error:
            error.with_note(f"inside {op.name} at {op.location}")
            raise

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an executable (`.twx`) that loads without compiling, on processors like this one.

        It has the code for all sizes whose plans this object remembers; what another size needs is compiled then. It is
        machine code: `tilewright.load_executable` is only for files that you trust. Raises UsageError if it cannot be
        written.
        """
        from .bundle import recording_store, write_bundle

        if self._shared.library.checked:
            raise UsageError("cpu/bounds", f"code that checks bounds ({BOUNDS_VARIABLE}) cannot be saved")
        store = recording_store()
        shared = Shared(KernelLibrary(machine(), store), self.threads, tuner=self._shared.tuner)
        twin = CpuExecutable(self.module, self.threads, shared)
        theirs = dict(zip(self._segments(), twin._segments(), strict=True))
        for segment, shapes, known in list(self._programs):
            if not known:
                twin._program(theirs[segment], shapes, ())
        shared.library.finish()
        write_bundle(path, self.module, store)

    def profile(
        self, feeds: Mapping[str, Any], runs: int = 10, clock: Callable[[], float] = time.perf_counter
    ) -> list[Timed]:
        """Where the time of a run goes: its kernel calls and host steps in order, each with the median of `runs` runs.

        `clock` is read before and after; on a busy machine, time.thread_time disturbs less where there is one thread.
        Each is timed by itself, which costs a microsecond, so that the sum is more than a whole run takes.
        """
        from .profile import Recorder, sizes_of

        self.run(feeds)  # plans and compiles
        twin = object.__new__(type(self))  # so that the runs of other threads are what they were
        twin.__dict__.update(self.__dict__, _recorder=(recorder := Recorder(clock)))
        for _ in range(runs):
            twin.run(feeds)
        return recorder.rows(sizes_of(self.module, feeds), self._special.covers)

    def _segments(self) -> list[Segment]:
        return [step for steps in self._steps.values() for step in steps if isinstance(step, Segment)]

    def report(self) -> dict[str, Any]:
        """What was compiled.

        `kernels` (name and how often the plans so far call it), `compiled` and `loaded` (kernels made here, and found
        on disk), `host_steps` (operator and place of each operation that runs through the reference implementation; one
        whose kernels depend on elements such as axes is listed until it has run by kernels only),
        `segments`, `arena_bytes` of the largest plan, `threads`, `candidates` among which the tuner chose, and `copies`
        of inputs that were not row-major, and of outputs that `run_into` could not make where they were wanted.
        """
        programs = list(self._programs.values())
        calls = Counter(call.kernel.name for program in programs for call in program.calls)
        steps = [step for steps in self._steps.values() for step in steps]
        special = self._special
        host = [
            step for step in steps
            if isinstance(step, Operation) and not is_control_flow(step) and not special.covers(step)
        ]  # fmt: skip
        return {
            "target": self.target,
            "copies": self.copies,
            "threads": self.threads,
            "vector_bits": self._shared.library.machine.vector_bits,
            "segments": sum(isinstance(step, Segment) for step in steps),
            "kernels": dict(sorted(calls.items())),
            "compiled": self._shared.library.compiled,
            "loaded": self._shared.library.loaded,
            "host_steps": [{"operator": op.name, "location": str(op.location)} for op in host],
            "arena_bytes": max((program.arena_bytes for program in programs), default=0),
            "candidates": [] if self._shared.tuner is None else self._shared.tuner.report(),
        }


@dataclass(frozen=True)
class _Direct:
    """A model that is one segment: which arguments are its inputs, and which of its outputs the model returns."""

    segment: Segment
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @staticmethod
    def of(block: Block, steps: Sequence[Step]) -> _Direct | None:
        """None if there are other steps, or outputs that are no segment's or returned twice."""
        if len(steps) != 1 or not isinstance(steps[0], Segment) or steps[0].known:
            return None
        segment, returned = steps[0], block.returned
        is_whole = set(segment.inputs) <= set(block.arguments) and set(returned) <= set(segment.outputs)
        if not is_whole or len(set(returned)) != len(returned):
            return None
        inputs = tuple(block.arguments.index(value) for value in segment.inputs)
        return _Direct(segment, inputs, tuple(segment.outputs.index(value) for value in returned))


def _require_room(op: Operation, operands: Sequence[Any]) -> None:
    try:
        require_room(op, operands)
    except MemoryError as error:
        raise ExecutionError("run/memory", f"{op.name}: {error}", op.location) from error


def is_control_flow(op: Operation) -> bool:
    """Whether `op` runs blocks of the model."""
    return bool(op.regions) and op.definition.domain != "kernel"


def _release_constants(module: Module) -> int:
    """Give back the memory that weights in files have taken while passes looked at them; how many bytes all have."""
    total = 0
    for op in module.operations():
        data = op.attributes.get("value") if op.name == "const" else None
        if isinstance(data, TensorData):
            data.release()
            total += data.nbytes
    return total


def _remember(memory: dict[Any, Any], key: Any, value: Any, most: int) -> None:
    """Add to a dict of at most so many entries."""
    while len(memory) >= most:
        del memory[next(iter(memory))]
    memory[key] = value


def _trim_heap() -> None:
    """Give back what packing weights has left free on the heap; the GNU C library keeps it otherwise."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def _tuner(tune: str) -> Tuner | None:
    """Who chooses among kernels; nobody if it is off, so that each has its own default. Raises UsageError."""
    return None if checked(tune) == "off" else Tuner(machine(), tune)


def default_threads() -> int:
    """TILEWRIGHT_THREADS, or the cores this process may use. Raises UsageError for a strange number."""
    text = os.environ.get(THREADS_VARIABLE, "")
    if not text:
        return usable_cores()
    if not text.isdigit() or int(text) < 1:
        raise UsageError("cpu/threads", f"{THREADS_VARIABLE} is a number of threads, not {text!r}")
    return int(text)


def _static_shape(value: Value) -> tuple[int, ...] | None:
    return value.type.static_shape if isinstance(value.type, types.TensorType) else None


def _fetch(values: Mapping[Value, Any], value: Value) -> Any:
    found = values.get(value, _NOT_THERE)
    if found is not _NOT_THERE:
        return found
    data = data_of(value)
    assert data is not None
    return data.numpy()


def load(path: str | os.PathLike[str], threads: int | None = None) -> CpuExecutable:
    """The executable in a file that `CpuExecutable.save` wrote. Raises UsageError."""
    from .bundle import read_bundle

    module, store = read_bundle(path)
    threads = threads or default_threads()
    return CpuExecutable(module, threads, Shared(KernelLibrary(machine(), store), threads))


def create(module: Module, threads: int | None = None, precision: str = "float32", tune: str = "off") -> CpuExecutable:
    """The factory of the target registry."""
    return CpuExecutable(module, threads, tune=tune)
