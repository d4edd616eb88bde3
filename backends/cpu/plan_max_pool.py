"""Planning max pools that give places, and their adjoint."""

from __future__ import annotations

from ...graph.core import Operation
from .kernels.image import Window
from .kernels.max_pool import MaxPool, build_max_pool, max_pool_arguments, max_pool_units
from .plan_windows import DIMS, Geometry, layout_of, places_of, strides_of, three
from .planner import Argument, Planner, View, channels_last, plans


@plans("kernel.max_pool")
def plan_max_pool(planner: Planner, op: Operation) -> None:
    """Everything channels last."""
    geometry = Geometry.of(planner, op)
    x = _channels_last(planner, planner.view(op.operand_values[0]))
    order = channels_last(len(x.shape))
    y, places = (planner.new(result, order) for result in op.results)
    _call(planner, op, geometry.window, three(geometry.before, 0), (x, y, places), is_adjoint=False)


@plans("kernel.max_pool_grad")
def plan_max_pool_grad(planner: Planner, op: Operation) -> None:
    """Everything channels last."""
    y, places = (_channels_last(planner, planner.view(value)) for value in op.operand_values[:2])
    x = planner.new(op.result, channels_last(len(y.shape)))
    window = Window.of(op.attr("kernel_shape"), op.attr("strides"), op.attr("dilations"))
    before = tuple(op.attr("pads"))[: len(y.shape) - 2] or (0,) * (len(y.shape) - 2)
    _call(planner, op, window, three(before, 0), (x, y, places), is_adjoint=True)


def _channels_last(planner: Planner, view: View) -> View:
    if view.strides[1] == 1 or view.shape[1] == 1:
        return view
    return planner.copied(view, channels_last(len(view.shape)))


def _call(
    planner: Planner,
    op: Operation,
    window: Window,
    before: tuple[int, int, int],
    views: tuple[View, View, View],
    is_adjoint: bool,
) -> None:
    x, y, places = views
    static = all(planner.is_static(value) for value in (*op.operand_values[:2], *op.results))
    planes, rows, pixels = places_of(three(y.shape[2:]), static)
    kernel = MaxPool(
        window, x.dtype, before, x.shape[1] if static else None, planes, rows, pixels, layout_of(x, static),
        layout_of(y, static), layout_of(places, static), is_adjoint,
    )  # fmt: skip
    machine = planner.machine
    name = f"max_pool_{'grad' if is_adjoint else 'places'}_{'x'.join(map(str, window.kernel))}"
    compiled = planner.library.get(("max_pool", kernel), lambda name: build_max_pool(name, kernel, machine), name)
    given: dict[str, Argument] = {"images": x.shape[0], "channels": x.shape[1]}
    given |= zip(("planes", "rows", "pixels"), three(y.shape[2:]), strict=True)
    given |= zip(("x_planes", "x_rows", "x_pixels"), three(x.shape[2:]), strict=True)
    for buffer, view in (("x", x), ("y", y), ("places", places)):
        given[buffer] = planner.buffer(view)
        given |= {f"{buffer}_{dim}": stride for dim, stride in zip(DIMS, strides_of(view), strict=True)}
    written = three((x if is_adjoint else y).shape[2:])
    units = max_pool_units(x.shape[0], *written[:2]) if y.layout.size else 0
    planner.call(compiled, max_pool_arguments(kernel), given, units, 2.0 * y.layout.size * window.taps)
