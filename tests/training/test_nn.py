"""`tilewright.nn`: what each layer computes, against numpy; its parameters; and that gradients go through it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import Builder, f32, i64, nn, train
from tilewright.graph.diagnostics import UsageError

RANDOM = np.random.default_rng(3)


def evaluate(layer: nn.Layer, *arrays: np.ndarray) -> np.ndarray:
    """The layer's result; dims are symbolic, so that nothing leans on a size."""
    types = {}
    for index, array in enumerate(arrays):
        dtype = i64 if array.dtype == np.int64 else f32
        fixed = [size if axis else "n" for axis, size in enumerate(array.shape)]
        types[f"x{index}"] = dtype[tuple(fixed)]
    model = layer.to_model(**types)
    feeds = {f"x{index}": array for index, array in enumerate(arrays)}
    result: np.ndarray = tilewright.compile(model, target="reference").run(feeds)["output"]
    return result


def normal(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def near(found: np.ndarray, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)


# ---- parameters ------------------------------------------------------------------------------------------------------


def network() -> nn.Sequential:
    body = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.BatchNorm(8))
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Residual(body), nn.Dropout(0.5), nn.Linear(8, 3, bias=False))


def test_parameters_have_the_names_of_their_places() -> None:
    model = network()
    names = ["0.weight", "0.bias", "2.body.0.weight", "2.body.0.bias", "2.body.2.scale", "2.body.2.bias", "4.weight"]
    assert list(model.parameters()) == names
    statistics = {"2.body.2.running_mean", "2.body.2.running_variance"}
    assert set(model.parameters(trained=False)) == {*names, *statistics}
    module = model.to_model(x=f32["n", 4])
    held = {op.result.name for op in module.main.block if op.name == "const" and op.result.name}
    assert held == {*names, *statistics}


def test_seeds_decide_the_first_numbers() -> None:
    first, again, other = (network().initialize(seed).parameters() for seed in (1, 1, 2))
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
    assert (first["0.weight"] != other["0.weight"]).any()


def test_numbers_can_be_loaded() -> None:
    source, target = network().initialize(1), network().initialize(2)
    target.load(source.parameters(trained=False))
    x = normal(5, 4)
    np.testing.assert_array_equal(evaluate(source, x), evaluate(target, x))
    with pytest.raises(UsageError, match="has shape"):
        target.load({"0.weight": np.zeros((2, 2))})


def test_a_file_has_every_parameter(tmp_path: Path) -> None:
    """Also where operators are written as their parts, and where parameters begin as equal."""
    layer = nn.Sequential(nn.LayerNorm(8), nn.MultiHeadAttention(8, 2), nn.RMSNorm(8), nn.Linear(8, 8)).initialize(0)
    first, second = tmp_path / "net.onnx", tmp_path / "again.onnx"
    tilewright.save(layer.to_model(x=f32["n", 4, 8]), first, opset=23)
    tilewright.save(tilewright.load(first), second, opset=17)
    for path in (first, second):
        written = {op.result.name for op in tilewright.load(path).main.block if op.name == "const"}
        assert set(layer.parameters()) <= written


def test_a_layer_used_twice_has_one_set_of_parameters() -> None:
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.Tanh(), shared)
    assert list(model.parameters()) == ["0.weight", "0.bias"]
    module = model.to_model(x=f32["n", 4])
    assert sum(op.name == "const" for op in module.main.block) == 2


def test_two_layers_in_one_model_have_names_of_their_own() -> None:
    b = Builder()
    x = b.input("x", f32["n", 4])
    b.output(nn.Linear(4, 2)(x) + nn.Linear(4, 2)(x), "y")
    held = {op.result.name for op in b.build().main.block if op.name == "const"}
    assert held == {"weight", "bias", "linear_2.weight", "linear_2.bias"}


def test_mistakes_are_told() -> None:
    class Forgetful(nn.Layer):
        def __init__(self) -> None:
            self.inner = nn.Linear(1, 1)

    with pytest.raises(UsageError, match=r"super\(\).__init__\(\) first"):
        Forgetful()
    with pytest.raises(UsageError, match="do not split into 3 groups"):
        nn.Conv2d(4, 6, 3, groups=3)
    with pytest.raises(UsageError, match="does not split into 3 heads"):
        nn.MultiHeadAttention(8, 3)
    with pytest.raises(UsageError, match="called on tensors"):
        nn.Linear(1, 1)(np.ones((1, 1)))


