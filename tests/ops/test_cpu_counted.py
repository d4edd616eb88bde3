"""Operators whose results are as large as the data say, on the target cpu: results, sizes from run to run, errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright.graph.dtypes import BY_NAME, bool_, f32, from_numpy
from tilewright.graph.model_builder import Builder

random = np.random.default_rng(5)


def compare(
    build: Callable[..., Sequence[Any]], runs: Sequence[Sequence[np.ndarray]], dynamic: bool = False
) -> tilewright.Module:
    """The model gives what the reference gives, with any number of threads, and runs no host step."""
    b = Builder("counted")
    given = [
        b.input(f"x{i}", from_numpy(x.dtype)[tuple(f"d{i}_{axis}" for axis in range(x.ndim)) if dynamic else x.shape])
        for i, x in enumerate(runs[0])
    ]
    for index, value in enumerate(build(b, *given)):
        b.output(value, f"y{index}")
    model = b.build()
    reference = tilewright.compile(model, target="reference")
    for threads in (1, 2, 3, 7):
        executable = tilewright.compile(model, target="cpu", threads=threads)
        for operands in runs:
            feeds = {f"x{i}": x for i, x in enumerate(operands)}
            wanted, found = reference.run(feeds), executable.run(feeds)
            for name, array in wanted.items():
                assert found[name].dtype == array.dtype
                np.testing.assert_array_equal(found[name], array, err_msg=name)
        assert executable.report()["host_steps"] == []
    return model


def sparse(*shape: int, dtype: Any = np.float32, share: float = 0.4) -> np.ndarray:
    return (random.integers(1, 9, shape) * (random.random(shape) < share)).astype(dtype)


# ---- NonZero, Compress -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16", "i8", "i32", "i64", "u8", "u64", "bool"])
def test_nonzero(dtype: str) -> None:
    x = sparse(3, 5, 7, dtype=BY_NAME[dtype].numpy)
    compare(lambda b, x: [b.nonzero(x)], [[x], [np.zeros_like(x)], [np.ones_like(x)]])


def test_places_are_used_by_what_follows() -> None:
    """Sizes are others in each run; a transposed operand, another result in between, a shape."""

    def build(b: Builder, x: Any) -> list[Any]:
        places = b.nonzero(b.transpose(x, perm=[1, 0]))
        rows = b.transpose(places, perm=[1, 0])
        return [b.gather_nd(b.transpose(x, perm=[1, 0]), rows), b.neg(x), b.shape(places), b.add(rows, rows)]

    runs = [[sparse(4, 300)], [sparse(90, 61, share=0.01)], [np.zeros((2, 3), np.float32)], [sparse(0, 3)]]
    compare(build, runs, dynamic=True)


def test_nan_is_not_zero() -> None:
    compare(lambda b, x: [b.nonzero(x)], [[np.array([0.0, np.nan, -0.0, np.inf], np.float32)]])


def test_in_a_branch() -> None:
    """A block of control flow has segments of its own."""
    b = Builder("branch")
    x, condition = b.input("x", f32["n"]), b.input("c", bool_[()])
    chosen = b.if_(condition, lambda: b.nonzero(x), lambda: b.nonzero(b.relu(x)))
    b.output(chosen, "y")
    executable = tilewright.compile(b.build(), target="cpu")
    x = np.array([-1, 0, 2], np.float32)
    assert executable.run({"x": x, "c": np.array(True)})["y"].tolist() == [[0, 2]]
    assert executable.run({"x": x, "c": np.array(False)})["y"].tolist() == [[2]]


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_compress(axis: int | None) -> None:
    x, length = sparse(4, 6), {None: 24, 0: 4, 1: 6, -1: 6}[axis]
    options = {} if axis is None else {"axis": axis}
    conditions = [random.random(length) < share for share in (0.5, 0, 1)] + [np.array([True, False, True])]
    for condition in conditions:
        compare(lambda b, x, c: [b.compress(x, c, **options)], [[x, condition]])


def test_compress_beyond_the_end() -> None:
    b = Builder("beyond")
    b.output(b.compress(b.input("x", f32[3]), b.input("c", bool_["n"])), "y")
    with pytest.raises(tilewright.TilewrightError, match="index 4 is out of range"):
        tilewright.compile(b.build(), target="cpu").run({"x": sparse(3), "c": np.array([0, 0, 0, 0, 1], bool)})


# ---- NonMaxSuppression -----------------------------------------------------------------------------------------------


def boxes(batches: int, classes: int, count: int) -> list[np.ndarray]:
    corners = (random.random((batches, count, 4)) * 4).astype(np.float32)
    return [corners, np.round(random.random((batches, classes, count)), 2).astype(np.float32)]


@pytest.mark.parametrize("limits", [
    [np.array([3]), np.array([0.3], np.float32), np.array([0.2], np.float32)],
    [np.array([100]), np.array([0.1], np.float32)],
    [np.array([4]), None, np.array([0.5], np.float32)],
    [np.array([4])], [np.array([0])], [np.array([-2])], [],
], ids=["all", "no_least", "no_overlap", "limit_alone", "none", "negative", "nothing"])  # fmt: skip
@pytest.mark.parametrize("centred", [0, 1])
def test_suppression(limits: list[np.ndarray | None], centred: int) -> None:
    def build(b: Builder, corners: Any, scores: Any) -> list[Any]:
        return [b.non_max_suppression(corners, scores, *limits, center_point_box=centred)]

    compare(build, [boxes(2, 3, 17)])


def test_suppression_of_any_sizes() -> None:
    """Numbers of boxes and thresholds that only a run knows; scores as a network's head gives them."""

    def build(b: Builder, corners: Any, scores: Any, limit: Any, overlap: Any) -> list[Any]:
        turned = b.transpose(scores, perm=[0, 2, 1])
        chosen = b.non_max_suppression(corners, turned, limit, overlap)
        return [chosen, b.gather(b.squeeze(corners, np.array([0])), b.slice(chosen, [2], [3], [1]))]

    runs = []
    for classes, count, limit in ((3, 17, 5), (1, 40, 100), (2, 0, 3), (0, 5, 3), (4, 1, 1)):
        corners, scores = boxes(1, classes, count)
        scores = np.ascontiguousarray(scores.transpose(0, 2, 1))
        runs.append([corners, scores, np.array([limit]), np.array([0.3], np.float32)])
    compare(build, runs, dynamic=True)


