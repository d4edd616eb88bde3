"""The tuner: the model ranks, measurements decide, and are kept; candidates of a product are all right."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from loop_running import run_compiled

import tilewright
from tilewright.backends.cpu.executable import CpuExecutable
from tilewright.backends.cpu.kernels.gemm import Gemm, build_gemm, scratch_elements, work_units
from tilewright.backends.cpu.kernels.pack import packed_panels
from tilewright.backends.cpu.machine import machine, machine_of_width
from tilewright.backends.cpu.tune_gemm import gemm_candidates, gemm_runner
from tilewright.backends.cpu.tuner import Candidate, Tuner, choose
from tilewright.graph.diagnostics import UsageError
from tilewright.graph.dtypes import f32

# By the model "a" is the best of five; measured, "c" is, and "e", which the model likes least, is better still.
ESTIMATES = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0, "e": 5.0}
MILLISECONDS = {"a": 2.0, "b": 1.5, "c": 0.5, "d": 1.0, "e": 0.1}
CANDIDATES = [Candidate(label, label, estimate) for label, estimate in reversed(ESTIMATES.items())]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    chosen = tmp_path / "kernels"
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(chosen))
    return chosen


def sleeping(label: str) -> Callable[[], None]:
    return lambda: time.sleep(MILLISECONDS[label] * 0.02)


def never(label: str) -> Callable[[], None]:
    raise AssertionError(f"{label} is measured")


def test_off_takes_the_model_s_word() -> None:
    tuner = Tuner(machine())
    assert tuner.choose("key", CANDIDATES, never) == "a"
    [choice] = tuner.report()
    assert (choice["winner"], choice["source"]) == ("a", "model")
    assert choice["candidates"][0] == {"label": "a", "estimate": 1.0, "seconds": None}
    assert choose("key", CANDIDATES, never, "off", machine()) == "a"


def test_fast_measures_three_and_full_all() -> None:
    fast = Tuner(machine(), "fast")
    assert fast.choose("key", CANDIDATES, sleeping) == "c"
    [choice] = fast.report()
    assert choice["source"] == "measured"
    assert [each["label"] for each in choice["candidates"] if each["seconds"]] == ["a", "b", "c"]
    assert Tuner(machine(), "full").choose("key", CANDIDATES, sleeping) == "e"


def test_what_was_measured_is_kept() -> None:
    assert Tuner(machine(), "full").choose("key", CANDIDATES, sleeping) == "e"
    again = Tuner(machine(), "fast")
    assert again.choose("key", CANDIDATES, never) == "e"
    assert again.report()[0]["source"] == "stored"
    assert Tuner(machine_of_width(128), "off").choose("key", CANDIDATES, never) == "a"
    with pytest.raises(AssertionError, match="is measured"):
        Tuner(machine(), "fast").choose("another key", CANDIDATES, never)


def test_a_tuner_measures_once_and_not_beyond_its_time() -> None:
    tuner = Tuner(machine(), "fast", seconds=1e-9)
    assert tuner.choose("first", CANDIDATES, sleeping) == "c"
    assert tuner.choose("first", CANDIDATES, never) == "c"
    assert tuner.choose("second", CANDIDATES, never) == "a"
    assert [choice["source"] for choice in tuner.report()] == ["measured", "model"]


def test_a_strange_mode_is_refused() -> None:
    with pytest.raises(UsageError, match="off, fast, full"):
        Tuner(machine(), "always")


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("m", "n", "k"), [(33, 70, 300), (2, 300, 40)])
def test_candidates_of_a_product_compute_it(m: int, n: int, k: int, packed: bool) -> None:
    gemm = Gemm(m, n, k, f32, k, 1, n, packed, n, 1)
    candidates = gemm_candidates(machine(), gemm, m, n, k)
    assert len(candidates) >= 3
    assert len({candidate.label for candidate in candidates}) == len({candidate.value for candidate in candidates})
    assert all(0 < candidate.estimate < 1 for candidate in candidates)
    random = np.random.default_rng(4)
    a, b = (random.integers(-3, 4, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    for candidate in candidates:
        tiling, c = candidate.value, np.zeros(m * n, np.float32)
        scratch = np.zeros(max(1, scratch_elements(gemm, tiling)), np.float32)
        right = packed_panels(b, tiling.columns) if packed else b.reshape(-1)
        given = [a.reshape(-1), right, c, scratch, 0, work_units(gemm, tiling, m, n), 0]
        run_compiled(build_gemm("product", gemm, tiling), given, machine().vector_bits)
        assert np.array_equal(c.reshape(m, n), a @ b), candidate.label


def test_a_product_is_tuned() -> None:
    m, n, k = 20, 40, 30
    gemm = Gemm(m, n, k, f32, k, 1, n)
    tuner = Tuner(machine(), "fast")
    candidates = gemm_candidates(machine(), gemm, m, n, k)
    chosen = tuner.choose((gemm.m, n, k), candidates, gemm_runner(machine(), gemm, m, n, k))
    assert chosen in [candidate.value for candidate in candidates]
    [choice] = tuner.report()
    measured = [each for each in choice["candidates"] if each["seconds"] is not None]
    assert len(measured) == 3
    assert all(0 < each["seconds"] < 1 for each in measured)


@pytest.mark.parametrize("mode", ["off", "fast"])
def test_an_executable_s_products_are_tuned(mode: str) -> None:
    """With "off" a tuner takes the default or what its model likes better."""
    random = np.random.default_rng(2)
    x, w = (random.integers(-3, 4, shape).astype(np.float32) for shape in ((130, 100), (100, 200)))
    b = tilewright.Builder("tuned")
    b.output(b.relu(b.input("x", f32[130, 100]) @ w), "y")
    executable = tilewright.compile(b.build(), target="cpu", threads=1)
    assert isinstance(executable, CpuExecutable)
    executable._shared.tuner = tuner = Tuner(machine(), mode)
    executable._programs.clear()
    executable._last = None
    assert np.array_equal(executable.run({"x": x})["y"], np.maximum(x @ w, 0))
    [choice] = tuner.report()
    assert choice["source"] == ("model" if mode == "off" else "measured")
