"""ViT-B/16 (Dosovitskiy et al. 2021): an encoder of image patches of 16 x 16."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright import Builder, nn

from .blocks import ImageNetwork, PreNormBlock, linear

EPSILON = 1e-6


class VisionTransformer(ImageNetwork):
    """Images to scores of `classes`, read at the place of a token that stands for the image."""

    parameters_published = 86_567_656

    def __init__(
        self, size: int = 224, classes: int = 1000, patch: int = 16, layers: int = 12, width: int = 768, heads: int = 12
    ) -> None:
        super().__init__(size)
        self.width, places = width, (size // patch) ** 2 + 1
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter((1, 1, width), nn.init.Normal(0.02))
        self.places = nn.Parameter((1, places, width), nn.init.Normal(0.02))
        blocks = (PreNormBlock(width, heads, nn.GELU(), EPSILON) for _ in range(layers))
        self.encoder = nn.Sequential(*blocks, nn.LayerNorm(width, EPSILON))
        self.scores = linear(width, classes)

    def build(self, b: Builder, *tensors: Any) -> Any:
        patches = b.reshape(self.patches(tensors[0]), np.array([0, self.width, -1]))
        shape = b.concat(b.shape(patches)[0:1], np.array([1, self.width]), axis=0)
        token = b.expand(self.tensor(b, self.token), shape)
        x = b.concat(token, b.transpose(patches, perm=[0, 2, 1]), axis=1) + self.tensor(b, self.places)
        return self.scores(self.encoder(x)[:, 0])


Model = VisionTransformer
