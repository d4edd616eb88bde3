"""Numeric bisection: the first pass, and the first rewrite within it, after which the model computes something else.

The module is evaluated before the pipeline and after every pass that changed it. Inside the first pass that changes
results, the number of rewrites is bisected, so that a thousand of them take ten evaluations. `evaluate` runs a module;
`tilewright.compile(module, target="reference").run` will do.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from ..graph.clone import clone_module
from ..graph.diagnostics import DiagnosticLog
from .agreement import first_disagreement
from .context import RECENT_APPLICATIONS, PassContext
from .instruments import Instrument
from .manager import PassManager
from .reproducer import reproducer_text

if TYPE_CHECKING:
    from ..graph.location import Location
    from ..graph.module import Module
    from .base import Pass

Values: TypeAlias = Mapping[str, Any]
Evaluate: TypeAlias = "Callable[[Module, Values], Values]"


@dataclass(frozen=True)
class BisectResult:
    """Where results change first. `before` is the module that the guilty pass took.

    `rule`, `application` (its number within the pass, from 1) and `location` are None for a pass that does not count
    its rewrites one by one.
    """

    step: Pass
    passes_before: tuple[str, ...]
    output: str
    difference: str
    before: Module
    rule: str | None = None
    application: int | None = None
    location: Location | None = None

    @property
    def reproducer(self) -> str:
        """IR and pipeline in one text, for `tilewright ir --reproduce`."""
        return reproducer_text(self.before, str(self.step), str(self))

    def __str__(self) -> str:
        where = f"the pass {self.step}"
        if self.rule is not None:
            where = f"the rule {self.rule} at {self.location} (rewrite {self.application} of the pass {self.step})"
        before = ", ".join(self.passes_before) or "none"
        return f"{where} changes the output {self.output!r}: {self.difference}; passes before it: {before}"


def bisect(
    module: Module,
    pipeline: PassManager | str,
    evaluate: Evaluate,
    feeds: Values,
    *,
    tolerance: float | None = None,
    context: PassContext | None = None,
) -> BisectResult | None:
    """Find what in `pipeline` changes the results of `module` for `feeds`; None if nothing does.

    `module` itself is left alone. `context` gives limits and exactness. An error of a pass is raised as it is; one of
    `evaluate` on a rewritten module counts as a changed result.
    """
    steps = PassManager.parse(pipeline).steps if isinstance(pipeline, str) else pipeline.steps
    settings = context if context is not None else PassContext()
    expected = evaluate(clone_module(module), feeds)

    def compare(candidate: Module) -> tuple[str, str] | None:
        try:
            actual = evaluate(candidate, feeds)
        except Exception as error:
            return "*", f"the rewritten model fails: {error}"
        return first_disagreement(actual, expected, tolerance)

    watch = _Watch(compare)
    manager = PassManager(steps, instruments=[watch], reproducers=False)
    with contextlib.suppress(_FoundError):
        manager.run(clone_module(module), fresh_context(settings))
    if watch.guilty is None or watch.before is None:
        return None
    result = BisectResult(watch.guilty, tuple(watch.done), *watch.found, watch.before)
    return _narrow(result, compare, settings)


class _FoundError(Exception):
    """Ends the pipeline once the guilty pass is known."""


class _Watch(Instrument):
    """Compares after every pass that changed the module and stops at the first difference."""

    def __init__(self, compare: Callable[[Module], tuple[str, str] | None]) -> None:
        self.compare = compare
        self.done: list[str] = []
        self.before: Module | None = None
        self.guilty: Pass | None = None
        self.found = ("", "")

    def before_pass(self, step: Pass, module: Module, context: PassContext) -> None:
        self.before = clone_module(module)

    def after_pass(self, step: Pass, module: Module, changed: bool, context: PassContext) -> None:
        found = self.compare(module) if changed else None
        if found is not None:
            self.guilty, self.found = step, found
            raise _FoundError
        self.done.append(str(step))


def _narrow(
    result: BisectResult, compare: Callable[[Module], tuple[str, str] | None], settings: PassContext
) -> BisectResult:
    """The first rewrite of the guilty pass that changes results, if the pass counts its rewrites."""

    def run(limit: int | None) -> tuple[PassContext, tuple[str, str] | None]:
        candidate = clone_module(result.before)
        context = dataclasses.replace(fresh_context(settings), max_applications=limit, current_pass=result.step.name)
        result.step.run(candidate, context)
        return context, compare(candidate)

    good, bad = 0, run(None)[0].applications
    if bad == 0 or run(0)[1] is not None:
        return result
    while bad - good > 1:
        middle = (good + bad) // 2
        if run(middle)[1] is None:
            good = middle
        else:
            bad = middle
    context, found = run(bad)
    if found is None or not context.recent:
        return result
    rule, location = context.recent[-1]
    output, difference = found
    return dataclasses.replace(
        result, output=output, difference=difference, rule=rule, application=bad, location=location
    )


def fresh_context(settings: PassContext) -> PassContext:
    """A context with the same limits and switches, and nothing logged or counted yet."""
    return dataclasses.replace(
        settings,
        log=DiagnosticLog(),
        trace=None,
        max_applications=None,
        applications=0,
        statistics={},
        rules_fired=Counter(),
        recent=deque(maxlen=RECENT_APPLICATIONS),
    )
