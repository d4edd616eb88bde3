"""Planning linear algebra beyond products."""

from __future__ import annotations

from ...graph.core import Operation
from ...graph.kernel.scalar_emitter import computed_in
from ...graph.kernel.tracing import apply
from .kernels.determinant import (
    Determinant,
    build_determinant,
    determinant_arguments,
    determinant_scratch,
    determinant_units,
)
from .plan_moves import copy
from .planner import Argument, Buffer, Planner, plans


@plans("kernel.determinant")
def plan_determinant(planner: Planner, op: Operation) -> None:
    x, result = planner.contiguous(planner.view(op.operand_values[0])), planner.new(op.result)
    y = result if result.layout.is_contiguous else planner.allocate(result.shape, result.dtype)
    rows, machine = x.shape[-1], planner.machine
    kernel = Determinant(x.dtype, rows if planner.is_static(op.operand_values[0]) else None)
    compiled = planner.library.get(
        ("determinant", kernel), lambda name: build_determinant(name, kernel, machine), "determinant"
    )
    given: dict[str, Argument] = {"matrices": y.layout.size, "rows": rows, "scratch": Buffer(None)}
    given |= {"y": planner.buffer(y), "x": planner.buffer(x)}
    units = apply(determinant_units, kernel, machine, y.layout.size)
    scratch = apply(determinant_scratch, kernel, machine, rows) * computed_in(x.dtype).numpy.itemsize
    planner.call(compiled, determinant_arguments(kernel), given, units, 2.0 * x.layout.size * rows, scratch)
    if y is not result:
        copy(planner, y, result)
