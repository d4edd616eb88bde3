"""The steps of a block: segments, which are planned for the sizes of a run, and operations that run on the host.

A segment ends where something runs on the host, and where sizes of what follows depend on elements that it computes, or
on how many it finds.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from ...graph.core import Block, Operation, Value
from ...graph.evaluator import captures
from ...graph.kernel.kernel_base import KernelOp
from ...graph.opdef import Trait
from ...passes.lower_to_kernels import is_planned
from .planner import has_plan


@dataclass(eq=False)
class Segment:
    """`ops` in order; `inputs` are values from elsewhere, `outputs` those that are needed elsewhere.

    The elements of the inputs in `known` decide on sizes, so a plan is made for them, too. Outputs `in_place` may be
    written where an input lies, by the operation that reads that last. For each output whose size its kernel counts,
    `cuts` has the dim that it is of, and the output that is the count.
    """

    ops: list[Operation] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    known: list[Value] = field(default_factory=list)
    in_place: set[Value] = field(default_factory=set)
    cuts: dict[Value, tuple[int, Value]] = field(default_factory=dict)


Step = Segment | Operation


def steps_of(block: Block, planned: Set[Value] = frozenset()) -> list[Step]:
    """The steps of a block at the level "kernel", in order; `planned` values from around it follow from shapes."""
    splitter = _Splitter(planned)
    for op in block:
        if op.name != "const" and not op.is_terminator:
            splitter.add(op)
    splitter.close()
    _connect(splitter.steps, block.returned)
    return splitter.steps


class _Splitter:
    """Adds operations to the current segment, or starts another."""

    def __init__(self, planned: Set[Value]) -> None:
        self.steps: list[Step] = []
        self.segment = Segment()
        self.made: set[Value] = set()  # by the current segment's kernels
        self.counted: set[Value] = set()  # of those, what has a size that only its kernel finds
        self.planned: set[Value] = set()  # worked out when the current segment is planned
        self.earlier: set[Value] = set(planned)  # worked out before

    def add(self, op: Operation) -> None:
        if any(value in self.counted for value in op.operand_values):
            self.close()
        if isinstance(op.definition, KernelOp):
            needed = [op.input(index) for index in op.definition.known_operands]
            if any(value in self.made for value in needed):
                self.close()
            if has_plan(op):
                self.know([value for value in needed if value is not None])
                self.segment.ops.append(op)
                self.made.update(op.results)
                self.counted.update(op.results[index] for index in op.definition.counted)
                return
        elif self.is_planned(op):
            if Trait.SHAPE_ONLY not in op.definition.traits:
                self.know(op.operand_values)
            self.segment.ops.append(op)
            self.planned.update(op.results)
            return
        self.close()
        self.steps.append(op)

    def is_planned(self, op: Operation) -> bool:
        """Whether the results follow from shapes and from what is known when the current segment is planned."""
        known = self.planned | self.earlier
        return is_planned(op, lambda value: _is_constant(value) or value in known)

    def know(self, values: Sequence[Value]) -> None:
        """Note which values from elsewhere must be known."""
        for value in values:
            is_outside = not _is_constant(value) and value not in self.planned and value not in self.made
            if is_outside and value not in self.segment.known:
                self.segment.known.append(value)

    def close(self) -> None:
        if self.segment.ops:
            self.steps.append(self.segment)
        self.earlier |= self.planned
        self.segment, self.made, self.counted, self.planned = Segment(), set(), set(), set()


def planned_values(steps: Sequence[Step]) -> set[Value]:
    """What the segments among `steps` work out when they are planned."""
    ops = [op for step in steps if isinstance(step, Segment) for op in step.ops]
    return {result for op in ops if not isinstance(op.definition, KernelOp) for result in op.results}


def _connect(steps: Sequence[Step], returned: Sequence[Value]) -> None:
    """Find what each segment reads from others, and what others read from it."""
    needed: set[Value] = set(returned)
    for step in reversed(steps):
        if isinstance(step, Operation):
            needed.update(step.operand_values)
            needed.update(captures(step) if step.regions else ())
            continue
        made = [result for op in step.ops for result in op.results]
        inside = set(made)
        read = dict.fromkeys(value for op in step.ops for value in op.operand_values)
        step.inputs = [value for value in read if value not in inside and not _is_constant(value)]
        step.cuts = {value: cut for op in step.ops for value, cut in _cuts(op).items() if value in needed}
        counts = {count for _, count in step.cuts.values()}
        step.outputs = [value for value in made if value in needed or value in counts]
        needed.update(step.inputs)


def _cuts(op: Operation) -> dict[Value, tuple[int, Value]]:
    """The results that are counted, with their dim and the count."""
    if not isinstance(op.definition, KernelOp):
        return {}
    return {op.results[index]: (axis, op.results[-1]) for index, axis in op.definition.counted.items()}


def _is_constant(value: Value) -> bool:
    return value.producer is not None and value.producer.name == "const"
