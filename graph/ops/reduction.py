"""Reductions and running reductions: elements combined along axes. The losses of training are here, too."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .. import dtypes, types
from ..dims import Dim
from ..opdef import OpDefinition, Trait, op, register
from ..types import Type
from . import values
from .common import (
    SameShape,
    Shape,
    TensorOp,
    constant_ints,
    dtype_of,
    error,
    format_shape,
    has_operand,
    length_of,
    normalize_axes,
    normalize_axis,
    operand_elements,
    operand_size,
    require_rank,
    same_dim,
    shape_of,
    times,
    unknown_dims,
)
from .numeric import REDUCING, running

if TYPE_CHECKING:
    from ..core import Operation
    from ..dtypes import DType
    from ..infer import InferenceContext, SymbolicArray

REDUCTION = frozenset({Trait.REDUCTION})


class Reduction(TensorOp):
    """Combines the elements along `axes` (all axes if there are none, unless noop_with_empty_axes).

    `operations` is the count per operand element, `combine` the meaning for two known elements.
    """

    traits = REDUCTION
    operations: ClassVar[int] = 1
    combine: ClassVar[Callable[[Any, Any], Any] | None] = None

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        shape, keepdims = shape_of(op, 0), bool(op.attr("keepdims", 1))
        if shape is None:
            return None
        axes = reduced_axes(op, len(shape), context)
        if axes is not None:
            return without_axes(shape, axes, keepdims)
        if keepdims:
            return unknown_dims(len(shape), context)
        count = length_of(op, 1)
        return unknown_dims(len(shape) - count, context) if count else None

    def propagate(self, op: Operation, context: InferenceContext) -> SymbolicArray | None:
        combine, elements = type(self).combine, operand_elements(op, 0, context)
        if combine is None or elements is None or elements.size == 0:
            return None
        axes = reduced_axes(op, elements.ndim, context)
        if axes is None:
            return None
        shape = without_axes(elements.shape, axes, bool(op.attr("keepdims", 1)))
        kept = [axis for axis in range(elements.ndim) if axis not in axes]
        rows = elements.transpose([*kept, *axes]).reshape(-1, _count(elements.shape, axes))
        return values.as_elements([functools.reduce(combine, row) for row in rows]).reshape(shape)

    def flops(self, op: Operation) -> Dim | None:
        return times(self.operations, operand_size(op))

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        data, axes = (*operands, None)[:2]
        function = REDUCING.get(self.op_type)
        if function is None:
            return super().evaluate(op, *operands)
        if axes is None or not axes.size:
            chosen = () if op.attr("noop_with_empty_axes", 0) else tuple(range(data.ndim))
        else:
            chosen = tuple(int(axis) for axis in axes)
        return function(data, chosen, bool(op.attr("keepdims", 1)))


def reduced_axes(op: Operation, rank: int, context: InferenceContext) -> list[int] | None:
    """The axes that a Reduce operator combines; None if they are not known."""
    axes: list[int] | None = []
    if has_operand(op, 1):
        axes = constant_ints(op, 1, context)
    if axes is None:
        return None
    if not axes:
        return [] if op.attr("noop_with_empty_axes", 0) else list(range(rank))
    return normalize_axes(axes, rank, op)


def without_axes(shape: Sequence[Any], axes: Sequence[int], keepdims: bool) -> tuple[Any, ...]:
    """`shape` after reducing `axes`: they become 1, or vanish."""
    if keepdims:
        return tuple(1 if axis in axes else dim for axis, dim in enumerate(shape))
    return tuple(dim for axis, dim in enumerate(shape) if axis not in axes)


def _count(shape: Sequence[int], axes: Sequence[int]) -> int:
    return functools.reduce(lambda total, axis: total * shape[axis], axes, 1)


def reduction(name: str, operations: int = 1, combine: Callable[[Any, Any], Any] | None = None) -> None:
    """A row for one Reduce operator."""
    facts = {"operations": operations, "combine": None if combine is None else staticmethod(combine), "__doc__": None}
    register(type(name, (Reduction,), facts)("", name))


reduction("ReduceSum", combine=values.add)
reduction("ReduceProd", combine=values.mul)
reduction("ReduceMax", combine=values.greatest)
reduction("ReduceMin", combine=values.least)
reduction("ReduceMean")
reduction("ReduceL1", 2)
reduction("ReduceL2", 2)
reduction("ReduceSumSquare", 2)
reduction("ReduceLogSum")
reduction("ReduceLogSumExp", 4)


class ArgReduction(TensorOp):
    """The place of one element along `axis`, as i64."""

    traits = REDUCTION

    def result_dtype(self, op: Operation) -> DType | None:
        return dtypes.i64

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        shape = shape_of(op, 0)
        if shape is None:
            return None
        axis = normalize_axis(op.attr("axis", 0), len(shape), op)
        return without_axes(shape, [axis], bool(op.attr("keepdims", 1)))

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        """Nothing where another axis has no elements, whatever there is along this one."""
        shape, axis = list(operands[0].shape), op.attr("axis", 0) % operands[0].ndim
        along, shape[axis] = shape[axis], 1
        if along or 0 not in shape:
            return super().evaluate(op, *operands)
        nothing = np.zeros(shape, np.int64)
        return nothing if op.attr("keepdims", 1) else nothing.squeeze(axis)


@op("ArgMax")
class ArgMax(ArgReduction):
    """The place of the greatest element."""


@op("ArgMin")
class ArgMin(ArgReduction):
    """The place of the least element."""


class RunningReduction(SameShape):
    """Element i combines the elements up to i along an axis."""

    traits = REDUCTION
    combine: ClassVar[Any] = np.add

    def evaluate(self, op: Operation, x: Any, axis: Any) -> Any:
        flags = (bool(op.attr(name, 0)) for name in ("exclusive", "reverse"))
        return running(self.combine, x, int(axis.reshape(())), *flags)


@op("CumSum")
class CumulativeSum(RunningReduction):
    """Running sums."""


@op("CumProd")
class CumulativeProduct(RunningReduction):
    """Running products."""

    combine: ClassVar[Any] = np.multiply


@op("Det")
class Determinant(TensorOp):
    """The determinant of each matrix in [..., m, m]."""

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        shape = shape_of(op, 0)
        if shape is None:
            return None
        require_rank(op, 0, shape, 2, at_least=True)
        square = functools.partial(error, "shape/square", f"det needs square matrices, got {format_shape(shape)}")
        same_dim(shape[-2], shape[-1], context, square)
        return shape[:-2]


# ---- losses ----------------------------------------------------------------------------------------------------------


def _loss_shape(op: Operation, context: InferenceContext) -> Shape | None:
    """[n, c, ...] scores and [n, ...] classes give a scalar, or [n, ...] without reduction."""
    if op.attr("reduction", "mean") != "none":
        return ()
    scores, labels = shape_of(op, 0), shape_of(op, 1)
    if labels is not None or scores is None:
        return labels
    return (scores[0], *scores[2:])


@op("NegativeLogLikelihoodLoss")
class NegativeLogLikelihoodLoss(TensorOp):
    """The (weighted) negative of the score of the true class."""

    traits = REDUCTION

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        return _loss_shape(op, context)

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        """Without weights, `onnx.reference` counts labels of -1 that are to be ignored; with weights it does not."""
        scores, labels, weights = (*operands, None)[:3]
        if weights is None and op.attr("ignore_index") is not None:
            weights = np.ones(scores.shape[1], scores.dtype)
        return super().evaluate(op, scores, labels, *([] if weights is None else [weights]))


@op("SoftmaxCrossEntropyLoss")
class SoftmaxCrossEntropyLoss(OpDefinition):
    """NegativeLogLikelihoodLoss of log-softmax; the log-probabilities on demand."""

    traits = REDUCTION

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        dtype = dtype_of(op, 0)
        if dtype is None:
            return [types.UNKNOWN] * len(op.results)
        return [types.tensor(dtype, _loss_shape(op, context)), types.tensor(dtype, shape_of(op, 0))]

    def flops(self, op: Operation) -> Dim | None:
        return times(5, operand_size(op))
