"""The register tile that products and convolutions share: rows x vectors of sums, and what happens to them at the end.

A kernel writes one function for each height a tile can have, and in it

    sums = tile.zeros(b)
    ... any loops, carrying `sums`:
        sums = tile.accumulate(b, sums, depth, a, places, 1, strip)
    tile.finish(b, sums, Target(c, places, columns), more, epilogue, operands)

The right factor lies packed: for each step `columns` numbers in a row (`pack.packed_panels`). The left one is read a
number at a time, for each row from a place of its own, so rows may be those of a matrix or the pixels that one tap of a
filter sees. The numbers of narrow floats are widened as they are read and narrowed as they are stored.

An epilogue is applied to the sums before they are stored. A short one is written out for every vector of the tile. A
long one (erf, exp) becomes a function: of a row of the tile, which is called once all sums are stored and finishes them
where they are, in the first-level cache (`row_epilogue`); or, where sums are wider than what is stored, of one vector
(`epilogue_body`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ....graph import types
from ....graph.core import Block, Value
from ....graph.dtypes import DType, i64
from ....graph.kernel.loop_builder import LoopBuilder, Operand
from ....graph.kernel.scalar_emitter import computed_in

# A size or stride: a number, or None for one that the kernel is told when it runs.
Size: TypeAlias = "int | None"

# Builds f(sum, operands) for a vector of numbers.
EpilogueBody = Callable[[LoopBuilder, Value, Sequence[Value]], Value]

# With so many rows (or pixels) for each thread, threads have rows of their own rather than columns: what steps before
# made of these is in their core's cache then, which is worth reading all of the right factor in each.
THREAD_ROWS = 96

# An epilogue of at most so many operations for each vector is unrolled over the tile.
SHORT_EPILOGUE = 8


@dataclass(frozen=True)
class EpilogueOperand:
    """Something that an epilogue reads beside the sum: at row i and column j, `buffer[i * row + j * column]`.

    A stride is a number or None (an argument of the kernel). `column` is 0 or 1.
    """

    name: str
    dtype: DType
    row: Size
    column: int


@dataclass(frozen=True)
class Epilogue:
    """What is done to each sum before it is stored. `body(b, sum, operands)` builds it for a vector of numbers."""

    operands: tuple[EpilogueOperand, ...] = ()
    body: EpilogueBody | None = None


def epilogue_body(
    main: LoopBuilder, name: str, epilogue: Epilogue, lanes: int, dtype: DType, short: int = SHORT_EPILOGUE
) -> EpilogueBody | None:
    """The body for `Tile.finish`: the epilogue's own, or if that is long, one that calls it as the function `name`.

    Calls overlap in the processor, since none waits for the result of another. `main` builds the module's main
    function; `dtype` is that of the sums. A body of at most `short` operations is written out.
    """
    body = epilogue.body
    if body is None:
        return None
    vector = types.vector(dtype, lanes)
    arguments = {operand.name: types.vector(computed_in(operand.dtype), lanes) for operand in epilogue.operands}
    function = LoopBuilder(name, sum=vector, **{f"x_{key}": value for key, value in arguments.items()})
    result = function.value(body(function, function["sum"], [function[f"x_{key}"] for key in arguments]), vector)
    finished = function.finish(result)
    if _cost(finished.block) <= short:
        return body
    main.include(finished)

    def called(b: LoopBuilder, total: Value, operands: Sequence[Value]) -> Value:
        return b.call(name, total, *operands, results=[result.type])[0]

    return called


@dataclass(frozen=True)
class RowEpilogue:
    """Functions that finish a row of stored sums in place: all its vectors, or as many columns as they are told."""

    whole: str
    part: str


def finishing_body(
    main: LoopBuilder, name: str, epilogue: Epilogue, vectors: int, lanes: int, sums: DType, stored: DType
) -> EpilogueBody | RowEpilogue | None:
    """What `Tile.finish` takes for tiles of `vectors`, whose `sums` are `stored` in the same or in another dtype."""
    if stored is sums:
        return row_epilogue(main, name, epilogue, vectors, lanes, sums)
    return epilogue_body(main, name, epilogue, lanes, sums)


def row_epilogue(
    main: LoopBuilder,
    name: str,
    epilogue: Epilogue,
    vectors: int,
    lanes: int,
    dtype: DType,
    short: int = SHORT_EPILOGUE,
) -> EpilogueBody | RowEpilogue | None:
    """Like `epilogue_body`, for sums that are stored as they are: a long one becomes functions of rows of `vectors`.

    No registers are kept across a call then, and the vectors of a row fill the time that each of them waits.
    """
    body = epilogue.body
    if body is None or not is_long(epilogue, lanes, dtype, short):
        return body
    for part in (False, True):
        buffers = {"sums": types.buffer(dtype)}
        buffers |= {f"x_{operand.name}": types.buffer(operand.dtype) for operand in epilogue.operands}
        function = LoopBuilder(
            f"{name}_part" if part else name, **buffers, **({"columns": types.scalar(i64)} if part else {})
        )
        for v in range(vectors):
            place = v * lanes
            mask = function.tail_mask(function.sub(function["columns"], place), lanes) if part else None
            given = []
            for operand in epilogue.operands:
                source = function[f"x_{operand.name}"]
                if operand.column:
                    value = function.load(source, place, lanes, mask)
                else:
                    value = function.broadcast(function.load(source, 0), lanes)
                given.append(function.cast(value, computed_in(operand.dtype)))
            result = body(function, function.load(function["sums"], place, lanes, mask), given)
            result = function.value(result, types.vector(dtype, lanes))
            function.store(result, function["sums"], place, mask)
        main.include(function.finish())
    return RowEpilogue(name, f"{name}_part")


def is_long(epilogue: Epilogue, lanes: int, dtype: DType, short: int = SHORT_EPILOGUE) -> bool:
    """Whether the epilogue takes more than `short` operations for a vector."""
    if epilogue.body is None:
        return False
    arguments = {f"x_{o.name}": types.vector(computed_in(o.dtype), lanes) for o in epilogue.operands}
    function = LoopBuilder("epilogue", sum=types.vector(dtype, lanes), **arguments)
    epilogue.body(function, function["sum"], [function[name] for name in arguments])
    return _cost(function.finish().block) > short


def _cost(block: Block) -> int:
    """How many operations a block has that take time; those in loops count as many."""
    return sum(
        1 + sum(16 * _cost(region.block) for region in op.regions.values())
        for op in block
        if op.name not in ("scalar.constant", "return")
    )


@dataclass(frozen=True)
class Target:
    """Where a tile is stored: row i begins at `places[i]` of `buffer`, and has `columns` numbers (or more than fit)."""

    buffer: Value
    places: Sequence[Operand]
    columns: Operand


@dataclass(frozen=True)
class Given:
    """An epilogue's operand at a tile: `places[i]` of `buffer` belongs to row i and the first column.

    `column` is 1 if each column has its own number, 0 if all share it. One place means that all rows share theirs.
    """

    buffer: Value
    places: Sequence[Operand]
    column: int


@dataclass(frozen=True)
class Right:
    """How the right factor lies: its vector v for step k begins at `places[v] + k * step` of `buffer`.

    A mask says which of a vector's numbers exist; the others are not read, and count as 0.
    """

    buffer: Value
    step: Operand
    places: Sequence[Operand]
    masks: Sequence[Value | None] = ()


@dataclass(frozen=True)
class Tile:
    """`rows` x `vectors` registers of `lanes` sums, held in `dtype` (that of the factors, or wider)."""

    rows: int
    vectors: int
    lanes: int
    dtype: DType

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes

    # ---- summing up ----------------------------------------------------------------------------------------------

    def zeros(self, b: LoopBuilder) -> list[Value]:
        """The sums at the start, row by row."""
        return [b.constant(0, types.vector(self.dtype, self.lanes))] * (self.rows * self.vectors)

    def packed(self, strip: Value) -> Right:
        """A strip in which `columns` numbers for each step follow each other."""
        return Right(strip, self.columns, range(0, self.columns, self.lanes))

    def right(self, b: LoopBuilder, strip: Value | Right, place: Operand) -> list[Value]:
        """One step of the right factor: `columns` numbers of a packed strip from `place` on, or else its vectors."""
        right = strip if isinstance(strip, Right) else self.packed(strip)
        masks = right.masks or [None] * len(right.places)
        return [
            b.cast(b.load(right.buffer, b.add(place, start), self.lanes, mask), self.dtype)
            for start, mask in zip(right.places, masks, strict=True)
        ]

    def step(
        self, b: LoopBuilder, sums: Sequence[Value], a: Value, places: Sequence[Operand], right: Sequence[Value]
    ) -> list[Value]:
        """The sums after one step: to row i, `a[places[i]]` times `right` is added."""
        following = []
        for row, place in enumerate(places):
            left = b.broadcast(b.cast(b.load(a, place), self.dtype), self.lanes)
            for v, factor in enumerate(right):
                total = sums[row * self.vectors + v]
                if self.dtype.is_float:
                    following.append(b.fma(left, factor, total))
                else:
                    following.append(b.add(total, b.mul(left, factor)))
        return following

    def accumulate(
        self,
        b: LoopBuilder,
        sums: Sequence[Value],
        depth: Operand,
        a: Value,
        places: Sequence[Operand],
        a_k: Operand,
        strip: Value | Right,
        unroll: int = 1,
        beside: Callable[[Operand], None] | None = None,
    ) -> list[Value]:
        """The sums after `depth` steps: row i reads `a[places[i] + k * a_k]`; a plain `strip` is a packed one.

        `unroll` steps are written out in the loop's body. `beside(k)` builds something that is done once for them,
        such as a prefetch.
        """
        factor = strip if isinstance(strip, Right) else self.packed(strip)
        whole: Operand = depth
        if unroll > 1:
            whole = b.sub(depth, b.rem(depth, unroll))
        state = list(sums)
        for begin, end, count in ((0, whole, unroll), (whole, depth, 1)):
            if begin is end or (not isinstance(begin, Value) and not isinstance(end, Value) and begin >= end):
                continue
            with b.loop(begin, end, count, state) as carried:
                following: Sequence[Value] = carried.values
                if beside is not None and begin == 0:
                    beside(carried.index)
                for part in range(count):
                    k = b.add(carried.index, part)
                    left = b.view(a, b.mul(k, a_k))
                    following = self.step(b, following, left, places, self.right(b, factor, b.mul(k, factor.step)))
                carried.yields(following)
            state = list(carried.results)
        return state

    # ---- finishing -----------------------------------------------------------------------------------------------

    def finish(
        self,
        b: LoopBuilder,
        sums: Sequence[Value],
        target: Target,
        more: Operand = False,
        last: Operand = True,
        body: EpilogueBody | RowEpilogue | None = None,
        given: Sequence[Given] = (),
    ) -> None:
        """Store the sums. If `more`, what is stored there already is added; if `last`, the epilogue is applied.

        Both are booleans, known or not. Sums that are stored in parts must be stored in their own dtype.
        """

        def put(masks: Sequence[Value | None]) -> None:
            b.branch(
                more, lambda: self._last(b, self._added(b, sums, target, masks), target, masks, last, body, given),
                lambda: self._last(b, sums, target, masks, last, body, given),
            )  # fmt: skip

        def partial() -> None:
            put([
                b.tail_mask(b.index(b.sub(target.columns, v * self.lanes)), self.lanes) for v in range(self.vectors)
            ])  # fmt: skip

        b.branch(b.le(self.columns, target.columns), lambda: put([None] * self.vectors), partial)

    def _added(
        self, b: LoopBuilder, sums: Sequence[Value], target: Target, masks: Sequence[Value | None]
    ) -> list[Value]:
        totals = []
        for row, place in enumerate(target.places):
            for v, mask in enumerate(masks):
                stored = b.load(target.buffer, b.add(place, v * self.lanes), self.lanes, mask)
                totals.append(b.add(sums[row * self.vectors + v], stored))
        return totals

    def _last(
        self,
        b: LoopBuilder,
        sums: Sequence[Value],
        target: Target,
        masks: Sequence[Value | None],
        last: Operand,
        body: EpilogueBody | RowEpilogue | None,
        given: Sequence[Given],
    ) -> None:
        if body is None or last is False:
            self._store(b, sums, target, masks)
            return
        if isinstance(body, RowEpilogue):
            self._store(b, sums, target, masks)
            b.branch(last, lambda: self._finish_rows(b, target, masks, body, given), lambda: None)
            return

        def finished() -> None:
            operands = [_operand_vectors(b, self, each, masks) for each in given]
            results = []
            for row in range(self.rows):
                for v in range(self.vectors):
                    result = body(b, sums[row * self.vectors + v], [vectors(row, v) for vectors in operands])
                    results.append(b.value(result, types.vector(self.dtype, self.lanes)))
            self._store(b, results, target, masks)

        b.branch(last, finished, lambda: self._store(b, sums, target, masks))

    def _finish_rows(
        self,
        b: LoopBuilder,
        target: Target,
        masks: Sequence[Value | None],
        body: RowEpilogue,
        given: Sequence[Given],
    ) -> None:
        """Call the function of a row for each of them."""
        is_part = any(mask is not None for mask in masks)
        for row, place in enumerate(target.places):
            operands = [b.view(each.buffer, each.places[row if len(each.places) > 1 else 0]) for each in given]
            columns = [b.index(target.columns)] if is_part else []
            b.call(body.part if is_part else body.whole, b.view(target.buffer, place), *operands, *columns)

    def _store(self, b: LoopBuilder, sums: Sequence[Value], target: Target, masks: Sequence[Value | None]) -> None:
        assert isinstance(target.buffer.type, types.BufferType)
        dtype = target.buffer.type.dtype
        for row, place in enumerate(target.places):
            for v, mask in enumerate(masks):
                value = b.cast(sums[row * self.vectors + v], dtype)
                b.store(value, target.buffer, b.add(place, v * self.lanes), mask)


def _operand_vectors(
    b: LoopBuilder, tile: Tile, given: Given, masks: Sequence[Value | None]
) -> Callable[[int, int], Value]:
    """Gives an operand's vector at a row and position; each that rows or columns share is loaded once."""
    loaded: dict[tuple[int, int], Value] = {}

    def load(row: int, v: int) -> Value:
        place = given.places[row]
        if given.column:
            return b.load(given.buffer, b.add(place, v * tile.lanes), tile.lanes, masks[v])
        return b.broadcast(b.load(given.buffer, place), tile.lanes)

    def vectors(row: int, v: int) -> Value:
        key = (row if len(given.places) > 1 else 0, v if given.column else 0)
        if key not in loaded:
            value = load(*key)
            assert isinstance(value.type, types.VectorType)
            loaded[key] = b.cast(value, computed_in(value.type.dtype))
        return loaded[key]

    return vectors
