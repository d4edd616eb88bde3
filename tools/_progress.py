"""A progress bar on standard error for commands that take a while; nothing where nobody would see it."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

from tilewright.passes.instruments import Instrument

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from tilewright.graph.module import Module
    from tilewright.passes.base import Pass
    from tilewright.passes.context import PassContext


class Progress:
    """`start` names what is being done and moves on by one of `steps`."""

    def __init__(self, steps: int, disable: bool = False) -> None:
        self._bar = _bar() if sys.stderr.isatty() and not disable else None
        self._task = self._bar.add_task("", total=steps) if self._bar is not None else None
        self._started = 0

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def start(self, what: str) -> None:
        """The next step begins."""
        self.detail(what)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._started)
        self._started += 1

    def detail(self, what: str) -> None:
        """Say more about the step in progress."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=what)

    def instrument(self) -> Instrument:
        """Shows which pass is running."""
        return _PassProgress(self)


def _bar() -> Bar:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description:<40}"), BarColumn(24), TimeElapsedColumn()
    return Progress(*columns, console=Console(stderr=True), transient=True)


class _PassProgress(Instrument):
    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def before_pass(self, step: Pass, module: Module, context: PassContext) -> None:
        self.progress.detail(f"rewriting: {step.name}")
