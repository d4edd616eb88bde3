"""Derivatives of normalizations, losses, recurrent networks and attention."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from gradient_checks import compare, model, normal

import tilewright

X = normal(2, 3, 4)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax(axis: int) -> None:
    compare(lambda b, x: [b.softmax(x, axis=axis), b.log_softmax(x, axis=axis)], {"x": X})


@pytest.mark.parametrize("shape", [(4, 3), (3, 3, 4), (2, 3, 2, 2)])
def test_batch_normalization(shape: tuple[int, ...]) -> None:
    feeds = {
        "x": normal(*shape), "s": normal(3), "b": normal(3, seed=1), "m": normal(3, seed=2), "v": normal(3, low=0.5),
    }  # fmt: skip
    compare(lambda bld, **inputs: bld.batch_normalization(*inputs.values()), feeds, open_dims=(False,))
    training = {"training_mode": 1, "outputs": 3, "momentum": 0.7}
    wrt = ["x", "s", "b"]
    compare(lambda bld, **i: bld.batch_normalization(*i.values(), **training)[0], feeds, wrt=wrt, open_dims=(False,))
    # The running statistics are results that may have adjoints, too.
    compare(lambda bld, **i: bld.batch_normalization(*i.values(), **training), feeds, open_dims=(False,))


def test_other_normalizations() -> None:
    feeds = {"x": normal(2, 4, 3, 2), "s": normal(4), "b": normal(4, seed=1)}
    compare(lambda bld, x, s, b: bld.instance_normalization(x, s, b), feeds, open_dims=(False,))
    compare(lambda bld, x, s, b: bld.group_normalization(x, s, b, num_groups=2), feeds, open_dims=(False,))
    feeds = {"x": normal(2, 3, 4)}
    compare(lambda b, x: [b.lp_normalization(x, p=1, axis=1), b.lp_normalization(x, p=2)], feeds)
    compare(lambda b, x: b.mean_variance_normalization(x, axes=[0, 2]), feeds)
    for size in (1, 2, 3):
        compare(lambda b, x, size=size: b.lrn(x, size=size, alpha=0.3, beta=0.6, bias=1.5), {"x": normal(2, 4, 3)})


@pytest.mark.parametrize("axis", [-1, 1, 0])
def test_layer_normalization(axis: int) -> None:
    shape = X.shape[axis:]
    feeds = {"x": X, "s": normal(*shape), "b": normal(*shape, seed=1)}
    wide = {"stash_type": 11, "axis": axis}
    compare(lambda bld, x, s, b: bld.layer_normalization(x, s, b, **wide), feeds, open_dims=(False,))
    compare(lambda bld, x, s, b: bld.layer_normalization(x, s, b, outputs=3, **wide), feeds, open_dims=(False,))
    del feeds["b"]
    compare(lambda bld, x, s: bld.layer_normalization(x, s, **wide), feeds, open_dims=(False,))
    compare(lambda bld, x, s: bld.rms_normalization(x, s, **wide), feeds, open_dims=(False,))


def test_dropout_passes_what_it_kept() -> None:
    compare(lambda b, x: b.dropout(x), {"x": X})
    x = np.ones((50, 40))
    module = model(lambda b, x: b.dropout(x, np.array(0.25), np.array(True), seed=3), {"x": x})
    graph = tilewright.vjp(module, ["y0"], ["x"])
    found = tilewright.compile(graph, target="reference").run({"x": x, "y0_cotangent": 2 * x})
    np.testing.assert_allclose(found["x_grad"], 2 * found["y0"])
    assert 0.2 < np.mean(found["y0"] == 0) < 0.3


# ---- losses ----------------------------------------------------------------------------------------------------------


def _loss(b: Any, x: Any, name: str, operands: list[Any], attributes: dict[str, Any]) -> Any:
    return b.create(name, x, *operands, **attributes)


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 4), (2, 3, 2, 2)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("name", ["softmax_cross_entropy_loss", "negative_log_likelihood_loss"])
def test_losses_of_classes(name: str, reduction: str, weighted: bool, shape: tuple[int, ...]) -> None:
    x = normal(*shape)
    labels = np.random.default_rng(0).integers(0, 3, (shape[0], *shape[2:]))
    weights = [np.array([0.5, 2.0, 1.5])] if weighted else []
    for ignored in (None, 1, -100):
        target = np.where(labels == 1, -100, labels) if ignored == -100 else labels
        attributes = {"reduction": reduction, "ignore_index": ignored}
        loss = partial(_loss, name=name, operands=[target, *weights], attributes=attributes)
        compare(loss, {"x": x}, directions=1)


def test_log_probabilities_may_be_used() -> None:
    labels = np.array([2, 0, 1, 1])
    compare(lambda b, x: b.softmax_cross_entropy_loss(x, labels, outputs=2), {"x": normal(4, 3)})
    compare(lambda b, x: b.softmax_cross_entropy_loss(x, labels, outputs=2)[1], {"x": normal(4, 3)})


def test_the_gradient_of_a_classifier_is_what_the_textbooks_say() -> None:
    """X^T (softmax(X W) - one-hot) / B."""
    x, w, labels = normal(5, 4), normal(4, 3), np.array([0, 2, 1, 1, 0])
    module = model(lambda b, x, w: b.softmax_cross_entropy_loss(x @ w, labels), {"x": x, "w": w})
    found = tilewright.compile(tilewright.gradient(module, "y0", ["w"]), target="reference").run({"x": x, "w": w})
    scores = np.exp(x @ w)
    expected = x.T @ (scores / scores.sum(1, keepdims=True) - np.eye(3)[labels]) / 5
    np.testing.assert_allclose(found["w_grad"], expected)


# ---- recurrent networks ----------------------------------------------------------------------------------------------

GATES = {"rnn": 1, "gru": 3, "lstm": 4}


def recurrent(name: str, directions: int, options: dict[str, Any], *, lengths: bool, states: bool) -> None:
    length, batch, size, hidden = 4, 2, 3, 2
    rows = GATES[name] * hidden
    feeds = {
        "x": normal(length, batch, size), "w": normal(directions, rows, size), "r": normal(directions, rows, hidden),
        "b": 0.3 * normal(directions, 2 * rows),
    }  # fmt: skip
    if options.get("layout"):
        feeds["x"] = feeds["x"].swapaxes(0, 1)
    if states:
        shape = (batch, directions, hidden) if options.get("layout") else (directions, batch, hidden)
        feeds |= {f"h{k}": normal(*shape, seed=k) for k in range(2 if name == "lstm" else 1)}
        if name == "lstm":
            feeds["p"] = normal(directions, 3 * hidden)
    ends = np.array([4, 2], np.int32) if lengths else None

    def build(builder: Any, **given: Any) -> Any:
        x, w, r, bias, *rest = given.values()
        outputs = 3 if name == "lstm" else 2
        return builder.create(name, x, w, r, bias, ends, *rest, hidden_size=hidden, outputs=outputs, **options)

    compare(build, feeds, open_dims=(False,), directions=1)


@pytest.mark.parametrize("name", GATES)
def test_recurrent_networks(name: str) -> None:
    recurrent(name, 1, {}, lengths=False, states=False)
    recurrent(name, 2, {"direction": "bidirectional"}, lengths=True, states=True)
    recurrent(name, 1, {"direction": "reverse", "layout": 1}, lengths=False, states=True)
    recurrent(name, 1, {"direction": "reverse", "clip": 0.8}, lengths=True, states=False)


def test_adjoints_of_sequences_of_any_length_ask_the_run_for_no_axes() -> None:
    from tilewright import i64, nn, train

    model = nn.Sequential(nn.Embedding(9, 4), nn.LSTM(4, 3, bidirectional=True), nn.Linear(6, 2))
    step = train.step(model.to_model(x=i64["n", "t"]), nn.CrossEntropyLoss(axis=-1), "sgd")
    assert not [op for op in step.walk() if op.name == "nonzero"]


def test_options_of_cells() -> None:
    recurrent("gru", 1, {"linear_before_reset": 1}, lengths=False, states=True)
    recurrent("lstm", 1, {"input_forget": 1}, lengths=False, states=True)
    recurrent("rnn", 1, {"activations": ["Affine"], "activation_alpha": [0.7], "activation_beta": [0.2]},
              lengths=False, states=False)  # fmt: skip
    recurrent("lstm", 1, {"activations": ["HardSigmoid", "Softsign", "ScaledTanh"], "activation_alpha": [0.3, 0.8]},
              lengths=False, states=False)  # fmt: skip


# ---- attention -------------------------------------------------------------------------------------------------------


def attention(feeds: dict[str, np.ndarray], **attributes: Any) -> None:
    compare(lambda b, **i: b.create("attention", *i.values(), **attributes), feeds, open_dims=(False,), directions=1)


def test_attention() -> None:
    heads = {"q": normal(1, 4, 3, 2), "k": normal(1, 2, 5, 2), "v": normal(1, 2, 5, 3)}
    attention(heads)
    attention(heads, is_causal=1, softcap=1.5)
    attention({**heads, "mask": normal(3, 5)}, scale=0.3)
    packed = {"q": normal(1, 3, 8), "k": normal(1, 5, 4), "v": normal(1, 5, 6)}
    attention(packed, q_num_heads=4, kv_num_heads=2)


def test_a_query_without_keys_has_no_gradient() -> None:
    """Its weights are zero by definition, not NaN, and so are the adjoints."""
    q, k, v = normal(1, 1, 2, 3), normal(1, 1, 2, 3, seed=1), normal(1, 1, 2, 3, seed=2)
    mask = np.array([[False, False], [True, True]])
    module = model(lambda b, q, k, v: b.attention(q, k, v, mask), {"q": q, "k": k, "v": v})
    graph = tilewright.vjp(module, ["y0"], ["q", "k", "v"])
    found = tilewright.compile(graph, target="reference").run({"q": q, "k": k, "v": v, "y0_cotangent": np.ones_like(q)})
    assert all(np.isfinite(value).all() for value in found.values())
    assert not found["q_grad"][0, 0, 0].any()
    assert found["q_grad"][0, 0, 1].any()


def test_rotary_embedding() -> None:
    caches = normal(5, 2), normal(5, 2, seed=1)
    places = np.array([[0, 2, 4]])
    compare(lambda b, x: b.rotary_embedding(x, *caches, places), {"x": normal(1, 2, 3, 4)}, open_dims=(False,))
    compare(
        lambda b, x: b.rotary_embedding(x, *caches, places, num_heads=2, interleaved=1), {"x": normal(1, 3, 8)},
        open_dims=(False,),
    )  # fmt: skip


def test_linear_attention() -> None:
    feeds = {"q": normal(1, 3, 4), "k": 0.5 * normal(1, 3, 4), "v": normal(1, 3, 4, seed=1)}
    rule = {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "linear"}
    compare(lambda b, **i: b.linear_attention(*i.values(), **rule)[0], feeds, open_dims=(False,), directions=1)


def test_causal_convolution_with_a_state() -> None:
    feeds = {"x": normal(1, 2, 5), "w": normal(2, 1, 3), "bias": normal(2), "past": normal(1, 2, 2)}
    compare(lambda b, **i: b.causal_conv_with_state(*i.values())[0], feeds, open_dims=(False,))
