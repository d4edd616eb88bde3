"""How fast a model runs here and elsewhere: interleaved runs on the same inputs, medians, ratios."""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ..graph.diagnostics import UsageError
from ..graph.module import Module
from .onnxruntime_oracle import reason_text
from .target import compile_module

Feeds: TypeAlias = Mapping[str, Any]
# Takes feeds, gives outputs by name.
Runner: TypeAlias = Callable[[Feeds], Mapping[str, Any]]

PEERS = ("onnxruntime", "openvino")
WARM_UP = 2
WARM_SECONDS = 0.001  # of runs that do not count before each that does
LOOK_SECONDS, PATIENCE_SECONDS = 0.01, 0.5


@dataclass
class Timing:
    """Milliseconds of each run of one runner; `largest_error` is max|a - b| / max|b| against the first peer."""

    name: str
    threads: int
    milliseconds: list[float] = field(default_factory=list)
    largest_error: float | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.milliseconds)


def available_peers(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Of `names` those that are installed, and those that are not. Raises UsageError for one that nobody knows."""
    for name in names:
        if name not in PEERS:
            raise UsageError("bench/peer", f"there is no peer {name!r} to compare with; there are {', '.join(PEERS)}")
    found = [name for name in names if importlib.util.find_spec(name) is not None]
    return found, [name for name in names if name not in found]


def usable_peers(
    names: Sequence[str], path: str | Path, feeds: Feeds, threads: int = 1
) -> tuple[list[str], dict[str, str]]:
    """Of `names` those that run the model at `path` on `feeds`; what each other one says."""
    able, refusals = [], {}
    for name in names:
        try:
            peer_runner(name, path, threads)(feeds)
            able.append(name)
        except Exception as error:  # whatever that runtime raises
            refusals[name] = reason_text(error)
    return able, refusals


def peer_runner(name: str, path: str | Path, threads: int) -> Runner:
    """The model at `path` in one of `PEERS`, ready to run in the model's precision. Raises what that runtime raises."""
    return _onnxruntime(path, threads) if name == "onnxruntime" else _openvino(path, threads)


def compare_times(
    path: str | Path,
    module: Module,
    feeds: Feeds,
    peers: Sequence[str],
    threads: int,
    runs: int,
) -> list[Timing]:
    """Time Tilewright's cpu target and `peers` in turn, `runs` times each, on `threads` threads.

    A turn is what a program sees that uses one runtime: it begins when the threads of the one before it have gone to
    sleep (some spin for 50 ms, on a core that the next one needs), and runs once, a millisecond at least, before the
    run that counts.
    """
    names = ["tilewright", *peers]
    runners = [compile_module(module, "cpu", threads).run, *(peer_runner(name, path, threads) for name in peers)]
    timings = [Timing(name, threads) for name in names]
    outputs: list[Mapping[str, Any]] = [{}] * len(names)
    for round_index in range(runs + WARM_UP):
        for index, runner in enumerate(runners):
            wait_for_idle_threads()
            _warm(runner, feeds)
            started = time.perf_counter()
            outputs[index] = runner(feeds)
            if round_index >= WARM_UP:
                timings[index].milliseconds.append((time.perf_counter() - started) * 1e3)
    if len(names) > 1:
        timings[0].largest_error = largest_error(outputs[0], outputs[1])
    return timings


def wait_for_idle_threads() -> None:
    """Return once no thread of this process computes, or spins waiting for work; after half a second in any case."""
    deadline = time.perf_counter() + PATIENCE_SECONDS
    while time.perf_counter() < deadline:
        used = time.process_time()
        time.sleep(LOOK_SECONDS)
        if time.process_time() - used < LOOK_SECONDS / 10:
            return


def _warm(runner: Runner, feeds: Feeds) -> None:
    until = time.perf_counter() + WARM_SECONDS
    runner(feeds)
    while time.perf_counter() < until:
        runner(feeds)


def largest_error(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
    """max|a - b| / max|b|, the largest of all outputs; infinite where shapes or places of NaN differ."""
    worst = 0.0
    for name, expected in theirs.items():
        a, b = np.asarray(ours[name]), np.asarray(expected)
        if a.dtype.kind in "OUS" or b.size == 0:
            continue
        if a.shape != b.shape:
            return float("inf")
        a, b = a.astype(np.float64), b.astype(np.float64)
        with np.errstate(all="ignore"):
            difference = np.where(a == b, 0.0, np.abs(a - b))
        if (np.isnan(a) != np.isnan(b)).any():
            return float("inf")
        worst = max(
            worst, float(np.nanmax(difference, initial=0.0) / max(float(np.nanmax(np.abs(b), initial=0)), 1e-30))
        )
    return worst


def _onnxruntime(path: str | Path, threads: int) -> Runner:
    """ONNX Runtime with all of its optimizations, as users run it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4  # errors come as exceptions; the log would repeat them
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(None, dict(feeds)), strict=True))


def _openvino(path: str | Path, threads: int) -> Runner:
    """OpenVINO without bf16: left alone, it computes in bf16 where the processor can."""
    import openvino  # type: ignore[import-not-found,unused-ignore]

    core = openvino.Core()
    settings = {
        "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
    }  # fmt: skip
    compiled = core.compile_model(str(path), "CPU", settings)
    request = compiled.create_infer_request()

    def run(feeds: Feeds) -> Mapping[str, Any]:
        results = request.infer(dict(feeds))
        return {port.get_any_name(): np.array(value) for port, value in results.items()}

    return run
