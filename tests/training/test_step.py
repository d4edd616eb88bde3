"""The training step as a module: its interface, losses, clipping, accumulation, loss scaling, and its errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import Builder, f16, f32, i64, nn, train
from tilewright.graph.diagnostics import DiagnosticLog, ExecutionError, UsageError
from tilewright.passes.training.derivation import GradientError

RANDOM = np.random.default_rng(7)
X = RANDOM.standard_normal((12, 4)).astype(np.float32)
TARGET = RANDOM.integers(0, 3, 12)


def classifier(dtype: Any = f32) -> Any:
    b = Builder("classifier")
    random = np.random.default_rng(0)
    w1, w2 = (random.standard_normal(shape).astype(dtype.numpy) * 0.5 for shape in ((4, 8), (8, 3)))
    hidden = b.tanh(b.input("x", dtype["n", 4]) @ b.const(w1, name="w1") + b.const(np.zeros(8, dtype.numpy), name="b1"))
    b.output(hidden @ b.const(w2, name="w2"), "scores")
    return b.build()


def names(items: Any) -> list[str]:
    return [str(item.name) for item in items]


def test_the_interface_says_what_is_what() -> None:
    model = classifier()
    before = str(model)
    step = train.step(model, "cross-entropy", train.Momentum(0.1))
    states = ["w1", "b1", "w2", "step", "w1_momentum", "b1_momentum", "w2_momentum"]
    assert names(step.main.inputs) == ["x", *states[:4], "target", *states[4:]]
    outputs = names(step.main.block.outputs)
    assert outputs[:2] == ["loss", "scores"]
    assert sorted(outputs[2:]) == sorted(f"{name}_next" for name in states)
    assert str(model) == before


def test_the_gradient_is_that_of_the_course_notes() -> None:
    """Two layers: H^T (softmax - onehot) / B is the gradient of the second, X^T (that W2^T (1 - H^2)) of the first."""
    step = train.step(classifier(), "cross-entropy", train.SGD(1.0))
    trainer = train.Trainer(step)
    w1, w2 = (trainer.parameters[name].astype(np.float64) for name in ("w1", "w2"))
    loss = trainer.step({"x": X, "target": TARGET})
    hidden = np.tanh(X @ w1)
    scores = np.exp(hidden @ w2)
    softmax = scores / scores.sum(axis=1, keepdims=True)
    error = (softmax - np.eye(3)[TARGET]) / len(X)
    first = X.T @ (error @ w2.T * (1 - hidden**2))
    assert loss == pytest.approx(-np.log(softmax[np.arange(12), TARGET]).mean(), rel=1e-6)
    np.testing.assert_allclose(w2 - trainer.parameters["w2"], hidden.T @ error, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(w1 - trainer.parameters["w1"], first, rtol=1e-4, atol=1e-6)


def test_targets_agree() -> None:
    step = train.step(classifier(), optimizer="adam")
    batches = [{"x": X[k : k + 4], "target": TARGET[k : k + 4]} for k in (0, 4, 8)]
    losses = {}
    for target in ("reference", "cpu"):
        trainer = train.Trainer(step, target)
        losses[target] = [trainer.step(batch) for batch in batches * 2]
    np.testing.assert_allclose(losses["cpu"], losses["reference"], rtol=1e-5)


def test_trained_model_has_the_new_weights() -> None:
    model = classifier()
    trainer = train.Trainer(train.step(model))
    first = [trainer.step({"x": X, "target": TARGET}) for _ in range(3)]
    trained = trainer.trained(model)
    scores = tilewright.compile(trained, target="reference").run({"x": X})["scores"]
    loss = -np.log(np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True))[np.arange(12), TARGET].mean()
    assert loss == pytest.approx(trainer.step({"x": X, "target": TARGET}), rel=1e-5)
    assert loss < first[0]


# ---- parameters ------------------------------------------------------------------------------------------------------


def test_only_chosen_parameters_move() -> None:
    step = train.step(classifier(), optimizer="sgd", params=["w2"])
    assert "w1" not in names(step.main.inputs)
    assert names(step.main.block.outputs)[2:] == ["step_next", "w2_next"]
    starred = train.step(classifier(), optimizer="sgd", params={"all": ("w*",)})
    assert {"w1_next", "w2_next"} < set(names(starred.main.block.outputs))


def test_the_default_leaves_out_what_the_loss_ignores() -> None:
    b = Builder()
    x = b.input("x", f32["n", 4])
    w, other = b.const(np.ones((4, 2), np.float32), name="w"), b.const(np.ones((4, 2), np.float32), name="other")
    b.output(x @ w, "scores")
    b.output(x @ other, "unused")
    step = train.step(b.build(), "mse")
    assert "other_next" not in names(step.main.block.outputs)
    assert "other" not in names(step.main.inputs)
    with pytest.raises(GradientError, match="does not depend on 'other'"):
        train.step(b.build(), "mse", params=["w", "other"])


@pytest.mark.parametrize(
    ("params", "message"),
    [(["w3"], "did you mean"), (["x"], "an input without a value"), (["v*"], "no parameter matches 'v*'")],
)
def test_wrong_parameters_are_named(params: list[str], message: str) -> None:
    with pytest.raises(UsageError) as error:
        train.step(classifier(), params=params)
    assert message in error.value.diagnostics[0].render()


def test_integers_are_not_trained() -> None:
    b = Builder()
    b.output(b.cast(b.const(np.array([1, 2]), name="k"), to=f32) * b.input("x", f32[2]), "y")
    with pytest.raises(UsageError, match="only float tensors are trained"):
        train.step(b.build(), "mse", params=["k"])


# ---- losses ----------------------------------------------------------------------------------------------------------


def loss_of(name: str, scores: np.ndarray, target: np.ndarray, **options: Any) -> float:
    b = Builder()
    w = b.const(np.ones(1, np.float32), name="w")
    b.output(b.input("x", f32[scores.shape]) * w, "y")
    return train.Trainer(train.step(b.build(), name, "sgd", **options)).step({"x": scores, "target": target})


def test_losses_against_their_formulas() -> None:
    random = np.random.default_rng(0)
    y, t = random.standard_normal((5, 3)).astype(np.float32), random.standard_normal((5, 3)).astype(np.float32)
    p = 1 / (1 + np.exp(-y.astype(np.float64)))
    yes = (t > 0).astype(np.float32)
    binary = -(yes * np.log(p) + (1 - yes) * np.log(1 - p)).mean()
    assert loss_of("mse", y, t) == pytest.approx(((y - t) ** 2).mean(), rel=1e-6)
    assert loss_of("l1", y, t) == pytest.approx(np.abs(y - t).mean(), rel=1e-6)
    assert loss_of("bce-logits", y, yes) == pytest.approx(binary, rel=1e-6)
    assert loss_of("bce", p.astype(np.float32), yes) == pytest.approx(binary, rel=1e-5)
    classes = np.array([0, 2, 1, 1, 0])
    logs = y - np.log(np.exp(y).sum(axis=1, keepdims=True))
    assert loss_of("nll", logs, classes) == pytest.approx(-logs[np.arange(5), classes].mean(), rel=1e-6)
    assert loss_of("cross-entropy", y, classes) == pytest.approx(-logs[np.arange(5), classes].mean(), rel=1e-6)


@pytest.mark.parametrize("axis", [1, 2, -1, 0])
def test_classes_may_lie_along_any_axis(axis: int) -> None:
    from tilewright.graph.nn.losses import cross_entropy

    random = np.random.default_rng(0)
    last = random.standard_normal((2, 5, 3)).astype(np.float32)
    classes = random.integers(0, 3, (2, 5))
    b = Builder()
    scores, target = np.moveaxis(last, -1, axis), b.input("target", i64[2, 5])
    b.output(cross_entropy(b, b.input("x", f32[scores.shape]), target, axis=axis, label_smoothing=0.1), "loss")
    found = tilewright.compile(b.build(), target="reference").run({"x": scores, "target": classes})["loss"]
    logs = last - np.log(np.exp(last).sum(axis=-1, keepdims=True))
    smooth = 0.9 * np.eye(3)[classes] + 0.1 / 3
    assert found == pytest.approx(-(smooth * logs).sum(axis=-1).mean(), rel=1e-5)


def test_a_function_may_be_the_loss() -> None:
    def weighted(b: Any, outputs: dict[str, Any]) -> Any:
        weight = b.input("weight", f32[1])
        return b.reduce_mean(outputs["scores"] * outputs["scores"] * weight, keepdims=0)

    trainer = train.Trainer(train.step(classifier(), weighted, "sgd"))
    assert trainer.data_inputs == ["x", "weight"]
    assert trainer.step({"x": X, "weight": np.ones(1, np.float32)}) > 0


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("crossentropy", "neither a loss nor an output"),
        ("scores", "a loss is one number"),
        (lambda b, outputs: b.argmax(outputs["scores"], axis=1), "a loss is one float"),
    ],
)
def test_bad_losses_are_refused(loss: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        train.step(classifier(), loss)


# ---- gradients on their way to the update ----------------------------------------------------------------------------


def moved(before: dict[str, Any], trainer: train.Trainer) -> np.ndarray:
    return np.concatenate([(before[name] - array).ravel() for name, array in trainer.parameters.items()])


def test_clipping() -> None:
    def change(**options: Any) -> np.ndarray:
        trainer = train.Trainer(train.step(classifier(), optimizer=train.SGD(1.0), **options))
        before = trainer.parameters
        trainer.step({"x": X, "target": TARGET})
        return moved(before, trainer)

    plain = change()
    norm = np.linalg.norm(plain)
    np.testing.assert_allclose(change(clip_norm=norm / 4), plain / 4, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(change(clip_norm=norm * 4), plain, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(change(clip_value=0.01), np.clip(plain, -0.01, 0.01), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_accumulation_is_a_larger_batch(optimizer: str) -> None:
    whole = train.Trainer(train.step(classifier(), optimizer=optimizer))
    parts = train.Trainer(train.step(classifier(), optimizer=optimizer, accumulate=3))
    for _ in range(2):
        whole.step({"x": X, "target": TARGET})
        for k in (0, 4, 8):
            before = parts.parameters
            parts.step({"x": X[k : k + 4], "target": TARGET[k : k + 4]})
            same = all(np.array_equal(before[name], array) for name, array in parts.parameters.items())
            assert same == (k != 8)
        for name, array in whole.parameters.items():
            np.testing.assert_allclose(parts.parameters[name], array, rtol=1e-4, atol=1e-5)


def test_loss_scaling_leaves_out_updates_that_overflow() -> None:
    scale = train.LossScale(initial=4.0, interval=2)
    trainer = train.Trainer(train.step(classifier(f16), optimizer="adam", loss_scale=scale))
    assert trainer.state["w1"].dtype == np.float32  # kept wider than the model computes
    batch = {"x": X.astype(np.float16), "target": TARGET}
    scales = [float(trainer.state["loss_scale"])]
    for _ in range(4):
        trainer.step(batch)
        scales.append(float(trainer.state["loss_scale"]))
    assert scales == [4, 4, 8, 8, 16]
    trainer.state["loss_scale"] = np.array(2.0**30, np.float32)
    before = trainer.state
    trainer.step(batch)
    assert trainer.state["loss_scale"] == 2.0**29
    for name in ("w1", "w1_mean", "updates"):
        np.testing.assert_array_equal(trainer.state[name], before[name])
    assert trainer.trained(classifier(f16)).main.block.first is not None


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "adamw", "adagrad", "rmsprop", "lamb"])
def test_parameters_in_half_precision_are_updated_in_single(name: str) -> None:
    """Squares of gradients and a small epsilon are 0 in f16."""
    step = train.step(classifier(f16), "cross-entropy", name, master_weights=False)
    for target in ("reference", "cpu"):
        trainer = train.Trainer(step, target)
        losses = [trainer.step({"x": X.astype(np.float16), "target": TARGET}) for _ in range(20)]
        assert trainer.state["w1"].dtype == np.float16
        assert all(np.isfinite(array).all() for array in trainer.state.values())
        assert losses[-1] < losses[0]


def test_a_constant_loss_scale_changes_nothing_in_f32() -> None:
    found = []
    for scale in (None, 1024.0):
        trainer = train.Trainer(train.step(classifier(), optimizer="sgd", loss_scale=scale))
        trainer.step({"x": X, "target": TARGET})
        found.append(trainer.parameters["w1"])
    np.testing.assert_array_equal(*found)


# ---- bad numbers -----------------------------------------------------------------------------------------------------


def test_a_bad_loss_stops_and_keeps_the_state() -> None:
    b = Builder()
    x = b.input("x", f32[3])
    b.output(b.reduce_sum(b.log(x * b.const(np.ones(3, np.float32), name="w")), keepdims=0), "loss")
    step = train.step(b.build(), "loss", "sgd")
    for anomaly, message in ((False, "the loss is nan"), (True, "log is the first operation with NaN elements")):
        trainer = train.Trainer(step, detect_anomaly=anomaly)
        before = trainer.state
        with pytest.raises(ExecutionError, match=message) as error:
            trainer.step({"x": np.array([1, -1, 1], np.float32)})
        assert trainer.state is before
        assert anomaly == ("test_step.py" in str(error.value))


def test_batches_that_do_not_fit_are_refused() -> None:
    trainer = train.Trainer(train.step(classifier()))
    with pytest.raises(ExecutionError, match="n"):
        trainer.step({"x": X, "target": TARGET[:3]})
    with pytest.raises(ExecutionError, match="target"):
        trainer.step({"x": X})


def test_a_model_is_not_a_step() -> None:
    with pytest.raises(UsageError, match="not a training step"):
        train.Trainer(classifier())


def test_frozen_layers_are_told() -> None:
    b = Builder()
    x = b.input("x", f32["n", 4])
    b.output(b.dropout(x @ b.const(np.ones((4, 2), np.float32), name="w"), outputs=1), "y")
    log = DiagnosticLog()
    train.step(b.build(), "mse", log=log)
    assert any("form for inference" in each.message for each in log.diagnostics)


def test_biases_of_one_element_are_trained(tmp_path: Path) -> None:
    """As a layer's they are known; in a file they are what operators add."""
    net = nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm(1), nn.Flatten(), nn.Linear(4, 1)).initialize(0).train()
    model, wanted = net.to_model(x=f32["n", 1, 2, 2]), list(net.parameters())
    tilewright.save(model, tmp_path / "net.onnx")
    for source in (model, tmp_path / "net.onnx"):
        assert train.Trainer(train.step(source, "mse"), "reference").roles.parameters == wanted
    x = np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32)
    line = train.Trainer(train.step(nn.Linear(4, 1).to_model(x=f32["n", 4]), "mse", train.SGD(0.2)), "reference")
    losses = [line.step({"x": x, "target": x.sum(1, keepdims=True) + 5}) for _ in range(60)]
    assert losses[-1] < 1e-3


