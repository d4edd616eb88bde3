"""Where intermediate values lie: offsets in one arena, reused when the value that was there is no longer needed."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 64


@dataclass(frozen=True)
class Lifetime:
    """`size` bytes that are needed from step `first` to step `last`, both included."""

    size: int
    first: int
    last: int


def place(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """An offset for each, so that what is needed at the same time does not overlap; and the bytes of the arena.

    The largest are placed first, each in the lowest gap among those that overlap it in time.
    """
    offsets = [0] * len(lifetimes)
    placed: list[tuple[int, int, int, int]] = []  # where it begins and ends, when it is needed; in order of places
    total = 0
    for index in sorted(range(len(lifetimes)), key=lambda i: (-lifetimes[i].size, i)):
        mine = lifetimes[index]
        if not mine.size:
            continue
        size = -(-mine.size // ALIGNMENT) * ALIGNMENT
        start = 0
        for begin, end, first, last in placed:
            if last < mine.first or mine.last < first:
                continue
            if begin - start >= size:
                break
            start = max(start, end)
        offsets[index] = start
        insort(placed, (start, start + size, mine.first, mine.last))
        total = max(total, start + size)
    return offsets, total


def stack_of(lifetimes: Sequence[Lifetime], offsets: Sequence[int]) -> list[list[int]]:
    """What lies on what in an arena: lists of an item and those below it that are needed at the same time.

    They are in an order in which an item comes after all that it lies on.
    """
    stack: list[list[int]] = []
    for index in sorted(range(len(lifetimes)), key=lambda i: (offsets[i], i)):
        mine = lifetimes[index]
        below = [
            line[0] for line in stack
            if lifetimes[line[0]].last >= mine.first and lifetimes[line[0]].first <= mine.last
        ]  # fmt: skip
        stack.append([index, *below])
    return stack


def restack(stack: Sequence[Sequence[int]], sizes: Sequence[int]) -> tuple[list[int], int]:
    """Offsets for other `sizes` with the same items on each other, and the bytes of the arena."""
    offsets, ends = [0] * len(sizes), [0] * len(sizes)
    for index, *below in stack:
        start = 0
        for other in below:
            if ends[other] > start:
                start = ends[other]
        offsets[index] = start
        ends[index] = start - (-sizes[index] // ALIGNMENT) * ALIGNMENT
    return offsets, max(ends, default=0)
