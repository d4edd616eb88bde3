"""The cpu target beside other runtimes: time, start, memory, and sizes never seen before; float32 everywhere.

    python benchmarks/cpu.py [MODEL.onnx ...] [--against onnxruntime,openvino] [--threads 1,2] [--json]

Without MODEL, the networks of examples/zoo are built into a temporary folder and measured. Runtimes take turns on the
same inputs; what is shown are medians, and times of the others over ours: above 1, ours is faster. Figures mean little
on a machine that is busy with something else.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import click
from measure import LEFT_OUT, megabytes, peak_memory, table

for variable in LEFT_OUT:  # numpy, which nothing above imports, would read them
    os.environ.pop(variable, None)

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))

PARTS = ("time", "start", "memory", "shapes")
OURS = "tilewright"
# Shapes that a part of the benchmark draws: of texts, and of lines of text as images.
MOST_BATCH, LEAST_TOKENS, MOST_TOKENS = 4, 8, 256
LINE_HEIGHT, LEAST_WIDTH, MOST_WIDTH = 48, 64, 640


class Failed(Exception):
    """A process of the benchmark ended badly; the message is its last line."""


def run(kind: str, cache: Path, **arguments: Any) -> dict[str, Any]:
    """What cpu_runs.py finds in a process of its own, with `cache` for compiled kernels. Raises Failed."""
    done = subprocess.run(command_of(kind, cache, **arguments), capture_output=True, text=True)
    if done.returncode:
        raise Failed((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def command_of(kind: str, cache: Path, **arguments: Any) -> list[str]:
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in arguments.items()}
    plain["cache"] = str(cache)
    return [sys.executable, str(Path(__file__).parent / "cpu_runs.py"), kind, json.dumps(plain)]


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# ---- models ----------------------------------------------------------------------------------------------------------


def zoo(folder: Path, names: Sequence[str]) -> Iterator[Path]:
    """The named networks of examples/zoo, each a file in `folder` for as long as it is looked at."""
    import tilewright
    from zoo.build import build

    for name in names:
        path = folder / f"{name}.onnx"
        tilewright.save(build(name), path)
        yield path
        path.unlink()


def write_feeds(model: Path, path: Path) -> None:
    """Made-up inputs that ONNX Runtime takes."""
    import numpy as np
    from runtime import accepted_feeds, session

    np.savez(path, **accepted_feeds(model, session(model, 1)))


# ---- parts -----------------------------------------------------------------------------------------------------------


def measure(
    model: Path, folder: Path, parts: Sequence[str], peers: Sequence[str], threads: Sequence[int], runs: int
) -> dict[str, Any]:
    """All parts for one model. What fails is a text under `error`."""
    feeds, cache = folder / "feeds.npz", folder / "cache" / model.stem
    write_feeds(model, feeds)
    common = {"model": model, "feeds": feeds}
    found: dict[str, Any] = {"model": model.stem}
    try:
        # The first process compiles into an empty cache, the second finds everything there.
        cold = run("start", cache, **common, threads=threads[-1], side=OURS)
        found["start"] = {f"{OURS} cold": cold}
        if "start" in parts:
            for side in (OURS, *peers):
                found["start"][side] = run("start", cache, **common, threads=threads[-1], side=side)
        if "time" in parts:
            counts = (run("times", cache, **common, threads=count, runs=runs, peers=peers) for count in threads)
            found["time"] = {str(count): times for count, times in zip(threads, counts, strict=True)}
        if "memory" in parts:
            found["memory"] = {side: memory_of(side, cache, **common, threads=threads[-1]) for side in (OURS, *peers)}
    except Failed as error:
        found["error"] = str(error)
    return found


def progress(found: Mapping[str, Any]) -> Iterator[str]:
    """What somebody who waits for the tables would like to know of one model."""
    if "error" in found:
        yield f"failed: {found['error']}"
    for threads, times in found.get("time", {}).items():
        each = (f"{name} {milliseconds:.1f} ms" for name, milliseconds in times["median_ms"].items())
        yield f"{threads} thread(s) {' '.join(each)}"


def memory_of(side: str, cache: Path, **arguments: Any) -> dict[str, int]:
    try:
        return peak_memory(command_of("memory", cache, side=side, **arguments))._asdict()
    except RuntimeError as error:
        raise Failed(str(error)) from None


def measure_shapes(folder: Path, peers: Sequence[str], threads: int, count: int) -> dict[str, Any]:
    """Texts of random batches and lengths, and lines of text of random widths, each size once and then again."""
    draw = random.Random(0)
    models: dict[str, tuple[Path, list[dict[str, list[int]]]]] = {}
    texts = [[draw.randint(1, MOST_BATCH), draw.randint(LEAST_TOKENS, MOST_TOKENS)] for _ in range(count)]
    models["bert_base, any size"] = open_bert(folder), [dict.fromkeys(BERT_INPUTS, shape) for shape in texts]
    widths = [draw.randint(LEAST_WIDTH, MOST_WIDTH) for _ in range(count)]
    line_reader = fetch_line_reader()
    if line_reader is not None:
        models["PP-OCRv4 recognition"] = line_reader, [{"x": [1, 3, LINE_HEIGHT, width]} for width in widths]
    found: dict[str, Any] = {}
    for name, (path, inputs) in models.items():
        note(f"{name}: {count} sizes")
        cache = folder / "cache" / path.stem
        try:
            found[name] = run("shapes", cache, model=path, inputs=inputs, threads=threads, peers=peers)
        except Failed as error:
            found[name] = {"error": str(error)}
            note(f"{name}: {error}")
    return found


BERT_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def open_bert(folder: Path) -> Path:
    import tilewright
    from zoo.build import build

    path = folder / "bert_open.onnx"
    tilewright.save(build("bert_base", batch="batch", size="length"), path)
    return path


def fetch_line_reader() -> Path | None:
    from model_zoo import Unavailable, fetch

    try:
        return fetch("ppocr-rec")
    except Unavailable as reason:
        note(f"{reason}: left out")
        return None


# ---- summary ---------------------------------------------------------------------------------------------------------


def summary(models: Sequence[Mapping[str, Any]], peers: Sequence[str]) -> dict[str, float]:
    """Geometric means of the others' times over ours, of each peer and of the better of all on each model."""
    ratios: dict[str, list[float]] = {}
    for model in models:
        for times in model.get("time", {}).values():
            medians = times["median_ms"]
            theirs = {peer: medians[peer] for peer in peers if peer in medians}
            for peer, milliseconds in theirs.items():
                ratios.setdefault(peer, []).append(milliseconds / medians[OURS])
            if len(peers) > 1 and theirs:
                ratios.setdefault("the better of them", []).append(min(theirs.values()) / medians[OURS])
    return {name: statistics.geometric_mean(values) for name, values in ratios.items()}


