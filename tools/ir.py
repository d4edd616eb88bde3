"""`tilewright ir`: a model as text, after passes too; or why a rule did not apply to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pathlib import Path


@click.command("ir")
@click.argument("model", type=click.Path(), required=False)
@click.option("--passes", metavar="PIPELINE", help='Run these passes first: "fold,cse,dce", or a level: O2.')
@click.option(
    "--why",
    "rule",
    metavar="RULE",
    help="Explain where RULE applies, and what keeps it from applying elsewhere; after infer-shapes, or --passes.",
)
@click.option(
    "--reproduce", type=click.Path(), metavar="FILE", help="Run a reproducer: its model, through its pipeline."
)
@click.option("-o", "--output", type=click.Path(), metavar="OUT", help="Write to a file.")
@click.option("--weights", type=click.Choice(["full", "none"]), default="full", show_default=True,
              help="List large weights by hash and source, or not at all.")  # fmt: skip
@click.option("--no-locations", is_flag=True, help="Leave out where operations come from.")
@click.option("--print-ir-after-all", is_flag=True, help="Print the model after every pass too, on standard error.")
@click.option("--verify-each", is_flag=True, help="Verify the model after every pass.")
@click.option("--timing", is_flag=True, help="Say on standard error how long each pass took.")
def ir(**options: Any) -> None:
    """Print MODEL (.onnx or .tw) as text.

    \b
    tilewright ir model.onnx
    tilewright ir model.onnx --passes "fold,cse,dce" -o after.tw
    tilewright ir model.onnx --why batch-norm-after-linear
    """
    show(**options)


def show(
    model: str | None,
    passes: str | None,
    rule: str | None,
    reproduce: str | None,
    output: str | None,
    weights: str,
    no_locations: bool,
    print_ir_after_all: bool,
    verify_each: bool,
    timing: bool,
) -> None:
    """Read, run the passes, print."""
    from pathlib import Path

    from tilewright.graph.diagnostics import DiagnosticLog, UsageError
    from tilewright.graph.paths import check_kind, check_target
    from tilewright.graph.printer import print_module
    from tilewright.passes.explain import render
    from tilewright.passes.registry import rule_class
    from tilewright.tools._show import show_diagnostics, write_text

    if (model is None) == (reproduce is None):
        raise UsageError("ir/options", "name a MODEL, or a reproducer with --reproduce")
    if output is not None:
        check_target(output)
        check_kind(output, ".tw")
    wanted_rule = rule_class(rule) if rule is not None else None
    log = DiagnosticLog()
    module, pipeline = read_reproducer(reproduce) if reproduce is not None else read(str(model), log)
    if passes is not None:
        pipeline = f"{pipeline},{passes}" if pipeline else passes
    if wanted_rule is not None and not pipeline:
        pipeline = "infer-shapes"  # most rules ask for sizes, and files leave many out
    if pipeline:
        run_passes(module, pipeline, log, print_ir_after_all, verify_each, timing)
    show_diagnostics(log.diagnostics)
    if wanted_rule is not None:
        text = render(module, wanted_rule) + "\n"
    else:
        text = print_module(module, weights="none" if weights == "none" else "full", locations=not no_locations)
    if output is None:
        click.echo(text, nl=False)
        return
    write_text(Path(output), text)
    if wanted_rule is None and weights == "full" and (count := unfound_weights(module, Path(output).parent)):
        click.echo(
            f"{count} weight{'s are' if count > 1 else ' is'} in no model file beside {output}: it can be read and "
            "compared, but not run",
            err=True,
        )


def unfound_weights(module: Any, folder: Path) -> int:
    """How many weights the text names by their hash alone for who reads it in `folder`."""
    from tilewright.graph.data import MappedData, TensorData
    from tilewright.graph.printer import LISTED_BYTES

    found = {data for op in module.walk() for data in op.attributes.values() if isinstance(data, TensorData)}
    large = [data for data in found if data.nbytes > LISTED_BYTES]
    here = folder.resolve()
    return sum(not isinstance(data, MappedData) or data.file.path.resolve().parent != here for data in large)


def read(model: str, log: Any) -> tuple[Any, str]:
    from tilewright.backends.model_source import open_model

    return open_model(model, log).module, ""


def read_reproducer(path: str) -> tuple[Any, str]:
    """The module and the pipeline of a reproducer. Raises UsageError, ParseError, OSError."""
    from pathlib import Path

    from tilewright.graph.parser import parse
    from tilewright.passes.reproducer import read_reproducer as read_text

    text, pipeline = read_text(path)
    return parse(text, weights=Path(path).parent, source=path), pipeline


def run_passes(module: Any, pipeline: str, log: Any, print_ir: bool, verify_each: bool, timing: bool) -> None:
    from tilewright.passes.context import PassContext
    from tilewright.passes.instruments import PrintIR, timing_tree
    from tilewright.passes.manager import PassManager

    instruments = [PrintIR("after")] if print_ir else []
    manager = PassManager.parse(pipeline, instruments=instruments, verify_each=verify_each)
    report = manager.run(module, PassContext(log=log))
    if timing:
        click.echo(timing_tree(report), err=True)


if __name__ == "__main__":
    from _script import run

    run(ir)
