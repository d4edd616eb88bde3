"""Recurrent networks: x[length, batch, input] run through a cell in one or two directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from .. import types
from ..dims import Dim
from ..opdef import OpDefinition, op
from ..types import Type
from .common import dtype_of, require_rank, shape_of
from .recurrent_numeric import gru, lstm, recur, rnn

if TYPE_CHECKING:
    from ..core import Operation
    from ..infer import InferenceContext


class Recurrent(OpDefinition):
    """Results: all hidden states [length, directions, batch, hidden], then the last of each state
    [directions, batch, hidden]. With layout=1 the batch comes first: [batch, length, directions, hidden].
    """

    gates: ClassVar[int] = 1
    states: ClassVar[int] = 1

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        dtype, x = dtype_of(op, 0, 1, 2), shape_of(op, 0)
        if dtype is None:
            return [types.UNKNOWN] * len(op.results)
        if x is None:
            x = (context.fresh(), context.fresh(), context.fresh())
        for index, shape in ((0, x), (1, shape_of(op, 1)), (2, shape_of(op, 2))):
            if shape is not None:
                require_rank(op, index, shape, 3)
        directions, hidden = self._directions(op), self._hidden(op, context)
        if op.attr("layout", 0):
            batch, length, _ = x
            every, last = [batch, length, directions, hidden], [batch, directions, hidden]
        else:
            length, batch, _ = x
            every, last = [length, directions, batch, hidden], [directions, batch, hidden]
        return [types.tensor(dtype, every), *[types.tensor(dtype, last)] * self.states]

    def _directions(self, op: Operation) -> int:
        return 2 if op.attr("direction", "forward") == "bidirectional" else 1

    def _hidden(self, op: Operation, context: InferenceContext) -> Dim:
        size, weights = op.attr("hidden_size"), shape_of(op, 2)
        if size:
            return int(size)
        return context.fresh() if weights is None else weights[-1]

    def flops(self, op: Operation) -> Dim | None:
        x, weights = shape_of(op, 0), shape_of(op, 2)
        if x is None or weights is None:
            return None
        hidden = weights[-1]
        products = 2 * self.gates * hidden * (x[2] + hidden)
        return x[0] * x[1] * self._directions(op) * (products + 8 * hidden)


@op("RNN")
class SimpleRecurrent(Recurrent):
    """h' = f(W x + R h + b)."""

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return recur(op, operands, rnn, self.states)


@op("GRU")
class GatedRecurrentUnit(Recurrent):
    """Cho et al. 2014 (arXiv 1406.1078)."""

    gates = 3

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return recur(op, operands, gru, self.states)


@op("LSTM")
class LongShortTermMemory(Recurrent):
    """Hochreiter and Schmidhuber 1997; the last cell state is a result, too."""

    gates = 4
    states = 2

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return recur(op, operands, lstm, self.states)
