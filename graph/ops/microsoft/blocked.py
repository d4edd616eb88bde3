"""Convolutions and pools on blocks of channels (domain com.microsoft.nchwc).

ONNX Runtime writes them when it optimizes a model to the end for the machine it runs on: channels are grouped in blocks
of as many as one of that machine's vectors holds, filters likewise, and the file does not say how many that are. So
such a file is only right for machines like that one. These operators are carried and typed as far as possible; they
cannot be run here or written in standard operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ...diagnostics import ExecutionError
from ...dims import Dim
from ...opdef import Trait, op
from ..common import TensorOp, require_rank, shape_of, unknown_dims
from ..convolution import Window
from .base import MicrosoftOp
from .convolution import FUSED, WINDOW

if TYPE_CHECKING:
    from ...core import Operation
    from ...infer import InferenceContext

BLOCKED = "com.microsoft.nchwc"


class Blocked(MicrosoftOp, TensorOp):
    """[n, blocks of channels, height, width]: the number of channels is rounded up to whole blocks."""

    inputs: ClassVar[tuple[str, ...]] = ("X",)
    outputs = ("Y",)

    def refusal(self, op: Operation) -> str | None:
        return "works on blocks of channels, in the layout of the machine that wrote the file"

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        raise ExecutionError(
            "run/machine-layout",
            f"{self.name} {self.refusal(op)}",
            notes=["optimize the original model again, at ONNX Runtime's level ORT_ENABLE_EXTENDED or below"],
        )

    def spatial(self, op: Operation, shape: Sequence[Dim], context: InferenceContext) -> Sequence[Dim]:
        """Height and width of the result."""
        return shape

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        shape = shape_of(op, 0)
        if shape is None:
            return unknown_dims(4, context)
        require_rank(op, 0, shape, 4)
        return [shape[0], self.channels(op, shape, context), *self.spatial(op, shape[2:], context)]

    def channels(self, op: Operation, shape: Sequence[Dim], context: InferenceContext) -> Dim:
        """The channels of the result."""
        return shape[1]


@op("ReorderInput", domain=BLOCKED)
class ReorderInput(Blocked):
    """From [n, c, height, width], or [n, height, width, c] if `channels_last`, to blocks."""

    attributes: ClassVar[dict[str, Any]] = {"channels_last": 0}

    def channels(self, op: Operation, shape: Sequence[Dim], context: InferenceContext) -> Dim:
        return context.fresh()

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        shape = super().result_shape(op, context)
        given = shape_of(op, 0)
        if shape is None or given is None or not op.attr("channels_last"):
            return shape
        return [shape[0], shape[1], given[1], given[2]]


@op("ReorderOutput", domain=BLOCKED)
class ReorderOutput(Blocked):
    """From blocks to [n, channels, height, width], or [n, height, width, channels] if `channels_last`."""

    attributes: ClassVar[dict[str, Any]] = {"channels": 0, "channels_last": 0}

    def channels(self, op: Operation, shape: Sequence[Dim], context: InferenceContext) -> Dim:
        return op.attr("channels") or context.fresh()

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        shape = super().result_shape(op, context)
        if shape is None or not op.attr("channels_last"):
            return shape
        return [shape[0], *shape[2:], shape[1]]


@op("Conv", domain=BLOCKED)
class Conv(Blocked):
    """FusedConv of blocks (or of plain channels, if they are few); `Sum` is added in front of the activation."""

    inputs = ("X", "W", "B?", "Sum?")
    attributes: ClassVar[dict[str, Any]] = {"auto_pad": "NOTSET", "group": 1}
    optional = FUSED

    def channels(self, op: Operation, shape: Sequence[Dim], context: InferenceContext) -> Dim:
        weight = shape_of(op, 1)
        return context.fresh() if weight is None else weight[0]

    def spatial(self, op: Operation, shape: Sequence[Dim], context: InferenceContext) -> Sequence[Dim]:
        weight, kernel = shape_of(op, 1), op.attr("kernel_shape")
        if kernel is None and weight is None:
            return [context.fresh() for _ in shape]
        return Window.of(op, kernel or weight[2:] if weight is not None else kernel).output(op, shape)


class BlockedPool(Blocked):
    """Of the windows of each channel."""

    traits = frozenset({Trait.REDUCTION})
    attributes: ClassVar[dict[str, Any]] = {"auto_pad": "NOTSET", "ceil_mode": 0}
    required: ClassVar[dict[str, str]] = {"kernel_shape": "ints"}
    optional: ClassVar[dict[str, str]] = {name: kind for name, kind in WINDOW.items() if name != "kernel_shape"}

    def spatial(self, op: Operation, shape: Sequence[Dim], context: InferenceContext) -> Sequence[Dim]:
        return Window.of(op, op.attr("kernel_shape")).output(op, shape)


@op("MaxPool", domain=BLOCKED)
class MaxPool(BlockedPool):
    """The greatest element of each window."""

    attributes: ClassVar[dict[str, Any]] = {"auto_pad": "NOTSET", "ceil_mode": 0, "storage_order": 0}


@op("AveragePool", domain=BLOCKED)
class AveragePool(BlockedPool):
    """The mean of each window."""

    attributes: ClassVar[dict[str, Any]] = {"auto_pad": "NOTSET", "ceil_mode": 0, "count_include_pad": 0}


class BlockedGlobalPool(Blocked):
    """Of each channel: height and width become 1."""

    def spatial(self, op: Operation, shape: Sequence[Dim], context: InferenceContext) -> Sequence[Dim]:
        return [1 for _ in shape]


@op("GlobalMaxPool", domain=BLOCKED)
class GlobalMaxPool(BlockedGlobalPool):
    """The greatest element of each channel."""


@op("GlobalAveragePool", domain=BLOCKED)
class GlobalAveragePool(BlockedGlobalPool):
    """The mean of each channel."""


@op("Upsample", domain=BLOCKED)
class Upsample(Blocked):
    """Each pixel repeated, or interpolated, by whole factors: `scales` has one for each of the four dims."""

    attributes: ClassVar[dict[str, Any]] = {"coordinate_transformation_mode": "asymmetric", "mode": "nearest"}
    optional: ClassVar[dict[str, str]] = {"scales": "ints"}

    def spatial(self, op: Operation, shape: Sequence[Dim], context: InferenceContext) -> Sequence[Dim]:
        scales = op.attr("scales")
        return [dim * factor for dim, factor in zip(shape, scales[2:], strict=True)] if scales else shape
