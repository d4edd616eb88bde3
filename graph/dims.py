"""Symbolic dimensions: canonical integer polynomials over named symbols.

A dimension is `Dim = int | DimExpr`.  A `DimExpr` is a polynomial with integer coefficients over *atoms*;
an atom is a symbol (`n`) or a call (`floordiv`, `mod`, `min`, `max`) whose arguments are dimensions again.

Invariants
- Canonical and interned: ring operations (+ - *) have one normal form, so expressions that are equal as
  polynomials are the same object, and `is`, `==` and `hash` are identity.  Calls are simplified by fixed
  rules that depend on nothing but their arguments, so the same formula gives the same object in every
  process.
- An expression that grows out of all proportion raises DimComplexityError, a subclass of ArithmeticError.
- A result that is constant is a plain `int`; a `DimExpr` is never constant.
- Division follows Python (floor, remainder with the sign of the divisor).  Everything proved about an
  expression holds for symbol values within their ranges and wherever no divisor is zero.
- Comparison never guesses: `prove_equal`, `prove_less` and `prove_less_equal` answer True, False or None
  (unknown).

    n, h = symbol("n"), symbol("h", minimum=1)
    (h + 2 * 1 - 3) // 2 + 1        ->  floordiv(h + 1, 2)
    (2 * n * h) // h                ->  2*n
    prove_equal(n + 1, n)           ->  False
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping

from .dim_calls import call, ceildiv, extremum, floordiv, range_of, variable_content
from .dim_polynomial import (
    Atom,
    Dim,
    DimComplexityError,
    DimExpr,
    as_dim,
    atom_dim,
    atoms_of,
    divide,
    is_symbol,
    only_atom,
    product,
    replace_atom,
    symbol,
    symbols_of,
    terms_of,
)
from .dim_text import DimSyntaxError, parse_dim, parse_dim_prefix

__all__ = [
    "Dim",
    "DimComplexityError",
    "DimExpr",
    "DimSyntaxError",
    "FreshSymbols",
    "bounds",
    "ceildiv",
    "dim_max",
    "dim_min",
    "evaluate",
    "exact_div",
    "factors_of",
    "format_dim",
    "is_symbol",
    "label_of",
    "parse_dim",
    "parse_dim_prefix",
    "product",
    "prove_equal",
    "prove_less",
    "prove_less_equal",
    "substitute",
    "symbol",
    "symbols_of",
]


class FreshSymbols:
    """A source of symbols that are not yet in use in one module; deterministic per instance."""

    def __init__(self) -> None:
        self._counter = 0
        self._next_ordinal: dict[str, int] = {}

    def fresh(self, minimum: int | None = 0) -> DimExpr:
        """A new unknown dimension: `?0`, then `?1`, ..."""
        while f"?{self._counter}" in self._next_ordinal:
            self._counter += 1
        label = f"?{self._counter}"
        self.reserve(label, 0)
        return symbol(label, 0, minimum)

    def distinct(self, label: str, minimum: int | None = 0) -> DimExpr:
        """A symbol of this label unlike all before: ordinal 0 the first time, then 1, 2, ..."""
        ordinal = self._next_ordinal.get(label, 0)
        self.reserve(label, ordinal)
        return symbol(label, ordinal, minimum)

    def reserve(self, label: str, ordinal: int = 0) -> None:
        """Mark (label, ordinal) as in use; later symbols of this source are numbered above it."""
        self._next_ordinal[label] = max(self._next_ordinal.get(label, 0), ordinal + 1)
        numbered = re.fullmatch(r"\?([0-9]{1,9})", label)
        if numbered:
            self._counter = max(self._counter, int(numbered[1]) + 1)

    def note(self, dim: Dim) -> None:
        """Reserve every symbol of `dim`."""
        for each in symbols_of(dim):
            self.reserve(each.label, each.ordinal)


def dim_min(*dims: Dim) -> Dim:
    """The least of `dims` (at least one)."""
    if not dims:
        raise TypeError("dim_min needs at least one dimension")
    return extremum("min", tuple(map(as_dim, dims)))


def dim_max(*dims: Dim) -> Dim:
    """The greatest of `dims` (at least one)."""
    if not dims:
        raise TypeError("dim_max needs at least one dimension")
    return extremum("max", tuple(map(as_dim, dims)))


def exact_div(dividend: Dim, divisor: Dim) -> Dim | None:
    """The dimension q with q * divisor = dividend for all symbol values, or None when none is known.

    This is what Reshape's -1 needs (element count over the known dimensions).  Where the divisor can be
    zero, q is the quotient for its other values.  Raises ZeroDivisionError for the divisor 0.
    """
    dividend, divisor = as_dim(dividend), as_dim(divisor)
    if divisor == 0:
        raise ZeroDivisionError(f"dimension {dividend} divided by zero")
    for candidate in _forms_of_difference(dividend, 0):
        if isinstance(divisor, int):
            if all(coefficient % divisor == 0 for _, coefficient in terms_of(candidate)):
                return floordiv(candidate, divisor)
            continue
        negative = divisor.terms[0][1] < 0
        quotient, rest = divide(-candidate, -divisor) if negative else divide(candidate, divisor)
        if rest == 0:
            return quotient
    return None


def factors_of(dim: Dim) -> tuple[Dim, ...]:
    """Dimensions with the product `dim`: its coefficient, symbols and calls if it is one term, else `dim` alone."""
    terms = terms_of(as_dim(dim))
    if len(terms) != 1:
        return (dim,)
    monomial, coefficient = terms[0]
    return (coefficient, *map(atom_dim, monomial))


def bounds(dim: Dim) -> tuple[int | None, int | None]:
    """Inclusive lower and upper bound of `dim` over its symbols' ranges; None where unbounded or unknown."""
    low, high = range_of(as_dim(dim))
    return None if isinstance(low, float) else low, None if isinstance(high, float) else high


