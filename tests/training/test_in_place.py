"""On the cpu a training step writes its parameters and state where they are, and only if it counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import tilewright
from tilewright import f32, i64, nn, train
from tilewright.backends.cpu.step import StepExecutable
from tilewright.graph.diagnostics import ExecutionError
from tilewright.tools.profile_model import profile

BATCH, INPUTS, CLASSES = 24, 20, 5


def network() -> nn.Layer:
    return nn.Sequential(nn.Linear(INPUTS, 32), nn.ReLU(), nn.Linear(32, 32), nn.BatchNorm(32), nn.Linear(32, CLASSES))


def a_step(**options: Any) -> tilewright.Module:
    model = network().initialize(seed=1).train().to_model(x=f32["n", INPUTS])
    return train.step(model, **options)


def batches(count: int) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(0)
    return [
        {"x": random.standard_normal((BATCH, INPUTS), np.float32), "target": random.integers(0, CLASSES, BATCH)}
        for _ in range(count)
    ]


OPTIONS = {
    "sgd": {"optimizer": train.SGD(0.1)},
    "decay": {"optimizer": train.SGD(0.1, weight_decay=0.1)},
    "nesterov": {"optimizer": train.Momentum(0.1, nesterov=True)},
    "adam": {"optimizer": train.Adam(1e-2)},
    "adamw": {"optimizer": train.AdamW(train.WarmUp(3, then=train.Cosine(1e-2, 10)))},
    "lamb": {"optimizer": train.LAMB(1e-2)},
    "rmsprop": {"optimizer": train.RMSprop(1e-2, momentum=0.5)},
    "clipped": {"optimizer": train.Adam(1e-2), "clip_norm": 0.1},
    "accumulated": {"optimizer": train.Adam(1e-2), "accumulate": 2},
    "scaled": {"optimizer": train.SGD(1e-2), "loss_scale": train.LossScale(2.0**10)},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_bits_as_with_fresh_arrays(name: str, threads: int) -> None:
    step = a_step(**OPTIONS[name])
    here = train.Trainer(step, threads=threads)
    apart = train.Trainer(step, threads=threads, detect_anomaly=True)
    assert isinstance(here.executable, StepExecutable)
    arrays = dict(here.state)
    for batch in batches(4):
        assert here.step(batch) == apart.step(batch)
    for state, array in here.state.items():
        assert array is arrays[state]
        np.testing.assert_array_equal(array, apart.state[state])


def test_parameters_are_written_where_they_are() -> None:
    trainer = train.Trainer(a_step(optimizer=train.Adam()))
    trainer.step(batches(1)[0])
    (plan,) = trainer.executable._plans.values()
    late = {name for _, name in plan.apart}
    # What the forward pass makes is known before the loss is.
    assert late == {"3.running_mean", "3.running_variance", "step"}
    assert len(plan.in_place) == 3 * len(trainer.parameters)


def test_large_products_with_an_update_behind_them() -> None:
    """Sums over more than one block of k wait in memory that is not the parameter's."""
    model = nn.Sequential(nn.Linear(40, 64, bias=False)).initialize(0).to_model(x=f32[3000, 40])
    step = train.step(model, loss="mse", optimizer=train.SGD(0.1))
    random = np.random.default_rng(0)
    batch = {
        "x": random.standard_normal((3000, 40), np.float32),
        "target": random.standard_normal((3000, 64), np.float32),
    }
    here, apart = train.Trainer(step), train.Trainer(step, detect_anomaly=True)
    for _ in range(3):
        assert here.step(batch) == apart.step(batch)
    np.testing.assert_array_equal(here.state["0.weight"], apart.state["0.weight"])


def test_a_bad_loss_leaves_all_as_it_was() -> None:
    trainer = train.Trainer(a_step(optimizer=train.Adam()))
    good, bad = batches(2)
    trainer.step(good)
    before = {name: array.copy() for name, array in trainer.state.items()}
    bad["x"][3, 4] = np.nan
    with pytest.raises(ExecutionError, match="the loss is nan"):
        trainer.step(bad)
    for name, array in trainer.state.items():
        np.testing.assert_array_equal(array, before[name])
    trainer.step(good)


