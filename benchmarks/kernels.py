"""How near the cpu target's kernels come to the machine: products in % of the FMA peak, maps in % of copying.

    python benchmarks/kernels.py [--seconds 3] [--threads 1] [--against onnxruntime]

The peak is measured by a kernel that only multiplies and adds in registers. All contestants run in turn; the best of
each counts, on one thread in seconds of this thread, so that other processes disturb least. Read the ratios: on a busy
machine the peak itself comes out low, and a figure above 100% only says so.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable

import click
import numpy as np
from measure import table

import tilewright
from tilewright.backends.cpu.jit import compile_modules
from tilewright.backends.cpu.machine import machine
from tilewright.graph import types
from tilewright.graph.dtypes import f32, i64
from tilewright.graph.kernel.loop_builder import LoopBuilder

# Large ones, those of BERT, GPT-2 and ViT, and what convolutions are as products.
PRODUCTS = [
    (1024, 1024, 1024), (2048, 2048, 2048), (128, 768, 768), (128, 3072, 768), (128, 768, 3072), (128, 2304, 768),
    (197, 768, 768), (197, 3072, 768), (197, 768, 3072), (3136, 64, 576), (196, 256, 2304), (49, 512, 4608),
]  # fmt: skip
# Where the memory decides: few rows or columns.
NARROW = [
    (1, 768, 768),
    (1, 3072, 768),
    (1, 50257, 768),
    (2, 3072, 768),
    (4, 3072, 768),
    (8, 3072, 768),
    (4096, 1, 1024),
]
MAPS = {"add": lambda b, x: x + 1.0, "exp": lambda b, x: b.exp(x), "gelu": lambda b, x: b.gelu(x)}
ELEMENTS = 1 << 24


def in_plain_environment() -> None:
    """Start again if numpy's OpenBLAS was loaded with settings that slow it down, or with several threads."""
    wanted = {k: v for k, v in os.environ.items() if k not in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")}
    wanted["OPENBLAS_NUM_THREADS"] = "1"
    if wanted != dict(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.argv], wanted)


def peak() -> tuple[Callable[[], None], float]:
    """A run of multiply-adds in registers, and its number of floating-point operations."""
    lanes, sums, repeat = machine().lanes(f32), 12, 400_000
    b = LoopBuilder("peak", x=types.buffer(f32), n=types.scalar(i64))
    factors = [b.load(b["x"], lanes * index, lanes) for index in range(2)]
    start = [b.load(b["x"], lanes * (index + 2), lanes) for index in range(sums)]
    with b.loop(0, b["n"], 1, start) as state:
        state.yields([b.fma(state[index], *factors) for index in range(sums)])
    for index, total in enumerate(state.results):
        b.store(total, b["x"], lanes * (index + 2))
    code = compile_modules([b.module()], machine())
    x = np.full(lanes * (sums + 2), 0.5, np.float32)
    function = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(code.address("peak"))

    def run(keep: object = code) -> None:
        function(x.ctypes.data, repeat)

    return run, 2.0 * repeat * sums * lanes


def best_of(
    runs: dict[str, Callable[[], object]], seconds: float, clock: Callable[[], float] = time.thread_time
) -> dict[str, float]:
    """The shortest time of each, run in turn."""
    best = dict.fromkeys(runs, float("inf"))
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for name, run in runs.items():
            started = clock()
            run()
            best[name] = min(best[name], clock() - started)
    return best


def onnxruntime_matmul(weight: np.ndarray, x: np.ndarray, threads: int = 1) -> Callable[[], object]:
    import onnxruntime

    b = tilewright.Builder("product")
    b.output(b.input("x", f32[x.shape]) @ weight, "y")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    model = tilewright.to_proto(b.build()).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"x": x})


