"""Products of matrices of bytes, exact in i32: C[i, j] = f(sum over k of (A[i, k] - za) * (B[k, j] - zb)).

Four neighbouring numbers along k are one word, and `dot4` adds their four products, unsigned times signed. So A is made
unsigned and B signed by adding or subtracting 128, to zero points as well, and what zero points contribute is put right
with the sums of rows and columns:

    sum of (u - za) (s - zb) = sum of u s  -  za * sum of s  -  zb * (sum of u  -  k za)

B lies in panels of words with the sums of its columns beside them (`packed_bytes`, or the kernel of `integer_pack`).
Rows of A are brought into words block by block. A unit of work is a block of rows times a panel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from ....graph import types
from ....graph.core import Value
from ....graph.dtypes import DType, i8, i32, i64, u8
from ....graph.kernel.loop_builder import LoopBuilder, Operand
from ....graph.module import Function, Module
from ..machine import Machine
from .pack import on_cache_lines
from .strided import StridedBuilder, argument_names
from .tile import Epilogue, EpilogueBody, Given, Size, Target, Tile

# A size by name, inside a function of its own: a number, or that function's argument.
SizeOf: TypeAlias = Callable[[str], Operand]

# Bytes of a word.
WORD = 4
# Tiles of a block of rows, whose words then are in the second-level cache.
_TILES = 4


@dataclass(frozen=True)
class IntegerGemm:
    """A [m, k] has rows of stride `a_row`, C [m, n] of `c_row`, both contiguous along the other dim.

    `a_zero` is "none", "one" or "row" (m of them), `b_zero` "none", "one" or "column" (n); zero points have the dtypes
    of A and B. The epilogue makes numbers of dtype `result` of sums; its operands have strides as in `tile`.
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


