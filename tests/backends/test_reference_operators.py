"""Operators of the reference backend against ONNX Runtime, where ONNX's node tests leave attributes or operands out.

What ONNX leaves open, or where ONNX Runtime differs from ONNX's own tests, is not compared here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tilewright
from tilewright.backends.target import compile_module
from tilewright.graph.data import as_data
from tilewright.graph.evaluation import type_of
from tilewright.graph.onnx_values import tensor_proto, type_proto

runtime = pytest.importorskip("onnxruntime")
F32 = np.float32


@dataclass
class Case:
    """One node: its operands (None where left out), attributes, and the number of outputs or their names.

    Operands at positions `constant` are initializers: ONNX Runtime wants some so.
    """

    op_type: str
    operands: Sequence[Any]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int | list[str] = 1
    constant: tuple[int, ...] = ()
    opset: int = 21
    domain: str = ""

    def __post_init__(self) -> None:
        self.operands = [None if operand is None else np.asarray(operand) for operand in self.operands]

    def __str__(self) -> str:
        settings = ", ".join(f"{name}={value}" for name, value in self.attributes.items())
        shapes = ", ".join("none" if item is None else str(np.shape(item)) for item in self.operands)
        return f"{self.op_type}({shapes}) {settings}"

    def model(self) -> onnx.ModelProto:
        names = [f"i{index}" if operand is not None else "" for index, operand in enumerate(self.operands)]
        outputs = [f"o{index}" for index in range(self.outputs)] if isinstance(self.outputs, int) else self.outputs
        node = helper.make_node(self.op_type, names, outputs, domain=self.domain, **self.attributes)
        graph = onnx.GraphProto(name="case", node=[node])
        for index, operand in enumerate(self.operands):
            if operand is not None and index in self.constant:
                graph.initializer.append(tensor_proto(as_data(operand), names[index]))
            elif operand is not None:
                graph.input.add(name=names[index]).type.CopyFrom(type_proto(type_of(operand)))
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs if name)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("ai.onnx.ml", 3)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def feeds(self) -> dict[str, Any]:
        given = enumerate(self.operands)
        return {f"i{k}": operand for k, operand in given if operand is not None and k not in self.constant}


class Random:
    """Arrays that are the same in every run."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(0)

    def __call__(self, *shape: int) -> np.ndarray:
        return self.generator.standard_normal(shape).astype(F32)

    def integers(self, low: int, high: int, shape: Sequence[int], dtype: Any = np.int64) -> np.ndarray:
        return self.generator.integers(low, high, shape).astype(dtype)


def product(**choices: Sequence[Any]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*choices.values()):
        yield dict(zip(choices, values, strict=True))


# ---- cases -----------------------------------------------------------------------------------------------------------


