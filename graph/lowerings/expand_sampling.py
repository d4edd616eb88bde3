"""GridSample: each tap of a place is a gather; what it weighs is worked out beside it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from ..builder import OpBuilder
from ..core import Operation, Value
from ..dtypes import f32, f64
from ..ops.grid_sample_numeric import CUBIC
from ..types import TensorType
from .builder import dtype_of, is_native
from .expansions import expands

# Index (i64) and weight of each result along a dim, and whether the element is there at all.
_Tap = tuple[Value, Value, Value]


@expands("GridSample")
def grid_sample(op: Operation, b: OpBuilder) -> Sequence[Value] | None:
    x, grid = op.operand_values
    if not is_native(x) or not is_native(grid) or dtype_of(x) not in (f32, f64) or dtype_of(grid) is not dtype_of(x):
        return None
    assert isinstance(x.type, TensorType)
    assert isinstance(grid.type, TensorType)
    shape, places = x.type.static_shape, grid.type.static_shape
    if shape is None or places is None:
        return None
    spatial = shape[2:]
    axes = _Axes(op, b, dtype_of(x).numpy)
    columns = b.reshape(grid, _ints(shape[0], -1, len(spatial)))
    taps = []
    for axis, size in enumerate(spatial):
        column = len(spatial) - 1 - axis
        taps.append(axes.taps(b.slice(columns, _ints(column), _ints(column + 1), _ints(2)), size))
    flat = b.transpose(b.reshape(x, _ints(*shape[:2], math.prod(spatial))), perm=[0, 2, 1])
    total: Value | None = None
    for chosen in itertools.product(*taps):
        index, weight, present = chosen[0]
        for (more, factor, there), size in zip(chosen[1:], spatial[1:], strict=True):
            index = b.add(b.mul(index, b.const(np.array(size))), more)
            weight, present = b.mul(weight, factor), b.and_(present, there)
        taken = b.gather_nd(flat, index, batch_dims=1)
        term = b.where(present, b.mul(taken, weight), axes.number(0))
        total = term if total is None else b.add(total, term)
    assert total is not None
    return [b.reshape(b.transpose(total, perm=[0, 2, 1]), _ints(*shape[:2], *places[1:-1]))]


class _Axes:
    def __init__(self, op: Operation, b: OpBuilder, dtype: np.dtype) -> None:
        self.b, self.dtype = b, dtype
        self.mode, self.padding = str(op.attr("mode")), str(op.attr("padding_mode"))
        self.align_corners = bool(op.attr("align_corners"))

    def number(self, value: float) -> Value:
        return self.b.const(np.array(value, self.dtype))

    def taps(self, place: Value, size: int) -> list[_Tap]:
        b, one = self.b, self.number(1)
        if self.align_corners:
            scaled = b.mul(b.div(b.add(place, one), self.number(2)), self.number(size - 1))
        else:
            scaled = b.div(b.sub(b.mul(b.add(place, one), self.number(size)), one), self.number(2))
        if self.mode == "cubic":
            low = b.floor(scaled)
            weights = self.cubic(b.sub(scaled, low))
            indices = [self.padded(b.add(low, self.number(offset)), size) for offset in (-1, 0, 1, 2)]
        elif self.mode == "linear":
            moved = self.padded(scaled, size)
            low = b.floor(moved)
            part = b.sub(moved, low)
            weights, indices = [b.sub(one, part), part], [low, b.add(low, one)]
        else:
            indices, weights = [b.round(self.padded(scaled, size))], [one]
        return [self.tap(index, weight, size) for index, weight in zip(indices, weights, strict=True)]

    def tap(self, index: Value, weight: Value, size: int) -> _Tap:
        b = self.b
        present = b.and_(b.greater_or_equal(index, self.number(0)), b.less_or_equal(index, self.number(size - 1)))
        return b.cast(b.where(present, index, self.number(0)), to=7), weight, present

    def cubic(self, t: Value) -> list[Value]:
        b, number = self.b, self.number

        def near(d: Value) -> Value:
            inner = b.sub(b.mul(number(CUBIC + 2), d), number(CUBIC + 3))
            result: Value = b.add(b.mul(b.mul(inner, d), d), number(1))
            return result

        def far(d: Value) -> Value:
            inner = b.add(b.mul(b.sub(b.mul(number(CUBIC), d), number(5 * CUBIC)), d), number(8 * CUBIC))
            result: Value = b.sub(b.mul(inner, d), number(4 * CUBIC))
            return result

        one = number(1)
        return [far(b.add(t, one)), near(t), near(b.sub(one, t)), far(b.sub(number(2), t))]

    def padded(self, place: Value, size: int) -> Value:
        """Where a place outside is read: nowhere ("zeros"), at the border, or mirrored at it."""
        b = self.b
        if self.padding == "zeros":
            return place
        if self.padding == "reflection":
            place = self.reflected(place, *((0.0, size - 1.0) if self.align_corners else (-0.5, size - 0.5)))
        clipped: Value = b.clip(place, self.number(0), self.number(size - 1))
        return clipped

    def reflected(self, place: Value, low: float, high: float) -> Value:
        b, span = self.b, self.number(high - low)
        if high == low:
            zero: Value = b.mul(place, self.number(0))
            return zero
        distance = b.abs(b.sub(place, self.number(low)))
        extra = b.mod(distance, span, fmod=1)
        odd = b.mod(b.floor(b.div(distance, span)), self.number(2), fmod=1)
        there, back = b.add(extra, self.number(low)), b.add(b.sub(span, extra), self.number(low))
        result: Value = b.where(b.equal(odd, self.number(0)), there, back)
        return result


def _ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)
