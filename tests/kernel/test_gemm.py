"""Matrix products: interpreted and compiled, all layouts of both factors, edges of every tile, shared work."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from loop_running import WIDTHS, run_both, run_compiled

from tilewright.backends.cpu.kernels.gemm import (
    Gemm,
    Tiling,
    arguments_of,
    build_gemm,
    choose_tiling,
    scratch_elements,
    work_units,
)
from tilewright.backends.cpu.kernels.pack import packed_panels
from tilewright.backends.cpu.kernels.tile import Epilogue, EpilogueOperand
from tilewright.backends.cpu.machine import machine_of_width
from tilewright.graph.dtypes import DType, bf16, f16, f32, f64, i32
from tilewright.graph.kernel.interpreter import run_loops
from tilewright.graph.module import Module
from tilewright.graph.parser import parse
from tilewright.graph.printer import print_module

random = np.random.default_rng(5)


def bias_relu(b: Any, x: Any, operands: Any) -> Any:
    return b.max(b.add(x, operands[0]), 0)


def matrices(m: int, n: int, k: int, dtype: DType, batch: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Small integers, so that sums are exact in any order."""
    a, b = (random.integers(-4, 5, shape).astype(dtype.numpy) for shape in ((batch, m, k), (batch, k, n)))
    return a, b


def values_of(
    gemm: Gemm, tiling: Tiling, a: np.ndarray, b: np.ndarray, layout: str, extra: dict[str, Any] | None = None
) -> list[Any]:
    """The arguments for one thread that does everything; `layout` is "nn", "tn", "nt" or "tt" (t: transposed)."""
    batch, m, k = a.shape
    n = b.shape[2]
    flat_a = np.ascontiguousarray(a if layout[0] == "n" else a.transpose(0, 2, 1)).reshape(-1)
    flat_b = np.ascontiguousarray(b if layout[1] == "n" else b.transpose(0, 2, 1)).reshape(-1)
    if gemm.b_packed:
        flat_b = packed_panels(b, tiling.columns)
    known = {
        "a": flat_a, "b": flat_b, "c": np.full(batch * m * n, 99, a.dtype),
        "scratch": np.zeros(max(1, scratch_elements(gemm, tiling)), a.dtype),
        "m": m, "n": n, "k": k, "a_row": k if layout[0] == "n" else 1, "a_k": 1 if layout[0] == "n" else m,
        "b_k": n if layout[1] == "n" else 1, "b_column": 1 if layout[1] == "n" else k, "c_row": n,
        "a_batch": m * k, "b_batch": flat_b.size // batch, "c_batch": m * n,
        "begin": 0, "end": work_units(gemm, tiling, m, n, batch), "thread": 0, **(extra or {}),
    }  # fmt: skip
    return [known[name] for name in arguments_of(gemm)]


def strides(layout: str, m: int, n: int, k: int, static: bool) -> dict[str, Any]:
    """The strides that the kernel knows: those that are 1, and all if `static`."""
    every = {
        "a_row": k if layout[0] == "n" else 1, "a_k": 1 if layout[0] == "n" else m,
        "b_k": n if layout[1] == "n" else 1, "b_column": 1 if layout[1] == "n" else k, "c_row": n,
    }  # fmt: skip
    ones = {"n": ("a_k", "b_column"), "t": ("a_row", "b_k")}
    kept = {ones[layout[0]][0], ones[layout[1]][1]}
    return {name: size if static or name in kept else None for name, size in every.items()}


@pytest.mark.parametrize("layout", ["nn", "tn", "nt", "tt"])
@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize(("pack_a", "b_packed"), [(False, True), (True, True), (False, False), (True, False)])
@pytest.mark.parametrize("few_heights", [False, True])
def test_layouts(layout: str, static: bool, pack_a: bool, b_packed: bool, few_heights: bool) -> None:
    m, n, k = 7, 11, 9
    tiling = Tiling(rows=3, vectors=2, lanes=4, depth=5, block=6, pack_a=pack_a, few_heights=few_heights)
    sizes = dict(zip("mnk", (m, n, k) if static else (None,) * 3, strict=True))
    gemm = Gemm(**sizes, dtype=f32, b_packed=b_packed, **strides(layout, m, n, k, static))
    a, b = matrices(m, n, k, f32)
    ours, compiled = run_both(build_gemm("product", gemm, tiling), values_of(gemm, tiling, a, b, layout), 128)
    expected = (a @ b).reshape(-1)
    assert np.array_equal(ours[2], expected)
    assert np.array_equal(compiled[2], expected)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("packed", [True, False])
