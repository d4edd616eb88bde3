"""Between floats and quantized integers, and products and convolutions of the latter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core import Operation, Value
from ..dtypes import BY_ONNX_CODE, DType, f32, f64, i8, i32, u8
from ..kernel.bodies import ROUNDING, ROUNDING_BITS
from ..kernel.integer_ops import sums_type
from ..types import TensorType, tensor
from .builder import NATIVE, KernelBuilder, data_of, dtype_of, number_of, rank_of, shape_of, tensor_type
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
        self.fits = self.is_alike or (0 <= self.axis < self.rank and (bool(self.block) or len(scale) == 1))
        if self.block and self.fits:
            length = shape_of(self.x)[self.axis]
            self.fits = isinstance(length, int) and length % self.block == 0

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

    number = None if zero is None or dtype.is_float else number_of(zero)

    def body(s: Any, element: Any, factor: Any, offset: Any) -> Any:
        divide = s.quotient if divided is f32 and not dtype.is_float else s.div
        ratio = divide(s.cast(element, divided), s.cast(factor, divided))
        if dtype.is_float:
            ratio = s.cast(ratio, f32)
            return ratio if offset is None or dtype.bits == 8 else s.add(ratio, offset)
        ratio = s.cast(s.round(ratio) if divided is f64 else ratio, f32)
        return s.cast(rounded(s, ratio, offset if number is None else number, low, high), wide)

    given = blocks.whole()
    operands = [given, blocks.spread(scale), blocks.spread(zero) if number is None else None]
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


# ---- rounding --------------------------------------------------------------------------------------------------------


def rounded(s: Any, number: Any, zero: Any, low: int, high: int) -> Any:
    """round(number) + zero within `low` and `high`, as i32; `zero` is None, a number or an element. NaN gives zero.

    The number is held within the limits first, where it is still a float; so its bits tell the integer.
    """
    if zero is None or isinstance(zero, int | float):
        whole = int(zero or 0)
        limited = s.minimum(s.maximum(number, float(low - whole)), float(high - whole))
        return s.sub(s.bitcast(s.add(limited, ROUNDING), i32), ROUNDING_BITS - whole)
    offset = s.cast(zero, f32)
    limited = s.minimum(s.maximum(number, s.sub(low, offset)), s.sub(high, offset))
    bits = s.bitcast(s.add(limited, ROUNDING), i32)
    return s.add(s.sub(bits, ROUNDING_BITS), s.cast(zero, i32))


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
    sums = _product(op, k, (a, op.input(2)), (b, op.input(3)))
    return None if sums is None else [_as_declared(k, sums, op.result)]


@lowers("QLinearMatMul")
def qlinear_matmul(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = op.operand_values
    if dtype_of(op.result) not in (u8, i8):
        return None
    sums = _product(op, k, (a, a_zero), (b, b_zero))
    if sums is None:
        return None
    left = k.unsqueeze(a_scale, [1]) if rank_of(a_scale) == 1 and shape_of(a_scale) != (1,) else a_scale
    return [_requantized(k, sums, (left, b_scale, y_scale, y_zero, None), op.result)]


@lowers("ConvInteger")
def conv_integer(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    x, w = op.operand_values[:2]
    sums = _conv(op, k, (x, op.input(2)), (w, op.input(3)))
    return None if sums is None else [_as_declared(k, sums, op.result)]


@lowers("QLinearConv")
def qlinear_conv(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = op.operand_values[:8]
    sums = _conv(op, k, (x, x_zero), (w, w_zero))
    if sums is None or dtype_of(op.result) not in (u8, i8):
        return None
    later = range(1, rank_of(x) - 1)
    channels, bias = (
        value if value is None or not rank_of(value) else k.unsqueeze(value, later) for value in (w_scale, op.input(8))
    )
    return [_requantized(k, sums, (x_scale, channels, y_scale, y_zero, bias), op.result)]


_Quantized = tuple[Value, Value | None]  # a tensor and its zero point


def _product(op: Operation, k: KernelBuilder, a: _Quantized, b: _Quantized) -> Value | None:
    """The product of two integer matrices: exact sums as i32, or as floats that hold them."""
    if not _fits(*op.operands, op.result) or rank_of(a[0]) < 2 or rank_of(b[0]) < 2:
        return None
    if _are_bytes(a[0], b[0]):
        left, right = _zero_point(k, *a, rank_of(a[0]) - 2), _zero_point(k, *b, rank_of(b[0]) - 1)
        if left is not None and right is not None:
            return k.kernel("integer_gemm", [a[0], b[0], left, right], sums_type(tensor_type(op.result)))
    dtype = _exact(shape_of(a[0])[-1])
    factors = _centred(k, *a, rank_of(a[0]) - 2, dtype), _centred(k, *b, rank_of(b[0]) - 1, dtype)
    if factors[0] is None or factors[1] is None:
        return None
    return k.gemm(factors[0], factors[1], tensor_type(op.result).with_dtype(dtype))


def _are_bytes(*values: Value) -> bool:
    return all(dtype_of(value) in (u8, i8) for value in values)


def _zero_point(k: KernelBuilder, x: Value, zero: Value | None, axis: int) -> Value | None:
    """The zero point of x as kernels of integers take it: broadcast to x. None if there is another form of it."""
    if zero is None:
        return k.const(np.zeros((), dtype_of(x).numpy), dtype_of(x))
    if not rank_of(zero):
        return zero
    if shape_of(zero) == (1,):
        return k.squeeze(zero, [0])
    if rank_of(zero) == 1:
        return k.unsqueeze(zero, range(1, rank_of(x) - axis)) if axis < rank_of(x) - 1 else zero
    return zero if rank_of(zero) == rank_of(x) else None


_WINDOW = ("strides", "pads", "dilations")


def _conv(op: Operation, k: KernelBuilder, x: _Quantized, w: _Quantized) -> Value | None:
    """The convolution of integers: exact sums as i32, or (of volumes) as floats that hold them."""
    rank = rank_of(x[0]) if _fits(*op.operands, op.result) else 0
    if rank not in (3, 4, 5):
        return None
    attributes: dict[str, Any] = {name: op.attr(name) for name in _WINDOW if op.attr(name) is not None}
    attributes |= {"auto_pad": op.attr("auto_pad", "NOTSET"), "group": op.attr("group")}
    x_zero, w_zero = _zero_point(k, x[0], x[1], rank - 1), _flat(k, w[0], w[1])
    if rank == 4 and _are_bytes(x[0], w[0]) and x_zero is not None and not rank_of(x_zero) and w_zero is not None:
        type = sums_type(tensor_type(op.result))
        return k.kernel("integer_conv", [x[0], w[0], x_zero, w_zero], type, **attributes)
    length: Any = 1
    for size in shape_of(w[0])[1:]:
        length = length * size
    dtype = _exact(length)
    image, filters = _centred(k, *x, 1, dtype), _centred(k, *w, 0, dtype)
    if image is None or filters is None:
        return None
    return k.kernel("conv", [image, filters], tensor_type(op.result).with_dtype(dtype), **attributes)


def _flat(k: KernelBuilder, w: Value, zero: Value | None) -> Value | None:
    """The zero point of filters: one, or one for each output."""
    found = _zero_point(k, w, zero, rank_of(w) - 1)
    return found if found is not None and rank_of(found) <= 1 else None


def _as_declared(k: KernelBuilder, sums: Value, result: Value) -> Value:
    dtype = dtype_of(result)
    if dtype_of(sums) is dtype:
        return sums
    return k.map(lambda s, element: s.cast(element, dtype), [sums], tensor_type(result))


def _requantized(k: KernelBuilder, sums: Value, given: Sequence[Value | None], result: Value) -> Value:
    """sums (plus a bias) times the scales of both factors over that of the result, which are `given`, and its zero
    point; in f32, as ONNX Runtime has it. Where f64 would round to another integer, that is its neighbour."""
    low, high = _limits(dtype_of(result))
    alike = [k.squeeze(v, [0]) if v is not None and shape_of(v) == (1,) else v for v in given]
    left, right, own, zero, bias = alike
    assert left is not None
    assert right is not None
    assert own is not None
    factor = _factor(k, left, right, own)

    def body(s: Any, total: Any, factor: Any, zero: Any, bias: Any) -> Any:
        if bias is not None:
            total = s.add(total, s.cast(bias, dtype_of(sums)))
        return s.cast(rounded(s, s.mul(s.cast(total, f32), factor), zero, low, high), dtype_of(result))

    zero_number = None if zero is None else number_of(zero)
    if zero is None or zero_number is not None:
        return k.map(
            lambda s, total, factor, bias: body(s, total, factor, zero_number, bias), [sums, factor, bias],
            tensor_type(result),
        )  # fmt: skip
    return k.map(body, [sums, factor, zero, bias], tensor_type(result))


def _factor(k: KernelBuilder, left: Value, right: Value, own: Value) -> Value:
    """left * right / own, as f32; computed here where all are constants."""
    data = [data_of(value) for value in (left, right, own)]
    if all(each is not None for each in data):
        arrays = [each.numpy().astype(np.float32) for each in data if each is not None]
        return k.const(np.asarray(arrays[0] * arrays[1] / arrays[2], np.float32), f32)
    shape = max((shape_of(value) for value in (left, right, own)), key=len)
    type = tensor(f32, shape)

    def body(s: Any, x: Any, y: Any, z: Any) -> Any:
        return s.div(s.mul(s.cast(x, f32), s.cast(y, f32)), s.cast(z, f32))

    return k.map(body, [left, right, own], type)
