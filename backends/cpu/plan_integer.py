"""Planning products and convolutions of bytes: zero points, packed weights, windows as rows of a product."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from ...graph.core import Operation, Value
from ...graph.dtypes import DType, i8, i32, u8
from ...graph.kernel.bodies import signature
from ...graph.kernel.kernel_base import epilogue_of, extras_of, take
from ...graph.kernel.strided import Strided
from .kernels.elementwise import collapse
from .kernels.image import Layout
from .kernels.integer_gemm import (
    UNIT,
    WORD,
    IntegerGemm,
    Lines,
    Patches,
    build_integer_gemm,
    column_terms,
    integer_arguments,
    integer_scratch,
    integer_tile,
    integer_units,
    packed_bytes,
    uses_unit,
)
from .kernels.integer_pack import IntegerPack, build_integer_pack, pack_arguments, pack_units, packed_sizes
from .kernels.strided import zero_or_one
from .kernels.tile import Epilogue, EpilogueOperand
from .plan_gemm import is_single_row, readable_operands
from .plan_map import finishing
from .plan_windows import Geometry, convolve_depthwise, flat_pixels, is_depthwise, padded, readable
from .planner import Argument, Buffer, Planner, View, channels_last, plans


@dataclass(frozen=True)
class Zero:
    """A zero point: `number` where it is one and constant, else the elements, one (`size` 1) or one for each row or
    column. `constant` are the elements, if they are."""

    view: View
    size: int
    constant: np.ndarray | None

    @property
    def number(self) -> int | None:
        alike = self.constant is not None and self.constant.size and (self.constant == self.constant.flat[0]).all()
        return int(self.constant.flat[0]) if alike and self.constant is not None else None


@dataclass(frozen=True)
class Factors:
    """Matrices of one batch as views: a [batch, m, k], b [batch, k, n], c and extras [batch, m, n].

    `weight` is what b is found by if it is constant, `static` says that m is the same in every run, though there may be
    more or fewer matrices. With `patches` a is the images that the rows of the left factor are seen in.
    """

    a: View
    b: View
    c: View
    extras: tuple[View, ...]
    a_zero: Zero
    b_zero: Zero
    weight: tuple[Any, ...] | None
    static: bool
    patches: Patches | None = None
    sizes: dict[str, Argument] | None = None
    lines: Lines | None = None


@dataclass(frozen=True)
class _Right:
    """The right factor as the kernel reads it."""

    words: View
    sums: View
    batch: tuple[int, int]
    dtype: DType
    zero: Zero | None


# ---- products --------------------------------------------------------------------------------------------------------


@plans("kernel.integer_gemm")
def plan_integer_gemm(planner: Planner, op: Operation) -> None:
    """Rows of the result lie one behind the other."""
    left, right, left_zero, right_zero = op.operand_values[:4]
    shape = planner.shape(op.result)
    *batch, m, n = shape
    a, b = planner.view(left), planner.view(right)
    if a.strides[-1] != 1 and a.shape[-1] > 1:
        a = planner.copied(a)
    c = planner.new(op.result)
    extras = readable_operands(planner, [planner.view(value).broadcast(shape) for value in extras_of(op)])
    constant = planner.constant_behind(right) if b.layout.rank == 2 else None
    factors = Factors(
        a.broadcast((*batch, *a.shape[-2:])), b.broadcast((*batch, *b.shape[-2:])), c, extras,
        _zero(planner, left_zero, (*batch, m, 1), -2), _zero(planner, right_zero, (*batch, 1, n), -1),
        None if constant is None else ("words", constant, b.layout),
        planner.is_fixed([left, right, op.result], [a, b, c, *extras], 2),
    )  # fmt: skip
    factors = _one_matrix(factors)
    zeros = (factors.a_zero.view, factors.b_zero.view)
    if not any(stride for zero in zeros for stride in zero.strides[:-2]):
        _multiply(planner, op, factors)
        return
    for position in np.ndindex(*(int(size) for size in factors.c.shape[:-2])):  # zero points of their own
        _multiply(planner, op, _at(factors, position))


def _zero(planner: Planner, value: Value, shape: Sequence[int], along: int) -> Zero:
    """The zero point of a factor, of which there is one or one for each place along a dim."""
    view = planner.view(value)
    array = view.storage.array
    constant = None if array is None else take(array.reshape(-1), view.layout)
    whole = view.broadcast(shape)
    if constant is not None and constant.size and (constant == constant.flat[0]).all():
        whole = whole.seen(Strided(whole.shape, (0,) * whole.layout.rank, whole.layout.offset))
    elif whole.strides[along] not in (0, 1) and whole.shape[along] > 1:
        whole = planner.copied(view).broadcast(shape)
    size = whole.shape[along] if whole.strides[along] else 1
    return Zero(whole, size, constant)


def _one_matrix(factors: Factors) -> Factors:
    """A stack of matrices times one matrix is one tall matrix times it, if the rows advance evenly."""
    batch = factors.c.shape[:-2]
    views = [factors.a, factors.c, factors.a_zero.view, *factors.extras]
    if not batch or any(factors.b.strides[:-2]) or any(factors.b_zero.view.strides[:-2]):
        return factors
    space = collapse(factors.c.shape[:-1], [view.strides[:-1] for view in views])
    if len(space.extents) != 1:
        return factors
    flat = [
        view.seen(Strided((*space.extents, view.shape[-1]), (strides[0], view.strides[-1]), view.layout.offset))
        for view, strides in zip(views, space.strides, strict=True)
    ]
    a, c, zero, *extras = flat
    return replace(
        factors, a=a, b=_matrix(factors.b), c=c, extras=tuple(extras), a_zero=replace(factors.a_zero, view=zero),
        b_zero=replace(factors.b_zero, view=_matrix(factors.b_zero.view)),
        static=factors.static and isinstance(space.extents[0], int),
    )  # fmt: skip


def _matrix(view: View) -> View:
    return view.seen(Strided(view.shape[-2:], view.strides[-2:], view.layout.offset))


def _at(factors: Factors, position: Sequence[int]) -> Factors:
    """The matrices at a position of the batch."""

    def one(view: View) -> View:
        offset = sum(place * stride for place, stride in zip(position, view.strides, strict=False))
        return view.seen(Strided(view.shape[-2:], view.strides[-2:], view.layout.offset + offset))

    a, b, c = map(one, (factors.a, factors.b, factors.c))
    a_zero, b_zero = (
        replace(zero, view=one(zero.view), constant=zero.constant if zero.number is not None else None)
        for zero in (factors.a_zero, factors.b_zero)
    )
    weight = None if factors.weight is None else (*factors.weight, *position)
    extras = tuple(map(one, factors.extras))
    return replace(factors, a=a, b=b, c=c, extras=extras, a_zero=a_zero, b_zero=b_zero, weight=weight)


# ---- convolutions ----------------------------------------------------------------------------------------------------


@plans("kernel.integer_conv", accepts=lambda op: len(op.result.type.shape or ()) == 4)  # type: ignore[attr-defined]
def plan_integer_conv(planner: Planner, op: Operation) -> None:
    """Images channels last; a product for windows of one element, else one of patches."""
    source, weight, x_zero, w_zero = op.operand_values[:4]
    geometry, groups = Geometry.of(planner, op), int(op.attr("group"))
    x, shape, order = planner.view(source), planner.shape(op.result), channels_last(4)
    static = planner.is_static(op.result) and planner.is_static(source)
    if is_depthwise(planner, op):
        x = padded(planner, x, geometry, order, x_zero)
        y = planner.new(op.result, order)
        operands = [readable(planner, planner.view(value).broadcast(shape)) for value in extras_of(op)]
        fixed = planner.is_fixed([op.result, source], [x, y, *operands], 3)
        convolve_depthwise(planner, op, geometry, x, y, operands, fixed)
        return
    if x.strides[1] != 1 and x.shape[1] > 1:
        x = planner.copied(x, order)
    y = planner.new(op.result, order)
    extras = [_even(planner, planner.view(value).broadcast(shape)) for value in extras_of(op)]
    fixed = planner.is_fixed([op.result, source], [x, y, *extras], 3)
    outputs, k, n = shape[1], math.prod(planner.shape(weight)[1:]), shape[1] // groups
    matrices = [_by_group(view, groups, n) for view in (_lines(y), *map(_pixels, extras))]
    b, constant = _filters(planner, weight, groups)
    filters = _zero(planner, w_zero, (outputs,), -1)
    column = filters.view.strides[-1]
    zeros = Strided((groups, 1, n), (n * column, 0, column), filters.view.layout.offset)
    b_zero = replace(filters, view=_by_rank(filters.view.seen(zeros), groups), size=n if column else 1)
    a_zero = _zero(planner, x_zero, (1,) * (2 + (groups > 1)), -1)
    pixels = flat_pixels(x.layout.transposed(order)) if geometry.is_pointwise else None
    if pixels is not None:
        a = _by_group(x.seen(pixels), groups, k)
        patches, sizes = None, None
    else:
        a = _by_group(_images(x), groups, x.shape[1] // groups)
        patches, sizes = _patches(x, y, geometry, groups, fixed)
    c, *others = matrices
    lines = None
    if flat_pixels(y.layout.transposed(order)) is None:
        numbers = {"pixels": shape[3], "rows": shape[2], "line": y.strides[2], "image": y.strides[0]}
        lines = Lines(*(_known(number, fixed) for number in numbers.values()))
        sizes = {**(sizes or {}), **{f"c_{name}": number for name, number in numbers.items()}}
    factors = Factors(a, b, c, tuple(others), a_zero, b_zero, constant, static, patches, sizes, lines)
    if groups > 1 and column:  # zero points that differ from filter to filter
        for group in range(groups):
            _multiply(planner, op, _at(factors, (group,)))
    else:
        _multiply(planner, op, factors)


def _even(planner: Planner, view: View) -> View:
    """An operand of an epilogue whose pixels lie at even distances, and channels 1 or 0 apart."""
    view = readable(planner, view)
    order = channels_last(4)
    return view if flat_pixels(view.layout.transposed(order)) else planner.copied(view, order)


def _lines(view: View) -> View:
    """A result's pixels as rows; those of an image with room around it lie evenly only line by line."""
    flat = flat_pixels(view.layout.transposed(channels_last(4)))
    image, channels, rows, pixels = (view.shape[axis] for axis in (0, 1, 2, 3))
    strides = (view.strides[3], view.strides[1])
    return view.seen(flat or Strided((image * rows * pixels, channels), strides, view.layout.offset))


