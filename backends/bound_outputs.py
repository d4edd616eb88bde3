"""Arrays of the caller's that a run writes its outputs into: whether they can be, and how."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from ..graph.diagnostics import Diagnostic, ExecutionError, TilewrightError, UsageError
from ..graph.evaluation import describe
from ..graph.names import type_text
from ..graph.types import TensorType
from .signature import Port

# An output, and the array it is to be written into.
Bound: TypeAlias = tuple[Port, np.ndarray]

# Beyond so much searching for an element that two arrays share, they are taken to share one.
_MOST_SEARCHING = 10_000


def check_bound(bound: Sequence[Bound]) -> None:
    """Raises UsageError for what no output can be written into, ExecutionError for arrays of another type."""
    for port, array in bound:
        _check_memory(port, array)
    for index, (port, array) in enumerate(bound):
        for other, earlier in bound[:index]:
            if _share(array, earlier):
                raise UsageError(
                    "run/bound-output", f"the arrays for the outputs {other.name!r} and {port.name!r} share memory"
                )
    misfits = [(port, array, reason) for port, array in bound if (reason := _misfit(port, array))]
    if misfits:
        raise _complaint(misfits)


def places(bound: Sequence[np.ndarray | None], arguments: Sequence[Any]) -> list[np.ndarray | None]:
    """Those of the arrays that a run may work in directly: row-major, and apart from everything that it reads."""
    given = [array for array in arguments if isinstance(array, np.ndarray)]
    return [array if array is not None and _is_place(array, given) else None for array in bound]


def _is_place(array: np.ndarray, given: Sequence[np.ndarray]) -> bool:
    return bool(array.flags.carray) and not any(np.may_share_memory(array, each) for each in given)


def write_results(bound: Sequence[Bound], results: Sequence[Any]) -> int:
    """Copy into the arrays what does not lie there yet, and return how many were copied.

    Raises ExecutionError if a result has another shape than its array; then nothing is copied.
    """
    pairs = [(port, array, result) for (port, array), result in zip(bound, results, strict=True) if array is not result]
    misfits = [
        (port, array, f"the result is {describe(result)}")
        for port, array, result in pairs if np.shape(result) != array.shape
    ]  # fmt: skip
    if misfits:
        raise _complaint(misfits)
    for _, array, result in pairs:
        np.copyto(array, result)
    return len(pairs)


def _check_memory(port: Port, array: Any) -> None:
    if not isinstance(port.type, TensorType):
        reason = f"it is {type_text(port.type)}; only tensors can be"
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


def _misfit(port: Port, array: np.ndarray) -> str:
    """Why results cannot have the array's type; empty if they can."""
    assert isinstance(port.type, TensorType)
    if array.dtype != port.type.dtype.numpy:
        return f"the dtype must be {port.type.dtype}"
    if port.type.shape is not None and len(port.type.shape) != array.ndim:
        return f"the rank must be {len(port.type.shape)}"
    return ""


def _complaint(misfits: Sequence[tuple[Port, np.ndarray, str]]) -> TilewrightError:
    """An error that says all of it."""
    return ExecutionError.collect([
        Diagnostic(
            "run/output-type",
            f"the output {port.name!r} is {type_text(port.type)}, its array is {describe(array)}: {reason}",
        )
        for port, array, reason in misfits
    ])  # fmt: skip
