"""Planning convolutions and pools: channels last, with zeros around the image where the window reads beyond it."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...graph import types
from ...graph.core import Operation, Value
from ...graph.dtypes import f32, i32
from ...graph.kernel.bodies import ROUNDING, ROUNDING_BITS, interpret
from ...graph.kernel.kernel_base import ViewOp, epilogue_of, extras_of, take
from ...graph.kernel.kernel_ops import Windowed
from ...graph.kernel.scalar_emitter import ScalarEmitter, computed_in
from ...graph.kernel.strided import Shape, Strided, dense_strides
from ...graph.kernel.tracing import apply, choose
from ...graph.lowerings.builder import data_of
from ...graph.ops.pooling_numeric import number, pads_of
from .kernels.border import Border, border_arguments, build_border
from .kernels.conv import (
    Conv,
    ConvTiling,
    build_conv,
    choose_conv_tiling,
    conv_arguments,
    conv_blocks,
    conv_cycles,
    conv_tilings,
    conv_units,
    fill_filters,
    filter_count,
    panels_outside,
    part_bounds,
)
from .kernels.depthwise import (
    MOST_TAPS,
    Blocks,
    Depthwise,
    DepthwiseTiling,
    build_depthwise,
    choose_depthwise_tiling,
    depthwise_arguments,
    depthwise_blocks,
    depthwise_units,
    packed_taps,
)
from .kernels.image import ImageEpilogue, ImageOperand, Layout, Window
from .kernels.pool import Pool, build_pool, pool_arguments, pool_blocks, pool_units
from .kernels.strided import zero_or_one
from .kernels.tile import EpilogueBody
from .kernels.winograd import (
    FILTER_ARGUMENTS,
    FilterTransform,
    WinogradTiling,
    build_filter_transform,
    build_winograd,
    choose_running_winograd,
    choose_winograd,
    fill_transformed,
    transformed_shape,
    winograd_applies,
    winograd_arguments,
    winograd_panel_groups,
    winograd_scratch,
    winograd_units,
)
from .plan_gemm import Product, multiply
from .plan_map import clear, emit, finishing, finishing_key
from .plan_moves import copy
from .plan_planes import pool_planes, suits_planes
from .planner import Argument, Buffer, Halo, Planner, View, channels_last, plans

if TYPE_CHECKING:
    from ...graph.kernel.loop_builder import LoopBuilder

# An image of at most so many channels that is not channels last is convolved as it lies.
PLANAR_CHANNELS = 4
DIMS = ("image", "plane", "row", "pixel", "channel")


@dataclass(frozen=True)
class Geometry:
    """A window over spatial dims as numbers."""

    kernel: Shape
    strides: Shape
    dilations: Shape
    before: Shape
    after: Shape

    @staticmethod
    def of(planner: Planner, op: Operation) -> Geometry:
        definition = op.definition
        assert isinstance(definition, Windowed)
        shapes = [planner.shape(value) for value in op.operand_values]
        window = definition.window(op, shapes)
        before, after = pads_of(window, shapes[0][2:])
        kernel = tuple(number(size) for size in window.kernel)
        return Geometry(kernel, window.strides, window.dilations, tuple(before), tuple(after))

    @property
    def is_pointwise(self) -> bool:
        return all(size == 1 for size in (*self.kernel, *self.strides)) and not self.is_padded

    @property
    def is_padded(self) -> bool:
        return any(self.before) or any(self.after)

    @property
    def window(self) -> Window:
        return Window.of(self.kernel, self.strides, self.dilations)


def wanted_halo(planner: Planner, op: Operation) -> None:
    """Ask for the room around the image that the window of `op` reads. Of bytes only depthwise ones read such room."""
    is_integer = op.name == "kernel.integer_conv"
    if op.name != "kernel.conv" and not (is_integer and is_depthwise(planner, op)):
        return
    geometry = Geometry.of(planner, op)
    x = op.operand_values[0]
    if geometry.is_padded and min(geometry.before + geometry.after) >= 0:
        planner.want_halo(x, geometry.before, geometry.after, op.operand_values[2] if is_integer else None)


def is_depthwise(planner: Planner, op: Operation) -> bool:
    """Whether a convolution has one constant filter for each channel, small enough for bytes."""
    x, w = (planner.shape(value) for value in op.operand_values[:2])
    fits = w[1] == 1 and w[0] == x[1] == groups_of(op) and math.prod(w[2:]) <= MOST_TAPS
    return fits and all(map(is_constant, op.operand_values[1:4:2]))


def is_constant(value: Value) -> bool:
    """Whether a value is a constant of the model, or a view of one."""
    while value.producer is not None and isinstance(value.producer.definition, ViewOp):
        value = value.producer.operand_values[0]
    return data_of(value) is not None


def clear_halo(planner: Planner, view: View, halo: Halo) -> None:
    """Put zeros around an image, or what fills the halo."""
    fill = None if halo.fill is None else planner.view(halo.fill)
    kernel = Border(view.dtype, fill is not None)
    machine = planner.machine
    compiled = planner.library.get(("border", kernel), lambda name: build_border(name, kernel, machine), "border")
    images, channels, *own = view.shape
    if view.strides[1] != 1:  # each channel is an image of its own
        images, channels = images * channels, 1
    before, after = ((*(0,) * (3 - len(own)), *sides) for sides in (halo.before, halo.after))
    planes, rows, pixels = (*(1,) * (3 - len(own)), *own)
    given: dict[str, Argument] = {
        "y": Buffer(view.storage), "own_planes": planes, "first_plane": before[0], "own_rows": rows,
        "first_row": before[1], "planes": before[0] + planes + after[0], "rows": before[1] + rows + after[1],
        "line": (before[2] + pixels + after[2]) * channels, "left": before[2] * channels, "right": after[2] * channels,
    }  # fmt: skip
    if fill is not None:
        given["x"] = planner.buffer(fill)
    lines = images * (before[0] + planes + after[0]) * (before[1] + rows + after[1])
    cleared = lines * (before[2] + pixels + after[2]) * channels - view.layout.size
    planner.call(compiled, border_arguments(kernel), given, lines, 8.0 * cleared)


def padded(planner: Planner, view: View, geometry: Geometry, order: Sequence[int], fill: Value | None = None) -> View:
    """The image with zeros (or `fill`) around it as far as the window reads, its axes in `order`."""
    is_in_order = view.strides[order[-1]] == 1 or view.shape[order[-1]] == 1
    # Padding of less than nothing leaves the border of the image out, which needs no room.
    before, after = (tuple(max(0, room) for room in rooms) for rooms in (geometry.before, geometry.after))
    is_padded = any(before) or any(after)
    if is_in_order and not is_padded:
        return view
    there = planner.halos.get(view.storage)
    if is_in_order and there is not None and there[0] == view.layout and there[1].fill is fill:
        rooms = zip((*there[1].before, *there[1].after), (*geometry.before, *geometry.after), strict=True)
        if all(room >= needed for room, needed in rooms):
            return view
    return planner.copied(view, order, Halo(before, after, fill) if is_padded else None)


@plans("kernel.conv")
def plan_conv(planner: Planner, op: Operation) -> None:
    """A product for windows of one element, else a convolution."""
    source, weight = op.operand_values[:2]
    geometry = Geometry.of(planner, op)
    x, shape = planner.view(source), planner.shape(op.result)
    groups = int(op.attr("group"))
    order = channels_last(len(shape))
    if not x.layout.size or not planner.view(weight).layout.size:
        sums_of_nothing(planner, op, order)
        return
    channels = x.shape[1] // groups
    is_planar = channels <= PLANAR_CHANNELS and groups == 1 and x.strides[1] != 1
    x = padded(planner, x, geometry, tuple(range(len(shape))) if is_planar else order)
    y = planner.new(op.result, order)
    extras = [readable(planner, planner.view(value).broadcast(shape)) for value in extras_of(op)]
    if geometry.is_pointwise and groups == 1 and not is_planar and as_matrix(planner, op, x, y, extras, weight):
        return
    static = planner.is_fixed([op.result, source], [x, y, *extras], len(shape) - 1)
    if groups > 1 and channels == 1 and groups == y.shape[1]:
        convolve_depthwise(planner, op, geometry, x, y, extras, static)
    else:
        convolve(planner, op, geometry, x, y, extras, static)


def readable(planner: Planner, view: View) -> View:
    """An operand of an epilogue whose channels lie 1 or 0 apart."""
    if view.shape[1] == 1:
        strides = (view.strides[0], 0, *view.strides[2:])
        return view.seen(Strided(view.shape, strides, view.layout.offset))
    if view.strides[1] in (0, 1):
        return view
    # Only what differs is copied: dims that are broadcast stay so.
    kept = Strided(
        tuple(1 if stride == 0 else size for size, stride in zip(view.shape, view.strides, strict=True)),
        view.strides, view.layout.offset,
    )  # fmt: skip
    return planner.copied(view.seen(kept), channels_last(len(view.shape))).broadcast(view.shape)


def as_matrix(planner: Planner, op: Operation, x: View, y: View, extras: Sequence[View], weight: Value) -> bool:
    """Multiply the pixels of all images, as rows, with the filters; False if they do not lie like a matrix."""
    order = channels_last(len(y.shape))
    views = [view.layout.transposed(order) for view in (x, y, *extras)]
    pixels = [flat_pixels(view) for view in views]
    if any(each is None for each in pixels):
        return False
    matrices = [view.seen(flat) for view, flat in zip((x, y, *extras), pixels, strict=True) if flat is not None]
    filters = planner.view(weight)
    outputs, channels = filters.shape[:2]
    b = filters.seen(Strided((channels, outputs), (filters.strides[1], filters.strides[0]), filters.layout.offset))
    constant = planner.constant_behind(weight)
    static = planner.is_static(op.result)
    multiply(planner, op, Product(matrices[0], b, matrices[1], tuple(matrices[2:]), constant, static))
    return True


def flat_pixels(view: Strided) -> Strided | None:
    """Images [n, *spatial, channels] as one matrix of pixels and channels."""
    *outer, channels = view.shape
    rows = Strided(tuple(outer), view.strides[:-1], view.offset)
    if all(stride == 0 or size == 1 for size, stride in zip(rows.shape, rows.strides, strict=True)):
        return Strided((math.prod(outer), channels), (0, view.strides[-1]), view.offset)
    flat = rows.reshaped((rows.size,))
    return None if flat is None else Strided((rows.size, channels), (flat.strides[0], view.strides[-1]), view.offset)


def convolve(
    planner: Planner, op: Operation, geometry: Geometry, x: View, y: View, extras: Sequence[View], static: bool
) -> None:
    """Call the convolution of views."""
    weight = op.operand_values[1]
    start = -sum(before * stride for before, stride in zip(geometry.before, x.strides[2:], strict=True))
    filters = _filters(planner, weight, groups_of(op))
    convolve_from(planner, op, geometry.window, (x, y, *extras), start, filters, static)


@dataclass(frozen=True)
class Filters:
    """Filters as a view [groups, outputs, channels, *kernel], and if they are constant what they are found by. Those of
    further outputs may follow."""

    view: View
    key: tuple[Any, ...] | None
    more: Filters | None = None

    def array(self) -> np.ndarray:
        """The elements of constant filters [groups * outputs, channels, *kernel]."""
        own = self._own()
        return own if self.more is None else np.concatenate([own, self.more.array()])

    def _own(self) -> np.ndarray:
        array, layout = self.view.storage.array, self.view.layout
        assert array is not None
        flat = array.reshape(-1)
        is_whole = layout.is_contiguous
        taken = flat[layout.offset : layout.offset + layout.size] if is_whole else take(flat, layout)
        return taken.reshape(-1, *layout.shape[2:])


def groups_of(op: Operation) -> int:
    return int(op.attr("group"))


def _filters(planner: Planner, weight: Value, groups: int) -> Filters:
    """The filters [groups * outputs, channels, *kernel] of a convolution."""
    view = planner.view(weight)
    outputs, *rest = view.shape
    strides = (outputs // groups * view.strides[0], *view.strides)
    layout = Strided((groups, outputs // groups, *rest), strides, view.layout.offset)
    constant = planner.constant_behind(weight)
    return Filters(view.seen(layout), None if constant is None else (constant, layout))


def convolve_from(
    planner: Planner, op: Operation, window: Window, views: Sequence[View], start: int, filters: Filters, static: bool
) -> None:
    """Call the convolution of x, which begins `start` elements further on, to y; the other views are the epilogue's."""
    x, y, *extras = views
    groups = int(op.attr("group"))
    places, machine = three(y.shape[2:]), planner.machine
    planes, rows, pixels = places_of(places, static)
    conv = Conv(
        window, x.shape[1] // groups, y.shape[1] // groups, y.dtype, groups, planes, rows, pixels,
        layout_of(x, static, True), layout_of(y, static), _epilogue(op, extras, static),
    )  # fmt: skip
    tiling = choose_conv_tiling(conv, machine)
    fewer = None
    if filters.key is not None and winograd_applies(conv):
        fewer = choose(lambda rows, pixels: choose_winograd(conv, machine, rows, pixels, tiling), places[1], places[2])
    elif filters.key is None and winograd_applies(conv):
        fewer = choose(
            lambda images, rows, pixels: choose_running_winograd(conv, machine, images, rows, pixels, tiling),
            y.shape[0], *places[1:],
        )  # fmt: skip
    if fewer is not None:
        _convolve_winograd(planner, op, conv, fewer, (x, y, *extras), start, filters)
        return
    if filters.key is None and tiling.together > 1:  # groups that share a vector are packed when compiling only
        apart = [each for each in conv_tilings(conv, machine) if each.together == 1]
        tiling = min(apart, key=lambda each: conv_cycles(conv, each, machine))
    outside = choose(lambda *sizes: panels_outside(conv, tiling, machine, *sizes), y.shape[0], *places[1:])
    tiling = replace(tiling, panels_outside=outside)
    key = ("conv", _without_body(conv), tiling, finishing_key(op))
    name = f"conv_{'x'.join(map(str, window.kernel))}_{conv.channels}_{conv.outputs}"
    compiled = planner.library.get(key, lambda name: build_conv(name, conv, tiling), name)
    packed = _packed(planner, filters, conv, tiling)
    blocks = apply(
        lambda rows, pixels: conv_blocks(conv, tiling, machine, rows, pixels, planner.threads), places[1], places[2]
    )  # fmt: skip
    given = _arguments(planner, start, x, y, extras) | {"w": planner.buffer(packed), "blocks": blocks}
    units = conv_units(conv, tiling, y.shape[0], places[0], blocks) if y.layout.size else 0
    planner.call(compiled, conv_arguments(conv), given, units, 2.0 * y.layout.size * conv.depth)


