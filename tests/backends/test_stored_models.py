"""Small models that onnx's package stores with inputs and outputs: exports of PyTorch from opset 6 on, and others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import tilewright

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
MODELS = sorted(
    path for kind in ("simple", "pytorch-operator", "pytorch-converted") for path in (DATA / kind).iterdir()
)


def read(path: Path, kind: onnx.TypeProto) -> Any:
    if kind.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(path.read_bytes()))
    if kind.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(path.read_bytes()))
    return numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))


def same(result: Any, expected: Any) -> None:
    if isinstance(expected, list):
        assert len(result) == len(expected)
        for item, wanted in zip(result, expected, strict=True):
            same(item, wanted)
    elif expected is None:
        assert result is None
    elif expected.dtype.kind in "OUS":
        assert [str(item) for item in result.ravel()] == [str(item) for item in expected.astype(np.str_).ravel()]
    else:
        assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("folder", MODELS, ids=lambda path: path.name)
def test_stored_model(folder: Path) -> None:
    model = onnx.load(folder / "model.onnx")
    executable = tilewright.compile(folder / "model.onnx", target="reference")
    for data in sorted(folder.glob("test_data_set_*")):
        given = [(item, data / f"input_{index}.pb") for index, item in enumerate(model.graph.input)]
        feeds = {item.name: read(path, item.type) for item, path in given if path.exists()}
        results = executable.run(feeds)
        for index, item in enumerate(model.graph.output):
            same(results[item.name], read(data / f"output_{index}.pb", item.type))
