"""A transposed convolution as ordinary ones: outputs whose places leave the same rest when they are divided by the
strides (a phase) see the same taps, and lie over the input like a convolution of stride 1.

Along one dim, with stride s, dilation d and padding p, input i adds to output o = i * s - p + t * d for each tap t. The
outputs o = f + s * q see the taps for which f + p - t * d is divisible by s: every (s / g)-th one for g = gcd(s, d), at
inputs d / g apart. So `Conv` does the work: it is given the filters of the phase (`phase_filters`), the input from
`Phase.start` on, and a view of every s-th output from `Phase.first` on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ....graph.kernel.strided import Strided
from .image import Window

Three = tuple[int, int, int]


@dataclass(frozen=True)
class Phase:
    """A part of a transposed convolution.

    `window` is that of the convolution; `taps` are the taps of the filter in its order, along each dim. The outputs are
    those at `first` + stride * q, of which there are `extents`. The first tap of the first output is at `start` in the
    input, which is in the halo in front of it where it is less than 0. A phase without taps has outputs of 0 (and what
    an epilogue makes of it).
    """

    window: Window
    taps: tuple[tuple[int, ...], ...]
    first: Three
    extents: Three
    start: Three

    def halo(self, size: Sequence[int]) -> tuple[Three, Three]:
        """How many zeros the phase sees before and behind an input of `size` along each dim."""
        before, after = [], []
        for dim in range(3):
            taps, dilation = self.window.kernel[dim], self.window.dilations[dim]
            last = self.start[dim] + self.extents[dim] - 1 + (taps - 1) * dilation
            before.append(max(0, -self.start[dim]) if taps else 0)
            after.append(max(0, last - (size[dim] - 1)) if taps else 0)
        return (before[0], before[1], before[2]), (after[0], after[1], after[2])


def transposed_phases(window: Window, before: Sequence[int], outputs: Sequence[int]) -> list[Phase]:
    """The phases of a transposed convolution.

    `window` has its kernel, strides and dilations; `before` is the padding in front along depth, height and width,
    `outputs` the extents of the whole output.
    """
    dims = [
        _dim_phases(*facts)
        for facts in zip(window.kernel, window.strides, window.dilations, before, outputs, strict=True)
    ]
    phases = []
    for parts in itertools.product(*dims):
        kernel, dilations, first, extents, start = zip(
            *((len(part.taps), part.dilation, part.first, part.extent, part.start) for part in parts), strict=True
        )
        taps = tuple(part.taps for part in parts)
        phases.append(Phase(Window(kernel, (1, 1, 1), dilations), taps, first, extents, start))
    return phases


@dataclass(frozen=True)
class _DimPhase:
    """A phase along one dim."""

    taps: tuple[int, ...]
    dilation: int
    first: int
    extent: int
    start: int


def _dim_phases(kernel: int, stride: int, dilation: int, before: int, outputs: int) -> list[_DimPhase]:
    common = math.gcd(stride, dilation)
    step = dilation // common
    found = []
    for first in range(min(stride, outputs)):
        taps = [tap for tap in range(kernel) if (first + before - tap * dilation) % stride == 0]
        extent = -(-(outputs - first) // stride)
        # Later taps see earlier inputs, so they come first.
        taps.reverse()
        start = (first + before - taps[0] * dilation) // stride if taps else 0
        found.append(_DimPhase(tuple(taps), step, first, extent, start))
    return found


def phase_filters(w: Strided, phase: Phase, groups: int) -> Strided:
    """Where the filters of the phase's convolution lie [groups, outputs, channels of a group, *kernel] among those of
    the transposed one [channels, outputs of a group, *kernel] (as ONNX's ConvTranspose has them)."""
    channels, outputs, *kernel = w.shape
    layout = Strided(
        (groups, outputs, channels // groups, *kernel),
        (channels // groups * w.strides[0], w.strides[1], w.strides[0], *w.strides[2:]), w.offset,
    )  # fmt: skip
    for axis, taps in enumerate(phase.taps[3 - len(kernel) :], 3):
        step = taps[1] - taps[0] if len(taps) > 1 else 1
        layout = layout.sliced(axis, taps[0] if taps else 0, len(taps), step)
    return layout
