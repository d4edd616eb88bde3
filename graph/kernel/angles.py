"""Angles of any size brought within pi / 4 of a multiple of pi / 2.

Up to |x| = 2**23 multiples of pi / 2 are subtracted in parts, each with so few bits that its multiples are exact (Cody
& Waite 1980), so that nothing depends on a machine's multiply-add. Only where a lane is beyond does a vector take
another way (Payne & Hanek 1983, "Radian Reduction for Trigonometric Functions"): of the bits of 2 / pi, those that make
no whole turns of a number of this exponent are multiplied by its mantissa, as integers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from .. import types
from ..core import Value
from ..dtypes import DType, f32, f64, i32, i64, u32, u64
from .loop_builder import LoopBuilder
from .polynomials import TWO_OVER_PI, TWO_OVER_PI_BITS

# From here on the bits of 2 / pi are taken.
LARGE = 2.0**23

# pi / 2 in parts: all but the last have 30 bits, as a multiple of theirs by less than 2**23 is exact in f64.
_HALF_PI = {
    f32: (1.570796325802803, 9.920935796805404e-10),
    f64: (1.570796325802803, 9.920935791635221e-10, 5.17018297889025e-19, 2.9038559739793605e-28),
}
# Adding and subtracting this rounds to an integer, whose last bits are then those of the sum.
_ROUNDER = 1.5 * 2**52
_LOW, _WORD = (1 << 32) - 1, (1 << 64) - 1


def reduce_angle(b: LoopBuilder, x: Value) -> tuple[Value, Value]:
    """The quadrant, in the last two bits of an integer as wide as x, and the angle from its middle, of x's dtype.

    The angle is within 0.51 units in its last place (f64: 1), and NaN of what is not finite.
    """
    size = b.abs(x)
    is_beyond = b.lt(LARGE, size)
    near = _near(b, x)

    def far() -> list[Value]:
        quadrant, angle = (_far_single if _dtype(x) is f32 else _far_double)(b, size)
        is_negative = b.lt(x, 0)
        quadrant = b.select(is_negative, b.neg(quadrant), quadrant)
        # The difference is NaN for an infinity, otherwise 0.
        angle = b.add(b.select(is_negative, b.neg(angle), angle), b.sub(x, x))
        return [b.select(is_beyond, quadrant, near[0]), b.select(is_beyond, angle, near[1])]

    is_rare = b.any(is_beyond) if isinstance(x.type, types.VectorType) else is_beyond
    quadrant, angle = b.branch(is_rare, far, lambda: near)
    return quadrant, angle  # type: ignore[return-value]


def _dtype(x: Value) -> DType:
    assert isinstance(x.type, types.ScalarType | types.VectorType)
    return x.type.dtype


def _near(b: LoopBuilder, x: Value) -> tuple[Value, Value]:
    """Quadrant and angle up to `LARGE`; f32 is computed in f64."""
    dtype = _dtype(x)
    wide = b.cast(x, f64)
    rounder = b.constant(_ROUNDER, wide.type)
    shifted = b.fma(wide, b.constant(2 / math.pi, wide.type), rounder)
    n = b.sub(shifted, rounder)
    first, second, *rest = [b.constant(part, wide.type) for part in _HALF_PI[dtype]]
    exact = b.fma(n, b.neg(first), wide)
    angle = b.fma(n, b.neg(second), exact)
    if rest:
        # What this rounded away is put back.
        lost = b.fma(n, b.neg(second), b.sub(exact, angle))
        angle = b.add(angle, b.fma(n, b.neg(rest[0]), lost))
        angle = b.fma(n, b.neg(rest[1]), angle)
    quadrant = b.bitcast(shifted, i64)
    return b.cast(quadrant, i32) if dtype is f32 else quadrant, b.cast(angle, dtype)


def _window(b: LoopBuilder, start: Value, zeros: int, words: int, last: int) -> list[Value]:
    """So many words of u64 of the bits of 2 / pi, which `zeros` zeros precede, from bit `start` (at most `last`) on."""
    wanted, steps = words + 1, (last >> 6).bit_length()
    bits = TWO_OVER_PI >> zeros
    count = TWO_OVER_PI_BITS // 64
    found: list[Value] = [
        b.constant(bits >> 64 * (count - 1 - word) & _WORD, start.type) for word in range((last >> 6) + wanted)
    ]
    place = b.shr(start, 6)
    for step in reversed([1 << step for step in range(steps)]):
        is_further = b.ne(b.and_(place, step), 0)
        near, far = found[: wanted + step - 1], found[step : wanted + 2 * step - 1]
        # What lies behind the last word is asked for by no number.
        far += near[len(far) :]
        found = [b.select(is_further, there, here) for there, here in zip(far, near, strict=True)]
    offset = b.and_(start, 63)
    rest = b.sub(64, offset)
    return [b.or_(b.shl(this, offset), b.shr(after, rest)) for this, after in itertools.pairwise(found)]


def _far_single(b: LoopBuilder, size: Value) -> tuple[Value, Value]:
    """For f32 from 2**23 on: 2**e m, with e >= 0, is so many quarter turns as m times the bits of 2 / pi from the one
    on that 2**(e - 2) brings behind the point, modulo 1, in quarters; 64 bits of that are enough."""
    bits = b.bitcast(size, u32)
    exponent = b.cast(b.sub(b.shr(bits, 23), 150), u64)
    mantissa = b.cast(b.or_(b.and_(bits, 0x7FFFFF), 0x800000), u64)
    first, second = _window(b, exponent, 2, 2, 104)
    top = b.add(b.shl(b.mul(mantissa, b.shr(first, 32)), 32), b.mul(mantissa, b.and_(first, _LOW)))
    top = b.add(top, b.shr(b.mul(mantissa, b.shr(second, 32)), 32))
    angle = b.mul(b.cast(b.bitcast(b.shl(top, 2), i64), f64), math.pi / 2 * 2.0**-64)
    return b.cast(b.bitcast(_quadrant(b, top), i64), i32), b.cast(angle, f32)


def _quadrant(b: LoopBuilder, top: Value) -> Value:
    """A fraction's nearest quarter."""
    return b.shr(b.add(top, 1 << 61), 62)  # type: ignore[no-any-return]


