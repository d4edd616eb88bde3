"""The adjoints of attention: those of q, k and v, without the scores of all queries ever being in memory.

With weights P = softmax(S), S = q k^T * scale (capped, masked), and g the adjoint of the result (Dao et al. 2022, arXiv
2205.14135, appendix B.4):

    dP = g v^T    D = rowsum(P * dP)    dS = P * (dP - D) * (what cap and mask make of it) * scale
    dv = P^T g    dq = dS k             dk = dS^T q

A unit of work is a head of keys with all its queries, which are taken in blocks, one query in each lane as in the
forward kernel. A block goes through the keys twice:

    for each block of keys: scores^T and dP^T; greatest score, sum of exponentials and D of each query, as they come
    for each block of keys: P^T and dS^T; dv and dk of these keys and dq of these queries are added to

Both are there still, if all keys are one block; else they are computed again. In the products behind them P^T and dS^T
are read number by number, so nothing has to be turned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ....graph import types
from ....graph.core import Value
from ....graph.dtypes import DType, bool_, i32, i64
from ....graph.kernel.loop_builder import LoopBuilder, Operand
from ....graph.module import Module
from ..machine import Machine
from .attention import Attention, AttentionBase, attention_buffers, attention_sizes
from .exponential import exp_of_negative
from .pack import pack_strip, strip_size
from .strided import Size, StridedBuilder, argument_names
from .tile import Right, Target, Tile

# Keys of a block, at most.
KEYS = 132
_DIMS = ("batch", "head", "row")
_TileBody = Callable[[int, Operand], None]


@dataclass(frozen=True)
class AttentionGrad:
    """The forward kernel, with strides of the adjoint of its result in the place of those of the result; `dq`, `dk` and
    `dv` have strides (batch, head, row). Elements of all rows are contiguous."""

    forward: Attention
    dq: tuple[Size, Size, Size]
    dk: tuple[Size, Size, Size]
    dv: tuple[Size, Size, Size]


def grad_sizes(kernel: AttentionGrad) -> dict[str, Size]:
    """Extents and strides by name; those that are None are arguments of the kernel."""
    sizes = attention_sizes(kernel.forward)
    for name in ("dq", "dk", "dv"):
        sizes |= {f"{name}_{dim}": stride for dim, stride in zip(_DIMS, getattr(kernel, name), strict=True)}
    return sizes


def grad_buffers(kernel: AttentionGrad) -> dict[str, DType]:
    """`y` is the adjoint of the result."""
    return attention_buffers(kernel.forward) | dict.fromkeys(("dq", "dk", "dv"), kernel.forward.dtype)


def grad_arguments(kernel: AttentionGrad) -> list[str]:
    """The names of the kernel's arguments, in order."""
    return argument_names(list(grad_buffers(kernel)), grad_sizes(kernel))


def grad_units(batch: int, heads_of_keys: int) -> int:
    """How many units of work there are."""
    return batch * heads_of_keys


def grad_scratch(kernel: AttentionGrad, machine: Machine) -> int:
    """Elements of memory of its own that each thread needs."""
    return _Room.of(kernel.forward, machine).total


def build_attention_grad(name: str, kernel: AttentionGrad, machine: Machine) -> Module:
    """The kernel as a module of the level "loop"; see `grad_arguments` for what it takes."""
    builder = _GradBuilder(name, kernel, machine)
    builder.units()
    return builder.b.module()


