"""Attention of few queries, as in decoding: one query at a time, k and v read once, along their rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....graph import types
from ....graph.core import Value
from ....graph.kernel.loop_builder import Operand
from ....graph.module import Module
from ..machine import Machine
from .attention import Attention, AttentionBase, attention_scratch
from .exponential import exp_of_negative

# Keys whose products are under way at once.
_TOGETHER = 4


def build_decode(name: str, kernel: Attention, machine: Machine) -> Module:
    """The kernel for units of one query; `build_attention` chooses it."""
    builder = _DecodeBuilder(name, kernel, machine)
    builder.units()
    return builder.b.module()


class _DecodeBuilder(AttentionBase):
    def __init__(self, name: str, kernel: Attention, machine: Machine) -> None:
        super().__init__(name, kernel, machine)
        self.block_size = attention_scratch(kernel, machine)

    def units(self) -> None:
        b = self.b
        self.scores = b.view(b["scratch"], b.mul(b["thread"], self.block_size))
        with b.loop(b["begin"], b["end"]) as unit:
            queries = self.size("queries")
            query = b.rem(unit, queries)
            self.query(b.div(unit, queries), query)

    def query(self, head: Operand, query: Operand) -> None:
        b, kernel = self.b, self.kernel
        views = self.head_views(head, {"q": query, "y": query, "mask": query})
        limit = self.size("keys")
        if kernel.causal:
            limit = b.max(b.min(limit, b.add(b.add(query, 1), self.size("offset"))), 0)
        q = [
            b.mul(part, kernel.scale) if kernel.scale != 1 else part
            for part in self.parts(views["q"], "q", kernel.size)
        ]
        scalar = types.scalar(self.wide)
        zeros = [b.constant(0, types.vector(self.wide, self.lanes))] * -(-kernel.value_size // self.lanes)
        start = [b.constant(-math.inf, scalar), b.constant(0, scalar), *zeros]
        with b.loop(0, limit, self.block_size, start) as state:
            count = b.min(b.sub(limit, state.index), self.block_size)
            greatest, total, *result = state.values
            self.dot_products(views["k"], q, state.index, count)
            highest = self.adjust(views, state.index, count, greatest)
            base = self.finite_base(highest)
            correction = exp_of_negative(b, b.sub(greatest, base))
            total = b.fma(total, correction, self.exponentials(count, base))
            result = [b.mul(part, b.broadcast(correction, self.lanes)) for part in result]
            state.yields([highest, total, *self.weighted(views["v"], state.index, count, result)])
        _, total, *result = state.results
        sums = b.broadcast(total, self.lanes)
        inverse = b.div(1.0, sums)
        for index, part in enumerate(result):
            mask = self.tail(kernel.value_size - index * self.lanes)
            value = b.cast(self.divided(part, inverse, sums), kernel.dtype)
            b.store(value, views["y"], index * self.lanes, mask)

    def tail(self, count: int) -> Value | None:
        return None if count >= self.lanes else self.b.tail_mask(self.b.index(count), self.lanes)

    def parts(self, row: Value, name: str, size: int, place: Operand = 0) -> list[Value]:
        """A row of `size` numbers as vectors, zeros behind its end."""
        b, stride = self.b, self.size(f"{name}_element")
        found = []
        for start in range(0, size, self.lanes):
            mask = self.tail(size - start)
            if stride == 1:
                found.append(b.load(row, b.add(place, start), self.lanes, mask))
            else:
                found.append(b.gather(row, b.add(b.mul(b.add(b.iota(self.lanes), start), stride), place), mask))
        return [self.widened(part) for part in found]

    def dot_products(self, k: Value, q: Sequence[Value], key: Operand, count: Operand) -> None:
        """The scores of `count` keys from `key` on."""
        b, row = self.b, self.size("k_row")

        def score(index: Operand) -> None:
            sums: Value | None = None
            for factor, part in zip(
                q, self.parts(k, "k", self.kernel.size, b.mul(b.add(key, index), row)), strict=True
            ):
                sums = b.mul(factor, part) if sums is None else b.fma(factor, part, sums)
            assert sums is not None
            b.store(b.reduce("add", sums), self.scores, index)

        whole = b.sub(count, b.rem(count, _TOGETHER))
        with b.loop(0, whole, _TOGETHER) as index:
            for ahead in range(_TOGETHER):
                score(b.add(index, ahead))
        with b.loop(whole, count) as index:
            score(index)

    def adjust(self, views: dict[str, Value], key: Operand, count: Operand, greatest: Value) -> Value:
        """Apply cap and mask to the scores; the greatest, or `greatest` if that is greater."""
        b, kernel = self.b, self.kernel
        lowest = b.constant(-math.inf, types.vector(self.wide, self.lanes))
        with b.loop(0, count, self.lanes, [lowest]) as state:
            lanes = b.tail_mask(b.index(b.sub(count, state.index)), self.lanes)
            score = self.capped(b.load(self.scores, state.index, self.lanes, lanes))
            if kernel.mask is not None:
                score = self.masked(score, self.mask_numbers(views["mask"], b.add(key, state.index), lanes))
            b.store(score, self.scores, state.index, lanes)
            state.yields([self.greatest(state[0], b.select(lanes, score, lowest))])
        vector, width = state.results[0], self.lanes
        while width > 1:
            width //= 2
            halves = [b.shuffle(vector, vector, range(begin, begin + width)) for begin in (0, width)]
            vector = self.greatest(*halves)
        return self.greatest(greatest, b.extract(vector, 0))

    def mask_numbers(self, mask: Value, key: Operand, lanes: Value) -> Value:
        b, stride = self.b, self.size("mask_element")
        if stride == 1:
            return b.load(mask, key, self.lanes, lanes)
        if stride == 0:
            return b.broadcast(b.load(mask, 0), self.lanes)
        return b.gather(mask, b.mul(b.add(b.iota(self.lanes), key), stride), lanes)

    def exponentials(self, count: Operand, base: Value) -> Value:
        """Weights in the place of scores, and their sum."""
        b = self.b
        zero = b.constant(0, types.vector(self.wide, self.lanes))
        with b.loop(0, count, self.lanes, [zero]) as state:
            lanes = b.tail_mask(b.index(b.sub(count, state.index)), self.lanes)
            weight = exp_of_negative(b, b.sub(b.load(self.scores, state.index, self.lanes, lanes), base))
            b.store(weight, self.scores, state.index, lanes)
            state.yields([b.add(state[0], b.select(lanes, weight, zero))])
        return b.reduce("add", state.results[0])

    def weighted(self, v: Value, key: Operand, count: Operand, result: Sequence[Value]) -> list[Value]:
        """The result with the values of `count` keys added by their weights."""
        b, row = self.b, self.size("v_row")

        def added(index: Operand, sums: Sequence[Value]) -> list[Value]:
            weight = b.broadcast(b.load(self.scores, index), self.lanes)
            parts = self.parts(v, "v", self.kernel.value_size, b.mul(b.add(key, index), row))
            return [b.fma(weight, part, total) for part, total in zip(parts, sums, strict=True)]

        whole = b.sub(count, b.rem(count, 2))
        with b.loop(0, whole, 2, result) as state:
            state.yields(added(b.add(state.index, 1), added(state.index, state.values)))
        with b.loop(whole, count, 1, state.results) as rest:
            rest.yields(added(rest.index, rest.values))
        return list(rest.results)
