"""Depthwise convolution: each channel has a filter of its own. Vectors hold channels, and a tile of rows x pixels
outputs stays in registers, so that an element of the input is loaded once for all outputs of the tile that see it.

    work unit (image, plane, block of rows, block of channels)
      tiles of the block of rows
        vectors of channels: taps, in registers

Bytes are computed as floats, which hold their sums exactly (those of more than `MOST_TAPS` taps would not): each is
widened once for all outputs that see it. Their zero point times the sum of a filter is where the sums begin, so the
border of an image is the zero point, too.

With few channels to a block, the rows that a tile and the one below it see lie in the first-level cache; with all
channels in one block, the input is read in order. Filters of more than `UNROLLED` taps are loops over their rows.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ....graph import types
from ....graph.core import Value
from ....graph.dtypes import DType, f32, i8, u8
from ....graph.kernel.loop_builder import LoopBuilder, Operand
from ....graph.kernel.scalar_emitter import computed_in
from ....graph.module import Function, Module
from ..machine import Machine
from .image import (
    INDEX,
    ImageEpilogue,
    Layout,
    Numbers,
    Window,
    argument_names,
    argument_types,
    choose,
    epilogue_sizes,
    even_blocks,
    even_sizes,
    given_operands,
    layout_sizes,
    share,
    tile_strides,
    tiles_along,
)
from .pack import on_cache_lines
from .tile import Epilogue, EpilogueOperand, Given, Size, Target, Tile, finishing_body

UNROLLED = 64
# Sums of up to so many products of bytes fit into 22 bits, as far as a float can be rounded by adding to it.
MOST_TAPS = 128


@dataclass(frozen=True)
class Depthwise:
    """A depthwise convolution with as many outputs as input channels.

    `planes`, `rows` and `pixels` are the extents of the output. Filters are packed (`packed_taps`), in the dtype that
    is computed in. `result` is the dtype of the output where it is another one; bytes have a zero point, in a buffer.
    """

    window: Window
    channels: int
    dtype: DType
    planes: Size = 1
    rows: Size = None
    pixels: Size = None
    x: Layout = field(default_factory=Layout)
    y: Layout = field(default_factory=Layout)
    epilogue: ImageEpilogue = field(default_factory=ImageEpilogue)
    result: DType | None = None

    @property
    def computed(self) -> DType:
        return f32 if self.has_zero else computed_in(self.dtype)

    @property
    def has_zero(self) -> bool:
        return self.dtype in (u8, i8)


@dataclass(frozen=True)
class DepthwiseTiling:
    """`rows` x `pixels` outputs of `lanes` channels in registers. With `fetches`, a tile asks for what the next one of
    the row needs."""

    rows: int
    pixels: int
    lanes: int
    fetches: bool = False


@dataclass(frozen=True)
class Blocks:
    """Into how many blocks the rows and the channels of an output are cut."""

    rows: int
    channels: int


# ---- choosing --------------------------------------------------------------------------------------------------------


def choose_depthwise_tiling(kernel: Depthwise, machine: Machine) -> DepthwiseTiling:
    """Sums take half of the registers, filters and input the rest."""
    lanes = machine.lanes(kernel.computed)
    while lanes > 4 and lanes // 2 >= kernel.channels:
        lanes //= 2
    rows, pixels = (2, 7) if machine.registers >= 32 else (2, 3)
    if kernel.rows == 1 or _is_looped(kernel.window):
        rows, pixels = 1, rows * pixels
    fetches = not _is_looped(kernel.window) and _bytes(kernel) > machine.l2 // 2
    return DepthwiseTiling(min(rows, kernel.rows or rows), min(pixels, kernel.pixels or pixels), lanes, fetches)


def _bytes(kernel: Depthwise) -> float:
    """Of an image's input, about; of one whose size is not known, many."""
    if kernel.rows is None or kernel.pixels is None:
        return float("inf")
    _, down, right = kernel.window.strides
    return kernel.channels * kernel.rows * down * kernel.pixels * right * kernel.dtype.numpy.itemsize


def _is_looped(window: Window) -> bool:
    return window.kernel[1] * window.kernel[2] > UNROLLED


