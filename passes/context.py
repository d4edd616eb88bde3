"""What passes share during one run: rewriters, the log, statistics, limits, the trace, the count of applications."""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ..graph.diagnostics import DiagnosticLog
from ..graph.rewriter import RewriteListener, Rewriter
from .base import Exactness

if TYPE_CHECKING:
    from ..graph.core import Operation
    from ..graph.location import Location
    from ..graph.module import Module
    from .trace import Trace

# How many applications an error about a pass that does not converge shows.
RECENT_APPLICATIONS = 8


class Fusion(NamedTuple):
    """One rewrite by a pass that fuses: the rule, what it does in a line, and the place of the operation at its end."""

    pass_name: str
    rule: str
    summary: str
    location: Location

    def to_dict(self) -> dict[str, str]:
        return {"pass": self.pass_name, "rule": self.rule, "summary": self.summary, "location": str(self.location)}


class OperationFacts(NamedTuple):
    """What a record keeps of an operation that may be gone: its name, result types and where it came from."""

    name: str
    results: tuple[str, ...]  # `%y : f32[n, 8]`
    location: Location


class Application(NamedTuple):
    """One rewrite: a rule applied once, or one step of an imperative pass."""

    number: int  # over the whole run, from 1
    pass_name: str
    rule: str
    location: Location
    removed: tuple[OperationFacts, ...]
    added: tuple[OperationFacts, ...]
    modified: tuple[OperationFacts, ...]
    seconds: float
    reason: str


@dataclass(frozen=True)
class Limits:
    """Bounds on what optimization may cost; passes read them and may have tighter options of their own."""

    fold_operations: int = 1 << 28  # estimated arithmetic of folding one operation


@dataclass
class PassContext:
    """One run of a pipeline. Make one per run; the manager makes one if none is given.

    `original_bytes` is about the size of the model's file, against which passes judge growth (0: estimated when a
    pipeline starts).
    `exactness` is the least exact kind of rewrite that may run; rules beyond it are skipped.
    `max_applications` stops rewriting after that many rule applications (for bisection).
    `original` is a copy of the module as it was, for reproducers (None: the manager makes one).
    `may_grow` lets passes make a model larger in order to have fewer operations; without it they do not.
    `fusions` lists the rewrites of passes that fuse, see `fusions`.
    `debug` makes rules that lie about changing something an error; it also follows TILEWRIGHT_DEBUG=1.
    """

    log: DiagnosticLog = field(default_factory=DiagnosticLog)
    limits: Limits = field(default_factory=Limits)
    exactness: Exactness = "approximate"
    original_bytes: int = 0
    original: Module | None = None
    may_grow: bool = True
    trace: Trace | None = None
    debug: bool = field(default_factory=lambda: os.environ.get("TILEWRIGHT_DEBUG", "0") not in ("", "0"))
    max_applications: int | None = None
    applications: int = 0
    current_pass: str = ""
    fuses: bool = False  # what the current pass says of itself
    fusions: list[Fusion] = field(default_factory=list)
    statistics: dict[str, Counter[str]] = field(default_factory=dict)
    rules_fired: Counter[str] = field(default_factory=Counter)
    recent: deque[tuple[str, Location]] = field(default_factory=lambda: deque(maxlen=RECENT_APPLICATIONS))

    def count(self, what: str, amount: int = 1) -> None:
        """Add to the current pass's statistic `what`."""
        self.statistics.setdefault(self.current_pass, Counter())[what] += amount

    def remark(self, code: str, message: str, location: Location | None = None, *notes: str) -> None:
        """Tell the user something about the model that is neither an error nor a warning."""
        self.log.remark(code, message, location, *notes)

    @property
    def may_apply(self) -> bool:
        """False once `max_applications` is used up; imperative passes ask before each rewrite."""
        return self.max_applications is None or self.applications < self.max_applications

    def rewriter(self, module: Module, rule: str = "", listeners: Iterable[RewriteListener] = ()) -> Rewriter:
        """A rewriter for `module`; `rule` (default: the current pass) appears in the locations of new operations."""
        return Rewriter(module.symbols, rule or self.current_pass, listeners)

    @contextmanager
    def rewrite(self, module: Module, rule: str, op: Operation, reason: str = "") -> Iterator[Rewriter]:
        """One application of an imperative pass: gives a rewriter, then counts and traces what it did at `op`.

        if not context.may_apply:
            return changed
        with context.rewrite(module, "merge-equal", op, "same operands and attributes") as rewriter:
            rewriter.replace(op, other.results)
        """
        recorder = Recorder(self.trace is not None)
        location = op.location
        started = time.perf_counter()
        yield self.rewriter(module, rule, [recorder])
        self.applied(rule, location, recorder, time.perf_counter() - started, reason)

    def applied(self, rule: str, location: Location, recorder: Recorder, seconds: float, reason: str = "") -> None:
        """Count one application and write it to the trace."""
        self.applications += 1
        self.rules_fired[rule] += 1
        self.recent.append((rule, location))
        if self.fuses:
            self.fusions.append(Fusion(self.current_pass, rule, reason, location))
        if self.trace is not None:
            removed, added, modified = recorder.facts()
            self.trace.application(
                Application(
                    self.applications,
                    self.current_pass,
                    rule,
                    location,
                    removed,
                    added,
                    modified,
                    seconds,
                    reason,
                )
            )


class Recorder(RewriteListener):
    """Hears what one application creates, erases and modifies; `detailed` keeps facts of erased operations."""

    def __init__(self, detailed: bool) -> None:
        self.detailed = detailed
        self.created_ops: dict[Operation, None] = {}
        self.modified_ops: dict[Operation, None] = {}
        self.erased_facts: list[OperationFacts] = []

    def created(self, op: Operation) -> None:
        self.created_ops[op] = None

    def erased(self, op: Operation) -> None:
        self.modified_ops.pop(op, None)
        if op in self.created_ops:
            del self.created_ops[op]
        elif self.detailed:
            self.erased_facts.append(facts_of(op))

    def modified(self, op: Operation) -> None:
        if op not in self.created_ops:
            self.modified_ops[op] = None

    def facts(self) -> tuple[tuple[OperationFacts, ...], tuple[OperationFacts, ...], tuple[OperationFacts, ...]]:
        """What was removed, added, and modified in place (users whose operand changed included)."""
        return tuple(self.erased_facts), tuple(map(facts_of, self.created_ops)), tuple(map(facts_of, self.modified_ops))


def facts_of(op: Operation) -> OperationFacts:
    """The facts of an operation, as text, so that they outlive it."""
    return OperationFacts(op.name, tuple(f"%{r.name or '?'} : {r.type}" for r in op.results), op.location)
