"""Memory of a process that loads a model and runs it, beside other runtimes: one fresh process for each figure.

    python benchmarks/memory.py MODEL.onnx ... [--against onnxruntime] [--threads 2] [--runs 3] [--json]

Peak resident is the largest resident set (VmHWM). Private is memory behind which there is no file (RssAnon), at its
peak and when the runs are over; with the processes that compile kernels it is the most that all together had. A cold
start compiles into an empty cache, a warm one finds the kernels there. Linux only.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from measure import LEFT_OUT, megabytes, table

for variable in LEFT_OUT:  # numpy, which nothing above imports, would read them
    os.environ.pop(variable, None)

OURS = "tilewright"
WATCH_SECONDS = 0.005

# What runs in the process that is measured: as little as somebody who uses the runtime would write.
_OURS = """
import sys
import numpy as np
import tilewright
feeds = dict(np.load(sys.argv[2]))
run = tilewright.compile(sys.argv[1], target="cpu", threads=int(sys.argv[3])).run
"""
_PEER = """
import sys
import numpy as np
import onnxruntime
feeds = dict(np.load(sys.argv[2]))
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = int(sys.argv[3])
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
def run(feeds):
    return session.run(None, feeds)
"""
_OPENVINO = """
import sys
import numpy as np
import openvino
feeds = dict(np.load(sys.argv[2]))
hints = {"INFERENCE_NUM_THREADS": int(sys.argv[3]), "INFERENCE_PRECISION_HINT": "f32"}
run = openvino.Core().compile_model(sys.argv[1], "CPU", hints)
"""
_RUNS = """
for _ in range(int(sys.argv[4])):
    run(feeds)
print("done", flush=True)
sys.stdin.readline()
"""
_SCRIPTS = {OURS: _OURS, "onnxruntime": _PEER, "openvino": _OPENVINO}


def measure(side: str, model: Path, feeds: Path, cache: Path, threads: int, runs: int) -> dict[str, int]:
    """Bytes: `resident`, `private`, `with_compilers` at their peaks, and `resident_after` and `private_after` the runs.

    Raises RuntimeError if the process fails.
    """
    arguments = [str(model), str(feeds), str(threads), str(runs)]
    process = subprocess.Popen(
        [sys.executable, "-c", _SCRIPTS[side] + _RUNS, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "TILEWRIGHT_CACHE": str(cache)},
    )  # fmt: skip
    assert process.stdout is not None
    private = together = 0
    while not select.select([process.stdout], [], [], WATCH_SECONDS)[0]:  # until it says so, or ends
        own = memory_of(process.pid).get("RssAnon", 0)
        private = max(private, own)
        together = max(together, own + sum(memory_of(child).get("RssAnon", 0) for child in children_of(process.pid)))
    after = memory_of(process.pid)
    _, errors = process.communicate("\n")
    if process.returncode or "RssAnon" not in after:
        raise RuntimeError((errors.strip().splitlines() or [f"exit code {process.returncode}"])[-1])
    private = max(private, after["RssAnon"])
    return {
        "resident": after["VmHWM"],
        "private": private,
        "with_compilers": max(together, private),
        "resident_after": after["VmRSS"],
        "private_after": after["RssAnon"],
    }


def memory_of(pid: int) -> dict[str, int]:
    """What /proc says of a process's memory, in bytes (proc(5)); nothing for one that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    fields = (line.split() for line in lines)
    return {field[0].rstrip(":"): int(field[1]) * 1024 for field in fields if field[-1] == "kB"}


def children_of(pid: int) -> list[int]:
    """The processes that any thread of a process has started. One that has yet to run a program of its own (vfork(2))
    still has its parent's memory, and does not count."""
    found: list[int] = []
    try:
        own = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = list(map(int, path.read_text().split()))
            found += [child for child in children if Path(f"/proc/{child}/cmdline").read_bytes() != own]
        except OSError:  # a thread or a child that has ended
            continue
    return found


def rows_of(report: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    rows = []
    for model in report:
        for name, found in model["sides"].items():
            figures = ["failed"] * 5 if "error" in found else [megabytes(found[key]) for key in _FIGURES]
            rows.append([model["model"], name, *figures])
    return rows


_FIGURES = ("resident", "private", "with_compilers", "resident_after", "private_after")


@click.command()
@click.argument("models", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--against", default="onnxruntime", show_default=True, metavar="NAMES")
@click.option("--threads", type=click.IntRange(1), default=2, show_default=True)
@click.option("--runs", type=click.IntRange(1), default=3, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print all figures as JSON, in bytes.")
def main(models: tuple[Path, ...], against: str, threads: int, runs: int, as_json: bool) -> None:
    """Measure MODELS."""
    import numpy as np
    from runtime import accepted_feeds, session

    peers = [name for name in against.split(",") if name not in ("", "none")]
    if not set(peers) <= set(_SCRIPTS):
        raise click.UsageError(f"--against takes some of {', '.join(list(_SCRIPTS)[1:])}, not {against!r}")
    report, failed = [], False
    for model in models:
        sides: dict[str, Any] = {}
        with tempfile.TemporaryDirectory() as temporary:
            feeds, cache = Path(temporary, "feeds.npz"), Path(temporary, "cache")
            np.savez(feeds, **accepted_feeds(model, session(model, 1)))
            for name, side in ((f"{OURS} cold", OURS), (OURS, OURS), *((peer, peer) for peer in peers)):
                try:
                    sides[name] = measure(side, model, feeds, cache, threads, runs)
                except RuntimeError as error:
                    sides[name], failed = {"error": str(error)}, True
        report.append({"model": model.stem, "sides": sides})
        print(f"{model.stem}: done", file=sys.stderr, flush=True)
    if as_json:
        print(json.dumps(report, indent=1))
    else:
        columns = ["peak resident", "private", "with compilers", "resident after", "private after"]
        table(f"memory, {runs} runs, {threads} thread(s)", ["model", "", *columns], rows_of(report))
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
