"""Copying a strip of a matrix into the order in which a matrix product reads it: `width` numbers for each k in turn."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ....graph.core import Value
from ....graph.dtypes import DType
from ....graph.kernel.loop_builder import LoopBuilder, Operand


def pack_strip(
    b: LoopBuilder,
    source: Value,
    target: Value,
    count: Operand,
    depth: Operand,
    width: int,
    across: Operand,
    along: Operand,
    lanes: int,
) -> None:
    """target[k * width + i] = source[i * across + k * along] for k < depth and i < width.

    Rows from `count` on repeat the last one. Where `along` is 1 blocks are transposed in registers; then up to
    `lanes` - 1 numbers behind the end of `target` may be written.
    """
    if not isinstance(along, Value) and along == 1:
        _transpose_strip(b, source, target, count, depth, width, across, lanes)
    elif not isinstance(across, Value) and across == 1:
        _copy_strip(b, source, target, count, depth, width, along, lanes)
    else:
        _gather_strip(b, source, target, count, depth, width, across, along)


def _copy_strip(
    b: LoopBuilder, source: Value, target: Value, count: Operand, depth: Operand, width: int, along: Operand, lanes: int
) -> None:
    starts = range(0, width, lanes)
    masks = [b.tail_mask(b.index(b.sub(b.min(count, width), start)), min(lanes, width - start)) for start in starts]
    with b.loop(0, depth) as k:
        for start, mask in zip(starts, masks, strict=True):
            part = b.load(source, b.add(b.mul(k, along), start), min(lanes, width - start), mask)
            b.store(part, target, b.add(b.mul(k, width), start))


def _transpose_strip(
    b: LoopBuilder,
    source: Value,
    target: Value,
    count: Operand,
    depth: Operand,
    width: int,
    across: Operand,
    lanes: int,
) -> None:
    last = b.sub(count, 1)
    rows = [b.mul(b.min(i, last), across) if i else 0 for i in range(width)]
    whole = b.sub(depth, b.rem(b.index(depth), lanes)) if isinstance(depth, Value) else depth - depth % lanes
    with b.loop(0, whole, lanes) as k:
        _transpose_block(b, source, target, rows, k, width, lanes, None)
    rest = b.sub(depth, whole)
    if isinstance(rest, Value):
        with b.when(b.lt(0, rest)):
            _transpose_block(b, source, target, rows, whole, width, lanes, rest)
    elif rest:
        _transpose_block(b, source, target, rows, whole, width, lanes, rest)


def _transpose_block(
    b: LoopBuilder,
    source: Value,
    target: Value,
    rows: list[Operand],
    k: Operand,
    width: int,
    lanes: int,
    depth: Operand | None,
) -> None:
    """`lanes` steps of k, or only the first `depth` of them."""
    mask = None if depth is None else b.tail_mask(b.index(depth), lanes)
    # A vector that reaches beyond a step writes into the next one, whose own numbers have to come later.
    for start in reversed(range(0, width, lanes)):
        here = rows[start : start + lanes]
        loaded = [b.load(source, b.add(row, k), lanes, mask) for row in here]
        columns = transposed(b, loaded + loaded[-1:] * (lanes - len(loaded)), lanes)
        for step, column in enumerate(columns):
            place = b.add(b.mul(b.add(k, step), width), start)
            if isinstance(depth, Value):
                with b.when(b.lt(step, depth)):
                    b.store(column, target, place)
            elif depth is None or step < depth:
                b.store(column, target, place)


def transposed(b: LoopBuilder, rows: list[Value], lanes: int, count: int = 1) -> list[Value]:
    """A square of `lanes` vectors of `lanes` numbers, transposed: pairs of rows exchange blocks of half their size,
    then of a quarter, and so on. Vectors that are `count` times as long hold as many squares side by side."""
    distance, width = lanes // 2, lanes * count
    while distance:
        low = [lane if not lane & distance else width + lane - distance for lane in range(width)]
        high = [lane + distance if not lane & distance else width + lane for lane in range(width)]
        exchanged = list(rows)
        for index in range(lanes):
            if not index & distance:
                pair = rows[index], rows[index + distance]
                exchanged[index] = b.shuffle(*pair, low)
                exchanged[index + distance] = b.shuffle(*pair, high)
        rows = exchanged
        distance //= 2
    return rows


def joined_lanes(b: LoopBuilder, parts: list[Value], lanes: int) -> Value:
    """The lanes of several vectors, a power of two, one after the other."""
    while len(parts) > 1:
        parts = [b.shuffle(low, high, range(2 * lanes)) for low, high in zip(parts[::2], parts[1::2], strict=True)]
        lanes *= 2
    return parts[0]


def _gather_strip(
    b: LoopBuilder,
    source: Value,
    target: Value,
    count: Operand,
    depth: Operand,
    width: int,
    across: Operand,
    along: Operand,
) -> None:
    last = b.sub(count, 1)
    with b.loop(0, depth) as k, b.loop(0, width) as i:
        place = b.add(b.mul(b.min(i, last), across), b.mul(k, along))
        b.store(b.load(source, place), target, b.add(b.mul(k, width), i))


def strip_size(width: int, depth: int, dtype: DType, lanes: int) -> int:
    """Elements that `pack_strip` may write for `depth` steps: a multiple of a cache line."""
    line = max(1, 512 // dtype.bits)
    return -(-(width * depth + lanes) // line) * line


def packed_panels(matrix: np.ndarray, columns: int) -> np.ndarray:
    """A constant B of shape [..., k, n] as panels, flat."""
    shape = panels_shape(matrix.shape, columns)
    packed = on_cache_lines(math.prod(shape), matrix.dtype)
    fill_panels(packed.reshape(shape), matrix, matrix.ndim - 2)
    return packed


def panels_shape(shape: Sequence[int], columns: int) -> tuple[int, ...]:
    """[..., ceil(n / columns), k, columns] for B of shape [..., k, n]; what there is of it beyond n are zeros."""
    *batch, k, n = shape
    return *batch, -(-n // columns), k, columns


def fill_panels(target: np.ndarray, matrix: np.ndarray, batch: int) -> None:
    """Write a matrix [*batch, *rows, n], with so many dims of the first kind, into the panels [*batch,
    ceil(n / columns), *rows, columns], without a copy in between."""
    columns, n = target.shape[-1], matrix.shape[-1]
    whole, rest = divmod(n, columns)
    before = (slice(None),) * batch
    split = matrix[..., : whole * columns].reshape(*matrix.shape[:-1], whole, columns)
    target[(*before, slice(whole))] = np.moveaxis(split, -2, batch)
    if rest:
        edge = target[(*before, whole)]
        edge[..., :rest] = matrix[..., whole * columns :]
        edge[..., rest:] = 0


def on_cache_lines(count: int, dtype: np.dtype) -> np.ndarray:
    """An array that begins at a cache line, so that no vector of a panel lies in two; numpy's own begin anywhere."""
    memory = np.empty(count * dtype.itemsize + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + count * dtype.itemsize].view(dtype)
