"""Pools: interpreted and compiled, against the numpy meaning of ONNX's pools, with padding of every kind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from image_buffers import ImageBuffer, image_buffer, of_images
from loop_running import WIDTHS, run_both, run_compiled

from tilewright.backends.cpu.kernels.depthwise import Blocks
from tilewright.backends.cpu.kernels.image import BY_CHANNEL, ImageEpilogue, ImageOperand, Layout, Window
from tilewright.backends.cpu.kernels.pool import Pool, build_pool, pool_arguments, pool_blocks, pool_units
from tilewright.backends.cpu.machine import machine_of_width
from tilewright.graph.dtypes import DType, bf16, f16, f32, f64, i8, u8
from tilewright.graph.kernel.interpreter import run_loops
from tilewright.graph.ops.convolution import Window as Meaning
from tilewright.graph.ops.pooling_numeric import average_pool, max_pool, number

random = np.random.default_rng(9)

WHOLE = Blocks(1, 1)


class Case:
    """A pool of small integers, and the arguments of its kernel."""

    def __init__(
        self,
        kind: str,
        space: tuple[int, ...],
        channels: int,
        kernel: tuple[int, ...],
        strides: tuple[int, ...] = (),
        dilations: tuple[int, ...] = (),
        before: tuple[int, ...] = (),
        after: tuple[int, ...] = (),
        ceil: bool = False,
        counts: bool = False,
        images: int = 1,
        dtype: DType = f32,
        gap: int = 0,
        static: bool = True,
    ) -> None:
        rank = len(kernel)
        before, after = before or (0,) * rank, after or before or (0,) * rank
        window = Meaning(kernel, strides or (1,) * rank, dilations or (1,) * rank, before, after, "NOTSET", ceil)
        low = 0 if dtype.kind == "uint" else -50
        x = random.integers(low, 50, (images, channels, *space)).astype(dtype.numpy)
        expected = max_pool(x, window, False)[0] if kind == "max" else average_pool(x, window, counts)
        assert list(expected.shape[2:]) == [number(window.positions(axis, size)) for axis, size in enumerate(space)]
        ones = (1,) * (3 - rank)
        self.expected = expected.reshape(*expected.shape[:2], *ones, *expected.shape[2:])
        self.x = of_images(x.reshape(images, channels, *ones, *space), (0, 0, 0), (0, 0, 0), gap=gap)
        self.y = image_buffer(self.expected.shape, dtype.numpy, gap=gap, fill=77)
        planes, rows, pixels = self.expected.shape[2:]
        self.extents = {"images": images, "planes": planes, "rows": rows, "pixels": pixels, "channels": channels}
        for name, size in (("size", (*ones, *space)), ("before", before), ("after", after)):
            full = (0,) * (3 - len(size)) + tuple(size)
            self.extents |= {f"{dim}_{name}": full[axis] for axis, dim in enumerate(("plane", "row", "pixel"))}
        sizes = (planes, rows, pixels) if static else (None, None, None)
        layouts = [self.layout(buffer, static) for buffer in (self.x, self.y)]
        self.pool = Pool(
            kind, Window.of(kernel, strides, dilations), channels if static else None, dtype, counts, *sizes, *layouts
        )

    def layout(self, buffer: ImageBuffer, static: bool) -> Layout:
        steps = buffer.strides
        return Layout(None, steps["plane"], steps["row"], steps["pixel"]) if static else Layout(plane=None)

    def arguments(self, blocks: Blocks = WHOLE, extra: dict[str, Any] | None = None) -> list[Any]:
        units = pool_units(self.extents["images"], self.extents["planes"], blocks)
        known = {
            "x": self.x.flat, "y": self.y.flat, **self.extents, "row_blocks": blocks.rows,
            "channel_blocks": blocks.channels, **self.x.named("x"), **self.y.named("y"), **(extra or {}),
            "begin": 0, "end": units, "thread": 0,
        }  # fmt: skip
        return [known[name] for name in pool_arguments(self.pool)]

    def check(self, flat: np.ndarray, expected: np.ndarray | None = None) -> None:
        """The outputs are right, and nothing between them was written."""
        result = ImageBuffer(flat, self.y.strides, self.y.shape).images()
        wanted = self.expected if expected is None else expected
        if self.pool.kind == "max":
            assert np.array_equal(result, wanted)
        else:
            # The sums are exact, so only the division rounds.
            np.testing.assert_allclose(result.astype(np.float64), wanted.astype(np.float64), rtol=1e-2)
            assert self.pool.dtype.bits < 32 or np.array_equal(result, wanted)
        rest = flat.copy()
        ImageBuffer(rest, self.y.strides, self.y.shape).images()[...] = 77
        assert (rest == 77).all()

    def run(self, width: int = 128) -> None:
        index = pool_arguments(self.pool).index("y")
        module = build_pool("pool", self.pool, machine_of_width(width))
        for each in run_both(module, self.arguments(), width):
            self.check(each[index])


def facts(**given: Any) -> dict[str, Any]:
    return given


CASES = {
    "2x2": facts(space=(4, 6), channels=5, kernel=(2, 2), strides=(2, 2)),
    "3x3 padded": facts(space=(5, 6), channels=9, kernel=(3, 3), strides=(2, 2), before=(1, 1)),
    "uneven padding": facts(space=(5, 6), channels=4, kernel=(3, 2), before=(2, 0), after=(1, 1)),
    "dilated": facts(space=(6, 7), channels=3, kernel=(2, 3), dilations=(3, 2), before=(1, 2)),
    "rounded up": facts(space=(5, 6), channels=3, kernel=(3, 3), strides=(3, 2), before=(1, 1), ceil=True),
    "large": facts(space=(6, 8), channels=21, kernel=(5, 7), before=(2, 3)),
    "line": facts(space=(9,), channels=5, kernel=(4,), strides=(3,), before=(1,), after=(2,)),
    "volume": facts(space=(3, 4, 5), channels=3, kernel=(2, 3, 2), strides=(1, 2, 1), before=(1, 1, 0), images=2),
}


@pytest.mark.parametrize(("kind", "counts"), [("max", False), ("average", False), ("average", True)])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_windows_and_padding(case: dict[str, Any], kind: str, counts: bool) -> None:
    Case(kind, **case, counts=counts, static=not counts, gap=3 if counts else 0).run()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("channels", [1, 16, 37, 150])
def test_any_number_of_channels(channels: int, width: int) -> None:
    for kernel in ((3, 3), (6, 6)):
        case = Case("max", (7, 7), channels, kernel, before=(1, 1), static=channels != 37)
        run_compiled(build_pool("pool", case.pool, machine_of_width(width)), case.arguments(), width)
        case.check(case.y.flat)


@pytest.mark.parametrize("dtype", [i8, u8, f16, bf16, f64], ids=str)
def test_dtypes(dtype: DType) -> None:
    Case("max", (4, 5), 6, (3, 3), before=(1, 1), dtype=dtype).run()
    if dtype.is_float:
        Case("average", (4, 5), 6, (3, 3), before=(1, 1), dtype=dtype).run()


def test_nan_and_infinity() -> None:
    case = Case("max", (4, 5), 6, (3, 3), before=(1, 1))
    case.x.images()[0, :, 0, 1, 1] = np.nan
    case.x.images()[0, :, 0, 3, 4] = np.inf
    window = Meaning((3, 3), (1, 1), (1, 1), (1, 1), (1, 1), "NOTSET", False)
    expected = max_pool(case.x.images()[:, :, 0], window, False)[0][:, :, None]
    index = pool_arguments(case.pool).index("y")
    for each in run_both(build_pool("pool", case.pool, machine_of_width(256)), case.arguments(), 256):
        assert np.array_equal(ImageBuffer(each[index], case.y.strides, case.y.shape).images(), expected, equal_nan=True)


def test_an_epilogue() -> None:
    case = Case("average", (4, 6), 7, (2, 2), strides=(2, 2))
    scale = random.integers(1, 9, 7).astype(np.float32)
    operands = (ImageOperand("scale", f32, BY_CHANNEL),)
    case.pool = replace(case.pool, epilogue=ImageEpilogue(operands, lambda b, x, given: b.max(b.mul(x, given[0]), 0)))
    index = pool_arguments(case.pool).index("y")
    module = build_pool("pool", case.pool, machine_of_width(128))
    for each in run_both(module, case.arguments(extra={"scale": scale}), 128):
        case.check(each[index], np.maximum(case.expected * scale.reshape(1, 7, 1, 1, 1), 0))


@pytest.mark.parametrize("parts", [2, 7])
def test_work_can_be_shared_out_anywhere(parts: int) -> None:
    case = Case("max", (5, 4), 40, (3, 3), before=(1, 1), images=2)
    machine = machine_of_width(128)
    names = pool_arguments(case.pool)
    blocks = pool_blocks(case.pool, machine, 5, 40, threads=parts)
    assert blocks.channels > 1
    given = case.arguments(blocks)
    units = given[names.index("end")]
    module = build_pool("pool", case.pool, machine)
    for thread in range(parts):
        share = {"begin": thread * units // parts, "end": (thread + 1) * units // parts, "thread": thread}
        run_loops(module, [share.get(name, value) for name, value in zip(names, given, strict=True)])
    case.check(case.y.flat)
