"""Initializers: the first numbers of a parameter, from a shape, its fans and a random generator.

`fan_in` is how many inputs an output adds up, `fan_out` how many outputs an input goes to. For a layer followed by ReLU
a variance of 2 / fan_in keeps the size of activations from layer to layer (He et al. 2015); Glorot and Bengio 2010 take
2 / (fan_in + fan_out).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

# By how much a nonlinearity shrinks what passes: the factor that makes up for it (He et al. 2015, section 2.2).
GAINS = {"linear": 1.0, "sigmoid": 1.0, "tanh": 5.0 / 3.0, "relu": math.sqrt(2.0)}


@dataclass(frozen=True)
class Initializer:
    """Base. `draw` gives an f32 array."""

    def draw(self, shape: tuple[int, ...], fan_in: int, fan_out: int, random: np.random.Generator) -> np.ndarray:
        raise NotImplementedError


@dataclass(frozen=True)
class Constant(Initializer):
    """`value` everywhere."""

    value: float = 0.0

    def draw(self, shape: tuple[int, ...], fan_in: int, fan_out: int, random: np.random.Generator) -> np.ndarray:
        return np.full(shape, self.value, np.float32)


@dataclass(frozen=True)
class Normal(Initializer):
    """Normally distributed with mean 0."""

    deviation: float = 1.0

    def draw(self, shape: tuple[int, ...], fan_in: int, fan_out: int, random: np.random.Generator) -> np.ndarray:
        return (random.standard_normal(shape) * self.deviation).astype(np.float32)


@dataclass(frozen=True)
class Uniform(Initializer):
    """Evenly distributed in [`low`, `high`)."""

    low: float = 0.0
    high: float = 1.0

    def draw(self, shape: tuple[int, ...], fan_in: int, fan_out: int, random: np.random.Generator) -> np.ndarray:
        return random.uniform(self.low, self.high, shape).astype(np.float32)


@dataclass(frozen=True)
class Scaled(Initializer):
    """Base of those whose standard deviation depends on the fans."""

    def deviation_for(self, fan_in: int, fan_out: int) -> float:
        raise NotImplementedError

    uniform = False

    def draw(self, shape: tuple[int, ...], fan_in: int, fan_out: int, random: np.random.Generator) -> np.ndarray:
        deviation = self.deviation_for(fan_in, fan_out)
        if not self.uniform:
            return Normal(deviation).draw(shape, fan_in, fan_out, random)
        bound = math.sqrt(3.0) * deviation  # a uniform distribution on +-a has the variance a^2 / 3
        return Uniform(-bound, bound).draw(shape, fan_in, fan_out, random)


@dataclass(frozen=True)
class XavierNormal(Scaled):
    """Variance gain^2 * 2 / (fan_in + fan_out)."""

    gain: float = 1.0

    def deviation_for(self, fan_in: int, fan_out: int) -> float:
        return self.gain * math.sqrt(2.0 / (fan_in + fan_out))


@dataclass(frozen=True)
class XavierUniform(XavierNormal):
    """Uniform, of the same variance."""

    uniform = True


@dataclass(frozen=True)
class KaimingNormal(Scaled):
    """Variance gain^2 / fan, with the gain of `nonlinearity` (see GAINS); `fan` is "in" or "out"."""

    nonlinearity: str = "relu"
    fan: str = "in"

    def deviation_for(self, fan_in: int, fan_out: int) -> float:
        return GAINS[self.nonlinearity] / math.sqrt(fan_in if self.fan == "in" else fan_out)


@dataclass(frozen=True)
class KaimingUniform(KaimingNormal):
    """Uniform, of the same variance."""

    uniform = True
