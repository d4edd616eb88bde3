"""What several networks of the zoo share: convolutions with a norm, squeeze and excitation, attention, and weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from tilewright import Builder, f32, nn

# Scales of the last norm in a residual branch. Small ones keep the sum of many branches from growing, as training
# from 0 does (Goyal et al. 2017, section 5.1).
SMALL = nn.init.Uniform(0.1, 0.4)


class Network(nn.Layer):
    """Base: a network that knows its own inputs and outputs, and how many parameters its authors count."""

    parameters_published: ClassVar[int]
    outputs: ClassVar[tuple[str, ...]] = ("logits",)

    def inputs(self, batch: int | str) -> dict[str, Any]:
        """Input types by name."""
        raise NotImplementedError


class ImageNetwork(Network):
    """Takes images f32[batch, 3, size, size]."""

    def __init__(self, size: int = 224) -> None:
        super().__init__()
        self.size = size

    def inputs(self, batch: int | str) -> dict[str, Any]:
        return {"image": f32[batch, 3, self.size, self.size]}


def conv_norm(
    inputs: int,
    outputs: int,
    kernel: int = 1,
    stride: int = 1,
    groups: int = 1,
    activation: nn.Layer | None = None,
    scale: nn.init.Initializer | None = None,
) -> nn.Sequential:
    """A convolution that keeps the size (at stride 1) and has no bias, BatchNorm, and maybe an activation."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    norm = nn.BatchNorm(outputs)
    norm.scale.initializer = scale or norm.scale.initializer
    return nn.Sequential(conv, norm, *([] if activation is None else [activation]))


class InvertedResidual(nn.Layer):
    """Widen, convolve each channel, narrow (Sandler et al. 2018, section 3.3); maybe with squeeze and excitation."""

    def __init__(
        self, inputs: int, outputs: int, factor: int, kernel: int, stride: int, activation: nn.Layer, squeezed: int = 0
    ) -> None:
        super().__init__()
        wide = inputs * factor
        steps = [] if factor == 1 else [conv_norm(inputs, wide, activation=activation)]
        steps.append(conv_norm(wide, wide, kernel, stride, groups=wide, activation=activation))
        if squeezed:
            steps.append(SqueezeExcitation(wide, squeezed))
        body = nn.Sequential(*steps, conv_norm(wide, outputs))
        self.block = nn.Residual(body) if stride == 1 and inputs == outputs else body

    def build(self, b: Builder, *tensors: Any) -> Any:
        return self.block(*tensors)


class SqueezeExcitation(nn.Layer):
    """Each channel times a gate that all channels' means decide (Hu et al. 2018)."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.squeeze, self.excite = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)
        self.middle = nn.SiLU()

    def build(self, b: Builder, *tensors: Any) -> Any:
        (x,) = tensors
        return x * b.sigmoid(self.excite(self.middle(self.squeeze(b.global_average_pool(x)))))


def classifier(channels: int, classes: int) -> nn.Sequential:
    """The mean of each channel, and a linear layer on them."""
    return nn.Sequential(nn.GlobalAveragePool(), nn.Flatten(), nn.Linear(channels, classes, init=nn.init.Normal(0.05)))


class SelfAttention(nn.Layer):
    """Attention in `heads` heads, in the operators that exporters write: products, a scale, a mask, Softmax.

    Called on x [batch, length, width], and maybe on what to add to scores [batch, heads, length, length]. `joined`
    makes queries, keys and values with one product.
    """

    def __init__(self, width: int, heads: int, joined: bool = False) -> None:
        super().__init__()
        self.width, self.heads = width, heads
        if joined:
            self.add("joined", linear(width, 3 * width))
        else:
            for name in ("query", "key", "value"):
                self.add(name, linear(width, width))
        self.output = linear(width, width)

    def build(self, b: Builder, *tensors: Any) -> Any:
        x, mask = tensors if len(tensors) == 2 else (tensors[0], None)
        q, k, v = (self._split_heads(b, part) for part in self._projected(b, x))
        depth = self.width // self.heads
        scores = (b.transpose(q, perm=[0, 2, 1, 3]) @ b.transpose(k, perm=[0, 2, 3, 1])) * (depth**-0.5)
        weights = b.softmax(scores if mask is None else scores + mask, axis=-1)
        mixed = b.transpose(weights @ b.transpose(v, perm=[0, 2, 1, 3]), perm=[0, 2, 1, 3])
        return self.output(b.reshape(mixed, np.array([0, 0, self.width])))

    def _projected(self, b: Builder, x: Any) -> Sequence[Any]:
        if "joined" in self._parts:
            return b.split(self._parts["joined"](x), axis=-1, num_outputs=3, outputs=3)
        return [self._parts[name](x) for name in ("query", "key", "value")]

    def _split_heads(self, b: Builder, x: Any) -> Any:
        return b.reshape(x, np.array([0, 0, self.heads, self.width // self.heads]))


class PreNormBlock(nn.Layer):
    """Attention, then two linear layers, each on normalized input and added to it (Xiong et al. 2020)."""

    def __init__(self, width: int, heads: int, activation: nn.Layer, epsilon: float, joined: bool = False) -> None:
        super().__init__()
        self.before, self.attention = nn.LayerNorm(width, epsilon), SelfAttention(width, heads, joined)
        self.mlp = nn.Residual(nn.Sequential(nn.LayerNorm(width, epsilon), *feed_forward(width, activation)))

    def build(self, b: Builder, *tensors: Any) -> Any:
        x, *mask = tensors
        return self.mlp(x + self.attention(self.before(x), *mask))


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer of a transformer."""
    return nn.Linear(inputs, outputs, init=nn.init.Normal(0.02))


def feed_forward(width: int, activation: nn.Layer) -> tuple[nn.Layer, nn.Layer, nn.Layer]:
    """Four times as wide, an activation, and back."""
    return linear(width, 4 * width), activation, linear(4 * width, width)


def looking_trained(network: nn.Layer) -> None:
    """Let what begins as 1 or 0 everywhere be drawn instead, so that leaving it out or folding it wrongly shows."""
    for _, parameter in network.named():
        if parameter.initializer == nn.init.Constant(1.0):
            parameter.initializer = nn.init.Uniform(0.5, 1.5)
        elif parameter.initializer == nn.init.Constant(0.0):
            parameter.initializer = nn.init.Normal(0.1)


def parameter_count(network: nn.Layer) -> int:
    """How many numbers are trained; none of them is drawn for that."""
    return sum(int(np.prod(parameter.shape)) for _, parameter in network.named() if parameter.trained)
