"""Derivatives of convolutions. In the data, a convolution's adjoint is the transposed convolution with the same weight
(and the other way round); in the weight it is `tilewright.ConvWeightGrad`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..ops.conv_numeric import _pads
from ..ops.convolution import Window
from ..ops.pooling_numeric import pads_of
from .rules import Adjoint, Refusal, gradient_of, parts_of

if TYPE_CHECKING:
    from ..core import Operation, Value
    from .builder import GradientBuilder

_UNKNOWN_KERNEL = Refusal("the size of its kernel is not known; bind it with bind-dims")


@dataclass(frozen=True)
class Geometry:
    """How a window moves: per spatial dim the kernel, stride, dilation, and the pads before and after."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    group: int

    @property
    def rank(self) -> int:
        return len(self.kernel)

    @property
    def pads(self) -> tuple[int, ...]:
        return (*self.before, *self.after)

    @property
    def attributes(self) -> dict[str, Any]:
        return {
            "kernel_shape": self.kernel, "strides": self.strides, "dilations": self.dilations, "pads": self.pads,
            "group": self.group,
        }  # fmt: skip

    def span(self, axis: int) -> int:
        return self.dilations[axis] * (self.kernel[axis] - 1) + 1


def kernel_of(op: Operation, weight: Value, b: GradientBuilder) -> tuple[int, ...] | None:
    """The kernel's dims, if they are numbers."""
    given = op.attr("kernel_shape") or b.known_shape(weight)[2:]
    known = [size for size in given if isinstance(size, int)]
    return tuple(known) if len(known) == len(given) else None


def geometry_of(op: Operation, b: GradientBuilder) -> Geometry | None:
    """The geometry of a Conv; None if its pads depend on sizes that are not known."""
    x, weight = op.operand_values[:2]
    kernel = kernel_of(op, weight, b)
    if kernel is None:
        return None
    window = Window.of(op, kernel)
    spatial = b.known_shape(x)[2:]
    before, after = list(window.before), list(window.after)
    if window.auto_pad.startswith("SAME"):
        known = [size for size in spatial if isinstance(size, int)]
        if len(known) < len(spatial):
            return None
        before, after = pads_of(window, known)
    return Geometry(kernel, window.strides, window.dilations, tuple(before), tuple(after), op.attr("group", 1))


def data_gradient(b: GradientBuilder, grad: Value, weight: Value, x: Value, at: Geometry) -> Value:
    """The adjoint of Conv's x: each element of `grad` adds its kernel, scaled, where it was read."""
    attributes = {"strides": at.strides, "dilations": at.dilations, "group": at.group, "kernel_shape": at.kernel}
    sizes, places = b.known_shape(x)[2:], b.known_shape(grad)[2:]
    left: list[int] = []
    for axis, (size, count) in enumerate(zip(sizes, places, strict=True)):
        if isinstance(size, int) and isinstance(count, int):
            reached = at.strides[axis] * (count - 1) + at.span(axis)
            left.append(size + at.before[axis] + at.after[axis] - reached)
    if len(left) == at.rank and all(rest < stride for rest, stride in zip(left, at.strides, strict=True)):
        padding = left if any(left) else None
        result: Value = b.conv_transpose(grad, weight, pads=at.pads, output_padding=padding, **attributes)
        return result
    full = b.conv_transpose(grad, weight, **attributes)
    spatial = [b.create("shape", [each], {"start": 2}).result for each in (x, full)]
    after = b.sub(b.add(spatial[0], b.ints(at.before)), spatial[1])
    pads = b.concat(b.ints([0, 0, *[-pad for pad in at.before], 0, 0]), after, axis=0)
    result = b.pad(full, pads)
    return result


def weight_gradient(b: GradientBuilder, x: Value, grad: Value, at: Geometry) -> Value:
    return b.create("tilewright.ConvWeightGrad", [x, grad], at.attributes).result


def bias_gradient(b: GradientBuilder, grad: Value) -> Value:
    """The sum over batch and space."""
    result: Value = b.reduce_sum(grad, b.ints([0, *range(2, b.rank(grad))]), keepdims=0)
    return result


@gradient_of("Conv")
def conv(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint] | None:
    x, weight, bias = (*op.operands, None)[:3]
    grad = grads[0]
    assert x is not None
    assert weight is not None
    assert grad is not None
    at = geometry_of(op, b)
    if at is None:
        return None if kernel_of(op, weight, b) else [_UNKNOWN_KERNEL] * 3
    return [
        data_gradient(b, grad, weight, x, at) if b.needs(x) else None,
        weight_gradient(b, x, grad, at) if b.needs(weight) else None,
        bias_gradient(b, grad) if b.needs(bias) else None,
    ]


