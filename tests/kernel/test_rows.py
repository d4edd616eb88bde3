"""Softmax and the norms: interpreted and compiled, short rows in registers and long ones, both forms, prologues."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from loop_running import WIDE, compiled, run_both, run_compiled

from tilewright.backends.cpu.kernels.rows import (
    RowFunction,
    RowKernel,
    build_rows,
    can_stream,
    layer_norm,
    log_softmax,
    rms_norm,
    row_arguments,
    row_buffers,
    row_scratch,
    row_units,
    softmax,
    streamed,
)
from tilewright.backends.cpu.kernels.strided import View, split_rows
from tilewright.backends.cpu.machine import machine_of_width
from tilewright.graph.dtypes import bf16, f16, f32, f64, from_numpy
from tilewright.graph.kernel.interpreter import run_loops

random = np.random.default_rng(9)


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


def numpy_softmax(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    e = np.exp(wide(x) - wide(x).max(axis=axes, keepdims=True))
    return e / e.sum(axis=axes, keepdims=True)


def numpy_log_softmax(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    return np.log(numpy_softmax(x, axes))


def numpy_layer_norm(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    x = wide(x)
    mean = x.mean(axis=axes, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(axis=axes, keepdims=True) + 1e-5)


def numpy_rms_norm(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    x = wide(x)
    return x / np.sqrt((x**2).mean(axis=axes, keepdims=True) + 1e-6)


FUNCTIONS = {
    "softmax": (softmax(), numpy_softmax), "log_softmax": (log_softmax(), numpy_log_softmax),
    "layer_norm": (layer_norm(1e-5), numpy_layer_norm), "rms_norm": (rms_norm(1e-6), numpy_rms_norm),
}  # fmt: skip


def strides_of(array: np.ndarray) -> list[int]:
    return [stride // array.itemsize for stride in array.strides]


def flat(array: np.ndarray) -> np.ndarray:
    base = array if array.base is None else array.base
    return base.reshape(-1)


def planned(
    function: RowFunction, axes: Sequence[int], width: int, static: bool, result: np.ndarray,
    operands: Sequence[np.ndarray], others: Sequence[np.ndarray] = (), extras: Sequence[np.ndarray] = (),
    kept: Sequence[tuple[int, np.ndarray]] = (), **options: Any,
) -> tuple[Any, list[Any], list[str]]:  # fmt: skip
    """The kernel, its arguments and their names. All arrays are of the result's shape, or broadcast to it."""
    shape = result.shape
    tensors = {
        **{f"x{n}": array for n, array in enumerate(operands)}, "y0": result,
        **{f"o{n}": array for n, array in enumerate(others)}, **{f"e{n}": array for n, array in enumerate(extras)},
        **{f"s{n}": array for n, (_, array) in enumerate(kept)},
    }  # fmt: skip
    strides = []
    for array in tensors.values():
        lined = np.broadcast_to(array, shape) if array.ndim == len(shape) else array
        steps = strides_of(lined)
        strides.append([0 if size == 1 else step for size, step in zip(array.shape, steps, strict=True)])
    rows = split_rows(shape, axes, strides)
    known: dict[str, Any] = {}
    views: dict[str, View] = {}
    for index, (name, array) in enumerate(tensors.items()):
        outer, row = rows.outer_strides[index], rows.row_strides[index]
        known[name] = flat(array)
        known |= {f"{name}_outer{axis}": step for axis, step in enumerate(outer)}
        known |= {f"{name}_row{axis}": step for axis, step in enumerate(row)}
        if not static:
            outer, row = (tuple(step if step in (0, 1) else None for step in part) for part in (outer, row))
        views[name] = View(from_numpy(array.dtype), outer, row if name[0] != "s" else ())

    def group(kind: str) -> tuple[View, ...]:
        return tuple(view for name, view in views.items() if name[0] == kind)

    kernel = RowKernel(
        function, rows.outer if static else (None,) * len(rows.outer), rows.row if static else (None,) * len(rows.row),
        group("x"), group("y"), group("o"), group("e"),
        tuple((position, view) for (position, _), view in zip(kept, group("s"), strict=True)),
        along=rows.along, **options,
    )  # fmt: skip
    machine = machine_of_width(width)
    known |= {f"outer{axis}": size for axis, size in enumerate(rows.outer)}
    known |= {f"row{axis}": size for axis, size in enumerate(rows.row)}
    scratch = row_scratch(kernel, machine, rows.row)
    known["scratch"] = np.zeros(max(1, 3 * scratch), row_buffers(kernel)["scratch"].numpy)
    known |= {"begin": 0, "end": row_units(kernel, machine, rows.outer), "thread": 0}
    names = row_arguments(kernel)
    return build_rows("rows", kernel, machine), [known[name] for name in names], names


