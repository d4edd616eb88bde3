"""Where the cosines and sines of a rotary embedding come from, without the repetition that writing it out needs.

Written out, `x * cos` takes a cosine for each element of a head, though two elements share one. `CacheReader` finds
what is behind the repetition: `concat(f, f)` far below, under functions of single elements, gathers and added dims; or
a constant whose parts are equal. Nothing is built before the whole way is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from ..graph.builder import OpBuilder
from ..graph.core import Operation, Value
from ..graph.data import UnresolvedData
from ..graph.dims import Dim
from .proofs import ints, normalized, same_dims
from .rules import Match, Mismatch

# Builds the value that was found.
Recipe: TypeAlias = Callable[[OpBuilder], Value]

_UNARY = ("cos", "sin", "cast", "neg", "identity")
_BY_NUMBER = ("mul", "div", "add", "sub")
_ADDING_DIMS = ("unsqueeze", "squeeze")
# A constant larger than this is not compared and copied.
_MAX_CACHE_ELEMENTS = 1 << 26


@dataclass
class CacheReader:
    """Reads caches of one match; `interleaved` says whether neighbours or halves of a head share an angle."""

    m: Match
    interleaved: bool
    recipes: dict[Value, Recipe | None] = field(default_factory=dict)

    def once(self, value: Value) -> Recipe | None:
        """How to make `value` with each element along the last dim once; None if the repetition is not found."""
        if value not in self.recipes:
            self.recipes[value] = None  # what leads to itself is not found
            self.recipes[value] = self._constant(value) or self._made(value)
        return self.recipes[value]

    def _constant(self, value: Value) -> Recipe | None:
        data = self.m.data(value)
        if data is None or isinstance(data, UnresolvedData) or not 0 < data.elements <= _MAX_CACHE_ELEMENTS:
            return None
        if not data.shape or data.shape[-1] % 2:
            return None
        first, second = self._parts(data.numpy())
        if not np.array_equal(first, second):
            return None
        return lambda b: b.const(np.ascontiguousarray(first), data.dtype)

    def _parts(self, array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The elements that one angle each belongs to: the first and the second of every pair."""
        if self.interleaved:
            return array[..., 0::2], array[..., 1::2]
        half = array.shape[-1] // 2
        return array[..., :half], array[..., half:]

    def _made(self, value: Value) -> Recipe | None:
        op = value.producer
        if op is None or op.regions or len(op.results) != 1 or not op.operands:
            return None
        if op.name in _UNARY:
            return self._again(op, 0)
        if op.name in _BY_NUMBER:
            return self._by_number(op)
        rank = self.m.rank(op.operands[0])
        if rank is None or op.operands[0] is None:
            return None
        if op.name in _ADDING_DIMS:
            return self._again(op, 0) if self._keeps_last(op, value) else None
        if op.name == "gather":
            return self._again(op, 0) if op.attr("axis") % rank != rank - 1 else None
        if op.name == "transpose":
            perm = op.attr("perm")
            return self._again(op, 0) if perm and perm[-1] == rank - 1 else None
        if op.name == "slice":
            axes = ints(self.m, op.input(3))
            return self._again(op, 0) if axes and rank - 1 not in normalized(axes, rank) else None
        return self._repeated(op, rank)

    def _repeated(self, op: Operation, rank: int) -> Recipe | None:
        """The repetition itself: concat(f, f), tile(f, [1, 2]), or reshape of the pairs concat(f, f) on a new dim."""
        source = op.operands[0]
        if self.interleaved:
            pairs = source.producer if source is not None and op.name == "reshape" else None
            shape, wide = self.m.shape(source), self.m.shape(op.result)
            if pairs is None or shape is None or wide is None or shape[-1] != 2 or not same_dims(shape[:-2], wide[:-1]):
                return None
            return self._of_pairs(pairs, rank)
        if op.name == "concat" and op.attr("axis") % rank == rank - 1:
            first, second = (*op.operands, None, None)[:2]
            return (lambda b: first) if len(op.operands) == 2 and first is second and first is not None else None
        if op.name == "tile" and source is not None:
            return (lambda b: source) if ints(self.m, op.input(1)) == [1] * (rank - 1) + [2] else None
        return None

    def _of_pairs(self, op: Operation, rank: int) -> Recipe | None:
        """f from concat(unsqueeze(f), unsqueeze(f)) or expand(unsqueeze(f)), each element beside its copy."""
        first = op.operands[0]
        if op.name == "concat":
            copies = len(op.operands) == 2 and first is op.operands[1] and op.attr("axis") % rank == rank - 1
            if not copies:
                return None
        elif op.name == "expand":
            shape, wide = self.m.shape(first), self.m.shape(op.result)
            if shape is None or wide is None or shape[-1] != 1 or not same_dims(shape[:-1], wide[:-1]):
                return None
        else:
            return None
        producer = first.producer if first is not None else None
        if producer is None or producer.name != "unsqueeze":
            return None
        axes, source = ints(self.m, producer.operands[1]), producer.operands[0]
        if axes is None or source is None or normalized(axes, rank) != [rank - 1]:
            return None
        return lambda b: source

    def _keeps_last(self, op: Operation, value: Value) -> bool:
        axes, before, after = ints(self.m, op.input(1)), self.m.rank(op.operands[0]), self.m.rank(value)
        if axes is None or before is None or after is None:
            return False
        rank = max(before, after)
        return rank - 1 not in normalized(axes, rank)

    def _by_number(self, op: Operation) -> Recipe | None:
        """An operation with a constant of one element, which may not add dims."""
        shape = self.m.shape(op.result)
        for index in (0, 1):
            data = self.m.data(op.operands[1 - index])
            if data is None or data.elements != 1 or shape is None or len(data.shape) > len(shape):
                continue
            own = self.m.shape(op.operands[index])
            if own is not None and len(own) == len(shape):
                return self._again(op, index)
        return None

    def _again(self, op: Operation, index: int) -> Recipe | None:
        """The same operation on its operand `index` without the repetition."""
        operand = op.operands[index]
        inner = self.once(operand) if operand is not None else None
        if inner is None:
            return None

        def build(b: OpBuilder) -> Value:
            operands: list[Value | None] = list(op.operands)
            operands[index] = inner(b)
            return b.create(op.definition, operands, op.attributes).result

        return build


