"""The operators of the domain `scalar` as LLVM IR, for one number or for the lanes of a vector."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...graph import types
from ...graph.core import Operation, Value
from ...graph.diagnostics import UsageError
from ...graph.dtypes import DType, bool_, f32, f64
from ...graph.kernel.base import like
from ...graph.types import Type, VectorType
from .emit_llvm import Divisor, FunctionEmitter, emits, literal, llvm_type, operand_facts, splat, type_facts

# Instructions for floats, signed and unsigned integers.
_INSTRUCTIONS = {
    "add": ("fadd", "add", "add"),
    "sub": ("fsub", "sub", "sub"),
    "mul": ("fmul", "mul", "mul"),
}
_COMPARISONS = {
    "eq": ("fcmp oeq", "icmp eq", "icmp eq"),
    "ne": ("fcmp une", "icmp ne", "icmp ne"),
    "lt": ("fcmp olt", "icmp slt", "icmp ult"),
    "le": ("fcmp ole", "icmp sle", "icmp ule"),
}
_ROUNDINGS = {"sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "round": "roundeven", "trunc": "trunc", "abs": "fabs"}
_STORED_ONLY = ("f16", "bf16")
# Vectors of so many bits take three times as long to divide as those of half as many, and longer than what a quotient
# by a common number takes.
_SLOW_DIVISION = 512


def _kind(dtype: DType) -> int:
    return {"float": 0, "int": 1}.get(dtype.kind, 2)


def _number(type: Type, value: float) -> str:
    dtype: DType = type.dtype  # type: ignore[attr-defined]
    return splat(type, literal(value, dtype))


def arithmetic(e: FunctionEmitter, name: str, type: Type, operands: Sequence[str]) -> str:
    """A binary operator on two values of `type`."""
    text, dtype, suffix = type_facts(type)
    x, y = operands
    if dtype.name in _STORED_ONLY:
        raise UsageError("cpu/dtype", f"there is no arithmetic in {dtype}: cast to f32")
    if name in _INSTRUCTIONS:
        return e.emit(f"{_INSTRUCTIONS[name][_kind(dtype)]} {text} {x}, {y}")
    if name in ("min", "max"):
        if dtype.is_integer:
            return e.intrinsic(f"llvm.{'s' if dtype.kind == 'int' else 'u'}{name}.{suffix}", text, (text, x), (text, y))
        return _extreme(e, "olt" if name == "min" else "ogt", type, x, y)
    if dtype.is_float:
        return e.emit(f"{'fdiv' if name == 'div' else 'frem'} {text} {x}, {y}")
    return _divide(e, name, type, x, y)


def _extreme(e: FunctionEmitter, order: str, type: Type, x: str, y: str) -> str:
    """min or max: x where it is NaN, which is what the machine's own instruction gives; then y where that is NaN."""
    text = llvm_type(type)
    mask = llvm_type(like(type, bool_))  # type: ignore[arg-type]
    better = e.emit(f"fcmp {order} {text} {y}, {x}")
    result = e.emit(f"select {mask} {better}, {text} {y}, {text} {x}")
    if not y.startswith("%"):
        return result
    missing = e.emit(f"fcmp uno {text} {y}, {y}")
    return e.emit(f"select {mask} {missing}, {text} {y}, {text} {result}")


def _divide(e: FunctionEmitter, name: str, type: Type, x: str, y: str) -> str:
    """Integer division that cannot trap: by 0, and of the least number by -1, the divisor is 1 instead."""
    text, dtype, _ = type_facts(type)
    mask, signed = llvm_type(like(type, bool_)), dtype.kind == "int"  # type: ignore[arg-type]
    zero, one = _number(type, 0), _number(type, 1)
    is_zero = e.emit(f"icmp eq {text} {y}, {zero}")
    unsafe = is_zero
    if signed:
        least = e.emit(f"icmp eq {text} {x}, {_number(type, -(1 << (dtype.bits - 1)))}")
        minus = e.emit(f"icmp eq {text} {y}, {_number(type, -1)}")
        both = e.emit(f"and {mask} {least}, {minus}")
        unsafe = e.emit(f"or {mask} {is_zero}, {both}")
    divisor = e.emit(f"select {mask} {unsafe}, {text} {one}, {text} {y}")
    if isinstance(type, VectorType) and dtype.bits <= 32:
        result = _quotients(e, type, x, divisor)
        if name == "rem":
            result = e.emit(f"sub {text} {x}, {e.emit(f'mul {text} {result}, {divisor}')}")
    else:
        result = e.emit(f"{'s' if signed else 'u'}{name} {text} {x}, {divisor}")
    instead = zero if name == "div" else x
    return e.emit(f"select {mask} {is_zero}, {text} {instead}, {text} {result}")


