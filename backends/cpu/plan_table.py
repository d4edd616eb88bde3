"""Planning tables of bytes."""

from __future__ import annotations

from ...graph.core import Operation
from ...graph.kernel.strided import Strided, dense_strides
from .kernels.table import ARGUMENTS, build_table, table_units
from .planner import Argument, Planner, View, plans


@plans("kernel.table")
def plan_table(planner: Planner, op: Operation) -> None:
    """The result lies as the operand does, if that has no gaps; else the operand is copied first."""
    x = planner.view(op.operand_values[0])
    if not _is_dense(x):
        x = planner.copied(x, x.layout.order())
    y = planner.new(op.result, x.layout.order())
    target = y if _is_dense(y) else planner.allocate(y.shape, y.dtype, x.layout.order())
    compiled = planner.library.get(("table",), lambda name: build_table(name, planner.machine), "table")
    count = x.layout.size
    views = {"y": target, "x": x, "table": planner.view(op.operand_values[1])}
    given: dict[str, Argument] = {name: planner.buffer(view) for name, view in views.items()}
    given["count"] = count
    planner.call(compiled, ARGUMENTS, given, table_units(count), 1.0 * count)
    if target is not y:
        from .plan_moves import copy

        copy(planner, target, y)


def _is_dense(view: View) -> bool:
    """Whether the elements lie without gaps, in whatever order."""
    layout = view.layout
    return Strided(layout.shape, dense_strides(layout.shape, layout.order())).strides == layout.strides or (
        layout.is_contiguous
    )
