"""EfficientNet-B0 (Tan and Le 2019, table 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright import Builder, nn

from .blocks import ImageNetwork, InvertedResidual, classifier, conv_norm

# Expansion, kernel, output channels, blocks, stride of the first.
STAGES = (
    (1, 3, 16, 1, 1), (6, 3, 24, 2, 2), (6, 5, 40, 2, 2), (6, 3, 80, 3, 2), (6, 5, 112, 3, 1), (6, 5, 192, 4, 2),
    (6, 3, 320, 1, 1),
)  # fmt: skip


class EfficientNetB0(ImageNetwork):
    """Images to scores of `classes`; gates see a quarter as many channels as a block's input has."""

    parameters_published = 5_288_548

    def __init__(
        self,
        size: int = 224,
        classes: int = 1000,
        stages: Sequence[tuple[int, int, int, int, int]] = STAGES,
        head: int = 1280,
    ) -> None:
        super().__init__(size)
        steps: list[nn.Layer] = [conv_norm(3, 32, 3, 2, activation=nn.SiLU())]
        channels = 32
        for factor, kernel, outputs, count, stride in stages:
            for index in range(count):
                stride_here, squeezed = 1 if index else stride, channels // 4
                steps.append(
                    InvertedResidual(channels, outputs, factor, kernel, stride_here, nn.SiLU(), squeezed=squeezed)
                )
                channels = outputs
        steps.append(conv_norm(channels, head, activation=nn.SiLU()))
        self.body = nn.Sequential(*steps, classifier(head, classes))

    def build(self, b: Builder, *tensors: Any) -> Any:
        return self.body(*tensors)


Model = EfficientNetB0