def _convolve_winograd(
    planner: Planner,
    op: Operation,
    conv: Conv,
    tiling: WinogradTiling,
    views: Sequence[View],
    start: int,
    filters: Filters,
) -> None:
    """Call Winograd's convolution."""
    x, y, *extras = views
    images, (_, rows, pixels) = y.shape[0], three(y.shape[2:])
    key = ("winograd", _without_body(conv), tiling, finishing_key(op))
    name = f"winograd_{tiling.size}_{conv.channels}_{conv.outputs}"
    compiled = planner.library.get(key, lambda name: build_winograd(name, conv, tiling), name)
    packed = _transformed(planner, filters, conv, tiling)
    groups = apply(
        lambda n, height, width: winograd_panel_groups(conv, tiling, n, height, width, planner.threads),
        images, rows, pixels,
    )  # fmt: skip
    given = _arguments(planner, start, x, y, extras)
    given |= {"w": planner.buffer(packed), "scratch": Buffer(None), "panel_groups": groups}
    units = winograd_units(conv, tiling, images, rows, pixels, groups) if y.layout.size else 0
    scratch = winograd_scratch(conv, tiling) * conv.dtype.numpy.itemsize
    # A quarter of the products, at best.
    planner.call(compiled, winograd_arguments(conv), given, units, y.layout.size * conv.depth, scratch)


