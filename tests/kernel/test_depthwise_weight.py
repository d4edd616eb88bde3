"""The adjoint of depthwise filters: interpreted and compiled, every kind of window, edges of vectors, parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from filter_cases import FilterCase
from loop_running import WIDTHS, run_both, run_compiled

from tilewright.backends.cpu.kernels.depthwise_weight import (
    DepthwiseWeightTiling,
    build_depthwise_weight,
    depthwise_weight_arguments,
    depthwise_weight_scratch,
    depthwise_weight_tiling,
    depthwise_weight_units,
)
from tilewright.backends.cpu.machine import machine_of_width
from tilewright.graph.dtypes import DType, f32, f64

TINY = DepthwiseWeightTiling(lanes=4, vectors=2, parts=1)


def arguments(case: FilterCase, tiling: DepthwiseWeightTiling) -> list[Any]:
    dtype = case.kernel.dtype.numpy
    known = {
        "x": case.x.flat, "grad": case.grad.flat, "w": np.full(tiling.parts * case.expected.size, 77, dtype),
        "images": case.images, "scratch": np.full(depthwise_weight_scratch(case.kernel, tiling), np.nan, dtype),
        **dict(zip(("planes", "rows", "pixels"), case.out, strict=True)),
        **dict(zip(("x_planes", "x_rows", "x_pixels"), case.space, strict=True)),
        **case.x.named("x"), **case.grad.named("grad"),
        "begin": 0, "end": depthwise_weight_units(case.kernel, tiling), "thread": 0,
    }  # fmt: skip
    return [known[name] for name in depthwise_weight_arguments(case.kernel)]


def check(case: FilterCase, tiling: DepthwiseWeightTiling, width: int = 128, both: bool = True) -> None:
    module, given = build_depthwise_weight("weight", case.kernel, tiling), arguments(case, tiling)
    if not both:
        run_compiled(module, given, width)
    for each in run_both(module, given, width) if both else [given]:
        found = each[depthwise_weight_arguments(case.kernel).index("w")].astype(np.float64)
        np.testing.assert_array_equal(found.reshape(tiling.parts, *case.expected.shape).sum(0), case.expected)


WINDOWS: dict[str, dict[str, Any]] = {
    "3x3": {"space": (4, 5), "kernel": (3, 3), "pads": 1},
    "with strides": {"space": (5, 6), "kernel": (3, 2), "strides": (2, 2), "pads": 1},
    "dilated": {"space": (6, 7), "kernel": (3, 3), "dilations": (2, 3), "pads": 3},
    "wider than the image": {"space": (3, 2), "kernel": (3, 5), "pads": 2},
    "line": {"space": (9,), "kernel": (4,), "strides": (2,), "pads": 2},
    "volume": {"space": (3, 4, 4), "kernel": (2, 3, 3), "strides": (1, 2, 1), "pads": 1},
}


@pytest.mark.parametrize("together", [1, 2, 3])
@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS.keys())
def test_windows(window: dict[str, Any], static: bool, together: int) -> None:
    """With one row of the window, or several at once where all of them lie inside."""
    case = FilterCase(channels=1, outputs=1, groups=11, images=2, gap=0 if static else 2, static=static, **window)
    check(case, replace(TINY, together=together))


@pytest.mark.parametrize("parts", [2, 5])
def test_parts_of_the_places(parts: int) -> None:
    check(FilterCase((2, 3), 1, 1, (3, 3), pads=1, groups=8, images=2), DepthwiseWeightTiling(4, 1, parts))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("channels", [3, 64, 149])
def test_the_chosen_tiling(width: int, dtype: DType, channels: int) -> None:
    case = FilterCase((6, 12), 1, 1, (3, 3), pads=1, dtype=dtype, groups=channels, images=2)
    tiling = depthwise_weight_tiling(case.kernel, machine_of_width(width), 144, 16)
    assert tiling.together == 3
    check(case, tiling, width, both=False)
