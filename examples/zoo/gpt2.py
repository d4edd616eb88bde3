"""GPT-2, the smallest (Radford et al. 2019): the next word after each of a text, without a cache of keys and values."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright import Builder, i64, nn

from .blocks import Network, PreNormBlock

EPSILON = 1e-5
# The least f32: what a place later in the text gets added to its scores.
HIDDEN = float(np.finfo(np.float32).min)


class GPT2(Network):
    """Words to scores of the next one; the table of words is that of the scores, too."""

    parameters_published = 124_439_808

    def __init__(
        self,
        size: int | str = 128,
        vocabulary: int = 50257,
        places: int = 1024,
        layers: int = 12,
        width: int = 768,
        heads: int = 12,
    ) -> None:
        super().__init__()
        self.size, self.count, small = size, layers, nn.init.Normal(0.02)
        self.words, self.places = nn.Embedding(vocabulary, width, small), nn.Embedding(places, width, small)
        for index in range(layers):
            self.add(f"block_{index}", PreNormBlock(width, heads, nn.GELU("tanh"), EPSILON, joined=True))
        self.norm = nn.LayerNorm(width, EPSILON)

    def inputs(self, batch: int | str) -> dict[str, Any]:
        return {"input_ids": i64[batch, self.size]}

    def build(self, b: Builder, *tensors: Any) -> Any:
        (words,) = tensors
        places = b.range(0, b.squeeze(b.shape(words, start=1, end=2), np.array([0])), 1)
        x = self.words(words) + self.places(places)
        earlier = b.unsqueeze(places, np.array([0])) <= b.unsqueeze(places, np.array([1]))
        mask = b.where(earlier, 0.0, HIDDEN)
        for index in range(self.count):
            x = self._parts[f"block_{index}"](x, mask)
        return self.norm(x) @ b.transpose(self.words.tensor(b, self.words.weight), perm=[1, 0])


Model = GPT2