def _transformed(planner: Planner, filters: Filters, conv: Conv, tiling: WinogradTiling) -> View:
    """Winograd's filters: made once for all plans if they are constant, else in every run."""
    if filters.key is not None:
        transformed = planner.shared.weights.filled(
            ("winograd", *filters.key, tiling), math.prod(transformed_shape(conv, tiling)), conv.dtype.numpy,
            lambda packed: fill_transformed(packed, filters.array(), conv, tiling),
        )  # fmt: skip
        return planner.constant(transformed, conv.dtype)
    w = filters.view
    _, output, channel, *_, down, right = (int(stride) for stride in w.strides)
    kernel = FilterTransform(
        conv.dtype, tiling.size, conv.outputs, conv.channels, tiling.vectors, tiling.lanes,
        (output, channel, down, right),
    )  # fmt: skip
    packed = planner.allocate((kernel.elements,), conv.dtype)
    name = f"winograd_filters_{conv.channels}_{conv.outputs}"
    compiled = planner.library.get(
        ("winograd_filters", kernel), lambda name: build_filter_transform(name, kernel), name
    )
    given: dict[str, Argument] = {"w": planner.buffer(w), "transformed": planner.buffer(packed)}
    planner.call(compiled, FILTER_ARGUMENTS, given, kernel.units, 2.0 * kernel.elements)
    return packed


