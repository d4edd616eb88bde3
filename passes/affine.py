"""Linear operators with constant weights (Conv, ConvTranspose, Gemm, MatMul) as one form that passes fold into.

A *linear* operation here is y = W x + bias, per output channel, with a constant W. `Linear` reads one, scales its
output or input channels, shifts its output, and builds the changed operation. Arithmetic is done in float64; weights
are rounded once, in small blocks, and read only if they change: they may be most of a large model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from ml_dtypes import finfo

from ..graph.builder import OpBuilder
from ..graph.core import Operation, Value
from ..graph.data import TensorData, UnresolvedData, derived
from ..graph.dtypes import DType
from ..graph.types import TensorType
from .rules import Match, Mismatch

LINEAR = ("conv", "conv_transpose", "gemm", "matmul")
TOO_FAR = "the weights or the bias would leave the range of their type"


def scaled(weight: np.ndarray, factor: np.ndarray | float) -> np.ndarray:
    """`weight * factor` in the dtype and shape of `weight`, computed in float64 without a copy of that size."""
    result = np.empty_like(weight)
    # numpy converts a few thousand elements at a time, on their way in and out.
    np.multiply(weight, factor, out=result, dtype=np.float64, casting="unsafe")
    return result


def can_be_scaled(data: TensorData, factor: np.ndarray | float) -> bool:
    """Whether weights times `factor` are as good in their type as before: none overflows, not all become subnormal.

    `factor` is one number, or an array that broadcasts to the weights. Weights of f32 and f64 are not read for a
    factor that is anywhere near 1.
    """
    factors = np.abs(np.asarray(factor, np.float64))
    if str(data.dtype) in ("f32", "f64") and 1e-10 <= factors.max(initial=0.0) <= 1e10:
        return True
    weight = data.numpy()
    lined_up = factors.reshape((1,) * (weight.ndim - factors.ndim) + factors.shape)
    alike = tuple(axis for axis, size in enumerate(lined_up.shape) if size == 1)
    largest = np.abs(weight).max(axis=alike, keepdims=True, initial=0.0).astype(np.float64) * lined_up
    return is_in_range(float(largest.max(initial=0.0)), data.dtype)


def is_in_range(largest: float, dtype: DType) -> bool:
    """Whether numbers of which `largest` is the greatest can be held in `dtype`: no infinity, not only subnormals."""
    info = finfo(dtype.numpy)  # type: ignore[no-untyped-call]
    return largest == 0.0 or 16 * float(info.tiny) <= largest <= float(info.max)


@dataclass
class Linear:
    """One linear operation: its constant weight, and its bias in float64.

    `data` is the weight, which is `changed` or still the operation's own. `channels` is the number of
    output channels, `groups` that of a convolution. `channel_axis` is the axis of the result that holds them, counted
    from the front.
    """

    op: Operation
    data: TensorData
    bias: np.ndarray
    channels: int
    groups: int
    channel_axis: int
    changed: bool = False

    @property
    def is_convolution(self) -> bool:
        return self.op.name in ("conv", "conv_transpose")

    @property
    def weight(self) -> np.ndarray:
        return self.data.numpy()

    @property
    def bias_fits(self) -> bool:
        """Whether the type holds each number of the bias; infinities that the model has are none."""
        largest = float(finfo(self.data.dtype.numpy).max)  # type: ignore[no-untyped-call]
        return not np.any((np.abs(self.bias) > largest) & np.isfinite(self.bias))

    def can_scale_outputs(self, scale: np.ndarray) -> bool:
        """Whether weights stay in the range of their type when output channel c is multiplied by scale[c]."""
        return can_be_scaled(self.data, self._along_outputs(scale))

    def can_scale_inputs(self, scale: np.ndarray) -> bool:
        """Whether weights stay in the range of their type when input channel c is multiplied by scale[c]."""
        return can_be_scaled(self.data, self._along_inputs(scale))

    def scale_outputs(self, scale: np.ndarray) -> None:
        """Multiply output channel c by scale[c]."""
        factor = self._along_outputs(scale)
        self._change(lambda weight: scaled(weight, factor))
        self.bias = self.bias * scale

    def shift_outputs(self, shift: np.ndarray) -> None:
        """Add shift[c] to output channel c."""
        self.bias = self.bias + shift

    def transform_inputs(self, scale: np.ndarray, shift: np.ndarray) -> None:
        """Apply x[c] -> scale[c] * x[c] + shift[c] to the input channels first (Conv and Gemm, without padding)."""
        weight, factor = self.weight, self._along_inputs(scale)
        if self.op.name == "conv":
            flat = weight.reshape(self.groups, -1, weight.shape[1], int(np.prod(weight.shape[2:])))
            moved = _float64_sum("goik,gi->go", flat, shift.reshape(self.groups, -1)).reshape(-1)
        else:
            transposed = self.op.attr("transB", 0)
            moved = _float64_sum("oi,i->o" if transposed else "io,i->o", weight, shift)
            moved *= float(self.op.attr("alpha", 1.0))
        self._change(lambda weight: scaled(weight, factor))
        self.bias = self.bias + moved

    def build(self, b: OpBuilder) -> Value:
        """The changed operation."""
        op, dtype = self.op, self.data.dtype
        x, weight = op.operands[:2]
        if self.changed:
            weight = b.const(self.data)
        bias = b.const(self.bias.astype(dtype.numpy), dtype)
        if op.name == "matmul":
            return b.create("gemm", [x, weight, bias]).result
        attributes = {name: value for name, value in op.attributes.items() if name != "beta"}
        return b.create(op.definition, [x, weight, bias], attributes).result

    def _change(self, function: Callable[[np.ndarray], np.ndarray]) -> None:
        """`function` keeps the shape."""
        self.data = derived(function, self.data, dtype=self.data.dtype, shape=self.data.shape)
        self.changed = True

    def _along_outputs(self, scale: np.ndarray) -> np.ndarray:
        """`scale` shaped so that it multiplies the output channels of `weight`."""
        if self.op.name == "conv":
            return scale.reshape((-1,) + (1,) * (len(self.data.shape) - 1))
        if self.op.name == "conv_transpose":
            # [C_in, C_out / groups, ...]: input channel i belongs to group i // (C_in / groups).
            grouped = np.repeat(scale.reshape(self.groups, -1), self.data.shape[0] // self.groups, axis=0)
            return grouped.reshape(grouped.shape + (1,) * (len(self.data.shape) - 2))
        return scale[:, None] if self.op.attr("transB", 0) else scale

    def _along_inputs(self, scale: np.ndarray) -> np.ndarray:
        """`scale` shaped so that it multiplies the input channels of `weight` (Conv and Gemm)."""
        if self.op.name == "conv":
            # [C_out, C_in / groups, ...]: output channel o belongs to group o // (C_out / groups).
            grouped = np.repeat(scale.reshape(self.groups, -1), self.channels // self.groups, axis=0)
            return grouped.reshape(grouped.shape + (1,) * (len(self.data.shape) - 2))
        return scale if self.op.attr("transB", 0) else scale[:, None]


def read_linear(m: Match, op: Operation) -> Linear | Mismatch:
    """The linear operation `op`, or why it is none that can be folded into.

    Its weight must be a constant that nobody else uses, since a changed copy would make the model larger.
    """
    weight_value = op.operands[1]
    data = m.data(weight_value)
    result = op.results[0].type
    if data is None or weight_value is None or isinstance(data, UnresolvedData):
        return m.fail("the weight is not a constant, or not loaded", op)
    if weight_value.use_count != 1:
        return m.fail("the weight has other users", weight_value)
    if not data.dtype.is_float:
        return m.fail(f"the weight is {data.dtype}, not floating point", weight_value)
    if not isinstance(result, TensorType) or result.rank is None:
        return m.fail("the rank is not known", op)
    if op.name == "matmul" and not (result.rank == 2 and len(data.shape) == 2):
        return m.fail("only a product of two matrices can take a bias", op)
    groups = int(op.attr("group", 1))
    channels = _channels(op, data.shape, groups)
    bias = _bias(m, op, channels)
    if isinstance(bias, Mismatch):
        return bias
    return Linear(op, data, bias, channels, groups, 1)


def _float64_sum(subscripts: str, weight: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """The einsum of two arrays, computed in float64."""
    result: np.ndarray = np.einsum(subscripts, weight, vector, dtype=np.float64, casting="unsafe")
    return result


def _channels(op: Operation, shape: tuple[int, ...], groups: int) -> int:
    if op.name == "conv":
        return shape[0]
    if op.name == "conv_transpose":
        return shape[1] * groups
    return shape[0] if op.attr("transB", 0) else shape[1]


def _bias(m: Match, op: Operation, channels: int) -> np.ndarray | Mismatch:
    value = op.input(2) if op.name != "matmul" else None
    if value is None:
        return np.zeros(channels)
    data = m.data(value)
    if data is None or isinstance(data, UnresolvedData):
        return m.fail("the bias is not a constant, or not loaded", value)
    bias = data.numpy().astype(np.float64)
    if op.name == "gemm":
        if bias.ndim == 2 and bias.shape[0] != 1:
            return m.fail("the bias differs from row to row", value)
        bias = np.broadcast_to(bias.reshape(-1), (channels,)) * float(op.attr("beta", 1.0))
    return bias


def per_channel(m: Match, value: Value, linear: Linear) -> np.ndarray | Mismatch:
    """A constant that runs along the channels of the linear result, or is one number, as [channels] in float64."""
    array = m.constant(value)
    result = linear.op.results[0].type
    if array is None or not isinstance(result, TensorType) or result.rank is None:
        return m.fail("the other operand is not a constant", value)
    if array.ndim > result.rank:
        return m.fail("the constant has more dims than the result", value)
    shape = (1,) * (result.rank - array.ndim) + array.shape
    wide = [axis for axis, size in enumerate(shape) if size != 1]
    if wide not in ([], [linear.channel_axis]):
        return m.fail("the constant varies along an axis other than the channels", value)
    if wide and shape[linear.channel_axis] != linear.channels:
        return m.fail("the constant widens the channels", value)
    return np.broadcast_to(array.reshape(-1).astype(np.float64), (linear.channels,))