def test_a_target_may_be_an_input_that_is_there() -> None:
    net = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 4)).initialize(0)
    step = train.step(net.to_model(x=f32["n", 4]), "mse", train.Adam(0.02), target="x")
    assert train.Trainer(step, "reference").data_inputs == ["x"]
    trainer = train.Trainer(step, "reference")
    losses = [trainer.step({"x": X}) for _ in range(50)]
    assert losses[-1] < 0.7 * losses[0]
    for taken in ("0.weight", "step"):
        with pytest.raises(UsageError, match="is taken; give the target another"):
            train.step(net.to_model(x=f32["n", 4]), "mse", target=taken)
    with pytest.raises(UsageError, match="the input 'x' is f32"):
        train.step(net.to_model(x=f32["n", 4]), "cross-entropy", target="x")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss_scale": 0}, "finite number above 0"),
        ({"accumulate": 1.5}, "number of calls"),
        ({"params": []}, "names nothing to train"),
        ({"seed": 2**70}, "seed"),
        ({"optimizer": train.Adam}, "is no optimizer"),
        ({"loss": lambda b, outputs: None}, "gave None, which is no tensor"),
        ({"loss": nn.CrossEntropyLoss(axis=5)}, "has no axis 5"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        train.step(classifier(), **options)


@pytest.mark.parametrize(
    "make",
    [
        lambda: train.SGD(-1.0),
        lambda: train.SGD(float("nan")),
        lambda: train.Adam(beta1=1.5),
        lambda: train.Adam(weight_decay=-1.0),
        lambda: nn.CrossEntropyLoss(ignoreindex=-100),
        lambda: nn.MSELoss(reduction="median"),
    ],
)
def test_numbers_and_names_that_make_no_sense_are_refused_where_they_are_given(make: Any) -> None:
    with pytest.raises(UsageError, match=r"finite and at least 0|below 1|did you mean ignore_index|reduction must be"):
        make()


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_batches_that_are_none_are_refused(target: str) -> None:
    trainer = train.Trainer(train.step(classifier(), nn.CrossEntropyLoss(ignore_index=-1)), target)
    for batch in (None, (X, TARGET)):
        with pytest.raises(UsageError, match=r"a batch is a dict, \{'x': "):
            trainer.step(batch)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="'x' has no elements"):
        trainer.step({"x": X[:0], "target": TARGET[:0]})
    with pytest.raises(ExecutionError, match="nan") as found:
        trainer.step({"x": X, "target": np.full(12, -1)})
    assert "every element of 'target' is -1, which does not count" in str(found.value)