def _pixels(view: View) -> View:
    flat = flat_pixels(view.layout.transposed(channels_last(4)))
    assert flat is not None
    return view.seen(flat)


def _by_group(view: View, groups: int, width: int) -> View:
    """A matrix whose columns are those of several groups as a stack of matrices of `width` columns."""
    if groups == 1:
        return view
    rows, step = view.shape[0], view.strides[1]
    return view.seen(Strided((groups, rows, width), (width * step, view.strides[0], step), view.layout.offset))


def _by_rank(view: View, groups: int) -> View:
    return view if groups > 1 else _matrix(view)


def _images(x: View) -> View:
    """All images as one row, which stands for the rows that windows see in them."""
    return x.seen(Strided((1, x.shape[1]), (0, 1), x.layout.offset))


def _filters(planner: Planner, weight: Value, groups: int) -> tuple[View, tuple[Any, ...] | None]:
    """The filters [m, c, h, w] as [(groups,) h w c, m / groups], and what they are found by if they are constant."""
    w, constant = planner.view(weight), planner.constant_behind(weight)
    outputs, channels, height, width = w.shape
    key = None if constant is None else ("filter words", constant, w.layout, groups)
    if constant is None:
        w = planner.copied(w, channels_last(4))
    else:
        array = w.storage.array
        assert array is not None
        layout = w.layout
        by_tap = planner.shared.weights.kept(
            ("filters by tap", constant, layout),
            lambda: np.ascontiguousarray(take(array.reshape(-1), layout).transpose(0, 2, 3, 1)),
        )
        w = planner.constant(by_tap, w.dtype)
    k, n = height * width * channels, outputs // groups
    layout = Strided((groups, k, n), (n * k, 1, k), w.layout.offset)
    return _by_rank(w.seen(layout), groups), key


