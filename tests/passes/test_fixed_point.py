"""What `optimize` writes is as good as it gets: a second run with the same options finds nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tilewright
from tilewright import Builder, Module, bool_, f32
from tilewright.importers.onnx.node_counts import count_operators

EXPORTS = Path(__file__).parents[1] / "models" / "exports"
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "functions": {"functions": True},
    "onnxruntime": {"target": "onnxruntime"},
    "keep-fused": {"keep_fused": True},
}


def heads(b: Builder, x: Any, width: int, count: int, seed: int) -> Any:
    weight = np.random.default_rng(seed).standard_normal((16, width)).astype(np.float32)
    return b.transpose(b.reshape(b.matmul(x, weight), [0, 0, count, width // count]), perm=[0, 2, 1, 3])


def standard_attention() -> Module:
    """Attention as an exporter of opset 23 writes it, with a mask whose keys only a name says are as many."""
    b = Builder(opset=23)
    x, mask = b.input("x", f32["n", "s", 16]), b.input("mask", bool_["n", 1, "q", "k"])
    q, k, v = (heads(b, x, 16, 2, seed) for seed in range(3))
    y = b.transpose(b.attention(q, k, v, mask), perm=[0, 2, 1, 3])
    b.output(b.gelu(b.reshape(y, [0, 0, 16])), "y")
    return b.build()


def rotary_attention() -> Module:
    """Grouped heads that are turned before they meet, and a normalization of the sum."""
    b = Builder(opset=23)
    x = b.input("x", f32[2, 4, 16])
    caches = [np.random.default_rng(seed).random((2, 4, 2), np.float32) for seed in range(2)]
    q, k = (b.rotary_embedding(heads(b, x, width, width // 4, width), *caches) for width in (16, 8))
    y = b.transpose(b.attention(q, k, heads(b, x, 8, 2, 3), is_causal=1), perm=[0, 2, 1, 3])
    scale = np.ones(16, np.float32)
    total = b.add(b.reshape(y, [0, 0, 16]), x)
    b.output(b.rms_normalization(total, scale), "y")
    return b.build()


MODELS: dict[str, Callable[[], Module]] = {
    "standard-attention": standard_attention,
    "rotary-attention": rotary_attention,
    "bert": lambda: tilewright.load(EXPORTS / "bert_sdpa_mask.dyn.op18.onnx"),
    "block-mask": lambda: tilewright.load(EXPORTS / "mha_block_mask.onnx"),
}


def optimized(model: Any, opset: int, options: dict[str, Any]) -> onnx.ModelProto:
    chosen = {name: value for name, value in options.items() if name != "keep_fused"}
    report = tilewright.optimize(model, opset=opset, **chosen)
    return tilewright.to_proto(report.module, opset=opset, **options)


def contents(proto: onnx.ModelProto) -> tuple[Counter[str], int]:
    return count_operators(proto), len(proto.functions)


@pytest.mark.parametrize("opset", [17, 18, 20, 23])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_a_second_run_finds_nothing(name: str, way: str, opset: int) -> None:
    once = optimized(MODELS[name](), opset, WAYS[way])
    again = optimized(once, opset, WAYS[way])
    assert contents(again) == contents(once)


@pytest.mark.parametrize("opset", [17, 18, 23])
@pytest.mark.parametrize("name", ["standard-attention", "rotary-attention"])
def test_the_parts_compute_the_same(name: str, opset: int) -> None:
    pytest.importorskip("onnxruntime")
    for options in WAYS.values():
        report = tilewright.parity(MODELS[name](), optimized(MODELS[name](), opset, options), rtol=1e-5)
        assert report.passed, report


def test_heads_are_turned_side_by_side_where_attention_is_one_node() -> None:
    operators = Counter(node.op_type for node in optimized(rotary_attention(), 23, {}).graph.node)
    assert operators["Transpose"] == 0
    assert operators["RotaryEmbedding"] == 2
    assert operators["Attention"] == 1


def test_parts_are_cleaned_unless_that_is_not_wanted() -> None:
    def count(clean: bool) -> int:
        return count_operators(tilewright.to_proto(standard_attention(), clean, opset=18)).total()

    assert count(True) < count(False)
