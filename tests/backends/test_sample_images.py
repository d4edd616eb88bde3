"""Images for parity runs: found by their shape, made the same twice, neither flat nor noise."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.backends.sample_images import image_axes, pages


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((2, 3, 32, 48), (1, 2, 3)),
        ((1, 224, 224, 3), (3, 1, 2)),
        ((1, 1, 28, 28), (1, 2, 3)),
        ((2, 64, 56, 56), None),
        ((2, 3, 8, 8), None),
        ((3, 32, 32), None),
        ((0, 3, 32, 32), None),
    ],
)
def test_which_shapes_are_images(shape, axes):
    assert image_axes(shape) == axes


@pytest.mark.parametrize("shape", [(2, 3, 32, 48), (1, 64, 40, 3), (1, 1, 16, 16)])
def test_pages_have_strokes_on_a_bright_ground(shape):
    made = pages(shape, np.random.default_rng(3))
    assert made.shape == shape
    np.testing.assert_array_equal(made, pages(shape, np.random.default_rng(3)))
    assert 0.02 < (made < -1.5).mean() < 0.9
    assert np.abs(made).max() < 2.5
