"""Optimizers and schedules, step by step, against their formulas in numpy.

The loss is <c, w> for a c that each batch brings, so that the gradient is c, whatever the parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import Builder, f32, train
from tilewright.graph.diagnostics import UsageError

START = np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]], np.float32)
GRADS = np.random.default_rng(1).standard_normal((6, 2, 3)).astype(np.float32)


def linear_model() -> Any:
    b = Builder()
    c = b.input("c", f32[2, 3])
    b.output(b.reduce_sum(c * b.const(START, name="w"), keepdims=0), "loss")
    return b.build()


def run(grads: Any = GRADS, **options: Any) -> list[np.ndarray]:
    """The parameter after each step."""
    trainer = train.Trainer(train.step(linear_model(), loss="loss", **options))
    found = []
    for grad in grads:
        trainer.step({"c": grad})
        found.append(trainer.parameters["w"])
    return found


Update = Callable[[np.ndarray, np.ndarray, int], np.ndarray]


def sgd(w: np.ndarray, g: np.ndarray, t: int) -> np.ndarray:
    return w - 0.1 * g


def momentum(unbiased: bool = False, nesterov: bool = False, dampening: float = 0.0) -> Update:
    u = np.zeros_like(START, np.float64)

    def update(w: np.ndarray, g: np.ndarray, t: int) -> np.ndarray:
        nonlocal u
        u = 0.9 * u + (1 - dampening) * g
        along = u / (1 - 0.9**t) if unbiased else u
        return w - 0.1 * (g + 0.9 * u if nesterov else along)

    return update


def adam(decay: float = 0.0, coupled: float = 0.0) -> Update:
    m = v = np.zeros_like(START, np.float64)

    def update(w: np.ndarray, g: np.ndarray, t: int) -> np.ndarray:
        nonlocal m, v
        g = g + coupled * w
        w = w * (1 - 0.1 * decay)
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g**2
        return w - 0.1 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)

    return update


def lamb(w: np.ndarray, g: np.ndarray, t: int) -> np.ndarray:
    # t = 1 only: both averages, unbiased, are the gradient and its square.
    step = g / (np.abs(g) + 1e-6) + 0.01 * w
    return w - 0.1 * np.linalg.norm(w) / np.linalg.norm(step) * step


def adagrad() -> Update:
    s = np.zeros_like(START, np.float64)

    def update(w: np.ndarray, g: np.ndarray, t: int) -> np.ndarray:
        nonlocal s
        s = s + g**2
        return w - 0.1 * g / (np.sqrt(s) + 1e-10)

    return update


def rmsprop(mu: float = 0.0) -> Update:
    s = u = np.zeros_like(START, np.float64)

    def update(w: np.ndarray, g: np.ndarray, t: int) -> np.ndarray:
        nonlocal s, u
        s = 0.99 * s + 0.01 * g**2
        u = mu * u + g / (np.sqrt(s) + 1e-8)
        return w - 0.1 * u

    return update


CASES: dict[str, tuple[train.Optimizer, Callable[[], Update]]] = {
    "sgd": (train.SGD(0.1), lambda: sgd),
    "momentum": (train.Momentum(0.1), momentum),
    "average": (train.Momentum(0.1, dampening=0.9), lambda: momentum(dampening=0.9)),
    "unbiased": (train.Momentum(0.1, dampening=0.9, unbiased=True), lambda: momentum(unbiased=True, dampening=0.9)),
    "nesterov": (train.Momentum(0.1, nesterov=True), lambda: momentum(nesterov=True)),
    "adam": (train.Adam(0.1), adam),
    "adam-decay": (train.Adam(0.1, weight_decay=0.2), lambda: adam(coupled=0.2)),
    "adamw": (train.AdamW(0.1, weight_decay=0.2), lambda: adam(decay=0.2)),
    "adagrad": (train.Adagrad(0.1), adagrad),
    "rmsprop": (train.RMSprop(0.1), rmsprop),
    "rmsprop-momentum": (train.RMSprop(0.1, momentum=0.5), lambda: rmsprop(0.5)),
}


@pytest.mark.parametrize("name", CASES)
def test_updates_step_by_step(name: str) -> None:
    optimizer, make = CASES[name]
    update, w = make(), START.astype(np.float64)
    for t, (grad, found) in enumerate(zip(GRADS, run(optimizer=optimizer), strict=True), start=1):
        w = update(w, grad.astype(np.float64), t)
        np.testing.assert_allclose(found, w, rtol=2e-5, atol=2e-6)


def test_lamb_scales_the_step_to_the_parameter() -> None:
    found = run(GRADS[:1], optimizer=train.LAMB(0.1, weight_decay=0.01))[0]
    np.testing.assert_allclose(found, lamb(START.astype(np.float64), GRADS[0].astype(np.float64), 1), rtol=1e-5)


def test_unbiased_momentum_is_of_an_average() -> None:
    with pytest.raises(UsageError, match="dampening=beta"):
        train.Momentum(0.1, unbiased=True)


def test_decay_can_spare_vectors() -> None:
    b = Builder()
    c = b.input("c", f32[1])
    w, bias = b.const(np.ones((2, 2), np.float32), name="w"), b.const(np.ones(2, np.float32), name="bias")
    b.output(b.reduce_sum(c * b.reduce_sum(w * bias, keepdims=0), keepdims=0), "loss")
    step = train.step(b.build(), "loss", train.SGD(0.1, weight_decay=0.5, decay_vectors=False))
    trainer = train.Trainer(step)
    trainer.step({"c": np.zeros(1, np.float32)})
    np.testing.assert_allclose(trainer.parameters["w"], np.full((2, 2), 0.95), rtol=1e-6)
    np.testing.assert_array_equal(trainer.parameters["bias"], np.ones(2))


def rates(schedule: train.Schedule, count: int) -> Iterator[float]:
    ones = np.ones((count, 2, 3), np.float32)
    before = START
    for after in run(ones, optimizer=train.SGD(schedule)):
        yield float(before[0, 0] - after[0, 0])
        before = after


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (train.Constant(0.5), [0.5] * 5),
        (train.StepDecay(1.0, every=2, factor=0.5), [1, 1, 0.5, 0.5, 0.25]),
        (train.Cosine(1.0, updates=4, final=0.2), [0.2 + 0.4 * (1 + np.cos(np.pi * min(t, 4) / 4)) for t in range(6)]),
        (train.WarmUp(4, train.Constant(1.0)), [0.25, 0.5, 0.75, 1, 1, 1]),
        (train.WarmUp(2, train.StepDecay(1.0, every=1, factor=0.5)), [0.5, 1, 1, 0.5, 0.25]),
    ],
    ids=["constant", "step", "cosine", "warm-up", "warm-up then step"],
)
def test_schedules(schedule: train.Schedule, expected: list[float]) -> None:
    np.testing.assert_allclose(list(rates(schedule, len(expected))), expected, rtol=1e-5, atol=1e-6)


def test_newton_solves_a_quadratic_in_one_step() -> None:
    """1/2 w A w - b w has its minimum where A w = b; as many steps of conjugate gradients as dims find it."""
    random = np.random.default_rng(0)
    root = random.standard_normal((5, 5))
    a, target = (root @ root.T + np.eye(5)).astype(np.float32), random.standard_normal(5).astype(np.float32)
    b = Builder()
    w, x = b.const(np.ones(5, np.float32), name="w"), b.input("x", f32[5])
    b.output(b.reduce_sum(w * (b.const(a) @ w) * 0.5 - w * x, keepdims=0), "loss")
    optimizer = train.NewtonCG(iterations=8, damping=0.0, tolerance=1e-6)
    trainer = train.Trainer(train.step(b.build(), "loss", optimizer))
    trainer.step({"x": target})
    np.testing.assert_allclose(trainer.parameters["w"], np.linalg.solve(a, target), rtol=1e-3, atol=1e-4)


def test_newton_beats_gradient_descent_on_softmax_regression() -> None:
    random = np.random.default_rng(0)
    x, target = random.standard_normal((60, 4)).astype(np.float32), random.integers(0, 3, 60)
    losses = {}
    for name, optimizer in {"newton": train.NewtonCG(damping=1e-3), "sgd": train.SGD(0.5)}.items():
        b = Builder()
        b.output(b.input("x", f32["n", 4]) @ b.const(np.zeros((4, 3), np.float32), name="w"), "scores")
        trainer = train.Trainer(train.step(b.build(), optimizer=optimizer))
        losses[name] = [trainer.step({"x": x, "target": target}) for _ in range(5)]
    assert losses["newton"][4] < losses["sgd"][4]
    assert abs(losses["newton"][4] - losses["newton"][3]) < 1e-5


def test_negative_curvature_takes_the_steepest_descent() -> None:
    b = Builder()
    w, x = b.const(np.array([1.0, 2.0], np.float32), name="w"), b.input("x", f32[1])
    b.output(b.reduce_sum(b.neg(w * w), keepdims=0) * b.squeeze(x), "loss")
    trainer = train.Trainer(train.step(b.build(), "loss", train.NewtonCG(0.5, damping=0.0)))
    trainer.step({"x": np.ones(1, np.float32)})
    np.testing.assert_allclose(trainer.parameters["w"], [2.0, 4.0], rtol=1e-6)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UsageError, match="it is one of sgd, momentum"):
        train.step(linear_model(), "loss", "adamm")
    with pytest.raises(UsageError, match="neither loss scaling nor"):
        train.step(linear_model(), "loss", "newton-cg", accumulate=2)


def test_every_name_makes_an_optimizer() -> None:
    from tilewright.passes.training.optimizers import OPTIMIZERS

    for name in OPTIMIZERS:
        step = train.step(linear_model(), "loss", name)
        assert "w_next" in [output.name for output in step.main.block.outputs], name
        assert tilewright.parse(str(step), weights=step)
