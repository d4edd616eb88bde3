"""Products and look-ups with weights of a few bits, quantized in blocks; activations stay floating point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ... import dtypes
from ...dims import Dim
from ...opdef import Trait, op
from ..common import TensorOp, operand_size, shape_of, times
from .base import (
    DOMAIN,
    MicrosoftOp,
    TypedByParts,
    dims_of,
    filled,
    operand,
    present,
    rank_of,
    size_along,
    tensor_dtype,
)

if TYPE_CHECKING:
    from ...builder import OpBuilder
    from ...core import Operation, Value
    from ...infer import InferenceContext


def unpacked(builder: OpBuilder, packed: Value, bits: int) -> Value:
    """The `bits`-wide numbers in u8, lowest bits first: the last dim becomes 8 / bits times as long."""
    if bits == 8:
        return packed
    count = 8 // bits
    shifts = builder.const((np.arange(count) * bits).astype(np.uint8))
    column = builder.unsqueeze(packed, [-1])
    parts = builder.bitwise_and(
        builder.bit_shift(column, shifts, direction="RIGHT"), builder.const(np.array(2**bits - 1, np.uint8))
    )
    dims = dims_of(packed)
    if dims is not None and all(isinstance(dim, int) for dim in dims):
        shape: Any = [*dims[:-1], -1]
    else:
        shape = builder.concat(builder.shape(packed, end=-1), [-1], axis=0)
    result: Value = builder.reshape(parts, shape)
    return result


class BlockProduct(MicrosoftOp, TensorOp):
    """A [..., K] times the transpose of a weight [N, K] that is stored in some other form."""

    outputs = ("Y",)
    traits = frozenset({Trait.CONTRACTION})

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        shape = shape_of(op, 0)
        return None if not shape else [*shape[:-1], op.attr("N")]

    def flops(self, op: Operation) -> Dim | None:
        return times(2 * op.attr("N"), operand_size(op))


@op("MatMulNBits", domain=DOMAIN)
class MatMulNBits(BlockProduct):
    """A @ W^T + bias, W[n, k] = (q - zero point) * scale.

    B is [N, blocks, bytes of a block], with the lowest bits of a byte first; scales are per row and block, zero points
    too, packed like B or in A's type (default: the middle of the range). `g_idx` names the block of each k.
    """

    inputs = ("A", "B", "scales", "zero_points?", "g_idx?", "bias?")
    attributes: ClassVar[dict[str, Any]] = {"accuracy_level": 0, "bits": 4, "weight_prepacked": 0}
    required: ClassVar[dict[str, str]] = {"K": "int", "N": "int", "block_size": "int"}

    def refusal(self, op: Operation) -> str | None:
        if op.attr("weight_prepacked"):
            return "has weights in the layout of one machine"
        return None if op.attr("bits") in (2, 4, 8) else f"with {op.attr('bits')} bits is not known here"

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        a, bias = present(op, 0), operand(op, 5)
        product = builder.matmul(a, builder.transpose(self._weight(op, builder), perm=[1, 0]))
        return [product if bias is None else builder.add(product, bias)]

    def _weight(self, op: Operation, builder: OpBuilder) -> Value:
        """[N, K] in A's type."""
        rows, columns, size, bits = (op.attr(name) for name in ("N", "K", "block_size", "bits"))
        blocks = -(-columns // size)
        dtype = tensor_dtype(present(op, 0))
        numbers = builder.reshape(unpacked(builder, present(op, 1), bits), [rows, blocks * size])
        numbers = builder.cast(builder.slice(numbers, [0], [columns], [1]), to=dtype)
        scales = builder.reshape(present(op, 2), [rows, blocks])
        points = operand(op, 3)
        if points is None:
            points = filled(builder, 2 ** (bits - 1), dtype)
        else:
            if tensor_dtype(points) is dtypes.u8:
                points = unpacked(builder, builder.reshape(points, [rows, -1]), bits)
            points = builder.slice(builder.reshape(points, [rows, -1]), [0], [blocks], [1])
            points = self._spread(op, builder, builder.cast(points, to=dtype))
        weight: Value = builder.mul(builder.sub(numbers, points), self._spread(op, builder, scales))
        return weight

    def _spread(self, op: Operation, builder: OpBuilder, per_block: Value) -> Value:
        """[N, blocks] as [N, K]: each k gets what its block has."""
        block_of = operand(op, 4)
        if block_of is None:
            block_of = builder.const((np.arange(op.attr("K")) // op.attr("block_size")).astype(np.int64))
        result: Value = builder.gather(per_block, block_of, axis=1)
        return result


# Dettmers et al. 2022 (bitsandbytes) and 2023 (arXiv 2305.14314, appendix E): the numbers that 4 bits stand for.
_FP4 = (0.0, 5.208333333e-03, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


@op("MatMulBnb4", domain=DOMAIN)
class MatMulBnb4(BlockProduct):
    """A @ W^T, where W's elements, row by row, are looked up in a table of 16 and scaled per block.

    `quant_type` 0 is FP4, 1 is NF4. Two numbers stand in a byte of B, the highest bits first.
    """

    inputs = ("A", "B", "absmax")
    attributes: ClassVar[dict[str, Any]] = {"training_mode": 0, "transB": 1}
    required: ClassVar[dict[str, str]] = {"K": "int", "N": "int", "block_size": "int", "quant_type": "int"}

    def refusal(self, op: Operation) -> str | None:
        if not op.attr("transB"):
            return "without transB is not known here"
        return None if op.attr("quant_type") in (0, 1) else f"with quant_type {op.attr('quant_type')} is not known here"

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        a = present(op, 0)
        rows, columns, size = op.attr("N"), op.attr("K"), op.attr("block_size")
        table = np.array(_NF4 if op.attr("quant_type") else [*_FP4, *(-number for number in _FP4)], np.float64)
        packed = present(op, 1)
        high = builder.bit_shift(packed, builder.const(np.array(4, np.uint8)), direction="RIGHT")
        low = builder.bitwise_and(packed, builder.const(np.array(15, np.uint8)))
        codes = builder.reshape(builder.concat(*(builder.unsqueeze(x, [-1]) for x in (high, low)), axis=-1), [-1])
        codes = builder.cast(builder.slice(codes, [0], [rows * columns], [0]), to=dtypes.i32)
        numbers = builder.gather(builder.const(table.astype(tensor_dtype(a).numpy)), codes)
        block_of = builder.const((np.arange(rows * columns) // size).astype(np.int64))
        flat = builder.mul(numbers, builder.gather(present(op, 2), block_of))
        weight = builder.reshape(flat, [rows, columns])
        return [builder.matmul(a, builder.transpose(weight, perm=[1, 0]))]


@op("GatherBlockQuantized", domain=DOMAIN)
class GatherBlockQuantized(TypedByParts):
    """Gather from a table that is quantized in blocks along `quantize_axis`.

    data is 4-bit, or u8 that holds 8 / bits numbers, lowest bits first; then zero points are packed likewise and
    default to the middle of the range.
    """

    inputs = ("data", "indices", "scales", "zero_points?")
    outputs = ("output",)
    attributes: ClassVar[dict[str, Any]] = {"bits": 4, "block_size": 128, "gather_axis": 0, "quantize_axis": 1}

    def refusal(self, op: Operation) -> str | None:
        return None if op.attr("bits") in (2, 4, 8) else f"with {op.attr('bits')} bits is not known here"

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        data, scales, points = present(op, 0), present(op, 2), operand(op, 3)
        rank, bits, dtype = rank_of(data), op.attr("bits"), tensor_dtype(present(op, 2))
        if rank is None or tensor_dtype(data) not in (dtypes.u8, dtypes.u4, dtypes.i4):
            return None
        axis = op.attr("quantize_axis") % rank
        if tensor_dtype(data) is dtypes.u8:
            data = unpacked(builder, data, bits)
            points = None if points is None else unpacked(builder, points, bits)
            default = float(2 ** (bits - 1))
        else:
            default = 0.0
        wide = builder.cast(data, to=dtype)
        count = size_along(builder, wide, axis)
        block_of = builder.div(builder.range(0, count, 1), op.attr("block_size"))
        if points is None:
            wide = builder.sub(wide, filled(builder, default, dtype))
        else:
            wide = builder.sub(wide, builder.gather(builder.cast(points, to=dtype), block_of, axis=axis))
        table = builder.mul(wide, builder.gather(scales, block_of, axis=axis))
        return [builder.gather(table, present(op, 1), axis=op.attr("gather_axis"))]
