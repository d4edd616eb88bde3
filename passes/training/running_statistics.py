"""The running mean and variance of BatchNormalization in training form, as states of a training step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...graph.diagnostics import UsageError
from ...graph.infer import InferenceContext, infer_types
from .parameters import data_of, initial_values

if TYPE_CHECKING:
    from ...graph.core import Operation, Value
    from ...graph.model_builder import Tensor
    from ...graph.module import Module
    from .step_builder import StepBuilder


def update_running_statistics(b: StepBuilder, module: Module, variance: str) -> None:
    """Make the statistics of each BatchNormalization in training form inputs, and what it makes of them outputs.

    `variance` says how the running variance counts a batch of n elements a channel: "population" divides by n, as ONNX
    says, "unbiased" by n - 1, as PyTorch does.
    """
    if variance not in ("population", "unbiased"):
        raise UsageError("train/bn-variance", f"bn_variance is population or unbiased, not {variance!r}")
    for op in module.main.block:
        if op.name != "batch_normalization" or not op.attr("training_mode"):
            continue
        states = [_as_state(b, module, op, index) for index in (3, 4)]
        if None in states:
            continue
        _complete(op, module)
        following = op.next
        b.before(following)
        b.location = op.location
        new = [b.tensor(result) for result in op.results[1:3]]
        if variance == "unbiased":
            new = _unbiased(b, op, states)
        for state, updated in zip(states, new, strict=True):
            assert state is not None
            b.update(state, updated)
        b.before(None)


def _as_state(b: StepBuilder, module: Module, op: Operation, index: int) -> Tensor | None:
    """The statistics at operand `index` as a state; None if they are computed by the model."""
    value = op.operands[index]
    assert value is not None
    name = value.name
    if value.is_argument:
        known = value in module.main.defaults and name not in b.updates
        return b.tensor(value) if known else None
    if name is None or name not in initial_values(module):
        return None
    data = data_of(module, value)
    value.name = None
    state = b.state(name, data)
    for use in value.uses:
        use.user._set_operand(use.position, state.value)
    if value.producer is not None:
        value.producer._erase()
    return state


def _complete(op: Operation, module: Module) -> None:
    """Give `op` its results 1 and 2 if it has them not."""
    for index in range(len(op.results), 3):
        source: Value | None = op.operands[index + 2]
        assert source is not None
        op._add_results([source.type])
    types = infer_types(op, InferenceContext(module.symbols))
    for result, type in zip(op.results, types, strict=True):
        if result.name == "":
            result.name = None
        result.type = type


def _unbiased(b: StepBuilder, op: Operation, states: list[Tensor | None]) -> list[Tensor]:
    """m * running + (1 - m) * batch, where the variance of the batch is times n / (n - 1). With momentum 0 the operator
    gives the statistics of the batch as they are, whatever its operands: it gets some of its own, since ONNX Runtime
    writes these results over those operands, which others would read."""
    momentum = float(op.attr("momentum"))
    op.attributes["momentum"] = 0.0
    following = op.next
    b.before(op)
    for index, state in zip((3, 4), states, strict=True):
        assert state is not None
        op._set_operand(index, b.neg(state).value)
    b.before(following)
    x = op.operands[0]
    assert x is not None
    dims = b.shape(b.tensor(x))
    elements = b.div(b.size(b.tensor(x)), b.squeeze(b.slice(dims, *_one(1), *_one(2)), *_one(0)))
    batch = [b.tensor(result) for result in op.results[1:3]]
    count = b.like(elements, batch[1])
    batch[1] = batch[1] * (count / (count - 1.0))
    found = []
    for state, new in zip(states, batch, strict=True):
        assert state is not None
        found.append(state * momentum + new * (1 - momentum))
    return found


def _one(item: int) -> tuple[np.ndarray]:
    return (np.array([item], np.int64),)
