"""The register tile by itself: rows at any places, narrow and whole numbers, masked tails, short and long epilogues."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from loop_running import WIDTHS, run_both

from tilewright.backends.cpu.kernels.tile import Epilogue, EpilogueOperand, Given, Target, Tile, finishing_body
from tilewright.graph import types
from tilewright.graph.dtypes import DType, bf16, f16, f32, f64, i32, i64
from tilewright.graph.kernel import vector_math
from tilewright.graph.kernel.loop_builder import LoopBuilder
from tilewright.graph.kernel.scalar_emitter import computed_in
from tilewright.graph.module import Module

random = np.random.default_rng(3)
TAPS, CHANNELS, PIXELS = 3, 5, 4
A_PLACES = [0, 7, 30, 18]  # where each row's first number is: in no order, as pixels may be
C_PLACES = [40, 0, 90, 130]
X_PLACES = [0, 60, 30, 120]


def taps_kernel(dtype: DType, lanes: int, epilogue: Epilogue, unroll: int, parts: bool) -> Module:
    """A product over taps and channels, as a convolution has it; `parts`: stored after each tap."""
    sums_in = computed_in(dtype)
    arguments = {"a": types.buffer(dtype), "strip": types.buffer(dtype), "c": types.buffer(dtype)}
    arguments |= {operand.name: types.buffer(operand.dtype) for operand in epilogue.operands}
    b = LoopBuilder("taps", **arguments, columns=types.scalar(i64))
    tile = Tile(PIXELS, 2, lanes, sums_in)
    body = finishing_body(b, "finish", epilogue, tile.vectors, lanes, sums_in, dtype)
    given = [Given(b["bias"], [0], 1), Given(b["other"], X_PLACES, 1), Given(b["scale"], [0, 1, 2, 3], 0)]
    target = Target(b["c"], C_PLACES, b["columns"])

    def tap(sums: Any, position: Any) -> Any:
        left, right = b.view(b["a"], b.mul(position, 50)), b.view(b["strip"], b.mul(position, CHANNELS * tile.columns))
        return tile.accumulate(b, sums, CHANNELS, left, A_PLACES, 1, right, unroll)

    if parts:
        with b.loop(0, TAPS) as position:
            sums = tap(tile.zeros(b), position)
            tile.finish(b, sums, target, b.lt(0, position), b.eq(position, TAPS - 1), body, given)
    else:
        with b.loop(0, TAPS, 1, tile.zeros(b)) as state:
            state.yields(tap(state.values, state.index))
        tile.finish(b, state.results, target, body=body, given=given)
    return b.module()


def short(b: Any, total: Any, operands: Any) -> Any:
    bias, other, scale = operands
    return b.max(b.fma(b.add(total, bias), scale, other), 0)


def long(b: Any, total: Any, operands: Any) -> Any:
    return vector_math.erf(b, b.mul(short(b, total, operands), 0.125))


def operands_of(dtype: DType) -> tuple[EpilogueOperand, ...]:
    return (
        EpilogueOperand("bias", dtype, 0, 1),
        EpilogueOperand("other", dtype, 9, 1),
        EpilogueOperand("scale", dtype, 1, 0),
    )


def expected_of(a: Any, strip: Any, bias: Any, other: Any, scale: Any, columns: int, is_long: bool) -> np.ndarray:
    wide = np.float64
    total = np.zeros((PIXELS, columns), wide)
    for tap in range(TAPS):
        for row in range(PIXELS):
            begin = tap * 50 + A_PLACES[row]
            total[row] += a[begin : begin + CHANNELS].astype(wide) @ strip[tap].astype(wide)[:, :columns]
    beside = np.stack([other[place : place + columns] for place in X_PLACES]).astype(wide)
    result = np.maximum((total + bias[:columns].astype(wide)) * scale.astype(wide)[:, None] + beside, 0)
    return np.vectorize(math.erf)(result / 8) if is_long else result


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize(("body", "unroll"), [(short, 1), (long, 1), (short, 2)])
def test_taps_and_channels(width: int, parts: bool, body: Any, unroll: int) -> None:
    lanes = width // 32
    module = taps_kernel(f32, lanes, Epilogue(operands_of(f32), body), unroll, parts)
    assert len(module.functions) == (2 if body is long else 0)  # of whole rows, and of a few columns
    for columns in (1, lanes, 2 * lanes - 1, 2 * lanes, 2 * lanes + 3):
        check(module, f32, columns, lanes, width, body is long)


@pytest.mark.parametrize("dtype", [f64, f16, bf16, i32], ids=str)
def test_other_numbers(dtype: DType) -> None:
    lanes = 256 // computed_in(dtype).bits
    body = short if dtype.is_float else lambda b, total, o: b.max(b.add(b.mul(b.add(total, o[0]), o[2]), o[1]), 0)
    module = taps_kernel(dtype, lanes, Epilogue(operands_of(dtype), body), 2, False)
    check(module, dtype, lanes + 1, lanes, 256, False)


def check(module: Module, dtype: DType, columns: int, lanes: int, width: int, is_long: bool) -> None:
    """Small integers, so that sums are exact in any order; what lies between the rows of C stays as it was."""

    def numbers(*shape: int) -> np.ndarray:
        return random.integers(-2, 3, shape).astype(dtype.numpy)

    a, strip = numbers(160), numbers(TAPS, CHANNELS, 2 * lanes)
    bias, other, scale = numbers(2 * lanes), numbers(160), numbers(PIXELS)
    c = np.full(170, 99, dtype.numpy)
    stored = min(columns, 2 * lanes)
    ours, compiled = run_both(module, [a, strip.reshape(-1), c, bias, other, scale, columns], width)
    expected = expected_of(a, strip, bias, other, scale, stored, is_long)
    for results in (ours, compiled):
        found = results[2].astype(np.float64)
        rows = np.stack([found[place : place + stored] for place in C_PLACES])
        np.testing.assert_allclose(rows, expected, rtol=0, atol=1e-6 if is_long else 0)
        untouched = np.ones(c.size, bool)
        for place in C_PLACES:
            untouched[place : place + stored] = False
        assert (found[untouched] == 99).all()
