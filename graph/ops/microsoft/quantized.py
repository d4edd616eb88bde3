"""Quantized products and conversions that ONNX Runtime's quantizer and optimizer write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ... import dtypes
from ...dims import Dim
from ...opdef import op
from ..common import SameShape, Shape, dtype_of, has_operand, operand_size, shape_of, times
from ..matmul import MatrixProduct
from .attention import ProjectedAttention
from .base import DOMAIN, MicrosoftOp, TypedByParts, operand, present, rank_of, tensor_dtype, zero
from .convolution import WINDOW, channels_first, channels_last, window_attributes
from .matmul import permutation

if TYPE_CHECKING:
    from ...builder import OpBuilder
    from ...core import Operation, Value
    from ...dtypes import DType


def quantized(
    builder: OpBuilder, value: Value, scale: Value, zero_point: Value | None, dtype: DType, **attributes: Any
) -> Value:
    """round(value / scale) + zero point, saturated, as `dtype`; the zero point defaults to 0."""
    point = zero(builder, dtype) if zero_point is None else zero_point
    if zero_point is None and rank_of(scale) == 1:
        point = builder.expand(point, builder.shape(scale))
    result: Value = builder.quantize_linear(value, scale, point, **attributes)
    return result


def dequantized(builder: OpBuilder, value: Value, scale: Value, zero_point: Value | None, **attributes: Any) -> Value:
    """(value - zero point) * scale."""
    result: Value = builder.dequantize_linear(value, scale, zero_point, **attributes)
    return result


def scaled_product(
    builder: OpBuilder, a: Value, b: Value, scales: tuple[Value, Value], zero_points: tuple[Value | None, Value | None]
) -> Value:
    """The product of 8-bit matrices, each less its zero point, times both scales; those of b may be per column."""
    total = builder.matmul_integer(a, b, *zero_points)
    result: Value = builder.mul(builder.cast(total, to=tensor_dtype(scales[0])), builder.mul(*scales))
    return result


# ---- conversions -----------------------------------------------------------------------------------------------------


class Conversion(MicrosoftOp, SameShape):
    """`axis` says along which dim scales and zero points go; without it they are scalars."""

    optional: ClassVar[dict[str, str]] = {"axis": "int"}

    def options(self, op: Operation) -> dict[str, Any]:
        axis = op.attr("axis")
        return {} if axis is None else {"axis": axis}


@op("QuantizeLinear", domain=DOMAIN)
class QuantizeLinear(Conversion):
    """To the zero point's type, or u8. It had 16-bit and 4-bit types before the standard's operator."""

    inputs = ("x", "y_scale", "y_zero_point?")
    outputs = ("y",)

    def result_dtype(self, op: Operation) -> DType | None:
        return dtype_of(op, 2) if has_operand(op, 2) else dtypes.u8

    def flops(self, op: Operation) -> Dim | None:
        return times(3, operand_size(op))

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        point = operand(op, 2)
        dtype = dtypes.u8 if point is None else tensor_dtype(point)
        return [quantized(builder, present(op, 0), present(op, 1), point, dtype, **self.options(op))]


@op("DequantizeLinear", domain=DOMAIN)
class DequantizeLinear(Conversion):
    """To the scale's type."""

    inputs = ("x", "x_scale", "x_zero_point?")
    outputs = ("y",)

    def result_dtype(self, op: Operation) -> DType | None:
        return dtype_of(op, 1)

    def flops(self, op: Operation) -> Dim | None:
        return times(2, operand_size(op))

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        return [dequantized(builder, present(op, 0), present(op, 1), operand(op, 2), **self.options(op))]


# ---- products --------------------------------------------------------------------------------------------------------


@op("DynamicQuantizeMatMul", domain=DOMAIN)
class DynamicQuantizeMatMul(MicrosoftOp, MatrixProduct):
    """A, quantized to u8 as DynamicQuantizeLinear does, times the quantized B; plus the bias."""

    inputs = ("A", "B", "b_scale", "b_zero_point?", "bias?")
    outputs = ("Y",)

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        a, scale, point = builder.dynamic_quantize_linear(present(op, 0))
        result = scaled_product(builder, a, present(op, 1), (scale, present(op, 2)), (point, operand(op, 3)))
        bias = operand(op, 4)
        return [result if bias is None else builder.add(result, bias)]


@op("MatMulIntegerToFloat", domain=DOMAIN)
class MatMulIntegerToFloat(MicrosoftOp, MatrixProduct):
    """The product of quantized matrices as floating point, plus the bias."""

    inputs = ("A", "B", "a_scale", "b_scale", "a_zero_point?", "b_zero_point?", "bias?")
    outputs = ("Y",)

    def result_dtype(self, op: Operation) -> DType | None:
        return dtype_of(op, 2, 3)

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        scales, points = (present(op, 2), present(op, 3)), (operand(op, 4), operand(op, 5))
        result = scaled_product(builder, present(op, 0), present(op, 1), scales, points)
        bias = operand(op, 6)
        return [result if bias is None else builder.add(result, bias)]


