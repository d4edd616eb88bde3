"""Optimizers, built as graph: what each makes of a parameter, its gradient and its own state, in one update.

Formulas are those of PyTorch's optimizers where that has one, so that numbers can be compared; numbers that all
parameters share (learning rate, bias corrections) are computed once, in f64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ...graph.diagnostics import UsageError
from .schedules import Schedule, as_schedule

if TYPE_CHECKING:
    from ...graph.core import Value
    from ...graph.model_builder import Tensor
    from .derivation import Derivation
    from .step_builder import StepBuilder


@dataclass
class Moment:
    """What an update may know besides its parameter: the learning rate and the number of this update (from 1), both one
    f64, and tensors that were built for another parameter already."""

    b: StepBuilder
    learning_rate: Tensor
    number: Tensor
    derivation: Derivation
    raw_grads: list[Value]  # as they were derived, before clipping and the like
    shared: dict[str, Tensor] = field(default_factory=dict)

    def once(self, name: str, build: Callable[[], Tensor]) -> Tensor:
        if name not in self.shared:
            self.shared[name] = build()
        return self.shared[name]

    def correction(self, beta: float) -> Tensor:
        """1 - beta^t: what a moving average that began at zero has to be divided by."""
        return self.once(f"1-{beta}^t", lambda: 1.0 - self.b.pow(self.b.const(np.array(beta)), self.number))


@dataclass
class Parameter:
    """One parameter during an update: its value, its gradient, and the optimizer's tensors for it by slot name."""

    name: str
    value: Tensor
    grad: Tensor
    slots: dict[str, Tensor]


