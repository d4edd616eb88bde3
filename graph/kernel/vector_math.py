"""exp, log, erf and their kin, built from scalar operators for f32 and f64, in lanes or alone.

Arguments are brought into a small interval in parts that add up to more than one number's precision (Cody & Waite
1980, "Software Manual for the Elementary Functions") and a polynomial of `polynomials` does the rest. Special values
are those of C's math.h: infinities, NaN, signed zeros (but expm1 and log1p lose the sign of -0). Subnormal results are
rounded like others (of sigmoid they are 0).

Largest errors in units in the last place, found by tests/kernel/test_vector_math.py over arguments of any size against
f64 and, for f64, against extended precision: exp, log, log1p, sin, cos, acos 1.5; asin, asinh, expm1 2; atan 2.5; pow 1
(f64: grows with |y log x|); cosh, acosh, atanh, sigmoid, tan 3; sinh 4; tanh 5 and erf 6 (f64: 3 and 4), both near 1:
as ratios of polynomials they are far faster than with an exponential. Angles may be of any size (`angles`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import types
from ..core import Value
from ..dtypes import DType, f32, f64, i32, i64
from . import polynomials as tables
from .angles import reduce_angle
from .loop_builder import LoopBuilder


def _dtype(x: Value) -> DType:
    assert isinstance(x.type, types.ScalarType | types.VectorType)
    return x.type.dtype


def _constant(b: LoopBuilder, value: float, x: Value) -> Value:
    """A number in as many lanes as x has."""
    return b.constant(value, x.type)


def _parts(value: str, dtype: DType, count: int, bits: int) -> list[float]:
    """A number, given in decimals, as a sum of numbers with at most `bits` bits each (the last one has all)."""
    from fractions import Fraction

    rest = Fraction(value)
    found = []
    for position in range(count):
        part = float(np.asarray(float(rest), dtype.numpy))
        if position < count - 1:
            mantissa, exponent = math.frexp(part)
            part = math.ldexp(math.floor(math.ldexp(mantissa, bits)), exponent - bits)
        found.append(part)
        rest -= Fraction(part)
    return found


_LOG_2 = "0.693147180559945309417232121458176568075500134360255254120680009"
_HALF_PI = "1.57079632679489661923132169163975144209858469968755291048747230"


def polynomial(b: LoopBuilder, x: Value, coefficients: Sequence[float]) -> Value:
    """Horner's scheme; constant term first."""
    result: Any = _constant(b, coefficients[-1], x)
    for coefficient in reversed(coefficients[:-1]):
        result = b.fma(result, x, _constant(b, coefficient, x))
    return result  # type: ignore[no-any-return]


def with_sign(b: LoopBuilder, x: Value, sign: Value) -> Value:
    """|x| with the sign of `sign`."""
    dtype = _dtype(x)
    integer = i32 if dtype is f32 else i64
    bit = -(1 << (dtype.bits - 1))
    bits = b.or_(b.and_(b.bitcast(x, integer), ~bit), b.and_(b.bitcast(sign, integer), bit))
    return b.bitcast(bits, dtype)


def _is_negative(b: LoopBuilder, x: Value) -> Any:
    """Whether the sign is set: true of -0.0."""
    return b.lt(b.bitcast(x, i32 if _dtype(x) is f32 else i64), 0)


# ---- exponentials ----------------------------------------------------------------------------------------------------

# Beyond these the result is infinite, or rounds to zero.
_EXP_RANGE = {f32: (-104.5, 89.0), f64: (-746.0, 710.0)}
# Adding and subtracting this rounds to an integer.
_ROUNDER = {f32: 1.5 * 2**23, f64: 1.5 * 2**52}


