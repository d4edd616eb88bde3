"""Derivatives of normalizations, softmax and dropout; those not here are differentiated through their parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..dtypes import f32
from ..infer import InferenceContext
from .rules import Adjoint, Refusal, gradient_of, parts_of

if TYPE_CHECKING:
    from ..core import Operation, Value
    from .builder import GradientBuilder


@gradient_of("Softmax")
def softmax(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    """y (g - sum(g y))"""
    y, grad = op.results[0], grads[0]
    assert grad is not None
    if b.sweep.is_masked(grad):
        # A row without any finite score is NaN, and where its elements do not count they must not spread.
        y = b.where(b.isnan(y), b.number(y, 0.0), y)
    weighted = b.mul(grad, y)
    total = b.reduce_sum(weighted, b.ints([op.attr("axis")]), keepdims=1)
    return [b.sub(weighted, b.mul(y, total))]


@gradient_of("LogSoftmax")
def log_softmax(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    """g - softmax * sum(g)"""
    grad = grads[0]
    total = b.reduce_sum(grad, b.ints([op.attr("axis")]), keepdims=1)
    return [b.sub(grad, b.mul(b.exp(op.results[0]), total))]


@gradient_of("Hardmax")
def hardmax(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    return [Refusal("it is piecewise constant, so that its derivative is zero wherever there is one")]


@gradient_of("Dropout")
def dropout(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    """What was kept, scaled as it was; the mask that was drawn is a result of the forward pass."""
    _, ratio, training = (*op.operands, None, None)[:3]
    grad = grads[0]
    assert grad is not None
    context = InferenceContext(b.symbols)
    known = None if training is None else context.constant(training)
    if training is None or (known is not None and not known.any()):
        return [grad]
    mask = b.result(op, 1)
    kept = b.number(grad, 0.5) if ratio is None else b.sub(1.0, b.cast(ratio, to=b.dtype(grad)))
    if known is None:
        kept = b.where(training, kept, b.number(grad, 1.0))
    return [b.keep_where(mask, b.div(grad, kept))]


# ---- statistics over batch and space ---------------------------------------------------------------------------------


def _per_channel(b: GradientBuilder, vector: Value, rank: int) -> Value:
    """[channels] as [channels, 1, ...], to go with dim 1 of a tensor of `rank`."""
    result: Value = b.unsqueeze(vector, b.ints(range(1, rank - 1))) if rank > 2 else vector
    return result


def _in(b: GradientBuilder, value: Value, like: Value) -> Value:
    result: Value = value if b.dtype(value) is b.dtype(like) else b.cast(value, to=b.dtype(like))
    return result


def _count(b: GradientBuilder, x: Value) -> Value:
    """How many elements a channel of x has, in the dtype of x."""
    shape = b.known_shape(x)
    known = [size for axis, size in enumerate(shape) if axis != 1 and isinstance(size, int)]
    if len(known) == len(shape) - 1:
        number: Value = b.number(x, float(math.prod(known)))
        return number
    channels = b.create("shape", [x], {"start": 1, "end": 2}).result
    count: Value = b.cast(b.div(b.size(x), channels), to=b.dtype(x))
    return count


@gradient_of("BatchNormalization")
def batch_normalization(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint] | None:
    """In training mode the statistics depend on x (Ioffe and Szegedy 2015, section 3):
    dx = s / sqrt(v + eps) * (g - mean(g) - xhat * mean(g xhat)), and s, b, m, v from sums over batch and space."""
    x, scale, bias, mean, variance = op.operand_values
    grad, rank = grads[0], b.rank(x)
    if rank < 2 or grad is None or any(each is not None for each in grads[1:]):
        return None
    axes = b.ints([0, *range(2, rank)])
    training = op.attr("training_mode")
    if training:
        mean = b.reduce_mean(x, axes, keepdims=1)
        centered = b.sub(x, mean)
        variance = b.reduce_mean(b.mul(centered, centered), axes, keepdims=1)
    else:
        centered = b.sub(x, _per_channel(b, _in(b, mean, x), rank))
        variance = _per_channel(b, _in(b, variance, x), rank)
    inverse = b.reciprocal(b.sqrt(b.add(variance, op.attr("epsilon"))))
    normal = b.mul(centered, inverse)
    factor = b.mul(_per_channel(b, _in(b, scale, x), rank), inverse)

    def total(value: Value, like: Value) -> Value:
        return _in(b, b.reduce_sum(value, axes, keepdims=0), like)

    if training:
        sums = [b.reduce_sum(each, axes, keepdims=1) for each in (grad, b.mul(grad, normal))]
        to_bias, to_scale = (
            _in(b, b.squeeze(each, axes), like) if b.needs(like) else None
            for each, like in zip(sums, (bias, scale), strict=True)
        )
        to_x = None
        if b.needs(x):
            means = [b.div(each, _count(b, x)) for each in sums]
            to_x = b.mul(factor, b.sub(b.sub(grad, means[0]), b.mul(normal, means[1])))
        return [to_x, to_scale, to_bias, None, None]
    to_scale = total(b.mul(grad, normal), scale) if b.needs(scale) else None
    to_bias = total(grad, bias) if b.needs(bias) else None
    to_mean = b.neg(total(b.mul(grad, factor), mean)) if b.needs(op.operands[3]) else None
    to_variance = None
    if b.needs(op.operands[4]):
        slope = b.mul(b.mul(grad, factor), b.mul(normal, inverse))
        to_variance = b.mul(total(slope, op.operand_values[4]), -0.5)
    return [b.mul(grad, factor), to_scale, to_bias, to_mean, to_variance]


@parts_of("BatchNormalization")
def batch_normalization_parts(op: Operation, b: GradientBuilder) -> Sequence[Value | None]:
    """All results, the running statistics too (population variance, as ONNX says)."""
    x, scale, bias, mean, variance = op.operand_values
    rank = max(b.rank(x), 1)
    running: list[Value | None] = [None, None]
    if op.attr("training_mode"):
        axes, momentum = b.ints([0, *range(2, rank)]), op.attr("momentum")
        batch_mean = b.reduce_mean(x, axes, keepdims=1)
        centered = b.sub(x, batch_mean)
        batch_variance = b.reduce_mean(b.mul(centered, centered), axes, keepdims=1)
        for index, (old, new) in enumerate(((mean, batch_mean), (variance, batch_variance))):
            flat = _in(b, b.reshape(new, b.ints([-1])), old)
            running[index] = b.add(b.mul(old, momentum), b.mul(flat, 1 - momentum))
    else:
        centered = b.sub(x, _per_channel(b, _in(b, mean, x), rank))
        batch_variance = _per_channel(b, _in(b, variance, x), rank)
    normal = b.div(centered, b.sqrt(b.add(batch_variance, op.attr("epsilon"))))
    scaled = b.mul(normal, _per_channel(b, _in(b, scale, x), rank))
    return [b.add(scaled, _per_channel(b, _in(b, bias, x), rank)), *running]


@parts_of("InstanceNormalization")
def instance_normalization(op: Operation, b: GradientBuilder) -> Sequence[Value]:
    x, scale, bias = op.operand_values
    rank = b.rank(x)
    axes = b.ints(range(2, rank))
    centered = b.sub(x, b.reduce_mean(x, axes, keepdims=1))
    variance = b.reduce_mean(b.mul(centered, centered), axes, keepdims=1)
    normal = b.div(centered, b.sqrt(b.add(variance, op.attr("epsilon"))))
    return [b.add(b.mul(normal, _per_channel(b, scale, rank)), _per_channel(b, bias, rank))]


@gradient_of("LayerNormalization")
def layer_normalization(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint] | None:
    """dx = (d - mean(d) - xhat * mean(d xhat)) / deviation with d = g * scale (Ba et al. 2016)."""
    x, scale, bias = (*op.operands, None)[:3]
    grad = grads[0]
    assert x is not None
    assert scale is not None
    if grad is None or any(each is not None for each in grads[1:]):
        return None
    axes = b.ints(range(op.attr("axis") % b.rank(x) - b.rank(x), 0))
    mean, inverse = b.result(op, 1), b.result(op, 2)
    wide = _in(b, x, mean)
    normal = b.mul(b.sub(wide, mean), inverse)
    adjoints: list[Adjoint] = [None, None, None]
    wide_grad = _in(b, grad, mean)
    if b.needs(x):
        scaled = b.mul(wide_grad, _in(b, scale, mean))
        spread = b.mul(normal, b.reduce_mean(b.mul(scaled, normal), axes, keepdims=1))
        centered = b.sub(b.sub(scaled, b.reduce_mean(scaled, axes, keepdims=1)), spread)
        adjoints[0] = _in(b, b.mul(centered, inverse), x)
    if b.needs(scale):
        adjoints[1] = _in(b, b.sum_to(b.mul(wide_grad, normal), scale), scale)
    if bias is not None and b.needs(bias):
        adjoints[2] = b.sum_to(grad, bias)
    return adjoints


@parts_of("LayerNormalization")
def layer_normalization_parts(op: Operation, b: GradientBuilder) -> Sequence[Value]:
    """All results: mean and inverse deviation too."""
    from ..ops.common import dtype_attribute

    x, scale, bias = (*op.operands, None)[:3]
    assert x is not None
    stash = dtype_attribute(op, "stash_type", b.dtype(x))
    axes = b.ints(range(op.attr("axis") % b.rank(x) - b.rank(x), 0))
    wide = x if b.dtype(x) is stash else b.cast(x, to=stash)
    mean = b.reduce_mean(wide, axes, keepdims=1)
    centered = b.sub(wide, mean)
    variance = b.reduce_mean(b.mul(centered, centered), axes, keepdims=1)
    inverse = b.reciprocal(b.sqrt(b.add(variance, op.attr("epsilon"))))
    scaled = b.mul(_in(b, b.mul(centered, inverse), x), scale)
    return [scaled if bias is None else b.add(scaled, bias), mean, inverse]


@gradient_of("RMSNormalization")
def rms_normalization(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    """dx = (d - xhat * mean(d xhat)) / root with d = g * scale (Zhang and Sennrich 2019)."""
    x, scale = op.operand_values
    axes = b.ints(range(op.attr("axis") % b.rank(x) - b.rank(x), 0))
    wide = _stashed(b, op, x)
    inverse = b.reciprocal(b.sqrt(b.add(b.reduce_mean(b.mul(wide, wide), axes, keepdims=1), op.attr("epsilon"))))
    normal, grad = b.mul(wide, inverse), _in(b, _given(grads), wide)
    to_x = None
    if b.needs(x):
        scaled = b.mul(grad, _in(b, scale, wide))
        spread = b.mul(normal, b.reduce_mean(b.mul(scaled, normal), axes, keepdims=1))
        to_x = _in(b, b.mul(b.sub(scaled, spread), inverse), x)
    to_scale = _in(b, b.sum_to(b.mul(grad, normal), scale), scale) if b.needs(scale) else None
    return [to_x, to_scale]


@gradient_of("InstanceNormalization")
def instance_normalization_gradient(
    op: Operation, grads: Sequence[Value | None], b: GradientBuilder
) -> Sequence[Adjoint]:
    """As of a layer norm over each channel of each image; the sums that x needs give the others theirs."""
    x, scale, bias = op.operand_values
    grad, rank = _given(grads), b.rank(x)
    axes, space = b.ints([0, *range(2, rank)]), b.ints(range(2, rank))
    normal, inverse = _normal(b, x, space, op.attr("epsilon"))
    sums = [b.reduce_sum(each, space, keepdims=1) for each in (grad, b.mul(grad, normal))]
    to_x = None
    if b.needs(x):
        means = [b.div(each, _row_count(b, x, 2)) for each in sums]
        factor = b.mul(_per_channel(b, _in(b, scale, x), rank), inverse)
        to_x = b.mul(factor, b.sub(b.sub(grad, means[0]), b.mul(normal, means[1])))
    to_bias, to_scale = (
        _in(b, b.reduce_sum(each, axes, keepdims=0), like) if b.needs(like) else None
        for each, like in zip(sums, (bias, scale), strict=True)
    )
    return [to_x, to_scale, to_bias]


@gradient_of("GroupNormalization")
def group_normalization(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint] | None:
    """As of a layer norm over each group, seen as [n, groups, channels of a group, space]; what a group sums up are
    sums of its channels, which give scale and bias theirs, too. None if the number of channels is not known."""
    x, scale, bias = op.operand_values
    groups, channels = op.attr("num_groups"), b.known_shape(x)[1]
    if not isinstance(channels, int):
        return None
    space = [size for size in b.known_shape(x)[2:] if isinstance(size, int)]
    last = math.prod(space) if len(space) == b.rank(x) - 2 else -1
    seen = b.ints([0, groups, channels // groups, last])
    wide, grad = (b.reshape(_stashed(b, op, each), seen) for each in (x, _given(grads)))
    factor = b.reshape(_in(b, scale, wide), b.ints([groups, channels // groups, 1]))
    normal, inverse = _normal(b, wide, b.ints([2, 3]), op.attr("epsilon"))
    sums = [b.reduce_sum(each, b.ints([3]), keepdims=1) for each in (grad, b.mul(grad, normal))]
    to_bias, to_scale = (
        _in(b, b.reshape(b.reduce_sum(each, b.ints([0, 3]), keepdims=0), b.ints([channels])), like)
        if b.needs(like)
        else None
        for each, like in zip(sums, (bias, scale), strict=True)
    )
    if not b.needs(x):
        return [None, to_scale, to_bias]
    count = _row_count(b, wide, 2)
    means = [b.div(b.reduce_sum(b.mul(each, factor), b.ints([2]), keepdims=1), count) for each in sums]
    slope = b.sub(b.sub(b.mul(grad, factor), means[0]), b.mul(normal, means[1]))
    return [_in(b, b.reshape_like(b.mul(slope, inverse), x), x), to_scale, to_bias]


def _given(grads: Sequence[Value | None]) -> Value:
    grad = grads[0]
    assert grad is not None
    return grad


def _stashed(b: GradientBuilder, op: Operation, value: Value) -> Value:
    """In the dtype that a norm computes with."""
    from ..ops.common import dtype_attribute

    stash = dtype_attribute(op, "stash_type", f32) or f32
    result: Value = value if b.dtype(value) is stash else b.cast(value, to=stash)
    return result


def _normal(b: GradientBuilder, x: Value, axes: Value, epsilon: float) -> tuple[Value, Value]:
    """x less its mean, over its standard deviation; and one over that."""
    centered = b.sub(x, b.reduce_mean(x, axes, keepdims=1))
    variance = b.reduce_mean(b.mul(centered, centered), axes, keepdims=1)
    inverse = b.reciprocal(b.sqrt(b.add(variance, epsilon)))
    return b.mul(centered, inverse), inverse


def _row_count(b: GradientBuilder, x: Value, first: int) -> Value:
    """How many elements the dims from `first` on have together, in the dtype of x."""
    known = [size for size in b.known_shape(x)[first:] if isinstance(size, int)]
    if len(known) == b.rank(x) - first:
        number: Value = b.number(x, float(math.prod(known)))
        return number
    dims = b.create("shape", [x], {"start": first}).result
    count: Value = b.cast(b.reduce_prod(dims, keepdims=0), to=b.dtype(x))
    return count


@parts_of("MeanVarianceNormalization")
def mean_variance_normalization(op: Operation, b: GradientBuilder) -> Sequence[Value]:
    """As in the standard: 1e-9 is added to the deviation."""
    x, axes = op.operand_values[0], b.ints(op.attr("axes"))
    centered = b.sub(x, b.reduce_mean(x, axes, keepdims=1))
    deviation = b.sqrt(b.reduce_mean(b.mul(centered, centered), axes, keepdims=1))
    return [b.div(centered, b.add(deviation, 1e-9))]


@parts_of("LpNormalization")
def lp_normalization(op: Operation, b: GradientBuilder) -> Sequence[Value]:
    """x over its norm, where that is not 0."""
    x = op.operand_values[0]
    axes = b.ints([op.attr("axis")])
    norm = (b.reduce_l1 if op.attr("p") == 1 else b.reduce_l2)(x, axes, keepdims=1)
    return [b.div(x, b.where(b.equal(norm, 0.0), b.number(x, 1.0), norm))]


@parts_of("LRN")
def local_response_normalization(op: Operation, b: GradientBuilder) -> Sequence[Value]:
    """The squares of neighbouring channels are slices of the padded squares, summed up."""
    x, size = op.operand_values[0], op.attr("size")
    before, after = (size - 1) // 2, size // 2
    rank = b.rank(x)
    squares = b.pad(b.mul(x, x), b.ints([0, before, *[0] * (rank - 2), 0, after, *[0] * (rank - 2)]))
    count = b.dim(x, 1)
    windows = [b.slice(squares, b.ints([k]), b.add(count, k), b.ints([1])) for k in range(size)]
    total = windows[0] if size == 1 else b.sum(*windows)
    scaled = b.add(b.mul(total, op.attr("alpha") / size), op.attr("bias"))
    return [b.mul(x, b.pow(scaled, b.const(np.array(-op.attr("beta"), b.dtype(x).numpy))))]
