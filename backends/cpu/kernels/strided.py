"""Tensors as kernels see them: a buffer and strides, with each size a number or an argument of the kernel.

Kernels that combine elements see a tensor as rows. The `outer` dims number the rows, the `row` dims number the elements
of each; a reduction combines the elements of every row, a softmax works on one row at a time. Vectors lie along the
last dim of a row ("row"), or along the last of the outer dims, so that each lane has a row of its own ("column").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from ....graph import types
from ....graph.core import Value
from ....graph.dtypes import DType, i64
from ....graph.kernel.loop_builder import LoopBuilder, Operand
from ....graph.kernel.scalar_emitter import computed_in
from ..machine import Machine

# A size or stride: a number, or None for one that the kernel is told when it runs.
Size: TypeAlias = "int | None"
# Builds a function of numbers, in lanes or alone: from values to values.
Body: TypeAlias = Callable[[LoopBuilder, Sequence[Value]], Sequence[Any]]
Along: TypeAlias = Literal["row", "column"]

WORK = ("begin", "end", "thread")


@dataclass(frozen=True)
class View:
    """An operand or a result: its strides, in elements, along the outer dims and along those of a row."""

    dtype: DType
    outer: tuple[Size, ...]
    row: tuple[Size, ...] = ()


def zero_or_one(number: int) -> Size:
    """A stride that decides how elements are read, as a number; None for another one, which a kernel is told."""
    return 0 if number == 0 else 1 if number == 1 else None


def stride_sizes(numbers: Sequence[int], static: bool) -> tuple[Size, ...]:
    """Strides as a kernel knows them: all as numbers, or only those that decide how elements are read."""
    return tuple(number if static else zero_or_one(number) for number in numbers)


def view_sizes(name: str, view: View) -> dict[str, Size]:
    """The strides of a view by their names: `x0_outer1`, `x0_row0`."""
    sizes = {f"{name}_outer{axis}": stride for axis, stride in enumerate(view.outer)}
    return sizes | {f"{name}_row{axis}": stride for axis, stride in enumerate(view.row)}


def extent_sizes(outer: Sequence[Size], row: Sequence[Size]) -> dict[str, Size]:
    """The extents by their names: `outer0`, `row0`."""
    sizes = {f"outer{axis}": extent for axis, extent in enumerate(outer)}
    return sizes | {f"row{axis}": extent for axis, extent in enumerate(row)}


def argument_names(buffers: Sequence[str], sizes: Mapping[str, Size]) -> list[str]:
    """The names of a kernel's arguments, in order: buffers, the sizes that it does not know, and the work to do."""
    return [*buffers, *(name for name, size in sizes.items() if size is None), *WORK]


