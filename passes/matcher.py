"""Matching: a compiled rule is tried at one root operation; goals are solved one by one, with backtracking.

Choices are the operand order of commutative operations, `p.either`, and further roots. A choice is taken back when
anything after it fails, `when` included. With a `FailureLog` the matcher also remembers the failure that came after
the most matched operations: the nearest miss.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from ..graph.core import Operation, Value
from ..graph.data import TensorData, UnresolvedData
from ..graph.diagnostics import UsageError
from ..graph.opdef import OpDefinition
from . import pattern as pt
from .rules import AnyRule, Match, Mismatch, OpRule, Rule, Session

# A linked list of what is still to be matched: pattern, value, rest.
Goals: TypeAlias = "tuple[pt.PatternValue, Value | None, Goals] | None"


class FailureLog:
    """Keeps the failure that came after the most matched operations.

    `is_form`: it is that the pattern has another operation there, or an operand more or less.
    """

    def __init__(self) -> None:
        self.progress = -1
        self.is_form = False
        self.ops: tuple[Operation, ...] = ()
        self.reason = ""
        self.culprits: tuple[Value | Operation, ...] = ()

    def note(
        self,
        ops: tuple[Operation, ...],
        progress: int,
        reason: str,
        *culprits: Value | Operation | None,
        is_form: bool = False,
    ) -> None:
        if progress > self.progress:
            self.progress, self.ops, self.reason, self.is_form = progress, ops, reason, is_form
            self.culprits = tuple(culprit for culprit in culprits if culprit is not None)


class CompiledRule:
    """A rule, traced: which operations it may be rooted at, and how to match it there."""

    def __init__(self, rule: AnyRule) -> None:
        self.rule = rule
        if isinstance(rule, OpRule):
            names = (rule.root,) if isinstance(rule.root, str) else rule.root
            self.results: tuple[pt.ResultValue, ...] = ()
            self.any_root = "*" in names
            self.root_patterns: tuple[pt.OpPattern, ...] = ()
            self.definitions = frozenset(pt.definition_of(name) for name in names if name != "*")
            self.depth = 1
            self.captures: frozenset[str] = frozenset()
            return
        self.any_root = False
        self.alternatives, self.captures, self.depth = _trace(rule)
        self.root_patterns = tuple(results[0].op for results in self.alternatives)
        self.definitions = frozenset(d for root in self.root_patterns for d in root.definitions)

    def match(self, op: Operation, session: Session, log: FailureLog | None = None) -> Match | None:
        """The rule's match rooted at `op`, with `when` satisfied; None if there is none."""
        if isinstance(self.rule, OpRule):
            match = Match(self.rule, op, (op,), op.results, {}, {}, session)
            return match if _accepts(self.rule, match, (op,), log) else None
        for results in self.alternatives:
            root = results[0].op
            if op.definition not in root.definitions or (log is None and not root.is_possible(op)):
                continue
            found = Matcher(self, results, op, session, log).match()
            if found is not None:
                return found
        return None


def _trace(rule: Rule) -> tuple[tuple[tuple[pt.ResultValue, ...], ...], frozenset[str], int]:
    """Run `match` once. Returns the root results (one tuple per alternative root), capture names and depth."""
    names = list(inspect.signature(rule.match).parameters)[1:]
    returned = rule.match(pt.PatternBuilder(), *(pt.AnyValue(name) for name in names))
    values = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
    alternatives: list[tuple[Any, ...]] = [values]
    if len(values) == 1 and isinstance(values[0], pt.EitherValue):
        alternatives = [(alternative,) for alternative in values[0].alternatives]
    captured: set[str] = set()
    for results in alternatives:
        if not results or not all(isinstance(result, pt.ResultValue) for result in results):
            raise UsageError("rule/pattern", f"{rule.name}: match must return results of operations")
        for result in results:
            for node in pt.walk(result):
                captured.update(_captures(node))
    unused = [name for name in names if name not in captured]
    if unused:
        raise UsageError("rule/pattern", f"{rule.name}: the parameter {unused[0]!r} of match is not in the pattern")
    clash = sorted(name for name in captured if hasattr(Match, name))
    if clash:
        raise UsageError("rule/pattern", f"{rule.name}: a capture cannot be called {clash[0]!r}; a match has that")
    depth = max(pt.depth_of(result) for results in alternatives for result in results)
    return tuple(alternatives), frozenset(captured), depth


def _captures(node: pt.PatternValue) -> Iterator[str]:
    if isinstance(node, pt.AnyValue | pt.ConstantValue | pt.VariadicValue) and node.name:
        yield node.name
    if isinstance(node, pt.ResultValue):
        if node.name:
            yield node.name
        yield from (wanted.name for _, wanted in node.op.attributes if isinstance(wanted, pt.AttributeCapture))


