"""What a model costs: arithmetic, and elements and bytes moved between memory and the processor.

Two views of the same operations. *Each operation alone*: every operation reads its operands from memory and writes its
results there. *Fused*: a tree of elementwise operations of one shape is one kernel, and so is a matrix product or a
convolution with the elementwise operations that follow it, as the cpu target runs them; what only such a group reads is
never in memory.

E = D + (A + B) * C of n elements has 3n operations. Each alone reads 6n and writes 3n: 1/3 operation per element moved.
Fused, it reads 4n and writes n: 3/5.

What counts as moved:

- an operand or result that is in memory, once for each kernel that reads or writes it, and all of it;
- of an operand of an operation that only moves elements (Slice, Gather, Expand), no more than the result has;
- nothing where only the shape is read or changed (Reshape, Squeeze, Shape);
- no constant of one element, and no short list of integers, which are axes or sizes: they are part of the kernel.

Bodies of loops and branches count once; model-local functions that were not inlined do not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from ..graph.core import Block, Operation, Value
from ..graph.data import TensorData
from ..graph.dims import Dim, DimExpr, evaluate, label_of, symbols_of
from ..graph.opdef import Trait
from ..graph.types import TensorType

if TYPE_CHECKING:
    from ..graph.module import Module

# What an unknown size counts as, unless it is given: not 1, where all that broadcasts would look alike, and enough for
# what halves an image six times.
UNKNOWN_SIZE = 64
# An integer constant of fewer elements is a list of axes or sizes.
_SHORT_LIST = 64
_VIEWS = frozenset({"reshape", "flatten", "squeeze", "unsqueeze", "identity"})


@dataclass(frozen=True)
class Cost:
    """`flops` is arithmetic (see `OpDefinition.flops`), `read` and `written` are bytes, `elements` all elements moved.

    `kernels` is the number of operations or groups that do anything, `unknown` that of operations whose arithmetic is
    not known and counts as 0.
    """

    kernels: int = 0
    flops: int = 0
    elements: int = 0
    read: int = 0
    written: int = 0
    unknown: int = 0

    @property
    def moved(self) -> int:
        """Bytes read and written."""
        return self.read + self.written

    @property
    def intensity(self) -> float:
        """Operations per element moved; 0 where nothing moves."""
        return self.flops / self.elements if self.elements else 0.0

    def __add__(self, other: Cost) -> Cost:
        mine, theirs = asdict(self), asdict(other)
        return Cost(**{name: mine[name] + theirs[name] for name in mine})

    def __sub__(self, other: Cost) -> Cost:
        mine, theirs = asdict(self), asdict(other)
        return Cost(**{name: mine[name] - theirs[name] for name in mine})


@dataclass(frozen=True)
class ModelCost:
    """The cost of a model in both views."""

    alone: Cost
    fused: Cost

    def to_dict(self) -> dict[str, Any]:
        return {"alone": asdict(self.alone), "fused": asdict(self.fused)}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Mapping[str, int]]) -> ModelCost:
        return cls(Cost(**facts["alone"]), Cost(**facts["fused"]))


def model_cost(module: Module, sizes: Mapping[str, int] | None = None, inferred: bool = False) -> ModelCost:
    """The cost of one run of `module`; `sizes` gives sizes by name, others count as `UNKNOWN_SIZE`.

    `inferred`: types are those that `infer-shapes` gave, and later passes. Otherwise they are inferred in a copy, where
    sizes are open: the claims of a file do not say how its sizes depend on each other.
    """
    module = module if inferred else _typed(module)
    sized = _Sizes(sizes or {})
    blocks = list(_blocks(module.main.block))
    alone = (_cost([op], sized) for block in blocks for op in _working(block))
    fused = (_cost(group, sized) for block in blocks for group in fusion_groups(block))
    return ModelCost(reduce(Cost.__add__, alone, Cost()), reduce(Cost.__add__, fused, Cost()))


def _typed(module: Module) -> Module:
    values = [result for op in module.main.walk() for result in op.results]
    if all(isinstance(value.type, TensorType) and value.type.is_static for value in values):
        return module
    from ..graph.clone import clone_module
    from .context import PassContext
    from .infer_shapes import InferShapes

    copy = clone_module(module)
    InferShapes().run(copy, PassContext())
    return copy


def _blocks(block: Block) -> Iterator[Block]:
    yield block
    for op in block:
        for region in op.regions.values():
            yield from _blocks(region.block)


def _working(block: Block) -> Iterator[Operation]:
    """The operations that do anything at run time."""
    return (op for op in block if op.name != "const" and not op.is_terminator)


# ---- groups ----------------------------------------------------------------------------------------------------------


def fusion_groups(block: Block) -> list[list[Operation]]:
    """The operations of a block by the kernel that runs them, in order of the last of each.

    A group ends in one result. An elementwise operation, or a contraction (one in each group), belongs to the group of
    its users if they are all in one and its result has the shape of that group's.
    """
    homes: dict[Operation, list[Operation]] = {}
    contracted: set[int] = set()  # ids of groups with a contraction
    for op in reversed(list(_working(block))):
        contraction = Trait.CONTRACTION in op.definition.traits
        home = _home(op, homes) if contraction or _is_map(op) else None
        if home is None or (contraction and id(home) in contracted):
            home = []
        home.insert(0, op)
        homes[op] = home
        if contraction:
            contracted.add(id(home))
    return [home for op, home in homes.items() if op is home[-1]][::-1]


def _home(op: Operation, homes: Mapping[Operation, list[Operation]]) -> list[Operation] | None:
    """The group of all users of the result of `op`, if it is one of elementwise operations of the same shape."""
    if len(op.results) != 1 or not op.result.users or not all(map(_is_map, op.result.users)):
        return None
    group = homes.get(op.result.users[0])
    if group is None or any(homes.get(user) is not group for user in op.result.users):
        return None
    return group if _shape(group[-1].result) == _shape(op.result) else None


def _is_map(op: Operation) -> bool:
    return Trait.ELEMENTWISE in op.definition.traits and len(op.results) == 1 and not op.regions


def _shape(value: Value) -> tuple[Dim, ...] | None:
    return value.type.shape if isinstance(value.type, TensorType) else None


# ---- cost ------------------------------------------------------------------------------------------------------------


class _Sizes:
    """Dims as numbers."""

    def __init__(self, given: Mapping[str, int]) -> None:
        self.given = given
        self.known: dict[DimExpr, int] = {}

    def number(self, dim: Dim) -> int:
        if isinstance(dim, int):
            return dim
        for symbol in symbols_of(dim):
            if symbol not in self.known:
                self.known[symbol] = self.given.get(label_of(symbol), UNKNOWN_SIZE)
        try:
            return max(evaluate(dim, self.known), 0)
        except (ValueError, ZeroDivisionError):
            return UNKNOWN_SIZE  # sizes that do not go together, such as a length that is less than what is cut off

    def elements(self, value: Value) -> int | None:
        shape = _shape(value)
        if shape is None:
            return None
        count = 1
        for dim in shape:
            count *= self.number(dim)
        return count


def _cost(group: list[Operation], sizes: _Sizes) -> Cost:
    """The cost of a kernel that runs the operations of `group`."""
    if all(op.name in _VIEWS for op in group):
        return Cost()
    inside = {result for op in group for result in op.results}
    reads: dict[Value, int | None] = {}
    for op in group:
        for operand in () if Trait.SHAPE_ONLY in op.definition.traits else op.operand_values:
            if operand not in inside and not _is_immediate(operand):
                amount, memory = _read(op, operand, sizes), _memory(operand)
                before = reads.get(memory, 0)
                reads[memory] = None if amount is None or before is None else max(amount, before)
    writes = {
        result: sizes.elements(result)
        for op in group
        for result in op.results
        if any(user not in group for user in result.users)
    }
    flops = [_flops(op, sizes) for op in group]
    moved = [*reads.values(), *writes.values()]
    return Cost(
        kernels=1,
        flops=sum(count for count in flops if count is not None),
        elements=sum(count for count in moved if count is not None),
        read=sum(_bytes(value, count) for value, count in reads.items()),
        written=sum(_bytes(value, count) for value, count in writes.items()),
        unknown=flops.count(None),
    )


def _read(op: Operation, operand: Value, sizes: _Sizes) -> int | None:
    """How many elements of `operand` the operation reads."""
    count = sizes.elements(operand)
    if count is None or Trait.INJECTIVE not in op.definition.traits:
        return count
    results = [sizes.elements(result) for result in op.results]
    return min(count, sum(size for size in results if size is not None)) if None not in results else count


def _memory(value: Value) -> Value:
    """The value in whose memory `value` is: that of which it is a view."""
    while value.producer is not None and value.producer.name in _VIEWS and value.producer.operand_values:
        value = value.producer.operand_values[0]
    return value


def _flops(op: Operation, sizes: _Sizes) -> int | None:
    if op.regions:
        return 0  # its blocks are counted on their own
    flops = op.definition.flops(op)
    return None if flops is None else sizes.number(flops)


def _bytes(value: Value, elements: int | None) -> int:
    if elements is None:
        return 0
    assert isinstance(value.type, TensorType)
    return -(-elements * value.type.dtype.bits // 8)


def _is_immediate(value: Value) -> bool:
    """Whether `value` is a constant that is part of the kernel: one number, axes, sizes."""
    producer = value.producer
    if producer is None or producer.name != "const":
        return False
    data = producer.attributes.get("value")
    if not isinstance(data, TensorData):
        return False
    return data.elements == 1 or (data.dtype.is_integer and data.elements < _SHORT_LIST)
