"""How generators of kernels go over rows, vector by vector, several times if need be.

Lanes lie along a row, in sets of vectors with totals of their own, so that additions need not wait for each other; or
they lie along the last of the outer dims, so that each has a row of its own, in a block of some vectors of columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ....graph import types
from ....graph.core import Value
from ....graph.dtypes import DType
from ....graph.kernel.loop_builder import Operand
from ..machine import Machine
from .elementwise import AHEAD_BYTES
from .strided import Along, Size, StridedBuilder

# Vectors of totals along a row, and vectors of columns in a block.
CHAINS = 4
# Rows from this length on are asked for before they are read.
_PREFETCHED = 256


@dataclass(frozen=True)
class Spot:
    """A vector of elements: its place in each tensor, its mask, and which it is of those that are worked on at once."""

    places: dict[str, Operand]
    mask: Value | None
    number: int


# What is done with a vector of elements, which may change the totals.
Step: TypeAlias = Callable[[Spot, "list[Value]"], None]


class RowWalk(StridedBuilder):
    """Walks over the tensors' rows; `width` is how many vectors are worked on side by side."""

    def __init__(
        self,
        name: str,
        machine: Machine,
        buffers: Mapping[str, DType],
        sizes: Mapping[str, Size],
        widest: DType,
        outer: Sequence[Size],
        row: Sequence[Size],
        along: Along,
        width: int,
    ) -> None:
        super().__init__(name, machine, buffers, sizes, widest)
        self.outers = [f"outer{axis}" for axis in range(len(outer))]
        self.rows = [f"row{axis}" for axis in range(len(row))]
        self.by_column = along == "column"
        self.width = width
        self.masks: Sequence[Value | None] = [None] * width
        self.length = row[-1]
        # Whether rows are long enough to ask for the next ones while this one is worked on.
        self.asks_for_rows = bool(outer) and len(row) == 1 and (self.length is None or self.length >= _PREFETCHED)

    def inner_stride(self, name: str) -> Operand:
        part, axis = ("outer", len(self.outers) - 1) if self.by_column else ("row", len(self.rows) - 1)
        return self.stride(name, part, axis)

    def keep(self, name: str, values: Sequence[Value], indices: Sequence[Operand]) -> None:
        """Store what has one number for each row: the first lane, or a vector for each vector of columns."""
        place = self.place(name, "outer", indices)
        if not self.by_column:
            self.store_one(self.b.extract(values[0], 0), name, place)
            return
        stride = self.stride(name, "outer", len(self.outers) - 1)
        for v, value in enumerate(values):
            self.store(value, name, self.b.add(place, self.b.mul(v * self.lanes, stride)), stride, self.masks[v])

    # ---- asking for memory -------------------------------------------------------------------------------------------

    def ask(self, name: str, spot: Spot) -> None:
        """Ask for the line that will be needed a little later; of a short row, it is in another one."""
        stride = self.inner_stride(name)
        if self.by_column or isinstance(stride, Value) or stride != 1:
            return
        ahead = AHEAD_BYTES // max(1, self._bits(name) // 8)
        self.b.prefetch(self.b[name], self.b.add(spot.places[name], ahead), writes=name[0] != "x")

    def prefetch_next(self, names: Sequence[str], spot: Spot) -> None:
        """Ask for the same place of the row that is read next, or of a later one if rows are short."""
        for name in names:
            distance = self.stride(name, "outer", len(self.outers) - 1)
            if isinstance(distance, Value) or distance:
                ahead = self.b.mul(distance, self._rows_ahead(name))
                self.b.prefetch(self.b[name], self.b.add(spot.places[name], ahead))

    def prefetch_parts(self, names: Sequence[str], places: Mapping[str, Operand], i: Operand) -> None:
        """The same for a set of vectors at `i`, from memory into the second cache, in as many parts of the row as there
        are vectors in the set: a processor fetches ahead within a page, so several pages at once arrive far sooner."""
        b = self.b
        for name in names:
            distance, inner = self.stride(name, "outer", len(self.outers) - 1), self.inner_stride(name)
            if not isinstance(distance, Value) and not distance:
                continue
            start = b.add(places[name], b.mul(distance, self._rows_ahead(name)))
            start = b.add(start, b.mul(b.div(i, self.width), inner))
            part = b.mul(b.div(self.size(self.rows[-1]), self.width), inner)
            for chain in range(self.width):
                b.prefetch(b[name], b.add(start, b.mul(part, chain)), level=2)

    def _rows_ahead(self, name: str) -> int:
        """Which of the rows that follow is asked for."""
        return 1 if self.length is None else max(1, -(-AHEAD_BYTES * 8 // (self.length * self._bits(name))))

    def _bits(self, name: str) -> int:
        buffer = self.b[name].type
        assert isinstance(buffer, types.BufferType)
        return buffer.dtype.bits

    # ---- passes ------------------------------------------------------------------------------------------------------

    def walk(
        self, names: Sequence[str], starts: Mapping[str, Operand], carried: Sequence[Value], step: Step
    ) -> list[Value]:
        """`step` on every vector of the row, or block of rows, at `starts`; the totals as it leaves them."""
        extents, inner = (self.rows, self.block) if self.by_column else (self.rows[:-1], self.stretch)
        return self.nest(
            extents, names, [starts[name] for name in names], carried,
            lambda places, totals: inner(dict(zip(names, places, strict=True)), totals, step),
        )  # fmt: skip

    def block(self, places: dict[str, Operand], totals: Sequence[Value], step: Step, row: int = 0) -> list[Value]:
        """One step of the row dims for each vector of columns."""
        following = list(totals)
        for v, mask in enumerate(self.masks):
            step(self.spot(places, v * self.lanes, mask, row * self.width + v), following)
        return following

    def stretch(
        self, places: dict[str, Operand], totals: Sequence[Value], step: Step, begin: Operand = 0
    ) -> list[Value]:
        """The innermost dim of a row, from the set of vectors at `begin` on: sets of vectors, then what is left."""
        b, length = self.b, self.size(self.rows[-1])
        width = self.lanes * self.width
        whole = b.mul(b.div(length, width), width)
        following = list(totals)
        if isinstance(whole, Value) or whole:
            following = self.repeated(
                begin, whole, width, following, lambda i, values: self.set(places, i, values, step)
            )
        if isinstance(whole, int) and isinstance(length, int):
            for number, start in enumerate(range(whole, length, self.lanes)):
                step(self.spot(places, start, self.tail(length - start), number), following)
            return following

        def rest(i: Operand, values: list[Value]) -> None:
            mask = b.tail_mask(b.index(b.sub(length, i)), self.lanes)
            step(self.spot(places, i, mask, 0), values)

        return self.repeated(whole, length, self.lanes, following, rest)

    def set(self, places: dict[str, Operand], i: Operand, totals: list[Value], step: Step) -> None:
        """Vectors that are worked on side by side."""
        for chain in range(self.width):
            step(self.spot(places, self.b.add(i, chain * self.lanes), None, chain), totals)

    def repeated(
        self, begin: Operand, end: Operand, step: int, totals: list[Value], body: Callable[[Operand, list[Value]], None]
    ) -> list[Value]:
        """A loop over `body`, which changes the totals it is given."""
        with self.b.loop(begin, end, step, totals) as state:
            values = list(state.values) if totals else []
            body(state.index if totals else state, values)
            if totals:
                state.yields(values)
        return list(state.results) if totals else []

    def spot(self, places: Mapping[str, Operand], ahead: Operand, mask: Value | None, number: int) -> Spot:
        b = self.b
        here = {name: b.add(place, b.mul(ahead, self.inner_stride(name))) for name, place in places.items()}
        return Spot(here, mask, number)

    def tail(self, count: int) -> Value | None:
        """The mask for the first `count` lanes; None if it is all of them."""
        return None if count >= self.lanes else self.b.tail_mask(self.b.index(count), self.lanes)
