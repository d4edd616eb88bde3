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
from tilewright import Builder, Module, bool_, f32, i64
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


def scaled_attention(scale: float, fill: float = -np.inf) -> Module:
    """Attention with a scale that its operator does not take, or that leaves nothing of the queries' bias, or with a
    number in the place of hidden scores that it does not know."""
    b = Builder(opset=17)
    x, mask = b.input("x", f32["n", 4, 16]), b.input("mask", bool_[1, 1, 1, 4])
    bias = np.arange(16, dtype=np.float32)
    weights = [np.random.default_rng(seed).standard_normal((16, 16)).astype(np.float32) for seed in range(3)]
    products = [b.matmul(x, weight) for weight in weights]
    q, k, v = (
        b.transpose(b.reshape(each, [0, 0, 2, 8]), perm=[0, 2, 1, 3])
        for each in (b.add(products[0], bias), products[1], products[2])
    )
    scores = b.matmul(q if scale else b.mul(q, np.float32(0)), b.transpose(k, perm=[0, 1, 3, 2]))
    scores = b.mul(scores, np.float32(scale)) if scale else scores
    weights = b.softmax(b.where(mask, scores, b.const(np.float32(fill))), axis=-1)
    b.output(b.reshape(b.transpose(b.matmul(weights, v), perm=[0, 2, 1, 3]), [0, 0, 16]), "y")
    return b.build()


def zero_bias() -> Module:
    """A Gemm of joined dims with a bias of zeros, and a transpose between it and the sum that is normalized."""
    b = Builder(opset=17)
    x = b.input("x", f32[2, 5, 16])
    weight = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    turned = b.reshape(b.transpose(x, perm=[1, 0, 2]), [10, 16])
    y = b.reshape(b.gemm(turned, weight, np.zeros(16, np.float32)), [5, 2, 16])
    total = b.add(x, b.transpose(y, perm=[1, 0, 2]))
    b.output(b.layer_normalization(total, np.ones(16, np.float32), np.zeros(16, np.float32)), "y")
    return b.build()


def shared_transpose() -> Module:
    """Two normalizations of channels last, and a sum around the second: its terms are transposed in the same way."""
    b = Builder(opset=17)
    x, ones, zeros = b.input("x", f32[2, 5, 8]), np.ones(8, np.float32), np.zeros(8, np.float32)
    for _ in range(2):
        y = b.transpose(b.instance_normalization(b.transpose(x, perm=[0, 2, 1]), ones, zeros), perm=[0, 2, 1])
        x, term = y, x
    b.output(b.add(x, term), "y")
    return b.build()


def zero_mask() -> Module:
    """A mask of zeros behind scaled scores, as one that hides nothing folds to."""
    b = Builder(opset=17)
    q, k, v = (b.input(name, f32[1, 2, 4, 8]) for name in "qkv")
    scores = b.mul(b.matmul(q, b.transpose(k, perm=[0, 1, 3, 2])), np.float32(0.5))
    weights = b.softmax(b.add(scores, np.zeros((4, 4), np.float32)), axis=-1)
    b.output(b.matmul(weights, v), "y")
    return b.build()


def zero_masks_of_operators() -> Module:
    """Attention of the standard with masks that hide nothing."""
    b = Builder(opset=23)
    q, k, v = (b.input(name, f32[1, 2, 4, 8]) for name in "qkv")
    for mask in (np.zeros((4, 4), np.float32), np.ones((1, 2, 4, 4), np.bool_)):
        q = b.attention(q, k, v, mask)
    b.output(q, "y")
    return b.build()


def rotary_by_position() -> Module:
    """A rotary embedding whose caches are made for one sequence, as functions of positions."""
    b = Builder(opset=23)
    x, position = b.input("x", f32[2, 2, 24]), b.input("position", i64[2])
    angles = b.mul(b.unsqueeze(b.cast(position, to=f32), [-1]), np.array([1, 0.1, 0.01, 0.001], np.float32))
    angles = b.concat(angles, angles, axis=-1)
    cos, sin = (b.mul(each, np.float32(1.1)) for each in (b.cos(angles), b.sin(angles)))
    q = b.transpose(b.reshape(x, [0, 0, 3, 8]), perm=[0, 2, 1, 3])
    first, second = b.slice(q, [0], [4], [-1]), b.slice(q, [4], [8], [-1])
    b.output(b.add(b.mul(q, cos), b.mul(b.concat(b.neg(second), first, axis=-1), sin)), "y")
    return b.build()


MODELS: dict[str, Callable[[], Module]] = {
    "standard-attention": standard_attention,
    "rotary-attention": rotary_attention,
    "bert": lambda: tilewright.load(EXPORTS / "bert_sdpa_mask.dyn.op18.onnx"),
    "block-mask": lambda: tilewright.load(EXPORTS / "mha_block_mask.onnx"),
    "negative-scale": lambda: scaled_attention(-0.3),
    "no-scale": lambda: scaled_attention(0.0),
    "own-number": lambda: scaled_attention(0.3, -5.0),
    "zero-bias": zero_bias,
    "shared-transpose": shared_transpose,
    "zero-mask": zero_mask,
    "zero-masks-of-operators": zero_masks_of_operators,
    "rotary-by-position": rotary_by_position,
}
# Models whose form differs from opset to opset.
EACH = ("standard-attention", "rotary-attention", "bert", "block-mask")


def optimized(model: Any, opset: int, options: dict[str, Any]) -> onnx.ModelProto:
    chosen = {name: value for name, value in options.items() if name != "keep_fused"}
    report = tilewright.optimize(model, opset=opset, **chosen)
    return tilewright.to_proto(report.module, opset=opset, **options)


def contents(proto: onnx.ModelProto) -> tuple[Counter[str], int]:
    return count_operators(proto), len(proto.functions)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("name", "opset"), [(name, opset) for name in MODELS for opset in ((17, 18, 20, 23) if name in EACH else (18, 25))]
)
def test_a_second_run_finds_nothing(name: str, way: str, opset: int) -> None:
    once = optimized(MODELS[name](), opset, WAYS[way])
    again = optimized(once, opset, WAYS[way])
    assert contents(again) == contents(once)


@pytest.mark.parametrize(
    ("name", "opset"),
    [
        *((name, opset) for name in EACH[:2] for opset in (17, 18, 23)),
        *((name, 18) for name in MODELS if name not in EACH),
    ],
)
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


def test_masks_that_hide_nothing_vanish() -> None:
    assert Counter(node.op_type for node in optimized(zero_mask(), 17, {}).graph.node)["Add"] == 0
    operators = [
        node for node in optimized(zero_masks_of_operators(), 23, {}).graph.node if node.op_type == "Attention"
    ]
    assert [len(node.input) for node in operators] == [3, 3]


def test_parts_are_cleaned_unless_that_is_not_wanted() -> None:
    def count(clean: bool) -> int:
        return count_operators(tilewright.to_proto(standard_attention(), clean, opset=18)).total()

    assert count(True) < count(False)