def sums_of_nothing(planner: Planner, op: Operation, order: Sequence[int]) -> None:
    """The result where there is no input or no filter: all windows see padding alone."""
    y = planner.new(op.result, order)
    extras = [planner.view(value).broadcast(y.shape) for value in extras_of(op)]
    untouched(planner, op, (y, *extras))


def untouched(planner: Planner, op: Operation, views: Sequence[View]) -> None:
    """Outputs that no input adds to: what the epilogue makes of 0."""
    target, *extras = views
    block = epilogue_of(op)
    if block is not None:  # an element like all others, as numbers alone say of no dtype
        first = block.arguments[0].type
        assert isinstance(first, types.ScalarType)
        extras = [planner.number(0, first.dtype).broadcast(target.shape), *extras]

    def body(b: LoopBuilder, given: Sequence[Value]) -> Sequence[Any]:
        return [0] if block is None else interpret(block, ScalarEmitter(b), given)

    emit(planner, "zero", body, ("untouched", target.dtype, finishing_key(op)), extras, [target], 1)


def convolve_depthwise(
    planner: Planner, op: Operation, geometry: Geometry, x: View, y: View, extras: Sequence[View], static: bool
) -> None:
    """Call the convolution of each channel with its own filter; that of bytes has sums that are whole floats."""
    start = -sum(before * stride for before, stride in zip(geometry.before, x.strides[2:], strict=True))

    def taps(kernel: Depthwise, tiling: DepthwiseTiling) -> View:
        zero = op.operand_values[3] if kernel.has_zero else None
        return packed_taps_of(planner, _filters(planner, op.operand_values[1], 1), kernel, tiling, zero)

    depthwise_from(planner, op, geometry.window, (x, y, *extras), start, taps, static)


