"""Keys that a model hides by putting numbers in the place of their scores may hold anything, NaN and infinity too."""

from __future__ import annotations

import numpy as np
import pytest
from attention_forms import (
    LOWEST,
    B,
    D,
    E,
    H,
    S,
    T,
    feeds_for,
    four,
    heads_of,
    joined,
    model_of,
    transposed,
    weights,
)
from test_fuse_attention import fuse, names, run, run_in_runtime, same

import tilewright
from tilewright import bool_, f16, f32
from tilewright.graph.diagnostics import DiagnosticLog, TilewrightError
from tilewright.graph.parser import parse
from tilewright.graph.printer import print_module

INF = float("-inf")
CAUSAL = np.tri(S, T, T - S, dtype=bool)[None, None]
# These keys hold NaN, infinity and numbers whose scores overflow; every condition hides them from all queries.
STRANGE = {2: np.nan, 3: np.inf, 4: 3e38}


def keep(b, name="keep", shape=(B, 1, 1, T)):
    return b.input(name, bool_[shape])


def one(b, s):
    return b.where(keep(b), s, INF)


def one_inverted(b, s):
    return b.where(keep(b, "hide"), LOWEST, s)


def one_that_leaves_something(b, s):
    return b.where(keep(b), s, -1e4)


def two(b, s):
    return b.where(keep(b, "keep2", (B, 1, S, T)), b.where(keep(b), s, INF), INF)


def two_inverted(b, s):
    return b.where(keep(b, "hide2", (H, 1, T)), LOWEST, b.where(keep(b, "hide"), LOWEST, s))


def two_of_which_one_is_inverted(b, s):
    return b.where(CAUSAL, b.where(keep(b, "hide"), LOWEST, s), LOWEST)


def two_of_which_one_is_inverted_first(b, s):
    return b.where(b.not_(keep(b, "keep2", (B, 1, S, T))), INF, b.where(keep(b), s, INF))


def two_that_take_an_operation_to_be_one(b, s):
    return b.where(keep(b, "hide2", (B, 1, S, T)), INF, b.where(keep(b), s, INF))


def the_other_is_inverted(b, s):
    return b.where(~CAUSAL, INF, b.where(keep(b), s, INF))


def two_numbers(b, s):
    return b.where(CAUSAL, b.where(keep(b), s, LOWEST), INF)


def then_added(b, s):
    return b.add(b.where(keep(b), s, LOWEST), b.input("mask", f32[B, 1, 1, T]))


def then_constants_are_added(b, s):
    slopes = np.linspace(0, -1, T, dtype=np.float32)
    return b.add(b.add(b.where(keep(b), s, INF), slopes), b.input("mask", f32[B, 1, S, T]))


def added_before(b, s):
    return b.where(keep(b), b.add(b.input("mask", f32[H, 1, T]), s), INF)


def added_between(b, s):
    return b.where(keep(b), b.add(b.where(CAUSAL, s, -1e9), b.input("mask", f32[B, 1, 1, T])), LOWEST)


FORMS = [
    one, one_inverted, one_that_leaves_something, two, two_inverted, two_of_which_one_is_inverted,
    two_of_which_one_is_inverted_first, two_that_take_an_operation_to_be_one, the_other_is_inverted, two_numbers,
    then_added, then_constants_are_added, added_before, added_between,
]  # fmt: skip
# How many masks there are in the end; the others are one.
APART = {
    two_that_take_an_operation_to_be_one: 2, two_numbers: 2, then_added: 2, then_constants_are_added: 2,
    added_before: 2, added_between: 3,
}  # fmt: skip


def build_of(form, guarded=False):
    def build(b):
        q, k, v = four(b)
        p = b.softmax(form(b, b.mul(q @ transposed(b, k), 0.25)))
        b.output((b.where(b.isnan(p), 0.0, p) if guarded else p) @ v, "y")

    return build


def strange_feeds(model):
    feeds = feeds_for(model)
    for index, number in STRANGE.items():
        feeds["k"][:, :, index] = number
        for name in feeds:
            if name.startswith(("keep", "hide")):
                feeds[name][..., index] = name.startswith("hide")
                feeds[name][..., 0] = not name.startswith("hide")
    return feeds


parametrized = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)


@parametrized
def test_form_is_fused_and_hidden_keys_stay_hidden(form):
    model = model_of(build_of(form))
    feeds = strange_feeds(model)
    before = run(model, feeds)
    assert np.isfinite(before["y"]).all()
    assert fuse(model, "fuse-attention,fold,cse,dce") == []
    [attention] = [op for op in model.walk() if op.name == "attention"]
    assert "softmax" not in names(model)
    assert len([each for each in attention.operands[3:] if each is not None]) == APART.get(form, 1)
    same(run(model, feeds), before)
    text = print_module(model)
    assert print_module(parse(text)) == text


@parametrized
def test_written_as_parts_the_scores_are_replaced_in_no_more_nodes(form):
    original = model_of(build_of(form))
    feeds = strange_feeds(original)
    before = run(original, feeds)
    nodes = len(tilewright.to_proto(original, opset=20).graph.node)
    model = tilewright.optimize(model_of(build_of(form), opset=20), original_bytes=100_000).module
    assert "attention" in names(model)
    parts = tilewright.to_proto(model)
    assert len(parts.graph.node) <= nodes
    same(run_in_runtime(parts, feeds), before)


