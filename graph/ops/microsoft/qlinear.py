"""Operators on quantized tensors: each is what it says of the dequantized operands, quantized again.

ONNX Runtime computes some of them in another order or from tables, so that a result may differ by one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ...dims import Dim
from ...opdef import Trait, op
from ..common import SameShape, TensorOp, broadcast, operand_size, shape_of, times
from .activations import flat_softmax
from .base import DOMAIN, MicrosoftOp, TypedByParts, operand, present, rank_of, tensor_dtype
from .convolution import WINDOW, channels_first, channels_last, window_attributes
from .quantized import dequantized, quantized

if TYPE_CHECKING:
    from ...builder import OpBuilder
    from ...core import Operation, Value
    from ...infer import InferenceContext


def _in(op: Operation, builder: OpBuilder, first: int) -> Value:
    """Operands `first`, scale and zero point, dequantized."""
    return dequantized(builder, present(op, first), present(op, first + 1), operand(op, first + 2))


def _out(op: Operation, builder: OpBuilder, value: Value, scale: int, like: int = 0) -> Value:
    """`value` quantized with operands `scale` and the one after it, to the type of operand `like`."""
    dtype = tensor_dtype(present(op, like))
    return quantized(builder, value, present(op, scale), operand(op, scale + 1), dtype)


# ---- elementwise -----------------------------------------------------------------------------------------------------


class QLinearBinary(MicrosoftOp, TensorOp):
    """Of A and B, broadcast against each other."""

    inputs = ("A", "A_scale", "A_zero_point?", "B", "B_scale", "B_zero_point?", "C_scale", "C_zero_point?")
    outputs = ("C",)
    function: ClassVar[str]

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        return broadcast(op, [shape_of(op, 0), shape_of(op, 3)], context)

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        result = getattr(builder, self.function)(_in(op, builder, 0), _in(op, builder, 3))
        return [_out(op, builder, result, 6)]


@op("QLinearAdd", domain=DOMAIN)
class QLinearAdd(QLinearBinary):
    """A + B."""

    function = "add"


@op("QLinearMul", domain=DOMAIN)
class QLinearMul(QLinearBinary):
    """A * B, elementwise."""

    function = "mul"


class QLinearUnary(MicrosoftOp, SameShape):
    """Of each element of X."""

    inputs = ("X", "X_scale", "X_zero_point?", "Y_scale", "Y_zero_point?")
    outputs = ("Y",)

    def flops(self, op: Operation) -> Dim | None:
        return times(8, operand_size(op))


@op("QLinearSigmoid", domain=DOMAIN)
class QLinearSigmoid(QLinearUnary):
    """1 / (1 + exp(-X))."""

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        return [_out(op, builder, builder.sigmoid(_in(op, builder, 0)), 3)]


@op("QLinearLeakyRelu", domain=DOMAIN)
class QLinearLeakyRelu(QLinearUnary):
    """X, times alpha where it is negative."""

    attributes: ClassVar[dict[str, Any]] = {"alpha": 0.009999999776482582}

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        return [_out(op, builder, builder.leaky_relu(_in(op, builder, 0), alpha=op.attr("alpha")), 3)]


@op("QLinearSoftmax", domain=DOMAIN)
class QLinearSoftmax(QLinearUnary):
    """Softmax along `axis`; before opset 13 (attribute `opset`) all dims from there on count as one."""

    inputs = ("X", "X_scale", "x_zero_point?", "y_scale", "y_zero_point")
    attributes: ClassVar[dict[str, Any]] = {"axis": -1}
    required: ClassVar[dict[str, str]] = {"opset": "int"}

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        x = _in(op, builder, 0)
        rank, axis = rank_of(x), op.attr("axis")
        if op.attr("opset") >= 13:
            return [_out(op, builder, builder.softmax(x, axis=axis), 3)]
        return None if rank is None else [_out(op, builder, flat_softmax(builder, x, axis, rank), 3)]


@op("QLinearWhere", domain=DOMAIN)
class QLinearWhere(MicrosoftOp, TensorOp):
    """X where the condition holds, else Y."""

    inputs = (
        "condition", "X", "x_scale", "x_zero_point", "Y", "y_scale", "y_zero_point", "z_scale", "z_zero_point",
    )  # fmt: skip
    outputs = ("Z",)

    def result_dtype(self, op: Operation) -> Any:
        from ..common import dtype_of

        return dtype_of(op, 1, 4)

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        return broadcast(op, [shape_of(op, index) for index in (0, 1, 4)], context)

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        chosen = builder.where(present(op, 0), _in(op, builder, 1), _in(op, builder, 4))
        return [_out(op, builder, chosen, 7, like=1)]


# ---- pools and the rest ----------------------------------------------------------------------------------------------


class QLinearPool(TypedByParts):
    """Of windows of [n, c, *spatial], or of [n, *spatial, c] if `channels_last`."""

    outputs = ("Y",)
    traits = frozenset({Trait.REDUCTION})

    def pooled(self, op: Operation, builder: OpBuilder, x: Value) -> Value:
        """The pool of dequantized [n, c, *spatial]."""
        raise NotImplementedError(type(self).__name__)

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        x, last = _in(op, builder, 0), op.attr("channels_last")
        rank = rank_of(x)
        if rank is None:
            return None
        result = self.pooled(op, builder, channels_first(builder, x, rank) if last else x)
        return [_out(op, builder, channels_last(builder, result, rank) if last else result, 3)]


@op("QLinearAveragePool", domain=DOMAIN)
class QLinearAveragePool(QLinearPool):
    """The mean of each window."""

    inputs = ("X", "x_scale", "x_zero_point?", "y_scale", "y_zero_point?")
    attributes: ClassVar[dict[str, Any]] = {
        "auto_pad": "NOTSET", "ceil_mode": 0, "channels_last": 0, "count_include_pad": 0,
    }  # fmt: skip
    required: ClassVar[dict[str, str]] = {"kernel_shape": "ints"}
    optional: ClassVar[dict[str, str]] = {name: WINDOW[name] for name in ("strides", "pads")}

    def pooled(self, op: Operation, builder: OpBuilder, x: Value) -> Value:
        result: Value = builder.average_pool(x, **window_attributes(op, "ceil_mode", "count_include_pad"))
        return result


@op("QLinearGlobalAveragePool", domain=DOMAIN)
class QLinearGlobalAveragePool(QLinearPool):
    """The mean of each channel."""

    inputs = ("X", "x_scale", "x_zero_point", "y_scale", "y_zero_point")
    attributes: ClassVar[dict[str, Any]] = {"channels_last": 0}

    def pooled(self, op: Operation, builder: OpBuilder, x: Value) -> Value:
        result: Value = builder.global_average_pool(x)
        return result


@op("QLinearReduceMean", domain=DOMAIN)
class QLinearReduceMean(TypedByParts):
    """The mean along `axes`."""

    inputs = ("data", "data_scale", "data_zero_point?", "reduced_scale", "reduced_zero_point?")
    outputs = ("reduced",)
    traits = frozenset({Trait.REDUCTION})
    required: ClassVar[dict[str, str]] = {"axes": "ints", "keepdims": "int"}

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        mean = builder.reduce_mean(_in(op, builder, 0), list(op.attr("axes")), keepdims=op.attr("keepdims"))
        return [_out(op, builder, mean, 3)]


@op("QLinearConcat", domain=DOMAIN)
class QLinearConcat(TypedByParts):
    """Along `axis`; after the result's scale and zero point come tensor, scale and zero point of each part."""

    inputs = ("Y_scale", "Y_zero_point", "inputs*")
    outputs = ("Y",)
    required: ClassVar[dict[str, str]] = {"axis": "int"}

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        pieces = [_in(op, builder, first) for first in range(2, len(op.operands), 3)]
        return [_out(op, builder, builder.concat(*pieces, axis=op.attr("axis")), 0, like=1)]