# ---- initializers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("initializer", "variance"),
    [
        (nn.init.XavierUniform(), 2 / 500),
        (nn.init.XavierNormal(gain=2.0), 8 / 500),
        (nn.init.KaimingUniform(), 2 / 300),
        (nn.init.KaimingNormal(), 2 / 300),
        (nn.init.KaimingNormal("tanh", fan="out"), 25 / 9 / 200),
        (nn.init.Normal(0.1), 0.01),
        (nn.init.Uniform(-0.5, 0.5), 1 / 12),
        (nn.init.Constant(3.0), 0.0),
    ],
)
def test_variances(initializer: nn.init.Initializer, variance: float) -> None:
    weight = initializer.draw((300, 200), 300, 200, np.random.default_rng(0))
    assert weight.var() == pytest.approx(variance, rel=0.03)
    assert abs(weight.mean() - (3.0 if variance == 0 else 0.0)) < 0.01
    if "Uniform" in type(initializer).__name__:
        assert np.abs(weight).max() == pytest.approx(np.sqrt(3 * variance), rel=1e-2)


def test_fans_of_convolutions_count_the_window() -> None:
    weight = nn.Conv2d(64, 128, 3, groups=2).initialize().parameters()["weight"]
    assert weight.shape == (128, 32, 3, 3)
    assert weight.var() == pytest.approx(2 / (32 * 9), rel=0.03)


# ---- layers ----------------------------------------------------------------------------------------------------------


def test_linear() -> None:
    layer = nn.Linear(4, 3, init=nn.init.Normal(1.0)).load({"bias": normal(3)})
    x, held = normal(2, 5, 4), layer.parameters()
    near(evaluate(layer, x), x @ held["weight"] + held["bias"])


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("mode", ["zeros", "circular"])
def test_convolutions(dims: int, mode: str) -> None:
    make = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dims]
    layer = make(3, 4, 3, padding=1, padding_mode=mode).initialize(dims)
    x, weight = normal(2, 3, *(5, 4, 6)[:dims]), layer.parameters()["weight"]
    around = np.pad(x, [(0, 0), (0, 0), *[(1, 1)] * dims], mode="wrap" if mode == "circular" else "constant")
    windows = np.lib.stride_tricks.sliding_window_view(around, (3,) * dims, axis=tuple(range(2, 2 + dims)))
    space, window = "uvw"[:dims], "xyz"[:dims]
    near(evaluate(layer, x), np.einsum(f"nc{space}{window},mc{window}->nm{space}", windows, weight))


def test_embedding() -> None:
    layer, indices = nn.Embedding(10, 3), np.array([[1, 9], [0, 1]])
    near(evaluate(layer, indices), layer.parameters()["weight"][indices])


def test_normalizations() -> None:
    x = normal(3, 4, 5)
    flat = x.reshape(3, 2, 10)

    def standard(values: np.ndarray, *axes: int) -> np.ndarray:
        mean, variance = values.mean(axes, keepdims=True), values.var(axes, keepdims=True)
        return np.asarray((values - mean) / np.sqrt(variance + 1e-5))

    near(evaluate(nn.BatchNorm(4), x), x / np.sqrt(1 + 1e-5))
    near(evaluate(nn.BatchNorm(4).train(), x), standard(x, 0, 2))
    near(evaluate(nn.LayerNorm(5), x), standard(x, 2))
    near(evaluate(nn.GroupNorm(2, 4), x), standard(flat, 2).reshape(x.shape))
    near(evaluate(nn.InstanceNorm(4), x), standard(x, 2))
    near(evaluate(nn.RMSNorm(5), x), x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5))


