"""Matrix products: C[i, j] = f(sum over k of A[i, k] * B[k, j]), in tiles that stay in registers.

A tile of `rows` x `columns` numbers of C is summed up in registers while k runs through a block (Goto & van de Geijn
2008, "Anatomy of High-Performance Matrix Multiplication"). B lies in panels, each `columns` wide and as deep as k, so
that a tile reads it in order; a constant B is packed so when the model is compiled, another one strip by strip as it is
needed, or read where it lies if few rows use it. A is read where it lies, or packed block by block.

    work unit (batch, block of rows, group of panels)
      block of k
        panel: B's strip, in the first-level cache
          tile: A's rows, in the second-level cache
            k: registers
          f on the tile, when its last block of k is done

The weights of a network come from beyond the second-level cache, and a core can wait for a few lines at a time only. So
each tile prefetches a part of the strip that comes next; on large products that is worth 15 to 30 percent. If all of B
fits into that cache, tiles prefetch the rows of A for the tile that follows, too. Where there are few rows, tiles are
several panels wide, and the memory decides.

Rows of C are shared out evenly among tiles, so that 128 rows are ten tiles of 13 or 12 rather than nine of 14 and one
of 2. Where their number is not known, that takes code for each height, most of a second to compile. With a small or a
copied B, full tiles and then lower and lower ones are hardly slower, and take a tenth of it. Strides and sizes are
numbers where they are known, and arguments of the kernel where they are not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from ....graph import types
from ....graph.core import Value
from ....graph.dtypes import DType, i64
from ....graph.kernel.loop_builder import LoopBuilder, Operand
from ....graph.kernel.scalar_emitter import computed_in
from ....graph.module import Module
from ..machine import Machine
from .gemm_tiles import TileFunctions
from .pack import pack_strip, strip_size
from .tile import THREAD_ROWS, Epilogue, EpilogueOperand, Size, finishing_body, is_long

# A product is cut into so many units of work if it is large, whatever the number of threads.
UNITS = 16
# So many rows of a product of more than twice as many are a block, for the sake of long sums.
_LOW_BLOCK = 128
# So much more may a tile of three vectors compute than one of two.
_WIDER = 1.03
# Steps of k between a prefetch and the use: at 14 cycles each, longer than memory takes.
AHEAD = 64
# As many rows pay for copying a strip of B into the order in which it is read.
_DIRECT_ROWS = 128
# Steps of k between a prefetch of a B that is read where it lies, and its use.
_DIRECT_AHEAD = 16
# Of few rows, and of an A whose rows are its contiguous dim, so many steps of k at a time: rows of B, or lines of A,
# that lie far apart find a place in the first-level cache.
_SHORT = 256
# As many columns pay for copying an A whose rows are its contiguous dim.
_TURNED_COLUMNS = 64
_LINE, _WAYS = 64, 16
# With so many numbers in B, tiles of few different heights do for any number of rows: it stays near the registers.
_SMALL_RIGHT = 1 << 14
_LOW_TILE = 8


@dataclass(frozen=True)
class Tiling:
    """How a product is computed; any is correct.

    `rows` x `vectors` registers of sums for each of `panels` panels; `depth` steps of k at a time; `block` rows of A at
    a time. `unroll` steps are written out in the innermost loop; `spread` is how many cache lines of the next strip are
    prefetched for them, by each tile another part of it. B is also prefetched `ahead` steps before it is used, A with
    `fetch_a` one tile before. `pack_a` copies A before it is used, `copy_b` each strip of a B that is not packed. With
    `few_heights` tiles are full, and those of half the height, and half of that, do what is left; else rows are shared
    out evenly.
    """

    rows: int
    vectors: int
    lanes: int
    depth: int
    block: int
    unroll: int = 1
    spread: int = 0
    ahead: int = 0
    fetch_a: bool = False
    panels: int = 1
    pack_a: bool = False
    copy_b: bool = True
    few_heights: bool = False

    @property
    def columns(self) -> int:
        """The width of one panel."""
        return self.vectors * self.lanes


@dataclass(frozen=True)
class Gemm:
    """A matrix product. Strides count elements; `b_packed` says that B lies in panels (see `packed_panels`).

    `a_row` and `a_k` are the strides of A, `b_k` and `b_column` those of B, `c_row` that of C, whose rows are
    contiguous. Narrow floats are summed up in f32, never in parts, so the tiling's depth must be k.
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
    epilogue: Epilogue = field(default_factory=Epilogue)

    @property
    def sums(self) -> DType:
        return computed_in(self.dtype)


