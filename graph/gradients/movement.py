"""Derivatives of operators that move elements: slices, pads, concatenation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..infer import InferenceContext
from .rules import Adjoint, Refusal, gradient_of, parts_of

if TYPE_CHECKING:
    from ..core import Operation, Value
    from .builder import GradientBuilder


@gradient_of("Concat")
def concat(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    """Cut into the parts again."""
    operands, axis = op.operand_values, op.attr("axis")
    if len(operands) == 1:
        return [grads[0]]
    known = [b.known_shape(operand)[axis] for operand in operands]
    if all(isinstance(size, int) for size in known):
        sizes = b.const(np.array(known, np.int64))
    else:
        sizes = b.concat(*[b.dim(operand, axis) for operand in operands], axis=0)
    return list(b.split(grads[0], sizes, axis=axis, outputs=len(operands)))


@gradient_of("Split")
def split(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    parts = [b.zeros_like(part) if grad is None else grad for part, grad in zip(op.results, grads, strict=True)]
    return [parts[0] if len(parts) == 1 else b.concat(*parts, axis=op.attr("axis"))]


@gradient_of("Pad")
def pad(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint] | None:
    """The opposite pads: what was added is cut off, what was cut off had no part. The fill has the rest."""
    if op.attr("mode") != "constant":
        return None
    _, pads, fill, axes = (*op.operands, None, None)[:4]
    grad = grads[0]
    assert grad is not None
    zero = None if fill is None else b.number(grad, 0.0)
    opposite = b.neg(pads)
    found = b.pad(grad, opposite, zero, axes) if axes is not None else b.pad(grad, opposite, zero)
    to_fill = None
    if fill is not None and b.needs(fill):
        rest = b.sub(b.reduce_sum(grad, keepdims=0), b.reduce_sum(found, keepdims=0))
        to_fill = b.reshape_like(rest, fill)
    return [found, None, to_fill]


@parts_of("Pad")
def mirrored_pad(op: Operation, b: GradientBuilder) -> Sequence[Value] | None:
    """Each pad mode other than constant reads elements again: those whose places it gives when it pads 0, 1, 2, ..."""
    x, pads, _, axes = (*op.operands, None, None)[:4]
    assert x is not None
    rank = b.rank(x)
    context = InferenceContext(b.symbols)
    known = list(range(rank)) if axes is None else context.constant(axes)
    if known is None:
        return None
    amounts = context.constant(pads)
    count = len(known)
    result = x
    for position, axis in enumerate(known):
        if amounts is not None and not amounts[position] and not amounts[position + count]:
            continue
        both = b.gather(pads, b.ints([position, position + count]))
        places = b.pad(b.arange(b.dim(x, int(axis))), both, mode=op.attr("mode"))
        result = b.gather(result, places, axis=int(axis))
    return [result]


@gradient_of("Slice")
def slice_(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    """The adjoint in the places that were read, zeros around it, axis by axis."""
    x, starts, ends, axes, steps = (*op.operands, None, None)[:5]
    grad = grads[0]
    assert x is not None
    assert grad is not None
    context = InferenceContext(b.symbols)
    first, last = context.constant(starts), context.constant(ends)
    count = len(first) if first is not None else _length(b, starts)
    chosen = np.arange(count) if axes is None else context.constant(axes)
    stride = np.ones(count, np.int64) if steps is None else context.constant(steps)
    if chosen is None or (first is None and not count):
        return [Refusal("the axes that it slices are not known")]
    for position, axis in enumerate(int(axis) % b.rank(x) for axis in chosen):
        size = b.known_shape(x)[axis]
        if first is not None and last is not None and stride is not None and isinstance(size, int):
            places = range(size)[slice(*_python_slice(first[position], last[position], stride[position], size))]
            grad = _spread_out(b, grad, axis, size, places)
            continue
        at = b.ints([position])
        bounds = [b.gather(each, at) for each in (starts, ends)]
        step = b.ints([1]) if steps is None else b.gather(steps, at)
        read = b.slice(b.arange(b.dim(x, axis)), *[_as_i64(b, each) for each in (*bounds, b.ints([0]), step)])
        grad = _scattered_along(b, grad, read, axis, b.dim(x, axis))
    return [grad]


def _length(b: GradientBuilder, vector: Value | None) -> int:
    size = b.known_shape(vector)[0]
    return size if isinstance(size, int) else 0


def _as_i64(b: GradientBuilder, value: Value) -> Value:
    from ..dtypes import i64

    result: Value = value if b.dtype(value) is i64 else b.cast(value, to=i64)
    return result


def _python_slice(start: int, end: int, step: int, size: int) -> tuple[int, int | None, int]:
    """ONNX's start and end, clamped, as Python's."""
    low, high = (0, size) if step > 0 else (-1, size - 1)
    begin = min(max(int(start) + (size if start < 0 else 0), low if step > 0 else 0), high)
    stop = min(max(int(end) + (size if end < 0 else 0), low), high if step > 0 else size)
    return begin, None if step < 0 and stop < 0 else stop, int(step)


def _spread_out(b: GradientBuilder, grad: Value, axis: int, size: int, places: range) -> Value:
    """`grad`, whose elements along `axis` belong to `places` of `size`, with zeros in the other places."""
    rank, count, step = b.rank(grad), len(places), abs(places.step)
    if places == range(size):
        return grad
    if places.step < 0 and count > 1:
        grad = b.slice(grad, b.ints([-1]), b.ints([-(2**63)]), b.ints([axis]), b.ints([-1]))
        places = places[::-1]
    if step > 1 and count > 1:
        apart = b.unsqueeze(grad, b.ints([axis + 1]))
        apart = b.pad(apart, _pads(b, rank + 1, axis + 1, 0, step - 1))
        dims = [b.ints([count * step]) if each == axis else b.dim(grad, each) for each in range(rank)]
        known = b.sizes(grad)
        target = b.concat(*dims, axis=0)
        if known is not None:
            target = b.ints([count * step if each == axis else dim for each, dim in enumerate(known)])
        grad = b.reshape(apart, target)
        count *= step
    before = places[0] if count else 0
    after = size - before - count  # negative where the last step reaches beyond the end
    result: Value = b.pad(grad, _pads(b, rank, axis, before, after)) if before or after else grad
    return result


def _pads(b: GradientBuilder, rank: int, axis: int, before: int, after: int) -> Value:
    pads = [0] * (2 * rank)
    pads[axis], pads[rank + axis] = before, after
    return b.ints(pads)


def _scattered_along(b: GradientBuilder, grad: Value, places: Value, axis: int, size: Value) -> Value:
    """As `_spread_out`, for places that only the run knows; several that are equal add up."""
    rank = b.rank(grad)
    perm = [axis, *(each for each in range(rank) if each != axis)]
    front = grad if axis == 0 else b.transpose(grad, perm=perm)
    rest = b.create("shape", [front], {"start": 1}).result
    found = b.create("tilewright.EmbeddingGrad", [front, places, b.concat(size, rest, axis=0)]).result
    result: Value = found if axis == 0 else b.transpose(found, perm=b.inverse_permutation(perm))
    return result
