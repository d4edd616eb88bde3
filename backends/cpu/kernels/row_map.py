"""Maps whose elements also depend on totals of the row they lie in, as adjoints of softmax and norms do.

A row is read twice: for its totals, and, while the caches still hold it, for the results. What is the same all along a
row, its totals and the operands that have one number for each row, is loaded and computed once between the two. In the
second pass rows can also be added up: a unit of work is a block of rows, with sums of its own, which a second kernel
adds in order. So neither totals nor sums depend on how units are shared out.

    "row":     unit (block of rows):                              lanes run along the row
    "column":  unit (outer dims but the last, block of columns):  each lane has a row of its own; rows are not added up
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ....graph import types
from ....graph.core import Value
from ....graph.dtypes import DType
from ....graph.kernel.loop_builder import Operand
from ....graph.module import Module
from ..machine import Machine
from .reduce import COMBINE, Total
from .row_walk import CHAINS, RowWalk, Spot
from .strided import (
    Along,
    Body,
    Size,
    View,
    argument_names,
    column_units,
    column_vectors,
    extent_sizes,
    view_sizes,
    widest_of,
)


@dataclass(frozen=True)
class RowMap:
    """`prologue` makes of the operands' elements what is combined for each of `totals`, in its dtype. `start` makes
    of the operands that are the same all along a row, and of the totals, further numbers of the row, the last of which
    are stored to `numbers`. `body` makes of the operands' elements, the totals and the other numbers the results'
    elements, then what is added to each of `sums`.

    A unit of work is a `block` of rows. Its sums lie behind those of the unit before; the strides of `sums` are those
    along the row only. Totals whose numbers are in `means` are divided by how many elements a row has.
    """

    outer: tuple[Size, ...]
    row: tuple[Size, ...]
    operands: tuple[View, ...]
    results: tuple[View, ...]
    totals: tuple[Total, ...]
    prologue: Body
    body: Body
    start: Body | None = None
    numbers: tuple[View, ...] = ()
    sums: tuple[View, ...] = ()
    along: Along = "row"
    block: Size = 1
    means: tuple[int, ...] = ()


def is_fixed(view: View) -> bool:
    """Whether an operand is the same all along a row."""
    return all(stride == 0 for stride in view.row)


def _views(kernel: RowMap) -> dict[str, View]:
    groups = {"y": kernel.results, "x": kernel.operands, "n": kernel.numbers, "c": kernel.sums}
    return {f"{kind}{index}": view for kind, views in groups.items() for index, view in enumerate(views)}


def row_map_sizes(kernel: RowMap) -> dict[str, Size]:
    """Extents and strides by name; those that are None are arguments of the kernel."""
    sizes = extent_sizes(kernel.outer, kernel.row)
    for name, view in _views(kernel).items():
        sizes |= view_sizes(name, view)
    return sizes | ({"block": kernel.block} if kernel.along == "row" else {})


def row_map_buffers(kernel: RowMap) -> dict[str, DType]:
    """Results y, operands x, numbers of rows n, sums c."""
    return {name: view.dtype for name, view in _views(kernel).items()}


def row_map_arguments(kernel: RowMap) -> list[str]:
    """The names of the kernel's arguments, in order."""
    return argument_names(list(row_map_buffers(kernel)), row_map_sizes(kernel))


