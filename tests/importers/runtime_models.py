"""Small networks as exporters write them, and what ONNX Runtime's optimizer and quantizer make of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

RANDOM = np.random.default_rng(17)


class Network:
    """A graph under construction; each method appends a node and gives the name of its output."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def node(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        names = [f"v{len(self.nodes)}_{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(op_type, list(inputs), names, name=f"n{len(self.nodes)}", **attributes))
        return names[0]

    def const(self, value: Any) -> str:
        array = np.asarray(value)
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def weight(self, *shape: int, scale: float = 0.3) -> str:
        return self.const((RANDOM.standard_normal(shape) * scale).astype(np.float32))

    def scalar(self, number: float) -> str:
        return self.const(np.array(number, np.float32))

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        return self.node("Add", self.node("MatMul", x, self.weight(inputs, outputs)), self.weight(outputs))

    def model(self, inputs: dict[str, tuple[int, tuple[Any, ...]]], output: str) -> onnx.ModelProto:
        self.nodes.append(helper.make_node("Identity", [output], ["y"]))
        graph = helper.make_graph(
            self.nodes, "network",
            [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], self.weights,
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return onnx.shape_inference.infer_shapes(model)


def layer_norm(net: Network, x: str, width: int) -> str:
    """Layer normalization as exporters wrote it before opset 17."""
    centred = net.node("Sub", x, net.node("ReduceMean", x, axes=[-1]))
    square = net.node("Pow", centred, net.scalar(2.0))
    variance = net.node("Add", net.node("ReduceMean", square, axes=[-1]), net.scalar(1e-5))
    normalized = net.node("Div", centred, net.node("Sqrt", variance))
    return net.node("Add", net.node("Mul", normalized, net.weight(width)), net.weight(width))


def root_mean_square_norm(net: Network, x: str, width: int) -> str:
    """Normalization by the root mean square, as exporters write it."""
    mean = net.node("ReduceMean", net.node("Pow", x, net.scalar(2.0)), axes=[-1])
    root = net.node("Sqrt", net.node("Add", mean, net.scalar(1e-5)))
    return net.node("Mul", net.node("Div", x, root), net.weight(width, scale=1.0))


def gelu(net: Network, x: str) -> str:
    inner = net.node("Add", net.node("Erf", net.node("Div", x, net.scalar(2.0**0.5))), net.scalar(1.0))
    return net.node("Mul", net.node("Mul", x, inner), net.scalar(0.5))


def transformer() -> onnx.ModelProto:
    """One layer of an encoder: two heads of 8, a residual around each half."""
    net, width = Network(), 16
    shape = net.const(np.array([0, 0, 2, 8]))

    def heads(x: str, perm: list[int]) -> str:
        return net.node("Transpose", net.node("Reshape", net.linear(x, width, width), shape), perm=perm)

    q, k, v = heads("x", [0, 2, 1, 3]), heads("x", [0, 2, 3, 1]), heads("x", [0, 2, 1, 3])
    scores = net.node("Div", net.node("MatMul", q, k), net.scalar(8.0**0.5))
    context = net.node("MatMul", net.node("Softmax", scores, axis=-1), v)
    packed = net.node("Reshape", net.node("Transpose", context, perm=[0, 2, 1, 3]), net.const(np.array([0, 0, 16])))
    x = layer_norm(net, net.node("Add", net.linear(packed, width, width), "x"), width)
    inner = net.linear(gelu(net, net.linear(x, width, 32)), 32, width)
    result = layer_norm(net, net.node("Add", inner, x), width)
    return net.model({"x": (TensorProto.FLOAT, ("batch", "length", width))}, result)


def convolutional() -> onnx.ModelProto:
    """Convolutions with batch normalization, a residual, pools, several activations, a classifier."""
    net = Network()

    def block(x: str, inputs: int, outputs: int, **attributes: Any) -> str:
        y = net.node("Conv", x, net.weight(outputs, inputs, 3, 3), net.weight(outputs), pads=[1] * 4, **attributes)
        moments = [net.weight(outputs), net.weight(outputs), net.weight(outputs)]
        return net.node(
            "BatchNormalization", y, *moments, net.const(RANDOM.uniform(0.5, 2, outputs).astype(np.float32))
        )

    x = net.node("Relu", block("x", 3, 16, strides=[2, 2]))
    x = net.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    y = net.node("LeakyRelu", block(x, 16, 16), alpha=0.1)
    x = net.node("Relu", net.node("Add", block(y, 16, 16), x))
    x = net.node("Sigmoid", block(x, 16, 32))
    x = net.node("AveragePool", x, kernel_shape=[2, 2], strides=[1, 1])
    x = net.node("Concat", x, net.node("Tanh", x), axis=1)
    x = net.node("Flatten", net.node("GlobalAveragePool", x))
    result = net.node("Softmax", net.node("Gemm", x, net.weight(10, 64), net.weight(10), transB=1), axis=-1)
    return net.model({"x": (TensorProto.FLOAT, (2, 3, 32, 32))}, result)


def perceptron() -> onnx.ModelProto:
    """Linear layers with activations; products of transposed and scaled matrices."""
    net = Network()
    x = net.node("Relu", net.node("Gemm", "x", net.weight(12, 24), net.weight(24)))
    x = net.node("Tanh", net.node("Gemm", x, net.weight(16, 24), net.weight(16), transB=1))
    gram = net.node("MatMul", net.node("Transpose", x, perm=[1, 0]), net.node("Mul", x, net.scalar(0.25)))
    x = gelu(net, net.linear(net.node("MatMul", x, gram), 16, 16))
    x = root_mean_square_norm(net, x, 16)
    x = net.node("Mul", x, net.node("Sigmoid", net.node("Mul", x, net.scalar(1.702))))
    return net.model({"x": (TensorProto.FLOAT, ("batch", 12))}, net.linear(x, 16, 5))


def recurrent() -> onnx.ModelProto:
    """An LSTM in both directions over [length, batch, features], and a linear layer."""
    net = Network()
    y = net.node(
        "LSTM", "x", net.weight(2, 32, 12), net.weight(2, 32, 8), net.weight(2, 64), hidden_size=8,
        direction="bidirectional", outputs=3,
    )  # fmt: skip
    flat = net.node("Reshape", net.node("Transpose", y, perm=[0, 2, 1, 3]), net.const(np.array([0, 0, 16])))
    return net.model({"x": (TensorProto.FLOAT, (6, "batch", 12))}, net.linear(flat, 16, 4))


NETWORKS: dict[str, tuple[Callable[[], onnx.ModelProto], tuple[int, ...]]] = {
    "transformer": (transformer, (2, 7, 16)),
    "convolutional": (convolutional, (2, 3, 32, 32)),
    "perceptron": (perceptron, (5, 12)),
    "recurrent": (recurrent, (6, 2, 12)),
}


def feeds(name: str, seed: int = 0) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).standard_normal(NETWORKS[name][1]).astype(np.float32)}


def optimized(source: Path, target: Path, level: str) -> Path:
    """The file that ONNX Runtime writes when it optimizes `source` at `level` (EXTENDED, ALL)."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    options.optimized_model_filepath = str(target)
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
    return target


class Calibration:
    """A few inputs, as the quantizer asks for them."""

    def __init__(self, name: str) -> None:
        self.inputs: Iterator[dict[str, np.ndarray]] = iter([feeds(name, seed) for seed in range(3)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.inputs, None)


def quantized(source: Path, target: Path, how: str, name: str) -> Path:
    """The file that ONNX Runtime's quantizer writes: how is "dynamic", "qdq" or "qoperator".

    Weights have 7 bits: where a machine has no VNNI, ONNX Runtime saturates sums of two larger products.
    """
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static

    if how == "dynamic":
        quantize_dynamic(source, target, weight_type=QuantType.QInt8, reduce_range=True)
        return target
    form = QuantFormat.QDQ if how == "qdq" else QuantFormat.QOperator
    quantize_static(
        source, target, Calibration(name), quant_format=form, activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8, per_channel=how == "qdq", reduce_range=True,
    )  # fmt: skip
    return target
