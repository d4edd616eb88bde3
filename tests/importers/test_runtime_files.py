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


def test_layer_normalization_before_the_standard_has_it() -> None:
    """ONNX Runtime writes it into models of any opset. It stays as it is until the opset is raised."""
    rng = np.random.default_rng(0)
    x, scale, bias = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 3, 8), 8, 8))
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("LayerNormalization", ["x", "s", "b"], ["y"], epsilon=1e-3, axis=-1)], "g",
        [onnx.helper.make_tensor_value_info("x", 1, x.shape)], [onnx.helper.make_tensor_value_info("y", 1, x.shape)],
        [onnx.numpy_helper.from_array(scale, "s"), onnx.numpy_helper.from_array(bias, "b")],
    )  # fmt: skip
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 12)], ir_version=7)
    encoded = model.SerializeToString()
    wanted = run(encoded, {"x": x})
    module = tilewright.load(encoded)
    (found,) = tilewright.compile(module, target="reference").run({"x": x}).values()
    close(found, wanted, 1e-5)
    assert first_difference(model, onnx.ModelProto.FromString(tilewright.to_bytes(module))) is None
    assert str(tilewright.parse(str(module), weights=module)) == str(module)
    optimized = tilewright.optimize(module).module
    close(run(tilewright.to_bytes(optimized), {"x": x}), wanted, 1e-5)
    raised = onnx.ModelProto.FromString(tilewright.to_bytes(optimized, opset=17))
    assert [node.op_type for node in raised.graph.node] == ["LayerNormalization"]
    onnx.checker.check_model(raised, full_check=True)
    lowered = onnx.ModelProto.FromString(tilewright.to_bytes(tilewright.load(raised.SerializeToString()), opset=13))
    assert "LayerNormalization" not in {node.op_type for node in lowered.graph.node}


@pytest.mark.parametrize("name", ["MemcpyFromHost", "MemcpyToHost"])
def test_copies_between_devices(name: str) -> None:
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(name, ["x"], ["y"])], "g", [onnx.helper.make_tensor_value_info("x", 1, ["n", 2])],
        [onnx.helper.make_tensor_value_info("y", 1, ["n", 2])],
    )  # fmt: skip
    module = tilewright.load(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]))
    x = np.ones((3, 2), np.float32)
    assert (tilewright.compile(module, target="reference").run({"x": x})["y"] == x).all()
