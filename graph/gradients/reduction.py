"""Derivatives of reductions and running reductions.

Conventions: equal greatest (least) elements share the adjoint of ReduceMax (ReduceMin) equally; a norm has the
subgradient 0 at 0. A product is exact where factors are zero, its second derivative is not.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..infer import InferenceContext
from ..ops.reduction import reduced_axes
from .rules import Adjoint, Refusal, gradient_of, parts_of

if TYPE_CHECKING:
    from ..core import Operation, Value
    from .builder import GradientBuilder


class Reduced:
    """A Reduce operation: its operand, and what belongs to its result in the shape that keepdims gives."""

    def __init__(self, op: Operation, b: GradientBuilder) -> None:
        self.op, self.b = op, b
        self.x = op.operand_values[0]
        self.axes = op.input(1)
        context = InferenceContext(b.symbols)
        self.known = reduced_axes(op, b.rank(self.x), context)

    @property
    def does_nothing(self) -> bool:
        return self.known == []

    def kept(self, value: Value) -> Value:
        """`value`, of the result's shape, with dims of 1 in the places of those that were reduced."""
        if self.op.attr("keepdims", 1) or self.does_nothing:
            return value
        b = self.b
        if self.known is not None:
            result: Value = b.unsqueeze(value, b.ints(self.known)) if self.known else value
        else:
            result = b.unsqueeze(value, self.axes)
        return result

    def grad(self, grads: Sequence[Value | None]) -> Value:
        grad = grads[0]
        assert grad is not None
        return self.kept(grad)

    @property
    def y(self) -> Value:
        return self.kept(self.op.results[0])

    def sum(self, value: Value) -> Value:
        """`value`, of the operand's shape, summed as the operation does, keeping dims."""
        result: Value = self.b.reduce_sum(value, self._axes(), keepdims=1)
        return value if self.does_nothing else result

    def product(self, value: Value) -> Value:
        result: Value = self.b.reduce_prod(value, self._axes(), keepdims=1)
        return value if self.does_nothing else result

    def _axes(self) -> Value | None:
        return self.axes if self.known is None else self.b.ints(self.known)

    def count(self) -> Value:
        """How many elements each result element combines, in the operand's element type."""
        b, sizes = self.b, self.b.sizes(self.x)
        if sizes is not None and self.known is not None:
            return b.number(self.x, float(np.prod([sizes[axis] for axis in self.known], dtype=np.int64)))
        dims = b.gather(b.dims(self.x), self._axes()) if self.known != [] else b.ints([1])
        result: Value = b.cast(b.reduce_prod(dims, keepdims=0), to=b.dtype(self.x))
        return result


