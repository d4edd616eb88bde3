"""Scalar bodies of elementwise operators against ONNX's reference implementation; operation counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from shape_graph import ShapeGraph

from tilewright.graph import dtypes, opdef
from tilewright.graph.core import Operation
from tilewright.graph.dims import symbol
from tilewright.graph.dtypes import DType, bool_, f32, from_numpy, i8, i32, i64, u8
from tilewright.graph.onnx_schema import evaluate_with_onnx
from tilewright.graph.opdef import Trait
from tilewright.graph.ops.elementwise import Elementwise
from tilewright.graph.ops.scalar import BINARY, UNARY, NumpyScalars, OperationCounter, count_operations
from tilewright.graph.types import tensor

n = symbol("n")

BODIES = {
    definition.op_type: definition
    for definition in opdef.registered()
    if isinstance(definition, Elementwise)
    and type(definition).body is not None
    and definition.domain == ""
    and definition.version is None
}
INTEGERS = {"BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"}
LOGICAL = {"And", "Or", "Xor", "Not"}
UNIT = {"Asin", "Acos", "Atanh"}
POSITIVE = {"Sqrt", "Log", "Acosh", "Pow"}
ATTRIBUTES: dict[str, list[dict[str, Any]]] = {
    "BitShift": [{"direction": "LEFT"}, {"direction": "RIGHT"}],
    "Mod": [{"fmod": 0}, {"fmod": 1}],
    "Gelu": [{"approximate": "none"}, {"approximate": "tanh"}],
    "Swish": [{}, {"alpha": 0.5}],
    "LeakyRelu": [{}, {"alpha": 0.3}],
    "Celu": [{}, {"alpha": 2.0}],
    "Shrink": [{}, {"bias": 0.5, "lambd": 1.5}],
    "IsInf": [{}, {"detect_negative": 0}, {"detect_positive": 0}, {"detect_negative": 0, "detect_positive": 0}],
}
ARITY = {"Where": 3, "Clip": 3, "Max": 3, "Min": 3, "Sum": 3, "Mean": 3, "PRelu": 2, "SwiGLU": 2, "Mod": 2}


def samples(name: str, count: int) -> list[np.ndarray]:
    """Operands for an operator, all of one shape: its usual domain, and a few special values."""
    rng = np.random.default_rng(7)
    if name in LOGICAL:
        return [rng.integers(0, 2, 24).astype(bool) for _ in range(count)]
    if name == "BitShift":
        return [rng.integers(0, 200, 24).astype(np.uint8), rng.integers(0, 7, 24).astype(np.uint8)]
    if name in INTEGERS:
        return [rng.integers(-100, 100, 24).astype(np.int32) for _ in range(count)]
    low, high = (-1, 1) if name in UNIT else (1.1, 3) if name in POSITIVE else (-4, 4)
    arrays = [rng.uniform(low, high, 24).astype(np.float32) for _ in range(count)]
    if name in {"IsNaN", "IsInf", "Relu", "Max", "Min", "Abs", "Neg", "Sign", "Add", "Floor"}:
        arrays[0][:4] = [np.nan, np.inf, -np.inf, -0.0]
    if name == "Clip":
        return [arrays[0], np.float32(-1).reshape(()), np.float32(2).reshape(())]
    if name == "Where":
        return [arrays[0] > 0, arrays[1], arrays[2]]
    return arrays


def operation(name: str, arrays: list[np.ndarray], attributes: dict[str, Any]) -> Operation:
    graph = ShapeGraph()
    operands = [graph.argument(tensor(from_numpy(array.dtype), array.shape)) for array in arrays]
    return graph.create(opdef.lookup("", name).name, *operands, **attributes)


def reference(definition: opdef.OpDefinition, op: Operation, arrays: list[np.ndarray]) -> Any:
    """ONNX's own numbers; an operator without an implementation there is expanded, which gives a tuple."""
    results = evaluate_with_onnx(definition, op, arrays)
    return results[0] if isinstance(results, tuple) else results


@pytest.mark.parametrize("name", BODIES)
def test_bodies_compute_what_onnx_says(name: str) -> None:
    definition = BODIES[name]
    count = ARITY.get(name, 2 if Trait.BROADCAST in definition.traits or name == "BitShift" else 1)
    arrays = samples(name, count)
    for attributes in ATTRIBUTES.get(name, [{}]):
        op = operation(name, arrays, attributes)
        with np.errstate(all="ignore"):
            found = definition.scalar(op, NumpyScalars(), *arrays)
            expected = reference(definition, op, arrays)
        assert np.asarray(found).dtype == op.result.type.dtype.numpy
        np.testing.assert_allclose(
            np.asarray(found, np.float64),
            np.asarray(expected, np.float64),
            rtol=2e-5,
            atol=2e-6,
            err_msg=str(attributes),
        )


