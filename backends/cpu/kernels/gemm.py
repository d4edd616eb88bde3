"""Matrix products: C[i, j] = f(sum over k of A[i, k] * B[k, j]), in tiles that stay in registers.

A tile of `rows` x `columns` numbers of C is summed up in registers while k runs through a block (Goto & van de Geijn
2008, "Anatomy of High-Performance Matrix Multiplication"). B lies in panels, each `columns` wide and as deep as k, so
that a tile reads it in order; a constant B is packed so when the model is compiled, another one strip by strip as it is
needed. A is read where it lies if its rows are not far apart, else packed block by block.

    work unit (batch, block of rows, panel of columns)
      block of k
        panel: B's strip, in the first-level cache
          tile: A's rows, in the second-level cache
            k: registers
          f on the tile, when its last block of k is done

Rows of C are shared out evenly among tiles, so that 128 rows are ten tiles of 13 or 12 rather than nine of 14 and one
of 2. Strides and sizes are numbers where they are known, and arguments of the kernel where they are not.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ....graph import types
from ....graph.core import Value
from ....graph.dtypes import DType, bool_, i64
from ....graph.kernel.loop_builder import LoopBuilder, Operand
from ....graph.module import Function, Module
from ..machine import Machine
from .pack import pack_strip, strip_size
from .tile import Epilogue, EpilogueOperand, Given, Size, Target, Tile, epilogue_body


@dataclass(frozen=True)
class Tiling:
    """`rows` x `vectors` registers of sums; `depth` steps of k at a time; `block` rows of A at a time.

    `unroll` steps are written out in the innermost loop. `prefetch` fetches the next strip of B while this one is used.
    """

    rows: int
    vectors: int
    lanes: int
    depth: int
    block: int
    unroll: int = 1
    prefetch: int = 0

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes


@dataclass(frozen=True)
class Gemm:
    """A matrix product. Strides count elements; `b_packed` says that B lies in panels (see `packed_panels`).

    `a_row` and `a_k` are the strides of A, `b_k` and `b_column` those of B, `c_row` that of C, whose rows are
    contiguous. `pack_a` copies A before it is used.
    """

    m: Size
    n: Size
    k: Size
    dtype: DType
    a_row: Size
    a_k: Size
    c_row: Size
    b_packed: bool = True
    b_k: Size = None
    b_column: Size = None
    batched: bool = False
    pack_a: bool = False
    epilogue: Epilogue = field(default_factory=Epilogue)


def choose_tiling(machine: Machine, dtype: DType, m: Size, n: Size, k: Size) -> Tiling:
    """A tile that fills the registers (14 x 2 of 32, 6 x 2 of 16), and blocks that fill half the second-level cache."""
    lanes = machine.lanes(dtype)
    vectors = 1 if n is not None and n <= lanes else 2
    # Four registers are left for the row of B and the number of A that is multiplied with it.
    rows = min((machine.registers - 4) // vectors, 14)
    element = dtype.bits // 8
    # A strip of B within the first-level cache would be ideal; the second level feeds the registers as well.
    depth = max(64, machine.l2 // 2 // element // max(rows, min(m or 256, 256)))
    depth = min(depth, 1024)
    if k is not None:
        parts = -(-k // depth)
        depth = -(-k // max(parts, 1)) if k else 1
    block = max(rows, machine.l2 // 2 // element // max(depth, 1) // rows * rows)
    return Tiling(rows, vectors, lanes, depth, block)


def scratch_elements(gemm: Gemm, tiling: Tiling) -> int:
    """Elements of memory of its own that each thread needs."""
    return _a_scratch(gemm, tiling) + (0 if gemm.b_packed else _b_scratch(gemm, tiling))


def _a_scratch(gemm: Gemm, tiling: Tiling) -> int:
    if not gemm.pack_a:
        return 0
    # Tiles are of even height, so up to twice as many as full ones would be.
    tiles = 2 * (tiling.block // tiling.rows) + 1
    return tiles * strip_size(tiling.rows, tiling.depth, gemm.dtype, tiling.lanes)


def _b_scratch(gemm: Gemm, tiling: Tiling) -> int:
    return strip_size(tiling.columns, tiling.depth, gemm.dtype, tiling.lanes)


def arguments_of(gemm: Gemm) -> list[str]:
    """The names of the kernel's arguments, in order; `begin` to `end` are the work units it does."""
    sizes = [name for name in ("m", "n", "k", "a_row", "a_k", "b_k", "b_column", "c_row") if _is_argument(gemm, name)]
    batch = ["a_batch", "b_batch", "c_batch"] if gemm.batched else []
    operands = [name for o in gemm.epilogue.operands for name in _operand_arguments(gemm, o)]
    return ["a", "b", "c", "scratch", *sizes, *batch, *operands, "begin", "end", "thread"]