def joined(extents: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Extents and, for each tensor, strides, with neighbouring dims joined where all tensors go on evenly.

    Dims of size 1 are dropped; a stride is 0 where a tensor is broadcast.
    """
    kept: list[int] = []
    columns: list[list[int]] = []
    for axis, size in enumerate(extents):
        steps = [tensor[axis] for tensor in strides]
        if size == 1:
            continue
        if kept and all(outer == size * step for outer, step in zip(columns[-1], steps, strict=True)):
            kept[-1] *= size
            columns[-1] = steps
        else:
            kept.append(size)
            columns.append(steps)
    return tuple(kept), [tuple(column[index] for column in columns) for index in range(len(strides))]


class StridedBuilder:
    """What generators of kernels over strided tensors share: sizes by name, places, loads and stores in lanes."""

    def __init__(
        self, name: str, machine: Machine, buffers: Mapping[str, DType], sizes: Mapping[str, Size], widest: DType
    ) -> None:
        self.machine, self.sizes = machine, sizes
        self.lanes = machine.lanes(widest)
        self.b = LoopBuilder(name, **{
            argument: types.buffer(buffers[argument]) if argument in buffers else types.scalar(i64)
            for argument in argument_names(list(buffers), sizes)
        })  # fmt: skip

    def size(self, name: str) -> Operand:
        """A size by name: the number, if it is known."""
        known = self.sizes[name]
        return self.b[name] if known is None else known

    def stride(self, name: str, part: str, axis: int) -> Operand:
        return self.size(f"{name}_{part}{axis}")

    def product(self, names: Sequence[str]) -> Operand:
        total: Operand = 1
        for name in names:
            total = self.b.mul(total, self.size(name))
        return total

    def unravel(self, index: Operand, extents: Sequence[str]) -> list[Operand]:
        """The position along each dim of the element that `index` counts, the last dim fastest."""
        b = self.b
        found: list[Operand] = []
        for position in reversed(range(len(extents))):
            extent = self.size(extents[position])
            found.append(b.rem(index, extent) if position else index)
            index = b.div(index, extent) if position else 0
        return found[::-1]

    def place(self, name: str, part: str, indices: Sequence[Operand]) -> Operand:
        """How far into the tensor `name` the element at `indices` of the dims of `part` lies."""
        total: Operand = 0
        for axis, index in enumerate(indices):
            total = self.b.add(total, self.b.mul(index, self.stride(name, part, axis)))
        return total

    def load(self, name: str, place: Operand, stride: Operand, mask: Value | None = None) -> Value:
        """A vector of the elements at `place`, `place + stride`, ..., as they are computed with."""
        b, buffer = self.b, self.b[name]
        if not isinstance(stride, Value) and stride == 1:
            return self.widened(b.load(buffer, place, self.lanes, mask))
        if not isinstance(stride, Value) and stride == 0:
            return b.broadcast(self.widened(b.load(buffer, place)), self.lanes)
        if not isinstance(stride, Value) and self.lanes > 1 and (stride == 2 or (stride == -1 and mask is None)):
            return self.widened(self.shuffled(buffer, place, int(stride), mask))
        indices = b.add(b.mul(b.iota(self.lanes), stride), place)
        return self.widened(b.gather(buffer, indices, mask))

    def shuffled(self, buffer: Value, place: Operand, stride: int, mask: Value | None = None) -> Value:
        """A vector of every second element, or of the elements in front of each other: several times as fast as a
        gather. Nothing is read but what lies between the first and the last one."""
        b, lanes = self.b, self.lanes
        if stride == -1:
            vector = b.load(buffer, b.sub(place, lanes - 1), lanes)
            return b.shuffle(vector, vector, range(lanes)[::-1])
        low, high = (
            b.load(buffer, b.add(place, start), lanes, None if mask is None else self.spread(mask, start))
            for start in (0, lanes - 1)
        )
        return b.shuffle(low, high, [i if i < lanes else i + 1 for i in range(0, 2 * lanes, 2)])

    def spread(self, mask: Value, start: int) -> Value:
        """The mask of the elements from `start` on, where those of a vector are every second one from 0 on."""
        b, lanes = self.b, range(start, start + self.lanes)
        is_even = b.eq(b.rem(b.add(b.iota(self.lanes), start), 2), 0)
        return b.and_(b.shuffle(mask, mask, [lane // 2 for lane in lanes]), is_even)

    def store(self, value: Any, name: str, place: Operand, stride: Operand, mask: Value | None = None) -> None:
        """Put a vector at `place`, `place + stride`, ..., as the buffer's dtype."""
        b, buffer = self.b, self.b[name]
        assert isinstance(buffer.type, types.BufferType)
        dtype = buffer.type.dtype
        stored = b.cast(b.value(value, types.vector(computed_in(dtype), self.lanes)), dtype)
        if not isinstance(stride, Value) and stride == 1:
            b.store(stored, buffer, place, mask)
        else:
            b.scatter(stored, buffer, b.add(b.mul(b.iota(self.lanes), stride), place), mask)

    def store_one(self, value: Any, name: str, place: Operand) -> None:
        """Put one number at `place`, as the buffer's dtype."""
        b, buffer = self.b, self.b[name]
        assert isinstance(buffer.type, types.BufferType)
        dtype = buffer.type.dtype
        b.store(b.cast(b.value(value, types.scalar(computed_in(dtype))), dtype), buffer, place)

    def column_block(self, unit: Operand, outers: Sequence[str], width: int) -> tuple[list[Operand], Operand]:
        """The block of `width` columns that is a unit of work: where it begins, and how many columns are left there."""
        b, columns = self.b, self.size(outers[-1])
        blocks = b.div(b.add(columns, width - 1), width)
        column = b.mul(b.rem(unit, blocks), width)
        return [*self.unravel(b.div(unit, blocks), outers[:-1]), column], b.sub(columns, column)

    def with_masks(self, rest: Operand, vectors: int, work: Callable[[Sequence[Value | None]], None]) -> None:
        """`work` on so many vectors of columns, with masks if the `rest` of the columns does not fill them."""
        b = self.b
        masks = [b.tail_mask(b.index(b.sub(rest, v * self.lanes)), self.lanes) for v in range(vectors)]
        b.branch(b.le(vectors * self.lanes, rest), lambda: work([None] * vectors), lambda: work(masks))

    def widened(self, value: Value) -> Value:
        assert isinstance(value.type, types.ScalarType | types.VectorType)
        return self.b.cast(value, computed_in(value.type.dtype))

    def nest(
        self,
        extents: Sequence[str],
        names: Sequence[str],
        places: Sequence[Operand],
        carried: Sequence[Value],
        body: Callable[[list[Operand], list[Value]], Sequence[Value]],
        bounds: tuple[Operand, Operand] | None = None,
    ) -> list[Value]:
        """Loops over the row dims `extents`, innermost last: `body(places, carried)` gives what is carried on.

        `places` are those of the tensors `names`; `bounds` are of the first loop (default: all of it).
        """
        b = self.b

        def level(axis: int, here: list[Operand], values: list[Value]) -> list[Value]:
            if axis == len(extents):
                return list(body(here, values))
            begin, end = bounds if bounds is not None and axis == 0 else (0, self.size(extents[axis]))
            with b.loop(begin, end, 1, values) as state:
                index = state.index if values else state
                inner = [
                    b.add(place, b.mul(index, self.stride(name, "row", axis)))
                    for name, place in zip(names, here, strict=True)
                ]
                following = level(axis + 1, inner, list(state.values) if values else [])
                if values:
                    state.yields(following)
            return list(state.results) if values else []

        return level(0, list(places), list(carried))


def column_vectors(outer: Sequence[Size], lanes: int, most: int) -> int:
    """How many vectors of columns a block has: `most`, unless there are fewer columns."""
    columns = outer[-1] if outer else 1
    return most if columns is None else max(1, min(most, -(-columns // lanes)))


def column_units(outer: Sequence[int], width: int) -> int:
    """How many blocks of `width` columns there are."""
    return math.prod(outer[:-1]) * -(-outer[-1] // width)


def widest_of(dtypes: Sequence[DType]) -> DType:
    """The dtype with the widest numbers as they are computed with, which decides how many lanes there are."""
    return max((computed_in(dtype) for dtype in dtypes), key=lambda dtype: dtype.bits)


def lowest(dtype: DType) -> float | int:
    """Below every number: -infinity, or the least integer."""
    return -float("inf") if dtype.is_float else int(np.iinfo(dtype.numpy).min)


def highest(dtype: DType) -> float | int:
    """Above every number: infinity, or the greatest integer."""
    return float("inf") if dtype.is_float else int(np.iinfo(dtype.numpy).max)


@dataclass(frozen=True)
class Rows:
    """Tensors' dims split for a kernel: extents, and for each tensor its strides, joined and in order of memory.

    The first tensor is the one that decided on the order; `views` and `numbers` are about those after it.
    """

    outer: tuple[int, ...]
    row: tuple[int, ...]
    outer_strides: list[tuple[int, ...]]
    row_strides: list[tuple[int, ...]]
    along: Along

    @property
    def row_length(self) -> int:
        return math.prod(self.row)

    def views(self, dtypes: Sequence[DType], static: bool) -> list[View]:
        """The tensors as kernels see them."""
        return [
            View(dtype, stride_sizes(outer, static), stride_sizes(row, static))
            for dtype, outer, row in zip(dtypes, self.outer_strides[1:], self.row_strides[1:], strict=True)
        ]

    def numbers(self, names: Sequence[str]) -> dict[str, int]:
        """Extents, and the strides of the tensors `names`, by the names that kernels have for them."""
        found = {f"outer{axis}": extent for axis, extent in enumerate(self.outer)}
        found |= {f"row{axis}": extent for axis, extent in enumerate(self.row)}
        for name, outer, row in zip(names, self.outer_strides[1:], self.row_strides[1:], strict=True):
            found |= {f"{name}_outer{axis}": stride for axis, stride in enumerate(outer)}
            found |= {f"{name}_row{axis}": stride for axis, stride in enumerate(row)}
        return found


def split_rows(shape: Sequence[int], axes: Sequence[int], strides: Sequence[Sequence[int]]) -> Rows:
    """How a kernel sees tensors over `shape` whose rows are the elements along `axes`.

    `strides` has one line for each tensor, with 0 where it is broadcast (and along `axes`, for one that has one element
    for each row). The first tensor decides the order of dims and along which of them vectors lie.
    """
    main = strides[0]

    def part(chosen: list[int]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
        chosen.sort(key=lambda axis: -abs(main[axis]))
        return joined([shape[axis] for axis in chosen], [[tensor[axis] for axis in chosen] for tensor in strides])

    row, row_strides = part(list(axes))
    outer, outer_strides = part([axis for axis in range(len(shape)) if axis not in axes])
    if not row:
        row, row_strides = (1,), [(1,)] * len(strides)
    inner, beside = row_strides[0][-1], outer_strides[0][-1] if outer else 0
    if inner == 1 or not outer:
        along: Along = "row"
    else:
        along = "column" if beside == 1 or outer[-1] > row[-1] else "row"
    return Rows(outer, row, outer_strides, row_strides, along)
