"""Dropout whose masks come from a counter: the generator, its statistics, and that ONNX Runtime draws the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import Builder, bool_, f16, f32, f64, train
from tilewright.graph.diagnostics import UsageError
from tilewright.graph.nn.random import philox, stream_key


@pytest.mark.parametrize(
    ("counter", "high", "key", "expected"),
    [
        (0, 0, 0, (0xFF1DAE59, 0x6CD10DF2)),
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, (0x2C3F628B, 0xAB4FD7AD)),
        (0x243F6A88, 0x85A308D3, 0x13198A2E, (0xDD7CE038, 0xF62A4C12)),
    ],
)
def test_known_answers(counter: int, high: int, key: int, expected: tuple[int, int]) -> None:
    """Those of Random123's kat_vectors for philox2x32 with 10 rounds."""
    words = philox(np.array([counter], np.uint64), np.array([high], np.uint64), key)
    assert tuple(int(word[0]) for word in words) == expected


def step_of(shape: tuple[Any, ...], ratio: float = 0.25, dtype: Any = f32, layers: int = 1, **options: Any) -> Any:
    """A step whose outputs are x through Dropouts, one after another."""
    b = Builder()
    x = b.input("x", dtype[shape])
    w = b.const(np.ones(1, dtype.numpy), name="w")
    for index in range(layers):
        y = b.dropout(x * w, np.array(ratio, np.float32), np.array(True), outputs=1)
        b.output(y, f"y{index}")
    return train.step(b.build(), "mse", "sgd", **options)


def run(step: Any, x: np.ndarray, number: int = 0, names: list[str] | None = None) -> list[np.ndarray]:
    feeds = {"x": x, "target": np.zeros(x.shape, np.float32 if x.dtype == np.float16 else x.dtype)}
    feeds["step"] = np.array(number, np.int64)
    return list(tilewright.compile(step, target="reference").run(feeds, names or ["y0"]).values())


@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.5, 0.9])
def test_as_many_are_dropped_as_asked_for(ratio: float) -> None:
    count = 100_000
    found = run(step_of(("n",), ratio), np.ones(count, np.float32))[0]
    kept = found != 0
    assert abs(kept.mean() - (1 - ratio)) <= 4 * np.sqrt(ratio * (1 - ratio) / count)
    np.testing.assert_allclose(found[kept], 1 / (1 - ratio), rtol=1e-6)
    if ratio == 0.5:
        # Neighbours, and elements drawn from one pair of words, do not know of each other.
        for shift in (1, 2, count // 2):
            both = (kept[shift:] == kept[:-shift]).mean()
            assert abs(both - 0.5) < 4 * np.sqrt(0.25 / (count - shift))


def test_masks_depend_on_seed_step_and_place_and_on_nothing_else() -> None:
    x = np.ones((20, 50), np.float32)
    step = step_of((20, 50), layers=2)
    first, second = run(step, x, 0, ["y0", "y1"])
    assert (first != second).any()
    assert (run(step, x, 1)[0] != first).any()
    assert (run(step_of((20, 50), seed=1), x)[0] != first).any()
    np.testing.assert_array_equal(run(step_of(("a", "b")), x)[0], first)
    np.testing.assert_array_equal(run(step_of((20, 50)), x)[0], first)


def test_streams_have_keys_of_their_own() -> None:
    assert len({stream_key(seed, stream) for seed in (0, 1, 2**40) for stream in range(100)}) == 300


def test_the_gradient_goes_through_the_mask() -> None:
    step = step_of((3, 5))
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    y, w = run(step, x, 0, ["y0", "w_next"])
    np.testing.assert_allclose(1 - w, 0.01 * 2 * (y * y).mean(), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("dtype", [f32, f64, f16])
@pytest.mark.parametrize("shape", [(7,), (3, 5, 11), (1, 1)])
def test_onnx_runtime_draws_the_same(dtype: Any, shape: tuple[int, ...]) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    step = step_of(tuple("abc"[: len(shape)]), 0.4, dtype)
    session = onnxruntime.InferenceSession(tilewright.to_bytes(step), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype.numpy)
    target = np.zeros(shape, np.float32 if dtype is f16 else dtype.numpy)
    for number in (0, 1, 2**33 + 5):
        feeds = {"x": x, "target": target, "step": np.array(number, np.int64)}
        np.testing.assert_array_equal(session.run(["y0"], feeds)[0], run(step, x, number)[0])


def test_a_dropout_in_a_branch_is_refused() -> None:
    b = Builder()
    x, flag = b.input("x", f32[4]), b.input("flag", bool_[()])
    scaled = x * b.const(np.ones(1, np.float32), name="w")
    dropped = b.if_(flag, lambda: b.dropout(scaled, np.array(0.5, np.float32), np.array(True), outputs=1), lambda: x)
    b.output(dropped, "y")
    with pytest.raises(UsageError, match="inside of a subgraph"):
        train.step(b.build(), "mse")
