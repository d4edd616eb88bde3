"""A progress bar on standard error for commands that take a while; nothing where nobody would see it."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from tilewright.passes.instruments import Instrument

if TYPE_CHECKING:
    from tilewright.graph.module import Module
    from tilewright.passes.base import Pass
    from tilewright.passes.context import PassContext


class Progress:
    """`start` names what is being done and moves on by one of `steps`."""

    def __init__(self, disable: bool = False) -> None:
        columns = SpinnerColumn(), TextColumn("{task.description:<40}"), BarColumn(24), TimeElapsedColumn()
        visible = sys.stderr.isatty() and not disable
        self._bar = Bar(*columns, console=Console(stderr=True), transient=True, disable=not visible)
        self._task = self._bar.add_task("", total=None)
        self._started = 0

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def start(self, what: str, steps: int | None = None) -> None:
        if steps is not None:
            self._bar.update(self._task, total=steps)
        self._bar.update(self._task, description=what, completed=self._started)
        self._started += 1

    def detail(self, what: str) -> None:
        """Say more about the step in progress."""
        self._bar.update(self._task, description=what)

    def instrument(self) -> Instrument:
        """Shows which pass is running."""
        return _PassProgress(self)


class _PassProgress(Instrument):
    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def before_pass(self, step: Pass, module: Module, context: PassContext) -> None:
        self.progress.detail(f"rewriting: {step.name}")
