"""`tilewright gradient`: the file it writes, its report, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import Builder, f32


@pytest.fixture
def path(tmp_path: Path) -> Path:
    b = Builder("loss")
    x = b.input("x", f32["n", 3])
    w = b.const(np.ones((3, 2), np.float32), name="w")
    y = b.floor(x) @ w + b.tanh(x @ w)
    b.output(b.reduce_sum(y, keepdims=0), "loss")
    b.output(y, "y")
    target = tmp_path / "loss.onnx"
    tilewright.save(b.build(), target)
    return target


def test_the_gradient_is_written_beside_the_model(command: Callable[..., Any], path: Path) -> None:
    result = command("gradient", path, "--of", "loss", "--wrt", "w,x", "-O", "2")
    assert result.code == 0, result.err
    assert "w_grad  f32[3, 2]" in result.out
    assert "floor has no derivative" in result.err
    written = tilewright.load(path.with_suffix(".grad.onnx"))
    assert list(written.main.output_names) == ["loss", "y", "w_grad", "x_grad"]


def test_as_json_with_a_check(command: Callable[..., Any], path: Path) -> None:
    target = path.with_name("out.onnx")
    arguments = ("--of", "loss", "--wrt", "w", "--wrt", "x", "-o", target, "--check", "--json")
    report = json.loads(command("gradient", path, *arguments).out)
    assert report["gradients"] == {"w_grad": "f32[3, 2]", "x_grad": "f32[n, 3]"}
    assert Path(report["output"]) == target
    assert target.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--of", "loss", "--wrt", "v"), "no tensor 'v'"),
        (("--of", "zork", "--wrt", "w"), "the outputs are "),
        (("--of", "loss", "--wrt", "zork"), "inputs and initializers are x, w"),
        (("--of", "loss", "--wrt", "w", "-o", "/"), "the output / is a folder"),
        (("--of", "y", "--wrt", "w"), "a gradient is of a scalar"),
        (("--of", "loss", "--wrt", "x", "--stops", "error"), "floor has no derivative"),
    ],
)
def test_refusals_write_nothing(
    command: Callable[..., Any], path: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = command("gradient", path, *arguments)
    assert result.code == 2
    assert message in result.err
    assert list(path.parent.iterdir()) == [path]


def test_a_wrong_gradient_is_not_written(
    command: Callable[..., Any], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tilewright.graph import opdef

    definition = opdef.lookup("", "Tanh")
    wrong: Any = lambda self, op, grads, b: [grads[0]]  # noqa: E731
    monkeypatch.setattr(type(definition), "gradient", wrong)
    result = command("gradient", path, "--of", "loss", "--wrt", "w", "--check")
    assert result.code == 1
    assert "WRONG" in result.out
    assert list(path.parent.iterdir()) == [path]