def integer_tile(kernel: IntegerGemm, machine: Machine) -> Tile:
    """A tile that fills the registers, of no more rows than there are."""
    lanes = machine.lanes(i32)
    vectors = 1 if kernel.n is not None and kernel.n <= lanes else 2
    rows = (machine.registers - 4) // vectors
    rows = min(rows, 14)
    if kernel.m:
        rows = -(-kernel.m // -(-kernel.m // rows))
    return Tile(rows, vectors, lanes, i32)


def integer_sizes(kernel: IntegerGemm) -> dict[str, Size]:
    """Extents and strides by name; those that are None are arguments of the kernel."""
    sizes = {"m": kernel.m, "n": kernel.n, "k": kernel.k, "a_row": kernel.a_row, "c_row": kernel.c_row}
    if kernel.batched:
        sizes |= {"a_batch": None, "b_batch": None, "c_batch": None, "sums_batch": None}
    for operand in kernel.epilogue.operands:
        sizes[f"{operand.name}_row"] = operand.row
        if kernel.batched:
            sizes[f"{operand.name}_batch"] = None
    return sizes


def integer_buffers(kernel: IntegerGemm) -> dict[str, DType]:
    """C, A, the words of B and the sums of its columns, scratch memory, zero points, operands of the epilogue."""
    buffers = {"c": kernel.result, "a": kernel.a, "b": i32, "sums": i32, "scratch": i32}
    if kernel.a_zero != "none":
        buffers["a_zero"] = kernel.a
    if kernel.b_zero != "none":
        buffers["b_zero"] = kernel.b
    return buffers | {operand.name: operand.dtype for operand in kernel.epilogue.operands}


def integer_arguments(kernel: IntegerGemm) -> list[str]:
    """The names of the kernel's arguments, in order."""
    return argument_names(list(integer_buffers(kernel)), integer_sizes(kernel))


def integer_units(kernel: IntegerGemm, machine: Machine, m: int, n: int, batch: int = 1) -> int:
    """How many units of work there are."""
    tile = integer_tile(kernel, machine)
    return batch * -(-m // (_TILES * tile.rows)) * -(-n // tile.columns)


def integer_scratch(kernel: IntegerGemm, machine: Machine, k: int) -> int:
    """Words of memory of its own that each thread needs: a block of A and the sums of its rows."""
    rows = _TILES * integer_tile(kernel, machine).rows
    return rows * (_words(k, machine) + 1) + 16


def _words(k: int, machine: Machine) -> int:
    """Words of a row of A, with those that fill up the last vector."""
    lanes = machine.lanes(i32)
    return -(-k // (WORD * lanes)) * lanes


def packed_bytes(b: np.ndarray, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """B [..., k, n] of bytes as words [..., panel, k / 4, column] for a tile's columns, and the sums of all columns."""
    *batch, k, n = b.shape
    signed = b.astype(np.int16) - (128 if b.dtype == np.uint8 else 0)
    steps, panels = -(-k // WORD), -(-n // columns)
    padded = np.zeros((*batch, steps * WORD, panels * columns), np.int8)
    padded[..., :k, :n] = signed
    words = padded.reshape(*batch, steps, WORD, panels, columns)
    words = np.moveaxis(words, (-2, -4, -1, -3), (-4, -3, -2, -1))
    packed = on_cache_lines(words.size, np.dtype(np.int8))
    packed.reshape(words.shape)[...] = words
    return packed.view(np.int32), padded.sum(axis=-2, dtype=np.int32).reshape(-1)


def build_integer_gemm(name: str, kernel: IntegerGemm, machine: Machine) -> Module:
    """The kernel as a module of the level "loop"; see `integer_arguments` for what it takes."""
    builder = _IntegerBuilder(name, kernel, machine)
    builder.units()
    return builder.b.module()


class _IntegerBuilder(StridedBuilder):
    def __init__(self, name: str, kernel: IntegerGemm, machine: Machine) -> None:
        super().__init__(name, machine, integer_buffers(kernel), integer_sizes(kernel), i32)
        self.kernel, self.tile = kernel, integer_tile(kernel, machine)
        self.block = _TILES * self.tile.rows

    def units(self) -> None:
        b, kernel, tile = self.b, self.kernel, self.tile
        m, n, k = (self.size(name) for name in "mnk")
        panels = b.div(b.add(n, tile.columns - 1), tile.columns)
        blocks = b.div(b.add(m, self.block - 1), self.block)
        group = WORD * self.lanes
        self.words = b.mul(b.div(b.add(k, group - 1), group), self.lanes)
        self.steps = b.div(b.add(k, WORD - 1), WORD)
        own = b.view(b["scratch"], b.mul(b["thread"], b.add(b.mul(b.add(self.words, 1), self.block), 16)))
        self.row_sums, self.packed = own, b.view(own, self.block)
        first, last = b.div(b["begin"], panels), b.div(b.add(b["end"], b.sub(panels, 1)), panels)
        with b.loop(first, last) as part:
            batch = b.div(part, blocks) if kernel.batched else 0
            start = b.mul(b.sub(part, b.mul(batch, blocks)), self.block)
            rows = b.min(b.sub(m, start), self.block)
            a = b.add(b.mul(batch, self.size("a_batch")) if kernel.batched else 0, b.mul(start, self.size("a_row")))
            self.pack(a, rows)
            from_panel = b.max(b.sub(b["begin"], b.mul(part, panels)), 0)
            to_panel = b.min(b.sub(b["end"], b.mul(part, panels)), panels)
            with b.loop(from_panel, to_panel) as panel:
                self.panel(batch, panel, start, rows)

    # ---- A as words --------------------------------------------------------------------------------------------------

    def pack(self, a: Operand, rows: Operand) -> None:
        b, lanes = self.b, self.lanes
        k, ones = self.size("k"), b.constant(0x01010101, types.vector(i32, lanes))
        with b.loop(0, rows) as row:
            place, target = b.add(a, b.mul(row, self.size("a_row"))), b.mul(row, self.words)
            with b.loop(0, self.words, lanes, [b.constant(0, ones.type)]) as state:
                start = b.mul(state.index, WORD)
                mask = b.tail_mask(b.index(b.sub(k, start)), WORD * lanes)
                numbers = b.bitcast(b.load(b["a"], b.add(place, start), WORD * lanes, mask), u8)
                if self.kernel.a is i8:
                    numbers = b.select(mask, b.xor(numbers, 128), b.constant(0, numbers.type))
                words = self.as_words(numbers)
                b.store(words, self.packed, b.add(target, state.index))
                state.yields([b.scalar("dot4", state[0], words, ones)])
            b.store(b.reduce("add", state.results[0]), self.row_sums, row)

    def as_words(self, numbers: Value) -> Value:
        """Four neighbouring bytes in each lane, the first one lowest."""
        b, words = self.b, None
        for byte in range(WORD):
            chosen = b.shuffle(numbers, numbers, range(byte, WORD * self.lanes, WORD))
            part = b.shl(b.cast(chosen, i32), 8 * byte)
            words = part if words is None else b.or_(words, part)
        assert words is not None
        return words

    # ---- products ----------------------------------------------------------------------------------------------------

    def panel(self, batch: Operand, panel: Operand, start: Operand, rows: Operand) -> None:
        """All tiles of a block of rows. If the last one has too few, it begins earlier."""
        b, tile = self.b, self.tile
        names = self.passed()

        def call(name: str, first: Operand) -> None:
            numbers = [batch, panel, b.add(start, first), first, rows, self.words, self.steps]
            b.call(name, *(b[buffer] for buffer in names[0]), self.packed, self.row_sums, *numbers, *names[1])

        def full() -> None:
            with b.loop(0, rows, tile.rows) as first:
                call(self.micro(False), b.min(first, b.sub(rows, tile.rows)))

        b.branch(b.lt(rows, tile.rows), lambda: call(self.micro(True), 0), full)

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
        b = LoopBuilder(
            name, **{buffer: types.buffer(dtypes[buffer]) for buffer in buffers}, left=words, row_sums=words,
            **dict.fromkeys(("batch", "panel", "row", "first", "count", "words", "steps", *unknown), index),
        )  # fmt: skip

        def size(which: str) -> Operand:
            known = self.sizes[which]
            return b[which] if known is None else known

        last = b.sub(b["count"], 1)
        own = [b.add(b["first"], b.min(i, last) if few else i) for i in range(tile.rows)]
        outer = [b.add(b["row"], b.min(i, last) if few else i) for i in range(tile.rows)]
        column = b.mul(b["panel"], tile.columns)
        columns = b.sub(size("n"), column)
        strip = b.view(b["b"], b.mul(b.mul(b["panel"], b["steps"]), tile.columns))
        if kernel.batched:
            strip = b.view(strip, b.mul(b["batch"], size("b_batch")))
        sums = self.summed(b, strip, [b.mul(row, b["words"]) for row in own])
        base: Operand = b.mul(b["batch"], size("c_batch")) if kernel.batched else 0
        places = [b.add(b.add(base, b.mul(row, size("c_row"))), column) for row in outer]
        given = self.given(b, size, own, outer, column)
        tile.finish(b, sums, Target(b["c"], places, columns), body=self.finished(size), given=given)
        return b.finish()

    def summed(self, b: LoopBuilder, strip: Value, places: Sequence[Operand]) -> list[Value]:
        tile = self.tile
        with b.loop(0, b["steps"], 1, tile.zeros(b)) as state:
            right = tile.right(b, strip, b.mul(state.index, tile.columns))
            following = []
            for row, place in enumerate(places):
                left = b.broadcast(b.load(b["left"], b.add(place, state.index)), tile.lanes)
                for v, factor in enumerate(right):
                    following.append(b.scalar("dot4", state[row * tile.vectors + v], left, factor))
            state.yields(following)
        return list(state.results)

    # ---- zero points and epilogue ------------------------------------------------------------------------------------

    def given(
        self, b: LoopBuilder, size: SizeOf, own: Sequence[Operand], outer: Sequence[Operand], column: Operand
    ) -> list[Given]:
        """What `finished` reads beside the sums: in the order in which it takes them apart."""
        kernel = self.kernel
        found = [Given(b["row_sums"], own, 0)]
        sums: Operand = b.mul(b["batch"], size("sums_batch")) if kernel.batched else 0
        found.append(Given(b["sums"], [b.add(sums, column)], 1))
        if kernel.a_zero != "none":
            found.append(Given(b["a_zero"], outer if kernel.a_zero == "row" else [0], 0))
        if kernel.b_zero != "none":
            by_column = kernel.b_zero == "column"
            found.append(Given(b["b_zero"], [column if by_column else 0], int(by_column)))
        for operand in kernel.epilogue.operands:
            stride = size(f"{operand.name}_row")
            base: Operand = b.mul(column, operand.column)
            if kernel.batched:
                base = b.add(base, b.mul(b["batch"], size(f"{operand.name}_batch")))
            found.append(Given(b[operand.name], [b.add(base, b.mul(row, stride)) for row in outer], operand.column))
        return found

    def finished(self, size: SizeOf) -> EpilogueBody:
        """Put zero points right, and apply the epilogue."""
        kernel = self.kernel

        def body(b: LoopBuilder, total: Value, operands: Sequence[Value]) -> Value:
            row_sum, column_sum, *rest = operands
            # What is added to the operands' own zero points to make A unsigned and B signed.
            a_shift, b_shift = 128 if kernel.a is i8 else 0, -128 if kernel.b is u8 else 0
            a_zero: Operand = a_shift
            if kernel.a_zero != "none":
                a_zero = b.add(b.cast(rest.pop(0), i32), a_shift)
            b_zero: Operand = b_shift
            if kernel.b_zero != "none":
                b_zero = b.add(b.cast(rest.pop(0), i32), b_shift)
            if isinstance(a_zero, Value) or a_zero:
                total = b.sub(total, b.mul(column_sum, a_zero))
                k = size("k")
                count = b.cast(k, i32) if isinstance(k, Value) else k
                row_sum = b.sub(row_sum, b.mul(b.value(a_zero, row_sum.type), count))
            if isinstance(b_zero, Value) or b_zero:
                total = b.sub(total, b.mul(row_sum, b_zero))
            if kernel.epilogue.body is None:
                return total
            return kernel.epilogue.body(b, total, rest)

        return body
