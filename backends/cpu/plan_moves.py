"""Planning what puts elements elsewhere: copies, repeats, pads; gathers and scatters; order, running sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...graph.core import Operation
from ...graph.dtypes import f32, i32, i64
from ...graph.kernel.index_ops import Pad
from ...graph.kernel.strided import Shape, Strided
from .kernels.arg_extreme import ArgExtreme, arg_extreme_arguments, arg_extreme_units, build_arg_extreme
from .kernels.indexed import (
    Gather,
    Indexed,
    Scatter,
    build_gather,
    build_scatter,
    can_stream,
    gather_units,
    indexed_arguments,
    scatter_units,
)
from .kernels.move import build_copy, copy_arguments, copy_units, moved_as, ordered
from .kernels.pad import Dim, build_pad, joined_dims, pad_arguments, pad_pieces, pad_units
from .kernels.pad import Pad as PadKernel
from .kernels.scan import Scan, build_scan, scan_arguments, scan_units
from .kernels.sort import FEW, Sort, build_sort, sort_arguments, sort_scratch, sort_units
from .kernels.strided import Along, Rows, Size, joined, split_rows, stride_sizes
from .kernels.strided import View as TensorView
from .plan_map import MOVED, order_of, turned
from .planner import Argument, Buffer, Planner, View, dtype_of, plans


def copy(planner: Planner, source: View, target: View) -> None:
    """Copy the elements of one view to another of the same shape and dtype."""
    form = ordered(target.shape, source.strides, target.strides)
    machine = planner.machine
    # Turning gains more than others from not having to read what it writes to.
    least = machine.streamed_bytes // (1 if form.turned is None else 2)
    is_large = bool(target.layout.size * target.dtype.numpy.itemsize >= least)
    kernel = form.of(target.dtype, planner.static)
    kernel = replace(kernel, streams=is_large and form.can_stream(target.dtype, machine))
    name = "turn" if form.turned is not None else "copy"
    compiled = planner.library.get(("copy", kernel), lambda name: build_copy(name, kernel, machine), name)
    given: dict[str, Argument] = {"y": planner.buffer(target), "x": planner.buffer(source)}
    given |= {"source_start": 0, "target_start": 0}
    for axis, (extent, give, take) in enumerate(zip(form.extents, form.source, form.target, strict=True)):
        given |= {f"outer{axis}": extent, f"x_outer{axis}": give, f"y_outer{axis}": take}
    units = copy_units(kernel, machine, form.extents) if target.layout.size else 0
    planner.call(compiled, copy_arguments(kernel), given, units, 1.0 * MOVED * target.layout.size)


@plans("kernel.tile")
def plan_tile(planner: Planner, op: Operation) -> None:
    """The result seen with two dims for each, of which the operand has one."""
    x = planner.view(op.operand_values[0])
    result = planner.new(op.result)
    repeats = planner.known(op.operand_values[1]).tolist()
    if not result.layout.size:
        return
    target = result.layout.reshaped([n for pair in zip(repeats, x.shape, strict=True) for n in pair])
    assert target is not None
    source = x.seen(Strided(
        tuple(n for size in x.shape for n in (1, size)),
        tuple(n for stride in x.strides for n in (0, stride)), x.layout.offset,
    ))  # fmt: skip
    copy(planner, source.broadcast(target.shape), result.seen(target))


@plans("kernel.pad")
def plan_pad(planner: Planner, op: Operation) -> None:
    """The operand in the middle, then border after border."""
    definition = op.definition
    assert isinstance(definition, Pad)
    operands = [value if value is not None else op.operand_values[0] for value in op.operands]
    x = planner.view(op.operand_values[0])
    widths = definition.widths(op, x.layout.rank, lambda index: planner.known(operands[index]))
    result = planner.new(op.result, order_of(planner, op.operand_values[:1], x.shape))
    value = op.input(2)
    zero = planner.constant(
        planner.shared.weights.kept(("zero", result.dtype), lambda: np.zeros((), result.dtype.numpy)), result.dtype
    )
    number = zero if value is None else planner.view(value)
    one = number.seen(Strided((), (), number.layout.offset)).broadcast((1,) * x.layout.rank)
    if op.attr("mode") == "constant" and _pad_at_once(planner, x, result, one, widths):
        return
    before, after = [low for low, _ in widths], [high for _, high in widths]
    for piece in pad_pieces(x.shape, before, after, str(op.attr("mode"))):
        view = {"x": x, "y": result, "value": one}[piece.kind]
        source = _from(view.layout, piece.source, piece.steps, piece.extents)
        target = _from(result.layout, piece.target, (1,) * x.layout.rank, piece.extents)
        copy(planner, view.seen(source), result.seen(target))


def _pad_at_once(planner: Planner, x: View, y: View, number: View, widths: Sequence[tuple[int, int]]) -> bool:
    """Write each row with its border, if both tensors are contiguous along the rows; whether that was possible."""
    if x.dtype.bits < 32 or planner.traced or not x.layout.size or not y.layout.size:
        return False
    parts = zip(x.shape, widths, x.strides, y.strides, strict=True)
    if not x.layout.rank:
        return False
    dims = joined_dims([Dim(size, *width, source, target) for size, width, source, target in parts])
    if (dims[-1].source, dims[-1].target) != (1, 1):
        return False
    kernel, machine = PadKernel(moved_as(x.dtype), len(dims)), planner.machine
    compiled = planner.library.get(("pad", kernel), lambda name: build_pad(name, kernel, machine), "pad")
    units, pieces = pad_units(planner.threads, *(dim.wide for dim in dims))
    given: dict[str, Argument] = {"y": planner.buffer(y), "x": planner.buffer(x), "value": planner.buffer(number)}
    given["pieces"] = pieces
    for axis, dim in enumerate(dims):
        given |= {f"size{axis}": dim.size, f"wide{axis}": dim.wide, f"before{axis}": dim.before}
        given |= {f"x_outer{axis}": dim.source, f"y_outer{axis}": dim.target}
    planner.call(compiled, pad_arguments(kernel), given, units, 1.0 * MOVED * y.layout.size)
    return True


def _from(layout: Strided, start: Sequence[int], steps: Sequence[int], extents: Sequence[int]) -> Strided:
    offset = layout.offset + sum(place * stride for place, stride in zip(start, layout.strides, strict=True))
    strides = tuple(step * stride for step, stride in zip(steps, layout.strides, strict=True))
    return Strided(tuple(extents), strides, offset)


# ---- by index --------------------------------------------------------------------------------------------------------


def _has_indices(op: Operation) -> bool:
    return dtype_of(op.operand_values[1]) in (i32, i64)


@plans("kernel.gather", accepts=_has_indices)
def plan_gather(planner: Planner, op: Operation) -> None:
    data, indices = (planner.view(value) for value in op.operand_values)
    axis = int(op.attr("axis")) % data.layout.rank
    result = planner.new(op.result)
    count = indices.layout.rank
    zeros = (0,) * count
    whole = (*data.strides[:axis], *zeros, *data.strides[axis + 1 :])
    places = (*(0,) * axis, *indices.strides, *(0,) * (data.layout.rank - axis - 1))
    steps = [(data.strides[axis], data.shape[axis])]
    _gather(planner, op, data, result, indices, (whole, result.strides, places), steps)


@plans("kernel.gather_elements", accepts=_has_indices)
def plan_gather_elements(planner: Planner, op: Operation) -> None:
    data, indices = (planner.view(value) for value in op.operand_values)
    axis = int(op.attr("axis")) % data.layout.rank
    result = planner.new(op.result)
    whole = (*data.strides[:axis], 0, *data.strides[axis + 1 :])
    steps = [(data.strides[axis], data.shape[axis])]
    _gather(planner, op, data, result, indices, (whole, result.strides, indices.strides), steps)


@plans("kernel.gather_nd", accepts=_has_indices)
def plan_gather_nd(planner: Planner, op: Operation) -> None:
    data, indices = (planner.view(value) for value in op.operand_values)
    batch, depth = int(op.attr("batch_dims")), indices.shape[-1]
    result = planner.new(op.result)
    middle, rest = indices.layout.rank - 1 - batch, data.layout.rank - batch - depth
    whole = (*data.strides[:batch], *(0,) * middle, *data.strides[batch + depth :])
    places = (*indices.strides[:-1], *(0,) * rest)
    steps = [(data.strides[batch + d], data.shape[batch + d]) for d in range(depth)]
    _gather(planner, op, data, result, indices, (whole, result.strides, places), steps, indices.strides[-1])


def _gather(
    planner: Planner,
    op: Operation,
    data: View,
    result: View,
    indices: View,
    strides: tuple[Shape, Shape, Shape],
    steps: Sequence[tuple[int, int]],
    component: int = 0,
) -> None:
    extents, lines = _joined(result.shape, strides)
    space = _space(planner, data, indices, extents, lines, len(steps))
    machine = planner.machine
    bytes = result.layout.size * result.dtype.numpy.itemsize
    kernel = Gather(space, can_stream(space, extents) and bool(bytes >= machine.streamed_bytes))
    name = op.name.removeprefix("kernel.")
    compiled = planner.library.get(("gather", kernel), lambda name: build_gather(name, kernel, machine), name)
    given = _indexed(planner, op, (data, result, indices), extents, lines, steps, component)
    planner.call(compiled, indexed_arguments(space), given, gather_units(kernel, extents), 4.0 * result.layout.size)


@plans("kernel.scatter_elements", accepts=_has_indices)
def plan_scatter_elements(planner: Planner, op: Operation) -> None:
    data, indices, updates = (planner.view(value) for value in op.operand_values)
    axis = int(op.attr("axis")) % data.layout.rank
    result = planner.new(op.result)
    copy(planner, data, result)
    rank = data.layout.rank
    whole = tuple(0 if a == axis else result.strides[a] for a in range(rank))
    steps = [(result.strides[axis], result.shape[axis])]
    # Other dims come first: along them, different elements go to different places.
    order = [a for a in range(rank) if a != axis] + [axis]
    lines = tuple(tuple(line[a] for a in order) for line in (whole, updates.strides, indices.strides))
    extents = tuple(indices.shape[a] for a in order)
    _scatter(planner, op, (result, updates, indices), extents, (lines[0], lines[1], lines[2]), steps, rank - 1)


@plans("kernel.scatter_nd", accepts=_has_indices)
def plan_scatter_nd(planner: Planner, op: Operation) -> None:
    data, indices, updates = (planner.view(value) for value in op.operand_values)
    result = planner.new(op.result)
    copy(planner, data, result)
    depth = indices.shape[-1]
    many = indices.layout.rank - 1
    steps = [(result.strides[d], result.shape[d]) for d in range(depth)]
    sizes, (wholes, parts) = joined(data.shape[depth:], [result.strides[depth:], updates.strides[many:]])
    lanes = bool(sizes) and bool(wholes[-1] == 1)
    # Places in a slice come first, since they are apart; but vectors lie along the last ones, if those are contiguous.
    first, last = (len(sizes) - 1, len(sizes)) if lanes else (len(sizes), len(sizes))
    extents = (*sizes[:first], *indices.shape[:-1], *sizes[first:last])
    whole = (*wholes[:first], *(0,) * many, *wholes[first:last])
    part = (*parts[:first], *updates.strides[:many], *parts[first:last])
    places = (*(0,) * first, *indices.strides[:-1], *(0,) * (last - first))
    lines = whole, part, places
    _scatter(planner, op, (result, updates, indices), extents, lines, steps, first, indices.strides[-1], lanes)


def _scatter(
    planner: Planner,
    op: Operation,
    views: tuple[View, View, View],
    extents: Shape,
    lines: tuple[Shape, Shape, Shape],
    steps: Sequence[tuple[int, int]],
    apart: int,
    component: int = 0,
    lanes: bool = False,
) -> None:
    """Dims are not joined, as the first `apart` of them must stay so, and with `lanes` the last one."""
    result, _, indices = views
    if not extents:
        extents, lines = (1,), ((0,), (0,), (0,))
    space = _space(planner, result, indices, extents, lines, len(steps))
    kernel = Scatter(space, str(op.attr("reduction")), apart, lanes)
    machine = planner.machine
    name = op.name.removeprefix("kernel.")
    compiled = planner.library.get(("scatter", kernel), lambda name: build_scatter(name, kernel, machine), name)
    given = _indexed(planner, op, views, extents, lines, steps, component)
    planner.call(compiled, indexed_arguments(space), given, scatter_units(kernel, extents), 8.0 * math.prod(extents))


def _joined(extents: Sequence[int], lines: tuple[Shape, Shape, Shape]) -> tuple[Shape, tuple[Shape, Shape, Shape]]:
    """Extents and strides with neighbouring dims joined; one dim at least."""
    kept, strides = joined(extents, lines)
    if not kept:
        return (1,), ((0,), (0,), (0,))
    return kept, (strides[0], strides[1], strides[2])


def _space(
    planner: Planner, whole: View, indices: View, extents: Shape, lines: tuple[Shape, Shape, Shape], components: int
) -> Indexed:
    static = planner.static
    known = extents if static else (None,) * len(extents)
    data, part, places = (stride_sizes(line, static) for line in lines)
    return Indexed(whole.dtype, indices.dtype, known, data, part, places, components)


def _indexed(
    planner: Planner,
    op: Operation,
    views: tuple[View, View, View],
    extents: Shape,
    lines: tuple[Shape, Shape, Shape],
    steps: Sequence[tuple[int, int]],
    component: int,
) -> dict[str, Argument]:
    given: dict[str, Argument] = {"fault": planner.fault(op), "indices_component": component}
    given |= {f"outer{axis}": extent for axis, extent in enumerate(extents)}
    for name, view, line in zip(("whole", "part", "indices"), views, lines, strict=True):
        given[name] = planner.buffer(view)
        given |= {f"{name}_outer{axis}": stride for axis, stride in enumerate(line)}
    for number, (step, limit) in enumerate(steps):
        given |= {f"step{number}": step, f"limit{number}": limit}
    return given


# ---- along a row -----------------------------------------------------------------------------------------------------


# Elements of a row up to which `_arg_extreme_along` calls it short.
_SHORT_ROW = 64


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
    views = rows.views([x.dtype, result.dtype], planner.static)
    kernel = ArgExtreme(
        *_row_extents(planner, rows), views[0], TensorView(result.dtype, views[1].outer),
        op.attr("kind") == "max", bool(op.attr("select_last_index")), along=_arg_extreme_along(planner, rows),
    )  # fmt: skip
    machine = planner.machine
    name = f"arg{op.attr('kind')}"
    compiled = planner.library.get(("arg", kernel), lambda name: build_arg_extreme(name, kernel, machine), name)
    given = _row_arguments(planner, rows, {"x0": x, "y0": result})
    units = arg_extreme_units(kernel, machine, rows.outer) if result.layout.size else 0
    planner.call(compiled, arg_extreme_arguments(kernel), given, units, 4.0 * x.layout.size)


def _arg_extreme_along(planner: Planner, rows: Rows) -> Along:
    """Many short rows are taken side by side, though their elements have to be gathered then: taken alone, each would
    end with its lanes compared one by one, which costs more."""
    is_short = rows.along == "row" and rows.row[0] <= _SHORT_ROW
    return "column" if is_short and rows.outer and rows.outer[-1] >= planner.machine.lanes(f32) else rows.along


@plans("kernel.scan")
def plan_scan(planner: Planner, op: Operation) -> None:
    x = planner.view(op.operand_values[0])
    axis = int(planner.known(op.operand_values[1]).reshape(-1)[0]) % max(1, x.layout.rank)
    result = planner.new(op.result, order_of(planner, op.operand_values[:1], x.shape))
    rows = split_rows(x.shape, [axis], [x.strides, x.strides, result.strides])
    views = rows.views([x.dtype, result.dtype], planner.static)
    kernel = Scan(
        *_row_extents(planner, rows), views[0], views[1], "sum" if op.attr("kind") == "sum" else "product",
        bool(op.attr("exclusive")), bool(op.attr("reverse")), rows.along,
    )  # fmt: skip
    machine = planner.machine
    compiled = planner.library.get(("scan", kernel), lambda name: build_scan(name, kernel, machine), "scan")
    given = _row_arguments(planner, rows, {"x0": x, "y0": result})
    units = scan_units(kernel, machine, rows.outer) if x.layout.size else 0
    planner.call(compiled, scan_arguments(kernel), given, units, 4.0 * x.layout.size)


@plans("kernel.sort")
def plan_sort(planner: Planner, op: Operation) -> None:
    x = planner.view(op.operand_values[0])
    axis = int(op.attr("axis")) % x.layout.rank
    x = turned(planner, x, [*(a for a in range(x.layout.rank) if a != axis), axis])
    k = int(planner.known(op.operand_values[1]).reshape(-1)[0])
    values, indices = (planner.new(result) for result in op.results)
    lines = [[*(n for a, n in enumerate(v.strides) if a != axis), v.strides[axis]] for v in (x, values, indices)]
    outer = tuple(n for a, n in enumerate(x.shape) if a != axis)
    static = planner.static
    x_line, y_line, i_line = (stride_sizes(line, static) for line in lines)
    kernel = Sort(
        x.dtype, outer if static else (None,) * len(outer), x.shape[axis] if static else None,
        k if static else None, x_line, y_line, i_line, bool(op.attr("largest")), k <= FEW,
    )  # fmt: skip
    machine = planner.machine
    compiled = planner.library.get(("sort", kernel), lambda name: build_sort(name, kernel, machine), "sort")
    given: dict[str, Argument] = {"row0": x.shape[axis], "k": k, "scratch": Buffer(None)}
    given |= {f"outer{i}": extent for i, extent in enumerate(outer)}
    for name, view, line in zip(("x", "y", "i"), (x, values, indices), lines, strict=True):
        given[name] = planner.buffer(view)
        given |= {f"{name}_outer{i}": stride for i, stride in enumerate(line)}
    units = sort_units(outer) if k and x.layout.size else 0
    planner.call(
        compiled, sort_arguments(kernel), given, units, 16.0 * x.layout.size, sort_scratch(kernel, x.shape[axis]) * 8
    )


def _row_extents(planner: Planner, rows: Rows) -> tuple[tuple[Size, ...], Size]:
    if planner.static:
        return rows.outer, rows.row[0]
    return (None,) * len(rows.outer), None


def _row_arguments(planner: Planner, rows: Rows, views: dict[str, View]) -> dict[str, Argument]:
    return {**rows.numbers(list(views)), **{name: planner.buffer(view) for name, view in views.items()}}
