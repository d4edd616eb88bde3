"""Where the time of a run goes: each kernel call and each host step timed by itself, in the order of a real run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ...graph.core import Operation, Value
from ...graph.dims import DimExpr, is_symbol
from ...graph.types import TensorType, tensor
from ...passes.bind_dims import with_symbols
from .runtime import STEP_WORDS, Pool, runtime

if TYPE_CHECKING:
    from ...graph.kernel.strided import Shape
    from ...graph.module import Module
    from .planner import Call
    from .program import Program

# Which word of a step says among how many threads it is shared out.
PARTS = 3


@dataclass(frozen=True)
class Timed:
    """A kernel call or host step: the `kernel` (for a host step the operator), the place in the model that it is for
    (all nodes that it computes) and the types of what is read and made there, with the sizes of the inputs that were
    given, the median of its `seconds`, how many arithmetic operations it takes (None: not known), and among how many
    threads it is shared out."""

    kernel: str
    place: str
    types: str
    seconds: float
    operations: float | None
    parts: int
    is_host_step: bool = False


class Profile(list[Timed]):
    """What a run consists of, in order; printed as a table, the longest first."""

    def __str__(self) -> str:
        whole = sum(row.seconds for row in self)
        lines = [f"{len(self)} steps, {whole * 1e3:.3f} ms", f"{'ms':>9} {'%':>5} {'Gop/s':>6}  kernel, types, place"]
        for row in sorted(self, key=lambda row: -row.seconds):
            rate = f"{row.operations / row.seconds / 1e9:.1f}" if row.operations and row.seconds else ""
            name = f"{row.kernel} (host)" if row.is_host_step else row.kernel
            share = 100 * row.seconds / whole if whole else 0.0
            lines.append(f"{row.seconds * 1e3:9.3f} {share:5.1f} {rate:>6}  {name}  {row.types}  {row.place}".rstrip())
        return "\n".join(lines)


@dataclass
class Recorder:
    """Receives what each step took by `clock`, in the place of one native call for all of them.

    Timing a step by itself costs about a microsecond, and threads meet after each; so the sum is more than a run takes.
    """

    clock: Callable[[], float] = time.perf_counter
    samples: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    steps: dict[tuple[int, int], tuple[Call | Operation, int]] = field(default_factory=dict)
    owners: dict[int, Program] = field(default_factory=dict)  # so that ids stay theirs

    def run(
        self, owner: Program, calls: Sequence[Call], table: np.ndarray, bases: int, pool: Pool | None, first: int,
        last: int,
    ) -> None:  # fmt: skip
        """Run the calls of a program from `first` up to `last`; `table` is i64[steps, words]."""
        self.owners[id(owner)] = owner
        begin, parts = table.ctypes.data, table[:, PARTS].tolist()
        for index in range(first, last):
            call = calls[index]
            place = begin + 8 * STEP_WORDS * index
            started = self.clock()
            if pool is not None:
                pool.run(place, 1, bases)
            else:
                runtime().run(place, 1, bases, 0)
            self.add((id(owner), index), call, self.clock() - started, parts[index])

    def add(self, key: tuple[int, int], step: Call | Operation, seconds: float, parts: int = 1) -> None:
        self.steps[key] = step, parts
        self.samples.setdefault(key, []).append(seconds)

    def rows(self, sizes: Mapping[DimExpr, int], has_kernels: Callable[[Operation], bool]) -> Profile:
        """What was recorded, in the order in which steps ran first; `sizes` are those of dims in the run.

        `has_kernels` tells whether an operation that is no part of a segment is run by kernels even so.
        """
        figures = {key: owner.figures() for key, owner in self.owners.items()}
        rows = Profile()
        for key, times in self.samples.items():
            (step, parts), seconds = self.steps[key], statistics.median(times)
            if isinstance(step, Operation):
                types = _types(step, sizes, {})
                host = not has_kernels(step)
                rows.append(Timed(step.name, _place(step), types, seconds, None, 1, is_host_step=host))
                continue
            shapes, counts = figures[key[0]]
            place, types = ("", "") if step.op is None else (_place(step.op), _types(step.op, sizes, shapes))
            rows.append(Timed(step.kernel.name, place, types, seconds, float(counts[key[1]]), parts))
        return rows


def sizes_of(module: Module, feeds: Mapping[str, Any]) -> dict[DimExpr, int]:
    """The sizes that dims of the inputs have in a run on `feeds`."""
    found = {}
    for value in module.main.block.arguments:
        array, shape = feeds.get(str(value.name)), getattr(value.type, "shape", None)
        if array is not None and shape is not None:
            pairs = zip(shape, np.shape(array), strict=False)
            found.update({dim: size for dim, size in pairs if not isinstance(dim, int) and is_symbol(dim)})
    return found


def _place(op: Operation) -> str:
    """The nodes of the model that `op` computes: `"/enc/MatMul"#7, "/enc/Add"#8`."""
    return ", ".join(map(str, op.location.leaves()))


def _types(op: Operation, sizes: Mapping[DimExpr, int], shapes: Mapping[Value, Shape]) -> str:
    """`f32[64, 784], f32[784, 10] -> f32[64, 10]`"""

    def text(value: Value) -> str:
        type, shape = value.type, shapes.get(value)
        if shape is not None and isinstance(type, TensorType):
            return str(tensor(type.dtype, shape))
        return str(with_symbols(type, sizes))

    return " -> ".join(", ".join(map(text, values)) for values in (op.operand_values, op.results))
