"""Fourier transforms on the target cpu, by one product or by two, against numpy in f64."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
from tilewright.graph.diagnostics import ExecutionError, TilewrightError
from tilewright.graph.dtypes import f32, from_numpy
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


@pytest.mark.parametrize("target", ["cpu", "reference"])
@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize(("form", "onesided", "has_window"), [
    ("bare", 1, True), ("real", 1, True), ("real", 0, False), ("complex", 0, True),
])  # fmt: skip
def test_frames(form: str, onesided: int, has_window: bool, is_open: bool, target: str) -> None:
    """A signal as the standard has it, and without its last dim, as PyTorch's exporters write it."""
    size, step = 16, 5
    parts = {"bare": (), "real": (1,), "complex": (2,)}[form]
    window = np.hanning(size).astype(np.float32)
    b = Builder("frames")
    dims = ("batch", "samples") if is_open else (2, 61)
    signal = b.input("x", f32[(*dims, *parts)])
    made = b.stft(signal, np.array(step), window if has_window else None, np.array(size), onesided=onesided)
    assert made.shape is not None
    b.output(made, "y")
    module = b.build()
    executable = tilewright.compile(module, target=target, threads=1)
    for batch, samples in [(2, 61), (1, 16), (3, 100)] if is_open else [(2, 61)]:
        x = random.normal(size=(batch, samples, *parts)).astype(np.float32)
        numbers = x.astype(np.float64) if form == "bare" else x[..., 0] + (1j * x[..., 1] if form == "complex" else 0)
        frames = [numbers[:, at : at + size] for at in range(0, samples - size + 1, step)]
        wanted = np.fft.fft(np.stack(frames, 1) * (window if has_window else 1))
        wanted = wanted[..., : size // 2 + 1] if onesided else wanted
        found = executable.run({"x": x})["y"]
        np.testing.assert_allclose(found, np.stack([wanted.real, wanted.imag], -1), rtol=0, atol=1e-5)
    if target == "cpu":
        assert executable.report()["host_steps"] == []
        assert executable.report()["segments"] == 1
    elif is_open:
        short = np.zeros((2, size - 1, *parts), np.float32)
        with pytest.raises(ExecutionError, match="frames of 16 samples, 5 apart, of a signal of 15: there are none"):
            executable.run({"x": short})


def test_a_signal_has_two_or_three_dims() -> None:
    b = Builder("frames")
    with pytest.raises(TilewrightError, match="not of rank 1"):
        b.stft(b.input("x", f32["n"]), np.array(5), None, np.array(16))
