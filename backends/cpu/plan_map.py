"""Planning a group of elementwise operations: which kernel, on which strides."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ...graph.diagnostics import ExecutionError
from .kernels.elementwise import Map, MapOperand, broadcast_strides, build_map, collapse, map_arguments
from .lower import Group, dtype_of
from .segment import Argument, Buffer, Call, Shape, buffer_of, shape_of

if TYPE_CHECKING:
    from ...graph.core import Value
    from .segment import Planner


def plan_map(planner: Planner, group: Group, known: dict[Value, Shape]) -> list[Call]:
    """The call for one group; the shape of its result becomes known."""
    inputs = group.inputs()
    shapes = [shape_of(value, known) for value in inputs]
    shape = known[group.result] = broadcast_shape(group, shapes)
    space = collapse(shape, [broadcast_strides(each, shape) for each in shapes])
    operands = tuple(
        MapOperand(dtype_of(value), strides[-1] if strides[-1] in (0, 1) else None)
        for value, strides in zip(inputs, space.strides, strict=True)
    )
    kernel = Map(
        len(space.extents), operands, (dtype_of(group.result),),
        lambda b, values: [group.body(b, dict(zip(inputs, values, strict=True)))], group.cost(),
    )  # fmt: skip
    name = f"map_{group.ops[-1].op_type.lower()}"
    key = (group, kernel.rank, operands)
    compiled = planner.library.get(key, lambda name: build_map(name, kernel, planner.library.machine), name)
    numbers = {f"extent{axis}": extent for axis, extent in enumerate(space.extents)}
    for position, strides in enumerate(space.strides):
        numbers |= {f"x{position}_stride{axis}": stride for axis, stride in enumerate(strides)}
    buffers = {f"x{position}": buffer_of(value) for position, value in enumerate(inputs)} | {"y0": Buffer(group.result)}
    arguments: list[Argument] = [
        buffers[argument] if argument in buffers else numbers[argument]
        for argument in map_arguments(kernel)
        if argument not in ("begin", "end", "thread")
    ]
    elements = math.prod(shape)
    units = space.units if elements else 0
    return [Call(compiled.entry, name, arguments, units, min(units, planner.parts(elements * group.cost())))]


def broadcast_shape(group: Group, shapes: list[Shape]) -> Shape:
    """The shape of a group's result from those of its inputs. Raises ExecutionError if they do not fit."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        op = group.ops[-1]
        listed = ", ".join(str(list(shape)) for shape in shapes)
        raise ExecutionError(
            "run/broadcast", f"{op.name} cannot broadcast {listed} to one shape", op.location
        ) from None