def show_times(
    models: Sequence[Mapping[str, Any]], peers: Sequence[str], means: Mapping[str, float], runs: int
) -> None:
    rows = []
    for model in models:
        steps = len(model.get("start", {}).get(f"{OURS} cold", {}).get("host_steps", []))
        for threads, times in model.get("time", {}).items():
            medians = times["median_ms"]
            row = [model["model"], threads, f"{medians[OURS]:.2f}"]
            for peer in peers:
                ours, theirs = medians[OURS], medians.get(peer)
                row += ["failed", ""] if theirs is None else [f"{theirs:.2f}", f"{theirs / ours:.2f}"]
            error = times["largest_error"]
            rows.append([*row, "" if error is None else f"{error:.0e}", str(steps)])
    columns = ["model", "threads", f"{OURS} ms"]
    columns += [column for peer in peers for column in (f"{peer} ms", "ratio")]
    table(f"float32, medians of {runs} runs in turn", [*columns, "difference", "host steps"], rows)
    for name, mean in means.items():
        print(f"geometric mean of ratios to {name}: {mean:.2f}")


def show_starts(models: Sequence[Mapping[str, Any]], threads: int) -> None:
    """Seconds until ready, and what the first run takes beyond others; peak memory."""
    rows = []
    for model in models:
        starts, peaks = model.get("start", {}), model.get("memory", {})
        for side in dict.fromkeys([*starts, *peaks]):
            row, found, peak = [model["model"], side], starts.get(side), peaks.get(side)
            row += ["", ""] if found is None else [f"{found['ready_s']:.2f} s", first_run_cost(found)]
            rows.append([*row, *(["", ""] if peak is None else map(megabytes, (peak["resident"], peak["private"])))])
    columns = ["model", "", "load and compile", "first run, beyond later ones", "peak resident", "of it private"]
    table(f"start and memory, {threads} thread(s)", columns, rows)