def depthwise_blocks(
    kernel: Depthwise, tiling: DepthwiseTiling, machine: Machine, rows: int, pixels: int, threads: int = 1
) -> Blocks:
    """Channels are cut so that the rows of input that a row of tiles sees fit into the first-level cache, unless that
    would leave little of each pixel, which is read best in order; rows so that each thread gets several units."""
    size = kernel.dtype.numpy.itemsize
    _, height, width = kernel.window.kernel
    seen = (pixels * kernel.window.strides[2] + width) * (height + tiling.rows) * size
    vectors = -(-kernel.channels // tiling.lanes)
    together = machine.l1 // max(1, seen * tiling.lanes)
    channels = -(-vectors // together) if together >= 3 else 1
    wanted = 1 if threads == 1 else 4 * threads
    blocks = max(1, min(even_blocks(-(-wanted // channels), channels, threads), -(-rows // tiling.rows)))
    return Blocks(blocks, channels)


# ---- interface -------------------------------------------------------------------------------------------------------


def _sizes(kernel: Depthwise) -> dict[str, Size]:
    return {
        "images": None, "planes": kernel.planes, "rows": kernel.rows, "pixels": kernel.pixels, "row_blocks": None,
        "channel_blocks": None, **layout_sizes("x", kernel.x), **layout_sizes("y", kernel.y),
        **epilogue_sizes(kernel.epilogue),
    }  # fmt: skip


def depthwise_arguments(kernel: Depthwise) -> list[str]:
    """The names of the kernel's arguments, in order; `row_blocks` and `channel_blocks` are the numbers in `Blocks`."""
    return argument_names(list(_buffers(kernel)), kernel.epilogue, _sizes(kernel))


def _buffers(kernel: Depthwise) -> dict[str, DType]:
    buffers = {"x": kernel.dtype, "w": kernel.computed, "y": kernel.result or kernel.dtype}
    return buffers | ({"zero": kernel.dtype} if kernel.has_zero else {})


def depthwise_units(images: int, planes: int, blocks: Blocks) -> int:
    """How many units of work there are."""
    return images * planes * blocks.rows * blocks.channels


def packed_taps(w: np.ndarray, kernel: Depthwise, tiling: DepthwiseTiling) -> np.ndarray:
    """Filters [channels, 1, *kernel] as [taps, channels], whose channels are filled up with zeros to whole vectors;
    flat. Those for bytes are followed by their sums."""
    taps, channels = kernel.window.taps, _padded(kernel, tiling)
    count = taps + kernel.has_zero
    packed = on_cache_lines(count * channels, np.dtype(kernel.computed.numpy))
    padded = packed.reshape(count, channels)
    padded[...] = 0
    padded[:taps, : kernel.channels] = w.reshape(kernel.channels, taps).T
    if kernel.has_zero:
        padded[taps] = padded[:taps].sum(0)
    return packed


def _padded(kernel: Depthwise, tiling: DepthwiseTiling) -> int:
    return -(-kernel.channels // tiling.lanes) * tiling.lanes


def build_depthwise(name: str, kernel: Depthwise, tiling: DepthwiseTiling) -> Module:
    """The kernel as a module of the level "loop"; see `depthwise_arguments` for what it takes."""
    return _DepthwiseBuilder(name, kernel, tiling).module()


# ---- building --------------------------------------------------------------------------------------------------------


class _DepthwiseBuilder:
    def __init__(self, name: str, kernel: Depthwise, tiling: DepthwiseTiling) -> None:
        self.kernel, self.tiling = kernel, tiling
        self.computed = kernel.computed
        self.buffers = _buffers(kernel)
        self.operands = [operand.name for operand in kernel.epilogue.operands]
        names = depthwise_arguments(kernel)
        self.b = LoopBuilder(name, **argument_types(names, self.buffers, kernel.epilogue))
        self.n = Numbers(self.b, _sizes(kernel))
        operands = tuple(
            EpilogueOperand(o.name, o.dtype, None, o.layout.channel or 0) for o in kernel.epilogue.operands
        )
        epilogue = Epilogue(operands, kernel.epilogue.body)
        self.body = finishing_body(
            self.b, "epilogue", epilogue, 1, tiling.lanes, self.computed, self.buffers["y"]
        )  # fmt: skip
        self.functions: dict[tuple[int, int], str] = {}
        self.tap = _padded(kernel, tiling)

    def module(self) -> Module:
        b, n = self.b, self.n
        with b.loop(b["begin"], b["end"]) as unit:
            part, rest = b.rem(unit, n["channel_blocks"]), b.div(unit, n["channel_blocks"])
            block, rest = b.rem(rest, n["row_blocks"]), b.div(rest, n["row_blocks"])
            one_plane = self.kernel.planes == 1
            plane = 0 if one_plane else b.rem(rest, n["planes"])
            image = rest if one_plane else b.div(rest, n["planes"])
            self.unit({"image": image, "plane": plane}, block, part)
        return b.module()

    def unit(self, place: dict[str, Operand], block: Operand, part: Operand) -> None:
        """The tiles of a block of rows, for a block of channels."""
        b, n, kernel, tiling = self.b, self.n, self.kernel, self.tiling
        down, right = kernel.window.strides[1:]
        begin, end = share(b, part, self.tap // tiling.lanes, n["channel_blocks"])
        channel = b.mul(begin, tiling.lanes)
        channels = b.sub(b.min(b.mul(end, tiling.lanes), kernel.channels), channel)
        rows, pixels = n["rows"], n["pixels"]
        source = {**place, "plane": b.mul(place["plane"], kernel.window.strides[0])}
        views = {"x": b.view(b["x"], n.offset("x", **source, channel=channel)), "w": b.view(b["w"], channel)}
        for name in ("y", *self.operands):
            views[name] = b.view(b[name], n.offset(name, **place, channel=channel))
        if kernel.has_zero:
            views["zero"] = b["zero"]
        tall = b.div(b.add(rows, tiling.rows - 1), tiling.rows)
        first, last = share(b, block, tall, n["row_blocks"])

        def one(start: Operand, width: Operand, widths: Sequence[int], _: Operand) -> None:
            spot = n.offset("x", row=b.mul(top, down), pixel=b.mul(start, right))
            here = {"x": b.view(views["x"], spot), "w": views["w"]}
            here["y"] = b.view(views["y"], n.offset("y", row=top, pixel=start))
            if kernel.has_zero:
                here["zero"] = views["zero"]
            for name in self.operands:
                here[name] = b.view(views[name], n.offset(name, row=top, pixel=start))
            self.tile(here, b.sub(bottom, top), width, widths, channels)

        with b.loop(first, last) as y:
            top, bottom = share(b, y, rows, tall)
            tiles_along(b, kernel.pixels, pixels, tiling.pixels, one)

    def tile(
        self, views: dict[str, Value], rows: Operand, pixels: Operand, widths: Sequence[int], channels: Operand
    ) -> None:
        """Call the function for tiles of `rows` x `pixels`, which are one of `widths`."""
        b = self.b
        passed = [*views.values(), channels, *(b[name] for name in self.n.unknown(*self.strides()))]

        def call(height: int, width: int) -> None:
            b.call(self.function(height, width), *passed)

        heights = even_sizes(self.kernel.rows, self.tiling.rows)
        choose(b, rows, heights, lambda height: choose(b, pixels, widths, lambda width: call(height, width)))

    def strides(self) -> list[str]:
        """The strides that a tile's function uses."""
        return ["x_plane", "x_row", "x_pixel", "y_row", "y_pixel", *tile_strides(self.kernel.epilogue)]

    def function(self, rows: int, pixels: int) -> str:
        """The function for tiles of `rows` x `pixels`; made when first asked for."""
        key = rows, pixels
        name = self.functions.get(key)
        if name is None:
            name = self.functions[key] = f"tile{rows}x{pixels}"
            self.b.include(self.micro_kernel(name, rows, pixels))
        return name

    def micro_kernel(self, name: str, rows: int, pixels: int) -> Function:
        kernel, lanes = self.kernel, self.tiling.lanes
        arguments: dict[str, types.Type] = {key: types.buffer(dtype) for key, dtype in self.buffers.items()}
        arguments |= {operand.name: types.buffer(operand.dtype) for operand in kernel.epilogue.operands}
        b = LoopBuilder(name, **arguments, channels=INDEX, **self.n.unknown(*self.strides()))
        tile = _Tile(b, Numbers(b, self.n.sizes), kernel, Tile(rows * pixels, 1, lanes, self.computed), rows, pixels)
        whole = b.sub(b["channels"], b.rem(b["channels"], lanes))
        with b.loop(0, whole, lanes) as channel:
            self.vector(tile, channel, lanes)
        if kernel.channels % lanes:
            rest = b.sub(b["channels"], whole)
            with b.when(b.lt(0, rest)):
                self.vector(tile, whole, rest)
        return b.finish()

    def vector(self, tile: _Tile, channel: Operand, count: Operand) -> None:
        """A vector of channels, of which `count` are there."""
        b = tile.b
        if self.tiling.fetches:
            tile.fetch(channel)
        sums = tile.sums(channel, count, self.tap)
        given = [
            Given(b.view(each.buffer, b.mul(channel, each.column)), each.places, each.column)
            for each in given_operands(b, tile.n, self.kernel.epilogue, tile.rows, tile.pixels)
        ]
        places = [tile.n.offset("y", row=row, pixel=pixel) for row in range(tile.rows) for pixel in range(tile.pixels)]
        tile.tile.finish(b, sums, Target(b.view(b["y"], channel), places, count), body=self.body, given=given)


@dataclass(frozen=True)
class _Tile:
    """The sums of `rows` x `pixels` outputs, in a function that is being built."""

    b: LoopBuilder
    n: Numbers
    kernel: Depthwise
    tile: Tile
    rows: int
    pixels: int

    def fetch(self, channel: Operand) -> None:
        """Ask for what the next tile of the row reads first, and for what it writes."""
        b, n, (_, height, width) = self.b, self.n, self.kernel.window.kernel
        _, down, right = self.kernel.window.strides
        rows = {row for row, _ in self.seen(1, height, self.rows)}
        pixels = {pixel for pixel, _ in self.seen(2, width, self.pixels)}
        further = {pixel + self.pixels * right for pixel in pixels} - pixels
        # The tile above has seen the other rows.
        for row in sorted(rows - {row - self.rows * down for row in rows}):
            for pixel in sorted(further):
                b.prefetch(b["x"], b.add(n.offset("x", row=row, pixel=pixel), channel))
        for row in range(self.rows):
            for pixel in range(self.pixels):
                place = b.add(n.offset("y", row=row, pixel=self.pixels + pixel), channel)
                b.prefetch(b["y"], place, writes=True)

    def sums(self, channel: Operand, count: Operand, tap: int) -> list[Value]:
        """The sums for `count` channels from `channel` on; `tap` is how far taps lie apart among the filters."""
        b, lanes = self.b, self.tile.lanes
        mask = None if count == lanes else b.tail_mask(b.index(count), lanes)
        unrolled, loops = self.loops(tap)

        def nest(outer: Sequence[tuple[int, Operand, int]], x: Value, w: Value, sums: list[Value]) -> list[Value]:
            if not outer:
                return self.taps(x, w, sums, unrolled, tap, mask)
            extent, step, filters = outer[0]
            with b.loop(0, extent, 1, sums) as state:
                k = state.index
                state.yields(nest(outer[1:], b.view(x, b.mul(k, step)), b.view(w, b.mul(k, filters)), state.values))
            return list(state.results)

        return nest(loops, b.view(b["x"], channel), b.view(b["w"], channel), self.first(channel, tap))

    def first(self, channel: Operand, tap: int) -> list[Value]:
        """The sums at the start: what the zero point of bytes adds to them."""
        b, kernel = self.b, self.kernel
        if not kernel.has_zero:
            return self.tile.zeros(b)
        zero = b.broadcast(b.neg(b.cast(b.load(b["zero"], 0), kernel.computed)), self.tile.lanes)
        total = b.load(b["w"], b.add(channel, kernel.window.taps * tap), self.tile.lanes)
        return [b.mul(total, zero)] * (self.tile.rows * self.tile.vectors)

    def loops(self, tap: int) -> tuple[tuple[int, int], list[tuple[int, Operand, int]]]:
        """The window of taps that is unrolled, and the loops around it: extent, step in x, step in the filters."""
        n, window = self.n, self.kernel.window
        depth, height, width = window.kernel
        strides = [
            self.b.mul(d, n[f"x_{dim}"]) for d, dim in zip(window.dilations, ("plane", "row", "pixel"), strict=True)
        ]
        loops = [(depth, strides[0], height * width * tap)] if depth > 1 else []
        if not _is_looped(window):
            return (height, width), loops
        loops.append((height, strides[1], width * tap))
        if width <= UNROLLED:
            return (1, width), loops
        return (1, 1), [*loops, (width, strides[2], tap)]

    def taps(
        self, x: Value, w: Value, sums: Sequence[Value], window: tuple[int, int], tap: int, mask: Value | None
    ) -> list[Value]:
        """The sums with the products of the first `window` taps added. Each element of x is loaded once."""
        b, n, lanes, dtype = self.b, self.n, self.tile.lanes, self.tile.dtype
        totals = list(sums)
        filters: dict[int, Value] = {}
        for row, rows in self.seen(1, window[0], self.rows):
            for pixel, pixels in self.seen(2, window[1], self.pixels):
                value = b.cast(b.load(x, n.offset("x", row=row, pixel=pixel), lanes, mask), dtype)
                for (r, ky), (p, kx) in itertools.product(rows, pixels):
                    index = ky * window[1] + kx
                    if index not in filters:
                        filters[index] = b.load(w, index * tap, lanes)
                    place = r * self.pixels + p
                    totals[place] = b.fma(value, filters[index], totals[place])
        return totals

    def seen(self, dim: int, taps: int, outputs: int) -> list[tuple[int, list[tuple[int, int]]]]:
        """The places along a dim of the input that outputs see, in order, each with the pairs of output and tap."""
        window, found = self.kernel.window, defaultdict[int, list[tuple[int, int]]](list)
        for output, tap in itertools.product(range(outputs), range(taps)):
            found[output * window.strides[dim] + tap * window.dilations[dim]].append((output, tap))
        return sorted(found.items())
