"""Softmax regression, an MLP and a CNN on 1797 handwritten digits of 8 x 8 pixels.

    python examples/digits.py              # all three: accuracy on the fifth of the images that was held out
    python examples/digits.py cnn --target reference

Everything comes from fixed seeds, so every run gives the same numbers on the same machine.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

# Products as small as these are no work for several threads, least of all on a machine with other things to do.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

import tilewright
from tilewright import f32, nn, train

SEED = 1
DATA = Path(__file__).parent / "data" / "digits.npz"


@dataclass
class Recipe:
    """A network and how it is trained. `wanted` is the accuracy that it has to reach."""

    network: nn.Layer
    optimizer: train.Optimizer
    epochs: int
    wanted: float
    augmented: bool = False
    losses: list[float] = field(default_factory=list)


def recipe(name: str, batches: int) -> Recipe:
    """`batches` is how many updates an epoch has."""
    if name == "softmax":
        return Recipe(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), train.SGD(0.5), 20, 0.94)
    if name == "mlp":
        network = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 128), nn.ReLU(),
            nn.Linear(128, 10),
        )  # fmt: skip
        return Recipe(network, train.Adam(train.Cosine(3e-3, 25 * batches)), 25, 0.97)
    network = nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1, bias=False), nn.BatchNorm(24), nn.ReLU(),
        nn.Conv2d(24, 48, 3, padding=1, bias=False), nn.BatchNorm(48), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(48, 96, 3, padding=1, bias=False), nn.BatchNorm(96), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.3), nn.Linear(384, 10),
    )  # fmt: skip
    schedule = train.WarmUp(batches, train.Cosine(2e-3, 17 * batches))
    return Recipe(network, train.AdamW(schedule, weight_decay=1e-2), 18, 0.985, augmented=True)


def shifted(batch: dict[str, np.ndarray], random: np.random.Generator) -> dict[str, np.ndarray]:
    """Each image moved by up to one pixel in each direction."""
    images = np.pad(batch["x"], ((0, 0), (0, 0), (1, 1), (1, 1)))
    rows, columns = random.integers(0, 3, (2, len(images)))
    moved = [image[:, r : r + 8, c : c + 8] for image, r, c in zip(images, rows, columns, strict=True)]
    return {**batch, "x": np.stack(moved)}


def digits() -> tuple[train.Dataset, train.Dataset]:
    """Four fifths to train on, one to test with."""
    with np.load(DATA) as file:
        images, labels = file["images"], file["labels"]
    x = images[:, None].astype(np.float32) / 16
    return train.Dataset({"x": x, "target": labels.astype(np.int64)}).split(0.2, seed=3)


def accuracy(model: tilewright.Module, data: train.Dataset) -> float:
    scores = tilewright.compile(model, target="reference").run({"x": data.arrays["x"]})["scores"]
    return float((scores.argmax(axis=1) == data.arrays["target"]).mean())


def run(name: str, target: str = "cpu", quiet: bool = False) -> tuple[float, Recipe, tilewright.Module]:
    """Train one of the three; its accuracy on the test images, and the trained model."""
    training, testing = digits()
    size = 64
    how = recipe(name, len(training.batch(size)))
    model = how.network.initialize(SEED).train().to_model(x=f32["n", 1, 8, 8], outputs=("scores",))
    trainer = train.Trainer(train.step(model, "cross-entropy", how.optimizer, seed=SEED), target)
    batches = training.shuffle(SEED).batch(size)
    if how.augmented:
        batches = batches.augment(shifted, SEED)

    def report(done: train.Run) -> None:
        if not quiet:
            recent = np.mean(done.losses[-len(batches) :])
            print(f"\r{name:8} epoch {done.epoch:3}/{how.epochs}  loss {recent:.4f}", end="", flush=True)

    how.losses = train.fit(trainer, batches, how.epochs, on_epoch=report).losses
    trained = train.inference_form(trainer.trained(model))
    return accuracy(trained, testing), how, trained


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="softmax, mlp, cnn; default: all")
    parser.add_argument("--target", default="cpu", help="what runs the training step")
    parser.add_argument("--output", type=Path, help="a folder for trained models and charts of their losses")
    options = parser.parse_args()
    good = True
    for name in options.names or ("softmax", "mlp", "cnn"):
        started = time.perf_counter()
        found, how, trained = run(name, options.target)
        good = good and found >= how.wanted
        seconds = time.perf_counter() - started
        print(f"\r{name:8} accuracy {found:.2%} (wanted: {how.wanted:.1%}) in {seconds:.1f} s          ")
        if options.output is not None:
            options.output.mkdir(parents=True, exist_ok=True)
            tilewright.save(trained, options.output / f"{name}.onnx")
            train.save_chart(options.output / f"{name}.png", {"loss": how.losses}, f"{name}: loss by step")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
