"""Batches to train on: from arrays, or from any iterable, through steps that can be put together.

    data = Dataset({"x": images, "target": labels}).shuffle(seed=0).batch(64).augment(flip, seed=0)
    for batch in data.epoch(3):                      # {"x": ..., "target": ...}
        ...

What an epoch brings depends on its number and the seeds alone, so that training can be resumed anywhere.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from itertools import islice
from typing import Any, TypeAlias

import numpy as np

from ...graph.diagnostics import UsageError
from ...graph.paths import check_source

Batch: TypeAlias = dict[str, np.ndarray]
Augmentation: TypeAlias = Callable[[Batch, np.random.Generator], Mapping[str, np.ndarray]]


class Batches:
    """Base: `epoch(n)` gives the batches of epoch n; further steps wrap this one."""

    def epoch(self, number: int) -> Iterator[Batch]:
        raise NotImplementedError

    def __len__(self) -> int:
        """How many batches an epoch has. Raises TypeError where that is not known."""
        raise TypeError("the number of batches is not known")

    def map(self, function: Callable[[Batch], Mapping[str, np.ndarray]]) -> Batches:
        """Each batch through `function`."""
        return _Mapped(self, wraps(function)(lambda batch, random: function(batch)), None)

    def augment(self, function: Augmentation, seed: int = 0) -> Batches:
        """Each batch through `function(batch, random)`, whose generator depends on seed, epoch and batch."""
        return _Mapped(self, function, seed)

    def take(self, count: int) -> Batches:
        """The first `count` batches of each epoch."""
        return _First(self, count)


@dataclass(frozen=True)
class _Mapped(Batches):
    source: Batches
    function: Augmentation
    seed: int | None

    def __len__(self) -> int:
        return len(self.source)

    def epoch(self, number: int) -> Iterator[Batch]:
        for index, batch in enumerate(self.source.epoch(number)):
            key = [0] if self.seed is None else [self.seed, number, index]
            found = self.function(batch, np.random.default_rng(key))
            if not isinstance(found, Mapping):
                made = getattr(self.function, "__name__", "the function")
                raise UsageError("data/map", f"{made} has to give a dict of arrays, not {type(found).__name__}")
            yield dict(found)


@dataclass(frozen=True)
class _First(Batches):
    source: Batches
    count: int

    def __len__(self) -> int:
        return min(self.count, len(self.source))

    def epoch(self, number: int) -> Iterator[Batch]:
        return islice(self.source.epoch(number), self.count)


class Dataset:
    """Arrays of examples: the first axis of each counts them. Raises UsageError if they are not equally long."""

    def __init__(self, arrays: Mapping[str, Any], order_seed: int | None = None) -> None:
        self.arrays = {name: np.asarray(array) for name, array in arrays.items()}
        lengths = {name: len(array) if array.ndim else None for name, array in self.arrays.items()}
        if not lengths:
            raise UsageError("data/length", "there are no arrays")
        if len(set(lengths.values())) > 1 or None in lengths.values():
            raise UsageError("data/length", f"all arrays need equally many examples, they have {lengths}")
        self.order_seed = order_seed

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Dataset:
        """The arrays of a .npz file. Raises UsageError for another kind of file, OSError."""
        check_source(path)
        try:
            with np.load(path, allow_pickle=False) as file:
                return cls({name: file[name] for name in file.files})
        except (zipfile.BadZipFile, ValueError, EOFError, AttributeError, TypeError):
            # numpy's own words may advise to allow pickles, which run whatever code is in them.
            hint = "numpy.savez writes one: numpy.savez(path, x=..., target=...), of arrays without Python objects"
            raise UsageError("data/file", f"{path} is no .npz file of arrays", notes=[hint]) from None

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def shuffle(self, seed: int = 0) -> Dataset:
        """The same examples in another order in each epoch."""
        return Dataset(self.arrays, seed)

    def batch(self, size: int, drop_last: bool = False) -> Batches:
        """Runs of `size` examples; the last one may be shorter, or is left out with `drop_last`."""
        if size < 1:
            raise UsageError("data/batch", f"a batch has at least 1 example, not {size}")
        if drop_last and size > len(self):
            raise UsageError("data/batch", f"{len(self)} examples do not fill a batch of {size}")
        return _ArrayBatches(self, size, drop_last)

    def split(self, fraction: float, seed: int = 0) -> tuple[Dataset, Dataset]:
        """Two data sets with `1 - fraction` and `fraction` of the examples, drawn by `seed`."""
        second = round(len(self) * fraction)
        if not 0 < second < len(self):
            raise UsageError("data/split", f"a fraction of {fraction} of {len(self)} examples leaves one side empty")
        order = np.random.default_rng(seed).permutation(len(self))
        chosen = np.sort(order[second:]), np.sort(order[:second])
        first, other = ({name: array[rows] for name, array in self.arrays.items()} for rows in chosen)
        return Dataset(first, self.order_seed), Dataset(other)

    def order(self, epoch: int) -> np.ndarray:
        if self.order_seed is None:
            return np.arange(len(self))
        return np.random.default_rng([self.order_seed, epoch]).permutation(len(self))


@dataclass(frozen=True)
class _ArrayBatches(Batches):
    data: Dataset
    size: int
    drop_last: bool

    def __len__(self) -> int:
        return len(self.data) // self.size if self.drop_last else -(-len(self.data) // self.size)

    def epoch(self, number: int) -> Iterator[Batch]:
        order = self.data.order(number)
        for index in range(len(self)):
            rows = order[index * self.size : (index + 1) * self.size]
            yield {name: array[rows] for name, array in self.data.arrays.items()}


@dataclass(frozen=True)
class IterableBatches(Batches):
    """Batches from any iterable that can be started again: a list, an object with `__iter__`, a torch DataLoader; or
    from a function that gives the iterator of an epoch. Items are dicts, or tuples that `names` names; tensors of other
    libraries become arrays."""

    source: Iterable[Any] | Callable[[int], Iterable[Any]]
    names: Sequence[str] = ("x", "target")

    def __len__(self) -> int:
        if callable(self.source) or not hasattr(self.source, "__len__"):
            return super().__len__()
        return len(self.source)  # type: ignore[arg-type]

    def epoch(self, number: int) -> Iterator[Batch]:
        items = self.source(number) if callable(self.source) else self.source
        if isinstance(items, Iterator) and not callable(self.source):
            raise UsageError(
                "data/iterator", "an iterator ends after one epoch; give a list or a function of the epoch"
            )
        for item in items:
            yield self._batch(item)

    def _batch(self, item: Any) -> Batch:
        if isinstance(item, Mapping):
            return {name: np.asarray(value) for name, value in item.items()}
        parts = item if isinstance(item, tuple | list) else (item,)
        if len(parts) != len(self.names):
            raise UsageError("data/names", f"a batch has {len(parts)} parts, {len(self.names)} names are given")
        return {name: np.asarray(part) for name, part in zip(self.names, parts, strict=True)}


def as_batches(data: Any, names: Sequence[str] = ("x", "target")) -> Batches:
    """`data` as it is if it is Batches, else what `IterableBatches` makes of it."""
    if isinstance(data, Batches):
        return data
    if isinstance(data, Dataset):
        raise UsageError("data/batch", "a Dataset is cut into batches first: data.batch(32)")
    if isinstance(data, Mapping | np.ndarray | str) or not (callable(data) or hasattr(data, "__iter__")):
        hint = 'Dataset({"x": ..., "target": ...}).batch(32), or a list of such dicts'
        raise UsageError("data/batch", f"batches are needed, not {type(data).__name__}", notes=[hint])
    return replace(IterableBatches(data), names=tuple(names))
