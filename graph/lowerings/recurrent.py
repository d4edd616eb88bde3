"""Recurrent networks: what the inputs contribute is one product for all steps, the rest one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core import Operation, Value
from ..dtypes import f32, i32
from ..ops.recurrent_numeric import activations
from ..types import tensor
from .builder import KernelBuilder, all_native, dtype_of, shape_of, tensor_type
from .rules import lowers


@lowers("RNN", "GRU", "LSTM")
def recurrent(op: Operation, k: KernelBuilder) -> Sequence[Value] | None:
    """Both directions must have the same activations. With layout 1 the batch comes first, which views undo."""
    x, w, r = op.operand_values[:3]
    bias, lengths, h, c, peepholes = (op.input(index) for index in range(3, 8))
    if not all_native(op) or dtype_of(x) is not f32 or (lengths is not None and dtype_of(lengths) is not i32):
        return None
    directions, rows, hidden = shape_of(r)
    chosen = activations(op)
    if not (isinstance(directions, int) and isinstance(rows, int) and isinstance(hidden, int)):
        return None
    if not all(isinstance(dim, int) for value in (w, bias) if value is not None for dim in shape_of(value)[:2]):
        return None
    own = chosen[: len(chosen) // directions]
    if chosen != own * directions:
        return None
    is_batch_first = bool(op.attr("layout"))
    if is_batch_first:
        x = k.transpose(x, [1, 0, 2])
        h, c = (None if state is None else k.transpose(state, [1, 0, 2]) for state in (h, c))
    kind, option = op.name, bool(op.attr("linear_before_reset") or op.attr("input_forget"))
    keeps_bias = kind == "gru" and option and bias is not None
    inputs = _inputs(k, x, w, bias, hidden, keeps_bias)
    state_bias = _last_bias(k, bias, hidden) if keeps_bias and bias is not None else None
    h = h if h is not None else _zeros(k, x, directions, hidden)
    if kind == "lstm" and c is None:
        c = _zeros(k, x, directions, hidden)
    length, batch, _ = shape_of(x)
    types = [tensor(f32, [length, directions, batch, hidden])]
    types += [tensor(f32, [directions, batch, hidden])] * (2 if kind == "lstm" else 1)
    made = k.create(
        "kernel.recurrent",
        [inputs, r, h, c if kind == "lstm" else None, state_bias, peepholes if kind == "lstm" else None, lengths],
        {
            "kind": kind, "direction": op.attr("direction"), "option": int(option), "clip": op.attr("clip") or 0.0,
            "activations": tuple(name for name, _, _ in own), "alphas": tuple(float(alpha) for _, alpha, _ in own),
            "betas": tuple(float(beta) for _, _, beta in own),
        },
        result_types=types,
    )  # fmt: skip
    results = list(made.results)
    if is_batch_first:
        results = [k.transpose(results[0], [2, 0, 1, 3]), *(k.transpose(state, [1, 0, 2]) for state in results[1:])]
    return results[: len(op.results)]


def _inputs(k: KernelBuilder, x: Value, w: Value, bias: Value | None, hidden: int, keeps_bias: bool) -> Value:
    """[directions, length, batch, gates * hidden]."""
    directions, rows = (int(size) for size in shape_of(w)[:2])  # type: ignore[arg-type]
    length, batch = shape_of(x)[:2]
    flat = k.merge_axes(x, 0)
    parts = []
    for direction in range(directions):
        own = _direction(k, w, direction)
        total = k.gemm(flat, k.transpose(own, [1, 0]), tensor_type(x).with_shape([shape_of(flat)[0], rows]))
        if bias is not None:
            both = _direction(k, bias, direction)
            ours, theirs = (
                k.kernel("part", [both], tensor_type(both).with_shape([rows]), axis=0, index=index, count=2)
                for index in range(2)
            )
            # A GRU's hidden gate may have its bias of the state inside of a product.
            mask = k.const(np.repeat(np.array([1, 0 if keeps_bias else 1], np.float32), [rows - hidden, hidden]))
            total = k.map(
                lambda s, t, a, b, m: s.add(t, s.add(a, s.mul(b, m))), [total, ours, theirs, mask], tensor_type(total)
            )
        parts.append(k.unsqueeze(total, [0]))
    joined = parts[0]
    if len(parts) > 1:
        type = tensor_type(x).with_shape([directions, shape_of(flat)[0], rows])
        joined = k.kernel("concat", parts, type, axis=0)
    sizes = k.concat(k.const(np.array([directions])), k.shape(x, end=2), k.const(np.array([rows])), axis=0)
    return k.reshape(joined, sizes, tensor_type(x).with_shape([directions, length, batch, rows]), is_exact=True)


def _direction(k: KernelBuilder, value: Value, direction: int) -> Value:
    shape = shape_of(value)
    count = int(shape[0])  # type: ignore[arg-type]
    type = tensor_type(value).with_shape([1, *shape[1:]])
    part = k.kernel("part", [value], type, axis=0, index=direction, count=count) if count > 1 else value
    return k.squeeze(part, [0])


def _last_bias(k: KernelBuilder, bias: Value, hidden: int) -> Value:
    """The bias of the state in a GRU's hidden gate."""
    type = tensor_type(bias).with_shape([shape_of(bias)[0], hidden])
    bounds: list[Any] = [np.array([-hidden]), np.array([np.iinfo(np.int64).max]), np.array([1])]
    return k.kernel("slice", [bias, *(k.const(bound) for bound in bounds)], type)


def _zeros(k: KernelBuilder, x: Value, directions: int, hidden: int) -> Value:
    sizes = k.concat(k.const(np.array([directions])), k.shape(x, start=1, end=2), k.const(np.array([hidden])), axis=0)
    zeros: Value = k.expand(k.const(np.array(0, np.float32)), sizes)
    return zeros
