"""What counts as agreement of two results."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.passes.agreement import agreement, describe, first_disagreement

F32 = np.array([1.0, -2.0, 100.0], np.float32)


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (F32, F32 + np.float32(0.009)),  # 0.9e-4 of the largest element, though 0.9 % of the first
        (np.array([np.nan, np.inf, -np.inf, 1], np.float32), np.array([np.nan, np.inf, -np.inf, 1], np.float32)),
        (np.zeros((2, 0), np.float32), np.zeros((2, 0), np.float32)),
        (np.float64(3.0), np.array(3.0 + 1e-9)),
        (np.array([1.0, 2.0], np.float16), np.array([1.0, 2.0 + 4 / 512], np.float16)),
        (np.array([1.0], ml_dtypes.bfloat16), np.array([1.03125], ml_dtypes.bfloat16)),
        (np.array([1.0], ml_dtypes.float8_e4m3fn), np.array([1.125], ml_dtypes.float8_e4m3fn)),
        (np.array([1 + 2j], np.complex64), np.array([1.0001 + 2j], np.complex64)),
        (np.array(["a", "b"], object), np.array([b"a", "b"], object)),
        (np.array([True, False]), np.array([True, False])),
        ([F32, None], [F32, None]),
        ([{"a": 1.0}], [{"a": 1.0}]),
        ({0: np.float32(1.0)}, {0: np.float32(1.00001)}),
    ],
)
def test_agrees(expected: Any, actual: Any) -> None:
    assert agreement(expected, actual).reason == ""


@pytest.mark.parametrize(
    ("expected", "actual", "reason"),
    [
        (F32, F32 + np.float32(0.02), "the largest difference is at [0]: 1.02, expected 1"),
        (F32, F32.astype(np.float64), "the dtype is f64, expected f32"),
        (F32, F32[:2], "the shape is [2], expected [3]"),
        (F32, F32[None], "the shape is [1, 3], expected [3]"),
        (F32, np.array([1, np.nan, 100], np.float32), "NaN at other places, first at [1]: nan, expected -2"),
        (np.array([np.inf], np.float32), np.array([-np.inf], np.float32), "infinite at other places"),
        (np.array([0.0], np.float32), np.array([1e-30], np.float32), "the largest difference is at [0]"),
        (np.float64(3.0), np.array(3.0 + 1e-8), "3.00000001, expected 3"),
        (np.array([1.0], np.float16), np.array([1 + 5 / 1024], np.float16), "the largest difference"),
        (np.array([1.0], ml_dtypes.bfloat16), np.array([1 + 5 / 128], ml_dtypes.bfloat16), "the largest difference"),
        (np.array([1.0], ml_dtypes.float8_e5m2), np.array([1.5], ml_dtypes.float8_e5m2), "the largest difference"),
        (np.array([5, 6]), np.array([5, 7]), "1 of 2 elements differ, first at [1]: 7, expected 6"),
        (np.array([5, 6]), np.array([5, 6], np.int32), "the dtype is i32, expected i64"),
        (np.array(["a"], object), np.array(["b"], object), "1 of 1 elements differ, first at [0]: b, expected a"),
        (F32, None, "is nothing, expected f32[3]"),
        ([F32], F32, "is f32[3], expected a sequence of 1"),
        ([F32, F32], [F32], "has 1 elements, expected 2"),
        ([F32, F32], [F32, F32 * 2], "element 1: the largest difference"),
        ({"a": 1.0}, {"b": 1.0}, "has the keys ['b'], expected ['a']"),
        ({"a": 1.0}, {"a": 2.0}, "key 'a': the largest difference"),
    ],
)
def test_disagrees(expected: Any, actual: Any, reason: str) -> None:
    found = agreement(expected, actual)
    assert not found.passed
    assert reason in found.reason


def test_figures() -> None:
    found = agreement(F32, F32 + np.array([0, 0, 0.5], np.float32), tolerance=0.01)
    assert found.passed
    assert (found.error, found.scale, found.relative_error, found.compared) == (0.5, 100.0, 0.005, 3)


def test_a_tolerance_does_not_loosen_integers() -> None:
    assert not agreement(np.array([100]), np.array([101]), tolerance=0.5).passed


def test_nan_elements_are_not_counted_as_compared() -> None:
    nan = np.full(4, np.nan, np.float32)
    assert agreement(nan, nan).compared == 0


def test_describe() -> None:
    assert describe(np.zeros((1, 3), np.float32)) == "f32[1, 3]"
    assert describe([F32]) == "a sequence of 1"


def test_first_disagreement_names_the_output() -> None:
    expected = {"a": F32, "b": F32}
    assert first_disagreement(expected, expected) is None
    assert first_disagreement({"a": F32}, expected) == ("b", "the output is missing")
    found = first_disagreement({"a": F32, "b": F32 * 2}, expected)
    assert found is not None
    assert found[0] == "b"
