"""Resampling: along two dims, every element of the result is a weighted sum of a few elements of the operand.

Which elements and weights is said by tables, one for each dim, made when sizes are known (`taps_of`), so one kernel
serves every mode and coordinate system. A dim that stays as it is has a table with one tap. A unit of work is one row
of the result. Vectors lie along `channels` if these are contiguous; else along a row, which is first made from rows of
the operand, in scratch memory, and then gathered from there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....graph import types
from ....graph.core import Value
from ....graph.dtypes import DType, f32, f64, i64
from ....graph.kernel.loop_builder import Operand
from ....graph.module import Module
from ..machine import Machine
from .move import moved_as
from .strided import Size, StridedBuilder, argument_names

# Lanes of a vector, at most.
_WIDEST = 16


@dataclass(frozen=True)
class Taps:
    """`index[t, i]` and `weight[t, i]`: what tap t of result i reads, and how much of it counts."""

    index: np.ndarray
    weight: np.ndarray

    @property
    def count(self) -> int:
        return int(self.index.shape[0])

    @property
    def copies(self) -> bool:
        """Whether each result is one element as it is."""
        return self.count == 1 and bool((self.weight == 1).all())


def taps_of(matrix: np.ndarray) -> Taps:
    """The taps of a matrix [result, operand] of weights, most of which are 0."""
    count = max(1, int((matrix != 0).sum(axis=1).max(initial=1)))
    # Elements with a weight come first, in order; the others fill up with weight 0.
    order = np.argsort(matrix == 0, axis=1, kind="stable")[:, :count]
    weights = np.take_along_axis(matrix, order, axis=1)
    return Taps(np.ascontiguousarray(order.T.astype(np.int64)), np.ascontiguousarray(weights.T.astype(np.float32)))


def same(size: int) -> Taps:
    """The taps of a dim that stays as it is."""
    return Taps(np.arange(size, dtype=np.int64)[None], np.ones((1, size), np.float32))


@dataclass(frozen=True)
class Resample:
    """Strides of x and y are along the outer dims, rows, columns and (if `channels` is not 0) channels, the last 1.

    `row_taps` and `column_taps` are how many; `copies` says that there is one each, of weight 1, so that elements are
    moved as bits. `source_columns` is the length of a row of x. Sums are in f32 (f64 for f64), cut to whole numbers for
    integers.
    """

    dtype: DType
    outer: tuple[Size, ...]
    rows: Size
    columns: Size
    source_columns: Size
    channels: Size
    x: tuple[Size, ...]
    y: tuple[Size, ...]
    row_taps: int
    column_taps: int
    copies: bool = False


def resample_sizes(kernel: Resample) -> dict[str, Size]:
    """Extents and strides by name; those that are None are arguments of the kernel."""
    sizes: dict[str, Size] = {f"outer{axis}": extent for axis, extent in enumerate(kernel.outer)}
    sizes |= {"rows": kernel.rows, "columns": kernel.columns, "source_columns": kernel.source_columns}
    if kernel.channels != 0:
        sizes["channels"] = kernel.channels
    for name, strides in (("x", kernel.x), ("y", kernel.y)):
        sizes |= {f"{name}_outer{axis}": stride for axis, stride in enumerate(strides)}
    return sizes


def resample_buffers(kernel: Resample) -> dict[str, DType]:
    """y, x, the tables of rows and columns, and scratch memory: a row of x for each thread, of computed numbers."""
    dtype, wide = (moved_as(kernel.dtype) if kernel.copies else kernel.dtype), computed(kernel)
    return {
        "y": dtype, "x": dtype, "row_index": i64, "row_weight": f32, "column_index": i64, "column_weight": f32,
        "scratch": wide,
    }  # fmt: skip


def resample_arguments(kernel: Resample) -> list[str]:
    """The names of the kernel's arguments, in order."""
    return argument_names(list(resample_buffers(kernel)), resample_sizes(kernel))