@gradient_of("ReduceSum")
def reduce_sum(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    reduced = Reduced(op, b)
    return [b.expand_like(reduced.grad(grads), reduced.x)]


@gradient_of("ReduceMean")
def reduce_mean(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    reduced = Reduced(op, b)
    return [b.expand_like(b.div(reduced.grad(grads), reduced.count()), reduced.x)]


@gradient_of("ReduceMax", "ReduceMin")
def reduce_extreme(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    reduced = Reduced(op, b)
    chosen = b.cast(b.equal(reduced.x, reduced.y), to=b.dtype(reduced.x))
    share = b.div(reduced.grad(grads), b.max(reduced.sum(chosen), 1.0))
    return [b.sweep.mark_masked(b.mul(chosen, share))]


@gradient_of("ReduceProd")
def reduce_prod(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    """The product of the others: without a division by zero, as it is zero unless all others are not."""
    reduced = Reduced(op, b)
    x, zero = reduced.x, b.equal(reduced.x, 0.0)
    factors = b.where(zero, b.number(x, 1.0), x)
    zeros = b.cast(zero, to=b.dtype(x))
    others = b.sub(reduced.sum(zeros), zeros)
    rest = b.div(reduced.product(factors), factors)
    return [b.mul(reduced.grad(grads), b.where(b.equal(others, 0.0), rest, b.number(x, 0.0)))]


@gradient_of("ReduceSumSquare")
def reduce_sum_square(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    reduced = Reduced(op, b)
    return [b.mul(b.mul(reduced.grad(grads), 2.0), reduced.x)]


@gradient_of("ReduceL1")
def reduce_l1(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    reduced = Reduced(op, b)
    return [b.mul(reduced.grad(grads), b.sign(reduced.x))]


@gradient_of("ReduceL2")
def reduce_l2(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    """x / norm, 0 where the norm is 0."""
    reduced = Reduced(op, b)
    norm = reduced.y
    safe = b.where(b.equal(norm, 0.0), b.number(norm, 1.0), norm)
    return [b.mul(b.div(reduced.grad(grads), safe), reduced.x)]


@gradient_of("ReduceLogSum")
def reduce_log_sum(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    reduced = Reduced(op, b)
    inverse = b.reciprocal(reduced.sum(reduced.x))
    return [b.expand_like(b.chain(reduced.grad(grads), inverse, True), reduced.x)]


@gradient_of("ReduceLogSumExp")
def reduce_log_sum_exp(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    """The softmax."""
    reduced = Reduced(op, b)
    return [b.mul(reduced.grad(grads), b.exp(b.sub(reduced.x, reduced.y)))]


@gradient_of("CumSum")
def cumsum(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    """The running sum from the other end."""
    backwards = 1 - op.attr("reverse")
    return [b.cumsum(grads[0], op.operands[1], exclusive=op.attr("exclusive"), reverse=backwards)]


@parts_of("CumProd")
def cumprod(op: Operation, b: GradientBuilder) -> Sequence[Value] | None:
    """For each place the product of a masked row: n^2 factors, but exact where one is zero."""
    x = op.operand_values[0]
    known = b.elements(op.operands[1])
    if known is None:
        return None
    rank = b.rank(x)
    axis = int(known.reshape(())) % rank
    places = b.arange(b.dim(x, axis))
    row, column = b.unsqueeze(places, b.ints([1])), b.unsqueeze(places, b.ints([0]))
    first, second = (row, column) if op.attr("reverse") else (column, row)
    taken = b.less(first, second) if op.attr("exclusive") else b.less_or_equal(first, second)
    # [..., result place, factor place, ...]
    after = list(range(2, 2 + rank - 1 - axis))
    mask = b.unsqueeze(taken, b.ints(after)) if after else taken
    factors = b.where(mask, b.unsqueeze(x, b.ints([axis])), b.number(x, 1.0))
    return [b.reduce_prod(factors, b.ints([axis + 1]), keepdims=0)]


@gradient_of("Det")
def determinant(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    """The matrix of cofactors, which also exists where the matrix has no inverse (Jacobi's formula)."""
    x = op.operand_values[0]
    size = b.known_shape(x)[-1]
    if not isinstance(size, int):
        return [Refusal("the size of the matrices is not known; bind it with bind-dims")]
    grad = b.unsqueeze(grads[0], b.ints([-2, -1]))
    if size == 1:
        return [grad]
    others = np.array([[k for k in range(size) if k != i] for i in range(size)], np.int64)
    rows = b.gather(x, others, axis=-2)  # [..., i, n - 1, n]
    minors = b.gather(rows, others, axis=-1)  # [..., i, n - 1, j, n - 1]
    rank = b.rank(minors)
    ahead = list(range(rank - 4))
    stacked = b.transpose(minors, perm=[*ahead, rank - 4, rank - 2, rank - 3, rank - 1])
    signs = np.array([(-1.0) ** (i + j) for i, j in itertools.product(range(size), repeat=2)])
    cofactors = b.mul(b.det(stacked), b.const(signs.reshape(size, size), b.dtype(x)))
    return [b.mul(grad, cofactors)]
