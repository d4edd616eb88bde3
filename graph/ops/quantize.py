"""Between floating point and quantized integers: q = round(x / scale) + zero point, and back.

A scale is a scalar, a vector along `axis`, or one value per block of `axis`; so these are not elementwise in the sense
of numpy's broadcasting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import dtypes, types
from ..dims import Dim
from ..opdef import OpDefinition, op
from ..types import Type
from .common import SameShape, dtype_attribute, dtype_of, operand_size, shape_of, times

if TYPE_CHECKING:
    from ..core import Operation
    from ..dtypes import DType
    from ..infer import InferenceContext


@op("QuantizeLinear")
class QuantizeLinear(SameShape):
    """To the zero point's type, or `output_dtype`, or u8."""

    def result_dtype(self, op: Operation) -> DType | None:
        return dtype_of(op, 2) or dtype_attribute(op, "output_dtype", dtypes.u8)

    def flops(self, op: Operation) -> Dim | None:
        return times(3, operand_size(op))


@op("DequantizeLinear")
class DequantizeLinear(SameShape):
    """To `output_dtype`, or the scale's type."""

    def result_dtype(self, op: Operation) -> DType | None:
        return dtype_attribute(op, "output_dtype", dtype_of(op, 1))

    def flops(self, op: Operation) -> Dim | None:
        return times(2, operand_size(op))


@op("DynamicQuantizeLinear")
class DynamicQuantizeLinear(OpDefinition):
    """To u8 with the scale (f32) and zero point (u8) that fit the range of x; all three are results."""

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        return [types.tensor(dtypes.u8, shape_of(op, 0)), types.tensor(dtypes.f32, ()), types.tensor(dtypes.u8, ())]

    def flops(self, op: Operation) -> Dim | None:
        return times(5, operand_size(op))
