"""Matrix products that are merged with each other, or take along what is around them: results stay the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import tilewright
from tilewright import Builder, PassManager, f16, f32, f64, i32

RANDOM = np.random.default_rng(5)
SIZES = {"n": 3, "m": 5}
ROUNDING = {"f16": 2e-2, "f32": 1e-5, "f64": 1e-13, "i32": 0.0}


class Case(NamedTuple):
    """`build` takes a builder, a function that makes weights, and inputs of `shapes`."""

    build: Callable[..., Any]
    shapes: list[tuple[Any, ...]]
    expected: list[str]


def numbers(dtype: Any, *shape: Any) -> np.ndarray:
    if dtype.is_integer:
        return RANDOM.integers(-9, 9, shape).astype(dtype.numpy)
    return RANDOM.uniform(-1, 1, shape).astype(dtype.numpy)


def built(case: Case, dtype: Any = f32) -> Any:
    b = Builder()
    inputs = [b.input(f"x{index}", dtype[shape]) for index, shape in enumerate(case.shapes)]
    results = case.build(b, lambda *shape: numbers(dtype, *shape), *inputs)
    for index, result in enumerate(results if isinstance(results, list | tuple) else [results]):
        b.output(result, f"y{index}")
    return b.build()


def operators(model: Any) -> list[str]:
    return [op.name for op in model.walk() if op.name not in ("const", "return")]


def check(passes: str, case: Case, dtype: Any = f32) -> Any:
    """Build, rewrite, and compare operators and results; gives the rewritten model."""
    model = built(case, dtype)
    shapes = [[SIZES.get(dim, dim) for dim in shape] for shape in case.shapes]
    feeds = {f"x{index}": numbers(dtype, *shape) for index, shape in enumerate(shapes)}
    before = tilewright.compile(model, target="reference").run(feeds)
    PassManager.parse(f"{passes},dce", verify_each=True).run(model)
    assert operators(model) == case.expected
    after = tilewright.compile(model, target="reference").run(feeds)
    for name, wanted in before.items():
        assert after[name].shape == wanted.shape
        assert after[name].dtype == wanted.dtype
        largest = max(1.0, float(np.abs(wanted).max()))
        np.testing.assert_allclose(after[name], wanted, rtol=0, atol=ROUNDING[dtype.name] * largest)
    return model


def scalar(number: float, dtype: Any = f32) -> np.ndarray:
    return np.array(number, dtype.numpy)


# ---- merge-products --------------------------------------------------------------------------------------------------

MERGED = {
    "matmul, matmul": Case(lambda b, w, x: (x @ w(8, 64)) @ w(64, 8), [("n", 8)], ["matmul"]),
    "of more dims": Case(lambda b, w, x: (x @ w(8, 64)) @ w(64, 8), [(2, "n", 8)], ["matmul"]),
    "of a vector": Case(lambda b, w, x: (x @ w(8, 64)) @ w(64, 8), [(8,)], ["matmul"]),
    "three": Case(lambda b, w, x: ((x @ w(8, 64)) @ w(64, 16)) @ w(16, 3), [("n", 8)], ["matmul"]),
    "both biases": Case(
        lambda b, w, x: b.gemm(b.gemm(x, w(8, 64), w(64), beta=0.5), w(64, 8), w(1, 8), alpha=2.0),
        [("n", 8)], ["gemm"],
    ),
    "inner bias": Case(lambda b, w, x: b.gemm(x, w(8, 64), w(1)) @ w(64, 8), [("n", 8)], ["gemm"]),
    "outer bias": Case(lambda b, w, x: b.gemm(x @ w(8, 64), w(64, 8), w(8)), [("n", 8)], ["gemm"]),
    "transposed weights": Case(
        lambda b, w, x: b.gemm(b.gemm(x, w(64, 8), transB=1), w(9, 64), transB=1), [("n", 8)], ["matmul"],
    ),
    "constants on the left": Case(lambda b, w, x: b.matmul(w(8, 64), b.matmul(w(64, 8), x)), [(8, "n")], ["matmul"]),
    "sum": Case(lambda b, w, x: x @ w(8, 6) + x @ w(8, 6), [(2, "n", 8)], ["matmul"]),
    "sum of three": Case(lambda b, w, x: x @ w(8, 6) + x @ w(8, 6) + x @ w(8, 6), [("n", 8)], ["matmul"]),
    "sum with biases": Case(
        lambda b, w, x: b.gemm(x, w(8, 6), w(6)) + b.gemm(x, w(6, 8), transB=1, alpha=0.5), [("n", 8)], ["gemm"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [f16, f32, f64])
@pytest.mark.parametrize("name", MERGED)
def test_merged(name: str, dtype: Any) -> None:
    check("merge-products", MERGED[name], dtype)


def _used_twice(b: Any, w: Any, x: Any) -> Any:
    inner = x @ w(8, 64)
    return [inner @ w(64, 8), inner]


def _shared_weights(b: Any, w: Any, x: Any) -> Any:
    weights = b.const(w(8, 64))
    return [(x @ weights) @ w(64, 8), x @ weights]


def _same_product_twice(b: Any, w: Any, x: Any) -> Any:
    y = x @ w(8, 6)
    return y + y


NOT_MERGED = {
    # 8 x 4 and 4 x 8 are fewer numbers than 8 x 8: a product of low rank.
    "low rank": Case(lambda b, w, x: (x @ w(8, 4)) @ w(4, 8), [("n", 8)], ["matmul", "matmul"]),
    "as much": Case(lambda b, w, x: (x @ w(4, 2)) @ w(2, 4), [("n", 4)], ["matmul", "matmul"]),
    "inner result used": Case(_used_twice, [("n", 8)], ["matmul", "matmul"]),
    "weights used elsewhere": Case(_shared_weights, [("n", 8)], ["matmul", "matmul", "matmul"]),
    "weights that are no constant": Case(lambda b, w, x, y: (x @ y) @ w(64, 8), [("n", 8), (8, 64)], ["matmul"] * 2),
    "between": Case(lambda b, w, x: b.relu(x @ w(8, 64)) @ w(64, 8), [("n", 8)], ["matmul", "relu", "matmul"]),
    "a bias of rows": Case(lambda b, w, x: b.gemm(x, w(8, 64), w(3, 1)) @ w(64, 8), [(3, 8)], ["gemm", "matmul"]),
    "a bias that is no constant": Case(
        lambda b, w, x, y: b.gemm(x @ w(8, 64), w(64, 8), y), [(3, 8), (8,)], ["matmul", "gemm"]
    ),
    "a transposed left factor": Case(
        lambda b, w, x: b.gemm(b.gemm(x, w(8, 64)), w(3, 8), transA=1), [(3, 8)], ["gemm", "gemm"]
    ),
    "weights of three dims": Case(lambda b, w, x: (x @ w(2, 8, 64)) @ w(64, 8), [(2, 3, 8)], ["matmul", "matmul"]),
    "sums of other shapes": Case(
        lambda b, w, x: x @ w(8, 6) + x @ w(8, 1), [("n", 8)], ["matmul", "matmul", "add"]
    ),
    "sums of other inputs": Case(
        lambda b, w, x, y: x @ w(8, 6) + y @ w(8, 6), [("n", 8), ("n", 8)], ["matmul", "matmul", "add"]
    ),
    "a sum of one product": Case(_same_product_twice, [("n", 8)], ["matmul", "add"]),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_MERGED)
@pytest.mark.refusal
def test_not_merged(name: str) -> None:
    check("merge-products", NOT_MERGED[name])


@pytest.mark.refusal
def test_products_of_integers_are_not_merged() -> None:
    check("merge-products", MERGED["matmul, matmul"]._replace(expected=["matmul", "matmul"]), i32)


def test_the_product_of_weights_is_rounded_once() -> None:
    model = check("merge-products", MERGED["matmul, matmul"], f16)
    original = built(MERGED["matmul, matmul"], f16)  # other numbers, same shapes
    weights = [op.attributes["value"].numpy() for op in original.walk() if op.name == "const"]
    PassManager.parse("merge-products,dce").run(original)
    [merged] = [op.attributes["value"].numpy() for op in original.walk() if op.name == "const"]
    exact = weights[0].astype(np.float64) @ weights[1].astype(np.float64)
    assert np.array_equal(merged, exact.astype(np.float16))
    assert operators(model) == ["matmul"]


# ---- fold-into-gemm --------------------------------------------------------------------------------------------------


def flipped(b: Any, x: Any) -> Any:
    return b.transpose(x, perm=[1, 0])


TWO: list[tuple[Any, ...]] = [("n", 8), (8, "m")]
THREE: list[tuple[Any, ...]] = [*TWO, ("m",)]
INTO_GEMM = {
    "transposed left": (Case(lambda b, w, x, y: flipped(b, x) @ y, [(8, "n"), (8, "m")], ["gemm"]), {"transA": 1}),
    "transposed right": (Case(lambda b, w, x, y: x @ flipped(b, y), [("n", 8), ("m", 8)], ["gemm"]), {"transB": 1}),
    "both transposed": (
        Case(lambda b, w, x, y: flipped(b, x) @ flipped(b, y), [(8, "n"), ("m", 8)], ["gemm"]),
        {"transA": 1, "transB": 1},
    ),
    "transposed twice": (
        Case(lambda b, w, x, y: b.gemm(flipped(b, x), y, transA=1), TWO, ["gemm"]), {},
    ),
    "transposed with addend": (
        Case(lambda b, w, x, y, z: b.gemm(flipped(b, x), y, z), [(8, "n"), (8, "m"), ("m",)], ["gemm"]), {"transA": 1},
    ),
    "transposed by default": (Case(lambda b, w, x, y: b.transpose(x) @ y, [(8, "n"), (8, "m")], ["gemm"]),
                              {"transA": 1}),
    "transposed result": (Case(lambda b, w, x, y: flipped(b, x @ y), TWO, ["gemm"]), {"transA": 1, "transB": 1}),
    "transposed result, mixed": (
        Case(lambda b, w, x, y: flipped(b, b.gemm(x, y, transB=1, alpha=2.0)), [("n", 8), ("m", 8)], ["gemm"]),
        {"alpha": 2.0, "transB": 1},
    ),
    "scaled": (Case(lambda b, w, x, y: (x @ y) * 0.25, TWO, ["gemm"]), {"alpha": 0.25}),
    "scaled by one element": (
        Case(lambda b, w, x, y: b.mul((x @ y), np.full((1, 1), 0.25, x.dtype.numpy)), TWO, ["gemm"]), {"alpha": 0.25},
    ),
    "divided": (Case(lambda b, w, x, y: (x @ y) / 8.0, TWO, ["gemm"]), {"alpha": 0.125}),
    "scaled with addend": (
        Case(lambda b, w, x, y, z: b.gemm(x, y, z, alpha=2.0) * 0.25, THREE, ["gemm"]), {"alpha": 0.5, "beta": 0.25},
    ),
    "scaled left": (Case(lambda b, w, x, y: (x * 0.25) @ y, TWO, ["gemm"]), {"alpha": 0.25}),
    "scaled right": (Case(lambda b, w, x, y: x @ (y * 0.25), TWO, ["gemm"]), {"alpha": 0.25}),
    "scaled everywhere": (Case(lambda b, w, x, y: ((x * 0.5) @ (y * 0.5)) * 4.0, TWO, ["gemm"]), {}),
    "product less addend": (Case(lambda b, w, x, y, z: (x @ y) - z, THREE, ["gemm"]), {"beta": -1.0}),
    "addend less product": (Case(lambda b, w, x, y, z: z - (x @ y), THREE, ["gemm"]), {"alpha": -1.0}),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [f16, f32, f64])
@pytest.mark.parametrize("name", INTO_GEMM)
def test_into_gemm(name: str, dtype: Any) -> None:
    case, attributes = INTO_GEMM[name]
    model = check("matmul-to-gemm,fold-into-gemm", case, dtype)
    [gemm] = [op for op in model.walk() if op.name == "gemm"]
    assert gemm.attributes == attributes


def _transpose_used_twice(b: Any, w: Any, x: Any, y: Any) -> Any:
    turned = flipped(b, x)
    return [turned @ y, turned]


def _scaled_twice(b: Any, w: Any, x: Any) -> Any:
    scaled = x * 0.5
    return scaled @ scaled


def _less_itself(b: Any, w: Any, x: Any, y: Any) -> Any:
    product = x @ y
    return product - product


NOT_INTO_GEMM = {
    "three dims": Case(lambda b, w, x, y: b.transpose(x, perm=[0, 2, 1]) @ y, [(2, 8, 3), (2, 8, 4)],
                       ["transpose", "matmul"]),
    "a vector": Case(lambda b, w, x, y: x @ flipped(b, y), [(8,), (4, 8)], ["transpose", "matmul"]),
    "a transpose that is needed": Case(_transpose_used_twice, [(8, "n"), (8, "m")], ["transpose", "matmul"]),
    "no transpose": Case(lambda b, w, x, y: b.transpose(x, perm=[0, 1]) @ y, TWO, ["transpose", "matmul"]),
    "a transposed result with an addend": Case(
        lambda b, w, x, y, z: flipped(b, b.gemm(x, y, z)), [(3, 8), (8, 5), (3, 1)], ["gemm", "transpose"]
    ),
    "a factor for each column": Case(lambda b, w, x, y: (x @ y) * w(5), [(3, 8), (8, 5)], ["matmul", "mul"]),
    "a factor of three dims": Case(lambda b, w, x, y: (x @ y) * w(1, 1, 1), [(3, 8), (8, 5)], ["matmul", "mul"]),
    "a factor that is no constant": Case(lambda b, w, x, y, z: (x @ y) * z, [*TWO, ()], ["matmul", "mul"]),
    "division by zero": Case(lambda b, w, x, y: b.div(x @ y, scalar(0)) * 0.0, TWO, ["matmul", "div", "mul"]),
    "an infinite factor": Case(lambda b, w, x, y: b.relu(b.mul(x @ y, scalar(np.inf)) * 0.0), TWO,
                               ["matmul", "mul", "mul", "relu"]),
    "a number less an operand that widens": Case(
        lambda b, w, x, y, z: z - (x @ y), [(1, 8), (8, 5), (3, 5)], ["matmul", "sub"]
    ),
    "scaled on both sides by one operation": Case(_scaled_twice, [(4, 4)], ["mul", "matmul"]),
    "a product less itself": Case(_less_itself, TWO, ["matmul", "sub"]),
    "a difference with an addend already": Case(
        lambda b, w, x, y, z: b.gemm(x, y, z) - z, THREE, ["gemm", "sub"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_INTO_GEMM)
@pytest.mark.refusal
def test_not_into_gemm(name: str) -> None:
    case = NOT_INTO_GEMM[name]
    model = built(case)
    PassManager.parse("fold-into-gemm,dce", verify_each=True).run(model)
    assert operators(model) == case.expected


def test_a_factor_of_doubles_is_kept_if_gemm_would_round_it() -> None:
    case = Case(lambda b, w, x, y: b.mul(x @ y, scalar(0.1, f64)), TWO, ["matmul", "mul"])
    check("fold-into-gemm", case, f64)


@pytest.mark.parametrize("dtype", [i32])
@pytest.mark.refusal
def test_integers_stay_matmul(dtype: Any) -> None:
    case = Case(lambda b, w, x, y, z: (flipped(b, x) @ y) + z, [(8, "n"), (8, "m"), ("m",)],
                ["transpose", "matmul", "add"])  # fmt: skip
    check("matmul-to-gemm,fold-into-gemm", case, dtype)


# ---- merge-siblings --------------------------------------------------------------------------------------------------


def convs(*widths: int, bias: bool = False, **attributes: Any) -> Callable[..., Any]:
    kernel = attributes.pop("kernel", 1)

    def build(b: Any, w: Any, x: Any) -> Any:
        return [
            b.conv(x, w(width, 16, kernel, kernel), *([w(width)] if bias else []), **attributes) for width in widths
        ]

    return build


SIBLINGS = {
    "products": Case(lambda b, w, x: [x @ w(16, 3), x @ w(16, 2)], [(2, "n", 16)], ["matmul", "split"]),
    "three": Case(lambda b, w, x: [x @ w(16, 3), x @ w(16, 2), x @ w(16, 4)], [("n", 16)], ["matmul", "split"]),
    "gemm": Case(
        lambda b, w, x: [b.gemm(x, w(16, 3), w(3)), b.gemm(x, w(16, 2), w(1, 2))], [("n", 16)], ["gemm", "split"]
    ),
    "transposed weights": Case(
        lambda b, w, x: [b.gemm(x, w(3, 16), transB=1), b.gemm(x, w(2, 16), transB=1)], [("n", 16)], ["gemm", "split"]
    ),
    "convolutions": Case(convs(2, 3), [("n", 16, 4, 4)], ["conv", "split"]),
    "with biases and strides": Case(convs(2, 3, bias=True, strides=(2, 2)), [("n", 16, 5, 5)], ["conv", "split"]),
    # Only the narrow ones: the wide one would be copied by the Split.
    "one is wide": Case(
        lambda b, w, x: [x @ w(16, 3), x @ w(16, 32), x @ w(16, 2)], [("n", 16)], ["matmul", "split", "matmul"]
    ),
}


@pytest.mark.parametrize("dtype", [f32, f64])
@pytest.mark.parametrize("name", SIBLINGS)
def test_siblings(name: str, dtype: Any) -> None:
    check("merge-siblings", SIBLINGS[name], dtype)


def _shared(b: Any, w: Any, x: Any) -> Any:
    weights = b.const(w(16, 3))
    return [x @ weights, b.relu(x) @ weights, x @ w(16, 2)]


ONLY_CHILDREN = {
    # As wide as what they read: what the Split copies is more than what is read less often.
    "queries, keys and values": Case(lambda b, w, x: [x @ w(16, 16) for _ in range(3)], [("n", 16)], ["matmul"] * 3),
    "wide convolutions": Case(convs(16, 16), [("n", 16, 4, 4)], ["conv", "conv"]),
}
NO_SIBLINGS = {
    "other inputs": Case(lambda b, w, x, y: [x @ w(16, 3), y @ w(16, 2)], [(3, 16), (3, 16)], ["matmul"] * 2),
    "other attributes": Case(
        lambda b, w, x: [b.gemm(x, w(16, 3)), b.gemm(x, w(16, 2), alpha=2.0)], [("n", 16)], ["gemm"] * 2
    ),
    "only one has a bias": Case(
        lambda b, w, x: [b.gemm(x, w(16, 3)), b.gemm(x, w(16, 2), w(2))], [("n", 16)], ["gemm"] * 2
    ),
    "a bias of rows": Case(
        lambda b, w, x: [b.gemm(x, w(16, 3), w(4, 1)), b.gemm(x, w(16, 2), w(2))], [(4, 16)], ["gemm"] * 2
    ),
    "a bias that is one number": Case(
        lambda b, w, x: [b.gemm(x, w(16, 3), w(1)), b.gemm(x, w(16, 2), w(2))], [(4, 16)], ["gemm"] * 2
    ),
    "weights used elsewhere": Case(_shared, [("n", 16)], ["relu", "matmul", "matmul", "matmul"]),
    "a shared factor on the right": Case(
        lambda b, w, x: [b.matmul(w(3, 16), x), b.matmul(w(2, 16), x)], [(16, "n")], ["matmul"] * 2
    ),
    "batches of weights": Case(
        lambda b, w, x: [x @ w(2, 16, 3), x @ w(2, 16, 2)], [(2, 3, 16)], ["matmul"] * 2
    ),
    "larger kernels": Case(convs(2, 3, kernel=3), [("n", 16, 4, 4)], ["conv", "conv"]),
    "groups": Case(
        lambda b, w, x: [b.conv(x, w(2, 8, 1, 1), group=2), b.conv(x, w(4, 8, 1, 1), group=2)], [(1, 16, 4, 4)],
        ["conv", "conv"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [*ONLY_CHILDREN, *NO_SIBLINGS])
@pytest.mark.refusal
def test_not_siblings(name: str) -> None:
    case = (ONLY_CHILDREN | NO_SIBLINGS)[name]
    model = built(case)
    PassManager.parse("merge-siblings,dce", verify_each=True).run(model)
    assert sorted(operators(model)) == sorted(case.expected)


@pytest.mark.parametrize("name", ONLY_CHILDREN)
def test_wide_siblings_on_demand(name: str) -> None:
    case = ONLY_CHILDREN[name]
    check("merge-siblings{always=true}", case._replace(expected=[case.expected[0], "split"]))


@pytest.mark.parametrize("name", NO_SIBLINGS)
def test_no_siblings_on_demand(name: str) -> None:
    case = NO_SIBLINGS[name]
    model = built(case)
    PassManager.parse("merge-siblings{always=true},dce", verify_each=True).run(model)
    assert sorted(operators(model)) == sorted(case.expected)


# ---- in the levels ---------------------------------------------------------------------------------------------------


def test_levels() -> None:
    chain, transposed, siblings = (
        MERGED["matmul, matmul"],
        INTO_GEMM["transposed left"][0],
        SIBLINGS["with biases and strides"],
    )
    for level, expected in ((1, ["matmul", "matmul"]), (2, ["matmul"])):
        model = built(chain)
        tilewright.optimize(model, level)
        assert operators(model) == expected
    model = built(transposed)
    tilewright.optimize(model)
    assert operators(model) == ["gemm"]
    for level, expected in ((2, ["conv", "conv"]), (3, ["conv", "split"])):
        model = built(siblings)
        tilewright.optimize(model, level)
        assert operators(model) == expected


@pytest.mark.refusal
@pytest.mark.parametrize(("dtype", "weight", "merged"), [(f16, 300.0, False), (f16, 1e-4, False), (f16, 0.5, True),
                                                        (f32, 1e25, False), (f32, 0.5, True)])  # fmt: skip
@pytest.mark.parametrize("left", [False, True])
def test_products_of_weights_stay_in_the_range_of_their_type(
    dtype: Any, weight: float, merged: bool, left: bool
) -> None:
    b = Builder()
    x = b.input("x", dtype[4, 4])
    first, second = (np.full((4, 4), weight, dtype.numpy) for _ in range(2))
    b.output(b.matmul(first, b.matmul(second, x)) if left else b.matmul(b.matmul(x, first), second), "y")
    model = b.build()
    PassManager.parse("merge-products,dce").run(model)
    assert sum(op.name == "matmul" for op in model.walk()) == (1 if merged else 2)
