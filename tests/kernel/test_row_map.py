"""Maps with totals of rows: interpreted and compiled, both forms, odd sizes, strides, sums of all rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from loop_running import run_both, run_compiled

from tilewright.backends.cpu.kernels.reduce import Total
from tilewright.backends.cpu.kernels.row_map import (
    RowMap,
    build_row_map,
    is_fixed,
    row_map_arguments,
    row_map_units,
)
from tilewright.backends.cpu.kernels.strided import View, split_rows
from tilewright.backends.cpu.machine import machine_of_width
from tilewright.graph.dtypes import bf16, f32, f64, from_numpy, i32
from tilewright.graph.types import VectorType

random = np.random.default_rng(23)


def strides_of(array: np.ndarray) -> list[int]:
    return [stride // array.itemsize for stride in array.strides]


def flat(array: np.ndarray) -> np.ndarray:
    base = array if array.base is None else array.base
    return base.reshape(-1)


def planned(
    axes: Sequence[int], width: int, static: bool, results: Sequence[np.ndarray], operands: Sequence[np.ndarray],
    block: int, sums: int = 0, numbers: Sequence[np.ndarray] = (), **options: Any,
) -> tuple[Any, list[Any], list[str]]:  # fmt: skip
    """The kernel, its arguments and their names; operands have dims of 1 where they are broadcast."""
    shape = results[0].shape
    groups = {"x": operands, "y": results, "n": numbers}
    tensors = {f"{kind}{n}": array for kind, group in groups.items() for n, array in enumerate(group)}
    strides = [
        [0 if size == 1 else step for size, step in zip(array.shape, strides_of(array), strict=True)]
        for array in tensors.values()
    ]
    rows = split_rows(shape, axes, [strides[len(operands)], *strides])
    known: dict[str, Any] = {"block": block}
    views = rows.views([from_numpy(array.dtype) for array in tensors.values()], static)
    for name, array in tensors.items():
        known[name] = flat(array)
    known |= rows.numbers(list(tensors))
    count = int(np.prod(rows.outer))
    length = int(np.prod(rows.row))
    dense = tuple(int(np.prod(rows.row[axis + 1 :])) for axis in range(len(rows.row)))
    for n in range(sums):
        known[f"c{n}"] = np.full(-(-count // block) * length, np.nan, results[0].dtype)
        known |= {f"c{n}_row{axis}": step for axis, step in enumerate(dense)}
    seen = dense if static else tuple(step if step in (0, 1) else None for step in dense)
    kernel = RowMap(
        rows.outer if static else (None,) * len(rows.outer), rows.row if static else (None,) * len(rows.row),
        tuple(views[: len(operands)]), tuple(views[len(operands) : len(operands) + len(results)]),
        numbers=tuple(View(view.dtype, view.outer) for view in views[len(operands) + len(results) :]),
        sums=(View(from_numpy(results[0].dtype), (), seen),) * sums, along=rows.along,
        block=block if static else None, **options,
    )  # fmt: skip
    for view, array in zip(kernel.operands, operands, strict=True):
        assert is_fixed(view) == (length > 1 and all(array.shape[axis] == 1 for axis in axes))
    machine = machine_of_width(width)
    known |= {"begin": 0, "end": row_map_units(kernel, machine, rows.outer, block), "thread": 0}
    return (
        build_row_map("rows", kernel, machine),
        [known[name] for name in row_map_arguments(kernel)],
        row_map_arguments(kernel),
    )


SOFTMAX: dict[str, Any] = {
    "totals": (Total("sum", f32),), "prologue": lambda b, v: [b.mul(v[0], v[1])],
    "body": lambda b, v: [b.mul(v[0], b.sub(v[1], v[2]))],
}  # fmt: skip
CASES = [
    ((4, 37), (1,)), ((3, 150), (1,)), ((37, 4), (0,)), ((3, 7, 21), (1,)), ((2, 5, 6, 11), (2, 3)), ((150, 3), (0,)),
    ((5, 1), (1,)), ((2, 300), (1,)),
]  # fmt: skip


@pytest.mark.parametrize(("width", "static"), [(128, False), (256, True), (512, True)])
@pytest.mark.parametrize(("shape", "axes"), CASES, ids=str)
def test_the_adjoint_of_softmax(shape: tuple[int, ...], axes: tuple[int, ...], static: bool, width: int) -> None:
    y, grad = (random.normal(size=shape).astype(np.float32) for _ in range(2))
    module, given, names = planned(axes, width, static, [np.zeros_like(y)], [y, grad], 1, **SOFTMAX)
    expected = y * (grad - (y * grad).sum(axis=axes, keepdims=True))
    for side in run_both(module, given, width):
        np.testing.assert_allclose(side[names.index("y0")].reshape(shape), expected, atol=2e-5)


@pytest.mark.parametrize(("width", "static"), [(128, False), (256, True), (512, True)])
@pytest.mark.parametrize(("shape", "axes"), CASES, ids=str)
@pytest.mark.parametrize("dtype", [f32, i32], ids=str)
def test_totals_of_several_kinds(
    dtype: Any, shape: tuple[int, ...], axes: tuple[int, ...], static: bool, width: int
) -> None:
    """Neutral elements of each kind fill the tail; with all numbers below zero or above it, a wrong one would show."""
    x = (random.integers(1, 100, shape)).astype(dtype.numpy)
    kinds = ("max", "min", "sum", "product")
    module, given, names = planned(
        axes, width, static, [np.zeros_like(x)], [x], 1, totals=tuple(Total(kind, dtype) for kind in kinds),
        prologue=lambda b, v: [b.neg(v[0]), v[0], v[0], b.min(v[0], 1)],
        body=lambda b, v: [b.mul(b.add(b.sub(v[3], v[1]), b.add(b.sub(v[2], v[0]), v[0])), v[4])],
    )  # fmt: skip
    least = x.min(axis=axes, keepdims=True)
    expected = np.broadcast_to(x.sum(axis=axes, keepdims=True) + 2 * least, x.shape)
    for side in run_both(module, given, width):
        assert np.array_equal(side[names.index("y0")].reshape(shape), expected)


def norm_grad(dtype: Any, static: bool, width: int, shape: tuple[int, int], block: int) -> None:
    """That of a layer norm, with the adjoints of scale and bias."""
    x, grad = (random.normal(size=shape).astype(dtype.numpy) for _ in range(2))
    scale = random.normal(size=(1, shape[1])).astype(dtype.numpy)
    mean, inverse = x.mean(axis=1, keepdims=True), 1 / x.std(axis=1, keepdims=True)

    def normal(b: Any, v: Any) -> Any:
        return b.mul(b.sub(v[0], v[3]), v[4])

    def prologue(b: Any, v: Any) -> Any:
        slope = b.mul(v[1], v[2])
        return [slope, b.mul(slope, normal(b, v))]

    def body(b: Any, v: Any) -> Any:
        slope = b.sub(b.sub(b.mul(v[1], v[2]), v[5]), b.mul(normal(b, v), v[6]))
        return [b.mul(slope, v[4]), b.mul(v[1], normal(b, v)), v[1]]

    module, given, names = planned(
        (1,), width, static, [np.zeros_like(x)], [x, grad, scale, mean, inverse], block, 2,
        totals=(Total("sum", dtype),) * 2, prologue=prologue, body=body, means=(0, 1),
    )  # fmt: skip
    n = (x - mean) * inverse
    slope = grad * scale
    expected = inverse * (slope - slope.mean(axis=1, keepdims=True) - n * (slope * n).mean(axis=1, keepdims=True))
    tolerance = 2e-5 if dtype is f32 else 1e-12
    for side in run_both(module, given, width):
        np.testing.assert_allclose(side[names.index("y0")].reshape(shape), expected, atol=tolerance)
        sums = [side[names.index(f"c{k}")].reshape(-1, shape[1]) for k in range(2)]
        assert len(sums[0]) == -(-shape[0] // block)
        np.testing.assert_allclose(sums[0].sum(axis=0), (grad * n).sum(axis=0), atol=10 * tolerance)
        np.testing.assert_allclose(sums[1].sum(axis=0), grad.sum(axis=0), atol=10 * tolerance)


@pytest.mark.parametrize(("width", "static"), [(128, True), (256, False), (512, True)])
@pytest.mark.parametrize(("shape", "block"), [((11, 45), 4), ((3, 130), 4), ((9, 256), 9), ((1, 7), 4)])
def test_sums_of_all_rows(shape: tuple[int, int], block: int, static: bool, width: int) -> None:
    norm_grad(f32, static, width, shape, block)


@pytest.mark.parametrize("static", [True, False])
def test_wider_numbers(static: bool) -> None:
    norm_grad(f64, static, 256, (7, 29), 4)


@pytest.mark.parametrize(("width", "static"), [(128, False), (256, True), (512, True)])
@pytest.mark.parametrize("axes", [(1,), (0,)])
def test_numbers_of_a_row_are_computed_once(axes: tuple[int, ...], static: bool, width: int) -> None:
    """In the one form for a vector, in the other for vectors of rows side by side; the last of them are stored."""
    x = random.normal(size=(19, 21)).astype(np.float32)
    total = x.sum(axis=axes, keepdims=True)
    shift = random.normal(size=total.shape).astype(np.float32)
    kept = [np.zeros_like(total) for _ in range(2)]

    def start(b: Any, v: Any) -> Any:
        return [b.div(v[0], b.add(b.mul(v[1], v[1]), 1.0)), v[1], b.neg(v[0])]

    module, given, names = planned(
        axes, width, static, [np.zeros_like(x)], [x, shift], 1, numbers=kept, totals=(Total("sum", f32),),
        prologue=lambda b, v: [v[0]], start=start, body=lambda b, v: [b.sub(v[0], v[3])],
    )  # fmt: skip
    vectors = [op for op in module.walk() if op.name == "scalar.div" and isinstance(op.result.type, VectorType)]
    assert len(vectors) == 1 if axes == (1,) else len(vectors) >= 2
    for side in run_both(module, given, width):
        np.testing.assert_allclose(side[names.index("y0")].reshape(x.shape), x - shift / (total**2 + 1), atol=1e-5)
        np.testing.assert_allclose(side[names.index("n0")].reshape(total.shape), total, atol=1e-5)
        assert np.array_equal(side[names.index("n1")].reshape(total.shape), -shift)


@pytest.mark.parametrize("dtype", [bf16, f64], ids=str)
def test_other_dtypes(dtype: Any) -> None:
    y, grad = (random.normal(size=(5, 33)).astype(dtype.numpy) for _ in range(2))
    options = {**SOFTMAX, "totals": (Total("sum", f64 if dtype is f64 else f32),)}
    module, given, names = planned((1,), 256, True, [np.zeros_like(y)], [y, grad], 1, **options)
    wide_y, wide_grad = (array.astype(np.float64) for array in (y, grad))
    expected = wide_y * (wide_grad - (wide_y * wide_grad).sum(axis=1, keepdims=True))
    for side in run_both(module, given, 256):
        found = side[names.index("y0")].astype(np.float64).reshape(y.shape)
        np.testing.assert_allclose(found, expected, rtol=0.01 if dtype is bf16 else 1e-12, atol=0.1 * (dtype is bf16))


def test_strided_tensors_without_totals_and_several_results() -> None:
    """Every second row of one tensor, columns first in another."""
    x = np.zeros((10, 23), np.float32)[::2]
    x[:] = random.normal(size=x.shape)
    t = np.ascontiguousarray(random.normal(size=(23, 5)).astype(np.float32)).T
    results = [np.zeros((5, 23), np.float32) for _ in range(2)]
    module, given, names = planned(
        (1,), 256, False, results, [x, t], 1, totals=(), prologue=lambda b, v: [],
        body=lambda b, v: [b.add(v[0], v[1]), b.mul(v[0], v[1])],
    )  # fmt: skip
    for side in run_both(module, given, 256):
        assert np.array_equal(side[names.index("y0")].reshape(5, 23), x + t)
        assert np.array_equal(side[names.index("y1")].reshape(5, 23), x * t)


def test_units_do_not_touch_each_other() -> None:
    x, grad = (random.normal(size=(10, 40)).astype(np.float32) for _ in range(2))
    module, given, names = planned(
        (1,), 256, True, [np.zeros_like(x)], [x, grad], 4, 1, totals=(Total("sum", f32),), prologue=SOFTMAX["prologue"],
        body=lambda b, v: [b.mul(v[0], v[2]), v[1]],
    )  # fmt: skip
    given[names.index("begin")], given[names.index("end")] = 1, 2
    run_compiled(module, given, 256)
    y, sums = given[names.index("y0")].reshape(10, 40), given[names.index("c0")].reshape(3, 40)
    assert not y[:4].any()
    assert not y[8:].any()
    assert y[4:8].all()
    np.testing.assert_allclose(sums[1], grad[4:8].sum(axis=0), atol=1e-5)
    assert np.isnan(sums[[0, 2]]).all()


def test_rows_side_by_side_are_not_added_up() -> None:
    view = View(f32, (1,), (None,))
    kernel = RowMap(
        (4,), (5,), (view,), (view,), (), lambda b, v: [], lambda b, v: [v[0], v[0]], sums=(View(f32, (), (1,)),),
        along="column",
    )  # fmt: skip
    with pytest.raises(ValueError, match="not added up"):
        build_row_map("rows", kernel, machine_of_width(256))
