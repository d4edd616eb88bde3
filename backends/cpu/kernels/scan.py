"""Running sums and products along one dim.

"row": lanes lie along the dim; each vector is summed up within by adding it to itself, shifted by 1, 2, 4, ... lanes,
and the total of those before is added. "column": lanes lie along the last of the other dims, each with a running total
of its own. That is kept in a register or, where results are contiguous and as wide as totals, read back from the result
before: then many columns are done at once, and memory is read in order. A unit of work is a row, or some vectors of
rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ....graph import types
from ....graph.core import Value
from ....graph.kernel.loop_builder import Operand
from ....graph.kernel.scalar_emitter import computed_in
from ....graph.module import Module
from ..machine import Machine
from .strided import (
    Along,
    Size,
    StridedBuilder,
    View,
    argument_names,
    column_units,
    column_vectors,
    extent_sizes,
    view_sizes,
    widest_of,
)

# Vectors of columns side by side, which lie together in memory; what they need is asked for so many steps ahead.
_COLUMNS, _AHEAD = 16, 4
# The same where totals are read back, and how many of them are in the body of a loop.
_WIDE, _NEXT, _UNROLLED = 64, 1, 8


@dataclass(frozen=True)
class Scan:
    """y[i] = x[0] + ... + x[i] along the row, or of products. `exclusive` leaves out x[i]; `reverse` begins at the end.

    The views of x and y have strides along the outer dims and along the one dim of the row.
    """

    outer: tuple[Size, ...]
    row: Size
    x: View
    y: View
    combine: str = "sum"
    exclusive: bool = False
    reverse: bool = False
    along: Along = "row"


def scan_sizes(kernel: Scan) -> dict[str, Size]:
    """Extents and strides by name; those that are None are arguments of the kernel."""
    return extent_sizes(kernel.outer, (kernel.row,)) | view_sizes("x0", kernel.x) | view_sizes("y0", kernel.y)


def scan_arguments(kernel: Scan) -> list[str]:
    """The names of the kernel's arguments, in order."""
    return argument_names(["y0", "x0"], scan_sizes(kernel))


def scan_units(kernel: Scan, machine: Machine, outer: Sequence[int]) -> int:
    """How many units of work there are for these outer extents."""
    if kernel.along == "row":
        return math.prod(outer)
    return column_units(outer, _columns(kernel, machine) * machine.lanes(widest_of([kernel.x.dtype])))


def _columns(kernel: Scan, machine: Machine) -> int:
    """Vectors of columns in a unit of work."""
    most = _WIDE if _reads_back(kernel) else _COLUMNS
    return column_vectors(kernel.outer, machine.lanes(widest_of([kernel.x.dtype])), most)


def _reads_back(kernel: Scan) -> bool:
    """Whether totals are read from the results before."""
    is_exact = kernel.y.dtype is computed_in(kernel.x.dtype)
    return is_exact and bool(kernel.outer) and kernel.x.outer[-1] == kernel.y.outer[-1] == 1


def build_scan(name: str, kernel: Scan, machine: Machine) -> Module:
    """The kernel as a module of the level "loop"; see `scan_arguments` for what it takes."""
    builder = _ScanBuilder(name, kernel, machine)
    b = builder.b
    with b.loop(b["begin"], b["end"]) as unit:
        if kernel.along == "row":
            builder.row_unit(unit)
        else:
            builder.column_unit(unit)
    return b.module()


