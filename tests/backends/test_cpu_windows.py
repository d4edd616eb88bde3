"""Padded windows over images of one row, one column or one pixel: the cpu target gives what the reference gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import pytest

import tilewright

CHANNELS = 8

# Operator, the first two dims of its weights (None: no weights), and attributes; numbers are for each spatial axis.
OPERATORS: dict[str, tuple[str, tuple[int, int] | None, dict[str, Any]]] = {
    "conv": ("Conv", (CHANNELS, CHANNELS), {}),
    "depthwise": ("Conv", (CHANNELS, 1), {"group": CHANNELS}),
    "strided": ("Conv", (CHANNELS, CHANNELS), {"strides": 2}),
    "transposed": ("ConvTranspose", (CHANNELS, CHANNELS), {}),
    "transposed_depthwise": ("ConvTranspose", (CHANNELS, 1), {"group": CHANNELS, "strides": 2}),
    "max_pool": ("MaxPool", None, {}),
    "average_pool": ("AveragePool", None, {}),
}


def build(names: Sequence[str], size: Sequence[int], channels: int = CHANNELS, is_open: bool = False) -> Any:
    """Operators on one input, kernels of 3 and pads of 1, each with an output of its name."""
    rng, rank = np.random.default_rng(1), len(size)
    nodes, constants = [], []
    for name in names:
        operator, weights, options = OPERATORS[name]
        each = {key: value if key == "group" else [value] * rank for key, value in options.items()}
        inputs = ["x"]
        if weights is not None:
            inputs.append(f"{name}_weights")
            shape = (weights[0], weights[1] if channels == CHANNELS else channels, *([3] * rank))
            constants.append(onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), inputs[1]))
        kernel = {"kernel_shape": [3] * rank, "pads": [1] * (2 * rank)}
        nodes.append(onnx.helper.make_node(operator, inputs, [name], name, **kernel, **each))
    dims = [f"size_{axis}" for axis in range(rank)] if is_open else list(size)
    number = onnx.TensorProto.FLOAT
    x = onnx.helper.make_tensor_value_info("x", number, [1, channels, *dims])
    outputs = [onnx.helper.make_tensor_value_info(name, number, None) for name in names]
    graph = onnx.helper.make_graph(nodes, "windows", [x], outputs, constants)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 19)], ir_version=9)


def compare(model: Any, shape: Sequence[int]) -> None:
    feeds = {"x": np.random.default_rng(2).standard_normal(shape).astype(np.float32)}
    expected = tilewright.compile(model, target="reference").run(feeds)
    actual = tilewright.compile(model, threads=1).run(feeds)
    for name, array in expected.items():
        np.testing.assert_allclose(actual[name], array, rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("size", [(1,), (1, 1), (1, 8), (8, 1), (1, 1, 4)], ids=str)
def test_sizes_of_one(size: tuple[int, ...]) -> None:
    compare(build(list(OPERATORS), size), (1, CHANNELS, *size))


@pytest.mark.parametrize("size", [(1,), (1, 8)], ids=str)
def test_sizes_of_one_that_the_model_leaves_open(size: tuple[int, ...]) -> None:
    compare(build(["conv", "depthwise", "max_pool"], size, is_open=True), (1, CHANNELS, *size))


@pytest.mark.parametrize("channels", [1, 3])
def test_few_channels(channels: int) -> None:
    compare(build(["conv"], (1, 1), channels), (1, channels, 1, 1))


@pytest.mark.parametrize("size", [(1, 1), (8, 1)], ids=str)
def test_windows_one_after_the_other(size: tuple[int, ...]) -> None:
    """The result of the first lies in memory as the next wants it."""
    model = build(["conv", "max_pool"], size)
    model.graph.node[1].input[0] = "conv"
    compare(model, (1, CHANNELS, *size))


@pytest.mark.parametrize("function", ["LeakyRelu", "Softplus"])
@pytest.mark.parametrize(
    ("operator", "shape", "filters", "options"),
    [("ConvTranspose", (2, 3, 4, 5), (3, 2, 1, 1), {"strides": [3, 2]}),
     ("Conv", (2, 3, 0, 5), (2, 3, 2, 3), {"pads": [2, 2, 2, 2]})],
)  # fmt: skip
def test_functions_of_sums_of_nothing(
    function: str, operator: str, shape: Sequence[int], filters: Sequence[int], options: dict[str, Any]
) -> None:
    """Between the places that a transposed convolution writes to, and around an image without rows, sums are 0."""
    number, info = onnx.TensorProto.FLOAT, onnx.helper.make_tensor_value_info
    nodes = [
        onnx.helper.make_node(operator, ["x", "weights"], ["sums"], **options),
        onnx.helper.make_node(function, ["sums"], ["y"]),
    ]
    weights = onnx.numpy_helper.from_array(np.ones(filters, np.float32), "weights")
    graph = onnx.helper.make_graph(
        nodes, "sums", [info("x", number, ["n", 3, "h", 5])], [info("y", number, None)], [weights]
    )
    compare(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 19)], ir_version=9), shape)
