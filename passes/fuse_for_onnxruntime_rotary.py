"""RotaryEmbedding as ONNX Runtime's own, for opsets that have none, and caches that are broadcast.

Rule of fuse-for-onnxruntime. ONNX Runtime does not broadcast the caches of the standard's operator.

Its caches have a row for each position, where the standard's may have one for each element of the batch: then the rows
of all elements stand one after the other, and the positions count through them.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ..graph.builder import OpBuilder
from ..graph.core import AttributeValue, Value
from ..graph.dims import prove_equal
from ..graph.opdef import lookup
from .fuse_attention_views import shape_of
from .fuse_for_onnxruntime_activations import DOMAIN
from .rules import Match, OpRule, Verdict

# The first opset that has RotaryEmbedding.
FIRST_OPSET = 23
_FLOATS = ("f32", "f16")


class RuntimeRotary(OpRule):
    """rotary_embedding(x, cos, sin) -> RotaryEmbedding of com.microsoft, where the standard's cannot be written"""

    name = "runtime-rotary"
    exactness = "reassociates"
    root: ClassVar[str] = "rotary_embedding"

    def __init__(self, opset: int = 1) -> None:
        self.opset = opset

    def when(self, m: Match) -> Verdict:
        x, cos, sin, positions = (m.root.input(index) for index in range(4))
        if self.opset >= FIRST_OPSET and not m.root.attr("broadcast"):
            return m.fail("the opset has RotaryEmbedding", m.root)
        if any(str(m.dtype(value)) not in _FLOATS for value in (x, cos, sin)):
            return m.fail("ONNX Runtime's kernel takes f32 and f16", m.root)
        if m.root.attr("rotary_embedding_dim"):
            return m.fail("only a part of each head is turned", m.root)
        shape, caches = m.shape(x), (m.shape(cos), m.shape(sin))
        if shape is None or any(cache is None for cache in caches):
            return m.fail("the shapes are not known", m.root)
        if positions is not None:
            return m.fail("it has positions", positions)
        length = shape[-2]
        for cache in caches:
            assert cache is not None
            if len(cache) != 3 or prove_equal(cache[1], length) is not True:
                return m.fail("the caches are not known to be as long as x", m.root)
            if not isinstance(cache[2], int) or not isinstance(shape[-1], int):
                return m.fail("the size of a head is not known", m.root)
            heads = m.root.attr("num_heads") or 1
            if 2 * cache[2] * (heads if len(shape) == 3 else 1) != shape[-1]:
                return m.fail("the caches are not half as wide as a head", m.root)
            if cache[0] != 1 and not self._counted(shape, cache):
                return m.fail("the batch of the caches is neither 1 nor a number", m.root)
        return True

    def _counted(self, shape: tuple, cache: tuple) -> bool:  # type: ignore[type-arg]
        sizes = (shape[0], cache[0], cache[1])
        return all(isinstance(size, int) for size in sizes) and bool(shape[0] == cache[0])

    def build(self, b: OpBuilder, m: Match) -> Value:
        x, cos, sin = m.root.operands[:3]
        shape, cache = m.shape(x), shape_of(cos)
        assert shape is not None
        assert cache is not None
        positions: np.ndarray = np.zeros(1, np.int64)
        batches = {(shape_of(value) or ())[0] for value in (cos, sin)}
        if batches != {1}:
            count, length = int(shape[0]), int(cache[1])  # type: ignore[arg-type]
            positions = np.arange(count * length, dtype=np.int64).reshape(count, length)
        attributes: dict[str, AttributeValue] = {"interleaved": m.root.attr("interleaved", 0) or 0}
        if len(shape) == 3:
            attributes["num_heads"] = m.root.attr("num_heads")
        flat = [b.reshape(value, [-1, cache[2]]) for value in (cos, sin)]
        return b.create(lookup(DOMAIN, "RotaryEmbedding"), [x, b.const(positions), *flat], attributes).result


__all__ = ["FIRST_OPSET", "RuntimeRotary"]
