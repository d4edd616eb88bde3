"""The examples do what they say. Each runs on one thread of its own, with the seeds it has."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import model_zoo
import tilewright

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(folder: Path, name: str, *arguments: str) -> str:
    """The standard output of an example that ran in `folder`."""
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("name", "least"), [("softmax", 94.0), ("mlp", 97.0), ("cnn", 98.5)])
def test_digits(name: str, least: float, tmp_path: Path) -> None:
    out = run(tmp_path, "digits.py", name, "--output", "out")
    found = re.search(r"accuracy ([\d.]+)%", out)
    assert found is not None, out
    assert float(found[1]) >= least
    assert tilewright.load(tmp_path / "out" / f"{name}.onnx").main.output_names == ("scores",)
    assert (tmp_path / "out" / f"{name}.png").exists()


def test_fifty_layers(tmp_path: Path) -> None:
    out = run(tmp_path, "initializers.py")
    numbers = [[float(number) for number in re.findall(r"\d\.\d\de[+-]\d\d", line)] for line in out.splitlines()]
    vanishing, steady, exploding = ((each[1] / each[0], each[3] / each[2]) for each in numbers[:3])
    assert max(vanishing) < 1e-12
    assert all(0.2 < ratio < 5 for ratio in steady)
    assert min(exploding) > 1e7
    assert (tmp_path / "out" / "initializers" / "forward.png").exists()


def test_fine_tuning(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        model_zoo.fetch("ppocr-cls")
    except model_zoo.Unavailable as reason:
        pytest.skip(str(reason))
    import fine_tune

    before, after, trained = fine_tune.run(training=64, testing=64, epochs=8)
    assert after > before + 0.1
    original = tilewright.load(model_zoo.fetch("ppocr-cls"))
    changed = {
        str(old.result.name)
        for old, new in zip(original.main.block, trained.main.block, strict=True)
        if old.name == "const" and not old.attributes["value"].same_as(new.attributes["value"])
    }
    assert changed <= {"conv_last_weights", "conv_last_bn_scale", "conv_last_bn_offset", "fc_0.w_0", "fc_0.b_0"}
    assert len(changed) == 5


def test_a_small_gpt(tmp_path: Path) -> None:
    out = run(tmp_path, "gpt.py", "--steps", "40")
    assert out.startswith("When ")
    assert len(out.strip("\n")) > 150
    trainer = tilewright.train.Trainer(tmp_path / "out" / "gpt" / "step.onnx")
    trained = tilewright.load(tmp_path / "out" / "gpt" / "gpt.onnx")
    text = (EXAMPLES / "data" / "sonnets.txt").read_text(encoding="utf-8")
    alphabet = sorted(set(text))
    numbers = np.array([[alphabet.index(letter) for letter in text[:49]]])
    batch = {"x": numbers[:, :-1], "target": numbers[:, 1:]}
    untrained = trainer.step(batch)
    trainer.load_state({**trainer.state, **_parameters(trained, trainer)})
    assert trainer.step(batch) < 3.3 < 4 < untrained


def _parameters(model: tilewright.Module, trainer: tilewright.train.Trainer) -> dict[str, np.ndarray]:
    held = {op.result.name: op.attributes["value"].numpy() for op in model.main.block if op.name == "const"}
    return {name: held[name] for name in trainer.parameters}
