"""A model's interface at run time: its inputs and outputs, and whether given arrays fit them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..graph import dtypes, types
from ..graph.diagnostics import DiagnosticLog, ExecutionError, UsageError
from ..graph.dims import Dim, evaluate, is_symbol, label_of, symbols_of
from ..graph.dtypes import DType
from ..graph.evaluation import describe
from ..graph.module import Function
from ..graph.names import type_text
from ..graph.types import TensorType, Type

# So many shapes of inputs are remembered to fit.
_MOST_FITTING = 1024


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a model. `required` is False for an input that has a default (and for all outputs)."""

    name: str
    type: Type
    required: bool = True

    def __str__(self) -> str:
        return f"{self.name}: {type_text(self.type)}"


class Signature:
    """The inputs and outputs of `function`, in order; `bind` checks what a caller gives."""

    def __init__(self, function: Function) -> None:
        self.inputs = tuple(
            Port(argument.name or f"input_{index}", argument.type, argument not in function.defaults)
            for index, argument in enumerate(function.inputs)
        )
        self.outputs = tuple(
            Port(declared.name or f"output_{index}", declared.type or value.type, False)
            for index, (declared, value) in enumerate(zip(function.block.outputs, function.outputs, strict=True))
        )
        self.output_names = [port.name for port in self.outputs]
        self._all_outputs = list(range(len(self.outputs)))
        self._positions = {name: index for index, name in enumerate(self.output_names)}
        self._defaults = [function.defaults.get(argument) for argument in function.inputs]
        self._plain = _plain(self.inputs)
        # Shapes of all inputs that were found to fit, and the sizes that they give to symbolic dims.
        self._fitting: dict[tuple[tuple[int, ...], ...], dict[Dim, int]] = {}
        self.copied = 0  # arrays that were given in another byte order

    def bind(self, feeds: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[Dim, int]]:
        """The value of each input in order, and the sizes that the inputs give to symbolic dims.

        Inputs of the shapes of an earlier call mostly get the same mapping, not only an equal one.
        Raises ExecutionError naming every input that is missing, unknown, or of another type than declared, and dims
        that the model says are equal but are not.
        """
        plain = self._plain_values(feeds)
        shapes = None
        if plain is not None:
            shapes = tuple([array.shape for array in plain])
            known = self._fitting.get(shapes)
            if known is not None:
                return plain, known
        values, sizes = self._bind_with_care(feeds)
        if shapes is not None:
            if len(self._fitting) >= _MOST_FITTING:
                self._fitting.clear()
            self._fitting[shapes] = sizes
        return values, sizes

    def _bind_with_care(self, feeds: Mapping[str, Any]) -> tuple[list[Any], dict[Dim, int]]:
        log = DiagnosticLog()
        known = {port.name for port in self.inputs}
        for name in feeds:
            if name not in known:
                log.error(
                    "run/unknown-input", f"the model has no input {name!r}", None,
                    f"its inputs are {', '.join(map(str, self.inputs)) or 'none'}",
                )  # fmt: skip
        values: list[Any] = []
        dims = _Dims(log)
        for port, default in zip(self.inputs, self._defaults, strict=True):
            if port.name in feeds:
                values.append(_checked(port, feeds[port.name], dims, log))
            elif default is not None:
                values.append(_checked(port, default.numpy(), dims, log))
            else:
                values.append(None)
                if not isinstance(port.type, types.OptionalType):
                    log.error("run/missing-input", f"the input {port.name!r}: {type_text(port.type)} is not given")
        log.raise_errors(ExecutionError)
        dims.check_expressions()
        log.raise_errors(ExecutionError)
        for port, value in zip(self.inputs, values, strict=True):
            given = feeds.get(port.name)
            if isinstance(given, np.ndarray) and given.size and not np.may_share_memory(given, value):
                self.copied += 1
        return values, dims.sizes

    def _plain_values(self, feeds: Mapping[str, Any]) -> list[np.ndarray] | None:
        """The inputs in order if they are arrays of just the dtypes and all that the model has.

        Small models spend more time on checks than on computing, so this looks at no more than it must.
        """
        if self._plain is None or len(feeds) != len(self._plain):
            return None
        values = []
        for name, dtype in self._plain:
            value = feeds.get(name)
            if type(value) is not np.ndarray or (value.dtype is not dtype and value.dtype != dtype):
                return None
            values.append(value)
        return values

    def choose(self, names: Sequence[str] | None) -> Sequence[int]:
        """The positions of the outputs called `names` (None: all). Raises UsageError for an unknown name, or one that
        is in no list."""
        if names is None:
            return self._all_outputs
        if isinstance(names, str):
            raise UsageError("usage/argument", f"outputs are given as a list of names, [{names!r}], not {names!r}")
        positions = self._positions
        unknown = [name for name in names if name not in positions]
        if unknown:
            raise UsageError(
                "run/unknown-output",
                f"the model has no output {unknown[0]!r}",
                notes=[f"its outputs are {', '.join(positions)}"],
            )
        return [positions[name] for name in names]


