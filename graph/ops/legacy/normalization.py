"""Softmax over several axes at once, and the older batch and group normalizations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from ...cached import cached_property
from ...dims import Dim
from ...opdef import Parameter, ParameterKind
from .base import OldForm, old_form, shape_of, today

if TYPE_CHECKING:
    from ...builder import OpBuilder
    from ...core import Operation, Value


def only_axis(shape: Sequence[Dim] | None, axis: int) -> int | None:
    """The one axis, from `axis` on, that has more than one element; None if there may be several.

    Over the dims of a Softmax-11 this is the axis that Softmax-13 needs to give the same.
    """
    if shape is None or not -len(shape) <= axis < len(shape):
        return None
    axis %= len(shape)
    wide = [position for position in range(axis, len(shape)) if shape[position] != 1]
    if len(wide) > 1:
        return None
    return wide[0] if wide else len(shape) - 1


@old_form(dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), (1, 11)))
class FlatSoftmax(OldForm):
    """All dims from `axis` (default 1) on count as one."""

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        data, axis = op.operands[0], op.attr("axis", 1)
        single = only_axis(shape_of(data), axis)
        if single is not None:
            return today(builder, op, attributes={"axis": single})
        (normalized,) = today(builder, op, [builder.flatten(data, axis=axis)], {"axis": -1})
        return [_reshaped(normalized, data, builder)]


def _reshaped(value: Value, like: Value | None, builder: OpBuilder) -> Value:
    """`value` in the shape of `like`, by a constant if at most one dim is not a number."""
    shape = shape_of(like)
    known = [dim for dim in shape or () if isinstance(dim, int) and dim > 0]
    result: Value
    if shape is not None and len(known) >= len(shape) - 1:
        result = builder.reshape(value, [dim if isinstance(dim, int) and dim > 0 else -1 for dim in shape])
    else:
        # allowzero: a dim of 0 is an empty one, not one to copy.
        result = builder.reshape(value, builder.shape(like), allowzero=1)
    return result


@old_form({"BatchNormalization": (1, 6, 7, 9)})
class BatchNormalization(OldForm):
    """`spatial=0` keeps one statistic per position; more than one output means training.

    Training gives Y, the running mean and variance, and the batch's own mean and variance ("saved"). As everywhere
    else, one output means inference even where `is_test` (before opset 7) is not set.
    """

    @cached_property
    def result_parameters(self) -> tuple[Parameter, ...]:
        """None is optional: how many there are says whether the node trains, so an unused one must not be dropped."""
        return tuple(replace(item, kind=ParameterKind.VARIADIC) for item in super().result_parameters)

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        data, scale, bias, mean, variance = op.operands
        spatial, training = op.attr("spatial", 1), len(op.results) > 1 and not op.attr("is_test", 0)
        assert mean is not None
        assert variance is not None
        if not training and spatial:
            epsilon = op.attr("epsilon")
            normalized = builder.batch_normalization(data, scale, bias, mean, variance, epsilon=epsilon)
            return [normalized, mean, variance, mean, variance][: len(op.results)]
        shape = shape_of(data)
        if shape is None:
            return None
        axes = [axis for axis in range(len(shape)) if axis != 1] if spatial else [0]
        current = self._statistics(data, axes, builder) if training else (mean, variance)
        if spatial and len(shape) > 2:
            parameters = [builder.unsqueeze(value, list(range(1, len(shape) - 1))) for value in (scale, bias, *current)]
        else:
            parameters = [scale, bias, *current]
        normalized = self._normalize(data, parameters, op.attr("epsilon"), builder)
        if not training:
            return [normalized, mean, variance, mean, variance][: len(op.results)]
        running = [
            self._running(old, new, op.attr("momentum"), builder)
            for old, new in zip((mean, variance), current, strict=True)
        ]
        return [normalized, *running, *current][: len(op.results)]

    @staticmethod
    def _statistics(data: Value | None, axes: list[int], builder: OpBuilder) -> tuple[Value, Value]:
        mean = builder.reduce_mean(data, axes, keepdims=1)
        deviation = builder.sub(data, mean)
        variance = builder.reduce_mean(builder.mul(deviation, deviation), axes, keepdims=0)
        return builder.squeeze(mean, axes), variance

    @staticmethod
    def _normalize(data: Value | None, parameters: Sequence[Value | None], epsilon: float, builder: OpBuilder) -> Value:
        scale, bias, mean, variance = parameters
        factor = builder.div(scale, builder.sqrt(builder.add(variance, epsilon)))
        result: Value = builder.add(builder.mul(builder.sub(data, mean), factor), bias)
        return result

    @staticmethod
    def _running(old: Value, new: Value, momentum: float, builder: OpBuilder) -> Value:
        result: Value = builder.add(builder.mul(old, momentum), builder.mul(new, 1.0 - momentum))
        return result


@old_form({"GroupNormalization": (18,)})
class GroupNormalization(OldForm):
    """Scale and bias have one element per group; each is repeated for the channels of its group.

    ONNX calls this version deprecated from its beginning, so its signature stands here.
    """

    inputs = ("X", "scale", "bias")
    outputs = ("Y",)
    attributes: ClassVar[dict[str, Any]] = {"epsilon": 9.999999747378752e-06, "num_groups": None}

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        data, scale, bias = op.operands
        groups = op.attr("num_groups")
        shape = shape_of(data)
        channels = shape[1] if shape is not None else None
        if isinstance(channels, int):
            repeats = builder.const([groups, channels // groups])
        else:
            per_group = builder.div(builder.shape(data, start=1, end=2), [groups])
            repeats = builder.concat([groups], per_group, axis=0)
        spread = [
            builder.reshape(builder.expand(builder.unsqueeze(value, [1]), repeats), [-1]) for value in (scale, bias)
        ]
        return today(builder, op, [data, *spread])
