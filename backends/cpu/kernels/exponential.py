"""exp for numbers that are not positive, as a softmax needs it, in fewer operations than `vector_math.exp`."""

from __future__ import annotations

import math

import numpy as np

from ....graph import types
from ....graph.core import Value
from ....graph.dtypes import f32, f64
from ....graph.kernel import polynomials, vector_math
from ....graph.kernel.loop_builder import LoopBuilder

# log(2) in two parts, the first with so few bits that its multiples are exact.
_LOG_2 = {f32: (0.693145751953125, 1.42860682030941723212e-6), f64: (0.6931471803691238, 1.9082149292705877e-10)}
_ROUNDER = {f32: 1.5 * 2**23, f64: 1.5 * 2**52}
# Below these exp is no normal number. Processors take a hundred cycles to make a subnormal one.
_LEAST = {f32: -87.0, f64: -708.0}


def exp_of_negative(b: LoopBuilder, x: Value) -> Value:
    """exp(x) for x <= 0 to 2 units in the last place, 0 where that is less than about 1e-38 (f64: 1e-307); NaN of NaN.

    2^n * p(r) with x = n log(2) + r, p the Taylor-like polynomial of `vector_math.exp` with its first terms in place.
    """
    assert isinstance(x.type, types.ScalarType | types.VectorType)
    dtype = x.type.dtype

    def constant(number: float) -> Value:
        return b.constant(float(np.asarray(number, dtype.numpy)), x.type)

    vanishes = b.lt(x, _LEAST[dtype])
    x = b.max(x, _LEAST[dtype])
    rounder = constant(_ROUNDER[dtype])
    n = b.sub(b.fma(x, constant(1 / math.log(2)), rounder), rounder)
    r = x
    for part in _LOG_2[dtype]:
        r = b.fma(n, constant(-part), r)
    power = vector_math.polynomial(b, r, (1.0, 1.0, *polynomials.EXP[dtype]))
    return b.select(vanishes, 0.0, b.scale_normal(power, n))
