"""Planning kernels that read images between their elements, or add up parts of them."""

from __future__ import annotations

from ...graph.core import Operation
from ...graph.kernel.index_ops import block_places
from ...graph.kernel.tracing import apply
from .kernels.columns import Columns, build_columns, columns_arguments, columns_pieces
from .kernels.max_roi_pool import MaxRoiPool, build_max_roi_pool, max_roi_pool_arguments, max_roi_pool_units
from .kernels.roi_align import RoiAlign, build_roi_align, roi_align_arguments, roi_align_units
from .kernels.sample import Sample, build_sample, sample_arguments, sample_units
from .kernels.strided import stride_sizes
from .plan_map import clear
from .planner import Argument, Planner, View, channels_last, plans

# So many channels are worth laying together where several elements are read for each.
_WIDE = 16


def _channels_last(planner: Planner, view: View) -> View:
    if view.strides[1] == 1 or view.shape[1] == 1:
        return view
    return planner.copied(view, channels_last(len(view.shape)))


@plans("kernel.roi_align")
def plan_roi_align(planner: Planner, op: Operation) -> None:
    batch = planner.contiguous(planner.view(op.operand_values[2]))
    x, regions, y = _regions(planner, op)
    if not x.layout.size:
        return
    kernel = RoiAlign(
        x.dtype, stride_sizes(x.strides, planner.static), stride_sizes(y.strides, planner.static),
        (y.shape[2], y.shape[3]), int(op.attr("sampling_ratio")), float(op.attr("spatial_scale")),
        op.attr("coordinate_transformation_mode") == "half_pixel", op.attr("mode") == "max",
    )  # fmt: skip
    machine = planner.machine
    compiled = planner.library.get(
        ("roi_align", kernel), lambda name: build_roi_align(name, kernel, machine), "roi_align"
    )
    given = {"batch": planner.buffer(batch), **_region_arguments(planner, op, x, regions, y)}
    units = roi_align_units(kernel, y.shape[0])
    planner.call(compiled, roi_align_arguments(kernel), given, units, 64.0 * y.layout.size)


@plans("kernel.max_roi_pool")
def plan_max_roi_pool(planner: Planner, op: Operation) -> None:
    x, regions, y = _regions(planner, op)
    if not x.layout.size:
        return
    kernel = MaxRoiPool(
        x.dtype, stride_sizes(x.strides, planner.static), stride_sizes(y.strides, planner.static),
        (y.shape[2], y.shape[3]), float(op.attr("spatial_scale")),
    )  # fmt: skip
    machine = planner.machine
    compiled = planner.library.get(
        ("max_roi_pool", kernel), lambda name: build_max_roi_pool(name, kernel, machine), "max_roi_pool"
    )
    given = _region_arguments(planner, op, x, regions, y)
    units = max_roi_pool_units(kernel, y.shape[0])
    planner.call(compiled, max_roi_pool_arguments(kernel), given, units, 64.0 * y.layout.size)


def _regions(planner: Planner, op: Operation) -> tuple[View, View, View]:
    """Images channels last, contiguous regions, and the result, which is 0 if the images have no elements."""
    x, regions = (planner.view(value) for value in op.operand_values[:2])
    y = planner.new(op.result)
    if not x.layout.size:
        clear(planner, y)
        return x, regions, y
    return _channels_last(planner, x), planner.contiguous(regions), y


def _region_arguments(planner: Planner, op: Operation, x: View, regions: View, y: View) -> dict[str, Argument]:
    given: dict[str, Argument] = dict(zip(("images", "channels", "height", "width"), x.shape, strict=True))
    given |= {"regions": planner.buffer(regions), "fault": planner.fault(op)}
    for name, view in (("x", x), ("y", y)):
        given[name] = planner.buffer(view)
        given |= {f"{name}_outer{axis}": stride for axis, stride in enumerate(view.strides)}
    return given


@plans("kernel.sample")
def plan_sample(planner: Planner, op: Operation) -> None:
    """Along the channels if they lie together, are asked to or are many, else along the places."""
    x, *places = (planner.view(value) for value in op.operand_values)
    is_wide = bool(x.shape[1] >= _WIDE and op.attr("mode") != "nearest")
    by_channel = bool(op.attr("channels_last") or x.strides[1] == 1 or is_wide) and x.shape[1] > 1
    y = planner.new(op.result, channels_last(len(planner.shape(op.result))) if by_channel else None)
    by_channel = by_channel and y.strides[1] == 1
    x = _channels_last(planner, x) if by_channel else x
    names = [f"place{axis}" for axis in range(x.layout.rank - 2)] + ["factor"] * op.attr("has_factor")
    static = planner.static
    lines = [stride_sizes(place.strides, static) for place in places]
    kernel = Sample(
        x.dtype, places[0].dtype, stride_sizes(x.strides, static), stride_sizes(y.strides, static),
        tuple(lines[: x.layout.rank - 2]), lines[-1] if op.attr("has_factor") else None, str(op.attr("mode")),
        str(op.attr("padding")), bool(op.attr("align_corners")), bool(op.attr("normalized")), by_channel,
    )  # fmt: skip
    machine = planner.machine
    compiled = planner.library.get(("sample", kernel), lambda name: build_sample(name, kernel, machine), "sample")
    given: dict[str, Argument] = {"images": x.shape[0], "channels": x.shape[1]}
    given |= {f"size{axis}": size for axis, size in enumerate(x.shape[2:])}
    given |= {f"outer{axis}": extent for axis, extent in enumerate(y.shape[2:])}
    for name, view in zip(("x", "y", *names), (x, y, *places), strict=True):
        given[name] = planner.buffer(view)
        given |= {f"{name}_outer{axis}": stride for axis, stride in enumerate(view.strides)}
    units = apply(sample_units, y.shape[0], *y.shape[2:])
    planner.call(compiled, sample_arguments(kernel), given, units, 32.0 * y.layout.size)


@plans("kernel.columns_to_image")
def plan_columns(planner: Planner, op: Operation) -> None:
    """The columns as they lie, if their places do so in order."""
    x, y = planner.view(op.operand_values[0]), planner.new(op.result)
    if not x.layout.size:
        clear(planner, y)
        return
    image, block = (planner.known(value).tolist() for value in op.operand_values[1:])
    strides, dilations, pads = (tuple(op.attr(name)) for name in ("strides", "dilations", "pads"))
    places = block_places(image, block, strides, dilations, pads)
    sizes = (stride_sizes(x.strides, planner.static), stride_sizes(y.strides, planner.static))
    kernel = Columns(x.dtype, tuple(block), strides, dilations, pads[: len(block)], *sizes)
    machine = planner.machine
    compiled = planner.library.get(("columns", kernel), lambda name: build_columns(name, kernel, machine), "columns")
    pieces = apply(columns_pieces, planner.threads, *y.shape)
    given: dict[str, Argument] = {"channels": y.shape[1], "pieces": pieces}
    given |= {f"size{axis}": size for axis, size in enumerate(image)}
    given |= {f"places{axis}": count for axis, count in enumerate(places)}
    for name, view in (("x", x), ("y", y)):
        given[name] = planner.buffer(view)
        given |= {f"{name}_outer{axis}": stride for axis, stride in enumerate(view.strides)}
    units = y.shape[0] * y.shape[1] * pieces if y.layout.size else 0
    planner.call(compiled, columns_arguments(kernel), given, units, 2.0 * x.layout.size)
