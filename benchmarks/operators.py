"""Many operators alone, small (about 1e5 elements) and large (about 1e7), beside ONNX Runtime; the slowest come first.

    python benchmarks/operators.py [--threads 1] [--sizes small,large] [--seconds 0.25] [--below 1.1] [NAME ...]

Both run the same model in turn, and the best of each counts: seconds of this thread with one thread, else wall seconds.
Large tensors are written into arrays that are there; small ones as `run` gives them, with what a call costs. Operands
of a shape of their own count as large. A ratio above 1 means that Tilewright is faster. GB/s are of large operands and
results, where memory bounds an operator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click
import numpy as np
from kernels import best_of, in_plain_environment
from measure import table
from operator_cases import CASES, Case, Shape

import tilewright
from tilewright.graph.dtypes import BY_NAME


def operand(name: str, shape: Shape, seed: int, low: float | None) -> np.ndarray:
    random, dtype = np.random.default_rng(seed), BY_NAME[name]
    if dtype.is_float:
        made = random.standard_normal(shape, np.float32)
        return (made if low is None else np.abs(made) + low).astype(dtype.numpy)
    limit = 2 if name == "bool" else 100 if dtype.bits == 8 else 1000
    return random.integers(name != "bool", limit, shape).astype(dtype.numpy)


def model_of(case: Case, shape: Shape) -> Any:
    b = tilewright.Builder("bench", opset=21)
    made = case.build(b, *(b.input(f"x{i}", BY_NAME[dtype][shape]) for i, dtype in enumerate(case.dtypes)))
    for i, value in enumerate(made if isinstance(made, Sequence) else [made]):
        b.output(value, f"y{i}")
    return b.build()


@dataclass(frozen=True)
class Row:
    """The best seconds of each for one operator, and the bytes of operands and results (0: not rated)."""

    name: str
    shape: Shape
    best: dict[str, float]
    moved: int

    @property
    def ratio(self) -> float:
        return self.best["onnxruntime"] / self.best["tilewright"]

    def cells(self) -> list[str]:
        taken = [f"{seconds * 1e6:,.1f}" for seconds in self.best.values()]
        rates = [f"{self.moved / seconds / 1e9:.1f}" if self.moved else "" for seconds in self.best.values()]
        return [self.name, "x".join(map(str, self.shape)), *taken, *rates, f"{self.ratio:.2f}"]


def measured(name: str, is_large: bool, threads: int, seconds: float) -> Row:
    import onnxruntime

    case = CASES[name]
    shape = case.shape(is_large)
    feeds = {f"x{i}": operand(dtype, shape, i, case.low) for i, dtype in enumerate(case.dtypes)}
    executable = tilewright.compile(model_of(case, shape), target="cpu", threads=threads)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    proto = tilewright.to_proto(model_of(case, shape)).SerializeToString()
    session = onnxruntime.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    runs: dict[str, Callable[[], object]] = {
        "tilewright": lambda: executable.run(feeds), "onnxruntime": lambda: session.run(None, feeds)
    }  # fmt: skip
    moved = 0
    if is_large:
        outputs, binding = dict(executable.run(feeds)), session.io_binding()
        for key, value in feeds.items():
            binding.bind_cpu_input(key, value)
        targets = [onnxruntime.OrtValue.ortvalue_from_numpy(value) for value in outputs.values()]
        for key, target in zip(outputs, targets, strict=True):
            binding.bind_ortvalue_output(key, target)
        runs = {
            "tilewright": lambda: executable.run_into(feeds, outputs),
            "onnxruntime": lambda keep=targets: session.run_with_iobinding(binding),
        }  # fmt: skip
        moved = sum(array.nbytes for array in (*feeds.values(), *outputs.values())) if case.rated else 0
    clock = time.thread_time if threads == 1 else time.perf_counter
    return Row(name, shape, best_of(runs, seconds, clock), moved)


@click.command()
@click.argument("names", nargs=-1)
@click.option("--threads", default=1, show_default=True)
@click.option("--sizes", default="small,large", show_default=True)
@click.option("--seconds", default=0.25, show_default=True, help="For each row.")
@click.option("--below", default=float("inf"), help="Show only ratios below this.")
def main(names: tuple[str, ...], threads: int, sizes: str, seconds: float, below: float) -> None:
    """Measure operators whose names begin with one of NAMES (default: all)."""
    in_plain_environment()
    rows = [
        measured(name, size == "large", threads, seconds)
        for name, case in CASES.items() if not names or name.startswith(names)
        for size in sizes.split(",") if size == "large" or isinstance(case.kind, str)
    ]  # fmt: skip
    if not rows:
        raise click.UsageError("no operator has such a name and size")
    shown = [row.cells() for row in sorted(rows, key=lambda row: row.ratio) if row.ratio < below]
    sides = ["tilewright", "onnxruntime"]
    columns = ["operator", "operand", *(f"{side} us" for side in sides), *(f"{side} GB/s" for side in sides), "ratio"]
    table(f"{threads} thread{'s' * (threads > 1)}", columns, shown)
    ratios = np.array([row.ratio for row in rows])
    slower, mean = int((ratios < 1).sum()), np.exp(np.log(ratios).mean())
    print(f"{len(ratios)} rows, geometric mean {mean:.2f}; {slower} below 1, {int((ratios < 0.9).sum())} below 0.9")


if __name__ == "__main__":
    main()
