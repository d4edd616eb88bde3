"""ConvNeXt-T (Liu et al. 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright import Builder, nn

from .blocks import SMALL, ImageNetwork, feed_forward, linear

EPSILON = 1e-6
TO_LAST, TO_SECOND = (0, 2, 3, 1), (0, 3, 1, 2)


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of [n, channels, height, width]."""

    def build(self, b: Builder, *tensors: Any) -> Any:
        return b.transpose(super().build(b, b.transpose(tensors[0], perm=TO_LAST)), perm=TO_SECOND)


class Block(nn.Layer):
    """Each channel alone over 7 x 7, then two linear layers over channels, scaled by channel, and what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.spatial = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, EPSILON)
        self.mlp = nn.Sequential(*feed_forward(width, nn.GELU()))
        self.scale = nn.Parameter((width,), SMALL)

    def build(self, b: Builder, *tensors: Any) -> Any:
        (x,) = tensors
        last = self.mlp(self.norm(b.transpose(self.spatial(x), perm=TO_LAST))) * self.tensor(b, self.scale)
        return x + b.transpose(last, perm=TO_SECOND)


class ConvNeXt(ImageNetwork):
    """Images to scores of `classes`."""

    parameters_published = 28_589_128

    def __init__(
        self,
        size: int = 224,
        classes: int = 1000,
        depths: Sequence[int] = (3, 3, 9, 3),
        widths: Sequence[int] = (96, 192, 384, 768),
    ) -> None:
        super().__init__(size)
        steps: list[nn.Layer] = [nn.Conv2d(3, widths[0], 4, 4), ChannelNorm(widths[0], EPSILON)]
        for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            if stage:
                before = widths[stage - 1]
                steps += [ChannelNorm(before, EPSILON), nn.Conv2d(before, width, 2, 2, init=nn.init.Normal(0.02))]
            steps += [Block(width) for _ in range(depth)]
        steps += [nn.GlobalAveragePool(), nn.Flatten(), nn.LayerNorm(widths[-1], EPSILON), linear(widths[-1], classes)]
        self.body = nn.Sequential(*steps)

    def build(self, b: Builder, *tensors: Any) -> Any:
        return self.body(*tensors)


Model = ConvNeXt
