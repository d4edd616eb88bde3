"""Derivatives of the losses of classification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .rules import Adjoint, gradient_of

if TYPE_CHECKING:
    from ..core import Operation, Value
    from .builder import GradientBuilder


class Labels:
    """The labels of a loss over scores [n, c, ...]: one-hot, and the weight of each place, with dim 1 of size 1."""

    def __init__(self, op: Operation, b: GradientBuilder) -> None:
        scores, labels, weights = (*op.operands, None)[:3]
        assert scores is not None
        assert labels is not None
        self.b, self.op = b, op
        dtype = b.dtype(scores)
        rank = b.rank(scores)
        classes = b.cast(b.arange(b.dim(scores, 1)), to=b.dtype(labels))
        spread = b.unsqueeze(classes, b.ints([0, *range(2, rank)]))
        hit = b.equal(b.unsqueeze(labels, b.ints([1])), spread)
        ignored = op.attr("ignore_index")
        if ignored is not None:
            counts = b.not_(b.equal(b.unsqueeze(labels, b.ints([1])), b.const(_as(labels, b, ignored))))
            hit = b.and_(hit, counts)
        self.one_hot = b.cast(hit, to=dtype)
        if weights is not None:
            self.one_hot = b.mul(self.one_hot, b.unsqueeze(weights, b.ints([0, *range(2, rank)])))
        self.weights = b.reduce_sum(self.one_hot, b.ints([1]), keepdims=1)

    def scaled(self, grad: Value) -> Value:
        """What the loss of each place, times its weight, adds to the result: the adjoint, as [n, 1, ...]."""
        b, reduction = self.b, self.op.attr("reduction")
        if reduction == "none":
            result: Value = b.unsqueeze(grad, b.ints([1]))
        else:
            result = b.div(grad, b.reduce_sum(self.weights, keepdims=0)) if reduction == "mean" else grad
        return result


def _as(labels: Value, b: GradientBuilder, number: int):  # type: ignore[no-untyped-def]
    return b.dtype(labels).numpy.type(number)


@gradient_of("NegativeLogLikelihoodLoss")
def negative_log_likelihood(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    grad, labels = grads[0], Labels(op, b)
    assert grad is not None
    return [b.neg(b.mul(labels.scaled(grad), labels.one_hot))]


@gradient_of("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    """(softmax * weight - one-hot) / (sum of weights); the log-probabilities may have an adjoint of their own."""
    logarithms = b.result(op, 1)
    probabilities = b.exp(logarithms)
    found: Value | None = None
    if grads[0] is not None:
        labels = Labels(op, b)
        distance = b.sub(b.mul(probabilities, labels.weights), labels.one_hot)
        found = b.mul(labels.scaled(grads[0]), distance)
    if len(grads) > 1 and grads[1] is not None:
        total = b.reduce_sum(grads[1], b.ints([1]), keepdims=1)
        more = b.sub(grads[1], b.mul(probabilities, total))
        found = more if found is None else b.add(found, more)
    return [found]
