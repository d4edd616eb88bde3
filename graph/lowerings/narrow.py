"""Numbers of 8 bits or less that no machine computes with: how they are read from bytes and written to them.

Floats are f8 (four kinds), f6, f4 (OCP 8-bit Floating Point Specification, OCP Microscaling Formats, ONNX "Float
stored in 8 bits") and the scale e8m0; integers have 4 or 2 bits. Each lies in a byte of its own, in the low bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..core import Value
from ..dtypes import DType, f32, i8, i32, u8
from .builder import NATIVE, KernelBuilder, dtype_of, tensor_type


@dataclass(frozen=True)
class _Format:
    """Bits of the exponent and the mantissa, the bias; codes without the sign: the greatest number, infinity, NaN."""

    exponent: int
    mantissa: int
    bias: int
    greatest: int
    infinity: int | None = None
    missing: int | None = None

    @property
    def sign(self) -> int:
        return 1 << (self.exponent + self.mantissa)


# In the "fnuz" formats, NaN is where -0 would be: a code that has the sign and nothing else.
_FNUZ = -1
_FORMATS = {
    "f8e4m3fn": _Format(4, 3, 7, 0x7E, missing=0x7F),
    "f8e5m2": _Format(5, 2, 15, 0x7B, infinity=0x7C, missing=0x7E),
    "f8e4m3fnuz": _Format(4, 3, 8, 0x7F, missing=_FNUZ),
    "f8e5m2fnuz": _Format(5, 2, 16, 0x7F, missing=_FNUZ),
    "f6e2m3": _Format(2, 3, 1, 0x1F),
    "f6e3m2": _Format(3, 2, 3, 0x1F),
    "f4e2m1": _Format(2, 1, 1, 0x7),
}


def is_narrow(dtype: DType) -> bool:
    """Whether the dtype is one of those."""
    return dtype.name in _FORMATS or dtype.name == "f8e8m0" or (dtype.is_integer and dtype.bits < 8)


def wide_dtype(dtype: DType) -> DType:
    """What a number of `dtype` is read as: f32, i8 or u8; another dtype itself."""
    if not is_narrow(dtype):
        return dtype
    return {"float": f32, "int": i8, "uint": u8}[dtype.kind]


def decoded(k: KernelBuilder, x: Value) -> Value:
    """x in a dtype that kernels compute with; all numbers exactly."""
    dtype = dtype_of(x)
    if not is_narrow(dtype):
        return x
    wide = wide_dtype(dtype)
    return k.map(lambda s, code: _decode(s, code, dtype), [k.bits(x, i8 if wide is i8 else u8)],
                 tensor_type(x).with_dtype(wide))  # fmt: skip


def can_encode(given: DType, to: DType) -> bool:
    """Whether `encoded` rounds numbers of `given` once: those that f32 holds, and any integer for fewer bits."""
    if given not in NATIVE:
        return False
    return to.is_integer or given.bits <= 16 or given is f32


def encoded(k: KernelBuilder, x: Value, dtype: DType, saturate: bool = True, round_mode: str = "up") -> Value:
    """Native numbers as those of a narrow `dtype`: floats rounded to the nearest, integers cut to their low bits."""
    if not is_narrow(dtype):
        return (
            x if dtype_of(x) is dtype else k.map(lambda s, e: s.cast(e, dtype), [x], tensor_type(x).with_dtype(dtype))
        )
    code = i8 if dtype.kind == "int" else u8

    def body(s: Any, element: Any) -> Any:
        if dtype.is_integer:
            whole = s.cast(element, i32) if dtype_of(x).is_float else element
            return s.bit_and(s.cast(whole, code), (1 << dtype.bits) - 1)
        element = s.cast(element, f32)
        if dtype.name == "f8e8m0":
            return s.cast(_to_scale(s, element, saturate, round_mode), u8)
        return s.cast(_encode(s, element, _FORMATS[dtype.name], saturate), u8)

    return k.bits(k.map(body, [x], tensor_type(x).with_dtype(code)), dtype)


def _decode(s: Any, code: Any, dtype: DType) -> Any:
    if dtype.kind == "uint":
        return s.bit_and(code, (1 << dtype.bits) - 1)
    if dtype.kind == "int":
        spare = 8 - dtype.bits
        return s.shift_right(s.shift_left(code, spare), spare)
    code = s.cast(code, i32)
    if dtype.name == "f8e8m0":
        # 2 ** -127 is below the normal numbers.
        bits = s.select(s.equal(code, 0), 1 << 22, s.shift_left(code, 23))
        return s.bitcast(s.select(s.equal(code, 255), 0x7FC00000, bits), f32)
    form = _FORMATS[dtype.name]
    rest = s.bit_and(code, form.sign - 1)
    size = s.mul(s.bitcast(s.shift_left(rest, 23 - form.mantissa), f32), 2.0 ** (127 - form.bias))
    bits = s.bitcast(size, i32)
    if form.infinity is not None:
        bits = s.select(
            s.less(form.infinity, rest), 0x7FC00000, s.select(s.equal(rest, form.infinity), 0x7F800000, bits)
        )
    elif form.missing not in (None, _FNUZ):
        bits = s.select(s.equal(rest, form.missing), 0x7FC00000, bits)
    sign = s.shift_left(s.bit_and(code, form.sign), 31 - (form.exponent + form.mantissa))
    bits = s.bit_or(bits, sign)
    if form.missing == _FNUZ:
        bits = s.select(s.equal(code, form.sign), 0x7FC00000, bits)
    return s.bitcast(bits, f32)


def _encode(s: Any, x: Any, form: _Format, saturate: bool) -> Any:
    """The code, as i32, of the nearest number; of two equally near, the one that is even."""
    bits = s.bitcast(x, i32)
    size = s.bit_and(bits, 0x7FFFFFFF)
    sign = s.select(s.less(bits, 0), s.number(form.sign, i32, bits), s.number(0, i32, bits))
    cut = 23 - form.mantissa
    odd = s.bit_and(s.shift_right(size, cut), 1)
    rounded = s.shift_right(s.add(size, s.add(odd, (1 << (cut - 1)) - 1)), cut)
    code = s.sub(rounded, (127 - form.bias) << form.mantissa)
    # Below the normal numbers, codes count equal steps.
    small = s.mul(s.bitcast(size, f32), 2.0 ** (form.bias - 1 + form.mantissa))
    is_small = s.less(s.bitcast(size, f32), 2.0 ** (1 - form.bias))
    code = s.select(is_small, s.cast(s.round(s.select(is_small, small, 0.0)), i32), code)
    beyond = form.greatest
    if not saturate and form.infinity is not None:
        beyond = form.infinity
    elif not saturate and form.missing is not None:
        beyond = form.missing
    is_beyond = s.less(form.greatest, code)
    is_missing = s.less(0x7F800000, size)
    if form.missing == _FNUZ:
        code = s.select(is_beyond, form.greatest, code)
        signed = s.select(s.equal(code, 0), 0, s.bit_or(code, sign))
        lost = is_missing if saturate else s.logical_or(is_missing, is_beyond)
        return s.select(lost, form.sign, signed)
    code = s.select(is_beyond, beyond, code)
    if form.missing is None:
        # No code says NaN: it becomes a zero, of the other sign.
        other = s.bit_xor(sign, form.sign)
        return s.select(is_missing, other, s.bit_or(code, sign))
    return s.bit_or(s.select(is_missing, form.missing, code), sign)


def _to_scale(s: Any, x: Any, saturate: bool, round_mode: str) -> Any:
    """e8m0 has the exponent alone: the sign is lost, what is no number stays none."""
    bits = s.bitcast(x, i32)
    exponent = s.bit_and(s.shift_right(bits, 23), 255)
    rest = s.bit_and(bits, 0x7FFFFF)
    one, none = s.number(1, i32, bits), s.number(0, i32, bits)
    if round_mode == "up":
        more = s.select(s.less(0, rest), one, none)
    elif round_mode == "nearest":
        tie = s.logical_and(s.equal(rest, 0x400000), s.less(0, exponent))
        more = s.select(s.logical_or(s.less(0x400000, rest), tie), one, none)
    else:
        more = none
    if saturate:
        more = s.select(s.equal(exponent, 254), 0, more)
    return s.select(s.equal(exponent, 255), 255, s.bit_and(s.add(exponent, more), 255))
