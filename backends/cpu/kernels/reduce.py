"""Reductions: the elements of each row combined to one number, or to several by several ways at once.

A prologue is applied to the elements as they are read, an epilogue to the totals before they are stored, so a mean of
squares or a norm is one kernel. The order of combining depends on sizes only. A long row may be cut into pieces, which
are units of work of their own: the kernel then stores the total of each piece, and a second reduction combines those
(`piece_length` says when).

    "row":     unit (row, piece):   lanes x 4 totals run along the row, and are combined at its end
    "column":  unit (outer dims but the last, piece, block of columns): each lane has the total of a row of its own
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....graph import types
from ....graph.core import Value
from ....graph.dtypes import DType
from ....graph.kernel.loop_builder import Operand
from ....graph.module import Module
from ..machine import Machine
from .elementwise import AHEAD_BYTES
from .strided import (
    Along,
    Body,
    Size,
    StridedBuilder,
    View,
    argument_names,
    column_vectors,
    extent_sizes,
    highest,
    lowest,
    view_sizes,
    widest_of,
)

# How totals are combined, and what each begins with.
COMBINE = {"sum": "add", "product": "mul", "min": "min", "max": "max"}
# Vectors of totals in the "row" form, so that additions need not wait for each other.
_CHAINS = 4
_LINE_BYTES = 64
# Elements of a piece, about: long enough that the second stage costs nothing, short enough to share out.
_PIECE = 1 << 15
# Columns in a block whose totals registers hold, about.
_NARROW = 64
# Of tensors of so many elements, which no cache holds, with so many columns at least, totals of so many lie in the
# first-level cache; pieces have so many rows then.
_LARGE, _MANY_COLUMNS, _WIDE, _WIDE_PIECE = 1 << 22, 512, 1 << 12, 64


@dataclass(frozen=True)
class Total:
    """One way of combining: "sum", "product", "min" or "max", in numbers of `dtype`. min and max give NaN if a number
    is NaN. Bools are combined as integers."""

    combine: str
    dtype: DType

    @property
    def neutral(self) -> float | int:
        """What combining no elements gives."""
        if self.combine in ("min", "max"):
            return highest(self.dtype) if self.combine == "min" else lowest(self.dtype)
        return 0 if self.combine == "sum" else 1


@dataclass(frozen=True)
class Reduce:
    """`prologue` makes of the operands' elements one value for each total (None: the operands are as many as those);
    `epilogue` makes of the totals, and of `others` (one element for each row), the results (None: they are the totals).

    `piece` is how many steps of the first row dim are combined for one result; 0 is all of them. The results then have
    a further stride, `y0_piece`, and the epilogue is best left to the second stage.
    """

    outer: tuple[Size, ...]
    row: tuple[Size, ...]
    operands: tuple[View, ...]
    totals: tuple[Total, ...]
    results: tuple[View, ...]
    others: tuple[View, ...] = ()
    prologue: Body | None = None
    epilogue: Body | None = None
    along: Along = "row"
    piece: Size = 0


def reduce_sizes(kernel: Reduce) -> dict[str, Size]:
    """Extents and strides by name; those that are None are arguments of the kernel."""
    sizes = extent_sizes(kernel.outer, kernel.row)
    for kind, views in (("x", kernel.operands), ("o", kernel.others), ("y", kernel.results)):
        for index, view in enumerate(views):
            sizes |= view_sizes(f"{kind}{index}", view)
            if kind == "y" and kernel.piece != 0:
                sizes[f"y{index}_piece"] = None
    if kernel.piece != 0:
        sizes["piece"] = kernel.piece
    return sizes


def reduce_buffers(kernel: Reduce) -> dict[str, DType]:
    """Results y0, ..., operands x0, ... and what the epilogue reads, o0, ..., with their dtypes."""
    buffers = {f"y{index}": view.dtype for index, view in enumerate(kernel.results)}
    buffers |= {f"x{index}": view.dtype for index, view in enumerate(kernel.operands)}
    return buffers | {f"o{index}": view.dtype for index, view in enumerate(kernel.others)}


def reduce_arguments(kernel: Reduce) -> list[str]:
    """The names of the kernel's arguments, in order."""
    return argument_names(list(reduce_buffers(kernel)), reduce_sizes(kernel))


