"""Softmax and LogSoftmax written out, and what only looks like them."""

from __future__ import annotations

import numpy as np
import pytest
from recomposition import becomes, model_of, names, recomposed, stays

import tilewright
from tilewright import PassManager, f16, f64
from tilewright.passes.context import PassContext

PASS = "cse,recompose-softmax"


def shifted(b, x, axis):
    return x - b.reduce_max(x, [axis])


def softmax(b, x, axis=-1, total=None):
    power = b.exp(shifted(b, x, axis))
    return power / b.reduce_sum(power, [axis if total is None else total])


def log_softmax(b, x, axis=-1):
    d = shifted(b, x, axis)
    return d - b.log(b.reduce_sum(b.exp(d), [axis]))


def reciprocal(b, x):
    power = b.exp(shifted(b, x, -1))
    return power * b.reciprocal(b.reduce_sum(power, [-1]))


def maximum_put_back(b, x):
    most = b.reduce_max(x, [-1])
    return x - (most + b.log(b.reduce_sum(b.exp(x - most), [-1])))


FORMS = {
    "quotient": (softmax, "softmax"),
    "reciprocal": (reciprocal, "softmax"),
    "axis 1": (lambda b, x: softmax(b, x, 1), "softmax"),
    "axis -2": (lambda b, x: softmax(b, x, -2, 1), "softmax"),
    "logarithm": (log_softmax, "log_softmax"),
    "logarithm along axis 1": (lambda b, x: log_softmax(b, x, 1), "log_softmax"),
    "maximum put back": (maximum_put_back, "log_softmax"),
    "reduce_log_sum": (lambda b, x: (lambda d: d - b.reduce_log_sum(b.exp(d), [2]))(shifted(b, x, 2)), "log_softmax"),
    "reduce_log_sum_exp": (lambda b, x: x - b.reduce_log_sum_exp(x, [-1]), "log_softmax"),
    "maximum before softmax": (lambda b, x: b.softmax(shifted(b, x, 2), axis=-1), "softmax"),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(form):
    build, expected = FORMS[form]
    becomes(model_of(build, (2, 3, 4)), PASS, [expected], opsets=(13, 23))


def test_the_last_axis_before_opset_13():
    becomes(model_of(softmax, (2, 3, 4)), PASS, ["softmax"], opsets=(11,))


@pytest.mark.parametrize("dtype", [f16, f64])
def test_other_types(dtype):
    becomes(model_of(softmax, (2, 4), dtype=dtype), PASS, ["softmax"], opsets=(13,))


def test_rows_that_are_masked_give_what_they_gave():
    model = model_of(softmax, (2, 4))
    after = recomposed(model, PASS)
    x = np.array([[-np.inf] * 4, [0.0, -np.inf, 1.0, np.finfo(np.float32).min]], np.float32)
    left, right = (tilewright.compile(each, target="reference").run({"x0": x})["y0"] for each in (model, after))
    assert np.isnan(left[0]).all()
    np.testing.assert_allclose(left, right, atol=1e-7)


WRONG = {
    "no maximum": lambda b, x: (lambda e: e / b.reduce_sum(e, [-1]))(b.exp(x)),
    "another axis in the sum": lambda b, x: (lambda e: e / b.reduce_sum(e, [1]))(b.exp(shifted(b, x, 2))),
    "two axes": lambda b, x: (lambda e: e / b.reduce_sum(e, [1, 2]))(b.exp(x - b.reduce_max(x, [1, 2]))),
    "minimum": lambda b, x: (lambda e: e / b.reduce_sum(e, [-1]))(b.exp(x - b.reduce_min(x, [-1]))),
    "mean": lambda b, x: (lambda e: e / b.reduce_mean(e, [-1]))(b.exp(shifted(b, x, -1))),
    "the powers are an output": lambda b, x: (lambda e: (e / b.reduce_sum(e, [-1]), e))(b.exp(shifted(b, x, -1))),
    "the sum is an output": lambda b, x: (lambda e: (lambda s: (e / s, s))(b.reduce_sum(e, [-1])))(
        b.exp(shifted(b, x, -1))
    ),
    "maximum along another axis": lambda b, x: b.softmax(shifted(b, x, 1), axis=-1),
    "log of a sum of something else": lambda b, x: (lambda d: d - b.log(b.reduce_sum(d, [-1])))(
        b.exp(shifted(b, x, -1))
    ),
    "reduce_log_sum_exp along two axes": lambda b, x: x - b.reduce_log_sum_exp(x, [1, 2]),
}


@pytest.mark.parametrize("form", WRONG)
@pytest.mark.refusal
def test_what_is_no_softmax(form):
    model = model_of(WRONG[form], (2, 3, 4))
    PassManager.parse("cse").run(model)
    stays(model, PASS)


def test_the_logarithm_of_softmax_is_only_near():
    model = model_of(lambda b, x: b.log(b.softmax(x, axis=-1)), (2, 4))
    near = PassContext(exactness="reassociates")
    PassManager.parse("recompose-softmax").run(model, near)
    assert names(model) == ["softmax", "log"]
    PassManager.parse("recompose-softmax").run(model, PassContext(exactness="approximate"))
    assert names(model) == ["log_softmax"]
