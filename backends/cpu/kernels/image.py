"""What kernels on images share: windows, strides, operands of epilogues, and how work is shared out.

An image has planes, rows, pixels and channels. A 3-D one is D x H x W x C, a 2-D one has one plane, a 1-D one also one
row.
Every kernel here reads channels last (channels of a pixel next to each other) unless it says otherwise. Its operand `x`
begins at the first tap of the first output, so that with a border of zeros around the image (a halo) all addresses are
affine and no tap needs a test.

Sizes and strides count elements. They are numbers where they are known, else arguments of the kernel with the names
`planes`, `rows`, `pixels` (of the output), `x_image`, `x_row`, ...; those of images are always arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

from ....graph import types
from ....graph.dtypes import DType, i64
from ....graph.kernel.loop_builder import LoopBuilder, Operand
from .tile import EpilogueBody, Given, Size

INDEX = types.scalar(i64)
WORK = ("begin", "end", "thread")


@dataclass(frozen=True)
class Window:
    """Which elements of the input an output sees, along depth, height and width."""

    kernel: tuple[int, int, int]
    strides: tuple[int, int, int] = (1, 1, 1)
    dilations: tuple[int, int, int] = (1, 1, 1)

    @staticmethod
    def of(kernel: Sequence[int], strides: Sequence[int] = (), dilations: Sequence[int] = ()) -> Window:
        """A window of up to three dims; the ones that are missing in front have one tap."""
        given = [tuple(numbers) or (1,) * len(kernel) for numbers in (kernel, strides, dilations)]
        three = [(1,) * (3 - len(numbers)) + numbers for numbers in given]
        return Window(*((a, b, c) for a, b, c in three))

    @property
    def taps(self) -> int:
        depth, height, width = self.kernel
        return depth * height * width


@dataclass(frozen=True)
class Layout:
    """Strides of images in a buffer; None for one that is an argument of the kernel. 0 where a dim is broadcast."""

    image: Size = None
    plane: Size = 0
    row: Size = None
    pixel: Size = None
    channel: Size = 1


BY_CHANNEL = Layout(0, 0, 0, 0, 1)
BY_IMAGE_AND_CHANNEL = Layout(None, 0, 0, 0, 1)
SCALAR = Layout(0, 0, 0, 0, 0)


@dataclass(frozen=True)
class ImageOperand:
    """Something that an epilogue reads beside the sum of each output. The channels lie 1 or 0 apart."""

    name: str
    dtype: DType
    layout: Layout


@dataclass(frozen=True)
class ImageEpilogue:
    """What is done to each output before it is stored; `body(b, sum, operands)` builds it for a vector of channels."""

    operands: tuple[ImageOperand, ...] = ()
    body: EpilogueBody | None = None


def layout_sizes(name: str, layout: Layout) -> dict[str, Size]:
    """The strides of a buffer by the names that they have as arguments."""
    return {f"{name}_{field.name}": getattr(layout, field.name) for field in fields(layout)}


def epilogue_sizes(epilogue: ImageEpilogue) -> dict[str, Size]:
    sizes: dict[str, Size] = {}
    for operand in epilogue.operands:
        sizes |= layout_sizes(operand.name, operand.layout)
    return sizes


class Numbers:
    """Sizes and strides by name, in a function of which those that are not known are arguments."""

    def __init__(self, b: LoopBuilder, sizes: Mapping[str, Size]) -> None:
        self.b = b
        self.sizes = sizes

    def __getitem__(self, name: str) -> Operand:
        known = self.sizes[name]
        return self.b[name] if known is None else known

    def offset(self, buffer: str, **places: Operand) -> Operand:
        """The place of an element: `offset("x", row=r, pixel=p)`."""
        total: Operand = 0
        for dim, place in places.items():
            total = self.b.add(total, self.b.mul(place, self[f"{buffer}_{dim}"]))
        return total

    def unknown(self, *names: str) -> dict[str, types.Type]:
        """Those of `names` that are arguments, with their type: what a function that is called must be given too."""
        return {name: INDEX for name in names if self.sizes[name] is None}


def argument_names(buffers: Sequence[str], epilogue: ImageEpilogue, sizes: Mapping[str, Size]) -> list[str]:
    """The arguments of a kernel in order: buffers, the epilogue's buffers, sizes and strides, work."""
    unknown = [name for name, size in sizes.items() if size is None]
    return [*buffers, *(operand.name for operand in epilogue.operands), *unknown, *WORK]


