"""RNN, GRU and LSTM as Scans over time, with all their attributes (ONNX RNN-22, GRU-22, LSTM-22).

The products with the input are taken for all times at once, before the Scan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from ..core import Block, Operation, Region, Value
from ..dtypes import i64
from .builder import GradientBuilder, close_block
from .rules import parts_of

if TYPE_CHECKING:
    Function: TypeAlias = Callable[[GradientBuilder, Value], Value]
    Cell: TypeAlias = Callable[["Direction", GradientBuilder, Value, list[Value]], list[Value]]

_FUNCTIONS: dict[str, tuple[tuple[float, ...], Callable[..., Value]]] = {
    "relu": ((), lambda b, x: b.relu(x)),
    "tanh": ((), lambda b, x: b.tanh(x)),
    "sigmoid": ((), lambda b, x: b.sigmoid(x)),
    "softsign": ((), lambda b, x: b.softsign(x)),
    "softplus": ((), lambda b, x: b.softplus(x)),
    "leakyrelu": ((0.01,), lambda b, x, alpha: b.leaky_relu(x, alpha=alpha)),
    "thresholdedrelu": ((1.0,), lambda b, x, alpha: b.thresholded_relu(x, alpha=alpha)),
    "elu": ((1.0,), lambda b, x, alpha: b.elu(x, alpha=alpha)),
    "hardsigmoid": ((0.2, 0.5), lambda b, x, alpha, beta: b.hard_sigmoid(x, alpha=alpha, beta=beta)),
    "affine": ((1.0, 0.0), lambda b, x, alpha, beta: b.add(b.mul(x, alpha), beta)),
    "scaledtanh": ((1.0, 1.0), lambda b, x, alpha, beta: b.mul(b.tanh(b.mul(x, beta)), alpha)),
}
_DEFAULTS = {"RNN": ["tanh"], "GRU": ["sigmoid", "tanh"], "LSTM": ["sigmoid", "tanh", "tanh"]}


class Direction:
    """One direction of a recurrent operator: its parameters, outside of the Scan."""

    def __init__(self, op: Operation, b: GradientBuilder, index: int, gates: int) -> None:
        self.op = op
        _, w, r, bias = (*op.operands, None)[:4]
        at = b.integer(index)
        self.hidden = b.known_shape(r)[2]
        self.input_weight = b.transpose(b.gather(w, at), perm=[1, 0])
        self.recurrence = b.transpose(b.gather(r, at), perm=[1, 0])
        size = b.mul(b.dim(_present(r), 2), gates)
        sums = None if bias is None else b.split(b.gather(bias, at), b.concat(size, size, axis=0), outputs=2)
        self.input_bias: Value | None = None if sums is None else sums[0]
        self.state_bias: Value | None = None if sums is None else sums[1]
        peepholes = op.input(7) if op.op_type == "LSTM" else None
        self.peepholes: Sequence[Value] | None = None
        if peepholes is not None:
            self.peepholes = b.split(b.gather(peepholes, at), axis=0, num_outputs=3, outputs=3)
        self.functions = _activations(op)[index]
        self.option = bool(op.attr("linear_before_reset") or op.attr("input_forget"))

    def clip(self, b: GradientBuilder, x: Value) -> Value:
        limit = self.op.attr("clip")
        result: Value = x if limit is None else b.clip(x, -limit, limit)
        return result

    def project(self, b: GradientBuilder, x: Value) -> Value:
        found = b.matmul(x, self.input_weight)
        result: Value = found if self.input_bias is None else b.add(found, self.input_bias)
        return result


def _present(value: Value | None) -> Value:
    assert value is not None
    return value


def _biased(b: GradientBuilder, x: Value, bias: Value | None) -> Value:
    result: Value = x if bias is None else b.add(x, bias)
    return result


def _rnn(at: Direction, b: GradientBuilder, x: Value, states: list[Value]) -> list[Value]:
    carried = _biased(b, b.matmul(states[0], at.recurrence), at.state_bias)
    return [at.functions[0](b, at.clip(b, b.add(x, carried)))]


def _gru(at: Direction, b: GradientBuilder, x: Value, states: list[Value]) -> list[Value]:
    (h,) = states
    f, g = at.functions
    zx, rx, nx = b.split(x, axis=1, num_outputs=3, outputs=3)
    weights = b.split(at.recurrence, axis=1, num_outputs=3, outputs=3)
    biases = (None,) * 3 if at.state_bias is None else b.split(at.state_bias, axis=0, num_outputs=3, outputs=3)
    z = f(b, at.clip(b, b.add(zx, _biased(b, b.matmul(h, weights[0]), biases[0]))))
    r = f(b, at.clip(b, b.add(rx, _biased(b, b.matmul(h, weights[1]), biases[1]))))
    if at.option:
        carried = b.mul(r, _biased(b, b.matmul(h, weights[2]), biases[2]))
    else:
        carried = _biased(b, b.matmul(b.mul(r, h), weights[2]), biases[2])
    new = g(b, at.clip(b, b.add(nx, carried)))
    return [b.add(b.mul(b.sub(1.0, z), new), b.mul(z, h))]


def _lstm(at: Direction, b: GradientBuilder, x: Value, states: list[Value]) -> list[Value]:
    output, memory = states
    f, g, h = at.functions
    gates = b.add(x, _biased(b, b.matmul(output, at.recurrence), at.state_bias))
    i, o, forget, c = b.split(gates, axis=1, num_outputs=4, outputs=4)

    def seen(gate: Value, index: int, cell: Value) -> Value:
        result: Value = gate if at.peepholes is None else b.add(gate, b.mul(at.peepholes[index], cell))
        return result

    i = f(b, at.clip(b, seen(i, 0, memory)))
    forget = b.sub(1.0, i) if at.option else f(b, at.clip(b, seen(forget, 2, memory)))
    memory = b.add(b.mul(forget, memory), b.mul(i, g(b, at.clip(b, c))))
    o = f(b, at.clip(b, seen(o, 1, memory)))
    return [b.mul(o, h(b, memory)), memory]


def _activations(op: Operation) -> list[list[Function]]:
    """Per direction its functions; `activation_alpha` and `_beta` are used up in order by those that have one."""
    count = len(_DEFAULTS[op.op_type])
    directions = 2 if op.attr("direction") == "bidirectional" else 1
    given = op.attributes.get("activations") or _DEFAULTS[op.op_type] * directions
    alphas, betas = list(op.attr("activation_alpha") or ()), list(op.attr("activation_beta") or ())
    functions = [_bound(str(name).lower(), alphas, betas) for name in given]
    return [functions[start : start + count] for start in range(0, len(functions), count)]


def _bound(name: str, alphas: list[float], betas: list[float]) -> Function:
    defaults, function = _FUNCTIONS[name]
    given = [queue.pop(0) if queue else default for queue, default in zip((alphas, betas), defaults, strict=False)]
    return lambda b, x: function(b, x, *given)


def _parts(op: Operation, b: GradientBuilder, cell: Cell, gates: int, states: int) -> list[Value]:
    x, lengths, batch_first = _present(op.operands[0]), op.input(4), bool(op.attr("layout"))
    kind = op.attr("direction")
    directions = ["forward", "reverse"] if kind == "bidirectional" else [kind]
    if batch_first:
        x = b.transpose(x, perm=[1, 0, 2])
    outputs: list[Value] = []
    finals: list[list[Value]] = []
    for index, name in enumerate(directions):
        at = Direction(op, b, index, gates)
        initial = [_initial(op, b, index, x, op.input(5 + k), batch_first) for k in range(states)]
        projected = at.project(b, x)
        if name == "reverse":
            projected = _reversed(b, projected, lengths)
        stacked, final = _over_time(b, at, cell, projected, initial, lengths)
        outputs.append(_reversed(b, stacked, lengths) if name == "reverse" else stacked)
        finals.append(final)
    ones = b.ints([1])
    every = b.concat(*[b.unsqueeze(each, ones) for each in outputs], axis=1)
    axis = 1 if batch_first else 0
    last = [b.concat(*[b.unsqueeze(final[k], b.ints([axis])) for final in finals], axis=axis) for k in range(states)]
    return [b.transpose(every, perm=[2, 0, 1, 3]) if batch_first else every, *last]


def _initial(op: Operation, b: GradientBuilder, index: int, x: Value, given: Value | None, batch_first: bool) -> Value:
    if given is not None:
        result: Value = b.gather(given, b.integer(index), axis=1 if batch_first else 0)
        return result
    return b.filled(b.concat(b.dim(x, 1), b.dim(_present(op.operands[2]), 2), axis=0), x)


def _reversed(b: GradientBuilder, x: Value, lengths: Value | None) -> Value:
    """Times from last to first; of a shorter sequence only its own."""
    if lengths is None:
        result: Value = b.slice(x, b.ints([-1]), b.ints([-(2**63)]), b.ints([0]), b.ints([-1]))
        return result
    wide = lengths if b.dtype(lengths) is i64 else b.cast(lengths, to=i64)
    result = b.reverse_sequence(x, wide, batch_axis=1, time_axis=0)
    return result


def _over_time(
    b: GradientBuilder, at: Direction, cell: Cell, projected: Value, initial: list[Value], lengths: Value | None
) -> tuple[Value, list[Value]]:
    """All hidden states [length, batch, hidden], zero beyond the end of a sequence, and the final states."""
    shape = b.known_shape(projected)
    block = Block([state.type for state in initial])
    sources = [projected]
    row = block._add_argument(b.dtype(projected)[()].with_shape(shape[1:]))
    inner = b.inside(block)
    before = block.arguments[: len(initial)]
    after = cell(at, inner, row, list(before))
    shown = after[0]
    if lengths is not None:
        time = block._add_argument(i64[()])
        sources.append(b.arange(b.dim(projected, 0)))
        wide = lengths if b.dtype(lengths) is i64 else b.cast(lengths, to=i64)
        going = inner.unsqueeze(inner.less(time, wide), inner.ints([1]))
        shown = inner.where(going, after[0], inner.number(after[0], 0.0))
        after = [inner.where(going, new, old) for new, old in zip(after, before, strict=True)]
    else:
        shown = inner.identity(shown)
    close_block(inner, [*after, shown])
    found = b.create(
        "scan", [*initial, *sources], {"num_scan_inputs": len(sources)}, outputs=len(initial) + 1,
        regions={"body": Region(block)},
    ).results  # fmt: skip
    return found[-1], list(found[:-1])


@parts_of("RNN")
def rnn(op: Operation, b: GradientBuilder) -> Sequence[Value]:
    return _parts(op, b, _rnn, 1, 1)


@parts_of("GRU")
def gru(op: Operation, b: GradientBuilder) -> Sequence[Value]:
    return _parts(op, b, _gru, 3, 1)


@parts_of("LSTM")
def lstm(op: Operation, b: GradientBuilder) -> Sequence[Value]:
    return _parts(op, b, _lstm, 4, 2)


__all__ = ["gru", "lstm", "rnn"]
