"""Images in flat buffers for tests of kernels, and plain convolution and windows in numpy to hold those against."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

DIMS = ("image", "plane", "row", "pixel", "channel")


@dataclass
class ImageBuffer:
    """Images [image, channel, plane, row, pixel] in the flat array `flat`, where element 0 is `offset`."""

    flat: np.ndarray
    strides: dict[str, int]
    shape: tuple[int, ...]
    halo: tuple[int, int, int] = (0, 0, 0)

    def images(self) -> np.ndarray:
        """A view of the images, without the halo."""
        steps = [self.strides[dim] for dim in ("image", "channel", "plane", "row", "pixel")]
        start = sum(before * step for before, step in zip(self.halo, steps[2:], strict=True))
        size = self.flat.itemsize
        return np.lib.stride_tricks.as_strided(self.flat[start:], self.shape, [step * size for step in steps])

    def named(self, name: str) -> dict[str, int]:
        """The strides by the names that a kernel's arguments have."""
        return {f"{name}_{dim}": step for dim, step in self.strides.items()}


def image_buffer(
    shape: Sequence[int],
    dtype: Any,
    before: Sequence[int] = (0, 0, 0),
    after: Sequence[int] = (0, 0, 0),
    gap: int = 0,
    planar: bool = False,
    fill: float = 0,
) -> ImageBuffer:
    """A buffer for images of `shape` [image, channel, plane, row, pixel] and a halo; `gap` elements between pixels that
    belong to nobody (between rows if `planar`, with channels outside)."""
    images, channels, *space = shape
    planes, rows, pixels = (size + b + a for size, b, a in zip(space, before, after, strict=True))
    if planar:
        row = pixels + gap
        steps = {"image": row * rows * planes * channels, "channel": row * rows * planes, "plane": row * rows}
        steps |= {"row": row, "pixel": 1}
    else:
        pixel = channels + gap
        steps = {"image": pixel * pixels * rows * planes, "plane": pixel * pixels * rows, "row": pixel * pixels}
        steps |= {"pixel": pixel, "channel": 1}
    flat = np.full(steps["image"] * images, fill, dtype)
    return ImageBuffer(flat, steps, tuple(shape), tuple(before))  # type: ignore[arg-type]


def of_images(x: np.ndarray, before: Sequence[int], after: Sequence[int], **how: Any) -> ImageBuffer:
    """`x` [image, channel, plane, row, pixel] in a buffer, surrounded by zeros."""
    buffer = image_buffer(x.shape, x.dtype, before, after, **how)
    buffer.images()[...] = x
    return buffer


def taps(kernel: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*(range(size) for size in kernel))


def seen(x: np.ndarray, tap: Sequence[int], strides: Any, dilations: Any, out: Sequence[int]) -> np.ndarray:
    """What each output sees of the padded `x` at one tap."""
    first = [place * dilation for place, dilation in zip(tap, dilations, strict=True)]
    cut = [
        slice(start, start + (count - 1) * step + 1, step)
        for start, step, count in zip(first, strides, out, strict=True)
    ]
    return x[(slice(None), slice(None), *cut)]


def extents(size: Sequence[int], kernel: Any, strides: Any, dilations: Any) -> list[int]:
    """The extents of the output over a padded input of `size`."""
    return [
        (total - (taps - 1) * dilation - 1) // step + 1
        for total, taps, step, dilation in zip(size, kernel, strides, dilations, strict=True)
    ]


def convolution(
    x: np.ndarray, w: np.ndarray, strides: Any, dilations: Any, before: Any, after: Any, groups: int = 1
) -> np.ndarray:
    """x [n, c, d, h, w] and w [outputs, channels of a group, kd, kh, kw], tap by tap."""
    padded = np.pad(x, [(0, 0), (0, 0), *zip(before, after, strict=True)])
    out = extents(padded.shape[2:], w.shape[2:], strides, dilations)
    outputs, channels = w.shape[0] // groups, w.shape[1]
    result = np.zeros((x.shape[0], w.shape[0], *out), x.dtype)
    for group in range(groups):
        those = slice(group * outputs, (group + 1) * outputs)
        source = padded[:, group * channels : (group + 1) * channels]
        for tap in taps(w.shape[2:]):
            part = seen(source, tap, strides, dilations, out)
            result[:, those] += np.einsum("ncdhw,oc->nodhw", part, w[(those, slice(None), *tap)])
    return result
