"""How many bytes of results are alive at each operation of a block, run in its order, each freed after its last use.

Inputs and constants do not count: they are there before and after. Views (Reshape and its kin) take no bytes, and keep
what they look at alive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...graph.core import Block, Operation, Value
from ...graph.diagnostics import UsageError
from ...graph.dims import Dim, DimExpr, evaluate, label_of, symbols_of
from ...graph.evaluator import captures
from ...graph.types import TensorType

VIEWS = frozenset({"reshape", "flatten", "squeeze", "unsqueeze", "identity"})
# Arithmetic operations that a machine does while it moves one byte, to weigh the one against the other.
FLOPS_PER_BYTE = 16


class Sizes:
    """Bytes of values and time of operations; `sizes` gives sizes to dims by name.

    Raises UsageError, from `elements`, for a dim without a size.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes
        self._known: dict[Value, int] = {}

    def number(self, dim: Dim) -> int:
        if isinstance(dim, int):
            return dim
        values: dict[DimExpr, int] = {}
        for symbol in symbols_of(dim):
            label = label_of(symbol)
            if label not in self.sizes:
                hint = f'dims=["{label}=SIZE"] gives it one' if not label.startswith("?") else "bind-dims gives sizes"
                raise UsageError("liveness/size", f"the dim {label!r} has no size", notes=[hint])
            values[symbol] = self.sizes[label]
        return max(evaluate(dim, values), 0)

    def bytes_of(self, value: Value) -> int:
        if value not in self._known:
            type, count = value.type, 0
            if isinstance(type, TensorType) and type.shape is not None:
                count = type.dtype.storage_bytes(self.number(_product(type.shape)))
            self._known[value] = count
        return self._known[value]

    def time_of(self, op: Operation) -> float:
        """In bytes moved: what it reads and writes, or its arithmetic if that takes longer."""
        if op.name in VIEWS:
            return 0.0
        moved = sum(map(self.bytes_of, (*op.operand_values, *op.results)))
        flops = op.definition.flops(op)
        return max(float(moved), 0.0 if flops is None else self.number(flops) / FLOPS_PER_BYTE)


def _product(dims: Iterable[Dim]) -> Dim:
    total: Dim = 1
    for dim in dims:
        total = total * dim
    return total


@dataclass(eq=False, slots=True)
class Slot:
    """A result under a schedule. `root` is what it is a view of, itself if it is none."""

    value: Value
    size: int
    root: Slot


@dataclass(eq=False, slots=True)
class Item:
    """One operation of a schedule, or a copy of one that computes the same again."""

    op: Operation
    reads: list[Slot]
    makes: list[Slot]
    copy: bool = False


@dataclass
class Lifetimes:
    """When each root is made and used last, and where most bytes are alive: `peak` of them, while item `at` runs."""

    made: dict[Slot, int]
    last: dict[Slot, int]
    peak: int
    at: int


def schedule_of(block: Block, sizes: Sizes) -> tuple[list[Item], list[Slot]]:
    """The operations of a block in order, constants left out, and what the block returns."""
    slots: dict[Value, Slot] = {}
    items = []
    for op in block:
        if op.is_terminator or op.name == "const":
            continue
        read = [*op.operand_values, *(captures(op) if op.regions else ())]
        reads = [slots[value] for value in dict.fromkeys(read) if value in slots]
        makes = [new_slot(op, value, reads, slots, sizes) for value in op.results]
        slots.update({slot.value: slot for slot in makes})
        items.append(Item(op, reads, makes))
    return items, [slots[value] for value in block.returned if value in slots]


def new_slot(op: Operation, value: Value, reads: Sequence[Slot], slots: Mapping[Value, Slot], sizes: Sizes) -> Slot:
    source = op.operands[0] if op.name in VIEWS else None
    slot = Slot.__new__(Slot)
    slot.value = value
    if source is not None and source in slots:
        slot.size, slot.root = 0, slots[source].root
    else:
        slot.size, slot.root = (0 if source is not None else sizes.bytes_of(value)), slot
    return slot


def lifetimes(items: Sequence[Item], returned: Sequence[Slot]) -> Lifetimes:
    """Of a schedule in which every root is made before it is read."""
    made: dict[Slot, int] = {}
    last: dict[Slot, int] = {}
    for index, item in enumerate(items):
        for slot in item.makes:
            made.setdefault(slot.root, index)
            last.setdefault(slot.root, index)
        for slot in item.reads:
            last[slot.root] = index
    for slot in returned:
        last[slot.root] = len(items)
    changes = [0] * (len(items) + 2)
    for slot, index in made.items():
        changes[index] += slot.size
        changes[last[slot] + 1] -= slot.size
    peak = at = alive = 0
    for index in range(len(items)):
        alive += changes[index]
        if alive > peak:
            peak, at = alive, index
    return Lifetimes(made, last, peak, at)
