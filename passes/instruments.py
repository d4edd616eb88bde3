"""Instruments watch a pipeline: print the IR around passes, verify after each, add up times and statistics."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TextIO, TypeAlias

from .fingerprint import fingerprint

if TYPE_CHECKING:
    from ..graph.module import Module
    from .base import Pass
    from .context import PassContext
    from .report import PipelineReport

PrintWhen: TypeAlias = Literal["before", "after", "on-change"]


class Instrument:
    """What can be watched; override what you need."""

    def before_pipeline(self, module: Module, context: PassContext) -> None:
        """Before the first pass."""

    def before_pass(self, step: Pass, module: Module, context: PassContext) -> None:
        """Before `step` runs."""

    def after_pass(self, step: Pass, module: Module, changed: bool, context: PassContext) -> None:
        """After `step` ran without an error."""

    def failed(self, step: Pass, module: Module, error: Exception, context: PassContext) -> None:
        """`step` raised; `module` may be half rewritten."""


class PrintIR(Instrument):
    """Prints the module before passes, after them, or after those that changed it.

    `where` is a stream (default: standard error) or a folder, which gets numbered files `003-after-fold.tw`.
    `only` restricts it to passes of these names.
    """

    def __init__(
        self,
        when: PrintWhen = "after",
        where: TextIO | str | Path | None = None,
        only: Collection[str] = (),
    ) -> None:
        self.when, self.only = when, only
        self.where: TextIO | Path = sys.stderr if where is None else Path(where) if isinstance(where, str) else where
        self._number = 0
        if isinstance(self.where, Path):
            self.where.mkdir(parents=True, exist_ok=True)

    def before_pass(self, step: Pass, module: Module, context: PassContext) -> None:
        self._number += 1
        if self.when == "before":
            self._print("before", step, module)

    def after_pass(self, step: Pass, module: Module, changed: bool, context: PassContext) -> None:
        if self.when == "after" or (self.when == "on-change" and changed):
            self._print("after", step, module)

    def _print(self, place: str, step: Pass, module: Module) -> None:
        if self.only and step.name not in self.only:
            return
        if isinstance(self.where, Path):
            path = self.where / f"{self._number:03d}-{place}-{step.name}.tw"
            path.write_text(str(module), encoding="utf-8")
            return
        self.where.write(f"// ---- {place} {self._number}: {step}\n{module}\n")


class CheckChanged(Instrument):
    """Raises AssertionError if a pass says that it changed nothing and did, or the other way round."""

    def __init__(self) -> None:
        self._before = 0

    def before_pass(self, step: Pass, module: Module, context: PassContext) -> None:
        self._before = fingerprint(module)

    def after_pass(self, step: Pass, module: Module, changed: bool, context: PassContext) -> None:
        really = fingerprint(module) != self._before
        if really != changed:
            said = "changed" if changed else "did not change"
            raise AssertionError(f"the pass {step.name} says that it {said} the module, which is not so")


def timing_tree(report: PipelineReport) -> str:
    """Where the time went: one line per pass or repeat, in the order of their first run, with how often it ran."""
    seconds: dict[tuple[str, ...], float] = {(): report.seconds}
    times: Counter[tuple[str, ...]] = Counter()
    for row in report.rows:
        for depth in range(1, len(row.path) + 1):
            place = row.path[:depth]
            seconds[place] = seconds.get(place, 0.0) + row.seconds
        place = (*row.path, row.text)
        seconds[place] = seconds.get(place, 0.0) + row.seconds
        times[place] += 1
    lines = [_timing_line("pipeline", report.seconds, report.seconds, 0)]
    for place, amount in seconds.items():
        if place:
            count = f" x {times[place]}" if times[place] > 1 else ""
            lines.append(_timing_line(place[-1] + count, amount, report.seconds, len(place)))
    rest = report.seconds - sum(row.seconds for row in report.rows)
    return "\n".join([*lines, _timing_line("checks and bookkeeping", rest, report.seconds, 1)])


def _timing_line(what: str, seconds: float, total: float, depth: int) -> str:
    return f"{seconds * 1e3:9.2f} ms  {100 * seconds / total if total else 0.0:5.1f}%  {'  ' * depth}{what}"


def statistics_text(statistics: Mapping[str, Counter[str]]) -> str:
    """What passes counted, one line each."""
    return "\n".join(
        f"{amount:8d}  {name}: {what}" for name, counts in statistics.items() for what, amount in counts.items()
    )
