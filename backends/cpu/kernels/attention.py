"""Attention: softmax(q @ k^T * scale + mask) @ v, without the scores of all queries ever being in memory.

A unit of work is a block of queries of one head: as many as two vectors have lanes, one query for each lane, as sums,
maxima and exponentials of different queries then need no exchange between lanes. Keys come in blocks (Dao et al. 2022,
arXiv 2205.14135; running maximum and sum: Milakov & Gimelshein 2018, arXiv 1805.02867):

    strip of q^T * scale                 [size, lanes]
    for each block of keys
      scores^T = k @ strip               [keys, lanes]       register tiles, k read where it lies
      mask, greatest, exp, sum           in the first-level cache
      result^T = result^T * correction + v^T @ weights^T     register tiles, v read where it lies
    result = (result^T / sum)^T

Few queries (decoding) are units of one query each: k and v are then read along their rows, as memory gives them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ....graph import types
from ....graph.core import Value
from ....graph.dtypes import DType, bool_, i32, i64, u8
from ....graph.kernel import vector_math
from ....graph.kernel.loop_builder import LoopBuilder, Operand
from ....graph.kernel.scalar_emitter import computed_in
from ....graph.module import Module
from ..machine import Machine
from .exponential import exp_of_negative
from .pack import pack_strip, strip_size, transposed
from .strided import Size, StridedBuilder, argument_names
from .tile import Target, Tile

# Keys of a block, at most: their scores fill half of the first-level cache.
_KEYS = 132
# Keys of a tile where their number is not known: few enough that a last tile which begins earlier costs little.
_TILE_KEYS = 11
# Rows of v are asked for so many keys before they are read: often each is in a page of its own.
_AHEAD = 8
# Up to so many queries are done one by one.
_FEW = 3


@dataclass(frozen=True)
class Attention:
    """Strides are (batch, head, row, element), of the mask (batch, head, query, key), 0 where it is broadcast.

    q is [batch, heads, queries, size], k and v have a head for each `repeats` heads of q; elements of a row of the
    result y are contiguous. Query i sees the keys up to i + offset if `causal`.

    mask: its dtype, None for none; one of bools puts `masked_score` in the place of a score, one of numbers is added.
    masking: what a query without any key gives (all its scores are -infinity): "plain" NaN, "zero" 0. "nan-to-zero"
      makes 0 also of rows in which a score is NaN or +infinity.
    """

    dtype: DType
    size: int
    value_size: int
    queries: Size
    keys: Size
    heads: Size
    q: tuple[Size, Size, Size, Size]
    k: tuple[Size, Size, Size, Size]
    v: tuple[Size, Size, Size, Size]
    y: tuple[Size, Size, Size, Size]
    repeats: int = 1
    scale: float = 1.0
    softcap: float = 0.0
    causal: bool = False
    offset: Size = 0
    mask: DType | None = None
    mask_strides: tuple[Size, Size, Size, Size] = (0, 0, 0, 0)
    masked_score: float = -math.inf
    masking: str = "plain"


def attention_sizes(kernel: Attention) -> dict[str, Size]:
    """Extents and strides by name; those that are None are arguments of the kernel."""
    sizes: dict[str, Size] = {"queries": kernel.queries, "keys": kernel.keys, "heads": kernel.heads}
    names = [("q", kernel.q), ("k", kernel.k), ("v", kernel.v), ("y", kernel.y)]
    if kernel.mask is not None:
        names.append(("mask", kernel.mask_strides))
    for name, strides in names:
        sizes |= {f"{name}_{dim}": stride for dim, stride in zip(_DIMS, strides, strict=True)}
    return sizes | ({"offset": kernel.offset} if kernel.causal else {})


_DIMS = ("batch", "head", "row", "element")


def attention_buffers(kernel: Attention) -> dict[str, DType]:
    """A mask of bools is read as bytes, each 0 or 1. Narrow floats are computed in f32."""
    buffers = dict.fromkeys(("y", "q", "k", "v"), kernel.dtype) | {"scratch": computed_in(kernel.dtype)}
    if kernel.mask is not None:
        buffers["mask"] = u8 if kernel.mask is bool_ else kernel.mask
    return buffers


def attention_arguments(kernel: Attention) -> list[str]:
    """The names of the kernel's arguments, in order."""
    return argument_names(list(attention_buffers(kernel)), attention_sizes(kernel))


