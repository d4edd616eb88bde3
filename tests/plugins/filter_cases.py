"""Adjoints of filters for tests of their kernels: operands, and what is right by numpy."""

from __future__ import annotations

import numpy as np
from image_buffers import extents, of_images, seen, taps

from tilewright.backends.cpu.kernels.conv_weight import ConvWeight
from tilewright.backends.cpu.kernels.image import Layout, Window
from tilewright.graph.dtypes import DType, f32

random = np.random.default_rng(5)


class FilterCase:
    """An adjoint of small integers, whose sums are exact in any order."""

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
        gap: int = 0,
        static: bool = True,
    ) -> None:
        window = Window.of(kernel, strides, dilations)
        space = (1,) * (3 - len(space)) + space
        pad = tuple(pads if size > 1 else 0 for size in window.kernel)
        x = random.integers(-3, 4, (images, channels * groups, *space)).astype(dtype.numpy)
        padded = np.pad(x, [(0, 0), (0, 0), *((n, n) for n in pad)])
        out = extents(padded.shape[2:], window.kernel, window.strides, window.dilations)
        grad = random.integers(-3, 4, (images, outputs * groups, *out)).astype(dtype.numpy)
        self.expected = np.zeros((groups, outputs, channels, *window.kernel))
        for tap in taps(window.kernel):
            part = seen(padded, tap, window.strides, window.dilations, out).astype(np.float64)
            sides = [a.reshape(images, groups, -1, *out) for a in (grad.astype(np.float64), part)]
            self.expected[(..., *tap)] = np.einsum("ngodhw,ngcdhw->goc", *sides)
        self.x, self.grad = of_images(x, (0, 0, 0), (0, 0, 0), gap=gap), of_images(grad, (0, 0, 0), (0, 0, 0), gap=gap)
        self.images, self.out, self.space = images, out, space
        layouts = [
            Layout(None, steps["plane"], steps["row"], steps["pixel"], 1) if static else Layout(None, None, None, None)
            for steps in (self.x.strides, self.grad.strides)
        ]
        self.kernel = ConvWeight(
            window, channels, outputs, dtype, pad, groups, *(out if static else (None, None, None)), *layouts
        )  # fmt: skip