def _plain(ports: Sequence[Port]) -> list[tuple[str, np.dtype]] | None:
    """Name and dtype of each input; None if one is no tensor of numbers."""
    found = []
    for port in ports:
        if not isinstance(port.type, TensorType) or port.type.dtype is dtypes.string:
            return None
        found.append((port.name, port.type.dtype.numpy))
    return found


class _Dims:
    """The sizes of symbolic dims as inputs give them, with the place that gave each."""

    def __init__(self, log: DiagnosticLog) -> None:
        self.log = log
        self.sizes: dict[Dim, int] = {}
        self._labels: dict[str, tuple[int, str]] = {}
        self._expressions: list[tuple[Dim, int, str]] = []

    def learn(self, dim: Dim, size: int, place: str) -> None:
        if not is_symbol(dim):
            self._expressions.append((dim, size, place))
            return
        self.sizes[dim] = size
        label = label_of(dim)
        if label.startswith("?"):
            return
        expected, first = self._labels.setdefault(label, (size, place))
        if expected != size:
            self.log.error(
                "run/dim-mismatch",
                f"the model calls two dims {label!r}, but {first} is {expected} and {place} is {size}",
            )

    def check_expressions(self) -> None:
        for dim, size, place in self._expressions:
            if any(symbol not in self.sizes for symbol in symbols_of(dim)):
                continue
            try:
                expected = evaluate(dim, self.sizes)  # type: ignore[arg-type]
            except (ValueError, ZeroDivisionError) as error:
                self.log.error("run/dim-mismatch", f"{place} is declared {dim}, which has no value: {error}")
                continue
            if expected != size:
                self.log.error("run/dim-mismatch", f"{place} is {size}, it is declared {dim}, which is {expected}")


def _checked(port: Port, value: Any, dims: _Dims, log: DiagnosticLog) -> Any:
    """`value` as the run-time value of `port`; problems go to `log`."""
    try:
        return _fit(port.type, value, f"input {port.name!r}", dims)
    except _Misfit as misfit:
        given = describe(value) if isinstance(value, np.ndarray | list) else type(value).__name__
        message = f"the input {port.name!r} must be {type_text(port.type)}, got {given}: {misfit}"
        log.error("run/input-type", message, None, *misfit.notes)
        return None


class _Misfit(Exception):
    def __init__(self, reason: str, *notes: str) -> None:
        super().__init__(reason)
        self.notes = notes


def _fit(type: Type, value: Any, place: str, dims: _Dims) -> Any:
    if isinstance(type, types.OptionalType):
        return None if value is None else _fit(type.element, value, place, dims)
    if isinstance(type, types.SequenceType):
        if not isinstance(value, list | tuple):
            raise _Misfit("a sequence is given as a list")
        # The elements of a sequence may differ in shape, so they say nothing about symbolic dims.
        return [_fit(type.element, item, place, _Dims(DiagnosticLog())) for item in value]
    if isinstance(type, types.MapType):
        if not isinstance(value, dict):
            raise _Misfit("a map is given as a dict")
        return value
    if value is None:
        raise _Misfit("it may not be left out")
    if not isinstance(type, TensorType):
        return value
    array = _as_array(value, type.dtype)
    if type.shape is None:
        return array
    if array.ndim != len(type.shape):
        raise _Misfit(f"the rank must be {len(type.shape)}, is {array.ndim}")
    for axis, (dim, size) in enumerate(zip(type.shape, array.shape, strict=True)):
        if isinstance(dim, int) and dim != size:
            raise _Misfit(f"dim {axis} must be {dim}, is {size}")
    for axis, (dim, size) in enumerate(zip(type.shape, array.shape, strict=True)):
        if not isinstance(dim, int):
            dims.learn(dim, size, f"dim {axis} of {place}")
    return array


def _as_array(value: Any, dtype: DType) -> np.ndarray:
    """An array of exactly `dtype`. Python numbers and lists take it, arrays must have it."""
    weak = isinstance(value, bool | int | float | complex | str | list | tuple)
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise _Misfit(str(error)) from None
    if dtype is dtypes.string:
        if array.dtype.kind not in "OUST" or not all(isinstance(item, str | bytes) for item in array.ravel()):
            raise _Misfit("a string tensor is given as an array of str")
        return array.astype(object)
    if weak and array.dtype.kind in "biufc" and np.can_cast(array.dtype, dtype.numpy, "same_kind"):
        return array.astype(dtype.numpy)
    if weak and array.size == 0:
        return array.astype(dtype.numpy)
    try:
        given = dtypes.from_numpy(array.dtype)
    except TypeError as error:
        raise _Misfit(str(error)) from None
    if given is not dtype:
        raise _Misfit(f"the dtype must be {dtype}, is {given}", f"convert it with .astype({_spelling(dtype)})")
    return np.asarray(array, dtype.numpy)  # native byte order


def _spelling(dtype: DType) -> str:
    module = "ml_dtypes" if dtype.numpy.type.__module__.startswith("ml_dtypes") else "numpy"
    return f"{module}.{dtype.numpy.name}"
