"""ONNX Runtime's quantized operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from microsoft_cases import check, node_model, run_onnxruntime

RANDOM = np.random.default_rng(3)
F32 = np.float32
DTYPES = [np.uint8, np.int8]


def random(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(F32)


def whole(*shape: int, dtype: Any = np.uint8) -> np.ndarray:
    info = np.iinfo(dtype)
    return RANDOM.integers(info.min, info.max, shape, endpoint=True).astype(dtype)


def weights(*shape: int, dtype: Any = np.int8) -> np.ndarray:
    """Signed ones have 7 bits: where a machine has no VNNI, ONNX Runtime saturates sums of two larger products."""
    return whole(*shape, dtype=dtype) if dtype is np.uint8 else RANDOM.integers(-64, 64, shape).astype(dtype)


def scale(number: float) -> np.ndarray:
    return np.array(number, F32)


def point(number: int, dtype: Any) -> np.ndarray:
    return np.array(number, dtype)


# ---- conversions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])
def test_conversions(dtype: Any) -> None:
    x, step, zero = random(2, 3, 4), scale(0.01), point(5, dtype)
    check("QuantizeLinear", [x, step, zero], outputs=[dtype])
    check("DequantizeLinear", [whole(2, 3, 4, dtype=dtype), step, zero])
    steps, zeros = np.array([0.1, 0.02, 0.3], F32), np.array([1, 2, 3], dtype)
    check("QuantizeLinear", [x, steps, zeros], {"axis": 1}, outputs=[dtype])
    check("DequantizeLinear", [whole(2, 3, 4, dtype=dtype), steps, zeros], {"axis": -2})


def test_conversions_without_zero_point() -> None:
    check("QuantizeLinear", [random(2, 3), scale(0.1)], outputs=[np.uint8])
    check("DequantizeLinear", [whole(2, 3, dtype=np.int8), scale(0.1)])


# ---- products --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_matrix_products(dtype: Any, columns: bool, bias: bool) -> None:
    b, addend = weights(6, 4, dtype=dtype), random(4) if bias else None
    steps = np.array([0.1, 0.2, 0.3, 0.4], F32) if columns else scale(0.1)
    zeros = np.array([1, 2, 3, 4], dtype) if columns else point(3, dtype)
    check("DynamicQuantizeMatMul", [random(2, 3, 6), b, steps, zeros, addend], tolerance=1e-4)
    check("DynamicQuantizeMatMul", [random(3, 6), b, steps, None, addend], tolerance=1e-4)
    a = whole(2, 3, 6)
    check("MatMulIntegerToFloat", [a, b, scale(0.05), steps, point(7, np.uint8), zeros, addend], tolerance=1e-4)
    check("MatMulIntegerToFloat", [a, b, scale(0.05), steps, None, None, addend], tolerance=1e-4)


def test_16_bit_product() -> None:
    a, b = whole(2, 3, 4, dtype=np.int16), RANDOM.integers(-9, 9, (4, 5)).astype(np.int16)
    expected = a.astype(np.int32) @ b.astype(np.int32)
    check("MatMulInteger16", [a, b], outputs=[np.int32], expected=[expected])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [True, False])
@pytest.mark.parametrize("addend", [True, False])
def test_gemm(dtype: Any, columns: bool, addend: bool) -> None:
    steps = np.array([0.1, 0.2, 0.3, 0.4], F32) if columns else scale(0.1)
    zeros = np.array([1, 2, 3, 4], dtype) if columns else point(3, dtype)
    c = RANDOM.integers(-900, 900, (4,)).astype(np.int32) if addend else None
    inputs: list[Any] = [whole(3, 6), scale(0.2), point(100, np.uint8), weights(6, 4, dtype=dtype), steps, zeros, c]
    check("QGemm", inputs, tolerance=1e-4)
    check("QGemm", [*inputs, scale(3.0), point(120, np.uint8)], {"alpha": 0.5}, [np.uint8], quanta=1)
    inputs[0], inputs[3] = inputs[0].T.copy(), inputs[3].T.copy()
    check("QGemm", inputs, {"transA": 1, "transB": 1}, tolerance=1e-4)


@pytest.mark.parametrize(
    "mask", [None, np.array([3, 5], np.int32), np.array([[1, 1, 0, 1, 1], [0, 1, 1, 1, 1]], np.int32)]
)
@pytest.mark.parametrize("attributes", [{}, {"unidirectional": 1}])
def test_attention(mask: np.ndarray | None, attributes: dict[str, Any]) -> None:
    inputs = [
        whole(2, 5, 6), weights(6, 24), random(24), scale(0.01), scale(0.02), mask,
        point(120, np.uint8), point(3, np.int8),
    ]  # fmt: skip
    check("QAttention", inputs, {"num_heads": 2, **attributes}, tolerance=1e-4, expands=False)
    inputs[5] = None
    inputs += [random(2, 2, 2, 3, 4)]
    check("QAttention", inputs, {"num_heads": 2, **attributes}, [F32, F32], tolerance=1e-4, expands=False)


@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("attributes", [{}, {"group": 2, "strides": [2, 2], "pads": [1, 1, 1, 1]}])
def test_convolution(channels_last: int, attributes: dict[str, Any]) -> None:
    x, w = whole(2, 8, 7, 4), weights(6, 4 // attributes.get("group", 1), 3, 3)
    inputs: list[Any] = [
        x if channels_last else x.transpose(0, 3, 1, 2).copy(), scale(0.02), point(120, np.uint8),
        w, RANDOM.uniform(0.01, 0.1, 6).astype(F32), np.zeros(6, np.int8), scale(0.5), point(128, np.uint8),
        RANDOM.integers(-900, 900, (6,)).astype(np.int32),
    ]  # fmt: skip
    options: dict[str, Any] = {"outputs": [np.uint8], "quanta": 1}
    check("QLinearConv", inputs, {**attributes, "channels_last": channels_last}, **options)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("columns", [True, False])
def test_lstm(direction: str, columns: bool) -> None:
    """ONNX Runtime rounds input and state to 8 bits, which is not done here; hence the tolerance."""
    count, hidden = 2 if direction == "bidirectional" else 1, 3
    shape = (count, 4 * hidden) if columns else (count,)
    inputs = [
        random(4, 2, 5), weights(count, 5, 12), weights(count, 3, 12), random(count, 24),
        None, None, None, None, np.full(shape, 0.003, F32), np.zeros(shape, np.int8), np.full(shape, 0.004, F32),
        np.zeros(shape, np.int8),
    ]  # fmt: skip
    attributes = {"hidden_size": hidden, "direction": direction}
    check("DynamicQuantizeLSTM", inputs, attributes, [F32, F32, F32], constants=[1, 2, 8, 9, 10, 11], tolerance=0.03)


# ---- elementwise -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("shapes", [((2, 3, 4), (2, 3, 4)), ((2, 3, 4), (4,)), ((2, 1, 4), (3, 1)), ((5,), ())])
def test_binary(name: str, dtype: Any, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = (whole(*shape, dtype=dtype) for shape in shapes)
    zeros = [point(number, dtype) for number in (3, 50, 100)]
    inputs = [a, scale(0.03), zeros[0], b, scale(0.02), zeros[1], scale(0.05), zeros[2]]
    check(name, inputs, outputs=[dtype], quanta=1)
    # ONNX Runtime fails to type a node without zero points, though its signature allows that.
    none = point(0, dtype)
    explicit = [a, scale(0.03), none, b, scale(0.02), none, scale(0.05), none]
    model = node_model(name, explicit, {}, [dtype]).SerializeToString()
    expected = run_onnxruntime(model, {f"i{index}": item for index, item in enumerate(explicit)})
    inputs = [a, scale(0.03), None, b, scale(0.02), None, scale(0.05), None]
    check(name, inputs, outputs=[dtype], quanta=1, expected=expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_unary(dtype: Any) -> None:
    inputs = [whole(3, 7, dtype=dtype), scale(0.03), point(10, dtype), scale(0.004), point(2, dtype)]
    check("QLinearSigmoid", inputs, outputs=[dtype], quanta=1, constants=[1, 2, 3, 4])
    inputs[3] = scale(0.05)
    check("QLinearLeakyRelu", inputs, {"alpha": 0.2}, outputs=[dtype], quanta=1, constants=[1, 2, 3, 4])
    check("QLinearLeakyRelu", inputs, outputs=[dtype], quanta=1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("attributes", [{"opset": 13}, {"opset": 12, "axis": 1}, {"opset": 13, "axis": 1}])
def test_softmax(dtype: Any, attributes: dict[str, Any]) -> None:
    inputs = [whole(2, 3, 4, dtype=dtype), scale(0.05), point(0, dtype), scale(1 / 256), point(0, dtype)]
    check("QLinearSoftmax", inputs, attributes, [dtype], quanta=1, constants=[1, 2, 3, 4])


@pytest.mark.parametrize("dtype", DTYPES)
def test_where(dtype: Any) -> None:
    x, y = whole(2, 3, 4, dtype=dtype), whole(4, dtype=dtype)
    zeros = [point(number, dtype) for number in (3, 50, 100)]
    inputs = [whole(3, 1) > 99, x, scale(0.03), zeros[0], y, scale(0.02), zeros[1], scale(0.05), zeros[2]]
    check("QLinearWhere", inputs, outputs=[dtype], quanta=1, constants=[2, 3, 5, 6, 7, 8])


# ---- pools and the rest ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels_last", [0, 1])
def test_pools(dtype: Any, channels_last: int) -> None:
    rest: list[Any] = [scale(0.03), point(10, dtype), scale(0.04), point(20, dtype)]
    x = whole(2, 7, 9, 3, dtype=dtype)
    x = x if channels_last else x.transpose(0, 3, 1, 2).copy()
    check("QLinearGlobalAveragePool", [x, *rest], {"channels_last": channels_last}, [dtype], quanta=1)
    for attributes in (
        {"kernel_shape": [3, 3]},
        {"kernel_shape": [2, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "count_include_pad": 1},
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1},
    ):
        options = {**attributes, "channels_last": channels_last}
        check("QLinearAveragePool", [x, *rest], options, [dtype], quanta=1)


def test_reduce_mean() -> None:
    """No CPU kernel in ONNX Runtime any more."""
    x = whole(2, 3, 4)
    mean = (x.astype(np.float64) - 10).mean((1, 2)) * 0.03
    expected = np.clip(np.round(mean / 0.02) + 5, 0, 255).astype(np.uint8)
    inputs = [x, scale(0.03), point(10, np.uint8), scale(0.02), point(5, np.uint8)]
    attributes = {"axes": [1, 2], "keepdims": 0}
    check("QLinearReduceMean", inputs, attributes, [np.uint8], quanta=1, expected=[expected])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [1, -1])
def test_concat(dtype: Any, axis: int) -> None:
    shapes = [(2, 3, 4), (2, 5, 4)] if axis == 1 else [(2, 3, 4), (2, 3, 1)]
    parts: list[Any] = [scale(0.05), point(9, dtype)]
    for number, shape in enumerate(shapes):
        parts += [whole(*shape, dtype=dtype), scale(0.03 + number / 100), point(number, dtype)]
    check("QLinearConcat", parts, {"axis": axis}, [dtype], quanta=1)
