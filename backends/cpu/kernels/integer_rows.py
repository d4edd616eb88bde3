"""Bringing rows of bytes together, unsigned and filled up with zeros, for a product of integers: see `integer_gemm`.

A row is one of a matrix, or what a window sees of an image: its taps one after the other, the channels of each
together. Taps outside the image are the zero point. No mask is needed to copy a run: its last vector begins earlier.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ....graph import types
from ....graph.core import Value
from ....graph.dtypes import DType, i8, u8
from ....graph.kernel.loop_builder import Operand
from .strided import StridedBuilder
from .tile import Size

if TYPE_CHECKING:
    from .integer_gemm import Patches

# Runs of at most so many vectors are written out.
_UNROLLED = 8


def patch_sizes(patches: Patches) -> dict[str, Size]:
    """The sizes of images by name, but for strides."""
    return {
        "rows": patches.rows, "pixels": patches.pixels, "image_rows": patches.image_rows,
        "image_pixels": patches.image_pixels, "before_row": patches.before[0], "before_pixel": patches.before[1],
        "border": None if patches.is_padded else 0,
    }  # fmt: skip


class RowPacker:
    """Builds with `main`, whose sizes it uses; `border` builds the byte around images."""

    def __init__(
        self, main: StridedBuilder, dtype: DType, patches: Patches | None, border: Callable[[], Value]
    ) -> None:
        self.main, self.b, self.patches, self.border = main, main.b, patches, border
        self.is_signed = dtype is i8
        self.vector = 4 * main.lanes

    def rows(self, a: Value, start: Operand, count: Operand, target: Value, pitch: Operand) -> None:
        """Rows `start` and on of the matrix or of the images at `a`, `count` of them, to `target`, `pitch` apart."""
        b, size = self.b, self.main.size
        is_padded = self.patches is not None and self.patches.is_padded
        border = b.broadcast(self.border(), self.vector) if is_padded else None
        with b.loop(0, count) as row:
            place = b.view(target, b.mul(row, pitch))
            k = size("k")
            if isinstance(k, Value) or k % self.vector:
                zeros = b.constant(0, types.vector(u8, self.vector))
                whole = b.mul(b.div(k, self.vector), self.vector)
                if isinstance(k, Value):
                    with b.when(b.lt(whole, k)):
                        b.store(zeros, place, whole)
                else:
                    b.store(zeros, place, whole)
            index = b.add(start, row)
            if self.patches is None:
                self.copy(b.view(a, b.mul(index, size("a_row"))), place, k)
            else:
                self.patch(self.patches, a, index, place, border)

    def patch(self, patches: Patches, a: Value, index: Operand, target: Value, border: Value | None) -> None:
        """What the window sees at output `index`, counted over all images."""
        b, size = self.b, self.main.size
        line, pixel = b.div(index, size("pixels")), b.rem(index, size("pixels"))
        image, row = b.div(line, size("rows")), b.rem(line, size("rows"))
        _, height, width = patches.window.kernel
        top = b.sub(b.mul(row, patches.window.strides[1]), size("before_row"))
        left = b.sub(b.mul(pixel, patches.window.strides[2]), size("before_pixel"))
        taps = width * patches.channels
        source = b.mul(image, size("x_image"))
        with b.loop(0, height) as tap:
            y = b.add(top, b.mul(tap, patches.window.dilations[1]))
            place = b.view(target, b.mul(tap, taps))

            def inside(y: Operand = y, place: Value = place) -> None:
                line = b.add(source, b.mul(y, size("x_row")))
                self.line(patches, a, line, left, place, border)

            if border is None:
                inside()
            else:
                visible = b.and_(b.le(0, y), b.lt(y, size("image_rows")))
                b.branch(visible, inside, lambda place=place: self.fill(place, taps, border))

    def line(
        self, patches: Patches, a: Value, line: Operand, left: Operand, target: Value, border: Value | None
    ) -> None:
        """A row of taps, of which those before or behind the image's line are the border."""
        b, size, channels = self.b, self.main.size, patches.channels
        width, step = patches.window.kernel[2], patches.window.dilations[2]

        def tap(x: Operand, place: Value) -> None:
            source = b.add(line, b.mul(x, size("x_pixel")))
            if border is None:
                self.copy(b.view(a, source), place, channels)
                return
            visible = b.and_(b.le(0, x), b.lt(x, size("image_pixels")))
            b.branch(
                visible, lambda: self.copy(b.view(a, source), place, channels),
                lambda: self.fill(place, channels, border),
            )  # fmt: skip

        def each() -> None:
            with b.loop(0, width) as index:
                tap(b.add(left, b.mul(index, step)), b.view(target, b.mul(index, channels)))

        pixel = size("x_pixel")
        if width == 1 or step != 1 or isinstance(pixel, Value) or pixel != channels:
            each()
            return

        def together() -> None:
            self.copy(b.view(a, b.add(line, b.mul(left, pixel))), target, width * channels)

        if border is None:
            together()
            return
        whole = b.and_(b.le(0, left), b.le(b.add(left, width), size("image_pixels")))
        b.branch(whole, together, each)

    # ---- runs of bytes -----------------------------------------------------------------------------------------------

    def copy(self, source: Value, target: Value, length: Operand) -> None:
        """`length` bytes, made unsigned."""
        b = self.b

        def part(place: Operand, lanes: int) -> None:
            loaded = b.load(source, place, lanes)
            b.store(b.xor(b.bitcast(loaded, u8), 128) if self.is_signed else loaded, target, place)

        if isinstance(length, Value):
            self._unknown(length, part)
        else:
            self._runs(int(length), part)

    def fill(self, target: Value, length: int, border: Value) -> None:
        """`length` bytes of the border."""
        b = self.b

        def part(place: Operand, lanes: int) -> None:
            b.store(b.shuffle(border, border, range(lanes)) if lanes < self.vector else border, target, place)

        self._runs(length, part)

    def _runs(self, length: int, part: Callable[[Operand, int], None]) -> None:
        """Vectors that cover `length` bytes; the last one may overlap the one before it."""
        if not length:
            return
        lanes = min(self.vector, 1 << (length.bit_length() - 1))
        count = length // lanes
        if count > _UNROLLED:
            with self.b.loop(0, count * lanes, lanes) as place:
                part(place, lanes)
        else:
            for index in range(count):
                part(index * lanes, lanes)
        if length % lanes:
            part(length - lanes, lanes)

    def _unknown(self, length: Value, part: Callable[[Operand, int], None]) -> None:
        """As many whole vectors as there are, then the last one or single bytes."""
        b, vector = self.b, self.vector
        whole = b.mul(b.div(length, vector), vector)
        with b.loop(0, whole, vector) as place:
            part(place, vector)

        def rest() -> None:
            b.branch(b.le(vector, length), lambda: part(b.sub(length, vector), vector), single)

        def single() -> None:
            with b.loop(0, length) as place:
                part(place, 1)

        b.branch(b.lt(whole, length), rest, lambda: None)