def resample_scratch(source_columns: int) -> int:
    """Elements of scratch memory for each thread: a row of x, in whole vectors of the widest kind."""
    return -(-source_columns // _WIDEST) * _WIDEST


def resample_units(outer: Sequence[int], rows: int) -> int:
    """How many units of work there are for these extents."""
    return math.prod(outer) * rows


def computed(kernel: Resample) -> DType:
    """What sums are computed in."""
    if kernel.copies:
        return moved_as(kernel.dtype)
    return f64 if kernel.dtype is f64 else f32


def build_resample(name: str, kernel: Resample, machine: Machine) -> Module:
    """The kernel as a module of the level "loop"; see `resample_arguments` for what it takes."""
    builder = _ResampleBuilder(name, kernel, machine)
    builder.units()
    return builder.b.module()


class _ResampleBuilder(StridedBuilder):
    def __init__(self, name: str, kernel: Resample, machine: Machine) -> None:
        self.wide = computed(kernel)
        super().__init__(name, machine, resample_buffers(kernel), resample_sizes(kernel), self.wide)
        self.lanes = min(_WIDEST, self.lanes)
        self.kernel = kernel
        self.dims = [f"outer{axis}" for axis in range(len(kernel.outer))]

    def units(self) -> None:
        b, rank = self.b, len(self.dims)
        rows = self.size("rows")
        own = b.mul(b.div(b.add(self.size("source_columns"), _WIDEST - 1), _WIDEST), _WIDEST)
        self.scratch = b.view(b["scratch"], b.mul(b["thread"], own)) if self.uses_scratch else b["scratch"]
        with b.loop(b["begin"], b["end"]) as unit:
            row = b.rem(unit, rows)
            indices = self.unravel(b.div(unit, rows), self.dims)
            y = self.place("y", "outer", [*indices, row])
            x = self.place("x", "outer", indices)
            starts = [
                b.add(x, b.mul(b.load(b["row_index"], b.add(b.mul(tap, rows), row)), self.stride("x", "outer", rank)))
                for tap in range(self.kernel.row_taps)
            ]
            weights = [self.weight("row", b.add(b.mul(tap, rows), row)) for tap in range(self.kernel.row_taps)]
            if self.kernel.channels != 0:
                self.row_of_channels(y, starts, weights)
            else:
                self.row(y, starts, weights)

    @property
    def uses_scratch(self) -> bool:
        return not self.kernel.copies and self.kernel.channels == 0

    def weight(self, table: str, place: Operand) -> Value | None:
        """One number of a table of weights; None if all are 1."""
        if self.kernel.copies:
            return None
        return self.b.cast(self.b.load(self.b[f"{table}_weight"], place), self.wide)

    def weighted(self, terms: Sequence[tuple[Value | None, Value]]) -> Value:
        """The sum of weights times vectors."""
        b = self.b
        total: Value | None = None
        for weight, value in terms:
            if weight is None:
                return value
            total = b.mul(value, weight) if total is None else b.fma(value, b.value(weight, value.type), total)
        assert total is not None
        return total

    def numbers(self, value: Value) -> Value:
        return value if self.kernel.copies else self.b.cast(value, self.wide)

    def row_of_channels(self, y: Operand, starts: Sequence[Operand], weights: Sequence[Value | None]) -> None:
        b, rank, kernel = self.b, len(self.dims), self.kernel
        columns, channels = self.size("columns"), self.size("channels")
        with b.loop(0, columns) as column:
            places, factors = [], []
            for tap in range(kernel.column_taps):
                at = b.add(b.mul(tap, columns), column)
                ahead = b.mul(b.load(b["column_index"], at), self.stride("x", "outer", rank + 1))
                own = self.weight("column", at)
                for start, weight in zip(starts, weights, strict=True):
                    places.append(b.add(start, ahead))
                    factors.append(None if own is None or weight is None else b.mul(own, weight))
            target = b.add(y, b.mul(column, self.stride("y", "outer", rank + 1)))

            def vector(i: Operand, mask: Value | None, places: Sequence[Operand] = places,
                       factors: Sequence[Value | None] = factors, target: Operand = target) -> None:  # fmt: skip
                terms = [
                    (factor, self.numbers(self.load("x", b.add(place, i), 1, mask)))
                    for place, factor in zip(places, factors, strict=True)
                ]
                self.put(self.weighted(terms), b.add(target, i), 1, mask)

            self.vectors(channels, vector)

    def row(self, y: Operand, starts: Sequence[Operand], weights: Sequence[Value | None]) -> None:
        b, rank, kernel = self.b, len(self.dims), self.kernel
        columns = self.size("columns")
        step, pitch = self.stride("x", "outer", rank + 1), self.stride("y", "outer", rank + 1)

        def mix(i: Operand, mask: Value | None) -> None:
            terms = [
                (weight, self.numbers(self.load("x", b.add(start, b.mul(i, step)), step, mask)))
                for start, weight in zip(starts, weights, strict=True)
            ]
            b.store(self.weighted(terms), self.scratch, i, mask)

        def pick(i: Operand, mask: Value | None) -> None:
            terms: list[tuple[Value | None, Value]] = []
            for tap in range(kernel.column_taps):
                at = b.add(b.mul(tap, columns), i)
                index = b.load(b["column_index"], at, self.lanes, mask)
                if kernel.copies:
                    terms.append((None, b.gather(b["x"], b.add(b.mul(index, step), starts[0]), mask)))
                else:
                    weight = b.cast(b.load(b["column_weight"], at, self.lanes, mask), self.wide)
                    terms.append((weight, b.gather(self.scratch, index, mask)))
            self.put(self.weighted(terms), b.add(y, b.mul(i, pitch)), pitch, mask)

        if not kernel.copies:
            self.vectors(self.size("source_columns"), mix)
        self.vectors(columns, pick)

    def put(self, value: Value, place: Operand, stride: Operand, mask: Value | None) -> None:
        """Store a vector of results."""
        b = self.b
        buffer = b["y"]
        assert isinstance(buffer.type, types.BufferType)
        self.store(
            b.cast(value, buffer.type.dtype) if buffer.type.dtype.is_integer else value, "y", place, stride, mask
        )

    def vectors(self, length: Operand, body: object) -> None:
        """`body(place, mask)` for each vector of `length` elements."""
        b = self.b
        assert callable(body)
        whole = b.mul(b.div(length, self.lanes), self.lanes)
        with b.loop(0, whole, self.lanes) as i:
            body(i, None)
        with b.loop(whole, length, self.lanes) as i:
            body(i, b.tail_mask(b.index(b.sub(length, i)), self.lanes))
