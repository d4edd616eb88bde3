"""Filling the border of images: what lies around them in memory for windows to read.

Images are channels last. Memory is lines, as long as a row of pixels with its border; `rows` of them make a plane,
`planes` of those an image (borders included). A line inside the image has a border at both ends, another one is border.

    work unit: a line
"""

from __future__ import annotations

from dataclasses import dataclass

from ....graph import types
from ....graph.dtypes import DType, i64
from ....graph.kernel.loop_builder import LoopBuilder, Operand
from ....graph.module import Module
from ..machine import Machine
from .move import moved_as

# Sizes in lines of a plane and planes of an image, in which of them an image begins, and how many it has; then elements
# of a line, and of its border at both ends.
SIZES = ("rows", "first_row", "own_rows", "planes", "first_plane", "own_planes", "line", "left", "right")
# Ends of lines are far apart: they are asked for so many lines before they are written.
_AHEAD = 4


@dataclass(frozen=True)
class Border:
    """`fills` says that the border is filled with the first element of `x`, else with zeros."""

    dtype: DType
    fills: bool = False


def border_arguments(kernel: Border) -> list[str]:
    """The names of the kernel's arguments, in order."""
    return ["y", *(["x"] if kernel.fills else []), *SIZES, "begin", "end", "thread"]


def build_border(name: str, kernel: Border, machine: Machine) -> Module:
    """The kernel as a module of the level "loop"; see `border_arguments` for what it takes."""
    dtype = moved_as(kernel.dtype)
    lanes = machine.lanes(dtype)
    buffers = {"y": types.buffer(dtype), "x": types.buffer(dtype)}
    b = LoopBuilder(name, **{n: buffers.get(n, types.scalar(i64)) for n in border_arguments(kernel)})
    vector = types.vector(dtype, lanes)
    value = b.broadcast(b.load(b["x"], 0), lanes) if kernel.fills else b.constant(0, vector)

    def fill(place: Operand, count: Operand) -> None:
        whole = b.mul(b.div(count, lanes), lanes)
        with b.loop(0, whole, lanes) as i:
            b.store(value, b["y"], b.add(place, i))
        with b.when(b.lt(whole, count)):
            b.store(value, b["y"], b.add(place, whole), b.tail_mask(b.index(b.sub(count, whole)), lanes))

    def is_own(index: Operand, kind: str) -> Operand:
        place = b.sub(index, b[f"first_{kind}"])
        return b.and_(b.le(0, place), b.lt(place, b[f"own_{kind}s"]))

    with b.loop(b["begin"], b["end"]) as unit:
        row, plane = b.rem(unit, b["rows"]), b.rem(b.div(unit, b["rows"]), b["planes"])
        place = b.mul(unit, b["line"])
        end = b.add(place, b.sub(b["line"], b["right"]))

        def ends(place: Operand = place, end: Operand = end) -> None:
            for start in (place, end):
                b.prefetch(b["y"], b.add(start, b.mul(b["line"], _AHEAD)), writes=True)
            fill(place, b["left"])
            fill(end, b["right"])

        is_inside = b.and_(is_own(row, "row"), is_own(plane, "plane"))
        b.branch(is_inside, ends, lambda place=place: fill(place, b["line"]))
    return b.module()
