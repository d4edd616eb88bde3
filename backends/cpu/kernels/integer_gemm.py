"""Products of matrices of bytes, exact in i32: C[i, j] = f(sum over k of (A[i, k] - za) * (B[k, j] - zb)).

Four neighbouring numbers along k are one word, and `dot4` adds their four products, unsigned times signed. So A is made
unsigned and B signed by adding or subtracting 128, to zero points as well, and what zero points contribute is put right
with the sums of rows and columns:

    sum of (u - za) (s - zb) = sum of u s  -  za * sum of s  -  zb * (sum of u  -  k za)

B lies in panels of words with the sums of its columns beside them (`packed_bytes`, or the kernel of `integer_pack`).
Rows of A are read where they lie if they are whole words of unsigned bytes, else brought into words block by block; so
A may also be what a window sees of an image (`Patches`), and a convolution is this product. A unit of work is a block
of rows times a panel.

A tile is a register tile of sums, or where the machine has a unit for products of bytes (AMX), one of its tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import TypeAlias

import numpy as np

from ....graph import types
from ....graph.core import Value
from ....graph.dtypes import DType, i8, i32, i64, u8
from ....graph.kernel.loop_builder import LoopBuilder, Operand
from ....graph.module import Function, Module
from ..machine import Machine
from .image import Layout, Window, layout_sizes
from .integer_rows import RowPacker, patch_sizes
from .pack import on_cache_lines
from .strided import StridedBuilder, argument_names
from .tile import Epilogue, EpilogueBody, Given, Size, Target, Tile, epilogue_body

# A size by name, inside a function of its own: a number, or that function's argument.
SizeOf: TypeAlias = Callable[[str], Operand]

# Bytes of a word.
WORD = 4
# Words of a row of the matrix unit's left factor, and its rows and columns of sums.
UNIT = 16
# Tiles of a block of rows, whose words then are in the second-level cache.
_TILES = 4
# A block of rows for the matrix unit may take so many bytes.
_BLOCK_BYTES = 384 << 10
# Rows that are finished at once after the matrix unit has summed them up.
_FINISHED = 8
# An epilogue of at most so many operations for each vector is written out.
_SHORT_EPILOGUE = 32


@dataclass(frozen=True)
class Patches:
    """Rows of A are what a window sees of images [image, row, pixel, channel]: its taps, then their channels.

    `before` is how far the first window reaches out of the image, `rows` and `pixels` are the extents of the output,
    `image_rows` and `image_pixels` those of the image. What lies outside is the zero point of A. Sizes that are None
    are arguments of the kernel.
    """

    window: Window
    channels: int
    before: tuple[Size, Size] = (0, 0)
    rows: Size = None
    pixels: Size = None
    image_rows: Size = None
    image_pixels: Size = None
    x: Layout = field(default_factory=Layout)
    is_padded: bool = False


@dataclass(frozen=True)
class Lines:
    """Rows of C are the pixels of images: `pixels` of them in each line, lines `line` apart, `rows` lines in each
    image, images `image` apart."""

    pixels: Size = None
    rows: Size = None
    line: Size = None
    image: Size = None


@dataclass(frozen=True)
class IntegerGemm:
    """A [m, k] has rows of stride `a_row`, C [m, n] of `c_row`, both contiguous along the other dim.

    `a_zero` is "none", "one", "row" (m of them) or "sums" (the buffer `sums` has what is added to all numbers of a
    column, see `column_terms`); `b_zero` "none", "one" or "column" (n). Zero points have the dtypes of A and B.
    `in_place`: rows of A are read where they lie; A is of u8, k and `a_row` are multiples of 4 (with the matrix unit k
    is one of 64). With `lines` there are gaps between some rows of C. The epilogue makes numbers of dtype `result` of
    sums; its operands have strides as in `tile`.
    """

    m: Size
    n: Size
    k: Size
    a: DType = u8
    b: DType = i8
    a_row: Size = None
    c_row: Size = None
    a_zero: str = "none"
    b_zero: str = "none"
    batched: bool = False
    result: DType = i32
    epilogue: Epilogue = field(default_factory=Epilogue)
    in_place: bool = False
    unit: bool = False
    lines: Lines | None = None
    patches: Patches | None = None

    @property
    def has_row_sums(self) -> bool:
        """Whether the sums of A's rows matter: those of unsigned times signed bytes without zero points do not."""
        return self.b_zero != "none" or self.b is not i8


