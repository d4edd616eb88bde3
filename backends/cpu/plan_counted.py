"""Planning kernels that find as many elements as there are: places that are not zero, boxes, different rows."""

from __future__ import annotations

import math

import numpy as np

from ...graph.core import Operation
from ...graph.dtypes import DType, f32, i64
from ...graph.kernel.counted_ops import Suppress as SuppressOp
from ...graph.kernel.tracing import apply
from .kernels.nonzero import NonZero, build_nonzero_count, build_nonzero_positions, nonzero_arguments, nonzero_units
from .kernels.suppress import (
    Suppress,
    build_collect,
    build_suppress,
    collect_arguments,
    suppress_arguments,
    suppress_scratch,
    suppress_units,
)
from .kernels.unique import Unique, build_unique, unique_arguments, unique_scratch
from .planner import Argument, Buffer, Planner, View, plans


@plans("kernel.nonzero")
def plan_nonzero(planner: Planner, op: Operation) -> None:
    """Chunks are counted, then written."""
    x = planner.contiguous(planner.view(op.operand_values[0]))
    places, total = (planner.new(result) for result in op.results)
    kernel, machine, units = NonZero(x.dtype, x.layout.rank), planner.machine, apply(_units, *x.shape)
    counts = planner.allocate((units,), i64)
    given: dict[str, Argument] = {f"outer{axis}": extent for axis, extent in enumerate(x.shape)}
    given |= {"size": x.layout.size}
    given |= zip(("y", "total", "x", "counts"), map(planner.buffer, (places, total, x, counts)), strict=True)
    library, names, work = planner.library, nonzero_arguments(kernel), 4.0 * x.layout.size
    first = library.get(("nonzero", kernel), lambda name: build_nonzero_count(name, kernel, machine), "nonzero_count")
    planner.call(first, names, given, units, work)
    last = library.get(("places", kernel), lambda name: build_nonzero_positions(name, kernel, machine), "nonzero")
    planner.call(last, names, given, units, work)


def _units(*shape: int) -> int:
    return nonzero_units(shape)


@plans("kernel.suppress")
def plan_suppress(planner: Planner, op: Operation) -> None:
    """Each class chooses, then all are put together."""
    definition, machine, library = op.definition, planner.machine, planner.library
    assert isinstance(definition, SuppressOp)
    corners, scores = (planner.contiguous(planner.view(value)) for value in op.operand_values[:2])
    batches, classes, boxes = scores.shape
    most = definition.most(op, boxes)
    y, total = (planner.new(result) for result in op.results)
    chosen, counts = (planner.allocate(shape, i64) for shape in ((batches * classes, most), (batches * classes,)))
    least = _number(planner, op, 4, 0, f32)
    given: dict[str, Argument] = {"batches": batches, "classes": classes, "boxes": boxes, "most": most}
    given |= {
        "corners": planner.buffer(corners), "scores": planner.buffer(scores), "y": planner.buffer(y),
        "total": planner.buffer(total), "chosen": planner.buffer(chosen), "counts": planner.buffer(counts),
        "limit": planner.buffer(_number(planner, op, 2, 0, i64)),
        "overlap": planner.buffer(_number(planner, op, 3, 0, f32)),
        "least": planner.buffer(least), "scratch": Buffer(None),
    }  # fmt: skip
    kernel = Suppress(bool(op.attr("center_point_box")), _is_given(planner, op, 4))
    first = library.get(("suppress", kernel), lambda name: build_suppress(name, kernel, machine), "suppress")
    units = apply(suppress_units, batches, classes)
    scratch = apply(suppress_scratch, boxes, most) * 8
    planner.call(first, suppress_arguments(), given, units, 16.0 * scores.layout.size, scratch)
    last = library.get(("collect",), lambda name: build_collect(name, machine), "collect")
    planner.call(last, collect_arguments(), given, apply(max, units, 1), 4.0 * units)


@plans("kernel.unique")
def plan_unique(planner: Planner, op: Operation) -> None:
    """One unit of work."""
    x = planner.contiguous(planner.view(op.operand_values[0]))
    results = [planner.new(result) for result in op.results]
    rows, columns = x.shape
    kernel, machine = Unique(x.dtype, bool(columns == 1), bool(op.attr("sorted"))), planner.machine
    compiled = planner.library.get(("unique", kernel), lambda name: build_unique(name, kernel, machine), "unique")
    given: dict[str, Argument] = {"rows": rows, "columns": columns, "x": planner.buffer(x), "scratch": Buffer(None)}
    given |= zip(("first", "inverse", "counts", "total"), map(planner.buffer, results), strict=True)
    planner.call(compiled, unique_arguments(), given, 1, 64.0 * x.layout.size, unique_scratch(rows) * 8)


def _is_given(planner: Planner, op: Operation, index: int) -> bool:
    value = op.input(index)
    return value is not None and math.prod(planner.shape(value)) > 0


def _number(planner: Planner, op: Operation, index: int, default: float, dtype: DType) -> View:
    """An operand of one number, or what it is if it is not given."""
    value = op.input(index)
    if value is not None and _is_given(planner, op, index):
        return planner.view(value)
    key = ("number", default, dtype)
    return planner.constant(planner.shared.weights.kept(key, lambda: np.array(default, dtype.numpy)), dtype)
