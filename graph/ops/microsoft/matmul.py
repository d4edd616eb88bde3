"""Matrix products that ONNX Runtime fuses with transposes, a factor, a bias or an activation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ... import dtypes
from ...opdef import op
from ..common import Shape, dtype_of, shape_of
from ..matmul import Gemm, MatrixProduct
from .base import DOMAIN, MicrosoftOp, activate, add_all, operand, present, rank_of, unknown_activation

if TYPE_CHECKING:
    from ...builder import OpBuilder
    from ...core import Operation, Value
    from ...dtypes import DType


def permutation(rank: int, transposed: int, batch_transposed: int) -> list[int] | None:
    """How FusedMatMul permutes an operand; None for not at all.

    `transposed` exchanges the last two dims. `batch_transposed` moves the first dim in front of the last one: the
    operand is then [rows, *batch, columns].
    """
    if rank < 2:
        return None
    order = list(range(rank))
    if batch_transposed:
        order = [*order[1:-1], 0, order[-1]]
    if transposed:
        order[-1], order[-2] = order[-2], order[-1]
    return None if order == list(range(rank)) else order


@op("FusedMatMul", domain=DOMAIN)
class FusedMatMul(MicrosoftOp, MatrixProduct):
    """alpha * A @ B, with A and B transposed on demand; `transBatchA` is told in `permutation`."""

    inputs = ("A", "B")
    outputs = ("Y",)
    attributes: ClassVar[dict[str, Any]] = {"alpha": 1.0, "transA": 0, "transB": 0, "transBatchA": 0, "transBatchB": 0}

    def factor(self, op: Operation, index: int) -> Shape | None:
        shape = shape_of(op, index)
        order = None if shape is None else self._order(op, index, len(shape))
        return shape if shape is None or order is None else tuple(shape[axis] for axis in order)

    def _order(self, op: Operation, index: int, rank: int) -> list[int] | None:
        side = "AB"[index]
        return permutation(rank, op.attr(f"trans{side}"), op.attr(f"transBatch{side}", 0))

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        factors = []
        for index in (0, 1):
            value = present(op, index)
            rank = rank_of(value)
            if rank is None:
                return None
            order = self._order(op, index, rank)
            factors.append(value if order is None else builder.transpose(value, perm=order))
        product = builder.matmul(*factors)
        return [product if op.attr("alpha") == 1.0 else builder.mul(product, op.attr("alpha"))]


@op("TransposeMatMul", domain=DOMAIN)
class TransposeMatMul(FusedMatMul):
    """The former name of FusedMatMul, without the batch transposes."""

    attributes: ClassVar[dict[str, Any]] = {"alpha": 1.0, "transA": 0, "transB": 0}


@op("FusedMatMulActivation", domain=DOMAIN)
class FusedMatMulActivation(FusedMatMul):
    """FusedMatMul, then the operator that `activation` names."""

    required: ClassVar[dict[str, str]] = {"activation": "string"}
    optional: ClassVar[dict[str, str]] = {
        "activation_alpha": "float", "activation_beta": "float", "activation_gamma": "float", "activation_axis": "int",
    }  # fmt: skip

    def refusal(self, op: Operation) -> str | None:
        return unknown_activation(op)

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        product = super().parts(op, builder)
        return None if product is None else [_activated(op, builder, product[0])]


def _activated(op: Operation, builder: OpBuilder, value: Value) -> Value:
    name = op.attr("activation")
    if not name:
        return value
    parameters = {key: op.attr(f"activation_{key}") for key in ("alpha", "beta", "gamma", "axis")}
    return activate(builder, name, value, **parameters)


@op("FusedGemm", domain=DOMAIN)
class FusedGemm(MicrosoftOp, Gemm):
    """activation(alpha * A @ B + beta * C), A and B transposed on demand."""

    inputs = ("A", "B", "C?")
    outputs = ("Y",)
    attributes: ClassVar[dict[str, Any]] = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}
    optional: ClassVar[dict[str, str]] = {
        "activation": "string", "activation_alpha": "float", "activation_beta": "float", "activation_gamma": "float",
    }  # fmt: skip

    def refusal(self, op: Operation) -> str | None:
        return unknown_activation(op)

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        scalars = {name: op.attr(name) for name in ("alpha", "beta", "transA", "transB")}
        product = builder.gemm(present(op, 0), present(op, 1), operand(op, 2), **scalars)
        return [_activated(op, builder, product)]


@op("GemmFastGelu", domain=DOMAIN)
class GemmFastGelu(MicrosoftOp, MatrixProduct):
    """Gelu, by tanh, of X @ W + bias."""

    inputs = ("X", "W", "bias?")
    outputs = ("Y",)

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        product = add_all(builder, builder.matmul(present(op, 0), present(op, 1)), operand(op, 2))
        return [builder.gelu(product, approximate="tanh")]


@op("MatMulInteger16", domain=DOMAIN)
class MatMulInteger16(MicrosoftOp, MatrixProduct):
    """The product of 16-bit integer matrices, summed in 32 bits: signed if A is."""

    inputs = ("A", "B")
    outputs = ("Y",)

    def result_dtype(self, op: Operation) -> DType | None:
        given = dtype_of(op, 0)
        return None if given is None else dtypes.i32 if given.kind == "int" else dtypes.u32

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        wide = self.result_dtype(op)
        return [builder.matmul(*(builder.cast(present(op, index), to=wide) for index in (0, 1)))]
