"""Whether what a model computes agrees with the types it declares, judged while it runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...graph.core import Value
from ...graph.diagnostics import Diagnostic
from ...graph.dims import Dim, evaluate, is_symbol, symbols_of
from ...graph.evaluation import describe
from ...graph.location import Location
from ...graph.types import TensorType, Type
from ..signature import Port


class Claims:
    """Collects a finding for each value whose shape contradicts its type; dims are learned as values come by."""

    def __init__(self) -> None:
        self.findings: list[Diagnostic] = []
        self._reported: set[Value] = set()

    def check(self, value: Value, result: Any, dims: dict[Any, int]) -> None:
        """Compare a computed value with its type; `dims` holds the sizes known so far and is added to."""
        problem = _contradiction(value.type, result, dims)
        if problem and value not in self._reported:
            self._reported.add(value)
            producer = value.producer
            self._add(f"%{value.name or '?'}", value.type, result, problem, producer.location if producer else None)

    def check_output(self, port: Port, result: Any) -> None:
        """Compare a model output with the type the interface declares, whose symbols are names of its own."""
        problem = _contradiction(port.type, result, {})
        if problem:
            self._add(f"output {port.name!r}", port.type, result, problem, None)

    def _add(self, what: str, type: Type, result: Any, problem: str, location: Location | None) -> None:
        message = f"{what} is declared {type}, but is {describe(result)}: {problem}"
        self.findings.append(Diagnostic("run/declared-shape", message, location, severity="warning"))


def _contradiction(type: Type, result: Any, dims: dict[Any, int]) -> str:
    """Why `result` cannot be of `type`, or an empty text."""
    if not isinstance(type, TensorType) or type.shape is None or not isinstance(result, np.ndarray):
        return ""
    if len(type.shape) != result.ndim:
        return f"the rank is {result.ndim}"
    for axis, (dim, size) in enumerate(zip(type.shape, result.shape, strict=True)):
        expected = _size(dim, size, dims)
        if expected is not None and expected != size:
            return f"dim {axis} is {size}, {dim} is {expected}" if expected != dim else f"dim {axis} is {size}"
    return ""


def _size(dim: Dim, size: int, dims: dict[Any, int]) -> int | None:
    """What `dim` must be; a symbol that is new takes `size`. None if that cannot be known."""
    if isinstance(dim, int):
        return dim
    if is_symbol(dim):
        return dims.setdefault(dim, size)
    if any(symbol not in dims for symbol in symbols_of(dim)):
        return None
    try:
        return evaluate(dim, dims)
    except (ValueError, ZeroDivisionError):
        return None
