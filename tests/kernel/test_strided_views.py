"""Strided layouts against numpy's own views: transposes, slices, broadcasts, and which reshapes need no copy."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.graph.kernel.kernel_base import take
from tilewright.graph.kernel.strided import Strided, dense_strides

random = np.random.default_rng(3)


def random_view() -> tuple[np.ndarray, Strided, np.ndarray]:
    """An array, a layout in `flat` that means the same, and `flat`."""
    shape = tuple(int(n) for n in random.integers(1, 5, random.integers(0, 5)))
    flat = np.arange(int(np.prod(shape)))
    array, layout = flat.reshape(shape), Strided.contiguous(shape)
    axes = [int(axis) for axis in random.permutation(len(shape))]
    array, layout = array.transpose(axes), layout.transposed(axes)
    for axis, size in enumerate(array.shape):
        start, step = int(random.integers(0, size)), int(random.choice([1, 1, 2, -1]))
        taken = range(start, size, step) if step > 0 else range(start, -1, step)
        array = array[(slice(None),) * axis + (_slice(taken),)]
        layout = layout.sliced(axis, taken.start, len(taken), step)
    return array, layout, flat


def _slice(taken: range) -> slice:
    stop = taken.stop if taken.stop >= 0 else None
    return slice(taken.start, stop, taken.step)


def test_transposes_and_slices() -> None:
    for _ in range(300):
        array, layout, flat = random_view()
        assert layout.shape == array.shape
        assert np.array_equal(take(flat, layout), array)
        assert layout.is_contiguous == (array.flags.c_contiguous or array.size == 0)


def test_reshapes_need_a_copy_just_where_numpy_needs_one() -> None:
    outcomes = set()
    for _ in range(600):
        array, layout, flat = random_view()
        target: list[int] = []
        rest = array.size
        while rest > 1:
            target.append(int(random.choice([n for n in range(1, rest + 1) if rest % n == 0])))
            rest //= target[-1]
        try:
            expected = array.reshape(target, copy=False)
        except ValueError:
            assert layout.reshaped(target) is None
            outcomes.add("copy")
            continue
        found = layout.reshaped(target)
        assert found is not None
        assert np.array_equal(take(flat, found), expected)
        outcomes.add("view")
    assert outcomes == {"copy", "view"}


def test_broadcast() -> None:
    layout = Strided.contiguous((3, 1)).broadcast((2, 3, 4))
    assert (layout.shape, layout.strides) == ((2, 3, 4), (0, 1, 0))
    with pytest.raises(ValueError, match="does not broadcast"):
        Strided.contiguous((3, 2)).broadcast((3, 4))
    with pytest.raises(ValueError, match="does not broadcast"):
        Strided.contiguous((3, 2)).broadcast((2,))


def test_orders() -> None:
    channels_last = Strided((2, 3, 4, 5), dense_strides((2, 3, 4, 5), (0, 2, 3, 1)))
    assert channels_last.strides == (60, 1, 15, 3)
    assert channels_last.order() == (0, 2, 3, 1)
    assert channels_last.transposed((0, 2, 3, 1)).is_contiguous