def _quotients(e: FunctionEmitter, type: Type, x: str, y: str) -> str:
    """Quotients of integers by way of floats, which machines divide in lanes. They are exact: one of n bits is no
    closer to the next integer than 1 / y, and is rounded by less where a float has more than n + 1 bits of precision.
    """
    text, dtype, _ = type_facts(type)
    floats = llvm_type(like(type, f64 if dtype.bits > 16 else f32))  # type: ignore[arg-type]
    sign = "s" if dtype.kind == "int" else "u"
    given = [e.emit(f"{sign}itofp {text} {each} to {floats}") for each in (x, y)]
    quotient = e.emit(f"fdiv {floats} {given[0]}, {given[1]}")
    return e.emit(f"fpto{sign}i {floats} {quotient} to {text}")


@emits(*(f"scalar.{name}" for name in ("add", "sub", "mul", "div", "rem", "min", "max")))
def _arithmetic(e: FunctionEmitter, op: Operation, operands: list[str]) -> str:
    return arithmetic(e, op.op_type, op.result.type, operands)


@emits(*(f"scalar.{name}" for name in _COMPARISONS))
def _compare(e: FunctionEmitter, op: Operation, operands: list[str]) -> str:
    text, dtype, _ = operand_facts(op)
    if dtype.name == "bf16":
        raise UsageError("cpu/dtype", "there is no arithmetic in bf16: cast to f32")
    return e.emit(f"{_COMPARISONS[op.op_type][_kind(dtype)]} {text} {operands[0]}, {operands[1]}")


@emits("scalar.quotient")
def _quotient(e: FunctionEmitter, op: Operation, operands: list[str]) -> str:
    """Where all lanes have one y: x times its inverse, and a step that makes up for what the inverse is rounded by;
    that gives what a division does (Brisebarre, Muller and Raina 2004, "Accelerating Correctly Rounded Floating-Point
    Division when the Divisor Is Known in Advance"), in a third of the time.
    """
    type, divisor = op.result.type, e.divisors.get(op.operand_values[1])
    if divisor is None:
        return arithmetic(e, "div", type, operands)
    text, scaled = llvm_type(type), e.emit(f"fmul {llvm_type(type)} {operands[0]}, {divisor.scale}")
    near = e.emit(f"fmul {text} {scaled}, {divisor.inverse}")
    # Beyond any integer that is rounded to, but never infinite, which would be NaN in the next step.
    near = _extreme(e, "olt", type, near, _number(type, 2.0**23))
    near = _extreme(e, "ogt", type, near, _number(type, -(2.0**23)))
    rest = _fused(e, type, e.emit(f"fneg {text} {near}"), divisor.number, scaled)
    return _fused(e, type, rest, divisor.inverse, near)


def _fused(e: FunctionEmitter, type: Type, *operands: str) -> str:
    text, _, suffix = type_facts(type)
    return e.intrinsic(f"llvm.fma.{suffix}", text, *((text, operand) for operand in operands))


