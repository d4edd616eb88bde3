"""The networks of benchmarks/train.py, in Tilewright: what a step trains, on what, and with which optimizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import tilewright
from tilewright import f32, i64, nn, train

CLASSES = 10
# The transformer: layers, width, heads, tokens of a text, kinds of tokens.
LAYERS, WIDTH, HEADS, LENGTH, TOKENS = 4, 256, 4, 128, 512


@dataclass(frozen=True)
class Task:
    """A network and what a step does with it; `optimizer` in the words of benchmarks/train_peer.py."""

    network: str
    batch: int
    optimizer: str
    rate: float


TASKS = {
    "softmax 64": Task("softmax", 64, "sgd", 0.1),
    "softmax 512": Task("softmax", 512, "sgd", 0.1),
    "mlp 64": Task("mlp", 64, "adam", 1e-4),
    "mlp 512": Task("mlp", 512, "adam", 1e-4),
    "resnet18 32": Task("resnet18", 32, "momentum", 1e-3),
    "transformer 8": Task("transformer", 8, "adam", 1e-4),
}


class ResidualBlock(nn.Layer):
    """Two convolutions and what goes past them (He et al. 2015, figure 2)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False), nn.BatchNorm(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm(outputs),
        )  # fmt: skip
        self.shortcut = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm(outputs)
            )

    def build(self, b: Any, *tensors: Any) -> Any:
        (x,) = tensors
        return b.relu(self.body(x) + (x if self.shortcut is None else self.shortcut(x)))


class TransformerBlock(nn.Layer):
    """Attention and two linear layers, each after a norm and beside what goes past it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), nn.MultiHeadAttention(WIDTH, HEADS, causal=True)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.body = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def build(self, b: Any, *tensors: Any) -> Any:
        (x,) = tensors
        x = x + self.attention(self.norm(x))
        return x + self.body(self.norm2(x))


class Transformer(nn.Layer):
    """From tokens to scores of the token that comes next."""

    def __init__(self) -> None:
        super().__init__()
        small = nn.init.Normal(0.02)
        self.token, self.place = nn.Embedding(TOKENS, WIDTH, init=small), nn.Embedding(LENGTH, WIDTH, init=small)
        self.blocks = nn.Sequential(*(TransformerBlock() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS)

    def build(self, b: Any, *tensors: Any) -> Any:
        (tokens,) = tensors
        x = self.token(tokens) + self.place(b.const(np.arange(LENGTH)))
        return self.head(self.norm(self.blocks(x)))


def resnet18() -> nn.Layer:
    """As it is made for images of 32 x 32: a first convolution of 3 x 3, and no pooling behind it."""
    layers: list[nn.Layer] = [nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm(64), nn.ReLU()]
    width = 64
    for outputs in (64, 128, 256, 512):
        layers += [ResidualBlock(width, outputs, 1 if outputs == 64 else 2), ResidualBlock(outputs, outputs, 1)]
        width = outputs
    return nn.Sequential(*layers, nn.GlobalAveragePool(), nn.Flatten(), nn.Linear(512, CLASSES))


NETWORKS: dict[str, Callable[[], nn.Layer]] = {
    "softmax": lambda: nn.Linear(784, CLASSES),
    "mlp": lambda: nn.Sequential(
        nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, CLASSES)
    ),
    "resnet18": resnet18,
    "transformer": Transformer,
}


def batch_of(task: Task, random: np.random.Generator) -> dict[str, np.ndarray]:
    """One batch of made-up data."""
    if task.network == "transformer":
        shape = (task.batch, LENGTH)
        return {"x": random.integers(0, TOKENS, shape), "target": random.integers(0, TOKENS, shape)}
    shape = (task.batch, 3, 32, 32) if task.network == "resnet18" else (task.batch, 784)
    return {
        "x": random.standard_normal(shape, np.float32),
        "target": random.integers(0, CLASSES, task.batch),
    }


def optimizer_of(task: Task) -> train.Optimizer:
    match task.optimizer:
        case "sgd":
            return train.SGD(task.rate)
        case "momentum":
            return train.Momentum(task.rate, beta=0.9)
    return train.Adam(task.rate)


def step_of(task: Task, seed: int = 0) -> tuple[tilewright.Module, dict[str, np.ndarray]]:
    """The training step of a task, and the first parameters, in the order in which the layers hold them."""
    network = NETWORKS[task.network]().initialize(seed).train()
    shapes = {name: array.shape for name, array in batch_of(task, np.random.default_rng(0)).items()}
    model = network.to_model(x=(i64 if task.network == "transformer" else f32)[shapes["x"]])
    loss = nn.CrossEntropyLoss(axis=-1)
    step = train.step(model, loss=loss, optimizer=optimizer_of(task), bn_variance="unbiased")
    return step, network.parameters()