def _patches(x: View, y: View, geometry: Geometry, groups: int, static: bool) -> tuple[Patches, dict[str, Argument]]:
    """The window over the images, and the numbers that the kernel is told."""
    image, _, row, pixel = x.strides
    numbers: dict[str, Any] = {
        "rows": y.shape[2], "pixels": y.shape[3], "image_rows": x.shape[2], "image_pixels": x.shape[3],
        "before_row": geometry.before[0], "before_pixel": geometry.before[1],
    }  # fmt: skip

    def size(number: Any) -> int | None:
        return int(number) if static else None

    rows, pixels, image_rows, image_pixels, top, left = map(size, numbers.values())
    layout = Layout(image=size(image), row=size(row), pixel=size(pixel))
    channels = x.shape[1] // groups
    patches = Patches(
        geometry.window, channels, (top, left), rows, pixels, image_rows, image_pixels, layout, geometry.is_padded
    )
    return patches, {**numbers, "x_image": image, "x_row": row, "x_pixel": pixel}


# ---- calling ---------------------------------------------------------------------------------------------------------


def _multiply(planner: Planner, op: Operation, factors: Factors) -> None:
    """Call the kernel for all matrices of the batch."""
    planner.keep_apart(op.result)
    a, c, patches = factors.a, factors.c, factors.patches
    *batch, m, n = c.shape
    k = factors.b.shape[-2]
    static = factors.static or is_single_row(m, n, k)
    is_weight = factors.weight is not None
    fixed = static or is_weight
    unit = uses_unit(planner.machine, int(m) if static else None) and not planner.library.checked
    operands = _operands(factors.extras, static)
    kernel = IntegerGemm(
        m=int(m) if static else None, n=int(n) if fixed else None, k=int(k) if fixed else None, a=a.dtype,
        a_row=0 if patches is not None else _known(_row(a), static or (is_weight and _row(a) == k)),
        c_row=_known(_row(c), static or (is_weight and _row(c) == n)), result=c.dtype, unit=unit, patches=patches,
        lines=factors.lines,
        epilogue=Epilogue(operands, finishing(op)) if operands or epilogue_of(op) is not None else Epilogue(),
    )  # fmt: skip
    right = _right(planner, factors, integer_tile(kernel, planner.machine).columns, unit)
    kernel, sums, buffers = _with_zeros(planner, factors, kernel, right)
    space = collapse(batch, [view.strides[:-2] for view in (a, c, factors.b, *factors.extras)])
    kernel = replace(kernel, batched=space.extents != (1,), in_place=_in_place(kernel, a))
    block = epilogue_of(op)
    key = ("integers", replace(kernel, epilogue=Epilogue(operands)), None if block is None else signature(block))
    name = f"integers_{'m' if kernel.m is None else m}x{n}x{k}"
    compiled = planner.library.get(key, lambda name: build_integer_gemm(name, kernel, planner.machine), name)
    strides = [list(each) for each in space.strides]
    given: dict[str, Argument] = {
        "m": m, "n": n, "k": k, "a_row": _row(a), "c_row": _row(c), **(factors.sizes or {}), **buffers,
        "a_batch": strides[0][-1], "c_batch": strides[1][-1],
        "b_batch": right.batch[0], "sums_batch": right.batch[1], "scratch": Buffer(None),
    }  # fmt: skip
    for index, view in enumerate(factors.extras):
        given[f"e{index}_row"], given[f"e{index}_batch"] = view.strides[-2], strides[3 + index][-1]
    extents = space.extents
    units = integer_units(kernel, planner.machine, m, n, extents[-1])
    scratch = integer_scratch(kernel, planner.machine, k) * i32.numpy.itemsize
    names = ["a", "c", *(f"e{index}" for index in range(len(factors.extras)))]
    own = [strides[0], strides[1], *strides[3:]]
    for count, position in enumerate(np.ndindex(*(int(extent) for extent in extents[:-1]))):
        for each, view, steps in zip(names, (a, c, *factors.extras), own, strict=True):
            given[each] = planner.buffer(view, sum(p * s for p, s in zip(position, steps, strict=False)))
        first = count * extents[-1] if right.batch[0] else 0
        given["b"] = planner.buffer(right.words, first * right.batch[0])
        given["sums"] = planner.buffer(sums, first * right.batch[1])
        planner.call(compiled, integer_arguments(kernel), given, units, 0.5 * m * n * max(k, 1) * extents[-1], scratch)


