"""The networks of onnx's test data, whose weights are computed from shapes, against the outputs stored with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import tilewright

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
NETWORKS = sorted(path.stem for path in FOLDER.glob("*.onnx"))


def test_all_are_there() -> None:
    assert len(NETWORKS) == 9


def logits_of(model: onnx.ModelProto) -> onnx.ModelProto:
    """The network without the Softmax at its end."""
    last = model.graph.node.pop()
    model.graph.output[0].name = last.input[0]
    return model


@pytest.mark.slow
@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("name", NETWORKS)
def test_network(name: str, target: str) -> None:
    proto = onnx.TensorProto.FromString((FOLDER / f"{name}_output_0.pb").read_bytes())
    expected = onnx.numpy_helper.to_array(proto)
    model = onnx.load(FOLDER / f"{name}.onnx")
    # All classes tie in most of these, at logits of millions: if BLAS rounds one of them differently, that alone wins.
    ties = target == "reference" and np.ptp(expected) == 0 and model.graph.node[-1].op_type == "Softmax"
    executable = tilewright.compile(logits_of(model) if ties else model, target=target)
    if target == "cpu":
        assert executable.report()["host_steps"] == []
    (port,) = [port for port in executable.inputs if port.required]
    shape = port.type.static_shape
    # The input that the stored outputs belong to, see onnx.backend.test.runner.
    count = int(np.prod(shape))
    (result,) = executable.run({port.name: (np.arange(count).reshape(shape) / count).astype(np.float32)}).values()
    assert result.shape == expected.shape
    assert result.dtype == expected.dtype
    if ties:
        assert np.ptp(result) <= 1e-5 * np.abs(result).max()
    else:
        assert np.abs(result - expected).max() <= 1e-4 * np.abs(expected).max()
