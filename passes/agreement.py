"""Do two results agree? Equal shape, dtype and NaN/Inf positions, and max|a-b| <= tolerance * max|b| for floats.

Relative error per element would be meaningless near zero, so the error is compared with the largest expected magnitude.
Integer, bool and string results must be equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

# For float32; half and bfloat16 results are compared at 1e-2.
DEFAULT_TOLERANCE = 1e-4
_HALF_TOLERANCE = 1e-2


def first_disagreement(
    actual: Mapping[str, Any], expected: Mapping[str, Any], tolerance: float = DEFAULT_TOLERANCE
) -> tuple[str, str] | None:
    """The name of the first output that disagrees, and how; None if all agree."""
    for name, wanted in expected.items():
        if name not in actual:
            return name, "the output is missing"
        difference = disagreement(actual[name], wanted, tolerance)
        if difference is not None:
            return name, difference
    return None


def disagreement(actual: Any, expected: Any, tolerance: float = DEFAULT_TOLERANCE) -> str | None:
    """How two values disagree, in a sentence; None if they agree. Values: arrays, lists, dicts or None, nested."""
    if expected is None or actual is None:
        return None if actual is expected else f"{_kind(actual)} where {_kind(expected)} is expected"
    if isinstance(expected, list | tuple):
        if not isinstance(actual, list | tuple) or len(actual) != len(expected):
            return f"{_kind(actual)} where {_kind(expected)} is expected"
        parts = (disagreement(a, b, tolerance) for a, b in zip(actual, expected, strict=True))
        return next((f"element {index}: {part}" for index, part in enumerate(parts) if part is not None), None)
    if isinstance(expected, Mapping):
        if not isinstance(actual, Mapping) or actual.keys() != expected.keys():
            return "the keys differ"
        found = first_disagreement(actual, expected, tolerance)
        return None if found is None else f"key {found[0]}: {found[1]}"
    return _array_disagreement(np.asarray(actual), np.asarray(expected), tolerance)


def _array_disagreement(actual: np.ndarray, expected: np.ndarray, tolerance: float) -> str | None:
    if actual.dtype != expected.dtype:
        return f"dtype {actual.dtype} where {expected.dtype} is expected"
    if actual.shape != expected.shape:
        return f"shape {list(actual.shape)} where {list(expected.shape)} is expected"
    if expected.dtype.kind in "OSUbiu":
        wrong = np.asarray(actual != expected)
        return f"{int(wrong.sum())} of {wrong.size} elements differ" if wrong.any() else None
    wide: Any = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, b = actual.astype(wide), expected.astype(wide)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return "NaN or infinity at different places"
    if not finite.any():
        return None
    error, scale = float(np.abs(a[finite] - b[finite]).max()), float(np.abs(b[finite]).max())
    allowed = (max(tolerance, _HALF_TOLERANCE) if expected.dtype.itemsize <= 2 else tolerance) * scale
    if error <= allowed:
        return None
    share = error / scale if scale else np.inf
    return f"the largest error is {error:.3g}, {share:.2g} of the largest magnitude"


def _kind(value: Any) -> str:
    return f"a list of {len(value)}" if isinstance(value, list | tuple) else type(value).__name__
