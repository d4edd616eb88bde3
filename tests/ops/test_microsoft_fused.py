"""ONNX Runtime's fused operators: activations, products, convolutions, normalizations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from microsoft_cases import check

RANDOM = np.random.default_rng(11)


def random(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(dtype)


X = random(2, 3, 8)


def erf_gelu(x: np.ndarray) -> np.ndarray:
    return (x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))).astype(x.dtype)


# ---- activations -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 3, 8), (5,), (), (0, 4)])
@pytest.mark.parametrize(("name", "attributes"), [("Gelu", {}), ("QuickGelu", {}), ("QuickGelu", {"alpha": 0.5})])
def test_elementwise(name: str, attributes: dict[str, Any], shape: tuple[int, ...]) -> None:
    check(name, [random(*shape)], attributes)


@pytest.mark.parametrize("shape", [(2, 3, 8), (4, 8), (8,)])
@pytest.mark.parametrize("name", ["BiasGelu", "FastGelu"])
def test_gelu_of_a_sum(name: str, shape: tuple[int, ...]) -> None:
    check(name, [random(*shape), random(8)])


def test_fast_gelu_without_bias() -> None:
    check("FastGelu", [X])


def test_half_precision() -> None:
    check("FastGelu", [X.astype(np.float16)], outputs=[np.float16], tolerance=4e-3)
    check("QuickGelu", [X.astype(np.float16)], outputs=[np.float16], tolerance=4e-3)
    x, scale = random(2, 3, 8, dtype=np.float16), random(8, dtype=np.float16)
    check("BiasGelu", [x, scale], outputs=[np.float16], tolerance=4e-3)
    check("SkipLayerNormalization", [x, x, scale, scale], outputs=[np.float16], tolerance=1e-2)
    check("SkipSimplifiedLayerNormalization", [x, x, scale], outputs=[np.float16], tolerance=1e-2)
    check("SimplifiedLayerNormalization", [x, scale], outputs=[np.float16], domain="", tolerance=1e-2)


def test_operators_that_only_gpus_run() -> None:
    """ONNX Runtime has no CPU kernel for these; the formulas are those of its documentation."""
    bias = random(8)
    left, right = np.split(X + bias, 2, axis=-1)
    check("BiasSplitGelu", [X, bias], expected=[left * erf_gelu(right)])
    check("BiasAdd", [X, bias, X], expected=[X + bias + X])
    weight = random(8, 5)
    product = X @ weight + random(5) * 0
    inner = math.sqrt(2 / math.pi) * (product + 0.044715 * product**3)
    check("GemmFastGelu", [X, weight], expected=[0.5 * product * (1 + np.tanh(inner))])


@pytest.mark.parametrize(("bias", "inner", "axis"), [((2, 1, 8), 1, 2), ((1, 3, 8), 0, 2), ((2, 3, 8), 0, 1)])
def test_bias_softmax(bias: tuple[int, ...], inner: int, axis: int) -> None:
    b = random(*bias)
    rows = (X + b).reshape(*X.shape[:axis], -1)
    exponentials = np.exp(rows - rows.max(-1, keepdims=True))
    expected = (exponentials / exponentials.sum(-1, keepdims=True)).reshape(X.shape)
    check("BiasSoftmax", [X, b], {"is_inner_broadcast": inner, "axis": axis}, expected=[expected])


# ---- products --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "attributes"),
    [
        ((3, 4), (4, 5), {}),
        ((4, 3), (4, 5), {"transA": 1, "alpha": 0.5}),
        ((2, 3, 4), (2, 5, 4), {"transB": 1}),
        ((2, 6, 3, 4), (4, 5), {"alpha": 0.125}),
        ((4,), (4, 5), {"transA": 1}),
        ((3, 4), (4,), {"transB": 1}),
        ((3, 2, 4), (2, 4, 5), {"transBatchA": 1}),
        ((4, 2, 3), (2, 4, 5), {"transBatchA": 1, "transA": 1}),
        ((2, 3, 4), (4, 2, 5), {"transBatchB": 1}),
        ((3, 2, 6, 4), (5, 2, 6, 4), {"transBatchA": 1, "transBatchB": 1, "transB": 1, "alpha": 2.0}),
    ],
)
def test_fused_matmul(a: tuple[int, ...], b: tuple[int, ...], attributes: dict[str, Any]) -> None:
    check("FusedMatMul", [random(*a), random(*b)], attributes)


def test_transpose_matmul() -> None:
    check("TransposeMatMul", [random(4, 3), random(5, 4)], {"transA": 1, "transB": 1, "alpha": 3.0})


def test_fused_matmul_activation() -> None:
    a, b = random(2, 3, 4), random(2, 5, 4)
    product = 0.5 * a @ b.transpose(0, 2, 1)
    attributes = {"transB": 1, "alpha": 0.5, "activation": "LeakyRelu", "activation_alpha": 0.25}
    check("FusedMatMulActivation", [a, b], attributes, expected=[np.where(product < 0, product * 0.25, product)])


@pytest.mark.parametrize(
    "activation",
    [
        {"activation": "Relu"},
        {"activation": "LeakyRelu", "activation_alpha": 0.3},
        {"activation": "HardSigmoid", "activation_alpha": 0.3, "activation_beta": 0.4},
        {"activation": "Tanh"},
    ],
)
@pytest.mark.parametrize("with_bias", [True, False])
def test_fused_gemm(activation: dict[str, Any], with_bias: bool) -> None:
    bias = [random(5)] if with_bias else []
    check("FusedGemm", [random(4, 3), random(5, 4), *bias], {"transA": 1, "transB": 1, "alpha": 0.5, **activation})


# ---- convolutions ----------------------------------------------------------------------------------------------------

ACTIVATIONS = [
    {},
    {"activation": "Relu"},
    {"activation": "Sigmoid"},
    {"activation": "Tanh"},
    {"activation": "LeakyRelu", "activation_params": [0.2]},
    {"activation": "Clip", "activation_params": [-0.5, 0.5]},
    {"activation": "HardSigmoid", "activation_params": [0.2, 0.5]},
]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(
    "window",
    [
        {},
        {"pads": [1, 1, 1, 1], "strides": [2, 2], "group": 2},
        {"auto_pad": "SAME_UPPER", "strides": [2, 1]},
        {"dilations": [2, 2]},
    ],
)
def test_fused_conv(activation: dict[str, Any], window: dict[str, Any]) -> None:
    weight = random(6, 4 // window.get("group", 1), 3, 3)
    check("FusedConv", [random(2, 4, 9, 9), weight, random(6)], {**window, **activation})


@pytest.mark.parametrize("activation", ACTIVATIONS[:2])
def test_fused_conv_adds_a_residual(activation: dict[str, Any]) -> None:
    check("FusedConv", [random(1, 4, 7, 7), random(6, 4, 3, 3), random(6), random(1, 6, 5, 5)], activation)
    check("FusedConv", [random(1, 4, 7, 7), random(6, 4, 3, 3), None, random(1, 6, 5, 5)], activation)


def test_channels_last() -> None:
    x = RANDOM.integers(-128, 127, (2, 9, 8, 3)).astype(np.int8)
    check("NhwcMaxPool", [x], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}, outputs=[np.int8])
    check("NhwcMaxPool", [x.view(np.uint8)], {"kernel_shape": [2, 3], "ceil_mode": 1}, outputs=[np.uint8])


# ---- normalizations --------------------------------------------------------------------------------------------------

F32 = np.float32


@pytest.mark.parametrize("skip", [(2, 3, 8), (1, 3, 8), (3, 8)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_skip_layer_normalization(skip: tuple[int, ...], with_bias: bool) -> None:
    inputs = [X, random(*skip), random(8), random(8), random(8) if with_bias else None]
    check("SkipLayerNormalization", inputs, {"epsilon": 1e-5}, outputs=[F32, None, None, F32])
    check("SkipLayerNormalization", inputs[:3], outputs=[F32])
    inputs = [X, random(*skip), random(8), random(8) if with_bias else None]
    check("SkipSimplifiedLayerNormalization", inputs, {"epsilon": 1e-5}, outputs=[F32, None, None, F32])


@pytest.mark.parametrize("attributes", [{}, {"axis": 1, "epsilon": 1e-3}, {"axis": -2, "stash_type": 1}])
def test_simplified_layer_normalization(attributes: dict[str, Any]) -> None:
    axis = attributes.get("axis", -1)
    for domain in ("", "com.microsoft"):
        options: dict[str, Any] = {}
        if domain:
            mean = np.square(X).mean(axis=tuple(range(axis % 3, 3)), keepdims=True)
            inverse = 1 / np.sqrt(mean + attributes.get("epsilon", 1e-5))
        scale = random(*X.shape[axis:])
        if domain:
            options["expected"] = [X * inverse * scale, inverse]
        check("SimplifiedLayerNormalization", [X, scale], attributes, outputs=[F32, F32], domain=domain, **options)


def embeddings(*, segments: bool, mask: bool, positions: bool) -> list[np.ndarray | None]:
    ids = RANDOM.integers(0, 20, (2, 5)).astype(np.int32)
    return [
        ids,
        RANDOM.integers(0, 2, (2, 5)).astype(np.int32) if segments else None,
        random(20, 8), random(10, 8), random(2, 8) if segments else None, random(8), random(8),
        np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32) if mask else None,
        RANDOM.integers(0, 10, (2, 5)).astype(np.int32) if positions else None,
    ]  # fmt: skip


@pytest.mark.parametrize("segments", [True, False])
@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("positions", [True, False])
def test_embed_layer_normalization(segments: bool, mask: bool, positions: bool) -> None:
    inputs = embeddings(segments=segments, mask=mask, positions=positions)
    check("EmbedLayerNormalization", inputs, {"epsilon": 1e-5}, outputs=[F32, np.int32])
    check("EmbedLayerNormalization", inputs, {}, outputs=[F32, np.int32, F32])


@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("activation", [0, 1])
def test_group_norm(channels_last: int, activation: int) -> None:
    """No CPU kernel in ONNX Runtime."""
    x, scale, bias, skip, extra = random(2, 3, 5, 8), random(8), random(8), random(2, 8), random(8)
    attributes = {"channels_last": channels_last, "activation": activation, "groups": 4, "epsilon": 1e-3}

    def normalized(data: np.ndarray) -> np.ndarray:
        groups = data.reshape(2, 15, 4, 2)
        mean, variance = groups.mean((1, 3), keepdims=True), groups.var((1, 3), keepdims=True)
        result = ((groups - mean) / np.sqrt(variance + 1e-3)).reshape(data.shape) * scale + bias
        return result / (1 + np.exp(-result)) if activation else result

    def turned(data: np.ndarray) -> np.ndarray:
        return data if channels_last else data.transpose(0, 3, 1, 2)

    check("GroupNorm", [turned(x), scale, bias], attributes, expected=[turned(normalized(x))])
    total = x + skip[:, None, None] + extra
    expected = [turned(normalized(total)), turned(total)]
    operands = [turned(x), scale, bias, skip, extra]
    check("SkipGroupNorm", operands, attributes, outputs=[F32, F32], expected=expected)
