"""`tilewright train`: a model and data go in, the trained model comes out; or the training step itself, as a file."""

from __future__ import annotations

from typing import Any

import click

LOSSES = ("cross-entropy", "nll", "mse", "l1", "bce", "bce-logits")
OPTIMIZERS = ("sgd", "momentum", "nesterov", "adam", "adamw", "adagrad", "rmsprop", "lamb", "newton-cg")


@click.command("train")
@click.argument("model", type=click.Path())
@click.option("--data", type=click.Path(), metavar="NPZ", help="Arrays by input name, and the target's.")
@click.option(
    "--loss", default="cross-entropy", show_default=True, help=f"{', '.join(LOSSES)}; or an output that is it."
)
@click.option("--optimizer", type=click.Choice(OPTIMIZERS), default="adam", show_default=True)
@click.option("--learning-rate", type=float, metavar="RATE", help="Default: that of the optimizer.")
@click.option("--schedule", type=click.Choice(["constant", "cosine"]), default="constant", show_default=True)
@click.option("--warm-up", type=click.IntRange(0), default=0, metavar="N", help="Raise the rate linearly in N updates.")
@click.option("--weight-decay", type=float, metavar="D", help="Default: that of the optimizer.")
@click.option("--epochs", type=click.IntRange(1), default=1, show_default=True)
@click.option("--batch-size", type=click.IntRange(1), default=32, show_default=True)
@click.option("--accumulate", type=click.IntRange(1), default=1, metavar="N", help="Update once in N batches.")
@click.option("--params", multiple=True, metavar="NAMES", help="Initializers to train: a,b or head.*. Default: all.")
@click.option(
    "--output-name",
    metavar="NAME",
    help="The output or tensor that the loss looks at; default: the first float output.",
)
@click.option("--target-name", default="target", show_default=True, help="The array of targets.")
@click.option("--clip-norm", type=float, metavar="C", help="Bound the norm of all gradients together.")
@click.option("--clip-value", type=float, metavar="C", help="Bound each element of the gradients.")
@click.option("--loss-scale", is_flag=True, help="Scale the loss and adapt the scale; for models in f16.")
@click.option("--training-form", is_flag=True, help="Let BatchNormalization and Dropout train (see docs/training.md).")
@click.option("--unbiased", is_flag=True, help="Running variances as PyTorch counts them.")
@click.option("--validation", type=click.FloatRange(0, 1, True, True), metavar="SHARE", help="Hold out this share.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the order of examples and of Dropout.")
@click.option("-o", "--output", metavar="OUT", help="The trained model; default: MODEL with `.trained.onnx`.")
@click.option("--plot", metavar="PNG", help="The chart of losses; default: OUT with `.loss.png`.")
@click.option("--export", metavar="STEP", help="Write the training step as ONNX; without --data, nothing else is done.")
@click.option("--opset", type=int, metavar="N", help="For the files written; default: the model's own.")
@click.option("--checkpoint", metavar="FILE", help="Default: OUT with `.checkpoint.npz`.")
@click.option("--checkpoint-every", type=click.IntRange(0), default=0, metavar="K", help="Save after each K steps.")
@click.option("--resume", is_flag=True, help="Go on from the checkpoint, if it is there.")
@click.option("--detect-anomaly", is_flag=True, help="Name the operation that made the first NaN or infinity.")
@click.option("--target", "backend", default="cpu", show_default=True, help="What runs the step: cpu or reference.")
@click.option("--threads", type=click.IntRange(1), help="Worker threads; default: what the process may use.")
@click.option("--memory-budget", metavar="SIZE", help="Recompute results to keep at most 64MB or 60% of them alive.")
@click.option("--json", "as_json", is_flag=True, help="Report as JSON on standard output.")
def train(**options: Any) -> None:
    """Train MODEL (.onnx) on the arrays of a .npz file.

    \b
    tilewright train model.onnx --data data.npz --loss cross-entropy --optimizer adam --epochs 10 -o trained.onnx
    tilewright train model.onnx --loss mse --export step.onnx    # a step that any ONNX runtime trains with

    Ctrl-C stops after the step under way; the same command with --resume goes on from there, with the losses it would
    have had, and with a larger --epochs trains on after the end. The checkpoint is written then and at the end.
    """
    from tilewright.tools._train import execute

    execute(options)


if __name__ == "__main__":
    from _script import run

    run(train)
