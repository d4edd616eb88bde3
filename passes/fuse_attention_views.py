"""Views: how a value's elements are laid out in the value they were moved from, through reshapes, transposes, repeats.

A view describes each axis as a list of *atoms*, outermost first. `transpose(reshape(x, [b, s, h, d]), [0, 2, 1, 3])` of
x : [b, s, e] has the axes [b] [h] [s] [d], where h and d are the two parts of x's last axis. Two values with the same
axes of the same atoms hold the same elements at the same places, whatever operations lie between them.

Sizes are proven equal, or follow from a reshape: if all but one dim of both its sides are equal, so is that one
wherever the reshape runs (of tensors that have elements).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ..graph.core import Operation, Value
from ..graph.dims import Dim, exact_div, product, prove_equal
from ..graph.opdef import Trait
from ..graph.types import TensorType
from .cancel_transposes import permutation
from .proofs import normalized

if TYPE_CHECKING:
    from ..graph.infer import InferenceContext

# Longer chains of movements do not occur.
_MAX_STEPS = 24


class Atom:
    """A run of elements along one axis of the source; `repeated` if it was made by broadcasting, and not there.

    A later reshape may take it apart: `parts` then replace it everywhere.
    """

    __slots__ = ("parts", "repeated", "size")

    def __init__(self, size: Dim, repeated: bool = False) -> None:
        self.size, self.repeated = size, repeated
        self.parts: tuple[Atom, ...] = ()


Axis: TypeAlias = tuple[Atom, ...]
Axes: TypeAlias = tuple[Axis, ...]


def resolved(axis: Sequence[Atom]) -> Axis:
    """The atoms of an axis, those that were taken apart replaced by their parts."""
    found: list[Atom] = []
    for atom in axis:
        found.extend(resolved(atom.parts) if atom.parts else (atom,))
    return tuple(found)


@dataclass
class Chain:
    """Values from a source to an operand, each made from the one before by moving elements, or by a scale.

    `axes` are parallel to `values`. `scales` are the numbers that the elements are multiplied by on the way, with the
    position in `values` of the result of the multiplication.
    """

    values: list[Value]
    axes: list[Axes]
    scales: list[tuple[int, float]] = field(default_factory=list)

    def resolved_axes(self, position: int) -> Axes:
        return tuple(map(resolved, self.axes[position]))

    def scale_after(self, position: int) -> float:
        """What the elements of the last value are, as a multiple of those of value `position`."""
        factor = 1.0
        for place, number in self.scales:
            factor *= number if place > position else 1.0
        return factor


def shape_of(value: Value | None) -> tuple[Dim, ...] | None:
    return value.type.shape if value is not None and isinstance(value.type, TensorType) else None


def scale_of(op: Operation, inference: InferenceContext) -> tuple[int, float] | None:
    """For a multiplication or division by one number: the position of the other operand, and the factor."""
    if op.name not in ("mul", "div"):
        return None
    for position in (0, 1) if op.name == "mul" else (0,):
        number, value = op.operands[1 - position], op.operands[position]
        data = inference.data(number)
        if data is None or data.elements != 1 or not data.dtype.is_float:
            continue
        factor = float(data.numpy().reshape(()).item())
        wide = shape_of(value)
        if wide is None or len(data.shape) > len(wide) or not np.isfinite(factor) or factor == 0:
            continue
        if op.name == "div":
            factor = 1.0 / factor
        return position, factor
    return None


def trace(operand: Value, inference: InferenceContext) -> Chain:
    """The chain that ends in `operand`, from as far up as it is understood."""
    values = [operand]
    scales: list[tuple[Value, float]] = []
    while len(values) < _MAX_STEPS:
        current = values[-1]
        producer = current.producer
        if producer is None or shape_of(current) is None:
            break
        scale = scale_of(producer, inference)
        position = 0
        if scale is not None:
            # A scaled value that others read stays, so nothing is won by going behind it.
            if current.use_count > 1:
                break
            position, factor = scale
            scales.append((current, factor))
        elif producer.name not in _MOVEMENTS:
            break
        before = producer.operands[position]
        if before is None or shape_of(before) is None:
            break
        values.append(before)
    values.reverse()
    return _followed(values, scales, inference)


def follow(value: Value, inference: InferenceContext) -> Chain:
    """The chain that begins with `value` and goes on while its elements are only moved, for one reader."""
    values = [value]
    axes = [_source_axes(value)]
    while len(values) < _MAX_STEPS and values[-1].use_count == 1:
        user = values[-1].users[0]
        if user.name not in _MOVEMENTS or user.operands[0] is not values[-1] or user.parent is None:
            break
        step = _step(user, axes[-1], inference) if user.parent is values[0].block else None
        if step is None:
            break
        values.append(user.results[0])
        axes.append(step)
    return Chain(values, axes)


def _followed(values: list[Value], scales: list[tuple[Value, float]], inference: InferenceContext) -> Chain:
    """Describe the values from the first on; a step that is not understood makes its result the new source."""
    axes = [_source_axes(values[0])]
    start = 0
    for position, value in enumerate(values[1:], 1):
        producer = value.producer
        assert producer is not None
        step = axes[-1] if any(value is v for v, _ in scales) else _step(producer, axes[-1], inference)
        if step is None:
            start, step = position, _source_axes(value)
        axes.append(step)
    kept = values[start:]
    places = {value: index for index, value in enumerate(kept)}
    found = [(places[value], number) for value, number in scales if places.get(value, 0) > 0]
    return Chain(kept, axes[start:], found)


def _source_axes(value: Value) -> Axes:
    return tuple(() if dim == 1 else (Atom(dim),) for dim in shape_of(value) or ())


def _step(op: Operation, axes: Axes, inference: InferenceContext) -> Axes | None:
    """The axes of `op`'s result, from those of its first operand."""
    shape = shape_of(op.results[0])
    if shape is None:
        return None
    if op.name == "transpose":
        perm = permutation(op)
        return None if perm is None else tuple(axes[axis] for axis in perm)
    if op.name == "expand":
        return expand_axes(op, axes, shape, inference)
    if op.name == "tile":
        return _tile_axes(op, axes, inference)
    if op.name == "identity":
        return axes
    return match_dims([atom for axis in axes for atom in resolved(axis)], shape)