CASES = [
    ((4, 37), (1,)), ((2, 150), (1,)), ((37, 4), (0,)), ((3, 7, 21), (1,)), ((2, 5, 6, 11), (2, 3)),
    ((150, 3), (0,)),
]  # fmt: skip


@pytest.mark.parametrize(("width", "static"), [(128, False), (256, True), (512, True)])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("shape", "axes"), CASES, ids=str)
def test_functions(name: str, shape: tuple[int, ...], axes: tuple[int, ...], static: bool, width: int) -> None:
    function, numpy = FUNCTIONS[name]
    x = random.normal(size=shape).astype(np.float32)
    module, given, names = planned(function, axes, width, static, np.zeros_like(x), [x])
    ours, compiled = run_both(module, given, width)
    y = names.index("y0")
    expected = numpy(x, axes).reshape(-1)
    assert np.allclose(ours[y], expected, rtol=2e-6, atol=2e-6)
    assert np.allclose(compiled[y], expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("axis", [0, 1])
def test_rows_without_a_finite_number(axis: int, static: bool) -> None:
    x = random.normal(size=(19, 19)).astype(np.float32)
    x[3], x[:, 7] = -math.inf, -math.inf
    x[5, 5] = math.nan
    x[9, 9] = math.inf
    with np.errstate(invalid="ignore"):
        expected = numpy_softmax(x, (axis,))
    module, given, names = planned(softmax(), (axis,), 512, static, np.zeros_like(x), [x])
    ours, compiled = run_both(module, given, 512)
    for side in (ours, compiled):
        found = side[names.index("y0")].reshape(x.shape)
        assert np.allclose(found, expected, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("length", [20, 700])
@pytest.mark.parametrize(("width", "static"), [(128, False), (256, True), (512, False), (512, True)])
def test_residual_scale_and_statistics(width: int, static: bool, length: int) -> None:
    """What a transformer does: the sum is normalized, and stored as well."""
    x, residual = (random.normal(size=(3, length)).astype(np.float32) for _ in range(2))
    scale, bias = (random.normal(size=(1, length)).astype(np.float32) for _ in range(2))
    total, mean, root = np.zeros_like(x), np.zeros((3, 1), np.float32), np.zeros((3, 1), np.float32)

    def prologue(b: Any, v: Any) -> Any:
        whole = b.add(v[0], v[1])
        return [whole, whole]

    module, given, names = planned(
        layer_norm(1e-5), (1,), width, static, np.zeros_like(x), [x, residual], [scale, bias], [total],
        [(0, mean), (1, root)], prologue=prologue, epilogue=lambda b, v: [b.fma(v[0], v[1], v[2])],
    )  # fmt: skip
    sides = run_both(module, given, width) if length < 100 else [given]
    if length >= 100:
        run_compiled(module, given, width)
    expected = numpy_layer_norm(x + residual, (1,)) * scale + bias
    for side in sides:
        found = dict(zip(names, side, strict=True))
        assert np.allclose(found["y0"].reshape(x.shape), expected, rtol=1e-5, atol=1e-5)
        assert np.array_equal(found["e0"].reshape(x.shape), x + residual)
        assert np.allclose(found["s0"], (x + residual).mean(1), atol=1e-6)
        assert np.allclose(found["s1"], 1 / np.sqrt((x + residual).var(1) + 1e-5), rtol=1e-5)


@pytest.mark.parametrize("last", [False, True])
def test_group_norm_is_rows_of_two_dims(last: bool) -> None:
    """[batch, groups, channels / groups, places], the scale one for each channel; channels first or last in memory."""
    x = random.normal(size=(2, 3, 4, 19)).astype(np.float32)
    if last:
        x = np.ascontiguousarray(x.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1)
    result = np.zeros_like(x)
    scale = random.normal(size=(1, 3, 4, 1)).astype(np.float32)
    module, given, names = planned(
        layer_norm(1e-5), (2, 3), 256, True, result, [x], [scale], epilogue=lambda b, v: [b.mul(v[0], v[1])]
    )
    ours, compiled = run_both(module, given, 256)
    expected = numpy_layer_norm(x, (2, 3)) * scale
    for side in (ours, compiled):
        found = side[names.index("y0")]
        memory = result.transpose(0, 3, 1, 2).shape if last else result.shape
        found = found.reshape(memory).transpose(0, 2, 3, 1) if last else found.reshape(memory)
        assert np.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("axes", [(0,), (1,)])
def test_softmax_of_masked_scores(axes: tuple[int, ...]) -> None:
    x, mask = random.normal(size=(23, 25)).astype(np.float32), np.zeros((1, 25), np.float32)
    mask[0, 20:] = -1e9
    module, given, names = planned(
        softmax(), axes, 256, True, np.zeros_like(x), [x, mask],
        prologue=lambda b, v: [b.add(b.mul(v[0], 0.125), v[1])],
    )  # fmt: skip
    ours, compiled = run_both(module, given, 256)
    for side in (ours, compiled):
        found = side[names.index("y0")].reshape(x.shape)
        assert np.allclose(found, numpy_softmax(x * 0.125 + mask, axes), atol=1e-6)


@pytest.mark.parametrize("dtype", [f16, bf16, f64], ids=str)
@pytest.mark.parametrize("axis", [0, 1])
def test_other_dtypes(dtype: Any, axis: int) -> None:
    x = random.normal(size=(31, 33)).astype(dtype.numpy)
    module, given, names = planned(softmax(), (axis,), 256, True, np.zeros_like(x), [x])
    ours, compiled = run_both(module, given, 256)
    tolerance = {"f16": 1e-3, "bf16": 1e-2, "f64": 1e-14}[dtype.name]
    y = names.index("y0")
    expected = numpy_softmax(x, (axis,)).reshape(-1)
    assert np.allclose(wide(ours[y]), expected, rtol=tolerance, atol=tolerance / 10)
    assert np.allclose(wide(compiled[y]), expected, rtol=tolerance, atol=tolerance / 10)


@pytest.mark.parametrize("axis", [0, 1])
def test_in_place(axis: int) -> None:
    x = random.normal(size=(70, 71)).astype(np.float32)
    expected = numpy_softmax(x, (axis,))
    module, given, names = planned(softmax(), (axis,), 512, True, x, [x])
    assert given[names.index("x0")].ctypes.data == given[names.index("y0")].ctypes.data
    run_compiled(module, given, 512)
    assert np.allclose(x, expected, atol=1e-6)


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("axis", [0, 1])
def test_work_can_be_shared_out_anywhere(axis: int, parts: int) -> None:
    x = random.normal(size=(45, 46)).astype(np.float32)
    module, given, names = planned(softmax(), (axis,), 128, False, np.zeros_like(x), [x])
    y = names.index("y0")
    run_loops(module, given)
    whole, units = given[y].copy(), given[-2]
    given[y][:] = 0
    for part in range(parts):
        run_loops(module, [*given[:-3], part * units // parts, (part + 1) * units // parts, part])
    assert np.array_equal(given[y], whole)


@pytest.mark.parametrize(("width", "static"), [(128, False), (256, True), (512, False)])
@pytest.mark.parametrize("dtype", [f32, f16], ids=str)
@pytest.mark.parametrize("name", ["softmax", "layer_norm"])
def test_a_result_that_goes_past_the_caches_may_begin_anywhere(name: str, dtype: Any, width: int, static: bool) -> None:
    function, numpy = FUNCTIONS[name]
    x = random.normal(size=(3, 443)).astype(dtype.numpy)
    module, given, names = planned(function, (1,), width, static, np.zeros_like(x), [x], streams=True)
    y = names.index("y0")
    tolerance = {"f16": 1e-3, "f32": 2e-6}[dtype.name]
    for run in (lambda arguments: run_loops(module, arguments), compiled(module, width)):
        for start in (0, 1, 7):
            room = np.zeros(start + x.size + 9, dtype.numpy)
            run([*given[:y], room[start:], *given[y + 1 :]])
            found = room[start : start + x.size].reshape(x.shape)
            assert np.allclose(wide(found), numpy(x, (1,)), rtol=tolerance, atol=tolerance)
            assert not room[:start].any()
            assert not room[start + x.size :].any()


@pytest.mark.parametrize(("width", "static"), [(128, False), (256, True), (512, False), (512, True)])
@pytest.mark.parametrize("dtype", [f32, f16], ids=str)
@pytest.mark.parametrize("columns", [128, 70])
def test_columns_that_go_past_the_caches(columns: int, dtype: Any, width: int, static: bool) -> None:
    """Full blocks do if they begin at a multiple of a vector; others are stored like anything else."""
    x = random.normal(size=(3, 13, columns)).astype(dtype.numpy)
    module, given, names = planned(softmax(), (1,), width, static, np.zeros_like(x), [x], streams=True)
    y = names.index("y0")
    tolerance = {"f16": 1e-3, "f32": 2e-6}[dtype.name]
    for run in (lambda arguments: run_loops(module, arguments), compiled(module, width)):
        for start in (0, 1):
            room = np.zeros(64 + start + x.size + 9, dtype.numpy)
            start += -room.ctypes.data % 64 // room.itemsize
            run([*given[:y], room[start:], *given[y + 1 :]])
            found = room[start : start + x.size].reshape(x.shape)
            assert np.allclose(wide(found), numpy_softmax(x, (1,)), rtol=tolerance, atol=tolerance)
            assert not room[:start].any()
            assert not room[start + x.size :].any()


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("shape", "axis"), [((7, 443), 1), ((7, 11, 128), 1)], ids=str)
def test_units_that_go_past_the_caches_do_not_depend_on_each_other(name: str, shape: Any, axis: int) -> None:
    """Each is computed in the same way, whichever one it is laid together with, and wherever results lie."""
    function, numpy = FUNCTIONS[name]
    x = random.normal(size=shape).astype(np.float32)
    module, given, names = planned(function, (axis,), 512, False, np.zeros_like(x), [x], streams=True)
    y, units, run = names.index("y0"), given[-2], compiled(module, 512)
    found = []
    for start in (0, 5):
        for parts in (1, 2, 3, units):
            room = np.zeros(start + x.size + 16, np.float32)
            arguments = [*given[:y], room[start:], *given[y + 1 :]]
            for part in range(parts):
                run([*arguments[:-3], part * units // parts, (part + 1) * units // parts, part % 3])
            found.append(room[start : start + x.size])
    assert np.allclose(found[0].reshape(shape), numpy(x, (axis,)), rtol=2e-6, atol=2e-6)
    assert all(np.array_equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("width", [128, 256, 512])
@pytest.mark.parametrize("name", ["softmax", "layer_norm"])
@pytest.mark.parametrize(("shape", "axis"), [((5, 443), 1), ((2, 11, 128), 1)], ids=str)
def test_past_the_caches_with_what_comes_before_and_after(name: str, shape: Any, axis: int, width: int) -> None:
    function, numpy = FUNCTIONS[name]
    x, y = (random.normal(size=shape).astype(np.float32) for _ in range(2))
    scale = random.normal(size=(1,) * (len(shape) - 1) + shape[-1:]).astype(np.float32)
    kept = np.zeros([1 if index == axis else size for index, size in enumerate(shape)], np.float32)
    result = np.zeros(x.size + 16, np.float32)
    result = result[-result.ctypes.data % 64 // 4 :][: x.size].reshape(shape)
    module, given, names = planned(
        function, (axis,), width, True, result, [x, y], [scale], kept=[(0, kept)], streams=True,
        prologue=lambda b, v: [b.add(v[0], b.mul(v[1], 0.5))], epilogue=lambda b, v: [b.mul(v[0], v[1])],
    )  # fmt: skip
    given[names.index("y0")] = result.reshape(-1)
    total = x + y * np.float32(0.5)
    statistic = total.max(axis) if name == "softmax" else total.mean(axis)
    for run in (run_loops, lambda m, a: run_compiled(m, a, width)):
        result[...], kept[...] = 0, 0
        run(module, given)
        assert np.allclose(result, numpy(total, (axis,)) * scale, rtol=1e-5, atol=1e-5)
        assert np.allclose(kept.reshape(statistic.shape), statistic, atol=1e-6)


@pytest.mark.parametrize("name", ["softmax", "layer_norm"])
@pytest.mark.parametrize(("shape", "axis"), [((5, 443), 1), ((2, 11, 128), 1)], ids=str)
def test_past_the_caches_in_place(name: str, shape: Any, axis: int) -> None:
    function, numpy = FUNCTIONS[name]
    room = np.zeros(math.prod(shape) + 16, np.float32)
    x = room[-room.ctypes.data % 64 // 4 :][: math.prod(shape)].reshape(shape)
    x[...] = random.normal(size=shape)
    expected = numpy(x, (axis,))
    module, given, names = planned(function, (axis,), 512, True, x, [x], streams=True)
    given[names.index("x0")] = given[names.index("y0")] = x.reshape(-1)
    run_compiled(module, given, 512)
    assert np.allclose(x, expected, rtol=2e-6, atol=2e-6)


def test_which_rows_go_past_the_caches() -> None:
    def kernel(function: RowFunction, length: int, step: int = 1) -> RowKernel:
        view = View(f32, (length * step,), (step,))
        return RowKernel(function, (8,), (length,), (view,), (view,))

    assert can_stream(kernel(layer_norm(1e-5), 768), WIDE)
    assert not can_stream(kernel(layer_norm(1e-5), 96), WIDE)
    assert not can_stream(kernel(layer_norm(1e-5), 768, 2), WIDE)
    assert not can_stream(kernel(softmax(), 256), WIDE)
    assert can_stream(kernel(softmax(), 1024), WIDE)


@pytest.mark.parametrize(("rows", "columns", "step", "expected"), [
    (21, 1 << 18, 1, True), (21, 1 << 18, 2, False), (4, 1 << 20, 1, False), (21, 1 << 12, 1, False),
    (1 << 16, 512, 1, False),
])  # fmt: skip
def test_which_columns_go_past_the_caches(rows: int, columns: int, step: int, expected: bool) -> None:
    """Large results without gaps, of rows that neither registers nor memory of its own keep for too long."""
    view = View(f32, (step,), (columns * step,))
    kernel = RowKernel(softmax(), (columns,), (rows,), (view,), (view,), along="column")
    assert streamed(kernel, WIDE, (columns,), (rows,)).streams == expected
