"""Normalizations, softmax and dropout: the result has the operand's shape, but each element depends on many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .. import dtypes, types
from ..diagnostics import TypeInferenceError
from ..dims import Dim
from ..opdef import OpDefinition, Trait, op
from ..types import TensorType, Type
from .common import (
    SameShape,
    WithParts,
    dtype_attribute,
    dtype_of,
    error,
    format_shape,
    normalize_axis,
    require_rank,
    same_dim,
    shape_of,
    tensor_of,
    times,
)
from .normalization_parts import (
    group_norm_parts,
    layer_norm_parts,
    normalized_by_root_mean_square,
    rms_norm_parts,
    standardized,
)
from .numeric import summable
from .pooling_numeric import lp_norm

if TYPE_CHECKING:
    from ..builder import OpBuilder
    from ..core import Operation, Value
    from ..dtypes import DType
    from ..infer import InferenceContext


class Normalization(SameShape):
    """Combines elements along some axes and spreads the outcome over them again.

    `operations` is the usual count per element: statistics, then applying them.
    """

    traits = frozenset({Trait.REDUCTION})
    operations: ClassVar[int] = 5

    def flops(self, op: Operation) -> Dim | None:
        tensor = tensor_of(op, 0)
        return None if tensor is None else times(self.operations, tensor.elements)


class AlongAxis(Normalization):
    """Works along `axis`."""

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        shape = shape_of(op, 0)
        if shape:
            normalize_axis(op.attr("axis", -1), len(shape), op)
        return shape


@op("Softmax")
class Softmax(AlongAxis):
    """exp(x - max) over its sum along `axis`."""


@op("LogSoftmax")
class LogSoftmax(AlongAxis):
    """The logarithm of softmax."""


@op("Hardmax")
class Hardmax(AlongAxis):
    """1 at the first greatest element along `axis`, 0 elsewhere."""

    operations = 1


@op("LpNormalization")
class LpNormalization(AlongAxis):
    """x over its p-norm along `axis`."""

    operations = 3

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        """A norm of 0 leaves zeros."""
        x = summable(operands[0])
        norm = lp_norm(x, op.attr("p"), op.attr("axis"), keepdims=True)
        return np.divide(x, norm, out=np.zeros_like(x), where=norm != 0).astype(operands[0].dtype)


@op("LRN")
class LocalResponseNormalization(Normalization):
    """Krizhevsky et al. 2012: x over a power of the sum of squares in a window of channels."""

    def flops(self, op: Operation) -> Dim | None:
        tensor = tensor_of(op, 0)
        return None if tensor is None else times(2 * op.attr("size") + 4, tensor.elements)

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        """The window around channel c goes from c - floor((size - 1) / 2) to c + ceil((size - 1) / 2)."""
        x, size = summable(operands[0]), op.attr("size")
        before, after = (size - 1) // 2, size // 2
        squares = np.pad(x * x, [(0, 0), (before, after)] + [(0, 0)] * (x.ndim - 2))
        total = np.lib.stride_tricks.sliding_window_view(squares, size, 1).sum(axis=-1)
        scaled = op.attr("bias") + op.attr("alpha") / size * total
        return (x / scaled ** op.attr("beta")).astype(operands[0].dtype)


@op("MeanVarianceNormalization")
class MeanVarianceNormalization(Normalization):
    """(x - mean) / standard deviation along `axes`."""

    operations = 7

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        # ONNX's function body mixes f32 constants with narrower operands.
        x, axes = summable(operands[0]), tuple(op.attr("axes"))
        mean = x.mean(axes, keepdims=True)
        variance = (x * x).mean(axes, keepdims=True) - mean * mean
        return ((x - mean) / (np.sqrt(np.maximum(variance, 0)) + x.dtype.type(1e-9))).astype(operands[0].dtype)


@op("InstanceNormalization")
class InstanceNormalization(Normalization):
    """Ulyanov et al. 2016 (arXiv 1607.08022): statistics of each channel of each sample; scale and bias per channel."""

    operations = 8

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        _check_per_channel(op, (1, 2), context)
        return shape_of(op, 0)


@op("GroupNormalization")
class GroupNormalization(WithParts, InstanceNormalization):
    """Wu and He 2018 (arXiv 1803.08494): statistics of groups of channels; scale and bias per channel."""

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        shape, groups = shape_of(op, 0), op.attr("num_groups")
        if shape is not None and len(shape) > 1 and isinstance(shape[1], int) and shape[1] % groups:
            raise error("shape/divisible", f"group_normalization has {shape[1]} channels for {groups} groups")
        return super().result_shape(op, context)

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        return group_norm_parts(op, builder)


def _check_per_channel(op: Operation, indices: Sequence[int], context: InferenceContext) -> None:
    """Each of these operands is a vector with an element per channel (dim 1) of the first operand."""
    shape = shape_of(op, 0)
    if shape is None:
        return
    require_rank(op, 0, shape, 1, at_least=True)
    # ONNX lets BatchNormalization take [n] alone: then there is one channel.
    channels = shape[1] if len(shape) > 1 else 1
    for index in indices:
        vector = shape_of(op, index)
        if vector is None:
            continue
        require_rank(op, index, vector, 1)

        def mismatch(index: int = index, vector: Sequence[Dim] = vector) -> TypeInferenceError:
            return error(
                "shape/channels",
                f"{op.name} of {format_shape(shape)} needs {channels} elements in input {index}, "
                f"got {format_shape(vector)}",
            )

        same_dim(channels, vector[0], context, mismatch)


@op("BatchNormalization")
class BatchNormalization(Normalization):
    """Ioffe and Szegedy 2015 (arXiv 1502.03167). In training mode the running mean and variance are results, too.

    Scale, bias, mean and variance go with dim 1, which is not numpy's broadcasting; so it is not elementwise.
    """

    traits = frozenset()
    operations = 2

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        x = tensor_of(op, 0)
        if len(op.results) > 1 and not self.needs_all_results(op):
            raise error("op/result-count", "batch_normalization has one result unless training_mode is set")
        _check_per_channel(op, (1, 2, 3, 4), context)
        statistics: list[Type] = [tensor_of(op, index) or types.UNKNOWN for index in (3, 4)]
        return [x or types.UNKNOWN, *statistics]

    def needs_all_results(self, op: Operation) -> bool:
        return bool(op.attr("training_mode", 0))


@op("LayerNormalization")
class LayerNormalization(WithParts):
    """Ba et al. 2016 (arXiv 1607.06450) over the axes from `axis` on; mean and inverse deviation on demand."""

    traits = frozenset({Trait.REDUCTION})

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        x = tensor_of(op, 0)
        if x is None:
            return [types.UNKNOWN] * len(op.results)
        stash = _stash(op)
        if x.shape is None:
            return [x, types.tensor(stash, None), types.tensor(stash, None)]
        axis = normalize_axis(op.attr("axis", -1), len(x.shape), op)
        statistics = types.tensor(stash, [*x.shape[:axis], *[1] * (len(x.shape) - axis)])
        return [x, statistics, statistics]

    def flops(self, op: Operation) -> Dim | None:
        x = tensor_of(op, 0)
        return None if x is None else times(8, x.elements)

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        return layer_norm_parts(op, builder)

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        x, scale, bias = (*operands, None)[:3]
        results = standardized(x, scale, bias, op.attr("axis"), op.attr("epsilon"), _stash(op))
        return results[: len(op.results)] if len(op.results) > 1 else results[0]


@op("RMSNormalization")
class RMSNormalization(WithParts, AlongAxis):
    """Zhang and Sennrich 2019 (arXiv 1910.07467): x over its root mean square, times the scale."""

    def result_dtype(self, op: Operation) -> DType | None:
        return dtype_of(op, 1)

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        return rms_norm_parts(op, builder)

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        x, scale = operands
        return normalized_by_root_mean_square(x, scale, op.attr("axis"), op.attr("epsilon"), _stash(op))


def _stash(op: Operation) -> DType:
    """The type that a normalization computes in."""
    return dtype_attribute(op, "stash_type", dtypes.f32) or dtypes.f32


@op("Dropout")
class Dropout(OpDefinition):
    """The operand unless `training_mode` is true; then elements are zeroed at random. The mask is true where kept."""

    traits = frozenset({Trait.ELEMENTWISE, Trait.RANDOM})

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        x = tensor_of(op, 0)
        mask = types.tensor(dtypes.bool_, None if x is None else x.shape)
        return [x if isinstance(x, TensorType) else types.UNKNOWN, mask]