@dataclass(frozen=True)
class Optimizer:
    """Base. `weight_decay` d adds d * w to the gradient, which is what d / 2 * |w|^2 in the loss would add; if it is
    `decoupled`, it shrinks w by learning_rate * d instead (Loshchilov and Hutter 2017). `decay_vectors=False` leaves
    biases and scales (rank below 2) alone.

    A subclass gives the names of its `slots` (tensors like the parameter, zeros at first) and `update_one`.
    """

    slots: ClassVar[tuple[str, ...]] = ()
    # Whether it looks at nothing but numbers: parameters, gradients, its own tensors.
    is_elementwise: ClassVar[bool] = True

    learning_rate: float | Schedule = 1e-2
    weight_decay: float = field(default=0.0, kw_only=True)
    decoupled: bool = field(default=False, kw_only=True)
    decay_vectors: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        """Raises UsageError for numbers with which it would not train."""
        for each in fields(self):
            number = getattr(self, each.name)
            if isinstance(number, bool) or not isinstance(number, int | float):
                continue
            is_average = each.name.startswith("beta") or each.name in ("alpha", "momentum", "dampening")
            if not 0 <= number < (1 if is_average else math.inf):
                wanted = "at least 0 and below 1" if is_average else "finite and at least 0"
                name = f"{type(self).__name__}({each.name}=...)"
                raise UsageError("optimizer/number", f"{name} is {wanted}, not {number}")

    def slot_names(self) -> tuple[str, ...]:
        return self.slots

    def rate(self, b: StepBuilder, updates: Tensor) -> Tensor:
        return as_schedule(self.learning_rate).build(b, updates)

    def update(self, at: Moment, parameters: Sequence[Parameter]) -> list[tuple[Tensor, dict[str, Tensor]]]:
        """The new value and the new slots of each parameter."""
        found = []
        for each in parameters:
            value, grad = self._decayed(at, each)
            found.append(self.update_one(at, value, grad, each.slots))
        return found

    def update_one(
        self, at: Moment, value: Tensor, grad: Tensor, slots: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        raise NotImplementedError

    def _decays(self, parameter: Parameter) -> bool:
        return bool(self.weight_decay) and (self.decay_vectors or len(parameter.value.shape or ()) >= 2)

    def _decayed(self, at: Moment, parameter: Parameter) -> tuple[Tensor, Tensor]:
        value, grad = parameter.value, parameter.grad
        if not self._decays(parameter):
            return value, grad
        if not self.decoupled:
            return value, grad + value * self.weight_decay
        shrunk = at.once("shrink", lambda: 1.0 - at.learning_rate * self.weight_decay)
        return value * at.b.like(shrunk, value), grad


@dataclass(frozen=True)
class SGD(Optimizer):
    """w - learning_rate * g"""

    def update_one(
        self, at: Moment, value: Tensor, grad: Tensor, slots: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return value - grad * at.b.like(at.learning_rate, value), {}


@dataclass(frozen=True)
class Momentum(Optimizer):
    """u' = beta u + (1 - dampening) g;  w - learning_rate * u'.

    dampening = beta makes u a moving average of gradients, which begins at zero (PyTorch's begins at the first
    gradient); `unbiased` then divides it by 1 - beta^t. `nesterov` steps along g + beta u' (Sutskever et al. 2013, as
    PyTorch has it).
    """

    slots = ("momentum",)

    beta: float = 0.9
    dampening: float = 0.0
    unbiased: bool = False
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unbiased and self.dampening != self.beta:
            raise UsageError("optimizer/unbiased", "unbiased momentum is of a moving average: give dampening=beta")

    def update_one(
        self, at: Moment, value: Tensor, grad: Tensor, slots: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        b = at.b
        new = slots["momentum"] * self.beta + (grad * (1 - self.dampening) if self.dampening else grad)
        along, rate = new, at.learning_rate
        if self.nesterov:
            along = grad + new * self.beta
        if self.unbiased:
            rate = at.once("rate", lambda: at.learning_rate / at.correction(self.beta))
        return value - along * b.like(rate, value), {"momentum": new}


@dataclass(frozen=True)
class Adam(Optimizer):
    """Kingma and Ba 2014, algorithm 1: moving averages of g and g^2, both unbiased."""

    slots = ("mean", "square")

    learning_rate: float | Schedule = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def update_one(
        self, at: Moment, value: Tensor, grad: Tensor, slots: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        b = at.b
        mean, square = self._averages(slots, grad)
        rate = at.once("rate", lambda: at.learning_rate / at.correction(self.beta1))
        root = at.once("root", lambda: b.sqrt(at.correction(self.beta2)))
        size = b.sqrt(square) / b.like(root, value) + self.epsilon
        return value - mean / size * b.like(rate, value), {"mean": mean, "square": square}

    def _averages(self, slots: dict[str, Tensor], grad: Tensor) -> tuple[Tensor, Tensor]:
        mean = slots["mean"] * self.beta1 + grad * (1 - self.beta1)
        square = slots["square"] * self.beta2 + grad * grad * (1 - self.beta2)
        return mean, square


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2017)."""

    weight_decay: float = field(default=1e-2, kw_only=True)
    decoupled: bool = field(default=True, kw_only=True)


@dataclass(frozen=True)
class LAMB(Adam):
    """You et al. 2019, algorithm 2: Adam's step, decay included, scaled to the norm of the parameter."""

    epsilon: float = 1e-6

    def update(self, at: Moment, parameters: Sequence[Parameter]) -> list[tuple[Tensor, dict[str, Tensor]]]:
        return [self._update(at, each) for each in parameters]

    def _update(self, at: Moment, parameter: Parameter) -> tuple[Tensor, dict[str, Tensor]]:
        b, value = at.b, parameter.value
        mean, square = self._averages(parameter.slots, parameter.grad)
        step = mean / b.like(at.correction(self.beta1), value)
        step = step / (b.sqrt(square / b.like(at.correction(self.beta2), value)) + self.epsilon)
        if self._decays(parameter):
            step = step + value * self.weight_decay
        norm, length = (b.sqrt(b.reduce_sum_square(each, keepdims=0)) for each in (value, step))
        zero = b.like(0.0, value)
        ratio = b.where(b.and_(norm > zero, length > zero), norm / length, b.like(1.0, value))
        moved = value - step * (ratio * b.like(at.learning_rate, value))
        return moved, {"mean": mean, "square": square}


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Duchi et al. 2011: g over the root of the sum of all g^2 so far."""

    slots = ("square",)

    epsilon: float = 1e-10

    def update_one(
        self, at: Moment, value: Tensor, grad: Tensor, slots: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        b = at.b
        square = slots["square"] + grad * grad
        return value - grad / (b.sqrt(square) + self.epsilon) * b.like(at.learning_rate, value), {"square": square}


@dataclass(frozen=True)
class RMSprop(Optimizer):
    """Tieleman and Hinton 2012: g over the root of a moving average of g^2, along a momentum if `momentum` is not 0."""

    alpha: float = 0.99
    epsilon: float = 1e-8
    momentum: float = 0.0

    def slot_names(self) -> tuple[str, ...]:
        return ("square", "momentum") if self.momentum else ("square",)

    def update_one(
        self, at: Moment, value: Tensor, grad: Tensor, slots: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        b = at.b
        square = slots["square"] * self.alpha + grad * grad * (1 - self.alpha)
        along, new = grad / (b.sqrt(square) + self.epsilon), {"square": square}
        if self.momentum:
            along = new["momentum"] = slots["momentum"] * self.momentum + along
        return value - along * b.like(at.learning_rate, value), new


def by_name(name: str, learning_rate: float | Schedule | None = None) -> Optimizer:
    """The optimizer that a command line calls `name`. Raises UsageError, with the names, for another."""
    from .newton import NewtonCG

    makers: dict[str, Callable[..., Optimizer]] = {
        "sgd": SGD,
        "momentum": Momentum,
        "nesterov": lambda **options: Momentum(nesterov=True, **options),
        "adam": Adam,
        "adamw": AdamW,
        "adagrad": Adagrad,
        "rmsprop": RMSprop,
        "lamb": LAMB,
        "newton-cg": NewtonCG,
    }
    if name not in makers:
        raise UsageError(
            "optimizer/unknown", f"there is no optimizer {name!r}", notes=[f"it is one of {', '.join(makers)}"]
        )
    return makers[name]() if learning_rate is None else makers[name](learning_rate=learning_rate)


OPTIMIZERS = ("sgd", "momentum", "nesterov", "adam", "adamw", "adagrad", "rmsprop", "lamb", "newton-cg")
