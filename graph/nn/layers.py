"""Layers without a state of their own in time: linear, convolutions, embeddings, activations, pooling, containers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..diagnostics import UsageError
from ..model_builder import Builder, Tensor
from .init import Constant, Initializer, KaimingUniform, Normal
from .layer import Layer, Parameter


class Linear(Layer):
    """x @ weight + bias: x [..., inputs] to [..., outputs]; weight [inputs, outputs]."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True, init: Initializer | None = None) -> None:
        super().__init__()
        self.weight = Parameter((inputs, outputs), init or KaimingUniform(), inputs, outputs)
        self.bias = Parameter((outputs,), Constant(0.0), inputs, outputs) if bias else None

    def build(self, b: Builder, *tensors: Any) -> Tensor:
        (x,) = tensors
        y: Tensor = x @ self.tensor(b, self.weight)
        return y if self.bias is None else y + self.tensor(b, self.bias)


class Conv(Layer):
    """A convolution over `dims` spatial axes: x [n, inputs, *space], weight [outputs, inputs / groups, *kernel].

    `padding` is added on both sides of each axis: zeros, or with `padding_mode="circular"` what lies on the other side.
    """

    dims = 0

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        init: Initializer | None = None,
    ) -> None:
        super().__init__()
        if padding_mode not in ("zeros", "circular"):
            raise UsageError("nn/padding", f"padding_mode is zeros or circular, not {padding_mode!r}")
        if inputs % groups or outputs % groups:
            raise UsageError("nn/groups", f"{inputs} inputs and {outputs} outputs do not split into {groups} groups")
        self.kernel, self.stride = self._each(kernel), self._each(stride)
        self.padding, self.dilation = self._each(padding), self._each(dilation)
        self.groups, self.padding_mode = groups, padding_mode
        window = int(np.prod(self.kernel))
        fans = inputs // groups * window, outputs // groups * window
        self.weight = Parameter((outputs, inputs // groups, *self.kernel), init or KaimingUniform(), *fans)
        self.bias = Parameter((outputs,), Constant(0.0), *fans) if bias else None

    def _each(self, sizes: int | Sequence[int]) -> tuple[int, ...]:
        found = (sizes,) * self.dims if isinstance(sizes, int) else tuple(sizes)
        if len(found) != self.dims:
            raise UsageError("nn/sizes", f"{type(self).__name__} has {self.dims} spatial axes, got {found}")
        return found

    def build(self, b: Builder, *tensors: Any) -> Tensor:
        (x,) = tensors
        pads = (*self.padding, *self.padding)
        if self.padding_mode == "circular" and any(pads):
            around = np.array([0, 0, *self.padding] * 2, np.int64)
            x, pads = b.pad(x, around, mode="wrap"), (0,) * len(pads)
        operands = [x, self.tensor(b, self.weight)]
        if self.bias is not None:
            operands.append(self.tensor(b, self.bias))
        y: Tensor = b.conv(
            *operands, strides=self.stride, pads=pads, dilations=self.dilation, group=self.groups
        )  # fmt: skip
        return y


class Conv1d(Conv):
    """One spatial axis."""

    dims = 1


class Conv2d(Conv):
    """Two spatial axes."""

    dims = 2


class Conv3d(Conv):
    """Three spatial axes."""

    dims = 3


class Embedding(Layer):
    """Row i of weight [count, width] for each index i: [...] integers to [..., width]."""

    def __init__(self, count: int, width: int, init: Initializer | None = None) -> None:
        super().__init__()
        self.weight = Parameter((count, width), init or Normal(1.0), 1, width)

    def build(self, b: Builder, *tensors: Any) -> Tensor:
        (indices,) = tensors
        rows: Tensor = b.gather(self.tensor(b, self.weight), indices, axis=0)
        return rows


class Dropout(Layer):
    """While training, zeroes elements with probability `ratio` and scales the others up to the same mean."""

    def __init__(self, ratio: float = 0.5) -> None:
        super().__init__()
        if not 0 <= ratio < 1:
            raise UsageError("nn/dropout", f"a ratio is at least 0 and below 1, not {ratio}")
        self.ratio = ratio

    def build(self, b: Builder, *tensors: Any) -> Tensor:
        (x,) = tensors
        y: Tensor = b.dropout(x, np.array(self.ratio, np.float32), np.array(self.training), outputs=1)
        return y


class Operator(Layer):
    """Any operator of one tensor as a layer: `Operator("relu")`, `Operator("max_pool", kernel_shape=[2, 2])`."""

    def __init__(self, name: str, **attributes: Any) -> None:
        super().__init__()
        self.operator, self.attributes = name, attributes

    def build(self, b: Builder, *tensors: Any) -> Tensor:
        (x,) = tensors
        y: Tensor = b.create(self.operator, x, outputs=1, **self.attributes)
        return y


class ReLU(Operator):
    """max(x, 0)"""

    def __init__(self) -> None:
        super().__init__("relu")


class ReLU6(Layer):
    """min(max(x, 0), 6)"""

    def build(self, b: Builder, *tensors: Any) -> Tensor:
        y: Tensor = b.clip(tensors[0], 0.0, 6.0)
        return y


class GELU(Operator):
    """x times the normal distribution's probability of less than x; `approximate="tanh"` for the usual estimate."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__("gelu", approximate=approximate)


class Tanh(Operator):
    """Hyperbolic tangent."""

    def __init__(self) -> None:
        super().__init__("tanh")


class Sigmoid(Operator):
    """1 / (1 + exp(-x))"""

    def __init__(self) -> None:
        super().__init__("sigmoid")


class SiLU(Layer):
    """x * sigmoid(x)"""

    def build(self, b: Builder, *tensors: Any) -> Tensor:
        (x,) = tensors
        y: Tensor = x * b.sigmoid(x)
        return y


class Flatten(Operator):
    """[n, ...] to [n, elements]."""

    def __init__(self) -> None:
        super().__init__("flatten", axis=1)


class MaxPool2d(Operator):
    """The greatest of each window of `kernel` x `kernel`."""

    def __init__(self, kernel: int, stride: int | None = None, padding: int = 0) -> None:
        sizes = {"kernel_shape": [kernel] * 2, "strides": [stride or kernel] * 2, "pads": [padding] * 4}
        super().__init__("max_pool", **sizes)


class AveragePool2d(Operator):
    """The mean of each window of `kernel` x `kernel`."""

    def __init__(self, kernel: int, stride: int | None = None) -> None:
        super().__init__("average_pool", kernel_shape=[kernel] * 2, strides=[stride or kernel] * 2)


class GlobalAveragePool(Operator):
    """The mean over all spatial axes: [n, channels, ...] to [n, channels, 1, ...]."""

    def __init__(self) -> None:
        super().__init__("global_average_pool")


class Sequential(Layer):
    """One layer after another; parameters are called 0.weight, 2.weight, ..."""

    def __init__(self, *layers: Layer) -> None:
        super().__init__()
        self.steps = layers
        for index, layer in enumerate(layers):
            self.add(str(index), layer)

    def build(self, b: Builder, *tensors: Any) -> Any:
        (x,) = tensors
        for layer in self.steps:
            x = layer(x)
        return x


class Residual(Layer):
    """x + body(x), or shortcut(x) + body(x)."""

    def __init__(self, body: Layer, shortcut: Layer | None = None) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut

    def build(self, b: Builder, *tensors: Any) -> Tensor:
        (x,) = tensors
        y: Tensor = (x if self.shortcut is None else self.shortcut(x)) + self.body(x)
        return y
