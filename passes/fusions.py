"""Which fused operators passes made, and where they nearly did: what `optimize --remarks` lists.

A near miss is a place where all operations of a rule's pattern are, and something else speaks against the rewrite: a
constant, an attribute, another user, or the rule's own condition. Of the reasons the one is told that stopped the
attempt which came furthest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..graph.core import Operation
from ..graph.infer import InferenceContext
from ..graph.location import UNKNOWN, FusedLocation
from . import pattern as pt
from .context import PassContext
from .driver import compile_rule
from .explain import explain
from .fuse_attention_scores import NearMiss as NearAttention
from .rules import Match, OpRule, Session

if TYPE_CHECKING:
    from ..graph.core import Value
    from ..graph.location import Location
    from ..graph.module import Module
    from .base import Pass
    from .matcher import CompiledRule
    from .rules import AnyRule


@dataclass(frozen=True)
class MissedFusion:
    """A place where `rule` nearly applied: the check that failed first, and the operations it is about."""

    rule: str
    reason: str
    location: Location
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {"rule": self.rule, "reason": self.reason, "location": str(self.location), "notes": list(self.notes)}


def near_misses(module: Module, passes: Iterable[Pass]) -> list[MissedFusion]:
    """The near misses of the rules of those among `passes` that fuse, by place; nothing is changed.

    Operations that one of these rules has just made are its result, and nothing that the model nearly says.
    """
    rules = {rule: None for step in passes if step.fuses for rule in getattr(step, "rules", ())}
    made = {rule.name for rule in rules}
    found: dict[tuple[str, Location], MissedFusion] = {}
    for rule in rules:
        for missed in _near_misses(module, rule):
            if not (isinstance(missed.location, FusedLocation) and missed.location.rule in made):
                found.setdefault((missed.rule, missed.location), missed)
    return list(found.values())


def _near_misses(module: Module, rule: type[AnyRule]) -> Iterable[MissedFusion]:
    compiled = compile_rule(rule)
    if issubclass(rule, OpRule):
        yield from _by_condition(module, compiled)
        return
    least = least_operations(compiled)
    for miss in explain(module, rule):
        if not miss.applies and not miss.is_form and len(miss.matched) >= least:
            yield MissedFusion(compiled.rule.name, miss.reason, miss.location, _notes(miss.culprits))


def _by_condition(module: Module, compiled: CompiledRule) -> Iterable[MissedFusion]:
    """The near misses of a rule about one operation: those that its condition calls so."""
    session = Session(PassContext(), lambda: InferenceContext(module.symbols))
    for op in module.walk():
        if op.definition not in compiled.definitions:
            continue
        verdict = compiled.rule.when(Match(compiled.rule, op, (op,), op.results, {}, {}, session))
        if isinstance(verdict, NearAttention):
            yield MissedFusion(compiled.rule.name, verdict.reason, op.location, _notes(verdict.culprits))


def _notes(culprits: Iterable[Value | Operation]) -> tuple[str, ...]:
    ops: list[Operation | None] = [c if isinstance(c, Operation) else c.producer for c in culprits]
    known = [op for op in dict.fromkeys(ops) if op is not None and op.location is not UNKNOWN]
    return tuple(f"{op.name} at {op.location}" for op in known)


def least_operations(compiled: CompiledRule) -> int:
    """The operations in the smallest form of a rule's pattern."""
    counts = [len(_smallest(result)) for results in compiled.alternatives for result in results]
    return min(counts, default=1)


def _smallest(value: pt.PatternValue) -> frozenset[pt.OpPattern]:
    """The operation patterns in the smallest form of `value`."""
    if isinstance(value, pt.EitherValue):
        return min(map(_smallest, value.alternatives), key=len)
    if not isinstance(value, pt.ResultValue):
        return frozenset()
    below = [_smallest(operand) for operand in value.op.operands]
    return frozenset([value.op]).union(*below)


__all__ = ["MissedFusion", "least_operations", "near_misses"]