def _reduce_exponent(b: LoopBuilder, x: Value) -> tuple[Value, Value]:
    """n and expm1(r) with x = n log(2) + r, n integral, |r| <= log(2) / 2."""
    dtype = _dtype(x)
    low, high = _EXP_RANGE[dtype]
    x = b.max(b.min(x, high), low)
    rounder = _constant(b, _ROUNDER[dtype], x)
    n = b.sub(b.fma(x, _constant(b, 1 / math.log(2), x), rounder), rounder)
    r = x
    for part in _parts(_LOG_2, dtype, 2, 16 if dtype is f32 else 40):
        r = b.fma(n, _constant(b, -part, x), r)
    return n, b.fma(b.mul(r, r), polynomial(b, r, tables.EXP[dtype]), r)


def exp(b: LoopBuilder, x: Value) -> Value:
    n, small = _reduce_exponent(b, x)
    return b.scale(b.add(small, 1), n)  # type: ignore[no-any-return]


def expm1(b: LoopBuilder, x: Value) -> Value:
    """exp(x) - 1, exact where that is small."""
    n, small = _reduce_exponent(b, x)
    # Half of it first: the power alone may be too large where the result is not.
    power = b.scale(_constant(b, 0.5, x), n)
    half = b.fma(small, power, b.sub(power, 0.5))
    return b.add(half, half)  # type: ignore[no-any-return]


# Below these, sigmoid is a subnormal number that nobody misses; above, 1.
_SIGMOID_RANGE = {f32: (-88.72, 80.0), f64: (-709.7, 700.0)}


def sigmoid(b: LoopBuilder, x: Value) -> Value:
    """1 / (1 + exp(-x)), as half / (half + exp(-x) / 2), since a half is a normal number wherever the result is not 0;
    0 where the result is less than 3e-39 (f64: 6e-309)."""
    dtype = _dtype(x)
    low, high = _SIGMOID_RANGE[dtype]
    near = b.max(b.min(x, high), low)
    rounder = _constant(b, _ROUNDER[dtype], x)
    n = b.sub(b.fma(near, _constant(b, -1 / math.log(2), x), rounder), rounder)
    # What is left of x, and so the odd terms of the exponential, have the other sign.
    r = near
    for part in _parts(_LOG_2, dtype, 2, 16 if dtype is f32 else 40):
        r = b.fma(n, _constant(b, part, x), r)
    terms = (0.5, 0.5, *(0.5 * term for term in tables.EXP[dtype]))
    half_power = polynomial(b, r, [-term if power % 2 else term for power, term in enumerate(terms)])
    result = b.div(0.5, b.add(b.scale_normal(half_power, n), 0.5))
    return b.select(b.lt(x, low), 0.0, result)


def _ratio(b: LoopBuilder, x: Value, table: tuple[float, Sequence[float], Sequence[float]]) -> Value:
    """x p(x**2) / q(x**2), an odd function that is -1 and 1 beyond the table's limit."""
    limit, above, below = table
    x = b.max(b.min(x, limit), -limit)
    square = b.mul(x, x)
    result = b.div(b.mul(x, polynomial(b, square, above)), polynomial(b, square, below))
    return b.max(b.min(result, 1), -1)  # type: ignore[no-any-return]


def tanh(b: LoopBuilder, x: Value) -> Value:
    """A ratio of polynomials, or (f64) -e / (e + 2) with e = expm1(-2 |x|)."""
    if _dtype(x) is f32:
        return _ratio(b, x, tables.TANH_RATIO)
    e = expm1(b, b.mul(b.abs(x), -2))
    return with_sign(b, b.div(e, b.add(e, 2)), x)


def sinh(b: LoopBuilder, x: Value) -> Value:
    size = b.abs(x)
    e = expm1(b, b.min(size, 1))
    small = b.mul(b.add(e, b.div(e, b.add(e, 1))), 0.5)
    half, reverse = _half_powers(b, size)
    return with_sign(b, b.select(b.lt(size, 1), small, b.sub(half, reverse)), x)


def cosh(b: LoopBuilder, x: Value) -> Value:
    half, reverse = _half_powers(b, b.abs(x))
    return b.add(half, reverse)  # type: ignore[no-any-return]


def _half_powers(b: LoopBuilder, x: Value) -> tuple[Value, Value]:
    """exp(x) / 2 and exp(-x) / 2, without overflow before the result has one."""
    root = exp(b, b.mul(x, 0.5))
    return b.mul(b.mul(root, 0.5), root), b.div(b.div(0.5, root), root)


