"""Convolution as a matrix product that is never written out (implicit GEMM): sums over taps and input channels of
rows x pixels outputs times vectors of output channels stay in registers.

    y[p, o] = f(sum over taps t and channels c of x[p * stride + t * dilation, c] * w[o, c, t])

The input is read where it lies: the pixels of a tile are at fixed distances from an address that moves from tap to tap.
Where pixels follow each other without a gap, a row of taps and its channels are one run, so that an image of three
channels is no special case. A planar input (channels far apart, as networks get their images) is summed up channel by
channel.

    work unit (image, plane, block of rows, group, panel of output channels)
      part of the input channels, if the filters of a panel are too large for the second-level cache
        rows of the block, tiles of the row
          taps, input channels: registers

Panels are the inner part of a unit's number: all panels of a block of rows follow each other, while its input lies in
the second-level cache. Of many small images with large filters they are the outer part, so that a panel's filters stay
there instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ....graph import types
from ....graph.core import Value
from ....graph.dtypes import DType, bool_
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
from .pack import fill_panels, on_cache_lines
from .tile import THREAD_ROWS, Epilogue, EpilogueOperand, Size, Target, Tile, finishing_body

# Of an image with at most so many tiles, the filters of the next panel are fetched while this one is used.
PREFETCH_TILES = 48


@dataclass(frozen=True)
class Conv:
    """A convolution; `channels` and `outputs` are those of one group.

    `planes`, `rows` and `pixels` are the extents of the output. The groups' channels lie behind each other. `x.channel`
    is 1, or the stride of a planar input. Filters are packed (`packed_filters`), in the dtype that is computed in.
    """

    window: Window
    channels: int
    outputs: int
    dtype: DType
    groups: int = 1
    planes: Size = 1
    rows: Size = None
    pixels: Size = None
    x: Layout = field(default_factory=Layout)
    y: Layout = field(default_factory=Layout)
    epilogue: ImageEpilogue = field(default_factory=ImageEpilogue)

    @property
    def depth(self) -> int:
        """How many products each output is the sum of."""
        return self.channels * self.window.taps


@dataclass(frozen=True)
class ConvTiling:
    """`rows` x `pixels` outputs times `vectors` of `lanes` channels in registers; input channels in `parts` parts.

    Of groups with few channels `together` ones share a vector. `panels_outside`: panels are the outer part of a unit's
    number.
    """

    rows: int
    pixels: int
    vectors: int
    lanes: int
    parts: int = 1
    together: int = 1
    panels_outside: bool = False

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes


# ---- choosing --------------------------------------------------------------------------------------------------------


def choose_conv_tiling(conv: Conv, machine: Machine) -> ConvTiling:
    """The tiling whose estimated time is least."""
    return min(conv_tilings(conv, machine), key=lambda tiling: conv_cycles(conv, tiling, machine))


def conv_tilings(conv: Conv, machine: Machine) -> list[ConvTiling]:
    """Tilings that fill the registers in different ways, in the order in which equally good ones are preferred."""
    computed = computed_in(conv.dtype)
    lanes = machine.lanes(computed)
    found = []
    together = _together(conv, lanes)
    if together > 1:
        # Sums and the input's vectors take the same room.
        room = (machine.registers - 2) // 2
        found.append(ConvTiling(1, min(room, conv.pixels or room), 1, lanes, 1, together))
    while lanes > 4 and lanes // 2 >= conv.outputs:
        lanes //= 2
    most = -(-conv.outputs // lanes)
    for vectors in (4, 2, 3, 1):
        # A register holds the number that is multiplied, `vectors` the filters' row.
        room = min((machine.registers - 1 - vectors) // vectors, 14 if vectors > 1 else 24)
        if vectors > most or room < 1:
            continue
        pixels = min(room, conv.pixels or room)
        rows = max(1, min(room // pixels, conv.rows or 1)) if conv.pixels else 1
        parts = _parts(conv, vectors * lanes * computed.numpy.itemsize, machine)
        found.append(ConvTiling(rows, pixels, vectors, lanes, parts))
    return found


def _together(conv: Conv, lanes: int) -> int:
    """How many groups fill a vector of outputs while their input channels fit into one as well; else 1. Two are better
    off with half a vector each, since shuffles take the place of multiply-adds."""
    count = lanes // conv.outputs
    fits = count > 2 and lanes % conv.outputs == 0 and conv.groups % count == 0 and count * conv.channels <= lanes
    return count if fits and conv.x.channel == 1 else 1


def _parts(conv: Conv, width: int, machine: Machine) -> int:
    """Into how many parts input channels are cut so that a panel of filters fits into the second-level cache."""
    if computed_in(conv.dtype) is not conv.dtype:
        return 1
    most = max(1, machine.l2 * 2 // 3 // max(width * conv.window.taps, 1))
    return max(1, -(-conv.channels // most))


def conv_cycles(conv: Conv, tiling: ConvTiling, machine: Machine) -> float:
    """About how many cycles a step of the sums takes for all outputs of a plane, if two multiply-adds start each cycle
    and so do two loads."""
    total = 0.0
    # A row of filters that is read from the second-level cache takes its time.
    strip = conv.depth * tiling.columns * computed_in(conv.dtype).numpy.itemsize
    row = tiling.vectors * (0.5 if strip <= machine.l1 // 2 else 2.6 * machine.vector_bits / 512)
    heights = _shares(conv.rows or 8 * tiling.rows, tiling.rows)
    widths = _shares(conv.pixels or 8 * tiling.pixels, tiling.pixels)
    for height in heights:
        for width in widths:
            sums = height * width * tiling.vectors
            loads = height * width + tiling.vectors
            # Each sum is four cycles under way, so a tile with few of them waits. A shuffle takes as long as a product.
            cycles = max(sums / 2, 4.0, row) + 0.15 * loads
            total += cycles if tiling.together == 1 else max(sums, 4.0) / tiling.together
    return total * -(-conv.outputs // tiling.columns)


def _shares(total: int, most: int) -> list[int]:
    parts = max(1, -(-total // most))
    return [(part + 1) * total // parts - part * total // parts for part in range(parts)]


def conv_blocks(conv: Conv, tiling: ConvTiling, machine: Machine, rows: int, pixels: int, threads: int = 1) -> int:
    """Into how many blocks the rows of an output are cut: so that a block's input fits into the second-level cache, its
    output is written there, and each thread gets several units of work, of rows of its own if there are many."""
    size = computed_in(conv.dtype).numpy.itemsize
    height, width = conv.window.strides[1:]
    row = max(1, pixels * width * conv.channels * height * size, pixels * conv.outputs * size)
    blocks = -(-rows * row // max(1, machine.l2 // 2))
    panels = conv_units(conv, tiling, 1, 1, 1)
    wanted = 1 if threads == 1 else 4 * threads
    blocks = max(blocks, -(-wanted // panels), threads if rows * pixels >= threads * THREAD_ROWS else 1)
    blocks = even_blocks(blocks, panels, threads)
    return max(1, min(blocks, -(-rows // tiling.rows)))


def panels_outside(conv: Conv, tiling: ConvTiling, machine: Machine, images: int, rows: int, pixels: int) -> bool:
    """Whether reading all images for each panel of filters is less than reading all filters for each image."""
    size = computed_in(conv.dtype).numpy.itemsize
    _, height, width = conv.window.strides
    filters = conv.groups * conv.depth * conv.outputs * size
    image = conv.groups * conv.channels * rows * height * pixels * width * size
    panels = -(-conv.outputs // tiling.columns)
    return images > 1 and filters > machine.l2 // 2 and panels * image < filters


# ---- interface -------------------------------------------------------------------------------------------------------


def _sizes(conv: Conv) -> dict[str, Size]:
    return {
        "images": None, "planes": conv.planes, "rows": conv.rows, "pixels": conv.pixels, "blocks": None,
        **layout_sizes("x", conv.x), **layout_sizes("y", conv.y), **epilogue_sizes(conv.epilogue),
    }  # fmt: skip


def conv_arguments(conv: Conv) -> list[str]:
    """The names of the kernel's arguments, in order; `blocks` is how many blocks of rows there are."""
    return argument_names(["x", "w", "y"], conv.epilogue, _sizes(conv))


