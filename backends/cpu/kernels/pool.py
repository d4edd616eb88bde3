"""The greatest element or the mean of each window, channels last: vectors hold channels.

    work unit (image, plane, block of rows, block of channels)
      rows, runs of pixels: which taps lie inside the image
        vectors of channels: taps

Neighbours whose windows lie between the left and the right edge are one run: each column of taps is combined once, and
then the columns of each window. At those edges a window is alone, and loops go over what is inside of it, for several
vectors at a time. So nothing around the image is read, and `x` begins at the image itself.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ....graph import types
from ....graph.core import Value
from ....graph.dtypes import DType
from ....graph.kernel.loop_builder import LoopBuilder, Operand
from ....graph.kernel.scalar_emitter import computed_in
from ....graph.module import Function, Module
from ..machine import Machine
from .depthwise import Blocks
from .image import (
    INDEX,
    ImageEpilogue,
    Layout,
    Numbers,
    Window,
    argument_names,
    argument_types,
    epilogue_sizes,
    given_operands,
    layout_sizes,
    share,
    tile_strides,
)
from .tile import Epilogue, EpilogueOperand, Given, Size, Target, Tile, epilogue_body

# Runs are made for windows of at most so many pixels; a window that is alone takes so many vectors at a time.
WIDEST = 16
TOGETHER = 4

_DIMS = ("plane", "row", "pixel")


@dataclass(frozen=True)
class Pool:
    """A pool; `kind` is "max" or "average". `planes`, `rows` and `pixels` are the extents of the output.

    With `counts_padding` a mean counts the taps on the declared padding too, as zeros; those that are outside even of
    it (when the extent of the output was rounded up) never count.
    """

    kind: str
    window: Window
    channels: Size
    dtype: DType
    counts_padding: bool = False
    planes: Size = 1
    rows: Size = None
    pixels: Size = None
    x: Layout = field(default_factory=Layout)
    y: Layout = field(default_factory=Layout)
    epilogue: ImageEpilogue = field(default_factory=ImageEpilogue)


def pool_blocks(pool: Pool, machine: Machine, rows: int, channels: int, threads: int = 1) -> Blocks:
    """Rows are cut so that each thread gets several units of work, and channels if there are few rows."""
    wanted = 1 if threads == 1 else 4 * threads
    blocks = max(1, min(wanted, rows))
    vectors = -(-channels // machine.lanes(computed_in(pool.dtype)))
    return Blocks(blocks, max(1, min(-(-wanted // blocks), vectors // TOGETHER)))


# ---- interface -------------------------------------------------------------------------------------------------------


def _sizes(pool: Pool) -> dict[str, Size]:
    return {
        "images": None, "planes": pool.planes, "rows": pool.rows, "pixels": pool.pixels, "channels": pool.channels,
        "row_blocks": None, "channel_blocks": None, **{f"{dim}_size": None for dim in _DIMS},
        **{f"{dim}_before": None for dim in _DIMS}, **{f"{dim}_after": None for dim in _DIMS},
        **layout_sizes("x", pool.x), **layout_sizes("y", pool.y), **epilogue_sizes(pool.epilogue),
    }  # fmt: skip


def pool_arguments(pool: Pool) -> list[str]:
    """The names of the kernel's arguments, in order.

    `plane_size`, `row_size` and `pixel_size` are the extents of the input (a dim that is missing has 1);
    `plane_before`, ... the padding in front of it and `plane_after`, ... behind; `row_blocks` and `channel_blocks` the
    numbers in `Blocks`.
    """
    return argument_names(["x", "y"], pool.epilogue, _sizes(pool))


def pool_units(images: int, planes: int, blocks: Blocks) -> int:
    """How many units of work there are."""
    return images * planes * blocks.rows * blocks.channels


def build_pool(name: str, pool: Pool, machine: Machine) -> Module:
    """The kernel as a module of the level "loop"; see `pool_arguments` for what it takes."""
    return _PoolBuilder(name, pool, machine).module()


# ---- building --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Seen:
    """The taps along one dim that an output sees: the place of the first in the input, how many, how many count."""

    first: Operand
    taps: Operand
    counted: Operand


class _PoolBuilder:
    def __init__(self, name: str, pool: Pool, machine: Machine) -> None:
        self.pool = pool
        self.computed = computed_in(pool.dtype)
        self.lanes = machine.lanes(self.computed)
        while self.lanes > 4 and pool.channels is not None and self.lanes // 2 >= pool.channels:
            self.lanes //= 2
        self.operands = [operand.name for operand in pool.epilogue.operands]
        names = pool_arguments(pool)
        buffers = {"x": pool.dtype, "y": pool.dtype}
        self.b = LoopBuilder(name, **argument_types(names, buffers, pool.epilogue))
        self.n = Numbers(self.b, _sizes(pool))
        operands = tuple(EpilogueOperand(o.name, o.dtype, None, o.layout.channel or 0) for o in pool.epilogue.operands)
        epilogue = Epilogue(operands, pool.epilogue.body)
        self.body = epilogue_body(self.b, "epilogue", epilogue, self.lanes, self.computed)
        self.runs = self.run_lengths(machine)

    def run_lengths(self, machine: Machine) -> list[int]:
        """How many pixels are done together between the edges: as many as registers hold the columns of."""
        window, columns = self.pool.window, machine.registers * 3 // 4
        taps, stride = window.kernel[2], window.strides[2]
        if taps > WIDEST:
            return []
        most = max(1, 1 + (columns - taps) // max(stride, 1)) if stride < taps else columns // taps
        return sorted({1, min(8, max(1, most), self.pool.pixels or 8)}, reverse=True)

    def module(self) -> Module:
        b, n = self.b, self.n
        for pixels in (0, *self.runs):
            b.include(self.function(pixels))
        with b.loop(b["begin"], b["end"]) as unit:
            part, rest = b.rem(unit, n["channel_blocks"]), b.div(unit, n["channel_blocks"])
            block, rest = b.rem(rest, n["row_blocks"]), b.div(rest, n["row_blocks"])
            one_plane = self.pool.planes == 1
            plane = 0 if one_plane else b.rem(rest, n["planes"])
            image = rest if one_plane else b.div(rest, n["planes"])
            self.unit({"image": image, "plane": plane}, block, part)
        return b.module()

    def unit(self, place: dict[str, Operand], block: Operand, part: Operand) -> None:
        """The windows of a block of rows, for a block of channels."""
        b, n, lanes = self.b, self.n, self.lanes
        vectors = b.div(b.add(n["channels"], lanes - 1), lanes)
        begin, end = share(b, part, vectors, n["channel_blocks"])
        channel = b.mul(begin, lanes)
        channels = b.sub(b.min(b.mul(end, lanes), n["channels"]), channel)
        first, last = share(b, block, n["rows"], n["row_blocks"])
        x = b.view(b["x"], n.offset("x", image=place["image"], channel=channel))
        outputs = {name: b.view(b[name], n.offset(name, **place, channel=channel)) for name in ("y", *self.operands)}
        deep = self.seen(0, place["plane"])
        with b.loop(first, last) as row:
            high = self.seen(1, row)
            views = {"x": b.view(x, n.offset("x", plane=deep.first, row=high.first))}
            views |= {name: b.view(view, n.offset(name, row=row)) for name, view in outputs.items()}
            left, right = self.between_edges() if self.runs else (n["pixels"], n["pixels"])
            done: Operand = 0
            for pixels, end in ((0, left), *((pixels, right) for pixels in self.runs), (0, n["pixels"])):
                step = max(pixels, 1)
                end = b.add(done, b.mul(b.div(b.sub(end, done), step), step))
                with b.loop(done, end, step) as pixel:
                    self.call(views, pixel, channels, (deep, high, self.seen(2, pixel)), pixels)
                done = end

    def between_edges(self) -> tuple[Operand, Operand]:
        """The first output of a row whose window lies inside as a whole, and the one behind the last."""
        b, n, window = self.b, self.n, self.pool.window
        stride, span = window.strides[2], (window.kernel[2] - 1) * window.dilations[2] + 1
        before, pixels = n["pixel_before"], n["pixels"]
        left = b.min(b.div(b.add(before, stride - 1), stride), pixels)
        room = b.sub(b.add(n["pixel_size"], before), span)
        right = b.min(b.div(b.add(b.max(room, -stride), stride), stride), pixels)
        return left, b.max(left, right)

    def seen(self, dim: int, output: Operand) -> _Seen:
        """The taps that the output at a place along a dim sees."""
        b, n, name, window = self.b, self.n, _DIMS[dim], self.pool.window
        taps, stride, dilation = window.kernel[dim], window.strides[dim], window.dilations[dim]
        if (taps, stride) == (1, 1) and dim == 0 and self.pool.planes == 1:
            return _Seen(0, 1, 1)
        start = b.sub(b.mul(output, stride), n[f"{name}_before"])

        def below(limit: Operand) -> Operand:
            """How many taps lie in front of a place."""
            distance = b.max(b.sub(limit, start), 0)
            return b.min(b.div(b.add(distance, dilation - 1), dilation), taps)

        lowest, highest = below(0), below(n[f"{name}_size"])
        counted: Operand = b.max(b.sub(highest, lowest), 0)
        if self.pool.counts_padding:
            counted = below(b.add(n[f"{name}_size"], n[f"{name}_after"]))
        first = b.max(b.min(b.add(start, b.mul(lowest, dilation)), b.sub(n[f"{name}_size"], 1)), 0)
        return _Seen(first, b.max(b.sub(highest, lowest), 0), counted)

    def call(
        self, views: dict[str, Value], pixel: Operand, channels: Operand, seen: Sequence[_Seen], pixels: int
    ) -> None:
        """Call the function for a run of `pixels` (0: one at an edge) from `pixel` on, which sees these taps."""
        b, n = self.b, self.n
        counted = b.mul(b.mul(seen[0].counted, seen[1].counted), seen[2].counted)
        here = [
            b.view(view, n.offset(name, pixel=seen[2].first if name == "x" else pixel)) for name, view in views.items()
        ]
        extra = [b[name] for name in n.unknown(*self.strides())]
        b.call(f"run{pixels}", *here, channels, counted, *(each.taps for each in seen), *extra)

    def strides(self) -> list[str]:
        """The strides that a run's function uses."""
        return [*(f"x_{dim}" for dim in _DIMS), "y_row", "y_pixel", *tile_strides(self.pool.epilogue)]

    def function(self, pixels: int) -> Function:
        """The function for a run of `pixels` (0: one at an edge), all channels."""
        pool, lanes = self.pool, self.lanes
        arguments: dict[str, types.Type] = {key: types.buffer(pool.dtype) for key in ("x", "y")}
        arguments |= {operand.name: types.buffer(operand.dtype) for operand in pool.epilogue.operands}
        arguments |= dict.fromkeys(("channels", "counted", *(f"{dim}_taps" for dim in _DIMS)), INDEX)
        b = LoopBuilder(f"run{pixels}", **arguments, **self.n.unknown(*self.strides()))
        n = Numbers(b, self.n.sizes)
        done: Operand = 0
        for together in (1,) if pixels else (TOGETHER, 1):
            step = together * lanes
            end = b.add(done, b.mul(b.div(b.sub(b["channels"], done), step), step))
            with b.loop(done, end, step) as channel:
                self.vectors(b, n, [b.add(channel, vector * lanes) for vector in range(together)], None, pixels)
            done = end
        if pool.channels is None or pool.channels % lanes:
            rest = b.sub(b["channels"], done)
            with b.when(b.lt(0, rest)):
                self.vectors(b, n, [done], rest, pixels)
        return b.finish()

    def vectors(
        self, b: LoopBuilder, n: Numbers, channels: Sequence[Operand], count: Operand | None, pixels: int
    ) -> None:
        """Vectors from `channels` on, of which `count` channels are there (None: all), for each pixel of the run."""
        mask = None if count is None else b.tail_mask(b.index(count), self.lanes)
        if not pixels:
            for channel, total in zip(channels, self.looped(b, n, (0, 1, 2), channels, mask), strict=True):
                self.store(b, n, channel, [total], count)
            return
        [channel], window = channels, self.pool.window
        seen = [
            [pixel * window.strides[2] + tap * window.dilations[2] for tap in range(window.kernel[2])]
            for pixel in range(pixels)
        ]
        columns = sorted(set(itertools.chain(*seen)))
        places = [b.add(channel, n.offset("x", pixel=column)) for column in columns]
        found = dict(zip(columns, self.looped(b, n, (0, 1), places, mask), strict=True))
        combine = functools.partial(self.combined, b)
        self.store(b, n, channel, [functools.reduce(combine, [found[c] for c in those]) for those in seen], count)

    def looped(
        self, b: LoopBuilder, n: Numbers, dims: Sequence[int], places: Sequence[Operand], mask: Value | None
    ) -> list[Value]:
        """What is combined, for vectors at each of `places`, over the taps along `dims` that are there."""
        start = b.constant(self.lowest(), types.vector(self.computed, self.lanes))

        def nest(dims: Sequence[int], x: Value, totals: Sequence[Value]) -> list[Value]:
            if not dims:
                loaded = [b.cast(b.load(x, place, self.lanes, mask), self.computed) for place in places]
                return [self.combined(b, *pair) for pair in zip(totals, loaded, strict=True)]
            dim, *inner = dims
            step = b.mul(self.pool.window.dilations[dim], n[f"x_{_DIMS[dim]}"])
            with b.loop(0, b[f"{_DIMS[dim]}_taps"], 1, totals) as state:
                state.yields(nest(inner, b.view(x, b.mul(state.index, step)), state.values))
            return list(state.results)

        return nest(dims, b["x"], [start] * len(places))

    def store(
        self, b: LoopBuilder, n: Numbers, channel: Operand, totals: Sequence[Value], count: Operand | None
    ) -> None:
        """Finish and store the vectors from `channel` on, one for each pixel of a run."""
        if self.pool.kind == "average":
            counted = b.broadcast(b.cast(b["counted"], self.computed), self.lanes)
            totals = [b.div(total, counted) for total in totals]
        pixels = len(totals)
        given = [
            Given(b.view(each.buffer, b.mul(channel, each.column)), each.places, each.column)
            for each in given_operands(b, n, self.pool.epilogue, 1, pixels)
        ]
        places = [n.offset("y", pixel=pixel) for pixel in range(pixels)]
        target = Target(b.view(b["y"], channel), places, self.lanes if count is None else count)
        Tile(pixels, 1, self.lanes, self.computed).finish(b, totals, target, body=self.body, given=given)

    def combined(self, b: LoopBuilder, total: Value, part: Value) -> Value:
        result: Value = b.max(total, part) if self.pool.kind == "max" else b.add(total, part)
        return result

    def lowest(self) -> Any:
        """What a window begins with."""
        if self.pool.kind == "average":
            return 0
        return -math.inf if self.computed.is_float else np.iinfo(self.computed.numpy).min
