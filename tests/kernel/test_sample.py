"""Images read at computed places: the kernel in the interpreter and compiled, against the numpy meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from loop_running import WIDTHS, run_both

from tilewright.backends.cpu.kernels.sample import Sample, build_sample, sample_arguments, sample_units
from tilewright.backends.cpu.machine import machine_of_width
from tilewright.graph.dtypes import f32
from tilewright.graph.ops.grid_sample_numeric import sample, scaled

random = np.random.default_rng(11)


def strides(array: np.ndarray) -> list[int]:
    return [stride // array.itemsize for stride in array.strides]


def check(
    x: np.ndarray, places: list[np.ndarray], width: int, factor: np.ndarray | None = None, **options: Any
) -> None:
    by_channel = bool(options.get("by_channel"))
    corners, normalized = bool(options.get("align_corners")), bool(options.get("normalized"))
    mode, padding = options.get("mode", "linear"), options.get("padding", "zeros")
    rank = len(places)
    moved = [scaled(p, n, corners) for p, n in zip(places, x.shape[2:], strict=True)] if normalized else places
    wanted = sample(x, moved, mode, padding, corners)
    wanted = wanted if factor is None else wanted * factor[:, None]
    lines = tuple((None,) * places[0].ndim for _ in places)
    sides = (None, 1, *(None,) * rank) if by_channel else (None,) * (rank + 2)
    targets = (None, 1, *(None,) * (places[0].ndim - 1)) if by_channel else (None,) * (places[0].ndim + 1)
    kernel = Sample(f32, f32, sides, targets, lines, None if factor is None else lines[0], **options)
    views = {"x": x, "y": np.full(wanted.shape, np.nan, np.float32)} | {f"place{i}": p for i, p in enumerate(places)}
    if factor is not None:
        views["factor"] = factor
    known: dict[str, Any] = {"images": x.shape[0], "channels": x.shape[1], "begin": 0, "thread": 0}
    known |= {f"size{axis}": size for axis, size in enumerate(x.shape[2:])}
    known |= {f"outer{axis}": size for axis, size in enumerate(wanted.shape[2:])}
    known["end"] = sample_units(x.shape[0], *wanted.shape[2:])
    for name, array in views.items():
        if by_channel and name in "xy":
            array = np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)
        known[name] = np.moveaxis(array, 1, -1).reshape(-1) if by_channel and name in "xy" else array.reshape(-1)
        known |= {f"{name}_outer{axis}": stride for axis, stride in enumerate(strides(array))}
    names = sample_arguments(kernel)
    module = build_sample("sample", kernel, machine_of_width(width))
    for side in run_both(module, [known[name] for name in names], width):
        found = side[names.index("y")]
        if by_channel:
            found = np.moveaxis(found.reshape(wanted.shape[0], *wanted.shape[2:], wanted.shape[1]), -1, 1)
        np.testing.assert_allclose(found.reshape(wanted.shape), wanted, rtol=1e-5, atol=1e-5)


def operands(channels: int, *sizes: int, places: tuple[int, ...]) -> tuple[np.ndarray, list[np.ndarray]]:
    """An image, and places among its elements, some of them outside."""
    x = random.normal(size=(2, channels, *sizes)).astype(np.float32)
    return x, [(random.uniform(-2.5, size + 1.5, (2, *places))).astype(np.float32) for size in sizes]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_modes(width: int, by_channel: bool, mode: str) -> None:
    x, places = operands(5, 4, 6, places=(2, 9))
    factor = random.random(places[0].shape).astype(np.float32)
    check(x, places, width, factor, mode=mode, by_channel=by_channel)


@pytest.mark.parametrize("padding", ["border", "reflection"])
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("sizes", [(4, 6), (1, 3), (7,), (2, 3, 4)])
def test_borders(padding: str, corners: bool, sizes: tuple[int, ...]) -> None:
    x, places = operands(3, *sizes, places=(13,))
    check(x, places, 256, padding=padding, align_corners=corners)


@pytest.mark.parametrize("corners", [False, True])
def test_normalized(corners: bool) -> None:
    x = random.normal(size=(2, 70, 5, 4)).astype(np.float32)
    places = [random.uniform(-1.3, 1.3, (2, 3, 2)).astype(np.float32) for _ in range(2)]
    check(x, places, 512, normalized=True, align_corners=corners, by_channel=True)


def test_places_that_are_no_numbers() -> None:
    x, _ = operands(3, 4, 4, places=(1,))
    strange = np.array([[np.nan, np.inf, -np.inf, 3e38, -3e38, 1e10], [0] * 6], np.float32)
    for mode in ("nearest", "linear"):
        with np.errstate(invalid="ignore"):
            check(x, [strange, np.ones((2, 6), np.float32)], 256, mode=mode)