def prepare_divisor(e: FunctionEmitter, value: Value, y: str) -> None:
    """Where quotients by `value`, which is the same in all lanes, follow: work out what they need, once for all.

    Divisor and dividend are scaled alike, so that nothing on the way to a quotient is too large or too small.
    """
    type = value.type
    if not e.emitter.machine.fma or not isinstance(type, VectorType) or type.dtype is not f32:
        return
    if type.lanes * type.dtype.bits < _SLOW_DIVISION:
        return
    if not any(use.user.name == "scalar.quotient" and use.position == 1 for use in value.uses):
        return
    text, mask = llvm_type(type), llvm_type(like(type, bool_))

    def select(condition: str, one: float, other: str) -> str:
        return e.emit(f"select {mask} {condition}, {text} {_number(type, one)}, {text} {other}")

    size = e.intrinsic(f"llvm.fabs.{type_facts(type)[2]}", text, (text, y))
    small, large, infinite = (
        e.emit(f"fcmp {order} {text} {size}, {_number(type, limit)}")
        for order, limit in (("olt", 2.0**-60), ("ogt", 2.0**60), ("oeq", math.inf))
    )
    scale = select(infinite, 0, select(small, 2.0**64, select(large, 2.0**-64, _number(type, 1))))
    number = select(infinite, 1, e.emit(f"fmul {text} {y}, {scale}"))
    e.divisors[value] = Divisor(number, e.emit(f"fdiv {text} {_number(type, 1)}, {number}"), scale)


@emits("scalar.fma")
def _fma(e: FunctionEmitter, op: Operation, operands: list[str]) -> str:
    text, _, suffix = operand_facts(op)
    if e.emitter.machine.fma:
        return e.intrinsic(f"llvm.fma.{suffix}", text, *((text, operand) for operand in operands))
    product = e.emit(f"fmul {text} {operands[0]}, {operands[1]}")
    return e.emit(f"fadd {text} {product}, {operands[2]}")


@emits(*(f"scalar.{name}" for name in _ROUNDINGS))
def _rounding(e: FunctionEmitter, op: Operation, operands: list[str]) -> str:
    text, dtype, suffix = operand_facts(op)
    if dtype.is_float:
        return e.intrinsic(f"llvm.{_ROUNDINGS[op.op_type]}.{suffix}", text, (text, operands[0]))
    if dtype.kind == "uint":
        return operands[0]
    return e.intrinsic(f"llvm.abs.{suffix}", text, (text, operands[0]), ("i1", "false"))


@emits("scalar.neg")
def _neg(e: FunctionEmitter, op: Operation, operands: list[str]) -> str:
    text, dtype, _ = operand_facts(op)
    if dtype.is_float:
        return e.emit(f"fneg {text} {operands[0]}")
    return e.emit(f"sub {text} {_number(op.result.type, 0)}, {operands[0]}")


@emits("scalar.and", "scalar.or", "scalar.xor")
def _bits(e: FunctionEmitter, op: Operation, operands: list[str]) -> str:
    return e.emit(f"{op.op_type} {operand_facts(op)[0]} {operands[0]}, {operands[1]}")


@emits("scalar.not")
def _not(e: FunctionEmitter, op: Operation, operands: list[str]) -> str:
    text, dtype, _ = operand_facts(op)
    ones = splat(op.result.type, "true" if dtype.kind == "bool" else "-1")
    return e.emit(f"xor {text} {operands[0]}, {ones}")


@emits("scalar.shl", "scalar.shr")
def _shift(e: FunctionEmitter, op: Operation, operands: list[str]) -> str:
    type = op.result.type
    text, dtype, _ = type_facts(type)
    mask = llvm_type(like(type, bool_))  # type: ignore[arg-type]
    arithmetic_shift = op.op_type == "shr" and dtype.kind == "int"
    inside = e.emit(f"icmp ult {text} {operands[1]}, {_number(type, dtype.bits)}")
    beyond = dtype.bits - 1 if arithmetic_shift else 0
    amount = e.emit(f"select {mask} {inside}, {text} {operands[1]}, {text} {_number(type, beyond)}")
    instruction = "shl" if op.op_type == "shl" else "ashr" if arithmetic_shift else "lshr"
    result = e.emit(f"{instruction} {text} {operands[0]}, {amount}")
    if arithmetic_shift:
        return result
    return e.emit(f"select {mask} {inside}, {text} {result}, {text} {_number(type, 0)}")


@emits("scalar.constant")
def _constant(e: FunctionEmitter, op: Operation, operands: list[str]) -> str:
    number = _number(op.result.type, op.attributes["value"])
    prepare_divisor(e, op.result, number)
    return number


@emits("scalar.select")
def _select(e: FunctionEmitter, op: Operation, operands: list[str]) -> str:
    condition, text = operand_facts(op)[0], llvm_type(op.result.type)
    return e.emit(f"select {condition} {operands[0]}, {text} {operands[1]}, {text} {operands[2]}")


