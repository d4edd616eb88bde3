"""Planning kernels that find as many elements as there are: places that are not zero."""

from __future__ import annotations

from ...graph.core import Operation
from ...graph.dtypes import i64
from ...graph.kernel.tracing import apply
from .kernels.nonzero import NonZero, build_nonzero_count, build_nonzero_positions, nonzero_arguments, nonzero_units
from .planner import Argument, Planner, plans


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
