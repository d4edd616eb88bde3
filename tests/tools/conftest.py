"""What the tests of commands share: running one, and a small model to run it on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import tilewright
from tilewright import Builder, f32
from tilewright.tools import cli


class Result(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """`command("optimize", path, "--json")` runs a command in this process."""

    def call(*arguments: str | Path) -> Result:
        capsys.readouterr()
        try:
            code = cli.main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Result(code, *capsys.readouterr())

    return call


def small_model() -> tilewright.Module:
    """Two layers with an Identity between them that no one needs, for any batch."""
    rng = np.random.default_rng(0)
    b = Builder("small", opset=17)
    x = b.input("x", f32["batch", 4])
    hidden = b.relu(x @ rng.standard_normal((4, 8)).astype(np.float32))
    kept = b.identity(hidden)
    kept.value.name = "kept"
    b.output(kept @ rng.standard_normal((8, 3)).astype(np.float32), "y")
    return b.build()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The path of the small model."""
    path = tmp_path / "small.onnx"
    tilewright.save(small_model(), path)
    return path
