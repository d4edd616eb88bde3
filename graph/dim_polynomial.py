"""Interned integer polynomials over atoms: what `dims` and `dim_calls` are built on.

Holds the data structure and the ring operations, which need no ranges and no simplification rules.  Import
names from `dims`; this module's own names are for its neighbours.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NoReturn, SupportsIndex, TypeAlias

INFINITY = math.inf
_MAX_SIZE = 4096  # symbols and calls in one expression, repetitions counted
_MAX_HEIGHT = 50  # calls within calls
CALLS = frozenset({"floordiv", "mod", "min", "max", "ceildiv"})

Bound: TypeAlias = "int | float"  # an int, or an infinity; never another float
Range: TypeAlias = "tuple[Bound, Bound]"
Monomial: TypeAlias = "tuple[Atom, ...]"  # sorted by atom key, repeated for powers; () is the constant
Terms: TypeAlias = "tuple[tuple[Monomial, int], ...]"  # sorted by `monomial_key`, no zero coefficient


class DimComplexityError(ArithmeticError):
    """An expression grew past what is useful as a dimension; use a new symbol for the value instead."""


def _check_size(size: int, height: int) -> None:
    """A model can square a dimension again and again: refuse before time and memory run away."""
    if size > _MAX_SIZE or height > _MAX_HEIGHT:
        raise DimComplexityError(
            f"a dimension expression has {size} parts nested {height} deep; "
            f"the limits are {_MAX_SIZE} and {_MAX_HEIGHT}"
        )


class Atom:
    """A symbol, or a call of floordiv, mod, min or max.  Interned; made only by `symbol` and `call_atom`."""

    __slots__ = ("args", "height", "key", "kind", "label", "ordinal", "range", "size", "text")

    def __init__(self, kind: str, label: str, ordinal: int, args: tuple[Dim, ...], range_: Range, text: str) -> None:
        self.kind, self.label, self.ordinal, self.args = kind, label, ordinal, args
        self.range, self.text = range_, text
        inner = [atom for arg in args for monomial, _ in terms_of(arg) for atom in monomial]
        self.size: int = 1 + sum(atom.size for atom in inner)
        self.height: int = 1 + max((atom.height for atom in inner), default=0) if args else 0
        _check_size(self.size, self.height)
        # Structural, so that order depends on neither the hash seed nor the order of creation.
        self.key: tuple[object, ...] = (
            (0, label, ordinal, *range_) if kind == "symbol" else (1, kind, tuple(map(dim_key, args)))
        )


class DimExpr:
    """A dimension that is not a constant.  Immutable and interned; build it from `symbol` with operators.

    `+ - * // %` and unary `-` take a DimExpr or an integer on either side.  Order comparison is not defined
    and truth raises TypeError: ask `prove_equal`, `prove_less` or `prove_less_equal`.
    """

    __slots__ = ("_text", "terms")
    __array_ufunc__ = None  # a numpy integer on the left hands the operation to us
    terms: Terms
    _text: str | None

    def __new__(cls, *_: object) -> DimExpr:
        raise TypeError("a DimExpr is made by symbol(), parse_dim() or arithmetic on dimensions")

    @property
    def label(self) -> str:
        """The label of a plain symbol; AttributeError for any other expression."""
        return self._symbol_atom("label").label

    @property
    def ordinal(self) -> int:
        """The ordinal of a plain symbol; AttributeError for any other expression."""
        return self._symbol_atom("ordinal").ordinal

    def _symbol_atom(self, attribute: str) -> Atom:
        atom = only_atom(self)
        if atom is None or atom.kind != "symbol":
            raise AttributeError(f"{self} is not a plain symbol, so it has no {attribute}")
        return atom

    def __add__(self, other: Dim) -> Dim:
        right = _operand(other)
        return NotImplemented if right is None else _add(self, right, 1)

    __radd__ = __add__

    def __sub__(self, other: Dim) -> Dim:
        right = _operand(other)
        return NotImplemented if right is None else _add(self, right, -1)

    def __rsub__(self, other: Dim) -> Dim:
        left = _operand(other)
        return NotImplemented if left is None else _add(_scale(self, -1), left, 1)

    def __mul__(self, other: Dim) -> Dim:
        right = _operand(other)
        return NotImplemented if right is None else _multiply(self, right)

    __rmul__ = __mul__

    def __neg__(self) -> DimExpr:
        return _intern(tuple((monomial, -coefficient) for monomial, coefficient in self.terms))

    def __pos__(self) -> Dim:
        return self

    def __floordiv__(self, other: Dim) -> Dim:
        from .dim_calls import floordiv

        right = _operand(other)
        return NotImplemented if right is None else floordiv(self, right)

    def __rfloordiv__(self, other: Dim) -> Dim:
        from .dim_calls import floordiv

        left = _operand(other)
        return NotImplemented if left is None else floordiv(left, self)

    def __mod__(self, other: Dim) -> Dim:
        from .dim_calls import mod

        right = _operand(other)
        return NotImplemented if right is None else mod(self, right)

    def __rmod__(self, other: Dim) -> Dim:
        from .dim_calls import mod

        left = _operand(other)
        return NotImplemented if left is None else mod(left, self)

    def __bool__(self) -> NoReturn:
        raise TypeError(f"the truth of dimension {self} is not known; use prove_equal(dim, 0)")

    def __str__(self) -> str:
        if self._text is None:
            self._text = _format_terms(self.terms)
        return self._text

    def __repr__(self) -> str:
        return f"<Dim {self}>"

    def __copy__(self) -> DimExpr:
        return self

    def __deepcopy__(self, memo: object) -> DimExpr:
        return self

    def __reduce__(self) -> tuple[Callable[[str], Dim], tuple[str]]:
        from .dim_text import parse_dim

        return parse_dim, (str(self),)


Dim: TypeAlias = int | DimExpr

# Interning tables.  `dict.setdefault` on these keys is atomic under the GIL.  Entries live as long as the
# process: names repeat from module to module, and run-time shapes are plain ints, so the tables stay small.
ATOMS: dict[tuple[object, ...], Atom] = {}
_EXPRESSIONS: dict[Terms, DimExpr] = {}
_MONOMIAL_KEYS: dict[Monomial, tuple[int, tuple[object, ...]]] = {}


def monomial_key(monomial: Monomial) -> tuple[int, tuple[object, ...]]:
    """Sort key: higher degree first, then by atoms.  Graded, so `divide` may use terms[0] as leading."""
    key = _MONOMIAL_KEYS.get(monomial)
    if key is None:
        key = _MONOMIAL_KEYS.setdefault(monomial, (-len(monomial), tuple(atom.key for atom in monomial)))
    return key


def _term_key(term: tuple[Monomial, int]) -> tuple[int, tuple[object, ...]]:
    return monomial_key(term[0])


def terms_of(dim: Dim) -> Terms:
    return dim.terms if isinstance(dim, DimExpr) else ((((), dim),) if dim else ())


def dim_key(dim: Dim) -> tuple[object, ...]:
    """Sort key of a dimension: constants, zero too, come after expressions."""
    if isinstance(dim, int):
        return ((monomial_key(()), dim),)
    return tuple((monomial_key(monomial), coefficient) for monomial, coefficient in terms_of(dim))


def polynomial(coefficients: Mapping[Monomial, int]) -> Dim:
    """The one object for these coefficients: an int when constant."""
    terms = [term for term in coefficients.items() if term[1]]
    if not terms:
        return 0
    if len(terms) > 1:
        terms.sort(key=_term_key)
    elif not terms[0][0]:
        return terms[0][1]
    return _intern(tuple(terms))


def _intern(terms: Terms) -> DimExpr:
    found = _EXPRESSIONS.get(terms)
    if found is not None:
        return found
    _check_size(sum(atom.size for monomial, _ in terms for atom in monomial), 0)
    expression: DimExpr = object.__new__(DimExpr)
    expression.terms, expression._text = terms, None
    return _EXPRESSIONS.setdefault(terms, expression)


def atom_dim(atom: Atom) -> DimExpr:
    return _intern((((atom,), 1),))


def _operand(value: object) -> Dim | None:
    """`value` as a Dim, or None when it is no integer (numpy integers are accepted)."""
    if isinstance(value, DimExpr) or type(value) is int:
        return value
    return int(operator.index(value)) if isinstance(value, SupportsIndex) else None


def as_dim(value: object) -> Dim:
    dim = _operand(value)
    if dim is None:
        raise TypeError(f"a dimension is an int or a DimExpr, not {type(value).__name__}: {value!r}")
    return dim


def _add(left: Dim, right: Dim, sign: int) -> Dim:
    coefficients = dict(terms_of(left))
    for monomial, coefficient in terms_of(right):
        coefficients[monomial] = coefficients.get(monomial, 0) + sign * coefficient
    return polynomial(coefficients)


def _scale(dim: Dim, factor: int) -> Dim:
    if isinstance(dim, int):
        return dim * factor
    if factor == 0:
        return 0
    return _intern(tuple((monomial, coefficient * factor) for monomial, coefficient in dim.terms))


def _multiply(left: Dim, right: Dim) -> Dim:
    if isinstance(left, int):
        return _scale(right, left)
    if isinstance(right, int):
        return _scale(left, right)
    _check_size(len(left.terms) * len(right.terms), 0)
    coefficients: dict[Monomial, int] = {}
    for left_monomial, left_coefficient in left.terms:
        for right_monomial, right_coefficient in right.terms:
            monomial = _monomial_product(left_monomial, right_monomial)
            coefficients[monomial] = coefficients.get(monomial, 0) + left_coefficient * right_coefficient
    return polynomial(coefficients)


def _monomial_product(left: Monomial, right: Monomial) -> Monomial:
    if not left or not right:
        return left or right
    return tuple(sorted(left + right, key=lambda atom: atom.key))


def monomial_quotient(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    rest = list(monomial)
    for atom in divisor:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def atoms_of(dim: Dim) -> Iterator[Atom]:
    """The atoms of `dim`'s own monomials (not those inside calls), each once, in order."""
    return iter(dict.fromkeys(atom for monomial, _ in terms_of(dim) for atom in monomial))


