"""`tilewright optimize`: a model goes in, a smaller one that computes the same comes out."""

from __future__ import annotations

from typing import Any

import click


@click.command("optimize")
@click.argument("model", type=click.Path())
@click.option("-o", "--output", metavar="OUT", help="Where to write; default: MODEL with `.opt.onnx`. May be MODEL.")
@click.option("-O", "--level", type=click.IntRange(0, 3), help="How far to go, see above; default 2.")
@click.option("--passes", metavar="PIPELINE", help='Run these passes instead of a level\'s: "fold,cse,dce".')
@click.option("--opset", type=int, metavar="N", help="Write at opset N; default: the model's own.")
@click.option(
    "--target", type=click.Choice(["onnx", "onnxruntime"]), default="onnx", show_default=True,
    help="Who is to read the result; `onnxruntime` uses com.microsoft operators.",
)  # fmt: skip
@click.option("--keep-fused", is_flag=True, help="Write fused operators as they are wherever the opset has them.")
@click.option("--functions", is_flag=True, help="Fuse all that has a name; what the opset lacks becomes a function.")
@click.option("--remarks", is_flag=True, help="List fusions made, near misses, and what was written as its parts.")
@click.option("--dim", "dims", multiple=True, metavar="NAME=SIZE", help="Give a symbolic dim a size: batch=1.")
@click.option(
    "--input-shape", "shapes", multiple=True, metavar="INPUT:DIMS", help="Fix an input's shape: x:1,3,320,320."
)
@click.option("--inputs", multiple=True, metavar="NAMES", help="Cut: these tensors become the inputs (a,b,...).")
@click.option("--outputs", multiple=True, metavar="NAMES", help="Cut: these tensors become the outputs.")
@click.option("--with-shapes", is_flag=True, help="List the shapes of all tensors in the file.")
@click.option("--no-parity", is_flag=True, help="Do not check that the result computes the same.")
@click.option("--require-parity", is_flag=True, help="Fail as well if the check is not possible.")
@click.option(
    "--input", "given", multiple=True, metavar="NAME=FILE", help="Check on this input too: x=x.npy, rate=16000."
)
@click.option("--runs", type=click.IntRange(1), default=2, show_default=True, help="Checks on made-up inputs.")
@click.option("--seed", type=int, default=0, show_default=True, help="For made-up inputs.")
@click.option("--rtol", type=click.FloatRange(0), metavar="R", help="Allowed max|a-b| / max|b|; default 1e-4 for f32.")
@click.option("--bisect", is_flag=True, help="If the check fails, find the rewrite that is to blame.")
@click.option("--print-ir-after-all", is_flag=True, help="Print the model after every pass, on standard error.")
@click.option(
    "--trace",
    "trace_folder",
    metavar="DIR",
    help="Write down every rewrite as JSON lines, and the model after each pass.",
)
@click.option("--ledger", is_flag=True, help="Show what each pass saved: nodes, arithmetic, memory traffic.")
@click.option("--verify-each", is_flag=True, help="Verify the model after every pass.")
@click.option("--json", "as_json", is_flag=True, help="Report as JSON on standard output.")
def optimize(**options: Any) -> None:
    """Write a smaller, cleaner MODEL (.onnx) that computes the same, and check that it does.

    \b
    tilewright optimize model.onnx -o smaller.onnx
    tilewright optimize model.onnx --dim batch=1 --input image=photo.npy --require-parity

    \b
    -O0  reads and writes the model, nothing else
    -O1  only rewrites whose results are the same to the last bit
    -O2  also reassociates arithmetic, such as BatchNormalization into Conv, and recombines decomposed operators
    -O3  also rewrites with a stated error, and ones that cost more time

    Fused operators that ONNX Runtime cannot run, or runs slower than their parts, are written as their parts unless
    --keep-fused says otherwise. Attention that is nearly, but not quite, what the operator can say is always reported.

    Original and result run in ONNX Runtime, its optimizations off, on made-up inputs and on those of --input. If
    they disagree nothing is written and the exit code is 1.
    """
    from tilewright.tools._optimize import run

    run(**options)


if __name__ == "__main__":
    from _script import run

    run(optimize)