def argument_types(
    names: Sequence[str], buffers: Mapping[str, DType], epilogue: ImageEpilogue
) -> dict[str, types.Type]:
    dtypes = {**buffers, **{operand.name: operand.dtype for operand in epilogue.operands}}
    return {name: types.buffer(dtypes[name]) if name in dtypes else INDEX for name in names}


# ---- sharing out -----------------------------------------------------------------------------------------------------


def even_blocks(blocks: int, others: int, threads: int) -> int:
    """At least so many blocks, of which each gives `others` units of work, that all threads get equally many of these;
    the same number if there is none soon."""
    if not isinstance(blocks, int):  # decided by sizes of a run
        return blocks
    return next((n for n in range(blocks, blocks + threads) if n * others % threads == 0), blocks)


def share(b: LoopBuilder, part: Operand, total: Operand, parts: Operand) -> tuple[Operand, Operand]:
    """Of `total` things shared out evenly among `parts`: the first of part `part`, and the one behind its last."""
    return b.div(b.mul(part, total), parts), b.div(b.mul(b.add(part, 1), total), parts)


def even_sizes(total: Size, most: int) -> list[int]:
    """The sizes that shares can have when `total` things are shared out evenly, at most `most` to each."""
    if total is None:
        return list(range(1, most + 1))
    if total <= 0:
        return [1]
    parts = -(-total // most)
    return sorted({total // parts, -(-total // parts)})


def tiles_along(
    b: LoopBuilder,
    known: Size,
    total: Operand,
    most: int,
    build: Callable[[Operand, Operand, Sequence[int], Operand], None],
) -> None:
    """Cut `total` things, a number in code if it is `known`, into tiles of at most `most`: `build` makes the code for
    one from a place on, of a size among some; its number is given last.

    Tiles of a known total are about as large. Of an open one, whatever is left of whole tiles is made of powers of two,
    as code for each size would be most of a kernel.
    """
    if known is not None:
        parts = b.div(b.add(total, most - 1), most)
        with b.loop(0, parts) as part:
            start, stop = share(b, part, total, parts)
            build(start, b.sub(stop, start), even_sizes(known, most), part)
        return
    rest = b.rem(total, most)
    with b.loop(0, b.sub(total, rest), most) as start:
        build(start, most, [most], b.div(start, most))
    size = 1 << (most - 1).bit_length() >> 1
    while size:
        left = b.rem(rest, 2 * size)
        with b.when(b.lt(size - 1, left)):
            build(b.sub(total, left), size, [size], b.div(total, most))
        size //= 2


def choose(b: LoopBuilder, size: Operand, sizes: Sequence[int], build: Callable[[int], object]) -> None:
    """Build code for each of `sizes`, of which the one that `size` has runs; it is found by halving."""

    def between(low: int, high: int) -> None:
        if high - low == 1:
            build(sizes[low])
            return
        middle = (low + high) // 2
        b.branch(b.lt(size, sizes[middle]), lambda: between(low, middle), lambda: between(middle, high))

    between(0, len(sizes))


# ---- epilogues in a tile ---------------------------------------------------------------------------------------------


def given_operands(b: LoopBuilder, numbers: Numbers, epilogue: ImageEpilogue, rows: int, pixels: int) -> list[Given]:
    """The operands at a tile of `rows` x `pixels` outputs, whose buffers begin at its first output and channel."""
    given = []
    for operand in epilogue.operands:
        layout = operand.layout
        steps = [numbers[f"{operand.name}_{dim}"] for dim in ("row", "pixel")]
        places: list[Operand] = [
            b.add(b.mul(row, steps[0]), b.mul(pixel, steps[1])) for row in range(rows) for pixel in range(pixels)
        ]
        if (layout.row == 0 or rows == 1) and layout.pixel == 0:
            places = places[:1]
        assert layout.channel is not None
        given.append(Given(b[operand.name], places, layout.channel))
    return given


def tile_strides(epilogue: ImageEpilogue) -> list[str]:
    """The names of the strides that `given_operands` needs."""
    return [f"{operand.name}_{dim}" for operand in epilogue.operands for dim in ("row", "pixel")]