@parts_of("Conv")
def explicitly_padded(op: Operation, b: GradientBuilder) -> Sequence[Value] | None:
    """A convolution with auto_pad over dims that only the run knows: the pads are computed, and a Pad makes them."""
    x, weight = op.operand_values[:2]
    kernel = kernel_of(op, weight, b)
    if kernel is None:
        return None
    padded = b.pad(x, same_pads(op, b, x, Window.of(op, kernel)))
    attributes = {name: value for name, value in op.attributes.items() if name not in ("auto_pad", "pads")}
    return [b.create(op.definition, [padded, *op.operands[1:]], attributes).result]


def same_pads(op: Operation, b: GradientBuilder, x: Value, window: Window) -> Value:
    """Pads of SAME_UPPER or SAME_LOWER for all dims of x, as Pad takes them (ONNX "Conv", auto_pad)."""
    sizes = b.create("shape", [x], {"start": 2}).result
    strides = b.ints(window.strides)
    spans = b.const([window.span(axis) for axis in range(len(window.strides))])
    places = b.div(b.sub(b.add(sizes, strides), 1), strides)
    total = b.max(b.sub(b.add(b.mul(b.sub(places, 1), strides), spans), sizes), 0)
    smaller = b.div(total, 2)
    larger = b.sub(total, smaller)
    before, after = (smaller, larger) if window.auto_pad == "SAME_UPPER" else (larger, smaller)
    zeros = b.ints([0, 0])
    result: Value = b.concat(zeros, before, zeros, after, axis=0)
    return result


@gradient_of("ConvTranspose")
def conv_transpose(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    x, weight, bias = (*op.operands, None)[:3]
    grad = grads[0]
    assert x is not None
    assert weight is not None
    assert grad is not None
    at = _transposed_geometry(op, b, x, weight)
    if isinstance(at, Refusal):
        return [at, at, bias_gradient(b, grad) if b.needs(bias) else None]
    whole, pads = grad, at
    if any(pad < 0 for pad in at.pads):
        # What was added as zeros behind the ends has no part.
        amounts = [0, 0, *at.before, 0, 0, *at.after]
        whole = b.pad(grad, b.ints(amounts))
        pads = Geometry(at.kernel, at.strides, at.dilations, (0,) * at.rank, (0,) * at.rank, at.group)
    adjoints: list[Adjoint] = [None, None, bias_gradient(b, grad) if b.needs(bias) else None]
    if b.needs(x):
        adjoints[0] = conv_like(b, whole, weight, pads, x)
    if b.needs(weight):
        adjoints[1] = weight_gradient(b, whole, x, pads)
    return adjoints


def _transposed_geometry(op: Operation, b: GradientBuilder, x: Value, weight: Value) -> Geometry | Refusal:
    kernel = kernel_of(op, weight, b)
    if kernel is None:
        return _UNKNOWN_KERNEL
    window = Window.of(op, kernel)
    spatial, extra = b.known_shape(x)[2:], op.attr("output_padding") or (0,) * len(kernel)
    before, after = list(window.before), list(window.after)
    if op.attr("output_shape") or window.auto_pad.startswith("SAME"):
        for axis, size in enumerate(spatial):
            # With SAME the pads do not depend on the size.
            if not isinstance(size, int) and op.attr("output_shape"):
                return Refusal("its output_shape is given for dims that are not known; bind them with bind-dims")
            number = size if isinstance(size, int) else 1
            span = window.dilations[axis] * (kernel[axis] - 1) + 1
            full = window.strides[axis] * (number - 1) + span + extra[axis]
            before[axis], after[axis] = _pads(op, window, axis, full, number)
    return Geometry(kernel, window.strides, window.dilations, tuple(before), tuple(after), op.attr("group"))


def conv_like(b: GradientBuilder, x: Value, weight: Value, at: Geometry, like: Value) -> Value:
    """Conv, of which the first places are kept: as many as `like` has."""
    found: Value = b.conv(
        x, weight, strides=at.strides, dilations=at.dilations, pads=at.pads, group=at.group, kernel_shape=at.kernel
    )
    if b.same_shape(found, like):
        return found
    spatial = list(range(2, at.rank + 2))
    ends = b.create("shape", [like], {"start": 2}).result
    found = b.slice(found, b.ints([0] * at.rank), ends, b.ints(spatial))
    return found


@gradient_of("ConvWeightGrad", domain="tilewright")
def conv_weight_gradient(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    x, places = op.operand_values
    weight = grads[0]
    assert weight is not None
    kernel = tuple(op.attr("kernel_shape"))
    rank = len(kernel)
    pads = tuple(op.attr("pads")) or (0,) * (2 * rank)
    strides, dilations = (tuple(op.attr(name)) or (1,) * rank for name in ("strides", "dilations"))
    at = Geometry(kernel, strides, dilations, pads[:rank], pads[rank:], op.attr("group"))
    return [
        data_gradient(b, places, weight, x, at) if b.needs(x) else None,
        conv_like(b, x, weight, at, places) if b.needs(places) else None,
    ]
