"""How the variance of the first weights decides over a deep network: 50 layers of ReLU, weights of variance c / n.

    python examples/initializers.py        # numbers, and the charts out/initializers/{forward,backward}.png

With c = 1 the activations of each layer have half the variance of the one before and vanish; with c = 2 (He et al.
2015) they stay; with c = 3 they grow by half each time and explode. Gradients on their way back do the same.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

import tilewright
from tilewright import Builder, f32, nn, train

LAYERS, WIDTH, EXAMPLES = 50, 256, 128
OUTPUT = Path("out") / "initializers"


class Deep(nn.Layer):
    """Linear and ReLU, 50 times; the result of each layer is a result."""

    def __init__(self, c: float) -> None:
        super().__init__()
        self.layers = [nn.Linear(WIDTH, WIDTH, False, nn.init.Normal(float(np.sqrt(c / WIDTH)))) for _ in range(LAYERS)]
        for index, layer in enumerate(self.layers):
            self.add(str(index), layer)

    def build(self, b: Builder, *tensors: Any) -> Any:
        x, found = tensors[0], []
        for layer in self.layers:
            x = b.relu(layer(x))
            found.append(x)
        # A loss that knows nothing of the weights: one whose gradient leans on them would grow on its way back.
        direction = np.random.default_rng(2).standard_normal((EXAMPLES, WIDTH)).astype(np.float32)
        return (*found, b.reduce_sum(x * direction, keepdims=0))


def experiment(c: float) -> tuple[list[float], list[float]]:
    """The mean square of each layer's activations, and of the loss's gradient with respect to them."""
    names = [f"layer{index}" for index in range(LAYERS)]
    model = Deep(c).initialize(seed=0).to_model(x=f32[EXAMPLES, WIDTH], outputs=(*names, "loss"))
    graph = tilewright.gradient(model, "loss", names)
    x = np.random.default_rng(1).standard_normal((EXAMPLES, WIDTH)).astype(np.float32)
    results = tilewright.compile(graph, target="reference").run({"x": x})
    squares = {name: float(np.mean(np.square(value, dtype=np.float64))) for name, value in results.items()}
    return [squares[name] for name in names], [squares[f"{name}_grad"] for name in names]


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    found = {c: experiment(c) for c in (1.0, 2.0, 3.0)}
    OUTPUT.mkdir(parents=True, exist_ok=True)
    for index, direction in enumerate(("forward", "backward")):
        series = {f"{c:.0f}/n": values[index] for c, values in found.items()}
        title = f"mean square by layer: {'activations' if index == 0 else 'gradients'}"
        train.save_chart(OUTPUT / f"{direction}.png", series, title, logarithmic=True)
    for c, (forward, backward) in found.items():
        print(
            f"variance {c:.0f}/n: activations {forward[0]:9.2e} in layer 1, {forward[-1]:9.2e} in layer {LAYERS};  "
            f"gradients {backward[-1]:9.2e} in layer {LAYERS}, {backward[0]:9.2e} in layer 1"
        )
    print(f"charts: {OUTPUT}/forward.png, {OUTPUT}/backward.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
