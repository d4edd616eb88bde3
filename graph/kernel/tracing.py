"""Numbers that remember how they were computed, so that the same can be computed of others without doing it all again.

A `Number` behaves like the int or float that it stands for. Arithmetic on it is recorded; a comparison is answered and
recorded with its answer, as a condition; what needs the number itself (an index, a length) gets it, on the condition
that it is the same. So the steps that were recorded give, for all other numbers that meet the conditions, what the
whole program would. (Concolic execution: Godefroid, Klarlund, Sen, "DART", PLDI 2005.)
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..diagnostics import TilewrightError

_COMMUTATIVE = frozenset((operator.add, operator.mul, operator.eq, operator.ne))


class UntraceableError(Exception):
    """A number was used in a way that cannot be recorded."""


class Trace:
    """What is computed of `inputs` and decided by them."""

    def __init__(self, inputs: Sequence[int]) -> None:
        self.values: list[Any] = list(inputs)
        self.inputs = [Number(self, place) for place in range(len(self.values))]
        # Places of results with the function and the places of its operands; then places of what was decided.
        self.steps: dict[int, tuple[Callable[..., Any], tuple[int, ...]]] = {}
        self.conditions: dict[int, bool] = {}
        self.is_closed = False
        self._numbers: dict[Any, Number] = {}

    def place(self, operand: Any) -> int:
        """Where the value of a number, or of a constant, is kept."""
        if isinstance(operand, Number):
            if operand.trace is not self:
                raise UntraceableError("a number of another trace")
            return operand.place
        key = type(operand), operand
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = self._keep(operand)
        return found.place

    def apply(self, function: Callable[..., Any], *operands: Any) -> Number:
        """`function(*operands)`, recorded; the function must depend on nothing else that changes."""
        if self.is_closed:
            raise UntraceableError("a number is used after its trace has ended")
        places = tuple([self.place(operand) for operand in operands])
        if function in _COMMUTATIVE and places[0] > places[1]:
            places = places[::-1]
        key = function, places
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = self._keep(function(*[self.values[place] for place in places]))
            self.steps[found.place] = key
        return found

    def decide(self, function: Callable[..., Any], *operands: Any) -> bool:
        """The answer of a comparison, as a condition."""
        number = self.apply(function, *operands)
        answer = bool(self.values[number.place])
        self.conditions[number.place] = answer
        return answer

    def _keep(self, value: Any) -> Number:
        self.values.append(value)
        return Number(self, len(self.values) - 1)


class Number:
    """An int or a float of a trace."""

    __slots__ = ("place", "trace")
    __array_ufunc__ = None  # numpy's numbers leave arithmetic with this one to it

    def __init__(self, trace: Trace, place: int) -> None:
        self.trace, self.place = trace, place

    @property
    def value(self) -> Any:
        """The number, without any condition: for texts, and for what is decided in no other way by it."""
        return self.trace.values[self.place]

    def known(self) -> Any:
        """The number itself, on the condition that it is the same."""
        value = self.value
        if not self.trace.decide(operator.eq, self, value):
            raise UntraceableError("a value that does not equal itself")
        return value

    def __int__(self) -> int:
        return int(self.known())

    def __index__(self) -> int:
        return operator.index(self.known())

    def __float__(self) -> float:
        return float(self.known())

    def __hash__(self) -> int:
        raise UntraceableError("a number that may differ is part of a key")

    def __repr__(self) -> str:
        return repr(self.value)

    def __bool__(self) -> bool:
        return self.trace.decide(operator.ne, self, 0)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, int | float | Number):
            return False
        is_same = isinstance(other, Number) and other.place == self.place and other.trace is self.trace
        return is_same or self.trace.decide(operator.eq, self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: Any) -> bool:
        return self.trace.decide(operator.lt, self, other)

    def __le__(self, other: Any) -> bool:
        return self.trace.decide(operator.le, self, other)

    def __gt__(self, other: Any) -> bool:
        return self.trace.decide(operator.gt, self, other)

    def __ge__(self, other: Any) -> bool:
        return self.trace.decide(operator.ge, self, other)

    def __neg__(self) -> Number:
        return self.trace.apply(operator.neg, self)

    def __abs__(self) -> Number:
        return self if self >= 0 else -self

    def __add__(self, other: Any) -> Number:
        return self if _is(other, 0) else self.trace.apply(operator.add, self, other)

    def __radd__(self, other: Any) -> Number:
        return self if _is(other, 0) else self.trace.apply(operator.add, other, self)

    def __sub__(self, other: Any) -> Number:
        return self if _is(other, 0) else self.trace.apply(operator.sub, self, other)

    def __rsub__(self, other: Any) -> Number:
        return self.trace.apply(operator.sub, other, self)

    def __mul__(self, other: Any) -> Any:
        return self if _is(other, 1) else 0 if _is(other, 0) else self.trace.apply(operator.mul, self, other)

    def __rmul__(self, other: Any) -> Any:
        return self if _is(other, 1) else 0 if _is(other, 0) else self.trace.apply(operator.mul, other, self)

    def __floordiv__(self, other: Any) -> Number:
        return self if _is(other, 1) else self.trace.apply(operator.floordiv, self, other)

    def __rfloordiv__(self, other: Any) -> Number:
        return self.trace.apply(operator.floordiv, other, self)

    def __truediv__(self, other: Any) -> Number:
        return self.trace.apply(operator.truediv, self, other)

    def __rtruediv__(self, other: Any) -> Number:
        return self.trace.apply(operator.truediv, other, self)

    def __mod__(self, other: Any) -> Number:
        return self.trace.apply(operator.mod, self, other)

    def __rmod__(self, other: Any) -> Number:
        return self.trace.apply(operator.mod, other, self)


def is_traced(numbers: Iterable[Any]) -> bool:
    """Whether a `Number` is among them."""
    return any(isinstance(number, Number) for number in numbers)


def apply(function: Callable[..., Any], *operands: Any) -> Any:
    """`function(*operands)`, as one recorded step if a `Number` is among them."""
    for operand in operands:
        if isinstance(operand, Number):
            return operand.trace.apply(function, *operands)
    return function(*operands)


def choose(function: Callable[..., Any], *operands: Any) -> Any:
    """What `function(*operands)` chooses, on the condition that it is the same for other numbers."""
    found = apply(function, *operands)
    return found.known() if isinstance(found, Number) else found


def _is(operand: Any, number: int) -> bool:
    """Whether the operand is this int, and no Number."""
    return type(operand) is int and operand == number


class Recipe:
    """The steps of a trace that its conditions and `wanted` need: the same numbers for other inputs."""

    def __init__(self, trace: Trace, wanted: Sequence[int]) -> None:
        """`wanted` are places of the trace, which ends."""
        trace.is_closed = True
        self._wanted = list(wanted)
        needed = {*self._wanted, *trace.conditions}
        steps = []
        for place in reversed(trace.steps):
            if place in needed:
                function, operands = trace.steps[place]
                needed.update(operands)
                steps.append((place, function, operands))
        self._steps = steps[::-1]
        self._values = [None if place in trace.steps else value for place, value in enumerate(trace.values)]
        self._conditions = list(trace.conditions.items())

    def follow(self, inputs: Sequence[int]) -> list[Any] | None:
        """What was wanted, for other inputs; None if they do not meet the conditions."""
        values = list(self._values)
        values[: len(inputs)] = inputs
        try:
            for place, function, operands in self._steps:
                if len(operands) == 2:
                    values[place] = function(values[operands[0]], values[operands[1]])
                else:
                    values[place] = function(*[values[operand] for operand in operands])
        except (ArithmeticError, ValueError, TilewrightError):
            return None
        for place, answer in self._conditions:
            if bool(values[place]) is not answer:
                return None
        return [values[place] for place in self._wanted]