def erf(b: LoopBuilder, x: Value) -> Value:
    """A ratio of polynomials, or (f64) a polynomial near 0 and 1 - exp(-p(|x|)) elsewhere."""
    dtype = _dtype(x)
    if dtype is f32:
        return _ratio(b, x, tables.ERF_RATIO)
    size = b.abs(x)
    near = b.min(size, 1)
    small = b.mul(near, polynomial(b, b.mul(near, near), tables.ERF[dtype]))
    tail = b.sub(1, exp(b, b.neg(polynomial(b, b.sub(b.min(size, 6), 3.5), tables.ERF_TAIL[dtype]))))
    return with_sign(b, b.select(b.lt(size, 1), small, tail), x)


# ---- logarithms ------------------------------------------------------------------------------------------------------


def log(b: LoopBuilder, x: Value) -> Value:
    """Of 0 -infinity, of negative numbers NaN."""
    dtype = _dtype(x)
    integer, mantissa, least = (i32, 23, 2.0**-126) if dtype is f32 else (i64, 52, 2.0**-1022)
    tiny = b.lt(x, least)
    normal = b.select(tiny, b.mul(x, 2.0 ** (mantissa + 2)), x)
    root = int(np.asarray(math.sqrt(0.5), dtype.numpy).view(integer.numpy))
    bits = b.bitcast(normal, integer)
    exponent = b.shr(b.sub(bits, root), mantissa)
    f = b.sub(b.bitcast(b.sub(bits, b.shl(exponent, mantissa)), dtype), 1)
    n = b.cast(exponent, dtype)
    n = b.select(tiny, b.sub(n, mantissa + 2), n)
    high, low = _parts(_LOG_2, dtype, 2, 16 if dtype is f32 else 40)
    result = b.fma(n, _constant(b, high, x), _log1p_reduced(b, f, b.mul(n, low)))
    result = b.select(b.lt(x, math.inf), result, x)
    result = b.select(b.lt(0, x), result, b.select(b.eq(x, 0), -math.inf, _constant(b, math.nan, x)))
    return result


def _log1p_reduced(b: LoopBuilder, f: Value, low: Value) -> Value:
    """log(1 + f) + low, for 1 + f between sqrt(1/2) and sqrt(2)."""
    dtype = _dtype(f)
    half_square = b.mul(b.mul(f, f), 0.5)
    if dtype is f32:
        cubic = b.mul(b.mul(b.mul(f, f), f), polynomial(b, f, tables.LOG[dtype]))
        return b.add(f, b.add(b.sub(cubic, half_square), low))  # type: ignore[no-any-return]
    s = b.div(f, b.add(f, 2))
    square = b.mul(s, s)
    rest = b.mul(square, polynomial(b, square, tables.LOG[dtype]))
    return b.sub(f, b.sub(half_square, b.fma(s, b.add(half_square, rest), low)))  # type: ignore[no-any-return]


def log1p(b: LoopBuilder, x: Value) -> Value:
    """log(1 + x), exact where x is small: what rounding 1 + x lost is added, divided by it."""
    whole = b.add(x, 1)
    lost = b.div(b.sub(x, b.sub(whole, 1)), whole)
    return b.add(log(b, whole), b.select(b.lt(b.abs(lost), 1), lost, 0))  # type: ignore[no-any-return]


def asinh(b: LoopBuilder, x: Value) -> Value:
    size = b.abs(x)
    square = b.mul(size, size)
    near = log1p(b, b.add(size, b.div(square, b.add(b.sqrt(b.add(square, 1)), 1))))
    return with_sign(b, b.select(b.lt(size, _HUGE), near, _log_of_double(b, size)), x)


def acosh(b: LoopBuilder, x: Value) -> Value:
    over = b.sub(x, 1)
    near = log1p(b, b.add(over, b.sqrt(b.fma(over, over, b.mul(over, 2)))))
    near = b.select(b.lt(over, 0), _constant(b, math.nan, x), near)  # below -1 the root is one of a positive number
    return b.select(b.lt(x, _HUGE), near, _log_of_double(b, x))


