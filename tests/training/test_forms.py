"""The form for training and the form for inference, and running statistics as PyTorch and as ONNX count them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import f32, nn, train
from tilewright.graph.diagnostics import DiagnosticLog, UsageError

X = np.random.default_rng(0).standard_normal((6, 2, 4, 4)).astype(np.float32) * 2 + 1


def network() -> nn.Layer:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm(3), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(12, 2)
    )


def text_of_forms(module: Any) -> list[Any]:
    return [
        (op.name, op.attr("training_mode", 0) if op.name == "batch_normalization" else len(op.operands))
        for op in module.main.block
        if op.name in ("batch_normalization", "dropout")
    ]


def test_there_and_back() -> None:
    model = network().initialize(0)
    inference, training = model.to_model(x=f32["n", 2, 4, 4]), model.train().to_model(x=f32["n", 2, 4, 4])
    switched = train.training_form(inference)
    assert text_of_forms(switched) == text_of_forms(training) == [("batch_normalization", 1), ("dropout", 3)]
    back = train.inference_form(switched)
    assert text_of_forms(back)[0] == ("batch_normalization", 0)
    expected = tilewright.compile(inference, target="reference").run({"x": X})["output"]
    for module in (back, train.inference_form(training)):
        constants = [op for op in module.main.block if op.name == "const"]
        assert all(op.result.use_count for op in constants), "the flag of a Dropout is left"
        np.testing.assert_array_equal(tilewright.compile(module, target="reference").run({"x": X})["output"], expected)
        assert tilewright.parity(module).passed


def test_a_file_for_inference_can_be_trained_again() -> None:
    model = network().initialize(0)
    losses = []
    for module in (
        tilewright.load(tilewright.to_bytes(model.to_model(x=f32["n", 2, 4, 4]))),
        model.train().to_model(x=f32["n", 2, 4, 4]),
    ):
        trainer = train.Trainer(train.step(train.training_form(module), optimizer="sgd"))
        losses.append([trainer.step({"x": X, "target": np.arange(6) % 2}) for _ in range(4)])
    assert losses[0] == losses[1]


def test_folded_layers_are_listed() -> None:
    b = tilewright.Builder()
    x = b.input("x", f32["n", 2, 4, 4])
    y = nn.Conv2d(2, 3, 3)(x)
    y = nn.BatchNorm(3)(nn.Conv2d(3, 3, 1)(y))
    b.output(nn.Conv2d(3, 3, 1, bias=False)(y), "y")
    model = b.build()
    assert len(train.folded_layers(model)) == 1
    log = DiagnosticLog()
    train.training_form(model, log=log)
    assert "1 convolutions have a bias" in log.diagnostics[0].message
    assert "test_forms.py" in log.diagnostics[0].notes[0]


@pytest.mark.parametrize("variance", ["population", "unbiased"])
def test_running_statistics(variance: str) -> None:
    layer = nn.Sequential(nn.BatchNorm(2, momentum=0.8), nn.Flatten(), nn.Linear(32, 2)).initialize(0)
    model = layer.train().to_model(x=f32["n", 2, 4, 4])
    trainer = train.Trainer(train.step(model, bn_variance=variance))
    mean, spread = np.zeros(2), np.ones(2)
    for scale in (1, 3):
        batch = X * scale
        trainer.step({"x": batch, "target": np.arange(6) % 2})
        ddof = 1 if variance == "unbiased" else 0
        mean = 0.8 * mean + 0.2 * batch.mean((0, 2, 3))
        spread = 0.8 * spread + 0.2 * batch.transpose(1, 0, 2, 3).reshape(2, -1).var(1, ddof=ddof)
        np.testing.assert_allclose(trainer.state["0.running_mean"], mean, rtol=1e-5)
        np.testing.assert_allclose(trainer.state["0.running_variance"], spread, rtol=1e-5)
    assert "0.running_mean" not in trainer.parameters
    trained = train.inference_form(trainer.trained(model))
    flat = (X - mean[:, None, None]) / np.sqrt(spread[:, None, None] + 1e-5)
    scale, bias = (trainer.parameters[f"0.{name}"][:, None, None] for name in ("scale", "bias"))
    expected = (flat * scale + bias).reshape(6, -1) @ trainer.parameters["2.weight"] + trainer.parameters["2.bias"]
    found = tilewright.compile(trained, target="reference").run({"x": X})["output"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_wrong_way_to_count_is_refused() -> None:
    with pytest.raises(UsageError, match="population or unbiased"):
        train.step(network().to_model(x=f32["n", 2, 4, 4]), bn_variance="biased")
