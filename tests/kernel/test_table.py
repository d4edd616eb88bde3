"""Bytes looked up in tables: interpreted and compiled, every byte, edges, shares of the work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from loop_running import WIDTHS, run_both

from tilewright import i8, u8
from tilewright.backends.cpu.kernels.table import ARGUMENTS, GRAIN, build_table, table_units
from tilewright.backends.cpu.machine import machine_of_width
from tilewright.backends.target import compile_module

random = np.random.default_rng(0)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("count", [1, 64, 300])
def test_every_byte(count: int, width: int) -> None:
    x, table = random.integers(0, 256, count).astype(np.uint8), random.permutation(256).astype(np.uint8)
    x[: min(count, 256)] = np.arange(min(count, 256))
    known: dict[str, Any] = {
        "y": np.zeros(count, np.uint8), "x": x, "table": table, "count": count, "begin": 0, "end": table_units(count),
        "thread": 0,
    }  # fmt: skip
    ours, compiled = run_both(build_table("table", machine_of_width(width)), [known[name] for name in ARGUMENTS], width)
    assert np.array_equal(ours[0], table[x])
    assert np.array_equal(compiled[0], table[x])


@pytest.mark.parametrize("dtype", [u8, i8])
@pytest.mark.parametrize("shape", [(2, GRAIN + 77), (3, 5)])
def test_models_look_functions_of_bytes_up(shape: tuple[int, ...], dtype: Any) -> None:
    import tilewright

    model = tilewright.Builder()
    x = model.input("x", dtype[shape])
    zero = model.const(np.array(3, dtype.numpy))
    wide = model.dequantize_linear(model.transpose(x, perm=[1, 0]), model.const(np.float32(0.05)), zero)
    model.output(model.quantize_linear(model.sigmoid(wide), model.const(np.float32(1 / 255)), zero), "y")
    feeds = {"x": random.integers(-128, 128, shape).astype(np.int8).view(dtype.numpy)}
    expected = compile_module(model.build(), target="reference").run(feeds)["y"]
    for threads in (1, 3):
        executable = compile_module(model.build(), target="cpu", threads=threads)
        assert np.abs(executable.run(feeds)["y"].astype(int) - expected).max() <= 1
        assert executable.report()["kernels"].keys() >= {"table"}