def convolutions(r: Random) -> Iterator[Case]:
    for a in product(strides=[[1, 1], [2, 1]], dilations=[[1, 1], [2, 1]], pads=[[0] * 4, [1, 2, 0, 1]], group=[1, 2]):
        yield Case("Conv", [r(2, 4, 9, 8), r(6, 4 // a["group"], 3, 2), r(6)], a)
    for auto_pad, stride in itertools.product(["SAME_UPPER", "SAME_LOWER", "VALID"], [1, 2, 3]):
        yield Case("Conv", [r(1, 2, 7, 8), r(3, 2, 3, 2)], {"auto_pad": auto_pad, "strides": [stride, stride]})
    yield Case("Conv", [r(2, 3, 10), r(4, 3, 3)], {"pads": [1, 1]})
    yield Case("Conv", [r(1, 2, 5, 6, 7), r(3, 2, 2, 3, 2)], {"strides": [1, 2, 1]})
    yield Case("Conv", [r(1, 3, 6, 6), r(6, 1, 3, 3)], {"group": 3, "pads": [1, 1, 1, 1]})
    yield Case("DeformConv", [r(1, 2, 5, 5), r(3, 2, 3, 3), r(1, 18, 3, 3), r(3)])


def transposed_convolutions(r: Random) -> Iterator[Case]:
    for a in product(
        strides=[[2, 2], [3, 3]], output_padding=[[0, 0], [1, 1]], pads=[[0] * 4, [1, 0, 1, 1]], group=[1, 2],
        dilations=[[1, 1], [2, 2]],
    ):  # fmt: skip
        yield Case("ConvTranspose", [r(1, 4, 4, 5), r(4, 3, 3, 2), r(3 * a["group"])], a)
    for auto_pad in ("SAME_UPPER", "SAME_LOWER", "VALID"):
        yield Case("ConvTranspose", [r(1, 2, 4, 5), r(2, 3, 3, 3)], {"auto_pad": auto_pad, "strides": [2, 2]})
    yield Case("ConvTranspose", [r(1, 2, 4, 5), r(2, 3, 3, 3)], {"strides": [2, 2], "output_shape": [10, 12]})
    yield Case("ConvTranspose", [r(1, 2, 5), r(2, 3, 3)], {"strides": [2]})
    yield Case("ConvTranspose", [r(1, 2, 3, 4, 3), r(2, 2, 2, 2, 2)], {"strides": [2, 1, 2]})


def pools(r: Random) -> Iterator[Case]:
    x = r(2, 3, 9, 8)
    for op_type in ("MaxPool", "AveragePool", "LpPool"):
        for a in product(
            ceil_mode=[0, 1], strides=[[1, 1], [3, 2]], pads=[[0] * 4, [1, 0, 0, 1]], dilations=[[1, 1], [2, 1]]
        ):
            settings = {"kernel_shape": [3, 2], **a}
            yield Case(op_type, [x], settings)
            if op_type == "AveragePool":
                yield Case(op_type, [x], {**settings, "count_include_pad": 1})
            if op_type == "MaxPool":
                yield Case(op_type, [x], settings, 2)
                yield Case(op_type, [x], {**settings, "storage_order": 1}, 2)
        for auto_pad in ("SAME_UPPER", "SAME_LOWER", "VALID"):
            yield Case(op_type, [r(1, 2, 7, 8)], {"auto_pad": auto_pad, "kernel_shape": [3, 2], "strides": [2, 2]})
    yield Case(
        "MaxPool", [r.integers(-128, 127, (1, 2, 6, 6), np.int8)], {"kernel_shape": [2, 2], "pads": [1, 1, 0, 0]}
    )
    yield Case("MaxPool", [r(1, 2, 9)], {"kernel_shape": [3]})
    yield Case("MaxPool", [r(1, 2, 5, 5, 5)], {"kernel_shape": [3, 2, 2]})
    for p in (1, 2, 3):
        yield Case("GlobalLpPool", [r(2, 3, 4, 5)], {"p": p})
    yield Case("GlobalAveragePool", [r(2, 3, 4)])
    yield Case("GlobalMaxPool", [r(2, 3, 4)])
    regions = np.array([[0, 1, 1, 8, 6], [1, 0, 0, 20, 22], [0, 3, 3, 3, 3]], F32)
    yield Case("MaxRoiPool", [r(2, 3, 12, 10), regions], {"pooled_shape": [3, 2], "spatial_scale": 0.5})
    yield Case("MaxRoiPool", [r(2, 3, 12, 10), np.minimum(regions, 9)], {"pooled_shape": [4, 5]})


def normalizations(r: Random) -> Iterator[Case]:
    x = r(2, 7, 4, 5)
    for size in (1, 3, 5):
        yield Case("LRN", [x], {"size": size, "alpha": 0.5, "beta": 0.6, "bias": 1.5})
    for p, axis in itertools.product((1, 2), (-1, 0, 1)):
        yield Case("LpNormalization", [r(2, 3, 4)], {"p": p, "axis": axis})
    yield Case("InstanceNormalization", [r(2, 3, 4), r(3), r(3)], {"epsilon": 1e-3})
    yield Case("BatchNormalization", [r(4, 3), r(3), r(3), r(3), abs(r(3))], {"epsilon": 1e-2})
    for axis in (-1, 1, 2):
        scale = r(*x.shape[axis:])
        yield Case("LayerNormalization", [x, scale, scale], {"axis": axis}, 3)
    yield Case("GroupNormalization", [r(2, 6, 4, 5), r(6), r(6)], {"num_groups": 3})
    for op_type, axis in itertools.product(("Softmax", "LogSoftmax", "Hardmax"), (-1, 0, 1)):
        yield Case(op_type, [r(2, 3, 4) * 10], {"axis": axis})
        yield Case(op_type, [r(2, 3, 4)], {"axis": axis}, opset=11)


def recurrent(r: Random) -> Iterator[Case]:
    length, batch, inputs, hidden = 5, 3, 4, 6
    functions = {
        "RNN": (1, ["Relu"], ["Affine"]),
        "GRU": (3, ["HardSigmoid", "Softsign"], ["HardSigmoid", "Elu"]),
        "LSTM": (4, ["Sigmoid", "Softsign", "Softplus"], ["HardSigmoid", "ScaledTanh", "LeakyRelu"]),
    }
    for op_type, direction in itertools.product(functions, ("forward", "reverse", "bidirectional")):
        gates, plain, scaled = functions[op_type]
        count = 2 if direction == "bidirectional" else 1
        state = r(count, batch, hidden)
        states = [state, r(count, batch, hidden)] if op_type == "LSTM" else [state]
        parameters = [
            r(count, gates * hidden, inputs) / 3, r(count, gates * hidden, hidden) / 3, r(count, 2 * gates * hidden)
        ]  # fmt: skip
        base = [r(length, batch, inputs), *parameters]
        common = {"hidden_size": hidden, "direction": direction}
        outputs = 3 if op_type == "LSTM" else 2
        lengths = np.array([5, 2, 3], np.int32)
        yield Case(op_type, [*base, lengths], common, outputs)
        yield Case(op_type, [*base, lengths, *states], common, outputs)
        yield Case(op_type, [*base, None, *states], common, ["", "last"])
        yield Case(op_type, base[:3], common, outputs)
        yield Case(op_type, base, {**common, "clip": 0.3}, outputs)
        yield Case(op_type, base, {**common, "activations": plain * count}, outputs)
        given = {"activation_alpha": [0.3, 0.4, 0.5][: len(scaled)] * count, "activation_beta": [0.6, 0.2] * count}
        yield Case(op_type, base, {**common, "activations": scaled * count, **given}, outputs)
        if op_type == "GRU":
            yield Case(op_type, base, {**common, "linear_before_reset": 1}, outputs)
        if op_type == "LSTM":
            yield Case(op_type, [*base, None, *states, r(count, 3 * hidden)], common, outputs)
            yield Case(op_type, base, {**common, "input_forget": 1}, outputs)


def resampling(r: Random) -> Iterator[Case]:
    x = r(1, 2, 5, 6)
    modes = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric")
    for mode, place in itertools.product(("nearest", "linear", "cubic"), modes):
        roundings = ("round_prefer_floor", "floor", "ceil", "round_prefer_ceil") if mode == "nearest" else ("floor",)
        for rounding in roundings:
            settings = {"mode": mode, "coordinate_transformation_mode": place, "nearest_mode": rounding}
            yield Case("Resize", [x, None, None, np.array([1, 2, 8, 4])], settings, constant=(3,))
            # Fractional sizes: ONNX's own tests and ONNX Runtime disagree where corners are aligned.
            if place not in ("align_corners", "half_pixel_symmetric"):
                for scales in ([1, 1, 2, 3], [1, 1, 0.6, 0.7], [1, 1, 1.5, 0.5]):
                    yield Case("Resize", [x, None, np.array(scales, F32)], settings, constant=(2,))
    yield Case(
        "Resize", [x, None, np.array([1, 1, 0.6, 0.7], F32)], {"mode": "cubic", "exclude_outside": 1}, constant=(2,)
    )
    for mode in ("linear", "cubic"):
        yield Case(
            "Resize",
            [r(1, 2, 9, 10), None, np.array([1, 1, 0.5, 0.4], F32)],
            {"mode": mode, "antialias": 1},
            constant=(2,),
        )
    region = np.array([0, 0, 0.2, 0.3, 1, 1, 0.8, 1.2], F32)
    crop = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.0}
    yield Case("Resize", [r(1, 1, 5, 6), region, None, np.array([1, 1, 4, 5])], crop, constant=(1, 3))
    for policy in ("not_larger", "not_smaller", "stretch"):
        settings = {"mode": "linear", "axes": [2, 3], "keep_aspect_ratio_policy": policy}
        yield Case("Resize", [r(1, 1, 5, 6), None, None, np.array([7, 7])], settings, constant=(3,))
    yield Case("Resize", [r(1, 1, 3, 4, 5), None, np.array([1, 1, 2, 2, 2], F32)], {"mode": "linear"}, constant=(2,))
    yield Case("Resize", [r.integers(0, 255, (1, 1, 4, 4), np.uint8), None, np.array([1, 1, 2, 2], F32)], constant=(2,))
    for a in product(
        mode=["linear", "nearest", "cubic"], padding_mode=["zeros", "border", "reflection"], align_corners=[0, 1]
    ):
        yield Case("GridSample", [r(2, 3, 5, 6), r(2, 4, 3, 2)], a)
        if a["mode"] != "cubic":
            yield Case("GridSample", [r(1, 2, 4, 5, 6), r(1, 2, 4, 3, 3)], a)
    places = np.array([[1, 1, 8, 6], [0, 0, 9, 11]], F32)
    for a in product(
        mode=["avg", "max"], sampling_ratio=[0, 2], coordinate_transformation_mode=["half_pixel", "output_half_pixel"]
    ):
        size = {"output_height": 3, "output_width": 4, "spatial_scale": 0.5}
        yield Case("RoiAlign", [r(2, 3, 12, 10), places, np.array([0, 1])], {**a, **size})


def reductions(r: Random) -> Iterator[Case]:
    x = abs(r(2, 3, 4)) + F32(0.1)
    for name in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare"):
        op_type = f"Reduce{name}"
        for axes, keepdims in itertools.product(([0], [1, -1], None, []), (0, 1)):
            operands = [x] if axes is None else [x, np.array(axes, np.int64)]
            yield Case(op_type, operands, {"keepdims": keepdims}, constant=(1,))
        yield Case(op_type, [x], {"noop_with_empty_axes": 1})
        if name != "LogSumExp":
            yield Case(op_type, [r.integers(1, 5, (3, 4), np.int32), np.array([1])], constant=(1,))
        if name not in ("Mean",):
            yield Case(op_type, [r(2, 0, 3), np.array([1])], constant=(1,))
        if name != "LogSum":
            yield Case(op_type, [r(2, 3, 4), np.array([1])], constant=(1,))
    for op_type in ("ArgMax", "ArgMin"):
        for a in product(axis=[-1, 0, 1], keepdims=[0, 1], select_last_index=[0, 1]):
            yield Case(op_type, [r.integers(0, 3, (3, 4, 2), F32)], a)
    for axis, a in itertools.product((0, 1, -1), product(exclusive=[0, 1], reverse=[0, 1])):
        yield Case("CumSum", [r(3, 4, 2), np.array(axis)], a)


def indexing(r: Random) -> Iterator[Case]:
    for axis in (-1, 0, 1):
        yield Case("Gather", [r(3, 4, 5), np.array([[0, -1], [2, 1]])], {"axis": axis})
        yield Case("GatherElements", [r(3, 4, 5), r.integers(-3, 3, (2, 4, 3))], {"axis": axis})
        for reduction in ("add", "mul", "max", "min"):
            places = r.integers(0, 3, (2, 4, 3))
            yield Case("ScatterElements", [r(3, 4, 5), places, r(2, 4, 3)], {"axis": axis, "reduction": reduction})
        for largest in (0, 1):
            ties = r.integers(0, 3, (4, 5, 3), F32)
            yield Case("TopK", [ties, np.array([3])], {"axis": axis, "largest": largest}, 2)
        yield Case("OneHot", [r.integers(-4, 4, (2, 3)), np.array(4), np.array([-1, 2], F32)], {"axis": axis})
    for batch, shape in ((0, (2, 2)), (0, (2, 3)), (1, (3, 2, 1)), (2, (3, 4, 1))):
        yield Case("GatherND", [r(3, 4, 5), r.integers(-3, 3, shape)], {"batch_dims": batch})
    for reduction in ("none", "add", "mul", "max", "min"):
        places = np.array([[0, 1], [2, -1], [-1, 3]])
        yield Case("ScatterND", [r(4, 5), places, r(3)], {"reduction": reduction})
    for axis, order in itertools.product((None, 0, 1, -1), (0, 1)):
        settings = {"sorted": order} if axis is None else {"sorted": order, "axis": axis}
        yield Case("Unique", [r.integers(0, 3, (4, 3), F32)], settings, 4)
    yield Case("Unique", [np.array(["b", "a", "b"], object)])
    for axis in (None, 0, 1):
        settings = {} if axis is None else {"axis": axis}
        yield Case("Compress", [r(3, 4), np.array([True, False, True])], settings)
    boxes = np.sort(abs(r(2, 10, 2, 2)), axis=2).reshape(2, 10, 4)
    few, half = np.array([5]), np.array([0.5], F32)
    for limits in ([], [few], [few, half], [np.array([0])], [few, half, np.array([0.3], F32)]):
        yield Case("NonMaxSuppression", [boxes, abs(r(2, 3, 10)), *limits])
    yield Case("NonMaxSuppression", [boxes, abs(r(2, 3, 10)), few, half], {"center_point_box": 1})


def movement(r: Random) -> Iterator[Case]:
    for mode in ("constant", "reflect", "edge", "wrap"):
        yield Case("Pad", [r(3, 4), np.array([1, 2, 0, 1])], {"mode": mode})
        if mode != "wrap":
            yield Case("Pad", [r(5, 6), np.array([-1, 2, 0, -2])], {"mode": mode})
        fill = np.array(3, F32) if mode == "constant" else None
        yield Case("Pad", [r(3, 4, 5), np.array([1, 2]), fill, np.array([-1])], {"mode": mode})
    ends = [
        ([-1, 4], [-100, 1], [0, 1], [-2, -1]), ([1], [2**63 - 1], [-1], [1]), ([4], [-(2**63)], [0], [-1]),
        ([7], [9], [0], [1]), ([-3], [-1], [1], [1]),
    ]  # fmt: skip
    for arguments in ends:
        yield Case("Slice", [r(5, 6), *[np.array(item) for item in arguments]])
    yield Case("Split", [r(7, 2)], {"num_outputs": 3}, 3)
    yield Case("Split", [r(6, 2), np.array([2, 4])], {}, 2)
    yield Case("Tile", [r(2, 3), np.array([2, 0])])
    yield Case("Expand", [r(3, 1), np.array([2, 1, 4])])
    yield Case("Reshape", [r(2, 3, 4), np.array([0, -1])])
    yield Case("Reshape", [r(0, 3), np.array([3, 0])], {"allowzero": 1})
    yield Case("Range", [np.array(5), np.array(-2), np.array(-3)])
    yield Case("Range", [F32(1), F32(2), F32(0.3)])
    yield Case("Where", [np.array([[True], [False]]), r(1, 3), r(2, 1)])
    yield Case("Concat", [np.array(["a"], object), np.array(["b", "c"], object)], {"axis": 0})


def arithmetic(r: Random) -> Iterator[Case]:
    for dtype in (np.int8, np.int32, np.int64, np.uint8):
        sign = 1 if dtype == np.uint8 else -1
        x = r.integers(0 if dtype == np.uint8 else -9, 9, (20,), dtype)
        y = r.integers(1, 5, (20,), dtype)
        for divisor in (y, (y * sign).astype(dtype)):
            yield Case("Div", [x, divisor])
            yield Case("Mod", [x, divisor])
            yield Case("Mod", [x, divisor], {"fmod": 1})
    yield Case("Mod", [r(20) * 9, r(20)], {"fmod": 1})
    yield Case("Pow", [abs(r(9)), np.arange(9)])
    yield Case("Pow", [np.array([1, 2, 3]), np.array([0.5, 2, 1.5], F32)])
    nan = np.array([np.nan, 1, 9, -3], F32)
    yield Case("Max", [nan, nan[::-1].copy()])
    yield Case("Min", [nan, nan[::-1].copy()])
    yield Case("Relu", [nan])
    yield Case("Clip", [nan, F32(0), F32(2)])
    yield Case("Clip", [r(5), F32(2), F32(-2)])
    yield Case("Clip", [np.array([1, 5, 9]), None, np.array(4)])
    numbers = np.concatenate([r(10) * 50, np.array([0, -0.0, 1e-5, 65504, 70000, 0.5, 1.5, -2.5], F32)])
    for to in (1, 10, 11, 7, 6, 9):
        yield Case("Cast", [numbers], {"to": to})
    yield Case("Cast", [np.array(["1.5", "nan", "INF", "-inf", "1e3"], object)], {"to": 1})
    special = np.concatenate([r(20) * 5, np.array([0, -0.0, np.inf, -np.inf, np.nan, 88, -88, 0.5, 1.5, 2.5], F32)])
    for op_type in (
        "Erf", "Elu", "Selu", "Celu", "Softplus", "Softsign", "Sigmoid", "HardSigmoid", "HardSwish", "Mish", "Sinh",
        "Cosh", "Asinh", "Atan", "Gelu", "LeakyRelu", "ThresholdedRelu", "Shrink", "Sign", "Round", "Reciprocal",
    ):  # fmt: skip
        yield Case(op_type, [special])
    for transposed in product(transA=[0, 1], transB=[0, 1]):
        a, b = r(3, 2) if transposed["transA"] else r(2, 3), r(4, 3) if transposed["transB"] else r(3, 4)
        yield Case("Gemm", [a, b, r(4)], {**transposed, "alpha": 0.5, "beta": 2.0})
        yield Case("Gemm", [a, b], transposed)
    for shapes in (((3,), (3,)), ((2, 3, 0), (0, 4)), ((2, 3, 4), (4,)), ((5, 1, 2, 3), (4, 3, 2)), ((2, 0), (0, 3))):
        yield Case("MatMul", [r(*shape) for shape in shapes])


def quantization(r: Random) -> Iterator[Case]:
    for dtype in (np.uint8, np.int8):
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max

        def q(*shape: int, dtype: Any = dtype, low: int = low, high: int = high) -> np.ndarray:
            return r.integers(low, high, shape, dtype)

        three = np.array(3, dtype)
        yield Case("QuantizeLinear", [r(3, 4) * 3, F32(0.05), three])
        yield Case("QuantizeLinear", [r(3, 4) * 3, abs(r(4)) * F32(0.1), q(4)], {"axis": 1})
        yield Case("QuantizeLinear", [r(4, 4), abs(r(2, 4)), q(2, 4)], {"axis": 0, "block_size": 2})
        yield Case("DequantizeLinear", [q(3, 4), abs(r(3)), q(3)], {"axis": 0})
        yield Case("DequantizeLinear", [q(4, 4), abs(r(2, 4)), q(2, 4)], {"axis": 0, "block_size": 2})
        yield Case("MatMulInteger", [q(3, 4), q(4, 5), three, three])
        yield Case("QLinearMatMul", [q(3, 4), F32(0.1), three, q(4, 5), F32(0.2), three, F32(1.5), three])
    pixels, weights = r.integers(0, 255, (1, 2, 5, 5), np.uint8), r.integers(-99, 99, (4, 1, 3, 3), np.int8)
    yield Case("ConvInteger", [pixels, weights.reshape(2, 2, 3, 3), np.array(3, np.uint8)], {"strides": [2, 2]})
    scales = [F32(0.1), np.array(3, np.uint8)], [F32(0.2), np.array(0, np.int8)], [F32(1.5), np.array(7, np.uint8)]
    yield Case("QLinearConv", [pixels, *scales[0], weights, *scales[1], *scales[2]], {"group": 2})
    yield Case("DynamicQuantizeLinear", [r(3, 4)], {}, 3)


def classical(r: Random) -> Iterator[Case]:
    def ml(op_type: str, operands: Sequence[Any], **attributes: Any) -> Case:
        return Case(op_type, operands, attributes, domain="ai.onnx.ml")

    x = r(4, 3)
    yield ml("Scaler", [x], offset=[0.1, 0.2, 0.3], scale=[2.0, 3.0, 4.0])
    yield ml("Scaler", [np.array([[1, 2, 3]])], offset=[0.5], scale=[2.0])
    for norm in ("MAX", "L1", "L2"):
        yield ml("Normalizer", [x], norm=norm)
        yield ml("Normalizer", [r(5)], norm=norm)
        yield ml("Normalizer", [np.zeros((2, 3), F32)], norm=norm)
    yield ml("FeatureVectorizer", [r(2, 2), r(2, 3)], inputdimensions=[2, 3])
    yield ml("FeatureVectorizer", [np.array([[1, 2]]), np.array([[3]])], inputdimensions=[2, 1])
    words = {"cats_strings": ["a", "b"], "cats_int64s": [3, 4]}
    yield ml("CategoryMapper", [np.array(["a", "z"], object)], **words, default_int64=-7)
    yield ml("CategoryMapper", [np.array([3, 9])], **words, default_string="q")
    yield ml("ZipMap", [abs(r(2, 3))], classlabels_strings=["a", "b", "c"])
    yield ml("ZipMap", [abs(r(3))], classlabels_int64s=[1, 2, 3])
    yield ml(
        "Imputer",
        [np.array([[1, np.nan, 3]], F32)],
        imputed_value_floats=[7.0, 8.0, 9.0],
        replaced_value_float=float("nan"),
    )
    yield ml("OneHotEncoder", [np.array([1, 2])], cats_int64s=[1, 2, 3])
    yield ml("Binarizer", [x], threshold=0.3)
    keys = {"keys_strings": ["a", "b"], "values_int64s": [1, 2], "default_int64": 9}
    yield ml("LabelEncoder", [np.array(["a", "z"], object)], **keys)
    yield ml("LinearRegressor", [x], coefficients=r(6).tolist(), intercepts=[1.0, 2.0], targets=2)


def strings(r: Random) -> Iterator[Case]:
    # In the locale "C" ONNX Runtime changes the case of ASCII letters only, so there are no others here to change.
    texts = np.array(["a", "", "B", "B c", "b C", "E", "e\u0301", "x"], object)
    for a in product(
        case_change_action=["NONE", "LOWER", "UPPER"], is_case_sensitive=[0, 1],
        stopwords=[None, ["b C", "X"], ["e"], ["E", "a", ""], [*texts, "A", "b", "b c", "e", "B C"]],
    ):  # fmt: skip
        settings = {name: value for name, value in a.items() if value is not None} | {"locale": "C"}
        yield Case("StringNormalizer", [texts], settings)
        yield Case("StringNormalizer", [texts[None]], settings)


FAMILIES: list[Callable[[Random], Iterator[Case]]] = [
    convolutions, transposed_convolutions, pools, normalizations, recurrent, resampling, reductions, indexing, movement,
    arithmetic, quantization, classical,
    strings,
]  # fmt: skip


# ---- comparing -------------------------------------------------------------------------------------------------------


def expected(case: Case) -> list[Any]:
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    model = case.model().SerializeToString()
    session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, case.feeds()))


