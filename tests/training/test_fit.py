"""The loop: data and its steps, checkpoints, resuming, Ctrl-C; and charts."""

from __future__ import annotations

import os
import signal
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import bf16, f32, nn, train
from tilewright.graph.diagnostics import ExecutionError, UsageError

RANDOM = np.random.default_rng(5)
X = RANDOM.standard_normal((50, 4)).astype(np.float32)
T = RANDOM.integers(0, 3, 50)


def trainer() -> train.Trainer:
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))
    return train.Trainer(train.step(net.initialize(0).train().to_model(x=f32["n", 4]), optimizer="adam"))


def noisy(batch: dict[str, np.ndarray], random: np.random.Generator) -> dict[str, np.ndarray]:
    return {**batch, "x": batch["x"] + random.standard_normal(batch["x"].shape).astype(np.float32) * 0.1}


def batches() -> train.Batches:
    return train.Dataset({"x": X, "target": T}).shuffle(3).batch(8).augment(noisy, seed=1)


def test_a_trainer_says_what_it_trains() -> None:
    made = trainer()
    count = sum(value.size for value in made.parameters.values())
    assert repr(made) == f"<Trainer on cpu of {count:,} parameters, for x, target>"


def test_a_run_says_how_it_went() -> None:
    run = train.fit(trainer(), batches(), epochs=2)
    assert repr(run) == f"<Run of 14 steps, 2 epochs, losses {run.losses[0]:.4g} to {run.losses[-1]:.4g}>"
    assert repr(type(run)()) == "<Run of 0 steps, 0 epochs>"


# ---- data ------------------------------------------------------------------------------------------------------------


def test_every_example_comes_once_an_epoch_in_an_order_of_its_own() -> None:
    data = train.Dataset({"x": np.arange(10), "y": np.arange(10) * 2}).shuffle(0).batch(4)
    assert len(data) == 3
    epochs = [list(data.epoch(number)) for number in (0, 1, 0)]
    orders = [np.concatenate([batch["x"] for batch in epoch]) for epoch in epochs]
    assert all(sorted(order) == list(range(10)) for order in orders)
    assert (orders[0] != orders[1]).any()
    np.testing.assert_array_equal(orders[0], orders[2])
    for batch in epochs[0]:
        np.testing.assert_array_equal(batch["y"], batch["x"] * 2)
    assert [len(batch["x"]) for batch in epochs[0]] == [4, 4, 2]
    assert len(list(train.Dataset({"x": np.arange(10)}).batch(4, drop_last=True).epoch(0))) == 2


def test_steps_go_together() -> None:
    data = batches().map(lambda batch: {"x": batch["x"] * 0 + 1, "target": batch["target"]}).take(2)
    found = list(data.epoch(0))
    assert len(found) == len(data) == 2
    assert (found[0]["x"] == 1).all()
    first, again, later = (next(batches().epoch(number))["x"] for number in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != later).any()


def test_a_data_set_splits() -> None:
    first, second = train.Dataset({"x": np.arange(50)}).split(0.2, seed=1)
    assert (len(first), len(second)) == (40, 10)
    assert sorted([*first.arrays["x"], *second.arrays["x"]]) == list(range(50))


class Loader:
    """What a torch DataLoader looks like from outside: tuples of things that become arrays."""

    class Tensor:
        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            return self.array

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Any:
        for k in (0, 8):
            yield [self.Tensor(X[k : k + 8]), self.Tensor(T[k : k + 8])]


@pytest.mark.parametrize(
    "data",
    [
        [(X[:8], T[:8]), (X[8:16], T[8:16])],
        [{"x": X[:8], "target": T[:8]}, {"x": X[8:16], "target": T[8:16]}],
        Loader(),
        lambda epoch: iter([(X[:8], T[:8]), (X[8:16], T[8:16])]),
        train.Dataset({"x": X[:16], "target": T[:16]}).batch(8),
    ],
    ids=["tuples", "dicts", "loader", "function", "dataset"],
)
def test_any_iterable_of_batches_trains(data: Any) -> None:
    run = train.fit(trainer(), data, 2)
    expected = train.fit(trainer(), [(X[:8], T[:8]), (X[8:16], T[8:16])], 2)
    assert run.losses == expected.losses
    assert len(run.losses) == 4


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (iter([(X, T)]), "ends after one epoch"),
        ([(X,)], "1 parts, 2 names"),
        ([], "no batches"),
        (train.Dataset({"x": X, "target": T}), "cut into batches"),
        ([{"x": X[:4], "target": T[:3]}], "n"),
        (None, "batches are needed, not NoneType"),
        ({"x": X, "target": T}, "batches are needed, not dict"),
        (train.Dataset({"x": X, "target": T}).batch(8).map(lambda batch: None), "has to give a dict of arrays"),  # type: ignore
    ],
)
def test_data_that_does_not_fit_is_refused(data: Any, message: str) -> None:
    with pytest.raises((UsageError, ExecutionError), match=message):
        train.fit(trainer(), data, 1)