def _far_double(b: LoopBuilder, size: Value) -> tuple[Value, Value]:
    """For f64 likewise, with e >= -29, and 128 bits of the product: some f64 is within 2**-60 of a multiple of pi / 2
    (Kahan 1983)."""
    bits = b.bitcast(size, u64)
    mantissa = b.or_(b.and_(bits, (1 << 52) - 1), 1 << 52)
    window = _window(b, b.sub(b.shr(bits, 52), 1046), 31, 3, 1000)
    top, below = _product(b, mantissa, window)
    quadrant = b.bitcast(_quadrant(b, top), i64)
    top = b.or_(b.shl(top, 2), b.shr(below, 62))
    below = b.shl(below, 2)
    # Its size: one's complement is near enough.
    sign = b.shr(b.bitcast(top, i64), 63)
    ones = b.bitcast(sign, u64)
    top, below = b.xor(top, ones), b.xor(below, ones)

    def number(word: Value, weight: int) -> Value:
        return b.mul(b.cast(b.bitcast(word, i64), f64), 2.0**weight)  # type: ignore[no-any-return]

    first, second = number(b.shr(top, 32), -32), number(b.and_(top, _LOW), -64)
    high = b.add(first, second)
    low = b.add(number(b.shr(below, 32), -96), number(b.and_(below, _LOW), -128))
    low = b.add(b.sub(second, b.sub(high, first)), low)
    # Times pi / 2, in two parts.
    half, rest = (b.constant(part, high.type) for part in (math.pi / 2, 6.123233995736766e-17))
    angle = b.mul(high, half)
    lost = b.fma(high, half, b.neg(angle))
    angle = b.add(angle, b.add(lost, b.fma(high, rest, b.mul(low, half))))
    return quadrant, b.select(b.lt(sign, 0), b.neg(angle), angle)


def _product(b: LoopBuilder, x: Value, window: Sequence[Value]) -> tuple[Value, Value]:
    """The upper 128 of the lower 192 bits of x times three words, from products of halves of them."""
    low, high = b.and_(x, _LOW), b.shr(x, 32)
    halves = [half for word in window for half in (b.shr(word, 32), b.and_(word, _LOW))]
    carry = b.shr(b.mul(low, halves[5]), 32)
    found = []
    for place in (4, 3, 2, 1, 0):
        products = b.mul(low, halves[place]), b.mul(high, halves[place + 1])
        total = b.add(carry, b.add(b.and_(products[0], _LOW), b.and_(products[1], _LOW)))
        found.append(b.and_(total, _LOW))
        carry = b.add(b.shr(total, 32), b.add(b.shr(products[0], 32), b.shr(products[1], 32)))
    return tuple(b.or_(b.shl(found[place], 32), found[place - 1]) for place in (4, 2))
