"""Convolutions written as products and as loops give what the reference gives, whatever their window."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import tilewright
from tilewright import Builder, PassManager, f32, f64
from tilewright.graph.diagnostics import UsageError
from tilewright.graph.kernel.interpreter import run_loops
from tilewright.graph.parser import parse
from tilewright.graph.printer import print_module
from tilewright.graph.verifier import verify
from tilewright.passes.explain import render

RANDOM = np.random.default_rng(3)


class Case(NamedTuple):
    image: tuple[Any, ...]  # of x
    weights: tuple[int, ...]
    attributes: dict[str, Any] = {}  # noqa: RUF012
    bias: bool = False


CASES = {
    "3x3": Case((2, 3, 7, 6), (4, 3, 3, 3)),
    "bias": Case((2, 3, 7, 6), (4, 3, 3, 3), bias=True),
    "pads": Case((2, 3, 5, 6), (4, 3, 3, 3), {"pads": (1, 1, 1, 1)}, True),
    "uneven pads": Case((2, 3, 5, 6), (4, 3, 3, 2), {"pads": (2, 0, 1, 3)}),
    "stride": Case((2, 3, 8, 7), (4, 3, 3, 3), {"strides": (2, 3)}),
    "stride, rest unused": Case((1, 2, 8, 8), (4, 2, 2, 2), {"strides": (3, 3)}),
    "dilation": Case((2, 3, 9, 8), (4, 3, 3, 2), {"dilations": (2, 3)}),
    "all": Case((2, 4, 9, 8), (6, 2, 3, 2), {"strides": (2, 1), "dilations": (2, 3), "pads": (1, 2, 3, 0), "group": 2},
                True),
    "same upper": Case((1, 2, 7, 8), (3, 2, 3, 4), {"auto_pad": "SAME_UPPER", "strides": (2, 2)}),
    "same lower": Case((1, 2, 7, 8), (3, 2, 3, 4), {"auto_pad": "SAME_LOWER", "strides": (2, 2)}),
    "valid": Case((1, 2, 7, 8), (3, 2, 3, 4), {"auto_pad": "VALID"}),
    "groups": Case((2, 6, 5, 5), (4, 3, 3, 3), {"group": 2}, True),
    "depthwise": Case((2, 4, 6, 5), (4, 1, 3, 3), {"group": 4, "pads": (1, 1, 1, 1)}, True),
    "depthwise, two filters": Case((2, 4, 6, 5), (8, 1, 3, 3), {"group": 4, "strides": (2, 2)}),
    "pointwise": Case((2, 3, 4, 5), (6, 3, 1, 1), bias=True),
    "pointwise, one image": Case((1, 3, 4, 5), (6, 3, 1, 1), bias=True),
    "pointwise, no bias": Case((1, 3, 4, 5), (6, 3, 1, 1)),
    "pointwise, stride": Case((2, 3, 5, 5), (6, 3, 1, 1), {"strides": (2, 2)}, True),
    "pointwise, pads": Case((1, 3, 4, 5), (6, 3, 1, 1), {"pads": (1, 0, 1, 0)}, True),
    "pointwise, groups": Case((2, 4, 4, 5), (6, 2, 1, 1), {"group": 2}, True),
    "whole image": Case((2, 3, 4, 5), (6, 3, 4, 5), bias=True),
    "1-d": Case((2, 3, 11), (4, 3, 4), {"strides": (2,), "dilations": (2,), "pads": (3, 1)}, True),
    "1-d groups": Case((2, 4, 11), (6, 2, 3), {"group": 2}, True),
    "1-d depthwise": Case((2, 4, 11), (4, 1, 3), {"group": 4, "auto_pad": "SAME_UPPER"}),
    "1-d pointwise": Case((2, 3, 11), (4, 3, 1), bias=True),
    "3-d": Case((1, 2, 4, 5, 6), (3, 2, 2, 3, 2), {"pads": (1, 0, 1, 0, 1, 0), "strides": (1, 2, 1)}, True),
    "3-d groups": Case((1, 4, 4, 5, 4), (4, 2, 2, 3, 2), {"group": 2}),
    "no image": Case((0, 3, 5, 5), (4, 3, 3, 3)),
    "no image, pointwise": Case((0, 3, 5, 5), (4, 3, 1, 1)),
}  # fmt: skip


def model_of(case: Case, shape: tuple[Any, ...] | None = None, dtype: Any = f32) -> tuple[Any, dict[str, np.ndarray]]:
    """The model and inputs for it. With a `shape`, dims of x may be names."""
    b = Builder()
    x = b.input("x", dtype[shape or case.image])
    operands = [x, _numbers(case.weights, dtype)] + ([_numbers(case.weights[:1], dtype)] if case.bias else [])
    b.output(b.conv(*operands, **case.attributes), "y")
    return b.build(), {"x": _numbers(case.image, dtype)}


def _numbers(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return RANDOM.uniform(-1, 1, shape).astype(dtype.numpy)


def run(model: Any, feeds: dict[str, np.ndarray]) -> np.ndarray:
    return tilewright.compile(model, target="reference").run(feeds)["y"]


def operators(model: Any) -> list[str]:
    return [op.name for op in model.walk() if op.name not in ("const", "return")]


def check(model: Any, feeds: dict[str, np.ndarray], mode: str, rounding: float = 1e-5) -> None:
    expected = run(model, feeds)
    PassManager.parse(f"conv-to-gemm{{mode={mode}}}", verify_each=True).run(model)
    assert "conv" not in operators(model)
    result = run(model, feeds)
    assert result.shape == expected.shape
    assert result.dtype == expected.dtype
    np.testing.assert_allclose(result, expected, rtol=0, atol=rounding)


@pytest.mark.parametrize("mode", ["im2col", "implicit"])
@pytest.mark.parametrize("name", CASES)
def test_product(name: str, mode: str) -> None:
    check(*model_of(CASES[name]), mode)


@pytest.mark.parametrize("mode", ["im2col", "implicit"])
@pytest.mark.parametrize("name", CASES)
def test_product_of_images_of_unknown_size(name: str, mode: str) -> None:
    case = CASES[name]
    model, feeds = model_of(case, ("n", case.image[1], *[f"s{axis}" for axis in range(len(case.image) - 2)]))
    if name.startswith("same"):
        PassManager.parse(f"conv-to-gemm{{mode={mode}}}").run(model)
        assert operators(model) == ["conv"]
    else:
        check(model, feeds, mode)


@pytest.mark.parametrize("mode", ["im2col", "implicit"])
@pytest.mark.parametrize("name", CASES)
def test_nothing_is_left_to_do_with_filters_at_run_time(name: str, mode: str) -> None:
    model, _ = model_of(CASES[name])
    PassManager.parse(f"conv-to-gemm{{mode={mode}}},dce").run(model)
    for op in model.walk():
        if op.name not in ("const", "return"):
            producers = [value.producer for value in op.operand_values]
            assert any(producer is None or producer.name != "const" for producer in producers), op


@pytest.mark.parametrize("mode", ["im2col", "implicit"])
@pytest.mark.parametrize("name", ["all", "depthwise", "pads", "pointwise, groups", "1-d groups"])
def test_filters_that_the_model_computes(name: str, mode: str) -> None:
    case = CASES[name]
    b = Builder()
    x, w = b.input("x", f32[case.image]), b.input("w", f32[case.weights])
    b.output(b.conv(x, w, **case.attributes), "y")
    check(b.build(), {"x": _numbers(case.image, f32), "w": _numbers(case.weights, f32)}, mode)


@pytest.mark.parametrize("mode", ["im2col", "implicit"])
def test_double_precision(mode: str) -> None:
    check(*model_of(CASES["all"], dtype=f64), mode, rounding=1e-13)


def test_one_pointwise_image_is_one_gemm() -> None:
    model, _ = model_of(CASES["pointwise, one image"])
    PassManager.parse("conv-to-gemm,fold,dce").run(model)
    assert operators(model) == ["flatten", "gemm", "reshape"]


def test_pointwise_images_are_one_matmul() -> None:
    model, _ = model_of(CASES["pointwise"])
    PassManager.parse("conv-to-gemm,fold,dce").run(model)
    assert operators(model) == ["reshape", "matmul", "add", "reshape"]


def test_patches_have_all_taps_and_one_product_follows() -> None:
    model, _ = model_of(CASES["pads"])
    PassManager.parse("conv-to-gemm{mode=im2col},fold,dce").run(model)
    found = operators(model)
    assert found == ["pad", "transpose", "gather", "gather", "transpose", "reshape", "matmul", "add", "transpose"]
    patches = next(op for op in model.walk() if op.name == "matmul").operands[0]
    assert patches.type is f32[2, 5, 6, 27]


def test_no_value_of_the_implicit_form_is_larger_than_image_or_result() -> None:
    model, _ = model_of(CASES["pads"])
    PassManager.parse("conv-to-gemm{mode=implicit},fold,dce").run(model)
    padded, result = 2 * 3 * 7 * 8, 2 * 4 * 5 * 6
    sizes = [r.type.elements for op in model.walk() if op.name != "const" for r in op.results]
    assert max(sizes) <= max(padded, result)
    assert operators(model).count("matmul") == 9


def test_depthwise_is_no_product_when_implicit() -> None:
    model, _ = model_of(CASES["depthwise"])
    PassManager.parse("conv-to-gemm{mode=implicit},fold,dce").run(model)
    assert "matmul" not in operators(model)
    assert operators(model).count("mul") == 9


def test_refusal_says_what_is_not_known() -> None:
    model, _ = model_of(CASES["same upper"], (1, 2, "h", "w"))
    from tilewright.passes.conv_to_gemm import ConvToPatches

    assert "SAME_UPPER" in render(model, ConvToPatches)


# ---- loops -----------------------------------------------------------------------------------------------------------


def loops_result(module: Any, case: Case, feeds: dict[str, np.ndarray], constants: list[np.ndarray], shape: Any) -> Any:
    expected_size = int(np.prod(shape))
    named = dict(zip(["w", "bias"], constants, strict=False)) | {"x": feeds["x"]}
    result = np.full(max(expected_size, 1), np.nan, feeds["x"].dtype)
    sizes = {"batch": case.image[0]} | {f"size{axis}": size for axis, size in enumerate(case.image[2:])}
    given = []
    for argument in module.main.inputs:
        if argument.name == "y":
            given.append(result)
        elif argument.name in named:
            given.append(named[argument.name].reshape(-1))
        else:
            given.append(sizes[argument.name])
    run_loops(module, given)
    return result[:expected_size].reshape(shape)


SMALL = {
    "bias": Case((1, 2, 4, 5), (2, 2, 3, 2), bias=True),
    "pads": Case((2, 1, 3, 3), (2, 1, 3, 2), {"pads": (2, 0, 1, 3)}, True),
    "all": Case((1, 4, 6, 5), (4, 2, 2, 2), {"strides": (2, 1), "dilations": (2, 3), "pads": (1, 2, 3, 0), "group": 2}),
    "same": Case((1, 1, 5, 6), (2, 1, 3, 4), {"auto_pad": "SAME_LOWER", "strides": (2, 2)}),
    "valid": Case((1, 1, 5, 6), (2, 1, 3, 4), {"auto_pad": "VALID"}),
    "depthwise": Case((1, 3, 4, 3), (3, 1, 3, 3), {"group": 3, "pads": (1, 1, 1, 1)}, True),
    "pointwise": Case((2, 3, 2, 3), (2, 3, 1, 1), bias=True),
    "1-d": Case((2, 3, 8), (2, 3, 3), {"strides": (2,), "pads": (2, 1)}, True),
    "3-d": Case((1, 2, 3, 3, 3), (2, 2, 2, 3, 2), {"pads": (1, 0, 1, 0, 1, 0), "strides": (1, 2, 1)}, True),
}


@pytest.mark.parametrize(
    ("name", "dynamic"), [(name, dynamic) for name in SMALL for dynamic in {False, name != "same"}]
)
def test_loops(name: str, dynamic: bool) -> None:
    case = SMALL[name]
    names = ("n", case.image[1], *[f"s{axis}" for axis in range(len(case.image) - 2)])
    model, feeds = model_of(case, names if dynamic else None)
    constants = [op.attributes["value"].numpy() for op in model.walk() if op.name == "const"]
    expected = run(model, feeds)
    PassManager.parse("conv-to-gemm{mode=direct}").run(model)
    assert model.level == "loop"
    loops = [op for op in model.walk() if op.name == "loop.for"]
    assert len(loops) == 3 + 2 * (len(case.image) - 2)  # seven for images
    again = parse(print_module(model))
    verify(again)
    result = loops_result(again, case, feeds, constants, expected.shape)
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5)


def test_loops_of_one_convolution_only() -> None:
    b = Builder()
    x = b.input("x", f32[1, 2, 4, 4])
    b.output(b.relu(b.conv(x, np.ones((3, 2, 3, 3), np.float32))), "y")
    with pytest.raises(UsageError, match="this model has conv, relu"):
        PassManager.parse("conv-to-gemm{mode=direct}").run(b.build())


def test_a_pass_of_the_other_level_does_not_follow_loops() -> None:
    model, _ = model_of(CASES["3x3"])
    with pytest.raises(tilewright.graph.diagnostics.PassError, match="takes level onnx, the module is at loop"):
        PassManager.parse("conv-to-gemm{mode=direct},no-ops").run(model)
