"""The payoff ledger: what each pass of a pipeline saved, read from its trace.

A row says by how much a pass, in all its rounds, changed the number of operations, the arithmetic, and the bytes moved.
The rows add up to the difference between the model before and after.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .cost import Cost, ModelCost

if TYPE_CHECKING:
    from .trace import TraceContent

_NOTHING = ModelCost(Cost(), Cost())


@dataclass
class LedgerRow:
    """What one pass did: changes, negative where it saved something."""

    name: str
    operations: int = 0
    cost: ModelCost = _NOTHING

    def to_dict(self) -> dict[str, Any]:
        return {"pass": self.name, "operations": self.operations, **self.cost.to_dict()}


@dataclass(frozen=True)
class Ledger:
    """The model before and after, and a row for each pass that changed something, in order of its first change."""

    operations: tuple[int, int]
    before: ModelCost
    after: ModelCost
    rows: tuple[LedgerRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        before, after = self.operations
        return {
            "before": {"operations": before, **self.before.to_dict()},
            "after": {"operations": after, **self.after.to_dict()},
            "passes": [row.to_dict() for row in self.rows],
        }


def ledger_of(trace: TraceContent) -> Ledger:
    """The ledger of a traced pipeline. A trace of before costs were traced, or of a lower level, gives zeros."""
    first = current = trace.cost or _NOTHING
    rows: dict[str, LedgerRow] = {}
    for each in trace.passes:
        if not each.changed:
            continue
        row = rows.setdefault(each.name, LedgerRow(each.name))
        row.operations += each.ops_after - each.ops_before
        if each.cost is not None:
            row.cost = _sum(row.cost, _difference(each.cost, current))
            current = each.cost
    operations = trace.ops, trace.passes[-1].ops_after if trace.passes else trace.ops
    return Ledger(operations, first, current, tuple(rows.values()))


def _sum(left: ModelCost, right: ModelCost) -> ModelCost:
    return ModelCost(left.alone + right.alone, left.fused + right.fused)


def _difference(left: ModelCost, right: ModelCost) -> ModelCost:
    return ModelCost(left.alone - right.alone, left.fused - right.fused)