@emits("scalar.bitcast")
def _bitcast(e: FunctionEmitter, op: Operation, operands: list[str]) -> str:
    given, to = operand_facts(op)[0], llvm_type(op.result.type)
    return operands[0] if given == to else e.emit(f"bitcast {given} {operands[0]} to {to}")


@emits("scalar.dot4")
def _dot4(e: FunctionEmitter, op: Operation, operands: list[str]) -> str:
    type = op.result.type
    text, lanes = llvm_type(type), getattr(type, "lanes", 1)
    bits = 32 * lanes
    features = e.emitter.machine.features.split(",")
    if bits in (128, 256, 512) and ("+avx512vnni" in features or (bits < 512 and "+avxvnni" in features)):
        name = f"llvm.x86.avx512.vpdpbusd.{bits}"
        return e.intrinsic(name, text, *((text, operand) for operand in operands))
    if bits in _PAIRS and _PAIRS[bits][1] in features:
        return _dot_pairs(e, _PAIRS[bits][0], type, operands)
    total = operands[0]
    for byte in range(4):
        moved = e.emit(f"lshr {text} {operands[1]}, {_number(type, 8 * byte)}")
        unsigned = e.emit(f"and {text} {moved}, {_number(type, 255)}")
        moved = e.emit(f"shl {text} {operands[2]}, {_number(type, 24 - 8 * byte)}")
        signed = e.emit(f"ashr {text} {moved}, {_number(type, 24)}")
        total = e.emit(f"add {text} {total}, {e.emit(f'mul {text} {unsigned}, {signed}')}")
    return total


# What multiplies pairs of i16 and adds the two products, exactly, for vectors of so many bits, and the feature that it
# needs. (There is an instruction for bytes as well, but its sums saturate.)
_PAIRS = {
    128: ("llvm.x86.sse2.pmadd.wd", "+sse2"), 256: ("llvm.x86.avx2.pmadd.wd", "+avx2"),
    512: ("llvm.x86.avx512.pmaddw.d.512", "+avx512bw"),
}  # fmt: skip


def _dot_pairs(e: FunctionEmitter, name: str, type: Type, operands: Sequence[str]) -> str:
    """dot4 of bytes as i16: those at even places, then those at odd ones."""
    text, lanes = llvm_type(type), getattr(type, "lanes", 1)
    halves, half = f"<{2 * lanes} x i16>", types.vector(_integer(16), 2 * lanes)
    eight = _number(half, 8)
    unsigned, signed = (e.emit(f"bitcast {text} {operand} to {halves}") for operand in operands[1:])
    low = e.emit(f"ashr {halves} {e.emit(f'shl {halves} {signed}, {eight}')}, {eight}")
    pairs = (
        (e.emit(f"and {halves} {unsigned}, {_number(half, 255)}"), low),
        (e.emit(f"lshr {halves} {unsigned}, {eight}"), e.emit(f"ashr {halves} {signed}, {eight}")),
    )
    total = operands[0]
    for pair in pairs:
        product = e.intrinsic(name, text, *((halves, each) for each in pair))
        total = e.emit(f"add {text} {total}, {product}")
    return total


@emits("scalar.scale")
def _scale(e: FunctionEmitter, op: Operation, operands: list[str]) -> str:
    """x * 2**n in two steps, so that results below the normal range are rounded once; AVX-512 has it as one."""
    type = op.result.type
    text, dtype, _ = type_facts(type)
    lanes = getattr(type, "lanes", 1)
    if e.emitter.machine.scalef and lanes * dtype.bits == 512:
        return _scalef(e, text, dtype, lanes, operands)
    bits, mantissa, bias = (32, 23, 127) if dtype is f32 else (64, 52, 1023)
    whole = llvm_type(like(type, _integer(bits)))  # type: ignore[arg-type]
    integer: Type = like(type, _integer(bits))  # type: ignore[arg-type]
    n = e.emit(f"freeze {whole} {e.emit(f'fptosi {text} {operands[1]} to {whole}')}")
    first = e.emit(f"ashr {whole} {n}, {_number(integer, 1)}")
    second = e.emit(f"sub {whole} {n}, {first}")
    result = operands[0]
    for part in (first, second):
        exponent = e.emit(f"add {whole} {part}, {_number(integer, bias)}")
        shifted = e.emit(f"shl {whole} {exponent}, {_number(integer, mantissa)}")
        power = e.emit(f"bitcast {whole} {shifted} to {text}")
        result = e.emit(f"fmul {text} {result}, {power}")
    return result


