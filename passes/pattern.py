"""Patterns: what a rule's `match` builds, with the builder's own method names, from captures.

    def match(self, p, x, scale, shift):
        return p.add(p.mul(x, p.const(scale)), p.const(shift))

| written | matches |
|---|---|
| a parameter (`x`) | any value; the same parameter twice must be the same value |
| `p.mul(x, 2.0)` | a number stands for a constant whose every element equals it |
| `p.any_value` | any value, not captured |
| `p.const(k)`, `p.const("k", predicate)` | a constant; `predicate` is asked with its numpy array |
| `p.const("k", equal=0.5, tolerance=1e-3)` | a constant whose every element is 0.5 within that relative error |
| `p.optional(b)` | a left-out operand, or one that matches `b` |
| `p.absent` | an operand that is left out (so does leaving trailing operands out) |
| `p.variadic("parts")` | all remaining operands, as a tuple |
| `p.either(a, b)` | the first alternative that matches; captures of the others are None |
| `p.shared(v)` | an inner value that may have other users; otherwise an inner value may not |
| `p.named("y", v)` | captures an inner value as `m.y`, and its operation as `m.op("y")` |
| `p.softmax(x, axis=-1)` | an attribute of that value, the schema's default included |
| `p.softmax(x, axis=p.attr("axis"))` | captures an attribute; a predicate may follow |
| `p.split(x, s, outputs=2)` | a tuple of exactly that many results |
| `p.op(("relu", "com.microsoft.Gelu"), x)` | any of several operations |

Attributes that are not mentioned may have any value. `match` may return a tuple of values: results of one
operation, or of several that share operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from ..graph import opdef
from ..graph.core import Operation, Value
from ..graph.diagnostics import UsageError
from ..graph.opdef import OpDefinition, Trait

Predicate: TypeAlias = Callable[[Any], bool]
# What may stand for an operand in a pattern: a pattern, a number, or None for an operand that is left out.
PatternLike: TypeAlias = "PatternValue | int | float | bool | None"


class PatternValue:
    """A node that matches one value (or an absent operand)."""

    __slots__ = ()


class AnyValue(PatternValue):
    """Any value that is present; bound to `name` if it has one."""

    __slots__ = ("name",)

    def __init__(self, name: str | None = None) -> None:
        self.name = name


class ConstantValue(PatternValue):
    """The result of a `const`."""

    __slots__ = ("equal", "name", "predicate", "tolerance")

    def __init__(self, name: str | None, predicate: Predicate | None, equal: float | None, tolerance: float) -> None:
        self.name, self.predicate, self.equal, self.tolerance = name, predicate, equal, tolerance


class AbsentValue(PatternValue):
    """An operand that is left out."""

    __slots__ = ()


class OptionalValue(PatternValue):
    """An operand that is left out or matches `inner`."""

    __slots__ = ("inner",)

    def __init__(self, inner: PatternValue) -> None:
        self.inner = inner


class VariadicValue(PatternValue):
    """All remaining operands, bound to `name` as a tuple."""

    __slots__ = ("name",)

    def __init__(self, name: str | None) -> None:
        self.name = name


class EitherValue(PatternValue):
    """The first of several alternatives that matches."""

    __slots__ = ("alternatives",)

    def __init__(self, alternatives: tuple[PatternValue, ...]) -> None:
        self.alternatives = alternatives


class ResultValue(PatternValue):
    """Result `index` of an operation that matches `op`."""

    __slots__ = ("index", "name", "op")

    def __init__(self, op: OpPattern, index: int) -> None:
        self.op, self.index = op, index
        self.name: str | None = None


class AlsoRoot(PatternValue):
    """A further root: found among the users of what has been matched (made by the matcher, not by rules)."""

    __slots__ = ("op",)

    def __init__(self, op: OpPattern) -> None:
        self.op = op


class AttributeCapture:
    """Captures an attribute's value (the schema's default if it is not set; None if there is none)."""

    __slots__ = ("name", "predicate")

    def __init__(self, name: str, predicate: Predicate | None) -> None:
        self.name, self.predicate = name, predicate


class OpPattern:
    """An operation: one of `definitions`, with these operands and attributes.

    `producers` are the operands (by position) that only certain operations can make, for rejecting a root early.
    """

    __slots__ = ("attributes", "commutative", "definitions", "names", "operands", "outputs", "producers", "shared")

    def __init__(
        self,
        names: tuple[str, ...],
        operands: tuple[PatternValue, ...],
        attributes: dict[str, Any],
        outputs: int | None,
    ) -> None:
        self.names = names
        self.definitions = frozenset(definition_of(name) for name in names)
        self.operands = operands
        self.attributes = tuple(attributes.items())
        self.outputs = outputs
        self.shared = False
        self.commutative = len(operands) >= 2 and all(Trait.COMMUTATIVE in d.traits for d in self.definitions)
        self.producers = tuple(
            (index, _producers_of(operand))
            for index, operand in enumerate(operands)
            if isinstance(operand, ResultValue | ConstantValue)
        )

    def is_possible(self, op: Operation) -> bool:
        """False if the operations that make `op`'s operands already rule out a match."""
        operands = op._operands
        for index, definitions in self.producers:
            if index >= len(operands):
                return False
            if not _is_made_by(operands[index], definitions) and not (
                index < 2 and self.commutative and len(operands) > 1 and _is_made_by(operands[1 - index], definitions)
            ):
                return False
        return True


