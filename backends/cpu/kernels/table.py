"""Bytes looked up in a table: y[i] = table[x[i]], 64 at once where the machine has an instruction for it.

A work unit is a piece of `GRAIN` bytes.
"""

from __future__ import annotations

from ....graph import types
from ....graph.dtypes import i64, u8
from ....graph.kernel.loop_builder import LoopBuilder, Operand
from ....graph.module import Module
from ..emit_unit import has_lookup
from ..machine import Machine

GRAIN = 8192
_LANES = 64
_UNROLLED = 8

ARGUMENTS = ("y", "x", "table", "count", "begin", "end", "thread")


def table_units(count: int) -> int:
    """How many units of work there are."""
    return -(-count // GRAIN)


def build_table(name: str, machine: Machine) -> Module:
    """The kernel as a module of the level "loop", which takes `ARGUMENTS`; all buffers are of u8."""
    buffers = {argument: types.buffer(u8) for argument in ARGUMENTS[:3]}
    b = LoopBuilder(name, **buffers, **dict.fromkeys(ARGUMENTS[3:], types.scalar(i64)))
    first, last = b.mul(b["begin"], GRAIN), b.min(b.mul(b["end"], GRAIN), b["count"])
    step = _LANES if has_lookup(machine) else _UNROLLED
    whole = b.add(first, b.mul(b.div(b.sub(last, first), step), step))

    def one(place: Operand) -> None:
        b.store(b.load(b["table"], b.cast(b.load(b["x"], place), i64)), b["y"], place)

    with b.loop(first, whole, step) as place:
        if has_lookup(machine):
            b.store(b.lookup(b["table"], b.load(b["x"], place, _LANES)), b["y"], place)
        else:
            for index in range(_UNROLLED):
                one(b.add(place, index))
    with b.loop(whole, last) as place:
        one(place)
    return b.module()
