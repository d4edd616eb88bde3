"""`tilewright gradient`: a model goes in, the model with the gradient of an output comes out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click


@click.command("gradient")
@click.argument("model", type=click.Path())
@click.option("--of", "of", required=True, metavar="NAME", help="The scalar to differentiate: an output or a tensor.")
@click.option(
    "--wrt", required=True, multiple=True, metavar="NAMES", help="Inputs or initializers: a,b,... One output for each."
)
@click.option("-o", "--output", metavar="OUT", help="Where to write; default: MODEL with `.grad.onnx`.")
@click.option("-O", "--level", type=click.IntRange(0, 3), default=0, help="Optimize the result at this level.")
@click.option("--opset", type=int, metavar="N", help="Write at opset N; default: the model's own, but at least 18.")
@click.option(
    "--stops", type=click.Choice(["stop", "list", "error"]), default="list", show_default=True,
    help="Where a path ends in an operation without a derivative (Floor, ArgMax, ...).",
)  # fmt: skip
@click.option("--zeros", is_flag=True, help="Give zeros for a tensor that NAME does not depend on; else an error.")
@click.option("--check", is_flag=True, help="Compare with differences in float64 at a made-up point first.")
@click.option("--json", "as_json", is_flag=True, help="Report as JSON on standard output.")
def gradient(
    model: str, of: str, wrt: Sequence[str], output: str | None, level: int, opset: int | None, stops: str,
    zeros: bool, check: bool, as_json: bool,
) -> None:  # fmt: skip
    """Extend MODEL (.onnx) by the gradient of one of its tensors, written as plain ONNX.

    \b
    tilewright gradient model.onnx --of loss --wrt weight,bias -o grad.onnx

    The outputs stay; one more follows for each tensor in --wrt, in order, called NAME_grad. Any ONNX runtime runs the
    result. Exit code 1: with --check, the gradient does not agree with differences; nothing is written.
    """
    import tilewright
    from tilewright.graph.diagnostics import DiagnosticLog, ModelError
    from tilewright.graph.paths import check_kind, check_source, check_target
    from tilewright.tools._inputs import split_names
    from tilewright.tools._show import print_json

    target = Path(output) if output else Path(model).with_suffix(".grad.onnx")
    check_source(model, ModelError)
    check_target(output or target)
    check_kind(target, ".onnx")
    log = DiagnosticLog()
    names = split_names(wrt)
    module = tilewright.load(model)
    if check:
        report = tilewright.train.check_gradients(module, of=of, wrt=names)
        if not as_json or not report.passed:
            click.echo(str(report), err=as_json)
        if not report.passed:
            raise SystemExit(1)
    unconnected = "zeros" if zeros else "error"
    extended = tilewright.gradient(module, of, names, stops=stops, unconnected=unconnected, log=log)
    if level:
        tilewright.optimize(extended, level=level)
    tilewright.save(extended, target, opset=opset)
    outputs = {str(o.name): str(o.type) for o in extended.main.block.outputs[-len(names) :]}
    remarks = [diagnostic.render() for diagnostic in log.diagnostics]
    if as_json:
        print_json({"output": str(target), "gradients": outputs, "remarks": remarks})
        return
    for remark in remarks:
        click.echo(remark, err=True)
    width = max(map(len, outputs))
    for name, type in outputs.items():
        click.echo(f"{name:<{width}}  {type}")
    click.echo(f"written to {target}")


if __name__ == "__main__":
    from _script import run

    run(gradient)
