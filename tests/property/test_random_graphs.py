"""Random graphs mean the same after optimization, and say the same after loading, printing and saving.

ONNX Runtime without its optimizations is the judge. `TILEWRIGHT_RANDOM_GRAPHS=3000` looks at more graphs than usual.
"""

from __future__ import annotations

import os

import numpy as np
import onnx
import pytest
from model_equality import first_difference
from random_graphs import RandomGraph, session

import tilewright
from tilewright.graph.diagnostics import DiagnosticLog, ExecutionError
from tilewright.graph.printer import print_module
from tilewright.passes.agreement import agreement

pytest.importorskip("onnxruntime", reason="needs onnxruntime, which says what the graphs compute")

GRAPHS = int(os.environ.get("TILEWRIGHT_RANDOM_GRAPHS", "60"))
CHUNK = 10


def differences(expected: np.ndarray, found: np.ndarray, bits: bool) -> str:
    """How two arrays differ; with `bits` in any element, the sign of zeros left to `signs_agree`."""
    if not bits:
        return agreement(expected, found, 1e-4 if expected.dtype == np.float64 else None).reason
    if (expected.dtype, expected.shape) != (found.dtype, found.shape):
        return f"{found.dtype}{found.shape}, expected {expected.dtype}{expected.shape}"
    # Constants are folded by numpy, whose exp or mean may differ in the last place.
    close = np.allclose(expected, found, rtol=1e-6, atol=0, equal_nan=True) if expected.dtype.kind == "f" else (
        np.array_equal(expected, found)
    )  # fmt: skip
    return "" if close else f"{found.ravel()[:9]}, expected {expected.ravel()[:9]}"


def signs_agree(expected: np.ndarray, found: np.ndarray) -> bool:
    zeros = (expected == 0) & (found == 0)
    return expected.dtype.kind != "f" or bool((np.signbit(expected) == np.signbit(found))[zeros].all())


class Judged:
    """A model, and what ONNX Runtime and the reference interpreter compute for those inputs that both take."""

    def __init__(self, seed: int) -> None:
        graph = RandomGraph(seed, special=seed % 2 == 0)
        self.special = graph.special
        self.model = graph.model()
        self.content = self.model.SerializeToString()
        self.names = [item.name for item in self.model.graph.output]
        onnx.checker.check_model(self.model, full_check=True)
        runtime, reference = session(self.content), tilewright.compile(self.content, "reference")
        self.runs = []
        for feeds in graph.feeds():
            try:
                # First: ONNX Runtime reads past the operands of some nodes that do not fit at these sizes.
                meant = reference.run(feeds)
                self.runs.append((feeds, runtime.run(None, feeds), meant))
            except ExecutionError:
                pass
            except Exception as error:
                if "ONNXRuntimeError" not in str(error):
                    raise

    def check(self) -> None:
        self.check_text()
        self.check_reference()
        self.check_level(1)
        self.check_level(2)
        self.check_level(2, "onnxruntime")

    def check_text(self) -> None:
        module = tilewright.load(self.content, log=DiagnosticLog())
        assert first_difference(self.model, tilewright.to_proto(module)) is None
        again = tilewright.parse(print_module(module), weights=module)
        assert first_difference(self.model, tilewright.to_proto(again)) is None

    def check_level(self, level: int, target: str = "onnx") -> None:
        report = tilewright.optimize(self.content, level, target=target, verify_each=True, log=DiagnosticLog())
        content = tilewright.to_bytes(report.module, target=target)
        written = onnx.ModelProto.FromString(content)
        if target == "onnx":
            assert len(content) <= len(self.content)
            onnx.checker.check_model(written, full_check=True)
        assert [item.name for item in written.graph.output] == self.names
        runtime = session(content)
        for feeds, expected, reference in self.runs:
            for name, wanted, found in zip(self.names, expected, runtime.run(None, feeds), strict=True):
                if level > 1 and not np.isfinite(wanted).all():
                    continue  # another order of sums may overflow elsewhere
                assert differences(wanted, found, level == 1) == "", name
                # ONNX Runtime's Where and its sums of one element lose the sign of a zero.
                assert level > 1 or signs_agree(wanted, found) or signs_agree(reference[name], found), name

    def check_reference(self) -> None:
        for feeds, expected, reference in self.runs:
            if any(value.size == 0 for value in feeds.values()):
                continue  # ONNX Runtime's mean of nothing is 0
            for name, wanted in zip(self.names, expected, strict=True):
                # ONNX Runtime's maxima depend on where a NaN stands, and its pools ignore them.
                assert self.special or differences(wanted, reference[name], False) == "", name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(0, GRAPHS, CHUNK))
def test_random_graphs(first: int) -> None:
    compared = 0
    for seed in range(first, min(first + CHUNK, GRAPHS)):
        judged = Judged(seed)
        compared += len(judged.runs)
        try:
            judged.check()
        except Exception as error:
            raise AssertionError(f"seed {seed}:\n{onnx.printer.to_text(judged.model)}\n{error}") from error
    assert compared >= CHUNK // 2