def only_atom(dim: Dim) -> Atom | None:
    """The atom `dim` consists of, if it is one atom and nothing else."""
    if isinstance(dim, int) or len(dim.terms) != 1:
        return None
    monomial, coefficient = dim.terms[0]
    return monomial[0] if coefficient == 1 and len(monomial) == 1 else None


def divide(dividend: Dim, divisor: DimExpr) -> tuple[Dim, Dim]:
    """Polynomial quotient and remainder: dividend = quotient * divisor + remainder.

    The divisor's leading coefficient is positive.  The remainder is unique: in it no coefficient of a
    multiple of the leading monomial reaches the leading coefficient.
    """
    lead, lead_coefficient = divisor.terms[0]
    work, quotient, remainder = dict(terms_of(dividend)), dict[Monomial, int](), dict[Monomial, int]()
    while work:
        monomial = min(work, key=monomial_key)
        coefficient = work.pop(monomial)
        factor = monomial_quotient(monomial, lead)
        if factor is None:
            remainder[monomial] = coefficient
            continue
        quotient[factor], remainder[monomial] = divmod(coefficient, lead_coefficient)
        for other, other_coefficient in divisor.terms[1:]:
            target = _monomial_product(factor, other)
            work[target] = work.get(target, 0) - quotient[factor] * other_coefficient
    return polynomial(quotient), polynomial(remainder)