def test_arrays_of_unequal_length_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="equally many examples"):
        train.Dataset({"x": X, "target": T[:-1]})
    (tmp_path / "data.npz").write_bytes(b"not a file of arrays")
    with pytest.raises(UsageError, match=r"no \.npz file"):
        train.Dataset.load(tmp_path / "data.npz")


# ---- checkpoints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [3, 7, 10])
def test_a_resumed_run_has_the_same_bits(tmp_path: Path, stop: int) -> None:
    whole = trainer()
    expected = train.fit(whole, batches(), 3).losses
    first, file = trainer(), tmp_path / "state.npz"

    def interrupt(run: train.Run) -> None:
        if len(run.losses) == stop:
            os.kill(os.getpid(), signal.SIGINT)

    run = train.fit(first, batches(), 3, checkpoint=file, on_step=interrupt)
    assert run.interrupted
    assert len(run.losses) == stop
    second = trainer()
    resumed = train.fit(second, batches(), 3, checkpoint=file, resume=True)
    assert resumed.losses == expected
    for name, array in whole.state.items():
        assert array.tobytes() == second.state[name].tobytes(), name


def test_checkpoints_are_written_every_so_often_and_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, sizes = tmp_path / "state.npz", []
    train.fit(
        trainer(), batches(), 1, checkpoint=file, every=2,
        on_step=lambda run: sizes.append(len(train.load_checkpoint(file).losses) if file.exists() else 0),
    )  # fmt: skip
    assert sizes == [0, 0, 2, 2, 4, 4, 6]
    before = file.read_bytes()

    def full(*arguments: Any, **arrays: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space"):
        train.fit(trainer(), batches(), 1, checkpoint=file)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_damaged_and_strange_checkpoints_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "state.npz"
    train.fit(trainer(), batches(), 1, checkpoint=file)
    whole = file.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"hello", whole[:200] + b"\xff" * 16 + whole[216:]):
        file.write_bytes(damaged)
        with pytest.raises(UsageError, match="cannot be read"):
            train.fit(trainer(), batches(), 1, checkpoint=file, resume=True)
        assert file.read_bytes() == damaged
    file.write_bytes(whole)
    net = nn.Sequential(nn.Linear(4, 9), nn.Linear(9, 3)).to_model(x=f32["n", 4])
    with pytest.raises(UsageError, match="of another training step"):
        train.fit(train.Trainer(train.step(net)), batches(), 1, checkpoint=file, resume=True)


def test_element_types_that_numpy_lacks_are_kept(tmp_path: Path) -> None:
    state = {"a": np.arange(3).astype(bf16.numpy), "b": np.array(True), "c": np.array(5, np.int64)}
    train.save_checkpoint(tmp_path / "state.npz", train.Checkpoint(state, 1, 2, [0.5]))
    found = train.load_checkpoint(tmp_path / "state.npz")
    assert (found.epoch, found.batch, found.losses) == (1, 2, [0.5])
    for name, array in state.items():
        assert found.state[name].dtype == array.dtype
        assert found.state[name].tobytes() == array.tobytes()


