"""The part of RNN, GRU and LSTM that goes from step to step; what the inputs contribute is a product made before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..opdef import op
from ..ops import recurrent_numeric
from ..ops.numeric import summable
from .kernel_base import KernelOp, Known

if TYPE_CHECKING:
    from ..core import Operation
    from .strided import Shape

GATES = {"rnn": 1, "gru": 3, "lstm": 4}


@op("recurrent", domain="kernel")
class Recurrent(KernelOp):
    """`inputs` [directions, length, batch, gates * hidden] are x W^T and the biases; `r` [directions, gates * hidden,
    hidden]. The states `h` (and LSTM's `c`) are [directions, batch, hidden]; `bias` [directions, hidden] is that of a
    GRU's hidden gate with `option`; `lengths` is how many steps each batch row has.

    `kind` is rnn, gru or lstm, `direction` forward, reverse or bidirectional, `option` GRU's linear_before_reset or
    LSTM's input_forget. `activations` are those of one direction, in small letters, with alphas and betas. Results: all
    states [length, directions, batch, hidden], then the last ones.
    """

    inputs = ("inputs", "r", "h", "c?", "bias?", "peepholes?", "lengths?")
    outputs = ("y", "last*")
    attributes: ClassVar[dict[str, Any]] = {
        "kind": None, "direction": "forward", "activations": ("tanh",), "alphas": (0.0,), "betas": (0.0,), "option": 0,
        "clip": 0.0,
    }  # fmt: skip
    fixed = 7

    def result_shapes(self, op: Operation, shapes: Sequence[Shape], known: Known) -> list[Shape]:
        directions, length, batch, rows = shapes[0]
        hidden = shapes[1][2]
        if rows != GATES[str(op.attr("kind"))] * hidden:
            raise ValueError(f"{rows} numbers of a step for {hidden} hidden units")
        state, gates = (directions, batch, hidden), {"gru": 0, "rnn": 0, "lstm": 3}[str(op.attr("kind"))]
        # r, the states, the bias, the peepholes, the lengths
        wanted = [
            (directions, rows, hidden),
            state,
            state,
            (directions, hidden),
            (directions, gates * hidden),
            (batch,),
        ]
        for index, (shape, needed) in enumerate(zip(shapes[1:], wanted, strict=False), 1):
            if op.input(index) is not None and tuple(shape) != needed:
                raise ValueError(f"operand {index} is {list(shape)}, not {list(needed)}")
        return [(length, directions, batch, hidden), *[(directions, batch, hidden)] * (len(op.results) - 1)]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        padded: list[Any] = [*operands, *[None] * (7 - len(operands))]
        inputs, r, h, c, bias, peepholes, lengths = padded
        length, batch = inputs.shape[1:3]
        counts = np.full(batch, length) if lengths is None else np.asarray(lengths)
        kind = str(op.attr("kind"))
        places = recurrent_numeric.places(str(op.attr("direction")), length, counts)
        hidden, limit = r.shape[2], op.attr("clip")

        def clip(x: np.ndarray) -> np.ndarray:
            return np.clip(x, -limit, limit) if limit else x

        y = np.zeros((length, len(r), batch, hidden), inputs.dtype)
        final: list[list[np.ndarray]] = [[], []]
        for direction in range(len(r)):
            rows = r.shape[1]
            state_bias = np.zeros(rows, r.dtype)
            if bias is not None:
                state_bias[-hidden:] = bias[direction]
            holes = np.zeros(3 * hidden, r.dtype) if peepholes is None else peepholes[direction]
            functions = [
                recurrent_numeric.activation(name, alpha, beta)
                for name, alpha, beta in zip(op.attr("activations"), op.attr("alphas"), op.attr("betas"), strict=True)
            ]
            cell = recurrent_numeric.Cell(
                summable(r[direction]), np.zeros(rows, r.dtype), state_bias, holes, functions,
                clip, bool(op.attr("option")),
            )  # fmt: skip
            step = {"rnn": recurrent_numeric.rnn, "gru": recurrent_numeric.gru, "lstm": recurrent_numeric.lstm}[kind](
                cell
            )
            current = [h[direction], *([c[direction]] if kind == "lstm" else [])]
            current = recurrent_numeric.run_steps(
                step, inputs[direction], current, places[direction], counts, y[:, direction]
            )
            for column, state in zip(final, current, strict=False):
                column.append(state)
        states = [np.stack(column).astype(inputs.dtype) for column in final if column]
        return (y, *states)[: len(op.results)]
