"""Derivatives of elementwise operators, matrix products and reductions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gradient_checks import compare, normal
from torch_cases.products import EQUATIONS

X = normal(3, 4)
UNARY: dict[str, tuple[dict[str, Any], np.ndarray]] = {
    **{
        name: ({}, X)
        for name in (
            "abs", "neg", "exp", "sin", "cos", "tan", "atan", "sinh", "cosh", "tanh", "asinh", "erf", "relu", "sigmoid",
            "softplus", "softsign", "mish", "identity", "elu", "selu", "leaky_relu", "gelu", "swish",
        )
    },
    **{name: ({}, normal(3, 4, low=0.1)) for name in ("sqrt", "reciprocal", "log")},
    **{name: ({}, normal(3, 4, low=0.1) / 1.2) for name in ("asin", "acos", "atanh")},
    "acosh": ({}, normal(3, 4, low=1.1)),
    "hard_sigmoid": ({"alpha": 0.3, "beta": 0.4}, 2 * X),
    "hard_swish": ({}, 3 * X),
    "celu": ({"alpha": 1.5}, X),
    "thresholded_relu": ({"alpha": 0.3}, X),
    "shrink": ({"lambd": 0.4, "bias": 0.2}, X),
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_operand(name: str) -> None:
    attributes, x = UNARY[name]
    compare(lambda b, x: b.create(name, x, **attributes), {"x": x})


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("gelu", {"approximate": "tanh"}),
        ("swish", {"alpha": 0.7}),
        ("elu", {"alpha": 0.4}),
        ("leaky_relu", {"alpha": -0.3}),
        ("selu", {"alpha": 0.5, "gamma": 1.2}),
        ("hard_sigmoid", {"alpha": -0.3, "beta": 0.4}),
    ],
)
def test_attributes_change_the_derivative(name: str, attributes: dict[str, Any]) -> None:
    compare(lambda b, x: b.create(name, x, **attributes), {"x": X})


BROADCAST = [((3, 4), (3, 4)), ((3, 4), (4,)), ((1, 4), (3, 1)), ((), (2, 3)), ((2, 1, 4), (3, 1))]


@pytest.mark.parametrize("shapes", BROADCAST, ids=str)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "pow", "max", "min", "mean", "sum"])
def test_broadcasting_is_undone(name: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    x, y = (normal(*shape, seed=index, low=0.5) for index, shape in enumerate(shapes))
    compare(lambda b, x, y: b.create(name, x, y), {"x": x, "y": y})


def test_more_operands_than_two() -> None:
    feeds = {name: normal(2, 3, seed=index) for index, name in enumerate("abc")}
    compare(lambda bld, a, b, c: [bld.sum(a, b, c, a), bld.max(a, b, c), bld.mean(a, c)], feeds)


def test_choices() -> None:
    compare(lambda b, x, low, high: b.clip(x, low, high), {"x": X, "low": np.array(-0.5), "high": np.array(0.6)})
    compare(lambda b, x: b.clip(x, None, 0.2), {"x": X}, open_dims=(False,))
    compare(lambda b, x, slope: b.prelu(x, slope), {"x": X, "slope": normal(4)})
    compare(lambda b, x, slope: b.prelu(x, slope), {"x": normal(3, 1), "slope": normal(2, 1, 4)}, open_dims=(False,))
    compare(lambda b, x, y: b.where(b.less(x, 0.1), x, y), {"x": X, "y": normal(4)}, open_dims=(False,))
    compare(lambda b, gate, linear: b.swiglu(gate, linear), {"gate": X, "linear": normal(3, 4, seed=1)})


@pytest.mark.parametrize("fmod", [0, 1])
def test_modulo(fmod: int) -> None:
    compare(lambda b, x, y: b.mod(x, y, fmod=1) if fmod else b.mod(x, y), {"x": 5 * X, "y": normal(4, low=0.5)})


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0, 3.0, 2.5])
def test_constant_exponents(exponent: float) -> None:
    x = normal(5, low=0.5) if exponent == 2.5 else np.array([-2.0, -0.5, 0.0, 3.0, 0.7])
    function: Callable[..., Any] = lambda b, x: b.add(b.pow(x, np.array(exponent)), x)  # noqa: E731
    compare(function, {"x": x}, open_dims=(False,))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((3, 4), (2, 4, 5)), ((4,), (4, 5)),
        ((3, 4), (4,)), ((4,), (4,)), ((2, 1, 3, 4), (5, 4, 2)), ((4,), (2, 4, 5)),
    ],
    ids=str,
)  # fmt: skip
def test_matrix_products(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    compare(lambda builder, a, b: builder.matmul(a, b), {"a": normal(*a), "b": normal(*b, seed=1)}, open_dims=(False,))


@pytest.mark.parametrize("across", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("bias", [None, (), (5,), (3, 1), (3, 5)])
def test_gemm(across: tuple[int, int], bias: tuple[int, ...] | None) -> None:
    feeds = {"a": normal(4, 3) if across[0] else normal(3, 4), "w": normal(5, 4) if across[1] else normal(4, 5)}
    if bias is not None:
        feeds["c"] = normal(*bias)
    attributes = {"alpha": 0.5, "beta": -1.5, "transA": across[0], "transB": across[1]}
    compare(lambda b, **inputs: b.gemm(*inputs.values(), **attributes), feeds, open_dims=(False,))


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS)
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    feeds = {f"x{index}": normal(*shape, seed=index) for index, shape in enumerate(shapes)}
    compare(lambda b, **inputs: b.einsum(*inputs.values(), equation=equation), feeds, open_dims=(False,))


REDUCTIONS = [
    "reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod", "reduce_l1", "reduce_l2",
    "reduce_log_sum", "reduce_log_sum_exp", "reduce_sum_square",
]  # fmt: skip


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str) -> None:
    feeds = {"x": normal(2, 3, 4, low=0.5)}
    compare(lambda b, x: b.create(name, x, np.array([1]), keepdims=0), feeds)
    compare(lambda b, x: b.create(name, x, np.array([-1, 0]), keepdims=1), feeds, open_dims=(False,))
    compare(lambda b, x: b.create(name, x, keepdims=0), feeds, open_dims=(False,))
    if name != "reduce_log_sum_exp":  # of one element, which is the element
        compare(lambda b, x: b.create(name, x, noop_with_empty_axes=1), feeds, open_dims=(False,))


@pytest.mark.parametrize("name", ["reduce_mean", "reduce_max", "reduce_l2"])
def test_axes_that_only_the_run_knows(name: str) -> None:
    feeds = {"x": normal(2, 3, 4), "axes": np.array([2, 0])}
    compare(lambda b, x, axes: b.create(name, x, axes, keepdims=1), feeds)


def test_products_with_zeros() -> None:
    for x in (np.array([2.0, 0.0, 3.0]), np.array([0.0, 0.0, 3.0]), np.array([2.0, 3.0, 4.0])):
        compare(lambda b, x: b.reduce_prod(b.add(x, 0.0), keepdims=0) + b.reduce_sum(x, keepdims=0), {"x": x})
    feeds = {"x": np.array([[2.0, 0.0, 3.0, 1.5]])}
    for attributes in ({}, {"exclusive": 1}, {"reverse": 1}):
        compare(lambda b, x, a=attributes: b.cumprod(x, np.array(1), **a), feeds, open_dims=(False,))


@pytest.mark.parametrize("attributes", [{}, {"exclusive": 1}, {"reverse": 1}, {"exclusive": 1, "reverse": 1}])
def test_running_sums(attributes: dict[str, int]) -> None:
    compare(lambda b, x: b.cumsum(x, np.array(1), **attributes), {"x": normal(2, 3)})


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_determinants(size: int) -> None:
    compare(lambda b, x: b.det(x), {"x": normal(2, size, size)}, open_dims=(False,))
    if size == 3:
        compare(lambda b, x: b.det(x), {"x": np.diag([1.0, 2.0, 0.0])[None]}, open_dims=(False,))


def test_casts() -> None:
    """The adjoint is converted back."""
    import tilewright
    from tilewright import Builder, f16, f32

    b = Builder("cast")
    x = b.input("x", f16[2])
    wide = b.cast(x, to=f32)
    b.output(b.reduce_sum(b.mul(wide, b.cast_like(x, wide)), keepdims=0), "loss")
    graph = tilewright.gradient(b.build(), "loss", ["x"])
    found = tilewright.compile(graph, target="reference").run({"x": np.array([1.5, -2.0], np.float16)})
    assert found["x_grad"].dtype == np.float16
    assert found["x_grad"].tolist() == [3.0, -4.0]
