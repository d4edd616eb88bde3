"""Scalar operators: the interpreter and compiled code agree bit for bit, on the numbers where things go wrong."""

from __future__ import annotations

import numpy as np
import pytest
from loop_running import run_both

from tilewright.graph import opdef, types
from tilewright.graph.diagnostics import TypeInferenceError
from tilewright.graph.dtypes import BY_NAME, DType, bool_, f32, i32, i64
from tilewright.graph.kernel.loop_builder import LoopBuilder
from tilewright.graph.module import Module

DTYPES = [BY_NAME[name] for name in ("f32", "f64", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "bool")]
INPUTS = {"add": 2, "sub": 2, "mul": 2, "div": 2, "rem": 2, "min": 2, "max": 2, "fma": 3, "neg": 1, "abs": 1, "sqrt": 1,
          "floor": 1, "ceil": 1, "round": 1, "trunc": 1, "and": 2, "or": 2, "xor": 2, "not": 1, "shl": 2, "shr": 2,
          "eq": 2, "ne": 2, "lt": 2, "le": 2, "quotient": 2}  # fmt: skip
COUNT = 128


def numbers(dtype: DType, seed: int) -> np.ndarray:
    """Ordinary numbers and odd ones, mixed at random."""
    random = np.random.default_rng(seed)
    if dtype is bool_:
        return random.integers(0, 2, COUNT).astype(bool)
    if dtype.is_float:
        odd = np.array([0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -1.5, np.inf, -np.inf, np.nan, 1e30, 3e-41])
        mixed = np.where(random.random(COUNT) < 0.5, random.choice(odd, COUNT), random.normal(0, 10, COUNT))
        with np.errstate(over="ignore"):
            return mixed.astype(dtype.numpy)
    limits = np.iinfo(dtype.numpy)
    odd_ints = [0, 1, 2, 3, limits.max, limits.min, limits.max - 1, *([-1, -2] if limits.min else [])]
    return np.array([odd_ints[random.integers(len(odd_ints))] for _ in range(COUNT)], dtype.numpy)


def function(names: list[str], dtype: DType, lanes: int) -> Module:
    """Applies scalar operators to whole buffers, `lanes` numbers at a time (0: one, as a scalar).

    Its arguments are x0, x1, x2, the number of elements, and a result for each operator.
    """
    results = {f"y_{name}": types.buffer(result_of(name, dtype)) for name in names}
    operands = {f"x{index}": types.buffer(dtype) for index in range(3)}
    b = LoopBuilder("apply", **operands, n=types.scalar(i64), **results)
    with b.loop(0, b["n"], max(lanes, 1)) as i:
        loaded = [b.load(b[operand], i, lanes) for operand in operands]
        for name in names:
            b.store(b.scalar(name, *loaded[: INPUTS[name]]), b[f"y_{name}"], i)
    return b.module()


def takes(name: str, dtype: DType) -> bool:
    return dtype.kind in opdef.lookup("scalar", name).kinds  # type: ignore[attr-defined]


def result_of(name: str, dtype: DType) -> DType:
    return bool_ if opdef.lookup("scalar", name).compares else dtype  # type: ignore[attr-defined]


