"""The cleaning passes keep what a model computes: every pass alone, every preset, and presets with a pass left out."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from cleaning_cases import CASES, Case, model_of

import tilewright
from tilewright import PassManager
from tilewright.graph.clone import clone_module
from tilewright.passes.context import PassContext
from tilewright.passes.pipelines import PRESETS

CLEANING = (
    "infer-shapes", "remove-identity", "simplify-if", "simplify-loops", "unroll-loops", "fold", "no-ops", "merge-casts",
    "merge-reshapes", "merge-slices", "merge-squeezes", "simplify-shapes", "simplify-arithmetic", "drop-expands", "cse",
    "share-initializers", "dce",
)  # fmt: skip


# A loop that grows its state gives the body's argument another size each time.
pytestmark = pytest.mark.filterwarnings("ignore:.*declared-shape:tilewright.backends.executable.ModelWarning")


@pytest.fixture(params=CASES)
def one(request: pytest.FixtureRequest) -> Case:
    found: Case = CASES[request.param]()
    return found


def check(model: Any, one: Case) -> None:
    executable = tilewright.compile(model, target="reference")
    for feeds, expected in one.runs:
        found = executable.run(feeds)
        assert list(found) == list(expected)
        for name, value in expected.items():
            assert found[name].shape == np.shape(value), name
            np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=0, err_msg=name)
            zeros = (np.asarray(value) == 0) & (np.asarray(value).dtype.kind == "f")
            assert (np.signbit(found[name]) == np.signbit(value))[zeros].all(), name


def debugged(pipeline: str, model: Any) -> Any:
    manager = PassManager.parse(pipeline, verify_each=True, reproducers=False)
    return manager.run(model, PassContext(debug=True))


def test_expected_values_are_those_of_the_model(one):
    check(model_of(one), one)


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.parametrize("name", CASES)
def test_presets_keep_results(name, level):
    one = CASES[name]()
    model = model_of(one)
    debugged(level, model)
    check(model, one)


def test_each_pass_alone_keeps_results_and_is_idempotent(one):
    model = model_of(one)
    for name in CLEANING:
        changed = clone_module(model)
        debugged(name, changed)
        check(changed, one)
        assert not debugged(name, changed).changed, name


@pytest.mark.parametrize("left_out", CLEANING)
def test_the_preset_is_right_without_any_one_pass(left_out):
    name = rf"(?<![\w-]){left_out}(?![\w-])"
    pipeline = re.sub(rf",{name}|{name},", "", PRESETS["O1"])
    assert not re.search(name, pipeline)
    assert re.search(name, PRESETS["O1"])
    for build in CASES.values():
        one = build()
        model = model_of(one)
        debugged(pipeline, model)
        check(model, one)


def test_a_second_run_of_a_preset_changes_nothing(one):
    model = model_of(one)
    debugged("O1", model)
    assert not debugged("O1", model).changed


def test_unknown_sizes_never_freeze():
    """What was optimized for open sizes runs with all of them."""
    one = CASES["computed_reshape_targets_follow_the_input"]()
    model = model_of(one)
    debugged("O2", model)
    assert [op.name for op in model.walk() if op.name in ("shape", "gather", "concat")] == []
    check(model, one)
