"""The numpy meaning of Unique (ONNX Unique-11). NaNs are alike, which the standard leaves open."""

from __future__ import annotations

import numpy as np

from .numeric import summable


def unique_rows(rows: np.ndarray, ascending: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of the different rows of a matrix: where each is first; then which one each row is, and how often each is there.

    They are in ascending order, or else in the order in which they come.
    """
    if not rows.shape[1]:  # nothing is different
        count = min(len(rows), 1)
        return np.zeros(count, np.int64), np.zeros(len(rows), np.int64), np.full(count, len(rows), np.int64)
    _, first, inverse, counts = np.unique(
        _comparable(rows), axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    inverse = inverse.reshape(-1)
    if not ascending:
        order = np.argsort(first)
        first, counts, inverse = first[order], counts[order], np.argsort(order)[inverse]
    return first, inverse, counts


def _comparable(rows: np.ndarray) -> np.ndarray:
    """`rows` in a dtype that numpy can sort by rows: strings as text of fixed width, floats as integers in the same
    order, so that one NaN equals another."""
    if rows.dtype == object:
        return rows.astype(np.str_)
    wide = summable(rows)
    if wide.dtype.kind != "f":
        return rows
    plain = np.where(np.isnan(wide), np.asarray(np.nan, wide.dtype), wide + wide.dtype.type(0))  # -0 becomes 0
    bits = np.ascontiguousarray(plain).view(f"i{wide.dtype.itemsize}")
    return np.asarray(bits ^ ((bits >> (8 * bits.itemsize - 1)) & np.iinfo(bits.dtype).max))