@dataclass(frozen=True)
class _Room:
    """How work is cut: blocks of `columns` queries, and of `keys` keys; the elements of each part of the scratch
    memory."""

    lanes: int
    vectors: int
    rows: int
    keys: int
    queries: int
    grads: int
    scores: int
    factors: int
    mask: int

    @staticmethod
    def of(kernel: Attention, machine: Machine) -> _Room:
        lanes = machine.lanes(kernel.dtype)
        vectors = 1 if kernel.queries is not None and kernel.queries <= lanes else 2
        rows = min((machine.registers - 4) // 2, 14)
        keys = KEYS // rows * rows
        if kernel.keys:
            keys = -(-kernel.keys // -(-kernel.keys // KEYS))
        columns = vectors * lanes
        strips = [strip_size(columns, depth, kernel.dtype, lanes) for depth in (kernel.size, kernel.value_size, keys)]
        return _Room(
            lanes, vectors, rows, keys, strips[0], strips[1], keys * columns,
            keys * columns if has_factors(kernel) else 0, strips[2] if has_own_rows(kernel) else 0,
        )  # fmt: skip

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes

    @property
    def total(self) -> int:
        return -(-(self.queries + self.grads + 2 * self.scores + self.factors + self.mask) // 16) * 16


def has_own_rows(kernel: Attention) -> bool:
    """Whether the mask differs between queries, so that a block of it has to be turned."""
    return kernel.mask is not None and kernel.mask_strides[2] != 0


def has_factors(kernel: Attention) -> bool:
    """Whether scores follow the products in another way than one to one where they count."""
    return bool(kernel.softcap) or (kernel.mask is bool_ and kernel.masked_score != -math.inf)


class _GradBuilder(AttentionBase):
    def __init__(self, name: str, kernel: AttentionGrad, machine: Machine) -> None:
        self.kernel, self.wide = kernel.forward, kernel.forward.dtype
        StridedBuilder.__init__(self, name, machine, grad_buffers(kernel), grad_sizes(kernel), self.wide)
        self.room = _Room.of(self.kernel, machine)

    def units(self) -> None:
        b, room, kernel = self.b, self.room, self.kernel
        place = b.view(b["scratch"], b.mul(b["thread"], room.total))
        parts = []
        for size in (room.queries, room.grads, room.scores, room.scores, room.factors, room.mask):
            parts.append(place)
            place = b.view(place, size)
        self.query_strip, self.grad_strip, self.scores, self.products, self.factors, self.mask_tile = parts
        if room.mask and attention_buffers(kernel)["mask"] is not self.wide:
            self.mask_tile = b.alloc(attention_buffers(kernel)["mask"], room.mask + 64)
        heads = b.div(self.size("heads"), kernel.repeats)
        with b.loop(b["begin"], b["end"]) as unit:
            batch, own = b.div(unit, heads), b.rem(unit, heads)
            self.keys = {name: self.head(name, batch, own) for name in ("k", "v", "dk", "dv")}
            self.clear("dk", kernel.size)
            self.clear("dv", kernel.value_size)
            with (
                b.loop(0, kernel.repeats) as repeat,
                b.loop(0, self.size("queries"), room.columns) as first,
            ):
                head = b.add(b.mul(own, kernel.repeats), repeat)
                self.block(batch, head, first, b.min(b.sub(self.size("queries"), first), room.columns))

    def head(self, name: str, batch: Operand, head: Operand, row: Operand = 0) -> Value:
        """A tensor of one head, from `row` on."""
        b = self.b
        places = zip(_DIMS, (batch, head, row), strict=True)
        total: Operand = 0
        for dim, index in places:
            total = b.add(total, b.mul(index, self.size(f"{name}_{dim}")))
        return b.view(b[name], total)

    def clear(self, name: str, size: int) -> None:
        """Put zeros into all rows of an adjoint."""
        b, lanes = self.b, self.room.lanes
        zero = b.constant(0, types.vector(self.wide, lanes))
        with b.loop(0, self.size("keys")) as key:
            for start in range(0, size, lanes):
                mask = None if start + lanes <= size else b.tail_mask(b.index(size - start), lanes)
                b.store(zero, self.keys[name], b.add(b.mul(key, self.size(f"{name}_row")), start), mask)

    # ---- a block of queries --------------------------------------------------------------------------------------

    def block(self, batch: Operand, head: Operand, first: Operand, rows: Operand) -> None:
        b, kernel, room = self.b, self.kernel, self.room
        names = ["q", "y", "dq", *(["mask"] if kernel.mask is not None else [])]
        views = {name: self.head(name, batch, head, first) for name in names}
        pack_strip(b, views["q"], self.query_strip, rows, kernel.size, room.columns, self.size("q_row"), 1, room.lanes)
        pack_strip(
            b, views["y"], self.grad_strip, rows, kernel.value_size, room.columns, self.size("y_row"), 1, room.lanes
        )
        limit = self.size("keys")
        if kernel.causal:
            limit = b.max(b.min(limit, b.add(b.add(first, rows), self.size("offset"))), 0)
        vector = types.vector(self.wide, room.lanes)
        start = [b.constant(number, vector) for number in (-math.inf, 0, 0) for _ in range(room.vectors)]
        is_one_block = kernel.keys is not None and kernel.keys <= room.keys

        def look(key: Operand, so_far: Sequence[Value]) -> list[Value]:
            count = self.score(views, first, rows, key, limit)
            return self.look(count, so_far, is_one_block)

        if is_one_block:
            found: Sequence[Value] = look(0, start)
        else:
            with b.loop(0, limit, room.keys, start) as state:
                state.yields(look(state.index, state.values))
            found = state.results
        statistics = self.statistics(found)

        def spread(key: Operand) -> None:
            count = self.tile_end(key, limit) if is_one_block else self.score(views, first, rows, key, limit)
            self.weigh(count, statistics, is_one_block)
            self.add(views, rows, key, limit, count)

        if is_one_block:
            spread(0)
        else:
            with b.loop(0, limit, room.keys) as key:
                spread(key)
        if kernel.causal or not kernel.keys:  # without a key that is seen, nothing was stored
            with b.when(b.le(b.index(limit), 0)):
                self.clear_rows(views["dq"], rows)

    def clear_rows(self, target: Value, rows: Operand) -> None:
        b = self.b
        zero = b.constant(0, types.scalar(self.wide))
        with b.loop(0, rows) as row, b.loop(0, self.kernel.size) as place:
            b.store(zero, target, b.add(b.mul(row, self.size("dq_row")), place))

    # ---- tiles of keys -------------------------------------------------------------------------------------------

    def block_keys(self, key: Operand) -> Operand:
        """How many keys the block from `key` on has."""
        b, keys = self.b, self.size("keys")
        if self.kernel.keys is not None and self.kernel.keys % self.room.keys == 0:
            return self.room.keys
        return b.min(b.sub(keys, key), self.room.keys)

    def tile_count(self, key: Operand, limit: Operand) -> tuple[Operand, Operand]:
        """How many tiles the block from `key` on has, and how many of them have keys before `limit`."""
        b, total = self.b, self.block_keys(key)
        tiles = b.div(b.add(total, self.room.rows - 1), self.room.rows)
        if not self.kernel.causal:
            return tiles, tiles
        reached = b.div(b.add(b.mul(b.sub(limit, key), tiles), b.sub(total, 1)), total)
        return tiles, b.max(b.min(tiles, reached), 0)

    def tile_end(self, key: Operand, limit: Operand) -> Operand:
        """How many keys the tiles have that have keys before `limit`."""
        tiles, used = self.tile_count(key, limit)
        return self.b.div(self.b.mul(used, self.block_keys(key)), tiles)

    def each_tile(self, key: Operand, limit: Operand, body: _TileBody) -> None:
        """`body(height, first)` for each tile of keys of a block, of those with keys before `limit`."""
        tiles, used = self.tile_count(key, limit)
        self.shared_out(self.block_keys(key), tiles, used, self.key_heights(), body)

    def shared_out(
        self, total: Operand, tiles: Operand, used: Operand, heights: Sequence[int], body: _TileBody
    ) -> None:  # fmt: skip
        """`body(height, first)` for the first `used` of `tiles` even shares of `total` rows."""
        b = self.b
        with b.loop(0, used) as index:
            first = b.div(b.mul(index, total), tiles)
            height = b.sub(b.div(b.mul(b.add(index, 1), total), tiles), first)

            def choose(low: int, high: int) -> None:
                if high - low == 1:
                    body(heights[low], first)
                    return
                middle = (low + high) // 2
                b.branch(b.lt(height, heights[middle]), lambda: choose(low, middle), lambda: choose(middle, high))

            choose(0, len(heights))

    def key_heights(self) -> list[int]:
        keys, room = self.kernel.keys, self.room
        if keys is None:
            return list(range(1, room.rows + 1))
        return _heights({min(room.keys, keys - start) for start in range(0, keys, room.keys)}, room.rows)

    def query_heights(self) -> list[int]:
        queries, room = self.kernel.queries, self.room
        if queries is None:
            return list(range(1, room.rows + 1))
        blocks = {min(room.columns, queries - start) for start in range(0, queries, room.columns)}
        return _heights(blocks, room.rows)

    # ---- scores --------------------------------------------------------------------------------------------------

    def score(
        self, views: dict[str, Value], first: Operand, rows: Operand, key: Operand, limit: Operand
    ) -> Operand:  # fmt: skip
        """scores^T, capped and masked, and dP^T of the block of keys from `key` on; how many keys that are."""
        b, kernel, room = self.b, self.kernel, self.room
        for name, strip, target, depth in (
            ("k", self.query_strip, self.scores, kernel.size),
            ("v", self.grad_strip, self.products, kernel.value_size),
        ):
            row = self.size(f"{name}_row")
            source = b.view(self.keys[name], b.mul(key, row))
            strides = [] if self.sizes[f"{name}_row"] is not None else [row]

            def tile(height: int, at: Operand, given: Any = (name, source, strip, target, depth, strides)) -> None:
                tensor, left, right, result, size, passed = given
                function = self.score_tile(tensor, height, size)
                at_left = b.view(left, b.mul(at, self.size(f"{tensor}_row")))
                b.call(function, at_left, right, b.view(result, b.mul(at, room.columns)), *passed)

            self.each_tile(key, limit, tile)
        if has_own_rows(kernel):
            source = b.view(views["mask"], b.mul(key, self.size("mask_element")))
            steps = self.size("mask_row"), self.size("mask_element")
            pack_strip(b, source, self.mask_tile, rows, self.block_keys(key), room.columns, *steps, room.lanes)
        count = self.tile_end(key, limit)
        with b.loop(0, count) as index:
            for v in range(room.vectors):
                self.adjust(views, first, b.add(key, index), index, v)
        return count

    def score_tile(self, tensor: str, rows: int, depth: int) -> str:
        """The function for a tile of keys times all queries of the block; made when it is first asked for."""
        name, room = f"{tensor}_tile{rows}", self.room

        def build() -> LoopBuilder:
            buffer = types.buffer(self.wide)
            stride = self.sizes[f"{tensor}_row"]
            more = {} if stride is not None else {"row": types.scalar(i64)}
            b = LoopBuilder(name, left=buffer, strip=buffer, target=buffer, **more)
            row: Operand = b["row"] if stride is None else stride
            tile = Tile(rows, room.vectors, room.lanes, self.wide)
            places = [b.mul(i, row) for i in range(rows)]
            sums = tile.accumulate(b, tile.zeros(b), depth, b["left"], places, 1, b["strip"], 2)
            tile.finish(b, sums, Target(b["target"], [i * tile.columns for i in range(rows)], tile.columns))
            return b

        return self.included(name, build)

    def included(self, name: str, build: Callable[[], LoopBuilder]) -> str:
        if all(function.key.name != name for function in self.b.functions):
            self.b.include(build().finish())
        return name

    def adjust(self, views: dict[str, Value], first: Operand, key: Operand, index: Operand, v: int) -> None:
        """Scale a vector of scores, apply cap and masks; keep its factor, if those are not one."""
        b, kernel, room, lanes = self.b, self.kernel, self.room, self.room.lanes
        place = b.add(b.mul(index, room.columns), v * lanes)
        score = b.mul(b.load(self.scores, place, lanes), kernel.scale)
        factor = b.constant(1, score.type)
        if kernel.softcap:
            score = self.capped(score)
            share = b.mul(score, 1 / kernel.softcap)
            factor = b.sub(1.0, b.mul(share, share))
        if kernel.mask is not None:
            if has_own_rows(kernel):
                mask = b.load(self.mask_tile, place, lanes)
            else:
                mask = b.broadcast(b.load(views["mask"], b.mul(key, self.size("mask_element"))), lanes)
            score = self.masked(score, mask)
            if kernel.mask is bool_:
                factor = b.select(b.ne(mask, 0), factor, 0.0)
        if kernel.causal:
            least = b.sub(key, b.add(b.add(first, v * lanes), self.size("offset")))
            score = b.select(b.le(b.cast(least, i32), b.cast(b.iota(lanes), i32)), score, -math.inf)
        b.store(score, self.scores, place)
        if room.factors:
            b.store(factor, self.factors, place)

    # ---- statistics ----------------------------------------------------------------------------------------------

    def look(self, count: Operand, so_far: Sequence[Value], keeps: bool) -> list[Value]:
        """The greatest score, the sum of exponentials and that of their products with dP, of each query; the
        exponentials are put in the place of scores, if this `keeps` them."""
        b, size = self.b, self.room.vectors
        greatest, sums, weighted = (so_far[part * size : (part + 1) * size] for part in range(3))
        with b.loop(0, count, 1, greatest) as state:
            state.yields([self.greatest(state[v], self.vector(self.scores, state.index, v)) for v in range(size)])
        highest = list(state.results)
        base = [self.finite_base(value) for value in highest]
        changes = [exp_of_negative(b, b.sub(greatest[v], base[v])) for v in range(size)]
        start = [b.mul(value, changes[v]) for part in (sums, weighted) for v, value in enumerate(part)]
        with b.loop(0, count, 1, start) as rest:
            weights = [exp_of_negative(b, b.sub(self.vector(self.scores, rest.index, v), base[v])) for v in range(size)]
            for v, weight in enumerate(weights if keeps else []):
                self.put(weight, self.scores, rest.index, v)
            following = [b.add(rest[v], weights[v]) for v in range(size)]
            following += [
                b.fma(weights[v], self.vector(self.products, rest.index, v), rest[size + v]) for v in range(size)
            ]
            rest.yields(following)
        return [*highest, *rest.results]

    def vector(self, buffer: Value, index: Operand, v: int) -> Value:
        room = self.room
        return self.b.load(buffer, self.b.add(self.b.mul(index, room.columns), v * room.lanes), room.lanes)

    def put(self, value: Value, buffer: Value, index: Operand, v: int) -> None:
        self.b.store(value, buffer, self.b.add(self.b.mul(index, self.room.columns), v * self.room.lanes))

    def statistics(self, found: Sequence[Value]) -> list[tuple[Value, Value, Value]]:
        """For each vector of queries what is subtracted from scores, one over the sum of exponentials, and D."""
        b, size = self.b, self.room.vectors
        statistics = []
        for v in range(size):
            total = found[size + v]
            inverse = b.div(1.0, total)
            if self.kernel.masking != "plain":
                inverse = b.select(b.eq(total, 0), 0.0, inverse)
            statistics.append((self.finite_base(found[v]), inverse, b.mul(found[2 * size + v], inverse)))
        return statistics

    def weigh(self, count: Operand, statistics: Sequence[tuple[Value, Value, Value]], kept: bool) -> None:
        """Scores, or the exponentials that were `kept`, become weights; dP what q and k are multiplied with."""
        b, kernel, room = self.b, self.kernel, self.room
        with b.loop(0, count) as index:
            for v, (base, inverse, mean) in enumerate(statistics):
                weight = self.vector(self.scores, index, v)
                weight = b.mul(weight if kept else exp_of_negative(b, b.sub(weight, base)), inverse)
                slope = b.mul(weight, b.sub(self.vector(self.products, index, v), mean))
                slope = b.mul(slope, kernel.scale)
                if room.factors:
                    slope = b.mul(slope, self.vector(self.factors, index, v))
                self.put(weight, self.scores, index, v)
                self.put(slope, self.products, index, v)

    # ---- adjoints ------------------------------------------------------------------------------------------------

    def add(self, views: dict[str, Value], rows: Operand, key: Operand, limit: Operand, count: Operand) -> None:
        """Add what a block of queries and one of keys give to all three adjoints."""
        b, kernel, room = self.b, self.kernel, self.room

        def of_keys(name: str, left: Value, source: str, width: int) -> None:
            target = b.view(self.keys[name], b.mul(key, self.size(f"{name}_row")))

            def tile(height: int, at: Operand) -> None:
                spot = b.view(target, b.mul(at, self.size(f"{name}_row")))
                steps = (room.columns, 1), (self.size(f"{source}_row"), self.size(f"{name}_row"))
                self.multiply(
                    height, width, b.view(left, b.mul(at, room.columns)), views[source], spot, steps, rows, True
                )

            self.each_tile(key, limit, tile)

        of_keys("dv", self.scores, "y", kernel.value_size)
        of_keys("dk", self.products, "q", kernel.size)
        keys = b.view(self.keys["k"], b.mul(key, self.size("k_row")))

        def tile(height: int, at: Operand) -> None:
            spot = b.view(views["dq"], b.mul(at, self.size("dq_row")))
            steps = (1, room.columns), (self.size("k_row"), self.size("dq_row"))
            more = b.lt(0, key) if isinstance(key, Value) else key > 0
            self.multiply(height, kernel.size, b.view(self.products, at), keys, spot, steps, count, more)

        tiles = b.div(b.add(rows, room.rows - 1), room.rows)
        self.shared_out(rows, tiles, tiles, self.query_heights(), tile)

    def multiply(
        self,
        height: int,
        width: int,
        left: Value,
        right: Value,
        target: Value,
        steps: tuple[tuple[int, int], tuple[Operand, Operand]],
        depth: Operand,
        more: Operand,
    ) -> None:
        """target [height, width] = left right, or that and what was there. `steps` are those of left along rows and
        along what is summed up, and the distances of rows of right and of target."""
        b, lanes = self.b, self.room.lanes
        flag = b.value(more, types.scalar(bool_))
        for start in range(0, width, 2 * lanes):
            columns = min(2 * lanes, width - start)
            function = self.product_tile(height, columns, steps[0])
            b.call(function, left, b.view(right, start), b.view(target, start), *steps[1], depth, flag)

    def product_tile(self, rows: int, columns: int, steps: tuple[int, int]) -> str:
        name, lanes = f"product{rows}x{columns}_{steps[0]}", self.room.lanes

        def build() -> LoopBuilder:
            buffer, index = types.buffer(self.wide), types.scalar(i64)
            b = LoopBuilder(
                name, left=buffer, right=buffer, target=buffer, right_row=index, target_row=index, depth=index,
                more=types.scalar(bool_),
            )  # fmt: skip
            tile = Tile(rows, -(-columns // lanes), lanes, self.wide)
            starts = range(0, columns, lanes)
            masks = [None if s + lanes <= columns else b.tail_mask(b.index(columns - s), lanes) for s in starts]
            right = Right(b["right"], b["right_row"], starts, masks)
            places = [i * steps[0] for i in range(rows)]
            sums = tile.accumulate(b, tile.zeros(b), b["depth"], b["left"], places, steps[1], right, 2)
            targets = [b.mul(i, b["target_row"]) for i in range(rows)]
            tile.finish(b, sums, Target(b["target"], targets, columns), more=b["more"])
            return b

        return self.included(name, build)


def _heights(counts: set[int], rows: int) -> list[int]:
    """The heights of tiles that share out each of `counts` rows evenly, at most `rows` each."""
    found: set[int] = set()
    for count in counts:
        tiles = max(1, -(-count // rows))
        found |= {count // tiles, -(-count // tiles)}
    return sorted(found - {0}) or [1]
