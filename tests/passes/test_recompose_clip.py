"""Bounds in a row become one Clip; bounds that mean something else stay."""

from __future__ import annotations

import numpy as np
import pytest
from recomposition import becomes, model_of, recomposed, stays, values

from tilewright import f16, f64, i32

PASS = "recompose-clip"
FORMS = {
    "min(max)": (lambda b, x: b.min(b.max(x, -1.0), 2.0), -1.0, 2.0),
    "max(min)": (lambda b, x: b.max(b.min(x, 2.0), -1.0), -1.0, 2.0),
    "numbers first": (lambda b, x: b.min(2.0, b.max(-1.0, x)), -1.0, 2.0),
    "min(relu)": (lambda b, x: b.min(b.relu(x), 6.0), 0.0, 6.0),
    "relu(min)": (lambda b, x: b.relu(b.min(x, 6.0)), 0.0, 6.0),
    "clip(relu)": (lambda b, x: b.clip(b.relu(x), -1.0, 2.0), 0.0, 2.0),
    "relu(clip)": (lambda b, x: b.relu(b.clip(x, -1.0, 2.0)), 0.0, 2.0),
    "clip(clip)": (lambda b, x: b.clip(b.clip(x, -1.0, 2.0), -2.0, 1.0), -1.0, 1.0),
    "clip(clip) apart": (lambda b, x: b.clip(b.clip(x, -1.0, 0.5), 1.0, 2.0), 1.0, 1.0),
    "clip from above, then below": (lambda b, x: b.clip(b.clip(x, None, 2.0), -1.0), -1.0, 2.0),
    "three": (lambda b, x: b.min(b.max(b.min(x, 2.0), -1.0), 1.5), -1.0, 1.5),
    "relu6 of a shifted tensor": (lambda b, x: b.min(b.relu(x + 3.0), 6.0), 0.0, 6.0),
}


@pytest.mark.parametrize("form", FORMS)
def test_bounds_become_one_clip(form):
    build, low, high = FORMS[form]
    expected = ["add", "clip"] if "shifted" in form else ["clip"]
    after = becomes(model_of(build, (2, 3, 4)), PASS, expected, opsets=(8, 13))
    (clip,) = [op for op in after.walk() if op.name == "clip"]
    found = [operand.producer.attributes["value"].numpy().item() for operand in clip.operands[1:]]
    assert found == [low, high]


@pytest.mark.parametrize("dtype", [f16, f64, i32])
def test_other_types(dtype):
    low, high = np.array([-1, 2], dtype.numpy)
    becomes(model_of(lambda b, x: b.min(b.max(x, low), high), (2, 4), dtype=dtype), PASS, ["clip"], opsets=(13,))


STAYS = {
    "one side": lambda b, x: b.relu(b.max(x, 1.0)),
    "crossed bounds": lambda b, x: b.relu(b.clip(b.exp(x), 2.0, 1.0)),
    "a bound by element": lambda b, x: b.min(b.relu(x), values(4)),
    "a bound that adds a dim": lambda b, x: b.min(b.relu(x), np.full((1, 1, 1), 6.0, np.float32)),
    "three operands": lambda b, x: b.min(b.relu(x), 6.0, 5.0),
    "the inner tensor is an output": lambda b, x: (lambda r: (b.min(r, 6.0), r))(b.relu(x)),
    "a bound that is not a number": lambda b, x: b.min(b.relu(x), float("nan")),
}


@pytest.mark.parametrize("form", STAYS)
@pytest.mark.refusal
def test_what_is_no_clip(form):
    model = model_of(STAYS[form], (2, 4))
    assert [op.name for op in recomposed(model, PASS).walk()] == [op.name for op in recomposed(model, "dce").walk()]


@pytest.mark.refusal
def test_a_bound_that_is_computed():
    stays(model_of(lambda b, x, z: b.min(b.relu(x), z), (2, 4), ()), PASS)


def test_a_bound_that_an_attribute_could_not_hold():
    stays(model_of(lambda b, x: b.min(b.relu(x), np.float64(0.1)), (4,), dtype=f64), PASS)
