"""RNN, GRU and LSTM against their numpy meaning, with every option."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from loop_running import NARROW, WIDE, WIDTHS, run_both, run_compiled

import tilewright
from tilewright.backends.cpu.kernels.recurrent import (
    GATES,
    Recurrent,
    build_recurrent,
    packed_recurrence,
    recurrent_arguments,
    recurrent_rows,
    recurrent_scratch,
    recurrent_units,
)
from tilewright.backends.cpu.machine import machine_of_width
from tilewright.graph import opdef, types
from tilewright.graph.core import Operation
from tilewright.graph.dtypes import f32

random = np.random.default_rng(29)
ACTIVATIONS = {"rnn": ("Tanh",), "gru": ("Sigmoid", "Tanh"), "lstm": ("Sigmoid", "Tanh", "Tanh")}


def check(
    kind: str, length: int = 3, batch: int = 2, hidden: int = 5, rows: int = 1, width: int = 256, both: bool = True,
    direction: str = "forward", lengths: list[int] | None = None, peepholes: bool = False, clip: float | None = None,
    option: bool = False, names: tuple[str, ...] | None = None, alpha: float = 0.0, beta: float = 0.0,
) -> None:  # fmt: skip
    directions, gates, size = 2 if direction == "bidirectional" else 1, GATES[kind], 4
    x = random.normal(size=(length, batch, size)).astype(np.float32)
    w = random.normal(size=(directions, gates * hidden, size)).astype(np.float32) * 0.5
    r = random.normal(size=(directions, gates * hidden, hidden)).astype(np.float32) / hidden**0.5
    bias = random.normal(size=(directions, 2 * gates * hidden)).astype(np.float32) * 0.1
    h0, c0 = (random.normal(size=(directions, batch, hidden)).astype(np.float32) for _ in range(2))
    holes = random.normal(size=(directions, 3 * hidden)).astype(np.float32)
    counts = None if lengths is None else np.array(lengths, np.int32)
    chosen = names or ACTIVATIONS[kind]
    attributes: dict[str, Any] = {"hidden_size": hidden, "direction": direction, "activations": chosen * directions}
    if clip is not None:
        attributes["clip"] = clip
    if option:
        attributes["linear_before_reset" if kind == "gru" else "input_forget"] = 1
    if alpha:
        attributes |= {"activation_alpha": (alpha,) * len(chosen) * directions}
        attributes |= {"activation_beta": (beta,) * len(chosen) * directions}
    op = Operation(opdef.lookup("", kind.upper()), (), attributes, [types.UNKNOWN] * (3 if kind == "lstm" else 2))
    states = [h0, c0, holes if peepholes else None] if kind == "lstm" else [h0]
    expected = op.definition.evaluate(op, x, w, r, bias, counts, *states)

    kernel = Recurrent(
        kind, hidden, rows, direction, tuple((name.lower(), alpha, beta) for name in chosen), clip, option, peepholes,
        lengths is not None,
    )  # fmt: skip
    machine = machine_of_width(width)
    inputs = np.einsum("tbi,dgi->dtbg", x, w) + bias[:, None, None, : gates * hidden]
    state_bias = bias[:, None, None, gates * hidden :].copy()
    known: dict[str, Any] = {"bias": bias[:, -hidden:].copy().reshape(-1)}
    if kind == "gru" and option:
        state_bias[..., 2 * hidden :] = 0
    inputs = (inputs + state_bias).astype(np.float32)
    y = np.zeros((length, directions, batch, hidden), np.float32)
    h, c = np.zeros_like(h0), np.zeros_like(c0)
    known |= {
        "y": y.reshape(-1), "h": h.reshape(-1), "c": c.reshape(-1), "inputs": inputs.reshape(-1),
        "weights": packed_recurrence(kernel, r, machine), "h0": h0.reshape(-1), "c0": c0.reshape(-1),
        "peepholes": holes.reshape(-1), "lengths": counts, "length": length, "batch": batch,
        "scratch": np.zeros(recurrent_scratch(kernel, machine), np.float32),
        "inputs_direction": length * batch * gates * hidden, "inputs_time": batch * gates * hidden,
        "inputs_batch": gates * hidden, "y_direction": batch * hidden, "y_time": directions * batch * hidden,
        "y_batch": hidden, "begin": 0, "end": recurrent_units(kernel, batch), "thread": 0,
    }  # fmt: skip
    for name in ("h0", "h", "c0", "c"):
        known |= {f"{name}_direction": batch * hidden, f"{name}_batch": hidden}
    order = recurrent_arguments(kernel)
    given = [known[name] for name in order]
    module = build_recurrent("recurrent", kernel, machine)
    sides = run_both(module, given, width) if both else (given,)
    if not both:
        run_compiled(module, given, width)
    for side in sides:
        found = dict(zip(order, side, strict=True))
        for name, array in zip(("y", "h", "c"), expected, strict=False):
            assert np.allclose(found[name].reshape(array.shape), array, atol=1e-5), name


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("hidden", [5, 19])
@pytest.mark.parametrize("kind", GATES)
def test_kinds(kind: str, hidden: int, width: int) -> None:
    check(kind, hidden=hidden, width=width, rows=2 if hidden == 5 else 1, batch=3, both=hidden == 5)


@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
@pytest.mark.parametrize("kind", GATES)
def test_directions_and_lengths(kind: str, direction: str) -> None:
    check(kind, direction=direction, batch=1)
    check(kind, direction=direction, batch=3, length=4, lengths=[4, 1, 2], rows=2)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_options(kind: str) -> None:
    check(kind, option=True)
    check(kind, clip=0.3)
    if kind == "lstm":
        check(kind, peepholes=True, direction="bidirectional")


@pytest.mark.parametrize(
    "name",
    ["Relu", "Softsign", "Softplus", "LeakyRelu", "ThresholdedRelu", "Elu", "HardSigmoid", "Affine", "ScaledTanh"],
)
def test_activations(name: str) -> None:
    check("rnn", names=(name,), alpha=0.4, beta=0.6, both=False)


def test_a_long_sequence() -> None:
    check("lstm", length=50, hidden=64, width=512, both=False)
    check("gru", length=50, hidden=64, width=512, both=False)


def test_rows_of_a_unit_leave_work_to_all_threads() -> None:
    """As many as sums fit, which share what is read of the weights, in blocks of the same size."""
    lstm = Recurrent("lstm", 256)
    assert [recurrent_rows(lstm, WIDE, batch, 1) for batch in (0, 1, 3, 4, 5, 16)] == [1, 1, 3, 4, 3, 4]
    assert [recurrent_rows(lstm, WIDE, batch, 2) for batch in (1, 3, 4, 16)] == [1, 2, 2, 4]
    assert recurrent_rows(Recurrent("lstm", 256, direction="bidirectional"), WIDE, 4, 2) == 4
    assert recurrent_rows(lstm, NARROW, 16, 1) == 2
    assert recurrent_rows(Recurrent("rnn", 256), WIDE, 64, 1) == 8


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_rows_of_a_unit_change_no_bit(kind: str) -> None:
    """Nor do threads, which have as many rows at a time as leave work to the others."""
    gates, hidden = GATES[kind], 40
    b = tilewright.Builder("case")
    x = b.input("x", f32[6, 9, 24])
    shapes = (1, gates * hidden, 24), (1, gates * hidden, hidden)
    weights = [random.normal(0, 0.3, shape).astype(np.float32) for shape in shapes]
    b.output(getattr(b, kind)(x, *weights, hidden_size=hidden, outputs=2)[0], "y")
    model, feeds = b.build(), {"x": random.normal(size=(6, 9, 24)).astype(np.float32)}
    found = [tilewright.compile(model, target="cpu", threads=threads).run(feeds)["y"] for threads in (1, 2, 3, 9)]
    assert all(np.array_equal(found[0], each) for each in found[1:])
