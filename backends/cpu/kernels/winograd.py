"""3x3 convolution of stride 1 with fewer multiplications (Winograd 1980; Lavin & Gray 2016, "Fast algorithms for
convolutional neural networks"): F(m x m, 3 x 3) makes m x m outputs of a tile of (m + 2) x (m + 2) inputs, with
(m + 2)^2 products for each pair of channels where the definition takes 9 m^2: a quarter for m = 4, 4/9 for m = 2.

    work unit (image, block of tiles, group of panels); of many small images a block goes on from one to the next
      tiles of the block, if the unit before was not of this block: inputs are transformed, into scratch memory
      panels of output channels
        (m + 2)^2 matrix products [tiles of the block, input channels] x [input channels, channels of a panel]
        tiles of the block: sums are transformed back, and the epilogue is applied in registers

Rounding: with standard normal inputs and filters of 64 to 512 channels, the largest difference from exact sums is, in
parts of the largest sum, 3e-7 to 8e-7 for m = 2 and 6e-6 to 2e-5 for m = 4; direct convolution has 1e-6 to 3e-6, since
its sums are longer. An infinite input makes all outputs of its tiles NaN, where direct convolution gives infinities to
those that see it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ....graph import types
from ....graph.core import Value
from ....graph.dtypes import DType
from ....graph.kernel.loop_builder import LoopBuilder, Operand
from ....graph.kernel.scalar_emitter import computed_in
from ....graph.module import Function, Module
from ..machine import Machine
from .conv import Conv, ConvTiling, choose_conv_tiling, conv_cycles
from .image import (
    INDEX,
    Numbers,
    argument_names,
    argument_types,
    choose,
    epilogue_sizes,
    even_sizes,
    given_operands,
    layout_sizes,
    share,
    tile_strides,
)
from .pack import fill_panels, on_cache_lines
from .tile import Epilogue, EpilogueOperand, Given, Size, Target, Tile, epilogue_body

# So many elements are transformed at a time when filters are constant.
_TRANSFORMED_ELEMENTS = 1 << 18

# Filters are transformed by these (G of the papers), for outputs of 2 x 2 and of 4 x 4.
_FILTERS = {
    2: np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]]),
    4: np.array([
        [1 / 4, 0, 0], [-1 / 6, -1 / 6, -1 / 6], [-1 / 6, 1 / 6, -1 / 6],
        [1 / 24, 1 / 12, 1 / 6], [1 / 24, -1 / 12, 1 / 6], [0, 0, 1],
    ]),
}  # fmt: skip


@dataclass(frozen=True)
class WinogradTiling:
    """Tiles of `size` x `size` outputs, `block` of them (at most) to a unit; their products in register tiles of `rows`
    tiles x `vectors` of `lanes` channels. `across_images`: blocks do not end where an image does.
    """

    size: int
    block: int
    rows: int
    vectors: int
    lanes: int
    across_images: bool = False

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes

    @property
    def side(self) -> int:
        """How many inputs a tile has along rows and pixels."""
        return self.size + 2

    @property
    def elements(self) -> int:
        """How many matrix products there are."""
        return self.side**2


# ---- choosing --------------------------------------------------------------------------------------------------------


def winograd_applies(conv: Conv) -> bool:
    """Whether `conv` is a 3x3 convolution of stride 1 without groups over f32 or f64 images, channels last."""
    window = conv.window
    return (
        window.kernel == (1, 3, 3)
        and window.strides == window.dilations == (1, 1, 1)
        and conv.groups == 1
        and conv.planes == 1
        and conv.x.channel == 1
        and computed_in(conv.dtype) is conv.dtype
    )


def winograd_tiling(conv: Conv, machine: Machine, size: int) -> WinogradTiling:
    """A tiling of F(size x size, 3 x 3) whose transformed inputs fit into half the second-level cache."""
    lanes = machine.lanes(conv.dtype)
    vectors = 2 if conv.outputs > lanes else 1
    rows = min((machine.registers - 1 - vectors) // vectors, 14)
    one = (size + 2) ** 2 * (_padded(conv, lanes) + vectors * lanes) * conv.dtype.numpy.itemsize
    block = max(rows, machine.l2 // 2 // one)
    if conv.rows is not None and conv.pixels is not None:
        tiles = -(-conv.rows // size) * -(-conv.pixels // size)
        blocks = -(-tiles // block)
        # An even number of them, as threads mostly are.
        blocks += blocks % 2 if blocks > 1 else 0
        block = max(1, -(-tiles // blocks))
    return WinogradTiling(size, block, min(rows, block), vectors, lanes)


def across_images(conv: Conv, machine: Machine, size: int) -> WinogradTiling:
    """The same with blocks of whole register tiles, which go on from one image to the next."""
    own = winograd_tiling(replace(conv, rows=None, pixels=None), machine, size)
    size_of = conv.dtype.numpy.itemsize
    one = own.elements * (_padded(conv, own.lanes) + own.columns) * size_of
    # Filters are read once for each block; blocks are larger where they come from far away (as measured).
    is_far = own.elements * conv.channels * conv.outputs * size_of > 4 * machine.l2
    room = machine.l2 * 5 // 8 if is_far else machine.l2 // 4
    block = max(1, room // one // own.rows) * own.rows
    return replace(own, block=block, across_images=True)


def choose_running_winograd(
    conv: Conv, machine: Machine, images: int, rows: int, pixels: int, tiling: ConvTiling
) -> WinogradTiling | None:
    """The tiling of F(2 x 2, 3 x 3), which rounds no more than direct convolution, for filters that are transformed in
    every run; None if direct convolution is estimated to be as fast, or if there is one image only."""
    if images == 1 or not winograd_applies(conv):
        return None
    found = across_images(conv, machine, 2)
    sized = replace(conv, rows=rows, pixels=pixels)
    direct = images * conv_cycles(sized, tiling, machine) * conv.depth
    # Filters are read in their own order, and written in whole cache lines.
    transform = conv.channels * conv.outputs * (9 + 2 * found.elements * conv.dtype.numpy.itemsize / 8)
    return found if winograd_cycles(conv, found, machine, rows, pixels, images) + transform < 0.85 * direct else None


def choose_winograd(
    conv: Conv, machine: Machine, rows: int, pixels: int, tiling: ConvTiling | None = None
) -> WinogradTiling | None:
    """The tiling that is estimated to be fastest for an output of `rows` x `pixels`; None if direct convolution is, or
    nearly so (it rounds less). `tiling` is that of the direct one, if it is known."""
    sized = replace(conv, rows=rows, pixels=pixels) if conv.rows is None or conv.pixels is None else conv
    direct = conv_cycles(sized, tiling or choose_conv_tiling(conv, machine), machine) * conv.depth
    times = {tiling: winograd_cycles(conv, tiling, machine, rows, pixels) for tiling in winograd_tilings(conv, machine)}
    best = min(times, key=lambda tiling: times[tiling], default=None)
    return best if best is not None and times[best] < 0.8 * direct else None


def winograd_tilings(conv: Conv, machine: Machine) -> list[WinogradTiling]:
    """Tilings worth trying; none if `winograd_applies` does not hold."""
    return [winograd_tiling(conv, machine, size) for size in (4, 2)] if winograd_applies(conv) else []


def winograd_cycles(
    conv: Conv, tiling: WinogradTiling, machine: Machine, rows: int, pixels: int, images: int = 1
) -> float:
    """About how many cycles it takes: products, transforms (as measured), and reading filters of whatever size."""
    tiles = images * -(-rows // tiling.size) * -(-pixels // tiling.size)
    lanes, elements = tiling.lanes, tiling.elements
    outputs = -(-conv.outputs // lanes) * lanes
    products = tiles * elements * conv.channels * outputs / (2 * lanes) * 1.1
    transforms = tiles * (_padded(conv, lanes) + outputs) / lanes * elements * 7
    filters = elements * conv.channels * outputs * conv.dtype.numpy.itemsize
    # What is larger than the second-level cache comes from beyond it for every block.
    far = filters / machine.far_bytes if filters > machine.l2 // 2 else 0
    reading = winograd_blocks(tiling, images, rows, pixels) * far
    return max(products, reading) + transforms


def winograd_panel_groups(
    conv: Conv, tiling: WinogradTiling, images: int, rows: int, pixels: int, threads: int = 1
) -> int:
    """Into how few groups panels are cut so that all threads have as much to do: who computes a group transforms all
    inputs of its block for it."""
    blocks, panels = max(1, winograd_blocks(tiling, images, rows, pixels)), -(-conv.outputs // tiling.columns)
    even = (n for n in range(1, panels) if blocks * n % threads == 0 or blocks * n >= 4 * threads)
    return next(even, panels)


def winograd_blocks(tiling: WinogradTiling, images: int, rows: int, pixels: int) -> int:
    """How many blocks of tiles there are."""
    tiles = -(-rows // tiling.size) * -(-pixels // tiling.size)
    return -(-images * tiles // tiling.block) if tiling.across_images else images * -(-tiles // tiling.block)


# ---- interface -------------------------------------------------------------------------------------------------------


def _sizes(conv: Conv) -> dict[str, Size]:
    return {
        "images": None, "rows": conv.rows, "pixels": conv.pixels, "panel_groups": None,
        **layout_sizes("x", conv.x), **layout_sizes("y", conv.y), **epilogue_sizes(conv.epilogue),
    }  # fmt: skip


def winograd_arguments(conv: Conv) -> list[str]:
    """The names of the kernel's arguments, in order; those of `Conv` and `scratch` and `panel_groups`."""
    return argument_names(["x", "w", "y", "scratch"], conv.epilogue, _sizes(conv))


