"""fuse-kernels on long chains: bodies end somewhere, and time grows with the length alone."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
from tilewright.graph.dtypes import DType, f32, u8
from tilewright.graph.model_builder import Builder
from tilewright.passes.join_maps import MAX_OPERATIONS


@pytest.mark.parametrize(("dtype", "least"), [(f32, 1100 // MAX_OPERATIONS), (u8, 0)])  # of bytes, maps are tables
def test_a_long_chain_is_several_maps(dtype: DType, least: int) -> None:
    length = 1100  # deeper than Python's stack
    b = Builder("chain")
    x = value = b.input("x", dtype[3])
    for index in range(length):
        value = b.add(value, dtype.numpy.type(3)) if index % 3 else b.sub(dtype.numpy.type(5), value)
    b.output(b.sub(value, x), "y")
    executable = tilewright.compile(b.build(), target="cpu", threads=1)
    bodies = [op.regions["body"].block for op in executable.module.walk() if op.name == "kernel.map"]
    assert all(len(body) <= MAX_OPERATIONS for body in bodies)
    assert least <= len(bodies) <= 4 * length // MAX_OPERATIONS
    feeds = {"x": np.array([0, 1, 2], dtype.numpy)}
    np.testing.assert_array_equal(executable.run(feeds)["y"], _computed(feeds["x"], length))


def _computed(x: np.ndarray, length: int) -> np.ndarray:
    value = x
    for index in range(length):
        value = value + x.dtype.type(3) if index % 3 else x.dtype.type(5) - value
    return value - x
