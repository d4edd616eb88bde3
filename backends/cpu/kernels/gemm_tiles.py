"""The functions of a matrix product that compute one tile: one for each height that tiles can have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ....graph import types
from ....graph.core import Value
from ....graph.dtypes import bool_, i64
from ....graph.kernel.loop_builder import LoopBuilder, Operand
from ....graph.module import Function
from .tile import EpilogueBody, Given, Right, RowEpilogue, Target, Tile

if TYPE_CHECKING:
    from .gemm import Gemm, Tiling

_LINE_BITS = 512


class TileFunctions:
    """Makes the functions that are called, and calls them from `b`, the main function."""

    def __init__(self, b: LoopBuilder, gemm: Gemm, tiling: Tiling, body: EpilogueBody | RowEpilogue | None) -> None:
        self.b, self.gemm, self.tiling, self.body = b, gemm, tiling, body
        self.line = _LINE_BITS // gemm.dtype.bits
        # Whether k may be summed up in several blocks, so that C holds sums that are not finished.
        self.is_split = gemm.sums is gemm.dtype and (gemm.k is None or gemm.k > tiling.depth)
        self.is_direct = not gemm.b_packed and not tiling.copy_b
        if self.is_direct and gemm.b_column != 1:
            raise ValueError("columns of B that are not contiguous are copied before they are read")
        # Whether no tile reaches beyond the last column.
        self.is_whole = gemm.n is not None and gemm.n % (tiling.columns * tiling.panels) == 0
        self.fetches_a = tiling.fetch_a and not tiling.pack_a
        self._arguments = self._signature()

    def _signature(self) -> dict[str, types.Type]:
        """What a function takes. Strides that are known are no arguments."""
        gemm, index, buffer = self.gemm, types.scalar(i64), types.buffer(self.gemm.dtype)
        found: dict[str, types.Type] = {"a": buffer, "b": buffer, "c": buffer, "depth": index, "columns": index}
        if self.tiling.spread:
            found["next"] = index
        if self.is_split:
            found |= {"more": types.scalar(bool_), "last": types.scalar(bool_)}
        strides = ["c_row"]
        strides += [] if self.tiling.pack_a else ["a_row", "a_k"]
        strides += ["b_k"] if self.is_direct else []
        strides += ["k"] if self.tiling.panels > 1 else []
        found |= {name: index for name in strides if getattr(gemm, name) is None}
        for operand in gemm.epilogue.operands:
            found[operand.name] = types.buffer(operand.dtype)
            found |= {f"{operand.name}_row": index} if operand.row is None else {}
        return found

    def call(self, rows: Operand, given: Mapping[str, Operand]) -> None:
        """Call the function for tiles of `rows`, found by halving. Strides need not be given."""
        b = self.b
        heights = [rows] if isinstance(rows, int) else self.heights()
        passed = [
            b.value(given[name], type) if name in given else b[name] for name, type in self._arguments.items()
        ]  # fmt: skip

        def choose(low: int, high: int) -> None:
            if high - low == 1:
                b.call(self.function(heights[low]), *passed)
                return
            middle = (low + high) // 2
            b.branch(b.lt(rows, heights[middle]), lambda: choose(low, middle), lambda: choose(middle, high))

        choose(0, len(heights))

    def heights(self) -> list[int]:
        """The heights that tiles can have: two neighbours where the number of rows is known, else all or, with
        `few_heights`, halves of halves."""
        m, tiling = self.gemm.m, self.tiling
        if tiling.few_heights:
            return [height for power in range(tiling.rows.bit_length(), -1, -1) if (height := tiling.rows >> power)]
        if m is None or m == 0:
            return list(range(1, tiling.rows + 1))
        found = set()
        blocks = -(-m // tiling.block)
        for rows in {m // blocks, -(-m // blocks)}:
            tiles = -(-rows // tiling.rows)
            found |= {rows // tiles, -(-rows // tiles)}
        return sorted(found)

    def function(self, rows: int) -> str:
        """The function that sums up a tile of `rows`; made when it is first asked for."""
        name = f"tile{rows}"
        if all(function.key.name != name for function in self.b.functions):
            self.b.include(self.build(name, rows))
        return name

    def build(self, name: str, rows: int) -> Function:
        gemm, tiling = self.gemm, self.tiling
        b = LoopBuilder(name, **self._arguments)

        def size(which: str) -> Operand:
            known = getattr(gemm, which)
            return b[which] if known is None else known

        def places(stride: Operand) -> list[Operand]:
            return [b.mul(row, stride) for row in range(rows)]

        a_row, a_k = (1, tiling.rows) if tiling.pack_a else (size("a_row"), size("a_k"))
        tile = Tile(rows, tiling.vectors * tiling.panels, tiling.lanes, gemm.sums)
        right, starts = self.right(b, size)
        c_places = places(size("c_row"))
        # Long before they are stored to, C's lines are asked for.
        for place in c_places:
            for line in range(-(-tile.columns // self.line)):
                b.prefetch(b["c"], b.add(place, line * self.line), 1)
        fetches = tiling.spread or tiling.ahead or self.fetches_a
        beside = self.prefetches(b, right, starts, rows, size) if fetches else None
        is_even = gemm.k is not None and gemm.k > 0 and gemm.k % tiling.depth == 0
        depth: Operand = tiling.depth if is_even else b["depth"]
        sums = tile.accumulate(
            b, tile.zeros(b), depth, b["a"], places(a_row), a_k, right, tiling.unroll, beside
        )  # fmt: skip
        columns: Operand = tile.columns if self.is_whole else b["columns"]
        for panel in range(tiling.panels):
            self.finish(b, tile, sums, panel, c_places, columns)
        return b.finish()

    def finish(
        self,
        b: LoopBuilder,
        tile: Tile,
        sums: Sequence[Value],
        panel: int,
        c_places: Sequence[Operand],
        columns: Operand,
    ) -> None:
        """Store the sums of one panel. The first of several parts of k is never the last."""
        part = Tile(tile.rows, self.tiling.vectors, self.tiling.lanes, self.gemm.sums)
        begin = panel * part.columns
        given = []
        for operand in self.gemm.epilogue.operands:
            stride: Operand = b[f"{operand.name}_row"] if operand.row is None else operand.row
            rows = range(1 if not isinstance(stride, Value) and stride == 0 else tile.rows)
            at = [b.add(b.mul(row, stride), begin * operand.column) for row in rows]
            given.append(Given(b[operand.name], at, operand.column))
        target = Target(b["c"], [b.add(place, begin) for place in c_places], b.sub(columns, begin))
        chosen = [
            sums[row * tile.vectors + panel * part.vectors + v]
            for row in range(tile.rows)
            for v in range(part.vectors)
        ]  # fmt: skip

        def store(more: Operand, last: Operand) -> None:
            part.finish(b, chosen, target, more, last, self.body, given)

        if not self.is_split:
            store(False, True)
        elif self.gemm.k is None:
            store(b["more"], b["last"])
        else:
            b.branch(b["more"], lambda: store(True, b["last"]), lambda: store(False, False))

    def right(self, b: LoopBuilder, size: Callable[[str], Operand]) -> tuple[Right, list[Operand]]:
        """How the tile reads B, and where each panel begins."""
        tiling = self.tiling
        vectors = range(0, tiling.columns, tiling.lanes)
        if self.is_direct:
            masks = (
                [] if self.is_whole else [b.tail_mask(b.index(b.sub(b["columns"], v)), tiling.lanes) for v in vectors]
            )
            return Right(b["b"], size("b_k"), vectors, masks), [0]
        starts: list[Operand] = [0]
        for panel in range(1, tiling.panels):
            # Beyond the last panel the first is read again, and its sums are not stored.
            exists = b.lt(b.index(panel * tiling.columns), b["columns"])
            starts.append(b.select(exists, b.mul(size("k"), panel * tiling.columns), b.index(0)))
        return Right(b["b"], tiling.columns, [b.add(start, v) for start in starts for v in vectors]), starts

    def prefetches(
        self, b: LoopBuilder, right: Right, starts: list[Operand], rows: int, size: Callable[[str], Operand]
    ) -> Callable[[Operand], None]:
        """What is prefetched beside `unroll` steps: B's numbers for the next strip and later steps, A's for the next
        tile."""
        tiling = self.tiling

        def beside(k: Operand) -> None:
            for line in range(tiling.spread):
                place = b.add(b.mul(b.div(k, tiling.unroll), self.line * tiling.spread), self.line * line)
                b.prefetch(b["b"], b.add(b["next"], place), 2)
            if tiling.ahead:
                for step in range(tiling.unroll):
                    place = b.mul(b.add(k, tiling.ahead + step), right.step)
                    for start in starts:
                        for line in range(-(-tiling.columns // self.line)):
                            b.prefetch(b["b"], b.add(b.add(place, start), self.line * line), 2)
            if self.fetches_a:
                # Of a line's worth of steps, each group of steps fetches its share of the rows.
                groups = self.line // tiling.unroll
                share = -(-rows // groups)
                row = b.mul(b.rem(b.div(k, tiling.unroll), groups), share)
                for part in range(share):
                    place = b.add(b.mul(b.add(row, rows + part), size("a_row")), b.mul(k, size("a_k")))
                    b.prefetch(b["a"], place, 2)

        return beside
