"""What `tilewright train` does: the step, the data, the loop with its progress bar, and the files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import numpy as np

import tilewright
from tilewright import train
from tilewright.backends.training.chart import spans_decades
from tilewright.backends.training.checkpoint import check_checkpoint
from tilewright.backends.training.trainer import check_classes
from tilewright.graph.diagnostics import DiagnosticLog, ModelError, UsageError
from tilewright.graph.paths import check_source, check_target
from tilewright.graph.types import TensorType
from tilewright.passes.training.step import Roles
from tilewright.tools._inputs import split_names
from tilewright.tools._show import console, print_json, show_diagnostics
from tilewright.tools.cli import INTERRUPTED

if TYPE_CHECKING:
    from tilewright.graph.module import Module


def execute(options: dict[str, Any]) -> None:
    """Run the command. Raises what a bad model, bad data or a bad option raises, before anything is written."""
    if options["data"] is None and options["export"] is None:
        raise click.UsageError("there is nothing to do: give --data to train, or --export to write the step")
    check_source(options["model"], ModelError)
    files = _Files.of(options)
    log = DiagnosticLog()
    model = tilewright.load(options["model"], log=log)
    if options["training_form"]:
        model = train.training_form(model, log)
    data = None if options["data"] is None else train.Dataset.load(options["data"])
    step = _step(model, options, data, log)
    if options["memory_budget"]:
        _fit_memory(step, options, data, log)
    show_diagnostics(log.diagnostics)
    shown = ("train/", "rematerialize/")
    for remark in (each for each in log.diagnostics if each.severity == "remark" and each.code.startswith(shown)):
        click.echo(remark.render(), err=True)
    if options["export"] is not None:
        tilewright.save(step, options["export"], opset=options["opset"])
        if not options["as_json"]:
            click.echo(f"the training step is in {options['export']}", err=True)
    if data is not None:
        _Training(model, step, data, options, files).run()


# With these changed, a run that goes on is another run: what was held out may have been trained on.
OF_THE_RUN = ("data", "loss", "validation")


class _Files(NamedTuple):
    """What a training run writes."""

    output: Path
    plot: Path
    checkpoint: Path

    @classmethod
    def of(cls, options: dict[str, Any]) -> _Files:
        """The files that `options` name or imply. Raises UsageError for one that cannot be written, before any work."""
        output = Path(options["output"] or Path(options["model"]).with_suffix(".trained.onnx"))
        check_target(options["output"] or output)
        plot = Path(options["plot"] or output.with_suffix(".loss.png"))
        checkpoint = Path(options["checkpoint"] or output.with_suffix(".checkpoint.npz"))
        if options["data"] is not None:
            for what, path in [("plot", plot), ("checkpoint", checkpoint)]:
                check_target(options[what] or path, what)
        if options["export"] is not None:
            check_target(options["export"], "training step")
        files = cls(output, plot, checkpoint)
        files.check_apart(options)
        return files

    def check_apart(self, options: dict[str, Any]) -> None:
        """Raises UsageError if what is written is one file with something else; a model may be trained in place."""
        written = {"training step": options["export"]}
        if options["data"] is not None:
            written |= {"output": self.output, "plot": self.plot, "checkpoint": self.checkpoint}
        seen = {os.path.realpath(options[what]): what for what in ("data", "model") if options[what] is not None}
        for what, path in written.items():
            place = "" if path is None else os.path.realpath(path)
            if place in seen and (what, seen[place]) != ("output", "model"):
                raise UsageError("train/same-file", f"the {what} and the {seen[place]} are one file, {path}")
            if place:
                seen[place] = what


def _step(model: Module, options: dict[str, Any], data: train.Dataset | None, log: DiagnosticLog) -> Module:
    return train.step(
        model,
        options["loss"],
        _optimizer(options, data),
        split_names(options["params"]) or None,
        output=options["output_name"],
        target=options["target_name"],
        clip_value=options["clip_value"],
        clip_norm=options["clip_norm"],
        accumulate=options["accumulate"],
        loss_scale=train.LossScale() if options["loss_scale"] else None,
        seed=options["seed"],
        bn_variance="unbiased" if options["unbiased"] else "population",
        log=log,
    )


def _fit_memory(step: Module, options: dict[str, Any], data: train.Dataset | None, log: DiagnosticLog) -> None:
    """Run `rematerialize`, with the sizes that batches of the data give to the dims of the inputs."""
    from tilewright.graph.dims import is_symbol, label_of
    from tilewright.passes.context import PassContext
    from tilewright.passes.training.rematerialize import Rematerialize

    sizes: dict[str, int] = {}
    arrays = {} if data is None else data.arrays
    for argument in step.main.inputs:
        shape = argument.type.shape if isinstance(argument.type, TensorType) else None
        found = arrays.get(str(argument.name))
        for axis, dim in enumerate(shape or ()):
            if found is not None and axis < found.ndim and is_symbol(dim):
                sizes[label_of(dim)] = options["batch_size"] if axis == 0 else found.shape[axis]
    given = tuple(f"{name}={size}" for name, size in sizes.items())
    Rematerialize(budget=options["memory_budget"], dims=given).run(step, PassContext(log=log))


def _optimizer(options: dict[str, Any], data: train.Dataset | None) -> train.Optimizer:
    from tilewright.passes.training.optimizers import by_name

    made = by_name(options["optimizer"], options["learning_rate"])
    rate = made.learning_rate
    assert isinstance(rate, float | int)
    schedule: train.Schedule = train.Constant(rate)
    if options["schedule"] == "cosine":
        if data is None:
            raise UsageError("train/schedule", "a cosine needs to know how many updates there are: give --data")
        batches = -(-_training_examples(options, data) // options["batch_size"])
        updates = batches * options["epochs"] // options["accumulate"] - options["warm_up"]
        schedule = train.Cosine(rate, max(updates, 1))
    if options["warm_up"]:
        schedule = train.WarmUp(options["warm_up"], schedule)
    decay = {} if options["weight_decay"] is None else {"weight_decay": options["weight_decay"]}
    return replace(made, learning_rate=schedule, **decay)


def _training_examples(options: dict[str, Any], data: train.Dataset) -> int:
    return len(data) - round(len(data) * (options["validation"] or 0))


class _Training:
    """One run of the command that trains."""

    def __init__(
        self, model: Module, step: Module, data: train.Dataset, options: dict[str, Any], files: _Files
    ) -> None:
        self.model, self.options = model, options
        self.facts = _facts(options, data)
        # Before the step is compiled, which may take a while.
        data = _fitting(data, step)
        check_classes(Roles.of(step), data.arrays)
        if not options["resume"]:
            check_checkpoint(files.checkpoint)
            _set_aside(files.checkpoint)
        anomaly = options["detect_anomaly"]
        with _waiting("compiling the training step"):
            self.trainer = train.Trainer(step, options["backend"], options["threads"], detect_anomaly=anomaly)
        self.held_out: train.Dataset | None = None
        if options["validation"]:
            data, self.held_out = data.split(options["validation"], options["seed"])
        self.batches = data.shuffle(options["seed"]).batch(options["batch_size"])
        self.output, self.plot, self.checkpoint = files
        self.validation: list[dict[str, float]] = []
        self.evaluator = self._evaluator() if self.held_out is not None else None

    def run(self) -> None:
        options = self.options
        with _Bar(options["epochs"], len(self.batches)) as bar:

            def on_epoch(run: train.Run) -> None:
                if self.evaluator is not None:
                    self.validation.append(self._validate())
                bar.epoch(self._epoch_line(run))

            run = train.fit(
                self.trainer,
                self.batches,
                options["epochs"],
                checkpoint=self.checkpoint,
                every=options["checkpoint_every"],
                resume=options["resume"],
                on_start=self._say_where if options["resume"] else None,
                on_step=bar.step,
                on_epoch=on_epoch,
                facts={**self.facts, "planned": options["epochs"]},
            )
        if run.interrupted:
            done = f"interrupted after {len(run.losses)} steps; {self.checkpoint} is saved, --resume goes on"
            click.echo(done, err=True)
            raise SystemExit(INTERRUPTED)
        self._finish(run)

    def _say_where(self, run: train.Run) -> None:
        """Tell from where a run with --resume goes on. Raises UsageError if it is not the run that was begun."""
        if run.resumed:
            self._compare(run.resumed)
        done, total = len(run.losses), self.options["epochs"] * len(self.batches)
        if not self.checkpoint.exists():
            text = f"there is no checkpoint {self.checkpoint}: training starts from the beginning"
        elif run.epoch >= self.options["epochs"]:
            text = f"resumed at step {done} of {total}: nothing is left to do; a larger --epochs trains on"
        else:
            text = f"resumed at step {done} of {total}, from {self.checkpoint}"
        click.echo(text, err=True)

    def _compare(self, before: dict[str, Any]) -> None:
        """Other data or another loss are another run; another learning rate may be meant."""
        changed = [name for name, value in self.facts.items() if name in before and before[name] != value]
        wrong = [name for name in changed if name in OF_THE_RUN]
        texts = [f"{name} was {before[name]}, and is {self.facts[name]}" for name in changed]
        if wrong:
            hint = "--checkpoint with another file, or without --resume, begins another run"
            message = f"{self.checkpoint} is of a run with other {' and '.join(wrong)}"
            raise UsageError("train/resume", message, notes=[*texts, hint])
        if changed:
            click.echo(f"warning: this is not the run that was begun: {'; '.join(texts)}", err=True)

    def _finish(self, run: train.Run) -> None:
        trained = train.inference_form(self.trainer.trained(self.model))
        tilewright.save(trained, self.output, opset=self.options["opset"])
        train.save_chart(self.plot, {"loss": run.losses}, "loss by step", spans_decades(run.losses))
        if self.options["as_json"]:
            files = {"output": str(self.output), "plot": str(self.plot)}
            print_json({**files, "steps": len(run.losses), "losses": run.losses, "validation": self.validation})
            return
        out = console()
        out.print(train.text_curve(run.losses))
        out.print(f"loss {run.losses[0]:.4g} to {run.losses[-1]:.4g} in {len(run.losses)} steps")
        out.print(f"wrote {self.output} and {self.plot}")

    def _epoch_line(self, run: train.Run) -> str:
        recent = run.losses[-len(self.batches) :]
        line = f"epoch {run.epoch}/{self.options['epochs']}  loss {np.mean(recent):.4g}"
        if self.validation:
            line += "".join(f"  {name} {value:.4g}" for name, value in self.validation[-1].items())
        return line

    # ---- validation ----------------------------------------------------------------------------------------------

    def _evaluator(self) -> Any:
        options = self.options
        module = train.evaluation(
            train.inference_form(self.model),
            options["loss"],
            list(self.trainer.state),
            output=options["output_name"],
            target=options["target_name"],
        )
        return tilewright.compile(module, target=options["backend"], threads=options["threads"])

    def _validate(self) -> dict[str, float]:
        """The loss on what was held out, and for classes the share that is right."""
        assert self.held_out is not None
        assert self.evaluator is not None
        inputs = {port.name for port in self.evaluator.inputs}
        state = {name: value for name, value in self.trainer.state.items() if name in inputs}
        losses, right, count = 0.0, 0, 0
        for batch in self.held_out.batch(self.options["batch_size"]).epoch(0):
            results = self.evaluator.run({**batch, **state})
            loss, *others = results.values()
            target = batch.get(self.options["target_name"])
            size = len(next(iter(batch.values())))
            losses, count = losses + float(loss) * size, count + size
            scores = results.get(self.options["output_name"], others[0] if others else None)
            if scores is not None and target is not None and np.ndim(scores) == 2 and target.ndim == 1:
                right += int((np.argmax(scores, axis=1) == target).sum())
        found = {"validation loss": losses / count}
        return {**found, "accuracy": right / count} if right else found


def _facts(options: dict[str, Any], data: train.Dataset) -> dict[str, Any]:
    """What the losses of a run depend on, besides the model, which the names and shapes of its state tell."""
    names = (
        "loss", "validation", "optimizer", "learning_rate", "schedule", "warm_up", "weight_decay", "batch_size", "seed",
        "clip_norm", "clip_value", "loss_scale", "training_form", "unbiased", "output_name", "target_name",
    )  # fmt: skip
    facts = {name.replace("_", "-"): options[name] for name in names}
    content = hashlib.blake2b(digest_size=8)
    for name, array in sorted(data.arrays.items()):
        content.update(f"{name} {array.dtype} {array.shape}".encode())
        content.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    if options["schedule"] == "cosine":
        facts["epochs"] = options["epochs"]
    if options["validation"]:
        facts["validation"] = f"{options['validation']} drawn with seed {options['seed']}"
    return {"data": f"{len(data)} examples ({content.hexdigest()})", **facts}


def _set_aside(path: Path) -> None:
    """Keep the checkpoint of a run that did not end: a forgotten --resume would replace it."""
    if not path.exists():
        return
    try:
        before = train.load_checkpoint(path)
    except UsageError:
        return  # damaged, and so of no use
    if before.epoch < before.facts.get("planned", 0):
        old = path.with_name(f"{path.name}.old")
        os.replace(path, old)
        steps = len(before.losses)
        click.echo(f"warning: {path} was of a run that ended after {steps} steps; it is {old} now", err=True)
        click.echo("  note: --resume would have gone on from there", err=True)


def _fitting(data: train.Dataset, step: Module) -> train.Dataset:
    """The arrays that the step takes, in its element types. Raises UsageError for those that miss or do not fit."""
    types = {str(each.name): each.type for each in step.main.inputs if each not in step.main.defaults}
    missing = [name for name in types if name not in data.arrays]
    if missing:
        notes = [f"it has {', '.join(data.arrays)}", f"the step takes {', '.join(types)}"]
        raise UsageError("data/missing", f"the data has no array {missing[0]!r}", notes=notes)
    return train.Dataset({name: _typed(name, data.arrays[name], type) for name, type in types.items()})


def _typed(name: str, array: np.ndarray, type: Any) -> np.ndarray:
    if not isinstance(type, TensorType):
        return array
    _check_shape(name, array, type)
    if array.dtype == type.dtype.numpy:
        return array
    wanted = type.dtype.numpy
    if array.dtype.kind in "iu" and type.dtype.is_integer:
        converted = array.astype(wanted)
        if (converted == array).all():
            return converted
    elif array.dtype.kind in "biuf" and type.dtype.is_float:
        return array.astype(wanted)
    raise UsageError("data/type", f"{name!r} has elements of {array.dtype}, the model takes {type.dtype}")


@contextmanager
def _waiting(what: str) -> Iterator[None]:
    """Say on a terminal what takes a while."""
    out = console(stderr=True)
    if not out.is_terminal:
        yield
        return
    with out.status(what):
        yield


def _check_shape(name: str, array: np.ndarray, type: TensorType) -> None:
    """Raises UsageError unless each example is as the model takes them; how many there are is up to the batches."""
    shape = type.shape
    if shape is None:
        return
    pairs = zip(array.shape[1:], shape[1:], strict=False)
    if array.ndim != len(shape) or any(isinstance(dim, int) and size != dim for size, dim in pairs):
        raise UsageError("data/shape", f"{name!r} is of shape {array.shape}, the model takes {type}")


class _Bar:
    """A progress bar on a terminal, and a line for each epoch wherever standard error goes."""

    def __init__(self, epochs: int, batches: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = TextColumn("{task.description}"), BarColumn(30), MofNCompleteColumn(), TimeRemainingColumn()
        self.console = console(stderr=True)
        self.progress = Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal)
        self.task = self.progress.add_task("training", total=epochs * batches)

    def __enter__(self) -> _Bar:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def step(self, run: train.Run) -> None:
        self.progress.update(self.task, completed=len(run.losses), description=f"loss {run.losses[-1]:.4g}")

    def epoch(self, line: str) -> None:
        self.console.print(line)
