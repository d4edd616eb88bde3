"""Gelu in every order that exporters write it, and what only looks like it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from recomposition import becomes, model_of, names, recomposed, stays, values

import tilewright
from tilewright import f16, f64

PASS = "recompose-gelu"
ROOT_2, ROOT_2_OVER_PI = math.sqrt(2), math.sqrt(2 / math.pi)


def number(value, *shape):
    return np.full(shape, value, np.float32)


def gate(b, x):
    return b.erf(x / ROOT_2) + 1.0


ERF_FORMS = {
    "x * gate * 0.5": lambda b, x: x * gate(b, x) * 0.5,
    "x * 0.5 * gate": lambda b, x: x * 0.5 * gate(b, x),
    "x * (gate * 0.5)": lambda b, x: x * (gate(b, x) * 0.5),
    "0.5 * (x * gate)": lambda b, x: 0.5 * (gate(b, x) * x),
    "x * (0.5 + 0.5 * erf)": lambda b, x: x * (b.erf(x / ROOT_2) * 0.5 + 0.5),
    "x * gate / 2": lambda b, x: x * gate(b, x) / 2.0,
    "x / 2 * gate": lambda b, x: x / 2.0 * gate(b, x),
    "x * (gate / 2)": lambda b, x: x * (gate(b, x) / 2.0),
    "1 + erf": lambda b, x: x * (1.0 + b.erf(x / ROOT_2)) * 0.5,
    "erf(x * (1 / sqrt(2)))": lambda b, x: x * (b.erf(x * (1 / ROOT_2)) + 1.0) * 0.5,
    "erf of a rounded factor": lambda b, x: x * (b.erf(0.70710677 * x) + 1.0) * 0.5,
    "constants with dims": lambda b, x: x * (b.erf(x / number(ROOT_2, 1, 1, 1)) + number(1, 1, 1)) * number(0.5, 1),
}
TANH_FORMS = {
    "pow": lambda b, x: 0.5 * x * (1.0 + b.tanh(ROOT_2_OVER_PI * (x + 0.044715 * x**3.0))),
    "x * x * x": lambda b, x: 0.5 * x * (1.0 + b.tanh(ROOT_2_OVER_PI * (x + 0.044715 * x * x * x))),
    "x * (1 + c * x * x)": lambda b, x: 0.5 * x * (1.0 + b.tanh(ROOT_2_OVER_PI * x * (1.0 + 0.044715 * x * x))),
    "factors multiplied out": lambda b, x: (
        x * (0.5 * (1.0 + b.tanh(x * (x * x * (ROOT_2_OVER_PI * 0.044715) + ROOT_2_OVER_PI))))
    ),
    "x * (0.5 + 0.5 * tanh)": lambda b, x: x * (0.5 + 0.5 * b.tanh((x**3.0 * 0.044715 + x) * ROOT_2_OVER_PI)),
    "square by pow": lambda b, x: x * 0.5 * (b.tanh((x + x * x**2.0 * 0.044715) * 0.7978846) + 1.0),
    "sigmoid": lambda b, x: x * b.sigmoid(2 * ROOT_2_OVER_PI * (x + 0.044715 * x**3.0)),
}


@pytest.mark.parametrize("form", ERF_FORMS)
def test_by_erf(form):
    after = becomes(model_of(ERF_FORMS[form], (2, 3, 4)), PASS, ["gelu"], opsets=(13, 20))
    assert [op.attr("approximate") for op in after.walk() if op.name == "gelu"] == ["none"]


@pytest.mark.parametrize("form", TANH_FORMS)
def test_by_tanh(form):
    after = becomes(model_of(TANH_FORMS[form], (2, 3, 4)), PASS, ["gelu"], opsets=(13, 20))
    assert [op.attr("approximate") for op in after.walk() if op.name == "gelu"] == ["tanh"]


@pytest.mark.parametrize("form", ["x * gate * 0.5", "x * (0.5 + 0.5 * erf)"])
def test_half_precision(form):
    becomes(model_of(ERF_FORMS[form], (2, 3, 4), dtype=f16), PASS, ["gelu"], opsets=(13, 20))


def test_double_precision_needs_constants_of_that_precision():
    exact = model_of(lambda b, x: x * (b.erf(x / np.sqrt(np.float64(2))) + 1.0) * 0.5, (4,), dtype=f64)
    assert names(recomposed(exact, PASS)) == ["gelu"]
    rounded = model_of(lambda b, x: x * (b.erf(x / np.float64(np.float32(ROOT_2))) + 1.0) * 0.5, (4,), dtype=f64)
    stays(rounded, PASS)


def test_an_operand_without_known_sizes():
    becomes(model_of(ERF_FORMS["x * gate * 0.5"], ("n", "m", 4)), PASS, ["gelu"])


def test_two_of_them_in_a_row():
    def build(b, x):
        for form in ("x * gate * 0.5", "x * (gate * 0.5)"):
            x = ERF_FORMS[form](b, x)
        return x

    becomes(model_of(build, (2, 4)), PASS, ["gelu", "gelu"])


WRONG = {
    "another root": lambda b, x: x * (b.erf(x / 1.5) + 1.0) * 0.5,
    "a root with four digits": lambda b, x: x * (b.erf(x / 1.4142) + 1.0) * 0.5,
    "the factor 0.25": lambda b, x: x * gate(b, x) * 0.25,
    "the divisor 3": lambda b, x: x * gate(b, x) / 3.0,
    "the term 2": lambda b, x: x * (b.erf(x / ROOT_2) + 2.0) * 0.5,
    "erf - 1": lambda b, x: x * (b.erf(x / ROOT_2) - 1.0) * 0.5,
    "erf of the negative": lambda b, x: x * (b.erf(x / -ROOT_2) + 1.0) * 0.5,
    "the half goes wide": lambda b, x: x * gate(b, x) * number(0.5, 5, 1, 1),
    "the half adds a dim": lambda b, x: x * gate(b, x) * number(0.5, 1, 1, 1),
    "the root goes wide": lambda b, x: x * (b.erf(x / number(ROOT_2, 5, 1, 4)) + 1.0) * 0.5,
    "the half differs by element": lambda b, x: x * gate(b, x) * values(4),
    "half * x + half": lambda b, x: x * (b.erf(x / ROOT_2) * 0.5 + 0.25),
    "another cubic term": lambda b, x: 0.5 * x * (1.0 + b.tanh(ROOT_2_OVER_PI * (x + 0.05 * x**3.0))),
    "a quadratic term": lambda b, x: 0.5 * x * (1.0 + b.tanh(ROOT_2_OVER_PI * (x + 0.044715 * x**2.0))),
    "an absolute term": lambda b, x: 0.5 * x * (1.0 + b.tanh(ROOT_2_OVER_PI * (x + 0.044715 * x**3.0) + 0.5)),
    "tanh of erf's argument": lambda b, x: x * (b.tanh(x / ROOT_2) + 1.0) * 0.5,
    "erf of tanh's argument": lambda b, x: x * (b.erf(ROOT_2_OVER_PI * (x + 0.044715 * x**3.0)) + 1.0) * 0.5,
    "erf is an output, too": lambda b, x: (lambda e: (x * (e + 1.0) * 0.5, e))(b.erf(x / ROOT_2)),
    "the scaled operand is used twice": lambda b, x: (lambda s: (x * (b.erf(s) + 1.0) * 0.5, b.relu(s)))(x / ROOT_2),
    "the product is an output, too": lambda b, x: (lambda s: (s * 0.5, s))(x * gate(b, x)),
}


@pytest.mark.parametrize("form", WRONG)
@pytest.mark.refusal
def test_what_is_no_gelu(form):
    stays(model_of(WRONG[form], (2, 4)), PASS)


def test_the_gate_of_another_tensor():
    stays(model_of(lambda b, x, z: x * gate(b, z) * 0.5, (2, 4), (2, 4)), PASS)


UNRANKED = """
module onnx opsets={"": 17}
func @main(%x: f32[*]) -> (%y: f32[*]) {
  %root = const 1.4142135 : f32[]
  %one = const ONE
  %half = const 0.5 : f32[]
  %0 = div %x, %root : f32[*]
  %1 = erf %0 : f32[*]
  %2 = add %1, %one : f32[*]
  %3 = mul %x, %2 : f32[*]
  %y = mul %3, %half : f32[*]
  return %y
}
"""


@pytest.mark.refusal
def test_a_constant_of_rank_1_may_widen_an_operand_of_unknown_rank():
    scalars = tilewright.parse(UNRANKED.replace("ONE", "1.0 : f32[]"))
    assert names(recomposed(scalars, PASS)) == ["gelu"]
    vector = tilewright.parse(UNRANKED.replace("ONE", "[1.0] : f32[1]"))
    assert names(recomposed(vector, PASS)) == names(vector)
