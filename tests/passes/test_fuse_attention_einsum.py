"""Attention written with Einsum: it becomes the operator, gives the same, and what is none stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from attention_forms import EINSUMS, B, D, H, S, T, feeds_for, joined, model_of, weights
from test_fuse_attention import fuse, names, run, run_in_runtime, same

from tilewright import bool_, f32, i32
from tilewright.importers.onnx import to_proto
from tilewright.passes.explain import render
from tilewright.passes.fuse_attention_einsum import EinsumToProducts


@pytest.mark.parametrize("name", EINSUMS)
def test_form_is_fused(name: str) -> None:
    form = EINSUMS[name]
    model = model_of(form.build, opset=23)
    feeds = feeds_for(model)
    before = run(model, feeds)
    assert fuse(model) == []
    [attention] = [op for op in model.walk() if op.name == "attention"]
    assert "softmax" not in names(model)
    assert "einsum" not in names(model)
    assert ("q_num_heads" in attention.attributes) is form.packed
    if form.kv_heads is not None:
        assert attention.operands[1].type.shape[1] == form.kv_heads
    same(run(model, feeds), before)
    same(run_in_runtime(to_proto(model, opset=23, keep_fused=True), feeds), before, tolerance=1e-5)


@pytest.mark.parametrize("name", EINSUMS)
def test_no_more_nodes_below_the_opset_of_attention(name: str) -> None:
    model = model_of(EINSUMS[name].build, opset=18)
    before = len(to_proto(model, opset=18).graph.node)
    feeds = feeds_for(model)
    expected = run(model, feeds)
    fuse(model, "fuse-attention,merge-transposes,fold,cse,dce")
    after = to_proto(model, opset=18)
    assert len(after.graph.node) <= before
    same(run_in_runtime(after, feeds), expected)


def projected(b: Any) -> None:
    """Heads are split off, and joined, by reshapes alone: the Einsums put axes in order."""
    x, z = b.input("x", f32[B, S, H * D]), b.input("z", f32[B, T, H * D])
    q = b.reshape(x @ weights(H * D, H * D), [B, S, H, D])
    k, v = (b.reshape(z @ weights(H * D, H * D), [B, T, H, D]) for _ in range(2))
    scores = b.einsum(q, k, equation="bqhd,bkhd->bhqk")
    masked = b.where(b.input("keep", bool_[B, 1, S, T]), b.div(scores, 4.0), float("-inf"))
    y = b.einsum(b.softmax(masked), v, equation="bhqk,bkhd->bqhd")
    b.output(b.reshape(y, [B, S, H * D]), "y")


def test_heads_split_off_by_reshapes_are_packed_and_masks_go_along() -> None:
    model = model_of(projected, opset=23)
    feeds = feeds_for(model)
    before = run(model, feeds)
    fuse(model)
    assert names(model) == ["matmul"] * 3 + ["attention"]
    same(run(model, feeds), before)


def transposed_before(b: Any) -> None:
    x, z = b.input("x", f32[B, S, H * D]), b.input("z", f32[B, T, H * D])
    parts = [(x, S), (z, T), (z, T)]
    q, k, v = (b.transpose(b.reshape(p @ weights(H * D, H * D), [B, n, H, D]), perm=[0, 2, 1, 3]) for p, n in parts)
    scores = b.einsum(q, k, equation="bhid,bhjd->bhij")
    b.output(joined(b, b.einsum(b.softmax(b.mul(scores, 0.25)), v, equation="bhij,bhjd->bhid")), "y")


def test_transposes_that_vanish_let_it_be_fused_at_any_opset() -> None:
    model = model_of(transposed_before, opset=18)
    before, feeds = len(to_proto(model, opset=18).graph.node), feeds_for(model)
    expected = run(model, feeds)
    fuse(model)
    assert "attention" in names(model)
    written = to_proto(model, opset=18)
    assert len(written.graph.node) <= before
    same(run_in_runtime(written, feeds), expected)


# ---- what stays ------------------------------------------------------------------------------------------------------

STAYS: dict[str, tuple[Callable[[Any], None], str]] = {}


def stays(name: str, reason: str, scores: str, context: str, q: Any, k: Any, v: Any, **options: Any) -> None:
    def build(b: Any) -> None:
        dtype = options.get("dtype", f32)
        first = b.einsum(b.input("q", dtype[q]), b.input("k", dtype[k]), equation=scores)
        if "mask" in options:
            first = b.add(first, b.input("bias", f32[options["mask"]]))
        first = first if dtype is f32 else b.cast(first, to=f32)
        probabilities = b.softmax(first, axis=options.get("axis", -1))
        if "output" in options:
            b.output(probabilities, "p")
        probabilities = probabilities if dtype is f32 else b.cast(probabilities, to=dtype)
        b.output(b.einsum(probabilities, b.input("v", dtype[v]), equation=context), "y")

    STAYS[name] = build, reason


q4, k4, v4 = (B, H, S, D), (B, H, T, D), (B, H, T, 6)
stays("two sums", "not sums over one axis", "bhqd,bhkd->bqk", "bqk,bke->bqe", q4, k4, (B, T, 6))
stays("an outer product", "not sums over one axis", "bhq,bhk->bhqk", "bhqk,bhke->bhqe", (B, H, S), (B, H, T), v4)
stays(
    "the softmax is over the queries",
    "not one axis of queries",
    "bhqd,bhkd->bhqk",
    "bhqk,bhke->bhqe",
    q4,
    k4,
    v4,
    axis=2,
)
stays("weights summed over queries", "", "bhqd,bhkd->bhqk", "bhqk,bhqe->bhke", q4, k4, (B, H, S, 6))
stays("heads summed at the end", "sums over an axis", "bhqd,bhkd->bhqk", "bhqk,bhke->bqe", q4, k4, v4)
stays("no axis of values", "not a product of weights", "bhqd,bhkd->bhqk", "bhqk,bhk->bhq", q4, k4, (B, H, T))
stays("a diagonal", "takes a diagonal", "bhqd,bhkd->bhqk", "bhqk,bhkk->bhq", q4, k4, (B, H, T, T))
stays("an ellipsis", "has an ellipsis", "...qd,...kd->...qk", "...qk,...ke->...qe", q4, k4, v4)
stays("a mask in another order", "and a mask", "bqhd,bkhd->bqhk", "bqhk,bkhe->bqhe",
      (B, S, H, D), (B, T, H, D), (B, T, H, 6), mask=(B, S, 1, T))  # fmt: skip
stays("weights that are read", "not between two Einsums", "bhqd,bhkd->bhqk", "bhqk,bhke->bhqe", q4, k4, v4, output=1)
stays("integers", "not of one floating-point type", "bhqd,bhkd->bhqk", "bhqk,bhke->bhqe", q4, k4, v4, dtype=i32)
stays("sizes that may be broadcast", "'d' is not shown to be equally long", "bhqd,bhkd->bhqk", "bhqk,bhke->bhqe",
      (B, H, S, "d"), (B, H, T, "c"), v4)  # fmt: skip


stays(
    "batches that may be broadcast", "'b' is not shown to be equally long", "bhqd,bhkd->bhqk", "bhqk,bhke->bhqe",
    ("n", H, S, D), ("m", H, T, D), ("m", H, T, 6),
)  # fmt: skip


@pytest.mark.parametrize("name", STAYS)
@pytest.mark.refusal
def test_stays(name: str) -> None:
    build, reason = STAYS[name]
    try:
        model = model_of(build, opset=23)
    except Exception as error:
        pytest.fail(str(error))
    before = names(model)
    fuse(model)
    assert names(model) == before
    assert reason in render(model, EinsumToProducts)


@pytest.mark.refusal
def test_a_sum_that_numpy_broadcasts_is_no_product() -> None:
    """One key and value for all: numpy's einsum takes them, a product of matrices does not."""

    def build(b: Any) -> None:
        scores = b.einsum(b.input("q", f32[B, H, S, D]), b.input("k", f32[B, H, T, 1]), equation="bhqd,bhkd->bhqk")
        b.output(b.einsum(b.softmax(scores), b.input("v", f32[B, H, T, 6]), equation="bhqk,bhke->bhqe"), "y")

    try:
        model = model_of(build, opset=23)
    except Exception:
        return  # refused by inference: nothing to be fused wrongly
    fuse(model)
    assert "attention" not in names(model)
    assert np.isfinite(run(model, feeds_for(model))["y"]).all()
