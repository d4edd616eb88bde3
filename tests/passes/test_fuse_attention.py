"""fuse-attention: every form is found, gives the same numbers, and is written in no more nodes than it had."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from attention_forms import FORMS, D, H, T, feeds_for, model_of, transposed

import tilewright
from tilewright import PassManager, f32
from tilewright.graph.dims import symbol
from tilewright.importers.onnx import to_proto
from tilewright.passes.context import PassContext


def fuse(model, pipeline="fuse-attention,dce"):
    """Run the pass; the remarks that it made."""
    context = PassContext(debug=True)
    PassManager.parse(pipeline, verify_each=True).run(model, context)
    return [d.message for d in context.log.diagnostics if d.code == "fuse-attention/near-miss"]


def names(model):
    return [op.name for op in model.walk() if op.name not in ("const", "return")]


def run(model, feeds):
    return tilewright.compile(model, target="reference").run(feeds)


def run_in_runtime(proto, feeds):
    """ONNX Runtime, its own optimizations off."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    outputs = [output.name for output in session.get_outputs()]
    return dict(zip(outputs, session.run(outputs, feeds), strict=True))


def same(got, wanted, tolerance=2e-6):
    assert got.keys() == wanted.keys()
    for name, expected in wanted.items():
        assert got[name].shape == expected.shape
        assert got[name].dtype == expected.dtype
        np.testing.assert_allclose(got[name], expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", FORMS)
def test_form_is_fused_and_gives_the_same(name):
    form = FORMS[name]
    model = model_of(form.build)
    feeds = feeds_for(model)
    before = run(model, feeds)
    types = [(str(value.type), value.name) for value in model.main.inputs]
    assert fuse(model) == []
    found = [op for op in model.walk() if op.name == "attention"]
    assert len(found) == 1
    assert not set(names(model)) & set(form.removed)
    attention = found[0]
    assert ("q_num_heads" in attention.attributes) is form.packed
    assert attention.attributes.get("masking") == form.masking
    assert (attention.input("past_key") is not None) is form.past
    assert len(attention.results) == (3 if "present_k" in before else 1)
    if form.kv_heads is not None:
        assert attention.operands[1].type.shape[1] == form.kv_heads
    same(run(model, feeds), before)
    assert [(str(value.type), value.name) for value in model.main.inputs] == types


@pytest.mark.parametrize("name", FORMS)
def test_form_written_for_an_old_opset_has_no_more_nodes(name):
    form = FORMS[name]
    before = to_proto(model_of(form.build), opset=20)
    model = model_of(form.build)
    fuse(model, "fuse-attention,fold,cse,dce")
    after = to_proto(model, opset=20)
    assert "Attention" not in [node.op_type for node in after.graph.node]
    assert len(after.graph.node) <= len(before.graph.node)
    feeds = feeds_for(model)
    same(run_in_runtime(after, feeds), run(model_of(form.build), feeds))


@pytest.mark.parametrize("images", [1, 2, 3])
def test_windows_of_an_unknown_number_of_images(images):
    """The mask is repeated for each image where Attention is written as such."""

    def build(b):
        q, k, v = (b.input(name, f32["n", H, T, D]) for name in ("q", "k", "v"))
        scores = b.reshape(b.mul(q @ transposed(b, k), 0.25), [-1, 4, H, T, T])
        scores = b.add(scores, np.where(np.arange(4 * T * T).reshape(1, 4, 1, T, T) % 5 == 0, -100, 0).astype("f4"))
        b.output(b.softmax(b.reshape(scores, [-1, H, T, T])) @ v, "y")

    model = model_of(build, opset=23)
    feeds = feeds_for(model, n=4 * images)
    before = run(model, feeds)
    assert fuse(model) == []
    [attention] = [op for op in model.walk() if op.name == "attention"]
    # No score is hidden, so that the standard says the same.
    assert "masking" not in attention.attributes
    same(run(model, feeds), before)
    same(run_in_runtime(to_proto(model, opset=23, keep_fused=True), feeds), before, tolerance=1e-5)


def keys_of_another_batch(masked, reshaped, least=1):
    """BART, T5: keys and values are the encoder's, whose batch has a name of its own; a reshape says the result's."""

    def build(b):
        x, z = b.input("x", f32["n", symbol("s", minimum=least), H * D]), b.input("z", f32["m", "t", H * D])
        q, k, v = (b.transpose(b.reshape(y, [0, 0, H, D]), perm=[0, 2, 1, 3]) for y in (x, z, z))
        scores = b.mul(q @ transposed(b, k), 0.25)
        if masked:
            scores = b.add(scores, b.input("mask", f32["m", 1, 1, "t"]))
        y = b.transpose(b.softmax(scores) @ v, perm=[0, 2, 1, 3])
        if reshaped:
            y = b.reshape(y, b.concat(b.shape(x, start=0, end=2), [H * D], axis=0), allowzero=1)
        b.output(y, "y")

    return build


@pytest.mark.parametrize("batches", [(3, 3), (3, 1), (1, 1)])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("opset", [20, 23])
def test_keys_for_one_or_for_all_of_the_batch(opset, masked, batches):
    build = keys_of_another_batch(masked, True)
    model = model_of(build, opset)
    feeds = feeds_for(model, n=batches[0], m=batches[1])
    before = run(model, feeds)
    assert fuse(model, "fuse-attention,fold,cse,dce") == []
    [attention] = [op for op in model.walk() if op.name == "attention"]
    assert attention.attributes["q_num_heads"] == H
    assert "expand" in names(model)
    same(run(model, feeds), before)
    same(run_in_runtime(to_proto(model, opset=23, keep_fused=True), feeds), before, tolerance=1e-5)
    # The parts broadcast keys and values themselves.
    parts = to_proto(model, opset=20)
    assert "Expand" not in [node.op_type for node in parts.graph.node]
    assert len(parts.graph.node) <= len(to_proto(model_of(build), opset=20).graph.node)
    same(run_in_runtime(parts, feeds), before, tolerance=1e-5)


@pytest.mark.parametrize(("reshaped", "least", "length"), [(False, 1, 5), (True, 0, 0)])
@pytest.mark.refusal
def test_keys_of_another_batch_are_left(reshaped, least, length):
    """Nothing says that the result has the batch of the queries: no reshape, or one of no elements."""
    model = model_of(keys_of_another_batch(False, reshaped, least))
    feeds = feeds_for(model, n=1, m=3, s=length)
    before = run(model, feeds)
    [reason] = fuse(model)
    assert "dim 0 of the query" in reason
    same(run(model, feeds), before)
