"""ResNet-50 (He et al. 2016), with the stride in the 3x3 convolution, as is usual since Goyal et al. 2017."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright import Builder, nn

from .blocks import SMALL, ImageNetwork, classifier, conv_norm


class Bottleneck(nn.Layer):
    """Narrow, 3x3, widen, and add what came in."""

    def __init__(self, inputs: int, narrow: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * narrow
        body = nn.Sequential(
            conv_norm(inputs, narrow, activation=nn.ReLU()),
            conv_norm(narrow, narrow, 3, stride, activation=nn.ReLU()),
            conv_norm(narrow, outputs, scale=SMALL),
        )
        shortcut = None if stride == 1 and inputs == outputs else conv_norm(inputs, outputs, stride=stride)
        self.sum, self.after = nn.Residual(body, shortcut), nn.ReLU()

    def build(self, b: Builder, *tensors: Any) -> Any:
        return self.after(self.sum(*tensors))


class ResNet(ImageNetwork):
    """Images to scores of `classes`."""

    parameters_published = 25_557_032

    def __init__(
        self, size: int = 224, classes: int = 1000, depths: Sequence[int] = (3, 4, 6, 3), width: int = 64
    ) -> None:
        super().__init__(size)
        steps: list[nn.Layer] = [conv_norm(3, width, 7, 2, activation=nn.ReLU()), nn.MaxPool2d(3, 2, 1)]
        channels = width
        for stage, depth in enumerate(depths):
            for index in range(depth):
                narrow = width << stage
                steps.append(Bottleneck(channels, narrow, 2 if stage and not index else 1))
                channels = 4 * narrow
        self.body = nn.Sequential(*steps, classifier(channels, classes))

    def build(self, b: Builder, *tensors: Any) -> Any:
        return self.body(*tensors)


Model = ResNet
