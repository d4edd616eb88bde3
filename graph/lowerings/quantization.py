"""Between floats and quantized integers, and products and convolutions of the latter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core import Operation, Value
from ..dtypes import BY_ONNX_CODE, DType, f32, f64, i32
from ..types import TensorType
from .builder import NATIVE, KernelBuilder, dtype_of, rank_of, shape_of, tensor_type
from .narrow import decoded, encoded, is_narrow, wide_dtype
from .rules import lowers


def _fits(*values: Value | None) -> bool:
    return all(
        value is None
        or (
            isinstance(value.type, TensorType)
            and value.type.shape is not None
            and (value.type.dtype in NATIVE or is_narrow(value.type.dtype))
        )
        for value in values
    )


class _Blocks:
    """How scales and zero points spread over x: all alike, one for each place along an axis, or one for each block.

    With blocks the axis is cut in two, so that what is computed sees blocks and places inside them.
    """

    def __init__(self, op: Operation, k: KernelBuilder) -> None:
        self.k, self.x = k, op.operand_values[0]
        scale = shape_of(op.operand_values[1])
        self.rank = rank_of(self.x)
        self.axis = int(op.attr("axis", 1))
        self.axis = self.axis + self.rank if self.axis < 0 else self.axis
        self.is_alike = not scale or scale == (1,)
        size = int(op.attr("block_size") or 0)
        self.block = 0 if self.is_alike else size
        length = shape_of(self.x)[self.axis] if self.block else 0
        self.fits = isinstance(length, int) and (not self.block or length % self.block == 0)
        if not self.is_alike and not self.block and len(scale) != 1:
            self.fits = False

    def whole(self) -> Value:
        """x, its axis cut into blocks if there are some."""
        return self.k.split_axis(self.x, self.axis, [-1, self.block]) if self.block else self.x

    def spread(self, value: Value | None) -> Value | None:
        """A scale or a zero point so that it is broadcast to `whole`."""
        if value is None:
            return None
        value = decoded(self.k, value)
        if self.is_alike:
            return self.k.squeeze(value, [0]) if rank_of(value) else value
        if self.block:
            return self.k.unsqueeze(value, [self.axis + 1])
        later = range(1, self.rank - self.axis)
        return self.k.unsqueeze(value, later) if later else value

    def joined(self, value: Value) -> Value:
        return self.k.merge_axes(value, self.axis) if self.block else value


def _limits(dtype: DType) -> tuple[int, int]:
    if dtype.kind == "uint":
        return 0, (1 << dtype.bits) - 1
    return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1


@lowers("QuantizeLinear")
def quantize(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    """round(x / scale) + zero point, within the limits of the dtype; floats are x / scale in fewer bits."""
    x, scale, zero = op.operand_values[0], op.operand_values[1], op.input(2)
    dtype = dtype_of(op.result)
    if not _fits(*op.operands, op.result) or dtype_of(x) not in NATIVE or dtype_of(scale) not in NATIVE:
        return None
    blocks = _Blocks(op, k)
    if not blocks.fits or dtype.bits > 16 or (dtype.is_float and not is_narrow(dtype)):
        return None
    precision = op.attr("precision")
    divided = BY_ONNX_CODE[precision] if precision else _promoted(dtype_of(x), dtype_of(scale))
    if divided not in NATIVE:
        return None
    low, high = (0, 0) if dtype.is_float else _limits(dtype)
    wide = f32 if dtype.is_float else wide_dtype(dtype)

    def body(s: Any, element: Any, factor: Any, offset: Any) -> Any:
        ratio = s.div(s.cast(element, divided), s.cast(factor, divided))
        if dtype.is_float:
            ratio = s.cast(ratio, f32)
            return ratio if offset is None or dtype.bits == 8 else s.add(ratio, offset)
        whole = s.cast(s.round(ratio), i32)
        if offset is not None:
            whole = s.add(whole, s.cast(offset, i32))
        return s.cast(s.minimum(s.maximum(whole, low), high), wide)

    given = blocks.whole()
    operands = [given, blocks.spread(scale), blocks.spread(zero)]
    result = k.map(body, operands, tensor_type(given).with_dtype(wide))
    return [encoded(k, blocks.joined(result), dtype, bool(op.attr("saturate", 1)))]


def _promoted(x: DType, y: DType) -> DType:
    """What numpy computes a quotient in."""
    if x is y:
        return x
    if x.is_float and y.is_float:
        return f64 if f64 in (x, y) else f32
    return f64 if x.bits >= 32 else f32


@lowers("DequantizeLinear")
def dequantize(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    """(x - zero point) * scale."""
    x, scale, zero = op.operand_values[0], op.operand_values[1], op.input(2)
    if not _fits(*op.operands, op.result) or dtype_of(scale) not in NATIVE or is_narrow(dtype_of(op.result)):
        return None
    blocks = _Blocks(op, k)
    if not blocks.fits:
        return None
    blocks.x = decoded(k, x)
    if dtype_of(x).is_float and zero is not None:
        zero = None  # it is 0
    wide = f64 if f64 in (dtype_of(scale),) or (zero is not None and dtype_of(zero).bits >= 32) else f32

    def body(s: Any, element: Any, factor: Any, offset: Any) -> Any:
        number = s.cast(s.cast(element, f32), wide)
        if offset is not None:
            number = s.sub(number, s.cast(offset, wide))
        return s.mul(number, s.cast(factor, wide))

    given = blocks.whole()
    result_type = tensor_type(given).with_dtype(dtype_of(op.result))
    result = k.map(body, [given, blocks.spread(scale), blocks.spread(zero)], result_type)
    return [blocks.joined(result)]


# ---- products --------------------------------------------------------------------------------------------------------


def _centred(k: KernelBuilder, x: Value, zero: Value | None, axis: int, dtype: DType) -> Value | None:
    """x less its zero point, as floats of `dtype`; several zero points lie along `axis`."""
    if zero is not None and rank_of(zero):
        if shape_of(zero) == (1,):
            zero = k.squeeze(zero, [0])
        elif rank_of(zero) == 1:
            later = range(1, rank_of(x) - axis)
            zero = k.unsqueeze(zero, later) if later else zero
        elif rank_of(zero) != rank_of(x):
            return None

    def body(s: Any, element: Any, offset: Any) -> Any:
        number = s.cast(element, dtype)
        return number if offset is None else s.sub(number, s.cast(offset, dtype))

    return k.map(body, [x, zero], tensor_type(x).with_dtype(dtype))


def _exact(length: Any) -> DType:
    """The float that holds sums of so many products of bytes exactly."""
    return f32 if isinstance(length, int) and length * 255 * 255 <= 1 << 24 else f64


@lowers("MatMulInteger")
def matmul_integer(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    a, b = op.operand_values[:2]
    product = _product(op, k, (a, op.input(2)), (b, op.input(3)))
    return None if product is None else [_rounded(k, product, op.result)]


@lowers("QLinearMatMul")
def qlinear_matmul(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = op.operand_values
    product = _product(op, k, (a, a_zero), (b, b_zero))
    if product is None or dtype_of(op.result).bits != 8:
        return None
    return [_requantized(k, product, (a_scale, b_scale, y_scale, y_zero, None), op.result)]


@lowers("ConvInteger")
def conv_integer(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    x, w = op.operand_values[:2]
    result = _conv(op, k, (x, op.input(2)), (w, op.input(3)))
    return None if result is None else [_rounded(k, result, op.result)]


@lowers("QLinearConv")
def qlinear_conv(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = op.operand_values[:8]
    result = _conv(op, k, (x, x_zero), (w, w_zero))
    if result is None:
        return None
    later = range(1, rank_of(x) - 1)
    channels, bias = (
        value if value is None or not rank_of(value) else k.unsqueeze(value, later) for value in (w_scale, op.input(8))
    )
    assert channels is not None
    return [_requantized(k, result, (x_scale, channels, y_scale, y_zero, bias), op.result)]


_Quantized = tuple[Value, Value | None]  # a tensor and its zero point


def _product(op: Operation, k: KernelBuilder, a: _Quantized, b: _Quantized) -> Value | None:
    """The product of two integer matrices, in floats that hold it exactly."""
    if not _fits(*op.operands, op.result) or rank_of(a[0]) < 2 or rank_of(b[0]) < 2:
        return None
    dtype = _exact(shape_of(a[0])[-1])
    left = _centred(k, *a, rank_of(a[0]) - 2, dtype)
    right = _centred(k, *b, rank_of(b[0]) - 1, dtype)
    if left is None or right is None:
        return None
    return k.gemm(left, right, tensor_type(op.result).with_dtype(dtype))


def _conv(op: Operation, k: KernelBuilder, x: _Quantized, w: _Quantized) -> Value | None:
    """The convolution of integers, in floats that hold it exactly."""
    if not _fits(*op.operands, op.result) or rank_of(x[0]) not in (3, 4, 5):
        return None
    length: Any = 1
    for size in shape_of(w[0])[1:]:
        length = length * size
    dtype = _exact(length)
    image, filters = _centred(k, *x, 1, dtype), _centred(k, *w, 0, dtype)
    if image is None or filters is None:
        return None
    names = ("strides", "pads", "dilations", "auto_pad")
    attributes = {name: op.attr(name) for name in names if op.attr(name) is not None}
    type = tensor_type(op.result).with_dtype(dtype)
    return k.kernel("conv", [image, filters], type, group=op.attr("group"), **attributes)


def _rounded(k: KernelBuilder, total: Value, result: Value) -> Value:
    dtype = dtype_of(result)
    return k.map(lambda s, element: s.cast(element, dtype), [total], tensor_type(result))


def _requantized(k: KernelBuilder, total: Value, given: Sequence[Value | None], result: Value) -> Value:
    """total (plus a bias) times the scales of both factors over that of the result, which are `given`, and its zero
    point; in f64, as numpy has it."""
    dtype, scale = dtype_of(result), dtype_of(given[0])  # type: ignore[arg-type]
    low, high = _limits(dtype)

    def body(s: Any, total: Any, left: Any, right: Any, own: Any, zero: Any, bias: Any) -> Any:
        total = s.cast(total, f64)
        if bias is not None:
            total = s.add(total, s.cast(bias, f64))
        product = s.cast(s.mul(s.cast(left, f32), s.cast(right, f32)), scale)
        factor = s.cast(s.div(s.cast(product, f32), s.cast(own, f32)), scale)
        number = s.mul(total, s.cast(factor, f64))
        if zero is not None:
            number = s.add(number, s.cast(zero, f64))
        return s.cast(s.minimum(s.maximum(s.round(number), low), high), dtype)

    alike = [k.squeeze(v, [0]) if v is not None and shape_of(v) == (1,) else v for v in given]
    return k.map(body, [total, *alike], tensor_type(result))
