"""The `reference` target: runs a module at the `onnx` level, one operation at a time, in plain numpy.

Slow, and independent of every code generator: the oracle that others are held against. It computes only what the
requested outputs need, and forgets each value after its last use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ...graph.clone import clone_module
from ...graph.core import Value
from ...graph.diagnostics import Diagnostic, UsageError
from ...graph.evaluator import Evaluator, Plans, Trace
from ...graph.module import Module
from ..executable import Executable, owned
from .claims import Claims


class ReferenceExecutable(Executable):
    """A module run by the interpreter.

    `trace(operation, operands, results)` is called after each operation but constants. While it runs, every result
    is compared with the type that the module gives it: another dtype is an error, another shape a warning.
    """

    target: ClassVar[str] = "reference"

    def __init__(self, module: Module, trace: Trace | None = None) -> None:
        if module.level != "onnx":
            raise UsageError(
                "compile/level", f"the reference interpreter runs the level 'onnx', this module is at {module.level!r}"
            )
        super().__init__(clone_module(module))
        self.trace = trace
        self._plans: Plans = {}

    def _execute(
        self,
        arguments: Sequence[Any],
        dims: Mapping[Any, int],
        outputs: Sequence[int],
        places: Sequence[np.ndarray | None] = (),
    ) -> tuple[list[Any], Sequence[Diagnostic]]:
        main = self.module.main
        wanted: list[Value] = [main.outputs[index] for index in outputs]
        claims = Claims()
        evaluator = Evaluator(self.module.functions, self.trace, claims.check, self._plans)
        results = evaluator.run(main.block, arguments, wanted, dims=dims)
        for index, result in zip(outputs, results, strict=True):
            claims.check_output(self.outputs[index], result)
        return owned(results, arguments), claims.findings

    def report(self) -> dict[str, Any]:
        """`operations` (how many, subgraphs and functions included) and `operators` (how many of each)."""
        operators = Counter(op.name for op in self.module.walk() if not op.is_terminator and op.name != "const")
        return {
            "target": self.target,
            "copies": self.copies,
            "operations": operators.total(),
            "operators": dict(sorted(operators.items())),
        }


def create(
    module: Module, threads: int | None = None, precision: str = "float32", tune: str = "off"
) -> ReferenceExecutable:
    """The factory of the target registry; the interpreter runs on one thread and in the model's own precision."""
    return ReferenceExecutable(module)
