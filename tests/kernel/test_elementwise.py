"""Maps over broadcast operands; every elementwise operator of ONNX that has a body, against its numpy meaning."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from loop_running import WIDTHS, run_both, run_compiled

from tilewright.backends.cpu.jit import compile_modules
from tilewright.backends.cpu.kernels.elementwise import (
    GRAIN,
    Map,
    MapOperand,
    broadcast_strides,
    build_map,
    collapse,
    map_arguments,
)
from tilewright.backends.cpu.machine import machine_of_width
from tilewright.graph import opdef, types
from tilewright.graph.builder import OpBuilder
from tilewright.graph.core import Block, Operation
from tilewright.graph.diagnostics import TypeInferenceError
from tilewright.graph.dims import FreshSymbols
from tilewright.graph.dtypes import BY_NAME, DType, bf16, bool_, f16, f32, f64, from_numpy, i8, i32, i64
from tilewright.graph.evaluation import evaluate_op
from tilewright.graph.kernel.interpreter import run_loops
from tilewright.graph.kernel.loop_builder import LoopBuilder
from tilewright.graph.kernel.scalar_emitter import ScalarEmitter
from tilewright.graph.kernel.strided import dense_strides
from tilewright.graph.ops.elementwise import Elementwise
from tilewright.graph.printer import print_module

random = np.random.default_rng(11)


def kernel_of(body: Any, arrays: Sequence[np.ndarray], shape: Sequence[int], result: DType) -> tuple[Map, list[Any]]:
    """The map for these arrays and this result shape, and its arguments but for the work range."""
    space = collapse(shape, [broadcast_strides(array.shape, shape) for array in arrays])
    operands = tuple(
        MapOperand(from_numpy(array.dtype), strides[-1] if strides[-1] in (0, 1) else None)
        for array, strides in zip(arrays, space.strides, strict=True)
    )
    kernel = Map(len(space.extents), operands, (MapOperand(result, 1),), body)
    known: dict[str, Any] = {f"extent{axis}": extent for axis, extent in enumerate(space.extents)}
    known |= {f"y0_stride{axis}": stride for axis, stride in enumerate(dense_strides(space.extents))}
    known["y0"] = np.zeros(max(1, int(np.prod(shape))), result.numpy)
    for position, (array, strides) in enumerate(zip(arrays, space.strides, strict=True)):
        known[f"x{position}"] = np.ascontiguousarray(array).reshape(-1)
        known.update({f"x{position}_stride{axis}": stride for axis, stride in enumerate(strides)})
    known |= {"begin": 0, "end": space.units, "thread": 0}
    return kernel, [known[name] for name in map_arguments(kernel)]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "shapes",
    [
        [(37,), (37,)], [(5, 7), (7,)], [(5, 7), (5, 1)], [(5, 1), (1, 7)], [(3, 5, 7), (5, 1)], [(), (9,)], [(), ()],
        [(2, 1, 3, 1), (5, 1, 4)], [(0, 4), (4,)], [(1, 1), (1,)], [(GRAIN + 3,), (1,)], [(2, GRAIN + 5), (2, 1)],
    ],
    ids=str,
)  # fmt: skip
def test_broadcasting(shapes: list[tuple[int, ...]], width: int) -> None:
    arrays = [random.normal(size=shape).astype(np.float32) for shape in shapes]
    expected = arrays[0] * 2 + arrays[1]
    kernel, given = kernel_of(lambda b, x: [b.add(b.mul(x[0], 2), x[1])], arrays, expected.shape, f32)
    module = build_map("map", kernel, machine_of_width(width))
    small = expected.size < 100
    ours, compiled = run_both(module, given, width) if small else (None, given)
    if ours is None:
        call(module, given, width)
    else:
        assert np.array_equal(ours[0][: expected.size], expected.reshape(-1))
    assert np.array_equal(compiled[0][: expected.size], expected.reshape(-1))


def call(module: Any, given: list[Any], width: int) -> None:
    code = compile_modules([module], machine_of_width(width))
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(given))(code.address(module.main.key.name))
    function(*(item.ctypes.data if isinstance(item, np.ndarray) else item for item in given))


def test_dims_are_joined_where_all_operands_go_on_evenly() -> None:
    assert collapse((2, 3, 4), [(12, 4, 1), (0, 0, 1)]).extents == (6, 4)
    assert collapse((2, 3, 4), [(12, 4, 1)]).extents == (24,)
    assert collapse((2, 1, 4), [(4, 0, 1), (0, 0, 0)]).extents == (8,)
    assert collapse((), [()]).extents == (1,)
    assert collapse((2, 3), [(1, 2)]).strides == ((1, 2),)


def test_a_strided_operand_is_gathered() -> None:
    x = random.normal(size=(6, 5)).astype(np.float32)
    space = collapse((5, 6), [(1, 5)])
    kernel = Map(2, (MapOperand(f32, None),), (MapOperand(f32, 1),), lambda b, x: [b.neg(x[0])])
    given = [np.zeros(30, np.float32), x.reshape(-1), *space.extents, 6, *space.strides[0], 0, space.units, 0]
    ours, compiled = run_both(build_map("map", kernel, machine_of_width(256)), given, 256)
    assert np.array_equal(ours[0].reshape(5, 6), -x.T)
    assert np.array_equal(compiled[0].reshape(5, 6), -x.T)


def test_a_result_can_have_gaps_and_lie_the_other_way_round() -> None:
    x = random.normal(size=(6, 5)).astype(np.float32)
    for strides, inner in (((9, 1), 1), ((1, 7), None)):
        kernel = Map(2, (MapOperand(f32, 1),), (MapOperand(f32, inner),), lambda b, x: [b.neg(x[0])])
        y_strides = strides if inner is None else strides[:1]
        target = np.zeros(60, np.float32)
        given = [target, x.reshape(-1), 6, 5, *y_strides, 5, 0, 6, 0]
        ours, compiled = run_both(build_map("map", kernel, machine_of_width(256)), given, 256)
        for flat in (ours[0], compiled[0]):
            seen = np.lib.stride_tricks.as_strided(flat, (6, 5), [4 * stride for stride in strides])
            assert np.array_equal(seen, -x)
            assert np.count_nonzero(flat) == 30


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [f32, f16, f64, i8], ids=str)
def test_a_result_that_goes_past_the_caches_may_begin_anywhere(dtype: DType, width: int) -> None:
    rows, count, pitch = 3, 203, 211
    x = random.integers(-9, 9, size=(rows, count)).astype(dtype.numpy)
    plain = Map(2, (MapOperand(dtype, 1),), (MapOperand(dtype, 1),), lambda b, x: [b.add(x[0], x[0])])
    module = build_map("map", dataclasses.replace(plain, streams=True), machine_of_width(width))
    assert "streams" in print_module(module)
    for start in (0, 1, 5):
        for run in (run_loops, lambda m, a: run_compiled(m, a, width)):
            target = np.zeros(start + rows * pitch, dtype.numpy)
            run(module, [target[start:], x.reshape(-1), rows, count, pitch, count, 0, rows, 0])
            assert np.array_equal(target[start:].reshape(rows, pitch)[:, :count], 2 * x)
            assert np.count_nonzero(target) == np.count_nonzero(x)


def test_a_store_with_a_mask_does_not_go_past_the_caches() -> None:
    b = LoopBuilder("f", x=types.buffer(f32), n=types.scalar(i64))
    with pytest.raises(TypeInferenceError, match="without a mask"):
        b.store(b.load(b["x"], 0, 4), b["x"], 0, b.tail_mask(b["n"], 4), streams=True)


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_narrow_floats_are_computed_in_f32(dtype: DType) -> None:
    x = random.normal(size=40).astype(dtype.numpy)
    kernel, given = kernel_of(lambda b, x: [b.mul(b.add(x[0], 1), x[0])], [x], x.shape, dtype)
    wide = x.astype(np.float32)
    for width in WIDTHS:
        ours, compiled = run_both(build_map("map", kernel, machine_of_width(width)), given, width)
        for side in (ours, compiled):
            assert np.array_equal(side[0], ((wide + 1) * wide).astype(dtype.numpy))


# ---- operators of ONNX -----------------------------------------------------------------------------------------------

ROWS = [
    definition
    for definition in opdef.registered()
    if isinstance(definition, Elementwise) and definition.body is not None and not definition.version
]
INTEGER_ONLY = {"BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "BitShift"}
BOOL_ONLY = {"And", "Or", "Xor", "Not"}
WITHIN_ONE = {"Asin", "Acos", "Atanh"}


def operation(definition: Elementwise, arrays: list[np.ndarray], **attributes: Any) -> Operation:
    block = Block([types.tensor(from_numpy(array.dtype), array.shape) for array in arrays])
    builder = OpBuilder(block, FreshSymbols())
    return builder.create(definition, block.arguments, attributes)


def check(definition: Elementwise, arrays: list[np.ndarray], width: int, **attributes: Any) -> None:
    op = operation(definition, arrays, **attributes)
    type = op.result.type
    assert isinstance(type, types.TensorType)
    [expected] = evaluate_op(op, arrays)
    kernel, given = kernel_of(
        lambda b, x: [definition.scalar(op, ScalarEmitter(b), *x)], arrays, expected.shape, type.dtype
    )
    module = build_map("map", kernel, machine_of_width(width))
    call(module, given, width)
    got = given[0].reshape(expected.shape)
    if expected.dtype.kind != "f":
        assert np.array_equal(got, expected)
        return
    assert np.array_equal(np.isnan(got), np.isnan(expected))
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(got, expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("definition", ROWS, ids=lambda definition: definition.name)
def test_every_elementwise_operator_has_a_kernel(definition: Elementwise) -> None:
    name = definition.op_type
    dtypes = [i32] if name in INTEGER_ONLY else [bool_] if name in BOOL_ONLY else [f32, f64]
    count = sum(parameter.name != "" for parameter in definition.parameters)
    for dtype, width in zip(dtypes, (512, 256), strict=False):
        arrays = [samples(name, dtype) for _ in range(2 if name in ("Max", "Min", "Sum", "Mean") else count)]
        if name == "Where":
            arrays[0] = random.integers(0, 2, 64).astype(bool)
        if name == "Clip":
            arrays[1:] = [np.array(-0.5, dtype.numpy), np.array(0.75, dtype.numpy)]
        if name == "BitShift":
            arrays = [array.astype(np.uint32) % 32 for array in arrays]
        attributes: dict[str, Any] = {"direction": "LEFT"} if name == "BitShift" else {}
        if name == "Mod":
            attributes = {"fmod": 1}
        check(definition, arrays, width, **attributes)


def samples(name: str, dtype: DType) -> np.ndarray:
    if dtype is bool_:
        return random.integers(0, 2, 64).astype(bool)
    if dtype.is_integer:
        return random.integers(-100, 100, 64).astype(dtype.numpy)
    x = random.normal(0, 3, 64)
    if name in WITHIN_ONE:
        x = np.clip(x / 8, -0.99, 0.99)
    if name in ("Log", "Sqrt", "Pow", "Acosh"):
        x = np.abs(x) + (1.01 if name == "Acosh" else 0.01)
    return x.astype(dtype.numpy)


@pytest.mark.parametrize("name", ["Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Abs", "Sign", "Pow", "Less"])
@pytest.mark.parametrize("dtype", ["i8", "u8", "i32", "i64", "u64"])
def test_integers(name: str, dtype: str) -> None:
    definition = opdef.lookup("", name)
    assert isinstance(definition, Elementwise)
    kind = BY_NAME[dtype]
    low = 0 if kind.kind == "uint" or name == "Pow" else -100
    arrays = [random.integers(low, 100, 64).astype(kind.numpy) for _ in definition.parameters]
    if name in ("Div", "Mod"):
        arrays[1][arrays[1] == 0] = 7
    if name == "Pow":
        arrays[1] %= 5
    check(definition, arrays, 512)


@pytest.mark.parametrize("exponent", [-2.5, -1, -0.5, 0, 0.5, 1, 2, 3, 4, 5])
def test_powers_with_a_known_exponent(exponent: float) -> None:
    x = np.abs(samples("Pow", f32))
    kernel, given = kernel_of(lambda b, v: [ScalarEmitter(b).pow(v[0], exponent)], [x], x.shape, f32)
    call(build_map("map", kernel, machine_of_width(512)), given, 512)
    np.testing.assert_allclose(given[0], x.astype(np.float64) ** exponent, rtol=1e-6)


def test_division_of_integers_never_traps() -> None:
    x = np.array([-128, -128, 5, 0, 127, -7, 7, -7], np.int8)
    y = np.array([-1, 0, 0, 0, -1, 2, -2, -2], np.int8)
    kernel, given = kernel_of(lambda b, v: [b.div(v[0], v[1])], [x, y], x.shape, BY_NAME["i8"])
    ours, compiled = run_both(build_map("map", kernel, machine_of_width(256)), given, 256)
    assert list(compiled[0]) == list(ours[0]) == [-128, 0, 0, 0, -127, -3, -3, 3]


@pytest.mark.parametrize("width", [128, 256, 512])
@pytest.mark.parametrize("dtype", ["i8", "u8", "i16", "u16", "i32", "u32"])
def test_quotients_of_integers_are_exact(dtype: str, width: int) -> None:
    """Large ones, small ones, and those just below and above a multiple, which a rounded quotient would miss."""
    kind = BY_NAME[dtype]
    limits = np.iinfo(kind.numpy)
    edges = np.array([limits.min, limits.min + 1, limits.max, limits.max - 1, 1, 2, 3, 5, limits.max // 2], np.int64)
    y = np.concatenate([edges, random.integers(limits.min, limits.max, 200), random.integers(1, 12, 55)])
    y = np.where(y == 0, 7, y)
    quotient = random.integers(limits.min, limits.max, y.size) // y
    x = np.concatenate([y * quotient + d for d in (-1, 0, 1)] + [np.full(y.size, limits.max), np.resize(edges, y.size)])
    y = np.resize(y, x.size)
    fits = (x >= limits.min) & (x <= limits.max) & ~((x == limits.min) & (y == -1))
    x, y = x[fits], y[fits]
    expected = np.sign(x) * np.sign(y) * (np.abs(x) // np.abs(y))
    given = [x.astype(kind.numpy), y.astype(kind.numpy)]
    for name, wanted in (("div", expected), ("rem", x - expected * y)):
        kernel, arguments = kernel_of(lambda b, v, name=name: [b.scalar(name, *v)], given, x.shape, kind)
        call(build_map("map", kernel, machine_of_width(width)), arguments, width)
        assert np.array_equal(arguments[0], wanted), name


def test_whole_powers_of_whole_numbers_are_whole() -> None:
    x, y = np.arange(1, 65, dtype=np.int64), (np.arange(64) % 9).astype(np.float32)
    kernel, given = kernel_of(lambda b, v: [ScalarEmitter(b).pow(v[0], v[1])], [x, y], x.shape, BY_NAME["i64"])
    call(build_map("map", kernel, machine_of_width(512)), given, 512)
    assert list(given[0]) == [int(base) ** int(exponent) for base, exponent in zip(x, y, strict=True)]
