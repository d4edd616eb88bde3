"""Convolutions and pools that ONNX Runtime fuses or turns to channels-last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ...dims import Dim
from ...opdef import op
from ..common import result_elements, shape_of, times
from ..convolution import Convolution
from .base import DOMAIN, MicrosoftOp, TypedByParts, activate, operand, present, rank_of, unknown_activation

if TYPE_CHECKING:
    from ...builder import OpBuilder
    from ...core import Operation, Value

WINDOW = {"kernel_shape": "ints", "strides": "ints", "dilations": "ints", "pads": "ints"}
FUSED: dict[str, str] = {**WINDOW, "activation": "string", "activation_params": "floats"}


def window_attributes(op: Operation, *names: str) -> dict[str, Any]:
    """The attributes of `op` that the standard's operator on windows has too, and `names`."""
    kept = ("kernel_shape", "strides", "dilations", "pads", "auto_pad", *names)
    return {name: op.attributes[name] for name in kept if name in op.attributes}


def channels_first(builder: OpBuilder, value: Value, rank: int) -> Value:
    """[n, *spatial, c] as [n, c, *spatial]."""
    result: Value = builder.transpose(value, perm=[0, rank - 1, *range(1, rank - 1)])
    return result


def channels_last(builder: OpBuilder, value: Value, rank: int) -> Value:
    """[n, c, *spatial] as [n, *spatial, c]."""
    result: Value = builder.transpose(value, perm=[0, *range(2, rank), 1])
    return result


def _activated(op: Operation, builder: OpBuilder, value: Value) -> Value:
    name = op.attr("activation")
    return activate(builder, name, value, *(op.attr("activation_params") or ())) if name else value


@op("FusedConv", domain=DOMAIN)
class FusedConv(MicrosoftOp, Convolution):
    """activation(conv(X, W, B) + Z); `activation_params` are alpha and beta (for Clip the bounds)."""

    inputs = ("X", "W", "B?", "Z?")
    outputs = ("Y",)
    attributes: ClassVar[dict[str, Any]] = {"auto_pad": "NOTSET", "group": 1}
    optional = FUSED

    def refusal(self, op: Operation) -> str | None:
        return unknown_activation(op)

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        inputs = present(op, 0), present(op, 1), operand(op, 2)
        result = builder.conv(*inputs, **window_attributes(op, "group"))
        addend = operand(op, 3)
        return [_activated(op, builder, result if addend is None else builder.add(result, addend))]


@op("NhwcFusedConv", domain=DOMAIN)
class NhwcFusedConv(TypedByParts):
    """FusedConv of X and Z as [n, *spatial, c]; W is [m, c / group, *kernel] all the same."""

    inputs = ("X", "W", "B?", "Z?")
    outputs = ("Y",)
    traits = Convolution.traits
    attributes: ClassVar[dict[str, Any]] = {"auto_pad": "NOTSET", "group": 1}
    optional = FUSED

    def refusal(self, op: Operation) -> str | None:
        return unknown_activation(op)

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        x, addend = present(op, 0), operand(op, 3)
        rank = rank_of(x)
        if rank is None:
            return None
        inputs = channels_first(builder, x, rank), present(op, 1), operand(op, 2)
        result = channels_last(builder, builder.conv(*inputs, **window_attributes(op, "group")), rank)
        return [_activated(op, builder, result if addend is None else builder.add(result, addend))]

    def flops(self, op: Operation) -> Dim | None:
        elements, w = result_elements(op), shape_of(op, 1)
        if elements is None or w is None:
            return None
        for dim in w[1:]:
            elements = elements * dim
        return times(2, elements)


@op("NhwcMaxPool", domain=DOMAIN)
class NhwcMaxPool(TypedByParts):
    """MaxPool of 8-bit [n, *spatial, c]."""

    inputs = ("x",)
    outputs = ("y",)
    attributes: ClassVar[dict[str, Any]] = {"auto_pad": "NOTSET", "ceil_mode": 0}
    required: ClassVar[dict[str, str]] = {"kernel_shape": "ints"}
    optional: ClassVar[dict[str, str]] = {name: kind for name, kind in WINDOW.items() if name != "kernel_shape"}

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        x = present(op, 0)
        rank = rank_of(x)
        if rank is None:
            return None
        pooled = builder.max_pool(channels_first(builder, x, rank), **window_attributes(op, "ceil_mode"))
        return [channels_last(builder, pooled, rank)]