def _known(number: int, is_known: bool) -> int | None:
    return int(number) if is_known else None


def _row(view: View) -> int:
    """The distance of rows; that of a single row does not matter."""
    return view.strides[-2] if view.shape[-2] > 1 else view.shape[-1]


def _operands(extras: Sequence[View], static: bool) -> tuple[EpilogueOperand, ...]:
    return tuple(
        EpilogueOperand(
            f"e{index}", view.dtype, 0 if view.strides[-2] == 0 else _known(view.strides[-2], static),
            int(view.strides[-1]),
        )
        for index, view in enumerate(extras)
    )  # fmt: skip


def _in_place(kernel: IntegerGemm, a: View) -> bool:
    """Whether the kernel can read rows of the left factor where they lie: as words, and all that a tile has."""
    if kernel.patches is not None or kernel.m is None or kernel.k is None or kernel.has_row_sums or a.dtype is not u8:
        return False
    if kernel.k % (WORD * UNIT if kernel.unit else WORD) or (kernel.unit and kernel.m < 2 * UNIT):
        return False
    return not any(number % WORD for number in (*a.strides[:-1], a.layout.offset))


def _with_zeros(
    planner: Planner, factors: Factors, kernel: IntegerGemm, right: _Right
) -> tuple[IntegerGemm, View, dict[str, Argument]]:
    """The kernel with the forms of both zero points, what is added to columns, and buffers of zero points."""
    a_zero, b_zero = factors.a_zero, right.zero
    given: dict[str, Argument] = {}
    kernel = replace(kernel, b=right.dtype)
    if b_zero is not None:
        kernel = replace(kernel, b_zero="one" if b_zero.size == 1 else "column")
        given["b_zero"] = planner.buffer(b_zero.view)
    number, array = a_zero.number, right.sums.storage.array
    if number is not None:
        given["border"] = number + (128 if kernel.a is i8 else 0)
        if number == 0 and kernel.a is u8:
            return kernel, right.sums, given
        if array is not None and not kernel.has_row_sums:
            assert factors.weight is not None
            key = (*factors.weight, "terms", kernel.a.name, number, right.sums.shape)
            terms = planner.shared.weights.kept(key, lambda: column_terms(array, kernel.a, number))
            return replace(kernel, a_zero="sums"), planner.constant(terms, i32), given
    given.setdefault("border", 0)
    given["a_zero"] = planner.buffer(a_zero.view)
    return replace(kernel, a_zero="one" if a_zero.size == 1 else "row"), right.sums, given


