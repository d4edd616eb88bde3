"""HardSigmoid, HardSwish and Mish as exporters write them, and what only looks like them."""

from __future__ import annotations

import numpy as np
import pytest
from recomposition import becomes, model_of, stays, values

from tilewright import f16, f64

PASS = "recompose-clip,recompose-hard-swish"


def clip(b, x, high=6.0):
    return b.clip(x, 0.0, high)


SWISH_FORMS = {
    "x * clip / 6": lambda b, x: x * clip(b, x + 3.0) / 6.0,
    "x * (clip / 6)": lambda b, x: x * (clip(b, x + 3.0) / 6.0),
    "x / 6 * clip": lambda b, x: x / 6.0 * clip(b, 3.0 + x),
    "x * clip * (1 / 6)": lambda b, x: x * clip(b, x + 3.0) * (1 / 6),
    "x * (1 / 6) * clip": lambda b, x: x * 0.16666667 * clip(b, x + 3.0),
    "x * (clip * (1 / 6))": lambda b, x: clip(b, x + 3.0) * 0.16666667 * x,
    "x * hard_sigmoid": lambda b, x: x * b.hard_sigmoid(x, alpha=1 / 6, beta=0.5),
    "x * clip(x / 6 + 0.5, 0, 1)": lambda b, x: x * clip(b, x / 6.0 + 0.5, 1.0),
    "min(max)": lambda b, x: x * b.min(b.max(x + 3.0, 0.0), 6.0) / 6.0,
    "min(relu)": lambda b, x: x * b.min(b.relu(x + 3.0), 6.0) / 6.0,
    "x - (-3)": lambda b, x: x * clip(b, x - -3.0) / 6.0,
}


@pytest.mark.parametrize("form", SWISH_FORMS)
def test_hard_swish(form):
    becomes(model_of(SWISH_FORMS[form], (2, 3, 4)), PASS, ["hard_swish"], opsets=(13, 14, 22))


def test_hard_swish_in_half_precision():
    becomes(model_of(SWISH_FORMS["x * clip / 6"], (2, 4), dtype=f16), PASS, ["hard_swish"], opsets=(13, 14))


SIGMOID_FORMS = {
    "clip(x + 3, 0, 6) / 6": (lambda b, x: clip(b, x + 3.0) / 6.0, 1 / 6, 0.5),
    "clip(x + 3, 0, 6) * (1 / 6)": (lambda b, x: clip(b, x + 3.0) * (1 / 6), 1 / 6, 0.5),
    "clip(x * 0.2 + 0.5, 0, 1)": (lambda b, x: clip(b, x * 0.2 + 0.5, 1.0), 0.2, 0.5),
    "clip(x / 4 - 1, 0, 1)": (lambda b, x: clip(b, x / 4.0 - 1.0, 1.0), 0.25, -1.0),
    "clip(x * 2, 0, 4) / 4": (lambda b, x: clip(b, x * 2.0, 4.0) / 4.0, 0.5, 0.0),
}


@pytest.mark.parametrize("form", SIGMOID_FORMS)
def test_hard_sigmoid(form):
    build, alpha, beta = SIGMOID_FORMS[form]
    after = becomes(model_of(build, (2, 3, 4)), PASS, ["hard_sigmoid"], opsets=(13, 22))
    (op,) = [op for op in after.walk() if op.name == "hard_sigmoid"]
    assert (op.attr("alpha"), op.attr("beta")) == (pytest.approx(alpha), pytest.approx(beta))


def test_a_line_of_what_is_a_sum_itself():
    """The addend by element belongs to the operand, not to the line."""
    build = lambda b, x: clip(b, (x + values(4)) * 0.2 + 0.5, 1.0)  # noqa: E731
    becomes(model_of(build, (2, 4)), PASS, ["add", "hard_sigmoid"], opsets=(13,))


def test_a_line_of_a_square():
    becomes(model_of(lambda b, x: clip(b, x * x + 0.5, 1.0), (2, 4)), PASS, ["mul", "hard_sigmoid"], opsets=(13,))


def test_a_line_whose_inner_part_is_used_elsewhere_starts_after_it():
    build = lambda b, x: (lambda s: (clip(b, s * 0.2, 1.0), b.exp(s)))(x + 3.0)  # noqa: E731
    becomes(model_of(build, (2, 4)), PASS, ["add", "hard_sigmoid", "exp"], opsets=(13,))


WRONG = {
    "the offset 2": lambda b, x: x * clip(b, x + 2.0) / 6.0,
    "the divisor 5": lambda b, x: x * clip(b, x + 3.0) / 5.0,
    "the bound 5": lambda b, x: x * clip(b, x + 3.0, 5.0) / 6.0,
    "a lower bound": lambda b, x: x * b.clip(x + 3.0, 1.0, 6.0) / 6.0,
    "no upper bound": lambda b, x: x * b.clip(x + 3.0, 0.0) / 6.0,
    "alpha 0.2": lambda b, x: x * b.hard_sigmoid(x, alpha=0.2, beta=0.5),
    "beta 0.4": lambda b, x: x * b.hard_sigmoid(x, alpha=1 / 6, beta=0.4),
    "the offset adds a dim": lambda b, x: x * clip(b, x + np.full((1, 1, 1), 3.0, np.float32)) / 6.0,
    "the offset by element": lambda b, x: x * clip(b, x + values(4)) / 6.0,
    "the clipped tensor is an output": lambda b, x: (lambda c: (x * c / 6.0, c))(clip(b, x + 3.0)),
    "the shifted tensor is an output": lambda b, x: (lambda s: (x * clip(b, s) / 6.0, s))(x + 3.0),
    "clip alone": lambda b, x: clip(b, x, 1.0),
}


@pytest.mark.parametrize("form", WRONG)
@pytest.mark.refusal
def test_what_is_neither(form):
    stays(model_of(WRONG[form], (2, 4)), PASS)


def test_double_precision_has_no_kernels():
    zero, three, six = np.float64([0, 3, 6])
    stays(model_of(lambda b, x: x * b.clip(x + three, zero, six) / six, (4,), dtype=f64), PASS)


MISH_FORMS = {
    "softplus": lambda b, x: x * b.tanh(b.softplus(x)),
    "log(1 + exp)": lambda b, x: b.tanh(b.log(1.0 + b.exp(x))) * x,
}


@pytest.mark.parametrize("form", MISH_FORMS)
def test_mish(form):
    becomes(model_of(MISH_FORMS[form], (2, 3, 4)), "recompose-mish", ["mish"], opsets=(13, 18, 22))


NO_MISH = {
    "log(2 + exp)": lambda b, x: x * b.tanh(b.log(2.0 + b.exp(x))),
    "softplus of the negative": lambda b, x: x * b.tanh(b.softplus(-x)),
    "the gate is an output": lambda b, x: (lambda t: (x * t, t))(b.tanh(b.softplus(x))),
    "the one adds a dim": lambda b, x: x * b.tanh(b.log(np.ones((1, 1, 1), np.float32) + b.exp(x))),
    "sigmoid in the place of tanh": lambda b, x: x * b.sigmoid(b.softplus(x)),
}


@pytest.mark.parametrize("form", NO_MISH)
@pytest.mark.refusal
def test_what_is_no_mish(form):
    stays(model_of(NO_MISH[form], (2, 4)), "recompose-mish")