def test_attention() -> None:
    layer = nn.MultiHeadAttention(8, 2, causal=True).initialize(0)
    x, held = normal(3, 5, 8), layer.parameters()
    q, k, v = (x @ held[f"{name}.weight"] for name in ("query", "key", "value"))
    q, k, v = (each.reshape(3, 5, 2, 4).transpose(0, 2, 1, 3) for each in (q, k, v))
    scores = np.where(np.tril(np.ones((5, 5), bool)), q @ k.swapaxes(-1, -2) / 2, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = (weights / weights.sum(-1, keepdims=True)) @ v
    near(evaluate(layer, x), mixed.transpose(0, 2, 1, 3).reshape(3, 5, 8) @ held["output.weight"])


def test_recurrent_layers() -> None:
    x = normal(2, 4, 3)
    layer = nn.RNN(3, 5).initialize(0).load({"bias": normal(1, 10)})
    held = layer.parameters()
    state, expected = np.zeros((2, 5)), []
    for step in x.transpose(1, 0, 2):
        bias = held["bias"][0, :5] + held["bias"][0, 5:]
        state = np.tanh(step @ held["input_weight"][0].T + state @ held["state_weight"][0].T + bias)
        expected.append(state)
    near(evaluate(layer, x), np.stack(expected, 1))
    assert evaluate(nn.GRU(3, 5, bidirectional=True), x).shape == (2, 4, 10)
    assert evaluate(nn.LSTM(3, 5), x).shape == (2, 4, 5)


def test_small_layers() -> None:
    x = normal(2, 3, 4, 4)
    near(evaluate(nn.ReLU(), x), np.maximum(x, 0))
    near(evaluate(nn.ReLU6(), 4 * x), np.clip(4 * x, 0, 6))
    near(evaluate(nn.SiLU(), x), x / (1 + np.exp(-x)))
    near(evaluate(nn.Flatten(), x), x.reshape(2, -1))
    near(evaluate(nn.MaxPool2d(2), x), x.reshape(2, 3, 2, 2, 2, 2).max((3, 5)))
    near(evaluate(nn.AveragePool2d(2), x), x.reshape(2, 3, 2, 2, 2, 2).mean((3, 5)))
    near(evaluate(nn.GlobalAveragePool(), x), x.mean((2, 3), keepdims=True))
    near(evaluate(nn.Dropout(0.5), x), x)


# ---- training --------------------------------------------------------------------------------------------------------

IMAGES = nn.Sequential(
    nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"), nn.BatchNorm(4), nn.Tanh(), nn.AveragePool2d(2),
    nn.Flatten(), nn.Linear(16, 3),
)  # fmt: skip
SEQUENCES = {
    "attention": nn.Sequential(nn.LayerNorm(4), nn.Residual(nn.MultiHeadAttention(4, 2, causal=True)), nn.RMSNorm(4)),
    "gru": nn.GRU(4, 3),
    "lstm": nn.LSTM(4, 3, bidirectional=True),
    "rnn": nn.RNN(4, 3),
}


@pytest.mark.parametrize("training", [False, True])
def test_gradients_of_an_image_network(training: bool) -> None:
    model = IMAGES.train(training).to_model(x=f32[3, 2, 4, 4])
    report = train.check_gradients(model, {"x": normal(3, 2, 4, 4)}, directions=1)
    assert report.passed, report


@pytest.mark.parametrize("name", SEQUENCES)
def test_gradients_of_sequence_layers(name: str) -> None:
    report = train.check_gradients(SEQUENCES[name].to_model(x=f32[2, 3, 4]), {"x": normal(2, 3, 4)}, directions=1)
    assert report.passed, report


def test_a_loss_with_options_can_be_trained_with() -> None:
    model = nn.Sequential(nn.Embedding(6, 4), nn.Linear(4, 6)).to_model(x=i64["n", "t"])
    trainer = train.Trainer(train.step(model, nn.CrossEntropyLoss(axis=-1), train.Adam(0.1)))
    x = np.arange(6).reshape(2, 3)
    losses = [trainer.step({"x": x, "target": (x + 1) % 6}) for _ in range(30)]
    assert losses[-1] < 0.1 < losses[0]


def test_layers_print_as_a_tree() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Residual(nn.Sequential(nn.Linear(8, 8, bias=False))))
    assert repr(net).splitlines() == [
        "Sequential(",
        "  0: Linear(weight [4, 8], bias [8])",
        "  1: ReLU()",
        "  2: Residual(",
        "    body: Sequential(",
        "      0: Linear(weight [8, 8])",
        "    )",
        "  )",
        ")",
    ]
    assert repr(nn.Linear(4, 8).weight) == "<Parameter f32[4, 8]>"
