"""The rewrite driver: applies rules until none matches, visiting again what a rewrite may have made possible.

Deterministic: operations are visited in program order, rules tried in the given order, new work appended at the end.
Operations that nobody uses any more are erased on the way. A set of rules that does not converge within
20 x operations + 1000 applications is an error that names the last ones.

In debug mode (`PassContext.debug`, TILEWRIGHT_DEBUG=1) a rule that says it changed something and did not, or the
other way round, is an error.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from ..graph.core import Operation, Value
from ..graph.diagnostics import PassError, TilewrightError
from ..graph.infer import InferenceContext
from ..graph.location import fuse
from ..graph.rewriter import RewriteListener, Rewriter
from .base import is_allowed
from .context import PassContext, Recorder
from .dce import is_trivially_dead
from .fingerprint import fingerprint, local_fingerprint
from .matcher import CompiledRule, rules_by_root
from .replacement import agrees, inferred_again, known_symbols, more_precise
from .rules import AnyRule, Match, Mismatch, OpRule, Session

if TYPE_CHECKING:
    from ..graph.dims import DimExpr
    from ..graph.module import Module
    from ..graph.opdef import OpDefinition

RuleLike: TypeAlias = "type[AnyRule] | AnyRule"

# Applications allowed: this many per operation, plus a floor for small graphs.
BUDGET_PER_OPERATION, BUDGET_FLOOR = 20, 1000

_compiled: dict[type[AnyRule], CompiledRule] = {}


def compile_rule(rule: RuleLike) -> CompiledRule:
    """Trace a rule; the pattern of a rule class is traced once per process."""
    if not isinstance(rule, type):
        return CompiledRule(rule)
    found = _compiled.get(rule)
    if found is None:
        found = _compiled[rule] = CompiledRule(rule())
    return found


def apply_rules(module: Module, rules: Iterable[RuleLike], context: PassContext) -> bool:
    """Apply `rules` everywhere in `module`, nested regions and functions included; return whether anything changed.

    Rules less exact than `context.exactness` are left out. Raises PassError if a rule changes a type, lies about
    changing something (in debug mode), fails, or if the rules do not converge.
    """
    usable = [c for c in map(compile_rule, rules) if is_allowed(c.rule.exactness, context.exactness)]
    return Driver(module, usable, context).run()


class Driver(RewriteListener):
    """One run over one module."""

    def __init__(self, module: Module, rules: Sequence[CompiledRule], context: PassContext) -> None:
        self.module, self.context = module, context
        self.index: dict[OpDefinition, list[CompiledRule]] = rules_by_root(rules)
        self.for_any = [compiled for compiled in rules if compiled.any_root]
        self.depth = max((compiled.depth for compiled in rules), default=1)
        self.session = Session(context, lambda: InferenceContext(module.symbols))
        self.rewriter: Rewriter = context.rewriter(module, listeners=[self])
        self.queue: deque[Operation] = deque()
        self.queued: set[Operation] = set()
        self.recorder = Recorder(False)
        self.changed = False

    def run(self) -> bool:
        ops = self.module.operations()
        for op in ops:
            # Most operations are the root of no rule here.
            if self._candidates(op) or is_trivially_dead(op):
                self._enqueue(op)
        budget = BUDGET_PER_OPERATION * len(ops) + BUDGET_FLOOR
        applied = 0
        while self.queue:
            op = self.queue.popleft()
            if op not in self.queued:
                continue
            self.queued.discard(op)
            if self._erase_dead(op):
                continue
            if not self.context.may_apply:
                break
            if self._visit(op):
                applied += 1
                if applied > budget:
                    raise self._does_not_converge(budget)
        return self.changed

    def _candidates(self, op: Operation) -> list[CompiledRule]:
        found = self.index.get(op.definition)
        if found is None:
            found = self.index[op.definition] = self.for_any
        return found

    def _visit(self, op: Operation) -> bool:
        for compiled in self._candidates(op):
            started = time.perf_counter()
            match = self._match(compiled, op)
            if match is not None and self._apply(compiled, match, started):
                if op.parent is not None:
                    self._enqueue(op)
                return True
        return False

    def _match(self, compiled: CompiledRule, op: Operation) -> Match | None:
        try:
            if not self.context.debug:
                return compiled.match(op, self.session)
            before = local_fingerprint(op)
            match = compiled.match(op, self.session)
        except Exception as error:
            raise self._noted(error, compiled.rule, op) from None
        if local_fingerprint(op) != before:
            raise PassError(
                "rule/changed-in-when", f"the rule {compiled.rule.name} changed the graph before `build`", op.location
            )
        return match

    # ---- one application -----------------------------------------------------------------------------------------

    def _apply(self, compiled: CompiledRule, match: Match, started: float) -> bool:
        rule, root, context = compiled.rule, match.root, self.context
        location = root.location
        self.recorder = Recorder(context.trace is not None)
        self.rewriter.rule, self.rewriter.changed = rule.name, False
        before = fingerprint(self.module) if context.debug else 0
        nearby = [value for op in match.ops for value in op.operand_values]
        self.session.rewriter = self.rewriter
        try:
            done = self._rewrite(rule, match)
        except Exception as error:
            raise self._noted(error, rule, root) from None
        finally:
            self.session.rewriter = None
        if context.debug:
            self._check_honesty(rule, done, before, match)
        if not done:
            return False
        self.changed = True
        self.session.forget()
        for op in reversed(match.ops):
            self._erase_dead(op)
        for value in nearby:
            self._lost_a_user(value)
        context.applied(rule.name, location, self.recorder, time.perf_counter() - started, rule.summary)
        return True

    def _rewrite(self, rule: AnyRule, match: Match) -> bool:
        """Run `build` and put its result in place; False, with everything taken back, if it is not to be."""
        root = match.root
        builder = self.rewriter.before(root, fuse(rule.name, [op.location for op in match.ops]))
        outcome = rule.build(builder, match)
        created = list(self.recorder.created_ops)
        if isinstance(outcome, Mismatch):
            self._take_back(created, rule)
            return False
        if outcome is None:
            return self.rewriter.changed
        values = _as_results(rule, match, outcome)
        if all(new is None or new is old for old, new in zip(match.replaced, values, strict=True)):
            self._take_back(created, rule)
            return False
        objection = self._objection(rule, match, values, created)
        if objection is not None:
            self._take_back(created, rule)
            self.context.count(f"{rule.name}: not made, types not shown to agree")
            self.context.remark("rule/type-unknown", f"{rule.name} was not applied: {objection}", root.location)
            return False
        for old, new in zip(match.replaced, values, strict=True):
            if new is not None:
                self.rewriter.replace_uses(old, new)
        return True

    def _objection(
        self, rule: AnyRule, match: Match, values: Sequence[Value | None], created: list[Operation]
    ) -> str | None:
        """Why the replacement may not be made although the rule is not certainly wrong; raises if it certainly is."""
        new_ops = set(created)
        for op in created:
            if any(operand in match.replaced for operand in op.operand_values):
                raise PassError("rule/cycle", f"{rule.name}: a new {op.name} uses the value that it replaces")
        known: set[DimExpr] = set()

        def is_fresh(symbol: DimExpr) -> bool:
            if not known:
                known.update(known_symbols(match.ops))
            return symbol not in known

        for old, new in zip(match.replaced, values, strict=True):
            if new is None:
                if old._uses:
                    raise PassError("rule/result-missing", f"{rule.name} gives nothing for %{old.name or '?'}")
                continue
            is_new = new.producer in new_ops
            verdict = agrees(old.type, new.type, is_fresh if is_new else _never, is_new)
            if verdict is not True:
                again = inferred_again(match.ops, match.replaced, InferenceContext(self.module.symbols))
                if again is not None:
                    inferred = again[match.replaced.index(old)]
                    verdict = agrees(inferred, new.type, is_fresh if is_new else _never, is_new)
            if verdict is False:
                raise PassError(
                    "rule/type-changed",
                    f"{rule.name} replaces a value of type {old.type} by one of type {new.type}",
                    match.root.location,
                )
            if verdict is None and not rule.proves_types:
                return f"{new.type} is not known to be the {old.type} that it would replace"
            if is_new:
                self.rewriter.set_type(new, more_precise(old.type, new.type, is_fresh))
        return None

    def _take_back(self, created: list[Operation], rule: AnyRule) -> None:
        for op in reversed(created):
            if any(result._uses for result in op.results):
                raise PassError("rule/half-done", f"{rule.name} declined after it had changed operands", op.location)
            self.rewriter.erase(op)

    def _check_honesty(self, rule: AnyRule, done: bool, before: int, match: Match) -> None:
        changed = fingerprint(self.module) != before
        if done and not changed:
            raise PassError(
                "rule/no-change", f"the rule {rule.name} said that it applies and changed nothing", match.root.location
            )
        if changed and not done:
            raise PassError(
                "rule/hidden-change", f"the rule {rule.name} declined and changed the graph", match.root.location
            )

    # ---- worklist ------------------------------------------------------------------------------------------------

    def _enqueue(self, op: Operation) -> None:
        if op not in self.queued:
            self.queued.add(op)
            self.queue.append(op)

    def _enqueue_reach(self, op: Operation) -> None:
        """`op` and the users below it that a pattern rooted there could reach it from."""
        level = [op]
        self._enqueue(op)
        for _ in range(self.depth - 1):
            level = list(dict.fromkeys(user for each in level for result in each.results for user in result.users))
            for user in level:
                self._enqueue(user)

    def _lost_a_user(self, value: Value) -> None:
        """The producer may be dead now, or used only once: what uses it may match where it did not before."""
        producer = value.producer
        if producer is None or producer.parent is None:
            return
        if not self._erase_dead(producer) and value.use_count == 1:
            for user in value.users:
                self._enqueue_reach(user)

    def _erase_dead(self, op: Operation) -> bool:
        """Erase `op` and then its operands' producers, as far as nobody uses them."""
        if not is_trivially_dead(op):
            return False
        pending = [op]
        while pending:
            current = pending.pop()
            values = [value for nested in _with_regions(current) for value in nested.operand_values]
            self.rewriter.erase(current)
            self.changed = True
            for value in dict.fromkeys(values):
                producer = value.producer
                if producer is None or producer.parent is None:
                    continue
                if is_trivially_dead(producer):
                    if producer not in pending:
                        pending.append(producer)
                elif value.use_count == 1:
                    self._enqueue_reach(value.users[0])
        return True

    # ---- listening -----------------------------------------------------------------------------------------------

    def created(self, op: Operation) -> None:
        self.recorder.created(op)
        self._enqueue_reach(op)

    def modified(self, op: Operation) -> None:
        self.recorder.modified(op)
        self._enqueue_reach(op)

    def erased(self, op: Operation) -> None:
        self.recorder.erased(op)
        for nested in _with_regions(op):
            self.queued.discard(nested)

    # ---- errors --------------------------------------------------------------------------------------------------

    def _noted(self, error: Exception, rule: AnyRule, op: Operation) -> Exception:
        note = f"while the rule {rule.name} was tried at {op.name} {op.location}"
        if isinstance(error, TilewrightError):
            return error.with_note(note)
        error.add_note(note)
        return error

    def _does_not_converge(self, budget: int) -> PassError:
        cycle = [f"{rule} at {location}" for rule, location in self.context.recent]
        return PassError(
            "pass/no-convergence",
            f"the rules of {self.context.current_pass or 'this pass'} do not come to an end: "
            f"{budget} applications were made",
            notes=["the last applications were:", *cycle],
        )


def _never(symbol: DimExpr) -> bool:
    return False


def _with_regions(op: Operation) -> Iterable[Operation]:
    yield op
    for region in op.regions.values():
        yield from region.walk()


def _as_results(rule: AnyRule, match: Match, outcome: Value | Sequence[Value | None]) -> tuple[Value | None, ...]:
    """What `build` returned, parallel to `match.replaced`; one value may stand for an operation's only used result."""
    values: tuple[Value | None, ...] = (outcome,) if isinstance(outcome, Value) else tuple(outcome)
    if len(values) == 1 and isinstance(rule, OpRule):
        values += (None,) * (len(match.replaced) - 1)
    if len(values) != len(match.replaced):
        raise PassError(
            "rule/result-count", f"{rule.name} gives {len(values)} values for {len(match.replaced)} results"
        )
    return values


__all__ = ["Driver", "RuleLike", "apply_rules", "compile_rule"]
