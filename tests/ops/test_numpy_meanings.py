"""What operators mean in numpy, beside ONNX's reference implementation: bits are the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tilewright.backends.reference.interpreter import ReferenceExecutable
from tilewright.graph.dtypes import f32
from tilewright.graph.model_builder import Builder
from tilewright.importers.onnx import load

rng = np.random.default_rng(3)
DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int32, np.int64, np.int8, np.uint8]


def drawn(dtype: Any, *shape: int) -> np.ndarray:
    return rng.integers(-9 if np.dtype(dtype).kind != "u" else 0, 9, shape).astype(dtype)


def places(size: int, *shape: int) -> np.ndarray:
    return rng.integers(-size, size, shape)


def check(op_type: str, operands: Mapping[str, np.ndarray], **attributes: Any) -> None:
    node = helper.make_node(op_type, list(operands), ["y"], **attributes)
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in operands.items()
    ]
    graph = helper.make_graph([node], "one", inputs, [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 26)], ir_version=12)
    wanted = ReferenceEvaluator(model).run(None, dict(operands))[0]
    found = ReferenceExecutable(load(onnx.shape_inference.infer_shapes(model))).run(operands)["y"]
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("diagonal", [None, 0, 1, -2, 50, -50])
@pytest.mark.parametrize("upper", [0, 1])
def test_trilu(dtype: Any, diagonal: int | None, upper: int) -> None:
    for shape in ((4, 6), (2, 5, 3), (3, 0, 4)):
        operands = {"x": drawn(dtype, *shape)}
        if diagonal is not None:
            operands["k"] = np.array(diagonal)
        check("Trilu", operands, upper=upper)


@pytest.mark.parametrize("diagonal", [2**62, -(2**62)])
@pytest.mark.parametrize("upper", [0, 1])
def test_a_diagonal_far_outside_of_a_matrix(diagonal: int, upper: int) -> None:
    x = drawn(np.float32, 4, 6)
    b = Builder("far")
    b.output(b.trilu(b.input("x", f32[4, 6]), np.array(diagonal), upper=upper), "y")
    found = ReferenceExecutable(b.build()).run({"x": x})["y"]
    np.testing.assert_array_equal(found, x if (diagonal < 0) == bool(upper) else np.zeros_like(x))


@pytest.mark.parametrize("dtype", DTYPES[:6])
@pytest.mark.parametrize("op_type", ["CumSum", "CumProd"])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_running_totals(dtype: Any, op_type: str, exclusive: int, reverse: int) -> None:
    for shape, axis in (((5,), 0), ((3, 4, 2), 1), ((3, 4), -1), ((3, 0, 2), 1)):
        operands = {"x": drawn(dtype, *shape), "axis": np.array(axis)}
        check(op_type, operands, exclusive=exclusive, reverse=reverse)


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", ["none", "add", "mul", "min", "max"])
def test_scatters(dtype: Any, reduction: str) -> None:
    for axis in (0, 1, -1):
        operands = {"data": drawn(dtype, 4, 5), "indices": places(4, 3, 4), "updates": drawn(dtype, 3, 4)}
        check("ScatterElements", operands, axis=axis, reduction=reduction)
    for depth in (1, 2, 3):
        data = drawn(dtype, 4, 5, 4)
        indices = places(4, 2, 3, depth)
        operands = {"data": data, "indices": indices, "updates": drawn(dtype, 2, 3, *data.shape[depth:])}
        check("ScatterND", operands, reduction=reduction)


@pytest.mark.parametrize("dtype", [*DTYPES, np.bool_])
def test_gathers(dtype: Any) -> None:
    for batch, depth in ((0, 1), (0, 3), (1, 1), (1, 2), (2, 1)):
        data = drawn(dtype, 3, 4, 5)
        check("GatherND", {"data": data, "indices": places(3, *(3, 4)[:batch], 6, 2, depth)}, batch_dims=batch)
    for x in (drawn(dtype, 3, 4), drawn(dtype, 5), drawn(dtype, 0, 2), np.array(1).astype(dtype)):
        check("NonZero", {"x": x})


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.bool_])
def test_compress(dtype: Any) -> None:
    x = drawn(dtype, 3, 4)
    check("Compress", {"x": x, "condition": np.array([False, True, True])}, axis=0)
    check("Compress", {"x": x, "condition": np.array([True, False, True, True, False])})


@pytest.mark.parametrize("k", [0, 2, -1, 9])
def test_eye_like(k: int) -> None:
    check("EyeLike", {"x": drawn(np.int32, 4, 6)}, k=k)
    check("EyeLike", {"x": drawn(np.int32, 4, 6)}, k=k, dtype=onnx.TensorProto.DOUBLE)