def test_a_bad_loss_leaves_the_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "state.npz"
    train.fit(trainer(), batches(), 1, checkpoint=file)
    before = file.read_bytes()
    with pytest.raises(ExecutionError, match="the loss is nan"):
        train.fit(trainer(), [(X * np.nan, T)], 2, checkpoint=file, resume=False)
    assert file.read_bytes() == before


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_a_state_that_is_not_finite_is_not_saved(target: str, tmp_path: Path) -> None:
    """The loss of the bad batch is 0, its gradient is NaN."""
    b = tilewright.Builder()
    scores = b.input("x", f32["n", 4]) @ b.const(np.ones((4, 1), np.float32), name="w")
    b.output(b.reduce_sum(b.sqrt(b.abs(scores)), keepdims=0), "loss")
    model, file = b.build(), tmp_path / "state.npz"
    data = [{"x": X[:4]}, {"x": 0 * X[:4]}, {"x": X[:4]}]
    with pytest.raises(ExecutionError, match="after 2 steps w is not finite"):
        train.fit(train.Trainer(train.step(model, "loss", "sgd"), target), data, 1, checkpoint=file, every=1)
    found = train.load_checkpoint(file)
    assert len(found.losses) == 1
    assert np.isfinite(found.state["w"]).all()
    with pytest.raises(ExecutionError, match="the loss is nan") as error:
        train.fit(train.Trainer(train.step(model, "loss", "sgd"), target), data, 1)
    assert "an earlier update made numbers in w that are not finite" in str(error.value)
    kept = train.Trainer(train.step(model, "loss", "sgd", loss_scale=1.0), target)
    assert np.isfinite(train.fit(kept, data, 1).losses).all()


# ---- charts ----------------------------------------------------------------------------------------------------------


def pixels_of(file: Path) -> np.ndarray:
    data = file.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    length = struct.unpack(">I", data[33:37])[0]
    rows = np.frombuffer(zlib.decompress(data[41 : 41 + length]), np.uint8).reshape(height, 1 + 3 * width)
    return rows[:, 1:].reshape(height, width, 3)


def test_a_chart_shows_its_lines(tmp_path: Path) -> None:
    falling = list(np.linspace(2, 1, 50))
    train.save_chart(tmp_path / "loss.png", {"loss": falling, "other": [1.5, float("nan"), 1.5]}, "loss by step")
    pixels = pixels_of(tmp_path / "loss.png")
    blue = np.argwhere((pixels == (31, 95, 168)).all(axis=2) & (np.arange(pixels.shape[1]) < 640))
    left, right = blue[blue[:, 1].argmin()], blue[blue[:, 1].argmax()]
    assert left[0] < right[0]
    for series in ({}, {"a": []}, {"a": [float("nan")]}, {"a": [0.0, 1e-3, 1e3]}):
        train.save_chart(tmp_path / "edge.png", series, logarithmic=True)
        assert pixels_of(tmp_path / "edge.png").shape == pixels.shape


def test_curves_over_decades_are_logarithmic() -> None:
    lines = train.text_curve([10.0 ** (-k / 20) for k in range(60)]).splitlines()
    assert lines[0].split()[0] == "1"
    assert float(lines[-1].split()[0]) < 2e-3
    assert all("*" in line for line in lines)


def test_a_curve_of_text() -> None:
    lines = train.text_curve([3.0, 2.0, 1.0], height=3).splitlines()
    assert [line.split("|")[1] for line in lines] == ["*", " *", "  *"]
    assert lines[0].split()[0] == "3"
    assert train.text_curve([float("nan")]) == "(no finite number)"


@pytest.mark.parametrize("target", ["cpu", "reference"])
@pytest.mark.parametrize("label", [3, -1, 2**40])
def test_a_target_that_is_no_class_is_told_before_the_step_runs(target: str, label: int) -> None:
    net = nn.Sequential(nn.Linear(4, 3)).initialize(0).to_model(x=f32["n", 4])
    training = train.Trainer(train.step(net), target)
    before = {name: array.copy() for name, array in training.state.items()}
    labels = np.array([0, 2, label, label])
    with pytest.raises(UsageError, match=rf"'target'\[2\] is {label}, but the classes are 0 to 2") as error:
        training.step({"x": X[:4], "target": labels})
    assert error.value.code == "data/class"
    assert error.value.diagnostics[0].notes[0] == "2 of 4 elements are out of range"
    assert all(np.array_equal(before[name], array) for name, array in training.state.items())


def test_the_class_that_does_not_count_may_be_any_number() -> None:
    net = nn.Sequential(nn.Linear(4, 3)).initialize(0).to_model(x=f32["n", 4])
    training = train.Trainer(train.step(net, nn.CrossEntropyLoss(ignore_index=-100)), "reference")
    assert np.isfinite(training.step({"x": X[:3], "target": np.array([0, 2, -100])}))
    with pytest.raises(UsageError, match="is -1, but"):
        training.step({"x": X[:3], "target": np.array([0, 2, -1])})
