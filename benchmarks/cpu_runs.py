"""What benchmarks/cpu.py runs in processes of their own, so that no runtime meets what another one left behind.

python benchmarks/cpu_runs.py KIND JSON          # prints what it found as JSON; used by cpu.py, not by people
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Runner = Callable[[Mapping[str, Any]], Mapping[str, Any]]
# Later runs of a shape, whose median is what a run of it takes.
STEADY_RUNS = 3


def read_feeds(path: str) -> dict[str, np.ndarray]:
    with np.load(path) as archive:
        return {name: archive[name] for name in archive.files}


def runner_of(side: str, model: str, threads: int) -> Runner:
    """A runtime that has read `model` and is ready to run it."""
    if side != "tilewright":
        from tilewright.backends.timing import peer_runner

        return peer_runner(side, model, threads)
    import tilewright

    return tilewright.compile(model, target="cpu", threads=threads).run


def times(model: str, feeds: str, threads: int, runs: int, peers: Sequence[str]) -> dict[str, Any]:
    """Milliseconds of each side, in turn; a peer that cannot run the model is named in `errors`."""
    import tilewright
    from tilewright.backends.timing import compare_times, usable_peers

    arrays = read_feeds(feeds)
    able, errors = usable_peers(peers, model, arrays, threads)
    timings = compare_times(model, tilewright.load(model), arrays, able, threads, runs)
    return {
        "median_ms": {timing.name: timing.median for timing in timings},
        "least_ms": {timing.name: min(timing.milliseconds) for timing in timings},
        "largest_error": timings[0].largest_error,
        "errors": errors,
    }


def start(model: str, feeds: str, threads: int, side: str) -> dict[str, Any]:
    """Seconds until a model is ready to run, without starting Python and importing; and of its first runs."""
    arrays, report = read_feeds(feeds), {}
    began = time.perf_counter()
    if side == "tilewright":
        import tilewright
        import tilewright.backends.cpu.executable
        import tilewright.importers.onnx

        imported = time.perf_counter()
        executable = tilewright.compile(model, target="cpu", threads=threads)
        run: Runner = executable.run
    else:
        __import__(side)
        imported = time.perf_counter()
        run = runner_of(side, model, threads)
    ready = time.perf_counter()
    durations = [seconds(run, arrays) for _ in range(1 + STEADY_RUNS)]
    if side == "tilewright":
        found = executable.report()
        report = {name: found[name] for name in ("compiled", "loaded", "segments", "host_steps")}
    return {
        "import_s": imported - began,
        "ready_s": ready - imported,
        "first_run_s": durations[0],
        "run_s": statistics.median(durations[1:]),
        **report,
    }


def memory(model: str, feeds: str, threads: int, side: str) -> dict[str, Any]:
    """Load and run a few times, for somebody who watches the memory of this process."""
    arrays, run = read_feeds(feeds), runner_of(side, model, threads)
    for _ in range(STEADY_RUNS):
        run(arrays)
    return {}


def shapes(
    model: str, inputs: Sequence[Mapping[str, Sequence[int]]], threads: int, peers: Sequence[str]
) -> dict[str, Any]:
    """Milliseconds of each side for each of `inputs` (shapes by name): its first run, and one of those after it.

    `compiled` counts the kernels that had to be compiled up to each of them. Sides take turns, each when the threads of
    the one before have gone to sleep.
    """
    import tilewright
    from tilewright.backends.feeds import FeedPlan
    from tilewright.backends.timing import wait_for_idle_threads

    def timed(run: Runner, arrays: Mapping[str, Any]) -> float:
        wait_for_idle_threads()
        return 1e3 * seconds(run, arrays)

    module = tilewright.load(model)
    executable = tilewright.compile(module, target="cpu", threads=threads)
    runners: dict[str, Runner] = {"tilewright": executable.run}
    runners |= {peer: runner_of(peer, model, threads) for peer in peers}
    first: dict[str, list[float]] = {side: [] for side in runners}
    later: dict[str, list[float]] = {side: [] for side in runners}
    compiled = []
    for given in inputs:
        plan = FeedPlan(module, shapes=given)
        arrays = plan.feeds(next(iter(plan.scenarios())))
        for side, run in runners.items():
            first[side].append(timed(run, arrays))
        compiled.append(executable.report()["compiled"])
        samples: dict[str, list[float]] = {side: [] for side in runners}
        for _ in range(STEADY_RUNS):
            for side, run in runners.items():
                samples[side].append(timed(run, arrays))
        for side in runners:
            later[side].append(statistics.median(samples[side]))
    host_steps = executable.report()["host_steps"]
    return {"first_ms": first, "later_ms": later, "compiled": compiled, "host_steps": host_steps}


def seconds(run: Runner, arrays: Mapping[str, Any]) -> float:
    """What one run takes."""
    began = time.perf_counter()
    run(arrays)
    return time.perf_counter() - began


KINDS = {"times": times, "start": start, "memory": memory, "shapes": shapes}

if __name__ == "__main__":
    given = json.loads(sys.argv[2])
    os.environ["TILEWRIGHT_CACHE"] = given.pop("cache")
    print(json.dumps(KINDS[sys.argv[1]](**given)))