def atanh(b: LoopBuilder, x: Value) -> Value:
    size = b.abs(x)
    return with_sign(b, b.mul(log1p(b, b.div(b.mul(size, 2), b.sub(1, size))), 0.5), x)


_HUGE = 1e9  # its square still has room, and 1 beside it does not count


def _log_of_double(b: LoopBuilder, x: Value) -> Value:
    return b.add(log(b, x), math.log(2))  # type: ignore[no-any-return]


def pow(b: LoopBuilder, x: Value, y: Value) -> Value:
    """x**y as C's pow: exp(y log|x|), in f64 for f32 so that nothing is lost."""
    dtype = _dtype(x)
    size = b.abs(x)
    wide = b.mul(b.cast(y, f64), log(b, b.cast(size, f64)))
    result = b.cast(exp(b, wide), dtype)
    is_one = b.or_(b.eq(y, 0), b.eq(size, 1))
    result = b.select(is_one, 1, result)
    whole = b.eq(b.floor(y), y)
    half = b.mul(y, 0.5)
    odd = b.and_(whole, b.ne(b.floor(half), half))
    result = b.select(b.and_(_is_negative(b, x), odd), b.neg(result), result)
    undefined = b.and_(b.and_(b.lt(x, 0), b.lt(-math.inf, x)), b.not_(whole))
    result = b.select(undefined, math.nan, result)
    missing = b.or_(b.ne(x, x), b.ne(y, y))
    certain = b.or_(b.eq(y, 0), b.eq(x, 1))
    return b.select(b.and_(missing, b.not_(certain)), math.nan, result)


def remainder(b: LoopBuilder, x: Value, y: Value) -> Value:
    """fmod of f32, exact as it always is: by the quotient in f64, unless a lane's has too many bits or is none."""
    wide, divisor = b.cast(x, f64), b.cast(y, f64)
    whole = b.trunc(b.div(wide, divisor))
    # A multiple of 24 bits by less than 2**29 is exact, and so is the difference.
    is_near = b.and_(b.lt(b.abs(whole), 2.0**29), b.lt(b.abs(divisor), math.inf))
    rest = b.sub(wide, b.mul(whole, divisor))
    # The quotient may have been rounded up to a whole number: then the difference has the other sign.
    crosses = b.and_(b.ne(rest, 0), b.xor(b.lt(rest, 0), b.lt(wide, 0)))
    step = b.select(b.xor(b.lt(divisor, 0), b.lt(wide, 0)), b.neg(divisor), divisor)
    rest = with_sign(b, b.cast(b.select(crosses, b.add(rest, step), rest), f32), x)

    def far() -> list[Value]:
        return [b.select(is_near, rest, b.rem(x, y))]

    is_far = b.not_(is_near)
    [result] = b.branch(b.any(is_far) if isinstance(x.type, types.VectorType) else is_far, far, lambda: [rest])
    return result  # type: ignore[return-value]


# ---- angles ----------------------------------------------------------------------------------------------------------


def _sin_cos(b: LoopBuilder, r: Value) -> tuple[Value, Value]:
    dtype = _dtype(r)
    square = b.mul(r, r)
    sine = b.fma(b.mul(square, r), polynomial(b, square, tables.SIN[dtype]), r)
    fourth = b.mul(b.mul(square, square), polynomial(b, square, tables.COS[dtype]))
    half = b.mul(square, 0.5)
    # 1 - half is rounded; what that loses is put back.
    near = b.sub(1, half)
    return sine, b.add(near, b.add(b.sub(b.sub(1, near), half), fourth))


def _turned(b: LoopBuilder, x: Value, turn: int) -> Value:
    """sin(x + turn pi / 2)."""
    quadrant, r = reduce_angle(b, x)
    sine, cosine = _sin_cos(b, r)
    quadrant = b.add(quadrant, turn)
    chosen = b.select(b.ne(b.and_(quadrant, 1), 0), cosine, sine)
    # The second bit becomes the sign.
    sign = b.shl(b.and_(quadrant, 2), _dtype(x).bits - 2)
    return b.bitcast(b.xor(b.bitcast(chosen, _dtype(quadrant)), sign), _dtype(x))


