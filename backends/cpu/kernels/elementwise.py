"""Maps: results[i] = f(operands[i]) over the elements of tensors that are broadcast against each other.

Dims along which all of them advance evenly are one dim; what is left is a few outer dims and an inner one, along which
a tensor is contiguous, constant, or (a transposed one) strided. Extents and outer strides are arguments.
A work unit is a piece of `GRAIN` elements of one inner row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ....graph import types
from ....graph.core import Value
from ....graph.dtypes import DType, i64
from ....graph.kernel.loop_builder import LoopBuilder, Operand
from ....graph.kernel.scalar_emitter import computed_in
from ....graph.module import Module
from ..machine import Machine
from .strided import joined

GRAIN = 4096
# How far ahead of its use a cache line is asked for, to be read or written. That costs nothing where the first caches
# hold it. Where memory does, exp and tanh are half again as fast: arithmetic fills the window of a processor, so that
# it sees too few loads to wait for many at once; and a store waits for its line as a load does.
AHEAD_BYTES = 4096
_LINE_BYTES = 64

# Builds f for numbers in lanes: from a value for each operand to one for each result.
MapBody = Callable[[LoopBuilder, Sequence[Value]], Sequence[Any]]


@dataclass(frozen=True)
class MapOperand:
    """`inner` is the stride along the inner dim: 0, 1, or None for one that is an argument."""

    dtype: DType
    inner: int | None


@dataclass(frozen=True)
class Map:
    """`rank` counts the dims that are left, the inner one included. `cost` is about how many operations f has.

    With `streams` the only result, contiguous along the inner dim, goes to memory past the caches.
    """

    rank: int
    operands: tuple[MapOperand, ...]
    results: tuple[MapOperand, ...]
    body: MapBody
    cost: int = 1
    streams: bool = False


@dataclass(frozen=True)
class Space:
    """What is left of a shape, and the strides of each tensor in it, the inner dim last."""

    extents: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]

    @property
    def units(self) -> int:
        """How many units of work there are."""
        rows = 1
        for extent in self.extents[:-1]:
            rows *= extent
        return rows * -(-self.extents[-1] // GRAIN)


def collapse(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> Space:
    """Join neighbouring dims along which all tensors advance evenly; drop those of size 1.

    `strides` has one row for each tensor, 0 where it is broadcast.
    """
    extents, joined_strides = joined(shape, strides)
    return Space(extents, tuple(joined_strides)) if extents else Space((1,), ((0,),) * len(strides))


def broadcast_strides(shape: Sequence[int], result: Sequence[int]) -> tuple[int, ...]:
    """The strides with which a contiguous operand of `shape` is read over a result's shape."""
    strides = [0] * len(result)
    step = 1
    for back in range(1, len(shape) + 1):
        if shape[-back] != 1:
            strides[-back] = step
        step *= shape[-back]
    return tuple(strides)


def map_arguments(kernel: Map) -> list[str]:
    """The names of the kernel's arguments, in order."""
    names = [f"y{index}" for index in range(len(kernel.results))]
    names += [f"x{index}" for index in range(len(kernel.operands))]
    names += [f"extent{axis}" for axis in range(kernel.rank)]
    for letter, tensors in (("y", kernel.results), ("x", kernel.operands)):
        for index, tensor in enumerate(tensors):
            names += [f"{letter}{index}_stride{axis}" for axis in range(kernel.rank - 1)]
            if tensor.inner is None:
                names.append(f"{letter}{index}_stride{kernel.rank - 1}")
    return [*names, "begin", "end", "thread"]


