"""What a pipeline did: one row per pass that ran."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..graph import opdef

if TYPE_CHECKING:
    from ..graph.diagnostics import Diagnostic
    from ..graph.module import Module


@dataclass
class PassRow:
    """One run of one pass. Operations are counted without constants and terminators, nested ones included."""

    name: str
    text: str
    changed: bool
    seconds: float
    ops_before: int
    ops_after: int
    rules: Counter[str] = field(default_factory=Counter)
    statistics: Counter[str] = field(default_factory=Counter)
    round: int = 0  # within a repeat, from 1
    path: tuple[str, ...] = ()  # the repeats around it, from the outside

    def to_dict(self) -> dict[str, Any]:
        return {
            "pass": self.name,
            "text": self.text,
            "changed": self.changed,
            "seconds": self.seconds,
            "ops_before": self.ops_before,
            "ops_after": self.ops_after,
            "rules": dict(self.rules),
            "statistics": dict(self.statistics),
        }


@dataclass
class PipelineReport:
    """What `PassManager.run` returns."""

    module: Module
    pipeline: str
    rows: list[PassRow] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        """A table of the passes that changed something, and how many others ran."""
        rows = [row for row in self.rows if row.changed]
        lines = [
            f"{row.ops_before:8,d} -> {row.ops_after:<8,d} {row.seconds * 1e3:9.1f} ms  {row.text}" for row in rows
        ]
        idle = len(self.rows) - len(rows)
        head = f"{len(self.rows)} passes in {self.seconds * 1e3:.1f} ms" + (f", {idle} changed nothing" if idle else "")
        return "\n".join([head, *lines])

    @property
    def changed(self) -> bool:
        return any(row.changed for row in self.rows)

    @property
    def rules(self) -> Counter[str]:
        """How often each rule was applied."""
        return sum((row.rules for row in self.rows), Counter())


def count_operations(module: Module) -> int:
    """Operations without constants and terminators; those in subgraphs and function bodies count."""
    constant = opdef.lookup("", "Constant")
    return sum(op.definition is not constant and not op.definition.is_terminator for op in module.operations())