def first_run_cost(found: Mapping[str, float]) -> str:
    return f"{1e3 * (found['first_run_s'] - found['run_s']):.1f} ms"


def show_shapes(found: Mapping[str, Any], threads: int) -> None:
    """Totals over all sizes, and what a new size costs beyond its later runs."""
    rows = []
    for name, shapes in found.items():
        for side in shapes.get("first_ms", {}):
            first, later = shapes["first_ms"][side], shapes["later_ms"][side]
            beyond = [a - b for a, b in zip(first, later, strict=True)][1:]  # the very first one compiles
            compiled = shapes["compiled"][-1] - shapes["compiled"][0] if side == OURS else ""
            cost = [f"{statistics.median(beyond):.1f} ms", f"{max(beyond):.1f} ms"] if beyond else ["", ""]
            rows.append([name, side, f"{sum(first[1:]):.0f} ms", f"{sum(later[1:]):.0f} ms", *cost, str(compiled)])
    columns = ["model", "", "first runs", "later runs", "new size, median", "at most", "kernels compiled"]
    table(f"sizes never seen before, after one, {threads} thread(s)", columns, rows)


# ---- command ---------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("models", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--zoo", "names", metavar="NAMES", help="Networks of examples/zoo, in the place of all of them.")
@click.option("--against", default="onnxruntime,openvino", show_default=True, metavar="NAMES")
@click.option("--threads", "counts", default="1,2", show_default=True, metavar="COUNTS")
@click.option("--runs", type=click.IntRange(1), default=15, show_default=True, help="Runs of each, in turn.")
@click.option("--parts", default=",".join(PARTS), show_default=True, metavar="NAMES", help="What to measure.")
@click.option("--shapes", "size_count", type=click.IntRange(2), default=30, show_default=True, help="Sizes to draw.")
@click.option("--json", "as_json", is_flag=True, help="Print all figures as JSON.")
def main(
    models: tuple[Path, ...],
    names: str | None,
    against: str,
    counts: str,
    runs: int,
    parts: str,
    size_count: int,
    as_json: bool,
) -> None:
    """Measure MODELS, or the networks of examples/zoo."""
    from tilewright.backends.timing import available_peers
    from zoo.build import NETWORKS

    chosen, threads = parts.split(","), [int(count) for count in counts.split(",")]
    if not set(chosen) <= set(PARTS):
        raise click.UsageError(f"--parts takes some of {','.join(PARTS)}, not {parts!r}")
    wanted = list(NETWORKS) if names is None and not models else (names or "").split(",") if names else []
    if not set(wanted) <= set(NETWORKS):
        raise click.UsageError(f"--zoo takes some of {','.join(NETWORKS)}, not {names!r}")
    peers, missing = available_peers([name for name in against.split(",") if name not in ("", "none")])
    for name in missing:
        note(f"{name} is not installed: not compared with")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        report: dict[str, Any] = {
            "precision": "float32",
            "runs": runs,
            "threads": threads,
            "peers": peers,
            "models": [],
        }
        if set(chosen) - {"shapes"}:
            for path in chain(models, zoo(folder, wanted)):
                found = measure(path, folder, chosen, peers, threads, runs)
                report["models"].append(found)
                note(f"{path.stem}: " + (", ".join(progress(found)) or "done"))
        if "shapes" in chosen:
            report["shapes"] = measure_shapes(folder, peers, threads[-1], size_count)
    report["geometric_mean"] = summary(report["models"], peers)
    show(report, as_json)
    sections = [*report["models"], *report.get("shapes", {}).values()]
    sys.exit(int(any("error" in section for section in sections)))


def show(report: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(report, indent=1))
        return
    models, threads = report["models"], report["threads"][-1]
    if any("time" in model for model in models):
        show_times(models, report["peers"], report["geometric_mean"], report["runs"])
    if any("start" in model for model in models):
        show_starts(models, threads)
    if "shapes" in report:
        show_shapes(report["shapes"], threads)


if __name__ == "__main__":
    main()