def _right(planner: Planner, factors: Factors, columns: int, unit: bool) -> _Right:
    """The words of the right factor: made once for all plans if it is constant, else in every run."""
    zero: Zero | None = None if factors.b_zero.number == 0 and factors.b.dtype is i8 else factors.b_zero
    if factors.weight is None:
        return _packed_now(planner, factors, columns, unit, zero)
    b = factors.b if any(factors.b.strides[:-2]) else _matrix(factors.b)
    array = b.storage.array
    assert array is not None
    elements = _elements(array, b.layout)
    dtype = b.dtype
    if zero is not None and zero.constant is not None:
        columns_of = (*elements.shape[:-2], 1, elements.shape[-1])
        offset = zero.constant.astype(np.int16).reshape(columns_of) if zero.number is None else zero.number
        centred = elements.astype(np.int16) - offset
        if centred.size and centred.min() >= -128 and centred.max() <= 127:  # the zero point can be taken off here
            elements, dtype, zero = centred.astype(np.int8), i8, None
    key = (*factors.weight, "packed", columns, unit, dtype.name)
    packed = cache(lambda: packed_bytes(elements, columns, unit))
    words = planner.shared.weights.kept(key, lambda: packed()[0])
    sums = planner.shared.weights.kept((*key, "sums"), lambda: packed()[1])
    groups = elements.shape[0] if elements.ndim == 3 else 1
    batch = (words.size // groups, sums.size // groups) if elements.ndim == 3 else (0, 0)
    return _Right(planner.constant(words, i32), planner.constant(sums, i32), batch, dtype, zero)


def _elements(array: np.ndarray, layout: Strided) -> np.ndarray:
    flat = array.reshape(-1)
    strides = [stride * flat.dtype.itemsize for stride in layout.strides]
    return np.lib.stride_tricks.as_strided(flat[layout.offset :], layout.shape, strides)


def _packed_now(planner: Planner, factors: Factors, columns: int, unit: bool, zero: Zero | None) -> _Right:
    """Call the kernel that packs, once for each matrix that differs from the others."""
    b = factors.b
    *batch, k, n = b.shape
    is_one = not any(b.strides[:-2])
    space = collapse([1] if is_one else batch, [[0] if is_one else b.strides[:-2]])
    kernel = IntegerPack(columns, b.dtype, zero_or_one(b.strides[-2]), zero_or_one(b.strides[-1]), unit)
    count, padded = packed_sizes(kernel, k, n)
    total = 1 if is_one else math.prod(batch)
    words, sums = (planner.allocate((total * size,), i32) for size in (count, padded))
    compiled = planner.library.get(
        ("pack integers", kernel), lambda name: build_integer_pack(name, kernel, planner.machine), "pack_integers"
    )
    inner = space.extents[-1]
    given: dict[str, Argument] = {
        "k": k, "n": n, "k_stride": b.strides[-2], "n_stride": b.strides[-1], "x_batch": space.strides[0][-1],
        "words_batch": count, "sums_batch": padded,
    }  # fmt: skip
    for index, position in enumerate(np.ndindex(*(int(extent) for extent in space.extents[:-1]))):
        offset = sum(p * s for p, s in zip(position, space.strides[0], strict=False))
        given["x"] = planner.buffer(b, offset)
        given["words"] = planner.buffer(words, index * inner * count)
        given["sums"] = planner.buffer(sums, index * inner * padded)
        planner.call(compiled, pack_arguments(kernel), given, pack_units(kernel, n, inner), 1.0 * k * n * inner)
    return _Right(words, sums, (0, 0) if is_one else (count, padded), b.dtype, zero)
