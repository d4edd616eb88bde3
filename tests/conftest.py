"""Configuration of the whole suite: nothing but what every test needs."""

from __future__ import annotations

import os

import pytest

# A test run must not read or fill the user's own settings and caches.
os.environ.pop("TILEWRIGHT_DEBUG", None)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Name the versions that results depend on, so that a failing log tells what it ran on."""
    import numpy
    import onnx

    import tilewright

    return [f"tilewright {tilewright.__version__}, onnx {onnx.__version__}, numpy {numpy.__version__}"]
