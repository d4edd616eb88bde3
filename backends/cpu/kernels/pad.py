"""Padding as copies: the inside from the operand, then each border from the value or from what is there already."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Piece:
    """A copy of `extents` elements to the result from `target` on.

    They come from the operand ("x"), the result itself ("y") or the one number of the padding ("value"), from `source`
    on with a step of 1, 0 (the same again) or -1 (backwards) along each dim. Later pieces read what earlier ones wrote.
    """

    kind: str
    source: tuple[int, ...]
    steps: tuple[int, ...]
    target: tuple[int, ...]
    extents: tuple[int, ...]


def pad_pieces(shape: Sequence[int], before: Sequence[int], after: Sequence[int], mode: str) -> list[Piece]:
    """How to pad an operand of `shape`; `mode` is "constant", "edge", "reflect" or "wrap". Negative widths cut off.

    The result has shape[i] + before[i] + after[i] elements along dim i. What is cut off is not reflected either: as
    ONNX's Pad, borders continue what is left. Raises ValueError where an empty dim would have to be continued.
    """
    rank = len(shape)
    inside = [size + min(low, 0) + min(high, 0) for size, low, high in zip(shape, before, after, strict=True)]
    wide = [size + low + high for size, low, high in zip(shape, before, after, strict=True)]
    if any(size < 0 for size in (*inside, *wide)):
        raise ValueError(f"padding {list(shape)} by {list(before)} and {list(after)} leaves less than nothing")
    if not all(wide):
        return []
    lows = [max(low, 0) for low in before]
    pieces = []
    if all(inside):
        source = tuple(max(-low, 0) for low in before)
        pieces.append(Piece("x", source, (1,) * rank, tuple(lows), tuple(inside)))
    elif mode != "constant":
        raise ValueError(f"an empty dim of {list(shape)} has nothing that mode {mode!r} could continue")
    # What is filled: all of the dims before `axis`, the inside of the others.
    for axis in range(rank):
        start = [0] * axis + lows[axis:]
        extents = wide[:axis] + inside[axis:]
        if not all(extents[:axis] + extents[axis + 1 :]):
            continue
        for at, count, origin, step in _borders(wide[axis], lows[axis], inside[axis], mode):
            target = (*start[:axis], at, *start[axis + 1 :])
            size = (*extents[:axis], count, *extents[axis + 1 :])
            if mode == "constant":
                pieces.append(Piece("value", (0,) * rank, (0,) * rank, target, size))
            else:
                steps = (1,) * axis + (step,) + (1,) * (rank - axis - 1)
                pieces.append(Piece("y", (*start[:axis], origin, *start[axis + 1 :]), steps, target, size))
    return pieces


def _borders(wide: int, low: int, inside: int, mode: str) -> Iterator[tuple[int, int, int, int]]:
    """(first place, how many, place of the source, step) for the borders of one dim, nearest to the inside first."""
    high = low + inside
    if mode in ("constant", "edge") or (mode == "reflect" and inside == 1):
        if low:
            yield 0, low, low, 0
        if high < wide:
            yield high, wide - high, high - 1, 0
        return
    # A border wider than the inside is filled by parts, each of which continues the one before.
    most = inside - 1 if mode == "reflect" else inside
    first, end = low, high
    while first:
        count = min(most, first)
        if mode == "reflect":
            yield first - count, count, first + count, -1
        else:
            yield first - count, count, first - count + inside, 1
        first -= count
    while end < wide:
        count = min(most, wide - end)
        if mode == "reflect":
            yield end, count, end - 2, -1
        else:
            yield end, count, end - inside, 1
        end += count
