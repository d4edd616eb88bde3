"""Finding the numbers of constants that IR text only refers to by hash."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from .core import AttributeValue
from .data import MappedData, MappedFile, TensorData, UnresolvedData
from .diagnostics import require
from .dtypes import DType, string
from .module import Module
from .types import TensorType, tensor

Weights: TypeAlias = "str | os.PathLike[str] | Module | WeightSource | None"


@dataclass(frozen=True, slots=True)
class WeightEntry:
    """What the weights section says about one large constant."""

    dtype: DType
    shape: tuple[int, ...]
    sha256: str
    file: str = ""
    offset: int = 0

    def matches(self, data: TensorData) -> bool:
        """Whether `data` is this constant. Hashes it only if dtype and shape agree."""
        return data.dtype is self.dtype and data.shape == self.shape and data.sha256 == self.sha256


class WeightSource(Protocol):
    def find(self, entry: WeightEntry) -> TensorData | None:
        """The constant of this hash, or None if it is not here."""


def weight_source(weights: Weights) -> WeightSource:
    """Where to look: a module's constants, a folder's files, a source of one's own, or nowhere."""
    if weights is None:
        return _Nowhere()
    if isinstance(weights, Module):
        return _ModuleWeights(weights)
    if isinstance(weights, str | os.PathLike):
        return _FolderWeights(Path(weights))
    if not hasattr(weights, "find"):
        require("weights", weights, (Module, str, os.PathLike), "a Module or a folder")
    return weights


class _Nowhere:
    def find(self, entry: WeightEntry) -> TensorData | None:
        return None


class _ModuleWeights:
    """The constants of another module, by dtype and shape, so that only candidates are hashed."""

    def __init__(self, module: Module) -> None:
        self.constants: dict[TensorType, dict[TensorData, None]] = {}
        for function in module.all_functions():
            for data in function.defaults.values():
                self._add(data)
        for op in module.walk():
            for value in op.attributes.values():
                self._add(value)

    def _add(self, value: AttributeValue) -> None:
        if isinstance(value, tuple):
            for item in value:
                self._add(item)
        elif isinstance(value, TensorData):
            self.constants.setdefault(value.type, {})[value] = None

    def find(self, entry: WeightEntry) -> TensorData | None:
        candidates = self.constants.get(tensor(entry.dtype, entry.shape), {})
        return next((data for data in candidates if entry.matches(data)), None)


class _FolderWeights:
    """Files of a folder: the model file the text names, at its offset, else `<sha256>.bin` with the raw elements."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, entry: WeightEntry) -> TensorData | None:
        if entry.dtype is string:
            return None
        found = self._read(entry, entry.file, entry.offset) if entry.file else None
        return found or self._read(entry, f"{entry.sha256}.bin", 0)

    def _read(self, entry: WeightEntry, name: str, offset: int) -> TensorData | None:
        length = UnresolvedData(entry.dtype, entry.shape, entry.sha256).nbytes
        # A name with a folder in it never came from the printer; it shall not lead out of this folder.
        if name != os.path.basename(name) or not (self.folder / name).is_file():
            return None
        file = MappedFile.open(self.folder / name)
        if offset + length > file.size:
            return None
        data = MappedData(file, offset, length, entry.dtype, entry.shape)
        return data if entry.matches(data) else None
