"""Products of bytes: every pair of signs, zero points of each form, edges, an epilogue; the operator dot4."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from loop_running import WIDTHS, run_both, run_compiled

from tilewright.backends.cpu.kernels.image import Layout, Window
from tilewright.backends.cpu.kernels.integer_gemm import (
    IntegerGemm,
    Lines,
    Patches,
    build_integer_gemm,
    column_terms,
    integer_arguments,
    integer_scratch,
    integer_tile,
    integer_units,
    packed_bytes,
)
from tilewright.backends.cpu.kernels.integer_pack import (
    IntegerPack,
    build_integer_pack,
    pack_arguments,
    pack_units,
    packed_sizes,
)
from tilewright.backends.cpu.kernels.tile import Epilogue, EpilogueOperand
from tilewright.backends.cpu.machine import machine_of_width
from tilewright.graph import types
from tilewright.graph.dtypes import f32, from_numpy, i8, i32, i64
from tilewright.graph.kernel.interpreter import run_loops
from tilewright.graph.kernel.loop_builder import LoopBuilder

random = np.random.default_rng(41)
OPTIONS = ("result", "epilogue", "in_place", "lines", "patches", "a_row")
needs_unit = pytest.mark.skipif(not machine_of_width(512).matrix_unit, reason="this machine has no matrix unit")


def whole(low: int, high: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return random.integers(low, high, shape).astype(dtype)


def planned(
    a: np.ndarray, b: np.ndarray, width: int, static: bool, a_zero: np.ndarray | None = None,
    b_zero: np.ndarray | None = None, parts: int = 1, unit: bool = False, **options: Any,
) -> tuple[Any, list[Any], list[str]]:  # fmt: skip
    (batch, m, k), n = a.shape, b.shape[2]
    sizes = (m, n, k) if static else (None,) * 3
    zeros: dict[str, Any] = {}
    if a_zero is not None:
        zeros["a_zero"] = "one" if a_zero.size == 1 else "row"
    if b_zero is not None:
        zeros["b_zero"] = "one" if b_zero.size == 1 else "column"
    kernel = IntegerGemm(
        *sizes, from_numpy(a.dtype), from_numpy(b.dtype), k if static else None, n if static else None,
        batched=batch > 1, unit=unit, **zeros,
    )  # fmt: skip
    kernel = replace(kernel, **{key: value for key, value in options.items() if key in OPTIONS})
    if "terms" in options:
        kernel = replace(kernel, a_zero="sums")
    machine = machine_of_width(width)
    words, sums = packed_bytes(b, integer_tile(kernel, machine).columns, unit)
    known: dict[str, Any] = {
        "c": np.zeros(batch * m * n, kernel.result.numpy), "a": a.reshape(-1), "b": words, "sums": sums, "m": m, "n": n,
        "k": k, "a_row": k, "c_row": n, "a_batch": m * k, "b_batch": words.size // batch, "c_batch": m * n,
        "sums_batch": sums.size // batch, "a_zero": a_zero, "b_zero": b_zero,
        "scratch": np.zeros(parts * integer_scratch(kernel, machine, k), np.int32),
        "begin": 0, "end": integer_units(kernel, machine, m, n, batch), "thread": 0, **options,
    }  # fmt: skip
    names = integer_arguments(kernel)
    return build_integer_gemm("product", kernel, machine), [known[name] for name in names], names


def expected_of(a: np.ndarray, b: np.ndarray, a_zero: Any = None, b_zero: Any = None) -> np.ndarray:
    left, right = a.astype(np.int64), b.astype(np.int64)
    if a_zero is not None:
        left = left - a_zero.astype(np.int64).reshape(-1, 1)
    if b_zero is not None:
        right = right - b_zero.astype(np.int64)
    return (left @ right).astype(np.int32).reshape(-1)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("left", [np.uint8, np.int8])
@pytest.mark.parametrize("right", [np.uint8, np.int8])
@pytest.mark.parametrize("zeros", ["none", "one", "many"])
def test_signs_and_zero_points(zeros: str, right: Any, left: Any, width: int) -> None:
    a_low, b_low = (0 if dtype is np.uint8 else -128 for dtype in (left, right))
    a, b = whole(a_low, a_low + 256, (1, 5, 13), left), whole(b_low, b_low + 256, (1, 13, 21), right)
    a_zero = b_zero = None
    if zeros != "none":
        a_zero = whole(a_low, a_low + 256, (5 if zeros == "many" else 1,), left)
        b_zero = whole(b_low, b_low + 256, (21 if zeros == "many" else 1,), right)
    module, given, _ = planned(a, b, width, zeros == "one", a_zero, b_zero)
    ours, compiled = run_both(module, given, width)
    expected = expected_of(a, b, a_zero, b_zero)
    assert np.array_equal(ours[0], expected)
    assert np.array_equal(compiled[0], expected)


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (70, 40, 70), (15, 64, 64), (3, 33, 300), (29, 16, 4)])
def test_edges(m: int, n: int, k: int, static: bool) -> None:
    a, b = whole(0, 256, (2, m, k), np.uint8), whole(-128, 128, (2, k, n), np.int8)
    for width in (256, 512):
        module, given, _ = planned(a, b, width, static)
        run_compiled(module, given, width)
        assert np.array_equal(given[0], expected_of(a, b))


def test_extreme_numbers_do_not_saturate() -> None:
    a, b = np.full((1, 4, 1000), 255, np.uint8), np.full((1, 1000, 17), -128, np.int8)
    for width in WIDTHS:
        module, given, _ = planned(a, b, width, True)
        run_compiled(module, given, width)
        assert np.array_equal(given[0], expected_of(a, b))


def test_an_epilogue_makes_numbers_of_another_dtype() -> None:
    """Scale by column, add a bias, saturate."""
    a, b = whole(0, 256, (1, 9, 30), np.uint8), whole(-128, 128, (1, 30, 37), np.int8)
    scale, bias = random.random(37).astype(np.float32) / 50, whole(-9, 9, (37,), np.int32)

    def body(b: Any, x: Any, operands: Any) -> Any:
        scaled = b.mul(b.cast(b.add(x, operands[1]), f32), operands[0])
        return b.max(b.min(b.round(scaled), 127), -128)

    epilogue = Epilogue((EpilogueOperand("scale", f32, 0, 1), EpilogueOperand("bias", i32, 0, 1)), body)
    module, given, _ = planned(a, b, 256, True, result=i8, epilogue=epilogue, scale=scale, bias=bias)
    ours, compiled = run_both(module, given, 256)
    sums = expected_of(a, b).reshape(9, 37) + bias
    expected = np.clip(np.rint(sums.astype(np.float32) * scale), -128, 127).astype(np.int8).reshape(-1)
    assert np.array_equal(ours[0], expected)
    assert np.array_equal(compiled[0], expected)


@pytest.mark.parametrize("parts", [2, 3])
def test_work_can_be_shared_out_anywhere(parts: int) -> None:
    a, b = whole(0, 256, (2, 70, 9), np.uint8), whole(-128, 128, (2, 9, 40), np.int8)
    module, given, names = planned(a, b, 128, False, parts=parts)
    units = given[names.index("end")]
    for thread in range(parts):
        share = {"begin": thread * units // parts, "end": (thread + 1) * units // parts, "thread": thread}
        run_loops(module, [share.get(name, value) for name, value in zip(names, given, strict=True)])
    assert np.array_equal(given[0], expected_of(a, b))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("turned", [False, True])
def test_a_factor_that_is_not_constant_is_packed_alike(turned: bool, dtype: Any, width: int) -> None:
    low = 0 if dtype is np.uint8 else -128
    b = whole(low, low + 256, (2, 13, 37), dtype)
    if turned:
        b = np.ascontiguousarray(b.transpose(0, 2, 1)).transpose(0, 2, 1)
    columns = 2 * width // 32
    kernel = IntegerPack(columns, from_numpy(b.dtype), None, None if turned else 1)
    count, padded = packed_sizes(kernel, 13, 37)
    known = {
        "words": np.full(2 * count, 99, np.int32), "sums": np.full(2 * padded, 99, np.int32), "k": 13, "n": 37,
        "x": (b if b.base is None else b.base).reshape(-1), "k_stride": b.strides[1], "n_stride": b.strides[2],
        "x_batch": b.strides[0], "words_batch": count, "sums_batch": padded, "begin": 0,
        "end": pack_units(kernel, 37, 2), "thread": 0,
    }  # fmt: skip
    given = [known[name] for name in pack_arguments(kernel)]
    ours, compiled = run_both(build_integer_pack("pack", kernel, machine_of_width(width)), given, width)
    for found, expected in zip((ours[:2], compiled[:2]), [packed_bytes(b, columns)] * 2, strict=True):
        assert np.array_equal(found[0], expected[0])
        assert np.array_equal(found[1], expected[1])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("lanes", [0, 2, 4, 8, 16])
def test_dot4(lanes: int, width: int) -> None:
    """In one instruction where the machine has it, else in parts; other numbers of lanes always in parts."""
    b = LoopBuilder("dot", **{name: types.buffer(i32) for name in "xyz"}, n=types.scalar(i64))
    with b.loop(0, b["n"], max(lanes, 1)) as i:
        b.store(b.scalar("dot4", *(b.load(b[name], i, lanes) for name in "xyz")), b["x"], i)
    x, y, z = (random.integers(-(2**31), 2**31, 32).astype(np.int32) for _ in range(3))
    products = y.view(np.uint8).astype(np.int32) * z.view(np.int8)
    ours, compiled = run_both(b.module(), [x, y, z, 32], width)
    assert np.array_equal(ours[0], x + products.reshape(-1, 4).sum(1, dtype=np.int32))
    assert np.array_equal(compiled[0], ours[0])


@pytest.mark.parametrize("width", WIDTHS)
def test_without_an_instruction_for_four_products(width: int) -> None:
    """Pairs of 16 bits are multiplied instead, or single numbers; nothing saturates."""
    a = np.where(random.random((1, 5, 70)) < 0.5, 255, whole(0, 256, (1, 5, 70), np.uint8)).astype(np.uint8)
    b = np.where(random.random((1, 70, 20)) < 0.5, -128, 127).astype(np.int8)
    names = machine_of_width(width).features.split(",")
    for missing in (("vnni",), ("vnni", "avx2", "sse2", "avx512bw")):
        features = [f"-{name[1:]}" if name.endswith(missing) else name for name in names]
        machine = replace(machine_of_width(width), features=",".join(features))
        if "-sse2" in features and width > 128:
            continue
        module, given, _ = planned(a, b, width, True)
        run_compiled(module, given, width, machine)
        assert np.array_equal(given[0], expected_of(a, b))


# ---- the matrix unit -------------------------------------------------------------------------------------------------


@needs_unit
@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (70, 40, 70), (15, 64, 64), (33, 33, 300), (49, 16, 4)])
def test_the_matrix_unit(m: int, n: int, k: int, static: bool) -> None:
    a, b = whole(0, 256, (2, m, k), np.uint8), whole(-128, 128, (2, k, n), np.int8)
    module, given, _ = planned(a, b, 512, static, unit=True)
    ours, compiled = run_both(module, given, 512)
    assert np.array_equal(ours[0], expected_of(a, b))
    assert np.array_equal(compiled[0], ours[0])


@needs_unit
@pytest.mark.parametrize("left", [np.uint8, np.int8])
def test_the_matrix_unit_with_zero_points_and_extremes(left: Any) -> None:
    low = 0 if left is np.uint8 else -128
    a = np.where(random.random((1, 37, 1000)) < 0.5, low, low + 255).astype(left)
    b = np.where(random.random((1, 1000, 19)) < 0.5, 0, 255).astype(np.uint8)
    a_zero, b_zero = whole(low, low + 256, (1,), left), whole(0, 256, (19,), np.uint8)
    module, given, _ = planned(a, b, 512, True, a_zero, b_zero, unit=True)
    run_compiled(module, given, 512)
    assert np.array_equal(given[0], expected_of(a, b, a_zero, b_zero))


# ---- rows in place, terms of columns, lines --------------------------------------------------------------------------


@pytest.mark.parametrize("unit", [False, pytest.param(True, marks=needs_unit)])
@pytest.mark.parametrize("m", [32, 45, 70])
def test_rows_are_read_where_they_lie(m: int, unit: bool) -> None:
    a, b = whole(0, 256, (1, m, 128), np.uint8), whole(-128, 128, (1, 128, 35), np.int8)
    width = 512 if unit else 256
    module, given, _ = planned(a, b, width, True, unit=unit, in_place=True)
    ours, compiled = run_both(module, given, width)
    assert np.array_equal(ours[0], expected_of(a, b))
    assert np.array_equal(compiled[0], ours[0])


@pytest.mark.parametrize("left", [np.uint8, np.int8])
def test_a_constant_zero_point_is_a_term_of_each_column(left: Any) -> None:
    low = 0 if left is np.uint8 else -128
    a, b = whole(low, low + 256, (1, 9, 31), left), whole(-128, 128, (1, 31, 20), np.int8)
    sums = packed_bytes(b, 16)[1]
    terms = column_terms(sums, from_numpy(a.dtype), low + 3)
    module, given, names = planned(a, b, 256, True, terms=True)
    given[names.index("sums")] = terms
    run_compiled(module, given, 256)
    assert np.array_equal(given[0], expected_of(a, b, np.array([low + 3], left)))


def test_rows_of_the_result_may_be_pixels_with_gaps_between_lines() -> None:
    a, b = whole(0, 256, (1, 2 * 3 * 5, 8), np.uint8), whole(-128, 128, (1, 8, 6), np.int8)
    for static in (True, False):
        numbers = {"c_pixels": 5, "c_rows": 3, "c_line": 50, "c_image": 190}
        lines = Lines(*numbers.values()) if static else Lines()
        module, given, _ = planned(a, b, 256, static, lines=lines, c=np.zeros(400, np.int32), **numbers)
        ours, compiled = run_both(module, given, 256)
        whole_image = np.lib.stride_tricks.as_strided(compiled[0], (2, 3, 5, 6), (760, 200, 24, 4))
        assert np.array_equal(whole_image.reshape(-1), expected_of(a, b))
        assert np.array_equal(ours[0], compiled[0])


# ---- windows of images -----------------------------------------------------------------------------------------------


def windows(
    x: np.ndarray, kernel: Any, strides: Any, dilations: Any, before: Any, size: Any, border: int
) -> np.ndarray:
    """What a window sees of images [image, row, pixel, channel], as rows."""
    room = [(0, 0), (before[0], 40), (before[1], 40), (0, 0)]
    wide = np.pad(x, room, constant_values=border)
    found = [
        wide[:, row * strides[0] : row * strides[0] + kernel[0] * dilations[0] : dilations[0],
             pixel * strides[1] : pixel * strides[1] + kernel[1] * dilations[1] : dilations[1]].reshape(len(x), -1)
        for row in range(size[0]) for pixel in range(size[1])
    ]  # fmt: skip
    return np.stack(found, 1).reshape(len(x) * size[0] * size[1], -1)


@pytest.mark.parametrize("unit", [False, pytest.param(True, marks=needs_unit)])
@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize(
    ("kernel", "strides", "dilations", "before", "channels"),
    [
        ((3, 3), (1, 1), (1, 1), (1, 1), 5), ((3, 3), (2, 2), (1, 1), (1, 1), 64), ((1, 1), (2, 2), (1, 1), (0, 0), 33),
        ((2, 3), (1, 2), (2, 2), (0, 2), 3), ((7, 7), (2, 2), (1, 1), (3, 3), 3), ((3, 3), (1, 1), (1, 1), (0, 0), 130),
    ],
)  # fmt: skip
def test_rows_are_what_windows_see(
    kernel: Any, strides: Any, dilations: Any, before: Any, channels: int, dtype: Any, static: bool, unit: bool
) -> None:
    low = 0 if dtype is np.uint8 else -128
    x = whole(low, low + 256, (2, 9, 8, channels), dtype)
    extents = tuple(
        (extent + 2 * pad - (taps - 1) * dilation - 1) // stride + 1
        for extent, pad, taps, dilation, stride in zip((9, 8), before, kernel, dilations, strides, strict=True)
    )
    a = windows(x, kernel, strides, dilations, before, extents, low + 7)[None]
    b = whole(-128, 128, (1, a.shape[2], 18), np.int8)
    numbers = {
        "rows": extents[0], "pixels": extents[1], "image_rows": 9, "image_pixels": 8, "before_row": before[0],
        "before_pixel": before[1], "x_image": 72 * channels, "x_row": 8 * channels, "x_pixel": channels,
    }  # fmt: skip
    known = list(numbers.values()) if static else [None] * 9
    patches = Patches(
        Window.of(kernel, strides, dilations), channels, (known[4], known[5]), *known[:4],
        Layout(known[6], row=known[7], pixel=known[8]), any(before),
    )  # fmt: skip
    zero = np.array([low + 7], dtype)
    width = 512 if unit else 256
    module, given, names = planned(
        a, b, width, static, zero, unit=unit, patches=patches, a_row=0, border=0, **numbers
    )  # fmt: skip
    given[names.index("a")] = x.reshape(-1)
    run_compiled(module, given, width)
    assert np.array_equal(given[0], expected_of(a, b, zero))
    if not unit and static and channels < 10:
        given[0][:] = 0
        run_loops(module, given)
        assert np.array_equal(given[0], expected_of(a, b, zero))
