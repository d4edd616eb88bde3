"""Activations that ONNX Runtime fuses: Gelu in its spellings, with a bias or a softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ...dims import Dim
from ...opdef import Trait, op
from ..common import SameShape, TensorOp, broadcast, operand_size, quotient, shape_of, times
from .base import DOMAIN, MicrosoftOp, add_all, operand, present, rank_of

if TYPE_CHECKING:
    from ...builder import OpBuilder
    from ...core import Operation, Value
    from ...infer import InferenceContext


class Activation(MicrosoftOp, SameShape):
    """The result has the first operand's type; `operations` is the count per element."""

    operations: ClassVar[int] = 6

    def flops(self, op: Operation) -> Dim | None:
        return times(self.operations, operand_size(op))


@op("Gelu", domain=DOMAIN)
class Gelu(Activation):
    """Hendrycks and Gimpel 2016 (arXiv 1606.08415): x * Phi(x), by erf."""

    inputs = ("X",)
    outputs = ("Y",)
    traits = frozenset({Trait.ELEMENTWISE})

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        return [builder.gelu(present(op, 0))]


@op("BiasGelu", domain=DOMAIN)
class BiasGelu(Activation):
    """Gelu of A + B, where the vector B goes with the last dim."""

    inputs = ("A", "B")
    outputs = ("C",)

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        return [builder.gelu(builder.add(present(op, 0), present(op, 1)))]


@op("FastGelu", domain=DOMAIN)
class FastGelu(Activation):
    """Gelu by tanh, of X or X + bias."""

    inputs = ("X", "bias?")
    outputs = ("Y",)

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        return [builder.gelu(add_all(builder, present(op, 0), operand(op, 1)), approximate="tanh")]


@op("QuickGelu", domain=DOMAIN)
class QuickGelu(Activation):
    """x * sigmoid(alpha * x)."""

    inputs = ("X",)
    outputs = ("Y",)
    attributes: ClassVar[dict[str, Any]] = {"alpha": 1.7020000219345093}
    traits = frozenset({Trait.ELEMENTWISE})

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        x = present(op, 0)
        return [builder.mul(x, builder.sigmoid(builder.mul(x, op.attr("alpha"))))]


@op("BiasSplitGelu", domain=DOMAIN)
class BiasSplitGelu(MicrosoftOp, TensorOp):
    """The two halves of X + bias along the last dim: the first times gelu of the second."""

    inputs = ("X", "bias")
    outputs = ("Y",)

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        shape = shape_of(op, 0)
        return None if not shape else [*shape[:-1], quotient(shape[-1], 2, op, "the last dim")]

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        left, right = builder.split(builder.add(present(op, 0), present(op, 1)), axis=-1, num_outputs=2, outputs=2)
        return [builder.mul(left, builder.gelu(right))]


@op("BiasAdd", domain=DOMAIN)
class BiasAdd(Activation):
    """X + bias + skip, where bias is a vector that goes with the last dim."""

    inputs = ("X", "bias", "skip")
    outputs = ("Y",)
    operations = 2

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        return [add_all(builder, *map(present, [op] * 3, range(3)))]


@op("BiasSoftmax", domain=DOMAIN)
class BiasSoftmax(MicrosoftOp, TensorOp):
    """Softmax of data + bias over all dims from `axis` on, which count as one.

    `is_inner_broadcast` says which dims of the bias are 1: those before `axis`, or some of the first ones.
    """

    inputs = ("data", "bias")
    outputs = ("output",)
    attributes: ClassVar[dict[str, Any]] = {"axis": 1}
    required: ClassVar[dict[str, str]] = {"is_inner_broadcast": "int"}

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        return broadcast(op, [shape_of(op, 0), shape_of(op, 1)], context)

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        total = builder.add(present(op, 0), present(op, 1))
        rank, axis = rank_of(present(op, 0)), op.attr("axis")
        if rank is None:
            return None
        return [flat_softmax(builder, total, axis, rank)]


def flat_softmax(builder: OpBuilder, value: Value, axis: int, rank: int) -> Value:
    """Softmax over all dims from `axis` on, which count as one (as before opset 13)."""
    result: Value
    if axis % rank == rank - 1:
        result = builder.softmax(value, axis=-1)
        return result
    rows = builder.softmax(builder.flatten(value, axis=axis), axis=-1)
    result = builder.reshape(rows, builder.shape(value), allowzero=1)
    return result


@op("GroupNorm", domain=DOMAIN)
class GroupNorm(Activation):
    """Wu and He 2018 (arXiv 1803.08494) on [n, *spatial, c] (or channels first), then SiLU if `activation` is 1."""

    inputs: ClassVar[tuple[str, ...]] = ("X", "gamma", "beta")
    outputs: ClassVar[tuple[str, ...]] = ("Y",)
    attributes: ClassVar[dict[str, Any]] = {"channels_last": 1, "epsilon": 9.999999747378752e-06}
    required: ClassVar[dict[str, str]] = {"activation": "int", "groups": "int"}
    operations = 9

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        return self.normalize(op, builder, present(op, 0))

    def normalize(self, op: Operation, builder: OpBuilder, x: Value) -> Sequence[Value] | None:
        rank = rank_of(x)
        if rank is None:
            return None
        first, last = [0, rank - 1, *range(1, rank - 1)], [0, *range(2, rank), 1]
        data = builder.transpose(x, perm=first) if op.attr("channels_last") else x
        scale, bias = (builder.cast_like(present(op, index), x) for index in (1, 2))
        result = builder.group_normalization(
            data, scale, bias, num_groups=op.attr("groups"), epsilon=op.attr("epsilon")
        )
        if op.attr("channels_last"):
            result = builder.transpose(result, perm=last)
        return [builder.mul(result, builder.sigmoid(result)) if op.attr("activation") else result]


@op("SkipGroupNorm", domain=DOMAIN)
class SkipGroupNorm(GroupNorm):
    """GroupNorm of X + skip + bias, and that sum; skip may have spatial dims of 1."""

    inputs = ("X", "gamma", "beta", "skip", "bias?")
    outputs = ("Y", "S?")

    def result_types(self, op: Operation, context: InferenceContext) -> Sequence[Any]:
        (type_,) = super().result_types(op, context)
        return [type_, type_]

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        rank, skip = rank_of(present(op, 0)), present(op, 3)
        if rank is None:
            return None
        if rank_of(skip) == 2:
            middle = list(range(1, rank - 1)) if op.attr("channels_last") else list(range(2, rank))
            skip = builder.unsqueeze(skip, middle)
        bias = operand(op, 4)
        if bias is not None and not op.attr("channels_last"):
            bias = builder.unsqueeze(bias, list(range(1, rank - 1)))
        total = add_all(builder, present(op, 0), skip, bias)
        normalized = self.normalize(op, builder, total)
        return None if normalized is None else [*normalized, total]
