"""Pools of images whose pixels follow each other: reductions of windows, which are views of the image and may overlap.

Vectors lie along the pixels of the result, so that neither image nor result is turned to have its channels last. Only
where windows do not reach beyond the image, and rows fill a vector.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from ...graph.core import Operation
from ...graph.kernel.kernel_base import epilogue_of, extras_of
from ...graph.kernel.scalar_emitter import computed_in
from ...graph.kernel.strided import Shape, Strided
from .kernels.strided import split_rows
from .plan_rows import Function, Reduction, emit_reduction, function_of, over, totals_of, with_means
from .planner import Planner, View

if TYPE_CHECKING:
    from .plan_windows import Geometry


def suits_planes(planner: Planner, x: View, places: Shape, geometry: Geometry) -> bool:
    """Whether a pool of `x`, whose windows have so many places along each dim, is best done where the image lies."""
    is_turned = x.strides[1] == 1 or x.shape[1] == 1
    if is_turned or geometry.is_padded or x.strides[-1] != 1 or geometry.strides[-1] not in (1, 2):
        return False
    if places[-1] < planner.machine.lanes(computed_in(x.dtype)):
        return False
    # Those whose number is rounded up, or that are larger than the image, reach beyond it without padding, too.
    steps = zip(places, geometry.strides, geometry.kernel, geometry.dilations, x.shape[2:], strict=True)
    return all((count - 1) * stride + (taps - 1) * dilation < size for count, stride, taps, dilation, size in steps)


def pool_planes(planner: Planner, op: Operation, x: View, geometry: Geometry) -> None:
    """One call: rows are windows, which lie side by side."""
    result, rank = planner.new(op.result), len(geometry.kernel)
    shape = (*result.shape, *geometry.kernel)
    axes = range(len(result.shape), len(shape))
    steps = [step * stride for step, stride in zip(geometry.strides, x.strides[2:], strict=True)]
    taps = [step * stride for step, stride in zip(geometry.dilations, x.strides[2:], strict=True)]
    source = x.seen(Strided(shape, (*x.strides[:2], *steps, *taps), x.layout.offset))
    extras = [planner.view(value).broadcast(result.shape) for value in extras_of(op)]
    target, *others = (
        over(view.seen(Strided((*view.shape, *(1,) * rank), (*view.strides, *(0,) * rank), view.layout.offset)),
             shape, axes)
        for view in (result, *extras)
    )  # fmt: skip
    kinds = ["max" if op.attr("kind") == "max" else "mean"]
    totals = totals_of(kinds, [computed_in(result.dtype)])
    work = Reduction(totals, Function(None, None), function_of(epilogue_of(op)))
    work, others = with_means(planner, work, kinds, math.prod(geometry.kernel), shape, others)
    rows = split_rows(shape, axes, [view.strides for view in (target, source, target, *others)])
    emit_reduction(planner, op, work, replace(rows, along="column"), [source], [target], others)