def depthwise_from(
    planner: Planner,
    op: Operation,
    window: Window,
    views: Sequence[View],
    start: int,
    taps_of: Callable[[Depthwise, DepthwiseTiling], View],
    static: bool,
) -> None:
    """Call the convolution of x, which begins `start` elements further on, channel by channel, to y; the other views
    are the epilogue's."""
    x, y, *extras = views
    places, machine = three(y.shape[2:]), planner.machine
    planes, rows, pixels = places_of(places, static)
    epilogue = _epilogue(op, extras, static)
    if op.name == "kernel.integer_conv" and epilogue.body is not None:
        epilogue = replace(epilogue, body=of_whole_floats(op, epilogue.body))
    kernel = Depthwise(
        window, y.shape[1], x.dtype, planes, rows, pixels, layout_of(x, static, True), layout_of(y, static),
        epilogue, None if x.dtype is y.dtype else y.dtype,
    )  # fmt: skip
    tiling = choose_depthwise_tiling(kernel, machine)
    key = ("depthwise", _without_body(kernel), tiling, finishing_key(op))
    name = f"depthwise_{'x'.join(map(str, window.kernel))}_{kernel.channels}"
    compiled = planner.library.get(key, lambda name: build_depthwise(name, kernel, tiling), name)
    taps = taps_of(kernel, tiling)
    together = apply(
        lambda rows, pixels: depthwise_blocks(kernel, tiling, machine, rows, pixels, planner.threads), *places[1:]
    )  # fmt: skip
    blocks = Blocks(*(apply(operator.attrgetter(name), together) for name in ("rows", "channels")))
    given = _arguments(planner, start, x, y, extras) | {"w": planner.buffer(taps)}
    given |= {"row_blocks": blocks.rows, "channel_blocks": blocks.channels}
    if kernel.has_zero:
        given["zero"] = planner.buffer(planner.view(op.operand_values[2]))
    units = depthwise_units(y.shape[0], places[0], blocks) if y.layout.size else 0
    planner.call(compiled, depthwise_arguments(kernel), given, units, 2.0 * y.layout.size * kernel.window.taps)


