"""Lp pooling with a `p` that is not a whole number (LpPool-1, GlobalLpPool-1)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from .base import OldForm, old_form, shape_of

if TYPE_CHECKING:
    from ...builder import OpBuilder
    from ...core import Operation, Value


@old_form({"LpPool": (1,)})
class LpPool(OldForm):
    """(sum of |x|^p over the window)^(1/p); the sum is the average, pads included, times the window's size."""

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        kernel = op.attr("kernel_shape")
        if kernel is None:
            return None
        windows = {name: op.attr(name) for name in ("auto_pad", "pads", "strides")}
        powers = builder.pow(builder.abs(op.operands[0]), op.attr("p"))
        average = builder.average_pool(powers, kernel_shape=kernel, count_include_pad=1, **windows)
        return [builder.pow(builder.mul(average, float(prod(kernel))), 1.0 / op.attr("p"))]


@old_form({"GlobalLpPool": (1,)})
class GlobalLpPool(OldForm):
    """(sum of |x|^p over all spatial dims)^(1/p)."""

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        shape = shape_of(op.operands[0])
        if shape is None:
            return None
        powers = builder.pow(builder.abs(op.operands[0]), op.attr("p"))
        total = builder.reduce_sum(powers, list(range(2, len(shape))), keepdims=1)
        return [builder.pow(total, 1.0 / op.attr("p"))]