def products(m: int, n: int, k: int, threads: int, against: bool) -> dict[str, Callable[[], object]]:
    """A product with a constant right factor, by each contestant. numpy has one thread, so it runs only beside one."""
    random = np.random.default_rng(0)
    x, weight = (random.normal(size=shape).astype(np.float32) for shape in ((m, k), (k, n)))
    b = tilewright.Builder("product")
    b.output(b.input("x", f32[m, k]) @ weight, "y")
    executable = tilewright.compile(b.build(), target="cpu", threads=threads)
    result = np.empty((m, n), np.float32)
    runs: dict[str, Callable[[], object]] = {"tilewright": lambda: executable.run({"x": x})}
    if threads == 1:
        runs["numpy"] = lambda: np.matmul(x, weight, out=result)
    if against:
        runs["onnxruntime"] = onnxruntime_matmul(weight, x, threads)
    return runs


def product_row(m: int, n: int, k: int, seconds: float, threads: int, against: bool) -> list[str]:
    registers, operations = peak()
    runs = {"peak": registers, **products(m, n, k, threads, against)}
    best = best_of(runs, seconds, time.thread_time if threads == 1 else time.perf_counter)
    top = threads * operations / best["peak"]
    rates = {name: 2.0 * m * n * k / best[name] for name in runs if name != "peak"}
    cells = [f"{m} x {n} x {k}", f"{top / 1e9:.0f}"]
    cells += [f"{rate / 1e9:.0f} ({100 * rate / top:.0f}%)" for rate in rates.values()]
    return [*cells, *(f"{rates['tilewright'] / rate:.2f}" for name, rate in rates.items() if name != "tilewright")]


def narrow_row(m: int, n: int, k: int, seconds: float, threads: int, against: bool) -> list[str]:
    """Bytes of the larger factor in a second, beside those that a sum over it reads."""
    matrix = np.ones(max(m, n) * k, np.float32)
    runs = {"reading": lambda: matrix.sum(), **products(m, n, k, threads, against)}
    best = best_of(runs, seconds, time.thread_time if threads == 1 else time.perf_counter)
    rates = {name: matrix.nbytes / best[name] for name in runs}
    cells = [f"{m} x {n} x {k}", *(f"{rate / 1e9:.1f}" for rate in rates.values())]
    others = [rate for name, rate in rates.items() if name not in ("reading", "tilewright")]
    return [*cells, *(f"{rates['tilewright'] / rate:.2f}" for rate in others)]


def map_row(name: str, seconds: float) -> list[str]:
    x = np.random.default_rng(0).normal(size=ELEMENTS).astype(np.float32)
    b = tilewright.Builder(name)
    b.output(MAPS[name](b, b.input("x", f32[ELEMENTS])), "y")
    executable = tilewright.compile(b.build(), target="cpu", threads=1)
    target = np.zeros_like(x)
    best = best_of({"copy": lambda: np.copyto(target, x), "tilewright": lambda: executable.run({"x": x})}, seconds)
    rates = {key: 2 * x.nbytes / value / 1e9 for key, value in best.items()}
    return [name, f"{rates['copy']:.1f}", f"{rates['tilewright']:.1f}", f"{rates['tilewright'] / rates['copy']:.0%}"]


@click.command()
@click.option("--seconds", default=3.0, show_default=True, help="For each row.")
@click.option("--threads", default=1, show_default=True, help="For products.")
@click.option("--against", type=click.Choice(["onnxruntime"]), help="Another runtime to measure beside.")
def main(seconds: float, threads: int, against: str | None) -> None:
    """Measure the cpu target's kernels."""
    in_plain_environment()
    others = [*(["numpy"] if threads == 1 else []), *([against] if against else [])]
    ratios = [f"ratio to {other}" for other in others]
    columns = ["m x n x k", "peak GFLOP/s", "tilewright", *others, *ratios]
    rows = [product_row(*size, seconds, threads, bool(against)) for size in PRODUCTS]
    table(f"Matrix products, float32, {threads} threads", columns, rows)
    columns = ["m x n x k", "reading GB/s", "tilewright", *others, *ratios]
    rows = [narrow_row(*size, seconds, threads, bool(against)) for size in NARROW]
    table("The same with few rows or columns, GB/s of the larger factor", columns, rows)
    columns = ["map", "copy GB/s", "tilewright GB/s", "of copying"]
    table(f"Maps of {ELEMENTS} float32", columns, [map_row(name, seconds) for name in MAPS])


if __name__ == "__main__":
    main()