@emits("scalar.scale_normal")
def _scale_normal(e: FunctionEmitter, op: Operation, operands: list[str]) -> str:
    """n is added to the exponent of x, in a third of the instructions of `scale`. NaN stays what it is."""
    type = op.result.type
    text, dtype, _ = type_facts(type)
    lanes = getattr(type, "lanes", 1)
    if e.emitter.machine.scalef and lanes * dtype.bits == 512:
        return _scalef(e, text, dtype, lanes, operands)
    bits, mantissa = (32, 23) if dtype is f32 else (64, 52)
    integer: Type = like(type, _integer(bits))  # type: ignore[arg-type]
    whole = llvm_type(integer)
    n = e.emit(f"freeze {whole} {e.emit(f'fptosi {text} {operands[1]} to {whole}')}")
    shifted = e.emit(f"shl {whole} {n}, {_number(integer, mantissa)}")
    total = e.emit(f"add {whole} {shifted}, {e.emit(f'bitcast {text} {operands[0]} to {whole}')}")
    return e.emit(f"bitcast {whole} {total} to {text}")


def _scalef(e: FunctionEmitter, text: str, dtype: DType, lanes: int, operands: list[str]) -> str:
    name = f"llvm.x86.avx512.mask.scalef.{'ps' if dtype is f32 else 'pd'}.512"
    mask = f"i{lanes}"
    current_rounding = "4"
    arguments = [(text, operands[0]), (text, operands[1]), (text, "poison"), (mask, "-1"), ("i32", current_rounding)]
    return e.intrinsic(name, text, *arguments)


def _integer(bits: int) -> DType:
    from ...graph.dtypes import by_name

    return by_name(f"i{bits}")


# ---- casts -----------------------------------------------------------------------------------------------------------


@emits("scalar.cast")
def _cast(e: FunctionEmitter, op: Operation, operands: list[str]) -> str:
    value = op.operands[0]
    assert value is not None
    return cast(e, operands[0], value.type, op.attributes["to"].dtype)


def cast(e: FunctionEmitter, x: str, type: Type, to: DType) -> str:
    text, given, _ = type_facts(type)
    wanted: Type = like(type, to)  # type: ignore[arg-type]
    target = llvm_type(wanted)
    if given is to:
        return x
    if given.name == "bf16":
        return cast(e, _from_bfloat(e, x, type), like(type, f32), to)  # type: ignore[arg-type]
    if to.name == "bf16":
        return _to_bfloat(e, cast(e, x, type, f32), like(type, f32))  # type: ignore[arg-type]
    if to.kind == "bool":
        compare = "fcmp une" if given.is_float else "icmp ne"
        return e.emit(f"{compare} {text} {x}, {_number(type, 0)}")
    if "f16" in (given.name, to.name) and f32 not in (given, to):
        # By way of f32, which every machine converts; only f64 would then be rounded twice.
        single: Type = like(type, f32)  # type: ignore[arg-type]
        middle = _to_odd(e, x, type) if given.name == "f64" else cast(e, x, type, f32)
        return cast(e, middle, single, to)
    if given.is_float and to.is_float:
        return e.emit(f"{'fpext' if to.bits > given.bits else 'fptrunc'} {text} {x} to {target}")
    if to.is_float:
        return e.emit(f"{'sitofp' if given.kind == 'int' else 'uitofp'} {text} {x} to {target}")
    if given.is_float:
        return _to_integer(e, x, type, wanted)
    width = 1 if given.kind == "bool" else given.bits
    if to.bits == width:
        return x
    instruction = "trunc" if to.bits < width else "sext" if given.kind == "int" else "zext"
    return e.emit(f"{instruction} {text} {x} to {target}")


