"""Why a rule does not apply: for each operation it could be rooted at, how far it matched and which check failed.

rule matmul-add-to-gemm: add(matmul(a, b), c) -> gemm(a, b, c)
  1. at "/enc/0/Add"#12: matched matmul, add; then: lhs rank is not 2
       %x : f32[2, 3, 4], made by relu at "/enc/x"#3
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..graph.core import Operation, Value
from ..graph.infer import InferenceContext
from ..graph.names import function_names
from .context import PassContext
from .driver import RuleLike, compile_rule
from .matcher import FailureLog
from .rules import Session

if TYPE_CHECKING:
    from ..graph.location import Location
    from ..graph.module import Module


@dataclass(frozen=True)
class NearMiss:
    """The best partial match at one root. `applies`: the rule does match here, and `reason` is empty.

    `is_form`: what failed is that the pattern has another operation there, or an operand more or less.
    """

    rule: str
    root: Operation
    matched: tuple[Operation, ...]
    progress: int
    reason: str
    culprits: tuple[Value | Operation, ...] = ()
    is_form: bool = False

    @property
    def applies(self) -> bool:
        return not self.reason

    @property
    def location(self) -> Location:
        return self.root.location

    def __str__(self) -> str:
        matched = ", ".join(op.name for op in self.matched) or "nothing"
        if self.applies:
            return f"at {self.location}: applies to {matched}"
        lines = [f"at {self.location}: matched {matched}; then: {self.reason}"]
        names = function_names(self.root) if self.culprits else {}
        lines.extend(f"       {_describe(culprit, names)}" for culprit in self.culprits)
        return "\n".join(lines)


def explain(module: Module, rule: RuleLike) -> list[NearMiss]:
    """The best partial match of `rule` at every possible root: those that apply, then the nearest misses first."""
    compiled = compile_rule(rule)
    session = Session(PassContext(), lambda: InferenceContext(module.symbols))
    found = []
    for op in module.walk():
        if not (compiled.any_root or op.definition in compiled.definitions):
            continue
        log = FailureLog()
        match = compiled.match(op, session, log)
        if match is not None:
            found.append(NearMiss(compiled.rule.name, op, match.ops, log.progress, ""))
        else:
            found.append(NearMiss(compiled.rule.name, op, log.ops, log.progress, log.reason, log.culprits, log.is_form))
    return sorted(found, key=lambda miss: (not miss.applies, -miss.progress))


def render(module: Module, rule: RuleLike, limit: int = 10) -> str:
    """`explain` as text for a terminal, at most `limit` places."""
    compiled = compile_rule(rule)
    title = f"rule {compiled.rule.name}: {compiled.rule.summary}"
    misses = explain(module, rule)
    if not misses:
        roots = " or ".join(sorted(definition.name for definition in compiled.definitions))
        return f"{title}\n  the model has no {roots} to begin with"
    return "\n".join([title, *_numbered(misses[:limit]), *_rest(len(misses) - limit)])


def _numbered(misses: Sequence[NearMiss]) -> list[str]:
    return [f"  {number}. {miss}" for number, miss in enumerate(misses, 1)]


def _rest(count: int) -> list[str]:
    return [f"  ... and {count} more"] if count > 0 else []


def _describe(thing: Value | Operation, names: Mapping[Value, str]) -> str:
    """A value with its type and producer, or an operation with its place, in one line."""
    if isinstance(thing, Operation):
        return f"{thing.name} at {thing.location}"
    producer = thing.producer
    origin = "an argument" if producer is None else f"made by {producer.name} at {producer.location}"
    return f"{names.get(thing, '%?')} : {thing.type}, {origin}"
