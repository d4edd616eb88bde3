"""Sizes in floating point: exporters write `int(floor(float(height) * 0.5))`, and it should come out as height // 2.

A `Quotient` is a dim over a power of two, which a float holds exactly as long as it is small. So everything here holds
for dims below 65536, and only for factors of few significant bits (2.0, 0.5, 1.25, 0.375); others are refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .dims import Dim, bounds, ceildiv

MAX_FACTOR_BITS = 8
MAX_DIVISOR = 1 << MAX_FACTOR_BITS
MAX_DIM = 1 << 16


@dataclass(frozen=True, slots=True)
class Quotient:
    """`dividend / divisor`, not rounded; the divisor is a power of two."""

    dividend: Dim
    divisor: int = 1

    @classmethod
    def exactly(cls, value: float) -> Quotient | None:
        """A constant as a quotient; None if it is too large or too fine."""
        if not math.isfinite(value):
            return None
        numerator, denominator = float(value).as_integer_ratio()
        return cls(numerator, denominator) if abs(numerator) < MAX_DIM and denominator <= MAX_DIVISOR else None

    @property
    def is_number(self) -> bool:
        return isinstance(self.dividend, int)

    @property
    def is_small_factor(self) -> bool:
        """Whether a dim times this number is exact."""
        if not isinstance(self.dividend, int):
            return False
        magnitude = abs(self.dividend)
        trailing_zeros = (magnitude & -magnitude).bit_length() - 1
        return magnitude.bit_length() - trailing_zeros <= MAX_FACTOR_BITS

    def __float__(self) -> float:
        if not isinstance(self.dividend, int):
            raise TypeError(f"{self} is no number")
        return self.dividend / self.divisor

    def plus(self, other: Quotient) -> Quotient:
        divisor = max(self.divisor, other.divisor)
        left = self.dividend * (divisor // self.divisor)
        return Quotient(left + other.dividend * (divisor // other.divisor), divisor)

    def negative(self) -> Quotient:
        return Quotient(-self.dividend, self.divisor)

    def times(self, other: Quotient) -> Quotient | None:
        """The product; None for two dims, or if it needs too many bits."""
        if not (self.is_small_factor or other.is_small_factor):
            return None
        divisor = self.divisor * other.divisor
        return Quotient(self.dividend * other.dividend, divisor) if divisor <= MAX_DIVISOR else None

    def over(self, other: Quotient) -> Quotient | None:
        """The quotient; None unless `other` is a power of two."""
        if not isinstance(other.dividend, int) or other.dividend <= 0 or other.dividend & (other.dividend - 1):
            return None
        divisor = self.divisor * other.dividend
        common = math.gcd(divisor, other.divisor)
        divisor, factor = divisor // common, other.divisor // common
        return Quotient(self.dividend * factor, divisor) if divisor <= MAX_DIVISOR else None

    def floor(self) -> Dim:
        return self.dividend // self.divisor

    def ceil(self) -> Dim:
        return ceildiv(self.dividend, self.divisor)

    def truncated(self) -> Dim | None:
        """Toward zero, as a cast to an integer does; None if the sign is not known and it matters."""
        low = bounds(self.dividend)[0]
        return self.floor() if self.divisor == 1 or (low is not None and low >= 0) else None
