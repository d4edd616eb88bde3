"""Queries that a mask allows no key: what the original gives there is kept, by the IR and however it is written."""

from __future__ import annotations

import numpy as np
import onnx.reference
import pytest
from attention_forms import FORMS, LOWEST, B, D, H, S, T, feeds_for, four, model_of, transposed
from test_fuse_attention import fuse, run, run_in_runtime, same

from tilewright import PassManager, bool_, f32, i64
from tilewright.graph.diagnostics import DiagnosticLog
from tilewright.importers.onnx import to_proto
from tilewright.passes.context import PassContext

INF = float("-inf")


def added(b):
    q, k, v = four(b)
    b.output(b.softmax(b.add(b.mul(q @ transposed(b, k), 0.25), b.input("mask", f32[B, 1, S, T]))) @ v, "y")


def padded(b):
    q, k, v = four(b)
    b.output(b.softmax(b.add(b.mul(q @ transposed(b, k), 0.25), b.input("mask", f32[B, 1, 1, T]))) @ v, "y")


def dynamic(b):
    q, k, v = four(b, dynamic=True)
    b.output(b.softmax(b.add(b.mul(q @ transposed(b, k), 0.25), b.input("mask", f32["n", 1, 1, "t"]))) @ v, "y")


def guarded(b):
    q, k, v = four(b)
    p = b.softmax(b.add(b.mul(q @ transposed(b, k), 0.25), b.input("mask", f32[B, 1, S, T])))
    b.output(b.where(b.isnan(p), 0.0, p) @ v, "y")


def chosen(fill):
    def build(b):
        q, k, v = four(b)
        b.output(b.softmax(b.where(b.input("keep", bool_[B, 1, S, T]), q @ transposed(b, k), fill)) @ v, "y")

    return build


def guarded_choice(b):
    """torch's scaled_dot_product_attention with a boolean mask."""
    q, k, v = four(b)
    bias = b.where(b.input("keep", bool_[B, 1, S, T]), 0.0, INF)
    p = b.softmax(b.add(q @ transposed(b, k), bias))
    b.output(b.where(b.isnan(p), 0.0, p) @ v, "y")


def bert_padding(b):
    q, k, v = four(b)
    keep = b.cast(b.unsqueeze(b.input("keep", i64[B, T]), [1, 2]), to=f32)
    b.output(b.softmax(b.add(b.div(q @ transposed(b, k), 4.0), b.mul(b.sub(1.0, keep), LOWEST))) @ v, "y")


BUILDS = {
    "added": added, "padded": padded, "dynamic": dynamic, "guarded": guarded, "chosen-inf": chosen(INF),
    "chosen-lowest": chosen(LOWEST), "chosen-1e4": chosen(-1e4), "guarded-choice": guarded_choice,
    "bert-padding": bert_padding,
}  # fmt: skip


def mask_rows(shape, low, mixed=None):
    """The first row hides all keys, in the second only the last key is seen, the others hide some."""
    mask = np.zeros(shape, np.float32)
    rows = mask.reshape(-1, shape[-1])
    rows[:, 1::3] = low
    rows[0] = low
    if mixed is not None:
        rows[0, ::2] = mixed
    if len(rows) > 2:
        rows[1, :-1] = low
    return mask


MASKS = {
    "inf": (INF, None), "lowest": (LOWEST, None), "lowest-and-inf": (LOWEST, INF),
    "half-and-lowest": (LOWEST, LOWEST / 2), "large": (-1e9, None), "small": (-1e4, None), "small-and-inf": (INF, -1e4),
}  # fmt: skip


def check_everywhere(build, feeds):
    """The fused model, by the reference and as written: at an old opset, and as the standard's operator."""
    original = run(model_of(build), feeds)
    model = model_of(build)
    assert fuse(model) == []
    assert [op.name for op in model.walk() if op.name in ("softmax", "attention")] == ["attention"]
    same(run(model, feeds), original)
    same(run_in_runtime(to_proto(model, opset=20), feeds), original)
    for opset in (23, 24):
        proto = to_proto(model, opset=opset, keep_fused=True)
        same(run_in_runtime(proto, feeds), original)
        same(run_in_runtime(to_proto(model, opset=opset), feeds), original)
        names = [output.name for output in proto.graph.output]
        same(dict(zip(names, onnx.reference.ReferenceEvaluator(proto).run(None, feeds), strict=True)), original)
    return proto, original


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", ["added", "padded", "dynamic", "guarded"])
def test_rows_of_an_added_mask(name, mask):
    model = model_of(BUILDS[name])
    feeds = feeds_for(model, n=B, s=S, t=T)
    feeds["mask"] = mask_rows(feeds["mask"].shape, *MASKS[mask])
    proto, original = check_everywhere(BUILDS[name], feeds)
    assert [node.op_type for node in proto.graph.node].count("Attention") == 1
    assert np.isnan(original["y"]).any() == (mask == "inf" and name != "guarded")


