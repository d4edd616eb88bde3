"""Made-up images for models that take some: pages of dark strokes on an uneven bright ground.

White noise excites almost nothing in a network trained on pictures, so that its outputs are zeros up to rounding and a
comparison of two models says little. A page has edges, texture and empty areas at the scale of letters.
"""

from __future__ import annotations

import numpy as np


def image_axes(shape: tuple[int, ...]) -> tuple[int, int, int] | None:
    """The axes (channels, height, width) of what looks like a batch of images: NCHW or NHWC with 1 or 3 channels."""
    if len(shape) != 4 or min(shape) < 1:
        return None
    if shape[1] in (1, 3) and min(shape[2:]) >= 16:
        return 1, 2, 3
    return (3, 1, 2) if shape[3] in (1, 3) and min(shape[1:3]) >= 16 else None


def pages(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """A float64 array of `shape`, images with values from about -2 to 2, as normalized pictures have."""
    axes = image_axes(shape)
    assert axes is not None
    channels, height, width = (shape[axis] for axis in axes)
    batch = np.stack([_page(channels, height, width, rng) for _ in range(shape[0])])
    return batch if axes[0] == 1 else batch.transpose(0, 2, 3, 1)


def _page(channels: int, height: int, width: int, rng: np.random.Generator) -> np.ndarray:
    down, across = np.mgrid[0:height, 0:width] / max(height, width)
    slope = rng.uniform(-2, 2, 2)
    ground = 1.2 + 0.5 * np.sin(2 * np.pi * (slope[0] * down + slope[1] * across))
    page = np.repeat(ground[None], channels, axis=0) + rng.normal(0, 0.02, (channels, height, width))
    size = max(4, min(height, width) // 24)
    stroke = max(1, size // 8)
    for top in range(size // 2, height - 2 * size, 2 * size + size // 2):
        for left in range(size // 2, width - size, size + size // 3):
            if rng.random() < 0.15:
                continue  # a gap between words
            for _ in range(3):
                if rng.random() < 0.5:
                    y = top + int(rng.integers(0, 2 * size - stroke))
                    page[:, y : y + stroke, left : left + size] = -1.8
                else:
                    x = left + int(rng.integers(0, size - stroke))
                    page[:, top : top + 2 * size, x : x + stroke] = -1.8
    return page
