"""Copies between strided tensors: transposing, concatenating, slicing, padding and filling are all this.

Numbers are moved as bits, so a kernel's buffers hold unsigned integers of the dtype's width (`moved_as`). Where source
and target are contiguous along the same dim, rows are copied; where they are along different dims, squares of vectors
are turned in registers; else elements are gathered or scattered. A stride may be 0 in the source (to fill or broadcast)
and negative in either. `ordered` brings a copy into the form that the kernel wants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ....graph.core import Value
from ....graph.dtypes import DType, u8, u16, u32, u64
from ....graph.kernel.loop_builder import Operand
from ....graph.module import Module
from ..machine import Machine
from .pack import transposed
from .strided import Size, StridedBuilder, argument_names, zero_or_one

# Elements of a unit of work, about.
_GRAIN = 1 << 14
# Vectors of the source's contiguous dim that a unit turns.
_ACROSS = 2
# Squares are asked for so many squares before they are read, since each of their rows is in a page of its own.
_AHEAD = 1


def moved_as(dtype: DType) -> DType:
    """The unsigned integer that has as many bits in memory."""
    return {8: u8, 16: u16, 32: u32, 64: u64}[max(8, dtype.bits)]


@dataclass(frozen=True)
class Copy:
    """Dims are in the order of the target's memory, the last one innermost. `turned` is the dim along which the source
    is contiguous, if the target is so along the last one and squares are to be turned; else None.

    Element 0 lies at `source_start` and `target_start`, arguments of the kernel.
    """

    dtype: DType
    extents: tuple[Size, ...]
    source: tuple[Size, ...]
    target: tuple[Size, ...]
    turned: int | None = None


@dataclass(frozen=True)
class Ordered:
    """A copy with dims joined and ordered, in numbers."""

    extents: tuple[int, ...]
    source: tuple[int, ...]
    target: tuple[int, ...]
    turned: int | None

    def of(self, dtype: DType, static: bool = True) -> Copy:
        """The kernel for it; one that is not static takes extents and strides as arguments, but those of 0 and 1."""
        if static:
            return Copy(dtype, self.extents, self.source, self.target, self.turned)
        source, target = (tuple(map(zero_or_one, part)) for part in (self.source, self.target))
        return Copy(dtype, (None,) * len(self.extents), source, target, self.turned)


def ordered(shape: Sequence[int], source: Sequence[int], target: Sequence[int]) -> Ordered:
    """How to copy `shape` elements from one layout to another."""
    axes = sorted((axis for axis in range(len(shape)) if shape[axis] != 1), key=lambda axis: -abs(target[axis]))
    dims: list[list[int]] = []
    for axis in axes:
        size, give, take = shape[axis], source[axis], target[axis]
        if dims and dims[-1][1] == size * give and dims[-1][2] == size * take:
            dims[-1] = [dims[-1][0] * size, give, take]
        else:
            dims.append([size, give, take])
    dims = dims or [[1, 1, 1]]
    turned = None
    inner = dims[-1]
    if inner[1] not in (0, 1):
        contiguous = [index for index, dim in enumerate(dims[:-1]) if dim[1] == 1]
        if contiguous:
            (index,) = contiguous[-1:]
            if inner[2] == 1 and min(inner[0], dims[index][0]) >= 4:
                turned = index
            elif dims[index][0] > inner[0]:
                # One side is too short for squares: vectors lie along the other.
                dims.append(dims.pop(index))
    columns = [tuple(dim[part] for dim in dims) for part in range(3)]
    return Ordered(columns[0], columns[1], columns[2], turned)


def copy_sizes(kernel: Copy) -> dict[str, Size]:
    """Extents and strides by name; those that are None are arguments of the kernel."""
    sizes: dict[str, Size] = {f"outer{axis}": extent for axis, extent in enumerate(kernel.extents)}
    sizes |= {f"x_outer{axis}": stride for axis, stride in enumerate(kernel.source)}
    sizes |= {f"y_outer{axis}": stride for axis, stride in enumerate(kernel.target)}
    return sizes | {"source_start": None, "target_start": None}


def copy_arguments(kernel: Copy) -> list[str]:
    """The names of the kernel's arguments, in order: y is the target, x the source."""
    return argument_names(["y", "x"], copy_sizes(kernel))


def _lanes(dtype: DType, machine: Machine) -> int:
    """Lanes of a vector; at most 16, so that a square of vectors fits the registers."""
    return min(16, machine.lanes(moved_as(dtype)))


