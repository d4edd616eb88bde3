"""Borders of images: interpreted and compiled, zeros and other numbers, planes and rows, work shared out anywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from loop_running import WIDTHS, run_both, run_compiled

from tilewright.backends.cpu.kernels.border import Border, border_arguments, build_border
from tilewright.backends.cpu.machine import machine_of_width
from tilewright.graph.dtypes import f32, from_numpy, u8

# Images, then for planes, rows and pixels: before, own, after; channels.
CASES = [
    (1, (0, 1, 0), (1, 3, 2), (1, 5, 1), 7),
    (2, (1, 2, 1), (0, 3, 1), (2, 4, 0), 3),
    (3, (0, 1, 0), (0, 1, 0), (1, 30, 1), 1),
    (1, (0, 1, 0), (2, 2, 2), (0, 4, 3), 40),
]


def planned(case: Any, kernel: Border, image: np.ndarray, fill: np.ndarray, width: int) -> tuple[Any, list[Any]]:
    _, planes, rows, pixels, channels = case
    given: dict[str, Any] = {
        "y": image.reshape(-1), "x": fill, "rows": sum(rows), "first_row": rows[0], "own_rows": rows[1],
        "planes": sum(planes), "first_plane": planes[0], "own_planes": planes[1], "line": sum(pixels) * channels,
        "left": pixels[0] * channels, "right": pixels[2] * channels, "begin": 0, "thread": 0,
        "end": image.size // (sum(pixels) * channels),
    }  # fmt: skip
    return build_border("border", kernel, machine_of_width(width)), [given[n] for n in border_arguments(kernel)]


def image_and_border(case: Any, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Images full of numbers, and which of these are border."""
    images, *dims, channels = case
    shape = (images, *(sum(sides) for sides in dims), channels)
    border = np.ones(shape, bool)
    border[(slice(None), *(slice(before, before + own) for before, own, _ in dims))] = False
    return np.random.default_rng(5).integers(1, 100, shape).astype(dtype), border


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize(("dtype", "fills"), [(np.float32, False), (np.uint8, True), (np.float32, True)])
def test_only_the_border_is_filled(dtype: Any, fills: bool, case: Any, width: int) -> None:
    image, border = image_and_border(case, dtype)
    fill = np.array([200], dtype)
    kernel = Border(from_numpy(image.dtype), fills)
    bits = {1: np.uint8, 4: np.uint32}[image.itemsize]
    module, given = planned(case, kernel, image.view(bits), fill.view(bits), width)
    for side in run_both(module, given, width):
        found = side[0].view(dtype).reshape(image.shape)
        assert (found[border] == (200 if fills else 0)).all()
        assert np.array_equal(found[~border], image[~border])


def test_work_can_be_shared_out_anywhere() -> None:
    image, border = image_and_border(CASES[1], np.float32)
    module, given = planned(CASES[1], Border(f32), image.view(np.uint32), np.zeros(1, np.uint32), 256)
    lines = given[-2]
    for begin, end in ((0, 5), (5, 6), (6, lines)):
        run_compiled(module, [*given[:-3], begin, end, 1], 256)
    assert not image[border].any()
    assert image[~border].all()


def test_arguments_name_what_fills() -> None:
    assert "x" in border_arguments(Border(u8, True))
    assert "x" not in border_arguments(Border(u8))
