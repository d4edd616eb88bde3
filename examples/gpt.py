"""A small GPT that learns to write letter by letter, from eight sonnets of Shakespeare.

    python examples/gpt.py --steps 300     # the loss, a sample, and out/gpt/{gpt,step}.onnx

Two blocks of a pre-norm transformer (Radford et al. 2019). out/gpt/step.onnx is the whole training step: forward,
backward, AdamW and its schedule, in standard ONNX operators.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# As in examples/digits.py.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

import tilewright
from tilewright import Builder, i64, nn, train

TEXT = Path(__file__).parent / "data" / "sonnets.txt"
OUTPUT = Path("out") / "gpt"
CONTEXT, WIDTH, HEADS, BLOCKS, BATCH = 48, 64, 4, 2, 16


class Block(nn.Layer):
    """Attention, then two linear layers, each on normalized input and added to it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.Residual(
            nn.Sequential(nn.LayerNorm(width), nn.MultiHeadAttention(width, heads, causal=True))
        )
        wide = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width)
        )
        self.mlp = nn.Residual(wide)

    def build(self, b: Builder, *tensors: Any) -> Any:
        return self.mlp(self.attention(tensors[0]))


class GPT(nn.Layer):
    """Letters [batch, CONTEXT] to scores of the next letter [batch, CONTEXT, letters]."""

    def __init__(self, letters: int) -> None:
        super().__init__()
        small = nn.init.Normal(0.02)
        self.letters, self.places = nn.Embedding(letters, WIDTH, small), nn.Embedding(CONTEXT, WIDTH, small)
        self.blocks = nn.Sequential(*(Block(WIDTH, HEADS) for _ in range(BLOCKS)))
        self.norm, self.scores = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, letters, init=small)

    def build(self, b: Builder, *tensors: Any) -> Any:
        x = self.letters(tensors[0]) + self.places(b.const(np.arange(CONTEXT)))
        return self.scores(self.norm(self.blocks(x)))


def windows(text: np.ndarray, count: int) -> Any:
    """For each epoch, `count` batches of stretches of the text and of the same shifted by one letter."""

    def epoch(number: int) -> Iterator[dict[str, np.ndarray]]:
        random = np.random.default_rng([0, number])
        for _ in range(count):
            starts = random.integers(0, len(text) - CONTEXT, BATCH)
            both = np.stack([text[start : start + CONTEXT + 1] for start in starts])
            yield {"x": both[:, :-1], "target": both[:, 1:]}

    return epoch


def write(model: tilewright.Module, alphabet: str, start: str, count: int) -> str:
    """`start`, and `count` letters drawn after it."""
    run = tilewright.compile(model, target="reference").run
    random, text = np.random.default_rng(0), start
    for _ in range(count):
        seen = text[-CONTEXT:]
        x = np.zeros((1, CONTEXT), np.int64)
        x[0, : len(seen)] = [alphabet.index(letter) for letter in seen]
        scores = run({"x": x})["scores"][0, len(seen) - 1].astype(np.float64) / 0.7
        chances = np.exp(scores - scores.max())
        text += alphabet[random.choice(len(alphabet), p=chances / chances.sum())]
    return text


def train_gpt(steps: int, target: str = "cpu") -> tuple[list[float], tilewright.Module, tilewright.Module, str]:
    """The loss of each step, the trained model, the training step, and the alphabet."""
    text = TEXT.read_text(encoding="utf-8")
    alphabet = "".join(sorted(set(text)))
    numbers = np.array([alphabet.index(letter) for letter in text])
    model = GPT(len(alphabet)).initialize(seed=0).to_model(x=i64["n", CONTEXT], outputs=("scores",))
    schedule = train.WarmUp(20, train.Cosine(3e-3, max(steps - 20, 1), final=3e-4))
    optimizer = train.AdamW(schedule, weight_decay=0.1, decay_vectors=False)
    step = train.step(model, nn.CrossEntropyLoss(axis=-1), optimizer, clip_norm=1.0)
    trainer = train.Trainer(step, target)

    def report(run: train.Run) -> None:
        if len(run.losses) % 10 == 0 and sys.stderr.isatty():
            print(f"\rstep {len(run.losses)}/{steps}  loss {run.losses[-1]:.3f}", end="", file=sys.stderr, flush=True)

    losses = train.fit(trainer, windows(numbers, steps), 1, on_step=report).losses
    return losses, trainer.trained(model), step, alphabet


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--target", default="cpu", help="what runs the training step")
    options = parser.parse_args()
    losses, model, step, alphabet = train_gpt(options.steps, options.target)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    tilewright.save(model, OUTPUT / "gpt.onnx")
    tilewright.save(step, OUTPUT / "step.onnx")
    train.save_chart(OUTPUT / "loss.png", {"loss": losses}, "loss by step")
    start = "\r" if sys.stderr.isatty() else ""
    print(f"{start}loss {losses[0]:.3f} to {losses[-1]:.3f} in {len(losses)} steps; a sample:\n", file=sys.stderr)
    print(write(model, alphabet, "When ", 200))
    return 0


if __name__ == "__main__":
    sys.exit(main())