def winograd_units(conv: Conv, tiling: WinogradTiling, images: int, rows: int, pixels: int, panel_groups: int) -> int:
    """How many units of work there are."""
    return winograd_blocks(tiling, images, rows, pixels) * panel_groups


def winograd_scratch(conv: Conv, tiling: WinogradTiling) -> int:
    """Elements of scratch memory that each thread needs."""
    return tiling.elements * (_input_step(conv, tiling) + _sum_step(tiling))


def _padded(conv: Conv, lanes: int) -> int:
    return -(-conv.channels // lanes) * lanes


def _input_step(conv: Conv, tiling: WinogradTiling) -> int:
    # A cache line more than needed: the elements of a tile would else lie in the same set of the cache.
    return tiling.block * _padded(conv, tiling.lanes) + tiling.lanes


def _sum_step(tiling: WinogradTiling) -> int:
    return tiling.block * tiling.columns + tiling.lanes


def transformed_filters(w: np.ndarray, conv: Conv, tiling: WinogradTiling) -> np.ndarray:
    """Filters [outputs, channels, 3, 3] transformed: for each panel and element channels, columns; flat."""
    packed = on_cache_lines(math.prod(transformed_shape(conv, tiling)), conv.dtype.numpy)
    fill_transformed(packed, w, conv, tiling)
    return packed


def transformed_shape(conv: Conv, tiling: WinogradTiling) -> tuple[int, ...]:
    """[panel, row, column, channel, column of the panel] of transformed filters."""
    edge = _FILTERS[tiling.size].shape[0]
    return -(-conv.outputs // tiling.columns), edge, edge, conv.channels, tiling.columns


def fill_transformed(packed: np.ndarray, w: np.ndarray, conv: Conv, tiling: WinogradTiling) -> None:
    """Write transformed filters into a flat array."""
    matrix, columns, shape = _FILTERS[tiling.size], tiling.columns, transformed_shape(conv, tiling)
    filters = w.reshape(conv.outputs, conv.channels, 3, 3)
    # A few panels at a time: in float64 they are large.
    count = max(1, _TRANSFORMED_ELEMENTS * shape[0] // max(1, packed.size))
    for first in range(0, shape[0], count):
        exact = filters[first * columns : (first + count) * columns].transpose(2, 3, 1, 0).astype(np.float64, order="C")
        # One dim after the other, numbers that belong to neighbouring outputs side by side.
        turned = np.einsum("jx,ixco->ijco", matrix, np.einsum("iy,yxco->ixco", matrix, exact))
        fill_panels(packed.reshape(shape)[first : first + count], turned, 0)


@dataclass(frozen=True)
class FilterTransform:
    """What `transformed_filters` does, in a run: for filters with these strides along outputs, channels, and both dims
    of the window."""

    dtype: DType
    size: int
    outputs: int
    channels: int
    vectors: int
    lanes: int
    strides: tuple[int, int, int, int]

    @property
    def panels(self) -> int:
        return -(-self.outputs // (self.vectors * self.lanes))

    @property
    def units(self) -> int:
        """How many units of work there are."""
        return self.panels * self.channels

    @property
    def elements(self) -> int:
        """How many numbers the transformed filters are."""
        return self.units * (self.size + 2) ** 2 * self.vectors * self.lanes


FILTER_ARGUMENTS = ["w", "transformed", "begin", "end", "thread"]


def build_filter_transform(name: str, kernel: FilterTransform) -> Module:
    """The kernel as a module of the level "loop"; it takes `FILTER_ARGUMENTS`."""
    buffer, lanes, side = types.buffer(kernel.dtype), kernel.lanes, kernel.size + 2
    columns = kernel.vectors * lanes
    b = LoopBuilder(name, w=buffer, transformed=buffer, begin=INDEX, end=INDEX, thread=INDEX)
    output, channel, down, right = kernel.strides
    apart = b.mul(b.iota(lanes), output)
    with b.loop(b["begin"], b["end"]) as unit:
        panel, own = b.div(unit, kernel.channels), b.rem(unit, kernel.channels)
        step = kernel.channels * columns
        target = b.view(b["transformed"], b.add(b.mul(panel, side**2 * step), b.mul(own, columns)))
        for v in range(kernel.vectors):
            first = b.add(b.mul(panel, columns), v * lanes)
            mask = None if kernel.outputs % columns == 0 else b.tail_mask(b.sub(kernel.outputs, first), lanes)
            start = b.add(b.mul(first, output), b.mul(own, channel))
            lines = []
            for i in range(3):
                row = [b.gather(b["w"], b.add(apart, b.add(start, i * down + j * right)), mask) for j in range(3)]
                lines.append(_combined(b, row, kernel.size))
            for j, column in enumerate(zip(*lines, strict=True)):
                for i, value in enumerate(_combined(b, column, kernel.size)):
                    b.store(value, target, (i * side + j) * step + v * lanes)
    return b.module()


def _combined(b: LoopBuilder, g: Sequence[Value], size: int) -> list[Value]:
    """The transform of a row or column of filters."""
    found = []
    for factors in _FILTERS[size]:
        total: Value | None = None
        for factor, value in zip(factors, g, strict=True):
            if factor:
                constant = _like(b, factor, value)
                total = b.mul(value, constant) if total is None else b.fma(value, constant, total)
        assert total is not None
        found.append(total)
    return found


def build_winograd(name: str, conv: Conv, tiling: WinogradTiling) -> Module:
    """The kernel as a module of the level "loop"; see `winograd_arguments` for what it takes."""
    return _WinogradBuilder(name, conv, tiling).module()


# ---- transforms ------------------------------------------------------------------------------------------------------


def input_line(b: LoopBuilder, d: Sequence[Value]) -> list[Value]:
    """The transform of a row or column of inputs (B^T of the papers), for four or six of them."""
    if len(d) == 4:
        return [b.sub(d[0], d[2]), b.add(d[1], d[2]), b.sub(d[2], d[1]), b.sub(d[1], d[3])]
    even, odd = b.fma(d[2], _like(b, -4, d[2]), d[4]), b.fma(d[1], _like(b, -4, d[1]), d[3])
    outer, inner = b.sub(d[4], d[2]), b.sub(d[3], d[1])
    two = _like(b, 2, inner)
    return [
        b.fma(d[0], _like(b, 4, d[0]), b.fma(d[2], _like(b, -5, d[2]), d[4])),
        b.add(even, odd), b.sub(even, odd), b.fma(inner, two, outer), b.fma(inner, _like(b, -2, inner), outer),
        b.fma(d[1], _like(b, 4, d[1]), b.fma(d[3], _like(b, -5, d[3]), d[5])),
    ]  # fmt: skip


def output_line(b: LoopBuilder, m: Sequence[Value]) -> list[Value]:
    """The transform of a row or column of sums (A^T of the papers), from four or six of them."""
    if len(m) == 4:
        return [b.add(b.add(m[0], m[1]), m[2]), b.sub(b.sub(m[1], m[2]), m[3])]
    near, near_difference = b.add(m[1], m[2]), b.sub(m[1], m[2])
    far, far_difference = b.add(m[3], m[4]), b.sub(m[3], m[4])
    return [
        b.add(b.add(m[0], near), far), b.fma(far_difference, _like(b, 2, far), near_difference),
        b.fma(far, _like(b, 4, far), near), b.add(b.fma(far_difference, _like(b, 8, far), near_difference), m[5]),
    ]  # fmt: skip


def _like(b: LoopBuilder, number: float, value: Value) -> Value:
    assert isinstance(value.type, types.ScalarType | types.VectorType)
    return b.constant(number, value.type)


# ---- building --------------------------------------------------------------------------------------------------------


class _WinogradBuilder:
    def __init__(self, name: str, conv: Conv, tiling: WinogradTiling) -> None:
        self.conv, self.tiling, self.dtype = conv, tiling, conv.dtype
        self.operands = [operand.name for operand in conv.epilogue.operands]
        buffers: dict[str, DType] = dict.fromkeys(("x", "w", "y", "scratch"), conv.dtype)
        self.b = LoopBuilder(name, **argument_types(winograd_arguments(conv), buffers, conv.epilogue))
        self.n = Numbers(self.b, _sizes(conv))
        operands = tuple(EpilogueOperand(o.name, o.dtype, None, o.layout.channel or 0) for o in conv.epilogue.operands)
        epilogue = Epilogue(operands, conv.epilogue.body)
        self.body = epilogue_body(self.b, "epilogue", epilogue, tiling.lanes, conv.dtype)
        self.padded = _padded(conv, tiling.lanes)
        self.panels = -(-conv.outputs // tiling.columns)
        self.input_step, self.sum_step = _input_step(conv, tiling), _sum_step(tiling)
        self.made: set[str] = set()

    def module(self) -> Module:
        b, n, tiling = self.b, self.n, self.tiling
        self.down, self.across = (
            b.div(b.add(extent, tiling.size - 1), tiling.size) for extent in (n["rows"], n["pixels"])
        )
        self.tiles = tiles = b.mul(self.down, self.across)
        blocks = b.div(b.add(tiles, tiling.block - 1), tiling.block)
        scratch = b.view(b["scratch"], b.mul(b["thread"], winograd_scratch(self.conv, tiling)))
        sums = b.view(scratch, tiling.elements * self.input_step)
        b.include(self.input_function())
        with b.loop(b["begin"], b["end"]) as unit:
            group, rest = b.rem(unit, n["panel_groups"]), b.div(unit, n["panel_groups"])
            image, first, last = self.tiles_of(rest, blocks)
            fresh = b.or_(b.eq(unit, b["begin"]), b.eq(group, 0))
            with b.when(fresh), b.loop(first, last) as tile:
                self.transform_input(image, tile, b.view(scratch, b.mul(b.sub(tile, first), self.padded)))
            from_panel, to_panel = share(b, group, self.panels, n["panel_groups"])
            with b.loop(from_panel, to_panel) as panel:
                self.products(scratch, sums, panel, b.sub(last, first))
                with b.loop(first, last) as tile:
                    self.finish(image, tile, b.view(sums, b.mul(b.sub(tile, first), tiling.columns)), panel)
        return b.module()

    def tiles_of(self, block: Operand, blocks: Operand) -> tuple[Operand, Operand, Operand]:
        """The image of a block, its first tile and the one behind its last; tiles count on from image to image where
        blocks go across them."""
        b, tiling = self.b, self.tiling
        if tiling.across_images:
            first = b.mul(block, tiling.block)
            return 0, first, b.min(b.add(first, tiling.block), b.mul(self.tiles, self.n["images"]))
        image = b.div(block, blocks)
        return image, *share(b, b.rem(block, blocks), self.tiles, blocks)

    def place(self, image: Operand, tile: Operand) -> tuple[Operand, Operand, Operand]:
        """The image of a tile, its first row and pixel."""
        b, size = self.b, self.tiling.size
        if self.tiling.across_images:
            image, tile = b.div(tile, self.tiles), b.rem(tile, self.tiles)
        return image, b.mul(b.div(tile, self.across), size), b.mul(b.rem(tile, self.across), size)

    # ---- inputs --------------------------------------------------------------------------------------------------

    def transform_input(self, image: Operand, tile: Operand, target: Value) -> None:
        b, n = self.b, self.n
        image, row, pixel = self.place(image, tile)
        x = b.view(b["x"], n.offset("x", image=image, row=row, pixel=pixel))
        # A tile at the edge repeats the last row and pixel that are there: outputs that see them are dropped.
        left = [b.sub(b.add(n[dim], 1), place) for dim, place in (("rows", row), ("pixels", pixel))]
        b.call("input_tile", x, target, *left, *(b[name] for name in n.unknown("x_row", "x_pixel")))

    def input_function(self) -> Function:
        """Transforms the inputs of a tile, all channels."""
        conv, side, lanes = self.conv, self.tiling.side, self.tiling.lanes
        buffer = types.buffer(self.dtype)
        extra = self.n.unknown("x_row", "x_pixel")
        b = LoopBuilder("input_tile", x=buffer, v=buffer, last_row=INDEX, last_pixel=INDEX, **extra)
        n = Numbers(b, self.n.sizes)
        rows = [n.offset("x", row=b.min(b["last_row"], i)) if i else 0 for i in range(side)]
        pixels = [n.offset("x", pixel=b.min(b["last_pixel"], i)) if i else 0 for i in range(side)]
        whole = conv.channels // lanes * lanes

        def vector(channel: Operand, mask: Value | None) -> None:
            lines = []
            for row in rows:
                here = b.view(b["x"], b.add(row, channel))
                lines.append(input_line(b, [b.load(here, pixel, lanes, mask) for pixel in pixels]))
            for j, column in enumerate(zip(*lines, strict=True)):
                for i, value in enumerate(input_line(b, column)):
                    b.store(value, b["v"], b.add(channel, (i * side + j) * self.input_step))

        with b.loop(0, whole, lanes) as channel:
            vector(channel, None)
        if conv.channels % lanes:
            vector(whole, b.tail_mask(b.index(conv.channels - whole), lanes))
        return b.finish()

    # ---- products ------------------------------------------------------------------------------------------------

    def products(self, inputs: Value, sums: Value, panel: Operand, tiles: Operand) -> None:
        """For each element the product of the block's inputs with a panel of filters."""
        b, conv, tiling = self.b, self.conv, self.tiling
        filters = b.view(b["w"], b.mul(panel, tiling.elements * conv.channels * tiling.columns))
        parts = b.div(b.add(tiles, tiling.rows - 1), tiling.rows)
        with b.loop(0, tiling.elements) as element, b.loop(0, parts) as part:
            first, last = share(b, part, tiles, parts)
            if (
                tiling.across_images
            ):  # whole register tiles, as there is room for them: nobody looks at what is too much
                first, last = b.mul(part, tiling.rows), b.mul(b.add(part, 1), tiling.rows)
            a = b.view(inputs, b.add(b.mul(element, self.input_step), b.mul(first, self.padded)))
            c = b.view(sums, b.add(b.mul(element, self.sum_step), b.mul(first, tiling.columns)))
            size = conv.channels * tiling.columns
            strip = b.view(filters, b.mul(element, size))
            # Each register tile asks for its part of the next element's filters.
            step = b.div(b.add(tiling.columns, b.sub(parts, 1)), parts)
            ahead = b.add(size, b.mul(part, b.mul(step, conv.channels)))
            given = [a, strip, c, ahead, step]
            choose(b, b.sub(last, first), self.heights(), lambda rows: b.call(self.product_function(rows), *given))

    def heights(self) -> list[int]:
        """How many tiles a register tile can have."""
        conv, tiling = self.conv, self.tiling
        if tiling.across_images:
            return [tiling.rows]
        if conv.rows is None or conv.pixels is None:
            return list(range(1, tiling.rows + 1))
        tiles = -(-conv.rows // tiling.size) * -(-conv.pixels // tiling.size)
        return sorted(
            {height for count in even_sizes(tiles, tiling.block) for height in even_sizes(count, tiling.rows)}
        )

    def product_function(self, rows: int) -> str:
        name = f"product{rows}"
        if name in self.made:
            return name
        self.made.add(name)
        conv, tiling = self.conv, self.tiling
        buffer = types.buffer(self.dtype)
        b = LoopBuilder(name, a=buffer, strip=buffer, c=buffer, ahead=INDEX, ahead_step=INDEX)
        tile = Tile(rows, tiling.vectors, tiling.lanes, self.dtype)
        places = [row * self.padded for row in range(rows)]
        with b.loop(0, conv.channels, 1, tile.zeros(b)) as state:
            k = state.index
            right = tile.right(b, b["strip"], b.mul(k, tiling.columns))
            # Filters come from beyond the second-level cache if there are many channels.
            b.prefetch(b["strip"], b.add(b["ahead"], b.mul(k, b["ahead_step"])), level=2)
            state.yields(tile.step(b, state.values, b.view(b["a"], k), places, right))
        target = Target(b["c"], [row * tiling.columns for row in range(rows)], tiling.columns)
        tile.finish(b, state.results, target)
        self.b.include(b.finish())
        return name

    # ---- outputs -------------------------------------------------------------------------------------------------

    def finish(self, image: Operand, tile: Operand, sums: Value, panel: Operand) -> None:
        """Transform the sums of a tile back and store its outputs that are there."""
        b, n, conv, tiling = self.b, self.n, self.conv, self.tiling
        image, row, pixel = self.place(image, tile)
        column = b.mul(panel, tiling.columns)
        spot = {"image": image, "row": row, "pixel": pixel, "channel": column}
        views = [b.view(b[name], n.offset(name, **spot)) for name in ("y", *self.operands)]
        extra = [b[name] for name in n.unknown(*self.strides())]
        given = [sums, *views, b.min(b.sub(conv.outputs, column), tiling.columns), *extra]
        height, width = (b.min(b.sub(n[dim], place), tiling.size) for dim, place in (("rows", row), ("pixels", pixel)))
        heights, widths = (self.counts(extent) for extent in (conv.rows, conv.pixels))
        choose(b, height, heights, lambda h: choose(b, width, widths, lambda w: b.call(self.output(h, w), *given)))

    def counts(self, extent: Size) -> list[int]:
        """How many outputs tiles can have along a dim."""
        size = self.tiling.size
        if not extent:
            return list(range(1, size + 1))
        return sorted(({size} if extent >= size else set()) | ({extent % size} - {0}))

    def strides(self) -> list[str]:
        return ["y_row", "y_pixel", *tile_strides(self.conv.epilogue)]

    def output(self, rows: int, pixels: int) -> str:
        """The function that transforms the sums of a tile with `rows` x `pixels` outputs back."""
        name = f"output{rows}x{pixels}"
        if name in self.made:
            return name
        self.made.add(name)
        conv, tiling = self.conv, self.tiling
        side, lanes = tiling.side, tiling.lanes
        arguments: dict[str, types.Type] = {"m": types.buffer(self.dtype), "y": types.buffer(self.dtype)}
        arguments |= {operand.name: types.buffer(operand.dtype) for operand in conv.epilogue.operands}
        b = LoopBuilder(name, **arguments, columns=INDEX, **self.n.unknown(*self.strides()))
        n = Numbers(b, self.n.sizes)
        places = [n.offset("y", row=row, pixel=pixel) for row in range(rows) for pixel in range(pixels)]
        operands = given_operands(b, n, conv.epilogue, rows, pixels)
        with b.loop(0, b["columns"], lanes) as column:
            m = b.view(b["m"], column)
            lines = [
                output_line(b, [b.load(m, (i * side + j) * self.sum_step, lanes) for i in range(side)])[:rows]
                for j in range(side)
            ]
            results = [value for row in zip(*lines, strict=True) for value in output_line(b, row)[:pixels]]
            given = [Given(b.view(o.buffer, b.mul(column, o.column)), o.places, o.column) for o in operands]
            columns: Operand = b.sub(b["columns"], column) if conv.outputs % lanes else lanes
            target = Target(b.view(b["y"], column), places, columns)
            Tile(rows * pixels, 1, lanes, self.dtype).finish(b, results, target, body=self.body, given=given)
        self.b.include(b.finish())
        return name
