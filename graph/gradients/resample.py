"""Derivatives of Resize and GridSample.

Resize is linear in its operand, axis by axis: its adjoint multiplies by the transposed matrices.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..infer import InferenceContext
from ..ops.grid_sample_numeric import built_cubic_weights
from ..ops.resize_numeric import matrices
from .rules import Adjoint, Refusal, gradient_of, parts_of

if TYPE_CHECKING:
    from ..core import Operation, Value
    from .builder import GradientBuilder

_UNKNOWN = Refusal("the sizes that it resizes are not known; bind them with bind-dims")


@gradient_of("Resize")
def resize(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    x, roi, scales, sizes = (*op.operands, None, None, None)[:4]
    found: Any = grads[0]
    context = InferenceContext(b.symbols)
    shape, after = b.known_shape(x), b.known_shape(found)
    # A dim that stays as it is need not be known: 1 stands for it.
    known = [
        1 if before == dim and not isinstance(before, int) else before for before, dim in zip(shape, after, strict=True)
    ]
    given = [b.elements(each) for each in (roi, scales)]
    if given[0] is None and op.attr("coordinate_transformation_mode") == "tf_crop_and_resize":
        return [Refusal("the region that it crops is not known before a run")]
    wanted = _elements(op, sizes, known, context)
    if not all(isinstance(dim, int) for dim in known) or (wanted is None and given[1] is None):
        factors = _repeats(op, len(known), given[1]) if scales is not None else None
        return [_UNKNOWN if factors is None or x is None else _sum_of_copies(b, found, x, factors)]
    if scales is not None and given[1] is None and wanted is None:
        return [_UNKNOWN]
    static = tuple(dim for dim in known if isinstance(dim, int))
    rank = len(static)
    for axis, matrix in matrices(op, static, given[0], given[1], wanted):
        weights = matrix.astype(b.dtype(found).numpy)
        if axis == rank - 2:
            found = b.matmul(b.const(np.ascontiguousarray(weights.T)), found)
            continue
        perm = [*[each for each in range(rank) if each != axis], axis]
        last = found if axis == rank - 1 else b.transpose(found, perm=perm)
        product = b.matmul(last, b.const(weights))
        found = product if axis == rank - 1 else b.transpose(product, perm=b.inverse_permutation(perm))
    return [found]


def _repeats(op: Operation, rank: int, scales: np.ndarray | None) -> list[int] | None:
    """How often each element is repeated along each axis, if that is all that the operation does, at any size."""
    if scales is None or op.attr("mode") != "nearest" or not all(float(scale).is_integer() for scale in scales):
        return None
    factors = [1] * rank
    given = op.attr("axes")
    for axis, scale in zip(range(rank) if given is None else given, scales, strict=True):
        factors[axis] = int(scale)
    for axis, matrix in matrices(op, (5,) * rank, None, scales, None):
        if not np.array_equal(matrix, np.repeat(np.eye(5), factors[axis], axis=0)):
            return None
    return factors


def _sum_of_copies(b: GradientBuilder, grad: Value, x: Value, factors: list[int]) -> Value:
    """The sum over the copies of each element, which lie side by side."""
    dims: list[Value] = []
    copies: list[int] = []
    for axis, factor in enumerate(factors):
        dims.append(b.dim(x, axis))
        if factor > 1:
            copies.append(len(dims))
            dims.append(b.ints([factor]))
    apart = b.reshape(grad, b.concat(*dims, axis=0))
    result: Value = b.reduce_sum(apart, b.ints(copies), keepdims=0) if copies else grad
    return result


def _elements(op: Operation, sizes: Value | None, known: list[Any], context: InferenceContext) -> np.ndarray | None:
    """The sizes to resize to, with 1 for those of dims that stay and are not known."""
    symbolic = None if sizes is None else context.symbolic(sizes)
    if symbolic is None or not symbolic.size:
        return None
    axes = op.attr("axes")
    chosen = range(len(known)) if axes is None else axes
    items = [
        1 if not isinstance(item, int) and known[axis] == 1 else item
        for axis, item in zip(chosen, symbolic, strict=True)
    ]
    return np.array(items, np.int64) if all(isinstance(item, int) for item in items) else None


# ---- GridSample ------------------------------------------------------------------------------------------------------


@parts_of("GridSample")
def grid_sample(op: Operation, b: GradientBuilder) -> Sequence[Value]:
    """A weighted sum of 1, 2 or 4 elements along each dim, read by GatherND; see `ops.grid_sample_numeric`."""
    x, grid = op.operand_values
    rank = b.rank(x) - 2
    columns = [b.gather(grid, b.ints([place]), axis=-1) for place in range(rank)]
    taps = []
    for axis in range(rank):
        size = b.cast(b.squeeze(b.dim(x, 2 + axis), b.ints([0])), to=b.dtype(grid))
        taps.append(_taps(op, b, columns[rank - 1 - axis], size))
    flat = b.reshape(x, b.concat(b.create("shape", [x], {"end": 2}).result, b.ints([-1]), axis=0))
    rows = b.transpose(flat, perm=[0, 2, 1])
    terms: list[Value] = []
    for chosen in itertools.product(*taps):
        place: Any = None
        weight: Any = None
        for axis, (index, factor) in enumerate(chosen):
            step = b.squeeze(b.dim(x, 2 + axis), b.ints([0]))
            place = index if place is None else b.add(b.mul(place, step), index)
            weight = factor if weight is None else b.mul(weight, factor)
        values = b.gather_nd(rows, place, batch_dims=1)
        terms.append(
            b.mul(values, weight if b.dtype(weight) is b.dtype(values) else b.cast(weight, to=b.dtype(values)))
        )
    total = terms[0] if len(terms) == 1 else b.sum(*terms)
    return [b.transpose(total, perm=[0, rank + 1, *range(1, rank + 1)])]


def _taps(op: Operation, b: GradientBuilder, place: Value, size: Value) -> list[tuple[Value, Value]]:
    """Along one dim: which elements are read (i64), and their weights, 0 for those that are not there."""
    mode, corners = op.attr("mode"), bool(op.attr("align_corners"))
    shifted = b.add(place, 1.0)
    if corners:
        scaled = b.mul(b.mul(shifted, 0.5), b.sub(size, 1.0))
    else:
        scaled = b.mul(b.sub(b.mul(shifted, size), 1.0), 0.5)
    if mode == "cubic":
        low = b.floor(scaled)
        weights = built_cubic_weights(b, b.sub(scaled, low))
        indices = [_padded(op, b, b.add(low, float(offset)), size) for offset in (-1, 0, 1, 2)]
    elif mode == "linear":
        moved = _padded(op, b, scaled, size)
        low = b.floor(moved)
        fraction = b.sub(moved, low)
        weights, indices = [b.sub(1.0, fraction), fraction], [low, b.add(low, 1.0)]
    else:
        indices = [b.round(_padded(op, b, scaled, size))]
        weights = [b.expand_like(b.number(place, 1.0), place)]
    return [_tap(b, index, weight, size) for index, weight in zip(indices, weights, strict=True)]


def _tap(b: GradientBuilder, index: Value, weight: Value, size: Value) -> tuple[Value, Value]:
    from ..dtypes import i64

    present = b.and_(b.greater_or_equal(index, 0.0), b.less(index, size))
    zero = b.number(index, 0.0)
    return b.cast(b.where(present, index, zero), to=i64), b.where(present, weight, zero)


def _padded(op: Operation, b: GradientBuilder, place: Value, size: Value) -> Value:
    """Where a place outside is read: nowhere ("zeros"), at the border, or mirrored at it."""
    padding = op.attr("padding_mode")
    if padding == "zeros":
        return place
    last = b.sub(size, 1.0)
    if padding == "reflection":
        low, span = (0.0, last) if op.attr("align_corners") else (-0.5, size)
        span = b.max(span, math.ulp(1.0))
        distance = b.abs(b.sub(place, low))
        flips = b.floor(b.div(distance, span))
        extra = b.sub(distance, b.mul(flips, span))
        odd = b.equal(b.mod(flips, b.number(flips, 2.0), fmod=1), 1.0)
        place = b.add(b.where(odd, b.sub(span, extra), extra), low)
    result: Value = b.min(b.max(place, 0.0), last)
    return result