def test_what_is_left_out_is_told() -> None:
    b = Builder()
    x = b.input("x", f32["n", 4])
    w, factor = b.const(np.ones((4, 2), np.float32), name="w"), b.const(np.ones(1, np.float32), name="factor")
    b.output(x @ w * factor, "y")
    log = DiagnosticLog()
    train.step(b.build(), "mse", log=log)
    assert [each.message for each in log.diagnostics] == [
        "one number or a mask, so not trained: factor", "the loss is mse of 'y'", "1 tensors are trained: w",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("loss", "operator", "told"),
    [
        ("cross-entropy", "softmax", True), ("cross-entropy", "log_softmax", False), ("nll", "softmax", True),
        ("nll", "log_softmax", False), ("bce-logits", "sigmoid", True), ("bce", "sigmoid", False),
    ],
)  # fmt: skip
def test_losses_of_scores_and_of_probabilities(loss: str, operator: str, told: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Operator(operator)).to_model(x=f32["n", 4])
    log = DiagnosticLog()
    train.step(model, loss, log=log)
    assert [each.code for each in log.warnings] == (["train/probabilities"] if told else [])
    if told:
        with pytest.warns(match=f"comes from {operator.capitalize()}"):
            train.step(model, loss)


def test_what_is_no_weight_is_not_trained_by_default() -> None:
    b = Builder()
    x = b.input("x", f32["n", 4])
    w, scale = b.const(np.ones((4, 4), np.float32), name="w"), b.const(np.full(1, 0.5, np.float32), name="scale")
    mask = b.const(np.triu(np.full((4, 4), -np.inf, np.float32), 1), name="mask")
    b.output(b.softmax(x @ w * scale + mask[:1], axis=-1), "y")
    log = DiagnosticLog()
    step = train.step(b.build(), "mse", log=log)
    assert log.diagnostics[-1].message == "1 tensors are trained: w"
    assert "scale_next" not in names(step.main.block.outputs)
    assert "scale_next" in names(train.step(b.build(), "mse", params=["scale"]).main.block.outputs)
