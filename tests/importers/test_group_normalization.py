"""GroupNormalization of opset 18, whose scale has one element per group: ONNX calls it deprecated, runtimes run it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tilewright.importers.onnx import load, to_proto

onnxruntime = pytest.importorskip("onnxruntime")


@pytest.mark.parametrize("channels", [4, "c"])
@pytest.mark.parametrize(("opset", "written"), [(18, 18), (20, 20), (20, 23), (20, 17), (21, 20)])
def test_one_scale_per_group(opset: int, written: int, channels: int | str, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    scale, bias = (rng.normal(size=2 if opset < 21 else 4).astype(np.float32) for _ in range(2))
    x = rng.normal(size=(2, 4, 3, 5)).astype(np.float32)
    dims = (2, channels, 3, 5)
    graph = helper.make_graph(
        [helper.make_node("GroupNormalization", ["x", "scale", "bias"], ["y"], num_groups=2)],
        "groups",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, dims)],
        [numpy_helper.from_array(scale, "scale"), numpy_helper.from_array(bias, "bias")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    wanted = run(model, x)
    assert np.array_equal(wanted, run(to_proto(load(model)), x))
    np.testing.assert_allclose(tilewright.compile(model, target="cpu").run({"x": x})["y"], wanted, rtol=1e-5, atol=1e-6)
    tilewright.save(tilewright.optimize(model, opset=written).module, tmp_path / "written.onnx")
    np.testing.assert_allclose(run(onnx.load(tmp_path / "written.onnx"), x), wanted, rtol=1e-5, atol=1e-6)


def run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]
