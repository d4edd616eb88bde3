"""Steps of training (domain ai.onnx.preview.training), and operators as they are while a model is trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..builder import OpBuilder
from ..core import Operation, Value
from .builder import data_of, dtype_of, is_native, rank_of, shape_of
from .expansions import expands

_TRAINING = "ai.onnx.preview.training"


def _number(b: OpBuilder, value: float, like: Value) -> Value:
    return b.const(np.array(value, dtype_of(like).numpy))


def _states(op: Operation, count: int) -> list[list[Value]]:
    """The tensors after the rate and the step: for each parameter, itself and its `count - 1` companions."""
    given = op.operand_values[2:]
    parameters = len(given) // count
    return [[given[kind * parameters + index] for kind in range(count)] for index in range(parameters)]


def _by_kind(results: Sequence[Sequence[Value]]) -> list[Value]:
    return [value for kind in zip(*results, strict=True) for value in kind]


def _regularized(op: Operation, b: OpBuilder, x: Value, gradient: Value) -> Value:
    result: Value = b.add(b.mul(_number(b, op.attr("norm_coefficient") or 0.0, x), x), gradient)
    return result


@expands("Momentum", domain=_TRAINING)
def momentum(op: Operation, b: OpBuilder) -> Sequence[Value] | None:
    rate, step = op.operand_values[:2]
    results = []
    for x, gradient, speed in _states(op, 3):
        alpha, one = _number(b, op.attr("alpha"), x), _number(b, 1.0, x)
        slope = _regularized(op, b, x, gradient)
        factor = b.where(b.greater(step, np.array(0, np.int64)), _number(b, op.attr("beta"), x), one)
        faster = b.add(b.mul(alpha, speed), b.mul(factor, slope))
        moved = faster if op.attr("mode") == "standard" else b.add(slope, b.mul(alpha, faster))
        results.append([b.sub(x, b.mul(rate, moved)), faster])
    return _by_kind(results)


@expands("Adagrad", domain=_TRAINING)
def adagrad(op: Operation, b: OpBuilder) -> Sequence[Value] | None:
    rate, step = op.operand_values[:2]
    results = []
    for x, gradient, squares in _states(op, 3):
        decay = _number(b, op.attr("decay_factor") or 0.0, x)
        smaller = b.div(rate, b.add(_number(b, 1.0, x), b.mul(b.cast_like(step, x), decay)))
        slope = _regularized(op, b, x, gradient)
        summed = b.add(squares, b.mul(slope, slope))
        divisor = b.add(b.sqrt(summed), _number(b, op.attr("epsilon") or 0.0, x))
        results.append([b.sub(x, b.div(b.mul(smaller, slope), divisor)), summed])
    return _by_kind(results)


@expands("Adam", domain=_TRAINING)
def adam(op: Operation, b: OpBuilder) -> Sequence[Value] | None:
    rate, step = op.operand_values[:2]
    results = []
    for x, gradient, speed, squares in _states(op, 4):
        alpha, beta = op.attr("alpha"), op.attr("beta")
        one, when = _number(b, 1.0, x), b.cast_like(step, x)
        slope = _regularized(op, b, x, gradient)
        faster = b.add(b.mul(_number(b, alpha, x), speed), b.mul(_number(b, 1 - alpha, x), slope))
        spread = b.add(b.mul(_number(b, beta, x), squares), b.mul(_number(b, 1 - beta, x), b.mul(slope, slope)))
        divisor = b.add(b.sqrt(spread), _number(b, op.attr("epsilon") or 0.0, x))
        grown = [b.sub(one, b.pow(_number(b, base, x), when)) for base in (beta, alpha)]
        corrected = b.where(
            b.greater(step, np.array(0, np.int64)), b.div(b.mul(rate, b.sqrt(grown[0])), grown[1]), rate
        )
        moved = b.sub(x, b.mul(corrected, b.div(faster, divisor)))
        kept = _number(b, 1 - (op.attr("norm_coefficient_post") or 0.0), x)
        results.append([b.mul(kept, moved), faster, spread])
    return _by_kind(results)


@expands("BatchNormalization")
def batch_norm(op: Operation, b: OpBuilder) -> Sequence[Value] | None:
    """While training: with the mean and variance of the batch, which the running ones take up."""
    if not op.attr("training_mode") or not all(is_native(value) for value in op.operands):
        return None
    x, scale, bias, mean, variance = op.operand_values
    if not dtype_of(x) is dtype_of(scale) is dtype_of(mean) or rank_of(x) < 2:
        return None
    rank = rank_of(x)
    axes = np.array([0, *range(2, rank)], np.int64)
    own_mean = b.reduce_mean(x, axes, keepdims=1)
    centred = b.sub(x, own_mean)
    own_variance = b.reduce_mean(b.mul(centred, centred), axes, keepdims=1)
    later = np.arange(1, rank - 1)
    wide = [b.unsqueeze(value, later) if rank > 2 else value for value in (scale, bias)]
    root = b.sqrt(b.add(own_variance, _number(b, op.attr("epsilon"), x)))
    result = b.add(b.div(b.mul(wide[0], centred), root), wide[1])
    kept, taken = _number(b, op.attr("momentum"), x), _number(b, 1 - op.attr("momentum"), x)
    running = [
        b.add(b.mul(old, kept), b.mul(b.squeeze(new, axes), taken))
        for old, new in ((mean, own_mean), (variance, own_variance))
    ]
    return [result, *running][: len(op.results)]


@expands("Dropout")
def dropout(op: Operation, b: OpBuilder) -> Sequence[Value] | None:
    """Where it surely drops nothing; the mask then is true everywhere."""
    x, ratio, training = op.operand_values[0], op.input(1), op.input(2)
    trains = training is not None and _known(training) is not False
    if trains and (ratio is None or _known(ratio) != 0):
        return None
    results: list[Any] = [b.identity(x)]
    if len(op.results) > 1:
        results.append(b.expand(b.const(np.array(True)), b.shape(x)))
    return results


def _known(value: Value) -> Any:
    data = data_of(value)
    return None if data is None or shape_of(value) not in ((), (1,)) else data.numpy().reshape(()).item()
