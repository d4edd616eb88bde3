"""Training: a step is one graph (`step`), a `Trainer` runs it, `check_gradients` checks gradients by differences.

step = tilewright.train.step(model, loss="cross-entropy", optimizer=tilewright.train.Adam(1e-3))
trainer = tilewright.train.Trainer(step)
for batch in batches:                       # {"x": array, "target": array}
    loss = trainer.step(batch)
tilewright.save(trainer.trained(model), "trained.onnx")
tilewright.save(step, "step.onnx")          # any ONNX runtime can train with this one
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .backends.model_source import ModelLike, open_model

if TYPE_CHECKING:
    from .backends.training.chart import save_chart, text_curve
    from .backends.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
    from .backends.training.data import Batches, Dataset, IterableBatches
    from .backends.training.loop import Run
    from .backends.training.trainer import Trainer
    from .graph.diagnostics import DiagnosticLog
    from .graph.module import Module
    from .graph.nn.losses import Loss
    from .passes.training.check import GradientReport
    from .passes.training.newton import NewtonCG
    from .passes.training.optimizers import LAMB, SGD, Adagrad, Adam, AdamW, Momentum, Optimizer, RMSprop
    from .passes.training.schedules import Constant, Cosine, Schedule, StepDecay, WarmUp
    from .passes.training.step import LossFunction, LossScale

# What is only loaded when it is asked for.
_PUBLIC = {
    "Adagrad": "passes.training.optimizers",
    "Adam": "passes.training.optimizers",
    "AdamW": "passes.training.optimizers",
    "Batches": "backends.training.data",
    "Checkpoint": "backends.training.checkpoint",
    "Constant": "passes.training.schedules",
    "Cosine": "passes.training.schedules",
    "Dataset": "backends.training.data",
    "IterableBatches": "backends.training.data",
    "LAMB": "passes.training.optimizers",
    "LossScale": "passes.training.step",
    "Momentum": "passes.training.optimizers",
    "NewtonCG": "passes.training.newton",
    "Optimizer": "passes.training.optimizers",
    "RMSprop": "passes.training.optimizers",
    "Run": "backends.training.loop",
    "SGD": "passes.training.optimizers",
    "Schedule": "passes.training.schedules",
    "StepDecay": "passes.training.schedules",
    "Trainer": "backends.training.trainer",
    "WarmUp": "passes.training.schedules",
    "load_checkpoint": "backends.training.checkpoint",
    "save_chart": "backends.training.chart",
    "save_checkpoint": "backends.training.checkpoint",
    "text_curve": "backends.training.chart",
}


def step(
    model: ModelLike,
    loss: str | Loss | LossFunction = "cross-entropy",
    optimizer: Optimizer | str = "adam",
    params: Any = None,
    *,
    output: str | None = None,
    target: str = "target",
    clip_value: float | None = None,
    clip_norm: float | None = None,
    accumulate: int = 1,
    loss_scale: LossScale | float | None = None,
    seed: int = 0,
    bn_variance: str = "population",
    master_weights: bool = True,
    stops: str = "stop",
    passes: str = "fold,simplify-shapes,cse,dce",
    log: DiagnosticLog | None = None,
) -> Module:
    """One training step as a module: forward, loss, backward, update. `model` stays as it is.

    Inputs: those of the model, `target`, and with defaults the parameters (under their names), the optimizer's state
    (`NAME_momentum`, ...) and `step`, the number of calls so far. Outputs: `loss`, those of the model, and `NAME_next`
    for each parameter and state: what to feed as NAME to the next call.

    Args:
        loss: "cross-entropy", "nll", "mse", "l1", "bce", "bce-logits"; or a loss of `tilewright.nn` with options; or
            the name of an output of the model that is the loss; or a function of a builder and the model's outputs by
            name, which may add inputs.
        optimizer: an `Optimizer`, or its name in lower case.
        params: names of initializers, in any nesting, `*` and `?` matching as in file names. Default: all float ones
            with a name, but for masks, the running statistics of BatchNormalization, and single numbers that are
            neither of a layer of `nn` nor the weight or bias of an operator. A file does not tell weights from tables,
            such as frequencies: remarks in `log` list what was chosen and what was not.
        output: the output, or any other tensor, that a named loss looks at (default: the first float output).
        target: a name for the input that it compares with.
        clip_value, clip_norm: bounds on each element of the gradients, and on the norm of all of them together.
        accumulate: update once in this many calls, by the mean of their gradients.
        loss_scale: see `LossScale`; a number for one that stays as it is.
        seed: of Dropout's masks, which depend on it, on `step` and on nothing else.
        bn_variance: "population" (ONNX) or "unbiased" (PyTorch), for running variances.
        master_weights: keep parameters in f16 or bf16 as f32.
        stops: as of `gradient`.
        passes: a pipeline to run on the result.

    BatchNormalization and Dropout train only if they are in training form, which a remark in `log` tells. Without a
    `log`, warnings are Python's (ModelWarning). Raises UsageError for what does not fit, GradientError for what cannot
    be differentiated.
    """
    import warnings

    from .graph.diagnostics import DiagnosticLog
    from .importers.onnx.read import ModelWarning
    from .passes.context import PassContext
    from .passes.manager import PassManager
    from .passes.training.step import StepOptions, build_step

    options = StepOptions(
        loss, optimizer, params, output, target, clip_value, clip_norm, accumulate, loss_scale, seed, bn_variance,
        master_weights, stops,
    )  # fmt: skip
    found = DiagnosticLog() if log is None else log
    made = build_step(open_model(model).module, options, found)
    for each in found.warnings if log is None else ():
        warnings.warn(each.render(), ModelWarning, stacklevel=2)
    if passes:
        PassManager.parse(passes).run(made, PassContext(may_grow=False))
    return made


def evaluation(
    model: ModelLike,
    loss: str | Loss | LossFunction = "cross-entropy",
    names: Sequence[str] = (),
    *,
    output: str | None = None,
    target: str = "target",
) -> Module:
    """A module that computes the loss and then the outputs of `model`, such as its `inference_form`.

    Those of its initializers that `names` names, such as a trainer's state, become inputs: so one executable evaluates
    a model again and again while it is trained. Other arguments as of `step`.
    """
    from .passes.training.step import StepOptions, build_evaluation

    return build_evaluation(open_model(model).module, StepOptions(loss, output=output, target=target), names)


def fit(
    trainer: Trainer,
    data: Any,
    epochs: int,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    every: int = 0,
    resume: bool = False,
    on_step: Callable[[Run], None] | None = None,
    on_epoch: Callable[[Run], None] | None = None,
    on_start: Callable[[Run], None] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Run:
    """Train for `epochs` epochs, and return the losses and where it stopped.

    `data` is `Dataset(...).shuffle(seed).batch(size)`, with further steps behind if you like, or any iterable of dicts
    or (x, target) that can be started again, such as a list or a torch DataLoader.

    `checkpoint` is a file, always whole, that is written after each `every` steps, at the end, and when Ctrl-C asks to
    stop; `resume` goes on from it, and losses are bit for bit those of a run that never stopped (if the data depends on
    epoch and seed alone). `on_step` and `on_epoch` are called with what was done so far,
    `on_start` once before the first step with what was resumed. `facts` go into the checkpoint, and come back as
    `resumed` of a run that goes on from it.
    """
    from .backends.training.loop import fit as run

    return run(
        trainer, data, epochs, checkpoint=checkpoint, every=every, resume=resume, on_step=on_step, on_epoch=on_epoch,
        on_start=on_start, facts=facts,
    )  # fmt: skip


def training_form(model: ModelLike, log: DiagnosticLog | None = None) -> Module:
    """A copy of `model` in which BatchNormalization uses the statistics of its batch and Dropout drops.

    A BatchNormalization that was folded into a convolution at export cannot come back: `log` is told which layers may
    have had one, and `folded_layers` lists them.
    """
    from .passes.training.forms import training_form as switch

    return switch(open_model(model).module, log)


def inference_form(model: ModelLike) -> Module:
    """A copy of `model` in which BatchNormalization uses its running statistics and Dropout does nothing."""
    from .passes.training.forms import inference_form as switch

    return switch(open_model(model).module)


def folded_layers(model: ModelLike) -> list[str]:
    """The convolutions with a bias and no BatchNormalization behind them, by name or place."""
    from .passes.training.forms import folded_layers as find

    return find(open_model(model).module)


def check_gradients(
    model: ModelLike,
    feeds: Mapping[str, Any] | None = None,
    of: Any = None,
    wrt: Any = None,
    *,
    directions: int = 2,
    tolerance: float = 1e-6,
    seed: int = 0,
) -> GradientReport:
    """Compare the gradient of a model with differences, in float64: `print` the report, or ask whether it `passed`.

    Args:
        feeds: the inputs of the point to check at; those left out are made up from `seed`.
        of: names of float outputs or other tensors (default: all float outputs), weighted at random.
        wrt: names of float inputs and initializers (default: all).
        directions: how many random directions to go for each of them.
        tolerance: the relative error up to which a derivative counts as right.

    A parameter at a kink, such as a Relu's at 0, is reported as one and not counted. Raises UsageError if there is
    nothing to check, GradientError if there is no gradient.
    """
    from .backends.feeds import FeedPlan
    from .passes.training.check import check_gradients as run

    module = open_model(model).module
    given = dict(feeds or {})
    if any(argument.name not in given for argument in module.main.inputs):
        plan = FeedPlan(module, given=given)
        given = plan.feeds(next(plan.scenarios()), seed)
    return run(module, given, of, wrt, directions=directions, tolerance=tolerance, seed=seed)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_PUBLIC[name]}", __package__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "LAMB",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Batches",
    "Checkpoint",
    "Constant",
    "Cosine",
    "Dataset",
    "IterableBatches",
    "LossScale",
    "Momentum",
    "NewtonCG",
    "Optimizer",
    "RMSprop",
    "Run",
    "Schedule",
    "StepDecay",
    "Trainer",
    "WarmUp",
    "check_gradients",
    "evaluation",
    "fit",
    "folded_layers",
    "inference_form",
    "load_checkpoint",
    "save_chart",
    "save_checkpoint",
    "step",
    "text_curve",
    "training_form",
]
