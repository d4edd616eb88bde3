"""rematerialize: compute results again near their last uses instead of keeping them, to fit a budget. Level onnx.

The backward pass reads results of the forward pass, so that these stay alive across its peak of memory. Here those that
cost least per byte are forgotten after their uses before the peak, and computed again before those after it (Chen et
al. 2016, arXiv 1604.06174; the choice is greedy, as in Kirisame et al. 2020, arXiv 2006.09616).

    rematerialize{budget=100MB}
    %1 = exp %0 : f32[n]                        %1 = exp %0 : f32[n]
    %2 = matmul %1, %w : f32[n]                 %2 = matmul %1, %w : f32[n]
    ... the peak ...                     ->     ... the peak ...
    %9 = mul %8, %1 : f32[n]                    %8' = exp %0 : f32[n]
                                                %9 = mul %8, %8' : f32[n]

Invariant: every operation gives the same bits (a target that fuses them may round otherwise in another kernel). Copies
are marked, so that `cse` leaves them alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...graph.core import Operation, Value
from ...graph.diagnostics import UsageError
from ...graph.opdef import Trait
from ..base import Pass
from ..bind_dims import parse_dims
from ..keys import RECOMPUTED
from .liveness import Item, Lifetimes, Sizes, Slot, lifetimes, new_slot, schedule_of

if TYPE_CHECKING:
    from ...graph.module import Module
    from ...graph.rewriter import Rewriter
    from ..context import PassContext

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
# How many of the best candidates at one peak are tried before giving up on it.
_TRIES = 12
# A value whose copy needs a longer chain than this is kept.
_LONGEST_CHAIN = 64


@dataclass(frozen=True)
class Rematerialize(Pass):
    """Compute results again instead of keeping them, until at most `budget` bytes of them are alive.

    `budget` is bytes (`64MB`, `1GiB`) or a share of what is alive at most now (`60%`). At most `time` of the step's
    estimated time is spent on it. `dims` gives sizes to dims that have only names. Raises UsageError for a dim without
    a size or a budget that is no number; warns if the budget cannot be met.
    """

    name = "rematerialize"

    budget: str = "60%"
    time: float = 0.35
    dims: tuple[str, ...] = ()

    def run(self, module: Module, context: PassContext) -> bool:
        if not context.may_apply:
            return False
        number, unit = _parsed(self.budget)
        block = module.main.block
        sizes = Sizes(parse_dims(self.dims))
        items, returned = schedule_of(block, sizes)
        whole = sum(sizes.time_of(item.op) for item in items)
        before = lifetimes(items, returned).peak
        budget = round(number / 100 * before) if unit == "%" else round(number * _UNITS[unit])
        search = _Search(items, returned, sizes, budget, whole * self.time)
        after = search.run()
        copies = sum(item.copy for item in search.items)
        if copies and block.first is not None:
            with context.rewrite(module, self.name, block.first, f"{before} bytes alive become {after}") as rewriter:
                _apply(search.items, rewriter)
        share = search.spent / whole if whole else 0.0
        context.count("operations copied", copies)
        message = f"at most {_text(after)} of results are alive instead of {_text(before)}"
        context.remark("rematerialize/peak", f"{message}, for {share:.0%} more time by estimate ({copies} operations)")
        if after > budget:
            hint = self._advice(search.spent_all)
            context.log.warning("rematerialize/budget", f"{message}; the budget is {_text(budget)}", None, hint)
        return bool(copies)

    def _advice(self, spent_all: bool) -> str:
        """What helps against a budget that cannot be met."""
        smaller = "a smaller batch needs less memory"
        if not spent_all:
            return f"what is left is needed all at once; {smaller}"
        return f"{self.time:.0%} of the step's time is all that may be spent on computing again; {smaller}"


def _text(count: int) -> str:
    """Bytes in the unit that fits: `1.5 kB`, `64 MB`."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} bytes"


