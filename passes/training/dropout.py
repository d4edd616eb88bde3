"""Dropout in training form, drawn from a counter: the same masks wherever the step runs.

ONNX's Dropout leaves its random numbers to the runtime. Here each one becomes a product with a mask that depends on the
seed, the Dropout's place in the model, the number of the step and the element, by `graph.nn.random`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...graph.diagnostics import Diagnostic, UsageError
from ...graph.dtypes import f64, u64
from ...graph.infer import InferenceContext
from ...graph.nn.random import keep_mask, stream_key

if TYPE_CHECKING:
    from ...graph.core import Operation
    from ...graph.model_builder import Tensor
    from ...graph.module import Module
    from .step_builder import StepBuilder


def in_training(op: Operation, context: InferenceContext) -> bool | None:
    """Whether a Dropout drops anything; None if an input of the model says so."""
    training = op.input("training_mode")
    if training is None:
        return False
    known = context.constant(training)
    return None if known is None else bool(known.any())


def training_dropouts(module: Module) -> list[Operation]:
    """The Dropouts of the main graph in training form. Raises UsageError for those inside of If, Loop or Scan, whose
    masks would repeat, and for those that an input turns on."""
    context = InferenceContext(module.symbols)
    found, wrong = [], []
    for op in module.main.walk():
        if op.name != "dropout" or in_training(op, context) is False:
            continue
        if op.parent is not module.main.block:
            wrong.append(Diagnostic("train/dropout", "a Dropout in training form is inside of a subgraph", op.location))
        elif in_training(op, context) is None:
            wrong.append(Diagnostic("train/dropout", "an input decides whether this Dropout drops", op.location))
        found.append(op)
    if wrong:
        raise UsageError.collect(wrong)
    return found


def replace_dropouts(b: StepBuilder, ops: list[Operation], step: Tensor, seed: int) -> None:
    """Put masks drawn from (`seed`, place of the operation, `step`) in the place of each Dropout's own."""
    high: Tensor | None = None
    for index, op in enumerate(ops):
        b.before(op)
        if high is None:
            b.location = op.location
            # A step is counted in i64; the second word of the counter takes 32 bits of it.
            high = b.bitwise_and(b.cast(step, to=u64), np.array(0xFFFFFFFF, np.uint64))
        b.location = op.location
        x, ratio = op.operands[0], op.input("ratio")
        assert x is not None
        value = b.tensor(x)
        chance = 1.0 - (b.const(np.array(0.5)) if ratio is None else b.cast(b.tensor(ratio), to=f64))
        mask = keep_mask(b, value, chance, high, stream_key(seed, index))
        scale = b.like(1.0, value) / b.like(chance, value)
        kept = value * (b.like(mask, value) * scale)
        for result, new in zip(op.results, (kept, mask), strict=False):
            for use in result.uses:
                use.user._set_operand(use.position, new.value)
            result.name = None
        op._erase()
    b.before(None)