def of_whole_floats(op: Operation, body: EpilogueBody) -> EpilogueBody:
    """An epilogue of sums of integers for sums that are floats. One that only casts them to floats takes those."""
    block = epilogue_of(op)
    assert block is not None
    users = block.arguments[0].users
    if all(user.name == "element.cast" and user.result.type is types.scalar(f32) for user in users):
        return body

    def rounded(b: LoopBuilder, total: Value, given: Sequence[Value]) -> Value:
        bits = b.bitcast(b.add(total, ROUNDING), i32)
        return body(b, b.sub(bits, ROUNDING_BITS), given)

    return rounded


@plans("kernel.pool")
def plan_pool(planner: Planner, op: Operation) -> None:
    """Channels last, unless it suits the image to be pooled as it lies; padding needs no room, since windows know where
    the image ends."""
    source = op.operand_values[0]
    geometry = Geometry.of(planner, op)
    x, shape = planner.view(source), planner.shape(op.result)
    if suits_planes(planner, x, shape[2:], geometry):
        pool_planes(planner, op, x, geometry)
        return
    order = channels_last(len(shape))
    if x.strides[1] != 1 and x.shape[1] > 1:
        x = planner.copied(x, order)
    y = planner.new(op.result, order)
    extras = [readable(planner, planner.view(value).broadcast(shape)) for value in extras_of(op)]
    static = planner.is_fixed([op.result, source], [x, y, *extras], len(shape) - 1)
    places, machine = three(shape[2:]), planner.machine
    planes, rows, pixels = places_of(places, static)
    pool = Pool(
        str(op.attr("kind")), geometry.window, shape[1] if static else None, y.dtype,
        bool(op.attr("count_include_pad")), planes, rows, pixels, layout_of(x, static, True), layout_of(y, static),
        _epilogue(op, extras, static),
    )  # fmt: skip
    key = ("pool", _without_body(pool), finishing_key(op))
    name = f"{pool.kind}_pool_{'x'.join(map(str, geometry.kernel))}"
    compiled = planner.library.get(key, lambda name: build_pool(name, pool, machine), name)
    blocks = pool_blocks(pool, machine, places[1], shape[1], planner.threads)
    given = _arguments(planner, 0, x, y, extras) | {"channels": shape[1]}
    given |= {"row_blocks": blocks.rows, "channel_blocks": blocks.channels}
    parts = ("size", three(x.shape[2:])), ("before", three(geometry.before, 0)), ("after", three(geometry.after, 0))
    for part, numbers in parts:
        given |= {f"{dim}_{part}": number for dim, number in zip(DIMS[1:4], numbers, strict=True)}
    units = pool_units(y.shape[0], places[0], blocks) if y.layout.size else 0
    planner.call(compiled, pool_arguments(pool), given, units, 1.0 * y.layout.size * geometry.window.taps)