def replace_atom(dim: Dim, atom: Atom, value: Dim) -> Dim:
    """`dim` with `atom` replaced in its monomials; occurrences inside calls stay."""
    result: Dim = 0
    kept: dict[Monomial, int] = {}
    for monomial, coefficient in terms_of(dim):
        power = monomial.count(atom)
        if not power:
            kept[monomial] = coefficient
            continue
        rest = polynomial({tuple(other for other in monomial if other is not atom): coefficient})
        for _ in range(power):
            rest = rest * value
        result = result + rest
    return result + polynomial(kept)


def _format_terms(terms: Terms) -> str:
    pieces: list[str] = []
    for monomial, coefficient in terms:
        factors = [atom.text for atom in monomial]
        if abs(coefficient) != 1 or not monomial:
            factors.insert(0, str(abs(coefficient)))
        sign = ("-" if coefficient < 0 else "") if not pieces else (" - " if coefficient < 0 else " + ")
        pieces.append(sign + "*".join(factors))
    return "".join(pieces)


PLAIN_LABEL = re.compile(r"[A-Za-z_?][A-Za-z0-9_.?]*")


def symbol(label: str, ordinal: int = 0, minimum: int | None = 0, maximum: int | None = None) -> DimExpr:
    """The symbol with this label, ordinal and inclusive range (None: unbounded).

    All four make its identity.  Two occurrences of one name in a file get different ordinals: that a
    repeated name means a repeated size is the file's claim, not a fact.  Raises ValueError for an empty
    range or a negative ordinal.
    """
    key = (label, ordinal, minimum, maximum)
    atom = ATOMS.get(key)
    if atom is None:
        ordinal = int(operator.index(ordinal))
        minimum = None if minimum is None else int(operator.index(minimum))
        maximum = None if maximum is None else int(operator.index(maximum))
        if minimum is not None and maximum is not None and minimum > maximum:
            raise ValueError(f"symbol {label!r} has an empty range: minimum {minimum}, maximum {maximum}")
        if ordinal < 0:
            raise ValueError(f"symbol {label!r} has ordinal {ordinal}; ordinals start at 0")
        plain = PLAIN_LABEL.fullmatch(label) and label not in CALLS
        text = label if plain else json.dumps(label)
        text += f"'{ordinal}" if ordinal else ""
        if (minimum, maximum) != (0, None):
            text += f"[{'-inf' if minimum is None else minimum}..{'' if maximum is None else maximum}]"
        range_ = (-INFINITY if minimum is None else minimum, INFINITY if maximum is None else maximum)
        key = (label, ordinal, minimum, maximum)
        atom = ATOMS.setdefault(key, Atom("symbol", label, ordinal, (), range_, text))
    return atom_dim(atom)


def is_symbol(dim: Dim) -> bool:
    """Whether `dim` is one plain symbol (so that it has `.label` and `.ordinal`)."""
    atom = only_atom(dim)
    return atom is not None and atom.kind == "symbol"


def symbols_of(dim: Dim) -> frozenset[DimExpr]:
    """All symbols of `dim`, also those inside calls.  For a stable order sort by `str`."""
    found: set[DimExpr] = set()
    seen: set[Atom] = set()
    pending = list(atoms_of(dim))
    while pending:
        atom = pending.pop()
        if atom in seen:
            continue
        seen.add(atom)
        if atom.kind == "symbol":
            found.add(atom_dim(atom))
        for arg in atom.args:
            pending.extend(atoms_of(arg))
    return frozenset(found)


def product(dims: Iterable[Dim]) -> Dim:
    """The product of `dims`; 1 when there are none."""
    result: Dim = 1
    for dim in dims:
        result = result * as_dim(dim)
    return result
