"""Operators that read images between their elements, on the target cpu."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright.graph.dtypes import BY_NAME, f32, from_numpy, i64
from tilewright.graph.model_builder import Builder

random = np.random.default_rng(8)
TOLERANCES = {"f64": 1e-12, "f32": 1e-5, "f16": 4e-3, "bf16": 3e-2}


def compare(build: Callable[..., Any], *operands: np.ndarray, dynamic: bool = False) -> None:
    """The model gives what the reference gives in wider floats, the same bits with any number of threads, and runs no
    host step."""
    models = []
    for wide in (False, True):
        b = Builder("sampled")
        given = []
        for i, x in enumerate(operands):
            dtype = from_numpy(x.dtype)
            dims = tuple(f"d{i}_{axis}" for axis in range(x.ndim)) if dynamic else x.shape
            given.append(b.input(f"x{i}", (BY_NAME["f64"] if wide and dtype.is_float else dtype)[dims]))
        b.output(build(b, *given), "y")
        models.append(b.build())
    feeds = {f"x{i}": x for i, x in enumerate(operands)}
    widened = {name: x.astype(np.float64) if from_numpy(x.dtype).is_float else x for name, x in feeds.items()}
    wanted = tilewright.compile(models[1], target="reference").run(widened)["y"]
    first = b""
    for threads in (1, 2, 3, 7):
        executable = tilewright.compile(models[0], target="cpu", threads=threads)
        found = executable.run(feeds)["y"]
        assert executable.report()["host_steps"] == []
        assert found.dtype == operands[0].dtype
        first = first or found.tobytes()
        assert found.tobytes() == first
        tolerance = TOLERANCES[from_numpy(found.dtype).name] * max(1.0, float(np.abs(wanted).max(initial=0)))
        np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=0, atol=tolerance)


# ---- RoiAlign --------------------------------------------------------------------------------------------------------


def regions(count: int, images: int) -> tuple[np.ndarray, np.ndarray]:
    corners = random.random((count, 2)) * 12
    return np.concatenate([corners, corners + random.random((count, 2)) * 9], 1), random.integers(0, images, count)


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16"])
@pytest.mark.parametrize("shape", [(2, 5, 9, 11), (1, 70, 6, 3), (3, 1, 4, 4)])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_roi_align(shape: tuple[int, ...], dtype: str, mode: str) -> None:
    x = random.normal(size=shape).astype(BY_NAME[dtype].numpy)
    boxes, batch = regions(7, shape[0])
    boxes = np.round(boxes * 4) / 4  # numbers that narrow floats hold
    options = {"mode": mode, "output_height": 2, "output_width": 4, "sampling_ratio": 2, "spatial_scale": 0.5}
    compare(lambda b, x, r, i: b.roi_align(x, r, i, **options), x, boxes.astype(x.dtype), batch)


def test_roi_align_of_any_sizes() -> None:
    """Behind a convolution, whose result lies channels last."""
    x, w = random.normal(size=(2, 3, 9, 9)).astype(np.float32), random.normal(size=(20, 3, 3, 3)).astype(np.float32)
    boxes, batch = regions(5, 2)

    def build(b: Builder, x: Any, w: Any, r: Any, i: Any) -> Any:
        return b.roi_align(b.conv(x, w), r, i, output_height=3, output_width=2, sampling_ratio=0)

    compare(build, x, w, boxes.astype(np.float32), batch, dynamic=True)


@pytest.mark.parametrize("images", [1, 0])
@pytest.mark.parametrize("count", [1, 0])
def test_roi_align_of_nothing(images: int, count: int) -> None:
    x = np.zeros((images, 3 if images else 2, 4, 4), np.float32)[:, :, : 4 if images else 0]
    boxes, batch = regions(count if images else 0, 1)
    compare(lambda b, x, r, i: b.roi_align(x, r, i), x, boxes.astype(np.float32), batch)


def aligner(**options: Any) -> tilewright.Executable:
    b = Builder("regions")
    given = b.input("x", f32[1, 8, 16, 16]), b.input("r", f32["n", 4]), b.input("i", i64["n"])
    b.output(b.roi_align(*given, **options), "y")
    return tilewright.compile(b.build(), target="cpu")


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_regions_without_end(mode: str) -> None:
    """They take no longer than others: only samples inside of the image are visited."""
    executable = aligner(output_height=2, output_width=2, sampling_ratio=0, mode=mode)
    ends = np.array([1e4, 1e9, 1e20, 1e30, 3e38, np.inf], np.float32)
    boxes = np.stack([-ends, -ends, ends, ends], 1)
    boxes = np.concatenate([boxes, boxes[:, [2, 3, 0, 1]], np.full((1, 4), np.nan, np.float32)])
    x = np.ones((1, 8, 16, 16), np.float32)
    begin = time.perf_counter()
    found = executable.run({"x": x, "r": boxes, "i": np.zeros(len(boxes), np.int64)})["y"]
    assert time.perf_counter() - begin < 20
    seen = found[np.isfinite(found)]
    assert seen.min() >= 0
    assert seen.max() <= 1


def test_a_large_region_is_its_mean() -> None:
    """The clipped range of samples holds all that count."""
    x = np.ones((1, 8, 16, 16), np.float32)
    executable = aligner(output_height=1, output_width=1, sampling_ratio=0)
    box = np.array([[-40, -24, 40, 40]], np.float32)  # 80 x 64 samples; 18 x 18 of them lie from -1 to 16
    found = executable.run({"x": x, "r": box, "i": np.zeros(1, np.int64)})["y"]
    np.testing.assert_allclose(found, 18 * 18 / (80 * 64), rtol=1e-6)


def test_roi_align_refuses() -> None:
    x, executable = np.ones((1, 8, 16, 16), np.float32), aligner()
    for image in (1, -1, 2**40):
        with pytest.raises(tilewright.TilewrightError, match=f"index {image} is out of range"):
            executable.run({"x": x, "r": np.ones((1, 4), np.float32), "i": np.array([image])})
