"""Derivatives of pools. Of equal elements in a window, MaxPool's first one has the adjoint (the one that its indices
name); the global pools are reductions and share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..ops.convolution import Window
from ..ops.pooling_numeric import average_pool, lp_pool, number, pads_of
from .convolution import same_pads
from .indexing import take_flat
from .rules import Adjoint, Refusal, gradient_of, parts_of

if TYPE_CHECKING:
    from ..core import Operation, Value
    from .builder import GradientBuilder


@gradient_of("MaxPool")
def max_pool(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    x = op.operand_values[0]
    if op.attr("storage_order"):
        attributes = {**op.attributes, "storage_order": 0}
        indices = b.create(op.definition, [x], attributes, outputs=2).results[1]
    else:
        indices = b.result(op, 1)
    return [b.create("tilewright.MaxPoolGrad", [grads[0], indices, b.dims(x)], _windows(op, b, x)).result]


def _windows(op: Operation, b: GradientBuilder, x: Value) -> dict[str, Any]:
    """Where the windows are, as attributes; nothing if that depends on sizes that are not known."""
    window = Window.of(op, op.attr("kernel_shape"))
    spatial = [size for size in b.known_shape(x)[2:] if isinstance(size, int)]
    if window.auto_pad.startswith("SAME") and len(spatial) < len(window.kernel):
        return {}
    before, after = pads_of(window, spatial)
    return {
        "kernel_shape": window.kernel, "strides": window.strides, "dilations": window.dilations,
        "pads": (*before, *after),
    }  # fmt: skip


@gradient_of("MaxUnpool")
def max_unpool(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    """The elements at the places where the operand's were put, which count in the shape without `output_shape`."""
    grad = grads[0]
    assert grad is not None
    if len(op.operands) > 2 and op.operands[2] is not None:
        x, window = op.operand_values[0], Window.of(op, op.attr("kernel_shape"))
        own = [
            (size - 1) * window.strides[axis] + window.kernel[axis] - window.before[axis] - window.after[axis]
            for axis, size in enumerate(b.known_shape(x)[2:])
        ]
        if not all(isinstance(size, int) for size in own):
            return [Refusal("the size that its indices count in is not known")]
        begin = b.ints([0] * len(own))
        target = b.concat(b.create("shape", [grad], {"end": 2}).result, b.const(np.array(own, np.int64)), axis=0)
        have = b.sizes(grad)
        if have is None or any(a < c for a, c in zip(have[2:], [number(size) for size in own], strict=True)):
            return [Refusal("its output_shape is smaller than the one its indices count in")]
        grad = b.slice(
            grad, begin, b.slice(target, b.ints([2]), b.ints([2 + len(own)])), b.ints(range(2, 2 + len(own)))
        )
    return [take_flat(b, grad, op.operands[1])]


def window_sums(op: Operation, b: GradientBuilder, x: Value, is_padded: bool = False) -> Value:
    """The sum of each window of x, by a convolution of each channel with ones.

    `is_padded`: the pads that the pool gives as numbers are there already.
    """
    window = Window.of(op, op.attr("kernel_shape"))
    rank = len(window.kernel)
    spatial = b.known_shape(x)[2:]
    before, after = list(window.before), list(window.after)
    if window.auto_pad.startswith("SAME"):
        known = [size for size in spatial if isinstance(size, int)]
        if len(known) < rank:
            x = b.pad(x, same_pads(op, b, x, window))
        else:
            before, after = pads_of(window, known)
    else:
        # A last window that reaches beyond the pads, or the only one, finds zeros there.
        unknown = [stride - 1 if window.ceil_mode else 0 for stride in window.strides]
        after = [
            pad + (_reach(window, axis, size) if isinstance(size, int) else unknown[axis])
            for axis, (pad, size) in enumerate(zip(after, b.known_shape(op.operands[0])[2:], strict=True))
        ]
        if is_padded:
            after = [end - pad for end, pad in zip(after, window.after, strict=True)]
            before = [0] * rank
    attributes = {"strides": window.strides, "dilations": window.dilations, "pads": [*before, *after]}
    kernel = [number(size) for size in window.kernel]
    channels = b.known_shape(x)[1]
    result: Value
    if isinstance(channels, int):
        ones = b.const(np.ones((channels, 1, *kernel), b.dtype(x).numpy))
        result = b.conv(x, ones, group=channels, **attributes)
    else:  # each channel is an image
        head = b.create("shape", [x], {"end": 2}).result
        planes = b.reshape(x, b.concat(b.ints([-1, 1]), b.create("shape", [x], {"start": 2}).result, axis=0))
        sums = b.conv(planes, b.const(np.ones((1, 1, *kernel), b.dtype(x).numpy)), **attributes)
        result = b.reshape(sums, b.concat(head, b.create("shape", [sums], {"start": 2}).result, axis=0))
    return b.slice(result, *_first_places(op, b)) if window.ceil_mode else result


def _reach(window: Window, axis: int, size: int) -> int:
    """How far the last window reaches beyond the pad at the end."""
    last = (number(window.positions(axis, size)) - 1) * window.strides[axis] + number(window.span(axis))
    return max(last - size - window.before[axis] - window.after[axis], 0)


def _first_places(op: Operation, b: GradientBuilder) -> tuple[Value, Value, Value]:
    """Start, end and axes that keep as many windows as the pool has."""
    y = op.results[0]
    rank = b.rank(y) - 2
    return b.ints([0] * rank), b.create("shape", [y], {"start": 2}).result, b.ints(range(2, 2 + rank))


