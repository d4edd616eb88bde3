"""Bringing the right factor of a product of bytes into words and panels when it is not constant; see `integer_gemm`."""

from __future__ import annotations

from dataclasses import dataclass

from ....graph import types
from ....graph.core import Value
from ....graph.dtypes import DType, i8, i32, u8
from ....graph.kernel.loop_builder import Operand
from ....graph.module import Module
from ..machine import Machine
from .integer_gemm import UNIT, WORD, steps_of
from .strided import Size, StridedBuilder, argument_names


@dataclass(frozen=True)
class IntegerPack:
    """B [k, n] of bytes becomes panels of `columns` words (those of `integer_tile`) and the sums of its columns.

    For the matrix `unit`, words are filled up to a multiple of its rows with zeros.
    """

    columns: int
    dtype: DType = i8
    k_stride: Size = None
    n_stride: Size = 1
    unit: bool = False


def pack_sizes(kernel: IntegerPack) -> dict[str, Size]:
    """Extents, strides and what a matrix of a batch takes in each buffer, by name."""
    sizes: dict[str, Size] = {"k": None, "n": None, "k_stride": kernel.k_stride, "n_stride": kernel.n_stride}
    return sizes | {"x_batch": None, "words_batch": None, "sums_batch": None}


def pack_arguments(kernel: IntegerPack) -> list[str]:
    """The names of the kernel's arguments, in order."""
    return argument_names(["words", "sums", "x"], pack_sizes(kernel))


def pack_units(kernel: IntegerPack, n: int, batch: int = 1) -> int:
    """How many units of work there are: panels."""
    return batch * -(-n // kernel.columns)


def packed_sizes(kernel: IntegerPack, k: int, n: int) -> tuple[int, int]:
    """How many words and sums (both i32) a matrix takes."""
    padded = -(-n // kernel.columns) * kernel.columns
    return steps_of(k, kernel.unit) * padded, padded


def build_integer_pack(name: str, kernel: IntegerPack, machine: Machine) -> Module:
    """The kernel as a module of the level "loop"; see `pack_arguments` for what it takes."""
    builder = _PackBuilder(name, kernel, machine)
    builder.units()
    return builder.b.module()


class _PackBuilder(StridedBuilder):
    def __init__(self, name: str, kernel: IntegerPack, machine: Machine) -> None:
        buffers = {"words": i32, "sums": i32, "x": kernel.dtype}
        super().__init__(name, machine, buffers, pack_sizes(kernel), i32)
        self.kernel = kernel

    def units(self) -> None:
        b, kernel = self.b, self.kernel
        k, n = self.size("k"), self.size("n")
        step = UNIT if kernel.unit else 1
        steps = b.mul(b.div(b.add(k, WORD * step - 1), WORD * step), step)
        panels = b.div(b.add(n, kernel.columns - 1), kernel.columns)
        with b.loop(b["begin"], b["end"]) as unit:
            batch, panel = b.div(unit, panels), b.rem(unit, panels)
            first = b.mul(panel, kernel.columns)
            words = b.add(b.mul(batch, self.size("words_batch")), b.mul(b.mul(panel, steps), kernel.columns))
            sums = b.add(b.mul(batch, self.size("sums_batch")), first)
            x = b.add(b.mul(batch, self.size("x_batch")), b.mul(first, self.size("n_stride")))
            for start in range(0, kernel.columns, self.lanes):
                mask = b.tail_mask(b.index(b.sub(n, b.add(first, start))), self.lanes)
                at = b.add(x, b.mul(start, self.size("n_stride")))
                self.columns(at, b.add(words, start), b.add(sums, start), steps, mask)

    def columns(self, x: Operand, words: Operand, sums: Operand, steps: Operand, mask: Value) -> None:
        """A vector of columns of a panel."""
        b = self.b
        ones = b.constant(0x01010101, types.vector(i32, self.lanes))
        with b.loop(0, steps, 1, [b.constant(0, ones.type)]) as state:
            word: Value | None = None
            for byte in range(WORD):
                part = b.and_(self.numbers(x, b.add(b.mul(state.index, WORD), byte), mask), 255)
                part = b.shl(part, 8 * byte)
                word = part if word is None else b.or_(word, part)
            assert word is not None
            b.store(word, b["words"], b.add(words, b.mul(state.index, self.kernel.columns)))
            # Signed bytes times 1: the word is the signed side.
            state.yields([b.scalar("dot4", state[0], ones, word)])
        b.store(state.results[0], b["sums"], sums)

    def numbers(self, x: Operand, k: Operand, mask: Value) -> Value:
        """A vector of row k, signed; zeros where the matrix has ended."""
        b = self.b
        exists = b.and_(mask, b.broadcast(b.lt(k, self.size("k")), self.lanes))
        place = b.add(x, b.mul(k, self.size("k_stride")))
        stride = self.size("n_stride")
        if isinstance(stride, int) and stride == 1:
            loaded = b.load(b["x"], place, self.lanes, exists)
        else:
            loaded = b.gather(b["x"], b.add(b.mul(b.iota(self.lanes), stride), place), exists)
        wide: Value = b.cast(loaded, i32)
        if self.kernel.dtype is u8:
            wide = b.sub(wide, 128)
        return b.select(exists, wide, b.constant(0, wide.type))
