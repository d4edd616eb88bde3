"""A training step as a file: stock ONNX Runtime trains with it, and its losses follow ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import f16, f32, i64, nn, train
from tilewright.passes.training.step import Roles

onnxruntime = pytest.importorskip("onnxruntime")

STEPS = 20
RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.standard_normal((STEPS, 8, 1, 8, 8)).astype(np.float32)
TOKENS = RANDOM.integers(0, 11, (STEPS, 2, 6))
CLASSES = RANDOM.integers(0, 4, (STEPS, 8))


def mlp() -> nn.Layer:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 4))


def cnn() -> nn.Layer:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 8, 3, padding=1, padding_mode="circular", groups=2), nn.GroupNorm(2, 8), nn.GELU(),
        nn.GlobalAveragePool(), nn.Flatten(), nn.Linear(8, 4),
    )  # fmt: skip


class Decoder(nn.Layer):
    """One block of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.out = nn.Embedding(11, 8, nn.init.Normal(0.1)), nn.Linear(8, 11)
        attention = nn.Sequential(nn.LayerNorm(8), nn.MultiHeadAttention(8, 2, causal=True), nn.Dropout(0.1))
        mlp = nn.Sequential(nn.RMSNorm(8), nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8))
        self.blocks = nn.Sequential(nn.Residual(attention), nn.Residual(mlp))

    def build(self, b: tilewright.Builder, *tensors: Any) -> Any:
        return self.out(self.blocks(self.tokens(tensors[0])))


def step_of(name: str) -> tuple[Any, list[dict[str, np.ndarray]]]:
    if name == "decoder":
        model = Decoder().initialize(0).train().to_model(x=i64["n", "t"])
        step = train.step(model, nn.CrossEntropyLoss(axis=-1), train.AdamW(train.WarmUp(5, train.Cosine(0.01, 40))))
        return step, [{"x": tokens[:, :-1], "target": tokens[:, 1:]} for tokens in TOKENS]
    model = {"mlp": mlp, "cnn": cnn}[name]().initialize(0).train().to_model(x=f32["n", 1, 8, 8])
    optimizer = train.Momentum(0.05, nesterov=True) if name == "mlp" else train.Adam(0.01)
    step = train.step(model, "cross-entropy", optimizer, clip_norm=1.0, bn_variance="unbiased")
    return step, [{"x": x, "target": t} for x, t in zip(IMAGES, CLASSES, strict=True)]


def in_onnx_runtime(file: Path, batches: list[dict[str, np.ndarray]]) -> tuple[list[float], dict[str, np.ndarray]]:
    """What anybody does who has nothing but the file: feed back each NAME_next as NAME; losses, and the last state."""
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    outputs = [output.name for output in session.get_outputs()]
    state: dict[str, Any] = {}
    losses = []
    for batch in batches:
        results = dict(zip(outputs, session.run(None, {**batch, **state}), strict=True))
        state = {name.removesuffix("_next"): value for name, value in results.items() if name.endswith("_next")}
        losses.append(float(results["loss"]))
    return losses, state


@pytest.mark.parametrize("optimized", [False, True])
@pytest.mark.parametrize("name", ["mlp", "cnn", "decoder"])
def test_losses_follow_ours(name: str, optimized: bool, tmp_path: Path) -> None:
    step, batches = step_of(name)
    trainer = train.Trainer(step)
    ours = [trainer.step(batch) for batch in batches]
    if optimized:
        tilewright.optimize(step)
    tilewright.save(step, tmp_path / "step.onnx")
    theirs, _ = in_onnx_runtime(tmp_path / "step.onnx", batches)
    np.testing.assert_allclose(theirs, ours, rtol=1e-5, atol=1e-5)
    assert len(set(ours)) == STEPS


@pytest.mark.parametrize("variance", ["population", "unbiased"])
def test_the_last_state_is_ours(variance: str, tmp_path: Path) -> None:
    """ONNX Runtime writes a BatchNormalization's new statistics over the old ones, which nobody else may read then."""
    net = nn.Sequential(nn.Conv2d(1, 3, 3, bias=False), nn.BatchNorm(3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 4))
    model = net.initialize(0).train().to_model(x=f32["n", 1, 8, 8])
    step = train.step(model, "cross-entropy", train.Momentum(0.05), bn_variance=variance)
    tilewright.save(step, tmp_path / "step.onnx")
    batches = [{"x": x, "target": t} for x, t in zip(IMAGES[:4], CLASSES[:4], strict=True)]
    trainer = train.Trainer(step, "reference")
    for batch in batches:
        trainer.step(batch)
    _, state = in_onnx_runtime(tmp_path / "step.onnx", batches)
    for name, array in trainer.state.items():
        np.testing.assert_allclose(state[name], array, rtol=1e-4, atol=1e-6, err_msg=name)


def test_half_precision_with_loss_scaling(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)).initialize(0).to_model(x=f32["n", 8])
    half = half_precision(model)
    step = train.step(half, "cross-entropy", "adam", loss_scale=train.LossScale())
    tilewright.save(step, tmp_path / "step.onnx")
    batches = [{"x": RANDOM.standard_normal((6, 8)).astype(np.float16), "target": CLASSES[0, :6] % 3}] * 10
    trainer = train.Trainer(step)
    ours = [trainer.step(batch) for batch in batches]
    # Products of f16 are rounded differently.
    np.testing.assert_allclose(in_onnx_runtime(tmp_path / "step.onnx", batches)[0], ours, rtol=2e-3)
    assert ours[-1] < ours[0]


def half_precision(model: Any) -> Any:
    b = tilewright.Builder()
    held = {op.result.name: op.attributes["value"].numpy() for op in model.main.block if op.name == "const"}
    x = b.input("x", f16["n", 8])
    w = {name: b.const(value.astype(np.float16), name=name) for name, value in held.items()}
    b.output(b.tanh(x @ w["0.weight"] + w["0.bias"]) @ w["2.weight"] + w["2.bias"], "y")
    return b.build()


def test_the_file_says_what_is_what(tmp_path: Path) -> None:
    step, batches = step_of("cnn")
    tilewright.save(step, tmp_path / "step.onnx")
    trainer = train.Trainer(tmp_path / "step.onnx")
    assert trainer.roles == Roles.of(step)
    assert trainer.roles.parameters[0] == "0.weight"
    assert "1.running_variance" in trainer.state
    assert trainer.step(batches[0]) == train.Trainer(step).step(batches[0])