@pytest.mark.parametrize("name", ["chosen-inf", "chosen-lowest", "chosen-1e4", "guarded-choice"])
def test_rows_of_a_boolean_mask(name):
    model = model_of(BUILDS[name])
    feeds = feeds_for(model)
    feeds["keep"] = mask_rows((B, 1, S, T), 1.0) == 0
    proto, original = check_everywhere(BUILDS[name], feeds)
    fused = [node.op_type for node in proto.graph.node].count("Attention")
    # -10000 in the place of a score, and of all scores, is nothing that a mask of the standard can say.
    assert fused == (0 if name == "chosen-1e4" else 1)
    assert np.isnan(original["y"]).any() == (name == "chosen-inf")


@pytest.mark.parametrize("side", ["left", "right", "all"])
def test_padded_batches(side):
    model = model_of(bert_padding)
    feeds = feeds_for(model)
    keep = np.ones((B, T), np.int64)
    keep[0, slice(0, 3) if side == "left" else slice(-3, None) if side == "right" else slice(None)] = 0
    feeds["keep"] = keep
    check_everywhere(bert_padding, feeds)


@pytest.mark.parametrize("queries", [1, 3, 5, 7])
@pytest.mark.parametrize("name", ["causal_trilu"])
def test_causal_with_other_numbers_of_queries_and_keys(name, queries):
    build = FORMS[name].build
    feeds = feeds_for(model_of(build), s=queries, t=5)
    proto, _ = check_everywhere(build, feeds)
    attention = next(node for node in proto.graph.node if node.op_type == "Attention")
    assert [a.i for a in attention.attribute if a.name == "is_causal"] == [1]
    assert len(attention.input) == 3


@pytest.mark.parametrize("past", [0, 2, 4])
def test_causal_with_past(past):
    """The mask of queries that come after `past` keys: not the operator's own, which begins at the first key."""

    def build(b):
        q, k, v = b.input("q", f32[B, H, 3, D]), b.input("k", f32[B, H, 3, D]), b.input("v", f32[B, H, 3, D])
        k = b.concat(b.input("past_k", f32[B, H, past, D]), k, axis=2)
        v = b.concat(b.input("past_v", f32[B, H, past, D]), v, axis=2)
        bias = np.where(np.tri(3, 3 + past, past, dtype=bool), 0, INF).astype(np.float32)
        b.output(b.softmax(b.add(b.mul(q @ transposed(b, k), 0.25), bias)) @ v, "y")

    proto, _ = check_everywhere(build, feeds_for(model_of(build)))
    attention = next(node for node in proto.graph.node if node.op_type == "Attention")
    assert [a.i for a in attention.attribute if a.name == "is_causal"] == ([1] if past == 0 else [])


def test_a_guard_against_nan_is_kept_unless_the_operator_is_asked_for():
    model = model_of(guarded)
    fuse(model)
    feeds = feeds_for(model)
    feeds["q"][0, 0, 0, 0] = np.nan
    original = run(model_of(guarded), feeds)
    assert not np.isnan(original["y"]).any()
    log = DiagnosticLog()
    written = to_proto(model, opset=23, log=log)
    assert "Attention" not in [node.op_type for node in written.graph.node]
    (remark,) = log.diagnostics
    assert "which the standard's operator leaves NaN; --keep-fused takes that" in remark.message
    same(run_in_runtime(written, feeds), original)
    log = DiagnosticLog()
    kept = to_proto(model, opset=23, keep_fused=True, log=log)
    assert "Attention" in [node.op_type for node in kept.graph.node]
    assert [d.code for d in log.diagnostics] == ["export/nan"]


def test_a_mask_that_may_hide_all_keys_is_remarked():
    for build, count in ((added, 1), (FORMS["plain"].build, 0), (FORMS["causal_constant"].build, 0)):
        context = PassContext()
        PassManager.parse("fuse-attention").run(model_of(build), context)
        assert [d.code for d in context.log.diagnostics] == ["fuse-attention/masked-rows"] * count


def test_a_constant_mask_with_an_empty_row_is_not_the_standard():
    def build(b):
        q, k, v = four(b)
        bias = np.where(np.tri(S, T, -1, dtype=bool), 0, INF).astype(np.float32)
        b.output(b.softmax(b.add(q @ transposed(b, k), bias)) @ v, "y")

    model = model_of(build)
    fuse(model)
    attention = next(op for op in model.walk() if op.name == "attention")
    assert attention.attributes["masking"] == "plain"
    _, original = check_everywhere(build, feeds_for(model))
    assert np.isnan(original["y"][:, :, 0]).all()
    assert not np.isnan(original["y"][:, :, 1:]).any()


def test_a_mask_that_hides_nothing_is_none():
    """transformers gives encoders a mask that is true everywhere, expanded to the batch of a run."""

    def build(b):
        q, k, v = four(b, dynamic=True)
        size = b.concat(b.shape(q, end=1), [1], b.shape(q, start=2, end=3), b.shape(k, start=2, end=3), axis=0)
        bias = b.where(b.expand(np.ones((1, 1, 1, 1), bool), size), 0.0, LOWEST)
        b.output(b.softmax(b.add(q @ transposed(b, k), bias)) @ v, "y")

    model = model_of(build)
    assert not fuse(model, "O2")
    (attention,) = (op for op in model.walk() if op.name == "attention")
    assert [operand is not None for operand in attention.operands] == [True] * 3
    feeds = feeds_for(model)
    same(run(model, feeds), run(model_of(build), feeds))
