"""`tilewright train`: what it writes, how it stops and goes on, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import f32, nn, train

RANDOM = np.random.default_rng(0)
CENTRES = RANDOM.standard_normal((3, 4)) * 4
LABELS = RANDOM.integers(0, 3, 120)
POINTS = CENTRES[LABELS] + RANDOM.standard_normal((120, 4))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    net = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))
    tilewright.save(net.initialize(0).to_model(x=f32["n", 4]), tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    np.savez(tmp_path / "data.npz", x=POINTS, target=LABELS.astype(np.int32))
    return tmp_path / "data.npz"


def test_a_model_learns(command: Callable[..., Any], model: Path, data: Path) -> None:
    options = ["--epochs", "8", "--learning-rate", "0.02", "--training-form", "--validation", "0.2"]
    result = command("train", model, "--data", data, *options, "--schedule", "cosine", "--warm-up", "3")
    assert result.code == 0, result.err
    assert "epoch 8/8  loss" in result.err
    assert "accuracy" in result.err
    assert "*" in result.out
    trained = tilewright.load(model.with_name("net.trained.onnx"))
    assert not any(op.attr("training_mode") for op in trained.main.block if op.name == "batch_normalization")
    scores = tilewright.compile(trained, target="reference").run({"x": POINTS.astype(np.float32)})["output"]
    assert (scores.argmax(1) == LABELS).mean() > 0.9
    assert model.with_name("net.trained.loss.png").read_bytes()[:4] == b"\x89PNG"


def losses(command: Callable[..., Any], *arguments: Any) -> list[float]:
    result = command("train", *arguments, "--json")
    assert result.code == 0, result.err
    found: list[float] = json.loads(result.out)["losses"]
    return found


def test_ctrl_c_saves_and_resume_goes_on_with_the_same_bits(
    command: Callable[..., Any], model: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [model, "--data", data, "--epochs", "3", "--training-form", "-o", model.with_name("out.onnx")]
    expected = losses(command, *arguments)
    original, calls = train.Trainer.step, [0]

    def step(self: train.Trainer, batch: Any) -> float:
        calls[0] += 1
        if calls[0] == 6:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, batch)

    model.with_name("out.onnx").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(train.Trainer, "step", step)
        result = command("train", *arguments)
    assert result.code == 130
    assert "interrupted after 6 steps" in result.err
    assert not model.with_name("out.onnx").exists()
    saved = model.with_name("out.checkpoint.npz").read_bytes()
    result = command("train", *arguments[:-2], "-o", model.with_name("out.onnx"))
    assert "out.checkpoint.npz.old now\n  note: --resume would have gone on" in result.err
    assert model.with_name("out.checkpoint.npz.old").read_bytes() == saved
    os.replace(model.with_name("out.checkpoint.npz.old"), model.with_name("out.checkpoint.npz"))
    result = command("train", *arguments, "--resume", "--json")
    assert f"resumed at step 6 of {len(expected)}, from" in result.err
    assert json.loads(result.out)["losses"] == expected
    assert "nothing is left to do; a larger --epochs" in command("train", *arguments, "--resume").err


def test_resuming_from_nothing_starts_from_the_beginning(command: Callable[..., Any], model: Path, data: Path) -> None:
    result = command("train", model, "--data", data, "--resume")
    assert result.code == 0
    assert "there is no checkpoint" in result.err
    assert "starts from the beginning" in result.err


def test_a_run_that_ended_trains_on_as_one_of_more_epochs(command: Callable[..., Any], model: Path, data: Path) -> None:
    arguments = [model, "--data", data, "--training-form", "--checkpoint", model.with_name("c.npz")]
    expected = losses(command, *arguments, "--epochs", "4")
    assert losses(command, *arguments, "--epochs", "2") == expected[:8]
    mask = os.umask(0)
    os.umask(mask)
    assert model.with_name("c.npz").stat().st_mode & 0o777 == 0o666 & ~mask
    assert losses(command, *arguments, "--epochs", "4", "--resume") == expected


def test_resuming_another_run_is_refused_or_told(command: Callable[..., Any], model: Path, data: Path) -> None:
    arguments = [model, "--data", data, "--epochs", "1", "-o", model.with_name("out.onnx")]
    assert command("train", *arguments).code == 0
    np.savez(data.with_name("other.npz"), x=POINTS, target=LABELS[::-1])
    before = {path: path.read_bytes() for path in model.parent.iterdir()}
    arguments += ["--resume", "--epochs", "2"]
    for option, value, name in [
        ("--data", data.with_name("other.npz"), "data"),
        ("--loss", "nll", "loss"),
        ("--validation", "0.3", "validation"),
    ]:
        result = command("train", *arguments, option, value)
        assert result.code == 2
        assert f"out.checkpoint.npz is of a run with other {name}\n  note: {name} was " in result.err
    result = command("train", *arguments, "--optimizer", "momentum")
    assert result.code == 2
    assert "it lacks 0.weight_momentum" in result.err
    assert "only it has 0.weight_mean" in result.err
    assert {path: path.read_bytes() for path in model.parent.iterdir()} == before
    result = command("train", *arguments, "--learning-rate", "0.5")
    assert result.code == 0
    assert "this is not the run that was begun: learning-rate was None, and is 0.5" in result.err


def test_no_file_is_written_over_what_is_read(command: Callable[..., Any], model: Path, data: Path) -> None:
    before = {path: path.read_bytes() for path in model.parent.iterdir()}
    twice = model.with_name("twice.onnx")
    for options, message in [
        (["--checkpoint", data], "the checkpoint and the data are one file"),
        (["-o", data], "the output and the data are one file"),
        (["--plot", model], "the plot and the model are one file"),
        (["-o", twice, "--export", twice], "the output and the training step are one file"),
        (["-o", twice, "--checkpoint", twice], "the checkpoint and the output are one file"),
    ]:
        result = command("train", model, "--data", data, *options)
        assert result.code == 2
        assert message in result.err
    np.savez(model.with_name("mine.npz"), x=POINTS)
    result = command("train", model, "--data", data, "--checkpoint", model.with_name("mine.npz"))
    assert "mine.npz is no checkpoint, and stays" in result.err
    model.with_name("mine.npz").unlink()
    assert {path: path.read_bytes() for path in model.parent.iterdir()} == before
    assert command("train", model, "--data", data, "-o", model).code == 0


def test_a_loss_of_scores_behind_a_softmax_is_told(command: Callable[..., Any], data: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.Operator("softmax", axis=-1))
    tilewright.save(net.initialize(0).to_model(x=f32["n", 4], outputs=("probs",)), data.with_name("probs.onnx"))
    result = command("train", data.with_name("probs.onnx"), "--data", data)
    assert result.code == 0
    assert "warning[train/probabilities]: the loss takes scores, and 'probs' comes from Softmax" in result.err
    name = re.search(r"--output-name (\w+)", result.err)
    assert name is not None
    result = command("train", data.with_name("probs.onnx"), "--data", data, "--output-name", name[1])
    assert "warning" not in result.err
    assert f"the loss is cross_entropy of '{name[1]}'" in result.err


def test_the_step_can_be_exported(command: Callable[..., Any], model: Path, tmp_path: Path) -> None:
    result = command("train", model, "--optimizer", "momentum", "--export", tmp_path / "step.onnx")
    assert result.code == 0, result.err
    assert "form for inference" in result.err
    trainer = train.Trainer(tmp_path / "step.onnx")
    assert "0.weight_momentum" in trainer.state


def test_only_some_parameters(command: Callable[..., Any], model: Path, data: Path) -> None:
    losses(command, model, "--data", data, "--params", "4.*", "--optimizer", "sgd")
    before, after = (
        {op.result.name: op.attributes["value"].numpy() for op in module.main.block if op.name == "const"}
        for module in (tilewright.load(model), tilewright.load(model.with_name("net.trained.onnx")))
    )
    changed = {name for name in before if name and not np.array_equal(before[name], after[name])}
    assert changed == {"4.weight", "4.bias"}


def test_a_memory_budget_changes_no_bit(command: Callable[..., Any], model: Path, data: Path) -> None:
    arguments = [model, "--data", data, "--training-form"]
    plain = losses(command, *arguments)
    result = command("train", *arguments, "--memory-budget", "90%", "--json")
    assert "rematerialize/peak" in result.err
    assert " kB of results are alive instead of " in result.err
    assert json.loads(result.out)["losses"] == plain


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to do"),
        (["--data", "data.npz", "--loss", "hinge"], "neither a loss nor an output"),
        (["--data", "data.npz", "--target-name", "labels"], "has no array 'labels'"),
        (["--data", "data.npz", "-o", "nowhere/out.onnx"], "the folder of the output, nowhere, does not exist"),
        (["--data", "data.npz", "-o", "."], "the output . is a folder"),
        (["--data", "data.npz", "-o", "nowhere/"], "the output nowhere/ is a folder that does not exist"),
        (["--data", "data.npz", "--plot", "."], "the plot . is a folder"),
        (["--data", "data.npz", "--checkpoint", "no/c.npz"], "the folder of the checkpoint, no, does not exist"),
        (["--data", "data.npz", "--params", "zork.*"], "the parameters are 0.weight, 0.bias, "),
        (["--data", "data.npz", "--params", "zork"], "those of floats are 0.weight, 0.bias, "),
        (["--export", "no/step.onnx"], "the folder of the training step, no, does not exist"),
        (["--data", "date.npz"], "error[file/missing]: there is no file date.npz\n  note: did you mean data.npz?"),
        (["--data", "net.onnx"], "error[data/file]: net.onnx is no .npz file of arrays\n"),
        (["--data", "data.npz", "--validation", "0.001"], "leaves one side empty"),
        (["--data", "bad.npz", "--detect-anomaly"], "'x' has NaN elements before the step runs"),
        (["--data", "bad.npz"], "the loss is nan"),
        (["--data", "floats.npz"], "the model takes i64"),
        (["--data", "wide.npz"], "'x' is of shape (120, 5), the model takes f32[n, 4]"),
        (["--data", "classes.npz"], "error[data/class]: 'target'[2] is 7, but the classes are 0 to 2"),
        (["--data", "data.npz", "--checkpoint", "bad.npz", "--resume"], "cannot be read"),
        (["--export", "step.onnx", "--schedule", "cosine"], "give --data"),
    ],
)
def test_what_does_not_work_is_told_and_nothing_is_written(
    command: Callable[..., Any], model: Path, data: Path, arguments: list[str], message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(model.parent)
    np.savez("bad.npz", x=POINTS * np.nan, target=LABELS)
    np.savez("classes.npz", x=POINTS, target=np.where(np.arange(len(LABELS)) == 2, 7, LABELS))
    np.savez("floats.npz", x=POINTS, target=LABELS + 0.5)
    np.savez("wide.npz", x=np.ones((120, 5), np.float32), target=LABELS)
    before = sorted(Path().iterdir())
    result = command("train", model, *arguments)
    assert result.code == 2
    assert message in result.err
    assert sorted(Path().iterdir()) == before
