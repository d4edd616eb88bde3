"""Runs pipelines: in order, verified at level borders, timed, traced; says what failed and how to run it again.

PassManager.parse("import-cleanup,fold,repeat(max=4){cse,dce}").run(module)

A pass that found nothing to do is not run again before another pass has changed something: the last round of a repeat,
and a cleanup that stands in a pipeline twice, cost little.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ..graph.collector import paused_collector
from ..graph.diagnostics import PassError, TilewrightError, UsageError, VerifyError
from ..graph.module import Module
from . import options as option_text
from .base import Exactness, Pass, RulePass, is_allowed
from .context import Limits, PassContext
from .instruments import Instrument
from .pipeline_text import NamedItem, RepeatItem, parse_items, pipeline_text
from .pipelines import PRESETS
from .registry import pass_class
from .report import PassRow, PipelineReport, count_operations
from .reproducer import write_reproducer
from .sizes import written_bytes


@dataclass(frozen=True)
class Repeat:
    """Runs its steps in turn until a round changes nothing, at most `max` rounds."""

    steps: tuple[Step, ...]
    max: int = 4

    def __str__(self) -> str:
        bound = "" if self.max == 4 else f"(max={self.max})"
        return f"repeat{bound}{{{','.join(map(str, self.steps))}}}"


Step: TypeAlias = Pass | Repeat


class PassManager:
    """A pipeline: passes and repeats, in order.

    `verify_each` verifies after every pass that changed something, not only at level borders. `reproducers` is the
    folder for reproducers (default: the system's folder for temporary files; False: write none).
    """

    def __init__(
        self,
        steps: Iterable[Step],
        *,
        verify_each: bool = False,
        instruments: Iterable[Instrument] = (),
        reproducers: str | Path | bool = True,
    ) -> None:
        self.steps = tuple(steps)
        self.verify_each = verify_each
        self.instruments = list(instruments)
        self.reproducers = reproducers
        _check_order(self.passes)

    @classmethod
    def parse(
        cls,
        text: str | Sequence[str],
        *,
        verify_each: bool = False,
        instruments: Iterable[Instrument] = (),
        reproducers: str | Path | bool = True,
    ) -> PassManager:
        """The pipeline that `text`, or a list of such, describes; presets such as O2 stand for their passes. Raises
        UsageError."""
        steps = _steps(parse_items(pipeline_text(text)), ())
        return cls(steps, verify_each=verify_each, instruments=instruments, reproducers=reproducers)

    def __str__(self) -> str:
        return ",".join(map(str, self.steps))

    @property
    def passes(self) -> list[Pass]:
        """All passes in order, those of repeats once."""
        return list(_flatten(self.steps))

    @paused_collector()
    def run(self, module: Module, context: PassContext | None = None) -> PipelineReport:
        """Rewrite `module` in place.

        An error of a pass is raised with notes: the pass, the passes that ran before it, and where the reproducer is.
        The module is then in an undefined state between two passes.
        """
        if not isinstance(module, Module):
            raise UsageError(
                "usage/module", f"passes run on a Module, not on {type(module).__name__}", notes=["`load` gives one"]
            )
        run = _Run(self, module, context if context is not None else PassContext())
        return run.run()


class _Run:
    """One run of a pipeline over one module."""

    def __init__(self, manager: PassManager, module: Module, context: PassContext) -> None:
        self.manager, self.module, self.context = manager, module, context
        self.report = PipelineReport(module, str(manager))
        self.done: list[str] = []
        self.total = sum(1 for _ in _flatten(manager.steps))
        self.operations = count_operations(module)
        self.unverified = True
        self.logged = len(context.log.diagnostics)
        self.path: tuple[str, ...] = ()  # the repeats under way
        self.revision = 0  # goes up with every change to the module
        self.nothing_to_do: dict[Pass, int] = {}  # the revision at which a pass changed nothing

    def run(self) -> PipelineReport:
        started = time.perf_counter()
        trace = self.context.trace
        if not self.context.original_bytes:
            self.context.original_bytes = written_bytes(self.module)
        if trace is not None:
            trace.begin(self.module, str(self.manager))
        for instrument in self.manager.instruments:
            instrument.before_pipeline(self.module, self.context)
        self.source = self._source()
        error_text: str | None = None
        try:
            self._verify("before the first pass")
            self._run_steps(self.manager.steps, 0)
            if self.unverified:
                self._verify("after the last pass")
        except Exception as error:
            error_text = str(error)
            raise
        finally:
            self.report.seconds = time.perf_counter() - started
            self.report.diagnostics = self.context.log.diagnostics[:]
            if trace is not None:
                trace.end(self.report.seconds, error_text)
        return self.report

    def _run_steps(self, steps: Sequence[Step], round: int) -> bool:
        changed = False
        for step in steps:
            if isinstance(step, Repeat):
                changed |= self._repeat(step)
            else:
                changed |= self._run_pass(step, round)
        return changed

    def _repeat(self, step: Repeat) -> bool:
        outer, self.path = self.path, (*self.path, str(step))
        changed = False
        for round in range(1, step.max + 1):
            if not self._run_steps(step.steps, round):
                break
            changed = True
        else:
            self.context.remark("pass/repeat-bound", f"{step} still changed something in its last round")
        self.path = outer
        return changed

    def _run_pass(self, step: Pass, round: int) -> bool:
        context, module = self.context, self.module
        if not is_allowed(step.exactness, context.exactness) or self.nothing_to_do.get(step) == self.revision:
            return False
        self._check_level(step)
        context.current_pass, context.fuses = step.name, step.fuses
        context.rules_fired = Counter()
        statistics = context.statistics[step.name] = Counter()
        before = self.operations
        if context.trace is not None:
            context.trace.begin_pass(str(step))
        started = time.perf_counter()
        try:
            for instrument in self.manager.instruments:
                instrument.before_pass(step, module, context)
            started = time.perf_counter()
            changed = step.run(module, context)
            seconds = time.perf_counter() - started
            self._after(step, changed)
        except Exception as error:
            for instrument in self.manager.instruments:
                instrument.failed(step, module, error, context)
            raise self._explained(error, step) from None
        self.done.append(str(step))
        self.report.rows.append(
            PassRow(
                step.name,
                str(step),
                changed,
                seconds,
                before,
                self.operations,
                context.rules_fired,
                statistics,
                round,
                self.path,
            )
        )
        if context.trace is not None:
            for diagnostic in context.log.diagnostics[self.logged :]:
                context.trace.diagnostic(diagnostic)
            context.trace.end_pass(module, step.name, changed, seconds, before, self.operations)
        self.logged = len(context.log.diagnostics)
        return changed

    def _after(self, step: Pass, changed: bool) -> None:
        """Set the level, count, verify where a border is crossed, and let the instruments look."""
        border = step.level_out is not None and step.level_out != self.module.level
        if step.level_out is not None:
            self.module.level = step.level_out
        if changed:
            self.operations = count_operations(self.module)
            self.unverified = True
        if changed or border:
            self.revision += 1
        else:
            self.nothing_to_do[step] = self.revision
        if self.unverified and (border or self.manager.verify_each):
            self._verify(f"after {step.name}")
        for instrument in self.manager.instruments:
            instrument.after_pass(step, self.module, changed, self.context)

    # ---- checks and errors ---------------------------------------------------------------------------------------

    def _check_level(self, step: Pass) -> None:
        if step.level_in is not None and step.level_in != self.module.level:
            raise PassError(
                "pass/level", f"the pass {step.name} takes level {step.level_in}, the module is at {self.module.level}"
            )

    def _verify(self, when: str) -> None:
        from ..graph.verifier import verify

        try:
            verify(self.module)
        except VerifyError as error:
            raise error.with_note(f"found {when}") from None
        self.unverified = False

    def _source(self) -> Module | None:
        """A copy of the module as it is now, for a reproducer; constants are shared, not copied."""
        if self.manager.reproducers is False or self.context.original is not None:
            return self.context.original
        from ..graph.clone import clone_module

        return clone_module(self.module)

    def _explained(self, error: Exception, step: Pass) -> Exception:
        if isinstance(error, UsageError):
            return error  # what was asked for does not fit the model; the pass is not at fault
        notes = [f"during pass {len(self.done) + 1}, {step}", f"passes run before it: {', '.join(self.done) or 'none'}"]
        if self.source is not None:
            folder = None if self.manager.reproducers is True else Path(str(self.manager.reproducers))
            path = write_reproducer(self.source, str(self.manager), f"{type(error).__name__} in {step}", folder)
            notes.append(f"to reproduce: tilewright ir --reproduce {path}")
        for note in notes:
            if isinstance(error, TilewrightError):
                error.with_note(note)
            else:
                error.add_note(note)
        return error


def _steps(items: Sequence[NamedItem | RepeatItem], expanding: tuple[str, ...]) -> tuple[Step, ...]:
    steps: list[Step] = []
    for item in items:
        if isinstance(item, RepeatItem):
            values = {"max": item.options["max"]} if set(item.options) == {"max"} else item.options
            body = _steps(item.body, expanding)
            bound = option_text.make(_RepeatOptions, values, "repeat").max
            steps.append(Repeat(body, bound))
        elif item.name in PRESETS:
            if item.options:
                raise UsageError("pipeline/option", f"the preset {item.name} has no options")
            steps.extend(_steps(parse_items(PRESETS[item.name]), (*expanding, item.name)))
        else:
            steps.append(option_text.make(pass_class(item.name), item.options, item.name))
    return tuple(steps)


@dataclass(frozen=True)
class _RepeatOptions:
    max: int = 4


def _flatten(steps: Iterable[Step]) -> Iterator[Pass]:
    for step in steps:
        if isinstance(step, Repeat):
            yield from _flatten(step.steps)
        else:
            yield step


def _check_order(passes: Sequence[Pass]) -> None:
    """Raises UsageError where a pass runs before one that must come earlier (and never after it)."""
    names = [step.name for step in passes]
    for position, step in enumerate(passes):
        for earlier in step.after:
            if earlier in names and earlier not in names[:position]:
                raise UsageError("pipeline/order", f"{step.name} must come after {earlier}, which comes later here")


__all__ = ["Exactness", "Limits", "Pass", "PassContext", "PassManager", "Repeat", "RulePass", "Step"]
