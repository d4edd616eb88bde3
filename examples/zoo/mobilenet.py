"""MobileNetV2 (Sandler et al. 2018, table 2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright import Builder, nn

from .blocks import ImageNetwork, InvertedResidual, classifier, conv_norm

# Expansion, output channels, blocks, stride of the first.
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


class MobileNetV2(ImageNetwork):
    """Images to scores of `classes`."""

    parameters_published = 3_504_872

    def __init__(
        self,
        size: int = 224,
        classes: int = 1000,
        stages: Sequence[tuple[int, int, int, int]] = STAGES,
        head: int = 1280,
    ) -> None:
        super().__init__(size)
        steps: list[nn.Layer] = [conv_norm(3, 32, 3, 2, activation=nn.ReLU6())]
        channels = 32
        for factor, outputs, count, stride in stages:
            for index in range(count):
                steps.append(InvertedResidual(channels, outputs, factor, 3, 1 if index else stride, nn.ReLU6()))
                channels = outputs
        steps.append(conv_norm(channels, head, activation=nn.ReLU6()))
        self.body = nn.Sequential(*steps, classifier(head, classes))

    def build(self, b: Builder, *tensors: Any) -> Any:
        return self.body(*tensors)


Model = MobileNetV2