def copy_units(kernel: Copy, machine: Machine, extents: Sequence[int]) -> int:
    """How many units of work there are for these extents."""
    if not math.prod(extents):
        return 0
    if kernel.turned is not None:
        across = _ACROSS * _lanes(kernel.dtype, machine)
        rest = math.prod(extents[:-1]) // extents[kernel.turned]
        return rest * -(-extents[kernel.turned] // across)
    inner, rows = extents[-1], extents[-2] if len(extents) > 1 else 1
    return math.prod(extents[:-2]) * -(-rows // max(1, _GRAIN // inner)) * -(-inner // _GRAIN)


def build_copy(name: str, kernel: Copy, machine: Machine) -> Module:
    """The kernel as a module of the level "loop"; see `copy_arguments` for what it takes."""
    builder = _CopyBuilder(name, kernel, machine)
    with builder.b.loop(builder.b["begin"], builder.b["end"]) as unit:
        if kernel.turned is None:
            builder.rows(unit)
        else:
            builder.squares(unit, kernel.turned)
    return builder.b.module()


class _CopyBuilder(StridedBuilder):
    def __init__(self, name: str, kernel: Copy, machine: Machine) -> None:
        dtype = moved_as(kernel.dtype)
        super().__init__(name, machine, {"y": dtype, "x": dtype}, copy_sizes(kernel), dtype)
        self.rank = len(kernel.extents)
        if kernel.turned is not None:
            self.lanes = _lanes(kernel.dtype, machine)

    def starts(self, indices: dict[int, Operand]) -> tuple[Operand, Operand]:
        """The places in target and source of the element at `indices` (0 along other dims)."""
        b = self.b
        found = []
        for name, start in (("y", "target_start"), ("x", "source_start")):
            place: Operand = self.size(start)
            for axis, index in indices.items():
                place = b.add(place, b.mul(index, self.stride(name, "outer", axis)))
            found.append(place)
        return found[0], found[1]

    # ---- rows --------------------------------------------------------------------------------------------------------

    def rows(self, unit: Operand) -> None:
        """A block of rows, or a piece of a long one."""
        b, last = self.b, self.rank - 1
        inner = self.size(f"outer{last}")
        count = self.size(f"outer{last - 1}") if last else 1
        together = b.max(b.div(_GRAIN, b.max(inner, 1)), 1)
        pieces = b.div(b.add(inner, _GRAIN - 1), _GRAIN)
        blocks = b.div(b.add(count, b.sub(together, 1)), together)
        start = b.mul(b.rem(unit, pieces), _GRAIN)
        stop = b.min(b.add(start, _GRAIN), inner)
        rest = b.div(unit, pieces)
        outer = range(last - 1)
        indices: dict[int, Operand] = dict(
            zip(outer, self.unravel(b.div(rest, blocks), [f"outer{axis}" for axis in outer]), strict=True)
        )
        y, x = self.starts(indices)
        if not last:
            self.row(y, x, start, stop)
            return
        first = b.mul(b.rem(rest, blocks), together)
        with b.loop(first, b.min(b.add(first, together), count)) as row:
            here = [b.add(p, b.mul(row, self.stride(n, "outer", last - 1))) for n, p in (("y", y), ("x", x))]
            self.row(here[0], here[1], start, stop)

    def row(self, y: Operand, x: Operand, start: Operand, stop: Operand) -> None:
        b, last = self.b, self.rank - 1
        strides = self.stride("y", "outer", last), self.stride("x", "outer", last)

        def move(i: Operand, mask: Value | None = None) -> None:
            places = [b.add(place, b.mul(i, stride)) for place, stride in zip((y, x), strides, strict=True)]
            self.store(self.load("x", places[1], strides[1], mask), "y", places[0], strides[0], mask)

        step = 4 * self.lanes
        whole = b.add(start, b.mul(b.div(b.sub(stop, start), step), step))
        with b.loop(start, whole, step) as i:
            for part in range(4):
                move(b.add(i, part * self.lanes))
        with b.loop(whole, stop, self.lanes) as i:
            move(i, b.tail_mask(b.index(b.sub(stop, i)), self.lanes))

    # ---- squares -----------------------------------------------------------------------------------------------------

    def squares(self, unit: Operand, turned: int) -> None:
        """Some vectors of the source's contiguous dim, along all of the target's."""
        b, last, lanes = self.b, self.rank - 1, self.lanes
        across, along = self.size(f"outer{turned}"), self.size(f"outer{last}")
        width = _ACROSS * lanes
        blocks = b.div(b.add(across, width - 1), width)
        others = [axis for axis in range(last) if axis != turned]
        found = self.unravel(b.div(unit, blocks), [f"outer{axis}" for axis in others])
        column = b.mul(b.rem(unit, blocks), width)
        y, x = self.starts({**dict(zip(others, found, strict=True)), turned: column})
        rest = b.sub(across, column)
        whole = b.sub(along, b.rem(along, lanes))

        def strip(count: Operand | None) -> None:
            with b.loop(0, whole, lanes) as i:
                for part in range(_ACROSS):
                    self.square(y, x, i, part, turned, None, count)
            left = b.sub(along, whole)

            def last_square() -> None:
                for part in range(_ACROSS):
                    self.square(y, x, whole, part, turned, left, count)

            if isinstance(left, Value):
                with b.when(b.lt(0, left)):
                    last_square()
            elif left:
                last_square()

        b.branch(b.le(width, rest), lambda: strip(None), lambda: strip(rest))

    def square(
        self, y: Operand, x: Operand, i: Operand, part: int, turned: int, length: Operand | None, count: Operand | None
    ) -> None:
        """A square of `lanes` rows and columns; only `length` numbers along the last dim and `count` across exist."""
        b, last, lanes = self.b, self.rank - 1, self.lanes
        step, pitch = self.stride("x", "outer", last), self.stride("y", "outer", turned)
        first = part * lanes
        columns = None if count is None else b.tail_mask(b.index(b.sub(count, first)), lanes)
        rows = None if length is None else b.tail_mask(b.index(length), lanes)
        loaded = []
        for row in range(lanes):
            at = b.add(i, row if length is None else b.min(row, b.sub(length, 1)))
            place = b.add(b.add(x, b.mul(at, step)), first)
            loaded.append(b.load(b["x"], place, lanes, columns))
            if length is None:
                b.prefetch(b["x"], b.add(place, b.mul(_AHEAD * lanes, step)))
        for column, vector in enumerate(transposed(b, loaded, lanes)):
            place = b.add(b.add(y, b.mul(first + column, pitch)), i)
            if count is None:
                b.store(vector, b["y"], place, rows)
                continue
            with b.when(b.lt(first + column, count)):
                b.store(vector, b["y"], place, rows)
