"""Products of bytes beside ONNX Runtime's MatMulInteger: u8 with a zero point times constant s8.

    python benchmarks/integer_kernel.py [--seconds 2]

On one thread, in turn; the best of each counts. Ours are measured twice: with sums in vector registers (VNNI where it
is there), and with the matrix unit (AMX) where there is one. Each is also shown in % of its peak: of what its innermost
operation alone reaches, with numbers that lie in registers or in the first-level cache. (ONNX Runtime uses AMX, too.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import numpy as np
from kernels import best_of, in_plain_environment
from measure import table
from memory_kernels import direct

from tilewright.backends.cpu.kernels.integer_gemm import (
    IntegerGemm,
    build_integer_gemm,
    column_terms,
    integer_arguments,
    integer_scratch,
    integer_tile,
    integer_units,
    packed_bytes,
)
from tilewright.backends.cpu.kernels.pack import on_cache_lines
from tilewright.backends.cpu.machine import machine
from tilewright.graph import types
from tilewright.graph.dtypes import i32, i64
from tilewright.graph.kernel.loop_builder import LoopBuilder

PRODUCTS = [
    (1024, 1024, 1024), (128, 768, 768), (128, 3072, 768), (128, 768, 3072), (1, 768, 768), (3136, 64, 576),
    (3136, 256, 64), (196, 256, 2304), (49, 512, 4608),
]  # fmt: skip
ZERO = 7


def ours(a: np.ndarray, b: np.ndarray, unit: bool) -> tuple[Callable[[], object], np.ndarray]:
    (m, k), n = a.shape, b.shape[1]
    in_place = k % 64 == 0 and (not unit or m >= 32)
    kernel = IntegerGemm(m, n, k, a_row=k, c_row=n, a_zero="sums", in_place=in_place, unit=unit)
    words, sums = packed_bytes(b, integer_tile(kernel, machine()).columns, unit)
    given: dict[str, Any] = {
        "c": np.zeros((m, n), np.int32), "a": a, "b": words, "sums": column_terms(sums, kernel.a, ZERO),
        "scratch": np.zeros(integer_scratch(kernel, machine(), k), np.int32), "begin": 0,
        "end": integer_units(kernel, machine(), m, n), "thread": 0,
    }  # fmt: skip
    module = build_integer_gemm("product", kernel, machine())
    return direct(module, [given[name] for name in integer_arguments(kernel)]), given["c"]


def peak(unit: bool) -> tuple[Callable[[], object], float]:
    """The innermost operation alone, and how many operations it does."""
    repeat, sums, steps = 40_000 // (50 if unit else 1), 12, 128
    b = LoopBuilder("peak", x=types.buffer(i32), n=types.scalar(i64))
    lanes = machine().lanes(i32)
    if unit:
        b.unit_begin()
        with b.loop(0, b["n"]):
            b.unit_products(b["x"], b.view(b["x"], 1024), steps, b.view(b["x"], 5120), steps, (32, 32, 32))
        b.unit_end()
        operations = 2.0 * repeat * 32 * 32 * 4 * steps
    else:
        factors = [b.load(b["x"], lanes * index, lanes) for index in range(2)]
        start = [b.load(b["x"], lanes * (index + 2), lanes) for index in range(sums)]
        with b.loop(0, b["n"], 1, start) as state:
            state.yields([b.scalar("dot4", state[index], *factors) for index in range(sums)])
        for index, total in enumerate(state.results):
            b.store(total, b["x"], lanes * (index + 2))
        operations = 8.0 * repeat * sums * lanes
    memory = on_cache_lines(1 << 16, np.dtype(np.int8)).view(np.int32)
    return direct(b.module(), [memory, repeat]), operations


def peer(a: np.ndarray, b: np.ndarray) -> Callable[[], Any]:
    import onnx
    import onnxruntime
    from onnx import helper

    kinds = onnx.TensorProto
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["a", "b", "zero"], ["c"])], "g",
        [helper.make_tensor_value_info("a", kinds.UINT8, a.shape)],
        [helper.make_tensor_value_info("c", kinds.INT32, (a.shape[0], b.shape[1]))],
        [onnx.numpy_helper.from_array(b, "b"), onnx.numpy_helper.from_array(np.uint8(ZERO), "zero")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"a": a})[0]


def row(m: int, n: int, k: int, seconds: float) -> list[str]:
    random = np.random.default_rng(0)
    a = on_cache_lines(m * k, np.dtype(np.uint8)).reshape(m, k)
    a[...] = random.integers(0, 256, (m, k))
    b = random.integers(-128, 128, (k, n)).astype(np.int8)
    units = [False, True] if machine().matrix_unit and m > 4 else [False]
    made = {unit: ours(a, b, unit) for unit in units}
    other, peaks = peer(a, b), {unit: peak(unit) for unit in units}
    for run, result in made.values():
        run()
        if not np.array_equal(result, other()):
            raise click.ClickException(f"{m} x {n} x {k} differs from ONNX Runtime")
    runs: dict[str, Callable[[], object]] = {"onnxruntime": other}
    runs |= {f"ours {unit}": made[unit][0] for unit in units} | {f"peak {unit}": peaks[unit][0] for unit in units}
    best = best_of(runs, seconds)
    operations = 2.0 * m * n * k
    rates = {name: operations / seconds / 1e9 for name, seconds in best.items()}
    cells = [f"{m} x {n} x {k}"]
    for unit in (False, True):
        if unit not in units:
            cells += ["", ""]
            continue
        share = rates[f"ours {unit}"] / (peaks[unit][1] / best[f"peak {unit}"] / 1e9)
        cells += [f"{rates[f'ours {unit}']:.0f}", f"{100 * share:.0f}%"]
    fastest = max(rates[f"ours {unit}"] for unit in units)
    return [*cells, f"{rates['onnxruntime']:.0f}", f"{fastest / rates['onnxruntime']:.2f}"]


@click.command()
@click.option("--seconds", default=2.0, show_default=True, help="For each row.")
def main(seconds: float) -> None:
    """Measure products of bytes."""
    in_plain_environment()
    columns = ["m x n x k", "registers GOP/s", "of peak", "unit GOP/s", "of peak", "onnxruntime GOP/s", "ratio"]
    table("Products of bytes", columns, [row(*size, seconds) for size in PRODUCTS])


if __name__ == "__main__":
    main()