def cache_of(m: Match, value: Value, recipe: Recipe, heads_dim: int, rank: int) -> Recipe | Mismatch:
    """How to make of a cache, broadcast against x of `rank` with heads at `heads_dim`, one as [batch, length, size]."""
    shape = m.shape(value)
    if shape is None or len(shape) > rank:
        return m.fail("the rank of the cosines or sines does not fit", value)
    if rank == 3:
        return _with_rank(recipe, len(shape), 3)
    position = heads_dim - (rank - len(shape))
    if position < 0:
        return _with_rank(recipe, len(shape), 3)
    if shape[position] != 1:
        return m.fail("the cosines or sines differ between heads", value)
    return _without_dim(m, value, recipe, position, len(shape))


def _with_rank(recipe: Recipe, rank: int, wanted: int) -> Recipe:
    if rank == wanted:
        return recipe
    return lambda b: _reshaped(b, recipe(b), "unsqueeze", list(range(wanted - rank)))


def _without_dim(m: Match, value: Value, recipe: Recipe, position: int, rank: int) -> Recipe:
    """The cache without its dim for heads: what lies before the Unsqueeze that added it, if one did."""

    def build(b: OpBuilder) -> Value:
        made = recipe(b)
        dropped = _before_unsqueeze(b, m, made, position, rank)
        if dropped is None:
            dropped = _reshaped(b, made, "squeeze", [position])
        return dropped if rank == 4 else _reshaped(b, dropped, "unsqueeze", list(range(4 - rank)))

    return build


def _before_unsqueeze(b: OpBuilder, m: Match, value: Value, position: int, rank: int) -> Value | None:
    """`value` without the dim that an Unsqueeze added, under functions of single elements; None if none did."""
    producer = value.producer
    if producer is None or not producer.operands or producer.operands[0] is None:
        return None
    operand = producer.operands[0]
    if producer.name == "unsqueeze":
        axes = ints(m, producer.operands[1])
        return operand if axes is not None and normalized(axes, rank) == [position] else None
    if producer.name not in _UNARY:
        return None
    inner = _before_unsqueeze(b, m, operand, position, rank)
    return None if inner is None else b.create(producer.definition, [inner], producer.attributes).result


def _reshaped(b: OpBuilder, value: Value, name: str, axes: list[int]) -> Value:
    """Squeeze or Unsqueeze; of a constant another constant."""
    producer = value.producer
    if producer is not None and producer.name == "const":
        array = producer.attributes["value"].numpy()
        changed = np.expand_dims(array, tuple(axes)) if name == "unsqueeze" else np.squeeze(array, tuple(axes))
        return b.const(changed, producer.attributes["value"].dtype)
    return b.create(name, [value, axes]).result


def aligned(shape: Sequence[Dim] | None, rank: int) -> tuple[Dim, ...] | None:
    """The dims of a cache with 1s in front, as broadcasting sees them."""
    if shape is None or len(shape) > rank:
        return None
    return (*[1] * (rank - len(shape)), *shape)
