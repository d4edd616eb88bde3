"""MaxRoiPool: the kernel in the interpreter and compiled, against the numpy meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from loop_running import WIDTHS, run_both

import tilewright
from tilewright.backends.cpu.kernels.max_roi_pool import (
    MaxRoiPool,
    build_max_roi_pool,
    max_roi_pool_arguments,
    max_roi_pool_units,
)
from tilewright.backends.cpu.machine import machine_of_width
from tilewright.graph.dtypes import f32
from tilewright.graph.model_builder import Builder

REGIONS = np.array(
    [[0, 0.5, 1, 5, 4], [1, -3, -2, 2.5, 20], [0, 4, 4, 4, 4], [1, 6, 5, 1, 1], [0, 30, 30, 40, 40]], np.float32
)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("channels", [3, 40])
@pytest.mark.parametrize("is_last", [False, True])
def test_both_ways(width: int, channels: int, is_last: bool) -> None:
    x = np.random.default_rng(3).normal(size=(2, channels, 6, 8)).astype(np.float32)
    b = Builder("regions")
    given = b.input("x", f32[x.shape]), b.input("r", f32[REGIONS.shape])
    b.output(b.max_roi_pool(*given, pooled_shape=[2, 3], spatial_scale=0.75), "y")
    wanted = tilewright.compile(b.build(), target="reference").run({"x": x, "r": REGIONS})["y"]
    laid = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1) if is_last else x
    kernel = MaxRoiPool(f32, (None, 1 if is_last else None, None, None), (None,) * 4, (2, 3), 0.75)
    known: dict[str, Any] = dict(zip(("images", "channels", "height", "width"), x.shape, strict=True))
    known |= {"x": (np.moveaxis(laid, 1, -1) if is_last else laid).reshape(-1), "regions": REGIONS.reshape(-1)}
    known |= {"y": np.full(wanted.size, np.nan, np.float32), "fault": np.zeros(2, np.int64)}
    known |= {"begin": 0, "end": max_roi_pool_units(kernel, len(REGIONS)), "thread": 0}
    for name, array in (("x", laid), ("y", wanted)):
        known |= {f"{name}_outer{axis}": stride // 4 for axis, stride in enumerate(array.strides)}
    names = max_roi_pool_arguments(kernel)
    module = build_max_roi_pool("max_roi_pool", kernel, machine_of_width(width))
    for side in run_both(module, [known[name] for name in names], width):
        np.testing.assert_array_equal(side[names.index("y")].reshape(wanted.shape), wanted)
        assert not side[names.index("fault")].any()
