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
from .elementwise import AHEAD_BYTES
from .pack import joined_lanes, transposed
from .strided import Size, StridedBuilder, argument_names, zero_or_one

# Elements of a unit of work, about.
_GRAIN = 1 << 14
# Squares are turned one strip after another: so many vectors, or bytes if they are short, of the source's contiguous
# dim wide and so many elements of the target's long, which touches few pages at a time. Where squares go past the
# caches, narrow and short strips are best, since nothing has to stay.
_WIDTH = {False: 2, True: 1}
_WIDTH_BYTES = 128
_LENGTH = {False: 256, True: 64}
# What the next strip reads is asked for, and so are lines that will be written to so many bytes further on. Each is in
# a page of its own, so processors do not expect them; matrices of 12 MB are turned four times as fast.
_AHEAD_BYTES = 128
_LINE_BYTES = 64
# Rows of so many vectors are written out.
_SHORT = 8
# Rows of so many elements can go past the caches.
_LEAST_STREAMED = 4096


def moved_as(dtype: DType) -> DType:
    """The unsigned integer that has as many bits in memory."""
    return {8: u8, 16: u16, 32: u32, 64: u64}[max(8, dtype.bits)]


@dataclass(frozen=True)
class Copy:
    """Dims are in the order of the target's memory, the last one innermost. `turned` is the dim along which the source
    is contiguous, if the target is so along the last one and squares are to be turned; else None. With `streams` the
    target goes to memory past the caches (see `Ordered.can_stream`).

    Element 0 lies at `source_start` and `target_start`, arguments of the kernel.
    """

    dtype: DType
    extents: tuple[Size, ...]
    source: tuple[Size, ...]
    target: tuple[Size, ...]
    turned: int | None = None
    streams: bool = False


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

    def can_stream(self, dtype: DType, machine: Machine) -> bool:
        """Whether the target can go past the caches: its rows are long; or squares are as wide as a line, and lines lie
        alike in all rows."""
        if self.turned is None:
            return bool(self.target[-1] == 1 and self.extents[-1] >= _LEAST_STREAMED)
        line = _LINE_BYTES * 8 // moved_as(dtype).bits
        if machine.lanes(moved_as(dtype)) != line:
            return False
        return all(bool(stride % line == 0) for stride in self.target[:-1])


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