def _accepts(rule: AnyRule, match: Match, ops: tuple[Operation, ...], log: FailureLog | None) -> bool:
    verdict = rule.when(match)
    if verdict is None or verdict is True:
        return True
    if log is not None:
        reason = verdict.reason if isinstance(verdict, Mismatch) else "`when` says no, without a reason"
        log.note(ops, 1_000_000, reason, *(verdict.culprits if isinstance(verdict, Mismatch) else ()))
    return False


class Matcher:
    """One attempt at one root. `bound` maps operation patterns and capture names to what they matched."""

    def __init__(
        self,
        compiled: CompiledRule,
        results: tuple[pt.ResultValue, ...],
        root: Operation,
        session: Session,
        log: FailureLog | None,
    ) -> None:
        self.compiled, self.results, self.root, self.session, self.log = compiled, results, root, session, log
        self.bound: dict[Any, Any] = {}
        self.trail: list[Any] = []
        self.found: Match | None = None

    def match(self) -> Match | None:
        first = self.results[0].op
        goals: Goals = None
        for op in reversed(dict.fromkeys(result.op for result in self.results)):
            if op is not first:
                goals = (pt.AlsoRoot(op), None, goals)
        if self._solve_op(first, self.root, goals):
            return self.found
        return None

    # ---- solving -------------------------------------------------------------------------------------------------

    def _solve(self, goals: Goals) -> bool:
        while goals is not None:
            pattern, value, goals = goals
            kind = type(pattern)
            if kind is pt.AnyValue:
                if not self._bind_value(pattern, value):
                    return False
            elif kind is pt.ResultValue:
                assert isinstance(pattern, pt.ResultValue)
                op = self._producer(pattern, value)
                if op is None:
                    return False
                if self.bound.get(pattern.op) is not op:
                    return self._solve_op(pattern.op, op, goals)
            elif kind is pt.ConstantValue:
                assert isinstance(pattern, pt.ConstantValue)
                if not self._constant(pattern, value):
                    return False
            elif kind is pt.OptionalValue:
                assert isinstance(pattern, pt.OptionalValue)
                if value is not None:
                    goals = (pattern.inner, value, goals)
            elif kind is pt.EitherValue:
                assert isinstance(pattern, pt.EitherValue)
                return self._first_of((alternative, value, goals) for alternative in pattern.alternatives)
            elif kind is pt.AlsoRoot:
                assert isinstance(pattern, pt.AlsoRoot)
                return self._solve_further_root(pattern.op, goals)
            elif value is not None:
                return self._fail("this operand must be left out", value, is_form=True)
        return self._accept()

    def _first_of(self, choices: Iterable[Goals]) -> bool:
        for goals in choices:
            mark = len(self.trail)
            if self._solve(goals):
                return True
            self._undo(mark)
        return False

    def _solve_op(self, pattern: pt.OpPattern, op: Operation, goals: Goals) -> bool:
        """Match `op` itself, then its operands (in both orders if that may matter), then `goals`."""
        if op.definition not in pattern.definitions:
            return self._fail(f"expected {' or '.join(pattern.names)}, found {op.name}", op, is_form=True)
        if pattern.outputs is not None and len(op.results) != pattern.outputs:
            return self._fail(f"{op.name} has {len(op.results)} results, not {pattern.outputs}", op)
        if not self._attributes(pattern, op):
            return False
        operands = op.operands
        wanted = pattern.operands
        if wanted and type(wanted[-1]) is pt.VariadicValue:
            assert isinstance(wanted[-1], pt.VariadicValue)
            rest, wanted = wanted[-1], wanted[:-1]
            if rest.name is not None and not self._bind(rest.name, operands[len(wanted) :]):
                return self._fail("a repeated capture stands for different operands", op)
            operands = operands[: len(wanted)]
        if len(operands) < len(wanted):
            operands += (None,) * (len(wanted) - len(operands))
        elif any(extra is not None for extra in operands[len(wanted) :]):
            return self._fail(f"{op.name} has an operand {len(wanted)}, the pattern has none", op, is_form=True)
        self._bind(pattern, op)
        pairs = list(zip(wanted, operands, strict=False))
        if pattern.commutative and len(wanted) >= 2 and operands[0] is not operands[1]:
            swapped = [(wanted[0], operands[1]), (wanted[1], operands[0]), *pairs[2:]]
            return self._first_of((_push(pairs, goals), _push(swapped, goals)))
        return self._solve(_push(pairs, goals))

    def _solve_further_root(self, pattern: pt.OpPattern, goals: Goals) -> bool:
        if pattern in self.bound:
            return self._solve(goals)
        anchors = [value for value in map(self._known_value, pattern.operands) if value is not None]
        if not anchors:
            raise UsageError(
                "rule/pattern",
                f"{self.compiled.rule.name}: {' or '.join(pattern.names)} shares no operand with the first root",
            )
        taken = {id(op) for op in self._ops()}
        for user in min(anchors, key=lambda value: value.use_count).users:
            if id(user) in taken or user.definition not in pattern.definitions:
                continue
            mark = len(self.trail)
            if self._solve_op(pattern, user, goals):
                return True
            self._undo(mark)
        return self._fail(f"no {' or '.join(pattern.names)} uses it", anchors[0])

    def _known_value(self, pattern: pt.PatternValue) -> Value | None:
        if isinstance(pattern, pt.ResultValue):
            op = self.bound.get(pattern.op)
            return op.results[pattern.index] if isinstance(op, Operation) else None
        if isinstance(pattern, pt.AnyValue | pt.ConstantValue) and pattern.name:
            value = self.bound.get(pattern.name)
            return value if isinstance(value, Value) else None
        return None

    # ---- single checks -------------------------------------------------------------------------------------------

    def _producer(self, pattern: pt.ResultValue, value: Value | None) -> Operation | None:
        op = value.owner if value is not None else None
        if not isinstance(op, Operation) or op.definition not in pattern.op.definitions:
            if self.log is not None:
                found = "nothing" if value is None else op.name if isinstance(op, Operation) else "an argument"
                self._fail(f"expected {' or '.join(pattern.op.names)}, found {found}", value, is_form=True)
            return None
        assert value is not None
        if value.index != pattern.index:
            self._fail(f"expected result {pattern.index} of {op.name}, found result {value.index}", value)
            return None
        known = self.bound.get(pattern.op)
        if known is not None and known is not op:
            self._fail(f"expected the same {op.name} as before, found another", op)
            return None
        if pattern.name is not None and not self._bind(pattern.name, value):
            self._fail(f"{pattern.name!r} stands for another value already", value)
            return None
        return op

    def _bind_value(self, pattern: pt.PatternValue, value: Value | None) -> bool:
        assert isinstance(pattern, pt.AnyValue)
        if value is None:
            return self._fail(f"the operand {pattern.name or ''} is left out", is_form=True)
        if pattern.name is None or self._bind(pattern.name, value):
            return True
        return self._fail(f"{pattern.name!r} stands for another value already", value)

    def _constant(self, pattern: pt.ConstantValue, value: Value | None) -> bool:
        if value is None:
            return self._fail("expected a constant, the operand is left out")
        data = self.session.inference.data(value)
        if data is None:
            return self._fail("expected a constant", value)
        if pattern.name is not None and not self._bind(pattern.name, value):
            return self._fail(f"{pattern.name!r} stands for another value already", value)
        if pattern.equal is None and pattern.predicate is None:
            return True
        if isinstance(data, UnresolvedData):
            return self._fail("the constant is not loaded", value)
        if pattern.equal is not None and not equals_number(data, pattern.equal, pattern.tolerance):
            return self._fail(f"expected a constant that is {pattern.equal:g} everywhere", value)
        if pattern.predicate is not None and not pattern.predicate(data.numpy()):
            return self._fail(f"the constant {pattern.name or ''} fails its predicate", value)
        return True

    def _attributes(self, pattern: pt.OpPattern, op: Operation) -> bool:
        for name, wanted in pattern.attributes:
            found = op.attr(name)
            if isinstance(wanted, pt.AttributeCapture):
                if wanted.predicate is not None and not wanted.predicate(found):
                    return self._fail(f"the attribute {name}={found!r} fails its predicate", op)
                if not self._bind(wanted.name, found):
                    return self._fail(f"{wanted.name!r} stands for another attribute already", op)
            elif found != wanted:
                return self._fail(f"expected {name}={wanted!r}, found {name}={found!r}", op)
        return True

    # ---- the end of a match --------------------------------------------------------------------------------------

    def _accept(self) -> bool:
        ops = self._ops()
        if not self._inner_values_are_private(ops):
            return False
        replaced = tuple(self.bound[result.op].results[result.index] for result in self.results)
        root = self.root if len(self.results) == 1 else _insertion_point(self.results, self.bound, ops)
        if root is None:
            return self._fail("no place comes after all operands and before all users")
        rule = self.compiled.rule
        captures = {name: self.bound.get(name) for name in self.compiled.captures}
        labels = {
            name: value.producer
            for name, value in captures.items()
            if isinstance(value, Value) and value.producer is not None
        }
        match = Match(rule, root, ops, replaced, captures, labels, self.session)
        if not _accepts(rule, match, ops, self.log):
            return False
        self.found = match
        return True

    def _inner_values_are_private(self, ops: tuple[Operation, ...]) -> bool:
        """Inner values have no user outside the match; what a root makes besides the replaced values is unused."""
        inside = set(ops)
        returned = {(result.op, result.index) for result in self.results}
        roots = {op for op, _ in returned}
        for pattern, op in self.bound.items():
            if not isinstance(pattern, pt.OpPattern):
                continue
            if pattern not in roots and pattern.shared:
                continue
            if pattern not in roots and op.parent is not self.root.parent:
                return self._fail(f"{op.name} lies in another block", op)
            for result in op.results:
                if (pattern, result.index) in returned:
                    continue
                for use in result._uses:
                    if use.user not in inside:
                        return self._fail(f"{op.name} has another user, {use.user.name}", result, use.user)
        return True

    def _ops(self) -> tuple[Operation, ...]:
        found = [op for pattern, op in self.bound.items() if isinstance(pattern, pt.OpPattern)]
        return tuple(dict.fromkeys(reversed(found)))

    def _bind(self, key: Any, value: Any) -> bool:
        if key in self.bound:
            known = self.bound[key]
            return known is value or (not isinstance(known, Value | Operation) and bool(known == value))
        self.bound[key] = value
        self.trail.append(key)
        return True

    def _undo(self, mark: int) -> None:
        while len(self.trail) > mark:
            del self.bound[self.trail.pop()]

    def _fail(self, reason: str, *culprits: Value | Operation | None, is_form: bool = False) -> bool:
        if self.log is not None:
            ops = self._ops()
            self.log.note(ops, len(ops), reason, *culprits, is_form=is_form)
        return False