def _operand_arguments(gemm: Gemm, operand: EpilogueOperand) -> list[str]:
    names = [operand.name]
    if operand.row is None:
        names.append(f"{operand.name}_row")
    if gemm.batched:
        names.append(f"{operand.name}_batch")
    return names


def _is_argument(gemm: Gemm, name: str) -> bool:
    if gemm.b_packed and name in ("b_k", "b_column"):
        return False
    return getattr(gemm, name) is None


def work_units(gemm: Gemm, tiling: Tiling, m: int, n: int, batch: int = 1) -> int:
    """How many units of work there are."""
    return batch * _blocks(m, tiling) * -(-n // tiling.columns)


def _blocks(m: int, tiling: Tiling) -> int:
    return -(-m // tiling.block)


def build_gemm(name: str, gemm: Gemm, tiling: Tiling) -> Module:
    """The kernel as a module of the level "loop"; see `arguments_of` for what it takes."""
    return _GemmBuilder(name, gemm, tiling).module()


class _GemmBuilder:
    def __init__(self, name: str, gemm: Gemm, tiling: Tiling) -> None:
        self.gemm = gemm
        self.tiling = tiling
        buffers = {"a", "b", "c", "scratch"}
        dtypes = {operand.name: operand.dtype for operand in gemm.epilogue.operands}
        arguments: dict[str, types.Type] = {}
        for argument in arguments_of(gemm):
            if argument in dtypes:
                arguments[argument] = types.buffer(dtypes[argument])
            else:
                arguments[argument] = types.buffer(gemm.dtype) if argument in buffers else types.scalar(i64)
        self.b = LoopBuilder(name, **arguments)
        self.body = epilogue_body(self.b, "epilogue", gemm.epilogue, tiling.lanes, gemm.dtype)

    def size(self, name: str) -> Operand:
        known = getattr(self.gemm, name)
        return self.b[name] if known is None else known

    def module(self) -> Module:
        b, gemm, tiling = self.b, self.gemm, self.tiling
        m, n = self.size("m"), self.size("n")
        self.panels = b.div(b.add(n, tiling.columns - 1), tiling.columns)
        self.blocks = b.div(b.add(m, tiling.block - 1), tiling.block)
        scratch = b.view(b["scratch"], b.mul(b["thread"], scratch_elements(gemm, tiling)))
        self.a_scratch, self.b_scratch = scratch, b.view(scratch, _a_scratch(gemm, tiling))
        first, last = b.div(b["begin"], self.panels), b.div(b.add(b["end"], b.sub(self.panels, 1)), self.panels)
        with b.loop(first, last) as part:
            from_panel = b.max(b.sub(b["begin"], b.mul(part, self.panels)), 0)
            to_panel = b.min(b.sub(b["end"], b.mul(part, self.panels)), self.panels)
            batch = b.div(part, self.blocks) if gemm.batched else 0
            self.row_block(batch, b.sub(part, b.mul(batch, self.blocks)), from_panel, to_panel)
        return b.module()

    def row_block(self, batch: Operand, block: Operand, from_panel: Operand, to_panel: Operand) -> None:
        """All panels of one block of rows. Its rows are shared out evenly among its tiles."""
        b, gemm, tiling = self.b, self.gemm, self.tiling
        m, k = self.size("m"), self.size("k")
        buffers = {name: b[name] for name in ("a", "b", "c")}
        if gemm.batched:
            buffers = {name: b.view(buffer, b.mul(batch, b[f"{name}_batch"])) for name, buffer in buffers.items()}
        first = b.div(b.mul(block, m), self.blocks)
        rows = b.sub(b.div(b.mul(b.add(block, 1), m), self.blocks), first)
        tiles = b.div(b.add(rows, tiling.rows - 1), tiling.rows)
        a = b.view(buffers["a"], b.mul(first, self.size("a_row")))
        c = b.view(buffers["c"], b.mul(first, self.size("c_row")))
        place = _Place(batch, first, rows, tiles, a, buffers["b"], c)
        # Without any k the sum is 0, so one block is done at least.
        with b.loop(0, b.max(k, 1), tiling.depth) as start:
            depth = b.max(b.min(b.sub(k, start), tiling.depth), 0)
            if gemm.pack_a:
                self.pack_block(place, start, depth)
            with b.loop(from_panel, to_panel) as panel:
                self.panel(place, panel, start, depth)

    def tile_rows(self, place: _Place, tile: Operand) -> tuple[Operand, Operand]:
        """The first row of a tile, counted from the block's, and how many it has."""
        b = self.b
        first = b.div(b.mul(tile, place.rows), place.tiles)
        return first, b.sub(b.div(b.mul(b.add(tile, 1), place.rows), place.tiles), first)

    def pack_block(self, place: _Place, start: Operand, depth: Operand) -> None:
        b, tiling = self.b, self.tiling
        size = strip_size(tiling.rows, tiling.depth, self.gemm.dtype, tiling.lanes)
        with b.loop(0, place.tiles) as tile:
            first, rows = self.tile_rows(place, tile)
            source = b.view(place.a, b.add(b.mul(first, self.size("a_row")), b.mul(start, self.size("a_k"))))
            target = b.view(self.a_scratch, b.mul(tile, size))
            strides = self.size("a_row"), self.size("a_k")
            pack_strip(b, source, target, rows, depth, tiling.rows, *strides, tiling.lanes)

    def panel(self, place: _Place, panel: Operand, start: Operand, depth: Operand) -> None:
        b, gemm, tiling = self.b, self.gemm, self.tiling
        n, k = self.size("n"), self.size("k")
        column = b.mul(panel, tiling.columns)
        columns = b.min(b.sub(n, column), tiling.columns)
        if gemm.b_packed:
            strip = b.view(place.b, b.add(b.mul(b.mul(panel, k), tiling.columns), b.mul(start, tiling.columns)))
        else:
            strides = self.size("b_column"), self.size("b_k")
            source = b.view(place.b, b.add(b.mul(column, strides[0]), b.mul(start, strides[1])))
            strip = self.b_scratch
            pack_strip(b, source, strip, columns, depth, tiling.columns, *strides, tiling.lanes)
        next_ = b.view(strip, b.mul(k, tiling.columns)) if gemm.b_packed else strip
        with b.loop(0, place.tiles) as tile:
            first, rows = self.tile_rows(place, tile)
            target = b.view(place.c, b.add(b.mul(first, self.size("c_row")), column))
            if gemm.pack_a:
                size = strip_size(tiling.rows, tiling.depth, gemm.dtype, tiling.lanes)
                source = b.view(self.a_scratch, b.mul(tile, size))
            else:
                source = b.view(place.a, b.add(b.mul(first, self.size("a_row")), b.mul(start, self.size("a_k"))))
            tile_place = _TilePlace(place, b.add(place.first, first), rows, column, columns, tile)
            self.tile(tile_place, source, strip, target, start, depth, next_)

    def tile(self, place: _TilePlace, a: Value, strip: Value, c: Value, start: Operand, depth: Operand, next_: Operand) -> None:
        """Call the function for tiles of `place.rows`, found by halving."""
        heights = self.heights()
        b, k = self.b, self.size("k")
        given: list[Operand] = [a, strip, c, depth, place.columns]
        if self.tiling.prefetch:
            step = 16 * self.tiling.prefetch
            given.append(b.view(next_, b.mul(place.index, b.div(b.mul(depth, step), self.tiling.unroll))))
        if self.is_split():
            flags = b.lt(0, start), b.le(k, b.add(start, self.tiling.depth))
            given += [b.value(flag, types.scalar(bool_)) for flag in flags]
        given += [b[name] for name in ("a_row", "a_k", "c_row") if self.is_passed(name)]
        for operand in self.gemm.epilogue.operands:
            stride: Operand = b[f"{operand.name}_row"] if operand.row is None else operand.row
            offset: Operand = b.add(b.mul(place.row, stride), b.mul(place.column, operand.column))
            if self.gemm.batched:
                offset = b.add(offset, b.mul(place.block.batch, b[f"{operand.name}_batch"]))
            given += [b.view(b[operand.name], offset), *([stride] if operand.row is None else [])]

        def choose(low: int, high: int) -> None:
            if high - low == 1:
                b.call(self.micro(heights[low]), *given)
                return
            middle = (low + high) // 2
            b.branch(b.lt(place.rows, heights[middle]), lambda: choose(low, middle), lambda: choose(middle, high))

        choose(0, len(heights))

    def is_split(self) -> bool:
        """Whether k may be summed up in several blocks, so that C holds sums that are not finished."""
        return self.gemm.k is None or self.gemm.k > self.tiling.depth

    def is_passed(self, name: str) -> bool:
        return getattr(self.gemm, name) is None and not (self.gemm.pack_a and name != "c_row")

    def heights(self) -> list[int]:
        """The heights that tiles can have: two neighbours where the number of rows is known, else all."""
        m, tiling = self.gemm.m, self.tiling
        if m is None or m == 0:
            return list(range(1, tiling.rows + 1))
        found = set()
        blocks = _blocks(m, tiling)
        for rows in {m // blocks, -(-m // blocks)}:
            tiles = -(-rows // tiling.rows)
            found |= {rows // tiles, -(-rows // tiles)}
        return sorted(found)

    def micro(self, rows: int) -> str:
        """The function that sums up a tile of `rows`; made when it is first asked for."""
        name = f"tile{rows}"
        if all(function.key.name != name for function in self.b.functions):
            self.b.include(self.micro_kernel(name, rows))
        return name

    def micro_kernel(self, name: str, rows: int) -> Function:
        gemm, tiling = self.gemm, self.tiling
        index, buffer, flag = types.scalar(i64), types.buffer(gemm.dtype), types.scalar(bool_)
        arguments: dict[str, types.Type] = {"a": buffer, "b": buffer, "c": buffer, "depth": index, "columns": index}
        arguments |= {"next": buffer} if tiling.prefetch else {}
        arguments |= {"more": flag, "last": flag} if self.is_split() else {}
        arguments |= {stride: index for stride in ("a_row", "a_k", "c_row") if self.is_passed(stride)}
        for operand in gemm.epilogue.operands:
            arguments[operand.name] = types.buffer(operand.dtype)
            arguments |= {f"{operand.name}_row": index} if operand.row is None else {}
        b = LoopBuilder(name, **arguments)

        def size(which: str, known: Size) -> Operand:
            return b[which] if which in arguments else known  # type: ignore[return-value]

        def places(stride: Operand) -> list[Operand]:
            return [b.mul(row, stride) for row in range(rows)]

        a_row, a_k = (1, tiling.rows) if gemm.pack_a else (size("a_row", gemm.a_row), size("a_k", gemm.a_k))
        tile = Tile(rows, tiling.vectors, tiling.lanes, gemm.dtype)
        def ahead(k: Operand) -> None:
            for line in range(tiling.prefetch):
                b.prefetch(b["next"], b.add(b.mul(k, 16 * tiling.prefetch // tiling.unroll), 16 * line), 2)

        beside = ahead if tiling.prefetch else None
        sums = tile.accumulate(
            b, tile.zeros(b), b["depth"], b["a"], places(a_row), a_k, b["b"], tiling.unroll, beside
        )
        given = []
        for operand in gemm.epilogue.operands:
            stride = size(f"{operand.name}_row", operand.row)
            given.append(Given(b[operand.name], [0] if stride == 0 else places(stride), operand.column))
        target = Target(b["c"], places(size("c_row", gemm.c_row)), b["columns"])
        more, last = (b["more"], b["last"]) if self.is_split() else (False, True)
        tile.finish(b, sums, target, more, last, self.body, given)
        return b.finish()


@dataclass(frozen=True)
class _Place:
    """A block of rows: its batch, first row, how many rows and tiles it has, and its parts of A, B and C."""

    batch: Operand
    first: Operand
    rows: Operand
    tiles: Operand
    a: Value
    b: Value
    c: Value


@dataclass(frozen=True)
class _TilePlace:
    """A tile: its block, its first row and column in C, and how many it has of them."""

    block: _Place
    row: Operand
    rows: Operand
    column: Operand
    columns: Operand
    index: Operand