def attention_units(kernel: Attention, machine: Machine, batch: int, heads: int, queries: int) -> int:
    """How many units of work there are."""
    if takes_queries_alone(kernel):
        return batch * heads * queries
    return batch * heads * -(-queries // _Shape.of(kernel, machine).columns)


def takes_queries_alone(kernel: Attention) -> bool:
    """Whether each query is a unit of its own; rows of k and v must be contiguous for that."""
    return kernel.queries is not None and kernel.queries <= _FEW and kernel.k[3] == 1 and kernel.v[3] == 1


def attention_scratch(kernel: Attention, machine: Machine) -> int:
    """Elements of memory of its own that each thread needs."""
    if takes_queries_alone(kernel):
        return _KEYS
    return _Shape.of(kernel, machine).scratch


@dataclass(frozen=True)
class _Shape:
    """How work is cut: `columns` queries and `keys` keys at a time; where in the scratch memory things are."""

    lanes: int
    vectors: int
    rows: int
    keys: int
    strip: int
    mask: int
    scores: int
    result: int

    @staticmethod
    def of(kernel: Attention, machine: Machine) -> _Shape:
        wide = computed_in(kernel.dtype)
        lanes = machine.lanes(wide)
        vectors = 1 if kernel.queries is not None and kernel.queries <= lanes else 2
        rows = min((machine.registers - 4) // 2, 14)
        keys = _KEYS
        if kernel.keys:
            blocks = -(-kernel.keys // _KEYS)
            keys = max(rows, -(-kernel.keys // blocks))
        columns = vectors * lanes
        return _Shape(
            lanes, vectors, rows, keys,
            strip_size(columns, kernel.size, wide, lanes),
            strip_size(columns, keys, wide, lanes) if _has_own_rows(kernel) else 0,
            keys * columns, kernel.value_size * columns,
        )  # fmt: skip

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes

    @property
    def scratch(self) -> int:
        return -(-(self.strip + self.mask + self.scores + self.result + self.columns) // 16) * 16


def _has_own_rows(kernel: Attention) -> bool:
    """Whether the mask differs between queries, so that a block of it has to be turned."""
    return kernel.mask is not None and kernel.mask_strides[2] != 0


def build_attention(name: str, kernel: Attention, machine: Machine) -> Module:
    """The kernel as a module of the level "loop"; see `attention_arguments` for what it takes."""
    if takes_queries_alone(kernel):
        from .attention_decode import build_decode

        return build_decode(name, kernel, machine)
    builder = _AttentionBuilder(name, kernel, machine)
    builder.units()
    return builder.b.module()


class AttentionBase(StridedBuilder):
    """What both forms share: heads, scores as the kernel's options want them, results of queries without keys."""

    def __init__(self, name: str, kernel: Attention, machine: Machine) -> None:
        self.kernel, self.wide = kernel, computed_in(kernel.dtype)
        super().__init__(name, machine, attention_buffers(kernel), attention_sizes(kernel), self.wide)

    def head_views(self, head: Operand, rows: dict[str, Operand]) -> dict[str, Value]:
        """The tensors of one head, from row 0 on, or from that in `rows`. `head` counts through batches."""
        b, kernel = self.b, self.kernel
        batch, own = b.div(head, self.size("heads")), b.rem(head, self.size("heads"))
        shared = b.div(own, kernel.repeats)
        found = {}
        for name in ("q", "k", "v", "y", "mask"):
            if name == "mask" and kernel.mask is None:
                continue
            which = shared if name in "kv" else own
            place = b.add(
                b.mul(batch, self.size(f"{name}_batch")), b.mul(which, self.size(f"{name}_head"))
            )  # fmt: skip
            place = b.add(place, b.mul(rows.get(name, 0), self.size(f"{name}_row")))
            found[name] = b.view(b[name], place)
        return found

    def capped(self, score: Value) -> Value:
        b, cap = self.b, self.kernel.softcap
        if not cap:
            return score
        return b.mul(vector_math.tanh(b, b.mul(score, 1.0 / cap)), cap)

    def masked(self, score: Value, mask: Value) -> Value:
        """A score with the mask's number for it, which is 0 or 1 for bools."""
        b, kernel = self.b, self.kernel
        if kernel.mask is bool_:
            return b.select(b.ne(mask, 0), score, kernel.masked_score)
        return b.add(score, b.cast(mask, self.wide))

    def greatest(self, x: Value, y: Value) -> Value:
        """The greater of two, or x if y is NaN."""
        return self.b.select(self.b.lt(x, y), y, x)

    def finite_base(self, greatest: Value) -> Value:
        """What is subtracted from scores: their greatest, or 0 if all are -infinity."""
        return self.b.select(self.b.eq(greatest, -math.inf), 0.0, greatest)

    def divided(self, result: Value, inverse: Value, total: Value) -> Value:
        """A number of the result: the sum of weighted values, times one over the sum of the weights."""
        b, kernel = self.b, self.kernel
        value = b.mul(result, inverse)
        if kernel.masking == "zero":
            return b.select(b.eq(total, 0), 0.0, value)
        if kernel.masking == "nan-to-zero":
            # False of a sum that is NaN.
            return b.select(b.lt(0, total), value, b.constant(0.0, value.type))
        return value


class _AttentionBuilder(AttentionBase):
    def __init__(self, name: str, kernel: Attention, machine: Machine) -> None:
        super().__init__(name, kernel, machine)
        self.shape = _Shape.of(kernel, machine)

    def units(self) -> None:
        b, shape = self.b, self.shape
        queries = self.size("queries")
        blocks = b.div(b.add(queries, shape.columns - 1), shape.columns)
        own = b.view(b["scratch"], b.mul(b["thread"], shape.scratch))
        self.strip, place = own, shape.strip
        self.mask_tile = b.view(own, place)
        self.scores = b.view(own, place + shape.mask)
        self.result = b.view(own, place + shape.mask + shape.scores)
        self.correction = b.view(own, place + shape.mask + shape.scores + shape.result)
        buffers = attention_buffers(self.kernel)
        if shape.mask and buffers["mask"] is not self.wide:
            self.mask_tile = b.alloc(buffers["mask"], shape.mask + 64)
        self.narrow = b.alloc(self.kernel.dtype, shape.strip + 64) if self.kernel.dtype is not self.wide else None
        with b.loop(b["begin"], b["end"]) as unit:
            first = b.mul(b.rem(unit, blocks), shape.columns)
            rows = b.min(b.sub(queries, first), shape.columns)
            head = b.div(unit, blocks)
            self.ask(head, first, b.rem(unit, blocks))
            b.branch(
                self.is_small(rows),
                lambda: self.block(head, first, rows, 1),
                lambda: self.block(head, first, rows, shape.vectors),
            )

    def is_small(self, rows: Operand) -> Operand:
        """Whether one vector is enough for a block of queries; known, if no block or each block is so."""
        shape, queries = self.shape, self.kernel.queries
        if shape.vectors == 1:
            return True
        if queries is not None and not 0 < queries % shape.columns <= shape.lanes:
            return False
        small: Operand = self.b.le(rows, shape.lanes)
        return small

    def block(self, head: Operand, first: Operand, rows: Operand, vectors: int) -> None:
        """`rows` queries from `first` on, in `vectors` vectors."""
        b, kernel, shape = self.b, self.kernel, self.shape
        columns = vectors * shape.lanes
        views = self.head_views(head, {"q": first, "y": first, "mask": first})
        self.pack_queries(views["q"], rows, columns)
        vector = types.vector(self.wide, shape.lanes)
        with b.loop(0, kernel.value_size * columns, shape.lanes) as i:
            b.store(b.constant(0, vector), self.result, i)
        limit = self.size("keys")
        if kernel.causal:
            limit = b.max(b.min(limit, b.add(b.add(first, rows), self.size("offset"))), 0)
        start = [b.constant(-math.inf, vector)] * vectors + [b.constant(0, vector)] * vectors
        step = self.keys_of_block()
        with b.loop(0, limit, step, start) as state:
            key = state.index
            count = b.min(b.sub(limit, key), step)
            self.score(views["k"], key, count, vectors)
            self.turn_mask(views, key, count, rows, columns)
            greatest, total = state.values[:vectors], state.values[vectors:]
            state.yields(self.weigh(views, first, key, count, greatest, total))
            self.add_values(views["v"], key, count, vectors)
        self.store_result(views["y"], rows, state.results[vectors:])

    def ask(self, head: Operand, first: Operand, block: Operand) -> None:
        """Find out where the next unit reads and this one writes; `fetch` then asks for a part of it at each key."""
        b, kernel = self.b, self.kernel
        following = b.add(head, 1)
        shared = b.div(b.rem(following, self.size("heads")), kernel.repeats)
        line = b.mul(b.rem(block, 4), 512 // kernel.dtype.bits)
        self.asked: dict[str, Operand] = {}
        for name in "kv":
            place = b.mul(b.div(following, self.size("heads")), self.size(f"{name}_batch"))
            self.asked[name] = b.add(b.add(place, b.mul(shared, self.size(f"{name}_head"))), line)
        own = b.rem(head, self.size("heads"))
        for name, row in (("q", b.add(first, self.shape.columns)), ("y", first)):
            place = b.mul(b.div(head, self.size("heads")), self.size(f"{name}_batch"))
            place = b.add(place, b.mul(own, self.size(f"{name}_head")))
            self.asked[name] = b.add(place, b.mul(row, self.size(f"{name}_row")))

    def fetch(self, key: Operand, columns: int) -> None:
        """Rows of a head lie far apart, which the processor does not foresee: at each key, ask for a line of k and v of
        the next head, and of the queries and results of a block."""
        b = self.b
        row, line = b.and_(key, columns - 1), b.mul(b.and_(b.div(key, columns), 3), 512 // self.kernel.dtype.bits)
        for name in "kv":
            b.prefetch(b[name], b.add(self.asked[name], b.mul(key, self.size(f"{name}_row"))), 2)
        for name in "qy":
            place = b.add(self.asked[name], b.mul(row, self.size(f"{name}_row")))
            b.prefetch(b[name], b.add(place, line), 2)

    def keys_of_block(self) -> Operand:
        """All keys shared out evenly among blocks."""
        b, keys = self.b, self.size("keys")
        if not isinstance(keys, Value):
            return self.shape.keys
        blocks = b.max(b.div(b.add(keys, _KEYS - 1), _KEYS), 1)
        shared: Operand = b.max(b.div(b.add(keys, b.sub(blocks, 1)), blocks), 1)
        return shared

    def pack_queries(self, q: Value, rows: Operand, columns: int) -> None:
        b, kernel, lanes = self.b, self.kernel, self.shape.lanes
        strides = self.size("q_row"), self.size("q_element")
        packed = self.strip if self.narrow is None else self.narrow
        pack_strip(b, q, packed, rows, kernel.size, columns, *strides, lanes)
        if kernel.scale == 1 and self.narrow is None:
            return
        with b.loop(0, kernel.size * columns, lanes) as i:
            b.store(b.mul(b.cast(b.load(packed, i, lanes), self.wide), kernel.scale), self.strip, i)

    # ---- products ----------------------------------------------------------------------------------------------------

    def score(self, k: Value, key: Operand, count: Operand, vectors: int) -> None:
        """scores^T of `count` keys from `key` on."""
        b, row = self.b, self.size("k_row")
        k = b.view(k, b.mul(key, row))
        columns = vectors * self.shape.lanes

        def tile(height: int, first: Operand, few: bool = False) -> None:
            name = self.score_tile(height, vectors, few)
            target = b.view(self.scores, b.mul(first, columns))
            left = b.view(k, b.mul(first, row))
            b.call(name, left, self.strip, target, *self.passed("k"), *([count] if few else []))

        if self.kernel.keys is not None and not self.kernel.causal:
            self.tiles(count, tile, self.heights_of_keys(self.kernel.keys))
            return
        # One height for any number: the last tile begins earlier, and sums up some scores again.
        rows = min(self.shape.rows, _TILE_KEYS)

        def full() -> None:
            with b.loop(0, count, rows) as first:
                tile(rows, b.min(first, b.sub(count, rows)))

        b.branch(b.lt(count, rows), lambda: tile(rows, 0, few=True), full)

    def score_tile(self, rows: int, vectors: int, few: bool) -> str:
        """The function for a tile of scores; made when it is first asked for. With `few` keys the last is repeated."""

        def build(b: LoopBuilder, tile: Tile) -> None:
            row, element = self.inside(b, "k", "row"), self.inside(b, "k", "element")
            places = [b.mul(b.min(i, b.sub(b["count"], 1)) if few else i, row) for i in range(rows)]
            sums = tile.accumulate(b, tile.zeros(b), self.kernel.size, b["left"], places, element, b["strip"], 2)
            tile.finish(b, sums, Target(b["target"], [i * tile.columns for i in range(rows)], tile.columns))

        more: dict[str, types.Type] = {"count": types.scalar(i64)} if few else {}
        return self.function("few" if few else "score", "k", rows, vectors, more, build)

    def add_values(self, v: Value, key: Operand, count: Operand, vectors: int) -> None:
        """Add to the result the values of `count` keys from `key` on, by their weights."""
        b, columns = self.b, vectors * self.shape.lanes
        v = b.view(v, b.mul(key, self.size("v_row")))

        def tile(height: int, first: Operand) -> None:
            name = self.value_tile(height, vectors)
            target = b.view(self.result, b.mul(first, columns))
            left = b.view(v, b.mul(first, self.size("v_element")))
            b.call(name, left, self.scores, target, *self.passed("v"), count, self.correction)

        size = self.kernel.value_size
        self.tiles(size, tile, _heights(size, self.shape.rows))

    def value_tile(self, rows: int, vectors: int) -> str:
        def build(b: LoopBuilder, tile: Tile) -> None:
            row, element = self.inside(b, "v", "row"), self.inside(b, "v", "element")
            factors = [b.load(b["correction"], v * tile.lanes, tile.lanes) for v in range(vectors)]
            sums = [
                b.mul(b.load(b["target"], i * tile.columns + v * tile.lanes, tile.lanes), factors[v])
                for i in range(rows)
                for v in range(vectors)
            ]
            places = [b.mul(i, element) for i in range(rows)]

            def ahead(key: Operand) -> None:
                for part in range(2):
                    b.prefetch(b["left"], b.mul(b.add(key, _AHEAD + part), row))

            sums = tile.accumulate(b, sums, b["count"], b["left"], places, row, b["strip"], 2, ahead)
            tile.finish(b, sums, Target(b["target"], [i * tile.columns for i in range(rows)], tile.columns))

        more: dict[str, types.Type] = {"count": types.scalar(i64), "correction": types.buffer(self.wide)}
        return self.function("value", "v", rows, vectors, more, build)

    def function(self, stem: str, tensor: str, rows: int, vectors: int, more: dict[str, types.Type], build: Any) -> str:
        name = f"{stem}{rows}x{vectors}"
        if all(function.key.name != name for function in self.b.functions):
            given, buffer = types.buffer(self.kernel.dtype), types.buffer(self.wide)
            strides = {
                f"{tensor}_{dim}": types.scalar(i64)
                for dim in ("row", "element")
                if self.sizes[f"{tensor}_{dim}"] is None
            }
            b = LoopBuilder(name, left=given, strip=buffer, target=buffer, **strides, **more)
            build(b, Tile(rows, vectors, self.shape.lanes, self.wide))
            self.b.include(b.finish())
        return name

    def passed(self, tensor: str) -> list[Operand]:
        """The strides that a function has to be told."""
        names = [f"{tensor}_{dim}" for dim in ("row", "element")]
        return [self.b[name] for name in names if self.sizes[name] is None]

    def inside(self, b: LoopBuilder, tensor: str, dim: str) -> Operand:
        known = self.sizes[f"{tensor}_{dim}"]
        return b[f"{tensor}_{dim}"] if known is None else known

    def heights_of_keys(self, keys: int) -> list[int]:
        """The heights of the tiles that blocks of a known number of keys have."""
        shape = self.shape
        found: set[int] = set()
        for count in {min(shape.keys, keys - start) for start in range(0, keys, shape.keys)}:
            found |= set(_heights(count, shape.rows))
        return sorted(found) or [1]

    def tiles(self, count: Operand, tile: Any, heights: Sequence[int]) -> None:
        """`count` rows shared out evenly among tiles: `tile(height, first)` for each."""
        b = self.b
        number = b.div(b.add(count, self.shape.rows - 1), self.shape.rows)
        with b.loop(0, number) as index:
            first = b.div(b.mul(index, count), number)
            height = b.sub(b.div(b.mul(b.add(index, 1), count), number), first)

            def choose(low: int, high: int) -> None:
                if high - low == 1:
                    tile(heights[low], first)
                    return
                middle = (low + high) // 2
                b.branch(b.lt(height, heights[middle]), lambda: choose(low, middle), lambda: choose(middle, high))

            choose(0, len(heights))

    # ---- weights -----------------------------------------------------------------------------------------------------

    def turn_mask(self, views: dict[str, Value], key: Operand, count: Operand, rows: Operand, columns: int) -> None:
        """The block of a mask that differs between queries, turned as the scores are."""
        if not _has_own_rows(self.kernel):
            return
        b = self.b
        source = b.view(views["mask"], b.mul(key, self.size("mask_element")))
        strides = self.size("mask_row"), self.size("mask_element")
        pack_strip(b, source, self.mask_tile, rows, count, columns, *strides, self.shape.lanes)

    def weigh(
        self, views: dict[str, Value], first: Operand, key: Operand, count: Operand, greatest: Sequence[Value],
        total: Sequence[Value],
    ) -> list[Value]:  # fmt: skip
        """Scores become weights; the greatest score and the sum of weights so far."""
        b, lanes = self.b, self.shape.lanes
        vectors = len(greatest)
        kernel = self.kernel

        def part(begin: Operand, end: Operand, so_far: Sequence[Value], causal: bool) -> list[Value]:
            """The scores of some keys, adjusted, and the greatest so far."""
            with b.loop(begin, end, 1, so_far) as state:
                following = []
                self.fetch(b.add(key, state.index), vectors * lanes)
                for v in range(vectors):
                    place = b.add(b.mul(state.index, vectors * lanes), v * lanes)
                    score = b.load(self.scores, place, lanes)
                    if kernel.softcap or kernel.mask or causal:
                        score = self.adjusted(score, views, first, key, state.index, v, place, causal)
                        b.store(score, self.scores, place)
                    following.append(self.greatest(state[v], score))
                state.yields(following)
            return list(state.results)

        if kernel.causal:
            # The keys that all queries of the block see come first.
            seen = b.add(b.sub(b.add(first, self.size("offset")), key), 1)
            seen = b.min(b.max(seen, 0), count)
            highest = part(seen, count, part(0, seen, greatest, False), True)
        else:
            highest = part(0, count, greatest, False)
        base = [self.finite_base(value) for value in highest]
        for v in range(vectors):
            correction = exp_of_negative(b, b.sub(greatest[v], base[v]))
            b.store(correction, self.correction, v * lanes)
        sums = self.exponentials(count, base)
        corrected = [
            b.fma(total[v], b.load(self.correction, v * lanes, lanes), sums[v]) for v in range(vectors)
        ]  # fmt: skip
        return [*highest, *corrected]

    def adjusted(
        self, score: Value, views: dict[str, Value], first: Operand, key: Operand, index: Value, v: int, place: Operand,
        causal: bool,
    ) -> Value:  # fmt: skip
        """A vector of scores of the key `key + index` with cap and masks applied."""
        b, kernel, lanes = self.b, self.kernel, self.shape.lanes
        score = self.capped(score)
        if kernel.mask is not None:
            if _has_own_rows(kernel):
                mask = b.load(self.mask_tile, place, lanes)
            else:
                at = b.mul(b.add(key, index), self.size("mask_element"))
                mask = b.broadcast(b.load(views["mask"], at), lanes)
            score = self.masked(score, mask)
        if causal:
            least = b.sub(b.add(key, index), b.add(b.add(first, v * lanes), self.size("offset")))
            score = b.select(b.le(b.cast(least, i32), b.cast(b.iota(lanes), i32)), score, -math.inf)
        return score

    def exponentials(self, count: Operand, base: Sequence[Value]) -> list[Value]:
        """Weights in the place of scores, and their sums, by two chains."""
        b, lanes, vectors = self.b, self.shape.lanes, len(base)
        zero = b.constant(0, types.vector(self.wide, lanes))

        def weights(index: Operand, sums: Sequence[Value]) -> list[Value]:
            following = []
            for v in range(vectors):
                place = b.add(b.mul(index, vectors * lanes), v * lanes)
                weight = exp_of_negative(b, b.sub(b.load(self.scores, place, lanes), base[v]))
                b.store(weight, self.scores, place)
                following.append(b.add(sums[v], weight))
            return following

        even = b.sub(count, b.rem(count, 2))
        with b.loop(0, even, 2, [zero] * (2 * vectors)) as state:
            pair = [
                weights(state.index, state.values[:vectors]),
                weights(b.add(state.index, 1), state.values[vectors:]),
            ]
            state.yields([*pair[0], *pair[1]])
        sums = [b.add(state.results[v], state.results[vectors + v]) for v in range(vectors)]
        with b.loop(even, count, 1, sums) as rest:
            rest.yields(weights(rest.index, rest.values))
        return list(rest.results)

    # ---- results -----------------------------------------------------------------------------------------------------

    def store_result(self, y: Value, rows: Operand, total: Sequence[Value]) -> None:
        """Divide result^T by the sums, and store it turned."""
        b, kernel, lanes = self.b, self.kernel, self.shape.lanes
        columns = len(total) * lanes
        for v, sums in enumerate(total):
            inverse = b.div(1.0, sums)
            for start in range(0, kernel.value_size, lanes):
                width = min(lanes, kernel.value_size - start)
                block = [
                    self.divided(b.load(self.result, (start + i) * columns + v * lanes, lanes), inverse, sums)
                    for i in range(width)
                ]
                turned = transposed(b, block + block[-1:] * (lanes - width), lanes)
                mask = None if width == lanes else b.tail_mask(b.index(width), lanes)
                self.store_rows(y, turned, v * lanes, start, rows, mask)

    def store_rows(
        self, y: Value, block: Sequence[Value], row: int, start: int, rows: Operand, mask: Value | None
    ) -> None:
        b = self.b

        def store(i: int) -> None:
            value = b.cast(block[i], self.kernel.dtype)
            b.store(value, y, b.add(b.mul(row + i, self.size("y_row")), start), mask)

        def every() -> None:
            for i in range(len(block)):
                store(i)

        def some() -> None:
            for i in range(len(block)):
                with b.when(b.lt(row + i, rows)):
                    store(i)

        b.branch(b.le(row + len(block), rows), every, some)


def _heights(count: int, rows: int) -> list[int]:
    """The heights of tiles that share out `count` rows evenly, at most `rows` each."""
    tiles = max(1, -(-count // rows))
    return sorted({count // tiles, -(-count // tiles)} - {0}) or [1]
