"""Resampling against the numpy meaning of Resize: modes, coordinate systems, both layouts, dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from loop_running import WIDTHS, run_both

from tilewright.backends.cpu.kernels.move import moved_as
from tilewright.backends.cpu.kernels.resample import (
    Resample,
    Taps,
    build_resample,
    resample_arguments,
    resample_buffers,
    resample_units,
    same,
    taps_of,
)
from tilewright.backends.cpu.machine import machine_of_width
from tilewright.graph import opdef, types
from tilewright.graph.core import Operation
from tilewright.graph.dtypes import from_numpy
from tilewright.graph.ops.resize_numeric import matrices, resize

random = np.random.default_rng(17)


def run(x: np.ndarray, rows: Taps, columns: Taps, last: bool, static: bool, width: int) -> np.ndarray:
    """x [n, c, h, w] with h and w resampled; `last` has the channels last in memory."""
    n, c = x.shape[:2]
    shape = (n, c, rows.index.shape[1], columns.index.shape[1])
    copies = rows.copies and columns.copies
    if last:
        memory = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
        x, y = memory, np.zeros((n, *shape[2:], c), x.dtype)
        outer, channels = (n,), c
    else:
        x, y = np.ascontiguousarray(x), np.zeros(shape, x.dtype)
        outer, channels = (n, c), 0
    strides = [tuple(s // a.itemsize for s in a.strides) for a in (x, y)]
    source_columns = x.shape[len(outer) + 1]
    numbers = (outer, shape[2], shape[3], source_columns, channels, *strides)
    given: Any = numbers if static else (
        (None,) * len(outer), None, None, None, None if last else 0,
        *(tuple(1 if s == 1 else None for s in steps) for steps in strides),
    )  # fmt: skip
    kernel = Resample(from_numpy(x.dtype), *given, rows.count, columns.count, copies)
    kind = moved_as(from_numpy(x.dtype)).numpy if copies else x.dtype
    known: dict[str, Any] = {
        "y": y.reshape(-1).view(kind), "x": x.reshape(-1).view(kind), "rows": shape[2], "columns": shape[3],
        "source_columns": source_columns, "channels": channels, "begin": 0, "thread": 0,
        "row_index": rows.index.reshape(-1), "row_weight": rows.weight.reshape(-1),
        "column_index": columns.index.reshape(-1), "column_weight": columns.weight.reshape(-1),
        "scratch": np.zeros(-(-source_columns // 16) * 16, resample_buffers(kernel)["scratch"].numpy),
    }  # fmt: skip
    known |= {f"outer{axis}": size for axis, size in enumerate(outer)}
    for name, steps in zip("xy", strides, strict=True):
        known |= {f"{name}_outer{axis}": stride for axis, stride in enumerate(steps)}
    known["end"] = resample_units(outer, shape[2])
    arguments = [known[name] for name in resample_arguments(kernel)]
    ours, compiled = run_both(build_resample("resample", kernel, machine_of_width(width)), arguments, width)
    assert np.allclose(ours[0], compiled[0], atol=1e-5)
    found = compiled[0].view(x.dtype).reshape(y.shape)
    return found.transpose(0, 3, 1, 2) if last else found


def check(
    x: np.ndarray,
    scales: tuple[float, float],
    last: bool = False,
    static: bool = True,
    width: int = 256,
    **options: Any,
) -> None:
    op = Operation(opdef.lookup("", "Resize"), (), {**options, "axes": (2, 3)}, [types.UNKNOWN])
    factors = np.array(scales, np.float32)
    expected = resize(op, x, None, factors, None)
    found = dict(matrices(op, x.shape, None, factors, None))
    rows, columns = (taps_of(found[axis]) if axis in found else same(x.shape[axis]) for axis in (2, 3))
    tolerance = 1 if x.dtype.kind in "iu" and options["mode"] != "nearest" else 1e-2 if x.dtype.itemsize == 2 else 1e-5
    assert np.allclose(run(x, rows, columns, last, static, width).astype(float), expected.astype(float), atol=tolerance)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("scales", [(2.0, 2.0), (0.6, 1.7), (1.0, 2.5), (1.5, 1.0)])
def test_modes(scales: tuple[float, float], mode: str, last: bool) -> None:
    x = random.normal(size=(2, 5, 6, 9)).astype(np.float32)
    check(x, scales, last, static=scales[0] != 0.6, mode=mode)


@pytest.mark.parametrize("system", ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_coordinate_systems(mode: str, system: str) -> None:
    x = random.normal(size=(1, 3, 7, 11)).astype(np.float32)
    check(x, (1.6, 0.7), mode=mode, coordinate_transformation_mode=system)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float64, np.int64])
@pytest.mark.parametrize("last", [False, True])
def test_dtypes(last: bool, dtype: Any, width: int) -> None:
    x = random.integers(0, 200, (1, 18, 4, 5)).astype(dtype)
    check(x, (2.0, 1.4), last, width=width, mode="nearest")
    check(x, (2.0, 1.4), last, width=width, mode="linear")


def test_taps_of_a_matrix() -> None:
    taps = taps_of(np.array([[0, 1, 0], [0.5, 0, 0.5], [0, 0, 0]], np.float32))
    assert taps.count == 2
    assert taps.index[:, 1].tolist() == [0, 2]
    assert taps.weight.tolist() == [[1, 0.5, 0], [0, 0.5, 0]]
    assert same(3).copies
    assert not taps.copies
