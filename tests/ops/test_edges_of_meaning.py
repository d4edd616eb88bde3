"""The numpy meaning of operators where it is easily wrong: nothing along an axis, a single number, bounds outside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import tilewright
from tilewright.graph.diagnostics import ModelError
from tilewright.graph.dtypes import from_numpy
from tilewright.graph.model_builder import Builder

F32, F16, F64, I64 = np.float32, np.float16, np.float64, np.int64


def run(op_type: str, *operands: np.ndarray, opset: int = 21, **attributes: Any) -> np.ndarray:
    """One node on arrays, of which those of integers are initializers."""
    names = [f"x{index}" for index in range(len(operands))]
    kinds = [helper.np_dtype_to_tensor_dtype(operand.dtype) for operand in operands]
    inputs, weights, feeds = [], [], {}
    for name, kind, operand in zip(names, kinds, operands, strict=True):
        if kind == TensorProto.INT64 and name != "x0":
            weights.append(helper.make_tensor(name, kind, operand.shape, operand.ravel()))
        else:
            inputs.append(helper.make_tensor_value_info(name, kind, operand.shape))
            feeds[name] = operand
    graph = helper.make_graph(
        [helper.make_node(op_type, names, ["y"], **attributes)],
        "g", inputs, [helper.make_tensor_value_info("y", kinds[0], None)], weights,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    result: np.ndarray = tilewright.compile(model).run(feeds)["y"]
    return result


@pytest.mark.parametrize(
    ("start", "end", "step", "expected"),
    [
        # ONNX clamps the start of a backward slice to the first element; Python starts before it and takes nothing.
        (-9, -(2**63), -1, [0]),
        (-9, -9, -2, [0]),
        (-9, 0, -1, []),
        (9, -9, -2, [3, 1]),
        (2, -9, -1, [2, 1, 0]),
        (-9, 9, 2, [0, 2]),
        (9, 9, 1, []),
    ],
)
@pytest.mark.parametrize("known", [True, False], ids=["elements that are known", "data"])
def test_slice_clamps_as_onnx_does(start: int, end: int, step: int, expected: list[int], known: bool) -> None:
    bounds = [np.array([bound], I64) for bound in (start, end, 0, step)]
    if not known:
        assert run("Slice", np.arange(4, dtype=F32), *bounds).tolist() == expected
        return
    # The elements 0 to 3 are those of a shape, so that the slice is taken of dims while types are inferred.
    names = ["start", "end", "axis", "step"]
    graph = helper.make_graph(
        [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Slice", ["s", *names], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", 1, [0, 1, 2, 3])],
        [helper.make_tensor_value_info("y", 7, [None])],
        [helper.make_tensor(name, 7, [1], bound) for name, bound in zip(names, bounds, strict=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    module = tilewright.optimize(model, passes="fold,dce").module
    (constant,) = [op for op in module.main.block if op.results]
    assert constant.attributes["value"].numpy().tolist() == expected


@pytest.mark.parametrize(
    ("op_type", "operands", "attributes", "shape"),
    [
        ("Conv", [np.ones((0, 4, 5), F32), np.ones((2, 4, 3), F32)], {}, (0, 2, 3)),
        ("Conv", [np.ones((0, 4, 5), F32), np.ones((4, 1, 3), F32)], {"group": 4}, (0, 4, 3)),
        ("ConvTranspose", [np.ones((0, 4, 5), F32), np.ones((4, 2, 3), F32)], {"strides": [2]}, (0, 2, 11)),
        ("MaxPool", [np.ones((0, 3, 3), F32)], {"kernel_shape": [2]}, (0, 3, 2)),
        ("AveragePool", [np.ones((0, 3, 3), F32)], {"kernel_shape": [2]}, (0, 3, 2)),
        ("LpPool", [np.ones((0, 3, 3), F32)], {"kernel_shape": [2]}, (0, 3, 2)),
    ],
)
def test_an_empty_batch(op_type: str, operands: list[np.ndarray], attributes: Any, shape: tuple[int, ...]) -> None:
    assert run(op_type, *operands, **attributes).shape == shape


@pytest.mark.parametrize("dtype", [F32, F16, F64])
def test_mean_broadcasts(dtype: type) -> None:
    found = run("Mean", np.array([1], dtype), np.array([[3, 5], [7, 9]], dtype), np.array(2, dtype))
    assert found.dtype == dtype
    assert found.tolist() == np.array([[2, 8 / 3], [10 / 3, 4]], dtype).tolist()


@pytest.mark.parametrize("dtype", [F32, F16, F64])
def test_softsign_of_one_number(dtype: type) -> None:
    found = run("Softsign", np.array(-3, dtype))
    assert (found.dtype, found.shape, found.item()) == (dtype, (), -0.75)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_mean_variance_normalization_of_nearly_equal_elements(target: str, dtype: type) -> None:
    """The mean of squares less the square of the mean may come out below 0."""
    x = np.random.default_rng(3).normal(size=(1, 2, 500)).astype(dtype)
    x[:, 1] = np.nextafter(x[:, 0], dtype(np.inf), dtype=dtype)
    x[0, 1, :9] = x[0, 0, :9]
    b = Builder("channels")
    b.output(b.mean_variance_normalization(b.input("x", from_numpy(x.dtype)[x.shape]), axes=[1]), "y")
    y = tilewright.compile(b.build(), target=target).run({"x": x})["y"]
    assert np.isfinite(y).all()
    assert (y[0, :, :9] == 0).all()


def test_mean_variance_normalization_of_half_precision() -> None:
    x = np.arange(24).reshape(2, 3, 2, 2).astype(F16)
    wide = x.astype(F64)
    expected = (wide - wide.mean((0, 2, 3), keepdims=True)) / wide.std((0, 2, 3), keepdims=True)
    found = run("MeanVarianceNormalization", x)
    assert found.dtype == F16
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("op_type", ["ReduceLogSum", "ReduceLogSumExp"])
def test_types_that_an_older_version_took(op_type: str) -> None:
    """Integers until opset 27; such a model is verified, run and written as it is."""
    graph = helper.make_graph(
        [helper.make_node(op_type, ["x"], ["y"], keepdims=0)], "g",
        [helper.make_tensor_value_info("x", 7, [3])], [helper.make_tensor_value_info("y", 7, [])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    report = tilewright.optimize(model, 1, verify_each=True)
    assert tilewright.to_proto(report.module).graph.node[0].op_type == op_type
    assert tilewright.compile(model).run({"x": np.array([10, 20, 30])})["y"] == (4 if op_type == "ReduceLogSum" else 30)


@pytest.mark.parametrize("scale", [np.nan, np.inf, 0.0, -1.0])
def test_scales_that_are_no_scales(scale: float) -> None:
    with pytest.raises(ModelError, match="must be positive numbers") as caught:
        graph = helper.make_graph(
            [helper.make_node("Resize", ["x", "", "s"], ["y"])], "g",
            [helper.make_tensor_value_info("x", 1, [1, 4])], [helper.make_tensor_value_info("y", 1, None)],
            [helper.make_tensor("s", 1, [2], [1, scale])],
        )  # fmt: skip
        tilewright.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    assert caught.value.code == "shape/resize"