def uses_unit(machine: Machine, m: Size) -> bool:
    """Whether a product of so many rows is one for the matrix unit: few rows leave most of it idle."""
    return machine.matrix_unit and (m is None or m > 4)


def integer_tile(kernel: IntegerGemm, machine: Machine) -> Tile:
    """A tile that fills the registers (or the matrix unit), of no more rows than there are."""
    lanes = machine.lanes(i32)
    vectors = 1 if kernel.n is not None and kernel.n <= lanes else 2
    if kernel.unit:
        return Tile(UNIT if kernel.m and kernel.m <= UNIT else 2 * UNIT, vectors, lanes, i32)
    rows = (machine.registers - 4) // vectors
    rows = min(rows, 14)
    if kernel.m:
        rows = -(-kernel.m // -(-kernel.m // rows))
    return Tile(rows, vectors, lanes, i32)


def integer_block(kernel: IntegerGemm, machine: Machine) -> int:
    """The rows of a block."""
    rows = integer_tile(kernel, machine).rows
    if not kernel.unit or kernel.k is None:
        return _TILES * rows
    tiles = max(1, min(8, _BLOCK_BYTES // (rows * max(kernel.k, 1))))
    if kernel.m:  # blocks of even size
        most = -(-kernel.m // rows)
        tiles = -(-most // -(-most // tiles))
    return tiles * rows


def integer_sizes(kernel: IntegerGemm) -> dict[str, Size]:
    """Extents and strides by name; those that are None are arguments of the kernel."""
    sizes = {"m": kernel.m, "n": kernel.n, "k": kernel.k, "a_row": kernel.a_row, "c_row": kernel.c_row}
    if kernel.patches is not None:
        sizes |= patch_sizes(kernel.patches)
        sizes |= {f"x_{dim}": size for dim, size in _image_strides(kernel.patches).items()}
    if kernel.lines is not None:
        sizes |= {f"c_{each.name}": getattr(kernel.lines, each.name) for each in fields(kernel.lines)}
    if kernel.batched:
        sizes |= {"a_batch": None, "b_batch": None, "c_batch": None, "sums_batch": None}
    for operand in kernel.epilogue.operands:
        sizes[f"{operand.name}_row"] = operand.row
        if kernel.batched:
            sizes[f"{operand.name}_batch"] = None
    return sizes


def _image_strides(patches: Patches) -> dict[str, Size]:
    strides = layout_sizes("x", patches.x)
    return {dim: strides[f"x_{dim}"] for dim in ("image", "row", "pixel")}


def integer_buffers(kernel: IntegerGemm) -> dict[str, DType]:
    """C, A, the words of B and the sums of its columns, scratch memory, zero points, operands of the epilogue."""
    buffers = {"c": kernel.result, "a": kernel.a, "b": i32, "sums": i32, "scratch": i32}
    if kernel.a_zero in ("one", "row"):
        buffers["a_zero"] = kernel.a
    if kernel.b_zero != "none":
        buffers["b_zero"] = kernel.b
    return buffers | {operand.name: operand.dtype for operand in kernel.epilogue.operands}


def integer_arguments(kernel: IntegerGemm) -> list[str]:
    """The names of the kernel's arguments, in order."""
    return argument_names(list(integer_buffers(kernel)), integer_sizes(kernel))


def integer_units(kernel: IntegerGemm, machine: Machine, m: int, n: int, batch: int = 1) -> int:
    """How many units of work there are."""
    return batch * -(-m // integer_block(kernel, machine)) * -(-n // integer_tile(kernel, machine).columns)


def integer_scratch(kernel: IntegerGemm, machine: Machine, k: int) -> int:
    """Words of memory of its own that each thread needs: a block of A and the sums of its rows, a tile of sums."""
    tile, rows = integer_tile(kernel, machine), integer_block(kernel, machine)
    return rows * (_words(k, machine) + 1) + UNIT + (tile.rows * tile.columns if kernel.unit else 0)


def _words(k: int, machine: Machine) -> int:
    """Words of a row of A, with those that fill up the last vector."""
    lanes = machine.lanes(i32)
    return -(-k // (WORD * lanes)) * lanes


def steps_of(k: int, unit: bool) -> int:
    """Words along k of packed B: with those that fill up the matrix unit's rows."""
    return -(-k // (WORD * UNIT)) * UNIT if unit else -(-k // WORD)


def packed_bytes(b: np.ndarray, columns: int, unit: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """B [..., k, n] of bytes as words [..., panel, k / 4, column] for a tile's columns, and the sums of all columns."""
    *batch, k, n = b.shape
    signed = b.astype(np.int16) - (128 if b.dtype == np.uint8 else 0)
    steps, panels = steps_of(k, unit), -(-n // columns)
    padded = np.zeros((*batch, steps * WORD, panels * columns), np.int8)
    padded[..., :k, :n] = signed
    words = padded.reshape(*batch, steps, WORD, panels, columns)
    words = np.moveaxis(words, (-2, -4, -1, -3), (-4, -3, -2, -1))
    packed = on_cache_lines(words.size, np.dtype(np.int8))
    packed.reshape(words.shape)[...] = words
    return packed.view(np.int32), padded.sum(axis=-2, dtype=np.int32).reshape(-1)


def column_terms(sums: np.ndarray, a: DType, a_zero: int) -> np.ndarray:
    """What the zero point of A adds to each column of a product whose B has these sums of columns, no zero point."""
    shifted = int(a_zero) + (128 if a is i8 else 0)
    return (sums.astype(np.int64) * -shifted).astype(np.int32)


def build_integer_gemm(name: str, kernel: IntegerGemm, machine: Machine) -> Module:
    """The kernel as a module of the level "loop"; see `integer_arguments` for what it takes."""
    builder = _IntegerBuilder(name, kernel, machine)
    builder.units()
    return builder.b.module()


class _IntegerBuilder(StridedBuilder):
    def __init__(self, name: str, kernel: IntegerGemm, machine: Machine) -> None:
        super().__init__(name, machine, integer_buffers(kernel), integer_sizes(kernel), i32)
        self.kernel, self.tile = kernel, integer_tile(kernel, machine)
        self.block = integer_block(kernel, machine)
        self.body = epilogue_body(self.b, "epilogue", kernel.epilogue, self.lanes, i32, _SHORT_EPILOGUE)

    def units(self) -> None:
        b, kernel, tile = self.b, self.kernel, self.tile
        m, n, k = (self.size(name) for name in "mnk")
        panels = b.div(b.add(n, tile.columns - 1), tile.columns)
        blocks = b.div(b.add(m, self.block - 1), self.block)
        group = WORD * self.lanes
        self.words = b.mul(b.div(b.add(k, group - 1), group), self.lanes)
        step = UNIT if kernel.unit else 1
        self.steps = b.mul(b.div(b.add(k, WORD * step - 1), WORD * step), step)
        room = UNIT + (tile.rows * tile.columns if kernel.unit else 0)
        own = b.view(b["scratch"], b.mul(b["thread"], b.add(b.mul(b.add(self.words, 1), self.block), room)))
        self.unit_sums = own
        own = b.view(own, tile.rows * tile.columns if kernel.unit else 0)
        self.row_sums, self.packed = own, b.view(own, self.block)
        if kernel.unit:
            b.unit_begin()
        first, last = b.div(b["begin"], panels), b.div(b.add(b["end"], b.sub(panels, 1)), panels)
        with b.loop(first, last) as part:
            batch = b.div(part, blocks) if kernel.batched else 0
            start = b.mul(b.sub(part, b.mul(batch, blocks)), self.block)
            rows = b.min(b.sub(m, start), self.block)
            a = b.mul(batch, self.size("a_batch")) if kernel.batched else 0
            if not kernel.in_place:
                self.pack(a, start, rows)
            from_panel = b.max(b.sub(b["begin"], b.mul(part, panels)), 0)
            to_panel = b.min(b.sub(b["end"], b.mul(part, panels)), panels)
            with b.loop(from_panel, to_panel) as panel:
                self.panel(batch, panel, start, rows, a)
        if kernel.unit:
            b.unit_end()

    def pack(self, a: Operand, start: Operand, rows: Operand) -> None:
        """Bring a block of rows into words, and sum them up if that matters."""
        b, lanes = self.b, self.lanes
        packer = RowPacker(self, self.kernel.a, self.kernel.patches, self.border)
        packer.rows(b.view(b["a"], a), start, rows, b.reinterpret(self.packed, u8), b.mul(self.words, WORD))
        if not self.kernel.has_row_sums:
            return
        ones = b.constant(0x01010101, types.vector(i32, lanes))
        with b.loop(0, rows) as row:
            place = b.mul(row, self.words)
            with b.loop(0, self.words, lanes, [b.constant(0, ones.type)]) as state:
                words = b.load(self.packed, b.add(place, state.index), lanes)
                state.yields([b.scalar("dot4", state[0], words, ones)])
            b.store(b.reduce("add", state.results[0]), self.row_sums, row)

    def border(self) -> Value:
        """The byte, unsigned, that lies around images."""
        b, kernel = self.b, self.kernel
        if kernel.a_zero != "one":
            return b.cast(b.index(self.size("border")), u8)
        zero = b.load(b["a_zero"], 0)
        return b.xor(b.bitcast(zero, u8), 128) if kernel.a is i8 else zero

    # ---- products ----------------------------------------------------------------------------------------------------

    def panel(self, batch: Operand, panel: Operand, start: Operand, rows: Operand, a: Operand) -> None:
        """All tiles of a block of rows. If the last one has too few, it begins earlier."""
        b, tile, kernel = self.b, self.tile, self.kernel
        names = self.passed()

        def call(name: str, first: Operand) -> None:
            outer = b.add(start, first)
            if kernel.in_place:
                place = b.add(a, b.mul(outer, self.size("a_row")))
                left = b.reinterpret(b.view(b["a"], place), i32)
            else:
                left = b.view(self.packed, b.mul(first, self.words))
            sums = b.view(self.row_sums, first)
            numbers = [batch, panel, outer, b.sub(rows, first), b.div(b.max(first, 0), tile.rows), *self.strides()]
            b.call(name, *(b[buffer] for buffer in names[0]), left, sums, self.unit_sums, *numbers, *names[1])

        def full() -> None:
            with b.loop(0, rows, tile.rows) as first:
                call(self.micro(False), b.min(first, b.sub(rows, tile.rows)))

        b.branch(b.lt(rows, tile.rows), lambda: call(self.micro(True), 0), full)

    def strides(self) -> list[Operand]:
        """What a tile's function is told of the distance of rows and the steps along k, where they are not known."""
        b = self.b
        row = b.div(self.size("a_row"), WORD) if self.kernel.in_place else self.words
        return [number for number in (row, self.steps) if isinstance(number, Value)]

    def passed(self) -> tuple[list[str], list[Value]]:
        """The buffers and the unknown sizes that the tile's function takes."""
        buffers = [name for name in integer_buffers(self.kernel) if name not in ("a", "scratch")]
        return buffers, [self.b[name] for name, size in self.sizes.items() if size is None]

    def micro(self, few: bool) -> str:
        name = "few" if few else "tile"
        if all(function.key.name != name for function in self.b.functions):
            self.b.include(self.micro_kernel(name, few))
        return name

    def micro_kernel(self, name: str, few: bool) -> Function:
        """One tile, with rows repeated if there are few."""
        kernel, tile = self.kernel, self.tile
        index, words = types.scalar(i64), types.buffer(i32)
        buffers, dtypes = self.passed()[0], integer_buffers(kernel)
        unknown = [size for size, known in self.sizes.items() if known is None]
        row = self.b.div(self.size("a_row"), WORD) if kernel.in_place else self.words
        told = [name for name, number in (("left_row", row), ("steps", self.steps)) if isinstance(number, Value)]
        b = LoopBuilder(
            name, **{buffer: types.buffer(dtypes[buffer]) for buffer in buffers}, left=words, row_sums=words,
            unit_sums=words, **dict.fromkeys(("batch", "panel", "row", "count", "tile", *told, *unknown), index),
        )  # fmt: skip
        made = _TileBuilder(self, b, *(b[n] if n in told else x for n, x in (("left_row", row), ("steps", self.steps))))
        if kernel.unit:
            made.unit(few)
        else:
            last = b.sub(b["count"], 1)
            own: list[Operand] = [b.min(i, last) if few else i for i in range(tile.rows)]
            made.finish(made.summed(own), own, tile)
        return b.finish()


class _TileBuilder:
    """Builds the function of a tile."""

    def __init__(self, main: _IntegerBuilder, b: LoopBuilder, left_row: Operand, steps: Operand) -> None:
        self.main, self.kernel, self.tile, self.b = main, main.kernel, main.tile, b
        self.left_row, self.steps = left_row, steps
        self.column = b.mul(b["panel"], self.tile.columns)
        self.strip = b.view(b["b"], b.mul(b.mul(b["panel"], steps), self.tile.columns))
        if self.kernel.batched:
            self.strip = b.view(self.strip, b.mul(b["batch"], self.size("b_batch")))

    def size(self, which: str) -> Operand:
        known = self.main.sizes[which]
        return self.b[which] if known is None else known

    def summed(self, rows: Sequence[Operand]) -> list[Value]:
        """The sums of a register tile."""
        b, tile = self.b, self.tile
        places = [b.mul(row, self.left_row) for row in rows]
        with b.loop(0, self.steps, 1, tile.zeros(b)) as state:
            right = tile.right(b, self.strip, b.mul(state.index, tile.columns))
            following = []
            for row, place in enumerate(places):
                left = b.broadcast(b.load(b["left"], b.add(place, state.index)), tile.lanes)
                for v, factor in enumerate(right):
                    following.append(b.scalar("dot4", state[row * tile.vectors + v], left, factor))
            state.yields(following)
        return list(state.results)

    def unit(self, few: bool) -> None:
        """The sums of a tile by the matrix unit, finished a few rows at a time."""
        b, tile = self.b, self.tile
        sizes = (tile.rows, tile.columns, tile.columns)
        # The tiles of a block ask for the next panel, each for its part of it.
        tiles = self.main.block // tile.rows
        lines = -(-tile.columns // tiles)
        place = b.mul(self.steps, b.add(b.mul(b["tile"], lines), tile.columns))
        b.unit_products(
            b["unit_sums"], b["left"], self.left_row, self.strip, self.steps, sizes, (self.strip, place, lines)
        )
        count = b.min(b["count"], tile.rows) if few else tile.rows

        def rows(first: Operand, together: int) -> None:
            own = [b.add(first, i) for i in range(together)]
            part = Tile(together, tile.vectors, tile.lanes, i32)
            sums = [
                b.load(b["unit_sums"], b.add(b.mul(row, tile.columns), v * tile.lanes), tile.lanes)
                for row in own for v in range(tile.vectors)
            ]  # fmt: skip
            self.finish(sums, own, part)

        def many() -> None:
            with b.loop(0, count, _FINISHED) as first:
                rows(b.min(first, b.sub(count, _FINISHED)), _FINISHED)

        def single() -> None:
            with b.loop(0, count) as first:
                rows(first, 1)

        b.branch(b.le(_FINISHED, count), many, single)

    # ---- zero points and epilogue ------------------------------------------------------------------------------------

    def finish(self, sums: Sequence[Value], own: Sequence[Operand], tile: Tile) -> None:
        """Store the sums of rows `own` of the tile."""
        b = self.b
        outer = [b.add(b["row"], row) for row in own]
        base: Operand = b.mul(b["batch"], self.size("c_batch")) if self.kernel.batched else 0
        places = [b.add(b.add(base, self.place(row)), self.column) for row in outer]
        columns = b.sub(self.size("n"), self.column)
        tile.finish(b, sums, Target(b["c"], places, columns), body=self.finished(), given=self.given(own, outer))

    def place(self, row: Operand) -> Operand:
        """Where a row of C begins."""
        b, size = self.b, self.size
        if self.kernel.lines is None:
            return b.mul(row, size("c_row"))
        line = b.div(row, size("c_pixels"))
        image = b.div(line, size("c_rows"))
        pixel = b.mul(b.sub(row, b.mul(line, size("c_pixels"))), size("c_row"))
        down = b.mul(b.sub(line, b.mul(image, size("c_rows"))), size("c_line"))
        return b.add(b.add(pixel, down), b.mul(image, size("c_image")))

    def given(self, own: Sequence[Operand], outer: Sequence[Operand]) -> list[Given]:
        """What `finished` reads beside the sums: in the order in which it takes them apart."""
        b, kernel, column = self.b, self.kernel, self.column
        found = [Given(b["row_sums"], own, 0)] if kernel.has_row_sums else []
        if kernel.a_zero != "none" or kernel.a is i8:
            sums: Operand = b.mul(b["batch"], self.size("sums_batch")) if kernel.batched else 0
            found.append(Given(b["sums"], [b.add(sums, column)], 1))
        if kernel.a_zero in ("one", "row"):
            found.append(Given(b["a_zero"], outer if kernel.a_zero == "row" else [0], 0))
        if kernel.b_zero != "none":
            by_column = kernel.b_zero == "column"
            found.append(Given(b["b_zero"], [column if by_column else 0], int(by_column)))
        for operand in kernel.epilogue.operands:
            stride = self.size(f"{operand.name}_row")
            base: Operand = b.mul(column, operand.column)
            if kernel.batched:
                base = b.add(base, b.mul(b["batch"], self.size(f"{operand.name}_batch")))
            rows = outer if isinstance(stride, Value) or stride else [0]
            found.append(Given(b[operand.name], [b.add(base, b.mul(row, stride)) for row in rows], operand.column))
        return found

    def finished(self) -> EpilogueBody:
        """Put zero points right, and apply the epilogue."""
        kernel, main = self.kernel, self.main

        def body(b: LoopBuilder, total: Value, operands: Sequence[Value]) -> Value:
            rest = list(operands)
            row_sum = rest.pop(0) if kernel.has_row_sums else None
            # What is added to the operands' own zero points to make A unsigned and B signed.
            a_shift, b_shift = 128 if kernel.a is i8 else 0, -128 if kernel.b is u8 else 0
            a_zero: Operand = a_shift
            if kernel.a_zero != "none" or a_shift:
                term = rest.pop(0)
                if kernel.a_zero in ("one", "row"):
                    a_zero = b.add(b.cast(rest.pop(0), i32), a_shift)
                total = b.add(total, term) if kernel.a_zero == "sums" else b.sub(total, b.mul(term, a_zero))
            b_zero: Operand = b_shift
            if kernel.b_zero != "none":
                b_zero = b.add(b.cast(rest.pop(0), i32), b_shift)
            if row_sum is not None:
                if isinstance(a_zero, Value) or a_zero:
                    k = self.size("k")
                    count = b.cast(k, i32) if isinstance(k, Value) else k
                    row_sum = b.sub(row_sum, b.mul(b.value(a_zero, row_sum.type), count))
                total = b.sub(total, b.mul(row_sum, b_zero))
            return total if main.body is None else main.body(b, total, rest)

        return body
