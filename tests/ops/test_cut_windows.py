"""Pools with a window that is larger than the padded operand: ONNX Runtime cuts it, and types must say so."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright
from tilewright.graph.dims import evaluate, symbols_of
from tilewright.graph.dtypes import f32
from tilewright.graph.model_builder import Builder
from tilewright.graph.types import TensorType

onnxruntime = pytest.importorskip("onnxruntime")

OPERATORS: dict[str, list[dict[str, Any]]] = {
    "MaxPool": [{}, {"ceil_mode": 1}, {"dilations": [2]}],
    "AveragePool": [{}, {"ceil_mode": 1}, {"count_include_pad": 1}, {"dilations": [3]}],
    "LpPool": [{}, {"ceil_mode": 1}, {"dilations": [2]}],
}
# Kernel, pads, stride.
WINDOWS = [
    (2, [0, 0], 2),
    (3, [0, 0], 2),
    (3, [1, 1], 2),
    (2, [0, 0], 3),
    (5, [1, 0], 2),
    (4, [1, 1], 3),
    (3, [0, 0], 1),
]
CASES = [(name, each) for name, variants in OPERATORS.items() for each in variants]


def model_of(op_type: str, attributes: dict[str, Any]) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node(op_type, ["x"], ["y"], **attributes), helper.make_node("Shape", ["y"], ["dims"])],
        "pool",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, "n"])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2, None]),
            helper.make_tensor_value_info("dims", TensorProto.INT64, [3]),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


@pytest.mark.parametrize(("op_type", "variant"), CASES)
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_a_window_is_cut(op_type: str, variant: dict[str, Any], window: tuple[int, list[int], int]) -> None:
    kernel, pads, stride = window
    model = model_of(op_type, {"kernel_shape": [kernel], "pads": pads, "strides": [stride], **variant})
    module = tilewright.load(model.SerializeToString())
    tilewright.optimize(module, passes="infer-shapes")
    type = next(op for op in module.main.block if op.op_type == op_type).results[0].type
    assert isinstance(type, TensorType)
    assert type.shape is not None
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    targets = ["reference", "cpu"] if op_type == "LpPool" else ["reference"]
    ours = [tilewright.compile(module, target=target) for target in targets]
    for size in range(1, 7):
        x = -np.arange(1, 2 * size + 1, dtype=np.float32).reshape(1, 2, size)
        try:
            expected, _ = session.run(None, {"x": x})
        except onnxruntime.capi.onnxruntime_pybind11_state.Fail:
            continue  # the window is larger by more than the stride
        (symbol,) = symbols_of(type.shape[2])
        assert evaluate(type.shape[2], {symbol: size}) == expected.shape[2], f"{type} for {size}"
        for executable in ours:
            found = executable.run({"x": x})["y"]
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_window_is_cut_where_sizes_are_known() -> None:
    x = np.arange(1, 4, dtype=np.float32).reshape(1, 1, 3, 1)
    b = Builder("pool")
    attributes = {"kernel_shape": [4, 2], "strides": [3, 2], "p": 1}
    b.output(b.lp_pool(b.input("x", f32[x.shape]), **attributes), "y")
    executable = tilewright.compile(b.build(), target="cpu")
    assert executable.report()["host_steps"] == []
    np.testing.assert_allclose(executable.run({"x": x})["y"], [[[[6]]]], rtol=1e-6)


def test_types_stay_as_simple_as_they_can() -> None:
    """What ONNX Runtime takes has an element, and where pads do the rest, no window is cut."""
    texts = []
    for kernel, pads in itertools.product((2, 3), ([0, 0], [1, 1])):
        model = model_of("MaxPool", {"kernel_shape": [kernel], "pads": pads, "strides": [2]})
        module = tilewright.load(model.SerializeToString())
        tilewright.optimize(module, passes="infer-shapes")
        texts.append(str(next(op for op in module.main.block if op.name == "max_pool").results[0].type))
    assert texts == [
        "f32[1, 2, max(floordiv(n, 2), 1)]",
        "f32[1, 2, floordiv(n, 2) + 1]",
        "f32[1, 2, max(floordiv(n + 1, 2) - 1, min(floordiv(n, 2), 1))]",
        "f32[1, 2, floordiv(n + 1, 2)]",
    ]
