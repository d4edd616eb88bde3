"""What the standard forbids and ONNX Runtime runs: read with that meaning, written as it came."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from model_equality import first_difference
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tilewright
from tilewright.graph.diagnostics import ExportError
from tilewright.graph.printer import print_module

onnxruntime = pytest.importorskip("onnxruntime")

FORMS = (
    ((2, 3), (4, 2, 3)),
    ((1, 3), (2, 3)),
    ((2, 1), (2, 3)),
    ((1,), (3,)),
    ((2, 3), (1, 2, 3)),
    ((1, 3, 1), (2, 1, 4)),
)
PADS = [0, 4, 0, 5], [5, 7, 9, 1], [0, -1, 0, 2], [0, 2, 0, -1]


def wrapping_pad(opset: int, pads: list[int]) -> onnx.ModelProto:
    if opset < 11:
        node, constants = helper.make_node("Pad", ["x"], ["y"], mode="wrap", pads=pads), []
    else:
        node = helper.make_node("Pad", ["x", "pads"], ["y"], mode="wrap")
        constants = [helper.make_tensor("pads", TensorProto.INT64, [4], pads)]
    return model_of([node], {"x": (2, 3)}, opset, constants)


def prelu(opset: int, x: tuple[int, ...], slope: tuple[int, ...]) -> onnx.ModelProto:
    return model_of([helper.make_node("PRelu", ["x", "slope"], ["y"])], {"x": x, "slope": slope}, opset)


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, ...]],
    opset: int,
    constants: list[onnx.TensorProto] | None = None,
) -> onnx.ModelProto:
    """`nodes`, which compute y, between operations that a pass can drop."""
    graph = helper.make_graph(
        [*nodes, helper.make_node("Identity", ["y"], ["same"]), helper.make_node("Transpose", ["same"], ["z"])],
        "beyond",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in inputs.items()],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=6)


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)[0]


def check(model: onnx.ModelProto, tmp_path: Path, with_reference: bool) -> None:
    """Equal results of both runtimes, ours, and ONNX Runtime after O2; equal files without a pass."""
    random = np.random.default_rng(0)
    feeds = {
        each.name: random.standard_normal([dim.dim_value for dim in each.type.tensor_type.shape.dim], np.float32)
        for each in model.graph.input
    }
    expected = run(model, feeds)
    if with_reference:
        np.testing.assert_array_equal(ReferenceEvaluator(model).run(None, feeds)[0], expected)
    module = tilewright.load(model.SerializeToString())
    np.testing.assert_array_equal(tilewright.compile(module, target="reference").run(feeds)["z"], expected)
    path = tmp_path / "same.onnx"
    for same in (module, tilewright.parse(print_module(module), weights=module)):
        tilewright.save(same, path)
        assert first_difference(model, onnx.load(path)) is None
    tilewright.optimize(module)
    tilewright.save(module, path)
    optimized = onnx.load(path)
    assert optimized.graph.node[0].op_type == model.graph.node[0].op_type
    assert len(optimized.graph.node) < len(model.graph.node)
    np.testing.assert_array_equal(run(optimized, feeds), expected)


@pytest.mark.parametrize("opset", [2, 11, 13, 18, 19])
@pytest.mark.parametrize("pads", PADS)
def test_pad_wraps(opset: int, pads: list[int], tmp_path: Path) -> None:
    check(wrapping_pad(opset, pads), tmp_path, min(pads) >= 0)  # onnx.reference has no negative pads


def test_a_new_pad_does_not_wrap_in_an_older_opset(tmp_path: Path) -> None:
    module = tilewright.load(wrapping_pad(19, PADS[0]).SerializeToString())
    with pytest.raises(ExportError, match="Pad has no mode 'wrap' before opset 19"):
        tilewright.save(module, tmp_path / "older.onnx", opset=18)


@pytest.mark.parametrize("opset", [7, 9, 16])
@pytest.mark.parametrize(("x", "slope"), FORMS)
def test_a_slope_broadcasts_the_data(opset: int, x: tuple[int, ...], slope: tuple[int, ...], tmp_path: Path) -> None:
    check(prelu(opset, x, slope), tmp_path, with_reference=True)


def test_a_slope_that_broadcasts_the_data_is_refused_where_it_ran_along_the_channels(tmp_path: Path) -> None:
    module = tilewright.load(prelu(7, (2, 1), (3,)).SerializeToString())
    with pytest.raises(ExportError, match="broadcast in a way that does not exist before opset 7"):
        tilewright.save(module, tmp_path / "older.onnx", opset=6)
