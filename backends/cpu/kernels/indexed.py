"""Elements chosen by index: Gather, GatherElements, GatherND and their scatters are all loops over one set of dims.

Along each dim the whole (the tensor that is indexed), the part (what is gathered or scattered) and the indices have a
stride, which is 0 where a tensor does not have the dim. An index has `components`: component c counts steps of
`step<c>` in the whole, from 0 to below `limit<c>`; negative ones count from the end.

    Gather(axis 1), data [a, s, b], indices [n]:  dims a, n, b;  whole (s b, 0, 1), part (n b, b, 1), indices (0, 1, 0)

An index out of range touches nothing. It is reported: `fault[0]` becomes 1, `fault[1]` the index (one of them, if there
are several); who calls the kernel sets `fault` to 0 before and looks at it afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....graph import types
from ....graph.core import Value
from ....graph.dtypes import DType, i64
from ....graph.kernel.loop_builder import Operand
from ....graph.kernel.scalar_emitter import computed_in
from ....graph.module import Module
from ..machine import Machine
from .elementwise import AHEAD_BYTES
from .move import moved_as
from .strided import Size, StridedBuilder, argument_names

# Elements of a unit of work, about.
_GRAIN = 1 << 13
# Vectors of a row that are copied at once.
_SET = 4
_LINE_BYTES = 64
# Rows of so many bytes can go past the caches.
_LEAST_STREAMED = 4096


@dataclass(frozen=True)
class Indexed:
    """Dims and strides; see the head of this file. Vectors lie along the last dim.

    Where the indices' stride along the last dim is 0, rows are moved, each by one index.
    """

    dtype: DType
    index: DType
    extents: tuple[Size, ...]
    whole: tuple[Size, ...]
    part: tuple[Size, ...]
    indices: tuple[Size, ...]
    components: int = 1


@dataclass(frozen=True)
class Gather:
    """part[...] = whole[..., index, ...]. What an index out of range would give is left as it was. With `streams` the
    part's rows, which are contiguous, go to memory past the caches."""

    space: Indexed
    streams: bool = False


@dataclass(frozen=True)
class Scatter:
    """whole[..., index, ...] = part[...], or combined with it: "none", "add", "mul", "min" or "max".

    Along the first `apart` dims, and along the last one if `lanes`, different places of the part go to different places
    of the whole (its stride is not 0), so these may be done in any order; the others are done in order, by one thread.
    `ignores` indices out of range instead of reporting them.
    """

    space: Indexed
    combine: str = "none"
    apart: int = 0
    lanes: bool = False
    ignores: bool = False


def indexed_sizes(space: Indexed) -> dict[str, Size]:
    """Extents, strides, steps and limits by name; those that are None are arguments of the kernel."""
    sizes: dict[str, Size] = {f"outer{axis}": extent for axis, extent in enumerate(space.extents)}
    for name in ("whole", "part", "indices"):
        sizes |= {f"{name}_outer{axis}": stride for axis, stride in enumerate(getattr(space, name))}
    for component in range(space.components):
        sizes |= {f"step{component}": None, f"limit{component}": None}
    return sizes | ({"indices_component": None} if space.components > 1 else {})


def indexed_arguments(space: Indexed) -> list[str]:
    """The names of the arguments of a gather or scatter, in order. Both move bits, unless a scatter combines."""
    return argument_names(["whole", "part", "indices", "fault"], indexed_sizes(space))


def can_stream(space: Indexed, extents: Sequence[int]) -> bool:
    """Whether what is gathered can go past the caches: long rows without gaps."""
    row = extents[-1] * moved_as(space.dtype).bits // 8
    return bool(space.indices[-1] == 0 and space.whole[-1] == space.part[-1] == 1 and row >= _LEAST_STREAMED)


