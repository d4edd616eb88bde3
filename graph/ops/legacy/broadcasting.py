"""Before opset 7 the second operand of an elementwise operator is aligned by the attribute `axis`, not at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .base import OldForm, old_form, shape_of, today

if TYPE_CHECKING:
    from ...builder import OpBuilder
    from ...core import Operation, Value

ARITHMETIC = ("Add", "Sub", "Mul", "Div")
COMPARISONS = ("And", "Or", "Xor", "Equal", "Greater", "Less", "Pow")


@old_form(dict.fromkeys(ARITHMETIC, (1, 6)) | dict.fromkeys(COMPARISONS, (1,)))
class AlignedBinary(OldForm):
    """`broadcast=1, axis=k`: dim 0 of the second operand meets dim k of the first.

    The second operand gets dims of 1 at its end, so that numpy's rule aligns it in the same way.
    """

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        left, right = op.operands
        axis = op.attr("axis")
        if not op.attr("broadcast", 0) or axis is None:
            return today(builder, op)
        left_shape, right_shape = shape_of(left), shape_of(right)
        if left_shape is None or right_shape is None:
            return None
        rank, first = len(right_shape), axis % max(len(left_shape), 1)
        trailing = len(left_shape) - first - rank
        if trailing > 0 and any(dim != 1 for dim in right_shape):
            right = builder.unsqueeze(right, list(range(rank, rank + trailing)))
        return today(builder, op, [left, right])


@old_form({"PRelu": (1, 6)})
class ChannelPRelu(OldForm):
    """A slope vector runs along axis 1."""

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        data, slope = op.operands
        data_shape, slope_shape = shape_of(data), shape_of(slope)
        if data_shape is None or slope_shape is None:
            return None
        if len(slope_shape) == 1 and len(data_shape) > 2:
            slope = builder.unsqueeze(slope, list(range(1, len(data_shape) - 1)))
        return today(builder, op, [data, slope])
