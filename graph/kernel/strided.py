"""`Strided`: how a tensor lies in flat memory. Transposing, slicing, broadcasting, most reshaping only change that."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

Shape: TypeAlias = "tuple[int, ...]"


@dataclass(frozen=True, slots=True)
class Strided:
    """Element [i0, i1, ...] is at `offset` + i0*strides[0] + i1*strides[1] + ..., counted in elements."""

    shape: Shape
    strides: Shape
    offset: int = 0

    @staticmethod
    def contiguous(shape: Sequence[int]) -> Strided:
        """The elements of `shape` in row-major order."""
        return Strided(tuple(shape), dense_strides(shape))

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie in row-major order without gaps; strides of dims of size 1 do not matter."""
        if self.size == 0:
            return True
        dense = dense_strides(self.shape)
        return all(n == 1 or s == d for n, s, d in zip(self.shape, self.strides, dense, strict=True))

    def transposed(self, axes: Sequence[int]) -> Strided:
        """Dim i of the result is dim axes[i]."""
        return Strided(tuple(self.shape[a] for a in axes), tuple(self.strides[a] for a in axes), self.offset)

    def broadcast(self, shape: Sequence[int]) -> Strided:
        """Repeated, numpy's way, to `shape`. Raises ValueError if that cannot be."""
        missing = len(shape) - self.rank
        if missing < 0:
            raise ValueError(f"a tensor of shape {list(self.shape)} does not broadcast to {list(shape)}")
        strides = [0] * missing
        for size, stride, wanted in zip(self.shape, self.strides, shape[missing:], strict=True):
            if size != wanted and size != 1:
                raise ValueError(f"a tensor of shape {list(self.shape)} does not broadcast to {list(shape)}")
            strides.append(stride if size == wanted else 0)
        return Strided(tuple(shape), tuple(strides), self.offset)

    def sliced(self, axis: int, start: int, count: int, step: int = 1) -> Strided:
        """`count` elements along `axis`, from `start` on, `step` apart."""
        shape, strides = list(self.shape), list(self.strides)
        offset = self.offset + (start * strides[axis] if count else 0)
        shape[axis], strides[axis] = count, strides[axis] * step
        return Strided(tuple(shape), tuple(strides), offset)

    def reshaped(self, shape: Sequence[int]) -> Strided | None:
        """The elements in their order as another shape; None if they would have to move."""
        if self.size == 0:
            return Strided.contiguous(shape)
        old = [(n, s) for n, s in zip(self.shape, self.strides, strict=True) if n != 1]
        strides: list[int] = []
        position = 0
        index = 0
        while index < len(shape):
            if shape[index] == 1:
                strides.append(0)
                index += 1
                continue
            # The smallest runs of old and new dims that hold the same number of elements.
            start, first = position, index
            had, wants = old[position][0], shape[index]
            position, index = position + 1, index + 1
            while had != wants:
                if had < wants:
                    had *= old[position][0]
                    position += 1
                else:
                    wants *= shape[index]
                    index += 1
            run = old[start:position]
            if any(outer[1] != inner[0] * inner[1] for outer, inner in itertools.pairwise(run)):
                return None
            step = run[-1][1]
            inner: list[int] = []
            for size in reversed(shape[first:index]):
                inner.append(step)
                step *= size
            strides += reversed(inner)
        return Strided(tuple(shape), tuple(strides), self.offset)

    def order(self) -> tuple[int, ...]:
        """The axes from the slowest to the fastest in memory; row-major where strides do not tell."""
        return tuple(sorted(range(self.rank), key=lambda axis: (-abs(self.strides[axis]), axis)))


def broadcast_shapes(*shapes: Sequence[int]) -> Shape:
    """The shape that tensors of these shapes broadcast to, numpy's way. Raises ValueError if there is none."""
    rank = max(map(len, shapes), default=0)
    result: list[int] = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, rank - len(shape)):
            if size == 1:
                continue
            # Of two equal sizes the one that is a plain number is kept: it is so in every run.
            if result[axis] == 1 or (result[axis] == size and type(size) is int):
                result[axis] = size
            elif result[axis] != size:
                raise ValueError(f"{', '.join(str(list(each)) for each in shapes)} do not broadcast to one shape")
    return tuple(result)


def dense_strides(shape: Sequence[int], order: Sequence[int] | None = None) -> Shape:
    """The strides of a tensor without gaps whose axes lie in `order`, slowest first (default: row-major)."""
    strides = [0] * len(shape)
    step = 1
    for axis in reversed(range(len(shape)) if order is None else order):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)
