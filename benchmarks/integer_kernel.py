"""Products of bytes beside ONNX Runtime's MatMulInteger: u8 with a zero point times constant s8.

    python benchmarks/integer_kernel.py [--seconds 2]

On one thread, in turn; the best of each counts. `of float` is the rate against the machine's peak for float32, of which
VNNI has four times as much (ONNX Runtime uses AMX where there is some).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import numpy as np
from kernels import best_of, in_plain_environment, peak
from measure import table
from memory_kernels import direct

from tilewright.backends.cpu.kernels.integer_gemm import (
    IntegerGemm,
    build_integer_gemm,
    integer_arguments,
    integer_scratch,
    integer_tile,
    integer_units,
    packed_bytes,
)
from tilewright.backends.cpu.machine import machine

PRODUCTS = [(1024, 1024, 1024), (128, 768, 768), (128, 3072, 768), (1, 768, 768)]
ZERO = 7


def ours(a: np.ndarray, b: np.ndarray) -> tuple[Callable[[], object], np.ndarray]:
    (m, k), n = a.shape, b.shape[1]
    kernel = IntegerGemm(m, n, k, a_row=k, c_row=n, a_zero="one")
    words, sums = packed_bytes(b, integer_tile(kernel, machine()).columns)
    given: dict[str, Any] = {
        "c": np.zeros((m, n), np.int32), "a": a, "b": words, "sums": sums, "a_zero": np.full(1, ZERO, np.uint8),
        "scratch": np.zeros(integer_scratch(kernel, machine(), k), np.int32), "begin": 0,
        "end": integer_units(kernel, machine(), m, n), "thread": 0,
    }  # fmt: skip
    module = build_integer_gemm("product", kernel, machine())
    return direct(module, [given[name] for name in integer_arguments(kernel)]), given["c"]


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
    a, b = random.integers(0, 256, (m, k)).astype(np.uint8), random.integers(-128, 128, (k, n)).astype(np.int8)
    run, result = ours(a, b)
    other = peer(a, b)
    run()
    if not np.array_equal(result, other()):
        raise click.ClickException(f"{m} x {n} x {k} differs from ONNX Runtime")
    registers, operations = peak()
    best = best_of({"peak": registers, "ours": run, "onnxruntime": other}, seconds)
    rates = {name: 2.0 * m * n * k / best[name] / 1e9 for name in ("ours", "onnxruntime")}
    share = rates["ours"] / (operations / best["peak"] / 1e9)
    return [f"{m} x {n} x {k}", *(f"{rate:.0f}" for rate in rates.values()), f"{share:.2f}",
            f"{rates['ours'] / rates['onnxruntime']:.2f}"]  # fmt: skip


@click.command()
@click.option("--seconds", default=2.0, show_default=True, help="For each row.")
def main(seconds: float) -> None:
    """Measure products of bytes."""
    in_plain_environment()
    columns = ["m x n x k", "tilewright GOP/s", "onnxruntime GOP/s", "of float", "ratio"]
    table("Products of bytes", columns, [row(*size, seconds) for size in PRODUCTS])


if __name__ == "__main__":
    main()