@op("QGemm", domain=DOMAIN)
class QGemm(MicrosoftOp, MatrixProduct):
    """alpha * A @ B of quantized matrices, transposed on demand, plus C; quantized if `y_scale` is there.

    C (i32) has the scale alpha * a_scale * b_scale and the zero point 0.
    """

    inputs = (
        "A", "a_scale", "a_zero_point", "B", "b_scale", "b_zero_point", "C?", "y_scale?", "y_zero_point?",
    )  # fmt: skip
    outputs = ("Y",)
    attributes: ClassVar[dict[str, Any]] = {"alpha": 1.0, "transA": 0, "transB": 0}
    right = 3

    def result_dtype(self, op: Operation) -> DType | None:
        if not has_operand(op, 7):
            return dtypes.f32
        return dtype_of(op, 8) if has_operand(op, 8) else dtype_of(op, 0)

    def factor(self, op: Operation, index: int) -> Shape | None:
        shape = shape_of(op, index)
        turned = op.attr("transA" if index == 0 else "transB")
        return shape[::-1] if turned and shape is not None else shape

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        a, b = present(op, 0), present(op, 3)
        if op.attr("transA"):
            a = builder.transpose(a, perm=permutation(2, 1, 0))
        if op.attr("transB"):
            b = builder.transpose(b, perm=permutation(2, 1, 0))
        total = builder.matmul_integer(a, b, present(op, 2), present(op, 5))
        addend = operand(op, 6)
        if addend is not None:
            total = builder.add(total, addend)
        scale = builder.mul(builder.mul(present(op, 1), present(op, 4)), op.attr("alpha"))
        result = builder.mul(builder.cast(total, to=dtypes.f32), scale)
        if not has_operand(op, 7):
            return [result]
        return [quantized(builder, result, present(op, 7), operand(op, 8), self.result_dtype(op) or dtypes.u8)]


@op("QAttention", domain=DOMAIN)
class QAttention(ProjectedAttention):
    """Attention whose input and weights are quantized; all after the projection is floating point."""

    inputs = (
        "input", "weight", "bias", "input_scale", "weight_scale", "mask_index?", "input_zero_point?",
        "weight_zero_point?", "past?",
    )  # fmt: skip
    attributes: ClassVar[dict[str, Any]] = {"unidirectional": 0}
    optional: ClassVar[dict[str, str]] = {
        "mask_filter_value": "float", "scale": "float", "do_rotary": "int", "past_present_share_buffer": "int",
    }  # fmt: skip
    mask_input, past_input, bias_input, dtype_input = 5, 8, None, 2

    def projected(self, op: Operation, builder: OpBuilder) -> Value:
        scales, points = (present(op, 3), present(op, 4)), (operand(op, 6), operand(op, 7))
        product = scaled_product(builder, present(op, 0), present(op, 1), scales, points)
        result: Value = builder.add(product, present(op, 2))
        return result


@op("QLinearConv", domain=DOMAIN)
class QLinearConv(TypedByParts):
    """The standard's QLinearConv, of [n, *spatial, c] if `channels_last`; w is [m, c / group, *kernel] all the same."""

    inputs = (
        "x", "x_scale", "x_zero_point", "w", "w_scale", "w_zero_point", "y_scale", "y_zero_point", "B?",
    )  # fmt: skip
    outputs = ("y",)
    attributes: ClassVar[dict[str, Any]] = {"auto_pad": "NOTSET", "channels_last": 0, "group": 1}
    optional = WINDOW

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        rank = rank_of(present(op, 0))
        if rank is None:
            return None
        values = list(op.operands)
        if op.attr("channels_last"):
            values[0] = channels_first(builder, present(op, 0), rank)
        result = builder.qlinear_conv(*values, **window_attributes(op, "group"))
        return [channels_last(builder, result, rank) if op.attr("channels_last") else result]


@op("DynamicQuantizeLSTM", domain=DOMAIN)
class DynamicQuantizeLSTM(TypedByParts):
    """LSTM with quantized weights, W and R being [directions, input size, 4 * hidden size].

    What stands here is the LSTM of the dequantized weights; ONNX Runtime also rounds its input and state to 8 bits.
    """

    inputs = (
        "X", "W", "R", "B?", "sequence_lens?", "initial_h?", "initial_c?", "P?", "W_scale", "W_zero_point", "R_scale",
        "R_zero_point",
    )  # fmt: skip
    outputs = ("Y?", "Y_h?", "Y_c?")
    deviation = "ONNX Runtime rounds its input and its state to 8 bits, which is not done here; expect some 1 %"
    attributes: ClassVar[dict[str, Any]] = {"direction": "forward", "input_forget": 0}
    optional: ClassVar[dict[str, str]] = {
        "activations": "strings", "activation_alpha": "floats", "activation_beta": "floats", "clip": "float",
        "hidden_size": "int",
    }  # fmt: skip

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        weights = []
        for index, first in ((1, 8), (2, 10)):
            scale, point = present(op, first), present(op, first + 1)
            # A scale per direction, or per direction and column.
            axes = [1] if rank_of(scale) == 2 else [1, 2]
            signed = builder.cast(present(op, index), to=dtypes.f32)
            offset = builder.unsqueeze(builder.cast(point, to=dtypes.f32), axes)
            wide = builder.mul(builder.sub(signed, offset), builder.unsqueeze(scale, axes))
            weights.append(builder.transpose(wide, perm=[0, 2, 1]))
        rest = [operand(op, index) for index in range(3, 8)]
        results = builder.lstm(present(op, 0), *weights, *rest, outputs=3, **op.attributes)
        return list(results)
