"""conv-to-gemm: a convolution as the matrix product that it is. Level onnx; `mode=direct` gives level loop.

Not part of any level: backends do this inside their kernels. It is for looking at, for testing, and for targets that
have products but no convolutions. `mode` says where the patches, the input under each place of the window, are:

- `im2col`: in a tensor [n, *places, channels * taps], which is as large as the input times the number of taps. Each
  spatial axis is gathered once, for all taps along it; then one product follows.
- `implicit`: nowhere. For each tap of the kernel, the product of the input as seen from that tap (a strided slice) with
  the weights of that tap; the sum of them is the result. The same multiplications, and no patch matrix.
- `direct`: in an order of loops. See `conv_to_loops`.

A 1 x 1 kernel without pads needs no patches in either form: the image is the matrix. With several groups, products are
batched, one for each; a depthwise convolution has no product to speak of: `implicit` makes it a sum of scaled slices.

Everything is channels-last in between, so no size has to be known but the kernel's and the channels'. Filters that are
constants are cut up here: no operation at run time has to do with them alone.

Invariant: the window's pads are known (SAME_UPPER and SAME_LOWER with a stride need the size of the image).

    %0 = conv %x, %w : f32[n, 8, 6, 6]                    // %x : f32[n, 3, 8, 8], %w : f32[8, 3, 3, 3]
      ->
    %0 = transpose %x {perm=[0, 2, 3, 1]} : f32[n, 8, 8, 3]
    %1 = gather %0, %rows {axis=1} : f32[n, 3, 6, 8, 3]
    %2 = gather %1, %columns {axis=3} : f32[n, 3, 6, 3, 6, 3]
    %3 = transpose %2 {perm=[0, 2, 4, 5, 1, 3]} : f32[n, 6, 6, 3, 3, 3]
    %4 = reshape %3, [0, 0, 0, -1] : f32[n, 6, 6, 27]
    %5 = matmul %4, %weights : f32[n, 6, 6, 8]
    %6 = transpose %5 {perm=[0, 3, 1, 2]} : f32[n, 8, 6, 6]
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from ..graph.builder import OpBuilder
from ..graph.core import Operation, Value
from ..graph.dims import Dim, product
from ..graph.infer import InferenceContext
from .base import RulePass
from .conv_geometry import Geometry, geometry_of
from .rules import Match, OpRule, Verdict

if TYPE_CHECKING:
    from ..graph.module import Module
    from .context import PassContext

_END = int(np.iinfo(np.int64).max)  # as the end of a Slice: to the end of the axis


class _ConvRule(OpRule):
    """What the rules share: they know the geometry, build the result without a bias, and add the bias."""

    root = "conv"
    exactness = "reassociates"
    proves_types = True  # a place of the window for each element of a strided slice, and the other way round

    def accepts(self, m: Match, form: Geometry) -> Verdict:
        return True

    def when(self, m: Match) -> Verdict:
        form = geometry_of(m.root)
        return m.fail(form, m.root) if isinstance(form, str) else self.accepts(m, form)

    def build(self, b: OpBuilder, m: Match) -> Value:
        form = geometry_of(m.root)
        assert not isinstance(form, str)
        x, w, bias = _operands(m.root)
        return self.product(b, x, _Filters(b, w, form), bias, form)

    def product(self, b: OpBuilder, x: Value, filters: _Filters, bias: Value | None, form: Geometry) -> Value:
        raise NotImplementedError


class PointwiseToProduct(_ConvRule):
    """conv(x, w) with a 1 x 1 kernel, no pads, one group -> gemm(w, x) for one image, matmul(w, x) for several"""

    def accepts(self, m: Match, form: Geometry) -> Verdict:
        if not form.is_pointwise or form.groups > 1:
            return m.fail("the window is more than one element, or there are groups", m.root)
        return True

    def product(self, b: OpBuilder, x: Value, filters: _Filters, bias: Value | None, form: Geometry) -> Value:
        x = _strided(b, x, form, first_axis=2)
        weights = filters.rows()
        if _shape(x)[0] == 1:
            addend = None if bias is None else _along_channels(b, bias, 1)
            result = b.gemm(weights, b.flatten(x, axis=2), addend)
        else:
            result = b.matmul(weights, _with_one_spatial_axis(b, x, form))
            result = result if bias is None else b.add(result, _along_channels(b, bias, 1))
        return _with_spatial_of(b, result, x, form)


class ConvToPatches(_ConvRule):
    """conv(x, w) -> matmul(patches of x, w), the patches being gathered into one tensor"""

    def product(self, b: OpBuilder, x: Value, filters: _Filters, bias: Value | None, form: Geometry) -> Value:
        if form.is_pointwise:
            return ConvToTaps().product(b, x, filters, bias, form)
        rank, grouped = form.rank, form.groups > 1
        patches = _channels_last(b, _padded(b, x, form), form)
        sizes = _shape(patches)[1 : 1 + rank]
        for axis, size in enumerate(sizes):
            at = 1 + 2 * axis  # each axis before has become two: tap and place
            patches = b.gather(patches, _indices(b, patches, at, size, form, axis), axis=at)
        taps, places = [1 + 2 * axis for axis in range(rank)], [2 + 2 * axis for axis in range(rank)]
        channel = 1 + 2 * rank + grouped
        groups = [channel - 1] if grouped else []
        patches = b.transpose(patches, perm=[0, *groups, *places, channel, *taps])
        patches = b.reshape(patches, np.array([0] * (1 + grouped + rank) + [form.taps * form.channels]))
        return _finished(b, b.matmul(patches, filters.matrices()), bias, form)


class ConvToTaps(_ConvRule):
    """conv(x, w) -> the sum over the kernel's taps of matmul(slice of x, w of that tap)"""

    def product(self, b: OpBuilder, x: Value, filters: _Filters, bias: Value | None, form: Geometry) -> Value:
        if form.is_depthwise:
            return self._depthwise(b, _padded(b, x, form), filters, bias, form)
        image = _channels_last(b, _padded(b, x, form), form)
        if form.groups > 1:
            rank = form.rank
            image = b.transpose(image, perm=[0, 1 + rank, *range(1, 1 + rank), 2 + rank])
        first = 2 if form.groups > 1 else 1
        total: Value | None = None
        for place in itertools.product(*map(range, form.kernel)):
            part = b.matmul(_strided(b, image, form, first, place), filters.matrices(place))
            total = part if total is None else b.add(total, part)
        assert total is not None
        return _finished(b, total, bias, form)

    def _depthwise(self, b: OpBuilder, image: Value, filters: _Filters, bias: Value | None, form: Geometry) -> Value:
        total: Value | None = None if bias is None else _along_channels(b, bias, form.rank)
        for place in itertools.product(*map(range, form.kernel)):
            part = b.mul(_strided(b, image, form, 2, place), filters.factors(place))
            total = part if total is None else b.add(part, total)
        assert total is not None
        return total


