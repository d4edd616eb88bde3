"""Max pools that give places, and their adjoint: interpreted and compiled; windows, edges, ties and NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from image_buffers import ImageBuffer, extents, image_buffer, of_images, seen, taps
from loop_running import WIDTHS, run_both, run_compiled

from tilewright.backends.cpu.kernels.image import Layout, Window
from tilewright.backends.cpu.kernels.max_pool import MaxPool, build_max_pool, max_pool_arguments, max_pool_units
from tilewright.backends.cpu.machine import machine_of_width
from tilewright.graph.dtypes import DType, f32, f64

random = np.random.default_rng(11)


class Case:
    """A pool of numbers with many ties, what it gives, and the arguments of both kernels."""

    def __init__(
        self,
        space: tuple[int, ...],
        kernel: tuple[int, ...],
        strides: tuple[int, ...] = (),
        dilations: tuple[int, ...] = (),
        pads: int = 0,
        channels: int = 6,
        dtype: DType = f32,
        static: bool = True,
        nan: bool = False,
    ) -> None:
        window = Window.of(kernel, strides, dilations)
        space = (1,) * (3 - len(space)) + space
        pad = tuple(pads if size > 1 else 0 for size in window.kernel)
        x = random.integers(-2, 3, (2, channels, *space)).astype(dtype.numpy)
        if nan:
            x[random.random(x.shape) < 0.1] = np.nan
        self.out = extents([n + 2 * p for n, p in zip(space, pad, strict=True)], window.kernel, window.strides,
                           window.dilations)  # fmt: skip
        wide = [(0, 0), (0, 0), *((n, n) for n in pad)]
        sides = np.pad(x, wide, constant_values=-np.inf), np.pad(np.arange(x.size).reshape(x.shape), wide)
        stacks = [
            np.stack([seen(side, tap, window.strides, window.dilations, self.out) for tap in taps(window.kernel)])
            for side in sides
        ]
        chosen = stacks[0].argmax(0)[None]
        self.expected, self.places = (np.take_along_axis(stack, chosen, 0)[0] for stack in stacks)
        self.grad = random.integers(-3, 4, self.places.shape).astype(dtype.numpy)
        self.adjoint = np.zeros(x.size)
        np.add.at(self.adjoint, self.places.reshape(-1), self.grad.reshape(-1))
        self.x, self.space, self.static = x, space, static
        self.kernel = (window, dtype, pad)

    def planned(self, is_adjoint: bool, width: int) -> tuple[Any, list[Any], list[str], dict[str, ImageBuffer]]:
        x, out, zero = self.x, self.out, (0, 0, 0)
        dtype = self.kernel[1].numpy
        if is_adjoint:
            sides = {"x": image_buffer(x.shape, dtype, gap=1, fill=77), "y": of_images(self.grad, zero, zero, gap=2)}
            sides["places"] = of_images(self.places, zero, zero)
        else:
            sides = {"x": of_images(x, zero, zero, gap=1), "y": image_buffer(self.places.shape, dtype, gap=2, fill=77)}
            sides["places"] = image_buffer(self.places.shape, np.int64, fill=77)
        layouts = [
            Layout(None, s["plane"], s["row"], s["pixel"], 1) if self.static else Layout(None, None, None, None)
            for s in (buffer.strides for buffer in sides.values())
        ]
        sizes = (x.shape[1], *out) if self.static else (None,) * 4
        kernel = MaxPool(*self.kernel, *sizes, *layouts, is_adjoint)
        known: dict[str, Any] = {"images": 2, "channels": x.shape[1], "begin": 0, "thread": 0}
        known |= dict(zip(("planes", "rows", "pixels"), out, strict=True))
        known |= dict(zip(("x_planes", "x_rows", "x_pixels"), self.space, strict=True))
        known["end"] = max_pool_units(2, *(self.space if is_adjoint else out)[:2])
        for name, buffer in sides.items():
            known |= {name: buffer.flat, **buffer.named(name)}
        names = max_pool_arguments(kernel)
        module = build_max_pool("pool", kernel, machine_of_width(width))
        return module, [known[name] for name in names], names, sides

    def check(self, width: int = 128, both: bool = True) -> None:
        for is_adjoint in (False, True):
            module, given, names, sides = self.planned(is_adjoint, width)
            if not both:
                run_compiled(module, given, width)
            for found in run_both(module, given, width) if both else [given]:
                images = {
                    name: ImageBuffer(found[names.index(name)], side.strides, side.shape).images()
                    for name, side in sides.items()
                }
                if is_adjoint:
                    np.testing.assert_array_equal(images["x"], self.adjoint.reshape(self.x.shape))
                else:
                    np.testing.assert_array_equal(images["y"], self.expected)
                    np.testing.assert_array_equal(images["places"], self.places)


CASES: dict[str, dict[str, Any]] = {
    "2x2": {"space": (4, 6), "kernel": (2, 2), "strides": (2, 2)},
    "3x3 padded": {"space": (5, 7), "kernel": (3, 3), "strides": (2, 2), "pads": 1},
    "overlapping": {"space": (5, 4), "kernel": (3, 2), "pads": 1},
    "dilated": {"space": (7, 9), "kernel": (2, 3), "strides": (1, 2), "dilations": (3, 2), "pads": 1},
    "gaps": {"space": (7, 7), "kernel": (2, 2), "strides": (3, 3)},
    "line": {"space": (11,), "kernel": (3,), "strides": (2,), "pads": 1},
    "volume": {"space": (3, 4, 5), "kernel": (2, 2, 3), "strides": (1, 2, 2), "pads": 1},
}


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_windows(case: dict[str, Any], static: bool) -> None:
    Case(**case, static=static).check()


def test_nan_is_greatest() -> None:
    Case((5, 7), (3, 3), (2, 2), pads=1, nan=True).check()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("channels", [1, 32, 37])
def test_widths(width: int, dtype: DType, channels: int) -> None:
    Case((6, 5), (3, 3), (2, 2), pads=1, channels=channels, dtype=dtype).check(width, both=False)