def _arguments(planner: Planner, start: int, x: View, y: View, extras: Sequence[View]) -> dict[str, Argument]:
    """Buffers, extents and strides by name; what is read of x begins `start` elements further on."""
    planes, rows, pixels = three(y.shape[2:])
    given: dict[str, Argument] = {"images": y.shape[0], "planes": planes, "rows": rows, "pixels": pixels}
    for name, view in (("x", x), ("y", y), *((f"e{index}", view) for index, view in enumerate(extras))):
        given[name] = planner.buffer(view, start if name == "x" else 0)
        given |= {f"{name}_{dim}": stride for dim, stride in zip(DIMS, strides_of(view, name == "x"), strict=True)}
    return given


def places_of(places: Sequence[int], static: bool) -> list[int | None]:
    """Extents as numbers where they are known; one plane always is."""
    planes, rows, pixels = (number if static else None for number in places)
    return [1 if places[0] == 1 else planes, rows, pixels]


def three(spatial: Sequence[int], missing: int = 1) -> tuple[int, int, int]:
    depth, height, width = (missing,) * (3 - len(spatial)) + tuple(spatial)
    return depth, height, width


def strides_of(view: View, is_read_around: bool = False) -> tuple[int, ...]:
    """Strides of image, plane, row, pixel, channel; 0 for dims of size 1, unless windows read around the image."""
    strides = [
        stride if size > 1 or (is_read_around and axis > 1) else 0
        for axis, (size, stride) in enumerate(zip(view.shape, view.strides, strict=True))
    ]
    missing = 5 - len(strides)
    return strides[0], *(0,) * missing, *strides[2:], view.strides[1]


def layout_of(view: View, static: bool, is_read_around: bool = False) -> Layout:
    image, plane, row, pixel, channel = strides_of(view, is_read_around)

    def size(stride: int) -> int | None:
        return stride if static else 0 if stride == 0 else None

    near = channel if static else zero_or_one(channel)
    # A batch of open size may be of one image.
    return Layout(0 if static and not image else None, size(plane), size(row), size(pixel), near)


def _epilogue(op: Operation, extras: Sequence[View], static: bool) -> ImageEpilogue:
    body = finishing(op)
    if body is None:
        return ImageEpilogue()
    operands = [ImageOperand(f"e{index}", view.dtype, layout_of(view, static)) for index, view in enumerate(extras)]
    return ImageEpilogue(tuple(operands), body)


def _without_body(kernel: Any) -> Any:
    """The kernel without a function that differs each time it is made."""
    return replace(kernel, epilogue=ImageEpilogue(kernel.epilogue.operands))