# ---- the image -------------------------------------------------------------------------------------------------------


def _operands(op: Operation) -> tuple[Value, Value, Value | None]:
    x, w = op.operands[:2]
    assert x is not None
    assert w is not None
    return x, w, op.input(2)


def _shape(value: Value) -> tuple[Dim, ...]:
    shape = getattr(value.type, "shape", None)
    assert shape is not None
    return tuple(shape)


def _padded(b: OpBuilder, x: Value, form: Geometry) -> Value:
    """x with zeros around it."""
    if not any(form.before + form.after):
        return x
    padded: Value = b.pad(x, np.array([0, 0, *form.before, 0, 0, *form.after], np.int64))
    return padded


def _channels_last(b: OpBuilder, x: Value, form: Geometry) -> Value:
    """[n, c, *spatial] as [n, *spatial, c], or as [n, *spatial, groups, channels]."""
    result: Value = b.transpose(x, perm=[0, *range(2, 2 + form.rank), 1])
    if form.groups > 1:
        result = b.reshape(result, np.array([0] * (1 + form.rank) + [form.groups, form.channels]))
    return result


def _indices(b: OpBuilder, image: Value, at: int, size: Dim, form: Geometry, axis: int) -> Value | np.ndarray:
    """[taps, places]: where along an axis of the padded image each tap reads for each place of the window."""
    taps = np.arange(form.kernel[axis], dtype=np.int64)[:, None] * form.dilations[axis]
    stride = form.strides[axis]
    if isinstance(size, int):
        places = max((size - form.span(axis)) // stride + 1, 0)
        return np.asarray(taps + np.arange(places, dtype=np.int64) * stride)
    length = b.squeeze(b.shape(image, start=at, end=at + 1))
    starts = b.range(np.int64(0), b.sub(length, np.int64(form.span(axis) - 1)), np.int64(stride))
    indices: Value = b.add(taps, starts)
    return indices


def _strided(b: OpBuilder, x: Value, form: Geometry, first_axis: int, place: tuple[int, ...] | None = None) -> Value:
    """The elements of x that the tap at `place` reads, one for each place of the window."""
    taps = place or (0,) * form.rank
    starts = [tap * dilation for tap, dilation in zip(taps, form.dilations, strict=True)]
    # Counted from the end, so that no size has to be known.
    left = [form.span(axis) - 1 - start for axis, start in enumerate(starts)]
    if not any(starts) and not any(left) and all(stride == 1 for stride in form.strides):
        return x
    ends = [-rest if rest else _END for rest in left]
    axes = list(range(first_axis, first_axis + form.rank))
    sliced: Value = b.slice(x, np.array(starts), np.array(ends), np.array(axes), np.array(form.strides))
    return sliced


# ---- weights and results ---------------------------------------------------------------------------------------------


class _Filters:
    """The filters [groups * filters, channels, *kernel] in the forms that products take.

    What is known when the rule runs becomes constants, so that nothing is left to do with it at run time; filters that
    the model computes are cut up by operations.
    """

    def __init__(self, b: OpBuilder, value: Value, form: Geometry) -> None:
        self.b, self.value, self.form = b, value, form
        self.known = InferenceContext(b.symbols).constant(value)

    def rows(self) -> Value:
        """[filters, channels], for a window of one element."""
        return self._arranged(self.value, self.known, (self.form.filters, self.form.channels))

    def factors(self, place: tuple[int, ...]) -> Value:
        """One number for each channel, for the tap at `place` of a depthwise convolution."""
        return self._arranged(*self._tap(place), (self.form.groups, *[1] * self.form.rank))

    def matrices(self, place: tuple[int, ...] | None = None) -> Value:
        """[channels, filters] of the tap at `place`, or [channels * taps, filters] of all; one for each group, to be
        broadcast over places."""
        form = self.form
        value, known = (self.value, self.known) if place is None else self._tap(place)
        inner = form.channels * (form.taps if place is None else 1)
        if form.groups == 1:
            return self._arranged(value, known, (form.filters, inner), perm=(1, 0))
        axes = tuple(range(1, form.rank))
        return self._arranged(value, known, (form.groups, form.filters, inner), perm=(0, 2, 1), axes=axes)

    def _tap(self, place: tuple[int, ...]) -> tuple[Value, np.ndarray | None]:
        """[groups * filters, channels] of one tap."""
        if self.known is not None:
            known = self.known
            for index in reversed(place):
                known = known[..., index]
            return self.value, known
        axes = np.arange(2, 2 + len(place))
        value = self.value
        if any(size != 1 for size in _shape(value)[2:]):
            value = self.b.slice(value, np.array(place), np.array(place) + 1, axes)
        return self.b.squeeze(value, axes), None

    def _arranged(
        self,
        value: Value,
        known: np.ndarray | None,
        shape: tuple[int, ...],
        perm: tuple[int, ...] = (),
        axes: tuple[int, ...] = (),
    ) -> Value:
        """Reshaped, transposed, and with new axes: in this order."""
        b = self.b
        if known is not None:
            known = known.reshape(shape)
            known = known.transpose(perm) if perm else known
            known = np.expand_dims(known, axes) if axes else known
            return b.const(np.ascontiguousarray(known))
        value = b.reshape(value, np.array(shape))
        value = b.transpose(value, perm=perm) if perm else value
        return b.unsqueeze(value, np.array(axes)) if axes else value


def _along_channels(b: OpBuilder, bias: Value, rank: int) -> Value:
    """The bias as [channels, 1, ...], to be added to [n, channels, *spatial]."""
    known = InferenceContext(b.symbols).constant(bias)
    if known is not None:
        return b.const(known.reshape(-1, *[1] * rank))
    column: Value = b.reshape(bias, np.array([-1] + [1] * rank))
    return column


def _finished(b: OpBuilder, y: Value, bias: Value | None, form: Geometry) -> Value:
    """[n, (groups,) *places, filters] with the bias, as [n, groups * filters, *places]."""
    rank = form.rank
    if form.groups > 1:
        y = b.transpose(y, perm=[0, *range(2, 2 + rank), 1, 2 + rank])
        y = b.reshape(y, np.array([0] * (1 + rank) + [form.groups * form.filters]))
    if bias is not None:
        y = b.add(y, bias)
    result: Value = b.transpose(y, perm=[0, 1 + rank, *range(1, 1 + rank)])
    return result


def _with_one_spatial_axis(b: OpBuilder, x: Value, form: Geometry) -> Value:
    """[n, c, *spatial] as [n, c, places]. No -1, which says nothing about a batch of no images."""
    if form.rank == 1:
        return x
    places = product(_shape(x)[2:])
    target: Value | np.ndarray = np.array([0, 0, places]) if isinstance(places, int) else np.array([0, 0])
    if not isinstance(places, int):
        target = b.concat(target, b.reduce_prod(b.shape(x, start=2), keepdims=1), axis=0)
    result: Value = b.reshape(x, target)
    return result


def _with_spatial_of(b: OpBuilder, y: Value, x: Value, form: Geometry) -> Value:
    """y [n, filters, places] or [filters, places] with the spatial dims of x."""
    batch, _, *spatial = _shape(x)
    first = 1 if batch == 1 else 0
    if form.rank == 1 and not first:
        return y
    sizes = [dim for dim in spatial if isinstance(dim, int)]
    if len(sizes) == len(spatial):
        target: Value | np.ndarray = np.array([first, form.filters, *sizes], np.int64)
    else:
        target = b.concat(np.array([first, form.filters], np.int64), b.shape(x, start=2), axis=0)
    result: Value = b.reshape(y, target)
    return result


# ---- the pass --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ConvToGemm(RulePass):
    """Write convolutions as matrix products, or as loops."""

    name = "conv-to-gemm"
    level_out = None  # `direct` leaves the level loop
    exactness = "reassociates"
    rules = (PointwiseToProduct, ConvToPatches, ConvToTaps)

    forms: ClassVar = {
        "im2col": (PointwiseToProduct, ConvToPatches),
        "implicit": (PointwiseToProduct, ConvToTaps),
    }

    mode: Literal["direct", "im2col", "implicit"] = "im2col"

    def run(self, module: Module, context: PassContext) -> bool:
        from .driver import apply_rules

        if self.mode == "direct":
            from .conv_to_loops import convolution_to_loops

            return convolution_to_loops(module, context)
        return apply_rules(module, self.forms[self.mode], context)
