"""Where intermediate values lie: offsets in one arena, reused when the value that was there is no longer needed."""

from __future__ import annotations

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
    placed: list[int] = []
    total = 0
    for index in sorted(range(len(lifetimes)), key=lambda i: (-lifetimes[i].size, i)):
        mine = lifetimes[index]
        size = -(-mine.size // ALIGNMENT) * ALIGNMENT
        start = 0
        for other in sorted(placed, key=lambda i: offsets[i]):
            theirs = lifetimes[other]
            if theirs.last < mine.first or mine.last < theirs.first:
                continue
            if offsets[other] - start >= size:
                break
            start = max(start, offsets[other] + -(-theirs.size // ALIGNMENT) * ALIGNMENT)
        offsets[index] = start
        placed.append(index)
        total = max(total, start + size)
    return offsets, total
