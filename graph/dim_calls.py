"""Calls on dimensions - floordiv, mod, min, max - and the ranges that simplify them.

The two are one module because each needs the other: `floordiv(mod(n, 2), 2)` is 0 by range, and the range
of `n - 2*floordiv(n, 2)` follows from what floordiv means.  Every rule is an equality wherever no divisor
is zero.
"""

from __future__ import annotations

import math
from functools import lru_cache

from .dim_polynomial import (
    ATOMS,
    INFINITY,
    Atom,
    Bound,
    Dim,
    DimComplexityError,
    DimExpr,
    Monomial,
    Range,
    as_dim,
    atom_dim,
    atoms_of,
    dim_key,
    divide,
    monomial_quotient,
    only_atom,
    polynomial,
    replace_atom,
    symbol,
    terms_of,
)

_FUEL = 6  # how many calls one range query may relax or split; bounds the work of a proof


def call_atom(kind: str, args: tuple[Dim, ...]) -> DimExpr:
    """The atom for a call that no rule simplifies."""
    key = (kind, args)
    atom = ATOMS.get(key)
    if atom is None:
        text = f"{kind}({', '.join(map(str, args))})"
        atom = ATOMS.setdefault(key, Atom(kind, "", 0, args, _call_range(kind, args), text))
    return atom_dim(atom)


