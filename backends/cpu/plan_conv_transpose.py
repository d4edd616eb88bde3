"""Planning transposed convolutions: ordinary ones, channels last, for outputs that see the same taps.

Where all outputs of a row see the same inputs, as with filters as large as the strides, those of neighbouring pixels
are one convolution: what it writes of an input pixel lies together, and inputs are read once for each row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

from ...graph.core import Operation
from ...graph.kernel.kernel_base import extras_of
from ...graph.kernel.kernel_ops import Windowed
from ...graph.kernel.strided import Strided
from ...graph.ops.conv_numeric import transposed_sizes
from .kernels.conv_transpose import Phase, phase_filters, transposed_phases
from .kernels.depthwise import MOST_TAPS
from .kernels.image import Window
from .plan_moves import copy
from .plan_windows import (
    Filters,
    Geometry,
    convolve_from,
    depthwise_from,
    packed_taps_of,
    padded,
    readable,
    sums_of_nothing,
    three,
    untouched,
)
from .planner import Planner, View, channels_last, plans


@plans("kernel.conv_transpose")
def plan_conv_transpose(planner: Planner, op: Operation) -> None:
    """A convolution for each phase: outputs that see the same taps."""
    source, weight = op.operand_values[:2]
    definition = op.definition
    assert isinstance(definition, Windowed)
    w, shape = planner.view(weight), planner.shape(op.result)
    if not w.layout.size or not math.prod(planner.shape(source)):
        sums_of_nothing(planner, op, channels_last(len(shape)))
        return
    window = definition.window(op, [planner.shape(source), w.shape])
    before, _ = transposed_sizes(op, window, planner.shape(source)[2:])
    phases = transposed_phases(
        Window.of(w.shape[2:], window.strides, window.dilations), three(before, 0), three(shape[2:])
    )
    rank, order = len(shape) - 2, channels_last(len(shape))
    halos = [phase.halo(three(planner.shape(source)[2:])) for phase in phases]
    low, high = (tuple(max(halo[side][d] for halo in halos) for d in range(3 - rank, 3)) for side in (0, 1))
    x = padded(planner, planner.view(source), Geometry((), (), (), low, high), order)
    y = planner.new(op.result, order)
    extras = [readable(planner, planner.view(value).broadcast(shape)) for value in extras_of(op)]
    static = planner.is_fixed([op.result, source], [x, y, *extras], len(shape) - 1)
    groups, constant = int(op.attr("group")), planner.constant_behind(weight)
    for phase, *beside in _side_by_side(phases, window.strides[-1], (y, *extras), constant is not None and groups == 1):
        first, extents = phase.first[3 - rank :], phase.extents[3 - rank :]
        views = [_every(view, first, window.strides, extents) for view in (y, *extras)]
        if not all(phase.window.kernel):
            untouched(planner, op, views)
            continue
        start = sum(place * stride for place, stride in zip(phase.start[3 - rank :], x.strides[2:], strict=True))
        filters: Filters | None = None
        for each in (*reversed(beside), phase):
            own = w.seen(phase_filters(w.layout, each, groups))
            key = None if constant is None else (constant, own.layout, *(filters.key or () if filters else ()))
            filters = Filters(own, key, filters)
        assert filters is not None
        if beside:
            views = [_of_neighbours(planner, view, 1 + len(beside)) for view in views]
        if groups > 1 and groups == x.shape[1] == y.shape[1] and phase.window.taps <= MOST_TAPS:
            taps = partial(packed_taps_of, planner, filters)
            depthwise_from(planner, op, phase.window, (x, *views), start, taps, static)
            continue
        convolve_from(planner, op, phase.window, (x, *views), start, filters, static)


def _side_by_side(
    phases: Sequence[Phase], width: int, views: Sequence[View], can_join: bool
) -> Iterator[Sequence[Phase]]:
    """Phases of `width` neighbouring pixels that see the same inputs: they are one, whose outputs are the channels of
    all of them, if those follow each other in y and in what the epilogue reads, or are the same for all pixels."""
    rows = [phases[start : start + width] for start in range(0, len(phases), width)]
    alike = all(_goes_with(row[0], phase, pixel) for row in rows for pixel, phase in enumerate(row))
    if can_join and width > 1 and alike and len(rows[-1]) == width and all(map(_has_neighbours, views)):
        yield from rows
    else:
        yield from ([phase] for phase in phases)


def _goes_with(first: Phase, phase: Phase, pixel: int) -> bool:
    """Whether a phase is that of the outputs `pixel` further on, and sees what the first one sees."""
    sees = (phase.window, phase.start, phase.extents) == (first.window, first.start, first.extents)
    return sees and phase.first == (*first.first[:2], pixel)


def _has_neighbours(view: View) -> bool:
    """Whether the channels of neighbouring pixels follow each other, or are the same for all pixels."""
    channel, *places = view.strides[1:]
    is_dense = channel == 1 and places[-1] == view.shape[1]
    return bool(is_dense or not any((view.strides[0], *places)))


def _of_neighbours(planner: Planner, view: View, count: int) -> View:
    """Every `count`-th pixel, with the channels of those up to the next one."""
    images, channels, *places = view.shape
    shape, strides = (images, count * channels, *places), view.strides
    if view.strides[-1] == 0 and view.strides[1]:  # what has an element for each channel
        repeated = planner.allocate((count, channels), view.dtype)
        copy(planner, view.seen(Strided((count, channels), (0, strides[1]), view.layout.offset)), repeated)
        return repeated.seen(Strided(shape, (0, 1, *(0,) * len(places)), repeated.layout.offset))
    return view.seen(Strided(shape, strides, view.layout.offset))


def _every(view: View, first: Sequence[int], strides: Sequence[int], extents: Sequence[int]) -> View:
    layout = view.layout
    for axis, (start, step, count) in enumerate(zip(first, strides, extents, strict=True), 2):
        layout = layout.sliced(axis, start, count, step)
    return view.seen(layout)
