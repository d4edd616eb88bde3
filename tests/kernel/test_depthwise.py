"""Depthwise convolution: interpreted and compiled, every kind of window and layout, edges of tiles, shared work."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from image_buffers import ImageBuffer, convolution, image_buffer, of_images
from loop_running import WIDTHS, run_both, run_compiled

from tilewright.backends.cpu.kernels.depthwise import (
    Blocks,
    Depthwise,
    DepthwiseTiling,
    build_depthwise,
    choose_depthwise_tiling,
    depthwise_arguments,
    depthwise_blocks,
    depthwise_units,
    packed_taps,
)
from tilewright.backends.cpu.kernels.image import BY_CHANNEL, ImageEpilogue, ImageOperand, Layout, Window
from tilewright.backends.cpu.machine import machine_of_width
from tilewright.graph.dtypes import DType, bf16, f16, f32, f64, i8, i32, u8
from tilewright.graph.kernel.interpreter import run_loops

random = np.random.default_rng(8)

WHOLE = Blocks(1, 1)
TINY = DepthwiseTiling(rows=2, pixels=3, lanes=4)


class Case:
    """A depthwise convolution of small integers, and the arguments of its kernel."""

    def __init__(
        self,
        space: tuple[int, ...],
        channels: int,
        kernel: tuple[int, ...],
        strides: tuple[int, ...] = (),
        dilations: tuple[int, ...] = (),
        pads: int = 0,
        images: int = 1,
        dtype: DType = f32,
        gap: int = 0,
        static: bool = True,
    ) -> None:
        window = Window.of(kernel, strides, dilations)
        space = (1,) * (3 - len(space)) + space
        x = random.integers(-3, 4, (images, channels, *space)).astype(dtype.numpy)
        self.w = random.integers(-3, 4, (channels, 1, *window.kernel)).astype(dtype.numpy)
        pad = tuple(pads if taps > 1 else 0 for taps in window.kernel)
        exact = x.astype(np.float64), self.w.astype(np.float64)
        self.expected = convolution(*exact, window.strides, window.dilations, pad, pad, channels)
        self.x = of_images(x, pad, pad, gap=gap)
        self.y = image_buffer(self.expected.shape, dtype.numpy, gap=gap, fill=77)
        planes, rows, pixels = self.expected.shape[2:]
        self.extents = {"images": images, "planes": planes, "rows": rows, "pixels": pixels}
        sizes = (planes, rows, pixels) if static else (None, None, None)
        self.kernel = Depthwise(window, channels, dtype, *sizes, *(self.layout(b, static) for b in (self.x, self.y)))

    def layout(self, buffer: ImageBuffer, static: bool) -> Layout:
        steps = buffer.strides
        return Layout(None, steps["plane"], steps["row"], steps["pixel"]) if static else Layout(plane=None)

    def arguments(
        self, tiling: DepthwiseTiling, blocks: Blocks = WHOLE, extra: dict[str, Any] | None = None
    ) -> list[Any]:
        known = {
            "x": self.x.flat, "w": packed_taps(self.w, self.kernel, tiling), "y": self.y.flat, **self.extents,
            "row_blocks": blocks.rows, "channel_blocks": blocks.channels, **self.x.named("x"), **self.y.named("y"),
            **(extra or {}), "begin": 0, "thread": 0,
            "end": depthwise_units(self.extents["images"], self.extents["planes"], blocks),
        }  # fmt: skip
        return [known[name] for name in depthwise_arguments(self.kernel)]

    def check(self, flat: np.ndarray, expected: np.ndarray | None = None) -> None:
        """The outputs are right, and nothing between them was written."""
        result = ImageBuffer(flat, self.y.strides, self.y.shape)
        wanted = self.expected if expected is None else expected
        assert np.array_equal(result.images().astype(np.float64), wanted)
        rest = flat.copy()
        ImageBuffer(rest, self.y.strides, self.y.shape).images()[...] = 77
        assert (rest == 77).all()

    def run(self, tiling: DepthwiseTiling, width: int = 128, blocks: Blocks = WHOLE) -> None:
        index = depthwise_arguments(self.kernel).index("y")
        module = build_depthwise("depthwise", self.kernel, tiling)
        for each in run_both(module, self.arguments(tiling, blocks), width):
            self.check(each[index])


def facts(**given: Any) -> dict[str, Any]:
    return given


CASES = {
    "3x3": facts(space=(5, 7), channels=9, kernel=(3, 3), pads=1),
    "3x3 with strides": facts(space=(6, 7), channels=8, kernel=(3, 3), strides=(2, 2), pads=1),
    "3x3 dilated": facts(space=(5, 7), channels=3, kernel=(3, 3), dilations=(2, 1), pads=2),
    "5x2 uneven": facts(space=(5, 7), channels=5, kernel=(5, 2), strides=(1, 3), pads=2),
    "1x1": facts(space=(2, 4), channels=6, kernel=(1, 1)),
    "9x9 in loops": facts(space=(9, 10), channels=5, kernel=(9, 9), strides=(2, 1), pads=2),
    "1x70 in loops": facts(space=(2, 72), channels=3, kernel=(1, 70)),
    "line": facts(space=(9,), channels=5, kernel=(3,), strides=(2,), pads=1),
    "volume": facts(space=(3, 4, 4), channels=5, kernel=(2, 3, 3), strides=(2, 1, 1), pads=1, images=2),
}


@pytest.mark.parametrize(("gap", "static"), [(0, True), (3, False)])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_windows_and_layouts(case: dict[str, Any], gap: int, static: bool) -> None:
    Case(**case, gap=gap, static=static).run(TINY)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("channels", [3, 16, 37])
def test_the_tiling_of_the_machine(dtype: DType, width: int, channels: int) -> None:
    for pixels in (1, 7, 17):
        case = Case((3, pixels), channels, (3, 3), pads=1, dtype=dtype)
        machine = machine_of_width(width)
        tiling = choose_depthwise_tiling(case.kernel, machine)
        blocks = depthwise_blocks(case.kernel, tiling, machine, 3, pixels, threads=2)
        run_compiled(build_depthwise("depthwise", case.kernel, tiling), case.arguments(tiling, blocks), width)
        case.check(case.y.flat)


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_narrow_floats_are_summed_up_in_f32(dtype: DType) -> None:
    Case((4, 5), 6, (3, 3), pads=1, dtype=dtype).run(TINY)


@pytest.mark.parametrize("static", [True, False])
def test_bias_and_residual(static: bool) -> None:
    case = Case((5, 5), 7, (3, 3), pads=1, images=2, static=static)
    residual = of_images(random.integers(-9, 9, case.expected.shape).astype(np.float32), (0, 0, 0), (0, 0, 0), gap=3)
    bias = random.integers(-9, 9, 7).astype(np.float32)
    operands = ImageOperand("bias", f32, BY_CHANNEL), ImageOperand("residual", f32, case.layout(residual, static))

    def body(b: Any, total: Any, given: Any) -> Any:
        return b.max(b.add(b.add(total, given[0]), given[1]), 0)

    case.kernel = replace(case.kernel, epilogue=ImageEpilogue(operands, body))
    extra = {"bias": bias, "residual": residual.flat, **residual.named("residual")}
    expected = np.maximum(case.expected + bias.reshape(1, 7, 1, 1, 1) + residual.images(), 0)
    index = depthwise_arguments(case.kernel).index("y")
    module = build_depthwise("depthwise", case.kernel, TINY)
    for each in run_both(module, case.arguments(TINY, extra=extra), 128):
        case.check(each[index], expected)


@pytest.mark.parametrize("parts", [2, 7])
@pytest.mark.parametrize("blocks", [Blocks(1, 3), Blocks(2, 2), Blocks(3, 1)], ids=str)
def test_work_can_be_shared_out_anywhere(blocks: Blocks, parts: int) -> None:
    case = Case((2, 5, 4), 10, (1, 3, 1), pads=1, images=2)
    names = depthwise_arguments(case.kernel)
    module = build_depthwise("depthwise", case.kernel, TINY)
    given = case.arguments(TINY, blocks)
    units = given[names.index("end")]
    for thread in range(parts):
        share = {"begin": thread * units // parts, "end": (thread + 1) * units // parts, "thread": thread}
        run_loops(module, [share.get(name, value) for name, value in zip(names, given, strict=True)])
    case.check(case.y.flat)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [u8, i8], ids=str)
@pytest.mark.parametrize("channels", [3, 21])
def test_bytes(channels: int, dtype: DType, width: int) -> None:
    """Exact sums of bytes less their zero point, which lies around the image, too; extremes among them."""
    low = 0 if dtype is u8 else -128
    x = random.integers(low, low + 256, (2, channels, 1, 7, 6)).astype(dtype.numpy)
    x[0, 0], x[1, 0] = low, low + 255
    w = random.choice([-128, 127, 3], (channels, 1, 1, 3, 3)).astype(np.float32)
    zero, window, pad = low + 9, Window.of((3, 3), (2, 1)), (0, 1, 1)
    expected = convolution(
        x.astype(np.float64) - zero, w.astype(np.float64), window.strides, (1, 1, 1), pad, pad, channels
    )
    source, target = of_images(x, pad, pad, fill=zero), image_buffer(expected.shape, np.int32)
    planes, rows, pixels = expected.shape[2:]
    kernel = Depthwise(window, channels, dtype, planes, rows, pixels, Layout(), Layout(), result=i32)
    tiling = choose_depthwise_tiling(kernel, machine_of_width(width))
    known = {
        "x": source.flat, "y": target.flat, "w": packed_taps(w, kernel, tiling), "zero": np.array([zero], dtype.numpy),
        "images": 2, "row_blocks": 1, "channel_blocks": 1, **source.named("x"), **target.named("y"), "begin": 0,
        "thread": 0, "end": depthwise_units(2, planes, WHOLE),
    }  # fmt: skip
    names = depthwise_arguments(kernel)
    module = build_depthwise("depthwise", kernel, tiling)
    for each in run_both(module, [known[name] for name in names], width):
        result = ImageBuffer(each[names.index("y")], target.strides, target.shape)
        assert np.array_equal(result.images(), expected)
