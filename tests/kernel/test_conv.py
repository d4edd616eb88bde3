"""Convolution: interpreted and compiled, every kind of window and layout, edges of every tile, shared work."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from image_buffers import ImageBuffer, convolution, image_buffer, of_images
from loop_running import WIDE, WIDTHS, run_both, run_compiled

from tilewright.backends.cpu.kernels.conv import (
    Conv,
    ConvTiling,
    build_conv,
    choose_conv_tiling,
    conv_arguments,
    conv_blocks,
    conv_tilings,
    conv_units,
    packed_filters,
)
from tilewright.backends.cpu.kernels.image import (
    BY_CHANNEL,
    BY_IMAGE_AND_CHANNEL,
    ImageEpilogue,
    ImageOperand,
    Layout,
    Window,
)
from tilewright.backends.cpu.machine import machine_of_width
from tilewright.graph.dtypes import DType, bf16, f16, f32, f64
from tilewright.graph.kernel.interpreter import run_loops

random = np.random.default_rng(7)

TINY = ConvTiling(rows=1, pixels=3, vectors=2, lanes=4)


class Case:
    """A convolution of small integers, whose sums are exact in any order, and the arguments of its kernel."""

    def __init__(
        self,
        space: tuple[int, ...],
        channels: int,
        outputs: int,
        kernel: tuple[int, ...],
        strides: tuple[int, ...] = (),
        dilations: tuple[int, ...] = (),
        pads: int = 0,
        groups: int = 1,
        images: int = 1,
        dtype: DType = f32,
        planar: bool = False,
        gap: int = 0,
        static: bool = True,
        epilogue: ImageEpilogue | None = None,
    ) -> None:
        self.window = Window.of(kernel, strides, dilations)
        space = (1,) * (3 - len(space)) + space
        x = random.integers(-3, 4, (images, channels * groups, *space)).astype(dtype.numpy)
        self.w = random.integers(-3, 4, (outputs * groups, channels, *self.window.kernel)).astype(dtype.numpy)
        pad = tuple(pads if taps > 1 else 0 for taps in self.window.kernel)
        exact = x.astype(np.float64), self.w.astype(np.float64)
        self.expected = convolution(*exact, self.window.strides, self.window.dilations, pad, pad, groups)
        self.x = of_images(x, pad, pad, gap=gap, planar=planar)
        self.y = image_buffer(self.expected.shape, dtype.numpy, gap=gap, fill=77)
        self.images = images
        planes, rows, pixels = self.expected.shape[2:]
        self.extents = {"images": images, "planes": planes, "rows": rows, "pixels": pixels}
        layouts = [self.layout(buffer, static) for buffer in (self.x, self.y)]
        self.conv = Conv(
            self.window, channels, outputs, dtype, groups, *((planes, rows, pixels) if static else (None, None, None)),
            *layouts, epilogue or ImageEpilogue(),
        )  # fmt: skip

    def layout(self, buffer: ImageBuffer, static: bool) -> Layout:
        steps = buffer.strides
        if static:
            return Layout(None, steps["plane"], steps["row"], steps["pixel"], steps["channel"])
        return Layout(None, None, None, None, 1 if steps["channel"] == 1 else None)

    def arguments(self, tiling: ConvTiling, blocks: int = 1, extra: dict[str, Any] | None = None) -> list[Any]:
        known = {
            "x": self.x.flat, "w": packed_filters(self.w, self.conv, tiling), "y": self.y.flat, **self.extents,
            "blocks": blocks, **self.x.named("x"), **self.y.named("y"), **(extra or {}),
            "begin": 0, "end": conv_units(self.conv, tiling, self.images, self.extents["planes"], blocks), "thread": 0,
        }  # fmt: skip
        return [known[name] for name in conv_arguments(self.conv)]

    def check(self, flat: np.ndarray, expected: np.ndarray | None = None) -> None:
        """The outputs are right, and nothing between them was written."""
        result = ImageBuffer(flat, self.y.strides, self.y.shape)
        wanted = self.expected if expected is None else expected
        assert np.array_equal(result.images().astype(np.float64), wanted)
        rest = flat.copy()
        ImageBuffer(rest, self.y.strides, self.y.shape).images()[...] = 77
        assert (rest == 77).all()

    def run(self, tiling: ConvTiling, width: int = 128, blocks: int = 1) -> None:
        given = self.arguments(tiling, blocks)
        index = conv_arguments(self.conv).index("y")
        for each in run_both(build_conv("conv", self.conv, tiling), given, width):
            self.check(each[index])


def facts(**given: Any) -> dict[str, Any]:
    return given


CASES = {
    "1x1": facts(space=(3, 5), channels=5, outputs=9, kernel=(1, 1)),
    "1x1 with strides": facts(space=(5, 7), channels=3, outputs=8, kernel=(1, 1), strides=(2, 3)),
    "3x3": facts(space=(4, 5), channels=5, outputs=9, kernel=(3, 3), pads=1),
    "3x3 with strides": facts(space=(5, 6), channels=3, outputs=6, kernel=(3, 3), strides=(2, 2), pads=1),
    "3x3 dilated": facts(space=(6, 7), channels=2, outputs=4, kernel=(3, 3), dilations=(2, 3), pads=3),
    "3x2 uneven": facts(space=(5, 6), channels=3, outputs=5, kernel=(3, 2), strides=(1, 2), dilations=(1, 2), pads=1),
    "groups": facts(space=(4, 4), channels=3, outputs=5, kernel=(3, 3), pads=1, groups=3, images=2),
    "line": facts(space=(11,), channels=3, outputs=5, kernel=(4,), strides=(2,), pads=2),
    "volume": facts(space=(3, 4, 4), channels=2, outputs=5, kernel=(2, 3, 3), strides=(1, 2, 1), pads=1, images=2),
    "volume dilated": facts(space=(5, 3, 4), channels=2, outputs=3, kernel=(3, 1, 2), dilations=(2, 1, 1), pads=1),
}  # fmt: skip


@pytest.mark.parametrize(("layout", "static"), [("contiguous", True), ("gaps", False), ("planar", True)])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_windows_and_layouts(case: dict[str, Any], layout: str, static: bool) -> None:
    gap = 2 if layout == "gaps" else 0
    Case(**case, gap=gap, planar=layout == "planar", static=static).run(TINY)


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("planar", [False, True])
def test_input_channels_in_parts(parts: int, planar: bool) -> None:
    case = Case((4, 5), 7, 9, (3, 3), pads=1, planar=planar)
    case.run(replace(TINY, parts=parts))


@pytest.mark.parametrize("groups", [1, 2])
def test_panels_outside(groups: int) -> None:
    case = Case((3, 4), 3, 19, (3, 3), pads=1, images=3, groups=groups)
    case.run(replace(TINY, panels_outside=True), blocks=2)


@pytest.mark.parametrize("rows", [2, 3])
@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_tiles_of_several_rows(rows: int, blocks: int) -> None:
    case = Case((7, 3), 2, 5, (3, 3), pads=1)
    case.run(replace(TINY, rows=rows, vectors=1), blocks=blocks)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("outputs", [3, 70])
def test_every_tiling_of_the_machine(dtype: DType, width: int, outputs: int) -> None:
    machine = machine_of_width(width)
    for pixels in (1, 7):
        case = Case((3, pixels), 4, outputs, (3, 3), pads=1, dtype=dtype)
        chosen = choose_conv_tiling(case.conv, machine)
        tilings = conv_tilings(case.conv, machine)
        assert chosen in tilings
        for tiling in tilings if pixels == 7 else [chosen]:
            given = case.arguments(tiling)
            run_compiled(build_conv("conv", case.conv, tiling), given, width)
            case.check(case.y.flat)


@pytest.mark.parametrize("pixels", [1, 13, 29])
def test_any_width_without_compiling_again(pixels: int) -> None:
    case = Case((2, pixels), 3, 20, (3, 3), pads=1, static=False)
    tiling = choose_conv_tiling(case.conv, machine_of_width(512))
    run_compiled(build_conv("conv", case.conv, tiling), case.arguments(tiling), 512)
    case.check(case.y.flat)


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_narrow_floats_are_summed_up_in_f32(dtype: DType) -> None:
    case = Case((4, 5), 3, 6, (3, 3), pads=1, dtype=dtype)
    case.run(TINY)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("groups", "channels", "outputs"), [(8, 2, 2), (8, 1, 2), (8, 4, 4), (16, 1, 4), (4, 3, 2)])
def test_small_groups_share_vectors(groups: int, channels: int, outputs: int, width: int) -> None:
    case = Case((3, 5), channels, outputs, (3, 2), strides=(1, 2), pads=1, groups=groups, images=2)
    machine = machine_of_width(width)
    tiling = choose_conv_tiling(case.conv, machine)
    lanes = machine.lanes(f32)
    count = lanes // outputs
    assert tiling.together == (count if count > 2 and groups % count == 0 and count * channels <= lanes else 1)
    case.run(tiling, width, blocks=2)


def test_a_long_filter_bank_is_cut_into_parts() -> None:
    conv = Conv(Window.of((3, 3)), 4096, 512, f32, rows=7, pixels=7)
    tiling = choose_conv_tiling(conv, WIDE)
    assert tiling.parts * WIDE.l2 * 2 // 3 >= conv.depth * tiling.columns * 4
    assert choose_conv_tiling(replace(conv, dtype=bf16), WIDE).parts == 1


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("width", WIDTHS)
def test_bias_residual_scale_and_activation(width: int, static: bool) -> None:
    case = Case((3, 5), 3, 13, (3, 3), pads=1, images=2, static=static)
    residual = of_images(random.integers(-9, 9, case.expected.shape).astype(np.float32), (0, 0, 0), (0, 0, 0), gap=3)
    bias = random.integers(-9, 9, 13).astype(np.float32)
    scale = random.integers(1, 3, (2, 13)).astype(np.float32)
    operands = (
        ImageOperand("bias", f32, BY_CHANNEL), ImageOperand("residual", f32, case.layout(residual, static)),
        ImageOperand("scale", f32, BY_IMAGE_AND_CHANNEL),
    )  # fmt: skip

    def body(b: Any, total: Any, given: Any) -> Any:
        return b.max(b.fma(b.add(total, given[0]), given[2], given[1]), 0)

    case.conv = replace(case.conv, epilogue=ImageEpilogue(operands, body))
    tiling = ConvTiling(rows=2, pixels=3, vectors=1, lanes=width // 32, parts=2)
    extra = {
        "bias": bias, "residual": residual.flat, "scale": scale.reshape(-1), **residual.named("residual"),
        "scale_image": 13,
    }  # fmt: skip
    shape = (1, 13, 1, 1, 1)
    total = (case.expected + bias.reshape(shape)) * scale.reshape(2, 13, 1, 1, 1) + residual.images()
    index = conv_arguments(case.conv).index("y")
    for each in run_both(build_conv("conv", case.conv, tiling), case.arguments(tiling, 1, extra), width):
        case.check(each[index], np.maximum(total, 0))


@pytest.mark.parametrize(("size", "blocks"), [(7, 1), (14, 2)])
def test_threads_have_rows_of_their_own_if_there_are_many(size: int, blocks: int) -> None:
    conv = Conv(Window.of((1, 1)), 1024, 256, f32, rows=size, pixels=size)
    tiling = choose_conv_tiling(conv, WIDE)
    assert [conv_blocks(conv, tiling, WIDE, size, size, threads) for threads in (1, 2)] == [1, blocks]


@pytest.mark.parametrize("parts", [2, 3, 7])
def test_work_can_be_shared_out_anywhere(parts: int) -> None:
    case = Case((2, 4, 4), 1, 5, (1, 3, 1), pads=1, groups=2, images=2)
    names = conv_arguments(case.conv)
    module = build_conv("conv", case.conv, TINY)
    blocks = conv_blocks(case.conv, TINY, WIDE, case.extents["rows"], case.extents["pixels"], parts)
    given = case.arguments(TINY, blocks)
    units = given[names.index("end")]
    for thread in range(parts):
        share = {"begin": thread * units // parts, "end": (thread + 1) * units // parts, "thread": thread}
        run_loops(module, [share.get(name, value) for name, value in zip(names, given, strict=True)])
    case.check(case.y.flat)