def reduce_units(kernel: Reduce, machine: Machine, outer: Sequence[int], row: Sequence[int], piece: int = 0) -> int:
    """How many units of work there are for these extents."""
    pieces = -(-row[0] // piece) if piece else 1
    if kernel.along == "row":
        return math.prod(outer) * pieces
    return math.prod(outer[:-1]) * pieces * -(-outer[-1] // _width(kernel, machine))


def piece_length(along: Along, outer: Sequence[int], row: Sequence[int]) -> int:
    """How many steps of the first row dim a piece should have; 0 if rows are better left whole.

    Only what is long and has few rows is cut, so that threads find work. The threads' number plays no part.
    """
    elements, rows = math.prod(row), math.prod(outer)
    read = elements * rows
    is_wide = along == "column" and reads_wide_blocks(outer, row)
    width = _WIDE if is_wide else _NARROW
    if not row or has_many_rows(along, outer, width) or read < 4 * _PIECE or elements < 1024:
        return 0
    inner = elements // row[0] if row[0] else 1
    # A step of columns reads all of them.
    steps = max(1, _PIECE // max(1, inner * (rows if along == "column" else 1)))
    steps = max(steps, -(-_WIDE_PIECE // inner)) if is_wide else steps
    # Pieces of whole sets of vectors, where vectors run along this dim.
    steps = -(-steps // 1024) * 1024 if along == "row" and len(row) == 1 else steps
    return steps if steps < row[0] else 0


def has_many_rows(along: Along, outer: Sequence[int], width: int = _NARROW) -> bool:
    """Whether threads find enough work without cutting rows; `width` is that of a block of columns."""
    return (math.prod(outer) if along == "row" else math.prod(outer[:-1]) * -(-outer[-1] // width)) >= 64


def reads_wide_blocks(outer: Sequence[int], row: Sequence[int]) -> bool:
    """Whether blocks of columns are so wide that their totals lie in memory.

    What registers hold totals of is a few lines of each row. If they come from memory, reading whole rows, one behind
    the other, is twice as fast.
    """
    return bool(outer) and outer[-1] >= _MANY_COLUMNS and math.prod(outer) * math.prod(row) >= _LARGE


def _widest(kernel: Reduce) -> DType:
    return widest_of([*(total.dtype for total in kernel.totals), *(view.dtype for view in kernel.operands)])


def _lanes(kernel: Reduce, machine: Machine) -> int:
    return machine.lanes(_widest(kernel))


def _is_wide(kernel: Reduce) -> bool:
    """`reads_wide_blocks`, of a kernel that knows its sizes."""
    sizes = [size for size in (*kernel.outer, *kernel.row) if size is not None]
    if kernel.along == "row" or len(sizes) < len(kernel.outer) + len(kernel.row):
        return False
    outer, row = sizes[: len(kernel.outer)], sizes[len(kernel.outer) :]
    return reads_wide_blocks(outer, row) and all(view.outer[-1] == 1 for view in kernel.operands)


def _width(kernel: Reduce, machine: Machine) -> int:
    """How many columns a unit has."""
    return _WIDE if _is_wide(kernel) else _vectors(kernel, machine) * _lanes(kernel, machine)


def _vectors(kernel: Reduce, machine: Machine) -> int:
    """Vectors of columns in a block: half the registers hold totals, or as many as there are columns."""
    vectors = max(1, machine.registers // 2 // len(kernel.totals))
    return column_vectors(kernel.outer, _lanes(kernel, machine), vectors)


def build_reduce(name: str, kernel: Reduce, machine: Machine) -> Module:
    """The kernel as a module of the level "loop"; see `reduce_arguments` for what it takes."""
    if not kernel.row or (kernel.along == "column" and not kernel.outer):
        raise ValueError("a row has at least one dim, and so have the outer dims if lanes run along them")
    builder = _ReduceBuilder(name, kernel, machine)
    builder.units()
    return builder.b.module()


class _ReduceBuilder(StridedBuilder):
    def __init__(self, name: str, kernel: Reduce, machine: Machine) -> None:
        super().__init__(name, machine, reduce_buffers(kernel), reduce_sizes(kernel), _widest(kernel))
        self.kernel = kernel
        self.operand_names = [f"x{index}" for index in range(len(kernel.operands))]
        self.rows = [f"row{axis}" for axis in range(len(kernel.row))]
        self.outers = [f"outer{axis}" for axis in range(len(kernel.outer))]
        self.vectors = _vectors(kernel, machine)
        self.width = _width(kernel, machine)
        self.is_wide = _is_wide(kernel)

    def units(self) -> None:
        b, kernel = self.b, self.kernel
        if self.is_wide:
            self.kept = [b.alloc(total.dtype, _WIDE) for total in kernel.totals]
        pieces: Operand = 1
        if kernel.piece != 0:
            pieces = b.div(b.add(self.size("row0"), b.sub(self.size("piece"), 1)), self.size("piece"))
        with b.loop(b["begin"], b["end"]) as unit:
            if kernel.along == "row":
                indices = self.unravel(b.div(unit, pieces), self.outers)
                self.row_unit(indices, b.rem(unit, pieces) if kernel.piece != 0 else 0)
            else:
                width = self.width
                blocks = b.div(b.add(self.size(self.outers[-1]), width - 1), width)
                rest, block = b.div(unit, blocks), b.rem(unit, blocks)
                piece = b.rem(rest, pieces) if kernel.piece != 0 else 0
                indices = self.unravel(b.div(rest, pieces), self.outers[:-1])
                self.column_unit(indices, piece, b.mul(block, width))

    def bounds(self, piece: Operand) -> tuple[Operand, Operand]:
        """The steps of the first row dim that belong to a piece."""
        b = self.b
        if self.kernel.piece == 0:
            return 0, self.size("row0")
        start = b.mul(piece, self.size("piece"))
        return start, b.min(b.add(start, self.size("piece")), self.size("row0"))

    def places(self, kind: str, views: Sequence[View], indices: Sequence[Operand], piece: Operand = 0) -> list[Operand]:
        found = [self.place(f"{kind}{index}", "outer", indices) for index in range(len(views))]
        if kind == "y" and self.kernel.piece != 0:
            found = [
                self.b.add(place, self.b.mul(piece, self.size(f"y{index}_piece"))) for index, place in enumerate(found)
            ]
        return found

    def elements(self, places: Sequence[Operand], strides: Sequence[Operand], mask: Value | None) -> list[Value]:
        """What one vector of each operand adds to each total."""
        b = self.b
        loaded = [
            self.load(name, place, stride, mask)
            for name, place, stride in zip(self.operand_names, places, strides, strict=True)
        ]
        values = loaded if self.kernel.prologue is None else self.kernel.prologue(b, loaded)
        return [
            b.cast(b.value(value, types.vector(total.dtype, self.lanes)), total.dtype)
            for value, total in zip(values, self.kernel.totals, strict=True)
        ]

    def combined(self, sums: Sequence[Value], values: Sequence[Value]) -> list[Value]:
        return [
            self.b.scalar(COMBINE[total.combine], old, new)
            for total, old, new in zip(self.kernel.totals, sums, values, strict=True)
        ]

    def neutrals(self) -> list[Value]:
        return [self.b.constant(total.neutral, types.vector(total.dtype, self.lanes)) for total in self.kernel.totals]

    # ---- lanes along the row -----------------------------------------------------------------------------------------

    def row_unit(self, indices: Sequence[Operand], piece: Operand) -> None:
        b, kernel = self.b, self.kernel
        inner = len(kernel.row) - 1
        starts = self.places("x", kernel.operands, indices)
        bounds = self.bounds(piece)

        def along(places: list[Operand], sums: list[Value]) -> list[Value]:
            return self.along_row(places, sums, bounds if inner == 0 else (0, self.size(self.rows[-1])))

        chains = self.neutrals() * _CHAINS
        outer_bounds = bounds if inner else None
        found = self.nest(self.rows[:-1], self.operand_names, starts, chains, along, outer_bounds)
        count = len(kernel.totals)
        parts = [found[chain * count : (chain + 1) * count] for chain in range(_CHAINS)]
        pairs = [self.combined(parts[0], parts[1]), self.combined(parts[2], parts[3])]
        vectors = self.combined(*pairs)
        totals = [
            b.reduce(COMBINE[total.combine], vector) for total, vector in zip(kernel.totals, vectors, strict=True)
        ]
        if kernel.epilogue is not None:
            others = [
                self.widened(b.load(b[f"o{index}"], place))
                for index, place in enumerate(self.places("o", kernel.others, indices))
            ]
            totals = list(kernel.epilogue(b, [*totals, *others]))
        for index, place in enumerate(self.places("y", kernel.results, indices, piece)):
            self.store_one(totals[index], f"y{index}", place)

    def along_row(self, places: list[Operand], sums: list[Value], bounds: tuple[Operand, Operand]) -> list[Value]:
        """One stretch of the innermost dim: sets of vectors, then what is left with a mask."""
        b, count = self.b, len(self.kernel.totals)
        strides = [self.stride(name, "row", len(self.kernel.row) - 1) for name in self.operand_names]
        begin, end = bounds
        step = self.lanes * _CHAINS

        def vector(i: Operand, mask: Value | None = None) -> list[Value]:
            here = [b.add(place, b.mul(i, stride)) for place, stride in zip(places, strides, strict=True)]
            return self.elements(here, strides, mask)

        whole = b.add(begin, b.mul(b.div(b.sub(end, begin), step), step))
        with b.loop(begin, whole, step, sums) as state:
            following: list[Value] = []
            self.ask([b.add(place, state.index) for place in places], strides, step)
            for chain in range(_CHAINS):
                old = state.values[chain * count : (chain + 1) * count]
                following += self.combined(old, vector(b.add(state.index, chain * self.lanes)))
            state.yields(following)
        sums = list(state.results)
        with b.loop(whole, end, self.lanes, sums[:count]) as state:
            mask = b.tail_mask(b.index(b.sub(end, state.index)), self.lanes)
            values = [
                b.select(mask, value, neutral)
                for value, neutral in zip(vector(state.index, mask), self.neutrals(), strict=True)
            ]
            state.yields(self.combined(state.values, values))
        return [*state.results, *sums[count:]]

    def ask(self, places: Sequence[Operand], strides: Sequence[Operand], count: int) -> None:
        """Ask for the lines of as many elements a little further on; behind a row, they are often the next one's."""
        for name, place, stride in zip(self.operand_names, places, strides, strict=True):
            buffer = self.b[name]
            if isinstance(stride, Value) or stride != 1 or not isinstance(buffer.type, types.BufferType):
                continue
            bytes = max(1, buffer.type.dtype.bits // 8)
            for start in range(0, count, _LINE_BYTES // bytes):
                self.b.prefetch(buffer, self.b.add(place, AHEAD_BYTES // bytes + start))

    # ---- lanes along the last of the outer dims ----------------------------------------------------------------------

    def column_unit(self, indices: Sequence[Operand], piece: Operand, column: Operand) -> None:
        rest = self.b.sub(self.size(self.outers[-1]), column)
        if self.is_wide:
            self.wide_columns(indices, piece, column, self.b.min(rest, _WIDE))
            return
        self.with_masks(rest, self.vectors, lambda masks: self.columns(indices, piece, column, masks))

    def columns(
        self, indices: Sequence[Operand], piece: Operand, column: Operand, masks: Sequence[Value | None]
    ) -> None:
        """A block of columns."""
        b, kernel = self.b, self.kernel
        last = len(kernel.outer) - 1
        strides = [self.stride(name, "outer", last) for name in self.operand_names]

        def block(places: list[Operand], sums: list[Value]) -> list[Value]:
            following: list[Value] = []
            count = len(kernel.totals)
            for v, mask in enumerate(masks):
                here = [
                    b.add(place, b.mul(v * self.lanes, stride)) for place, stride in zip(places, strides, strict=True)
                ]
                following += self.combined(sums[v * count : (v + 1) * count], self.elements(here, strides, mask))
            return following

        starts = self.places("x", kernel.operands, [*indices, column])
        sums = self.nest(self.rows, self.operand_names, starts, self.neutrals() * len(masks), block, self.bounds(piece))
        others = self.places("o", kernel.others, [*indices, column])
        results = self.places("y", kernel.results, [*indices, column], piece)
        for v, mask in enumerate(masks):
            totals = sums[v * len(kernel.totals) : (v + 1) * len(kernel.totals)]
            self.finish_columns(totals, others, results, v * self.lanes, mask)

    def wide_columns(self, indices: Sequence[Operand], piece: Operand, column: Operand, columns: Operand) -> None:
        """A wide block of columns: each row is added to totals in memory, which stay in the first-level cache."""
        b, kernel = self.b, self.kernel
        neutrals = self.neutrals()

        def begin(i: Operand, mask: Value | None) -> None:
            for buffer, neutral in zip(self.kept, neutrals, strict=True):
                b.store(neutral, buffer, i, mask)

        def row(places: list[Operand], _: list[Value]) -> list[Value]:
            def add(i: Operand, mask: Value | None) -> None:
                elements = self.elements([b.add(place, i) for place in places], [1] * len(places), mask)
                sums = [b.load(buffer, i, self.lanes, mask) for buffer in self.kept]
                for buffer, total in zip(self.kept, self.combined(sums, elements), strict=True):
                    b.store(total, buffer, i, mask)

            self.each_vector(columns, add)
            return []

        self.each_vector(columns, begin)
        starts = self.places("x", kernel.operands, [*indices, column])
        self.nest(self.rows, self.operand_names, starts, [], row, self.bounds(piece))
        others = self.places("o", kernel.others, [*indices, column])
        results = self.places("y", kernel.results, [*indices, column], piece)

        def finish(i: Operand, mask: Value | None) -> None:
            totals = [b.load(buffer, i, self.lanes, mask) for buffer in self.kept]
            self.finish_columns(totals, others, results, i, mask)

        self.each_vector(columns, finish)

    def each_vector(self, columns: Operand, work: Callable[[Operand, Value | None], None]) -> None:
        """`work` on each vector of so many columns, with a mask if they do not fill the last one."""
        b = self.b
        whole = b.mul(b.div(columns, self.lanes), self.lanes)
        with b.loop(0, whole, self.lanes) as i:
            work(i, None)
        with b.loop(whole, columns, self.lanes) as i:
            work(i, b.tail_mask(b.index(b.sub(columns, i)), self.lanes))

    def finish_columns(
        self,
        totals: Sequence[Value],
        others: Sequence[Operand],
        results: Sequence[Operand],
        i: Operand,
        mask: Value | None,
    ) -> None:
        """Store the results of a vector of columns, from column `i` of a block on; `others` and `results` are the
        places of its first one."""
        b, epilogue, last = self.b, self.kernel.epilogue, len(self.kernel.outer) - 1

        def at(name: str, place: Operand) -> tuple[Operand, Operand]:
            step = self.stride(name, "outer", last)
            return b.add(place, b.mul(i, step)), step

        if epilogue is not None:
            given = [self.load(f"o{k}", *at(f"o{k}", place), mask) for k, place in enumerate(others)]
            totals = list(epilogue(b, [*totals, *given]))
        for k, place in enumerate(results):
            self.store(totals[k], f"y{k}", *at(f"y{k}", place), mask)
