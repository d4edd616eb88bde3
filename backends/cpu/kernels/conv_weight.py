"""The adjoint of a convolution's filters as a matrix product that is never written out:

    w[o, c, t] = sum over places p of grad[p, o] * x[p * stride + t * dilation - before, c]

Sums run over the places of all images. A register tile holds the sums of some channels (and of neighbouring taps of a
row of the window, where channels are few) times vectors of outputs.

    work unit (part of the rows of places, group, some tiles of channels, some panels of outputs)
      block of places: what it reads of `grad` and `x` is copied, grad into panels, x with zeros around the image
        panels, tiles, rows of the window, groups of taps: registers, added to the unit's sums in scratch memory
      the sums, brought into the order of filters

The copies cost little, since each number is used for whole panels of outputs, or for all channels and taps; both
factors then lie in the first caches, without borders to mind. The parts' sums lie one behind the other, for another
kernel to add.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from ....graph import types
from ....graph.core import Value
from ....graph.dtypes import DType
from ....graph.kernel.loop_builder import LoopBuilder, Operand
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
    even_sizes,
    layout_sizes,
    share,
)
from .tile import Size, Target, Tile

# A row of at most so many places is written out in the code.
UNROLLED = 8
# About how many places are copied at once, so that most of the copies stay in the first-level cache.
BLOCK = 256
# A unit has so many tiles of channels at most.
TILES = 5
# Sums over fewer places are not cut into parts, and none into more parts.
LEAST_PLACES = 512
MOST_PARTS = 8


@dataclass(frozen=True)
class ConvWeight:
    """The filters' adjoint; `channels` and `outputs` are those of one group, whose channels lie behind each other.

    `planes`, `rows` and `pixels` are the extents of `grad`, `before` the padding in front of x. Channels of both lie
    next to each other. The result is [parts, groups * outputs, channels, taps] without gaps.
    """

    window: Window
    channels: int
    outputs: int
    dtype: DType
    before: tuple[int, int, int] = (0, 0, 0)
    groups: int = 1
    planes: Size = 1
    rows: Size = None
    pixels: Size = None
    x: Layout = field(default_factory=Layout)
    grad: Layout = field(default_factory=Layout)


@dataclass(frozen=True)
class WeightTiling:
    """`taps` x `rows` channels times `vectors` of `lanes` outputs in registers; a unit has up to `tiles` of channels
    and `panels` of outputs."""

    rows: int
    taps: int
    vectors: int
    lanes: int
    tiles: int = 1
    panels: int = 1
    parts: int = 1

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes


@dataclass(frozen=True)
class Blocks:
    """How places are cut into blocks: a row of them into `across` pieces, of which `down` rows are a block."""

    across: int
    down: int


# ---- choosing --------------------------------------------------------------------------------------------------------


def choose_weight_tiling(kernel: ConvWeight, machine: Machine, places: int, units: int) -> WeightTiling:
    """A tiling for sums over `places`, cut into parts so that there are about `units` units of work."""
    lanes = machine.lanes(kernel.dtype)
    while lanes > 4 and lanes // 2 >= kernel.outputs:
        lanes //= 2
    vectors = min(2, -(-kernel.outputs // lanes))
    # A register holds the number that is multiplied, `vectors` the outputs.
    room = min((machine.registers - 1 - vectors) // vectors, 14 if vectors > 1 else 24)
    count = -(-kernel.channels // room)
    rows = -(-kernel.channels // count)
    width = kernel.window.kernel[2]
    taps = min(width, max(1, room // rows)) if count == 1 else 1
    taps = -(-width // -(-width // taps))
    panels = -(-kernel.outputs // (vectors * lanes))
    most = machine.l2 // 4 // (kernel.window.taps * rows * vectors * lanes * kernel.dtype.numpy.itemsize)
    tiles = _even(count, min(TILES, most))
    # Both factors are copied less often where a unit has more panels, but there must be units for all threads.
    together = _even(panels, min(most // tiles, kernel.groups * -(-count // tiles) * panels // units))
    there = kernel.groups * -(-count // tiles) * -(-panels // together)
    parts = max(1, min(MOST_PARTS, units // there, places // LEAST_PLACES))
    return WeightTiling(rows, taps, vectors, lanes, tiles, together, parts)


def _even(count: int, most: int) -> int:
    """The size of the largest of as few equal shares of `count` things as there can be with at most `most` each."""
    return -(-count // -(-count // max(1, most)))


def blocks_of(pixels: int) -> Blocks:
    """The blocks for rows of so many places."""
    across = max(1, -(-pixels // BLOCK))
    return Blocks(across, max(1, BLOCK // max(1, -(-pixels // across))))


def _tiles(kernel: ConvWeight, tiling: WeightTiling) -> int:
    return -(-kernel.channels // tiling.rows)


def _panels(kernel: ConvWeight, tiling: WeightTiling) -> int:
    return -(-kernel.outputs // tiling.columns)


def _unit_counts(kernel: ConvWeight, tiling: WeightTiling) -> tuple[int, int]:
    """Into how many units the tiles of channels are shared out, and the panels of outputs."""
    return -(-_tiles(kernel, tiling) // tiling.tiles), -(-_panels(kernel, tiling) // tiling.panels)


def weight_units(kernel: ConvWeight, tiling: WeightTiling) -> int:
    """How many units of work there are."""
    blocks, panels = _unit_counts(kernel, tiling)
    return tiling.parts * kernel.groups * blocks * panels


def _pitch(kernel: ConvWeight, tiling: WeightTiling) -> int:
    """How far the copied pixels of x lie apart: an odd number of cache lines, so that they take turns in all sets of
    the first-level cache; without gaps if they are short."""
    channels = min(kernel.channels, tiling.tiles * tiling.rows)
    line = 64 // kernel.dtype.numpy.itemsize
    return channels if channels <= line // 2 else (-(-channels // line) | 1) * line


def _steps(kernel: ConvWeight) -> tuple[int, int]:
    """How far the copied pixels lie apart in x, and those of neighbouring places in the copy: a window of one pixel
    leaves those between out."""
    stride = kernel.window.strides[2]
    return (stride, 1) if kernel.window.kernel[2] == 1 else (1, stride)


def _seen(kernel: ConvWeight, width: Operand, b: LoopBuilder) -> Operand:
    """How many pixels are copied for `width` places of a row."""
    over = (kernel.window.kernel[2] - 1) * kernel.window.dilations[2] + 1
    return b.add(b.mul(b.sub(width, 1), _steps(kernel)[1]), over)


def weight_scratch(kernel: ConvWeight, tiling: WeightTiling, pixels: int) -> int:
    """Elements of scratch memory for rows of `pixels` places: a unit's sums, then the copies of grad and x."""
    blocks = blocks_of(pixels)
    width = -(-pixels // blocks.across)
    depth, height, length = kernel.window.kernel
    seen = (width - 1) * _steps(kernel)[1] + (length - 1) * kernel.window.dilations[2] + 1
    image = blocks.down * depth * height * seen * _pitch(kernel, tiling)
    total = _sums(kernel, tiling) + blocks.down * width * tiling.columns * tiling.panels + image
    return -(-total // 16) * 16  # so that each thread's begins at a cache line


def _sums(kernel: ConvWeight, tiling: WeightTiling) -> int:
    return tiling.panels * tiling.tiles * kernel.window.taps * tiling.rows * tiling.columns


# ---- interface -------------------------------------------------------------------------------------------------------


def _sizes(kernel: ConvWeight) -> dict[str, Size]:
    across = None if kernel.pixels is None else blocks_of(kernel.pixels).across
    down = None if kernel.pixels is None else blocks_of(kernel.pixels).down
    return {
        "images": None, "planes": kernel.planes, "rows": kernel.rows, "pixels": kernel.pixels, "x_planes": None,
        "x_rows": None, "x_pixels": None, "across": across, "down": down, "room": None, **layout_sizes("x", kernel.x),
        **layout_sizes("grad", kernel.grad),
    }  # fmt: skip


def weight_arguments(kernel: ConvWeight) -> list[str]:
    """The names of the kernel's arguments, in order. `x_planes`, `x_rows` and `x_pixels` are the extents of x, `across`
    and `down` the numbers in `Blocks`; `scratch` has `room`, which is `weight_scratch`, elements for each thread."""
    return argument_names(["x", "grad", "w", "scratch"], ImageEpilogue(), _sizes(kernel))


def build_conv_weight(name: str, kernel: ConvWeight, tiling: WeightTiling, machine: Machine) -> Module:
    """The kernel as a module of the level "loop"; see `weight_arguments` for what it takes."""
    return _WeightBuilder(name, kernel, tiling, machine).module()


# ---- building --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Unit:
    """Tiles of channels and panels of outputs of a group, each from the first to the one behind the last; the channels
    of x and of grad that they begin with, and how many there are of x."""

    tiles: tuple[Operand, Operand]
    panels: tuple[Operand, Operand]
    channel: Operand
    channels: Operand
    output: Operand


@dataclass(frozen=True)
class _Places:
    """Rows `first` to `last` of all places, of each `width` places from pixel `left` on, which see `seen` pixels; where
    the copies lie."""

    first: Operand
    last: Operand
    left: Operand
    width: Operand
    seen: Operand
    grad: Value
    x: Value


class _WeightBuilder:
    def __init__(self, name: str, kernel: ConvWeight, tiling: WeightTiling, machine: Machine) -> None:
        self.kernel, self.tiling = kernel, tiling
        self.lanes = machine.lanes(kernel.dtype)
        buffers = dict.fromkeys(("x", "grad", "w", "scratch"), kernel.dtype)
        self.b = LoopBuilder(name, **argument_types(weight_arguments(kernel), buffers, ImageEpilogue()))
        self.n = Numbers(self.b, _sizes(kernel))
        self.tile = Tile(0, tiling.vectors, tiling.lanes, kernel.dtype)
        self.tiles, self.panels = _tiles(kernel, tiling), _panels(kernel, tiling)
        depth, height, _ = kernel.window.kernel
        self.window_rows = depth * height
        self.pitch = _pitch(kernel, tiling)
        self.tile_size = kernel.window.taps * tiling.rows * tiling.columns
        self.functions: dict[tuple[int, int], str] = {}
        self.scratch = self.b["scratch"]  # of all threads; that of this one when the module is built

    def module(self) -> Module:
        b, n, kernel, tiling = self.b, self.n, self.kernel, self.tiling
        across, down = _unit_counts(kernel, tiling)
        total = b.mul(b.mul(n["images"], n["planes"]), n["rows"])
        size = weight_units(kernel, tiling) // tiling.parts
        self.scratch = b.view(b["scratch"], b.mul(b["thread"], n["room"]))
        with b.loop(b["begin"], b["end"]) as index:
            part, rest = (b.div(index, size), b.rem(index, size)) if tiling.parts > 1 else (0, index)
            right, rest = (b.rem(rest, down), b.div(rest, down)) if down > 1 else (0, rest)
            left, group = (b.rem(rest, across), b.div(rest, across)) if across > 1 else (0, rest)
            tiles, panels = share(b, left, self.tiles, across), share(b, right, self.panels, down)
            group = group if kernel.groups > 1 else 0
            begin, end = (self.first_channel(tile) for tile in tiles)
            output = b.add(b.mul(group, kernel.outputs), b.mul(panels[0], tiling.columns))
            unit = _Unit(
                tiles, panels, b.add(b.mul(group, kernel.channels), begin), b.sub(end, begin), output
            )  # fmt: skip
            self.clear_sums()
            self.sum_up(unit, *share(b, part, total, tiling.parts))
            place = b.add(b.mul(part, kernel.groups * kernel.outputs), b.mul(group, kernel.outputs))
            self.put(unit, b.view(b["w"], b.mul(place, self.filter_size)))
        return b.module()

    @property
    def filter_size(self) -> int:
        return self.kernel.channels * self.kernel.window.taps

    def first_channel(self, tile: Operand) -> Operand:
        """The first channel of a tile, of its group."""
        return share(self.b, tile, self.kernel.channels, self.tiles)[0]

    def clear_sums(self) -> None:
        b = self.b
        zero = b.constant(0, types.vector(self.kernel.dtype, self.tiling.lanes))
        with b.loop(0, _sums(self.kernel, self.tiling), self.tiling.lanes) as place:
            b.store(zero, self.scratch, place)

    def sum_up(self, unit: _Unit, first: Operand, last: Operand) -> None:
        """Add the products of the places of rows `first` to `last`, block by block."""
        b, n, tiling = self.b, self.n, self.tiling
        grads = b.view(self.scratch, _sums(self.kernel, tiling))
        with b.loop(first, last, n["down"]) as row, b.loop(0, n["across"]) as piece:
            below = b.min(b.add(row, n["down"]), last)
            left, right = share(b, piece, n["pixels"], n["across"])
            width = b.sub(right, left)
            if n["across"] == 1:
                left, width = 0, n["pixels"]
            seen = _seen(self.kernel, width, b)
            images = b.view(grads, b.mul(b.mul(n["down"], width), tiling.columns * tiling.panels))
            places = _Places(row, below, left, width, seen, grads, images)
            self.copy(unit, places)
            self.multiply(unit, places)

    # ---- copies --------------------------------------------------------------------------------------------------

    def copy(self, unit: _Unit, at: _Places) -> None:
        """Copy what a block reads: grad as [panels, rows, width, columns], x as [rows, rows of the window, seen pixels,
        channels of the unit]."""
        b, n, kernel = self.b, self.n, self.kernel
        with b.loop(at.first, at.last) as number:
            line = b.sub(number, at.first)
            row, rest = b.rem(number, n["rows"]), b.div(number, n["rows"])
            plane, image = (0, rest) if kernel.planes == 1 else (b.rem(rest, n["planes"]), b.div(rest, n["planes"]))
            start = n.offset("grad", image=image, plane=plane, row=row, pixel=at.left, channel=unit.output)
            self.copy_grad(unit, at, b.view(b["grad"], start), line)
            with b.loop(0, self.window_rows) as tap:
                self.copy_row(unit, at, (image, plane, row), line, tap)

    def copy_grad(self, unit: _Unit, at: _Places, source: Value, line: Operand) -> None:
        """Copy the row `line` of the block to all panels."""
        b, tile, columns = self.b, self.tile, self.tiling.columns
        size = b.mul(at.width, columns)
        with b.loop(0, at.width) as pixel, b.loop(*unit.panels) as panel:
            index = b.sub(panel, unit.panels[0])
            here = b.add(b.mul(pixel, self.n["grad_pixel"]), b.mul(index, columns))
            there = b.add(b.mul(b.add(b.mul(index, self.n["down"]), line), size), b.mul(pixel, columns))
            rest = b.sub(self.kernel.outputs, b.mul(panel, columns))
            for v in range(tile.vectors):
                is_whole = self.kernel.outputs % columns == 0
                mask = None if is_whole else b.tail_mask(b.sub(rest, v * tile.lanes), tile.lanes)
                vector = b.load(source, b.add(here, v * tile.lanes), tile.lanes, mask)
                b.store(vector, at.grad, b.add(there, v * tile.lanes))

    def copy_row(self, unit: _Unit, at: _Places, place: tuple[Operand, ...], line: Operand, tap: Operand) -> None:
        """Copy what row `tap` of the window sees of x from the places at `place`; zeros outside of x."""
        b, n, window, before = self.b, self.n, self.kernel.window, self.kernel.before
        image, plane, row = place
        deep, high = b.div(tap, window.kernel[1]), b.rem(tap, window.kernel[1])
        z = b.sub(b.add(b.mul(plane, window.strides[0]), b.mul(deep, window.dilations[0])), before[0])
        y = b.sub(b.add(b.mul(row, window.strides[1]), b.mul(high, window.dilations[1])), before[1])
        left = b.sub(b.mul(at.left, window.strides[2]), before[2])
        step = _steps(self.kernel)[0]
        begin, end = (  # the first pixel from which on there is one, and the first behind the last
            b.div(b.add(b.max(b.sub(bound, left), 0), step - 1), step) for bound in (0, n["x_pixels"])
        )
        begin = b.min(begin, at.seen)
        end = b.max(b.min(end, at.seen), begin)
        outside = b.or_(self.is_outside(z, n["x_planes"]), self.is_outside(y, n["x_rows"]))
        begin, end = (b.select(outside, at.seen, b.index(bound)) for bound in (begin, end))
        source = n.offset("x", image=image, plane=z, row=y, pixel=left, channel=unit.channel)
        size = b.mul(at.seen, self.pitch)
        target = b.view(at.x, b.mul(b.add(b.mul(line, self.window_rows), tap), size))
        self.fill(target, 0, begin)
        self.copy_pixels(target, (begin, end), source, unit.channels)
        self.fill(target, end, at.seen)

    def is_outside(self, place: Operand, extent: Operand) -> Value:
        b = self.b
        inside = b.and_(b.le(0, b.index(place)), b.lt(b.index(place), extent))
        result: Value = b.xor(inside, True)
        return result

    def fill(self, target: Value, begin: Operand, end: Operand) -> None:
        """Put zeros into the pixels from `begin` to `end`."""
        b = self.b
        zero = b.constant(0, types.scalar(self.kernel.dtype))
        with b.loop(b.mul(begin, self.pitch), b.mul(end, self.pitch)) as place:
            b.store(zero, target, place)

    def copy_pixels(self, target: Value, bounds: tuple[Operand, Operand], source: Operand, count: Operand) -> None:
        """Copy `count` channels of the pixels from `bounds[0]` to `bounds[1]`; pixel 0 would lie at `source`."""
        b, pitch, step = self.b, self.pitch, _steps(self.kernel)[0]
        if self.kernel.x.pixel == pitch == self.kernel.channels and step == 1:  # neither x nor the copy has gaps
            begin, end = (b.mul(bound, pitch) for bound in bounds)
            self.copy_run(b.view(target, begin), b.add(source, begin), b.sub(end, begin))
            return
        choose(b, count, self.channel_counts(), lambda known: self.copy_each(target, bounds, source, known))

    def channel_counts(self) -> list[int]:
        """How many channels units have."""
        across, total = _unit_counts(self.kernel, self.tiling)[0], self.kernel.channels
        firsts = [unit * self.tiles // across * total // self.tiles for unit in range(across + 1)]
        return sorted({last - first for first, last in itertools.pairwise(firsts)})

    def copy_each(self, target: Value, bounds: tuple[Operand, Operand], source: Operand, count: int) -> None:
        b, lanes = self.b, self.lanes
        rest = None if count % lanes == 0 else b.tail_mask(b.index(count % lanes), lanes)
        step = b.mul(self.n["x_pixel"], _steps(self.kernel)[0])
        with b.loop(*bounds) as pixel:
            here, there = b.add(source, b.mul(pixel, step)), b.mul(pixel, self.pitch)
            for start in range(0, count, lanes):
                mask = rest if start + lanes > count else None
                vector = b.load(b["x"], b.add(here, start), lanes, mask)
                b.store(vector, target, b.add(there, start), mask)

    def copy_run(self, target: Value, source: Operand, count: Operand) -> None:
        """Copy `count` elements that lie next to each other."""
        b, lanes = self.b, self.lanes
        whole = b.mul(b.div(count, lanes), lanes)
        with b.loop(0, whole, lanes) as place:
            b.store(b.load(b["x"], b.add(source, place), lanes), target, place)
        rest = b.sub(count, whole)
        with b.when(b.lt(0, rest)):
            mask = b.tail_mask(b.index(rest), lanes)
            b.store(b.load(b["x"], b.add(source, whole), lanes, mask), target, whole, mask)

    # ---- products ------------------------------------------------------------------------------------------------

    def multiply(self, unit: _Unit, at: _Places) -> None:
        """Add the products of a block to the sums of all panels, tiles and taps."""
        b, kernel, tiling = self.b, self.kernel, self.tiling
        size = b.mul(at.seen, self.pitch)
        line = b.mul(self.window_rows, size)
        strip = b.mul(b.mul(self.n["down"], at.width), tiling.columns)
        passed = [b.sub(at.last, at.first), *([] if isinstance(self.static_width, int) else [at.width, line])]
        with b.loop(*unit.panels) as panel, b.loop(*unit.tiles) as index, b.loop(0, self.window_rows) as tap:
            place = b.sub(panel, unit.panels[0])
            grad = b.view(at.grad, b.mul(place, strip))
            lower, upper = share(b, index, kernel.channels, self.tiles)
            channel = b.sub(lower, self.first_channel(unit.tiles[0]))
            x = b.view(at.x, b.add(channel, b.mul(tap, size)))
            number = b.add(b.mul(place, tiling.tiles), b.sub(index, unit.tiles[0]))
            sums = b.add(b.mul(number, kernel.window.taps), b.mul(tap, kernel.window.kernel[2]))
            self.taps(b.sub(upper, lower), (grad, x), sums, passed)

    def taps(self, rows: Operand, sources: tuple[Value, Value], sums: Operand, passed: Sequence[Operand]) -> None:
        """Add the products of a row of the window for a tile of `rows` channels."""
        b, tiling, width = self.b, self.tiling, self.kernel.window.kernel[2]
        groups = -(-width // tiling.taps)
        for group in range(groups):
            first, last = group * width // groups, (group + 1) * width // groups
            target = b.view(self.scratch, b.mul(b.add(sums, first), tiling.rows * tiling.columns))
            x = b.view(sources[1], first * self.kernel.window.dilations[2] * self.pitch)
            given = [sources[0], x, target, *passed]

            def call(height: int, taps: int = last - first, given: Sequence[Operand] = given) -> None:
                b.call(self.function(height, taps), *given)

            choose(b, rows, even_sizes(self.kernel.channels, tiling.rows), call)

    @property
    def static_width(self) -> Size:
        """The places of a row of a block, if that is always the same number."""
        return self.kernel.pixels if self.n.sizes["across"] == 1 else None

    def function(self, height: int, taps: int) -> str:
        """The function for tiles of `taps` x `height` channels; made when first asked for."""
        name = self.functions.get((height, taps))
        if name is None:
            name = self.functions[height, taps] = f"tile{taps}x{height}"
            self.b.include(self.micro_kernel(name, height, taps))
        return name

    def micro_kernel(self, name: str, height: int, taps: int) -> Function:
        kernel, tiling = self.kernel, self.tiling
        arguments: dict[str, types.Type] = {key: types.buffer(kernel.dtype) for key in ("grad", "x", "sums")}
        arguments["lines"] = INDEX
        width = self.static_width
        if width is None:
            arguments |= {"width": INDEX, "line": INDEX}
        b = LoopBuilder(name, **arguments)
        steps = [(tap, channel) for tap in range(taps) for channel in range(height)]
        places = [tap * kernel.window.dilations[2] * self.pitch + channel for tap, channel in steps]
        tile = Tile(len(steps), tiling.vectors, tiling.lanes, kernel.dtype)
        count: Operand = b["width"] if width is None else width
        line = b["line"] if width is None else b.mul(self.window_rows * self.pitch, _seen(kernel, width, b))
        with b.loop(0, b["lines"], 1, tile.zeros(b)) as state:
            grad = b.view(b["grad"], b.mul(state.index, b.mul(count, tiling.columns)))
            x = b.view(b["x"], b.mul(state.index, line))
            state.yields(self.line(tile, b, state.values, (x, grad), places, count))
        targets = [(tap * tiling.rows + channel) * tiling.columns for tap, channel in steps]
        tile.finish(b, state.results, Target(b["sums"], targets, tiling.columns), more=True)
        return b.finish()

    def line(
        self,
        tile: Tile,
        b: LoopBuilder,
        sums: Sequence[Value],
        sources: tuple[Value, Value],
        places: Sequence[int],
        count: Operand,
    ) -> Sequence[Value]:
        """The sums after the `count` places of a row; a short row of known length is written out."""
        x, grad = sources
        step = _steps(self.kernel)[1] * self.pitch
        if isinstance(count, Value) or count > UNROLLED:
            return tile.accumulate(b, sums, count, x, places, step, grad, 4)
        for place in range(int(count)):
            right = tile.right(b, grad, place * tile.columns)
            sums = tile.step(b, sums, x, [spot + place * step for spot in places], right)
        return sums

    # ---- the result ----------------------------------------------------------------------------------------------

    def put(self, unit: _Unit, w: Value) -> None:
        """Write the sums [panels, tiles, taps, channels of a tile, columns] as filters [outputs, channels, taps]."""
        b, kernel, tiling = self.b, self.kernel, self.tiling
        taps, lanes = kernel.window.taps, self.lanes
        with b.loop(*unit.tiles) as index:
            lower, upper = share(b, index, kernel.channels, self.tiles)
            sums = b.view(self.scratch, b.mul(b.sub(index, unit.tiles[0]), self.tile_size))
            target = b.view(w, b.mul(lower, taps))
            count = b.mul(b.sub(upper, lower), taps)
            with b.loop(0, count, lanes) as start:
                mask = b.tail_mask(b.index(b.sub(count, start)), lanes)
                element = b.min(b.add(b.iota(lanes), start), b.sub(count, 1))
                row = b.add(b.mul(b.rem(element, taps), tiling.rows), b.div(element, taps))
                places = b.mul(row, tiling.columns)
                with b.loop(*unit.panels) as panel:
                    output = b.mul(panel, tiling.columns)
                    mine = b.view(sums, b.mul(b.sub(panel, unit.panels[0]), tiling.tiles * self.tile_size))
                    columns = b.min(b.sub(kernel.outputs, output), tiling.columns)
                    with b.loop(0, columns) as column:
                        vector = b.gather(mine, b.add(places, column), mask)
                        spot = b.add(b.mul(b.add(output, column), self.filter_size), start)
                        b.store(vector, target, spot, mask)