def equals_number(data: TensorData, number: float, tolerance: float = 0.0) -> bool:
    """Whether every element of a constant is `number`, after rounding it to the constant's dtype.

    `tolerance` is relative to `number`. False for strings and for a constant without elements.
    """
    if data.elements == 0 or data.dtype.kind == "string":
        return False
    array = data.numpy()
    # Nearly all weights are told apart by their first element, without being read.
    return _all_equal(array.reshape(-1)[:1], number, tolerance) and _all_equal(array, number, tolerance)


def _all_equal(array: np.ndarray, number: float, tolerance: float) -> bool:
    if tolerance:
        return bool(np.all(np.abs(array.astype(np.float64) - number) <= tolerance * abs(number)))
    expected = np.asarray(number).astype(array.dtype)
    return bool(float(expected) == number or array.dtype.kind not in "iub") and bool(np.all(array == expected))


def _push(pairs: list[tuple[pt.PatternValue, Value | None]], goals: Goals) -> Goals:
    for pattern, value in reversed(pairs):
        goals = (pattern, value, goals)
    return goals


def _insertion_point(
    results: tuple[pt.ResultValue, ...], bound: dict[Any, Any], ops: tuple[Operation, ...]
) -> Operation | None:
    """The root before which new operations see all operands of the match and reach all users of the roots.

    Both hold before the first root, unless an operand is made after it; then before the last root, unless somebody
    outside the match uses an earlier root before that.
    """
    roots: list[Operation] = list(dict.fromkeys(bound[result.op] for result in results))
    if any(root.parent is not roots[0].parent for root in roots):
        return None
    roots.sort(key=_Order)
    inside = set(ops)
    block = roots[0].parent
    outer = [value.producer for op in ops for value in op.operand_values if value.producer not in inside]
    local = [producer for producer in outer if producer is not None and producer.parent is block]
    for place in (roots[0], roots[-1]):
        sees = all(producer.is_before(place) for producer in local)
        reached = all(_after(user, place, inside) for root in roots for r in root.results for user in r.users)
        if sees and reached:
            return place
    return None


def _after(user: Operation, place: Operation, inside: set[Operation]) -> bool:
    current: Operation | None = user
    while current is not None and current.parent is not place.parent:
        current = current.parent_op
    return user in inside or current is None or current is place or place.is_before(current)


class _Order:
    """Sort key: the order of operations in their block."""

    def __init__(self, op: Operation) -> None:
        self.op = op

    def __lt__(self, other: _Order) -> bool:
        return self.op is not other.op and self.op.is_before(other.op)


def rules_by_root(rules: Sequence[CompiledRule]) -> dict[OpDefinition, list[CompiledRule]]:
    """The rules that may be rooted at each definition, in the given order; rules for any root are among them."""
    definitions = dict.fromkeys(d for rule in rules for d in sorted(rule.definitions, key=lambda d: d.name))
    return {d: [rule for rule in rules if rule.any_root or d in rule.definitions] for d in definitions}