@parts_of("AveragePool")
def average(op: Operation, b: GradientBuilder) -> Sequence[Value]:
    """The sum of each window over the number of elements in it."""
    x = op.operand_values[0]
    window, sizes = Window.of(op, op.attr("kernel_shape")), b.known_shape(x)[2:]
    total = window_sums(op, b, x)
    whole = int(np.prod([number(size) for size in window.kernel]))
    padded = any((*window.before, *window.after)) or window.auto_pad.startswith("SAME")
    is_cut = any(isinstance(size, int) and _reach(window, axis, size) for axis, size in enumerate(sizes))
    if not padded and not window.ceil_mode and not is_cut:
        return [b.mul(total, 1 / whole)]
    if all(isinstance(size, int) for size in sizes):
        ones = np.ones((1, 1, *[number(size) for size in sizes]), np.float64)
        counted = _counts(window, ones, bool(op.attr("count_include_pad")))
        return [b.div(total, b.const(counted.astype(b.dtype(x).numpy)))]
    dims = b.dims(x)
    if not op.attr("count_include_pad"):
        return [b.div(total, window_sums(op, b, b.expand(b.number(x, 1.0), dims)))]
    if not window.ceil_mode or window.auto_pad.startswith("SAME"):
        return [b.mul(total, 1 / whole)]
    # A pad counts, what a last window sees beyond it does not.
    pads = np.add(window.before, window.after).astype(np.int64)
    counted = b.expand(b.number(x, 1.0), b.add(dims, b.const(np.concatenate([np.zeros(2, np.int64), pads]))))
    return [b.div(total, window_sums(op, b, counted, is_padded=True))]


def _counts(window: Window, ones: np.ndarray, count_padding: bool) -> np.ndarray:
    """The number of elements that each window's sum is divided by: the sum over the mean of ones."""
    return np.asarray(np.round(lp_pool(ones, window, 1) / average_pool(ones, window, count_padding)))


@parts_of("LpPool")
def lp_pool_parts(op: Operation, b: GradientBuilder) -> Sequence[Value]:
    x, p = op.operand_values[0], op.attr("p")
    return [_root(b, window_sums(op, b, _powers(b, x, p)), p)]


def _powers(b: GradientBuilder, x: Value, p: int) -> Value:
    """|x|^p, without a logarithm."""
    if p == 2:
        result: Value = b.mul(x, x)
        return result
    size = b.abs(x)
    result = size if p == 1 else b.pow(size, b.number(x, float(p)))
    return result


def _root(b: GradientBuilder, total: Value, p: int) -> Value:
    """total^(1 / p), with the derivative 0 at 0."""
    if p == 1:
        return total
    positive = b.greater(total, 0.0)
    safe = b.where(positive, total, b.number(total, 1.0))
    root = b.sqrt(safe) if p == 2 else b.pow(safe, b.number(total, 1 / p))
    result: Value = b.where(positive, root, b.number(total, 0.0))
    return result


def _spatial(op: Operation, b: GradientBuilder) -> Value:
    return b.ints(range(2, b.rank(op.operands[0])))


@parts_of("GlobalAveragePool")
def global_average_pool(op: Operation, b: GradientBuilder) -> Sequence[Value]:
    return [b.reduce_mean(op.operands[0], _spatial(op, b), keepdims=1)]


@parts_of("GlobalMaxPool")
def global_max_pool(op: Operation, b: GradientBuilder) -> Sequence[Value]:
    return [b.reduce_max(op.operands[0], _spatial(op, b), keepdims=1)]


@parts_of("GlobalLpPool")
def global_lp_pool(op: Operation, b: GradientBuilder) -> Sequence[Value]:
    p = op.attr("p")
    return [_root(b, b.reduce_sum(_powers(b, op.operand_values[0], p), _spatial(op, b), keepdims=1), p)]


@parts_of("Col2Im")
def columns_to_image(op: Operation, b: GradientBuilder) -> Sequence[Value] | None:
    """Each column's elements added at the places that its window has in the padded image, which is then cut."""
    columns = op.operand_values[0]
    image, block = b.elements(op.operands[1]), b.elements(op.operands[2])
    if image is None or block is None:
        return None
    rank = len(image)
    strides, dilations = op.attr("strides") or (1,) * rank, op.attr("dilations") or (1,) * rank
    pads = op.attr("pads") or (0,) * (2 * rank)
    padded = [int(image[k]) + pads[k] + pads[rank + k] for k in range(rank)]
    counts = [(padded[k] - dilations[k] * (int(block[k]) - 1) - 1) // strides[k] + 1 for k in range(rank)]
    places = np.zeros([*map(int, block), *counts], np.int64)
    for k in range(rank):
        along = np.arange(block[k])[:, None] * dilations[k] + np.arange(counts[k])[None] * strides[k]
        shape = [1] * (2 * rank)
        shape[k], shape[rank + k] = along.shape
        places = places * padded[k] + along.reshape(shape)
    batch = b.create("shape", [columns], {"end": 1}).result
    size = int(np.prod(block))
    apart = b.reshape(columns, b.concat(batch, b.ints([-1, size, int(np.prod(counts))]), axis=0))
    front = b.transpose(apart, perm=[2, 3, 0, 1])
    whole = b.concat(b.ints([int(np.prod(padded))]), b.create("shape", [front], {"start": 2}).result, axis=0)
    added = b.create("tilewright.EmbeddingGrad", [front, places.reshape(size, -1), whole]).result
    back = b.reshape(b.transpose(added, perm=[1, 2, 0]), b.concat(batch, b.ints([-1, *padded]), axis=0))
    cut = [0, 0, *[-pad for pad in pads[:rank]], 0, 0, *[-pad for pad in pads[rank:]]]
    return [b.pad(back, b.ints(cut))]
