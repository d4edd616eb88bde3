"""Pools of images that lie pixel after pixel: the cpu target reduces them as they lie, to what the reference gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright.graph.dtypes import f32, from_numpy

random = np.random.default_rng(41)
WINDOWS: dict[str, dict[str, Any]] = {
    "side by side": {"kernel_shape": [2, 2], "strides": [2, 2]},
    "overlapping": {"kernel_shape": [3, 3], "strides": [2, 2]},
    "one step": {"kernel_shape": [3, 2]},
    "holes": {"kernel_shape": [2, 3], "dilations": [3, 2], "strides": [3, 1]},
}


def kernels(executable: Any, feeds: dict[str, np.ndarray]) -> list[str]:
    return [step.kernel for step in executable.profile(feeds)]


def compare(model: Any, feeds: dict[str, np.ndarray], is_of_planes: bool = True) -> dict[str, np.ndarray]:
    """The same bits with any number of threads; one call for each pool if they are done where the image lies."""
    expected = tilewright.compile(model, target="reference").run(feeds)
    found: list[dict[str, np.ndarray]] = []
    for threads in (1, 3):
        executable = tilewright.compile(model, target="cpu", threads=threads)
        found.append(executable.run(feeds))
        names = kernels(executable, feeds)
        assert all(name.startswith("reduce") for name in names) == is_of_planes, names
    for name, wanted in expected.items():
        assert found[0][name].tobytes() == found[1][name].tobytes()
        assert found[0][name].shape == wanted.shape
        np.testing.assert_allclose(found[0][name].astype(np.float64), wanted.astype(np.float64), rtol=1e-3, atol=1e-5)
    return found[0]


def image(shape: Sequence[int], dtype: Any = np.float32) -> np.ndarray:
    return (20 * random.normal(size=shape)).astype(dtype)


@pytest.mark.parametrize("kind", ["max_pool", "average_pool"])
@pytest.mark.parametrize("options", WINDOWS.values(), ids=WINDOWS)
def test_windows(options: dict[str, Any], kind: str) -> None:
    x = image((2, 5, 40, 51))
    b = tilewright.Builder("pool", opset=21)
    b.output(getattr(b, kind)(b.input("x", f32[x.shape]), **options), "y")
    compare(b.build(), {"x": x})


@pytest.mark.parametrize("kind", ["max_pool", "average_pool"])
@pytest.mark.parametrize("size", [(70,), (6, 7, 40)], ids=str)
def test_sequences_and_volumes(size: tuple[int, ...], kind: str) -> None:
    x = image((2, 3, *size))
    b = tilewright.Builder("pool", opset=21)
    whole = {"kernel_shape": [2] * len(size), "strides": [2] * len(size)}
    b.output(getattr(b, kind)(b.input("x", f32[x.shape]), **whole), "y")
    compare(b.build(), {"x": x})


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_bytes(dtype: Any) -> None:
    x = np.abs(image((1, 4, 9, 140))).astype(dtype)
    b = tilewright.Builder("pool", opset=21)
    b.output(b.max_pool(b.input("x", from_numpy(x.dtype)[x.shape]), kernel_shape=[2, 2], strides=[1, 2]), "y")
    compare(b.build(), {"x": x})


@pytest.mark.parametrize("kind", ["max_pool", "average_pool"])
def test_what_follows_is_part_of_the_reduction(kind: str) -> None:
    x, scale, more = image((2, 5, 20, 48)), image((5, 1, 1)), image((2, 5, 10, 24))
    b = tilewright.Builder("pool", opset=21)
    pooled = getattr(b, kind)(b.input("x", f32[x.shape]), kernel_shape=[2, 2], strides=[2, 2])
    b.output(b.relu(b.add(b.mul(pooled, scale), b.input("more", f32[more.shape]))), "y")
    compare(b.build(), {"x": x, "more": more})


def test_sizes_of_which_only_a_run_knows() -> None:
    b = tilewright.Builder("pool", opset=21)
    b.output(b.max_pool(b.input("x", f32["n", 3, "h", "w"]), kernel_shape=[3, 3], strides=[2, 2]), "y")
    model = b.build()
    executable = tilewright.compile(model, target="cpu")
    for shape in ((1, 3, 40, 60), (2, 3, 33, 35), (4, 3, 9, 200), (1, 3, 7, 9), (0, 3, 40, 60)):
        x = image(shape)
        expected = tilewright.compile(model, target="reference").run({"x": x})["y"]
        assert np.array_equal(executable.run({"x": x})["y"], expected)


def test_numbers_that_are_none() -> None:
    x = image((1, 2, 8, 64))
    x[0, 1, 3, 5] = np.nan
    x[0, 0, 0, 9] = -np.inf
    b = tilewright.Builder("pool", opset=21)
    b.output(b.max_pool(b.input("x", f32[x.shape]), kernel_shape=[2, 2], strides=[2, 2]), "y")
    found = compare(b.build(), {"x": x})["y"]
    assert np.argwhere(np.isnan(found)).tolist() == [[0, 1, 1, 2]]


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((1, 8, 8, 6), WINDOWS["side by side"]),
        ((1, 8, 20, 60), WINDOWS["one step"] | {"pads": [1, 1, 1, 1]}),
        ((1, 8, 20, 61), WINDOWS["side by side"] | {"ceil_mode": 1}),
        ((1, 8, 21, 60), WINDOWS["side by side"] | {"ceil_mode": 1}),
        ((1, 8, 1, 60), WINDOWS["side by side"]),
    ],
    ids=["short rows", "padded", "rounded up", "rows rounded up", "cut"],
)
@pytest.mark.parametrize("kind", ["max_pool", "average_pool"])
def test_others_have_their_channels_last(shape: tuple[int, ...], options: dict[str, Any], kind: str) -> None:
    x = image(shape)
    b = tilewright.Builder("pool", opset=21)
    b.output(getattr(b, kind)(b.input("x", f32[shape]), **options), "y")
    compare(b.build(), {"x": x}, is_of_planes=False)
