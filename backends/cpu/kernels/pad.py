"""Padding: as copies, the inside from the operand, then each border from the value or from what is there already; with
one number and long rows in one pass."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ....graph.core import Value
from ....graph.dtypes import DType
from ....graph.kernel.loop_builder import Operand
from ....graph.module import Module
from ..machine import Machine
from .elementwise import AHEAD_BYTES
from .image import share
from .strided import Size, StridedBuilder, argument_names


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
    # What is there already repeats itself, so each part may be as long as all before it: a few parts for any border.
    period = 2 * (inside - 1) if mode == "reflect" else inside
    first, end = low, high
    while first:
        whole = (high - first) // period * period
        count = min(whole or inside - 1, first)
        yield (first - count, count, first - count + whole, 1) if whole else (first - count, count, first + count, -1)
        first -= count
    while end < wide:
        whole = end // period * period
        count = min(whole or inside - 1, wide - end)
        yield (end, count, end - whole, 1) if whole else (end, count, end - 2, -1)
        end += count


# ---- padding with a number, in one pass ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dim:
    """`size` elements of the operand and `before` and `after` of the padding (less than 0: cut off), the strides of
    both."""

    size: int
    before: int
    after: int
    source: int
    target: int

    @property
    def wide(self) -> int:
        return self.before + self.size + self.after

    @property
    def is_padded(self) -> bool:
        return bool(self.before or self.after)


def joined_dims(dims: Sequence[Dim]) -> list[Dim]:
    """The dims in the order of the result's memory, at least two; one without pads is joined with the one before."""
    found: list[Dim] = []
    for dim in sorted(dims, key=lambda dim: -abs(dim.target)):
        if found and not dim.is_padded:
            outer = found[-1]
            if outer.source == dim.size * dim.source and outer.target == dim.size * dim.target:
                found[-1] = Dim(
                    outer.size * dim.size, outer.before * dim.size, outer.after * dim.size, dim.source, dim.target
                )
                continue
        found.append(dim)
    kept = [dim for dim in found[:-1] if dim.size != 1 or dim.is_padded]
    return [*(kept or [Dim(1, 0, 0, 0, 0)]), *found[-1:]]


@dataclass(frozen=True)
class Pad:
    """A border of one number around `rank` dims, at least two, along the last of which both tensors are contiguous."""

    dtype: DType
    rank: int


def pad_sizes(kernel: Pad) -> dict[str, Size]:
    """Extents and strides by name, all of them arguments: of the operand, of the result, what is in front."""
    names = [f"{name}{axis}" for name in ("size", "wide", "before") for axis in range(kernel.rank)]
    names += [f"{name}_outer{axis}" for name in ("x", "y") for axis in range(kernel.rank - 1)]
    return dict.fromkeys((*names, "pieces"))


def pad_arguments(kernel: Pad) -> list[str]:
    """The names of the kernel's arguments, in order; `value` has one number."""
    return argument_names(["y", "x", "value"], pad_sizes(kernel))


def pad_units(threads: int, *wide: int) -> tuple[int, int]:
    """How many units of work there are, and in how many pieces the rows of each are cut, for `wide` dims."""
    outer, rows = math.prod(wide[:-2]), wide[-2]
    pieces = max(1, min(rows, -(-4 * threads // max(outer, 1)))) if threads > 1 else 1
    return outer * pieces, pieces


def build_pad(name: str, kernel: Pad, machine: Machine) -> Module:
    """The kernel as a module of the level "loop"; see `pad_arguments` for what it takes.

    A unit of work is a piece of the rows of the second last dim. Each row is written once, border and all.
    """
    builder = _PadBuilder(name, kernel, machine)
    builder.units()
    return builder.b.module()


class _PadBuilder(StridedBuilder):
    def __init__(self, name: str, kernel: Pad, machine: Machine) -> None:
        super().__init__(
            name, machine, dict.fromkeys(("y", "x", "value"), kernel.dtype), pad_sizes(kernel), kernel.dtype
        )
        self.kernel = kernel
        self.number = self.b.broadcast(self.b.load(self.b["value"], 0), self.lanes)

    def units(self) -> None:
        b, last = self.b, self.kernel.rank - 1
        with b.loop(b["begin"], b["end"]) as unit:
            piece, rest = b.rem(unit, b["pieces"]), b.div(unit, b["pieces"])
            indices = self.unravel(rest, [f"wide{axis}" for axis in range(last - 1)])
            x, y, is_inside = self.at(indices, 0)
            with b.loop(*share(b, piece, b[f"wide{last - 1}"], b["pieces"])) as row:
                source, target, has_source = self.at([row], last - 1)
                here = b.add(y, target)
                has_source = b.and_(has_source, is_inside) if isinstance(is_inside, Value) else has_source
                b.branch(has_source, lambda s=source, h=here: self.row(b.add(x, s), h), lambda h=here: self.fill(h))

    def at(self, indices: Sequence[Operand], first: int) -> tuple[Operand, Operand, Operand]:
        """How far into both tensors the element of the result at `indices` of the dims from `first` on lies, and
        whether there is one in the operand."""
        b = self.b
        x: Operand = 0
        y: Operand = 0
        is_inside: Operand = True
        for axis, index in enumerate(indices, first):
            place = b.sub(index, b[f"before{axis}"])
            here = b.and_(b.le(0, place), b.lt(place, b[f"size{axis}"]))
            is_inside = b.and_(is_inside, here) if isinstance(is_inside, Value) else here
            x = b.add(x, b.mul(place, b[f"x_outer{axis}"]))
            y = b.add(y, b.mul(index, b[f"y_outer{axis}"]))
        return x, y, is_inside

    def row(self, x: Operand, y: Operand) -> None:
        """A row with what is around it."""
        b, lanes, last = self.b, self.lanes, self.kernel.rank - 1
        size, wide, before = b[f"size{last}"], b[f"wide{last}"], b[f"before{last}"]
        start = b.sub(x, before)
        vectors = b.div(b.add(wide, lanes - 1), lanes)
        left = b.min(b.div(b.add(b.max(before, 0), lanes - 1), lanes), vectors)
        right = b.div(b.max(b.min(b.add(before, size), wide), 0), lanes)
        right = b.max(right, left)
        for first, end, is_whole in ((0, left, False), (left, right, True), (right, vectors, False)):
            with b.loop(first, end) as vector:
                place = b.mul(vector, lanes)
                self.ask(b.add(y, place))
                if is_whole:
                    b.store(b.load(b["x"], b.add(start, place), lanes), b["y"], b.add(y, place))
                    continue
                source = b.add(b.iota(lanes), b.sub(place, before))
                mask = b.and_(b.le(0, source), b.lt(source, size))
                loaded = b.load(b["x"], b.add(start, place), lanes, mask)
                edge = b.tail_mask(b.sub(wide, place), lanes)
                b.store(b.select(mask, loaded, self.number), b["y"], b.add(y, place), edge)

    def fill(self, y: Operand) -> None:
        """A row of nothing but padding."""
        b, lanes, wide = self.b, self.lanes, self.b[f"wide{self.kernel.rank - 1}"]
        with b.loop(0, wide, lanes) as place:
            self.ask(b.add(y, place))
            b.store(self.number, b["y"], b.add(y, place), b.tail_mask(b.sub(wide, place), lanes))

    def ask(self, place: Operand) -> None:
        """A store waits for its line, so it is asked for some time before."""
        self.b.prefetch(self.b["y"], self.b.add(place, AHEAD_BYTES * 8 // self.kernel.dtype.bits), writes=True)