@parametrized
@pytest.mark.parametrize("opset", [17, 23])
def test_functions_replace_the_scores(form, opset):
    original = model_of(build_of(form), opset)
    feeds = strange_feeds(original)
    before = run(original, feeds)
    model = tilewright.optimize(model_of(build_of(form), opset), functions=True, original_bytes=100_000).module
    log = DiagnosticLog()
    proto = tilewright.to_proto(model, functions=True, log=log)
    assert not log.has("export/hidden-keys")
    assert [node.op_type for node in proto.graph.node if node.domain == "tilewright"] == ["Attention"]
    same(run_in_runtime(proto, feeds), before)


@parametrized
def test_the_cpu_target_replaces_the_scores(form):
    original = model_of(build_of(form))
    feeds = strange_feeds(original)
    before = run(original, feeds)
    same(tilewright.compile(model_of(build_of(form)), target="cpu").run(feeds), before, tolerance=1e-5)


@pytest.mark.refusal
def test_functions_do_not_add_to_replaced_scores_inside_a_projection():
    """com.microsoft's Attention, which does the projections too, adds its mask."""

    def build(b):
        x = b.input("x", f32[B, S, E])
        q, k, v = (heads_of(b, x, weights(E, E)) for _ in range(3))
        p = b.softmax(b.where(keep(b, shape=(B, 1, 1, S)), b.mul(q @ transposed(b, k), 0.25), INF))
        b.output(joined(b, p @ v), "y")

    model = tilewright.optimize(model_of(build), functions=True).module
    assert [op.op_type for op in model.walk() if "attention" in op.op_type.lower()] == ["Attention"]
    assert "attention" in names(model)
    assert "Where" in [
        node.op_type for each in tilewright.to_proto(model, functions=True).functions for node in each.node
    ]


def two_layers(chosen):
    def build(b):
        x = b.input("x", f32[B, S, E])
        mask = keep(b, shape=(B, 1, 1, S)) if chosen else b.input("mask", f32[B, 1, 1, S])
        for _ in range(2):
            q, k, v = (heads_of(b, x, weights(E, E)) for _ in range(3))
            scores = b.mul(q @ transposed(b, k), 0.25)
            scores = b.where(mask, scores, INF) if chosen else b.add(scores, mask)
            x = joined(b, b.softmax(scores) @ v)
        b.output(x, "y")

    return build


@pytest.mark.parametrize("chosen", [True, False])
@pytest.mark.parametrize("keep_fused", [False, True])
def test_the_operator_of_the_standard_adds_which_is_remarked_once(chosen, keep_fused):
    original = model_of(two_layers(chosen), 23)
    feeds = feeds_for(original)
    model = tilewright.optimize(model_of(two_layers(chosen), 23)).module
    log = DiagnosticLog()
    proto = tilewright.to_proto(model, keep_fused=keep_fused, log=log)
    assert [node.op_type for node in proto.graph.node].count("Attention") == 2
    remarks = [each for each in log.diagnostics if each.code == "export/hidden-keys"]
    assert len(remarks) == chosen
    assert all(each.location is not None for each in remarks)
    same(run_in_runtime(proto, feeds), run(original, feeds), tolerance=1e-5)


@pytest.mark.parametrize("chosen", [True, False])
def test_operators_of_onnx_runtime_add_which_is_remarked_once(chosen):
    report = tilewright.optimize(model_of(two_layers(chosen)), target="onnxruntime")
    assert [op.domain for op in report.module.walk() if op.op_type == "Attention"] == ["com.microsoft"] * 2
    codes = [each.code for each in report.remarks]
    assert codes.count("fuse-for-onnxruntime/hidden-keys") == chosen


def test_a_mask_of_halves_is_not_absorbed_by_their_lowest_number():
    """65504 less 16 is 65504 in f16, but 65504 less 32 is not: the scores of a row that is all hidden count."""

    def build(b):
        q, k, v = b.input("q", f16[B, H, S, D]), b.input("k", f16[B, H, T, D]), b.input("v", f16[B, H, T, D])
        scores = b.where(keep(b), b.add(q @ transposed(b, k), b.input("bias", f16[B, 1, S, T])), -65504.0)
        b.output(b.softmax(scores) @ v, "y")

    original = model_of(build, 23)
    feeds = feeds_for(original)
    feeds["bias"] = (feeds["bias"] * 100).astype(np.float16)
    feeds["keep"][0] = False
    before = run_in_runtime(tilewright.to_proto(original), feeds)
    model = tilewright.optimize(model_of(build, 23), original_bytes=100_000).module
    [attention] = [op for op in model.walk() if op.name == "attention"]
    assert len(attention.operands) == 8
    for keep_fused in (False, True):
        proto = tilewright.to_proto(model, keep_fused=keep_fused)
        assert "Attention" not in [node.op_type for node in proto.graph.node]
        same(run_in_runtime(proto, feeds), before, tolerance=4e-3)


def test_several_masks_need_a_rule_for_rows_without_keys():
    def build(b):
        q, k, v = four(b)
        masks = [b.input("mask", f32[S, T]), None, None, None, keep(b)]
        b.output(b.attention(q, k, v, *masks, further_scores=[-1.0]), "y")

    with pytest.raises(TilewrightError, match="several masks"):
        model_of(build)
