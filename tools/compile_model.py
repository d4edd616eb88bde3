"""`tilewright compile`: make an executable that loads without compiling."""

from __future__ import annotations

from typing import Any

import click


@click.command("compile")
@click.argument("model", type=click.Path())
@click.option("-o", "--output", type=click.Path(), help="The file to write; default: MODEL with `.twx`.")
@click.option("--threads", type=click.IntRange(1), help="Worker threads; default: what the process may use.")
@click.option("--dim", "dims", multiple=True, metavar="NAME=SIZE", help="A size to compile for: batch=1.")
@click.option(
    "--input-shape", "shapes", multiple=True, metavar="INPUT:DIMS", help="A shape to compile for: x:1,3,320,320."
)
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
def compile_model(**options: Any) -> None:
    """Compile MODEL (.onnx or .tw) to machine code of this processor, in one file with its weights.

    Load it with `tilewright.load_executable("model.twx")`: only from where you would run a program from, since that is
    what it is. A model with sizes that are not known is compiled for made-up ones, or for those that you give; most
    kernels serve all sizes, others are compiled when they are needed.

    \b
    tilewright compile model.onnx -o model.twx
    tilewright compile model.onnx -o model.twx --dim batch=1 --dim length=128
    """
    execute(**options)


def execute(
    model: str, output: str | None, threads: int | None, dims: tuple[str, ...], shapes: tuple[str, ...], as_json: bool
) -> None:
    """Compile, run once where sizes are not known, write, report."""
    import time
    from pathlib import Path

    from tilewright.backends.feeds import FeedPlan
    from tilewright.backends.model_source import open_model
    from tilewright.backends.target import compile_module
    from tilewright.graph.paths import check_kind, check_target
    from tilewright.tools._inputs import read_sizes
    from tilewright.tools._progress import Progress
    from tilewright.tools._show import console, print_json, size_text
    from tilewright.tools._trial import first_that_runs

    output = output or str(Path(model).with_suffix(".twx"))
    check_target(output)
    check_kind(output, ".twx")
    started = time.perf_counter()
    module = open_model(model).module
    plan = FeedPlan(module, *read_sizes(dims, shapes))
    with Progress(3) as progress:
        progress.start("compiling")
        executable: Any = compile_module(module, "cpu", threads)
        if dims or shapes or not all(getattr(port.type, "is_static", False) for port in executable.inputs):
            progress.start("compiling for sizes")
            first_that_runs(executable, plan)
        progress.start("writing")
        executable.save(output)
    seconds = time.perf_counter() - started
    report = executable.report()
    facts = {
        "output": output, "bytes": Path(output).stat().st_size, "seconds": seconds,
        "kernels": len(report["kernels"]), "host_steps": report["host_steps"],
    }  # fmt: skip
    if as_json:
        print_json(facts)
        return
    console().print(f"wrote {output}: {size_text(facts['bytes'])}, {facts['kernels']} kernels, {seconds:.1f} s")
    for step in report["host_steps"]:
        console().print(f"no kernel for {step['operator']} at {step['location']}: runs on the host", style="yellow")


if __name__ == "__main__":
    from _script import run as run_script

    run_script(compile_model)
