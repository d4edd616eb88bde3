"""Softmax regression, an MLP and a CNN on 1797 handwritten digits of 8 x 8 pixels.

    python examples/digits.py              # all three: accuracy on the fifth of the images that is for testing
    python examples/digits.py --validate   # trained on three fifths, accuracy on another: how recipes were chosen
    python examples/digits.py cnn --target reference

Networks, optimizers and epochs were chosen by what they reach on images for validation, none of which is a test image:
the accuracy that counts is that of networks which were trained on all but the test images. Everything comes from fixed
seeds, so every run gives the same numbers on the same machine.
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

SEED = 0
DATA = Path(__file__).parent / "data" / "digits.npz"


@dataclass
class Recipe:
    """A network and how it is trained. `wanted` is the accuracy that it has to reach."""

    network: nn.Layer
    optimizer: train.Optimizer
    epochs: int
    wanted: float
    loss: nn.losses.Loss = field(default_factory=nn.CrossEntropyLoss)
    augmented: bool = False
    losses: list[float] = field(default_factory=list)


def recipe(name: str, batches: int) -> Recipe:
    """`batches` is how many updates an epoch has."""
    if name == "softmax":
        return Recipe(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), train.SGD(0.5), 40, 0.94)
    if name == "mlp":
        network = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.3), nn.Linear(256, 256), nn.ReLU(),
            nn.Linear(256, 10),
        )  # fmt: skip
        schedule = train.WarmUp(batches, train.Cosine(3e-3, 39 * batches))
        return Recipe(network, train.AdamW(schedule, weight_decay=1e-2), 40, 0.97)
    network = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm(32), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.BatchNorm(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1, bias=False), nn.BatchNorm(128), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.5), nn.Linear(512, 10),
    )  # fmt: skip
    schedule = train.WarmUp(batches, train.Cosine(3e-3, 44 * batches))
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    return Recipe(network, train.AdamW(schedule, weight_decay=1e-2), 45, 0.985, loss, augmented=True)


def shifted(batch: dict[str, np.ndarray], random: np.random.Generator) -> dict[str, np.ndarray]:
    """Each image moved by up to one pixel in each direction."""
    images = np.pad(batch["x"], ((0, 0), (0, 0), (1, 1), (1, 1)))
    rows, columns = random.integers(0, 3, (2, len(images)))
    moved = [image[:, r : r + 8, c : c + 8] for image, r, c in zip(images, rows, columns, strict=True)]
    return {**batch, "x": np.stack(moved)}


def digits(validate: bool = False) -> tuple[train.Dataset, train.Dataset]:
    """Four fifths to train on, one to test with; or to `validate`, a quarter of the four fifths in its place."""
    with np.load(DATA) as file:
        images, labels = file["images"], file["labels"]
    x = images[:, None].astype(np.float32) / 16
    rest, testing = train.Dataset({"x": x, "target": labels.astype(np.int64)}).split(0.2, seed=0)
    return rest.split(0.25, seed=0) if validate else (rest, testing)


def accuracy(model: tilewright.Module, data: train.Dataset) -> float:
    scores = tilewright.compile(model, target="reference").run({"x": data.arrays["x"]})["scores"]
    return float((scores.argmax(axis=1) == data.arrays["target"]).mean())


def run(
    name: str, target: str = "cpu", quiet: bool = False, validate: bool = False
) -> tuple[float, Recipe, tilewright.Module]:
    """Train one of the three; its accuracy on the images it is tested with, and the trained model."""
    training, testing = digits(validate)
    size = 64
    how = recipe(name, len(training.batch(size)))
    model = how.network.initialize(SEED).train().to_model(x=f32["n", 1, 8, 8], outputs=("scores",))
    trainer = train.Trainer(train.step(model, how.loss, how.optimizer, seed=SEED), target)
    batches = training.shuffle(SEED).batch(size)
    if how.augmented:
        batches = batches.augment(shifted, SEED)

    def report(done: train.Run) -> None:
        if not quiet and sys.stdout.isatty():
            recent = np.mean(done.losses[-len(batches) :])
            print(f"\r{name:8} epoch {done.epoch:3}/{how.epochs}  loss {recent:.4f}", end="", flush=True)

    how.losses = train.fit(trainer, batches, how.epochs, on_epoch=report).losses
    trained = train.inference_form(trainer.trained(model))
    return accuracy(trained, testing), how, trained


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="softmax, mlp, cnn; default: all")
    parser.add_argument("--validate", action="store_true", help="leave the test images alone")
    parser.add_argument("--target", default="cpu", help="what runs the training step")
    parser.add_argument("--output", type=Path, help="a folder for trained models and charts of their losses")
    options = parser.parse_args()
    good = True
    for name in options.names or ("softmax", "mlp", "cnn"):
        started = time.perf_counter()
        found, how, trained = run(name, options.target, validate=options.validate)
        good = good and found >= how.wanted
        seconds = time.perf_counter() - started
        start = "\r" if sys.stdout.isatty() else ""
        print(f"{start}{name:8} accuracy {found:.2%} (wanted: {how.wanted:.1%}) in {seconds:.1f} s          ")
        if options.output is not None:
            options.output.mkdir(parents=True, exist_ok=True)
            tilewright.save(trained, options.output / f"{name}.onnx")
            train.save_chart(options.output / f"{name}.png", {"loss": how.losses}, f"{name}: loss by step")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
