"""The mean and the variance of each channel from one pass over a batch. Level kernel, part of fuse-rows.

    %m = kernel.reduce mean %x                       mean and variance of each channel of each image, by one kernel;
    %v = kernel.reduce mean (%x - %m)^2      ->      from those, which are few, those of the batch

The sums of an image are of differences d from its first element in a channel, so that no digits are lost if numbers are
large and close to each other: its variance, mean(d^2) - mean(d)^2, is wrong by at most n units in the last place for n
elements, for whatever numbers; by k^2 units, if the first one is k standard deviations from the mean. Variances add up
with the spread of the images' means (Chan, Golub, LeVeque, "Algorithms for computing the sample variance", 1983).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ..graph.core import Operation, Region, Value
from ..graph.kernel.bodies import interpret, signature, trace
from ..graph.location import fuse
from ..graph.lowerings.builder import KernelBuilder, dtype_of, tensor_type
from .join_reductions import is_reduction

if TYPE_CHECKING:
    from ..graph.module import Module
    from .context import PassContext

# With fewer elements to an image, what is left for the second pass is not little.
LEAST = 16


def join_moments(op: Operation, module: Module, context: PassContext) -> None:
    """Make one pass of the variance `op` and its mean."""
    mean = _mean_of(op)
    if mean is None or mean.parent is None:
        return
    x, axes = mean.operand_values[0], tuple(op.attr("axes"))
    extras = op.operand_values[2:]
    with context.rewrite(module, "join-moments", op) as rewriter:
        location = fuse("join-moments", [mean.location, op.location])
        builder = KernelBuilder(mean.parent, module.symbols, mean, location, rewriter.on_create)
        means, variances = _of_images(builder, x, axes[1:])
        whole = builder.reduce(means, "mean", [0], True, tensor_type(mean.result))
        spread = trace(_with_spread, [dtype_of(x)] * 3)
        variance = builder.kernel(
            "reduce", [variances, means, whole], tensor_type(op.result), {"prologue": Region(spread)}, kind="mean",
            axes=(0,), keepdims=1, sources=3,
        )  # fmt: skip
        if "epilogue" in op.regions:
            assert op.parent is not None
            block = op.regions["epilogue"].block
            late = KernelBuilder(op.parent, module.symbols, op, location, rewriter.on_create)
            variance = late.map(
                lambda s, *elements: interpret(block, s, elements)[0], [variance, *extras], tensor_type(op.result)
            )
        rewriter.replace(op, [variance])
        rewriter.replace(mean, [whole])


def _mean_of(op: Operation) -> Operation | None:
    """The mean that `op` is the variance around, if both are of channels of a batch."""
    axes = tuple(op.attr("axes"))
    rank = len(axes) + 1
    if op.attr("kind") != "mean" or axes != (0, *range(2, rank)) or rank < 3 or not op.attr("keepdims"):
        return None
    if int(op.attr("sources")) != 2 or "prologue" not in op.regions:
        return None
    x, center = op.operand_values[:2]
    mean = center.producer
    if mean is None or mean.parent is not op.parent or not is_reduction(mean, ("mean",)) or len(mean.operands) != 1:
        return None
    is_same = mean.operand_values[0] is x and tuple(mean.attr("axes")) == axes and mean.attr("keepdims")
    if not is_same or mean.regions or dtype_of(x) is not dtype_of(mean.result):
        return None
    shape = tensor_type(x).shape or ()
    sizes = [size for size in shape[2:] if isinstance(size, int)]
    if len(shape) != rank or (len(sizes) == rank - 2 and math.prod(sizes) < LEAST):
        return None
    wanted = trace(_squared, [dtype_of(x)] * 2)
    return mean if signature(op.regions["prologue"].block) == signature(wanted) else None


def _squared(s: Any, x: Any, mean: Any) -> Any:
    difference = s.sub(x, mean)
    return s.mul(difference, difference)


def _with_spread(s: Any, variance: Any, mean: Any, whole: Any) -> Any:
    return s.add(variance, _squared(s, mean, whole))


def _of_images(b: KernelBuilder, x: Value, space: tuple[int, ...]) -> tuple[Value, Value]:
    """Mean and variance of each channel of each image."""
    shape = tensor_type(x).shape or ()
    type = tensor_type(x).with_shape([*shape[:2], *[1] * len(space)])
    bounds = [np.array(numbers, np.int64) for numbers in ([0] * len(space), [1] * len(space), space)]
    first = b.kernel("slice", [x, *(b.const(array) for array in bounds)], type)

    def prologue(s: Any, element: Any, first: Any) -> list[Any]:
        difference = s.sub(element, first)
        return [difference, s.mul(difference, difference)]

    def body(s: Any, element: Any, first: Any, mean: Any, square: Any) -> list[Any]:
        return [s.add(first, mean), s.maximum(s.sub(square, s.mul(mean, mean)), 0)]

    regions = {
        "prologue": Region(trace(prologue, [dtype_of(x)] * 2)), "body": Region(trace(body, [dtype_of(x)] * 4)),
    }  # fmt: skip
    attributes = {"axes": space, "kinds": ("mean", "mean"), "numbers": 2, "sums": 0}
    made = b.create("kernel.row_map", [x, first], attributes, result_types=[type, type], regions=regions)
    means, variances = made.results
    return means, variances
