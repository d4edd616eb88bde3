"""What the readers of one model share: the log, the symbols, the tensors; and how names find values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from onnx import FunctionProto, TypeProto

from ...graph import types
from ...graph.core import Value
from ...graph.diagnostics import Diagnostic, DiagnosticLog, TilewrightError
from ...graph.dims import FreshSymbols
from ...graph.location import Location
from ...graph.module import FunctionKey
from ...graph.onnx_values import MAX_ELEMENTS, MAX_RANK, type_from_proto
from ...graph.types import Type
from .read_tensors import TensorReader


class Scope:
    """The names visible in one graph: its own and, behind them, those of the graphs around it."""

    __slots__ = ("names", "outer")

    def __init__(self, outer: Scope | None = None) -> None:
        self.names: dict[str, Value] = {}
        self.outer = outer

    def find(self, name: str) -> Value | None:
        scope: Scope | None = self
        while scope is not None:
            value = scope.names.get(name)
            if value is not None:
                return value
            scope = scope.outer
        return None

    def visible(self) -> Iterator[str]:
        """All names, nearest first."""
        scope: Scope | None = self
        while scope is not None:
            yield from scope.names
            scope = scope.outer


class ImportLog(DiagnosticLog):
    """A log that says of each finding in which function and subgraph it was made: the names in `path`.

    Writes into the list of another log. A name made by `push` is taken off by `pop`.
    """

    def __init__(self, log: DiagnosticLog) -> None:
        super().__init__(log.diagnostics)
        self._path: list[str] = []

    def push(self, place: str) -> None:
        self._path.append(place)

    def pop(self) -> None:
        self._path.pop()

    def error(self, code: str, message: str, location: Location | None = None, *notes: str) -> None:
        super().error(code, message, location, *notes, *self.place())

    def warning(self, code: str, message: str, location: Location | None = None, *notes: str) -> None:
        super().warning(code, message, location, *notes, *self.place())

    def place(self) -> tuple[str, ...]:
        return (f"in {', '.join(reversed(self._path))}",) if self._path else ()


@dataclass
class ReadContext:
    """`functions` are the model-local ones; for `look_for_unknown` see residual.py."""

    log: ImportLog
    tensors: TensorReader
    symbols: FreshSymbols
    ir_version: int
    look_for_unknown: bool
    functions: Mapping[FunctionKey, FunctionProto]
    calls: frozenset[tuple[str, str]] = field(init=False)
    _checked: set[Type] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.calls = frozenset((key.domain, key.name) for key in self.functions)

    def report(self, error: TilewrightError, location: Location | None = None, severity: str = "error") -> None:
        """Log a caught error; `location` says where if the error does not."""
        for found in error.diagnostics:
            where = found.location or location
            self.log.diagnostics.append(
                Diagnostic(found.code, found.message, where, (*found.notes, *self.log.place()), severity, found.excerpt)
            )

    def type_of(self, proto: TypeProto) -> Type:
        """The type in an attribute; as everywhere, each occurrence of a dim name has a symbol of its own."""
        return type_from_proto(proto, self.symbols.distinct, self.symbols)

    def check_shape(self, type: Type, what: str, location: Location | None) -> None:
        """Log an error for a tensor type with more dims or elements than can exist."""
        if type in self._checked or not isinstance(type, types.TensorType) or type.shape is None:
            return
        self._checked.add(type)
        known = 1
        for dim in type.shape:
            if isinstance(dim, int):
                known *= dim
        if len(type.shape) > MAX_RANK:
            self.log.error(
                "onnx/tensor-rank", f"{what} has {len(type.shape)} dims, more than the {MAX_RANK} possible", location
            )
        elif known > MAX_ELEMENTS:
            self.log.error("onnx/huge-shape", f"{what} is {type}: more elements than can exist", location)
