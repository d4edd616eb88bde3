"""Operations whose kernels depend on what only a run knows: axes and sizes that are computed, operands of any rank.

Such an operation is no part of a segment. When it runs, it is lowered for the types that its operands have then, with
those elements that decide (see `deciding_operands`) as constants; the same types and elements later give the same
kernels. If there are none even so, it runs as a host step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...graph import types
from ...graph.builder import OpBuilder
from ...graph.core import Block, BlockOutput, Operation
from ...graph.data import ArrayData
from ...graph.diagnostics import TilewrightError
from ...graph.dtypes import from_numpy
from ...graph.forks import renew_after_fork
from ...graph.lowerings.rules import deciding_operands
from ...graph.module import Function, FunctionKey, Module
from ...graph.types import TensorType
from .weights import Weights

if TYPE_CHECKING:
    from .planner import Shared

Special = Callable[[Sequence[Any]], list[Any]]

# So many forms of one operation are kept; where each run brings another, making kernels is not worth its time.
MOST_FORMS = 64


class Specializations:
    """Those of one executable. `of` may be called by many threads."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._forms: dict[Operation, dict[Any, Special | None]] = {}
        self._lock = threading.Lock()
        renew_after_fork(self)

    def renew(self) -> None:
        self._lock = threading.Lock()

    def of(self, op: Operation, operands: Sequence[Any]) -> Special | None:
        """The kernels of `op` for these operands as a function of all operands; None if it must run on the host."""
        if not _is_open(op) or not all(value is None or isinstance(value, np.ndarray) for value in operands):
            return None
        key = tuple(
            None if array is None else (array.dtype, array.shape, array.tobytes() if index in deciding else b"")
            for deciding in [deciding_operands(op.definition)] for index, array in enumerate(operands)
        )  # fmt: skip
        with self._lock:
            forms = self._forms.setdefault(op, {})
            if key not in forms:
                forms[key] = self._make(op, operands) if len(forms) < MOST_FORMS else None
            return forms[key]

    def covers(self, op: Operation) -> bool:
        """Whether `op` has run, and by kernels each time."""
        forms = self._forms.get(op)
        return forms is not None and len(forms) > 0 and None not in forms.values()

    def _make(self, op: Operation, operands: Sequence[Any]) -> Special | None:
        from .executable import CpuExecutable

        try:
            module, positions = _module_of(op, operands)
            # Its plans are made while another thread makes those of the model.
            shared = replace(self._shared, weights=Weights())
            executable = CpuExecutable(module, shared.threads, shared)
        except (TilewrightError, ValueError, MemoryError):
            return None  # its own evaluation says best what is wrong
        if executable.report()["host_steps"]:
            return None
        outputs = range(len(op.results))

        def run(operands: Sequence[Any]) -> list[Any]:
            return executable._execute([operands[position] for position in positions], {}, outputs)[0]

        return run


def _is_open(op: Operation) -> bool:
    """Whether a run knows more of `op` than its types say."""
    if op.regions or not op.definition.is_known:
        return False
    is_static = all(isinstance(v.type, TensorType) and v.type.is_static for v in op.operand_values)
    return bool(deciding_operands(op.definition)) or not is_static


def _module_of(op: Operation, operands: Sequence[Any]) -> tuple[Module, list[int]]:
    """A model of `op` alone, and which of its operands are the inputs."""
    deciding = deciding_operands(op.definition)
    positions = [i for i, array in enumerate(operands) if array is not None and i not in deciding]
    given = [types.tensor(from_numpy(operands[i].dtype), operands[i].shape) for i in positions]
    block = Block(given, [f"x{i}" for i in positions])
    module = Module(Function(FunctionKey("", "main"), block))
    builder = OpBuilder(block, module.symbols, location=op.location)
    values: list[Any] = [None] * len(operands)
    for index, array in enumerate(operands):
        if array is not None and index in deciding:
            values[index] = builder.const(ArrayData(array))
    for position, argument in zip(positions, block.arguments, strict=True):
        values[position] = argument
    made = builder.create(op.definition, values, op.attributes, outputs=len(op.results))
    block.outputs = [BlockOutput(f"y{index}", result.type) for index, result in enumerate(made.results)]
    builder.returns(made.results)
    return module, positions