@pytest.mark.parametrize("dtype", [i8, i32, i64, u8])
@pytest.mark.parametrize("name", ["Div", "Mod", "Add", "Mul", "Max", "Abs"])
def test_integer_bodies(name: str, dtype: DType) -> None:
    rng = np.random.default_rng(3)
    low = 0 if dtype.kind == "uint" else -100
    x = rng.integers(low, 100, 40).astype(dtype.numpy)
    y = rng.integers(1, 9, 40).astype(dtype.numpy) * (1 if dtype.kind == "uint" else -1)
    arrays = [x] if name == "Abs" else [x, y.astype(dtype.numpy)]
    op = operation(name, arrays, {})
    with np.errstate(all="ignore"):
        found = BODIES[name].scalar(op, NumpyScalars(), *arrays)
        expected = reference(BODIES[name], op, arrays)
    assert np.asarray(found).dtype == dtype.numpy
    np.testing.assert_array_equal(found, expected)


def test_bodies_do_not_overflow_needlessly() -> None:
    big = np.array([-200, -90, 0, 90, 200], np.float32)
    for name, expected in (("Softplus", [0, 0, np.log(2), 90, 200]), ("Mish", [0, 0, 0, 90, 200])):
        with np.errstate(over="raise"):
            found = BODIES[name].scalar(operation(name, [big], {}), NumpyScalars(), big)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("name", BODIES)
def test_every_body_can_be_counted(name: str) -> None:
    definition = BODIES[name]
    count = ARITY.get(name, 2 if Trait.BROADCAST in definition.traits or name == "BitShift" else 1)
    attributes = ATTRIBUTES.get(name, [{}])[0]
    op = operation(name, samples(name, count), attributes)
    assert definition.flops(op) is not None
    assert definition.flops(op) % 24 == 0
    assert definition.flops(op) >= 24


def test_counts() -> None:
    counted = {name: count_operations(type(BODIES[name]).body, 1, {}) for name in ("Abs", "Sigmoid", "HardSwish")}
    assert counted == {"Abs": 1, "Sigmoid": 4, "HardSwish": 5}
    assert count_operations(lambda s, x: s.cast(s.constant(1.0), dtypes.f16), 1, {}) == 0


def test_handlers_know_the_same_operations() -> None:
    for name in (*UNARY, *BINARY):
        assert callable(getattr(NumpyScalars(), name))
        assert callable(getattr(OperationCounter(), name))
    for handler in (NumpyScalars(), OperationCounter()):
        with pytest.raises(AttributeError, match="there is no scalar operation 'sinc'"):
            handler.sinc  # noqa: B018


# Result of `build`, and its arithmetic operations.
FLOPS = {
    "add": (lambda g: g.add(f32[n, 4], f32[4]), "4*n"),
    "sigmoid": (lambda g: g.sigmoid(f32[n, 4]), "16*n"),
    "clip": (lambda g: g.clip(f32[n], None, f32[()]), "n"),
    "cast": (lambda g: g.cast(f32[n], to=7), "0"),
    "transpose": (lambda g: g.transpose(f32[n, 4]), "0"),
    "shape": (lambda g: g.shape(f32[n, 4]), "0"),
    "matmul": (lambda g: g.matmul(f32[n, 8], f32[8, 4]), "64*n"),
    "gemm": (lambda g: g.gemm(f32[n, 8], f32[8, 4], f32[4]), "68*n"),
    "einsum": (lambda g: g.einsum(f32[n, 8], f32[8, 4], equation="ij,jk->ik"), "64*n"),
    "conv": (lambda g: g.conv(f32[n, 8, 10], f32[16, 4, 3], group=2), "3072*n"),
    "conv transpose": (lambda g: g.conv_transpose(f32[n, 8, 10], f32[8, 4, 3]), "1920*n"),
    "max pool": (lambda g: g.max_pool(f32[n, 8, 10], kernel_shape=(2,), strides=(2,)), "80*n"),
    "reduce": (lambda g: g.reduce_sum(f32[n, 8]), "8*n"),
    "softmax": (lambda g: g.softmax(f32[n, 8]), "40*n"),
    "attention": (lambda g: g.attention(f32[n, 2, 3, 8], f32[n, 2, 5, 8], f32[n, 2, 5, 8]), "1110*n"),
    "gather": (lambda g: g.gather(f32[100, 8], i64[n]), "0"),
    "unranked": (lambda g: g.relu(f32[...]), "None"),
    "non zero": (lambda g: g.nonzero(bool_[n]), "n"),
}


@pytest.mark.parametrize("name", FLOPS)
def test_flops(name: str) -> None:
    build, expected = FLOPS[name]
    op = build(ShapeGraph()).producer
    assert str(op.definition.flops(op)) == expected
