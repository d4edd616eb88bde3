"""`tilewright run`: run a model on given or made-up inputs, and look at what comes out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pathlib import Path


@click.command("run")
@click.argument("model", type=click.Path())
@click.option(
    "--input", "given", multiple=True, metavar="NAME=FILE", help="An input: x=x.npy, x=x.pb, feeds.npz, rate=16000."
)
@click.option("--dim", "dims", multiple=True, metavar="NAME=SIZE", help="A size for made-up inputs: batch=1.")
@click.option(
    "--input-shape", "shapes", multiple=True, metavar="INPUT:DIMS", help="A shape for a made-up input: x:1,3,320,320."
)
@click.option("--seed", type=int, default=0, show_default=True, help="For made-up inputs.")
@click.option("--outputs", multiple=True, metavar="NAMES", help="Compute only these outputs (a,b,...).")
@click.option(
    "--output-dir", type=click.Path(file_okay=False), metavar="DIR", help="Write each output as DIR/NAME.npy."
)
@click.option("--target", default="cpu", show_default=True, help="What runs the model: cpu or reference.")
@click.option("--threads", type=click.IntRange(1), help="Worker threads; default: what the process may use.")
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
def run(**options: Any) -> None:
    """Run MODEL (.onnx or .tw) and summarize its outputs. Inputs that are not given are made up.

    \b
    tilewright run model.onnx --input x=x.npy --output-dir results
    tilewright run model.onnx --dim batch=4 --outputs scores
    """
    execute(**options)


def execute(
    model: str,
    given: tuple[str, ...],
    dims: tuple[str, ...],
    shapes: tuple[str, ...],
    seed: int,
    outputs: tuple[str, ...],
    output_dir: str | None,
    target: str,
    threads: int | None,
    as_json: bool,
) -> None:
    """Run and report."""
    import time
    import warnings
    from pathlib import Path

    from tilewright.backends.feeds import FeedPlan
    from tilewright.backends.model_source import open_model
    from tilewright.backends.target import compile_module
    from tilewright.graph.diagnostics import DiagnosticLog
    from tilewright.tools._inputs import read_inputs, read_sizes, split_names
    from tilewright.tools._show import console, print_json, show_diagnostics

    log = DiagnosticLog()
    module = open_model(model, log).module
    show_diagnostics(log.diagnostics)
    executable = compile_module(module, target, threads)
    wanted = split_names(outputs) or None
    plan = FeedPlan(module, *read_sizes(dims, shapes), read_inputs(module, given))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        feeds, results, seconds = first_that_runs(executable, plan, wanted, seed, time.perf_counter)
    for warning in caught:
        console(stderr=True).print(str(warning.message), style="yellow")
    made_up = [facts.name for facts in plan.inputs]
    rows = [summary(name, value) for name, value in results.items()]
    files = write_outputs(Path(output_dir), results) if output_dir is not None else {}
    if as_json:
        inputs = [summary(name, value) | {"made_up": name in made_up} for name, value in feeds.items()]
        listed = {name: str(path) for name, path in files.items()}
        print_json({"target": target, "seconds": seconds, "inputs": inputs, "outputs": rows, "files": listed})
        return
    show(rows, [summary(name, value) for name, value in feeds.items()], made_up, seconds, target)
    for path in files.values():
        console().print(f"wrote {path}")


def first_that_runs(
    executable: Any, plan: Any, wanted: list[str] | None, seed: int, clock: Any
) -> tuple[dict[str, Any], dict[str, Any], float]:
    """Inputs that the model accepts, its outputs, and the seconds it took. Raises the first error if none is."""
    from tilewright.backends.parity import FIRST_TRIES
    from tilewright.graph.diagnostics import ExecutionError

    first_error: ExecutionError | None = None
    for tries, scenario in enumerate(plan.scenarios()):
        if tries >= FIRST_TRIES:
            break
        feeds = plan.feeds(scenario, seed)
        started = clock()
        try:
            return feeds, executable.run(feeds, wanted), clock() - started
        except ExecutionError as error:
            first_error = first_error or error
    assert first_error is not None, "a plan has at least one scenario"
    raise first_error


def summary(name: str, value: Any) -> dict[str, Any]:
    """A value's type and, for numbers, its smallest, largest and mean finite element and the count of others."""
    import numpy as np

    from tilewright.passes.agreement import describe

    row: dict[str, Any] = {"name": name, "type": describe(value)}
    array = np.asarray(value) if isinstance(value, np.ndarray | np.generic) else None
    if array is None or array.dtype.kind in "OUSc" or array.size == 0:
        return row
    numbers = array.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    if finite.size:
        row |= {"min": float(finite.min()), "max": float(finite.max()), "mean": float(finite.mean())}
    return row | {"not_finite": int(numbers.size - finite.size)}


def write_outputs(folder: Path, results: dict[str, Any]) -> dict[str, Path]:
    """Each tensor as `NAME.npy`, each sequence as `NAME.npz`; returns the paths by output name. Raises OSError."""
    import re

    import numpy as np

    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, Path] = {}
    for name, value in results.items():
        stem = re.sub(r"[^\w.-]+", "_", name).strip("_") or "output"
        if isinstance(value, list) and all(isinstance(item, np.ndarray) for item in value):
            files[name] = folder / f"{stem}.npz"
            np.savez(files[name], *value)
        elif isinstance(value, np.ndarray | np.generic):
            files[name] = folder / f"{stem}.npy"
            array = np.asarray(value)
            np.save(files[name], array.astype(str) if array.dtype == object else array, allow_pickle=False)
    return files


def show(
    rows: list[dict[str, Any]], inputs: list[dict[str, Any]], made_up: list[str], seconds: float, target: str
) -> None:
    from tilewright.tools._show import console, table

    made = table("", "<type", "min", "max", "mean", "<")
    for title, each in [("input", inputs), ("output", rows)]:
        for row in each:
            figures = [f"{row[key]:.6g}" if key in row else "" for key in ("min", "max", "mean")]
            notes = [f"{row['not_finite']:,} NaN or infinite"] if row.get("not_finite") else []
            notes += ["made up"] if title == "input" and row["name"] in made_up else []
            made.add_row(f"{title} {row['name']}", row["type"], *figures, ", ".join(notes))
        made.add_section()
    out = console()
    out.print(made)
    out.print(f"{seconds:.3f} s on {target}")


if __name__ == "__main__":
    from _script import run as run_script

    run_script(run)
