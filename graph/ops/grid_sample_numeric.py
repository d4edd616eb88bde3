"""The numpy meaning of GridSample (ONNX GridSample-22), as PyTorch computes it.

onnx.reference differs for `cubic` with `border`: there the place, not each of its taps, is moved to the border.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .numeric import summable

# The free parameter of the cubic convolution (Keys 1981).
CUBIC = -0.75


class Tap(NamedTuple):
    """One element per result along a dim: its index, its weight, and whether it is there at all."""

    places: np.ndarray
    weight: np.ndarray
    present: np.ndarray


def grid_sample(x: np.ndarray, grid: np.ndarray, mode: str, padding: str, align_corners: bool) -> np.ndarray:
    """x [n, c, *spatial] read at grid [n, *result, rank], whose last dim holds places from -1 to 1, the last spatial
    dim first; the result is [n, c, *result]."""
    places = [grid[..., axis] for axis in reversed(range(grid.shape[-1]))]
    return sample(x, [scaled(place, size, align_corners) for place, size in zip(places, x.shape[2:], strict=True)],
                  mode, padding, align_corners)  # fmt: skip


def scaled(place: np.ndarray, size: int, align_corners: bool) -> np.ndarray:
    """Places from -1 to 1 as places among `size` elements: over their middles (`align_corners`), or their edges."""
    place = summable(place)
    return np.asarray((place + 1) / 2 * (size - 1) if align_corners else ((place + 1) * size - 1) / 2)


def sample(x: np.ndarray, places: Sequence[np.ndarray], mode: str, padding: str, align_corners: bool) -> np.ndarray:
    """x [n, c, *spatial] read at places [n, *result], one array for each spatial dim; the result is [n, c, *result]."""
    source = summable(x)
    taps = [
        _taps(summable(place), size, mode, padding, align_corners)
        for place, size in zip(places, x.shape[2:], strict=True)
    ]
    batch = np.arange(len(x)).reshape(-1, *[1] * (places[0].ndim - 1))
    result = np.zeros((*places[0].shape, x.shape[1]), source.dtype)
    for chosen in itertools.product(*taps):
        weight = np.prod([tap.weight * tap.present for tap in chosen], axis=0)
        where: Any = (batch, slice(None), *[tap.places for tap in chosen])
        # A place that is not there must not bring in a NaN that lies at the index put in its stead.
        present = np.logical_and.reduce([tap.present for tap in chosen])
        if not present.any():
            continue
        result += np.where(present[..., None], source[where] * weight[..., None], 0)
    return np.moveaxis(result, -1, 1).astype(x.dtype, copy=False)


def _taps(place: np.ndarray, size: int, mode: str, padding: str, align_corners: bool) -> list[Tap]:
    if mode == "cubic":
        low = np.floor(place)
        weights = _cubic(place - low)
        indices = [_padded(low + offset, size, padding, align_corners) for offset in (-1, 0, 1, 2)]
    elif mode == "linear":
        moved = _padded(place, size, padding, align_corners)
        low = np.floor(moved)
        weights, indices = [1 - (moved - low), moved - low], [low, low + 1]
    else:
        indices = [np.rint(_padded(place, size, padding, align_corners))]
        weights = [np.ones_like(place)]
    return [_tap(index, weight, size) for index, weight in zip(indices, weights, strict=True)]


def _tap(index: np.ndarray, weight: np.ndarray, size: int) -> Tap:
    present = (index >= 0) & (index <= size - 1)
    return Tap(np.where(present, index, 0).astype(np.int64), weight, present)


def _cubic(t: np.ndarray) -> list[np.ndarray]:
    def near(d: np.ndarray) -> np.ndarray:
        return np.asarray(((CUBIC + 2) * d - (CUBIC + 3)) * d * d + 1)

    def far(d: np.ndarray) -> np.ndarray:
        return np.asarray(((CUBIC * d - 5 * CUBIC) * d + 8 * CUBIC) * d - 4 * CUBIC)

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def built_cubic_weights(b: Any, t: Any) -> list[Any]:
    """The weights of four elements around a place `t` behind the second (Keys 1981), by a builder `b` of any level."""

    def near(d: Any) -> Any:
        return b.add(b.mul(b.mul(b.sub(b.mul(d, CUBIC + 2), CUBIC + 3), d), d), 1.0)

    def far(d: Any) -> Any:
        inner = b.add(b.mul(b.sub(b.mul(d, CUBIC), 5 * CUBIC), d), 8 * CUBIC)
        return b.sub(b.mul(inner, d), 4 * CUBIC)

    return [far(b.add(t, 1.0)), near(t), near(b.sub(1.0, t)), far(b.sub(2.0, t))]


def _padded(place: np.ndarray, size: int, padding: str, align_corners: bool) -> np.ndarray:
    """Where a place outside is read: nowhere ("zeros"), at the border, or mirrored at it."""
    if padding == "zeros":
        return place
    if padding == "reflection":
        low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
        place = _reflected(place, low, high)
    return np.asarray(np.clip(place, 0, size - 1))


def _reflected(place: np.ndarray, low: float, high: float) -> np.ndarray:
    span = high - low
    if math.isclose(span, 0):
        return np.zeros_like(place)
    distance = np.abs(place - place.dtype.type(low))
    extra, flips = np.fmod(distance, place.dtype.type(span)), np.floor(distance / place.dtype.type(span))
    return np.asarray(np.where(flips % 2 == 0, extra + low, span - extra + low)).astype(place.dtype)
