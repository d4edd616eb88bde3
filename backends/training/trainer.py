"""`Trainer` runs a training step again and again, and keeps its parameters and state in between."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...graph.diagnostics import ExecutionError, UsageError, listed
from ...passes.training.parameters import with_values
from ...passes.training.step import Roles
from ..model_source import ModelLike, open_model
from ..target import compile_module, compile_step

if TYPE_CHECKING:
    from ...graph.module import Module
    from ..executable import Executable


class Trainer:
    """Runs `step`, a module from `tilewright.train.step` or a file it was saved in, on `target`.

    `state` holds each parameter and each tensor of the optimizer, by the name of the step's input. On the cpu a step
    changes these arrays where they are, so copy what you want to keep. A step whose loss is not finite raises
    ExecutionError and leaves the state as it was; with `detect_anomaly` also one that makes a NaN or an infinity
    anywhere in the state, and the error names the operation that made the first.
    """

    def __init__(
        self, step: ModelLike, target: str = "cpu", threads: int | None = None, *, detect_anomaly: bool = False
    ) -> None:
        self.module = open_model(step).module
        self.roles = Roles.of(self.module)
        self.detect_anomaly = detect_anomaly
        self._one_at_a_time = threading.Lock()  # a step begins with the state that the one before it left
        self.executable = self._compiled(target, threads)
        defaults = {str(argument.name): data for argument, data in self.module.main.defaults.items()}
        missing = [name for name in self.roles.state if name not in defaults]
        if missing:
            raise UsageError("train/no-state", f"the step gives no first value for {missing[0]!r}")
        self.state: dict[str, np.ndarray] = {name: defaults[name].numpy().copy() for name in self.roles.state}
        # The arrays that nobody else may have.
        self._own: dict[str, np.ndarray] = dict(self.state)

    def __repr__(self) -> str:
        count = sum(self.state[name].size for name in self.roles.parameters)
        return f"<Trainer on {self.executable.target} of {count:,} parameters, for {', '.join(self.data_inputs)}>"

    def _compiled(self, target: str, threads: int | None) -> Executable:
        """The step, in the form that updates in place where there is one; only the loss is looked at before that."""
        updates = None if self.detect_anomaly else {output: name for name, output in self.roles.state.items()}
        if target != "cpu" or updates is None:
            return compile_module(self.module, target, threads)
        return compile_step(self.module, threads, updates, self.roles.loss)

    @property
    def parameters(self) -> dict[str, np.ndarray]:
        """Copies of the parameters as they are now."""
        return {name: self.state[name].copy() for name in self.roles.parameters}

    @property
    def data_inputs(self) -> list[str]:
        """The inputs that each batch has to give."""
        return [port.name for port in self.executable.inputs if port.name not in self.state and port.required]

    def step(self, batch: Mapping[str, Any]) -> float:
        """Train on one batch; the loss before the update."""
        loss = self.run(batch)[self.roles.loss]
        return float(np.asarray(loss).reshape(()))

    def run(self, batch: Mapping[str, Any], outputs: Sequence[str] = ()) -> dict[str, Any]:
        """Train on one batch; the loss, and those of the model's outputs that `outputs` names.

        Raises UsageError for a target that is no class and for a batch without elements, ExecutionError from the step.
        """
        self._check_batch(batch)
        check_classes(self.roles, batch)
        with self._one_at_a_time:
            made = self._run_in_place(batch, [self.roles.loss, *outputs])
            if made is not None:
                return made
            feeds = {**batch, **self.state}
            results = self.executable.run(feeds, [self.roles.loss, *outputs, *self.roles.state.values()])
            new = {name: results[output] for name, output in self.roles.state.items()}
            self._check(feeds, results[self.roles.loss], new)
            self.state, self._own = new, dict(new)
            return {name: results[name] for name in (self.roles.loss, *outputs)}

    def _run_in_place(self, batch: Mapping[str, Any], outputs: Sequence[str]) -> dict[str, Any] | None:
        """The outputs of a step that writes the new state where the old one was; None if there is no such step."""
        update = getattr(self.executable, "update", None)
        if update is None:
            return None
        for name, array in self.state.items():
            if self._own.get(name) is not array:
                dtype = self._own[name].dtype if name in self._own else None
                self.state[name] = self._own[name] = np.array(array, dtype, order="C")
        feeds = {**batch, **self.state}

        def check(loss: Any) -> None:
            if not math.isfinite(loss.item()):
                self._check(feeds, loss, {})

        found: dict[str, Any] | None = update(feeds, outputs, check)
        return found

    def _check_batch(self, batch: Any) -> None:
        if not isinstance(batch, Mapping):
            wanted = ", ".join(f"{name!r}: ..." for name in self.data_inputs)
            raise UsageError("data/batch", f"a batch is a dict, {{{wanted}}}, not {type(batch).__name__}")
        for name, array in batch.items():
            if isinstance(array, np.ndarray) and not array.size:
                raise UsageError("data/empty", f"{name!r} has no elements: its shape is {array.shape}")

    def _check(self, feeds: Mapping[str, Any], loss: Any, new: Mapping[str, np.ndarray]) -> None:
        finite = bool(np.isfinite(np.asarray(loss, np.float64)).all())
        if finite and not (self.detect_anomaly and any(not _is_finite(array) for array in new.values())):
            return
        if not self.detect_anomaly:
            hint = "detect_anomaly=True (--detect-anomaly) names the operation that made the first such number"
            message = f"the loss is {float(np.asarray(loss).reshape(()))}"
            raise ExecutionError("train/not-finite", message, notes=[*self._reasons(feeds), hint])
        from .anomaly import first_bad_number

        raise first_bad_number(self.module, feeds)

    def _reasons(self, feeds: Mapping[str, Any]) -> list[str]:
        """What of the batch and the state explains a loss that is no number."""
        reasons = []
        bad = self.not_finite()
        if bad:
            reasons.append(f"an earlier update made numbers in {listed(bad)} that are not finite, by its gradients")
        for name, (_, ignored) in self.roles.classes.items():
            if ignored is not None and name in feeds and (np.asarray(feeds[name]) == ignored).all():
                reasons.append(f"every element of {name!r} is {ignored}, which does not count: a mean of nothing")
        return reasons

    def not_finite(self) -> list[str]:
        """The tensors of the state that hold a NaN or an infinity, by name."""
        return [name for name, array in self.state.items() if not _is_finite(array)]

    def load_state(self, state: Mapping[str, np.ndarray], what: str = "this state") -> None:
        """Go on from `state`. Raises UsageError, which calls it `what`, unless it has exactly this step's tensors."""
        findings = {
            "it lacks": [name for name in self.state if name not in state],
            "only it has": [name for name in state if name not in self.state],
            "of another shape or type are": [
                name for name in self.state if name in state and _kind(state[name]) != _kind(self.state[name])
            ],
        }
        notes = [f"{text} {listed(names)}" for text, names in findings.items() if names]
        if notes:
            hint = "the model, the optimizer, the parameters and how gradients are accumulated have to be the same"
            raise UsageError("train/state", f"{what} is of another training step", notes=[*notes, hint])
        self.state = {name: np.array(state[name], order="C") for name in self.state}
        self._own = dict(self.state)

    def trained(self, model: ModelLike) -> Module:
        """A copy of `model`, which the step was made of, with the parameters and running statistics as they are now."""
        return with_values(open_model(model).module, self.state)