class PatternBuilder:
    """The `p` of a rule's `match`; see the module's docstring."""

    absent = AbsentValue()

    @property
    def any_value(self) -> AnyValue:
        return AnyValue()

    def const(
        self,
        capture: PatternValue | str | None = None,
        predicate: Predicate | None = None,
        *,
        equal: float | None = None,
        tolerance: float = 0.0,
    ) -> ConstantValue:
        """A constant, optionally captured; `predicate` gets its array, `equal` compares every element."""
        return ConstantValue(_capture_name(capture), predicate, equal, tolerance)

    def attr(self, name: str, predicate: Predicate | None = None) -> AttributeCapture:
        return AttributeCapture(name, predicate)

    def optional(self, inner: PatternLike) -> OptionalValue:
        return OptionalValue(as_pattern(inner))

    def variadic(self, capture: PatternValue | str | None = None) -> VariadicValue:
        return VariadicValue(_capture_name(capture))

    def either(self, *alternatives: PatternLike) -> EitherValue:
        if len(alternatives) < 2:
            raise UsageError("rule/pattern", "p.either takes at least two alternatives")
        return EitherValue(tuple(map(as_pattern, alternatives)))

    def shared(self, value: PatternValue) -> PatternValue:
        """Allow the operation that makes `value` to have users outside the match; it stays in the graph for them."""
        for result in _alternatives(value):
            if isinstance(result, ResultValue):
                result.op.shared = True
        return value

    def named(self, name: str, value: PatternValue) -> PatternValue:
        """Capture an inner value; alternatives of `p.either` may share one name."""
        for result in _alternatives(value):
            if not isinstance(result, ResultValue):
                raise UsageError("rule/pattern", f"p.named({name!r}, ...) takes the result of an operation")
            result.name = name
        return value

    def op(
        self, names: str | Sequence[str], *operands: PatternLike, outputs: int | None = None, **attributes: Any
    ) -> Any:
        """An operation by name, or one of several: one value, or a tuple of values if `outputs` is given."""
        given = (names,) if isinstance(names, str) else tuple(names)
        pattern = OpPattern(given, tuple(map(as_pattern, operands)), attributes, outputs)
        if outputs is None:
            return ResultValue(pattern, 0)
        return tuple(ResultValue(pattern, index) for index in range(outputs))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*operands: PatternLike, outputs: int | None = None, **attributes: Any) -> Any:
            return self.op(name.rstrip("_"), *operands, outputs=outputs, **attributes)

        return call


def _capture_name(capture: PatternValue | str | None) -> str | None:
    if isinstance(capture, str) or capture is None:
        return capture
    if isinstance(capture, AnyValue):
        return capture.name
    raise UsageError("rule/pattern", "only a parameter of match, or a name, can be captured")


def _producers_of(pattern: ResultValue | ConstantValue) -> frozenset[OpDefinition]:
    return pattern.op.definitions if isinstance(pattern, ResultValue) else frozenset([opdef.lookup("", "Constant")])


def _is_made_by(value: Value | None, definitions: frozenset[OpDefinition]) -> bool:
    owner = value.owner if value is not None else None
    return isinstance(owner, Operation) and owner.definition in definitions


def as_pattern(value: PatternLike) -> PatternValue:
    """A pattern for what was written as an operand."""
    if isinstance(value, PatternValue):
        return value
    if value is None:
        return PatternBuilder.absent
    if isinstance(value, int | float | np.generic):
        return ConstantValue(None, None, float(value), 0.0)
    raise UsageError("rule/pattern", f"{value!r} cannot be an operand of a pattern")


def definition_of(name: str) -> OpDefinition:
    """The operation called `name`. Raises UsageError for one that does not exist (a misspelt pattern never matches)."""
    definition = opdef.find_by_name(name)
    if definition is None and "." in name:
        domain, _, op_type = name.rpartition(".")
        definition = opdef.lookup(domain, op_type)
    if definition is None:
        raise UsageError("rule/unknown-op", f"there is no operation called {name!r}")
    return definition


def walk(value: PatternValue) -> Iterator[PatternValue]:
    """`value` and every pattern below it, each once."""
    seen: set[int] = set()
    pending = [value]
    while pending:
        current = pending.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        pending.extend(reversed(children(current)))


def children(value: PatternValue) -> tuple[PatternValue, ...]:
    """The patterns directly below `value`."""
    if isinstance(value, ResultValue):
        return value.op.operands
    if isinstance(value, EitherValue):
        return value.alternatives
    return (value.inner,) if isinstance(value, OptionalValue) else ()


def depth_of(value: PatternValue) -> int:
    """How many operations lie on the longest path through the pattern."""
    below = max(map(depth_of, children(value)), default=0)
    return below + 1 if isinstance(value, ResultValue) else below


def _alternatives(value: PatternValue) -> Iterator[PatternValue]:
    if isinstance(value, EitherValue):
        for alternative in value.alternatives:
            yield from _alternatives(alternative)
    elif isinstance(value, OptionalValue):
        yield from _alternatives(value.inner)
    else:
        yield value