def _squares(dtype: DType, machine: Machine) -> int:
    """How many squares are turned at once, below each other, so that their columns fill a register."""
    return max(1, machine.lanes(moved_as(dtype)) // _lanes(dtype, machine))


def _strip_width(kernel: Copy, machine: Machine) -> int:
    """Elements of the source's contiguous dim in a strip of squares."""
    lanes = _lanes(kernel.dtype, machine)
    wide = 1 if kernel.streams else _WIDTH_BYTES * 8 // (lanes * moved_as(kernel.dtype).bits)
    return lanes * max(_WIDTH[kernel.streams], wide)


def copy_units(kernel: Copy, machine: Machine, extents: Sequence[int]) -> int:
    """How many units of work there are for these extents."""
    if not math.prod(extents):
        return 0
    if kernel.turned is not None:
        rest = math.prod(extents[:-1]) // extents[kernel.turned]
        strips = -(-extents[kernel.turned] // _strip_width(kernel, machine))
        return rest * strips * -(-extents[-1] // _LENGTH[kernel.streams])
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
    if kernel.streams:
        builder.b.fence()
    return builder.b.module()


class _CopyBuilder(StridedBuilder):
    def __init__(self, name: str, kernel: Copy, machine: Machine) -> None:
        dtype = moved_as(kernel.dtype)
        super().__init__(name, machine, {"y": dtype, "x": dtype}, copy_sizes(kernel), dtype)
        self.rank = len(kernel.extents)
        self.streams = kernel.streams
        self.bytes = dtype.bits // 8
        if kernel.turned is None:
            self.aheads = {name: self.ahead(name) for name in "yx"}
        else:
            self.lanes = _lanes(kernel.dtype, machine)
            self.tall = self.lanes * _squares(kernel.dtype, machine)
            self.width = _strip_width(kernel, machine)

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
        is_whole = not isinstance(pieces, Value) and pieces == 1
        start = 0 if is_whole else b.mul(b.rem(unit, pieces), _GRAIN)
        stop = inner if is_whole else b.min(b.add(start, _GRAIN), inner)
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
            moved = self.load("x", places[1], strides[1], mask)
            if self.streams and mask is None:
                b.store(moved, b["y"], places[0], streams=True)
            else:
                self.store(moved, "y", places[0], strides[0], mask)

        if self.streams:
            before = b.until_aligned(b["y"], b.add(y, start), self.lanes * self.bytes)
            first = b.min(b.add(start, before), stop)
            with b.loop(start, first, self.lanes) as i:
                move(i, b.tail_mask(b.index(b.sub(first, i)), self.lanes))
            start = first
        if isinstance(start, int) and isinstance(stop, int) and stop <= _SHORT * self.lanes:
            self.asks(y, x, strides, stop)
            for i in range(0, stop, self.lanes):
                rest = stop - i
                move(i, None if rest >= self.lanes else b.tail_mask(b.index(rest), self.lanes))
            return
        step = 4 * self.lanes
        whole = b.add(start, b.mul(b.div(b.sub(stop, start), step), step))
        with b.loop(start, whole, step) as i:
            self.asks(b.add(y, i), b.add(x, i), strides, step)
            for part in range(4):
                move(b.add(i, part * self.lanes))
        with b.loop(whole, stop, self.lanes) as i:
            move(i, b.tail_mask(b.index(b.sub(stop, i)), self.lanes))

    def asks(self, y: Operand, x: Operand, strides: Sequence[Operand], count: int) -> None:
        """Ask for the lines that are needed a little later than `count` elements at y and x."""
        b = self.b
        for name, place, stride in zip("yx", (y, x), strides, strict=True):
            if isinstance(stride, Value) or stride != 1 or (name == "y" and self.streams):
                continue
            place = b.add(place, self.aheads[name])
            for line in range(max(1, count * self.bytes // _LINE_BYTES)):
                b.prefetch(b[name], b.add(place, line * (_LINE_BYTES // self.bytes)), writes=name == "y")

    def ahead(self, name: str) -> Operand:
        """How far behind elements those lie that are needed a little later: of short rows, in another row."""
        b, last = self.b, self.rank - 1
        elements = AHEAD_BYTES // self.bytes
        if not last:
            return elements
        rows = b.div(elements, b.max(self.size(f"outer{last}"), 1))
        far = b.mul(rows, self.stride(name, "outer", last - 1))
        if not isinstance(rows, Value):
            return far if rows else elements
        further: Operand = b.select(b.lt(0, rows), far, elements)
        return further

    # ---- squares -----------------------------------------------------------------------------------------------------

    def squares(self, unit: Operand, turned: int) -> None:
        """A strip: some vectors of the source's contiguous dim, along a part of the target's."""
        b, last, width = self.b, self.rank - 1, self.width
        across, along = self.size(f"outer{turned}"), self.size(f"outer{last}")
        tall = self.tall
        length = _LENGTH[self.streams]
        strips = b.div(b.add(across, width - 1), width)
        parts = b.div(b.add(along, length - 1), length)
        others = [axis for axis in range(last) if axis != turned]
        found = self.unravel(b.div(unit, b.mul(strips, parts)), [f"outer{axis}" for axis in others])
        column = b.mul(b.rem(unit, strips), width)
        y, x = self.starts({**dict(zip(others, found, strict=True)), turned: column})
        begin = b.mul(b.rem(b.div(unit, strips), parts), length)
        end = b.min(b.add(begin, length), along)
        rest = b.sub(across, column)
        first: Operand = begin
        if self.streams:
            # Parts are cut where lines of the target begin; what is before the first line belongs to the first part.
            before = b.min(b.until_aligned(b["y"], y, _LINE_BYTES), along)
            first, end = b.min(b.add(begin, before), along), b.min(b.add(end, before), along)
            with b.when(b.and_(b.eq(begin, 0), b.lt(0, before))):
                self.strip(y, x, (0, 0, before), turned, rest)
        whole = b.add(first, b.mul(b.div(b.sub(end, first), tall), tall))
        b.branch(
            b.le(width, rest),
            lambda: self.strip(y, x, (first, whole, end), turned, None),
            lambda: self.strip(y, x, (first, whole, end), turned, rest),
        )

    def strip(
        self, y: Operand, x: Operand, bounds: tuple[Operand, Operand, Operand], turned: int, count: Operand | None
    ) -> None:
        """Squares of a strip, of which only `count` columns exist: whole ones, then the rest; `bounds` are of these."""
        b, lanes, step = self.b, self.lanes, self.stride("x", "outer", self.rank - 1)
        first, whole, end = bounds

        def across(i: Operand, left: Operand | None) -> None:
            if left is None:
                self.ask_rows(b.add(x, b.mul(i, step)), step)
            with b.loop(0, self.width, lanes) as column:
                self.square(y, x, i, column, turned, left, count)

        if isinstance(first, Value) or isinstance(whole, Value) or first < whole:
            with b.loop(first, whole, self.tall) as i:
                across(i, None)
        left = b.sub(end, whole)
        if isinstance(left, Value):
            with b.when(b.lt(0, left)):
                across(whole, left)
        elif left:
            across(whole, left)

    def ask_rows(self, x: Operand, step: Operand) -> None:
        """Ask for what the next strip reads in rows as high as squares are."""
        b = self.b
        for row in range(self.tall):
            for start in range(0, self.width, _LINE_BYTES // self.bytes):
                b.prefetch(b["x"], b.add(b.add(x, b.mul(row, step)), self.width + start), level=2)

    def square(
        self,
        y: Operand,
        x: Operand,
        i: Operand,
        first: Operand,
        turned: int,
        length: Operand | None,
        count: Operand | None,
    ) -> None:
        """Squares of `lanes` rows and columns below each other, from column `first` of the strip; only `length` numbers
        along the last dim and `count` columns exist."""
        b, last, lanes, tall = self.b, self.rank - 1, self.lanes, self.tall
        step, pitch = self.stride("x", "outer", last), self.stride("y", "outer", turned)
        columns = None if count is None else b.tail_mask(b.index(b.sub(count, first)), lanes)
        rows = None if length is None else b.tail_mask(b.index(length), tall)
        loaded = []
        for row in range(tall):
            at = b.add(i, row if length is None else b.min(row, b.sub(length, 1)))
            place = b.add(b.add(x, b.mul(at, step)), first)
            loaded.append(b.load(b["x"], place, lanes, columns))
        joined = [joined_lanes(b, loaded[row::lanes], lanes) for row in range(lanes)]
        for column, vector in enumerate(transposed(b, joined, lanes, tall // lanes)):
            place = b.add(b.add(y, b.mul(b.add(first, column), pitch)), i)
            if count is None:
                b.store(vector, b["y"], place, rows, streams=self.streams and rows is None)
                if not self.streams:
                    b.prefetch(b["y"], b.add(place, _AHEAD_BYTES // self.bytes), writes=True)
                continue
            with b.when(b.lt(b.add(first, column), count)):
                b.store(vector, b["y"], place, rows)
