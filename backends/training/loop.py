"""`fit`: epochs over batches, with checkpoints, so that an interrupted run goes on as if it had not been."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from ...graph.diagnostics import ExecutionError, UsageError, listed
from ...graph.paths import check_target
from .checkpoint import Checkpoint, check_checkpoint, load_checkpoint, save_checkpoint
from .data import as_batches

if TYPE_CHECKING:
    from .trainer import Trainer


@dataclass
class Run:
    """What `fit` did: the loss of each step (those before a resumed checkpoint too), and where it stopped.

    `resumed` are the facts of the run whose checkpoint it went on from, None if it went on from none.
    """

    losses: list[float] = field(default_factory=list)
    epoch: int = 0
    batch: int = 0
    interrupted: bool = False
    resumed: dict[str, Any] | None = None

    def __repr__(self) -> str:
        ends = f", losses {self.losses[0]:.4g} to {self.losses[-1]:.4g}" if self.losses else ""
        stopped = ", interrupted" if self.interrupted else ""
        return f"<Run of {len(self.losses):,} steps, {self.epoch} epochs{ends}{stopped}>"


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
    """Train for `epochs` epochs of `data`: Batches, or any iterable of dicts or (x, target) that can be started again.

    `checkpoint` is a file that is written after each `every` steps, at the end, and when Ctrl-C asks to stop, which
    takes effect after the step under way. `resume` goes on from that file if it is there: with data that depends on
    epoch and seed alone, losses are bit for bit those of a run that never stopped. `on_start` is called once,
    before the first step, with what was resumed. `facts` go into the checkpoint: whatever in JSON a run that goes on
    should be compared with.

    Raises UsageError for a damaged checkpoint or one of another step, ExecutionError from the step and for a state with
    NaN or infinity that should be saved; the checkpoint that was there stays.
    """
    for name, number in (("epochs", epochs), ("every", every)):
        if number < 0:
            raise UsageError("train/number", f"{name} is at least 0, not {number}")
    if resume and checkpoint is None:
        raise UsageError("train/resume", "resume needs the checkpoint to go on from")
    if checkpoint is not None:
        check_target(checkpoint, "checkpoint")
        if not resume:
            check_checkpoint(checkpoint)
    batches, run = as_batches(data), Run()
    if resume and checkpoint is not None and Path(checkpoint).exists():
        found = load_checkpoint(checkpoint)
        trainer.load_state(found.state, f"the state in {checkpoint}")
        run = Run(found.losses, found.epoch, found.batch, resumed=found.facts)

    if on_start is not None:
        on_start(run)

    def save() -> None:
        if checkpoint is not None:
            _refuse_bad_numbers(trainer, len(run.losses))
            saved = Checkpoint(trainer.state, run.epoch, run.batch, run.losses, dict(facts or {}))
            save_checkpoint(checkpoint, saved)

    with _interruptible() as stop:
        while run.epoch < epochs and not stop:
            for batch in islice(batches.epoch(run.epoch), run.batch, None):
                run.losses.append(trainer.step(batch))
                run.batch += 1
                if on_step is not None:
                    on_step(run)
                if every and len(run.losses) % every == 0:
                    save()
                if stop:
                    break
            else:
                if run.batch == 0:
                    raise UsageError("train/no-batches", f"epoch {run.epoch} has no batches")
                run.epoch, run.batch = run.epoch + 1, 0
                if on_epoch is not None:
                    on_epoch(run)
        run.interrupted = bool(stop)
    save()
    return run


def _refuse_bad_numbers(trainer: Trainer, steps: int) -> None:
    """Raises ExecutionError for a state that would be of no use; the checkpoint before it stays."""
    bad = trainer.not_finite()
    if bad:
        hints = (
            "the last checkpoint is as it was",
            "loss_scale=1.0 (--loss-scale) leaves out updates whose gradients are not finite",
            "detect_anomaly=True (--detect-anomaly) names the operation that made the first such number",
        )
        message = f"after {steps} steps {listed(bad)} {'is' if len(bad) == 1 else 'are'} not finite"
        raise ExecutionError("train/not-finite", message, notes=hints)


@contextmanager
def _interruptible() -> Iterator[list[bool]]:
    """A list that has an element once somebody pressed Ctrl-C; a second time raises KeyboardInterrupt as ever."""
    asked: list[bool] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(True)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)