def conv_units(conv: Conv, tiling: ConvTiling, images: int, planes: int, blocks: int) -> int:
    """How many units of work there are."""
    conv = _joined(conv, tiling)
    return images * planes * blocks * conv.groups * -(-conv.outputs // tiling.columns)


def _joined(conv: Conv, tiling: ConvTiling) -> Conv:
    """The convolution with groups that share a vector as one group."""
    count = tiling.together
    return replace(conv, groups=conv.groups // count, channels=conv.channels * count, outputs=conv.outputs * count)


def packed_filters(w: np.ndarray, conv: Conv, tiling: ConvTiling) -> np.ndarray:
    """Filters [groups * outputs, channels, *kernel] in the order in which the kernel reads them; flat."""
    packed = on_cache_lines(filter_count(conv, tiling), computed_in(conv.dtype).numpy)
    fill_filters(packed, w, conv, tiling)
    return packed


def filter_count(conv: Conv, tiling: ConvTiling) -> int:
    """Elements of packed filters, with those that fill up the last panel."""
    # Groups that share a vector fill it.
    outputs = -(-conv.outputs // tiling.columns) * tiling.columns if tiling.together == 1 else conv.outputs
    return conv.groups * conv.depth * outputs


def fill_filters(packed: np.ndarray, w: np.ndarray, conv: Conv, tiling: ConvTiling) -> None:
    """Write filters into a flat array of `filter_count` elements.

    For each group and panel, part of the channels: taps, channels, columns; of a planar input channels, taps, columns.
    Groups that share a vector lie beside each other: taps, channels of one group, groups, outputs of one.
    """
    shape = conv.groups, conv.outputs, conv.channels, conv.window.taps
    filters = w.reshape(shape).astype(computed_in(conv.dtype).numpy, copy=False)
    if tiling.together > 1:
        filters = filters.reshape(-1, tiling.together, *shape[1:]).transpose(0, 4, 3, 1, 2)
        packed[...] = filters.reshape(-1)
        return
    panels = -(-conv.outputs // tiling.columns)
    target = packed.reshape(conv.groups, panels, conv.depth, tiling.columns)  # a phase without taps has no depth
    for first, last in part_bounds(conv, tiling):
        strip = filters[:, :, first:last]
        order = strip.transpose(0, 3, 2, 1) if conv.x.channel == 1 else strip.transpose(0, 2, 3, 1)
        rows = target[:, :, first * conv.window.taps : last * conv.window.taps]
        fill_panels(rows.reshape(*rows.shape[:2], *order.shape[1:3], tiling.columns), order, 1)


def part_bounds(conv: Conv, tiling: ConvTiling) -> Iterator[tuple[int, int]]:
    """The parts that input channels are cut into: first channel, and the one behind the last."""
    step = -(-conv.channels // tiling.parts)
    for first in range(0, conv.channels, step):
        yield first, min(first + step, conv.channels)


def build_conv(name: str, conv: Conv, tiling: ConvTiling) -> Module:
    """The kernel as a module of the level "loop"; see `conv_arguments` for what it takes."""
    return _ConvBuilder(name, conv, tiling).module()


# ---- building --------------------------------------------------------------------------------------------------------


class _ConvBuilder:
    def __init__(self, name: str, conv: Conv, tiling: ConvTiling) -> None:
        self.conv, self.tiling = _joined(conv, tiling), tiling
        self.computed = computed_in(conv.dtype)
        self.buffers = {"x": conv.dtype, "w": self.computed, "y": conv.dtype}
        names = conv_arguments(conv)
        self.b = LoopBuilder(name, **argument_types(names, self.buffers, conv.epilogue))
        self.n = Numbers(self.b, _sizes(conv))
        self.panels = -(-conv.outputs // tiling.columns)
        self.parts = list(part_bounds(conv, tiling))
        operands = tuple(EpilogueOperand(o.name, o.dtype, None, o.layout.channel or 0) for o in conv.epilogue.operands)
        epilogue = Epilogue(operands, conv.epilogue.body)
        self.body = finishing_body(
            self.b, "epilogue", epilogue, tiling.vectors, tiling.lanes, self.computed, conv.dtype
        )  # fmt: skip
        self.functions: dict[tuple[int, ...], str] = {}
        self.prefetches = _tile_count(conv, tiling) <= PREFETCH_TILES and not tiling.panels_outside

    def module(self) -> Module:
        b, n, conv = self.b, self.n, self.conv
        with b.loop(b["begin"], b["end"]) as unit:
            panel, rest = self.panel(unit)
            group = b.rem(rest, conv.groups) if conv.groups > 1 else 0
            rest = b.div(rest, conv.groups)
            block, rest = b.rem(rest, n["blocks"]), b.div(rest, n["blocks"])
            one_plane = conv.planes == 1
            plane = 0 if one_plane else b.rem(rest, n["planes"])
            image = rest if one_plane else b.div(rest, n["planes"])
            self.unit({"image": image, "plane": plane}, block, group, panel)
        return b.module()

    def panel(self, unit: Value) -> tuple[Operand, Operand]:
        """The panel of a unit, and the number of the rest."""
        b, n = self.b, self.n
        if self.panels == 1:
            return 0, unit
        if not self.tiling.panels_outside:
            return b.rem(unit, self.panels), b.div(unit, self.panels)
        others = b.mul(b.mul(n["images"], n["planes"]), b.mul(n["blocks"], self.conv.groups))
        return b.div(unit, others), b.rem(unit, others)

    def unit(self, place: dict[str, Operand], block: Operand, group: Operand, panel: Operand) -> None:
        """One panel of a block of rows."""
        b, n, conv, tiling = self.b, self.n, self.conv, self.tiling
        channel = b.add(b.mul(group, conv.outputs), b.mul(panel, tiling.columns))
        columns = b.min(b.sub(conv.outputs, b.mul(panel, tiling.columns)), tiling.columns)
        if conv.outputs % tiling.columns == 0:
            columns = tiling.columns
        source = n.offset("x", image=place["image"], channel=b.mul(group, conv.channels))
        source = b.add(source, n.offset("x", plane=b.mul(place["plane"], conv.window.strides[0])))
        views = {"x": b.view(b["x"], source)}
        for name in ("y", *(operand.name for operand in conv.epilogue.operands)):
            views[name] = b.view(b[name], n.offset(name, **place, channel=channel))
        strip = b.mul(b.add(b.mul(group, self.panels), panel), conv.depth // tiling.together * tiling.columns)
        for index, (begin, end) in enumerate(self.parts):
            here = {**views, "x": b.view(views["x"], n.offset("x", channel=begin))}
            here["w"] = b.view(b["w"], b.add(strip, begin * conv.window.taps * tiling.columns))
            self.block(here, block, columns, index, end - begin)

    def block(self, views: dict[str, Value], block: Operand, columns: Operand, part: int, depth: int) -> None:
        """The tiles of a block of rows, for one part of the input channels."""
        b, n, conv, tiling = self.b, self.n, self.conv, self.tiling
        rows, pixels = n["rows"], n["pixels"]
        across, down = (
            b.div(b.add(total, most - 1), most) for total, most in ((pixels, tiling.pixels), (rows, tiling.rows))
        )
        # A strip of filters is used by few tiles of a small image: meanwhile the next strip is fetched, evenly.
        first, last = share(b, block, down, n["blocks"])
        tiles, size = b.mul(b.sub(last, first), across), depth * conv.window.taps // tiling.together * tiling.columns
        step = b.max(b.div(tiling.columns, tiles), 1) if self.prefetches else 0

        def one(left: Operand, width: Operand, widths: Sequence[int], x: Operand) -> None:
            place = {"row": b.mul(top, conv.window.strides[1]), "pixel": b.mul(left, conv.window.strides[2])}
            here = {"x": b.view(views["x"], n.offset("x", **place)), "w": views["w"]}
            for name in ("y", *(operand.name for operand in conv.epilogue.operands)):
                here[name] = b.view(views[name], n.offset(name, row=top, pixel=left))
            ahead: list[Operand] = []
            if self.prefetches:
                number = b.add(b.mul(b.sub(y, first), across), x)
                ahead = [b.add(size, b.mul(number, b.mul(size // tiling.columns, step))), step]
            self.tile(here, b.sub(bottom, top), width, widths, [columns, *ahead], part, depth)

        with b.loop(first, last) as y:
            top, bottom = share(b, y, rows, down)
            tiles_along(b, conv.pixels, pixels, tiling.pixels, one)

    def tile(
        self,
        views: dict[str, Value],
        rows: Operand,
        pixels: Operand,
        widths: Sequence[int],
        given: list[Operand],
        part: int,
        depth: int,
    ) -> None:
        """Call the function for tiles of `rows` x `pixels`, which are one of `widths`."""
        b, conv, tiling = self.b, self.conv, self.tiling
        heights = even_sizes(conv.rows, tiling.rows)
        flags = [b.value(flag, types.scalar(bool_)) for flag in (part > 0, part == len(self.parts) - 1)]
        extra = [b[name] for name in self.n.unknown(*self.strides())]
        passed = [*views.values(), *given, *(flags if len(self.parts) > 1 else []), *extra]

        def call(height: int, width: int) -> None:
            b.call(self.function(height, width, depth), *passed)

        choose(b, rows, heights, lambda height: choose(b, pixels, widths, lambda width: call(height, width)))

    def strides(self) -> list[str]:
        """The strides that a tile's function uses."""
        dims = ("plane", "row", "pixel", "channel")
        return [*(f"x_{dim}" for dim in dims), "y_row", "y_pixel", *tile_strides(self.conv.epilogue)]

    def function(self, rows: int, pixels: int, depth: int) -> str:
        """The function for tiles of `rows` x `pixels` over `depth` input channels; made when first asked for."""
        key = rows, pixels, depth
        name = self.functions.get(key)
        if name is None:
            name = self.functions[key] = f"tile{rows}x{pixels}x{depth}"
            self.b.include(self.micro_kernel(name, rows, pixels, depth))
        return name

    def micro_kernel(self, name: str, rows: int, pixels: int, depth: int) -> Function:
        conv, tiling = self.conv, self.tiling
        arguments: dict[str, types.Type] = {
            key: types.buffer(dtype) for key, dtype in (("x", conv.dtype), ("w", self.computed), ("y", conv.dtype))
        }
        arguments |= {operand.name: types.buffer(operand.dtype) for operand in conv.epilogue.operands}
        arguments["columns"] = INDEX
        if self.prefetches:
            arguments |= {"ahead": INDEX, "ahead_step": INDEX}
        if len(self.parts) > 1:
            arguments |= {"more": types.scalar(bool_), "last": types.scalar(bool_)}
        arguments |= self.n.unknown(*self.strides())
        b = LoopBuilder(name, **arguments)
        n = Numbers(b, self.n.sizes)
        down, right = conv.window.strides[1:]
        steps = [(row, pixel) for row in range(rows) for pixel in range(pixels)]
        places = [n.offset("x", row=row * down, pixel=pixel * right) for row, pixel in steps]
        tile = Tile(rows * pixels, tiling.vectors, tiling.lanes, self.computed)
        nest = reduction(b, n, conv, 1 if tiling.together > 1 else depth)

        def step(sums: Sequence[Value], x: Value, strip: Value, k: Operand) -> list[Value]:
            if tiling.together > 1:
                return self.shuffled(b, sums, [b.load(x, place, conv.channels) for place in places], strip)
            if self.prefetches:
                b.prefetch(b["w"], b.add(b["ahead"], b.mul(k, b["ahead_step"])), level=2)
            return tile.step(b, sums, x, places, tile.right(b, strip, 0))

        width = tile.columns * (conv.channels // tiling.together if tiling.together > 1 else 1)
        sums = _sum(b, nest, tile.zeros(b), (b["x"], b["w"]), width, step)
        columns: Operand = tiling.columns if conv.outputs % tiling.columns == 0 else b["columns"]
        target = Target(b["y"], [n.offset("y", row=row, pixel=pixel) for row, pixel in steps], columns)
        more, last = (b["more"], b["last"]) if len(self.parts) > 1 else (False, True)
        given = given_operands(b, n, conv.epilogue, rows, pixels)
        tile.finish(b, sums, target, more, last, self.body, given)
        return b.finish()

    def shuffled(self, b: LoopBuilder, sums: Sequence[Value], pixels: Sequence[Value], strip: Value) -> list[Value]:
        """The sums of groups that share a vector, after one tap: for each channel of a group, all lanes of a group's
        outputs get that channel of their group."""
        lanes, together = self.tiling.lanes, self.tiling.together
        channels, outputs = self.conv.channels // together, self.conv.outputs // together
        totals = list(sums)
        wide = [b.cast(vector, self.computed) for vector in pixels]
        for channel in range(channels):
            right = b.load(strip, channel * lanes, lanes)
            order = [lane // outputs * channels + channel for lane in range(lanes)]
            totals = [
                b.fma(b.shuffle(vector, vector, order), right, total)
                for vector, total in zip(wide, totals, strict=True)
            ]
        return totals


def reduction(b: LoopBuilder, n: Numbers, conv: Conv, depth: int) -> list[tuple[int, Operand]]:
    """The dims that are summed over, outer ones first, as extent and stride in x. Dims without a gap between them are
    one."""
    window = conv.window
    taps: list[tuple[int, Operand]] = [
        (extent, b.mul(dilation, n[f"x_{dim}"]))
        for extent, dilation, dim in zip(window.kernel, window.dilations, ("plane", "row", "pixel"), strict=True)
    ]
    channels: tuple[int, Operand] = (depth, n["x_channel"])
    joined: list[tuple[int, Operand]] = []
    for extent, stride in [*taps, channels] if conv.x.channel == 1 else [channels, *taps]:
        if extent == 1:
            continue
        outer = joined[-1][1] if joined else None
        if isinstance(outer, int) and isinstance(stride, int) and outer == extent * stride:
            joined[-1] = (joined[-1][0] * extent, stride)
        else:
            joined.append((extent, stride))
    return joined or [(1, 1)]


def _tile_count(conv: Conv, tiling: ConvTiling) -> float:
    """How many tiles a plane has, if that is known."""
    if conv.rows is None or conv.pixels is None:
        return float("inf")
    return -(-conv.rows // tiling.rows) * -(-conv.pixels // tiling.pixels)


def _sum(
    b: LoopBuilder,
    nest: Sequence[tuple[int, Operand]],
    sums: Sequence[Value],
    sources: tuple[Value, Value],
    width: int,
    step: Callable[[Sequence[Value], Value, Value, Operand], list[Value]],
) -> list[Value]:
    """The sums over all dims of `nest`. `sources` are the input and the filters, of which each step takes `width`;
    `step(sums, input, filters, k)` builds step k."""
    (extent, stride), *inner = nest
    count = math.prod(size for size, _ in inner)
    with b.loop(0, extent, 1, sums) as state:
        first = b.mul(state.index, count)
        x, strip = b.view(sources[0], b.mul(state.index, stride)), b.view(sources[1], b.mul(first, width))
        if inner:
            deeper = lambda values, x, strip, k: step(values, x, strip, b.add(first, k))  # noqa: E731
            state.yields(_sum(b, inner, state.values, (x, strip), width, deeper))
        else:
            state.yields(step(state.values, x, strip, first))
    return list(state.results)
