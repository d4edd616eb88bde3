"""Samples of every family of operators: the target cpu gives what the reference gives, at several shapes, dtypes and
broadcast forms, with any number of threads the same bits, and without a host step.

Samples of one kind are the outputs of one model, since a model is compiled at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx.defs
import pytest

import tilewright
from tilewright.backends.target import compile_module
from tilewright.graph import opdef
from tilewright.graph.dtypes import BY_NAME, DType, bool_, f32, from_numpy
from tilewright.graph.model_builder import Builder
from tilewright.graph.ops.elementwise import Elementwise

ONNX_NAMES = {"f32": "float", "f64": "double", "f16": "float16", "bf16": "bfloat16", "bool": "bool"} | {
    f"{'u' * (kind == 'u')}{'i' * (kind == 'i')}{bits}": f"{'u' * (kind == 'u')}int{bits}"
    for kind in "iu"
    for bits in (8, 16, 32, 64)
}
TOLERANCES = {"f64": 1e-9, "f32": 3e-5, "f16": 4e-3, "bf16": 3e-2}

# Those whose operands have meanings, shapes or dtypes of their own; node tests and other samples cover them.
OWN = {
    "Cast",
    "CastLike",
    "BitCast",
    "Clip",
    "Where",
    "BitShift",
    "PRelu",
    "Pow",
    "Mod",
    "Div",
    "StringConcat",
    "SwiGLU",
}

# The standard says this one with an attribute, and attributes are f32.
ROUGH = {"hard_swish"}


def operand(shape: tuple[int, ...], dtype: DType, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    if dtype is bool_:
        return random.integers(0, 2, shape).astype(bool)
    if dtype.is_float:
        return (random.normal(size=shape) * 1.5).astype(dtype.numpy)
    return random.integers(0 if dtype.kind == "uint" else -9, 10, shape).astype(dtype.numpy)


def check(build: Callable[..., Any], *operands: np.ndarray, threads: tuple[int, ...] = (1, 3)) -> None:
    """The model of what `build(b, *values)` returns, a list, on the cpu and by the reference."""
    b = Builder("samples")
    values = [b.input(f"x{i}", from_numpy(x.dtype)[x.shape]) for i, x in enumerate(operands)]
    made = list(build(b, *values))
    for index, value in enumerate(made):
        b.output(value, f"y{index}")
    model = b.build()
    feeds = {f"x{i}": x for i, x in enumerate(operands)}
    wanted = tilewright.compile(model, target="reference").run(feeds)
    first: dict[str, np.ndarray] = {}
    for count in threads:
        executable = compile_module(model, target="cpu", threads=count)
        assert executable.report()["host_steps"] == []
        got = executable.run(feeds)
        for name, output in zip(wanted, model.main.outputs, strict=True):
            producer = output.producer.name if output.producer else name
            assert got[name].dtype == wanted[name].dtype, producer
            assert got[name].shape == wanted[name].shape, producer
            if first:
                assert got[name].tobytes() == first[name].tobytes(), f"{producer} with {count} threads"
            elif wanted[name].dtype.kind in "biu":
                np.testing.assert_array_equal(got[name], wanted[name], err_msg=producer)
            else:
                tolerance = 1e-7 if producer in ROUGH else 0.0
                tolerance = max(tolerance, TOLERANCES[from_numpy(wanted[name].dtype).name])
                expected, found = (np.asarray(a).astype(np.float64) for a in (wanted[name], got[name]))
                finite = expected[np.isfinite(expected)]
                scale = max(1.0, float(np.abs(finite).max(initial=0)))
                np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * scale, err_msg=producer)
        first = got


# ---- elementwise -----------------------------------------------------------------------------------------------------


def elementwise(dtype: DType, count: int) -> list[str]:
    """IR names of the elementwise operators of `count` operands that take `dtype`."""
    found = []
    for schema in onnx.defs.get_all_schemas():
        definition = opdef.find("", schema.name) if schema.domain == "" else None
        if not isinstance(definition, Elementwise) or schema.name in OWN or schema.deprecated:
            continue
        kinds = {constraint.type_param_str: constraint.allowed_type_strs for constraint in schema.type_constraints}
        given = schema.inputs[0].type_str
        allowed = kinds.get(given, [given])
        operands = 2 if schema.name in ("Max", "Min", "Sum", "Mean") else len(schema.inputs)
        if operands == count and f"tensor({ONNX_NAMES[dtype.name]})" in allowed:
            found.append(definition.name)
    return sorted(set(found))


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16", "i8", "i32", "i64", "u8", "bool"])
def test_unary(dtype: str) -> None:
    names = elementwise(BY_NAME[dtype], 1)
    assert names
    check(lambda b, x: [getattr(b, name)(x) for name in names], operand((3, 37), BY_NAME[dtype], 0))


BROADCASTS = {
    "alike": ((3, 37), (3, 37)), "row": ((3, 37), (37,)), "column": ((4, 1), (3, 1, 37)), "number": ((), (2, 5, 3)),
    "empty": ((0, 3), (1, 3)), "middle": ((2, 1, 5), (2, 3, 5)),
}  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "form"),
    [("f32", form) for form in BROADCASTS] + [(d, "middle") for d in ("f64", "f16", "bf16", "i8", "i32", "i64", "u8")]
    + [("bool", "row"), ("u64", "column")],
)  # fmt: skip
def test_binary(dtype: str, form: str) -> None:
    names = elementwise(BY_NAME[dtype], 2)
    left, right = BROADCASTS[form]
    x, y = operand(left, BY_NAME[dtype], 1), operand(right, BY_NAME[dtype], 2)
    check(lambda b, x, y: [getattr(b, name)(x, y) for name in names], x, y)


@pytest.mark.parametrize("dtype", ["f32", "f64", "i8", "i32", "i64", "u8", "u32"])
def test_divisions_and_powers(dtype: str) -> None:
    """The divisor is not 0, and exponents are small."""
    kind = BY_NAME[dtype]
    x, y = operand((3, 37), kind, 3), np.abs(operand((37,), kind, 4)).astype(kind.numpy) % 4 + kind.numpy.type(1)

    def build(b: Any, x: Any, y: Any) -> list[Any]:
        made = [b.div(x, y), b.mod(x, y, fmod=1), b.where(b.less(x, y), x, y)]
        if dtype in ("f32", "f64", "i32", "i64"):
            made.append(b.pow(b.abs(x), y))
        if not kind.is_float:
            made.append(b.mod(x, y))
        if kind.kind == "uint":
            made += [b.bit_shift(x, y, direction=side) for side in ("LEFT", "RIGHT")]
        return [*made, b.clip(x, y.type.dtype.numpy.type(1), y.type.dtype.numpy.type(3))]

    check(build, x, y)


# ---- reductions and rows ---------------------------------------------------------------------------------------------

REDUCTIONS = ("sum", "mean", "max", "min", "prod", "sum_square", "l1", "l2", "log_sum", "log_sum_exp")


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "i32", "i64"])
def test_reductions(dtype: str) -> None:
    kind = BY_NAME[dtype]
    names = REDUCTIONS if kind.is_float else ("sum", "max", "min", "prod", "sum_square", "l1")
    x = np.abs(operand((3, 5, 7), kind, 5)) + kind.numpy.type(1)

    def build(b: Any, x: Any) -> list[Any]:
        forms = [([0], 1), ([1], 0), ([-1], 1), ([0, 2], 0), ([0, 1, 2], 0)]
        return [
            getattr(b, f"reduce_{name}")(x, np.array(axes), keepdims=keep)
            for index, name in enumerate(names) for axes, keep in (forms if index < 3 else forms[1:4:2])
        ]  # fmt: skip

    check(build, x.astype(kind.numpy))


@pytest.mark.parametrize("shape", [(4, 33), (2, 3, 130), (1, 1)])
def test_rows(shape: tuple[int, ...]) -> None:
    def build(b: Any, x: Any) -> list[Any]:
        last = np.linspace(0.5, 1.5, shape[-1], dtype=np.float32)
        made = [b.softmax(x, axis=axis) for axis in range(len(shape))]
        made += [b.log_softmax(x, axis=axis) for axis in range(len(shape))]
        made += [b.layer_normalization(x, last, last, outputs=1), b.rms_normalization(x, last)]
        made += [b.lp_normalization(x, axis=axis, p=p) for axis, p in ((-1, 2), (0, 1))]
        made += [b.argmax(x, axis=0, keepdims=0), b.argmin(x, axis=-1), b.hardmax(x, axis=-1)]
        made += [b.cumsum(x, np.array(0)), b.cumsum(x, np.array(-1), reverse=1, exclusive=1)]
        return made

    check(build, operand(shape, BY_NAME["f32"], 6))


# ---- products and windows --------------------------------------------------------------------------------------------

PRODUCTS = (
    ((5,), (5,)), ((5,), (5, 3)), ((4, 5), (5,)), ((1, 64), (64, 48)), ((33, 17), (17, 65)), ((2, 4, 5), (5, 3)),
    ((2, 1, 4, 5), (3, 5, 6)), ((2, 3, 0), (0, 4)), ((3, 4, 5), (3, 5, 1)),
)  # fmt: skip


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
def test_products(dtype: str) -> None:
    chosen = PRODUCTS if dtype == "f32" else PRODUCTS[4:7]
    operands = [operand(shape, BY_NAME[dtype], 7 + i) for pair in chosen for i, shape in enumerate(pair)]
    check(lambda b, *v: [b.matmul(v[2 * i], v[2 * i + 1]) for i in range(len(chosen))], *operands)


def test_gemm() -> None:
    a, c = operand((6, 5), BY_NAME["f32"], 8), operand((7,), BY_NAME["f32"], 9)
    w = operand((5, 7), BY_NAME["f32"], 10)

    def build(b: Any, a: Any, w: Any, c: Any) -> list[Any]:
        at, wt = b.transpose(a, perm=[1, 0]), b.transpose(w, perm=[1, 0])
        return [
            b.gemm(a, w), b.gemm(a, w, c, alpha=0.5, beta=2.0), b.gemm(at, w, c, transA=1),
            b.gemm(at, wt, transA=1, transB=1), b.einsum(a, w, equation="ij,jk->ki"),
            b.einsum(a, equation="ij->j"), b.einsum(a, a, equation="ij,ij->i"),
        ]  # fmt: skip

    check(build, a, w, c)


WINDOWS = {
    "line": ((2, 3, 17), (3,)), "image": ((2, 4, 9, 11), (3, 2)), "volume": ((1, 2, 5, 6, 7), (2, 3, 2)),
}  # fmt: skip


@pytest.mark.parametrize("form", WINDOWS)
def test_windows(form: str) -> None:
    shape, kernel = WINDOWS[form]
    rank, channels = len(kernel), shape[1]
    whole = operand((6, channels, *kernel), BY_NAME["f32"], 11)
    single = operand((channels, 1, *kernel), BY_NAME["f32"], 12)
    back = operand((channels, 5, *kernel), BY_NAME["f32"], 13)

    def build(b: Any, x: Any) -> list[Any]:
        ones, twos = (1,) * rank, (2,) * rank
        made = [
            b.conv(x, whole), b.conv(x, whole, strides=twos, pads=ones * 2), b.conv(x, whole, auto_pad="SAME_UPPER"),
            b.conv(x, whole, np.arange(6, dtype=np.float32), dilations=(2, *ones[1:]), pads=ones * 2),
            b.conv(x, single, group=channels), b.conv_transpose(x, back, strides=twos),
            b.max_pool(x, kernel_shape=kernel, strides=twos), b.global_average_pool(x), b.global_max_pool(x),
            b.average_pool(x, kernel_shape=kernel, pads=ones * 2, count_include_pad=1),
            b.average_pool(x, kernel_shape=kernel, pads=ones * 2), b.lp_pool(x, kernel_shape=kernel, p=2),
        ]  # fmt: skip
        return made

    check(build, operand(shape, BY_NAME["f32"], 14))


# ---- moves -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "i64", "u8", "bool"])
def test_moves(dtype: str) -> None:
    x, y = operand((3, 4, 6), BY_NAME[dtype], 15), operand((3, 2, 6), BY_NAME[dtype], 16)

    def build(b: Any, x: Any, y: Any) -> list[Any]:
        index = np.array([2, 0, -1])
        full = np.arange(72).reshape(3, 4, 6) % 4
        points = np.array([[0, 1], [2, -1]])
        return [
            b.transpose(x, perm=[2, 0, 1]), b.reshape(x, np.array([0, -1])), b.concat(x, y, axis=1),
            b.slice(x, np.array([-1, 0]), np.array([-9, 5]), np.array([1, 2]), np.array([-2, 3])),
            *b.split(x, np.array([1, 3]), axis=1, outputs=2),
            b.expand(b.unsqueeze(x, np.array([1])), np.array([1, 2, 1, 1])),
            b.gather(x, index, axis=1), b.gather(x, index, axis=2), b.gather_elements(x, full, axis=1),
            b.gather_nd(x, points), b.scatter_elements(x, full[:, :2], y, axis=1), b.scatter_nd(x, points, y[:2, 0, :]),
            b.tile(y, np.array([2, 1, 3])), b.pad(x, np.array([1, 0, 2, 0, 1, 0])), b.flatten(x, axis=2),
            b.pad(x, np.array([1, 1, 1, 1, 1, 1]), mode="reflect"), b.trilu(x, np.array(1), upper=0),
        ]  # fmt: skip

    check(build, x, y)


@pytest.mark.parametrize("dtype", ["f32", "i64", "u8"])
def test_orders(dtype: str) -> None:
    x = operand((3, 4, 25), BY_NAME[dtype], 17)

    def build(b: Any, x: Any) -> list[Any]:
        made: list[Any] = []
        for axis, largest, k in ((-1, 1, 7), (1, 0, 3), (0, 1, 1)):
            made += b.topk(x, np.array([k]), axis=axis, largest=largest)
        return made

    check(build, x)


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", ["f32", "f16", "i32", "u8"])
def test_the_first_of_all_is_the_first_of_two(dtype: str, axis: int, largest: int) -> None:
    """One alone is found without sorting; ties, zeros of both signs and NaN make no difference."""
    random = np.random.default_rng(23)
    x = random.integers(0, 4, (40, 21)).astype(BY_NAME[dtype].numpy)
    if BY_NAME[dtype].is_float:
        x[random.random(x.shape) < 0.2] *= -0.0
        x[random.random(x.shape) < 0.02] = np.nan
        x[3], x[:, 5] = np.nan, np.nan
    b = Builder()
    given = b.input("x", BY_NAME[dtype]["n", "m"])
    for k in (1, 2):
        for tensor in b.topk(given, np.array([k]), axis=axis, largest=largest):
            b.output(tensor)
    first, place, two, places = tilewright.compile(b.build(), target="cpu").run({"x": x}).values()
    np.testing.assert_array_equal(place, np.take(places, [0], axis))
    np.testing.assert_array_equal(first, np.take(two, [0], axis))


def test_the_first_of_columns() -> None:
    """So many columns are turned, so that each lies in a row; a batch stays outermost."""
    check(lambda b, x: list(b.topk(x, np.array([5]), axis=0)), operand((130, 140), f32, 21))
    check(lambda b, x: list(b.topk(x, np.array([9]), axis=1, largest=0)), operand((2, 70, 140), f32, 22))


def test_resampling() -> None:
    def build(b: Any, x: Any) -> list[Any]:
        made = [
            b.resize(x, None, np.float32([1, 1, 1.6, 0.7]), mode=mode, coordinate_transformation_mode=place)
            for mode in ("nearest", "linear", "cubic")
            for place in ("half_pixel", "asymmetric", "align_corners")
        ]
        grid = np.random.default_rng(0).uniform(-1.3, 1.3, (2, 4, 5, 2)).astype(np.float32)
        made += [
            b.grid_sample(x, grid, mode=m, padding_mode=p) for m in ("linear", "nearest") for p in ("zeros", "border")
        ]
        return made

    check(build, operand((2, 3, 7, 9), BY_NAME["f32"], 18))
