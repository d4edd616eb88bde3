"""Elementwise subgraphs as formulas of one value: what rules about written-out activations ask.

An argument such as `x * 0.044715 * x * x + x` is written in many orders. `polynomial` reads any of them as coefficients
by degree, {1: 1.0, 3: 0.044715}, so that a rule needs one comparison and not a pattern per order.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..graph.core import Operation, Value
from ..graph.data import UnresolvedData
from ..graph.dtypes import DType
from ..graph.location import Location, fuse
from .rules import Match, Mismatch

# Higher powers and longer expressions are not read: no activation has them.
_MAX_DEGREE = 3
_MAX_OPERATIONS = 16
# How far a constant may be off, in units of its type's relative precision: half a unit for rounding the exact number,
# the rest for one that was computed from a rounded one (1 / 1.4142135 for the inverse root of 2).
_UNITS = 2.0

Coefficients = dict[int, float]


@dataclass(frozen=True)
class Polynomial:
    """Coefficients by degree, and the operations that compute it, in order."""

    coefficients: Coefficients
    ops: tuple[Operation, ...]


def precision(dtype: DType | None) -> float:
    """The relative precision of a floating-point type (2 ** -23 for f32); 0 for any other."""
    if dtype is None or not dtype.is_float:
        return 0.0
    return {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}.get(str(dtype), 0.0)


def is_near(number: float | None, wanted: float, dtype: DType | None) -> bool:
    """Whether a constant of type `dtype` stands for the real number `wanted`."""
    return number is not None and abs(number - wanted) <= _UNITS * precision(dtype) * abs(wanted)


def has_form(found: Coefficients, wanted: Coefficients, dtype: DType | None) -> bool:
    """Whether two polynomials have the same terms with coefficients that are equal up to rounding."""
    return found.keys() == wanted.keys() and all(is_near(found[d], wanted[d], dtype) for d in wanted)


def number_of(m: Match, value: Value | None, like: Value) -> float | None:
    """The number that a constant stands for where it is broadcast to the shape of `like`; None if it is not one number
    or would give the result further dims."""
    data = m.data(value)
    if data is None or isinstance(data, UnresolvedData) or data.elements != 1 or not data.dtype.is_float:
        return None
    rank = m.rank(like)
    if data.shape and (rank is None or len(data.shape) > rank):
        return None
    return float(data.numpy().reshape(()))


def widening_constant(m: Match, like: Value) -> Value | None:
    """A constant operand of the matched operations that is no number for `like`; None if all are."""
    for op in m.ops:
        for value in op.operand_values:
            if value is not like and m.data(value) is not None and number_of(m, value, like) is None:
                return value
    return None


def is_elementwise_of(m: Match, x: Value) -> Mismatch | None:
    """Why the matched operations are not a function of the elements of the floating-point tensor `x`; None if so."""
    dtype = m.dtype(x)
    if dtype is None or not dtype.is_float:
        return m.fail("it is not a tensor of floating-point numbers", x)
    constant = widening_constant(m, x)
    return None if constant is None else m.fail("the constant is no number that keeps the shape", constant)


def polynomial(m: Match, value: Value, x: Value) -> Polynomial | Mismatch:
    """`value` as a polynomial of `x` with at most the power 3, or why it is none.

    The operations between must serve nothing else than the match.
    """
    reader = _Reader(m, x)
    found = reader.read(value)
    if found is None:
        return m.fail("it is no polynomial of the activation's operand", value, x)
    inside = {*reader.ops, *m.ops}
    for op in reader.ops:
        for result in op.results:
            for user in result.users:
                if user not in inside:
                    return m.fail(f"{op.name} has another user, {user.name}", result, user)
    return Polynomial({degree: c for degree, c in found.items() if c}, tuple(reader.ops))


def location_of(m: Match, *parts: Polynomial | Mismatch) -> Location:
    """The location for what replaces the match together with polynomials read apart from it."""
    ops = [op for part in parts if isinstance(part, Polynomial) for op in part.ops]
    return fuse(m.rule.name, [op.location for op in (*ops, *m.ops)])


class _Reader:
    """Reads one expression; `ops` are the operations seen, operands first."""

    def __init__(self, m: Match, x: Value) -> None:
        self.m, self.x = m, x
        self.ops: list[Operation] = []
        self._known: dict[Operation, Coefficients | None] = {}

    def read(self, value: Value | None) -> Coefficients | None:
        if value is self.x:
            return {1: 1.0}
        number = None if value is None else number_of(self.m, value, self.x)
        if number is not None:
            return {0: number}
        op = value.producer if value is not None else None
        if op is None or op.parent is not self.m.root.parent:
            return None
        if op not in self._known and len(self._known) < _MAX_OPERATIONS:
            self._known[op] = None
            self._known[op] = self._combine(op)
            self.ops.append(op)
        return self._known.get(op)

    def _combine(self, op: Operation) -> Coefficients | None:
        if op.name not in ("add", "sub", "mul", "div", "neg", "pow"):
            return None
        left = self.read(op.operands[0])
        if left is None:
            return None
        if op.name == "neg":
            return {degree: -c for degree, c in left.items()}
        if op.name == "pow":
            return _power(left, self.m.scalar(op.operands[1]))
        right = self.read(op.operands[1])
        if right is None:
            return None
        if op.name in ("add", "sub"):
            sign = 1.0 if op.name == "add" else -1.0
            return {d: left.get(d, 0.0) + sign * right.get(d, 0.0) for d in sorted({*left, *right})}
        if op.name == "mul":
            return _product(left, right)
        divisible = right.keys() == {0} and right[0]
        return {degree: c / right[0] for degree, c in left.items()} if divisible else None


def _product(left: Coefficients, right: Coefficients) -> Coefficients | None:
    if max(left) + max(right) > _MAX_DEGREE:
        return None
    result: Coefficients = {}
    for i, a in left.items():
        for j, b in right.items():
            result[i + j] = result.get(i + j, 0.0) + a * b
    return result


def _power(base: Coefficients, exponent: object) -> Coefficients | None:
    if not isinstance(exponent, int | float) or exponent not in (1, 2, 3):
        return None
    result: Coefficients | None = base
    for _ in range(int(exponent) - 1):
        result = None if result is None else _product(result, base)
    return result
