"""Different rows of a matrix, and the ordering of keys that finds them: interpreter, compiled code and numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from loop_running import WIDTHS, run_both, run_compiled

from tilewright.backends.cpu.kernels.order import FEW, Ordering
from tilewright.backends.cpu.kernels.unique import Unique, build_unique, unique_arguments, unique_scratch
from tilewright.backends.cpu.machine import machine_of_width
from tilewright.graph import types
from tilewright.graph.dtypes import BY_NAME, i64
from tilewright.graph.kernel.loop_builder import LoopBuilder
from tilewright.graph.ops.unique_numeric import unique_rows

random = np.random.default_rng(13)


def check(x: np.ndarray, width: int, ascending: bool = True, both: bool = True, dtype: str | None = None) -> None:
    rows, columns = x.shape
    kernel = Unique(BY_NAME[dtype or "f32"], columns == 1, ascending)
    known: dict[str, Any] = {name: np.zeros(max(1, rows), np.int64) for name in ("first", "inverse", "counts", "total")}
    known |= {"x": x.reshape(-1), "scratch": np.zeros(max(1, unique_scratch(rows)), np.int64)}
    known |= {"rows": rows, "columns": columns, "begin": 0, "end": 1, "thread": 0}
    names = unique_arguments()
    module, given = build_unique("unique", kernel, machine_of_width(width)), [known[name] for name in names]
    if not both:
        run_compiled(module, given, width)
    first, inverse, counts = unique_rows(x, ascending)
    for side in run_both(module, given, width) if both else [given]:
        found = dict(zip(names, side, strict=True))
        assert found["total"][0] == len(first)
        np.testing.assert_array_equal(found["first"][: len(first)], first)
        np.testing.assert_array_equal(found["counts"][: len(first)], counts)
        np.testing.assert_array_equal(found["inverse"][:rows], inverse)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("ascending", [True, False])
@pytest.mark.parametrize("shape", [(23, 1), (19, 3), (1, 1), (0, 1), (0, 4), (5, 0), (1, 20)])
def test_both_ways(shape: tuple[int, int], width: int, ascending: bool) -> None:
    check(random.integers(-2, 3, shape).astype(np.float32), width, ascending)


@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16", "i8", "i16", "i32", "i64", "u8", "u32", "u64", "bool"])
@pytest.mark.parametrize("columns", [1, 2])
def test_dtypes(dtype: str, columns: int) -> None:
    number = BY_NAME[dtype].numpy
    x = random.integers(0, 4, (300, columns))
    x = x if dtype[0] in "ub" else x - 2
    if dtype in ("i64", "u64"):
        x = x.astype(number) * number.type(2**61)
    check(x.astype(number), 512, both=False, dtype=dtype)


def test_nans_are_alike_and_minus_zero_is_zero() -> None:
    other = np.array([0x7FC00001, 0xFFC00000], np.uint32).view(np.float32)
    x = np.array([[0.0], [np.nan], [-0.0], [1e-45], [other[0]], [-np.inf], [other[1]], [np.inf]], np.float32)
    check(x, 256, both=False)
    check(np.concatenate([x, x], 1), 128, both=False)
    assert len(unique_rows(x, True)[0]) == 5


@pytest.mark.parametrize("count", [1, FEW, FEW + 1, 5000])
@pytest.mark.parametrize("bits", [32, 64])
def test_ordering(count: int, bits: int) -> None:
    """Keys of all sizes, many of them equal; and keys that are all the same."""
    b = LoopBuilder("order", room=types.buffer(i64), count=types.scalar(i64), found=types.buffer(i64))
    b.store(Ordering(b, b["room"], b["count"], bits, 4).ascending(b["count"]), b["found"], 0)
    module = b.module()
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    any_keys = random.integers(least, most, count) >> random.integers(0, bits, count)
    for keys in (any_keys, np.full(count, -7), np.array([most, least])[np.arange(count) % 2]):
        room, found = np.zeros(4 * count, np.int64), np.zeros(1, np.int64)
        room[:count], room[count : 2 * count] = keys, np.arange(count)
        run_compiled(module, [room, count, found], 256)
        start = int(found[0])
        places = np.argsort(keys, kind="stable")
        np.testing.assert_array_equal(room[start : start + count], keys[places])
        np.testing.assert_array_equal(room[start + count : start + 2 * count], places)
