"""The adjoint of filters: interpreted and compiled, every kind of window, edges of tiles, parts, shared work."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from filter_cases import FilterCase
from loop_running import WIDTHS, run_both, run_compiled

from tilewright.backends.cpu.kernels.conv_weight import (
    WeightTiling,
    blocks_of,
    build_conv_weight,
    choose_weight_tiling,
    weight_arguments,
    weight_scratch,
    weight_units,
)
from tilewright.backends.cpu.machine import machine_of_width
from tilewright.graph.dtypes import DType, f32, f64

TINY = WeightTiling(rows=3, taps=1, vectors=2, lanes=4, tiles=2, panels=1)


class Case(FilterCase):
    """The arguments of the kernel."""

    def arguments(self, tiling: WeightTiling, **given: Any) -> list[Any]:
        dtype = self.kernel.dtype.numpy
        w = np.full((tiling.parts, self.expected.size), 77, dtype)
        blocks = blocks_of(self.out[2])
        known = {
            "x": self.x.flat, "grad": self.grad.flat, "w": w.reshape(-1), "images": self.images,
            "scratch": np.full(3 * weight_scratch(self.kernel, tiling, self.out[2]), np.nan, dtype),
            "room": weight_scratch(self.kernel, tiling, self.out[2]),
            **dict(zip(("planes", "rows", "pixels"), self.out, strict=True)),
            **dict(zip(("x_planes", "x_rows", "x_pixels"), self.space, strict=True)),
            "across": blocks.across, "down": blocks.down, **self.x.named("x"), **self.grad.named("grad"),
            "begin": 0, "end": weight_units(self.kernel, tiling), "thread": 0, **given,
        }  # fmt: skip
        return [known[name] for name in weight_arguments(self.kernel)]

    def check(self, w: np.ndarray, tiling: WeightTiling) -> None:
        found = w.astype(np.float64).reshape(tiling.parts, *self.expected.shape).sum(0)
        np.testing.assert_array_equal(found, self.expected)

    def run(self, tiling: WeightTiling, width: int = 128) -> None:
        module = build_conv_weight("weight", self.kernel, tiling, machine_of_width(width))
        for each in run_both(module, self.arguments(tiling), width):
            self.check(each[weight_arguments(self.kernel).index("w")], tiling)


def facts(**given: Any) -> dict[str, Any]:
    return given


CASES = {
    "1x1": facts(space=(3, 5), channels=5, outputs=9, kernel=(1, 1)),
    "1x1 with strides": facts(space=(5, 7), channels=3, outputs=8, kernel=(1, 1), strides=(2, 3)),
    "3x3": facts(space=(4, 5), channels=7, outputs=9, kernel=(3, 3), pads=1, images=2),
    "3x3 with strides": facts(space=(5, 6), channels=4, outputs=6, kernel=(3, 3), strides=(2, 2), pads=1),
    "3x3 dilated": facts(space=(6, 7), channels=2, outputs=4, kernel=(3, 3), dilations=(2, 3), pads=3),
    "3x2 uneven": facts(space=(5, 6), channels=3, outputs=5, kernel=(3, 2), strides=(1, 2), dilations=(1, 2), pads=1),
    "groups": facts(space=(4, 4), channels=4, outputs=5, kernel=(3, 3), pads=1, groups=3, images=2),
    "line": facts(space=(19,), channels=3, outputs=5, kernel=(4,), strides=(2,), pads=2),
    "volume": facts(space=(3, 4, 4), channels=2, outputs=5, kernel=(2, 3, 3), strides=(1, 2, 1), pads=1, images=2),
    "one channel": facts(space=(5, 9), channels=1, outputs=3, kernel=(3, 3), pads=1),
}  # fmt: skip


@pytest.mark.parametrize("how", ["contiguous", "gaps"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_windows_and_layouts(case: dict[str, Any], how: str) -> None:
    Case(**case, gap=2 if how == "gaps" else 0, static=how == "contiguous").run(TINY)


@pytest.mark.parametrize("parts", [2, 3, 5])
def test_parts_of_the_places(parts: int) -> None:
    """Also more parts than there are rows."""
    Case((2, 3), 4, 5, (3, 3), pads=1, images=2).run(replace(TINY, parts=parts))


@pytest.mark.parametrize("taps", [2, 3])
def test_taps_beside_each_other(taps: int) -> None:
    Case((4, 5), 2, 5, (3, 3), pads=1).run(replace(TINY, rows=2, taps=taps))


def test_rows_of_more_places_than_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.backends.cpu.kernels.conv_weight.BLOCK", 5)
    for static in (True, False):
        Case((3, 13), 4, 5, (3, 3), strides=(1, 2), pads=1, images=2, static=static).run(TINY)


@pytest.mark.parametrize("panels", [2, 3])
@pytest.mark.parametrize("outputs", [17, 24])
def test_several_panels_to_a_unit(panels: int, outputs: int) -> None:
    Case((4, 5), 7, outputs, (3, 3), pads=1, groups=2).run(replace(TINY, panels=panels))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize(("channels", "outputs"), [(3, 70), (37, 5), (64, 33)])
def test_the_chosen_tiling(width: int, dtype: DType, channels: int, outputs: int) -> None:
    case = Case((6, 12), channels, outputs, (3, 3), pads=1, dtype=dtype, images=2)
    tiling = choose_weight_tiling(case.kernel, machine_of_width(width), 2 * 6 * 12, 16)
    module = build_conv_weight("weight", case.kernel, tiling, machine_of_width(width))
    given = case.arguments(tiling)
    run_compiled(module, given, width)
    case.check(given[weight_arguments(case.kernel).index("w")], tiling)


def test_units_are_independent() -> None:
    case = Case((4, 5), 7, 19, (3, 3), pads=1, groups=2, images=3)
    tiling = replace(TINY, parts=2)
    module = build_conv_weight("weight", case.kernel, tiling, machine_of_width(128))
    place = weight_arguments(case.kernel).index("w")
    given = case.arguments(tiling)
    begin, end, thread = (weight_arguments(case.kernel).index(name) for name in ("begin", "end", "thread"))
    scratch, room = (given[weight_arguments(case.kernel).index(name)] for name in ("scratch", "room"))
    assert given[end] > 6
    for unit in reversed(range(given[end])):
        one = list(given)
        one[begin], one[end], one[thread] = unit, unit + 1, unit % 3
        before = scratch.copy().reshape(3, room)
        run_compiled(module, one, 128)
        others = [each for each in range(3) if each != unit % 3]
        np.testing.assert_array_equal(scratch.reshape(3, room)[others], before[others])
    case.check(given[place], tiling)