def gather_units(kernel: Gather, extents: Sequence[int]) -> int:
    """How many units of work there are for these extents."""
    if not math.prod(extents):
        return 0
    return -(-math.prod(extents[:-1]) // max(1, _GRAIN // extents[-1]))


def scatter_units(kernel: Scatter, extents: Sequence[int]) -> int:
    """How many units of work there are for these extents."""
    if not math.prod(extents):
        return 0
    pieces = -(-extents[-1] // _GRAIN) if kernel.lanes else 1
    return math.prod(extents[: kernel.apart]) * pieces


def build_gather(name: str, kernel: Gather, machine: Machine) -> Module:
    """The kernel as a module of the level "loop"; see `indexed_arguments` for what it takes."""
    builder = _IndexedBuilder(name, kernel.space, machine, moved_as(kernel.space.dtype))
    builder.streams = kernel.streams
    builder.gather()
    if kernel.streams:
        builder.b.fence()
    return builder.b.module()


def build_scatter(name: str, kernel: Scatter, machine: Machine) -> Module:
    """The kernel as a module of the level "loop"; see `indexed_arguments` for what it takes."""
    dtype = kernel.space.dtype if kernel.combine != "none" else moved_as(kernel.space.dtype)
    builder = _ScatterBuilder(name, kernel, machine, dtype)
    builder.units()
    return builder.b.module()


class _IndexedBuilder(StridedBuilder):
    reports = True
    streams = False

    def __init__(self, name: str, space: Indexed, machine: Machine, dtype: DType) -> None:
        buffers = {"whole": dtype, "part": dtype, "indices": space.index, "fault": i64}
        super().__init__(name, machine, buffers, indexed_sizes(space), computed_in(dtype))
        self.lanes = min(16, self.lanes)
        self.space, self.dtype, self.bytes = space, dtype, max(1, dtype.bits // 8)
        self.dims = [f"outer{axis}" for axis in range(len(space.extents))]
        self.last = len(space.extents) - 1

    @property
    def by_row(self) -> bool:
        return self.space.indices[-1] == 0

    @property
    def has_long_rows(self) -> bool:
        """Whether rows are contiguous and of several sets of vectors, as far as that is known."""
        space = self.space
        length = space.extents[-1]
        is_long = length is None or length >= 2 * _SET * self.lanes
        return is_long and space.whole[-1] == space.part[-1] == 1

    def places_of(self, indices: Sequence[Operand]) -> dict[str, Operand]:
        return {name: self.place(name, "outer", indices) for name in ("whole", "part", "indices")}

    def ahead(self, places: dict[str, Operand], axis: int, index: Operand) -> dict[str, Operand]:
        """The places `index` steps further along a dim."""
        b = self.b
        return {name: b.add(place, b.mul(index, self.stride(name, "outer", axis))) for name, place in places.items()}

    # ---- indices -----------------------------------------------------------------------------------------------------

    def target(self, place: Operand, mask: Value | None, vector: bool) -> tuple[Value, Value, Value]:
        """Where in the whole the index at `place` points (from the dims' own place on); whether all its components are
        in range; and the last one that is not. With `vector` a vector of indices along the last dim."""
        b = self.b
        total: Operand = 0
        good: Value | None = None
        wrong: Value | None = None
        for component in range(self.space.components):
            at = place
            if component:
                at = b.add(at, b.mul(component, self.size("indices_component")))
            if vector:
                given = b.cast(self.load("indices", at, self.stride("indices", "outer", self.last), mask), i64)
            else:
                given = b.cast(b.load(b["indices"], at), i64)
            limit = self.size(f"limit{component}")
            index = b.select(b.lt(given, 0), b.add(given, limit), given)
            inside = b.and_(b.le(0, index), b.lt(index, limit))
            wrong = given if wrong is None else b.select(inside, wrong, given)
            good = inside if good is None else b.and_(good, inside)
            total = b.add(total, b.mul(b.select(inside, index, 0), self.size(f"step{component}")))
        assert isinstance(total, Value)
        assert good is not None
        assert wrong is not None
        return total, good, wrong

    def report(self, wrong: Value) -> None:
        b = self.b
        b.store(1, b["fault"], 0)
        b.store(wrong, b["fault"], 1)

    def report_lanes(self, bad: Value, wrong: Value) -> None:
        """Report if a lane is bad."""
        b = self.b
        if not self.reports:
            return
        with b.when(b.any(bad)):
            self.report(b.reduce("max", b.select(bad, wrong, -(2**63))))

    # ---- gather ------------------------------------------------------------------------------------------------------

    def gather(self) -> None:
        b = self.b
        inner = self.size(self.dims[-1])
        rows = self.product(self.dims[:-1])
        together = b.max(b.div(_GRAIN, b.max(inner, 1)), 1)
        begin = b.mul(b["begin"], together)
        end = b.min(b.mul(b["end"], together), rows)
        with b.loop(begin, end) as row:
            places = self.places_of(self.unravel(row, self.dims[:-1]))
            if self.by_row:
                following = None
                if self.has_long_rows:
                    later = self.unravel(b.min(b.add(row, 1), b.sub(rows, 1)), self.dims[:-1])
                    following = self.place("indices", "outer", later)
                self.gather_row(places, following, inner)
            else:
                self.gather_lanes(places, inner)

    def gather_row(self, places: dict[str, Operand], following: Operand | None, length: Operand) -> None:
        """One row; the row whose index is at `following` is asked for meanwhile, as no processor expects it."""
        b = self.b
        target, good, wrong = self.target(places["indices"], None, vector=False)
        later = None
        if following is not None:
            later = b.add(places["whole"], self.target(following, None, vector=False)[0])

        def move() -> None:
            self.copy_row(places | {"whole": b.add(places["whole"], target)}, later, length)

        b.branch(good, move, lambda: self.report(wrong))

    def copy_row(self, places: dict[str, Operand], later: Operand | None, length: Operand) -> None:
        """Sets of vectors, which ask for what is needed later, then what is left."""
        b, width = self.b, _SET * self.lanes
        start: Operand = 0
        if self.streams:
            start = b.min(b.until_aligned(b["part"], places["part"], self.lanes * self.bytes), length)
            self.copy_vector(places, b.tail_mask(b.index(start), self.lanes))
        if later is not None:
            whole = b.add(start, b.mul(b.div(b.sub(length, start), width), width))
            with b.loop(start, whole, width) as i:
                here = self.ahead(places, self.last, i)
                self.ask(here["part"], b.add(later, i))
                for vector in range(_SET):
                    self.copy_vector(self.ahead(here, self.last, vector * self.lanes), None)
            start = whole
        self.each(places, start, length, self.copy_vector)

    def copy_vector(self, places: dict[str, Operand], mask: Value | None) -> None:
        value = self.load("whole", places["whole"], self.stride("whole", "outer", self.last), mask)
        if self.streams and mask is None:
            self.b.store(value, self.b["part"], places["part"], streams=True)
        else:
            self.store(value, "part", places["part"], self.stride("part", "outer", self.last), mask)

    def ask(self, part: Operand, later: Operand) -> None:
        """Ask for the lines of a set of vectors: of the row that comes next, and of the part a little further on."""
        b = self.b
        for start in range(0, _SET * self.lanes, _LINE_BYTES // self.bytes):
            b.prefetch(b["whole"], b.add(later, start))
            if not self.streams:
                b.prefetch(b["part"], b.add(part, AHEAD_BYTES // self.bytes + start), writes=True)

    def each(
        self,
        places: dict[str, Operand],
        begin: Operand,
        end: Operand,
        body: Callable[[dict[str, Operand], Value | None], None],
    ) -> None:
        """`body(places, mask)` for each vector of the last dim."""
        b = self.b
        whole = b.add(begin, b.mul(b.div(b.sub(end, begin), self.lanes), self.lanes))
        with b.loop(begin, whole, self.lanes) as i:
            body(self.ahead(places, self.last, i), None)
        rest = b.sub(end, whole)

        def tail() -> None:
            body(self.ahead(places, self.last, whole), b.tail_mask(b.index(rest), self.lanes))

        b.branch(b.lt(0, rest), tail, lambda: None)

    def gather_lanes(self, places: dict[str, Operand], length: Operand) -> None:
        """A vector of indices at a time. Bad lanes read nothing."""
        b = self.b

        def body(here: dict[str, Operand], mask: Value | None) -> None:
            target, good, wrong = self.target(here["indices"], mask, vector=True)
            exists = good if mask is None else b.and_(good, mask)
            own = b.mul(b.iota(self.lanes), self.stride("whole", "outer", self.last))
            value = b.gather(b["whole"], b.add(b.add(target, own), here["whole"]), exists)
            self.store(value, "part", here["part"], self.stride("part", "outer", self.last), exists)
            bad = b.not_(good) if mask is None else b.and_(b.not_(good), mask)
            self.report_lanes(bad, wrong)

        self.each(places, 0, length, body)


class _ScatterBuilder(_IndexedBuilder):
    def __init__(self, name: str, kernel: Scatter, machine: Machine, dtype: DType) -> None:
        super().__init__(name, kernel.space, machine, dtype)
        self.kernel = kernel
        self.reports = not kernel.ignores

    def units(self) -> None:
        b, kernel = self.b, self.kernel
        apart = kernel.apart
        inner = self.size(self.dims[-1])
        pieces: Operand = b.div(b.add(inner, _GRAIN - 1), _GRAIN) if kernel.lanes else 1
        with b.loop(b["begin"], b["end"]) as unit:
            start = b.mul(b.rem(unit, pieces), _GRAIN) if kernel.lanes else 0
            stop = b.min(b.add(start, _GRAIN), inner) if kernel.lanes else inner
            found = self.unravel(b.div(unit, pieces), self.dims[:apart])
            self.in_order(self.places_of([*found]), apart, start, stop)

    def in_order(self, places: dict[str, Operand], axis: int, start: Operand, stop: Operand) -> None:
        """Loops over the dims that are done in order, then the last one."""
        b = self.b
        if axis < self.last:
            with b.loop(0, self.size(self.dims[axis])) as index:
                self.in_order(self.ahead(places, axis, index), axis + 1, start, stop)
        elif not self.kernel.lanes:
            with b.loop(start, stop) as index:
                self.put_one(self.ahead(places, self.last, index))
        elif self.by_row:
            self.put_row(places, start, stop)
        else:
            self.each(places, start, stop, self.put_lanes)

    def combined(self, old: Value, new: Value) -> Value:
        return self.b.scalar(self.kernel.combine, old, new)

    def put_one(self, places: dict[str, Operand]) -> None:
        b = self.b
        target, good, wrong = self.target(places["indices"], None, vector=False)

        def put() -> None:
            at = b.add(places["whole"], target)
            value = self.widened(b.load(b["part"], places["part"]))
            if self.kernel.combine != "none":
                value = self.combined(self.widened(b.load(b["whole"], at)), value)
            self.store_one(value, "whole", at)

        b.branch(good, put, lambda: self.report(wrong) if self.reports else None)

    def put_row(self, places: dict[str, Operand], start: Operand, stop: Operand) -> None:
        b, last = self.b, self.last
        target, good, wrong = self.target(places["indices"], None, vector=False)

        def vector(here: dict[str, Operand], mask: Value | None) -> None:
            step = self.stride("whole", "outer", last)
            value = self.load("part", here["part"], self.stride("part", "outer", last), mask)
            if self.kernel.combine != "none":
                value = self.combined(self.load("whole", here["whole"], step, mask), value)
            self.store(value, "whole", here["whole"], step, mask)

        def put() -> None:
            self.each(places | {"whole": b.add(places["whole"], target)}, start, stop, vector)

        b.branch(good, put, lambda: self.report(wrong) if self.reports else None)

    def put_lanes(self, here: dict[str, Operand], mask: Value | None) -> None:
        """Each lane by its own index; lanes never meet, since the whole's stride keeps them apart."""
        b, last = self.b, self.last
        target, good, wrong = self.target(here["indices"], mask, vector=True)
        exists = good if mask is None else b.and_(good, mask)
        own = b.mul(b.iota(self.lanes), self.stride("whole", "outer", last))
        at = b.add(b.add(target, own), here["whole"])
        value = self.load("part", here["part"], self.stride("part", "outer", last), mask)
        if self.kernel.combine != "none":
            value = self.combined(self.widened(b.gather(b["whole"], at, exists)), value)
        vector = b.value(value, types.vector(computed_in(self.dtype), self.lanes))
        b.scatter(b.cast(vector, self.dtype), b["whole"], at, exists)
        bad = b.not_(good) if mask is None else b.and_(b.not_(good), mask)
        self.report_lanes(bad, wrong)
