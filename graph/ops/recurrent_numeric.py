"""The numpy meaning of RNN, GRU and LSTM with all their attributes (ONNX RNN-22, GRU-22, LSTM-22).

onnx.reference leaves out sequence lengths, clipping, coupled gates and other activations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..diagnostics import ExecutionError
from .numeric import summable

if TYPE_CHECKING:
    from ..core import Operation

Function: TypeAlias = Callable[[np.ndarray], np.ndarray]
# The states of all batch rows: the hidden state, and for LSTM the cell state.
States: TypeAlias = list[np.ndarray]
# One step: the pre-activations of the input, [batch, gates * hidden], and the states; gives the new states.
Step: TypeAlias = Callable[[np.ndarray, States], States]


def recur(op: Operation, operands: Sequence[Any], cell: Callable[[Cell], Step], states: int) -> tuple[np.ndarray, ...]:
    """Y [length, directions, batch, hidden] and the final states [directions, batch, hidden]; with `layout` 1 the
    batch comes first. `operands` are X, W, R, B, sequence_lens, the initial states, and LSTM's peepholes."""
    padded: list[Any] = [*operands, *[None] * (8 - len(operands))]
    x, w, r, bias, lengths = padded[:5]
    rest = padded[5:]
    batch_first = bool(op.attr("layout"))
    inputs = summable(x).swapaxes(0, 1) if batch_first else summable(x)
    length, batch = inputs.shape[:2]
    hidden = r.shape[2]
    counts = np.full(batch, length) if lengths is None else np.asarray(lengths)
    places_ = places(str(op.attr("direction")), length, counts)
    outputs = np.zeros((length, len(w), batch, hidden), inputs.dtype)
    final: list[list[np.ndarray]] = [[] for _ in range(states)]
    functions = _activations(op, len(w))
    for direction in range(len(w)):
        step = cell(Cell.of(op, direction, (r, bias, rest[2]), functions[direction]))
        current = [_initial(rest[k], direction, batch, hidden, inputs.dtype, batch_first) for k in range(states)]
        projected = inputs @ summable(w[direction]).T
        current = run_steps(step, projected, current, places_[direction], counts, outputs[:, direction])
        for column, state in zip(final, current, strict=True):
            column.append(state)
    stacked = [np.stack(column) for column in final]
    if batch_first:
        outputs = outputs.transpose(2, 0, 1, 3)
        stacked = [state.swapaxes(0, 1) for state in stacked]
    return tuple(result.astype(x.dtype) for result in (outputs, *stacked))


def run_steps(
    step: Step, inputs: np.ndarray, states: States, places: np.ndarray, counts: np.ndarray, outputs: np.ndarray
) -> States:
    """The last states of one direction; `outputs` [length, batch, hidden] receives those of all steps.

    `inputs` [length, batch, gates * hidden] are what x contributes, `places` the time that each batch row reads at each
    step, `counts` how many steps it has.
    """
    for time, place in enumerate(places):
        going = (time < counts)[:, None]
        after = step(inputs[place, np.arange(len(counts))], states)
        states = [np.where(going, new, old) for new, old in zip(after, states, strict=True)]
        rows = np.flatnonzero(going)
        outputs[place[rows], rows] = states[0][rows]
    return states


def places(direction: str, length: int, counts: np.ndarray) -> list[np.ndarray]:
    """Per direction, [length, batch]: which time each batch row reads at each step."""
    forward = np.repeat(np.arange(length)[:, None], len(counts), axis=1)
    backward = np.where(forward < counts, counts - 1 - forward, forward)
    return {"forward": [forward], "reverse": [backward], "bidirectional": [forward, backward]}[direction]


def _initial(given: Any, direction: int, batch: int, hidden: int, dtype: np.dtype, batch_first: bool) -> np.ndarray:
    if given is None:
        return np.zeros((batch, hidden), dtype)
    return summable(given[:, direction] if batch_first else given[direction])


# ---- cells -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """The parameters of one direction: R [gates * hidden, hidden], the biases of input and state, LSTM's peepholes."""

    recurrence: np.ndarray
    input_bias: np.ndarray
    state_bias: np.ndarray
    peepholes: np.ndarray
    functions: Sequence[Function]
    clip: Function
    option: bool  # GRU's linear_before_reset, LSTM's input_forget

    @classmethod
    def of(cls, op: Operation, direction: int, parameters: tuple[Any, ...], functions: Sequence[Function]) -> Cell:
        r, bias, peepholes = parameters
        rows, hidden = r.shape[1:]
        recurrence = summable(r[direction])
        biases = np.zeros(2 * rows, recurrence.dtype) if bias is None else summable(bias[direction])
        holes = np.zeros(3 * hidden, recurrence.dtype) if peepholes is None else summable(peepholes[direction])
        limit = op.attr("clip")
        clip: Function = (lambda x: x) if limit is None else (lambda x: np.clip(x, -limit, limit))
        option = bool(op.attr("linear_before_reset") or op.attr("input_forget"))
        return cls(recurrence, biases[:rows], biases[rows:], holes, functions, clip, option)


