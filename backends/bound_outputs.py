"""Arrays of the caller's that a run writes its outputs into: whether they can be, and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..graph.diagnostics import DiagnosticLog, ExecutionError, UsageError
from ..graph.evaluation import describe
from ..graph.types import TensorType
from .signature import Port

# Beyond so much searching for an element that two arrays share, they are taken to share one.
_MOST_SEARCHING = 10_000


def check_bound(bound: Mapping[Port, Any]) -> None:
    """Raises UsageError for what no output can be written into, ExecutionError for arrays of another type."""
    for port, array in bound.items():
        _check_memory(port, array)
    ports = list(bound)
    for index, port in enumerate(ports):
        for other in ports[:index]:
            if _share(bound[port], bound[other]):
                raise UsageError(
                    "run/bound-output", f"the arrays for the outputs {other.name!r} and {port.name!r} share memory"
                )
    log = DiagnosticLog()
    for port, array in bound.items():
        assert isinstance(port.type, TensorType)
        if array.dtype != port.type.dtype.numpy:
            _misfit(log, port, array, f"the dtype must be {port.type.dtype}")
        elif port.type.shape is not None and len(port.type.shape) != array.ndim:
            _misfit(log, port, array, f"the rank must be {len(port.type.shape)}")
    log.raise_errors(ExecutionError)


def places(bound: Sequence[np.ndarray | None], arguments: Sequence[Any]) -> list[np.ndarray | None]:
    """Those of the arrays that a run may work in directly: row-major, and apart from everything that it reads."""
    given = [array for array in arguments if isinstance(array, np.ndarray)]
    return [array if array is not None and _is_place(array, given) else None for array in bound]


def _is_place(array: np.ndarray, given: Sequence[np.ndarray]) -> bool:
    return bool(array.flags.carray) and not any(np.may_share_memory(array, each) for each in given)


def write_results(bound: Mapping[Port, np.ndarray], results: Sequence[Any]) -> int:
    """Copy into the arrays what does not lie there yet, and return how many were copied.

    Raises ExecutionError if a result has another shape than its array; then nothing is copied.
    """
    log = DiagnosticLog()
    for (port, array), result in zip(bound.items(), results, strict=True):
        if np.shape(result) != array.shape:
            _misfit(log, port, array, f"the result is {describe(result)}")
    log.raise_errors(ExecutionError)
    pairs = [pair for pair in zip(bound.values(), results, strict=True) if pair[0] is not pair[1]]
    for array, result in pairs:
        np.copyto(array, result)
    return len(pairs)


def _check_memory(port: Port, array: Any) -> None:
    if not isinstance(port.type, TensorType):
        reason = f"it is {port.type}; only tensors can be"
    elif not isinstance(array, np.ndarray):
        reason = f"that takes a numpy array, not {type(array).__name__}"
    elif not array.flags.writeable:
        reason = "the array is read-only"
    else:
        return
    raise UsageError("run/bound-output", f"the output {port.name!r} cannot be written into what is given: {reason}")


def _share(x: np.ndarray, y: np.ndarray) -> bool:
    try:
        return bool(np.shares_memory(x, y, max_work=_MOST_SEARCHING))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _misfit(log: DiagnosticLog, port: Port, array: np.ndarray, reason: str) -> None:
    log.error("run/output-type", f"the output {port.name!r} is {port.type}, its array is {describe(array)}: {reason}")
