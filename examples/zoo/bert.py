"""BERT-base, uncased (Devlin et al. 2019), without a head."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright import Builder, f32, i64, nn

from .blocks import Network, SelfAttention, feed_forward, linear

EPSILON = 1e-12
# What a place that must not be seen gets added to its scores.
HIDDEN = -10000.0


class Block(nn.Layer):
    """Attention, then two linear layers, each added to what came in and normalized after that."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention, self.norm = SelfAttention(width, heads), nn.LayerNorm(width, EPSILON)
        mlp = nn.Residual(nn.Sequential(*feed_forward(width, nn.GELU())))
        self.mlp = nn.Sequential(mlp, nn.LayerNorm(width, EPSILON))

    def build(self, b: Builder, *tensors: Any) -> Any:
        x, mask = tensors
        return self.mlp(self.norm(x + self.attention(x, mask)))


class Bert(Network):
    """Words, a mask of 1 where there is one, and the sentence (0 or 1) of each, to features of each and of all."""

    parameters_published = 109_482_240
    outputs = ("features", "pooled")

    def __init__(
        self,
        size: int | str = 128,
        vocabulary: int = 30522,
        places: int = 512,
        layers: int = 12,
        width: int = 768,
        heads: int = 12,
    ) -> None:
        super().__init__()
        self.size, small = size, nn.init.Normal(0.02)
        self.words = nn.Embedding(vocabulary, width, small)
        self.places, self.sentences = nn.Embedding(places, width, small), nn.Embedding(2, width, small)
        self.norm, self.count = nn.LayerNorm(width, EPSILON), layers
        for index in range(layers):
            self.add(f"block_{index}", Block(width, heads))
        self.pool = nn.Sequential(linear(width, width), nn.Tanh())

    def inputs(self, batch: int | str) -> dict[str, Any]:
        return dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), i64[batch, self.size])

    def build(self, b: Builder, *tensors: Any) -> Any:
        words, mask, sentences = tensors
        length = b.squeeze(b.shape(words, start=1, end=2), np.array([0]))
        x = self.words(words) + self.sentences(sentences) + self.places(b.range(0, length, 1))
        x = self.norm(x)
        hidden = (1.0 - b.cast(b.unsqueeze(mask, np.array([1, 2])), to=f32)) * HIDDEN
        for index in range(self.count):
            x = self._parts[f"block_{index}"](x, hidden)
        return x, self.pool(x[:, 0])


Model = Bert
