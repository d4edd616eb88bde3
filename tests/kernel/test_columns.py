"""Columns added up into an image: the kernel in the interpreter and compiled, and the operator, against numpy."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from loop_running import WIDTHS, run_both, run_compiled

import tilewright
from tilewright.backends.cpu.kernels.columns import Columns, build_columns, columns_arguments
from tilewright.backends.cpu.machine import machine_of_width
from tilewright.graph.dtypes import DType, f16, f32, f64, i32
from tilewright.graph.kernel.index_ops import block_places


@dataclass(frozen=True)
class Case:
    image: tuple[int, ...]
    block: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]

    @property
    def places(self) -> tuple[int, ...]:
        return block_places(self.image, self.block, self.strides, self.dilations, self.pads)

    def columns(self, images: int, channels: int, dtype: DType = f32) -> np.ndarray:
        """Whole numbers, whose sums are exact."""
        shape = (images, channels * math.prod(self.block), math.prod(self.places))
        return np.random.default_rng(4).integers(-8, 9, shape).astype(dtype.numpy)

    def image_of(self, x: np.ndarray) -> np.ndarray:
        """Each tap's plane added to a padded image."""
        rank, places = len(self.image), self.places
        apart = x.reshape(len(x), -1, *self.block, *places)
        padded = [size + self.pads[axis] + self.pads[axis + rank] for axis, size in enumerate(self.image)]
        y = np.zeros((*apart.shape[:2], *padded), x.dtype)
        for tap in itertools.product(*map(range, self.block)):
            starts = [place * gap for place, gap in zip(tap, self.dilations, strict=True)]
            seen = tuple(
                slice(start, start + (count - 1) * step + 1, step)
                for start, count, step in zip(starts, places, self.strides, strict=True)
            )
            y[(..., *seen)] += apart[(slice(None), slice(None), *tap)]
        return y[(..., *(slice(self.pads[axis], self.pads[axis] + size) for axis, size in enumerate(self.image)))]


CASES = {
    "3x3": Case((6, 37), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    "3x3 stride 2": Case((7, 70), (3, 3), (2, 2), (1, 1), (1, 1, 1, 1)),
    "wide block": Case((4, 40), (2, 7), (1, 1), (1, 1), (0, 3, 0, 3)),
    "dilated": Case((9, 33), (3, 5), (2, 3), (2, 2), (3, 1, 0, 4)),
    "stride and gap share": Case((9, 33), (2, 4), (4, 4), (2, 2), (1, 0, 2, 5)),
    "gaps": Case((7, 50), (2, 2), (3, 5), (1, 1), (0, 0, 0, 0)),
    "1-D": Case((90,), (5,), (2,), (1,), (1, 2)),
    "1-D, looped": Case((120,), (40,), (12,), (1,), (3, 30)),
    "looped, gap": Case((61,), (9,), (10,), (4,), (30, 30)),
    "3-D": Case((4, 5, 20), (2, 3, 3), (1, 2, 1), (1, 1, 2), (0, 1, 1, 1, 0, 0)),
    "narrow": Case((5, 3), (2, 2), (1, 1), (1, 1), (0, 0, 0, 0)),
    "side by side": Case((12, 40), (2, 4), (2, 4), (1, 1), (0, 0, 0, 0)),
}


def arguments(case: Case, kernel: Columns, x: np.ndarray, pieces: int) -> tuple[list[str], list[Any]]:
    shape = (len(x), x.shape[1] // math.prod(case.block), *case.image)
    known: dict[str, Any] = {
        "x": x.reshape(-1), "y": np.full(math.prod(shape), 99, x.dtype), "channels": shape[1], "pieces": pieces,
        "begin": 0, "end": shape[0] * shape[1] * pieces, "thread": 0,
    }  # fmt: skip
    known |= {f"size{axis}": size for axis, size in enumerate(case.image)}
    known |= {f"places{axis}": count for axis, count in enumerate(case.places)}
    for name, array in (("x", x), ("y", np.empty(shape, np.int8))):
        known |= {f"{name}_outer{axis}": step // array.itemsize for axis, step in enumerate(array.strides)}
    names = columns_arguments(kernel)
    return names, [known[name] for name in names]


def kernel_of(case: Case, dtype: DType) -> Columns:
    rank = len(case.image)
    y = (None,) * (rank + 1) + (1,)
    return Columns(dtype, case.block, case.strides, case.dilations, case.pads[:rank], (None, None, 1), y)


@pytest.mark.parametrize("name", CASES)
def test_both_ways(name: str) -> None:
    case = CASES[name]
    x, kernel = case.columns(1, 2), kernel_of(case, f32)
    names, given = arguments(case, kernel, x, 1)
    module = build_columns("columns", kernel, machine_of_width(256))
    for side in run_both(module, given, 256):
        wanted = case.image_of(x)
        np.testing.assert_array_equal(side[names.index("y")].reshape(wanted.shape), wanted)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", CASES)
def test_compiled(name: str, width: int) -> None:
    """Several images in pieces of rows; and where the places or the image's last dim do not lie in order."""
    case = CASES[name]
    x, kernel = case.columns(2, 3, f64), kernel_of(case, f64)
    strided = Columns(f64, *(getattr(kernel, part) for part in ("block", "strides", "dilations", "before")),
                      (None,) * 3, (None,) * (len(case.image) + 2))  # fmt: skip
    for each, pieces in ((kernel, 1 if len(case.image) == 1 else 3), (strided, 1)):
        names, given = arguments(case, each, x, pieces)
        run_compiled(build_columns("columns", each, machine_of_width(width)), given, width)
        wanted = case.image_of(x)
        np.testing.assert_array_equal(given[names.index("y")].reshape(wanted.shape), wanted)


@pytest.mark.parametrize("dtype", [f32, f16, i32], ids=str)
def test_operator(dtype: DType) -> None:
    """All cases, and wide blocks side by side with pads and elements that no block reaches."""
    cases = [*CASES.values(), Case((33, 47), (5, 6), (5, 6), (1, 1), (2, 1, 1, 2))]
    b, feeds = tilewright.Builder("columns", opset=20), {}
    for number, case in enumerate(cases):
        x = feeds[f"x{number}"] = case.columns(2, 3, dtype)
        attributes = {"strides": list(case.strides), "dilations": list(case.dilations), "pads": list(case.pads)}
        operands = b.input(f"x{number}", dtype[x.shape]), np.array(case.image), np.array(case.block)
        b.output(b.col2_im(*operands, **attributes), f"y{number}")
    for threads in (1, 3):
        executable = tilewright.compile(b.build(), target="cpu", threads=threads)
        assert not executable.report()["host_steps"]
        results = executable.run(feeds)
        for number, case in enumerate(cases):
            np.testing.assert_array_equal(results[f"y{number}"], case.image_of(feeds[f"x{number}"]))


def test_images_of_any_number() -> None:
    case = CASES["3x3"]
    b = tilewright.Builder("columns", opset=20)
    x = b.input("x", f32["n", 3 * math.prod(case.block), math.prod(case.places)])
    b.output(b.col2_im(x, np.array(case.image), np.array(case.block), pads=list(case.pads)), "y")
    executable = tilewright.compile(b.build(), target="cpu", threads=2)
    for count in (1, 3, 0, 5):
        given = case.columns(count, 3)
        got = executable.run({"x": given})["y"]
        np.testing.assert_array_equal(got, case.image_of(given) if count else np.zeros((0, 3, *case.image)))
