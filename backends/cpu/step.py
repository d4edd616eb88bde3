"""A training step that writes its parameters and state where they lie, so that none is copied or allocated per step.

What the step makes of NAME may be written in the place of NAME if the operation that makes it reads NAME element for
element, as an optimizer does, and whatever else reads NAME comes before. So each update is moved to where its
gradient is there and the old parameter no longer needed; the gradient, which then lies in a cache, needs memory for a
short while only.

The loss is looked at before the first of these writes. A step that makes a bad one, or finds an index out of range,
leaves everything as it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...graph.core import Block, Operation, Value
from ...graph.evaluator import captures
from ...graph.kernel.kernel_base import ViewOp, extras_of
from ...graph.module import Module
from ...graph.rewriter import Rewriter
from ...graph.types import TensorType
from .executable import CpuExecutable, is_control_flow
from .profile import Recorder, Timed, sizes_of
from .program import Program
from .runtime import pool
from .segment import Segment


class StepExecutable(CpuExecutable):
    """Runs a training step. `updates` gives for the name of an output the input whose next value it is; `loss` is the
    output that decides whether a step counts."""

    def __init__(self, module: Module, threads: int | None, updates: Mapping[str, str], loss: str) -> None:
        self._updates, self._loss = dict(updates), loss
        self._plans: dict[Program, _Plan | None] = {}
        self._chosen: dict[tuple[str, ...], list[int]] = {}
        super().__init__(module, threads)

    def _split(self, block: Block, planned: Any) -> None:
        if block is self._block:
            self._pairs = self._named_pairs(block)
            hoist_updates(block, self._pairs, self._returned(block)[self._loss], self.module)
        super()._split(block, planned)
        for step in self._steps[block]:
            if isinstance(step, Segment):
                step.in_place = {new for new, old in self._pairs.items() if is_safe(new, old)}

    def _named_pairs(self, block: Block) -> dict[Value, Value]:
        """The values of `updates`: what is made -> what it replaces. One that is returned twice is left out."""
        arguments = {str(argument.name): argument for argument in block.arguments}
        named, returned = self._returned(block), list(block.returned)
        pairs = {named[new]: arguments[old] for new, old in self._updates.items()}
        return {new: old for new, old in pairs.items() if returned.count(new) == 1}

    @staticmethod
    def _returned(block: Block) -> dict[str, Value]:
        return {str(output.name): value for output, value in zip(block.outputs, block.returned, strict=True)}

    def update(
        self, feeds: Mapping[str, Any], wanted: Sequence[str], check: Callable[[Any], None]
    ) -> dict[str, Any] | None:
        """Run the step, and write what it makes of its state into the arrays of that, which `feeds` holds.

        `check` is called with the loss before anything is written, and may raise. The outputs in `wanted`; None if
        this step cannot be run so. Arrays of the state must be row-major and nobody else's.
        """
        direct = self._direct
        if direct is None:
            return None
        arguments, _ = self.signature.bind(feeds)
        arrays = [self._row_major(arguments[position]) for position in direct.inputs]
        program = self._program(direct.segment, tuple([array.shape for array in arrays]), ())
        if program not in self._plans:
            self._plans[program] = self._planned(program)
        plan = self._plans[program]
        if plan is None:
            return None
        names = tuple(wanted)
        chosen = self._chosen.get(names)
        if chosen is None:
            chosen = [direct.outputs[position] for position in self.signature.choose(names)]
            self._chosen[names] = chosen
        places: dict[int, np.ndarray | None] = {**plan.spare, **dict.fromkeys(chosen)}
        places.update((output, arrays[position]) for output, position in plan.in_place)
        loss = np.empty(*program.outputs[plan.loss])
        places[plan.loss] = loss
        workers = pool(self.threads) if program.parallel and self.threads > 1 else None
        results = program.run(workers, arrays, places, self._recorder, (plan.boundary, lambda: check(loss)))
        for output, name in plan.apart:
            np.copyto(feeds[name], results[output])
        found = {name: results[output] for name, output in zip(wanted, chosen, strict=True)}
        return {name: array.copy() if name in self._updates else array for name, array in found.items()}

    def profile(
        self, feeds: Mapping[str, Any], runs: int = 10, clock: Callable[[], float] = time.perf_counter
    ) -> list[Timed]:
        """As for any model; steps are made one after the other, on copies of the state."""
        defaults = {str(argument.name): data for argument, data in self.module.main.defaults.items()}
        state = {name: feeds[name] if name in feeds else defaults[name].numpy() for name in self._updates.values()}
        own = {**feeds, **{name: np.array(array, order="C") for name, array in state.items()}}
        if self.update(own, (self._loss,), lambda loss: None) is None:
            return super().profile(feeds, runs, clock)
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__, _recorder=(recorder := Recorder(clock)))
        for _ in range(runs):
            twin.update(own, (self._loss,), lambda loss: None)
        return recorder.rows(sizes_of(self.module, own), self._special.covers)

    def _planned(self, program: Program) -> _Plan | None:
        """What a step with this program has to know; None if some outputs were known before it runs."""
        direct = self._direct
        assert direct is not None
        segment = direct.segment
        if program.known:
            return None
        old_names = self._updates
        by_output = {}  # the segment's output -> the name that the model returns it under
        for port, output in zip(self.signature.outputs, direct.outputs, strict=True):
            by_output[output] = port.name
        [loss] = [output for output, name in by_output.items() if name == self._loss]
        touched = program.touched()
        boundary = max(touched[loss]) + 1
        in_place, apart = [], []
        for output, value in enumerate(segment.outputs):
            if value in segment.in_place and min(touched[output]) >= boundary:
                in_place.append((output, segment.inputs.index(self._pairs[value])))
            elif by_output.get(output) in old_names:
                apart.append((output, old_names[by_output[output]]))
        spare = {
            output: np.empty(shape, dtype) for output, (shape, dtype) in enumerate(program.outputs)
            if output not in {place for place, _ in in_place}
        }  # fmt: skip
        return _Plan(loss, boundary, in_place, apart, spare)


class _Plan(NamedTuple):
    """Of a segment's outputs: which one is the loss and how many calls there are up to it; which are written in the
    place of which input; which have to be copied to which state; and memory for those that nobody asks for."""

    loss: int
    boundary: int
    in_place: list[tuple[int, int]]
    apart: list[tuple[int, str]]
    spare: dict[int, np.ndarray]


def hoist_updates(block: Block, pairs: Mapping[Value, Value], loss: Value, module: Module) -> None:
    """Move each operation that makes a next value to where its operands are there and the old one has been read.

    What comes after the first of them behind the `loss` belongs to the optimizer and moves along, as do single numbers
    such as rates.
    """
    ops = [op for op in block if not op.is_terminator]
    made = {value.producer for value in pairs}
    order = {op: index for index, op in enumerate(ops)}
    known = -1 if loss.producer is None else order.get(loss.producer, -1)
    start = min((order[op] for op in made if op in order and order[op] > known), default=len(ops))
    old_values: dict[Operation, list[Value]] = {}
    for new, old in pairs.items():
        if new.producer is not None:
            old_values.setdefault(new.producer, []).append(old)
    keys: dict[Operation, int] = {}
    for op in ops:
        keys[op] = order[op]
        if order[op] <= known or (order[op] < start and not _is_number(op)):
            continue
        inside = captures(op) if is_control_flow(op) else ()
        before = [value.producer for value in (*op.operand_values, *inside) if value.producer is not None]
        for old in old_values.get(op, ()):
            before += [reader for reader in readers(old) if reader is not op]
        keys[op] = max([known, *(keys[each] for each in before if each in keys)])
    rewriter = Rewriter(module.symbols)
    terminator = block.terminator
    for op in sorted(ops, key=lambda op: (keys[op], order[op])):
        rewriter.move(op, terminator)


def _is_number(op: Operation) -> bool:
    """Whether all that it makes is single numbers; it has no blocks of the model."""
    types = [result.type for result in op.results]
    return op.name == "kernel.map" and all(isinstance(type, TensorType) and type.shape == () for type in types)


def readers(value: Value) -> Iterator[Operation]:
    """The operations that read `value`, directly or through views of it."""
    for user in value.users:
        yield user
        if isinstance(user.definition, ViewOp):
            yield from readers(user.result)


def is_safe(new: Value, old: Value) -> bool:
    """Whether `new` can be written where `old` lies: its kernel reads `old` element for element, others before."""
    op = new.producer
    if op is None or new.type is not old.type or not isinstance(new.type, TensorType) or not new.type.is_static:
        return False
    users = list(readers(old))
    if old not in _pointwise_operands(op) or op.operand_values.count(old) != 1 or users.count(op) != 1:
        return False
    others = [user for user in users if user is not op]
    return all(user.parent is op.parent and user.is_before(op) for user in others)


def _pointwise_operands(op: Operation) -> Sequence[Value]:
    """Operands of which a kernel reads each element where it writes the result's, before it does."""
    if op.name == "kernel.map":
        return op.operand_values
    return extras_of(op) if op.name in ("kernel.gemm", "kernel.reduce") else ()
