"""Configuration of the whole suite: the things that every test may rely on."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

try:
    import model_zoo
except ModuleNotFoundError as error:
    if error.name != "model_zoo":
        raise
    pytest.exit("run the suite as `pytest tests`, so that tests/pytest.ini configures it", returncode=4)

# `*.tw` files are tests too.
pytest_plugins = ["filecheck_plugin"]

# What the user has set for working must not change what the tests see.
os.environ.pop("TILEWRIGHT_DEBUG", None)

# A shared machine stalls now and then, so no deadline; the same examples each time, so that a failure comes
# from the change at hand. `--hypothesis-profile=explore` looks further.
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=2000)
hypothesis.settings.load_profile("repeatable")


def pytest_report_header(config: pytest.Config) -> str:
    """Name the versions that results depend on, so that a failing log tells what it ran on."""
    import numpy
    import onnx

    import tilewright

    versions = {"tilewright": tilewright, "onnx": onnx, "numpy": numpy}
    return ", ".join(f"{name} {module.__version__}" for name, module in versions.items())


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that does not check bounds, whatever the suite runs with: only such code is kept on disk."""
    monkeypatch.delenv("TILEWRIGHT_CHECK_BOUNDS", raising=False)


@pytest.fixture(scope="session")
def network() -> Callable[[str], Path]:
    """`network("ppocr-det")` is the path of a real network; skips, saying why, where it cannot be fetched."""

    def path_of(name: str) -> Path:
        try:
            return model_zoo.fetch(name)
        except model_zoo.Unavailable as reason:
            pytest.skip(str(reason))

    return path_of