class _ScanBuilder(StridedBuilder):
    def __init__(self, name: str, kernel: Scan, machine: Machine) -> None:
        buffers = {"y0": kernel.y.dtype, "x0": kernel.x.dtype}
        super().__init__(name, machine, buffers, scan_sizes(kernel), widest_of([kernel.x.dtype]))
        self.kernel = kernel
        self.dtype = computed_in(kernel.x.dtype)
        self.outers = [f"outer{axis}" for axis in range(len(kernel.outer))]
        self.width = _columns(kernel, machine)

    @property
    def neutral(self) -> int:
        return 0 if self.kernel.combine == "sum" else 1

    def combined(self, x: Value, y: Value) -> Value:
        return self.b.scalar("add" if self.kernel.combine == "sum" else "mul", x, y)

    def steps(self, indices: Sequence[Operand]) -> tuple[list[Operand], list[Operand]]:
        """Places of the first elements of x and y, and the strides to the next ones."""
        b = self.b
        places, strides = [], []
        for name in ("x0", "y0"):
            place, stride = self.place(name, "outer", indices), self.stride(name, "row", 0)
            if self.kernel.reverse:
                place = b.add(place, b.mul(b.sub(self.size("row0"), 1), stride))
                stride = b.sub(0, stride)
            places.append(place)
            strides.append(stride)
        return places, strides

    def row_unit(self, unit: Operand) -> None:
        b, length = self.b, self.size("row0")
        places, strides = self.steps(self.unravel(unit, self.outers))
        start = b.constant(self.neutral, types.scalar(self.dtype))
        with b.loop(0, length, self.lanes, [start]) as state:
            mask = b.tail_mask(b.index(b.sub(length, state.index)), self.lanes)
            x, y = (b.add(p, b.mul(state.index, s)) for p, s in zip(places, strides, strict=True))
            value = self.within(self.load("x0", x, strides[0], mask))
            before = b.broadcast(state[0], self.lanes)
            value = self.combined(before, value)
            result = value
            if self.kernel.exclusive:
                # Everything one lane on, behind what came before.
                result = b.shuffle(before, value, [0, *range(self.lanes, 2 * self.lanes - 1)])
            self.store(result, "y0", y, strides[1], mask)
            state.yields([b.extract(value, self.lanes - 1)])

    def within(self, value: Value) -> Value:
        """The running totals of the lanes of a vector."""
        b, lanes = self.b, self.lanes
        neutral = b.constant(self.neutral, value.type)
        distance = 1
        while distance < lanes:
            shifted = b.shuffle(neutral, value, [*range(distance), *range(lanes, 2 * lanes - distance)])
            value = self.combined(shifted, value)
            distance *= 2
        return value

    def column_unit(self, unit: Operand) -> None:
        """A block of columns, with masks if it is the last one and not full."""
        width = self.width * self.lanes
        indices, rest = self.column_block(unit, self.outers, width)
        if _reads_back(self.kernel):
            self.sweep(indices, self.b.min(rest, width))
        else:
            self.with_masks(rest, self.width, lambda masks: self.columns(indices, masks))

    def sweep(self, indices: Sequence[Operand], count: Operand) -> None:
        """`count` contiguous columns: each row of results is the one before it and a row of operands."""
        b, exclusive = self.b, self.kernel.exclusive
        (x, y), strides = self.steps(indices)
        start = b.constant(self.neutral, types.vector(self.dtype, self.lanes))
        with b.loop(0, self.size("row0")) as row:
            here = [b.add(place, b.mul(row, stride)) for place, stride in zip((x, y), strides, strict=True)]
            source = b.sub(here[0], strides[0]) if exclusive else here[0]
            before = b.sub(here[1], strides[1])

            def vector(i: Operand, mask: Value | None, is_first: bool) -> None:
                for name, place, stride in zip(("x0", "y0"), here, strides, strict=True):
                    ahead = b.add(b.add(place, i), b.mul(_NEXT, stride))
                    b.prefetch(b[name], ahead, writes=name == "y0")
                if is_first and exclusive:
                    b.store(start, b["y0"], b.add(here[1], i), mask)
                    return
                value = b.load(b["x0"], b.add(source, i), self.lanes, mask)
                value = b.cast(value, self.dtype)
                if not is_first:
                    value = self.combined(b.load(b["y0"], b.add(before, i), self.lanes, mask), value)
                b.store(value, b["y0"], b.add(here[1], i), mask)

            def whole_row(is_first: bool) -> None:
                step = self.lanes * min(_UNROLLED, self.width)
                blocks = b.mul(b.div(count, step), step)
                with b.loop(0, blocks, step) as i:
                    for part in range(0, step, self.lanes):
                        vector(b.add(i, part), None, is_first)
                with b.loop(blocks, count, self.lanes) as i:
                    vector(i, b.tail_mask(b.index(b.sub(count, i)), self.lanes), is_first)

            b.branch(b.eq(row, 0), lambda: whole_row(True), lambda: whole_row(False))

    def columns(self, indices: Sequence[Operand], masks: Sequence[Value | None]) -> None:
        b, last = self.b, len(self.outers) - 1
        places, strides = self.steps(indices)
        beside = [self.stride(name, "outer", last) for name in ("x0", "y0")]
        start = b.constant(self.neutral, types.vector(self.dtype, self.lanes))
        with b.loop(0, self.size("row0"), 1, [start] * self.width) as state:
            x, y = (b.add(p, b.mul(state.index, s)) for p, s in zip(places, strides, strict=True))
            totals = []
            for v, mask in enumerate(masks):
                here = [b.add(place, b.mul(v * self.lanes, step)) for place, step in zip((x, y), beside, strict=True)]
                for name, place, stride in zip(("x0", "y0"), here, strides, strict=True):
                    b.prefetch(b[name], b.add(place, b.mul(_AHEAD, stride)), writes=name == "y0")
                total = self.combined(state[v], self.load("x0", here[0], beside[0], mask))
                self.store(state[v] if self.kernel.exclusive else total, "y0", here[1], beside[1], mask)
                totals.append(total)
            state.yields(totals)
