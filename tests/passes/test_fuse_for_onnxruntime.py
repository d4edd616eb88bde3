"""fuse-for-onnxruntime: every operator that it uses is run in ONNX Runtime against the model it stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import Builder, Module, f16, f32, f64
from tilewright.graph.clone import clone_module
from tilewright.importers.onnx import to_bytes
from tilewright.passes.context import PassContext
from tilewright.passes.manager import PassManager

onnxruntime = pytest.importorskip("onnxruntime")
RANDOM = np.random.default_rng(7)


def random(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(dtype)


def run(module: Module, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What ONNX Runtime computes, its own optimizations off."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    model = to_bytes(module, target="onnxruntime")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, feeds)


def operators(module: Module) -> list[str]:
    return [op.op_type for op in module.walk() if op.name not in ("const", "return")]


PIPELINE = "fuse-for-onnxruntime,fold,cse,dce"


def fused(module: Module, pipeline: str = PIPELINE) -> Module:
    result = clone_module(module)
    PassManager.parse(pipeline).run(result, PassContext(debug=True))
    return result


def check(
    module: Module,
    expected: list[str],
    feeds: dict[str, np.ndarray],
    tolerance: float = 1e-5,
    pipeline: str = PIPELINE,
) -> Module:
    """The module becomes `expected`, which gives what the numpy meaning of the module does."""
    result = fused(module, pipeline)
    assert sorted(operators(result)) == sorted(expected)
    wanted = tilewright.compile(module, "reference").run(feeds)
    for (name, want), got in zip(wanted.items(), run(result, feeds), strict=True):
        assert got.dtype == want.dtype, name
        assert got.shape == want.shape, name
        np.testing.assert_allclose(
            got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance * 10, err_msg=name
        )
    return result


def made(build: Callable[[Builder, Any], Any], shape: tuple[Any, ...], dtype: Any = f32, opset: int = 18) -> Module:
    b = Builder(opset=opset)
    b.output(build(b, b.input("x", dtype[shape])), "y")
    return b.build()


# ---- activations -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [("n", 8), (8,), (2, 3, 4, 8)])
@pytest.mark.parametrize(("approximate", "operator"), [("none", "BiasGelu"), ("tanh", "FastGelu")])
@pytest.mark.parametrize("first", [True, False])
def test_gelu_of_a_sum(shape: tuple[Any, ...], approximate: str, operator: str, first: bool) -> None:
    bias = random(8)
    module = made(
        lambda b, x: b.gelu(b.add(bias, x) if first else b.add(x, bias), approximate=approximate), shape, opset=20
    )
    sizes = [3 if dim == "n" else dim for dim in shape]
    check(module, [operator], {"x": random(*sizes)})


@pytest.mark.parametrize(
    ("shape", "bias", "dtype"),
    [
        ((4, 8), random(4, 8), f32),  # no vector
        ((4, 8), random(1), f32),  # shorter than the last dim
        (("n", "m"), random(8), f32),  # the last dim is not known
        ((4, 8), random(8, dtype=np.float64), f64),  # no kernel
        ((1,), random(8), f32),  # the bias widens x
    ],
)
@pytest.mark.refusal
def test_no_bias_gelu(shape: tuple[Any, ...], bias: np.ndarray, dtype: Any) -> None:
    module = made(lambda b, x: b.gelu(b.add(x, bias)), shape, dtype, opset=20)
    result = operators(fused(module))
    assert "BiasGelu" not in result or shape == (1,)


def test_a_sum_with_another_user_stays() -> None:
    b = Builder(opset=20)
    total = b.add(b.input("x", f32[2, 8]), random(8))
    b.output(b.gelu(total), "y")
    b.output(total, "total")
    assert operators(fused(b.build())) == ["Add", "Gelu"]


@pytest.mark.parametrize(("approximate", "operator"), [("none", "Gelu"), ("tanh", "FastGelu")])
def test_gelu_below_opset_20(approximate: str, operator: str) -> None:
    module = made(lambda b, x: b.gelu(x, approximate=approximate), (2, 8))
    result = check(module, [operator], {"x": random(2, 8)})
    assert {op.domain for op in result.walk() if op.op_type == operator} == {"com.microsoft"}
    newer = made(lambda b, x: b.gelu(x, approximate=approximate), (2, 8), opset=20)
    assert {op.domain for op in fused(newer).walk() if op.op_type == "Gelu"} == {""}


@pytest.mark.parametrize("alpha", [1.0, 1.702, -0.5])
def test_swish(alpha: float) -> None:
    check(made(lambda b, x: b.swish(x, alpha=alpha), ("n", 8)), ["QuickGelu"], {"x": random(3, 8)})
    gated = made(lambda b, x: b.swiglu(x, b.neg(x), alpha=alpha), ("n", 8))
    check(gated, ["Neg", "QuickGelu", "Mul"], {"x": random(3, 8)})


def test_no_swish_in_half_precision() -> None:
    assert operators(fused(made(lambda b, x: b.swish(x), (2, 8), f16))) == ["Swish"]


# ---- normalizations --------------------------------------------------------------------------------------------------

SCALE, SHIFT, ROW = random(8), random(8), random(8)
SKIP = {"layer": "SkipLayerNormalization", "rms": "SkipSimplifiedLayerNormalization"}


def norm(b: Builder, x: Any, kind: str, **options: Any) -> Any:
    options = {"epsilon": 1e-5, **options}
    return (
        b.rms_normalization(x, SCALE, **options) if kind == "rms" else b.layer_normalization(x, SCALE, SHIFT, **options)
    )


def residual(kind: str, shape: tuple[Any, ...], bias: bool = False, keep: bool = False, other: Any = None) -> Module:
    b = Builder(opset=23)
    x, skip = b.input("x", f32[shape]), b.input("s", f32[shape if other is None else other])
    total = b.add(b.add(x, ROW) if bias else x, skip)
    b.output(norm(b, total, kind), "y")
    if keep:
        b.output(b.neg(total), "total")
    return b.build()


@pytest.mark.parametrize("kind", SKIP)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(4, 8), ("n", "m", 8)])
def test_normalization_of_a_sum(kind: str, bias: bool, shape: tuple[Any, ...]) -> None:
    feeds = {name: random(*(3 if isinstance(dim, str) else dim for dim in shape)) for name in "xs"}
    check(residual(kind, shape, bias), [SKIP[kind]], feeds)


NORM = {"layer": "LayerNormalization", "rms": "RMSNormalization"}


@pytest.mark.parametrize("kind", SKIP)
def test_a_sum_that_others_use_is_made_by_itself(kind: str) -> None:
    feeds = {name: random(3, 8) for name in "xs"}
    check(residual(kind, (3, 8), keep=True), ["Add", NORM[kind], "Neg"], feeds)
    check(residual(kind, (3, 8), bias=True, keep=True), ["Sum", NORM[kind], "Neg"], feeds)


@pytest.mark.parametrize("kind", SKIP)
@pytest.mark.parametrize("width", [255, 256])
def test_wide_rows_are_written_as_what_runs_faster(kind: str, width: int) -> None:
    operators = [SKIP[kind]] if width < 256 else ["Sum", NORM[kind]]
    rows = [random(width) for _ in range(3)]
    for bias in (False, True):
        b = Builder(opset=23)
        x, skip = b.input("x", f32[2, 3, width]), b.input("s", f32[2, 3, width])
        total = b.add(b.add(x, rows[2]) if bias else x, skip)
        y = b.rms_normalization(total, rows[0]) if kind == "rms" else b.layer_normalization(total, *rows[:2])
        b.output(y, "y")
        check(b.build(), operators, {name: random(2, 3, width) for name in "xs"})


def test_a_wide_bias_stays_with_its_product() -> None:
    for width, operators in ((255, ["BiasGelu"]), (256, ["Add", "Gelu"])):
        b = Builder(opset=20)
        b.output(b.gelu(b.add(b.input("x", f32[2, width]), random(width))), "y")
        check(b.build(), operators, {"x": random(2, width)})


@pytest.mark.parametrize("kind", SKIP)
def test_fast_leaves_slower_operators_out(kind: str) -> None:
    feeds = {name: random(3, 8) for name in "xs"}
    fast = "fuse-for-onnxruntime{fast=true},dce"
    check(residual(kind, (3, 8)), ["Sum", NORM[kind]], feeds, pipeline=fast)
    check(residual(kind, (3, 8), bias=True), ["Sum", NORM[kind]], feeds, pipeline=fast)
    check(residual(kind, (3, 8), keep=True), ["Add", NORM[kind], "Neg"], feeds, pipeline=fast)
    gelu = made(lambda b, x: b.gelu(b.add(x, ROW)), (2, 8), opset=20)
    check(gelu, ["Add", "Gelu"], {"x": random(2, 8)}, pipeline=fast)


def test_half_precision_norms() -> None:
    for kind in SKIP:
        b = Builder(opset=23)
        total = b.add(b.input("x", f16[2, 8]), b.input("s", f16[2, 8]))
        rows = [row.astype(np.float16) for row in (SCALE, SHIFT)]
        y = b.rms_normalization(total, rows[0]) if kind == "rms" else b.layer_normalization(total, *rows)
        b.output(y, "y")
        feeds = {name: random(2, 8, dtype=np.float16) for name in "xs"}
        check(b.build(), [SKIP[kind]], feeds, tolerance=2e-2)


@pytest.mark.parametrize("kind", SKIP)
@pytest.mark.parametrize(
    ("shape", "other"),
    [
        ((2, 3, 8), (1, 8)),  # a broadcast sum
        (("a", 3, 8), ("b", 3, 8)),  # dims that may differ
        ((2, 3, 4, 8), None),  # more dims than the kernel takes
        ((8,), None),
    ],
)
@pytest.mark.refusal
def test_no_skip_normalization(kind: str, shape: tuple[Any, ...], other: Any) -> None:
    assert SKIP[kind] not in operators(fused(residual(kind, shape, other=other)))


@pytest.mark.refusal
def test_normalizations_over_other_axes_or_in_other_types_stay() -> None:
    for dtype, axis in ((f32, 1), (f64, -1)):
        b = Builder(opset=23)
        total = b.add(b.input("x", dtype[2, 3, 8]), b.input("s", dtype[2, 3, 8]))
        scale = random(*((3, 8) if axis == 1 else (8,)), dtype=np.float64 if dtype is f64 else np.float32)
        b.output(b.layer_normalization(total, scale, axis=axis), "y")
        assert operators(fused(b.build())) == ["Add", "LayerNormalization"]


def test_a_sum_of_three_of_other_dims_stays() -> None:
    for x, row, y in [((2, 8), (2, 8), (2, 8)), ((2, 8), (8,), (1, 8)), (("n", 8), (8,), ("m", 8))]:
        b = Builder(opset=18)
        total = b.add(b.add(b.input("x", f32[x]), b.input("r", f32[row])), b.input("y", f32[y]))
        b.output(total, "z")
        assert operators(fused(b.build())) == ["Add", "Add"]


def test_rms_normalization_below_opset_23() -> None:
    module = made(lambda b, x: b.rms_normalization(x, SCALE), ("n", 8))
    check(module, ["SimplifiedLayerNormalization"], {"x": random(3, 8)})
    newer = made(lambda b, x: b.rms_normalization(x, SCALE), ("n", 8), opset=23)
    assert operators(fused(newer)) == ["RMSNormalization"]


# ---- products and convolutions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("sides", ["left", "right", "both"])
@pytest.mark.parametrize("dtype", [f32, f64])
def test_transposed_factors(sides: str, dtype: Any) -> None:
    b = Builder(opset=18)
    x, y = b.input("x", dtype[2, 4, 4]), b.input("y", dtype["n", 4, 4])
    left = b.transpose(x, perm=[0, 2, 1]) if sides != "right" else x
    right = b.transpose(y, perm=[0, 2, 1]) if sides != "left" else y
    b.output(b.matmul(left, right), "z")
    feeds = {name: random(2, 4, 4, dtype=dtype.numpy) for name in "xy"}
    check(b.build(), ["FusedMatMul"], feeds)


@pytest.mark.parametrize("divide", [False, True])
def test_scaled_product(divide: bool) -> None:
    def build(b: Builder, x: Any) -> Any:
        product = b.matmul(x, b.transpose(x, perm=[0, 2, 1]))
        return b.div(product, np.float32(8)) if divide else b.mul(product, np.float32(0.125))

    check(made(build, ("n", 3, 4)), ["FusedMatMul"], {"x": random(2, 3, 4)})


@pytest.mark.refusal
def test_other_transposes_and_factors_stay() -> None:
    module = made(lambda b, x: b.matmul(b.transpose(x, perm=[1, 0, 2]), x), (4, 4, 4))
    assert operators(fused(module)) == ["Transpose", "MatMul"]
    module = made(lambda b, x: b.mul(b.matmul(x, x), random(4)), (4, 4))
    assert operators(fused(module)) == ["MatMul", "Mul"]


PARAMETERS = {
    "relu": {}, "tanh": {}, "sigmoid": {}, "leaky_relu": {"alpha": 0.2}, "hard_sigmoid": {"alpha": 0.3, "beta": 0.4},
    "softplus": {}, "softsign": {}, "elu": {"alpha": 0.7}, "thresholded_relu": {"alpha": 0.6},
    "selu": {"alpha": 1.2, "gamma": 0.9},
}  # fmt: skip


@pytest.mark.parametrize("activation", PARAMETERS)
def test_gemm_with_an_activation(activation: str) -> None:
    def build(b: Builder, x: Any) -> Any:
        return getattr(b, activation)(b.gemm(x, random(8, 6), random(6), alpha=0.5), **PARAMETERS[activation])

    check(made(build, ("n", 8)), ["FusedGemm"], {"x": random(5, 8)})


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid", "leaky_relu", "hard_sigmoid", "clip", "none"])
@pytest.mark.parametrize("residual", [False, True])
def test_conv_with_an_addend_and_an_activation(activation: str, residual: bool) -> None:
    def build(b: Builder, x: Any) -> Any:
        result = b.conv(x, random(4, 4, 3, 3), random(4), pads=[1, 1, 1, 1])
        result = b.add(result, x) if residual else result
        if activation == "clip":
            return b.clip(result, np.float32(-0.5), np.float32(0.75))
        return result if activation == "none" else getattr(b, activation)(result, **PARAMETERS[activation])

    expected = "Conv" if activation == "none" and not residual else "FusedConv"
    check(made(build, (2, 4, 5, 5)), [expected], {"x": random(2, 4, 5, 5)}, tolerance=1e-4)


@pytest.mark.refusal
def test_convolutions_that_stay() -> None:
    weights = random(4, 4, 3, 3)
    for build, shape in [
        (lambda b, x: b.elu(b.conv(x, weights, pads=[1] * 4)), (1, 4, 5, 5)),  # the kernel knows no Elu
        (lambda b, x: b.clip(b.conv(x, weights, pads=[1] * 4), np.float32(0)), (1, 4, 5, 5)),  # one bound
        (lambda b, x: b.add(b.conv(x, weights, pads=[1] * 4), random(4, 1, 1)), (1, 4, 5, 5)),  # broadcast
        (lambda b, x: b.add(b.conv(x, random(4, 4, 3), pads=[1, 1]), x), (1, 4, 5)),  # not of images
    ]:
        assert "FusedConv" not in operators(fused(made(build, shape)))


@pytest.mark.parametrize("transposed", [False, True])
def test_a_gemm_between_reshapes_is_a_product(transposed: bool) -> None:
    weights = random(6, 8) if transposed else random(8, 6)

    def build(b: Builder, x: Any) -> Any:
        return b.reshape(b.gemm(b.reshape(x, [6, 8]), weights, random(6), transB=int(transposed)), [2, 3, 6])

    check(made(build, (2, 3, 8)), ["MatMul", "Add"], {"x": random(2, 3, 8)})


# ---- the whole way ---------------------------------------------------------------------------------------------------


def test_a_level_that_is_bit_exact_fuses_nothing() -> None:
    module = made(lambda b, x: b.gelu(b.add(x, ROW)), (2, 8), opset=20)
    tilewright.optimize(module, level=1, target="onnxruntime")
    assert operators(module) == ["Add", "Gelu"]


def test_the_other_target_fuses_nothing() -> None:
    module = made(lambda b, x: b.gelu(b.add(x, ROW)), (2, 8), opset=20)
    tilewright.optimize(module)
    assert operators(module) == ["Add", "Gelu"]


def test_without_the_target_the_writer_takes_them_apart() -> None:
    module = fused(residual("layer", (4, 8)))
    proto = tilewright.importers.onnx.to_proto(module)
    assert [node.op_type for node in proto.graph.node] == ["Add", "LayerNormalization"]
