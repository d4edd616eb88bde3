"""drop-zero-states: a recurrent operation starts from zeros anyway. Level onnx.

Exporters compute the zeros from the batch size, in half a dozen operations. "If not specified - assumed to be 0" (ONNX
operators RNN, GRU and LSTM, inputs `initial_h` and `initial_c`).

Invariant: every element is shown to be +0.0; the zeros may be expanded, cut and moved.

    %0 = constant_of_shape %s : f32[2, n, 32]
    %y, %h = gru %x, %w, %r, %b, none, %0 : ...      ->      %y, %h = gru %x, %w, %r, %b : ...
"""

from __future__ import annotations

import numpy as np

from ..graph.builder import OpBuilder
from ..graph.core import Value
from ..graph.data import TensorData
from .base import RulePass
from .rules import Match, OpRule, Replacement, Verdict

# Where the initial states stand: initial_h, and initial_c of LSTM.
STATES = (5, 6)
# What gives elements of its first operand and no others.
MOVING = frozenset(
    {"expand", "flatten", "gather", "identity", "reshape", "slice", "squeeze", "tile", "transpose", "unsqueeze"}
)
# Longer chains are no exporter's.
MAX_STEPS = 16
# Larger constants are not read for this.
MAX_BYTES = 1 << 20


class OmitZeroState(OpRule):
    """gru(x, w, r, b, lengths, zeros) -> gru(x, w, r, b, lengths), likewise rnn and lstm"""

    root = ("rnn", "gru", "lstm")

    def when(self, m: Match) -> Verdict:
        return bool(_zero_states(m)) or m.fail("no initial state is shown to be zero", m.root)

    def build(self, b: OpBuilder, m: Match) -> Replacement:
        for position in _zero_states(m):
            m.rewriter.set_operand(m.root, position, None)
        return None


def _zero_states(m: Match) -> list[int]:
    return [position for position in STATES if is_zero(m.root.input(position), m)]


def is_zero(value: Value | None, m: Match) -> bool:
    """Whether every element of `value` is certainly +0.0."""
    for _ in range(MAX_STEPS):
        if value is None:
            return False
        producer = value.producer
        data = m.inference.data(value)
        if data is not None:
            return _holds_zeros(data)
        if producer is None:
            return False
        if producer.name == "constant_of_shape":
            given = producer.attr("value")
            return given is None or (isinstance(given, TensorData) and _holds_zeros(given))
        if producer.name not in MOVING:
            return False
        value = producer.operands[0]
    return False


def _holds_zeros(data: TensorData) -> bool:
    if data.nbytes > MAX_BYTES or data.dtype.kind != "float":
        return False
    elements = data.numpy()
    return (
        bool(elements.size) and not bool(np.any(elements)) and not bool(np.signbit(elements.astype(np.float64)).any())
    )


class DropZeroStates(RulePass):
    """Leave out initial states of zeros."""

    name = "drop-zero-states"
    rules = (OmitZeroState,)