def _split(dim: DimExpr, divisor: int) -> tuple[Dim, Dim]:
    """(q, r) with dim = q * divisor + r and every coefficient of r in [0, divisor)."""
    quotient = {monomial: coefficient // divisor for monomial, coefficient in dim.terms}
    remainder = {monomial: coefficient % divisor for monomial, coefficient in dim.terms}
    return polynomial(quotient), polynomial(remainder)


def _floor_coefficients(dim: Dim, divisor: int) -> Dim:
    if divisor == 1:
        return dim
    return polynomial({monomial: coefficient // divisor for monomial, coefficient in terms_of(dim)})


def variable_content(dim: DimExpr, divisor: int) -> int:
    """The greatest common divisor of `divisor` and the coefficients of all terms but the constant."""
    return math.gcd(divisor, *(coefficient for monomial, coefficient in dim.terms if monomial))


def _constant_quotient(range_: Range, divisor: int) -> int | None:
    """The value of x // divisor, if it is the same for all x in the range."""
    low, high = range_
    if isinstance(low, float) or isinstance(high, float) or low // divisor != high // divisor:
        return None
    return low // divisor


@lru_cache(maxsize=1 << 16)
def floordiv(dividend: Dim, divisor: Dim) -> Dim:
    if isinstance(divisor, DimExpr):
        return _floordiv_symbolic(dividend, divisor)
    if divisor == 0:
        raise ZeroDivisionError(f"dimension {dividend} divided by zero")
    if isinstance(dividend, int):
        return dividend // divisor
    if divisor < 0:
        return floordiv(-dividend, -divisor)
    # Multiples of the divisor leave the numerator, so (h - 1) // 2 + 1 and (h + 1) // 2 are one object.
    quotient, rest = _split(dividend, divisor)
    if isinstance(rest, int):
        return quotient
    # floor((g*e + c) / (g*b)) = floor((e + floor(c / g)) / b)
    content = variable_content(rest, divisor)
    rest, divisor = _floor_coefficients(rest, content), divisor // content
    if divisor == 1:
        return quotient + rest
    inner = _unit_floordiv(rest)
    if inner is not None:
        # floor((floor(e / a) + f) / b) = floor((e + a*f) / (a*b))
        numerator, denominator = inner.args
        return quotient + floordiv(numerator + denominator * (rest - atom_dim(inner)), denominator * divisor)
    constant = _constant_quotient(range_of(rest), divisor)
    return quotient + (call_atom("floordiv", (rest, divisor)) if constant is None else constant)


def _unit_floordiv(dim: Dim) -> Atom | None:
    """The floordiv by a constant that is a term of `dim` with coefficient 1, if there is exactly one."""
    found = [
        monomial[0]
        for monomial, coefficient in terms_of(dim)
        if coefficient == 1 and len(monomial) == 1
        if monomial[0].kind == "floordiv" and isinstance(monomial[0].args[1], int)
    ]
    return found[0] if len(found) == 1 else None


def _cancel_common(left: Dim, right: DimExpr) -> tuple[Dim, Dim, Dim]:
    """Both divided by their common factor (an integer, atoms that cannot be zero): (left, right, factor)."""
    content = math.gcd(*(coefficient for _, coefficient in (*terms_of(left), *right.terms)))
    left, reduced, factor = _floor_coefficients(left, content), _floor_coefficients(right, content), content
    common: Dim = factor
    for atom in right.terms[0][0]:
        monomials = [monomial for dim in (left, reduced) for monomial, _ in terms_of(dim)]
        if _excludes_zero(atom.range) and all(atom in monomial for monomial in monomials):
            left, reduced = _without(left, atom), _without(reduced, atom)
            common = common * atom_dim(atom)
    return left, reduced, common


def _without(dim: Dim, atom: Atom) -> Dim:
    """`dim` divided by `atom`, which divides every term."""
    return polynomial({monomial_quotient(monomial, (atom,)) or (): value for monomial, value in terms_of(dim)})


def _excludes_zero(range_: Range) -> bool:
    return range_[0] > 0 or range_[1] < 0


def _floordiv_symbolic(dividend: Dim, divisor: DimExpr) -> Dim:
    if divisor.terms[0][1] < 0:
        return floordiv(-dividend, -divisor)
    dividend, reduced, _ = _cancel_common(dividend, divisor)
    if isinstance(reduced, int):
        return floordiv(dividend, reduced)
    if not _excludes_zero(range_of(reduced)):
        return call_atom("floordiv", (dividend, reduced))
    quotient, rest = divide(dividend, reduced)
    step = _known_quotient(rest, reduced)
    if step is not None:
        return quotient + step
    if quotient != 0:
        return quotient + floordiv(rest, reduced)
    return call_atom("floordiv", (rest, reduced))


def _known_quotient(rest: Dim, divisor: DimExpr) -> int | None:
    """rest // divisor where ranges show it to be 0 or -1."""
    if rest == 0:
        return 0
    if range_of(rest)[0] >= 0 and range_of(divisor - rest)[0] > 0:
        return 0
    if range_of(rest)[1] < 0 and range_of(divisor + rest)[0] >= 0:
        return -1
    return None


@lru_cache(maxsize=1 << 16)
def mod(dividend: Dim, divisor: Dim) -> Dim:
    if isinstance(divisor, DimExpr):
        return _mod_symbolic(dividend, divisor)
    if divisor == 0:
        raise ZeroDivisionError(f"remainder of dimension {dividend} divided by zero")
    if isinstance(dividend, int):
        return dividend % divisor
    if divisor < 0:
        return -mod(-dividend, -divisor)
    for monomial, coefficient in dividend.terms:
        inner = monomial[0] if len(monomial) == 1 else None
        if inner is None or inner.kind != "mod" or not isinstance(inner.args[1], int):
            continue
        if coefficient * inner.args[1] % divisor == 0:  # mod(mod(e, k*b), b) = mod(e, b)
            return mod(dividend + coefficient * (inner.args[0] - atom_dim(inner)), divisor)
    _, rest = _split(dividend, divisor)
    if isinstance(rest, int):
        return rest
    content = variable_content(rest, divisor)
    if content > 1:
        # (g*e + c) mod (g*b) = g * ((e + floor(c / g)) mod b) + c mod g
        offset = dict(rest.terms).get((), 0) % content
        return content * mod(_floor_coefficients(rest, content), divisor // content) + offset
    constant = _constant_quotient(range_of(rest), divisor)
    return call_atom("mod", (rest, divisor)) if constant is None else rest - divisor * constant


def _mod_symbolic(dividend: Dim, divisor: DimExpr) -> Dim:
    if divisor.terms[0][1] < 0:
        return -mod(-dividend, -divisor)
    dividend, reduced, factor = _cancel_common(dividend, divisor)
    if isinstance(reduced, int):
        return factor * mod(dividend, reduced)
    if not _excludes_zero(range_of(reduced)):
        return factor * call_atom("mod", (dividend, reduced))
    _, rest = divide(dividend, reduced)
    step = _known_quotient(rest, reduced)
    if step is not None:
        return factor * (rest - step * reduced)
    if rest is not dividend:
        return factor * mod(rest, reduced)
    return factor * call_atom("mod", (rest, reduced))


@lru_cache(maxsize=1 << 16)
def extremum(kind: str, dims: tuple[Dim, ...]) -> Dim:
    flat: list[Dim] = []
    for dim in dims:
        atom = only_atom(dim)
        flat.extend(atom.args if atom is not None and atom.kind == kind else (dim,))
    args = _undominated(kind, sorted(set(flat), key=dim_key))
    if len(args) == 1:
        return args[0]
    # Terms that all arguments share, and a common factor, stand outside: max(n + 1, m + 1) = max(m, n) + 1.
    shared = set(terms_of(args[0])).intersection(*(set(terms_of(arg)) for arg in args[1:]))
    offset = polynomial(dict(shared))
    moved = [arg - offset for arg in args]
    content = math.gcd(*(coefficient for arg in moved for _, coefficient in terms_of(arg)))
    if not shared and content == 1:
        return call_atom(kind, tuple(args))
    return offset + content * extremum(kind, tuple(_floor_coefficients(arg, content) for arg in moved))


def _undominated(kind: str, args: list[Dim]) -> list[Dim]:
    """`args` without those that ranges show never to be the result alone."""
    kept = list(args)
    for arg in args:
        for other in kept:
            difference = other - arg if kind == "max" else arg - other
            if other is not arg and len(kept) > 1 and arg in kept and range_of(difference)[0] >= 0:
                kept.remove(arg)
                break
    return kept


def call(kind: str, args: tuple[Dim, ...]) -> Dim:
    if kind in ("min", "max"):
        return extremum(kind, args)
    return floordiv(*args) if kind == "floordiv" else mod(*args)


def ceildiv(dividend: Dim, divisor: Dim) -> Dim:
    """Division rounded up, expressed through floordiv.  Raises ZeroDivisionError for the divisor 0."""
    dividend, divisor = as_dim(dividend), as_dim(divisor)
    if range_of(divisor)[0] >= 0:
        return floordiv(dividend + divisor - 1, divisor)
    return -floordiv(-dividend, divisor)


def _plus(left: Bound, right: Bound) -> Bound:
    if isinstance(left, float):
        return left
    return right if isinstance(right, float) else left + right


def _times(left: Bound, right: Bound) -> Bound:
    if left == 0 or right == 0:
        return 0
    if isinstance(left, float) or isinstance(right, float):
        return INFINITY if (left > 0) == (right > 0) else -INFINITY
    return left * right


def _floor_quotient(dividend: Bound, divisor: Bound) -> Bound:
    """Limit of dividend // divisor for a positive divisor."""
    if isinstance(dividend, float):
        return dividend
    if isinstance(divisor, float):
        return 0 if dividend >= 0 else -1
    return dividend // divisor


def _monomial_range(monomial: Monomial) -> Range:
    if len(monomial) == 1:
        return monomial[0].range
    low: Bound = 1
    high: Bound = 1
    for atom in dict.fromkeys(monomial):
        power, (atom_low, atom_high) = monomial.count(atom), atom.range
        ends = [atom_low, atom_high]
        for _ in range(power - 1):
            ends = [_times(ends[0], atom_low), _times(ends[1], atom_high)]
        least = 0 if power % 2 == 0 and atom_low < 0 < atom_high else min(ends)
        corners = [_times(x, y) for x in (low, high) for y in (least, max(ends))]
        low, high = min(corners), max(corners)
    return low, high


def _interval(dim: Dim) -> Range:
    """Interval arithmetic, each term on its own."""
    low: Bound = 0
    high: Bound = 0
    for monomial, coefficient in terms_of(dim):
        ends = [_times(coefficient, end) for end in _monomial_range(monomial)]
        low, high = _plus(low, min(ends)), _plus(high, max(ends))
    return low, high


def _call_range(kind: str, args: tuple[Dim, ...]) -> Range:
    ranges = [range_of(arg) for arg in args]
    if kind in ("min", "max"):
        choose = min if kind == "min" else max
        return choose(low for low, _ in ranges), choose(high for _, high in ranges)
    (low, high), (divisor_low, divisor_high) = ranges
    if kind == "mod":
        if divisor_low < 0:
            return min(0, _plus(divisor_low, 1)), max(0, _plus(divisor_high, -1))
        return 0, min(_plus(divisor_high, -1), high if low >= 0 else INFINITY)
    if divisor_low < 0:
        return -INFINITY, INFINITY
    divisors = (max(divisor_low, 1), divisor_high)  # where it is defined, the divisor is not zero
    return min(_floor_quotient(low, d) for d in divisors), max(_floor_quotient(high, d) for d in divisors)


def range_of(dim: Dim) -> Range:
    return (dim, dim) if isinstance(dim, int) else _refined(dim, _FUEL)


@lru_cache(maxsize=1 << 16)
def _refined(dim: Dim, fuel: int) -> Range:
    """Interval arithmetic, sharpened by relaxing the deepest call or by measuring symbols from their minimum.

    A pure function of its arguments: canonical forms rest on it, so it must not depend on what was asked
    before.
    """
    low, high = _interval(dim)
    if fuel == 0 or low == high:
        return low, high
    try:
        sharper = _sharpen(dim, fuel - 1)
    except DimComplexityError:  # an intermediate form grew too large; the plain interval still holds
        sharper = None
    return (low, high) if sharper is None else (max(low, sharper[0]), min(high, sharper[1]))


def _sharpen(dim: Dim, fuel: int) -> Range | None:
    calls = sorted((atom for atom in atoms_of(dim) if atom.args), key=lambda atom: (-atom.height, atom.key))
    for atom in calls:
        relaxed = _relax(dim, atom, fuel)
        if relaxed is not None:
            return relaxed
    if all(len(monomial) < 2 for monomial, _ in terms_of(dim)):
        return None
    # With n = 1 + n', m = 1 + m' (n', m' >= 0): n*m - n = n'*m' + m' >= 0, which intervals cannot see.
    for atom in atoms_of(dim):
        minimum, maximum = atom.range
        if atom.kind == "symbol" and isinstance(minimum, int) and minimum:
            extent = None if isinstance(maximum, float) else maximum - minimum
            dim = replace_atom(dim, atom, symbol(f"\0{atom.text}", 0, 0, extent) + minimum)
    return _interval(dim)


def _relax(dim: Dim, atom: Atom, fuel: int) -> Range | None:
    """Bounds of `dim` with the call `atom` replaced by what limits it; None if that needs an unknown sign."""
    if atom.kind == "mod":
        dividend, divisor = atom.args
        return _refined(replace_atom(dim, atom, dividend - divisor * floordiv(dividend, divisor)), fuel)
    linear = all(monomial.count(atom) < 2 for monomial, _ in terms_of(dim))
    cofactor = polynomial({monomial_quotient(m, (atom,)) or (): c for m, c in terms_of(dim) if linear and atom in m})
    if atom.kind == "floordiv":
        return _relax_floordiv(dim, atom, cofactor, fuel)
    ranges = [_refined(replace_atom(dim, atom, arg), fuel) for arg in atom.args]
    lows, highs = [low for low, _ in ranges], [high for _, high in ranges]
    sign = _sign(cofactor, fuel)
    if atom.kind == "max":
        sign = -sign
    return (max(lows) if sign < 0 else min(lows)), (min(highs) if sign > 0 else max(highs))


def _sign(dim: Dim, fuel: int) -> int:
    """1 for dim >= 0, -1 for dim <= 0, 0 when unknown (or zero)."""
    low, high = _refined(dim, fuel)
    return (low >= 0) - (high <= 0)


def _relax_floordiv(dim: Dim, atom: Atom, cofactor: Dim, fuel: int) -> Range | None:
    """Use e - b + 1 <= b * floordiv(e, b) <= e for b > 0."""
    dividend, divisor = atom.args
    rest = replace_atom(dim, atom, 0)
    scale = 1
    if isinstance(divisor, int):
        scale, rest = divisor, rest * divisor
    else:
        cofactor, left_over = divide(cofactor, divisor)
        if left_over != 0 or range_of(divisor)[0] < 0:
            return None
    sign = _sign(cofactor, fuel)
    if sign == 0:
        return None
    ends = [dividend - divisor + 1, dividend][::sign]
    low, _ = _refined(ends[0] * cofactor + rest, fuel)
    _, high = _refined(ends[1] * cofactor + rest, fuel)
    return -_floor_quotient(-low, scale), _floor_quotient(high, scale)