def _to_integer(e: FunctionEmitter, x: str, type: Type, wanted: Type) -> str:
    """LLVM leaves open what a float beyond the integer's range becomes, so it is replaced before and after."""
    text = llvm_type(type)
    target, to, _ = type_facts(wanted)
    mask = llvm_type(like(type, bool_))  # type: ignore[arg-type]
    low = 0 if to.kind == "uint" else -(1 << (to.bits - 1))
    high = (1 << (to.bits - (to.kind == "int"))) - 1
    # Both limits plus one are powers of two (or 0), which every float holds exactly.
    above = e.emit(f"fcmp oge {text} {x}, {_number(type, float(high + 1))}")
    below = e.emit(f"fcmp olt {text} {x}, {_number(type, float(low))}")
    missing = e.emit(f"fcmp uno {text} {x}, {x}")
    outside = e.emit(f"or {mask} {e.emit(f'or {mask} {above}, {below}')}, {missing}")
    safe = e.emit(f"select {mask} {outside}, {text} {_number(type, 0)}, {text} {x}")
    number = e.emit(f"{'fptosi' if to.kind == 'int' else 'fptoui'} {text} {safe} to {target}")
    number = e.emit(f"select {mask} {above}, {target} {_number(wanted, high)}, {target} {number}")
    return e.emit(f"select {mask} {below}, {target} {_number(wanted, low)}, {target} {number}")


def _to_odd(e: FunctionEmitter, x: str, type: Type) -> str:
    """f64 cut to f32 with the last bit set if anything was lost, so that rounding again gives what one rounding had."""
    text, single = llvm_type(type), llvm_type(like(type, f32))  # type: ignore[arg-type]
    integer: Type = like(type, _integer(32))  # type: ignore[arg-type]
    wide, mask, suffix = llvm_type(integer), llvm_type(like(type, bool_)), type_facts(type)[2]  # type: ignore[arg-type]
    near = e.emit(f"fptrunc {text} {x} to {single}")
    back = e.emit(f"fpext {single} {near} to {text}")
    sizes = [e.intrinsic(f"llvm.fabs.{suffix}", text, (text, value)) for value in (x, back)]
    beyond = e.emit(f"fcmp ogt {text} {sizes[1]}, {sizes[0]}")
    lost = e.emit(f"fcmp one {text} {x}, {back}")
    bits = e.emit(f"bitcast {single} {near} to {wide}")
    bits = e.emit(f"sub {wide} {bits}, {e.emit(f'zext {mask} {beyond} to {wide}')}")
    bits = e.emit(f"or {wide} {bits}, {e.emit(f'zext {mask} {lost} to {wide}')}")
    return e.emit(f"bitcast {wide} {bits} to {single}")


def _from_bfloat(e: FunctionEmitter, x: str, type: Type) -> str:
    text, wide = llvm_type(type), llvm_type(like(type, _integer(32)))  # type: ignore[arg-type]
    extended = e.emit(f"zext {text} {x} to {wide}")
    shifted = e.emit(f"shl {wide} {extended}, {splat(type, '16').replace('i16', 'i32')}")
    return e.emit(f"bitcast {wide} {shifted} to {llvm_type(like(type, f32))}")  # type: ignore[arg-type]


def _to_bfloat(e: FunctionEmitter, x: str, type: Type) -> str:
    """Rounded to nearest, halves to even; NaN stays one."""
    text = llvm_type(type)
    integer: Type = like(type, _integer(32))  # type: ignore[arg-type]
    wide, mask = llvm_type(integer), llvm_type(like(type, bool_))  # type: ignore[arg-type]
    bits = e.emit(f"bitcast {text} {x} to {wide}")
    odd = e.emit(f"and {wide} {e.emit(f'lshr {wide} {bits}, {_number(integer, 16)}')}, {_number(integer, 1)}")
    rounded = e.emit(f"add {wide} {e.emit(f'add {wide} {bits}, {_number(integer, 0x7FFF)}')}, {odd}")
    missing = e.emit(f"fcmp uno {text} {x}, {x}")
    quiet = e.emit(f"or {wide} {bits}, {_number(integer, 0x400000)}")
    chosen = e.emit(f"select {mask} {missing}, {wide} {quiet}, {wide} {rounded}")
    shifted = e.emit(f"lshr {wide} {chosen}, {_number(integer, 16)}")
    return e.emit(f"trunc {wide} {shifted} to {wide.replace('i32', 'i16')}")
