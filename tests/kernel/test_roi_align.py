"""RoiAlign: the kernel in the interpreter and compiled, against the reference implementation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from loop_running import WIDTHS, run_both

import tilewright
from tilewright.backends.cpu.kernels.roi_align import RoiAlign, build_roi_align, roi_align_arguments, roi_align_units
from tilewright.backends.cpu.machine import machine_of_width
from tilewright.graph.dtypes import f32, i64
from tilewright.graph.model_builder import Builder

REGIONS = np.array(
    [[0.5, 1, 5, 4], [-3, -2, 2.5, 20], [4, 4, 4, 4], [6, 5, 1, 1], [30, 30, 40, 40], [0, 0, 8, 6]], np.float32
)
BATCH = np.array([0, 1, 0, 1, 0, 1])


def reference(x: np.ndarray, **options: Any) -> np.ndarray:
    b = Builder("regions")
    given = b.input("x", f32[x.shape]), b.input("r", f32[REGIONS.shape]), b.input("i", i64[BATCH.shape])
    b.output(b.roi_align(*given, **options), "y")
    return tilewright.compile(b.build(), target="reference").run({"x": x, "r": REGIONS, "i": BATCH})["y"]


def run(x: np.ndarray, kernel: RoiAlign, width: int, batch: np.ndarray = BATCH) -> tuple[np.ndarray, np.ndarray]:
    """The result and the fault. x [n, c, h, w] lies channels last if the kernel says so."""
    n, c, h, w = x.shape
    is_last = kernel.x[1] == 1
    flat = np.ascontiguousarray(x.transpose(0, 2, 3, 1) if is_last else x).reshape(-1)
    shape = (len(REGIONS), c, *kernel.bins)
    known: dict[str, Any] = {
        "x": flat, "y": np.full(int(np.prod(shape)), np.nan, np.float32), "regions": REGIONS.reshape(-1),
        "batch": batch, "fault": np.zeros(2, np.int64), "images": n, "channels": c, "height": h, "width": w,
        "begin": 0, "end": roi_align_units(kernel, len(REGIONS)), "thread": 0,
    }  # fmt: skip
    steps = (
        np.array(np.empty(shape, np.int8).strides),
        np.array(np.empty((n, h, w, c) if is_last else x.shape, "i1").strides),
    )
    order = [0, 3, 1, 2] if is_last else [0, 1, 2, 3]
    known |= {f"y_outer{axis}": step for axis, step in enumerate(steps[0].tolist())}
    known |= {f"x_outer{axis}": step for axis, step in enumerate(steps[1][order].tolist())}
    module = build_roi_align("roi_align", kernel, machine_of_width(width))
    names = roi_align_arguments(kernel)
    ours, compiled = run_both(module, [known[name] for name in names], width)
    for name, mine, other in zip(names, ours, compiled, strict=True):
        if isinstance(mine, np.ndarray):
            np.testing.assert_allclose(mine, other, rtol=1e-6, atol=1e-6, err_msg=name)
    return compiled[names.index("y")].reshape(shape), compiled[names.index("fault")]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("samples", [0, 2])
@pytest.mark.parametrize("half", [True, False])
def test_both_ways(width: int, mode: str, samples: int, half: bool) -> None:
    x = np.random.default_rng(3).normal(size=(2, 5, 6, 8)).astype(np.float32)
    wanted = reference(
        x, mode=mode, sampling_ratio=samples, output_height=2, output_width=3, spatial_scale=0.75,
        coordinate_transformation_mode="half_pixel" if half else "output_half_pixel",
    )  # fmt: skip
    for strides in ((None,) * 4, (None, 1, None, None)):
        kernel = RoiAlign(f32, strides, (None,) * 4, (2, 3), samples, 0.75, half, mode == "max")
        found, fault = run(x, kernel, width)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
        assert not fault.any()


def test_blocks_of_channels() -> None:
    x = np.random.default_rng(4).normal(size=(2, 40, 6, 8)).astype(np.float32)
    wanted = reference(x, output_height=1, output_width=2, sampling_ratio=1)
    found, _ = run(x, RoiAlign(f32, (None, 1, None, None), (None,) * 4, (1, 2), 1, 1.0), 128)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_an_image_that_there_is_not() -> None:
    x = np.ones((2, 3, 6, 8), np.float32)
    kernel = RoiAlign(f32, (None,) * 4, (None,) * 4, (1, 1), 1, 1.0)
    found, fault = run(x, kernel, 256, np.array([0, 1, 2, 1, 0, 1]))
    assert fault.tolist() == [1, 2]
    assert found[0, 0, 0, 0] == 1