def row_map_units(kernel: RowMap, machine: Machine, outer: Sequence[int], block: int = 1) -> int:
    """How many units of work there are for these outer extents and blocks of so many rows."""
    if kernel.along == "row":
        return -(-math.prod(outer) // block)
    return column_units(outer, _vectors(kernel, machine) * machine.lanes(_widest(kernel)))


def block_of_rows(rows: int) -> int:
    """How many rows a unit has whose sums are added up: enough to make little of adding up the units' sums."""
    return max(4, -(-rows // 128))


def _widest(kernel: RowMap) -> DType:
    return widest_of([*(total.dtype for total in kernel.totals), *(view.dtype for view in _views(kernel).values())])


def _vectors(kernel: RowMap, machine: Machine) -> int:
    """Vectors that are worked on side by side: no more than leave registers for the totals of each."""
    most = max(1, min(CHAINS, machine.registers // 4 // max(1, len(kernel.totals))))
    return most if kernel.along == "row" else column_vectors(kernel.outer, machine.lanes(_widest(kernel)), most)


def build_row_map(name: str, kernel: RowMap, machine: Machine) -> Module:
    """The kernel as a module of the level "loop"; see `row_map_arguments` for what it takes."""
    if not kernel.row or (kernel.along == "column" and (kernel.sums or not kernel.outer)):
        raise ValueError("a row has at least one dim; where lanes run along the outer dims, rows are not added up")
    builder = _RowMapBuilder(name, kernel, machine)
    builder.units()
    return builder.b.module()


class _RowMapBuilder(RowWalk):
    def __init__(self, name: str, kernel: RowMap, machine: Machine) -> None:
        super().__init__(
            name, machine, row_map_buffers(kernel), row_map_sizes(kernel), _widest(kernel),
            kernel.outer, kernel.row, kernel.along, _vectors(kernel, machine),
        )  # fmt: skip
        self.kernel = kernel
        self.operands = [f"x{index}" for index in range(len(kernel.operands))]
        self.fixed = [name for name, view in zip(self.operands, kernel.operands, strict=True) if is_fixed(view)]
        # Tensors that are walked along a row.
        self.tensors = [name for name in _views(kernel) if name not in self.fixed and name[0] != "n"]
        self.moving = [name for name in self.operands if name not in self.fixed]

    # ---- units -------------------------------------------------------------------------------------------------------

    def units(self) -> None:
        b = self.b
        with b.loop(b["begin"], b["end"]) as unit:
            if self.by_column:
                self.column_unit(unit)
            else:
                self.row_unit(unit)

    def row_unit(self, unit: Value) -> None:
        """A block of rows, one after another."""
        b, block = self.b, self.size("block")
        length = self.product(self.rows)
        own = b.mul(unit, length)
        for index in range(len(self.kernel.sums)):
            self.clear(f"c{index}", own, length)
        first = b.mul(unit, block)
        with b.loop(first, b.min(b.add(first, block), self.product(self.outers))) as row:
            self.row(self.unravel(row, self.outers), own, [None] * self.width)

    def clear(self, name: str, start: Operand, length: Operand) -> None:
        """The unit's sums are without gaps."""
        b = self.b
        zero = b.constant(0, types.vector(self.kernel.sums[int(name[1:])].dtype, self.lanes))
        whole = b.mul(b.div(length, self.lanes), self.lanes)
        with b.loop(0, whole, self.lanes) as i:
            b.store(zero, b[name], b.add(start, i))
        with b.loop(whole, length, self.lanes) as i:
            b.store(zero, b[name], b.add(start, i), b.tail_mask(b.index(b.sub(length, i)), self.lanes))

    def column_unit(self, unit: Value) -> None:
        indices, rest = self.column_block(unit, self.outers, self.width * self.lanes)
        self.with_masks(rest, self.width, lambda masks: self.row(indices, 0, masks))

    # ---- a row, or a block of them, one for each lane ----------------------------------------------------------------

    def row(self, indices: Sequence[Operand], own: Operand, masks: Sequence[Value | None]) -> None:
        kernel = self.kernel
        self.masks = masks
        starts = {name: own if name[0] == "c" else self.place(name, "outer", indices) for name in self.tensors}
        self.known = {name: self.along(name, self.place(name, "outer", indices)) for name in self.fixed}
        totals = self.totals(starts)
        started: list[list[Value]] = [[] for _ in totals]
        if kernel.start is not None:
            made = [
                list(kernel.start(self.b, [*(self.known[name][v] for name in self.fixed), *found]))
                for v, found in enumerate(totals)
            ]
            kept = len(made[0]) - len(kernel.numbers)
            started = [numbers[:kept] for numbers in made]
            for index, view in enumerate(kernel.numbers):
                vector = types.vector(view.dtype, self.lanes)
                self.keep(f"n{index}", [self.b.value(numbers[kept + index], vector) for numbers in made], indices)

        def last(spot: Spot, _: list[Value]) -> None:
            v = spot.number if self.by_column else 0
            self.finish(spot, [*totals[v], *started[v]])

        self.walk(self.tensors, starts, [], last)

    def along(self, name: str, place: Operand) -> list[Value]:
        """An operand that is the same all along a row: a vector, or one for each vector of columns."""
        b = self.b
        if not self.by_column:
            return [b.broadcast(self.widened(b.load(b[name], place)), self.lanes)]
        stride = self.stride(name, "outer", len(self.outers) - 1)
        return [
            self.load(name, b.add(place, b.mul(v * self.lanes, stride)), stride, mask)
            for v, mask in enumerate(self.masks)
        ]

    def totals(self, starts: dict[str, Operand]) -> list[list[Value]]:
        """A vector for each total, or such vectors for each vector of columns."""
        b, count = self.b, len(self.kernel.totals)
        if not count:
            return [[] for _ in range(self.width if self.by_column else 1)]
        neutral = [b.constant(total.neutral, types.vector(total.dtype, self.lanes)) for total in self.kernel.totals]
        ways = [COMBINE[total.combine] for total in self.kernel.totals]

        def step(spot: Spot, sums: list[Value]) -> None:
            values = self.kernel.prologue(b, self.read(spot))
            first = count * (spot.number % self.width)
            for index, value in enumerate(values):
                vector = b.value(value, neutral[index].type)
                if spot.mask is not None and not self.by_column:
                    vector = b.select(spot.mask, vector, neutral[index])
                sums[first + index] = b.scalar(ways[index], sums[first + index], vector)

        def both(x: Sequence[Value], y: Sequence[Value]) -> list[Value]:
            return [b.scalar(way, one, other) for way, one, other in zip(ways, x, y, strict=True)]

        found = self.walk(self.tensors, starts, neutral * self.width, step)
        vectors = [found[count * v : count * (v + 1)] for v in range(self.width)]
        if self.by_column:
            return [self.averaged(found) for found in vectors]
        while len(vectors) > 1:
            half = len(vectors) // 2
            vectors = [both(vectors[v], vectors[v + half]) for v in range(half)] + vectors[2 * half :]
        totals = self.averaged([b.reduce(way, vector) for way, vector in zip(ways, vectors[0], strict=True)])
        return [[b.broadcast(total, self.lanes) for total in totals]]

    def averaged(self, totals: Sequence[Value]) -> list[Value]:
        """The totals, those that are means divided by the number of elements."""
        b = self.b
        found = list(totals)
        for index in self.kernel.means:
            elements = self.product(self.rows)
            count = (
                b.cast(elements, self.kernel.totals[index].dtype) if isinstance(elements, Value) else float(elements)
            )
            found[index] = b.div(found[index], count)
        return found

    def finish(self, spot: Spot, numbers: Sequence[Value]) -> None:
        b, kernel = self.b, self.kernel
        made = list(kernel.body(b, [*self.read(spot), *numbers]))
        for index, value in enumerate(made[: len(kernel.results)]):
            name = f"y{index}"
            self.store(value, name, spot.places[name], self.inner_stride(name), spot.mask)
            if spot.mask is None:
                self.ask(name, spot)
        for index, value in enumerate(made[len(kernel.results) :]):
            name = f"c{index}"
            stride = self.inner_stride(name)
            old = self.load(name, spot.places[name], stride, spot.mask)
            self.store(b.add(old, b.value(value, old.type)), name, spot.places[name], stride, spot.mask)
        if not self.by_column and self.asks_for_rows:
            self.prefetch_next(self.moving, spot)

    def read(self, spot: Spot) -> list[Value]:
        """A vector of each operand."""
        v = spot.number if self.by_column else 0
        return [
            self.known[name][v]
            if name in self.fixed
            else self.load(name, spot.places[name], self.inner_stride(name), spot.mask)
            for name in self.operands
        ]
