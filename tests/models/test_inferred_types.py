"""The types inferred for every tensor of real networks, against what ONNX Runtime computes for some input size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tilewright
from tilewright.graph.core import Block, Value
from tilewright.graph.dims import DimExpr, evaluate, is_symbol, symbols_of
from tilewright.graph.infer import InferenceContext, infer_types
from tilewright.graph.types import TensorType

pytestmark = pytest.mark.models
onnxruntime = pytest.importorskip("onnxruntime")

# An input shape for each network, unlike the one it was exported with.
SHAPES = {
    "ppocr-det": (1, 3, 64, 96),
    "ppocr-rec": (2, 3, 48, 160),
    "ppocr-cls": (3, 3, 48, 192),
    "yolov8n": (2, 3, 256, 192),
}
ELEMENT = {"f32": np.float32, "i64": np.int64}


def infer_again(block: Block, context: InferenceContext) -> list[Value]:
    """Replace all types in `block` by inferred ones; the values that are not constants."""
    values = []
    for op in block:
        if op.is_terminator or op.name == "const":
            continue
        for result, type in zip(op.results, infer_types(op, context), strict=True):
            result.type = type
            values.append(result)
    return values


def run_everything(path: Path, feed: np.ndarray) -> dict[str, np.ndarray]:
    """All tensors of the network, computed by ONNX Runtime without optimizations."""
    model = onnx.load(path)
    outputs = {item.name for item in model.graph.output}
    names = [name for node in model.graph.node for name in node.output if name and name not in outputs]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: feed})
    return dict(zip([item.name for item in session.get_outputs()], found, strict=True))


@pytest.mark.parametrize("name", SHAPES)
def test_every_tensor_has_the_inferred_type(name: str, network: Callable[[str], Path]) -> None:
    path = network(name)
    module = tilewright.load(path)
    # Which dims cannot be 0 is found out by the pass; without it, a Reshape to a size that may be 0 stays open.
    tilewright.PassManager.parse("infer-shapes").run(module)
    values = infer_again(module.main.block, InferenceContext(module.symbols))
    (argument,) = module.main.inputs
    assert isinstance(argument.type, TensorType)
    assert argument.type.shape is not None
    numbers: dict[DimExpr, int] = {}
    for dim, number in zip(argument.type.shape, SHAPES[name], strict=True):
        assert dim == number or is_symbol(dim)
        if isinstance(dim, DimExpr):
            numbers[dim] = number
    actual: dict[str, Any] = run_everything(path, np.zeros(SHAPES[name], ELEMENT[str(argument.type.dtype)]))
    wrong = []
    for value in values:
        array = actual[value.name or ""]
        assert isinstance(value.type, TensorType)
        assert value.type.shape is not None, f"{value} is unranked"
        assert all(set(symbols_of(dim)) <= set(numbers) for dim in value.type.shape), f"{value} is open"
        shape = tuple(evaluate(dim, numbers) for dim in value.type.shape)
        if (shape, value.type.dtype.numpy) != (array.shape, array.dtype):
            wrong.append(f"{value}: {array.shape} {array.dtype}")
    assert wrong == []
    assert len(values) > 200
