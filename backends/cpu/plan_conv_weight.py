"""Planning the adjoint of a convolution's filters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...graph.core import Operation, Value
from ...graph.kernel.strided import Strided
from ...graph.kernel.tracing import apply, choose
from .kernels.conv_weight import (
    ConvWeight,
    WeightTiling,
    blocks_of,
    build_conv_weight,
    choose_weight_tiling,
    weight_arguments,
    weight_scratch,
    weight_units,
)
from .kernels.depthwise_weight import (
    DepthwiseWeightTiling,
    build_depthwise_weight,
    depthwise_weight_arguments,
    depthwise_weight_scratch,
    depthwise_weight_tiling,
    depthwise_weight_units,
)
from .kernels.gemm import UNITS
from .kernels.image import Window
from .plan_map import clear, emit
from .plan_windows import DIMS, layout_of, places_of, strides_of, three
from .planner import Argument, Buffer, Planner, View, channels_last, plans

if TYPE_CHECKING:
    from ...graph.kernel.loop_builder import LoopBuilder


@plans("kernel.conv_weight")
def plan_conv_weight(planner: Planner, op: Operation) -> None:
    """Both operands channels last. Sums of many places are cut into parts by sizes alone, which are added in order."""
    x, grad = (_channels_last(planner, planner.view(value)) for value in op.operand_values)
    w = planner.new(op.result)
    if not x.layout.size or not grad.layout.size:
        clear(planner, w)
        return
    static = all(planner.is_static(value) for value in op.operand_values)
    rank, groups = len(x.shape) - 2, int(op.attr("group"))
    pads = tuple(op.attr("pads")) or (0,) * (2 * rank)
    planes, rows, pixels = places_of(three(grad.shape[2:]), static)
    kernel = ConvWeight(
        Window.of(op.attr("kernel_shape"), op.attr("strides"), op.attr("dilations")), int(x.shape[1]) // groups,
        int(grad.shape[1]) // groups, w.dtype, three(pads[:rank], 0), groups, planes, rows, pixels,
        layout_of(x, static), layout_of(grad, static),
    )  # fmt: skip
    _call(planner, kernel, x, grad, w)


def _channels_last(planner: Planner, view: View) -> View:
    """The view, or a copy whose channels lie next to each other."""
    if view.strides[1] == 1 or view.shape[1] == 1:
        return view
    return planner.copied(view, channels_last(len(view.shape)))


def _call(planner: Planner, kernel: ConvWeight, x: View, grad: View, w: View) -> None:
    is_depthwise = kernel.groups > 1 and kernel.channels == kernel.outputs == 1
    (_depthwise if is_depthwise else _products)(planner, kernel, x, grad, w)


def _products(planner: Planner, kernel: ConvWeight, x: View, grad: View, w: View) -> None:
    machine = planner.machine
    tiling: WeightTiling = choose(
        lambda count: choose_weight_tiling(kernel, machine, count, UNITS), grad.layout.size // grad.shape[1]
    )
    sums = _parts(planner, w, tiling.parts)
    name = f"conv_weight_{'x'.join(map(str, kernel.window.kernel))}_{kernel.channels}_{kernel.outputs}"
    compiled = planner.library.get(
        ("conv_weight", kernel, tiling), lambda name: build_conv_weight(name, kernel, tiling, machine), name
    )
    given, width = _arguments(planner, x, grad, sums), grad.shape[-1]
    given["across"] = apply(lambda pixels: blocks_of(pixels).across, width)
    given["down"] = apply(lambda pixels: blocks_of(pixels).down, width)
    room = apply(lambda pixels: weight_scratch(kernel, tiling, pixels), width)
    given["room"], scratch = room, room * w.dtype.numpy.itemsize
    work = 2.0 * grad.layout.size * kernel.channels * kernel.window.taps
    planner.call(compiled, weight_arguments(kernel), given, weight_units(kernel, tiling), work, scratch)
    _add(planner, sums, w)


def _depthwise(planner: Planner, kernel: ConvWeight, x: View, grad: View, w: View) -> None:
    machine = planner.machine
    tiling: DepthwiseWeightTiling = choose(
        lambda count: depthwise_weight_tiling(kernel, machine, count, UNITS), grad.layout.size // grad.shape[1]
    )
    sums = _parts(planner, w, tiling.parts)
    name = f"depthwise_weight_{'x'.join(map(str, kernel.window.kernel))}_{kernel.groups}"
    compiled = planner.library.get(
        ("depthwise_weight", kernel, tiling), lambda name: build_depthwise_weight(name, kernel, tiling), name
    )
    scratch = depthwise_weight_scratch(kernel, tiling) * w.dtype.numpy.itemsize
    given, work = _arguments(planner, x, grad, sums), 2.0 * grad.layout.size * kernel.window.taps
    units = depthwise_weight_units(kernel, tiling)
    planner.call(compiled, depthwise_weight_arguments(kernel), given, units, work, scratch)
    _add(planner, sums, w)


def _arguments(planner: Planner, x: View, grad: View, sums: View) -> dict[str, Argument]:
    """Buffers, extents and strides by name."""
    given: dict[str, Argument] = {"w": planner.buffer(sums), "scratch": Buffer(None), "images": grad.shape[0]}
    given |= zip(("planes", "rows", "pixels"), three(grad.shape[2:]), strict=True)
    given |= zip(("x_planes", "x_rows", "x_pixels"), three(x.shape[2:]), strict=True)
    for buffer, view in (("x", x), ("grad", grad)):
        given[buffer] = planner.buffer(view)
        given |= {f"{buffer}_{dim}": stride for dim, stride in zip(DIMS, strides_of(view), strict=True)}
    return given


def _parts(planner: Planner, w: View, parts: int) -> View:
    """Where the sums of each part go: to w itself, if there is one part."""
    return w if parts == 1 else planner.allocate((parts, w.layout.size), w.dtype)


def _row(sums: View, part: int) -> View:
    size = sums.shape[1]
    return sums.seen(Strided((size,), (1,), sums.layout.offset + part * size))


def _add(planner: Planner, sums: View, w: View) -> None:
    """Add the parts in order."""
    if sums is w:
        return
    parts = [_row(sums, part) for part in range(sums.shape[0])]
    flat = w.seen(Strided((w.layout.size,), (1,), w.layout.offset))

    def body(b: LoopBuilder, values: Sequence[Value]) -> list[Value]:
        total = values[0]
        for value in values[1:]:
            total = b.add(total, value)
        return [total]

    emit(planner, f"add_{len(parts)}_parts", body, ("add_parts", len(parts)), parts, [flat], len(parts))
