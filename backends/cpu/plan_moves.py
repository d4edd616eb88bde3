"""Planning what puts elements elsewhere: repeats, pads, places of extremes."""

from __future__ import annotations

import numpy as np

from ...graph.core import Operation
from ...graph.kernel.index_ops import Pad
from ...graph.kernel.strided import Strided
from .kernels.arg_extreme import ArgExtreme, arg_extreme_arguments, arg_extreme_units, build_arg_extreme
from .kernels.strided import View as TensorView
from .kernels.strided import split_rows
from .plan_map import copy, emit, order_of
from .planner import Argument, Planner, View, plans


@plans("kernel.tile")
def plan_tile(planner: Planner, op: Operation) -> None:
    """The result seen with two dims for each, of which the operand has one."""
    x = planner.view(op.operand_values[0])
    result = planner.new(op.result)
    repeats = [int(count) for count in planner.known(op.operand_values[1])]
    if not result.layout.size:
        return
    pairs = [(count, size) for count, size in zip(repeats, x.shape, strict=True)]
    target = result.layout.reshaped([n for pair in pairs for n in pair])
    assert target is not None
    source = x.seen(Strided(
        tuple(n for size in x.shape for n in (1, size)),
        tuple(n for stride in x.strides for n in (0, stride)), x.layout.offset,
    ))  # fmt: skip
    copy(planner, source.broadcast(target.shape), result.seen(target))


@plans("kernel.pad")
def plan_pad(planner: Planner, op: Operation) -> None:
    """The operand in the middle; around it the constant, or slices of what is there already, one dim after another."""
    definition = op.definition
    assert isinstance(definition, Pad)
    operands = op.operands
    x = planner.view(op.operand_values[0])
    widths = definition.widths(op, x.layout.rank, lambda index: planner.known(operands[index]))  # type: ignore[arg-type]
    result = planner.new(op.result, order_of(planner, op.operand_values[:1], x.shape))
    if not result.layout.size:
        return
    # What of the operand is left, and where it goes.
    source, target = x.layout, result.layout
    for axis, (before, after) in enumerate(widths):
        cut = max(0, -before)
        count = x.shape[axis] - cut - max(0, -after)
        source = source.sliced(axis, cut, max(0, count))
        target = target.sliced(axis, max(0, before), max(0, count))
    if source.size:
        copy(planner, x.seen(source), result.seen(target))
    mode = op.attr("mode")
    inside = [(max(0, before), source.shape[axis]) for axis, (before, _) in enumerate(widths)]
    for axis, (before, after) in enumerate(widths):
        # Of later dims only the middle is there yet.
        frame = result.layout
        for later in range(axis + 1, frame.rank):
            frame = frame.sliced(later, *inside[later])
        for place, count in ((0, max(0, before)), (inside[axis][0] + inside[axis][1], max(0, after))):
            if count and mode == "constant":
                _fill(planner, op, result.seen(frame.sliced(axis, place, count)))
            elif count:
                _extend(planner, str(mode), result.seen(frame), axis, inside[axis], place, count)


def _fill(planner: Planner, op: Operation, target: View) -> None:
    value = op.input(2)
    if value is None:
        emit(planner, "zero", lambda b, v: [0], ("zero", target.dtype), [], [target], 1)
        return
    source = planner.view(value)
    copy(planner, source.seen(Strided((), (), source.layout.offset)).broadcast(target.shape), target)


def _extend(
    planner: Planner, mode: str, frame: View, axis: int, inside: tuple[int, int], place: int, count: int
) -> None:
    """`count` slices from `place` on, each a copy of one inside."""
    start, size = inside
    for index in range(place, place + count):
        offset = index - start
        if mode == "edge":
            origin = min(max(offset, 0), size - 1)
        elif mode == "wrap":
            origin = offset % size
        else:  # reflect: back and forth, the ends once
            period = max(1, 2 * (size - 1))
            origin = offset % period
            origin = min(origin, period - origin) if size > 1 else 0
        source = frame.layout.sliced(axis, start + origin, 1)
        copy(planner, frame.seen(source), frame.seen(frame.layout.sliced(axis, index, 1)))


@plans("kernel.arg_extreme")
def plan_arg_extreme(planner: Planner, op: Operation) -> None:
    x = planner.view(op.operand_values[0])
    axis = int(op.attr("axis")) % x.layout.rank
    result = planner.new(op.result)
    strides = list(result.strides)
    if op.attr("keepdims"):
        strides[axis] = 0
    else:
        strides.insert(axis, 0)
    rows = split_rows(x.shape, [axis], [x.strides, x.strides, strides])
    static = planner.is_static(op.operand_values[0])

    def sizes(numbers: tuple[int, ...]) -> tuple[int | None, ...]:
        return tuple(number if static or number in (0, 1) else None for number in numbers)

    extents = rows.outer if static else (None,) * len(rows.outer)
    kernel = ArgExtreme(
        extents, rows.row[0] if static else None,
        TensorView(x.dtype, sizes(rows.outer_strides[1]), sizes(rows.row_strides[1])),
        TensorView(result.dtype, sizes(rows.outer_strides[2])),
        op.attr("kind") == "max", bool(op.attr("select_last_index")), along=rows.along,
    )  # fmt: skip
    machine = planner.machine
    name = f"arg{op.attr('kind')}_{rows.row[0]}"
    compiled = planner.library.get(("arg", kernel), lambda name: build_arg_extreme(name, kernel, machine), name)
    given: dict[str, Argument] = {"y0": planner.buffer(result), "x0": planner.buffer(x), "row0": rows.row[0]}
    given |= {f"outer{i}": extent for i, extent in enumerate(rows.outer)}
    for tensor, index in (("x0", 1), ("y0", 2)):
        given |= {f"{tensor}_outer{i}": stride for i, stride in enumerate(rows.outer_strides[index])}
        given |= {f"{tensor}_row{i}": stride for i, stride in enumerate(rows.row_strides[index])}
    arguments = [given[each] for each in arg_extreme_arguments(kernel) if each not in ("begin", "end", "thread")]
    units = arg_extreme_units(kernel, machine, rows.outer) if np.prod(rows.outer, dtype=np.int64) else 0
    planner.call(compiled, arguments, units, 4.0 * x.layout.size)
