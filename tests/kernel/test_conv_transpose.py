"""Transposed convolutions: their phases against the definition, and through the kernel of convolutions."""

from __future__ import annotations

import numpy as np
import pytest
from image_buffers import ImageBuffer, image_buffer, of_images, taps
from loop_running import run_compiled

from tilewright.backends.cpu.kernels.conv import (
    Conv,
    build_conv,
    choose_conv_tiling,
    conv_arguments,
    conv_units,
    packed_filters,
)
from tilewright.backends.cpu.kernels.conv_transpose import phase_filters, transposed_phases
from tilewright.backends.cpu.kernels.image import Layout, Window
from tilewright.backends.cpu.machine import machine_of_width
from tilewright.graph.dtypes import f32
from tilewright.graph.kernel.kernel_base import take
from tilewright.graph.kernel.strided import Strided

random = np.random.default_rng(11)


def transposed(
    x: np.ndarray, w: np.ndarray, window: Window, before: tuple[int, ...], outputs: list[int], groups: int
) -> np.ndarray:
    """Every input adds to every output that it reaches."""
    per_group = w.shape[1]
    y = np.zeros((x.shape[0], groups * per_group, *outputs))
    channels = x.shape[1] // groups
    for group in range(groups):
        those = slice(group * channels, (group + 1) * channels)
        for place in taps(x.shape[2:]):
            for tap in taps(window.kernel):
                target = [
                    i * s - p + t * d
                    for i, s, p, t, d in zip(place, window.strides, before, tap, window.dilations, strict=True)
                ]
                if all(0 <= at < size for at, size in zip(target, outputs, strict=True)):
                    part = x[(slice(None), those, *place)] @ w[(those, slice(None), *tap)]
                    y[(slice(None), slice(group * per_group, (group + 1) * per_group), *target)] += part
    return y


@pytest.mark.parametrize(
    ("kernel", "strides", "dilations", "before", "extra", "groups"),
    [
        ((1, 2, 2), (1, 2, 2), (1, 1, 1), (0, 0, 0), 0, 1),
        ((1, 3, 3), (1, 2, 2), (1, 1, 1), (0, 1, 1), 1, 1),
        ((1, 4, 4), (1, 2, 2), (1, 1, 1), (0, 1, 1), 0, 2),
        ((1, 1, 3), (1, 1, 4), (1, 1, 1), (0, 0, 0), 2, 1),
        ((1, 3, 2), (1, 2, 3), (1, 2, 3), (0, 1, 0), 0, 1),
        ((1, 3, 3), (1, 6, 4), (1, 4, 6), (0, 2, 1), 1, 1),
        ((2, 3, 3), (2, 1, 2), (1, 1, 1), (0, 1, 1), 0, 1),
    ],
)
def test_phases_through_the_kernel(
    kernel: tuple[int, int, int],
    strides: tuple[int, int, int],
    dilations: tuple[int, int, int],
    before: tuple[int, int, int],
    extra: int,
    groups: int,
) -> None:
    window = Window(kernel, strides, dilations)
    size = (2 if kernel[0] > 1 else 1, 3, 4)
    channels, outputs = 3, 5
    x = random.integers(-4, 5, (2, channels * groups, *size)).astype(np.float32)
    w = random.integers(-4, 5, (channels * groups, outputs, *kernel)).astype(np.float32)
    # Of what the definition gives, as much is cut off behind as in front; `extra` is output padding.
    out = [
        (n - 1) * s + (k - 1) * d + 1 - 2 * p + (extra if s > 1 else 0)
        for n, s, k, d, p in zip(size, strides, kernel, dilations, before, strict=True)
    ]
    y = image_buffer((2, outputs * groups, *out), np.float32, fill=77)
    phases = transposed_phases(window, before, out)
    halos = [phase.halo(size) for phase in phases]
    front, behind = ([max(halo[side][dim] for halo in halos) for dim in range(3)] for side in (0, 1))
    source = of_images(x, front, behind)
    machine = machine_of_width(256)
    steps = source.strides
    for phase in phases:
        layouts = [
            Layout(None, *(b.strides[dim] * k for dim, k in zip(("plane", "row", "pixel"), scale, strict=True)))
            for b, scale in ((source, (1, 1, 1)), (y, strides))
        ]
        conv = Conv(phase.window, channels, outputs, f32, groups, *phase.extents, *layouts)
        tiling = choose_conv_tiling(conv, machine)
        start = sum(
            (at + room) * steps[dim]
            for at, room, dim in zip(phase.start, front, ("plane", "row", "pixel"), strict=True)
        )
        filters = take(w.reshape(-1), phase_filters(Strided.contiguous(w.shape), phase, groups))
        filters = filters.reshape(groups * outputs, channels, *phase.window.kernel)
        first = sum(at * y.strides[dim] for at, dim in zip(phase.first, ("plane", "row", "pixel"), strict=True))
        known = {
            "x": source.flat[start:], "w": packed_filters(filters, conv, tiling),
            "y": y.flat[first:], "images": 2, "blocks": 1, "x_image": steps["image"], "y_image": y.strides["image"],
            "begin": 0, "end": conv_units(conv, tiling, 2, phase.extents[0], 1), "thread": 0,
        }  # fmt: skip
        run_compiled(build_conv("conv", conv, tiling), [known[name] for name in conv_arguments(conv)], 256)
    expected = transposed(x.astype(np.float64), w.astype(np.float64), window, before, out, groups)
    assert np.array_equal(ImageBuffer(y.flat, y.strides, y.shape).images(), expected)


def test_every_output_is_in_one_phase() -> None:
    phases = transposed_phases(Window.of((3, 3), (3, 2)), (0, 1, 1), (1, 7, 5))
    assert sum(phase.extents[1] * phase.extents[2] for phase in phases) == 35
    # No more phases than outputs.
    assert len(transposed_phases(Window.of((3,), (8,)), (0, 0, 0), (1, 1, 3))) == 3
