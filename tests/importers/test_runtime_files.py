"""Files that ONNX Runtime's offline optimizer and quantizer write: read, run, written back, optimized."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx
import pytest
from model_equality import first_difference
from runtime_models import NETWORKS, feeds, optimized, quantized

import tilewright
from tilewright.graph.diagnostics import ExecutionError

FileOf: TypeAlias = Callable[[str, str], Path]

onnxruntime = pytest.importorskip("onnxruntime")

# How a file came to be: the quantizer's step, then the optimizer's level.
STEPS = [
    f"{how}-{level}".strip("-")
    for how in ("", "dynamic", "qdq", "qoperator")
    for level in ("", "EXTENDED", "ALL")
    if how or level
]
# What one step of 8 bits, more or less, may do to the result, as a share of its greatest element.
TOLERANCES = {"": 1e-4, "dynamic": 0.03, "qdq": 0.06, "qoperator": 0.06}


@pytest.fixture(scope="module")
def file_of(tmp_path_factory: pytest.TempPathFactory) -> FileOf:
    """`file_of(network, steps)`: the file, made once."""
    folder = tmp_path_factory.mktemp("runtime")

    def make(name: str, steps: str) -> Path:
        path = folder / f"{name}-{steps or 'plain'}.onnx"
        if path.exists():
            return path
        if not steps:
            onnx.save(NETWORKS[name][0](), path)
            return path
        *before, last = steps.split("-")
        source = make(name, "-".join(before))
        return optimized(source, path, last) if last.isupper() else quantized(source, path, last, name)

    return make


def run(path: Path | bytes, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """What ONNX Runtime computes, its optimizations disabled."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    model = path if isinstance(path, bytes) else str(path)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0]


def close(found: np.ndarray, wanted: np.ndarray, tolerance: float) -> None:
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    assert np.abs(found - wanted).max() <= tolerance * max(np.abs(wanted).max(), 1e-6)


CASES = [(name, steps) for name in NETWORKS for steps in STEPS]


@pytest.mark.parametrize(("name", "steps"), CASES)
def test_files_of_onnx_runtime(name: str, steps: str, file_of: FileOf) -> None:
    path = file_of(name, steps)
    inputs = feeds(name)
    wanted = run(path, inputs)
    tolerance = TOLERANCES[steps.split("-")[0] if steps.split("-")[0] in TOLERANCES else ""]
    module = tilewright.load(path)
    assert all(op.definition.is_known for op in module.walk())

    if any(op.domain == "com.microsoft.nchwc" for op in module.walk()):
        with pytest.raises(ExecutionError, match="layout of the machine"):
            tilewright.compile(module, target="reference").run(inputs)
    else:
        (found,) = tilewright.compile(module, target="reference").run(inputs).values()
        close(found, wanted, tolerance)

    written = tilewright.to_bytes(module)
    assert first_difference(onnx.load(path), onnx.ModelProto.FromString(written)) is None
    assert str(tilewright.parse(str(module), weights=module)) == str(module)

    better = tilewright.to_bytes(tilewright.optimize(module).module)
    close(run(better, inputs), wanted, max(tolerance / 10, 1e-4))


def test_the_cases_hold_the_operators_that_matter(file_of: FileOf) -> None:
    nodes = [node for case in CASES for node in onnx.load(file_of(*case)).graph.node]
    ours = {node.op_type for node in nodes if node.domain == "com.microsoft" or node.op_type.startswith("Simplified")}
    assert {
        "FusedConv", "FusedGemm", "FusedMatMul", "BiasGelu", "Gelu", "QuickGelu", "SkipLayerNormalization",
        "SimplifiedLayerNormalization", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "MatMulIntegerToFloat", "QGemm",
        "QLinearAdd", "QLinearMul", "QLinearSigmoid", "QLinearConv", "QLinearConcat", "QLinearAveragePool",
    } <= ours  # fmt: skip
