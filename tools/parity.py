"""`tilewright parity`: do two models, or a model here and in ONNX Runtime, compute the same?"""

from __future__ import annotations

from typing import Any

import click


@click.command("parity")
@click.argument("model", type=click.Path())
@click.argument("new", type=click.Path(), required=False)
@click.option(
    "--engine", type=click.Choice(["onnxruntime", "reference"]), default="onnxruntime", show_default=True,
    help="What runs two models, or what one model is held against.",
)  # fmt: skip
@click.option("--target", default="reference", show_default=True, help="What a single MODEL is compiled for.")
@click.option("--input", "given", multiple=True, metavar="NAME=FILE", help="Run on this input: x=x.npy, rate=16000.")
@click.option("--dim", "dims", multiple=True, metavar="NAME=SIZE", help="A size for a symbolic dim: batch=1.")
@click.option(
    "--input-shape", "shapes", multiple=True, metavar="INPUT:DIMS", help="A shape for an input: x:1,3,320,320."
)
@click.option("--runs", type=click.IntRange(1), default=2, show_default=True, help="Runs on made-up inputs.")
@click.option("--seed", type=int, default=0, show_default=True, help="For made-up inputs.")
@click.option("--rtol", type=click.FloatRange(0), metavar="R", help="Allowed max|a-b| / max|b|; default 1e-4 for f32.")
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
def parity(**options: Any) -> None:
    """Check that NEW computes what MODEL does (.onnx or .tw); without NEW, that MODEL does here what it does in ONNX
    Runtime.

    \b
    tilewright parity model.onnx smaller.onnx --input x=x.npy
    tilewright parity model.onnx --dim batch=4

    Two models run in ONNX Runtime, its optimizations off; if it cannot run MODEL, in the reference interpreter, and a
    note says so. Outputs of NEW (a) agree with those of MODEL (b) if shape, dtype and the places of NaN and infinities
    are equal and max|a-b| <= R * max|b|; integers, bools and strings must be equal. R is 1e-4 for f32, 1e-9 for f64,
    0.004 for f16, 0.03 for bf16. Exit code 0: they agree; 1: they differ, or could not be run.
    """
    check(**options)


def check(model: str, new: str | None, given: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Compare and report. Raises SystemExit(1) unless all outputs agree."""
    import tilewright
    from tilewright.backends.model_source import open_model
    from tilewright.graph.diagnostics import DiagnosticLog, UsageError
    from tilewright.tools._inputs import read_inputs, read_sizes
    from tilewright.tools._show import print_json, show_diagnostics, show_parity

    log = DiagnosticLog()
    dims, shapes = read_sizes(options["dims"], options["shapes"])
    engine, target = options["engine"], options["target"]
    if new is not None and target != "reference":
        raise UsageError("parity/options", "--target is for a single model; two models are run by --engine")
    feeds = read_inputs(open_model(model, DiagnosticLog()).module, given) or None
    report = tilewright.parity(
        model,
        engine if new is None else new,
        feeds,
        runs=options["runs"],
        seed=options["seed"],
        rtol=options["rtol"],
        dims=dims,
        shapes=shapes,
        target=target,
        engine=engine,
        log=log,
    )
    show_diagnostics(log.diagnostics)
    if as_json:
        print_json(report.to_dict())
    else:
        show_parity(report)
    if not report.passed:
        raise SystemExit(1)


if __name__ == "__main__":
    from _script import run

    run(parity)
