"""Whether two results of one model output agree.

Agreement means equal structure, shape, dtype and positions of NaN and of each infinity, and a largest difference of at
most `tolerance * max|expected|`; integer, bool and string elements are equal. The difference is measured against the
largest element because a relative error per element means nothing near zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..graph import dtypes
from ..graph.dtypes import DType

# Largest difference allowed, relative to the largest expected element, by the element type of the output itself.
# f32: networks sum thousands of products in an order of their own. f16 and bf16: four units in the last place of the
# largest element, since every operation rounds to the type and a rewrite moves where (PyTorch's `assert_close` allows
# 1e-3 and 1.6e-2 of each element to a single operation). 8 bits: one unit, a result rounded to its other neighbour.
TOLERANCES: dict[str, float] = {
    "f64": 1e-9, "c128": 1e-9, "f32": 1e-4, "c64": 1e-4, "f16": 4 * 2.0**-10, "bf16": 4 * 2.0**-7,
    "f8e4m3fn": 2.0**-3, "f8e4m3fnuz": 2.0**-3, "f8e5m2": 2.0**-2, "f8e5m2fnuz": 2.0**-2,
}  # fmt: skip
# Of elements, when a difference is shown.
_SHOWN_DIGITS = 6


@dataclass(frozen=True)
class Agreement:
    """How one output compares. `error` is max|actual - expected|, `scale` max|expected|, both over finite elements and
    None where elements must be equal; `reason` says what is wrong, and is empty if the two agree.

    `compared` counts the elements whose values were held against each other: NaNs are not among them. `random` results
    differ from run to run, so only their types were compared.
    """

    type: str
    error: float | None
    scale: float | None
    tolerance: float
    compared: int
    reason: str = ""
    random: bool = False

    @property
    def passed(self) -> bool:
        return not self.reason

    @property
    def relative_error(self) -> float | None:
        """`error / scale`; None where elements must be equal."""
        if self.error is None or self.scale is None:
            return None
        return self.error / self.scale if self.scale else (0.0 if self.error == 0 else float("inf"))


def tolerance_for(dtype: DType, override: float | None = None) -> float:
    """The tolerance for results of `dtype`: `override` for floating-point types if given, 0 for all others."""
    standard = TOLERANCES.get(dtype.name, 0.0)
    return standard if override is None or standard == 0.0 else override


def agreement(expected: Any, actual: Any, tolerance: float | None = None) -> Agreement:
    """Compare run-time values: arrays, lists (sequences), dicts (maps), None (an absent optional)."""
    parts = list(_leaves(expected, actual, ""))
    for place, mine, _ in parts:
        if isinstance(mine, _Mismatch):
            return Agreement(describe(expected), None, None, 0.0, 0, f"{place}{mine.reason}")
    found = [_tensors(place, mine, other, tolerance) for place, mine, other in parts]
    wrong = next((each for each in found if not each.passed), None)
    worst = wrong or max(found, key=lambda each: each.relative_error or 0.0, default=None)
    if worst is None:
        return Agreement(describe(expected), None, None, 0.0, 0)
    compared = sum(each.compared for each in found)
    return Agreement(describe(expected), worst.error, worst.scale, worst.tolerance, compared, worst.reason)


def first_disagreement(
    actual: Mapping[str, Any], expected: Mapping[str, Any], tolerance: float | None = None
) -> tuple[str, str] | None:
    """The name of the first expected output that disagrees, and how; None if all agree."""
    for name, wanted in expected.items():
        if name not in actual:
            return name, "the output is missing"
        found = agreement(wanted, actual[name], tolerance)
        if not found.passed:
            return name, found.reason
    return None


@dataclass(frozen=True)
class _Mismatch:
    reason: str


def _leaves(expected: Any, actual: Any, place: str) -> Iterator[tuple[str, Any, Any]]:
    """Pairs of arrays that must agree, or a `_Mismatch` in the place of the first where the structure differs."""
    kinds = _kind(expected), _kind(actual)
    if kinds[0] != kinds[1]:
        yield place, _Mismatch(f"is {describe(actual)}, expected {describe(expected)}"), None
    elif kinds[0] == "a sequence":
        if len(expected) != len(actual):
            yield place, _Mismatch(f"has {len(actual)} elements, expected {len(expected)}"), None
            return
        for index, (mine, other) in enumerate(zip(expected, actual, strict=True)):
            yield from _leaves(mine, other, f"{place}element {index}: ")
    elif kinds[0] == "a map":
        if set(expected) != set(actual):
            yield place, _Mismatch(f"has the keys {sorted(actual)}, expected {sorted(expected)}"), None
            return
        for key in expected:
            yield from _leaves(expected[key], actual[key], f"{place}key {key!r}: ")
    elif expected is not None:
        yield place, np.asarray(expected), np.asarray(actual)


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, list | tuple):
        return "a sequence"
    return "a map" if isinstance(value, Mapping) else "a tensor"


def describe(value: Any) -> str:
    """The type of a run-time value, such as `f32[1, 1000]` or `a sequence of 2`."""
    kind = _kind(value)
    if kind == "a tensor":
        array = np.asarray(value)
        return f"{dtypes.from_numpy(array.dtype)}[{', '.join(map(str, array.shape))}]"
    return kind if kind == "nothing" else f"{kind} of {len(value)}"


def _tensors(place: str, expected: np.ndarray, actual: np.ndarray, override: float | None) -> Agreement:
    dtype = dtypes.from_numpy(expected.dtype)
    tolerance = tolerance_for(dtype, override)
    type = describe(expected)
    if dtypes.from_numpy(actual.dtype) is not dtype:
        found = dtypes.from_numpy(actual.dtype)
        return Agreement(type, None, None, tolerance, 0, f"{place}the dtype is {found}, expected {dtype}")
    if actual.shape != expected.shape:
        return Agreement(
            type, None, None, tolerance, 0, f"{place}the shape is {list(actual.shape)}, expected {list(expected.shape)}"
        )
    if tolerance == 0.0:
        return _equal_elements(place, type, dtype, expected, actual)
    wide = np.complex128 if dtype.kind == "complex" else np.float64
    return _close_elements(place, type, tolerance, expected.astype(wide), actual.astype(wide))


def _equal_elements(place: str, type: str, dtype: DType, expected: np.ndarray, actual: np.ndarray) -> Agreement:
    if dtype is dtypes.string:
        different = np.array([_text(a) != _text(b) for a, b in zip(expected.flat, actual.flat, strict=True)], bool)
        different = different.reshape(expected.shape)
    elif dtype.is_float:
        # Formats too narrow for a tolerance: equal numbers, or NaN in both.
        mine, other = expected.astype(np.float32), actual.astype(np.float32)
        different = (mine != other) & ~(np.isnan(mine) & np.isnan(other))
    else:
        different = np.asarray(expected != actual)
    count = int(np.count_nonzero(different))
    reason = ""
    if count:
        at = tuple(int(i) for i in np.argwhere(different)[0])
        reason = (
            f"{place}{count} of {expected.size} elements differ, first at {list(at)}: "
            f"{_text(actual[at])}, expected {_text(expected[at])}"
        )
    return Agreement(type, None, None, 0.0, expected.size, reason)


def _close_elements(place: str, type: str, tolerance: float, expected: np.ndarray, actual: np.ndarray) -> Agreement:
    for name, mine, other in [
        ("NaN", np.isnan(expected), np.isnan(actual)),
        ("infinite", _infinite(expected), _infinite(actual)),
    ]:
        if not np.array_equal(mine, other):
            at = tuple(int(i) for i in np.argwhere(mine != other)[0])
            values = f"{_shown(actual[at])}, expected {_shown(expected[at])}"
            reason = f"{place}{name} at other places, first at {list(at)}: {values}"
            return Agreement(type, None, None, tolerance, 0, reason)
    finite = np.isfinite(expected)
    compared = int(np.count_nonzero(finite))
    if not compared:
        return Agreement(type, 0.0, 0.0, tolerance, 0)
    difference = np.where(finite, np.abs(np.where(finite, actual, 0) - np.where(finite, expected, 0)), 0)
    error = float(difference.max())
    scale = float(np.abs(expected[finite]).max())
    reason = ""
    if not error <= tolerance * scale:
        at = tuple(int(i) for i in np.unravel_index(int(difference.argmax()), difference.shape))
        reason = f"{place}the largest difference is at {list(at)}: {_apart(actual[at], expected[at])}"
    return Agreement(type, error, scale, tolerance, compared, reason)


def _infinite(array: np.ndarray) -> np.ndarray:
    """The sign of each infinite element, 0 elsewhere (complex: 1 if any part is infinite)."""
    signs = np.zeros(array.shape, np.int8)
    if np.iscomplexobj(array):
        signs[np.isinf(array)] = 1
        return signs
    signs[np.isposinf(array)] = 1
    signs[np.isneginf(array)] = -1
    return signs


def _apart(actual: Any, expected: Any) -> str:
    """Both numbers, in so many digits that they look different."""
    for digits in (_SHOWN_DIGITS, 9, 17):
        mine, other = _shown(expected, digits), _shown(actual, digits)
        if mine != other:
            break
    return f"{other}, expected {mine}"


def _shown(number: Any, digits: int = _SHOWN_DIGITS) -> str:
    return f"{number:.{digits}g}"


def _text(item: Any) -> str:
    return item.decode(errors="replace") if isinstance(item, bytes) else str(item)
