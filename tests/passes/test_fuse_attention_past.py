"""Caches of keys and values: they become the past of an attention, as ONNX Runtime runs it, or stay concatenations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from attention_forms import FORMS, B, D, E, H, cached, feeds_for, four, model_of, transposed
from onnx import helper
from test_fuse_attention import fuse, run, run_in_runtime, same

import tilewright
from tilewright import Builder, f32
from tilewright.importers.onnx import to_proto
from tilewright.passes.explain import render
from tilewright.passes.fuse_attention_past import AttentionPast

PASTS = [name for name, form in FORMS.items() if form.past]


@pytest.mark.parametrize("length", [0, 1, 4])
@pytest.mark.parametrize("name", PASTS)
def test_written_as_attention(name: str, length: int) -> None:
    model = model_of(FORMS[name].build)
    feeds = feeds_for(model, p=length)
    before = run(model, feeds)
    fuse(model, "fuse-attention,fold,cse,dce")
    written = to_proto(model, opset=23, keep_fused=True)
    onnx.checker.check_model(written, full_check=True)
    [attention] = [node for node in written.graph.node if node.op_type == "Attention"]
    assert len(attention.output) == 3
    assert attention.input[4]
    same(run_in_runtime(written, feeds), before)


def test_written_as_parts_it_is_what_it_was() -> None:
    model = model_of(FORMS["grouped_past"].build)
    before = len(to_proto(model, opset=18).graph.node)
    fuse(model, "fuse-attention,fold,cse,dce")
    written = to_proto(model, opset=18)
    assert [node.op_type for node in written.graph.node].count("Concat") == 2
    assert len(written.graph.node) <= before


@pytest.mark.parametrize("given_back", ["present", "past and present"])
@pytest.mark.parametrize("what", ["scaled", "repeated", "both"])
def test_keys_that_are_given_back_are_what_they_were(what: str, given_back: str) -> None:
    """What is done to the keys of an operator's own cache is seen in its results, and was done to the past already."""
    b = Builder(opset=23)
    q, v = b.input("q", f32[B, H, 3, D]), b.input("v", f32[B, H, 3, D])
    k = b.input("k", f32[B, H if what == "scaled" else 2, 3, D])
    k = b.mul(k, 0.5) if what != "repeated" else k
    if what != "scaled":
        k = b.reshape(b.expand(b.unsqueeze(k, [2]), [1, 1, 2, 1, 1]), [0, H, 3, D])
    past = [b.input(f"past_{name}", f32[B, H, "p", D]) for name in "kv"] if given_back != "present" else []
    y, present_k, present_v = b.attention(q, k, v, None, *past, outputs=3)
    for name, value in (("y", y), ("present_k", present_k), ("present_v", present_v)):
        b.output(value, name)
    model = b.build()
    feeds = feeds_for(model, p=2)
    before = run(model, feeds)
    fuse(model, "fuse-attention,fold,cse,dce")
    same(run(model, feeds), before)
    same(run_in_runtime(to_proto(model, opset=23), feeds), before)


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
def test_a_present_that_nobody_needs_is_given(domain: str) -> None:
    """ONNX Runtime refuses a past without a present, or its kernel gives something else."""
    shapes = {"q": [2, 3, E], "k": [2, 3, E], "v": [2, 3, E], "pk": [2, H, 2, D], "pv": [2, H, 2, D]}
    own = {"q_num_heads": H, "kv_num_heads": H} if not domain else {"num_heads": H}
    name, absent = ("Attention", [""]) if not domain else ("MultiHeadAttention", [""] * 3)
    node = helper.make_node(name, ["q", "k", "v", *absent, "pk", "pv"], ["y", "keys", "values"], domain=domain, **own)
    inputs = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    result = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 3, E])
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "g", inputs, [result]), opset_imports=opsets, ir_version=10)
    for target in ("onnx", "onnxruntime"):
        written = to_proto(tilewright.optimize(model, target=target).module, target=target)
        report = tilewright.parity(model, written)
        assert report.passed, report


# ---- what stays ------------------------------------------------------------------------------------------------------

STAYS: dict[str, tuple[Callable[[Any], None], str]] = {}


def stays(reason: str) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    def register(build: Callable[[Any], None]) -> Callable[[Any], None]:
        STAYS[build.__name__] = build, reason
        return build

    return register


def attend(b: Any, q: Any, k: Any, v: Any) -> None:
    b.output(b.softmax(b.mul(q @ transposed(b, k), 0.25)) @ v, "y")


def one_token(b: Any) -> tuple[Any, Any, Any]:
    return tuple(b.input(name, f32[B, H, 1, D]) for name in "qkv")


@stays("both come from a concatenation")
def only_the_keys_have_a_past(b: Any) -> None:
    q, k, _ = four(b)
    v = b.input("values", f32[B, H, 9, D])
    k = b.concat(b.input("past", f32[B, H, 2, D]), k, axis=2)
    b.output(k, "present")
    attend(b, q, k, v)


@stays("concatenation of two")
def three_parts(b: Any) -> None:
    q, k, v = one_token(b)
    k, v = (
        b.concat(*(b.input(f"{name}{i}", f32[B, H, 2, D]) for i in "ab"), x, axis=2)
        for name, x in (("k_", k), ("v_", v))
    )
    b.output(k, "present_k")
    b.output(v, "present_v")
    attend(b, q, k, v)


