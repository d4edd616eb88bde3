"""Losses, built from ONNX operators on a `Builder`. Each gives one number: the mean over all elements that count.

`scores` and `target` are Tensors of one model under construction; `reduction` is "mean", "sum" or "none".
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from ..diagnostics import UsageError
from ..model_builder import Builder, Tensor

REDUCTIONS = ("mean", "sum", "none")


def cross_entropy(
    b: Builder,
    scores: Tensor,
    target: Tensor,
    *,
    axis: int = 1,
    weights: Any = None,
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """-log softmax(scores) at the classes in `target`: scores [n, classes, ...], or with classes along `axis`; target
    integers [n, ...] (ONNX SoftmaxCrossEntropyLoss).

    `weights` is one factor for each class; elements whose class is `ignore_index` do not count. `label_smoothing` e
    gives every class e / classes of the target (Szegedy et al. 2015, section 7).
    """
    if not 0 <= label_smoothing < 1:
        raise UsageError("loss/label-smoothing", f"label_smoothing is at least 0 and below 1, not {label_smoothing}")
    scores, target = _classes_second(b, scores, target, axis)
    options = {"reduction": _checked(reduction), "ignore_index": ignore_index}
    operands = [scores, target] if weights is None else [scores, target, weights]
    loss: Tensor = b.softmax_cross_entropy_loss(*operands, outputs=1, **options)
    if not label_smoothing:
        return loss
    if weights is not None or ignore_index is not None:
        raise UsageError("loss/label-smoothing", "label_smoothing goes with neither weights nor ignore_index")
    evenly = b.neg(b.reduce_mean(b.log_softmax(scores, axis=1), np.array([1], np.int64), keepdims=0))
    return loss * (1 - label_smoothing) + _reduced(b, evenly, reduction) * label_smoothing


def nll(
    b: Builder,
    log_probabilities: Tensor,
    target: Tensor,
    *,
    axis: int = 1,
    weights: Any = None,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    """-log_probabilities at the classes in `target`, as of `cross_entropy` (ONNX NegativeLogLikelihoodLoss)."""
    log_probabilities, target = _classes_second(b, log_probabilities, target, axis)
    operands = [log_probabilities, target] if weights is None else [log_probabilities, target, weights]
    loss: Tensor = b.negative_log_likelihood_loss(*operands, reduction=_checked(reduction), ignore_index=ignore_index)
    return loss


def mse(b: Builder, scores: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """(scores - target)^2; both of one shape."""
    difference = scores - target
    return _reduced(b, difference * difference, reduction)


def l1(b: Builder, scores: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """|scores - target|; both of one shape."""
    return _reduced(b, b.abs(scores - target), reduction)


def bce(b: Builder, probabilities: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """-(t log p + (1 - t) log(1 - p)); logarithms are at least -100, so that p of 0 or 1 gives a finite loss."""
    yes = b.max(b.log(probabilities), b.cast_like(-100.0, probabilities))
    no = b.max(b.log(1.0 - probabilities), b.cast_like(-100.0, probabilities))
    return _reduced(b, -(target * yes + (1.0 - target) * no), reduction)


def bce_logits(b: Builder, scores: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """`bce` of sigmoid(scores), without computing a logarithm of something near 0."""
    return _reduced(b, b.relu(scores) - scores * target + b.softplus(-b.abs(scores)), reduction)


class Loss:
    """A loss with its options, for `train.step(loss=...)`; called on scores and target, it builds itself.

    `of_classes`: the target are integers that name classes, not values. `takes` says what the loss is of;
    what the operators in `not_after` make is something else, for which there may be another loss `instead`.
    """

    function: Callable[..., Tensor]
    of_classes = False
    known: ClassVar[tuple[str, ...]] = ()
    __signature__: ClassVar[inspect.Signature]
    takes = "values"
    not_after: tuple[str, ...] = ()
    instead = ""

    def __init_subclass__(cls) -> None:
        """Each loss is documented and takes options as its function does."""
        parameters = inspect.signature(cls.function).parameters.values()
        cls.known = tuple(each.name for each in parameters if each.kind is each.KEYWORD_ONLY)
        cls.__signature__ = inspect.Signature([each for each in parameters if each.name in cls.known])
        cls.__doc__ = cls.function.__doc__

    def __init__(self, **options: Any) -> None:
        for name in options:
            if name not in self.known:
                near = difflib.get_close_matches(name, self.known, 1)
                hint = f"did you mean {near[0]}?" if near else f"its options are {', '.join(self.known)}"
                raise UsageError("loss/option", f"{type(self).__name__} has no option {name!r}", notes=[hint])
        _checked(options.get("reduction", "mean"))
        self.options = options

    def __call__(self, scores: Tensor, target: Tensor) -> Tensor:
        return type(self).function(scores._builder, scores, target, **self.options)

    @property
    def class_axis(self) -> int:
        axis: int = self.options.get("axis", 1)
        return axis


class CrossEntropyLoss(Loss):
    function = staticmethod(cross_entropy)
    of_classes = True
    takes = "scores"
    not_after = ("softmax",)


class NLLLoss(Loss):
    function = staticmethod(nll)
    of_classes = True
    takes = "logarithms of probabilities"
    not_after = ("softmax",)
    instead = "cross-entropy takes scores"


class MSELoss(Loss):
    function = staticmethod(mse)


class L1Loss(Loss):
    function = staticmethod(l1)


class BCELoss(Loss):
    function = staticmethod(bce)


class BCEWithLogitsLoss(Loss):
    function = staticmethod(bce_logits)
    takes = "scores"
    not_after = ("sigmoid", "softmax")
    instead = "bce takes probabilities"


# What a command line or `train.step(loss=...)` may name.
LOSSES: dict[str, type[Loss]] = {
    "cross-entropy": CrossEntropyLoss,
    "nll": NLLLoss,
    "mse": MSELoss,
    "l1": L1Loss,
    "bce": BCELoss,
    "bce-logits": BCEWithLogitsLoss,
}


def _checked(reduction: str) -> str:
    if reduction not in REDUCTIONS:
        raise UsageError("loss/reduction", f"reduction must be one of {', '.join(REDUCTIONS)}, not {reduction!r}")
    return reduction


def _reduced(b: Builder, loss: Tensor, reduction: str) -> Tensor:
    if _checked(reduction) == "none":
        return loss
    result: Tensor = b.reduce_mean(loss, keepdims=0) if reduction == "mean" else b.reduce_sum(loss, keepdims=0)
    return result


def _classes_second(b: Builder, scores: Tensor, target: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """The operands as ONNX wants them: classes along axis 1."""
    rank = len(scores.shape or ())
    if rank < 2:
        raise UsageError("loss/rank", f"scores are [n, classes, ...], not {scores.type}")
    if not -rank <= axis < rank:
        raise UsageError("loss/axis", f"{scores.type} has no axis {axis} of classes")
    if axis % rank == 1:
        return scores, target
    if axis % rank == rank - 1:
        classes = b.shape(scores, start=-1)
        flat = b.reshape(scores, b.concat(np.array([-1], np.int64), classes, axis=0))
        return flat, b.reshape(target, np.array([-1], np.int64))
    order = [each for each in range(rank) if each != axis % rank]
    order.insert(1, axis % rank)
    return b.transpose(scores, perm=order), target