def test_scores_of_other_boxes() -> None:
    b = Builder("boxes")
    corners, scores = b.input("x", f32["b", "n", "k"]), b.input("s", f32["a", "c", "m"])
    b.output(b.non_max_suppression(corners, scores, np.array([3])), "y")
    executable = tilewright.compile(b.build(), target="cpu")
    for x, s in (((1, 5, 4), (1, 2, 6)), ((1, 5, 3), (1, 2, 5)), ((2, 5, 4), (1, 2, 5))):
        with pytest.raises(tilewright.TilewrightError, match="suppress"):
            executable.run({"x": np.zeros(x, np.float32), "s": np.zeros(s, np.float32)})


# ---- Unique ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16", "i8", "i64", "u8", "u32", "bool"])
@pytest.mark.parametrize("ascending", [0, 1])
def test_unique(dtype: str, ascending: int) -> None:
    runs = [[sparse(3, 5, 7, dtype=BY_NAME[dtype].numpy)], [np.zeros((3, 5, 7), BY_NAME[dtype].numpy)]]
    compare(lambda b, x: b.unique(x, sorted=ascending, outputs=4), runs)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("ascending", [0, 1])
def test_unique_slices(axis: int, ascending: int) -> None:
    runs = [[random.integers(0, 2, shape).astype(np.float32)] for shape in ((6, 3, 2), (2, 7, 3), (4, 2, 9))]
    compare(lambda b, x: b.unique(x, axis=axis, sorted=ascending, outputs=4), runs, dynamic=True)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (0, 3), (1, 1)])
def test_unique_of_little(shape: tuple[int, ...]) -> None:
    compare(lambda b, x: b.unique(x, outputs=4), [[np.ones(shape, np.float32)]])


def test_unique_numbers_of_what_was_found() -> None:
    """Several sizes that are counted, one after the other, and results that nobody asks for."""

    def build(b: Builder, x: Any) -> list[Any]:
        places = b.nonzero(x)
        rows = b.unique(b.slice(places, [0], [1], [0]), outputs=1)
        return [rows, b.gather(x, rows), b.unique(x, outputs=3)[2]]

    compare(build, [[sparse(30, 4, share=0.1)], [sparse(5, 4)], [np.zeros((3, 2), np.float32)]], dynamic=True)


def test_unique_with_nan() -> None:
    x = np.array([[np.nan, 1, np.nan], [0.0, -0.0, np.inf]], np.float32)
    compare(lambda b, x: b.unique(x, outputs=4), [[x]])
    compare(lambda b, x: b.unique(x, axis=1, outputs=4), [[x]])
