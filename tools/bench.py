"""`tilewright bench`: how fast a model runs on the cpu target, beside other runtimes in the same run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pathlib import Path

    from tilewright.backends.model_source import Model
    from tilewright.backends.timing import Timing
    from tilewright.graph.module import Module


@click.command("bench")
@click.argument("model", type=click.Path())
@click.option(
    "--against", default="onnxruntime", show_default=True, metavar="NAMES", help="onnxruntime, openvino, or none."
)
@click.option(
    "--threads", "thread_counts", default="1", show_default=True, metavar="COUNTS", help="1,2: one after the other."
)
@click.option("--runs", type=click.IntRange(1), default=20, show_default=True, help="Runs of each, in turn.")
@click.option("--input", "given", multiple=True, metavar="NAME=FILE", help="An input: x=x.npy, feeds.npz, rate=16000.")
@click.option("--dim", "dims", multiple=True, metavar="NAME=SIZE", help="A size for made-up inputs: batch=1.")
@click.option(
    "--input-shape", "shapes", multiple=True, metavar="INPUT:DIMS", help="A shape for a made-up input: x:1,3,320,320."
)
@click.option("--seed", type=int, default=0, show_default=True, help="For made-up inputs.")
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
def bench(**options: Any) -> None:
    """Time MODEL (.onnx or .tw) on the cpu target and in other runtimes, in turn, in its own precision; show medians
    and ratios.

    \b
    tilewright bench model.onnx --threads 1,2
    tilewright bench model.onnx --against onnxruntime,openvino --dim batch=8 --json
    """
    execute(**options)


def execute(
    model: str,
    against: str,
    thread_counts: str,
    runs: int,
    given: tuple[str, ...],
    dims: tuple[str, ...],
    shapes: tuple[str, ...],
    seed: int,
    as_json: bool,
) -> None:
    """Time and report."""
    from tempfile import TemporaryDirectory

    from tilewright.backends.feeds import FeedPlan
    from tilewright.backends.model_source import open_model
    from tilewright.backends.target import compile_module
    from tilewright.backends.timing import available_peers, compare_times, usable_peers
    from tilewright.graph.diagnostics import UsageError
    from tilewright.tools._inputs import read_inputs, read_sizes
    from tilewright.tools._progress import Progress
    from tilewright.tools._show import console, print_json
    from tilewright.tools._trial import first_that_runs, input_types, inputs_text

    if not all(count.strip().isdigit() and int(count) > 0 for count in thread_counts.split(",")):
        raise UsageError("bench/threads", f"--threads takes numbers such as 1,2, not {thread_counts!r}")
    asked = [name.strip() for name in against.split(",") if name.strip() not in ("", "none")]
    peers, missing = available_peers(asked)
    left_out = dict.fromkeys(missing, "it is not installed")
    opened = open_model(model)
    module = opened.module
    plan = FeedPlan(module, *read_sizes(dims, shapes), read_inputs(module, given))
    with Progress(1) as progress:  # over before anything is timed
        progress.start("compiling")
        feeds = first_that_runs(compile_module(module, "cpu"), plan, seed=seed).feeds
    with TemporaryDirectory(prefix="tilewright-") as folder:
        path = _file_of(opened, folder)
        peers, refusals = usable_peers(peers, path, feeds)
        found = [compare_times(path, module, feeds, peers, int(count), runs) for count in thread_counts.split(",")]
    left_out |= {name: f"it does not run the model; it says: {reason}" for name, reason in refusals.items()}
    if as_json:
        facts = {"model": model, "precision": _precision(module), "runs": runs, "inputs": input_types(feeds, plan)}
        print_json({**facts, "timings": [_facts(t) for t in found], "not_compared": left_out})
        return
    _show(found, f"{_precision(module)}, {runs} run{'s' if runs > 1 else ''} each, in turn")
    console().print(f"inputs: {inputs_text(feeds) or 'none'}")
    for name, reason in left_out.items():
        console(stderr=True).print(f"not compared with {name}: {reason}", style="yellow")


def _file_of(model: Model, folder: str) -> Path:
    """The ONNX file that other runtimes read: the user's own, or one that text is written to."""
    from pathlib import Path

    if isinstance(model.source, Path):
        return model.source
    from tilewright.importers.onnx import save

    path = Path(folder) / "model.onnx"
    save(model.module, path)
    return path


def _precision(module: Module) -> str:
    """The types that the model computes with. No runtime is asked to use others."""
    from tilewright.graph.types import TensorType

    values = (value for op in module.walk() for value in op.operand_values)
    dtypes = {value.type.dtype for value in values if isinstance(value.type, TensorType)}
    numbers = [d for d in dtypes if d.is_float or (d.is_integer and d.bits <= 16)]
    return ", ".join(sorted(d.numpy.name for d in numbers)) or "integers"


def _facts(timings: list[Timing]) -> dict[str, Any]:
    ours = timings[0]
    return {
        "threads": ours.threads,
        "median_ms": {timing.name: timing.median for timing in timings},
        "least_ms": {timing.name: min(timing.milliseconds) for timing in timings},
        "ratio": {timing.name: timing.median / ours.median for timing in timings[1:]},
        "largest_error": ours.largest_error,
    }


def _show(found: list[list[Timing]], title: str) -> None:
    from tilewright.tools._show import console, table

    shown = table("threads", "runtime", "median ms", "least ms", "time / ours", title=title)
    least = min(min(timing.milliseconds) for timings in found for timing in timings)
    digits = 2 if least >= 1 else 3 if least >= 0.1 else 4
    for timings in found:
        ours = timings[0]
        for timing in timings:
            ratio = "" if timing is ours else f"{timing.median / ours.median:.2f}"
            figures = (f"{number:.{digits}f}" for number in (timing.median, min(timing.milliseconds)))
            shown.add_row(str(timing.threads), timing.name, *figures, ratio)
    console().print(shown)
    worst = max((timings[0].largest_error or 0.0 for timings in found), default=0.0)
    if len(found[0]) > 1:
        console().print(
            f"largest difference from {found[0][1].name} with its optimizations: {worst:.1e} of the largest element"
        )


if __name__ == "__main__":
    from _script import run as run_script

    run_script(bench)
