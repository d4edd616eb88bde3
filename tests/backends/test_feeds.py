"""Generated inputs: their types, what the graph wants of them, and the sizes that are tried."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import Builder, Module, bf16, bool_, f32, i32, i64, string, u8
from tilewright.backends.feeds import FeedPlan
from tilewright.backends.input_facts import facts_of_inputs
from tilewright.graph import types
from tilewright.graph.diagnostics import UsageError


def feeds_of(module: Module, seed: int = 0, **options: Any) -> dict[str, Any]:
    plan = FeedPlan(module, **options)
    return plan.feeds(next(iter(plan.scenarios())), seed)


def identity_of(**inputs: types.Type) -> Module:
    b = Builder()
    for name, type in inputs.items():
        b.output(b.identity(b.input(name, type)), f"{name}_out")
    return b.build()


def token_model() -> Module:
    """Token ids and positions that index tables, a mask, and a rate that is compared."""
    b = Builder()
    ids, position = b.input("ids", i64["batch", "length"]), b.input("position_ids", i64["batch", "length"])
    mask, rate = b.input("mask", i64["batch", "length"]), b.input("rate", i64[()])
    words = b.gather(np.zeros((50, 8), np.float32), ids)
    places = b.gather(np.zeros((12, 8), np.float32), b.cast(position, to=i64) + 2)
    kept = b.unsqueeze(b.cast(mask, to=f32), np.array([2]))
    scale = b.where(b.equal(rate, np.int64(16000)), np.float32(1), np.float32(2))
    b.output((words + places) * kept * scale, "y")
    return b.build()


def test_facts_are_read_off_the_graph() -> None:
    facts = {each.name: each for each in facts_of_inputs(token_model())}
    assert facts["ids"].bound == 50
    assert facts["position_ids"].bound == 10  # the table has 12 rows, and 2 is added
    assert facts["position_ids"].is_position
    assert facts["mask"].is_mask
    assert facts["rate"].choices == (16000, 8000)


def test_values_follow_the_facts() -> None:
    feeds = feeds_of(token_model())
    assert feeds["ids"].shape == feeds["mask"].shape == (1, 16)
    assert feeds["ids"].dtype == np.int64
    assert 0 <= feeds["ids"].min() <= feeds["ids"].max() < 50
    assert feeds["position_ids"].max() < 10
    assert feeds["rate"] == 16000
    assert feeds["mask"].tolist() == [[1] * 15 + [0]]


def test_masks_end_in_zeros_or_start_with_them() -> None:
    even, odd = feeds_of(token_model(), 0)["mask"], feeds_of(token_model(), 1)["mask"]
    assert (even[0, 0], even[0, -1]) == (1, 0)
    assert (odd[0, 0], odd[0, -1]) == (0, 1)


def test_same_seed_same_inputs() -> None:
    module = identity_of(x=f32["n", 4])
    first, again, other = feeds_of(module, 3), feeds_of(module, 3), feeds_of(module, 4)
    assert np.array_equal(first["x"], again["x"])
    assert not np.array_equal(first["x"], other["x"])


def test_indices_are_followed_into_regions() -> None:
    b = Builder()
    take, ids = b.input("take", bool_[()]), b.input("ids", i64[3])
    table = np.zeros((7, 2), np.float32)
    b.output(b.if_(take, lambda: b.gather(table, ids), lambda: b.const(np.zeros((3, 2), np.float32))))
    facts = {each.name: each for each in facts_of_inputs(b.build())}
    assert facts["ids"].bound == 7


def test_dims_of_one_name_are_equal_and_others_may_differ() -> None:
    plan = FeedPlan(identity_of(a=f32["batch", "n"], b=f32["batch", "n"], c=f32["m"]))
    shapes = set()
    for scenario, _ in zip(plan.scenarios(), range(30), strict=False):
        feeds = plan.feeds(scenario)
        assert feeds["a"].shape == feeds["b"].shape
        shapes.add((feeds["a"].shape[1], feeds["c"].shape[0]))
    assert any(n != m for n, m in shapes), "equal sizes would hide a confusion of the two"


def test_nameless_dims_are_independent() -> None:
    text = 'module onnx opsets={"": 21}\nfunc @main(%x: f32[?0, 3, ?1, ?2]) -> (%y: f32[*]) {\n  return %x\n}\n'
    plan = FeedPlan(tilewright.parse(text))
    assert plan.dims.roles == {"x[0]": "batch", "x[2]": "height", "x[3]": "width"}
    shapes = [plan.feeds(scenario)["x"].shape for scenario, _ in zip(plan.scenarios(), range(60), strict=False)]
    assert shapes[0] == (1, 3, 64, 64)
    assert {(1, 3, 48, 320), (1, 3, 224, 224), (1, 3, 320, 320)} <= set(shapes)


def test_a_later_scenario_differs_in_every_size() -> None:
    plan = FeedPlan(identity_of(x=f32["batch", 3, "h", "w"]))
    first = next(iter(plan.scenarios()))
    second = next(iter(plan.scenarios([first])))
    assert all(
        a != b for a, b in zip(plan.feeds(first)["x"].shape, plan.feeds(second)["x"].shape, strict=True) if a != 3
    )


def test_a_name_that_is_a_sum_is_read_as_one() -> None:
    b = Builder()
    past, mask = b.input("past", f32["batch", "past_length"]), b.input("m", f32["batch", "past_length + length"])
    x = b.input("x", f32["batch", "length"])
    for index, tensor in enumerate((past, mask, x)):
        b.output(b.identity(tensor), f"y{index}")
    feeds = feeds_of(b.build())
    assert feeds["m"].shape[1] == feeds["past"].shape[1] + feeds["x"].shape[1]


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"dims": {"n": 5}}, (1, 5)),
        ({"shapes": {"x": (2, 9)}}, (2, 9)),
        ({"dims": {"batch": 7}, "shapes": {"x": (7, 1)}}, (7, 1)),
        ({"within": identity_of(x=f32["b", 11])}, (1, 11)),
    ],
)
def test_sizes_can_be_fixed(options: dict[str, Any], shape: tuple[int, ...]) -> None:
    assert feeds_of(identity_of(x=f32["batch", "n"]), **options)["x"].shape == shape


def test_given_inputs_are_used_and_fix_sizes() -> None:
    given = np.ones((4, 6), np.float32)
    feeds = feeds_of(identity_of(x=f32["batch", "n"], z=f32["batch"]), given={"x": given})
    assert feeds["x"] is given
    assert feeds["z"].shape == (4,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dims": {"height": 3}}, "no input has a dim called 'height'"),
        ({"shapes": {"z": (1,)}}, "the model has no input 'z'"),
        ({"shapes": {"x": (1, 2, 3)}}, "has rank 3"),
        ({"dims": {"n": 5}, "shapes": {"x": (1, 6)}}, "the dim 'n' is 5 elsewhere, but 6"),
        ({"given": {"x": np.zeros((2, 3), np.float32), "z": 1}}, "the model has no input 'z'"),
    ],
)
def test_sizes_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        FeedPlan(identity_of(x=f32["batch", "n"]), **options)


def test_every_kind_of_type() -> None:
    module = identity_of(
        pixels=u8[64],
        half=bf16[4],
        words=string[3],
        count=i32[()],
        flag=bool_[()],
        parts=types.sequence(f32[2]),
        maybe=types.optional(f32[2]),
        unranked=f32[...],
    )
    feeds = feeds_of(module)
    assert feeds["pixels"].max() > 100
    assert feeds["half"].dtype == bf16.numpy
    assert all(isinstance(word, str) for word in feeds["words"])
    assert feeds["count"].shape == ()
    assert feeds["count"] >= 1  # it may be a divisor
    assert feeds["flag"].dtype == np.bool_
    assert [part.shape for part in feeds["parts"]] == [(2,), (2,)]
    assert feeds["maybe"].shape == (2,)
    assert feeds["unranked"].shape == (2, 3)


def test_a_type_that_cannot_be_made_up() -> None:
    module = identity_of(x=types.UNKNOWN)
    with pytest.raises(UsageError, match="no value can be made up for the input 'x'"):
        feeds_of(module)


def test_inputs_with_a_default_are_left_alone() -> None:
    b = Builder()
    x, w = b.input("x", f32[2]), b.input("w", f32[2])
    b.output(x + w)
    module = b.build()
    from tilewright.graph.data import as_data

    module.main.defaults[w.value] = as_data(np.ones(2, np.float32))
    assert list(feeds_of(module)) == ["x"]


def test_many_open_choices_stay_few_scenarios() -> None:
    plan = FeedPlan(identity_of(**{f"flag{index}": bool_[()] for index in range(30)}))
    assert sum(1 for _ in plan.scenarios()) <= 20_000


def test_what_is_added_to_scores_is_a_mask() -> None:
    b = Builder()
    q, k = b.input("q", f32[1, 4, 8]), b.input("k", f32[1, 8, 5])
    mask, bias, other = b.input("mask", f32[1, 5]), b.input("bias", f32[4, 5]), b.input("other", f32[4, 5])
    scores = b.where(b.input("keep", bool_[1, 5]), b.add(q @ k, bias) * 0.5, -1e9) + b.unsqueeze(mask, [0])
    b.output(b.softmax(scores) @ b.input("v", f32[1, 5, 8]), "y")
    b.output(b.softmax(other + bias), "z")
    module = b.build()
    assert {each.name for each in facts_of_inputs(module) if each.hides_keys} == {"mask", "bias"}
    plan = FeedPlan(module)
    lowest, infinite = plan.ways_to_hide()
    [scenario, *_] = plan.scenarios()
    feeds = plan.feeds(scenario, hidden=lowest)
    assert (feeds["bias"][0] == np.finfo(np.float32).min).all()
    assert np.isfinite(feeds["bias"]).all()
    assert (feeds["bias"][1:, 2:] == 0).all()
    assert (plan.feeds(scenario, hidden=infinite)["mask"] == -np.inf).all()
    assert not plan.feeds(scenario, hidden=infinite)["keep"].any()
    assert plan.feeds(scenario)["keep"].any()


def test_zeros_or_ones_may_be_what_hides() -> None:
    b = Builder()
    mask = b.input("attention_mask", i64["batch", 6])
    b.output(b.cast(mask, to=f32))
    plan = FeedPlan(b.build())
    assert len(plan.ways_to_hide()) == 1
    chosen = next(each for each in plan.scenarios() if plan.chosen(each)["batch"] > 1)
    rows = plan.feeds(chosen, hidden=plan.ways_to_hide()[0])["attention_mask"]
    assert not rows[0].any()
    assert rows[-1].all()


def test_without_a_mask_nothing_is_hidden() -> None:
    assert FeedPlan(identity_of(x=f32[2, 3], ids=i64[2, 3])).ways_to_hide() == []


def test_a_length_that_an_exporter_wrote_down_is_tried_soon() -> None:
    b = Builder()
    x = b.input("x", f32["batch", "length", 32])
    batch = b.shape(x, start=0, end=1)
    heads = b.reshape(x, b.concat(batch, [9], [4], [8], axis=0))
    b.output(b.reshape(heads, [-1, 9, 32]), "y")
    module = b.build()
    plan = FeedPlan(module)
    tried = [plan.chosen(scenario)["length"] for scenario in plan.scenarios()]
    assert tried[:3] == [16, 7, 9]
    report = tilewright.parity(module, engine="reference")
    assert report.passed
    assert [run.inputs for run in report.runs] == ["batch=1 length=9", "batch=2 length=9"]