def expand_axes(op: Operation, axes: Axes, shape: tuple[Dim, ...], inference: InferenceContext) -> Axes | None:
    operand = op.operands[0]
    before, target = shape_of(operand), inference.symbolic(op.input(1))
    if before is None or operand is None:
        return None
    lead = len(shape) - len(before)
    found: list[Axis] = [(Atom(dim, True),) if dim != 1 else () for dim in shape[:lead]]
    for axis, (old, new) in enumerate(zip(before, shape[lead:], strict=True)):
        wanted = None if target is None or len(target) != len(shape) else target[lead + axis]
        if old is new or prove_equal(old, new) is True:
            found.append(axes[axis])
        elif old == 1:
            found.append((Atom(new, True),))
        elif wanted is not None and reaches(operand, len(before) - axis, wanted, inference):
            found.append(axes[axis])
        else:
            return None
    return tuple(found)


def reaches(value: Value, place: int, dim: Dim, inference: InferenceContext, depth: int = 8) -> bool:
    """Whether the dim of `value` at `place`, counted from 1 at the end, is `dim` or is broadcast from it.

    Then expanding it to `dim` changes nothing: it is `dim` already, or `dim` is 1.
    """
    shape, producer = shape_of(value), value.producer
    if shape is None or place > len(shape):
        return False
    if prove_equal(shape[-place], dim) is True:
        return True
    if producer is None or not depth:
        return False
    if Trait.ELEMENTWISE in producer.definition.traits:
        return any(reaches(operand, place, dim, inference, depth - 1) for operand in producer.operand_values)
    if producer.name == "unsqueeze":
        inner, axes = producer.operands[0], inference.constant(producer.input(1))
        if inner is None or axes is None:
            return False
        added = normalized([int(axis) for axis in axes.ravel()], len(shape))
        behind = sum(axis > len(shape) - place for axis in added)
        return len(shape) - place not in added and reaches(inner, place - behind, dim, inference, depth - 1)
    return False


def _tile_axes(op: Operation, axes: Axes, inference: InferenceContext) -> Axes | None:
    counts = inference.constant(op.input(1))
    if counts is None or counts.size != len(axes):
        return None
    return tuple(
        axis if count == 1 else (Atom(int(count), True), *axis)
        for axis, count in zip(axes, counts.ravel().tolist(), strict=True)
    )


def match_dims(atoms: list[Atom], dims: Sequence[Dim]) -> Axes | None:
    """Share `atoms` out to `dims` in order, taking atoms apart where a dim ends inside one; None if that fails."""
    found: list[Axis] = [()] * len(dims)
    wanted = [index for index, dim in enumerate(dims) if dim != 1]
    rest = list(atoms)
    while wanted:
        taken = _take(rest, dims[wanted[0]], front=True)
        if taken is None:
            break
        found[wanted.pop(0)] = taken
    while wanted:
        taken = _take(rest, dims[wanted[-1]], front=False)
        if taken is None:
            break
        found[wanted.pop()] = taken
    if len(wanted) == 1 and rest:
        # All else is equal, so that these are, too, where the reshape runs.
        found[wanted.pop()] = tuple(rest)
        rest = []
    return None if wanted or rest else tuple(found)


def _take(rest: list[Atom], dim: Dim, front: bool) -> Axis | None:
    """Remove atoms of `dim` elements from one end of `rest`."""
    taken: list[Atom] = []
    need = dim
    index = 0 if front else -1
    while prove_equal(need, 1) is not True:
        if not rest:
            _give_back(rest, taken, front)
            return None
        atom = rest[index]
        left = _quotient(need, atom.size)
        if left is not None:
            taken.append(rest.pop(index))
            need = left
            continue
        others = _quotient(atom.size, need)
        if others is None:
            _give_back(rest, taken, front)
            return None
        inner, outer = (others, need) if front else (need, others)
        atom.parts = (Atom(outer, atom.repeated), Atom(inner, atom.repeated))
        rest[index : index + 1 or None] = atom.parts
    return tuple(taken if front else reversed(taken))


def _give_back(rest: list[Atom], taken: list[Atom], front: bool) -> None:
    if front:
        rest[:0] = taken
    else:
        rest.extend(reversed(taken))


def _quotient(dividend: Dim, divisor: Dim) -> Dim | None:
    if divisor == 0 or dividend == 0:
        return None
    if isinstance(dividend, int) and isinstance(divisor, int):
        return dividend // divisor if dividend % divisor == 0 else None
    return exact_div(dividend, divisor)


def size_of(axis: Sequence[Atom]) -> Dim:
    return product(atom.size for atom in axis)


_MOVEMENTS = ("reshape", "transpose", "squeeze", "unsqueeze", "expand", "tile", "flatten", "identity")