@stays("concatenation of two")
def another_axis(b: Any) -> None:
    """More heads, not more keys."""
    q = b.input("q", f32[B, H, 1, D])
    halves = [[b.input(f"{name}{i}", f32[B, H // 2, 3, D]) for i in "ab"] for name in "kv"]
    k, v = (b.concat(*half, axis=1) for half in halves)
    b.output(k, "present_k")
    b.output(v, "present_v")
    attend(b, q, k, v)


@stays("needs all keys or values before")
def the_length_of_all_keys_is_read_first(b: Any) -> None:
    """A bias for all keys is made of them, so that they have to be there."""
    q, k, v = one_token(b)
    k, v = cached(b, k, "k"), cached(b, v, "v")
    bias = b.reduce_max(k, [1, 3], keepdims=0)
    scores = q @ transposed(b, k)
    b.output(b.softmax(b.add(scores, b.unsqueeze(bias, [1, 2]))) @ v, "y")


@stays("all keys and values are not given back")
def keys_are_not_given_back(b: Any) -> None:
    q, k, v = one_token(b)
    k = b.concat(b.input("past_k", f32[B, H, "p", D]), k, axis=2)
    attend(b, q, k, cached(b, v, "v"))


@stays("both come from a concatenation")
def keys_are_the_values(b: Any) -> None:
    q, k, _ = one_token(b)
    k = cached(b, k, "k")
    attend(b, q, k, k)


@stays("not shown to be equal")
def a_past_of_one_head_for_all(b: Any) -> None:
    """Not even ONNX allows it, but types of unknown dims might."""
    q, k, v = one_token(b)
    past = b.input("past_k", f32[B, "h", "p", D])
    k = b.concat(past, k, axis=2)
    b.output(k, "present_k")
    attend(b, q, k, cached(b, v, "v"))


@stays("not shown to be of one length")
def the_past_of_the_values_comes_last(b: Any) -> None:
    """All in all as many keys as values, but another number of them is old."""
    q, k, v = (b.input(name, f32[B, H, "s", D]) for name in ("q", "k", "v"))
    k = b.concat(b.input("past_k", f32[B, H, "p", D]), k, axis=2)
    v = b.concat(v, b.input("past_v", f32[B, H, "p", D]), axis=2)
    b.output(k, "present_k")
    b.output(v, "present_v")
    attend(b, q, k, v)


@pytest.mark.parametrize("name", STAYS)
@pytest.mark.refusal
def test_stays(name: str) -> None:
    build, reason = STAYS[name]
    model = model_of(build)
    feeds = feeds_for(model, h=H)
    before = run(model, feeds)
    fuse(model)
    [attention] = [op for op in model.walk() if op.name == "attention"]
    assert len(attention.operands) <= 4
    assert any(op.name == "concat" for op in model.walk())
    assert reason in render(model, AttentionPast)
    same(run(model, feeds), before)


def test_causal_attention_keeps_its_keys() -> None:
    def build(b: Any) -> None:
        q, k, v = (b.input(name, f32[B, H, 3, D]) for name in "qkv")
        b.output(b.attention(q, cached(b, k, "k"), cached(b, v, "v"), is_causal=1), "y")

    model = model_of(build)
    before = run(model, feeds_for(model))
    fuse(model)
    [attention] = [op for op in model.walk() if op.name == "attention"]
    assert len(attention.operands) == 3
    same(run(model, feeds_for(model)), before)
    assert np.isfinite(before["y"]).all()


def masked_for_another_length() -> Any:
    """One query; keys, values and mask of lengths that nothing shows to be equal."""
    b = Builder(opset=20)
    q = b.input("q", f32["n", H, 1, D])
    k, v = (b.input(name, f32["n", H, length, D]) for name, length in (("k", "keys"), ("v", "values")))
    scores = b.mul(b.matmul(q, transposed(b, k)), np.float32(0.25))
    weights = b.softmax(b.add(scores, b.input("mask", f32["n", 1, 1, "length"])), axis=-1)
    b.output(b.matmul(weights, v), "y")
    return b.build()


def feeds_of_lengths(keys: int, values: int, mask: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    shapes = {"q": (B, H, 1, D), "k": (B, H, keys, D), "v": (B, H, values, D), "mask": (B, 1, 1, mask)}
    return {name: random.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("keep_fused", [False, True])
@pytest.mark.parametrize("opset", [20, 23])
@pytest.mark.parametrize("lengths", [(5, 5, 5), (1, 5, 5), (5, 5, 1), (1, 1, 1)])
def test_a_single_key_is_repeated_as_the_mask_repeats_its_score(
    lengths: tuple[int, int, int], opset: int, keep_fused: bool
) -> None:
    feeds = feeds_of_lengths(*lengths)
    before = run(masked_for_another_length(), feeds)
    model = masked_for_another_length()
    fuse(model, "fuse-attention,fold,cse,dce")
    assert [op.name for op in model.walk()].count("attention") == 1
    same(run(model, feeds), before)
    same(run_in_runtime(to_proto(model, opset=opset, keep_fused=keep_fused), feeds), before)


@pytest.mark.refusal
@pytest.mark.parametrize("lengths", [(1, 5, 1), (5, 1, 5), (5, 5, 4), (4, 5, 5)])
def test_lengths_that_do_not_fit_stay_an_error(lengths: tuple[int, int, int]) -> None:
    model = masked_for_another_length()
    fuse(model, "fuse-attention,fold,cse,dce")
    for opset in (20, 23):
        with pytest.raises(Exception, match="ONNXRuntimeError"):
            run_in_runtime(to_proto(model, opset=opset, keep_fused=True), feeds_of_lengths(*lengths))


def test_parts_need_no_repeated_key() -> None:
    model = masked_for_another_length()
    before = Counter(node.op_type for node in to_proto(model).graph.node)
    fuse(model, "fuse-attention,fold,cse,dce")
    assert Counter(node.op_type for node in to_proto(model, opset=20).graph.node) == before
