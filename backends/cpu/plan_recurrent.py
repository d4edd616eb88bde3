"""Planning the steps of recurrent networks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...graph.core import Operation, Value
from ...graph.kernel.strided import Strided
from ...graph.lowerings.builder import data_of
from .kernels.recurrent import (
    Recurrent,
    build_recurrent,
    packed_recurrence,
    recurrence_panels,
    recurrent_arguments,
    recurrent_rows,
    recurrent_scratch,
    recurrent_units,
)
from .plan_map import clear
from .plan_moves import copy
from .planner import Argument, Buffer, Planner, View, plans


@plans("kernel.recurrent")
def plan_recurrent(planner: Planner, op: Operation) -> None:
    """Batch rows are units of work."""
    machine = planner.machine
    names = ("inputs", "r", "h0", "c0", "bias", "peepholes", "lengths")
    views = {
        name: planner.contiguous(planner.view(value))
        for name, value in zip(names, op.operands, strict=False)
        if value is not None
    }
    results = [planner.new(result) for result in op.results]
    if "lengths" in views:
        clear(planner, results[0])
    kind, direction = str(op.attr("kind")), str(op.attr("direction"))
    activations = tuple(zip(op.attr("activations"), op.attr("alphas"), op.attr("betas"), strict=True))
    hidden = views["r"].shape[2]
    batch = views["inputs"].shape[2]
    if kind == "gru" and op.attr("option") and "bias" not in views:
        shape = (views["r"].shape[0], hidden)
        zeros = planner.shared.weights.kept(("zeros", shape), lambda: np.zeros(shape, np.float32))
        views["bias"] = planner.constant(zeros, results[0].dtype)
    kernel = Recurrent(
        kind, hidden, 1, direction, activations, float(op.attr("clip")) or None, bool(op.attr("option")),
        "peepholes" in views, "lengths" in views, True, results[0].dtype,
    )  # fmt: skip
    if planner.is_static(op.results[0]):
        kernel = replace(kernel, rows=recurrent_rows(kernel, machine, batch, planner.threads))
    compiled = planner.library.get(
        ("recurrent", kernel), lambda name: build_recurrent(name, kernel, machine), f"{kind}_{hidden}"
    )
    views["weights"] = _packed(planner, op.operand_values[1], views["r"], kernel)
    views |= dict(zip(("y", "h", "c"), results, strict=False))
    given: dict[str, Argument] = {"scratch": Buffer(None), "length": views["inputs"].shape[1], "batch": batch}
    given |= {name: planner.buffer(view) for name, view in views.items()}
    given |= _strides(views)
    size = results[0].dtype.numpy.itemsize
    work = 2.0 * views["inputs"].layout.size * hidden
    units = recurrent_units(kernel, batch) if batch else 0
    planner.call(compiled, recurrent_arguments(kernel), given, units, work, recurrent_scratch(kernel, machine) * size)


def _packed(planner: Planner, weights: Value, r: View, kernel: Recurrent) -> View:
    """The recurrent weights in the kernel's order: made once for all plans if they are constant, else in every run."""
    if data_of(weights) is not None:
        packed = planner.shared.weights.kept(
            ("recurrent", weights, kernel), lambda: packed_recurrence(kernel, planner.known(weights), planner.machine)
        )
        return planner.constant(packed, r.dtype)
    hidden, groups = kernel.hidden, recurrence_panels(kernel, planner.machine)
    size = sum(panels.count * panels.width * hidden * len(panels.gates) for panels in groups)
    packed_view = planner.allocate((r.shape[0] * size,), r.dtype)
    if any(hidden % panels.width for panels in groups):
        clear(planner, packed_view)
    place = 0
    for direction in range(r.shape[0]):
        for panels in groups:
            width, gates = panels.width, len(panels.gates)
            start = r.layout.offset + direction * r.strides[0] + panels.gates[0] * hidden * r.strides[1]
            whole, rest = divmod(hidden, width)
            for first, count, units in ((0, whole, width), (whole, 1, rest)):
                if not count or not units:
                    continue
                shape = (count, hidden, gates, units)
                source = Strided(
                    shape, (width * r.strides[1], r.strides[2], hidden * r.strides[1], r.strides[1]),
                    start + first * width * r.strides[1],
                )  # fmt: skip
                target = Strided(
                    shape, (hidden * gates * width, gates * width, width, 1), place + first * hidden * gates * width
                )
                copy(planner, r.seen(source), packed_view.seen(target))
            place += panels.count * hidden * gates * width
    return packed_view


def _strides(views: dict[str, View]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, dims in (
        ("inputs", ("direction", "time", "batch")), ("y", ("time", "direction", "batch")),
        *((state, ("direction", "batch")) for state in ("h0", "c0", "h", "c")),
    ):  # fmt: skip
        if name in views:
            found |= {f"{name}_{dim}": n for dim, n in zip(dims, views[name].strides, strict=False)}
    return found
