"""Schedules: the learning rate as a function of how many updates were made, computed in the graph, in f64."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ...graph.diagnostics import UsageError

if TYPE_CHECKING:
    from ...graph.model_builder import Tensor
    from .step_builder import StepBuilder


@dataclass(frozen=True)
class Schedule:
    """Base: `build` gives the learning rate (one f64) for the update before which `updates` (one f64) were made."""

    def build(self, b: StepBuilder, updates: Tensor) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class Constant(Schedule):
    """`learning_rate`, always."""

    learning_rate: float

    def build(self, b: StepBuilder, updates: Tensor) -> Tensor:
        return b.const(np.array(self.learning_rate))


@dataclass(frozen=True)
class StepDecay(Schedule):
    """`learning_rate`, multiplied by `factor` after each `every` updates."""

    learning_rate: float
    every: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        _positive("every", self.every)

    def build(self, b: StepBuilder, updates: Tensor) -> Tensor:
        times = b.floor(updates / float(self.every))
        result: Tensor = b.pow(b.const(np.array(self.factor)), times) * self.learning_rate
        return result


@dataclass(frozen=True)
class Cosine(Schedule):
    """From `learning_rate` down to `final` along half a cosine in `updates` updates, then `final` (Loshchilov and
    Hutter 2016, equation 5)."""

    learning_rate: float
    updates: int
    final: float = 0.0

    def __post_init__(self) -> None:
        _positive("updates", self.updates)

    def build(self, b: StepBuilder, updates: Tensor) -> Tensor:
        angle = b.min(updates / float(self.updates), b.const(np.array(1.0))) * math.pi
        above: Tensor = (b.cos(angle) + 1.0) * ((self.learning_rate - self.final) / 2)
        return above + self.final


@dataclass(frozen=True)
class WarmUp(Schedule):
    """Linearly from `learning_rate` / `updates` up to the first learning rate of `then`, in `updates` updates; then
    `then`, which starts to count there."""

    updates: int
    then: Schedule = field(default_factory=lambda: Constant(1e-3))

    def __post_init__(self) -> None:
        _positive("updates", self.updates)

    def build(self, b: StepBuilder, updates: Tensor) -> Tensor:
        ramp = b.min((updates + 1.0) / float(self.updates), b.const(np.array(1.0)))
        after = b.max(updates - float(self.updates), b.const(np.array(0.0)))
        result: Tensor = self.then.build(b, after) * ramp
        return result


def as_schedule(learning_rate: float | Schedule) -> Schedule:
    return learning_rate if isinstance(learning_rate, Schedule) else Constant(float(learning_rate))


def _positive(name: str, number: int) -> None:
    if number < 1:
        raise UsageError("schedule/length", f"{name} is a number of updates of at least 1, not {number}")