def test_every_edge_of_the_machine_s_own_tile(dtype: DType, width: int, packed: bool) -> None:
    tiling = choose_tiling(machine_of_width(width), dtype, None, None, None, packed=packed, b_column=1)
    tiling = replace(tiling, depth=16, block=2 * tiling.rows)
    gemm = Gemm(None, None, None, dtype, None, 1, None, b_packed=packed, b_column=1)
    module = build_gemm("product", gemm, tiling)
    edges_m = (1, 2, tiling.rows - 1, tiling.rows, tiling.rows + 1, 5 * tiling.rows + 3)
    edges_n = (1, tiling.lanes, tiling.columns - 1, tiling.columns, 2 * tiling.columns + 3)
    run = Compiled(module, width)
    for m, n, k in itertools.product(edges_m, edges_n, (0, 1, 16, 37)):
        a, b = matrices(m, n, k, dtype)
        given = values_of(gemm, tiling, a, b, "nn")
        run(given)
        assert np.array_equal(given[2], (a @ b).reshape(-1)), (m, n, k)


class Compiled:
    """A compiled kernel that is called many times."""

    def __init__(self, module: Module, width: int) -> None:
        import ctypes

        from tilewright.backends.cpu.jit import compile_modules

        self.code = compile_modules([module], machine_of_width(width))
        count = len(module.main.inputs)
        self.function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * count)(self.code.address(module.main.key.name))

    def __call__(self, arguments: list[Any]) -> None:
        self.function(*(a.ctypes.data if isinstance(a, np.ndarray) else a for a in arguments))