def equal(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal bits, but every NaN is one, and a minimum or maximum of zeros may have either sign."""
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    return bool(np.array_equal(a, b, equal_nan=True))


@pytest.mark.parametrize(("lanes", "width"), [(0, 128), (4, 128), (8, 256), (16, 512)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_compiled_code_agrees_with_the_interpreter(dtype: DType, lanes: int, width: int) -> None:
    names = [name for name in INPUTS if takes(name, dtype)]
    given = [numbers(dtype, seed) for seed in range(3)]
    empty = [np.zeros(COUNT, result_of(name, dtype).numpy) for name in names]
    ours, compiled = run_both(function(names, dtype, lanes), [*given, COUNT, *empty], width)
    for name, mine, theirs in zip(names, ours[4:], compiled[4:], strict=True):
        if name == "fma":
            np.testing.assert_allclose(mine, theirs, rtol=1e-15 if dtype.bits == 64 else 1e-7)
        else:
            assert equal(mine, theirs), (name, mine, theirs, given)


@pytest.mark.parametrize(("lanes", "width"), [(0, 128), (4, 128), (8, 256), (16, 512)])
@pytest.mark.parametrize(
    "divisor", [0.02, 1.0, 3.0, -0.7, 255.0, 1e-40, 3e-45, 2e-18, 1e-38, 3e19, 3e38, np.inf, np.nan, 0.0, -0.0]
)
@pytest.mark.parametrize("is_constant", [True, False])
def test_quotients_are_rounded_as_those_of_a_division(
    divisor: float, is_constant: bool, lanes: int, width: int
) -> None:
    """In the middle between two integers and right beside it, too; what is far beyond them is as far."""
    y = np.float32(divisor)
    with np.errstate(all="ignore"):
        random = np.random.default_rng(7)
        middles = ((np.arange(-400, 400) + 0.5) * np.float64(y)).astype(np.float32)
        wide = (random.integers(-(2**21), 2**21, 800) * 0.5 * np.float64(y)).astype(np.float32)
        near = [np.nextafter(middles, np.float32(side)) for side in (-np.inf, np.inf)]
        odd = np.resize(np.concatenate([numbers(f32, 1), random.normal(0, 1e38, 72).astype(np.float32)]), 208)
        x = np.concatenate([middles, wide, *near, odd])
        wanted = x / y
    b = LoopBuilder("apply", x=types.buffer(f32), y=types.buffer(f32), n=types.scalar(i64), z=types.buffer(f32))
    common = divisor if is_constant else b.load(b["y"], 0)
    common = b.broadcast(common, lanes) if lanes and not is_constant else common
    with b.loop(0, b["n"], max(lanes, 1)) as i:
        b.store(b.scalar("quotient", b.load(b["x"], i, lanes), common), b["z"], i)
    given = [x, np.array([y]), len(x), np.zeros_like(x)]
    ours, compiled = run_both(b.module(), given, width)
    assert np.array_equal(ours[3], wanted, equal_nan=True)
    assert np.array_equal(np.isnan(compiled[3]), np.isnan(wanted))
    limit = np.float32(2**22)
    found, wanted = (np.rint(np.clip(each, -limit, limit)) for each in (compiled[3], wanted))
    assert np.array_equal(found, wanted, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_operators_refuse_what_they_are_not_defined_for(dtype: DType) -> None:
    for name in INPUTS:
        if not takes(name, dtype):
            with pytest.raises(TypeInferenceError, match="not defined"):
                function([name], dtype, 4)


@pytest.mark.parametrize(("lanes", "width"), [(0, 128), (8, 256), (16, 512)])
@pytest.mark.parametrize("given", [*DTYPES, BY_NAME["f16"], BY_NAME["bf16"]], ids=str)
def test_casts_agree(given: DType, lanes: int, width: int) -> None:
    targets = [*DTYPES, BY_NAME["f16"], BY_NAME["bf16"]]
    results = {f"to_{to}": types.buffer(to) for to in targets}
    b = LoopBuilder("apply", x=types.buffer(given), n=types.scalar(i64), **results)
    with b.loop(0, b["n"], max(lanes, 1)) as i:
        x = b.load(b["x"], i, lanes)
        for to in targets:
            b.store(b.cast(x, to), b[f"to_{to}"], i)
    source = numbers(given, 3)
    ours, compiled = run_both(b.module(), [source, COUNT, *[np.zeros(COUNT, to.numpy) for to in targets]], width)
    for to, mine, theirs in zip(targets, ours[2:], compiled[2:], strict=True):
        wide = [side.astype(np.float64) if to.name == "bf16" else side for side in (mine, theirs)]
        assert equal(wide[0], wide[1]), (to, source, mine, theirs)


@pytest.mark.parametrize("width", [128, 256, 512])
@pytest.mark.parametrize("dtype", [f32, BY_NAME["f64"]], ids=str)
def test_scaling_by_powers_of_two_rounds_once(dtype: DType, width: int) -> None:
    limit = 150 if dtype is f32 else 1080
    powers = np.linspace(-limit, limit, COUNT).round().astype(dtype.numpy)
    x = (np.random.default_rng(0).random(COUNT) + 0.5).astype(dtype.numpy)
    lanes = width // dtype.bits
    b = LoopBuilder("apply", x=types.buffer(dtype), n=types.buffer(dtype), y=types.buffer(dtype))
    with b.loop(0, COUNT, lanes) as i:
        b.store(b.scale(b.load(b["x"], i, lanes), b.load(b["n"], i, lanes)), b["y"], i)
    ours, compiled = run_both(b.module(), [x, powers, np.zeros_like(x)], width)
    assert equal(ours[2], compiled[2])
    with np.errstate(over="ignore"):
        assert equal(ours[2], np.ldexp(x, powers.astype(int)))


def test_select_and_bitcast() -> None:
    values = np.array([1, -1, 2, -2, 0, -0.0, np.nan, -np.inf], np.float32)
    b = LoopBuilder("apply", x=types.buffer(f32), y=types.buffer(i32))
    x = b.load(b["x"], 0, 8)
    b.store(b.select(b.lt(x, 0.0), b.bitcast(x, i32), 7), b["y"], 0)
    module = b.module()
    for width in (128, 256, 512):
        ours, compiled = run_both(module, [values, np.zeros(8, np.int32)], width)
        assert equal(ours[1], compiled[1])
        assert list(ours[1]) == [7 if not v < 0 else int(v.view(np.int32)) for v in values]


def test_numbers_take_the_type_of_their_company() -> None:
    b = LoopBuilder("apply", x=types.buffer(f32))
    x = b.load(b["x"], 0, 4)
    assert b.add(x, 1).type is x.type
    assert b.mul(2, x).type is x.type
    assert b.add(1, 2) == 3
    with pytest.raises(TypeError, match="numbers alone"):
        b.sqrt(2.0)


def test_operands_of_two_types_are_refused() -> None:
    b = LoopBuilder("apply", x=types.buffer(f32), y=types.buffer(i32))
    with pytest.raises(TypeInferenceError, match="operands of one type"):
        b.add(b.load(b["x"], 0), b.load(b["y"], 0))
    with pytest.raises(TypeInferenceError, match="needs a bool"):
        b.select(b.load(b["y"], 0), b.load(b["x"], 0), 0)
