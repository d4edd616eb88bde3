"""Quantized models on the cpu target, beside ONNX Runtime and beside the same models in float32.

    python benchmarks/quantized.py [MODEL.onnx ...] [--form qdq,qdq-s8,qoperator,dynamic] [--threads 1,2] [--seconds 5]

Without MODEL, ResNet-50, MobileNetV2 and BERT of examples/zoo are built. Each model is quantized by
`onnxruntime.quantization`, with random numbers for calibration: u8 activations and s8 weights by channel in QDQ form,
the same with s8 activations, as QLinear operators, or when it runs. All contestants take turns on the same inputs;
times are medians, and ratios times of the others over ours. `error` is the greatest difference to ONNX Runtime with its
optimizations off, which computes QDQ in floats, over the greatest number; ONNX Runtime's own, with its optimizations
on, is beside it.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
from kernels import in_plain_environment
from measure import table

import tilewright
from tilewright.backends.target import compile_module

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))
NETWORKS = ("resnet50", "mobilenetv2", "bert_base")
FORMS = ("qdq", "qdq-s8", "qoperator", "dynamic")
Feeds = dict[str, np.ndarray]


def session(path: Path, threads: int, optimized: bool = True) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def made_up(path: Path, seed: int) -> Feeds:
    """Normal floats, few different integers, and masks of ones; 1 for sizes that the model leaves open."""
    random, feeds = np.random.default_rng(seed), {}
    for given in session(path, 1).get_inputs():
        shape = [size if isinstance(size, int) else 1 for size in given.shape]
        if given.type == "tensor(float)":
            feeds[given.name] = random.standard_normal(shape).astype(np.float32)
        elif "mask" in given.name:
            feeds[given.name] = np.ones(shape, np.int64)
        else:
            feeds[given.name] = random.integers(0, 2, shape)
    return feeds


def quantized(path: Path, form: str, folder: Path) -> Path:
    """The model in another form, in a file of `folder`."""
    from onnxruntime import quantization

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.feeds: Iterator[Feeds] = iter([made_up(path, seed) for seed in range(2)])

        def get_next(self) -> Feeds | None:
            return next(self.feeds, None)

    target = folder / f"{path.stem}.{form}.onnx"
    if form == "dynamic":
        quantization.quantize_dynamic(path, target, weight_type=quantization.QuantType.QInt8)
        return target
    activations = quantization.QuantType.QInt8 if form == "qdq-s8" else quantization.QuantType.QUInt8
    written = quantization.QuantFormat.QOperator if form == "qoperator" else quantization.QuantFormat.QDQ
    quantization.quantize_static(
        path, target, Reader(), quant_format=written, activation_type=activations,
        weight_type=quantization.QuantType.QInt8, per_channel=form != "qoperator",
    )  # fmt: skip
    return target


def built(name: str, folder: Path) -> Path:
    """A network of examples/zoo as a file."""
    from zoo.build import build

    path = folder / f"{name}.built.onnx"
    tilewright.save(build(name), path)
    return path


def prepared(path: Path, folder: Path) -> Path:
    """The model with shapes, as quantization wants it."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    target = folder / f"{path.name.split('.')[0]}.onnx"
    quant_pre_process(str(path), str(target), skip_symbolic_shape=True)
    return target


def difference(found: Any, expected: Any) -> float:
    pairs = zip(found, expected, strict=True)
    return max(float(np.abs(x.astype(np.float64) - y).max() / max(np.abs(y).max(), 1e-30)) for x, y in pairs)


def medians(runs: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Wall time of each, run in turn after one run that does not count."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline or len(times["ours"]) < 3:
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - started)
    return {name: statistics.median(found) for name, found in times.items()}


def row(original: Path, path: Path, form: str, threads: int, seconds: float) -> list[str]:
    feeds = made_up(path, 9)
    expected = session(path, threads, optimized=False).run(None, feeds)

    def ours(path: Path) -> tuple[Callable[[], Any], dict[str, Any]]:
        executable = compile_module(tilewright.load(path), target="cpu", threads=threads)
        return lambda: list(executable.run(feeds).values()), executable.report()

    def theirs(path: Path) -> Callable[[], Any]:
        found = session(path, threads)
        return lambda: found.run(None, feeds)

    run, report = ours(path)
    runs = {"ours": run, "theirs": theirs(path), "ours f32": ours(original)[0], "theirs f32": theirs(original)}
    errors = [difference(runs[name](), expected) for name in ("ours", "theirs")]
    found = medians(runs, seconds)
    ratios = [f"{found[name] / found['ours']:.2f}" for name in ("theirs", "ours f32", "theirs f32")]
    host = len(report["host_steps"])
    return [original.stem, form, str(threads), f"{1e3 * found['ours']:.2f}", f"{1e3 * found['theirs']:.2f}", *ratios,
            *(f"{error:.2g}" for error in errors), str(host)]  # fmt: skip


@click.command()
@click.argument("models", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--form", "forms", default=",".join(FORMS), show_default=True, help="Forms of quantized models.")
@click.option("--threads", default="1,2", show_default=True, help="Numbers of threads.")
@click.option("--seconds", default=5.0, show_default=True, help="For each row.")
def main(models: tuple[Path, ...], forms: str, threads: str, seconds: float) -> None:
    """Measure MODELS, quantized in several forms."""
    in_plain_environment()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for model in models or map(Path, NETWORKS):
            original = prepared(model if models else built(str(model), Path(name)), Path(name))
            for form in forms.split(","):
                path = quantized(original, form, Path(name))
                rows += [row(original, path, form, int(count), seconds) for count in threads.split(",")]
    columns = ["model", "form", "threads", "ours ms", "onnxruntime ms", "ratio", "to ours f32", "to its f32",
               "error", "its error", "host steps"]  # fmt: skip
    table("Quantized models", columns, rows)


if __name__ == "__main__":
    main()
