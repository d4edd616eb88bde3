"""Fine-tune the last layers of a real ONNX file, PP-OCR's classifier of text orientation, on rows of written digits.

    python examples/fine_tune.py           # accuracy before and after; out/fine_tune/orientation.onnx is the result

The network says whether a line of text stands upright or on its head. It was trained on print; here its last three
layers learn from 256 lines of handwriting, and are tested on lines made of other digits. What comes before them does
not change, so the file is cut in two there: the front runs once, the back is trained on its results.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

# As in examples/digits.py.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from digits import DATA

import tilewright
from model_zoo import Unavailable, fetch
from tilewright import train

# Names in the file: where it is cut, the layers behind, and the scores before the softmax.
BORDER, LAYERS, SCORES = "elementwise_add_6", ["conv_last*", "fc_0.*"], "linear_1.tmp_1"
OUTPUT = Path("out") / "fine_tune"
DIGITS = 5


def lines(images: np.ndarray, count: int, seed: int) -> dict[str, np.ndarray]:
    """`count` lines of five digits as f32[count, 3, 48, 192] from -1 (ink) to 1; every other one on its head."""
    random = np.random.default_rng(seed)
    chosen = images[random.integers(0, len(images), (count, DIGITS))]
    large = chosen.repeat(4, axis=2).repeat(4, axis=3)  # 32 x 32 pixels a digit
    row = large.transpose(0, 2, 1, 3).reshape(count, 32, 32 * DIGITS)
    paper = np.pad(row, ((0, 0), (8, 8), (16, 16)))
    target = np.arange(count) % 2
    paper[target == 1] = paper[target == 1, ::-1, ::-1]
    x = (1 - paper.astype(np.float32) / 8)[:, None].repeat(3, axis=1)
    return {"x": x, "target": target}


def part(**ends: str) -> tilewright.Module:
    """The network before (outputs=...) or behind (inputs=...) a tensor."""
    module = tilewright.load(fetch("ppocr-cls"))
    options = " ".join(f'{side}=["{name}"]' for side, name in ends.items())
    tilewright.PassManager.parse(f"cut{{{options}}}").run(module)
    return module


def features(data: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What the front of the network makes of the images."""
    run = tilewright.compile(part(outputs=BORDER), target="reference").run
    parts = [run({"x": data["x"][start : start + 16]})[BORDER] for start in range(0, len(data["x"]), 16)]
    return {BORDER: np.concatenate(parts), "target": data["target"]}


def accuracy(back: tilewright.Module, data: dict[str, np.ndarray]) -> float:
    (scores,) = tilewright.compile(back, target="reference").run({BORDER: data[BORDER]}).values()
    return float((scores.argmax(axis=1) == data["target"]).mean())


def run(training: int = 256, testing: int = 128, epochs: int = 8) -> tuple[float, float, tilewright.Module]:
    """The accuracy before and after, and the whole network with its new layers."""
    with np.load(DATA) as file:
        images = file["images"]
    first, second = (features(lines(*each)) for each in ((images[:1400], training, 0), (images[1400:], testing, 1)))
    back = part(inputs=BORDER)
    step = train.step(back, "cross-entropy", train.Adam(0.03), params=LAYERS, output=SCORES)
    trainer = train.Trainer(step)
    train.fit(trainer, train.Dataset(first).shuffle(seed=0).batch(32), epochs)
    before, after = accuracy(back, second), accuracy(trainer.trained(back), second)
    # The parts have the names of the whole.
    return before, after, trainer.trained(fetch("ppocr-cls"))


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    try:
        before, after, trained = run()
    except Unavailable as reason:
        print(reason)
        return 2
    OUTPUT.mkdir(parents=True, exist_ok=True)
    tilewright.save(trained, OUTPUT / "orientation.onnx")
    print(f"orientation of lines of handwritten digits: {before:.1%} before, {after:.1%} after fine-tuning")
    return 0


if __name__ == "__main__":
    sys.exit(main())
