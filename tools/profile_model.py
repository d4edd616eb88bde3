"""`tilewright profile`: where the time of a run on the cpu target goes, kernel by kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from tilewright.backends.cpu.profile import Timed


@click.command("profile")
@click.argument("model", type=click.Path())
@click.option("--input", "given", multiple=True, metavar="NAME=FILE", help="An input: x=x.npy, feeds.npz, rate=16000.")
@click.option("--dim", "dims", multiple=True, metavar="NAME=SIZE", help="A size for made-up inputs: batch=1.")
@click.option(
    "--input-shape", "shapes", multiple=True, metavar="INPUT:DIMS", help="A shape for a made-up input: x:1,3,320,320."
)
@click.option("--seed", type=int, default=0, show_default=True, help="For made-up inputs.")
@click.option("--threads", type=click.IntRange(1), help="Worker threads; default: what the process may use.")
@click.option("--runs", type=click.IntRange(1), default=10, show_default=True, help="Runs, of which medians are shown.")
@click.option("--top", type=click.IntRange(1), default=25, show_default=True, help="So many of the longest steps.")
@click.option("--json", "as_json", is_flag=True, help="Report all steps, in order, as JSON.")
def profile(**options: Any) -> None:
    """Time each kernel and host step of MODEL (.onnx, .tw, a training step, or .twx) in runs on the cpu target.

    \b
    tilewright profile model.onnx --dim batch=8 --threads 2
    tilewright profile step.onnx --input x=x.npy --input target=target.npy
    """
    execute(**options)


def execute(
    model: str,
    given: tuple[str, ...],
    dims: tuple[str, ...],
    shapes: tuple[str, ...],
    seed: int,
    threads: int | None,
    runs: int,
    top: int,
    as_json: bool,
) -> None:
    """Run and report."""
    from dataclasses import asdict

    from tilewright.backends.feeds import FeedPlan
    from tilewright.tools._inputs import read_inputs, read_sizes
    from tilewright.tools._progress import Progress
    from tilewright.tools._show import print_json
    from tilewright.tools._trial import first_that_runs, input_types

    with Progress(2) as progress:
        progress.start("compiling")
        executable, module = _compiled(model, threads)
        plan = FeedPlan(module, *read_sizes(dims, shapes), read_inputs(module, given))
        progress.start("running")
        feeds = first_that_runs(executable, plan, seed=seed).feeds
        rows = executable.profile(feeds, runs)
    if as_json:
        facts = {"model": model, "threads": executable.threads, "runs": runs, "inputs": input_types(feeds, plan)}
        print_json({**facts, "steps": [asdict(row) for row in rows]})
        return
    show(rows, top)


def _compiled(model: str, threads: int | None) -> tuple[Any, Any]:
    """The executable, for a training step the one that trains; and the module."""
    from tilewright.backends.target import compile_step
    from tilewright.passes.training.step import Roles
    from tilewright.tools.run import prepare

    if not model.endswith(".twx"):
        from tilewright.backends.model_source import open_model

        module = open_model(model).module
        if Roles.KEY in (module.metadata.get("metadata_props") or {}):
            roles = Roles.of(module)
            updates = {output: name for name, output in roles.state.items()}
            return compile_step(module, threads, updates, roles.loss), module
    executable, module, _ = prepare(model, "cpu", threads)
    return executable, module


def show(rows: list[Timed], top: int) -> None:
    """The kinds of kernels and the longest steps, as tables."""
    import re

    from tilewright.tools._show import console, table

    whole = sum(row.seconds for row in rows) or 1.0
    kinds: dict[str, list[Timed]] = {}
    for row in rows:
        # The numbers in a kernel's name are its sizes.
        kinds.setdefault(re.sub(r"_[0-9mnk]+(x[0-9mnk]+)*(?=_|$)", "", row.kernel), []).append(row)
    shown = table("kind", "steps", "ms", "%", "Gop/s", title=f"{len(rows):,} steps, {whole * 1e3:.3f} ms")
    for kind, steps in sorted(kinds.items(), key=lambda item: -sum(row.seconds for row in item[1]))[:top]:
        seconds = sum(row.seconds for row in steps)
        rate = _rate(sum(row.operations or 0.0 for row in steps), seconds)
        shown.add_row(kind, f"{len(steps):,}", f"{seconds * 1e3:.3f}", f"{100 * seconds / whole:.1f}", rate)
    console().print(shown)
    console().print()
    shown = table("step", "ms", "%", "Gop/s", "<types", "<place", title=f"the longest {min(top, len(rows))}")
    for row in sorted(rows, key=lambda row: -row.seconds)[:top]:
        name = f"{row.kernel} (host)" if row.is_host_step else row.kernel
        rate = _rate(row.operations or 0.0, row.seconds)
        share = f"{100 * row.seconds / whole:.1f}"
        shown.add_row(name, f"{row.seconds * 1e3:.3f}", share, rate, row.types, row.place)
    console().print(shown)


def _rate(operations: float, seconds: float) -> str:
    return f"{operations / seconds / 1e9:.1f}" if operations and seconds else ""


if __name__ == "__main__":
    from _script import run as run_script

    run_script(profile)