def difference(result: Any, wanted: Any) -> str:
    """What is wrong with `result`, or an empty text."""
    if isinstance(wanted, list):
        return "" if result == wanted else f"{result} is not {wanted}"
    if result.dtype != (object if wanted.dtype.kind in "OU" else wanted.dtype):
        return f"dtype {result.dtype}, not {wanted.dtype}"
    if result.shape != wanted.shape:
        return f"shape {result.shape}, not {wanted.shape}"
    if wanted.dtype.kind != "f":
        return "" if result.tolist() == wanted.tolist() else f"{result.tolist()} is not {wanted.tolist()}"
    finite = np.isfinite(wanted)
    scale = np.abs(wanted[finite]).max(initial=0)
    close = np.allclose(result[finite], wanted[finite], rtol=0, atol=1e-4 * scale + 1e-7)
    same = np.array_equal(result[~finite], wanted[~finite], equal_nan=True)
    return "" if close and same else f"differs by up to {np.abs(result - wanted)[finite].max(initial=0)}"


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_operators_agree_with_onnxruntime(family: Callable[[Random], Iterator[Case]]) -> None:
    problems, compared = [], 0
    for case in family(Random()):
        try:
            wanted = expected(case)
        except Exception as error:
            if "NOT_IMPLEMENTED" in type(error).__name__.upper() or "NOT_IMPLEMENTED" in str(error):
                continue
            raise
        results = list(compile_module(tilewright.load(case.model())).run(case.feeds()).values())
        compared += 1
        for result, other in zip(results, wanted, strict=True):
            problem = difference(result, other)
            if problem:
                problems.append(f"{case}: {problem}")
    assert compared > 10
    assert not problems, "\n".join(problems)