def choose_tiling(
    machine: Machine,
    dtype: DType,
    m: Size,
    n: Size,
    k: Size,
    batch: int = 1,
    packed: bool = True,
    b_column: Size = 1,
    b_k: Size = None,
    a_row: Size = None,
    threads: int = 1,
) -> Tiling:
    """A tile that fills the registers (14 x 2 of 32, 4 x 3 or 6 x 2 of 16), and blocks that fill two thirds of the
    second-level cache.

    `packed` says whether B lies in panels; if not, `b_k` and `b_column` are the strides of its rows and columns. An
    `a_row` of 1 says that columns of A are contiguous, as in the gradient of a weight. Results do not depend on
    `threads`, only which of them computes what.
    """
    lanes = machine.lanes(computed_in(dtype))
    vectors = _vectors(machine, n, lanes, packed)
    # Four registers are left for the row of B and the number of A that is multiplied with it.
    rows = min((machine.registers - 4) // vectors, 14)
    if m is not None and m <= rows and (packed or b_column == 1):
        return _skinny(machine, Tiling(rows, vectors, lanes, 0, rows), m, n, k, packed)
    element = computed_in(dtype).bits // 8
    # A strip of B within the first-level cache would be ideal; the second level feeds the registers as well. Long sums
    # are worth more than high blocks, though each of those reads all of B.
    room = machine.l2 * 2 // 3 // element
    high = m if m is not None and m <= 2 * _LOW_BLOCK else _LOW_BLOCK
    depth = max(64, room // max(rows, high))
    turned = a_row == 1 and m is not None and k is not None and k > 1 and n is not None and n >= _TURNED_COLUMNS
    few = not packed and m is not None and m <= 2 * _DIRECT_ROWS
    depth = _even(min(depth, _SHORT if turned or few else 1024), k) if computed_in(dtype) is dtype else k or depth
    block = max(rows, room // max(depth, 1) // rows * rows)
    if m is not None:
        groups = batch * -(-(n or 1) // (vectors * lanes))
        # Smaller blocks only to have work for all threads: each reads all of B.
        least = rows * (4 if packed else 8)
        blocks = -(-UNITS // groups)
        if packed and threads > 1 and m >= threads * THREAD_ROWS:
            blocks = max(blocks, threads)
        block = min(block, max(least, -(-m // blocks)))
    tiling = Tiling(rows, vectors, lanes, depth, block, unroll=4 if m is not None else 2, pack_a=turned)
    if m is None and (not packed or (n is not None and k is not None and n * k <= _SMALL_RIGHT)):
        # One that is not packed is copied for each block, which fewer, higher tiles pay for.
        low = min(rows, _LOW_TILE) if packed else rows
        return replace(tiling, rows=low, block=block // low * low, few_heights=True)
    if not packed:
        direct = b_column == 1 and m is not None and m <= _DIRECT_ROWS and _stays(machine, b_k, depth, element)
        return replace(tiling, copy_b=False, ahead=_DIRECT_AHEAD) if direct else tiling
    fetch_a = n is not None and k is not None and n * k * element <= machine.l2 // 4
    lines = -(-tiling.columns * dtype.bits // (8 * _LINE)) * tiling.unroll
    tiles = 4 if m is None else -(-min(m, block) // rows)
    return replace(tiling, spread=-(-lines // tiles), fetch_a=fetch_a)


def _vectors(machine: Machine, n: Size, lanes: int, packed: bool) -> int:
    """How many vectors wide a tile is. Of few registers, lower and wider tiles load less for each product, but a panel
    that B does not fill is work for nothing."""
    if n is not None and n <= lanes:
        return 1
    if machine.registers >= 32 or not packed or n is None:
        return 2
    filled = {vectors: -(-n // (vectors * lanes)) * vectors for vectors in (2, 3)}
    return 3 if filled[3] <= filled[2] * _WIDER else 2


def _stays(machine: Machine, b_k: Size, depth: int, element: int) -> bool:
    """Whether a strip of B with this distance of rows finds enough places in the second-level cache."""
    if b_k is None:
        return False
    sets = max(1, machine.l2 // _LINE // _WAYS)
    apart = max(1, b_k * element // _LINE)
    return sets // math.gcd(apart, sets) * _WAYS >= depth


def _skinny(machine: Machine, tiling: Tiling, m: int, n: Size, k: Size, packed: bool) -> Tiling:
    """For one tile's height of rows: all of k at once, and tiles as wide as registers and the units of work allow."""
    panels = -(-(n or 4096) // tiling.columns)
    wide = next(
        wide
        for wide in (4, 2, 1)
        if wide == 1 or ((m + 1) * wide * tiling.vectors < machine.registers and panels >= wide * UNITS // 2)
    )
    rows = max(m, 1)
    tiling = replace(tiling, rows=rows, block=rows, depth=max(k or 4096, 1), unroll=2, ahead=AHEAD)
    if packed:
        return replace(tiling, panels=wide)
    return replace(tiling, vectors=tiling.vectors * wide, copy_b=False)


def _even(limit: int, k: Size) -> int:
    """The depth of equal parts of k, of at most `limit`."""
    return limit if k is None else -(-k // max(-(-k // limit), 1)) if k else 1


def scratch_elements(gemm: Gemm, tiling: Tiling) -> int:
    """Elements of memory of its own that each thread needs."""
    return _a_scratch(gemm, tiling) + (_b_scratch(gemm, tiling) if _copies(gemm, tiling) else 0)


def _copies(gemm: Gemm, tiling: Tiling) -> bool:
    return tiling.copy_b and not gemm.b_packed


def _a_scratch(gemm: Gemm, tiling: Tiling) -> int:
    if not tiling.pack_a:
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
    return batch * -(-m // tiling.block) * -(-n // (tiling.columns * tiling.panels))


def waits_in_place(gemm: Gemm, tiling: Tiling, k: int) -> bool:
    """Whether sums are stored in C before the epilogue is applied to them."""
    return tiling.depth < k or (gemm.sums is gemm.dtype and is_long(gemm.epilogue, tiling.lanes, gemm.sums))


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
        body = finishing_body(
            self.b, "epilogue", gemm.epilogue, tiling.vectors, tiling.lanes, gemm.sums, gemm.dtype
        )  # fmt: skip
        self.tiles = TileFunctions(self.b, gemm, tiling, body)

    def size(self, name: str) -> Operand:
        known = getattr(self.gemm, name)
        return self.b[name] if known is None else known

    def module(self) -> Module:
        b, gemm, tiling = self.b, self.gemm, self.tiling
        m, n = self.size("m"), self.size("n")
        width = tiling.columns * tiling.panels
        self.groups = b.div(b.add(n, width - 1), width)
        self.blocks = b.div(b.add(m, tiling.block - 1), tiling.block)
        scratch = b.view(b["scratch"], b.mul(b["thread"], scratch_elements(gemm, tiling)))
        self.a_scratch, self.b_scratch = scratch, b.view(scratch, _a_scratch(gemm, tiling))
        first, last = b.div(b["begin"], self.groups), b.div(b.add(b["end"], b.sub(self.groups, 1)), self.groups)
        with b.loop(first, last) as part:
            from_group = b.max(b.sub(b["begin"], b.mul(part, self.groups)), 0)
            to_group = b.min(b.sub(b["end"], b.mul(part, self.groups)), self.groups)
            batch = b.div(part, self.blocks) if gemm.batched else 0
            self.row_block(batch, b.sub(part, b.mul(batch, self.blocks)), from_group, to_group)
        return b.module()

    def row_block(self, batch: Operand, block: Operand, from_group: Operand, to_group: Operand) -> None:
        """Some groups of panels of one block of rows. Its rows are shared out evenly among its tiles."""
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
            if tiling.pack_a:
                self.pack_block(place, start, depth)
            with b.loop(from_group, to_group) as group:
                self.group(place, group, start, depth)

    def tile_rows(self, place: _Place, tile: Operand) -> tuple[Operand, Operand]:
        """The first row of a tile, counted from the block's, and how many it has."""
        b, most = self.b, self.tiling.rows
        if self.tiling.few_heights:
            first = b.mul(tile, most)
            return first, b.min(b.sub(place.rows, first), most)
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

    def group(self, place: _Place, group: Operand, start: Operand, depth: Operand) -> None:
        """The tiles of one group of panels."""
        b, tiling = self.b, self.tiling
        column = b.mul(group, tiling.columns * tiling.panels)
        columns = b.min(b.sub(self.size("n"), column), tiling.columns * tiling.panels)
        strip = self.strip(place, group, column, columns, start, depth)
        here = _Group(place, strip, column, columns, start, depth)
        if tiling.few_heights:
            self.full_tiles(here)
            return
        with b.loop(0, place.tiles) as tile:
            first, rows = self.tile_rows(place, tile)
            self.tiles.call(rows, self.given(here, tile, first))

    def full_tiles(self, here: _Group) -> None:
        """Tiles of the full height, and then of the next lower ones."""
        b = self.b
        done: Operand = 0
        for height in self.tiles.heights()[::-1]:
            count = b.div(b.sub(here.place.rows, done), height)
            with b.loop(0, count) as index:
                first = b.add(done, b.mul(index, height))
                self.tiles.call(height, self.given(here, b.div(first, self.tiling.rows), first))
            done = b.add(done, b.mul(count, height))

    def given(self, here: _Group, tile: Operand, first: Operand) -> dict[str, Operand]:
        """What a tile is given whose first row is `first`; `tile` full ones come before it."""
        b, tiling, place = self.b, self.tiling, here.place
        target = b.view(place.c, b.add(b.mul(first, self.size("c_row")), here.column))
        if tiling.pack_a:
            size = strip_size(tiling.rows, tiling.depth, self.gemm.dtype, tiling.lanes)
            at = b.mul(tile, size)
            if tiling.few_heights:
                at = b.add(at, b.sub(first, b.mul(tile, tiling.rows)))
            source = b.view(self.a_scratch, at)
        else:
            source = b.view(place.a, b.add(b.mul(first, self.size("a_row")), b.mul(here.start, self.size("a_k"))))
        given: dict[str, Operand] = {
            "a": source, "b": here.strip, "c": target, "depth": here.depth, "columns": here.columns
        }  # fmt: skip
        # Each tile prefetches its part of the strip that comes next.
        part = b.mul(tile, b.mul(b.div(here.depth, tiling.unroll), self.tiles.line * tiling.spread))
        given["next"] = b.add(b.mul(self.size("k"), tiling.columns * tiling.panels), part)
        given["more"] = b.lt(0, here.start)
        given["last"] = b.le(self.size("k"), b.add(here.start, tiling.depth))
        row = b.add(place.first, first)
        for operand in self.gemm.epilogue.operands:
            stride: Operand = b[f"{operand.name}_row"] if operand.row is None else operand.row
            offset: Operand = b.add(b.mul(row, stride), b.mul(here.column, operand.column))
            if self.gemm.batched:
                offset = b.add(offset, b.mul(place.batch, b[f"{operand.name}_batch"]))
            given[operand.name] = b.view(b[operand.name], offset)
        return given

    def strip(
        self, place: _Place, group: Operand, column: Operand, columns: Operand, start: Operand, depth: Operand
    ) -> Value:
        """B's numbers for a group, as tiles read them."""
        b, gemm, tiling = self.b, self.gemm, self.tiling
        width = tiling.columns
        if gemm.b_packed:
            panel = b.mul(group, b.mul(self.size("k"), width * tiling.panels))
            return b.view(place.b, b.add(panel, b.mul(start, width)))
        strides = self.size("b_column"), self.size("b_k")
        source = b.view(place.b, b.add(b.mul(column, strides[0]), b.mul(start, strides[1])))
        if not tiling.copy_b:
            return source
        pack_strip(b, source, self.b_scratch, columns, depth, width, *strides, tiling.lanes)
        return self.b_scratch


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
class _Group:
    """A group of panels, of so many `columns` from `column` on, at a block of rows, and `depth` steps of k from `start`
    on; `strip` is B's part."""

    place: _Place
    strip: Value
    column: Operand
    columns: Operand
    start: Operand
    depth: Operand
