"""Layer normalizations that ONNX Runtime fuses with what comes before them: a residual, a bias, embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ... import dtypes, types
from ...dims import Dim
from ...opdef import Trait, lookup, op
from ..common import (
    dtype_attribute,
    dtype_of,
    has_operand,
    normalize_axis,
    operand_size,
    require_rank,
    shape_of,
    tensor_of,
    times,
)
from .base import DOMAIN, MicrosoftOp, add_all, indices, operand, present, rank_of, size_along, tensor_dtype

if TYPE_CHECKING:
    from ...builder import OpBuilder
    from ...core import Operation, Value
    from ...dtypes import DType
    from ...infer import InferenceContext
    from ...types import Type


def root_mean_square_norm(
    builder: OpBuilder, x: Value, scale: Value, axes: Sequence[int], epsilon: float, stash: DType = dtypes.f32
) -> tuple[Value, Value]:
    """Zhang and Sennrich 2019 (arXiv 1910.07467): the normalized value in scale's type, and 1 / root mean square.

    Computed in the type `stash`, of which the second value is.
    """
    given, wanted = tensor_dtype(x), tensor_dtype(scale)
    wide = x if given is stash else builder.cast(x, to=stash)
    mean = builder.reduce_mean(builder.mul(wide, wide), list(axes), keepdims=1)
    inverse = builder.reciprocal(builder.sqrt(builder.add(mean, epsilon)))
    result = builder.mul(wide, inverse)
    return builder.mul(result if wanted is stash else builder.cast(result, to=wanted), scale), inverse


def _statistics(op: Operation, axis: int, stash: DType) -> Type:
    """The type of a mean or deviation over the axes from `axis` on."""
    shape = shape_of(op, 0)
    return types.tensor(stash, None if shape is None else [*shape[:axis], *[1] * (len(shape) - axis)])


class LayerNorm(MicrosoftOp):
    """Over the last dim; `operations` is the count per element."""

    traits = frozenset({Trait.REDUCTION})
    operations: ClassVar[int] = 8

    def flops(self, op: Operation) -> Dim | None:
        return times(self.operations, operand_size(op))


@op("SimplifiedLayerNormalization")
@op("SimplifiedLayerNormalization", domain=DOMAIN)
class SimplifiedLayerNormalization(LayerNorm):
    """X over its root mean square along the dims from `axis` on, times the scale; and the inverse of that root.

    ONNX Runtime puts it into the standard's own domain. RMSNormalization has meant the same since opset 23.
    """

    inputs = ("X", "scale")
    outputs = ("Y", "inv_std_var?")
    attributes: ClassVar[dict[str, Any]] = {"axis": -1, "epsilon": 9.999999747378752e-06, "stash_type": 1}
    operations = 4

    def result_types(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        x, dtype = tensor_of(op, 0), dtype_of(op, 1, 0)
        stash = dtype_attribute(op, "stash_type", dtypes.f32) or dtypes.f32
        if x is None or dtype is None:
            return []
        axis = None if x.shape is None else normalize_axis(op.attr("axis"), len(x.shape), op)
        return [types.tensor(dtype, x.shape), _statistics(op, axis or 0, stash)]

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        x, rank = present(op, 0), rank_of(present(op, 0))
        if rank is None:
            return None
        stash = dtype_attribute(op, "stash_type", dtypes.f32) or dtypes.f32
        axes = range(op.attr("axis") % rank, rank)
        return root_mean_square_norm(builder, x, present(op, 1), axes, op.attr("epsilon"), stash)


@op("LayerNormalization", version=1)
class EarlyLayerNormalization(LayerNorm):
    """LayerNormalization as ONNX Runtime writes it into models of opsets before 17, where the standard has none."""

    inputs = ("X", "Scale", "B?")
    outputs = ("Y", "Mean?", "InvStdDev?")
    attributes: ClassVar[dict[str, Any]] = {"axis": -1, "epsilon": 9.999999747378752e-06, "stash_type": 1}

    def result_types(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        return lookup("", "LayerNormalization").infer(op, context)

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        results = builder.create("layer_normalization", op.operands, op.attributes, outputs=len(op.results)).results
        return list(results)


class SkipNorm(LayerNorm):
    """Normalizes input + bias + skip; results are the outcome, mean, inverse deviation (both f32) and that sum.

    `skip` may lack the batch dim or have a batch of 1.
    """

    outputs = ("output", "mean?", "inv_std_var?", "input_skip_bias_sum?")
    attributes: ClassVar[dict[str, Any]] = {"epsilon": 9.999999960041972e-13}
    bias: ClassVar[int]
    operations = 10

    def result_types(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        x = tensor_of(op, 0)
        if x is None:
            return []
        rank = len(x.shape) if x.shape is not None else 1
        statistics = _statistics(op, rank - 1, dtypes.f32)
        return [x, statistics, statistics, x]

    def total(self, op: Operation, builder: OpBuilder) -> Value:
        return add_all(builder, present(op, 0), operand(op, self.bias), present(op, 1))


@op("SkipLayerNormalization", domain=DOMAIN)
class SkipLayerNormalization(SkipNorm):
    """Ba et al. 2016 (arXiv 1607.06450) of a residual sum."""

    inputs = ("input", "skip", "gamma", "beta?", "bias?")
    bias = 4

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        total = self.total(op, builder)
        normalized = builder.layer_normalization(
            total, present(op, 2), operand(op, 3), axis=-1, epsilon=op.attr("epsilon"), outputs=3
        )
        return [*normalized, total]


@op("SkipSimplifiedLayerNormalization")
@op("SkipSimplifiedLayerNormalization", domain=DOMAIN)
class SkipSimplifiedLayerNormalization(SkipNorm):
    """SimplifiedLayerNormalization of a residual sum. The mean is not computed, and its result empty."""

    inputs = ("input", "skip", "gamma", "bias?")
    bias = 3
    operations = 6

    def refusal(self, op: Operation) -> str | None:
        asked = len(op.results) > 1 and op.results[1].name != "" and op.results[1].use_count
        return "has no mean to give" if asked else None

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        total = self.total(op, builder)
        normalized, inverse = root_mean_square_norm(builder, total, present(op, 2), [-1], op.attr("epsilon"))
        return [normalized, inverse, inverse, total]


@op("EmbedLayerNormalization", domain=DOMAIN)
class EmbedLayerNormalization(LayerNorm):
    """Layer normalization of the sum of word, position and segment embeddings of [batch, length] ids.

    Further results: how many elements of each row of the mask are 1 (i32; zeros without a mask), and the sum.
    """

    inputs = (
        "input_ids", "segment_ids?", "word_embedding", "position_embedding", "segment_embedding?", "gamma", "beta",
        "mask?", "position_ids?",
    )  # fmt: skip
    outputs = ("output", "mask_index?", "embedding_sum?")
    attributes: ClassVar[dict[str, Any]] = {"epsilon": 9.999999960041972e-13}
    optional: ClassVar[dict[str, str]] = {"mask_index_type": "int"}

    def result_types(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        ids, table = shape_of(op, 0), tensor_of(op, 2)
        if table is None:
            return []
        if ids is None or table.shape is None:
            embedded = types.tensor(table.dtype, None)
            return [embedded, types.tensor(dtypes.i32, [context.fresh()]), embedded]
        require_rank(op, 0, ids, 2)
        require_rank(op, 2, table.shape, 2)
        embedded = types.tensor(table.dtype, [*ids, table.shape[1]])
        return [embedded, types.tensor(dtypes.i32, [ids[0]]), embedded]

    def flops(self, op: Operation) -> Dim | None:
        table, ids = shape_of(op, 2), operand_size(op)
        return None if table is None or ids is None else 10 * ids * table[1]

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value]:
        ids, positions = present(op, 0), operand(op, 8)
        if positions is None:
            positions = indices(builder, size_along(builder, ids, 1))
        total = builder.add(builder.gather(present(op, 2), ids), builder.gather(present(op, 3), positions))
        if has_operand(op, 1) and has_operand(op, 4):
            total = builder.add(total, builder.gather(present(op, 4), present(op, 1)))
        normalized = builder.layer_normalization(
            total, present(op, 5), present(op, 6), axis=-1, epsilon=op.attr("epsilon"), outputs=1
        )
        mask = operand(op, 7)
        ones = builder.equal(ids, ids) if mask is None else builder.equal(mask, 1)
        count = builder.reduce_sum(builder.cast(ones, to=dtypes.i32), [1], keepdims=0)
        return [normalized, builder.mul(count, 0) if mask is None else count, total]
