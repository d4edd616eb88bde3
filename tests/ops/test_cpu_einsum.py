"""Einsum whose sizes are open: products of matrices in one segment, for any sizes, none included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import Builder, f32

# Equation, types of the operands, and the sizes of runs.
CASES = {
    "experts": ("btd,edf->btef", [("b", "t", 16), (4, 16, 32)], [{"b": 2, "t": 3}, {"b": 1, "t": 1}, {"b": 0, "t": 3}]),
    "each expert": ("btef,efd->bted", [("b", "t", 4, 8), (4, 8, 5)], [{"b": 2, "t": 3}, {"b": 2, "t": 0}]),
    "scores": (
        "bqhd,bkhd->bhqk",
        [("b", "q", "h", "d"), ("b", "k", "h", "d")],
        [{"b": 2, "q": 3, "h": 4, "d": 5, "k": 7}, {"b": 2, "q": 3, "h": 1, "d": 0, "k": 7}],
    ),
    "row": ("ij,j->i", [("n", "k"), ("k",)], [{"n": 3, "k": 4}, {"n": 3, "k": 0}]),
    "outer": ("i,j->ij", [("n",), ("k",)], [{"n": 3, "k": 4}, {"n": 0, "k": 4}]),
    "ellipsis": ("...ij,jk->...ik", [("b", "c", "n", "k"), ("k", 4)], [{"b": 2, "c": 3, "n": 5, "k": 6}]),
    "three": ("ab,bc,cd->ad", [("a", "b"), ("b", "c"), ("c", "d")], [{"a": 2, "b": 3, "c": 4, "d": 5}]),
    "a size of 1": ("bij,bjk->bik", [("b", "i", 4), (1, 4, "k")], [{"b": 3, "i": 2, "k": 5}, {"b": 1, "i": 2, "k": 5}]),
    "all summed up": ("ij->", [("n", "m")], [{"n": 2, "m": 3}, {"n": 0, "m": 3}]),
}  # fmt: skip


def _check(equation: str, types: list[tuple[int | str, ...]], runs: list[dict[str, int]]) -> dict[str, Any]:
    b = Builder()
    inputs = [b.input(f"x{index}", f32[dims]) for index, dims in enumerate(types)]
    b.output(b.einsum(*inputs, equation=equation), "y")
    module = b.build()
    executable = tilewright.compile(module, threads=1)
    random = np.random.default_rng(0)
    for sizes in runs:
        shapes = [[dim if isinstance(dim, int) else sizes[dim] for dim in dims] for dims in types]
        feeds = {f"x{index}": random.normal(size=shape).astype(np.float32) for index, shape in enumerate(shapes)}
        wanted = np.einsum(equation, *feeds.values())
        found = executable.run(feeds)["y"]
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    report = executable.report()
    assert report["host_steps"] == []
    return report


@pytest.mark.parametrize("name", CASES)
def test_open_sizes(name: str) -> None:
    assert _check(*CASES[name])["segments"] == 1


@pytest.mark.parametrize(
    ("equation", "types", "runs"),
    [
        ("ii->i", [("n", "n")], [{"n": 3}]),
        ("bi,bk->ik", [("b", "i"), ("c", "k")], [{"b": 3, "c": size, "i": 2, "k": 5} for size in (1, 3)]),
    ],
)  # fmt: skip
def test_what_only_a_run_knows(equation: str, types: list[tuple[int | str, ...]], runs: list[dict[str, int]]) -> None:
    """A diagonal of open size, and a size that may be 1 beside another: made of kernels when it runs."""
    assert _check(equation, types, runs)["segments"] == 0