def _packed(planner: Planner, filters: Filters, conv: Conv, tiling: ConvTiling) -> View:
    """The filters in the kernel's order: made once for all plans if they are constant, else in every run."""
    if filters.key is None:
        return _pack_now(planner, filters.view, conv, tiling)
    key = ("filters", *filters.key, conv.window, conv.x.channel == 1, tiling)
    dtype = computed_in(conv.dtype)
    packed = planner.shared.weights.filled(
        key, filter_count(conv, tiling), dtype.numpy,
        lambda packed: fill_filters(packed, filters.array(), conv, tiling),
    )  # fmt: skip
    return planner.constant(packed, dtype)


def _pack_now(planner: Planner, w: View, conv: Conv, tiling: ConvTiling) -> View:
    """Copies that do what `packed_filters` does."""
    columns, taps = tiling.columns, conv.window.taps
    panels = -(-conv.outputs // columns)
    strip = conv.depth * columns
    packed = planner.allocate((conv.groups * panels * strip,), w.dtype)
    if conv.outputs % columns:
        clear(planner, packed)
    group, output, channel, *kernel = w.strides
    sizes = w.shape[3:]
    later = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    for first, last in part_bounds(conv, tiling):
        depth = last - first
        tap, step = (depth * columns, columns) if conv.x.channel == 1 else (columns, taps * columns)
        for panel, count, width in ((0, conv.outputs // columns, columns), (panels - 1, 1, conv.outputs % columns)):
            if not count or not width:
                continue
            shape = (conv.groups, count, depth, *sizes, width)
            source = Strided(
                shape, (group, columns * output, channel, *kernel, output),
                w.layout.offset + panel * columns * output + first * channel,
            )  # fmt: skip
            target = Strided(
                shape, (panels * strip, strip, step, *(size * tap for size in later), 1),
                panel * strip + first * taps * columns,
            )  # fmt: skip
            copy(planner, w.seen(source), packed.seen(target))
    return packed


def packed_taps_of(
    planner: Planner, filters: Filters, kernel: Depthwise, tiling: DepthwiseTiling, zero: Value | None = None
) -> View:
    """Filters [1, channels, 1, *kernel] as the depthwise kernel reads them: [taps, channels], filled up with zeros."""
    if filters.key is not None:
        if zero is not None:
            zeros = _elements(planner, zero)
            found = planner.shared.weights.kept(
                ("taps", *filters.key, tiling, zeros.tobytes()),
                lambda: packed_taps(_centred(filters.array(), zeros), kernel, tiling),
            )
            return planner.constant(found, kernel.computed)
        key = ("taps", *filters.key, tiling)
        kept = planner.shared.weights.kept(key, lambda: packed_taps(filters.array(), kernel, tiling))
        return planner.constant(kept, computed_in(kernel.dtype))
    w, taps = filters.view, kernel.window.taps
    width = -(-kernel.channels // tiling.lanes) * tiling.lanes
    packed = planner.allocate((taps, width), w.dtype)
    if width != kernel.channels:
        clear(planner, packed)
    groups, outputs, _, *window = w.layout.shape
    channel = w.layout.strides[0] if outputs == 1 else w.layout.strides[1]
    assert groups == 1 or outputs == 1
    source = Strided((*window, kernel.channels), (*w.layout.strides[3:], channel), w.layout.offset)
    target = Strided(source.shape, (*(width * step for step in dense_strides(window)), 1), packed.layout.offset)
    copy(planner, w.seen(source), packed.seen(target))
    return packed


def _centred(filters: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    """Filters of bytes less their zero point, as floats."""
    return filters.astype(np.float32) - zeros.astype(np.float32).reshape(-1, *[1] * (filters.ndim - 1))


def _elements(planner: Planner, value: Value) -> np.ndarray:
    """The elements of a constant, or of a view of one."""
    view = planner.view(value)
    assert view.storage.array is not None
    return take(view.storage.array.reshape(-1), view.layout)
