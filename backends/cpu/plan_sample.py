"""Planning kernels that read images between their elements: everything channels last."""

from __future__ import annotations

from ...graph.core import Operation
from .kernels.roi_align import RoiAlign, build_roi_align, roi_align_arguments, roi_align_units
from .kernels.strided import stride_sizes
from .plan_map import clear
from .planner import Argument, Planner, View, channels_last, plans


def _channels_last(planner: Planner, view: View) -> View:
    if view.strides[1] == 1 or view.shape[1] == 1:
        return view
    return planner.copied(view, channels_last(len(view.shape)))


@plans("kernel.roi_align")
def plan_roi_align(planner: Planner, op: Operation) -> None:
    x, regions, batch = (planner.view(value) for value in op.operand_values)
    y = planner.new(op.result)
    if not x.layout.size:
        clear(planner, y)
        return
    x, regions, batch = _channels_last(planner, x), planner.contiguous(regions), planner.contiguous(batch)
    kernel = RoiAlign(
        x.dtype, stride_sizes(x.strides, planner.static), stride_sizes(y.strides, planner.static),
        (y.shape[2], y.shape[3]), int(op.attr("sampling_ratio")), float(op.attr("spatial_scale")),
        op.attr("coordinate_transformation_mode") == "half_pixel", op.attr("mode") == "max",
    )  # fmt: skip
    machine = planner.machine
    compiled = planner.library.get(
        ("roi_align", kernel), lambda name: build_roi_align(name, kernel, machine), "roi_align"
    )
    given: dict[str, Argument] = dict(zip(("images", "channels", "height", "width"), x.shape, strict=True))
    given |= {"regions": planner.buffer(regions), "batch": planner.buffer(batch), "fault": planner.fault(op)}
    for name, view in (("x", x), ("y", y)):
        given[name] = planner.buffer(view)
        given |= {f"{name}_outer{axis}": stride for axis, stride in enumerate(view.strides)}
    units = roi_align_units(kernel, y.shape[0])
    planner.call(compiled, roi_align_arguments(kernel), given, units, 64.0 * y.layout.size)
