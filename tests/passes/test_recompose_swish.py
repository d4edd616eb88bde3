"""Sigmoid, Swish and SwiGLU as exporters write them, and what only looks like them."""

from __future__ import annotations

import numpy as np
import pytest
from recomposition import becomes, model_of, names, recomposed, stays, values

from tilewright import f16, f64

PASS = "recompose-gelu,recompose-swish"


SWISH_FORMS = {
    "x * sigmoid(x)": (lambda b, x: x * b.sigmoid(x), 1.0),
    "sigmoid(x) * x": (lambda b, x: b.sigmoid(x) * x, 1.0),
    "x / (1 + exp(-x))": (lambda b, x: x / (1.0 + b.exp(-x)), 1.0),
    "x * (1 / (1 + exp(-x)))": (lambda b, x: x * (1.0 / (b.exp(-x) + 1.0)), 1.0),
    "x * reciprocal(1 + exp(-x))": (lambda b, x: x * b.reciprocal(b.exp(x * -1.0) + 1.0), 1.0),
    "quick gelu": (lambda b, x: x * b.sigmoid(1.702 * x), 1.702),
    "quick gelu by exp": (lambda b, x: x / (1.0 + b.exp(x * -1.702)), 1.702),
    "alpha as a quotient": (lambda b, x: x * b.sigmoid(x / 0.5), 2.0),
    "a constant of rank 2": (lambda b, x: x * b.sigmoid(x * np.full((1, 1), 0.5, np.float32)), 0.5),
}


@pytest.mark.parametrize("form", SWISH_FORMS)
def test_swish(form):
    build, alpha = SWISH_FORMS[form]
    after = becomes(model_of(build, (2, 3, 4)), PASS, ["swish"], opsets=(13, 17, 24))
    (swish,) = [op for op in after.walk() if op.name == "swish"]
    assert swish.attr("alpha") == pytest.approx(alpha, rel=1e-6)


@pytest.mark.parametrize("dtype", [f16, f64])
def test_swish_of_other_types(dtype):
    becomes(model_of(lambda b, x: x * b.sigmoid(x), (2, 4), dtype=dtype), PASS, ["swish"], opsets=(13, 24))


@pytest.mark.refusal
def test_alpha_must_survive_rounding():
    stays(model_of(lambda b, x: x * b.sigmoid(x * np.float64(1.702)), (4,), dtype=f64), PASS)


def test_sigmoid_alone():
    becomes(model_of(lambda b, x: b.relu(1.0 / (1.0 + b.exp(-x))), (2, 4)), PASS, ["sigmoid", "relu"])


NO_SWISH = {
    "a sum in the gate": lambda b, x: x * b.sigmoid(x + 1.0),
    "the square in the gate": lambda b, x: x * b.sigmoid(x * x),
    "alpha by element": lambda b, x: x * b.sigmoid(x * values(4)),
    "alpha adds a dim": lambda b, x: x * b.sigmoid(x * np.full((1, 1, 1), 2.0, np.float32)),
    "the gate is an output": lambda b, x: (lambda s: (x * s, s))(b.sigmoid(x)),
    "the scaled operand is an output": lambda b, x: (lambda s: (x * b.sigmoid(s), s))(x * 2.0),
    "2 + exp": lambda b, x: x / (2.0 + b.exp(-x)),
    "1 - exp": lambda b, x: x / (1.0 - b.exp(-x)),
    "the one widens": lambda b, x: x / (np.ones((3, 1, 1), np.float32) + b.exp(-x)),
}


@pytest.mark.parametrize("form", NO_SWISH)
@pytest.mark.refusal
def test_what_is_no_swish(form):
    stays(model_of(NO_SWISH[form], (2, 4)), PASS)


@pytest.mark.parametrize(
    "build",
    [
        lambda b, x, z: x * b.sigmoid(z),
        lambda b, x, z: x / (1.0 + b.exp(-z)),
    ],
)
def test_the_gate_of_another_tensor(build):
    stays(model_of(build, (2, 4), (2, 4)), PASS)


def test_swiglu():
    build = lambda b, x, z: x * b.sigmoid(x) * z  # noqa: E731
    becomes(model_of(build, (2, 4), (2, 4)), PASS, ["swiglu"], opsets=(13, 17, 24, 28))


def test_swiglu_with_alpha_and_the_value_first():
    build = lambda b, x, z: z * (x * b.sigmoid(x * 1.702))  # noqa: E731
    after = becomes(model_of(build, (2, 4), (2, 4)), PASS, ["swiglu"], opsets=(13, 24))
    (op,) = [op for op in after.walk() if op.name == "swiglu"]
    assert op.attr("alpha") == pytest.approx(1.702)
    assert [operand.name for operand in op.operands] == ["x0", "x1"]


def test_swiglu_of_dims_that_are_one_symbol():
    def build(b, x):
        return (lambda g, u: g * b.sigmoid(g) * u)(x @ values(4, 6), x @ values(4, 6))

    becomes(model_of(build, ("n", "m", 4)), PASS, ["matmul", "matmul", "swiglu"], opsets=(13, 24))


@pytest.mark.parametrize("shapes", [((2, 4), (4,)), ((2, 4), (2, 1)), ((1, 4), (2, 4)), (("n", 4), ("m", 4))])
@pytest.mark.refusal
def test_swiglu_does_not_broadcast(shapes):
    build = lambda b, x, z: x * b.sigmoid(x) * z  # noqa: E731
    after = recomposed(model_of(build, *shapes), PASS)
    assert names(after) == ["swish", "mul"]


def test_a_swish_that_is_used_twice_is_no_gate():
    build = lambda b, x, z: (lambda s: (s * z, b.relu(s)))(x * b.sigmoid(x))  # noqa: E731
    stays(model_of(build, (2, 4), (2, 4)), PASS, ["swish", "mul", "relu"])


def test_a_constant_is_a_scale_and_no_value():
    stays(model_of(lambda b, x: x * b.sigmoid(x) * values(2, 4), (2, 4)), PASS, ["swish", "mul"])