def _proof_form(dim: Dim) -> Dim:
    """An equal form that cancels more: mod through floordiv, binary min and max as y + min(x - y, 0)."""
    result = dim
    for atom in atoms_of(dim):
        if atom.kind == "mod":
            dividend, divisor = atom.args
            result = replace_atom(result, atom, dividend - divisor * floordiv(dividend, divisor))
        elif atom.kind in ("min", "max") and len(atom.args) == 2:
            left, right = atom.args
            difference = left - right
            if terms_of(difference)[0][1] < 0:
                left, right, difference = right, left, -difference
            least = extremum("min", (difference, 0))
            result = replace_atom(result, atom, right + least if atom.kind == "min" else left - least)
    return result


def _forms_of_difference(left: Dim, right: Dim) -> Iterator[Dim]:
    """left - right, then, if it differs, the form of it that cancels more."""
    difference = as_dim(left) - as_dim(right)
    yield difference
    try:
        form = _proof_form(difference)
    except DimComplexityError:
        return
    if form is not difference:
        yield form


def prove_equal(left: Dim, right: Dim) -> bool | None:
    """True: equal for all symbol values; False: different for all; None: neither is known."""
    for difference in _forms_of_difference(left, right):
        if isinstance(difference, int):
            return difference == 0
        low, high = range_of(difference)
        if low > 0 or high < 0:
            return False
        if low == high:
            return True
        content = variable_content(difference, 0)
        if dict(difference.terms).get((), 0) % content:  # 2*n is never 2*m + 1
            return False
    return None


def prove_less_equal(left: Dim, right: Dim) -> bool | None:
    """True: left <= right for all symbol values; False: left > right for all; None: neither is known."""
    for difference in _forms_of_difference(right, left):
        low, high = range_of(difference)
        if low >= 0 or high < 0:
            return low >= 0
    return None


def prove_less(left: Dim, right: Dim) -> bool | None:
    """True: left < right for all symbol values; False: left >= right for all; None: neither is known."""
    return prove_less_equal(as_dim(left) + 1, right)


def substitute(dim: Dim, values: Mapping[DimExpr, Dim]) -> Dim:
    """`dim` with symbols replaced, all at once, and simplified again.

    Raises ValueError for a key that is not a plain symbol, or a value that is certainly outside the
    symbol's range.
    """
    known: dict[Atom, Dim] = {}
    for key, value in values.items():
        atom = only_atom(key)
        if atom is None or atom.kind != "symbol":
            raise ValueError(f"only a plain symbol can be replaced, not {key}")
        low, high = range_of(as_dim(value))
        if low > atom.range[1] or high < atom.range[0]:
            raise ValueError(f"value {value} is outside the range of dimension {key}: {_range_text(atom)}")
        known[atom] = as_dim(value)
    return _substitute(as_dim(dim), known)


def _substitute(dim: Dim, known: dict[Atom, Dim]) -> Dim:
    """`known` holds the new value of each atom met so far, so that shared parts are rebuilt once."""
    for atom in atoms_of(dim):
        if atom not in known:
            args = tuple(_substitute(arg, known) for arg in atom.args)
            known[atom] = call(atom.kind, args) if args else atom_dim(atom)
    result: Dim = 0
    for monomial, coefficient in terms_of(dim):
        result = result + coefficient * product(known[atom] for atom in monomial)
    return result


def evaluate(dim: Dim, values: Mapping[DimExpr, int]) -> int:
    """The value of `dim` for these symbol values.

    Raises KeyError for a symbol without a value, ValueError for a value outside its range, ZeroDivisionError.
    """
    return _evaluate(as_dim(dim), values, {})


def _evaluate(dim: Dim, values: Mapping[DimExpr, int], known: dict[Atom, int]) -> int:
    if isinstance(dim, int):
        return dim
    total = 0
    for monomial, coefficient in dim.terms:
        for atom in monomial:
            if atom not in known:
                known[atom] = _evaluate_atom(atom, values, known)
            coefficient *= known[atom]
        total += coefficient
    return total


def _evaluate_atom(atom: Atom, values: Mapping[DimExpr, int], known: dict[Atom, int]) -> int:
    if atom.kind == "symbol":
        key = atom_dim(atom)
        if key not in values:
            raise KeyError(f"no value for dimension {atom.text}")
        value = operator.index(values[key])
        if not atom.range[0] <= value <= atom.range[1]:
            raise ValueError(f"value {value} is outside the range of dimension {key}: {_range_text(atom)}")
        return value
    args = [_evaluate(arg, values, known) for arg in atom.args]
    if atom.kind in ("min", "max"):
        return min(args) if atom.kind == "min" else max(args)
    if args[1] == 0:
        raise ZeroDivisionError(f"the divisor of {atom.text} is zero")
    return args[0] // args[1] if atom.kind == "floordiv" else args[0] % args[1]


def _range_text(atom: Atom) -> str:
    low, high = atom.range
    if isinstance(high, float):
        return f"at least {low}"
    return f"at most {high}" if isinstance(low, float) else f"{low} to {high}"


def format_dim(dim: Dim) -> str:
    """The text of a dimension, such as `m*n + 2*n - 1`; `parse_dim` reads it back to the same object."""
    return str(dim)


def label_of(dim: Dim) -> str:
    """Text for ONNX's `dim_param`: the label of a plain symbol (ordinal and range dropped), else the text."""
    atom = only_atom(dim)
    return atom.label if atom is not None and atom.kind == "symbol" else str(dim)
