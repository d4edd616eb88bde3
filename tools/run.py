"""`tilewright run`: run a model on given or made-up inputs, and look at what comes out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pathlib import Path

# So many strings of a tensor are shown.
_FIRST = 3


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
@click.option("--explain", is_flag=True, help="Show what the model was compiled to: kernels, host steps, memory.")
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
def run(**options: Any) -> None:
    """Run MODEL (.onnx, .tw, or .twx) and summarize its outputs. Inputs that are not given are made up.

    A .twx, which `tilewright compile` writes, is machine code: run it only if you trust where it is from.

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
    explain: bool,
    as_json: bool,
) -> None:
    """Run and report."""
    import time
    import warnings
    from pathlib import Path

    from tilewright.backends.feeds import FeedPlan
    from tilewright.tools._inputs import read_inputs, read_sizes, split_names
    from tilewright.tools._progress import Progress
    from tilewright.tools._show import console, duration_text, print_json
    from tilewright.tools._trial import first_that_runs

    wanted = split_names(outputs) or None
    with Progress(2) as progress, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        progress.start("loading" if model.endswith(".twx") else "compiling")
        executable, module, seconds = prepare(model, target, threads)
        plan = FeedPlan(module, *read_sizes(dims, shapes), read_inputs(module, given))
        progress.start("compiling for sizes, running")
        trial = first_that_runs(executable, plan, wanted, seed)
        feeds, results, times = trial.feeds, trial.outputs, {"seconds": trial.seconds}
        if executable.target == "cpu":  # the first run made plans and compiled what depends on sizes
            started = time.perf_counter()
            executable.run(feeds, wanted)
            times["seconds"] = time.perf_counter() - started
            times["compile_seconds"] = seconds + max(trial.seconds - times["seconds"], 0.0)
    for message in dict.fromkeys(str(warning.message) for warning in caught):  # the model runs twice
        console(stderr=True).print(message, style="yellow")
    made_up = [facts.name for facts in plan.inputs]
    rows = [summary(name, value) for name, value in results.items()]
    files = write_outputs(Path(output_dir), results) if output_dir is not None else {}
    if as_json:
        inputs = [summary(name, value) | {"made_up": name in made_up} for name, value in feeds.items()]
        listed = {name: str(path) for name, path in files.items()}
        facts = {"target": target, **times, "inputs": inputs, "outputs": rows, "files": listed}
        print_json(facts | ({"explain": executable.report()} if explain else {}))
        return
    show(rows, [summary(name, value) for name, value in feeds.items()], made_up)
    what = "loaded" if model.endswith(".twx") else "compiled"
    made = f"{what} in {duration_text(times['compile_seconds'])}, " if "compile_seconds" in times else ""
    console().print(f"{made}ran in {duration_text(times['seconds'])} on {target}")
    if explain:
        show_report(executable.report())
    for path in files.values():
        console().print(f"wrote {path}")


def prepare(model: str, target: str, threads: int | None) -> tuple[Any, Any, float]:
    """The executable, its module, and the seconds it took to compile, or to load one that was compiled before."""
    import time
    from pathlib import Path

    from tilewright.backends.model_source import open_model
    from tilewright.backends.target import compile_module
    from tilewright.graph.diagnostics import DiagnosticLog, UsageError
    from tilewright.tools._show import show_diagnostics

    if Path(model).suffix == ".twx":
        from tilewright.backends.cpu.executable import load

        if target != "cpu":
            raise UsageError("run/target", f"{model} was compiled for the target cpu, it cannot run on {target!r}")
        started = time.perf_counter()
        executable: Any = load(model, threads)
        return executable, executable.module, time.perf_counter() - started
    log = DiagnosticLog()
    module = open_model(model, log).module
    show_diagnostics(log.diagnostics)
    started = time.perf_counter()
    return compile_module(module, target, threads), module, time.perf_counter() - started


def summary(name: str, value: Any) -> dict[str, Any]:
    """A value's type and, for numbers, its smallest, largest and mean finite element and the count of others; of
    strings, the first ones."""
    import numpy as np

    from tilewright.passes.agreement import describe

    row: dict[str, Any] = {"name": name, "type": describe(value)}
    array = np.asarray(value) if isinstance(value, np.ndarray | np.generic) else None
    if array is None or array.dtype.kind == "c" or array.size == 0:
        return row
    if array.dtype.kind in "OUS":
        return row | {"first": [str(item) for item in array.flat[:_FIRST]]}
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


def show(rows: list[dict[str, Any]], inputs: list[dict[str, Any]], made_up: list[str]) -> None:
    from tilewright.tools._show import console, table

    made = table("", "<type", "min", "max", "mean", "<")
    for title, each in [("input", inputs), ("output", rows)]:
        for row in each:
            figures = [f"{row[key]:.6g}" if key in row else "" for key in ("min", "max", "mean")]
            notes = [f"{row['not_finite']:,} NaN or infinite"] if row.get("not_finite") else []
            notes += [", ".join(map(repr, row["first"]))] if "first" in row else []
            notes += ["made up"] if title == "input" and row["name"] in made_up else []
            made.add_row(f"{title} {row['name']}", row["type"], *figures, "; ".join(notes))
        made.add_section()
    console().print(made)


def show_report(report: dict[str, Any]) -> None:
    """What `Executable.report` says, as tables: how often each kernel (or operator) is called, then the rest."""
    from tilewright.tools._show import console, size_text, table

    out = console()
    what = "kernel" if "kernels" in report else "operator"
    calls = table(what, "calls", title=f"{what}s")
    for name, count in sorted(report.get(f"{what}s", {}).items(), key=lambda item: (-item[1], item[0])):
        calls.add_row(name, f"{count:,}")
    out.print()
    out.print(calls)
    out.print()
    if report.get("host_steps"):
        steps = table("operator", "<place", title="host steps: operations without a kernel here")
        for step in report["host_steps"]:
            steps.add_row(step["operator"], step["location"])
        out.print(steps)
        out.print()
    facts = table("fact", "value", title="executable")
    if "host_steps" in report:
        facts.add_row("host steps", str(len(report["host_steps"])))
    for name, value in report.items():
        if name in ("kernels", "operators", "host_steps", "candidates"):
            continue
        if isinstance(value, dict):
            for part, number in value.items():
                facts.add_row(f"{name} of {part}", str(number))
        else:
            text = size_text(value) if name.endswith("_bytes") else str(value)
            facts.add_row(name.removesuffix("_bytes").replace("_", " "), text)
    out.print(facts)


if __name__ == "__main__":
    from _script import run as run_script

    run_script(run)
