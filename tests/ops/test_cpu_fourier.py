"""Fourier transforms on the target cpu, by one product or by two, against numpy in f64."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
from tilewright.graph.dtypes import from_numpy
from tilewright.graph.model_builder import Builder

random = np.random.default_rng(23)


@pytest.mark.parametrize("size", [1, 7, 64, 127, 128, 144, 200, 512, 1024])
@pytest.mark.parametrize(("parts", "kind"), [
    (1, "forward"), (2, "forward"), (1, "inverse"), (2, "inverse"), (1, "onesided"),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_transforms(size: int, parts: int, kind: str, dtype: type) -> None:
    x = random.normal(size=(2, size, 3, parts)).astype(dtype)
    b = Builder("transform")
    given = b.input("x", from_numpy(x.dtype)[x.shape])
    b.output(b.dft(given, None, np.array(1), inverse=int(kind == "inverse"), onesided=int(kind == "onesided")), "y")
    executable = tilewright.compile(b.build(), target="cpu", threads=2)
    found = executable.run({"x": x})["y"]
    numbers = x[..., 0].astype(np.complex128) + (1j * x[..., 1] if parts == 2 else 0)
    wanted = (np.fft.ifft if kind == "inverse" else np.fft.fft)(numbers, axis=1)
    wanted = wanted[:, : size // 2 + 1] if kind == "onesided" else wanted
    wanted = np.stack([wanted.real, wanted.imag], -1)
    assert found.dtype == dtype
    assert executable.report()["host_steps"] == []
    scale = np.abs(wanted).max()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=scale * (1e-12 if dtype is np.float64 else 1e-6))
