"""Planning interpolation: two dims at a time, by tables of what each result reads."""

from __future__ import annotations

import numpy as np

from ...graph.core import Operation
from ...graph.dtypes import f32, i64
from ...graph.kernel.index_ops import Resample as ResampleOp
from ...graph.kernel.strided import Strided
from ...graph.ops.resize_numeric import matrices
from .kernels.resample import (
    Resample,
    Taps,
    build_resample,
    resample_arguments,
    resample_buffers,
    resample_scratch,
    resample_units,
    same,
    taps_of,
)
from .kernels.strided import stride_sizes
from .plan_map import order_of
from .plan_moves import copy
from .planner import Argument, Buffer, Planner, View, plans


def _crops(op: Operation) -> bool:
    """Whether parts of the result may lie outside of the operand, where they are a number of their own."""
    return bool(op.attr("coordinate_transformation_mode") == "tf_crop_and_resize")


@plans("kernel.resample")
def plan_resample(planner: Planner, op: Operation) -> None:
    """The first two dims that change, then the next two; then what is outside."""
    definition, operands = op.definition, op.operands
    assert isinstance(definition, ResampleOp)
    x = planner.view(op.operand_values[0])

    def known(index: int) -> np.ndarray:
        value = operands[index]
        assert value is not None
        return planner.known(value)

    changes = matrices(op, x.shape, *definition.given(op, known))
    outside: dict[int, np.ndarray] = {}
    if _crops(op):
        changes = [(axis, matrix) for axis, matrix in changes if not _is_identity(matrix)]
        outside = {axis: np.asarray(~matrix.any(axis=1)) for axis, matrix in changes}
        changes = [(axis, _somewhere(matrix, outside[axis])) for axis, matrix in changes]
    order = order_of(planner, op.operand_values[:1], x.shape)
    if not changes:
        copy(planner, x, planner.new(op.result, order))
        return
    while changes:
        now, changes = changes[:2], changes[2:]
        shape = list(x.shape)
        for axis, matrix in now:
            shape[axis] = len(matrix)
        y = planner.allocate(tuple(shape), x.dtype, order) if changes else planner.new(op.result, order)
        _resample(planner, x, y, {axis: taps_of(matrix) for axis, matrix in now})
        x = y
    _fill(planner, x, outside, float(op.attr("extrapolation_value")))


def _is_identity(matrix: np.ndarray) -> bool:
    return matrix.shape[0] == matrix.shape[1] and np.array_equal(matrix, np.eye(len(matrix)))


def _somewhere(matrix: np.ndarray, outside: np.ndarray) -> np.ndarray:
    """The matrix with the first element in rows that are outside, so that each row reads something."""
    changed = matrix.copy()
    changed[outside, 0] = 1
    return changed


def _fill(planner: Planner, y: View, outside: dict[int, np.ndarray], value: float) -> None:
    """Put a number where the result is outside: at the beginning and the end of each dim."""
    key = ("filling", y.dtype, value)
    number = planner.constant(planner.shared.weights.kept(key, lambda: np.array(value).astype(y.dtype.numpy)), y.dtype)
    for axis, rows in outside.items():
        edges = np.flatnonzero(np.diff(np.concatenate([[False], rows, [False]])))
        for start, end in edges.reshape(-1, 2).tolist():
            target = y.seen(y.layout.sliced(axis, start, end - start))
            one = number.seen(number.layout.reshaped((1,) * y.layout.rank) or number.layout)
            copy(planner, one.broadcast(target.shape), target)


def _resample(planner: Planner, x: View, y: View, taps: dict[int, Taps]) -> None:
    rank = x.layout.rank
    axes = sorted(taps)
    if len(axes) == 1 and rank > 1:
        axes = sorted([*axes, next(axis for axis in reversed(range(rank)) if axis not in axes)])
    fastest = y.layout.order()[-1] if rank else 0
    has_channels = fastest not in axes and x.strides[fastest] == 1 and y.strides[fastest] == 1
    outer = [axis for axis in y.layout.order() if axis not in axes and not (has_channels and axis == fastest)]
    moved = [*outer, *axes, *([fastest] if has_channels else [])]
    source, target = x.layout.transposed(moved), y.layout.transposed(moved)
    if len(axes) == 1:  # a vector: a matrix of one row
        source = Strided((1, *source.shape), (0, *source.strides), source.offset)
        target = Strided((1, *target.shape), (0, *target.strides), target.offset)
    row, column = taps.get(axes[0]) if len(axes) > 1 else same(1), taps.get(axes[-1])
    count = len(outer)
    row = row or same(source.shape[count])
    column = column or same(source.shape[count + 1])
    static = planner.static
    extents = target.shape
    channels = extents[count + 2] if has_channels else 0
    kernel = Resample(
        x.dtype, extents[:count] if static else (None,) * count, extents[count] if static else None,
        extents[count + 1] if static else None, source.shape[count + 1] if static else None,
        channels if static or not channels else None,
        stride_sizes(source.strides, static), stride_sizes(target.strides, static), row.count, column.count,
        row.copies and column.copies,
    )  # fmt: skip
    machine = planner.machine
    compiled = planner.library.get(
        ("resample", kernel), lambda name: build_resample(name, kernel, machine), f"resample_{row.count}x{column.count}"
    )
    given: dict[str, Argument] = {
        "x": planner.buffer(x), "y": planner.buffer(y), "rows": extents[count], "columns": extents[count + 1],
        "source_columns": source.shape[count + 1], "channels": channels, "scratch": Buffer(None),
    }  # fmt: skip
    for name, table in (("row", row), ("column", column)):
        given[f"{name}_index"] = planner.buffer(planner.constant(table.index, i64))
        given[f"{name}_weight"] = planner.buffer(planner.constant(table.weight, f32))
    given |= {f"outer{axis}": extent for axis, extent in enumerate(extents[:count])}
    for name, layout in (("x", source), ("y", target)):
        given |= {f"{name}_outer{axis}": stride for axis, stride in enumerate(layout.strides)}
    units = resample_units(extents[:count], extents[count]) if y.layout.size else 0
    scratch = resample_scratch(source.shape[count + 1]) * resample_buffers(kernel)["scratch"].numpy.itemsize
    planner.call(
        compiled, resample_arguments(kernel), given, units, 4.0 * y.layout.size * row.count * column.count, scratch
    )
