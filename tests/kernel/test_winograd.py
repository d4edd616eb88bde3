"""Winograd's convolution: interpreted and compiled, tiles at edges, blocks and panels, and how much it rounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from image_buffers import ImageBuffer, convolution, image_buffer, of_images
from loop_running import WIDE, WIDTHS, run_both, run_compiled

from tilewright.backends.cpu.kernels.conv import Conv, choose_conv_tiling
from tilewright.backends.cpu.kernels.image import BY_CHANNEL, ImageEpilogue, ImageOperand, Layout, Window
from tilewright.backends.cpu.kernels.winograd import (
    FILTER_ARGUMENTS,
    FilterTransform,
    WinogradTiling,
    across_images,
    build_filter_transform,
    build_winograd,
    choose_running_winograd,
    choose_winograd,
    transformed_filters,
    winograd_applies,
    winograd_arguments,
    winograd_panel_groups,
    winograd_scratch,
    winograd_tiling,
    winograd_units,
)
from tilewright.backends.cpu.machine import machine_of_width
from tilewright.graph.dtypes import DType, bf16, f32, f64
from tilewright.graph.kernel.interpreter import run_loops

random = np.random.default_rng(13)

ONES = (1, 1, 1)


class Case:
    """A 3x3 convolution with padding 1, and the arguments of its kernel for `threads` threads."""

    def __init__(
        self,
        rows: int,
        pixels: int,
        channels: int,
        outputs: int,
        images: int = 1,
        dtype: DType = f32,
        gap: int = 0,
        static: bool = True,
        normal: bool = False,
    ) -> None:
        shape, filters = (images, channels, 1, rows, pixels), (outputs, channels, 1, 3, 3)
        if normal:
            x, self.w = (random.normal(size=size).astype(dtype.numpy) for size in (shape, filters))
        else:
            x = random.integers(-4, 5, shape).astype(dtype.numpy)
            # Whole numbers after the transforms too, as far as thirds allow.
            self.w = 24 * random.integers(-2, 3, filters).astype(dtype.numpy)
        exact = x.astype(np.float64), self.w.astype(np.float64)
        self.expected = convolution(*exact, ONES, ONES, (0, 1, 1), (0, 1, 1))
        self.x = of_images(x, (0, 1, 1), (0, 1, 1), gap=gap)
        self.y = image_buffer(self.expected.shape, dtype.numpy, gap=gap, fill=77)
        self.extents = {"images": images, "rows": rows, "pixels": pixels}
        sizes = (rows, pixels) if static else (None, None)
        layouts = [
            Layout(None, 0, each.strides["row"], each.strides["pixel"]) if static else Layout()
            for each in (self.x, self.y)
        ]
        self.conv = Conv(Window.of((3, 3)), channels, outputs, dtype, 1, 1, *sizes, *layouts)

    def arguments(
        self, tiling: WinogradTiling, groups: int = 1, threads: int = 1, extra: dict[str, Any] | None = None
    ) -> list[Any]:
        scratch = np.full(threads * winograd_scratch(self.conv, tiling), np.nan, self.x.flat.dtype)
        images, rows, pixels = self.extents.values()
        units = winograd_units(self.conv, tiling, images, rows, pixels, groups)
        known = {
            "x": self.x.flat, "w": transformed_filters(self.w, self.conv, tiling), "y": self.y.flat,
            "scratch": scratch, **self.extents, "panel_groups": groups, **self.x.named("x"), **self.y.named("y"),
            **(extra or {}), "begin": 0, "end": units, "thread": 0,
        }  # fmt: skip
        return [known[name] for name in winograd_arguments(self.conv)]

    def check(self, flat: np.ndarray, expected: np.ndarray | None = None) -> None:
        """The outputs are right, and nothing between them was written."""
        result = ImageBuffer(flat, self.y.strides, self.y.shape)
        wanted = self.expected if expected is None else expected
        assert np.allclose(result.images(), wanted, rtol=0, atol=1e-5 * max(1, np.abs(wanted).max()))
        rest = flat.copy()
        ImageBuffer(rest, self.y.strides, self.y.shape).images()[...] = 77
        assert (rest == 77).all()

    def run(self, tiling: WinogradTiling, width: int = 128, groups: int = 1) -> None:
        index = winograd_arguments(self.conv).index("y")
        module = build_winograd("winograd", self.conv, tiling)
        for each in run_both(module, self.arguments(tiling, groups), width):
            self.check(each[index])


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize(("rows", "pixels"), [(1, 1), (3, 5), (4, 8)])
def test_tiles_and_edges(rows: int, pixels: int, static: bool, size: int) -> None:
    case = Case(rows, pixels, 5, 9, images=2, gap=0 if static else 3, static=static)
    case.run(WinogradTiling(size, block=3, rows=2, vectors=2, lanes=4), groups=2 if static else 1)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("size", [2, 4])
def test_the_tiling_of_the_machine(size: int, dtype: DType, width: int) -> None:
    case = Case(14, 11, 35, 70, dtype=dtype)
    tiling = winograd_tiling(case.conv, machine_of_width(width), size)
    run_compiled(build_winograd("winograd", case.conv, tiling), case.arguments(tiling), width)
    case.check(case.y.flat)


@pytest.mark.parametrize("static", [True, False])
def test_bias_residual_and_activation(static: bool) -> None:
    case = Case(5, 6, 4, 7, images=2, static=static)
    residual = of_images(random.integers(-9, 9, case.expected.shape).astype(np.float32), (0, 0, 0), (0, 0, 0), gap=3)
    bias = random.integers(-99, 99, 7).astype(np.float32)
    layout = Layout(None, 0, residual.strides["row"], residual.strides["pixel"]) if static else Layout()
    operands = ImageOperand("bias", f32, BY_CHANNEL), ImageOperand("residual", f32, layout)
    case.conv = replace(
        case.conv, epilogue=ImageEpilogue(operands, lambda b, x, given: b.max(b.add(b.add(x, given[0]), given[1]), 0))
    )
    extra = {"bias": bias, "residual": residual.flat, **residual.named("residual")}
    expected = np.maximum(case.expected + bias.reshape(1, 7, 1, 1, 1) + residual.images(), 0)
    tiling = WinogradTiling(4, block=2, rows=2, vectors=1, lanes=4)
    index = winograd_arguments(case.conv).index("y")
    for each in run_both(build_winograd("winograd", case.conv, tiling), case.arguments(tiling, extra=extra), 128):
        case.check(each[index], expected)


@pytest.mark.parametrize("parts", [2, 5])
def test_work_can_be_shared_out_anywhere(parts: int) -> None:
    case = Case(4, 6, 2, 10, images=2)
    tiling = WinogradTiling(2, block=3, rows=2, vectors=1, lanes=4)
    names = winograd_arguments(case.conv)
    given = case.arguments(tiling, groups=3, threads=parts)
    units = given[names.index("end")]
    module = build_winograd("winograd", case.conv, tiling)
    for thread in range(parts):
        share = {"begin": thread * units // parts, "end": (thread + 1) * units // parts, "thread": thread}
        run_loops(module, [share.get(name, value) for name, value in zip(names, given, strict=True)])
    case.check(case.y.flat)


@pytest.mark.parametrize(("channels", "size", "images"), [(64, 56, 1), (128, 28, 1), (256, 14, 1), (256, 14, 4)])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_threads_get_equally_much_in_few_groups(channels: int, size: int, images: int, threads: int) -> None:
    conv = Conv(Window.of((3, 3)), channels, channels, f32, 1, 1, size, size)
    for tiling in (winograd_tiling(conv, WIDE, m) for m in (2, 4)):
        groups = winograd_panel_groups(conv, tiling, images, size, size, threads)
        units = winograd_units(conv, tiling, images, size, size, groups)
        assert units % threads == 0 or units >= 4 * threads
        assert groups <= threads


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("size", [2, 4])
def test_blocks_across_images(size: int, static: bool, groups: int) -> None:
    tiling = WinogradTiling(size, block=6, rows=3, vectors=2, lanes=4, across_images=True)
    Case(5, 6, 5, 9, images=3, static=static).run(tiling, groups=groups)


def test_blocks_across_images_are_whole_register_tiles() -> None:
    conv = Conv(Window.of((3, 3)), 256, 256, f32, 1, 1, 8, 8)
    tiling = across_images(conv, WIDE, 2)
    assert tiling.block % tiling.rows == 0
    chosen = choose_running_winograd(conv, WIDE, 32, 8, 8, choose_conv_tiling(conv, WIDE))
    assert chosen == tiling
    assert choose_running_winograd(conv, WIDE, 1, 8, 8, choose_conv_tiling(conv, WIDE)) is None


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 2, 3), (2, 3, 0, 1)])
@pytest.mark.parametrize("size", [2, 4])
def test_filters_are_transformed_in_a_run(size: int, order: tuple[int, ...]) -> None:
    """Whichever way they lie."""
    outputs, channels, tiling = 11, 5, WinogradTiling(size, block=2, rows=2, vectors=2, lanes=4)
    w = random.normal(size=(outputs, channels, 3, 3)).astype(np.float32)
    lying = np.ascontiguousarray(w.transpose(order))
    steps = lying.transpose(np.argsort(order)).strides
    kernel = FilterTransform(f32, size, outputs, channels, 2, 4, tuple(step // 4 for step in steps))  # type: ignore[arg-type]
    expected = transformed_filters(w, Conv(Window.of((3, 3)), channels, outputs, f32), tiling)
    given = [lying.reshape(-1), np.full(kernel.elements, 77, np.float32), 0, kernel.units, 0]
    assert len(given) == len(FILTER_ARGUMENTS)
    for found in run_both(build_filter_transform("filters", kernel), given, 128):
        np.testing.assert_allclose(found[1], expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize(("size", "most"), [(2, 8e-7), (4, 2e-5)])
@pytest.mark.parametrize("seed", [1, 2])
def test_rounding_is_as_stated(size: int, most: float, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "random", np.random.default_rng(seed))
    case = Case(28, 28, 128, 64, normal=True)
    tiling = winograd_tiling(case.conv, machine_of_width(512), size)
    run_compiled(build_winograd("winograd", case.conv, tiling), case.arguments(tiling), 512)
    result = ImageBuffer(case.y.flat, case.y.strides, case.y.shape).images()
    assert np.abs(result - case.expected).max() / np.abs(case.expected).max() < most


def test_large_images_and_many_channels_are_worth_it() -> None:
    conv = Conv(Window.of((3, 3)), 64, 64, f32, rows=56, pixels=56)
    chosen = choose_winograd(conv, WIDE, 56, 56)
    assert chosen is not None
    assert chosen.size == 4
    assert choose_winograd(replace(conv, rows=None, pixels=None), WIDE, 56, 56) is not None
    assert choose_winograd(replace(conv, channels=3), WIDE, 56, 56) is None
    assert choose_winograd(replace(conv, window=Window.of((1, 1))), WIDE, 56, 56) is None
    # The filters of 36 products would be read for a few tiles.
    few = replace(conv, channels=1024, outputs=1024, rows=4, pixels=4)
    assert choose_winograd(few, WIDE, 4, 4) is None


def test_where_it_applies() -> None:
    conv = Conv(Window.of((3, 3)), 8, 8, f32)
    assert winograd_applies(conv)
    assert not winograd_applies(replace(conv, window=Window.of((3, 3), (2, 1))))
    assert not winograd_applies(replace(conv, window=Window.of((3, 3), (), (1, 2))))
    assert not winograd_applies(replace(conv, window=Window.of((3, 1))))
    assert not winograd_applies(replace(conv, dtype=bf16))
    assert not winograd_applies(replace(conv, groups=2))
    assert not winograd_applies(replace(conv, x=Layout(channel=None)))
