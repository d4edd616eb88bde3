"""Transposed convolutions whose neighbouring outputs see the same inputs: one convolution for all pixels of a row."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright.graph.diagnostics import ExecutionError
from tilewright.graph.dtypes import f32

random = np.random.default_rng(43)


def compare(model: Any, feeds: dict[str, np.ndarray]) -> int:
    """How many convolutions there are; with any number of threads they give the same bits."""
    expected = tilewright.compile(model, target="reference").run(feeds)
    found = []
    for threads in (1, 3):
        executable = tilewright.compile(model, target="cpu", threads=threads)
        found.append(executable.run(feeds))
        count = sum(step.kernel.startswith("conv") for step in executable.profile(feeds))
    for name, wanted in expected.items():
        assert found[0][name].tobytes() == found[1][name].tobytes()
        np.testing.assert_allclose(found[0][name], wanted, rtol=1e-4, atol=1e-4)
    return count


def image(*shape: int) -> np.ndarray:
    return random.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(
    ("kernel", "options", "count"),
    [
        ((2, 2), {"strides": [2, 2]}, 2),
        ((3, 3), {"strides": [3, 3]}, 3),
        ((2, 4), {"strides": [2, 4]}, 2),
        ((3, 2), {"strides": [1, 2]}, 1),
        ((2, 3), {"strides": [2, 2]}, 4),  # every second pixel sees more inputs
        ((2, 2), {"strides": [2, 2], "pads": [0, 1, 0, 1]}, 4),
        ((2, 2), {"strides": [2, 3]}, 4),  # the third pixels see nothing
    ],
    ids=str,
)
@pytest.mark.parametrize("channels", [(5, 18), (3, 1)], ids=str)
def test_neighbouring_pixels(
    channels: tuple[int, int], kernel: Sequence[int], options: dict[str, Any], count: int
) -> None:
    """With a bias, and with what follows: a tensor as large as the result, and one number for all."""
    x, w, bias = image(2, channels[0], 7, 9), image(*channels, *kernel), image(channels[1])
    b = tilewright.Builder("case")
    y = b.conv_transpose(b.input("x", f32[x.shape]), w, bias, **options)
    b.output(b.relu(y), "y")
    model = b.build()
    assert compare(model, {"x": x}) == count
    shape = tilewright.compile(model).run({"x": x})["y"].shape
    b = tilewright.Builder("case")
    y = b.conv_transpose(b.input("x", f32[x.shape]), w, bias, **options)
    b.output(b.mul(b.add(b.relu(y), b.input("more", f32[shape])), np.float32(3)), "y")
    compare(b.build(), {"x": x, "more": image(*shape)})


def test_sequences_and_volumes() -> None:
    for size, strides in (((11,), [4]), ((3, 4, 5), [2, 2, 2])):
        b = tilewright.Builder("case")
        x = image(1, 6, *size)
        b.output(b.conv_transpose(b.input("x", f32[x.shape]), image(6, 8, *strides), strides=strides), "y")
        assert compare(b.build(), {"x": x}) == int(np.prod(strides[:-1]))


def test_filters_of_a_run_and_groups() -> None:
    b = tilewright.Builder("case")
    x, w = image(1, 6, 5, 5), image(6, 4, 2, 2)
    b.output(b.conv_transpose(b.input("x", f32[x.shape]), b.input("w", f32[w.shape]), strides=[2, 2]), "y")
    b.output(b.conv_transpose(b.input("z", f32[x.shape]), w, strides=[2, 2], group=2), "grouped")
    assert compare(b.build(), {"x": x, "w": w, "z": x}) == 8


def test_sizes_of_which_only_a_run_knows() -> None:
    b = tilewright.Builder("case")
    w, bias = image(6, 8, 2, 2), image(8)
    b.output(b.conv_transpose(b.input("x", f32["n", 6, "h", "w"]), w, bias, strides=[2, 2]), "y")
    model = b.build()
    executable, reference = tilewright.compile(model), tilewright.compile(model, target="reference")
    for shape in ((1, 6, 5, 7), (3, 6, 1, 1), (2, 6, 9, 1), (1, 6, 20, 30), (0, 6, 2, 2)):
        x = image(*shape)
        np.testing.assert_allclose(executable.run({"x": x})["y"], reference.run({"x": x})["y"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kernel", [1, 2, 3, 4])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_images_without_rows(kernel: int, stride: int) -> None:
    """Where the kernel is larger than its step there are rows of the bias; a negative size, which inference finds where
    sizes are declared, is an error of the run."""
    for pads, more in itertools.product(((0, 0), (1, 1), (0, 1), (2, 2)), range(min(stride, 2))):
        b, bias = tilewright.Builder("case"), image(3)
        given = {"strides": [stride, 1], "pads": [pads[0], 0, pads[1], 0], "output_padding": [more, 0]}
        x = b.input("x", f32["n", 2, "h", "w"])
        b.output(b.relu(b.conv_transpose(x, image(2, 3, kernel, 2), bias, **given)), "y")
        size = kernel - stride + more - sum(pads)
        for target in ("cpu", "reference"):
            executable = tilewright.compile(b.build(), target=target)
            if size < 0:
                with pytest.raises(ExecutionError, match=r"pads leave less than nothing of \[0, 4\]"):
                    executable.run({"x": image(1, 2, 0, 4)})
                continue
            wanted = np.broadcast_to(np.maximum(bias, 0)[:, None, None], (1, 3, size, 5))
            np.testing.assert_array_equal(executable.run({"x": image(1, 2, 0, 4)})["y"], wanted)