def rnn(cell: Cell) -> Step:
    (f,) = cell.functions

    def step(x: np.ndarray, states: States) -> States:
        return [f(cell.clip(x + cell.input_bias + states[0] @ cell.recurrence.T + cell.state_bias))]

    return step


def gru(cell: Cell) -> Step:
    """Cho et al. 2014 (arXiv 1406.1078); gates in the order update, reset, hidden."""
    f, g = cell.functions
    hidden = cell.recurrence.shape[1]
    update_reset, candidate = cell.recurrence[: 2 * hidden].T, cell.recurrence[2 * hidden :].T

    def step(x: np.ndarray, states: States) -> States:
        (h,) = states
        x = x + cell.input_bias
        gates = f(cell.clip(x[:, : 2 * hidden] + h @ update_reset + cell.state_bias[: 2 * hidden]))
        z, r = gates[:, :hidden], gates[:, hidden:]
        bias = cell.state_bias[2 * hidden :]
        carried = r * (h @ candidate + bias) if cell.option else (r * h) @ candidate + bias
        new = g(cell.clip(x[:, 2 * hidden :] + carried))
        return [(1 - z) * new + z * h]

    return step


def lstm(cell: Cell) -> Step:
    """Hochreiter & Schmidhuber 1997 with peepholes (Gers & Schmidhuber 2000); gates input, output, forget, cell."""
    f, g, h = cell.functions
    peep_input, peep_output, peep_forget = np.split(cell.peepholes, 3)

    def step(x: np.ndarray, states: States) -> States:
        output, memory = states
        gates = x + cell.input_bias + output @ cell.recurrence.T + cell.state_bias
        i, o, forget, c = np.split(gates, 4, axis=1)
        i = f(cell.clip(i + peep_input * memory))
        forget = 1 - i if cell.option else f(cell.clip(forget + peep_forget * memory))
        memory = forget * memory + i * g(cell.clip(c))
        o = f(cell.clip(o + peep_output * memory))
        return [o * h(memory), memory]

    return step


# ---- activations -----------------------------------------------------------------------------------------------------


def _sigmoid(x: np.ndarray) -> np.ndarray:
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1 / (1 + small), small / (1 + small)))


# Name -> defaults of alpha and beta (those it has), and the function.
_FUNCTIONS: dict[str, tuple[tuple[float, ...], Callable[..., np.ndarray]]] = {
    "relu": ((), lambda x: np.maximum(x, 0)),
    "tanh": ((), np.tanh),
    "sigmoid": ((), _sigmoid),
    "softsign": ((), lambda x: x / (1 + np.abs(x))),
    "softplus": ((), lambda x: np.logaddexp(x, x.dtype.type(0))),
    "leakyrelu": ((0.01,), lambda x, alpha: np.where(x < 0, alpha * x, x)),
    "thresholdedrelu": ((1.0,), lambda x, alpha: np.where(x >= alpha, x, 0)),
    "elu": ((1.0,), lambda x, alpha: np.where(x < 0, alpha * (np.exp(np.minimum(x, 0)) - 1), x)),
    "hardsigmoid": ((0.2, 0.5), lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1)),
    "affine": ((1.0, 0.0), lambda x, alpha, beta: alpha * x + beta),
    "scaledtanh": ((1.0, 1.0), lambda x, alpha, beta: alpha * np.tanh(beta * x)),
}
_DEFAULTS = {"RNN": ["tanh"], "GRU": ["sigmoid", "tanh"], "LSTM": ["sigmoid", "tanh", "tanh"]}


def activations(op: Operation) -> list[tuple[str, float, float]]:
    """The functions of all directions, one after the other: names in small letters, alpha and beta.

    `activation_alpha` and `_beta` are used up in order by those that have one. Raises ExecutionError.
    """
    # The schema's own default for RNN has a second activation for a second direction that may not be there.
    directions = 2 if op.attr("direction") == "bidirectional" else 1
    given = op.attributes.get("activations") or _DEFAULTS[op.op_type] * directions
    names = [str(name).lower() for name in given]
    count = len(_DEFAULTS[op.op_type])
    if len(names) != count * directions:
        raise ExecutionError("run/activations", f"{op.name} needs {count * directions} activations, got {len(names)}")
    alphas, betas = list(op.attr("activation_alpha") or ()), list(op.attr("activation_beta") or ())
    found = []
    for name in names:
        if name not in _FUNCTIONS:
            raise ExecutionError("run/activations", f"{op.name} has no activation called {name!r}")
        defaults, _ = _FUNCTIONS[name]
        used = [queue.pop(0) if queue else default for queue, default in zip((alphas, betas), defaults, strict=False)]
        alpha, beta = [*used, 0.0, 0.0][:2]
        found.append((name, alpha, beta))
    return found


def activation(name: str, alpha: float, beta: float) -> Function:
    """The function of an activation with its parameters; those that it does not have are ignored."""
    defaults, function = _FUNCTIONS[name]
    return lambda x: np.asarray(function(x, *(alpha, beta)[: len(defaults)]))


def _activations(op: Operation, directions: int) -> list[list[Function]]:
    """Per direction its functions."""
    functions = [activation(*each) for each in activations(op)]
    count = len(functions) // directions
    return [functions[start : start + count] for start in range(0, len(functions), count)]