def _parsed(text: str) -> tuple[float, str]:
    """A budget's number and unit. Raises UsageError."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?)\s*(%|[A-Za-z]*)", text.strip())
    unit = found[2].lower() if found is not None else ""
    if found is None or (unit != "%" and unit not in _UNITS):
        raise UsageError("rematerialize/budget", f"a budget is bytes (64MB) or a share (60%), not {text!r}")
    return float(found[1]), unit


class _Search:
    """The schedule as it gets better, one forgotten value at a time."""

    def __init__(self, items: list[Item], returned: list[Slot], sizes: Sizes, budget: int, allowed: float) -> None:
        self.items, self.returned, self.sizes = items, returned, sizes
        self.budget, self.allowed = budget, allowed
        self.spent = 0.0
        self.spent_all = False
        self.origin = {slot: item for item in items for slot in item.makes}

    def run(self) -> int:
        """The peak in the end."""
        now = lifetimes(self.items, self.returned)
        while now.peak > self.budget:
            better = self._improve(now)
            if better is None:
                return now.peak
            now = better
        return now.peak

    def _improve(self, now: Lifetimes) -> Lifetimes | None:
        """Forget the best value across the peak; None if no choice lowers it."""
        ranked = sorted(self._candidates(now), key=lambda each: each.cost / each.slot.size)
        for candidate in ranked[:_TRIES]:
            if self.spent + candidate.cost > self.allowed:
                self.spent_all = True
                continue
            trial = self._with(candidate)
            found = lifetimes(trial, self.returned)
            if found.peak < now.peak or (
                found.peak == now.peak and _count_at(trial, found) < _count_at(self.items, now)
            ):
                self.items = trial
                self.spent += candidate.cost
                for item in candidate.chain:
                    self.origin.update(dict.fromkeys(item.makes, item))
                return found
        return None

    def _candidates(self, now: Lifetimes) -> Iterator[_Candidate]:
        """Values that are alive at the peak, not used there, and can be computed again where they are used next."""
        at = now.at
        busy = {slot.root for slot in (*self.items[at].reads, *self.items[at].makes)}
        kept = {slot.root for slot in self.returned}
        across = {
            slot for slot, made in now.made.items()
            if made < at < now.last[slot] and slot.size and slot not in busy and slot not in kept
        }  # fmt: skip
        uses: dict[Slot, list[int]] = {slot: [] for slot in across}
        for index in range(at + 1, len(self.items)):
            for slot in self.items[index].reads:
                if slot.root in across:
                    uses[slot.root].append(index)
        for slot, places in uses.items():
            # What a region captures cannot be replaced for it alone.
            if not places or any(self.items[index].op.regions for index in places):
                continue
            chain = self._chain(slot, places, now)
            if chain is not None:
                yield chain

    def _chain(self, root: Slot, places: list[int], now: Lifetimes) -> _Candidate | None:
        """The copies, in order, that make what is read of `root` at `places`, before the first of them."""
        first = min(places)
        wanted = dict.fromkeys(slot for index in places for slot in self.items[index].reads if slot.root is root)
        made: dict[Slot, Slot] = {}
        chain: list[Item] = []
        pending: list[tuple[Item, bool]] = [(self.origin[slot], False) for slot in reversed(wanted)]
        while pending:
            item, ready = pending.pop()
            if all(slot in made for slot in item.makes):
                continue
            if len(chain) + len(pending) > _LONGEST_CHAIN or not _can_be_copied(item.op):
                return None
            missing = [
                slot for slot in item.reads if slot not in made and (slot.root is root or now.last[slot.root] < first)
            ]
            if missing and not ready:
                pending.append((item, True))
                pending.extend((self.origin[slot], False) for slot in missing)
                continue
            copy = self._copy(item, made)
            made.update(zip(item.makes, copy.makes, strict=True))
            chain.append(copy)
        cost = sum(self.sizes.time_of(item.op) for item in chain)
        return _Candidate(root, first, chain, {slot: made[slot] for slot in wanted}, cost)

    def _copy(self, item: Item, made: dict[Slot, Slot]) -> Item:
        reads = [made.get(slot, slot) for slot in item.reads]
        by_value = {old.value: new for old, new in zip(item.reads, reads, strict=True)}
        makes = [new_slot(item.op, slot.value, reads, by_value, self.sizes) for slot in item.makes]
        return Item(item.op, reads, makes, copy=True)

    def _with(self, candidate: _Candidate) -> list[Item]:
        before, after = self.items[: candidate.place], self.items[candidate.place :]
        instead = candidate.instead
        changed = [
            Item(item.op, [instead.get(slot, slot) for slot in item.reads], item.makes, item.copy)
            if any(slot in instead for slot in item.reads)
            else item
            for item in after
        ]
        return [*before, *candidate.chain, *changed]


@dataclass
class _Candidate:
    """Forgetting `slot`: `chain` is run before item `place`, and later readers read `instead`."""

    slot: Slot
    place: int
    chain: list[Item]
    instead: dict[Slot, Slot]
    cost: float


def _count_at(items: Sequence[Item], now: Lifetimes) -> int:
    """How many places have the greatest number of bytes alive: where there are several, each has to be brought down."""
    alive, count = 0, 0
    changes = [0] * (len(items) + 2)
    for slot, index in now.made.items():
        changes[index] += slot.size
        changes[now.last[slot] + 1] -= slot.size
    for index in range(len(items)):
        alive += changes[index]
        count += alive == now.peak
    return count


def _can_be_copied(op: Operation) -> bool:
    return not op.regions and op.definition.is_known and not op.definition.traits & {Trait.RANDOM, Trait.EFFECT}


def _apply(items: Sequence[Item], rewriter: Rewriter) -> None:
    """Make the block what the schedule says."""
    values: dict[Slot, Value] = {}
    waiting: list[Item] = []
    for item in items:
        if item.copy:
            waiting.append(item)
            continue
        builder = rewriter.before(item.op)
        for copy in waiting:
            op = builder.create(
                copy.op.definition,
                _operands(copy, values),
                copy.op.attributes,
                result_types=[slot.value.type for slot in copy.makes],
                metadata={**copy.op.metadata, RECOMPUTED: True},
                location=copy.op.location,
            )
            values.update(zip(copy.makes, op.results, strict=True))
        waiting.clear()
        operands = _operands(item, values)
        if not item.op.regions and list(operands) != list(item.op.operands):
            rewriter.set_operands(item.op, operands)


def _operands(item: Item, values: dict[Slot, Value]) -> list[Value | None]:
    """The operands of the original, those replaced that the schedule replaces."""
    instead = {slot.value: values.get(slot, slot.value) for slot in item.reads}
    return [None if value is None else instead.get(value, value) for value in item.op.operands]