def check_classes(roles: Roles, batch: Mapping[str, Any]) -> None:
    """Raises UsageError data/class for a target that names a class which the model has no score for."""
    for name, (count, ignored) in roles.classes.items():
        labels = np.asarray(batch[name]) if name in batch else np.zeros(0, np.int64)
        if labels.dtype.kind not in "iu":
            continue  # the executable tells what type it takes
        if labels.dtype == np.int64 and not (labels.view(np.uint64) >= count).any():
            continue
        wrong = (labels < 0) | (labels >= count)
        if ignored is not None:
            wrong &= labels != ignored
        if not wrong.any():
            continue
        place = tuple(int(index) for index in np.argwhere(wrong)[0])
        where = f"{name!r}[{', '.join(map(str, place))}]" if place else repr(name)
        message = f"{where} is {labels[place]}, but the classes are 0 to {count - 1}"
        hints = [f"{int(wrong.sum())} of {labels.size} elements are out of range"]
        if ignored is None:
            hints.append("nn.CrossEntropyLoss(ignore_index=...) leaves the elements of one number out")
        raise UsageError("data/class", message, notes=hints)


def _is_finite(array: np.ndarray) -> bool:
    return array.dtype.kind in "iub" or bool(np.isfinite(array.astype(np.float64)).all())


def _kind(array: Any) -> tuple[Any, ...]:
    return np.shape(array), np.asarray(array).dtype