def test_an_index_out_of_range_leaves_all_as_it_was() -> None:
    net = nn.Sequential(nn.Embedding(6, 8), nn.Linear(8, CLASSES)).initialize(0)
    step = train.step(net.to_model(x=i64["n"]), optimizer=train.SGD(0.1))
    trainer = train.Trainer(step)
    trainer.step({"x": np.array([0, 5, 2]), "target": np.array([0, 1, 2])})
    before = {name: array.copy() for name, array in trainer.state.items()}
    with pytest.raises(ExecutionError, match="out of range"):
        trainer.step({"x": np.array([0, 6, 2]), "target": np.array([0, 1, 2])})
    for name, array in trainer.state.items():
        np.testing.assert_array_equal(array, before[name])


def test_arrays_that_are_put_into_the_state_stay_their_owners() -> None:
    trainer = train.Trainer(a_step(optimizer=train.SGD(0.1)))
    mine = np.asfortranarray(np.ones((INPUTS, 32), np.float32))
    mine.flags.writeable = False
    trainer.state["0.weight"] = mine
    trainer.step(batches(1)[0])
    assert (mine == 1).all()
    assert not (trainer.state["0.weight"] == 1).all()


def test_outputs_of_the_model_are_fresh() -> None:
    trainer = train.Trainer(a_step(optimizer=train.SGD(0.1)))
    first, second = batches(2)
    scores = trainer.run(first, ["output"])["output"]
    kept = scores.copy()
    trainer.run(second, ["output"])
    trainer.step(second)
    np.testing.assert_array_equal(scores, kept)


def test_what_is_taken_out_stays_as_it_was() -> None:
    net = network().initialize(seed=1).train()
    model = net.to_model(x=f32["n", INPUTS])
    trainer, (first, second) = train.Trainer(train.step(model, optimizer=train.SGD(0.1))), batches(2)
    trainer.step(first)
    then = trainer.parameters
    loaded, trained = network().load(trainer.state), trainer.trained(model)
    trainer.step(second)
    assert not np.array_equal(trainer.state["0.weight"], then["0.weight"])
    np.testing.assert_array_equal(loaded.parameters()["0.weight"], then["0.weight"])
    found = {op.result.name: op.attr("value").numpy() for op in trained.main.block if op.name == "const"}
    np.testing.assert_array_equal(found["0.weight"], then["0.weight"])


def test_next_values_can_be_asked_for() -> None:
    trainer, (first, second) = train.Trainer(a_step(optimizer=train.SGD(0.1))), batches(2)
    found = trainer.run(first, ["0.weight_next", "step_next"])
    np.testing.assert_array_equal(found["0.weight_next"], trainer.state["0.weight"])
    assert found["step_next"] == trainer.state["step"] == 1
    kept = found["0.weight_next"].copy()
    trainer.step(second)
    np.testing.assert_array_equal(found["0.weight_next"], kept)


def test_profile_of_a_step(tmp_path: Path) -> None:
    step = a_step(optimizer=train.Adam())
    trainer, (batch,) = train.Trainer(step), batches(1)
    before = {name: array.copy() for name, array in trainer.state.items()}
    rows = trainer.executable.profile({**batch, **trainer.state}, runs=2)
    assert len(rows) > 10
    assert any("/train/adam" in row.place for row in rows)
    for name, array in trainer.state.items():
        np.testing.assert_array_equal(array, before[name])
    tilewright.save(step, tmp_path / "step.onnx")
    done = CliRunner().invoke(profile, [str(tmp_path / "step.onnx"), "--dim", "n=4", "--runs", "1", "--json"])
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.output)["steps"]) > 10


def test_batches_of_other_sizes() -> None:
    here, apart = (train.Trainer(a_step(optimizer=train.Adam()), detect_anomaly=flag) for flag in (False, True))
    (batch,) = batches(1)
    for size in (24, 7, 24, 12):
        part = {name: array[:size] for name, array in batch.items()}
        assert here.step(part) == apart.step(part)