@pytest.mark.parametrize("width", WIDTHS)
def test_batches_bias_and_activation(width: int) -> None:
    m, n, k, batch = 5, 19, 6, 3
    tiling = Tiling(rows=4, vectors=2, lanes=width // 32, depth=4, block=4)
    epilogue = Epilogue((EpilogueOperand("bias", f32, 0, 1),), bias_relu)
    gemm = Gemm(m, n, k, f32, k, 1, n, b_packed=False, b_k=n, b_column=1, batched=True, epilogue=epilogue)
    a, b = matrices(m, n, k, f32, batch)
    bias = random.integers(-9, 9, n).astype(np.float32)
    given = values_of(gemm, tiling, a, b, "nn", {"bias": bias, "bias_batch": 0})
    ours, compiled = run_both(build_gemm("product", gemm, tiling), given, width)
    expected = np.maximum(a @ b + bias, 0).reshape(-1)
    assert np.array_equal(ours[2], expected)
    assert np.array_equal(compiled[2], expected)


def test_epilogue_operands_of_each_form() -> None:
    m, n, k = 6, 10, 3
    operands = (
        EpilogueOperand("full", f32, None, 1), EpilogueOperand("rowwise", f32, 1, 0), EpilogueOperand("one", f32, 0, 0),
    )  # fmt: skip
    epilogue = Epilogue(operands, lambda b, x, o: b.fma(x, o[2], b.sub(o[0], o[1])))
    tiling = Tiling(rows=4, vectors=1, lanes=8, depth=2, block=4)
    gemm = Gemm(m, n, k, f32, k, 1, n, epilogue=epilogue)
    a, b = matrices(m, n, k, f32)
    full, rowwise, one = (random.integers(-9, 9, size).astype(np.float32) for size in (m * n, m, 1))
    given = values_of(gemm, tiling, a, b, "nn", {"full": full, "full_row": n, "rowwise": rowwise, "one": one})
    ours, compiled = run_both(build_gemm("product", gemm, tiling), given, 256)
    expected = (a[0] @ b[0]) * one + full.reshape(m, n) - rowwise[:, None]
    assert np.array_equal(ours[2], expected.reshape(-1))
    assert np.array_equal(compiled[2], expected.reshape(-1))


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_work_can_be_shared_out_anywhere(parts: int) -> None:
    m, n, k, batch = 9, 21, 5, 2
    tiling = Tiling(rows=2, vectors=1, lanes=4, depth=3, block=4, pack_a=True)
    gemm = Gemm(m, n, k, f32, k, 1, n, b_packed=False, b_k=n, b_column=1, batched=True)
    a, b = matrices(m, n, k, f32, batch)
    given = values_of(gemm, tiling, a, b, "nn")
    names = arguments_of(gemm)
    units = given[names.index("end")]
    given[names.index("scratch")] = np.zeros(parts * scratch_elements(gemm, tiling), np.float32)
    module = build_gemm("product", gemm, tiling)
    for thread in range(parts):
        share = {"begin": thread * units // parts, "end": (thread + 1) * units // parts, "thread": thread}
        run_loops(module, [share.get(name, value) for name, value in zip(names, given, strict=True)])
    assert np.array_equal(given[2], (a @ b).reshape(-1))


def test_a_kernel_survives_its_text() -> None:
    tiling = Tiling(rows=3, vectors=2, lanes=4, depth=5, block=6, pack_a=True)
    gemm = Gemm(7, 11, 9, f32, 9, 1, 11, epilogue=Epilogue((EpilogueOperand("v", f32, 0, 1),), bias_relu))
    text = print_module(build_gemm("product", gemm, tiling))
    again = parse(text)
    assert print_module(again) == text
    a, b = matrices(7, 11, 9, f32)
    given = values_of(gemm, tiling, a, b, "nn", {"v": np.zeros(11, np.float32)})
    run_compiled(again, given, 128)
    assert np.array_equal(given[2], np.maximum(a @ b, 0).reshape(-1))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("static", [True, False])
def test_few_rows(width: int, packed: bool, static: bool) -> None:
    """Tiles of several panels, or of a B that is read where it lies; columns that end within a group of panels."""
    k = 9
    for m, n in itertools.product((1, 2, 4, 5) if static else (3,), (1, 15, 1021)):
        tiling = choose_tiling(machine_of_width(width), f32, m, n, k, packed=packed)
        assert tiling.rows == m or m == 5  # of 16 registers, where four rows are a full tile
        sizes = (m, n, k) if static else (None, None, None)
        gemm = Gemm(*sizes, f32, k, 1, n, packed, n if static else None, 1, epilogue=row_bias())
        a, b = matrices(m, n, k, f32)
        bias = random.integers(-9, 9, n).astype(np.float32)
        given = values_of(gemm, tiling, a, b, "nn", {"bias": bias})
        module = build_gemm("product", gemm, tiling)
        run_compiled(module, given, width)
        expected = np.maximum(a @ b + bias, 0).reshape(-1)
        assert np.array_equal(given[2], expected), (m, n)
        if n == 15:
            given = values_of(gemm, tiling, a, b, "nn", {"bias": bias})
            run_loops(module, given)
            assert np.array_equal(given[2], expected), (m, n)


def row_bias() -> Epilogue:
    return Epilogue((EpilogueOperand("bias", f32, 0, 1),), bias_relu)


def test_the_widest_tile_of_few_rows_has_several_panels() -> None:
    machine = machine_of_width(0)
    assert choose_tiling(machine, f32, 1, 50_000, 768).panels > 1
    assert choose_tiling(machine, f32, 1, 32, 768).panels == 1
    assert choose_tiling(machine, f32, 128, 50_000, 768).panels == 1


@pytest.mark.parametrize(("m", "blocks"), [(49, 1), (192, 2), (197, 2)])
def test_threads_have_rows_of_their_own_if_there_are_many(m: int, blocks: int) -> None:
    machine = machine_of_width(0)
    alone, shared = (choose_tiling(machine, f32, m, 768, 768, threads=threads) for threads in (1, 2))
    assert (-(-m // alone.block), -(-m // shared.block)) == (1, blocks)


@pytest.mark.parametrize("dtype", [f16, bf16, i32], ids=str)
@pytest.mark.parametrize("m", [2, 40])
def test_narrow_and_whole_numbers(dtype: DType, m: int) -> None:
    """Narrow floats are summed up in f32 over all of k."""
    n, k = 37, 33
    machine = machine_of_width(256)
    for packed in (True, False):
        tiling = choose_tiling(machine, dtype, m, n, k, packed=packed)
        gemm = Gemm(m, n, k, dtype, k, 1, n, packed, n, 1)
        a, b = matrices(m, n, k, dtype)
        given = values_of(gemm, tiling, a, b, "nn")
        run_compiled(build_gemm("product", gemm, tiling), given, 256)
        expected = (a.astype(np.float64) @ b.astype(np.float64)).astype(dtype.numpy).reshape(-1)
        assert np.array_equal(given[2], expected)