def map_lanes(kernel: Map, machine: Machine) -> int:
    """As many lanes as a register has of the widest numbers computed with."""
    widest = max((computed_in(dtype).bits for dtype in _dtypes(kernel)), default=32)
    return max(1, machine.vector_bits // widest)


def _bytes(dtype: DType) -> int:
    return max(1, dtype.bits // 8)


def _dtypes(kernel: Map) -> list[DType]:
    return [tensor.dtype for tensor in (*kernel.operands, *kernel.results)]


def build_map(name: str, kernel: Map, machine: Machine) -> Module:
    """The kernel as a module of the level "loop"; see `map_arguments` for what it takes."""
    return _MapBuilder(name, kernel, map_lanes(kernel, machine)).module()


class _MapBuilder:
    def __init__(self, name: str, kernel: Map, lanes: int) -> None:
        self.kernel, self.lanes = kernel, lanes
        buffers = {f"x{index}": operand.dtype for index, operand in enumerate(kernel.operands)}
        buffers |= {f"y{index}": result.dtype for index, result in enumerate(kernel.results)}
        self.b = LoopBuilder(name, **{
            argument: types.buffer(buffers[argument]) if argument in buffers else types.scalar(i64)
            for argument in map_arguments(kernel)
        })  # fmt: skip
        # Short bodies need several vectors under way to hide how long each takes.
        self.unroll = 4 if kernel.cost <= 4 else 2 if kernel.cost <= 12 else 1

    def module(self) -> Module:
        b, rank = self.b, self.kernel.rank
        extent = b[f"extent{rank - 1}"]
        pieces = b.div(b.add(extent, GRAIN - 1), GRAIN)
        first, last = b.div(b["begin"], pieces), b.div(b.add(b["end"], b.sub(pieces, 1)), pieces)
        self.aheads = [self.ahead(f"x{index}", operand.dtype) for index, operand in enumerate(self.kernel.operands)]
        self.aheads += [self.ahead(f"y{index}", result.dtype) for index, result in enumerate(self.kernel.results)]
        with b.loop(first, last) as row:
            passed = b.mul(row, pieces)
            start = b.mul(b.max(b.sub(b["begin"], passed), 0), GRAIN)
            stop = b.min(b.mul(b.min(b.sub(b["end"], passed), pieces), GRAIN), extent)
            self.row(row, start, stop)
        if self.kernel.streams:
            b.fence()
        return b.module()

    def row(self, row: Operand, start: Operand, stop: Operand) -> None:
        """The elements from `start` up to `stop` of one inner row."""
        b, kernel = self.b, self.kernel
        tensors = [f"x{index}" for index in range(len(kernel.operands))]
        tensors += [f"y{index}" for index in range(len(kernel.results))]
        offsets: dict[str, Operand] = dict.fromkeys(tensors, 0)
        rest = row
        for axis in reversed(range(kernel.rank - 1)):
            extent = b[f"extent{axis}"]
            index = b.rem(rest, extent) if axis else rest
            rest = b.div(rest, extent) if axis else 0
            for name in tensors:
                offsets[name] = b.add(offsets[name], b.mul(index, b[f"{name}_stride{axis}"]))
        views = [b.view(b[name], offsets[name]) for name in tensors]
        sources, targets = views[: len(kernel.operands)], views[len(kernel.operands) :]
        constant = [
            b.broadcast(self.widened(b.load(source, 0)), self.lanes) if operand.inner == 0 else None
            for operand, source in zip(kernel.operands, sources, strict=True)
        ]
        if kernel.streams:
            aligned = b.add(start, b.until_aligned(targets[0], start, self.lanes * _bytes(kernel.results[0].dtype)))
            aligned = b.min(aligned, stop)
            with b.loop(start, aligned, self.lanes) as i:
                self.vectors(sources, targets, constant, [i], b.tail_mask(b.sub(aligned, i), self.lanes))
            start = aligned
        step = self.lanes * self.unroll
        whole = b.add(start, b.mul(b.div(b.sub(stop, start), step), step))
        with b.loop(start, whole, step) as i:
            self.vectors(sources, targets, constant, [b.add(i, self.lanes * part) for part in range(self.unroll)])
        with b.loop(whole, stop, self.lanes) as i:
            self.vectors(sources, targets, constant, [i], b.tail_mask(b.sub(stop, i), self.lanes))

    def vectors(
        self,
        sources: Sequence[Value],
        targets: Sequence[Value],
        constant: Sequence[Value | None],
        places: Sequence[Operand],
        mask: Value | None = None,
    ) -> None:
        """One vector at each place; all are loaded before any is stored, since a target may be a source."""
        b = self.b
        computed = []
        if mask is None:
            self.ask(sources, targets, places[0])
        for place in places:
            loaded = [
                value if value is not None else self.load(position, source, place, mask)
                for position, (source, value) in enumerate(zip(sources, constant, strict=True))
            ]
            computed.append(self.kernel.body(b, loaded))
        for place, results in zip(places, computed, strict=True):
            for index, (target, result) in enumerate(zip(targets, results, strict=True)):
                self.store(index, target, place, result, mask)

    def ask(self, sources: Sequence[Value], targets: Sequence[Value], place: Operand) -> None:
        """Ask for the lines that as many vectors as now will need when they are further on by `aheads`."""
        b, kernel = self.b, self.kernel
        wanted = [*zip(sources, kernel.operands, strict=True), *zip(targets, kernel.results, strict=True)]
        for position, ((view, tensor), ahead) in enumerate(zip(wanted, self.aheads, strict=True)):
            writes = position >= len(sources)
            if tensor.inner != 1 or (writes and kernel.streams):
                continue
            bytes = _bytes(tensor.dtype)
            for line in range(max(1, self.unroll * self.lanes * bytes // _LINE_BYTES)):
                b.prefetch(view, b.add(b.add(place, ahead), line * (_LINE_BYTES // bytes)), writes=writes)

    def ahead(self, name: str, dtype: DType) -> Operand:
        """How many elements behind one of a tensor those lie that are needed a little later: of short rows, in another
        row."""
        b, last = self.b, self.kernel.rank - 1
        elements = AHEAD_BYTES // _bytes(dtype)
        if not last:
            return elements
        rows = b.div(elements, b.max(b[f"extent{last}"], 1))
        further: Operand = b.select(b.lt(0, rows), b.mul(rows, b[f"{name}_stride{last - 1}"]), elements)
        return further

    def store(self, index: int, target: Value, place: Operand, result: Any, mask: Value | None) -> None:
        b, dtype = self.b, self.kernel.results[index].dtype
        vector = b.cast(b.value(result, types.vector(computed_in(dtype), self.lanes)), dtype)
        if self.kernel.results[index].inner == 1:
            b.store(vector, target, place, mask, streams=self.kernel.streams and mask is None)
        else:
            stride = b[f"y{index}_stride{self.kernel.rank - 1}"]
            b.scatter(vector, target, b.mul(b.add(b.iota(self.lanes), place), stride), mask)

    def load(self, position: int, source: Value, place: Operand, mask: Value | None) -> Value:
        b = self.b
        if self.kernel.operands[position].inner == 1:
            return self.widened(b.load(source, place, self.lanes, mask))
        stride = b[f"x{position}_stride{self.kernel.rank - 1}"]
        indices = b.mul(b.add(b.iota(self.lanes), place), stride)
        return self.widened(b.gather(source, indices, mask))

    def widened(self, value: Value) -> Value:
        assert isinstance(value.type, types.ScalarType | types.VectorType)
        return self.b.cast(value, computed_in(value.type.dtype))
