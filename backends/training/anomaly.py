"""Which operation of a step made the first NaN or infinity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...graph.diagnostics import ExecutionError
from ...graph.evaluator import Evaluator

if TYPE_CHECKING:
    from ...graph.core import Operation
    from ...graph.module import Module


class _Found(Exception):
    def __init__(self, op: Operation, what: str) -> None:
        self.op, self.what = op, what


def first_bad_number(module: Module, feeds: Mapping[str, Any]) -> ExecutionError:
    """Run `module` operation by operation; the error that names the first whose result is not finite although its
    operands are."""
    bad = [name for name, value in feeds.items() if _bad(value)]
    if bad:
        return ExecutionError("train/not-finite", f"{bad[0]!r} has {_bad(feeds[bad[0]])} elements before the step runs")

    def watch(op: Operation, operands: Sequence[Any], results: Sequence[Any]) -> None:
        what = next((found for found in map(_bad, results) if found), "")
        if what and not any(map(_bad, operands)):
            raise _Found(op, what)

    block = module.main.block
    defaults = {argument: data.numpy() for argument, data in module.main.defaults.items()}
    arguments = [feeds.get(str(each.name), defaults.get(each)) for each in block.arguments]
    try:
        Evaluator(module.functions, trace=watch).run(block, [None if a is None else np.asarray(a) for a in arguments])
    except _Found as found:
        message = f"{found.op.name} is the first operation with {found.what} elements in its result"
        return ExecutionError("train/not-finite", message, found.op.location)
    return ExecutionError("train/not-finite", "the step made NaN or infinite numbers that a second run does not make")


def _bad(value: Any) -> str:
    if not isinstance(value, np.ndarray | np.generic) or value.dtype.kind in "iubOUSM":
        return ""
    numbers = value.astype(np.complex128 if value.dtype.kind == "c" else np.float64)
    if np.isnan(numbers).any():
        return "NaN"
    return "infinite" if np.isinf(numbers).any() else ""