def sin(b: LoopBuilder, x: Value) -> Value:
    return b.select(b.eq(x, 0), x, _turned(b, x, 0))


def cos(b: LoopBuilder, x: Value) -> Value:
    return _turned(b, x, 1)


def tan(b: LoopBuilder, x: Value) -> Value:
    quadrant, r = reduce_angle(b, x)
    sine, cosine = _sin_cos(b, r)
    odd = b.ne(b.and_(quadrant, 1), 0)
    result = b.div(b.select(odd, b.neg(cosine), sine), b.select(odd, sine, cosine))
    return b.select(b.eq(x, 0), x, result)


def _asin_parts(b: LoopBuilder, x: Value) -> tuple[Value, Value, Value]:
    """Whether |x| <= 1/2; asin|x| if so; acos|x| if not, which is 2 asin(sqrt((1 - |x|) / 2))."""
    size = b.abs(x)
    near = b.le(size, 0.5)
    square = b.select(near, b.mul(size, size), b.mul(b.sub(1, size), 0.5))
    root = b.select(near, size, b.sqrt(square))
    value = b.fma(b.mul(root, square), polynomial(b, square, tables.ASIN[_dtype(x)]), root)
    return near, value, b.add(value, value)


def asin(b: LoopBuilder, x: Value) -> Value:
    near, small, rest = _asin_parts(b, x)
    high, low = _parts(_HALF_PI, _dtype(x), 2, 53)
    far = b.add(b.sub(high, rest), low)
    return with_sign(b, b.select(near, small, far), x)


def acos(b: LoopBuilder, x: Value) -> Value:
    near, small, rest = _asin_parts(b, x)
    high, low = _parts(_HALF_PI, _dtype(x), 2, 53)
    below = b.lt(x, 0)
    middle = b.add(b.sub(high, b.select(below, b.neg(small), small)), low)
    return b.select(near, middle, b.select(below, b.add(b.sub(2 * high, rest), 2 * low), rest))


def atan(b: LoopBuilder, x: Value) -> Value:
    """In three intervals: as it is, turned by pi / 4 and turned by pi / 2."""
    size = b.abs(x)
    dtype = _dtype(x)
    large, middle = b.lt(math.tan(3 * math.pi / 8), size), b.lt(math.tan(math.pi / 8), size)
    above = b.select(large, -1, b.sub(size, 1))
    below = b.select(large, size, b.add(size, 1))
    t = b.select(middle, b.div(above, below), size)
    square = b.mul(t, t)
    value = b.fma(b.mul(t, square), polynomial(b, square, tables.ATAN[dtype]), t)
    high, low = _parts(_HALF_PI, dtype, 2, 53)
    zero = _constant(b, 0, x)
    base = b.select(large, high, b.select(middle, high / 2, zero))
    rest = b.select(large, low, b.select(middle, low / 2, zero))
    return with_sign(b, b.add(base, b.add(value, rest)), x)


FUNCTIONS = {
    "exp": exp, "expm1": expm1, "log": log, "log1p": log1p, "tanh": tanh, "sinh": sinh, "cosh": cosh, "erf": erf,
    "asinh": asinh, "acosh": acosh, "atanh": atanh, "sin": sin, "cos": cos, "tan": tan, "asin": asin, "acos": acos,
    "atan": atan, "sigmoid": sigmoid,
}  # fmt: skip

UNITS = {
    "exp": 1.5, "log": 1.5, "log1p": 1.5, "sin": 1.5, "cos": 1.5, "acos": 1.5, "expm1": 2, "asin": 2, "asinh": 2,
    "atan": 2.5, "erf": 6, "tanh": 5, "cosh": 3, "acosh": 3, "atanh": 3, "tan": 3, "sinh": 4, "sigmoid": 3,
}  # fmt: skip
