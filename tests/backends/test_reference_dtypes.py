"""Every element type an operator takes: our numpy meaning against onnx.reference's, scalars and empty tensors too."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.graph import dtypes, onnx_reference, opdef, types
from tilewright.graph.core import Operation
from tilewright.graph.diagnostics import ExecutionError
from tilewright.graph.dtypes import DType
from tilewright.graph.evaluation import evaluate_op
from tilewright.graph.ops.numeric import NUMERIC

ONNX_NAMES = {
    "f32": "float", "f64": "double", "bf16": "bfloat16", "f16": "float16", "bool": "bool", "string": "string",
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)}, **{f"u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}  # fmt: skip


# Where onnx.reference is no oracle: its Erf computes in f32 whatever the type, its Softsign refuses scalars.
ONNX_FALLS_SHORT = ("Erf", "Softsign")


def operation(name: str, operands: list[Any], attributes: dict[str, Any] | None = None, results: int = 1) -> Operation:
    definition = opdef.lookup("", name)
    return Operation(definition, [], attributes or {}, [types.UNKNOWN] * results)


def numbers(dtype: DType, count: int = 12) -> np.ndarray:
    random = np.random.default_rng(count)
    if dtype is dtypes.string:
        return np.array([["a", "b", ""][k] for k in random.integers(0, 3, count)], object)
    if dtype is dtypes.bool_:
        return random.integers(0, 2, count).astype(bool)
    values = random.integers(1 if dtype.kind == "uint" else -4, 5, count)
    values[values == 0] = 3
    return (values / 4 if dtype.is_float else values).astype(dtype.numpy)


def accepted() -> list[tuple[str, str]]:
    found = []
    for name in NUMERIC:
        formal = opdef.lookup("", name).parameters[0]
        found += [(name, short) for short, text in ONNX_NAMES.items() if f"tensor({text})" in formal.types]
    return [case for case in found if case[0] not in ONNX_FALLS_SHORT]


@pytest.mark.parametrize(("name", "dtype"), accepted())
def test_elementwise_meanings_are_those_of_onnx(name: str, dtype: str) -> None:
    element = dtypes.by_name(dtype)
    count = 1 if len(opdef.lookup("", name).parameters) == 1 and name not in ("Max", "Min", "Sum") else 2
    for operands in (
        [numbers(element), numbers(element, 12)[::-1].copy()][:count],
        [numbers(element)[:1].reshape(()), numbers(element, 5)[:1].reshape(())][:count],
        [numbers(element)[:0], numbers(element)[:0]][:count],
    ):
        if name == "Pow" and element.is_integer:
            operands[1] = np.abs(operands[1])
        op = operation(name, operands)
        with np.errstate(all="ignore"):
            expected = onnx_reference.evaluate(op.definition, op, operands)
        (result,) = evaluate_op(op, operands)
        assert isinstance(result, np.ndarray)
        assert result.shape == operands[0].shape
        assert result.dtype == np.asarray(expected).dtype
        assert result.tolist() == pytest.approx(np.asarray(expected).tolist(), nan_ok=True, rel=0, abs=0)


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16"])
@pytest.mark.parametrize(
    ("name", "meaning"),
    [("Erf", np.vectorize(math.erf, otypes=[np.float64])), ("Softsign", lambda x: x / (1 + abs(x)))],
)
def test_where_onnx_falls_short(name: str, meaning: Any, dtype: str) -> None:
    element = dtypes.by_name(dtype)
    for x in (numbers(element), numbers(element)[:1].reshape(()), numbers(element)[:0]):
        (result,) = evaluate_op(operation(name, [x]), [x])
        assert result.shape == x.shape
        assert result.dtype == x.dtype
        wanted = meaning(x.astype(np.float64)) if x.size else x.astype(np.float64)
        unit = float(ml_dtypes.finfo(element.numpy).eps)
        np.testing.assert_allclose(result.astype(np.float64), wanted, rtol=2 * unit)


REDUCTIONS = ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"]


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64", "i32", "i64", "i8", "u8", "bool"])
def test_reductions_keep_the_dtype(name: str, dtype: str) -> None:
    element = dtypes.by_name(dtype)
    op = operation(f"Reduce{name}", [])
    if f"tensor({ONNX_NAMES[dtype]})" not in op.definition.parameters[0].types:
        return
    x = np.abs(numbers(element)).reshape(3, 4) if element is not dtypes.bool_ else numbers(element).reshape(3, 4)
    for axes in (np.array([1]), np.array([-1, 0]), None):
        (result,) = evaluate_op(op, [x, axes])
        assert isinstance(result, np.ndarray)
        assert result.dtype == element.numpy
        assert result.shape == ((3, 1) if axes is not None and len(axes) == 1 else (1, 1))
        wide = x.astype(np.float64)
        over = 1 if axes is not None and len(axes) == 1 else (0, 1)
        expected = {
            "Sum": wide.sum, "Mean": wide.mean, "Max": wide.max, "Min": wide.min, "Prod": wide.prod, "L1": wide.sum,
        }  # fmt: skip
        if name in expected:
            exact = expected[name](axis=over, keepdims=True)
            tolerance = {"f16": 2e-3, "bf16": 2e-2}.get(dtype, 1e-6)
            if not element.is_float:
                exact, tolerance = np.trunc(exact), 0
            if element.bits > 8 or np.abs(exact).max() < 128 or dtype == "bool":
                np.testing.assert_allclose(result.astype(np.float64), exact, rtol=tolerance)


@pytest.mark.parametrize(
    ("name", "dtype", "value"),
    [
        ("Sum", "f32", 0), ("Prod", "f32", 1), ("Max", "f32", -np.inf), ("Min", "f32", np.inf), ("Max", "i8", -128),
        ("Min", "u8", 255), ("Max", "bool", False), ("Min", "bool", True), ("LogSum", "f32", -np.inf),
        ("LogSumExp", "f32", -np.inf), ("L2", "f64", 0), ("Max", "bf16", -np.inf),
    ],
)  # fmt: skip
def test_reducing_nothing_gives_the_neutral_element(name: str, dtype: str, value: Any) -> None:
    element = dtypes.by_name(dtype)
    (result,) = evaluate_op(operation(f"Reduce{name}", []), [np.zeros((2, 0), element.numpy), np.array([1])])
    assert result.dtype == element.numpy
    assert result.tolist() == [[value], [value]]


@pytest.mark.parametrize("source", ["bool", "i4", "u4", "i8", "u16", "i64", "f8e4m3fn", "f8e5m2", "f16", "bf16", "f32"])
@pytest.mark.parametrize("target", ["bool", "i4", "u2", "u8", "i32", "i64", "f8e4m3fn", "f16", "bf16", "f32", "f64"])
def test_casts_give_the_wanted_dtype(source: str, target: str) -> None:
    given, wanted = dtypes.by_name(source), dtypes.by_name(target)
    x = np.array([0, 1, 1, 0], given.numpy)
    (result,) = evaluate_op(operation("Cast", [], {"to": wanted.onnx_code}), [x])
    assert result.dtype == wanted.numpy
    np.testing.assert_array_equal(result.astype(np.float64), [0, 1, 1, 0])


@pytest.mark.parametrize(
    ("target", "expected"), [("i4", [4, -4, -1, 7]), ("u4", [4, 12, 15, 7]), ("i2", [0, 0, -1, -1])]
)
def test_integers_keep_their_low_bits(target: str, expected: list[int]) -> None:
    wanted = dtypes.by_name(target)
    (result,) = evaluate_op(operation("Cast", [], {"to": wanted.onnx_code}), [np.array([20, -20, -1, 7])])
    assert result.dtype == wanted.numpy
    assert result.astype(np.int64).tolist() == expected


def test_narrow_floats_saturate_unless_told_otherwise() -> None:
    x = np.array([1000.0, -1000.0, np.inf], np.float32)
    code = dtypes.f8e4m3fn.onnx_code
    (limited,) = evaluate_op(operation("Cast", [], {"to": code}), [x])
    np.testing.assert_array_equal(limited.astype(np.float32), [448, -448, 448])
    (unlimited,) = evaluate_op(operation("Cast", [], {"to": code, "saturate": 0}), [x])
    assert np.isnan(unlimited.astype(np.float32)).all()


@pytest.mark.parametrize("name", ["Add", "MatMul", "Concat", "Max", "Where", "Mod", "Gemm", "Clip"])
def test_mixed_dtypes_are_refused_not_promoted(name: str) -> None:
    x, y = np.ones((2, 2), np.float32), np.ones((2, 2), np.float64)
    operands = {"Where": [x > 0, x, y], "Clip": [x, y[0, 0]]}.get(name, [x, y])
    with pytest.raises(ExecutionError, match="one element type, got f32, f64"):
        evaluate_op(operation(name, [], {"axis": 0} if name == "Concat" else {}), operands)


def test_strings_are_object_arrays_of_str() -> None:
    words = np.array(["a", "bc"], object)
    cases: list[tuple[str, dict[str, Any], list[Any], list[Any]]] = [
        ("StringConcat", {}, [words, words], ["aa", "bcbc"]),
        ("Pad", {}, [words, np.array([1, 0])], ["", "a", "bc"]),
        ("Tile", {}, [words, np.array([2])], ["a", "bc", "a", "bc"]),
        ("Expand", {}, [words[:1], np.array([2])], ["a", "a"]),
        ("Cast", {"to": dtypes.string.onnx_code}, [np.array([1, 2])], ["1", "2"]),
        ("Where", {}, [np.array([True, False]), words, words[::-1]], ["a", "a"]),
    ]
    for name, attributes, operands, expected in cases:
        (result,) = evaluate_op(operation(name, operands, attributes), operands)
        assert result.dtype == object
        assert result.tolist() == expected
        assert all(type(item) is str for item in result)
    (equal,) = evaluate_op(operation("Equal", []), [words, words[::-1]])
    assert equal.dtype == np.bool_
