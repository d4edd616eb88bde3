"""The pass `rematerialize`: the same bits with fewer bytes alive; and how those are counted."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import Builder, f32, nn, train
from tilewright.graph.clone import clone_module
from tilewright.graph.diagnostics import UsageError
from tilewright.graph.verifier import verify
from tilewright.passes.context import PassContext
from tilewright.passes.training.liveness import Sizes, lifetimes, schedule_of

WIDTH, LENGTH, BATCH = 32, 32, 16


def transformer_step() -> Any:
    def block() -> nn.Layer:
        attention = nn.Sequential(nn.LayerNorm(WIDTH), nn.MultiHeadAttention(WIDTH, 4, causal=True), nn.Dropout(0.1))
        wide = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU("tanh"), nn.Linear(4 * WIDTH, WIDTH)
        )
        return nn.Sequential(nn.Residual(attention), nn.Residual(wide))

    model = nn.Sequential(block(), block(), block(), nn.Linear(WIDTH, 4)).initialize(0).train()
    return train.step(model.to_model(x=f32["n", LENGTH, WIDTH]), nn.CrossEntropyLoss(axis=-1), "adam")


def peak(module: Any) -> int:
    return lifetimes(*schedule_of(module.main.block, Sizes({"n": BATCH}))).peak


def rewritten(module: Any, pipeline: str) -> tuple[Any, list[str]]:
    copy, context = clone_module(module), PassContext()
    tilewright.PassManager.parse(pipeline).run(copy, context)
    verify(copy)
    return copy, [each.message for each in context.log.diagnostics]


def test_a_transformer_takes_much_less_memory_for_the_same_bits() -> None:
    step = transformer_step()
    small, said = rewritten(step, f'rematerialize{{budget=60% dims=["n={BATCH}"]}},cse,dce')
    assert peak(small) <= 0.6 * peak(step)
    assert "more time by estimate" in said[0]
    random = np.random.default_rng(0)
    batch = {
        "x": random.standard_normal((BATCH, LENGTH, WIDTH)).astype(np.float32),
        "target": random.integers(0, 4, (BATCH, LENGTH)),
    }
    states, measured = [], []
    for module in (step, small):
        trainer = train.Trainer(module, "reference")
        trainer.step(batch)
        tracemalloc.start()
        trainer.step(batch)
        measured.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        states.append(trainer.state)
    for name, array in states[0].items():
        assert array.tobytes() == states[1][name].tobytes(), name
    assert measured[1] < 0.8 * measured[0]


@pytest.mark.slow
def test_the_cpu_target_keeps_less_too() -> None:
    step, rows = transformer_step(), 3 * BATCH  # so many that results take more than kernels need for themselves
    small, _ = rewritten(step, f'rematerialize{{budget=40% dims=["n={rows}"]}}')
    random = np.random.default_rng(0)
    batch = {
        "x": random.standard_normal((rows, LENGTH, WIDTH)).astype(np.float32),
        "target": random.integers(0, 4, (rows, LENGTH)),
    }
    whole, less = train.Trainer(step, threads=1), train.Trainer(small, threads=1)
    # Other neighbours make other kernels, which may round otherwise.
    for _ in range(3):
        assert whole.step(batch) == pytest.approx(less.step(batch), rel=1e-5)
    kept = [trainer.executable.report()["arena_bytes"] for trainer in (whole, less)]
    assert kept[1] <= 0.55 * kept[0]


def test_little_time_is_spent_where_little_is_allowed() -> None:
    step = transformer_step()
    peaks = [
        peak(rewritten(step, f'rematerialize{{budget=10% time={time} dims=["n={BATCH}"]}}')[0])
        for time in (0, 0.02, 0.35)
    ]
    assert peak(step) == peaks[0] > peaks[1] > peaks[2]


def test_a_budget_that_is_met_changes_nothing() -> None:
    step = transformer_step()
    same, _ = rewritten(step, f'rematerialize{{budget=100% dims=["n={BATCH}"]}}')
    assert str(same) == str(step)


def test_a_budget_that_cannot_be_met_is_told() -> None:
    b = Builder()
    b.output(b.exp(b.input("x", f32[1000])), "y")
    _, said = rewritten(b.build(), "rematerialize{budget=1kB}")
    assert said[-1].endswith("at most 4 kB of results are alive instead of 4 kB; the budget is 1 kB")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("budget=lots", "a budget is bytes"),
        ("budget=1.2.3MB", "a budget is bytes"),
        ("budget=50%", "the dim 'n' has no size"),
        ("dims=[n]", "NAME=SIZE"),
    ],
)
def test_wrong_options_are_refused(options: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        rewritten(transformer_step(), f"rematerialize{{{options}}}")


def test_how_bytes_are_counted() -> None:
    b = Builder()
    x = b.input("x", f32["n", 4])
    first = b.exp(x)
    view = b.reshape(first, np.array([-1], np.int64))
    second = b.exp(view)
    b.output(b.reduce_sum(second + view, keepdims=0), "y")
    items, returned = schedule_of(b.build().main.block, Sizes({"n": 8}))
    found = lifetimes(items, returned)
    # exp, its view and the sum of both: a view takes nothing, and keeps what it looks at alive.
    assert [item.op.name for item in items] == ["exp", "reshape", "exp", "add", "reduce_sum"]
    assert found.peak == 3 * 8 * 4 * 4
    assert items[found.at].op.name == "add"
