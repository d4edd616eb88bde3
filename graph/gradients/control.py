"""Derivatives of If, Loop and Scan.

If runs again in the backward pass: each branch computes its values once more and gives the adjoints of what both
branches capture. A Loop or Scan keeps the states that each iteration began with (stacked, as further results); the
backward pass is a Scan over them from the last iteration to the first, which computes an iteration once more and
carries the adjoints of the states and of what the body captures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..clone import ValueMap, clone_operations
from ..core import Block, BlockOutput, Operation, Region, Value
from ..dims import prove_equal
from ..evaluator import captures
from ..infer import InferenceContext, infer_types
from ..types import TensorType
from .builder import GradientBuilder, close_block
from .rules import Adjoint, Refusal, gradient_of, parts_of
from .sweep import Sweep, is_differentiable


def _copy_body(block: Block, target: Block, values: ValueMap) -> list[Operation]:
    """Copies of the operations of `block` in `target`; `values` learns what became of each value."""
    ops = clone_operations([op for op in block if not op.is_terminator], values)
    for op in ops:
        target._insert(op, None)
    return ops


def _erase_unused(block: Block) -> None:
    """Erase what neither the block's results nor anything else in it needs."""
    for op in reversed(block):
        if not op.is_terminator and not any(result.use_count for result in op.results):
            op._erase()


def _captured(op: Operation, b: GradientBuilder) -> list[Value]:
    """The values from around that the regions of `op` read, as far as their adjoints are wanted."""
    return [value for value in captures(op) if b.needs(value) and isinstance(value.type, TensorType)]


# ---- If --------------------------------------------------------------------------------------------------------------


@parts_of("If")
def taken_branch(op: Operation, b: GradientBuilder) -> Sequence[Value | None] | None:
    """The branch that runs, if that is known."""
    chosen = InferenceContext(b.symbols).constant(op.operands[0])
    if chosen is None or chosen.size != 1:
        return None
    block = op.regions["then_branch" if bool(chosen.reshape(-1)[0]) else "else_branch"].block
    values: ValueMap = {}
    context = InferenceContext(b.symbols)
    for each in clone_operations([each for each in block if not each.is_terminator], values):
        b.insert(each)
        # What surrounds the branch may say more now than when it was built.
        for result, type in zip(each.results, infer_types(each, context), strict=True):
            result.type = type
    return [values.get(value, value) for value in block.returned]


@gradient_of("If")
def if_(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint] | None:
    chosen = InferenceContext(b.symbols).constant(op.operands[0])
    if chosen is not None and chosen.size == 1:
        return None
    wanted = _captured(op, b)
    regions = {name: _branch_gradient(op.regions[name].block, grads, wanted, b) for name in op.regions}
    found = b.create("if", [op.operands[0]], outputs=len(wanted), regions=regions)
    for value, grad in zip(wanted, found.results, strict=True):
        b.add_adjoint(value, grad)
    return [None]


def _branch_gradient(
    block: Block, grads: Sequence[Value | None], wanted: Sequence[Value], b: GradientBuilder
) -> Region:
    target = Block()
    values: ValueMap = {}
    ops = _copy_body(block, target, values)
    sweep = Sweep(target, b.symbols, b.sweep.findings)
    returned = [values.get(value, value) for value in block.returned]
    sweep.active.update(wanted)
    sweep.spread(ops)
    for value, grad in zip(returned, grads, strict=True):
        if grad is not None:
            sweep.add(value, grad)
    sweep.run(ops)
    found = []
    for value in wanted:
        grad = sweep.total(value)
        # A region must not return a value from around it.
        own = sweep.builder.zeros_like(value) if grad is None else grad
        found.append(own if own.block is target else sweep.builder.identity(own))
    close_block(sweep.builder, found)
    _erase_unused(target)
    return Region(target)


# ---- Loop and Scan ---------------------------------------------------------------------------------------------------


@dataclass
class Iteration:
    """What the backward Scan of a Loop or Scan needs to know.

    `states` are the body's state arguments, `next_states` what it returns for them; `scanned` its arguments that are
    read from `sources` along `axes`, in `directions`; `elements` what it returns for each iteration, with `grads` for
    the whole stack (None: none).
    """

    op: Operation
    body: Block
    states: list[Value]
    next_states: list[Value]
    state_grads: list[Value | None]
    scanned: list[Value]
    sources: list[Value]
    axes: list[int]
    directions: list[int]
    elements: list[Value]
    grads: list[Value | None]
    element_axes: list[int]
    element_directions: list[int]
    fixed: dict[Value, np.ndarray]


@gradient_of("Scan")
def scan(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    body, count = op.regions["body"].block, len(op.operands) - op.attr("num_scan_inputs")
    stacked = len(op.results) - count
    step = Iteration(
        op, body, body.arguments[:count], list(body.returned[:count]), list(grads[:count]), body.arguments[count:],
        list(op.operand_values[count:]), _listed(op, "scan_input_axes", len(op.operands) - count),
        _listed(op, "scan_input_directions", len(op.operands) - count), list(body.returned[count:]),
        list(grads[count:]), _listed(op, "scan_output_axes", stacked),
        _listed(op, "scan_output_directions", stacked), {},
    )  # fmt: skip
    return _backward(step, list(op.operand_values[:count]), b)


@gradient_of("Loop")
def loop(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    body, count = op.regions["body"].block, len(op.operands) - 2
    if any(operand is None for operand in op.operands[2:]):
        return [Refusal("a state of the loop has no initial value")] * len(op.operands)
    counter, condition, *states = body.arguments
    counts = _stack_also(op, [counter], b)[0]
    elements = list(body.returned[1 + count : 1 + count + len(grads) - count])
    step = Iteration(
        op, body, states, list(body.returned[1 : 1 + count]), list(grads[:count]), [counter], [counts], [0], [0],
        elements, list(grads[count:]), [0] * len(elements), [0] * len(elements),
        {condition: np.full(_shape_of(condition), True)},
    )  # fmt: skip
    initial = [value for value in op.operands[2:] if value is not None]
    return [None, None, *_backward(step, initial, b)[:count]]


def _shape_of(value: Value) -> tuple[int, ...]:
    shape = value.type.static_shape if isinstance(value.type, TensorType) else None
    return () if shape is None else shape


def _listed(op: Operation, name: str, count: int) -> list[int]:
    given = list(op.attr(name) or ())
    return [*given, *[0] * (count - len(given))][:count]


def _stack_also(op: Operation, values: Sequence[Value], b: GradientBuilder) -> list[Value]:
    """Further results of a Loop or Scan: `values` of its body, one for each iteration, stacked along axis 0."""
    body = op.regions["body"].block
    body.terminator._set_operands([*body.terminator.operands, *values])
    # With names of their own, so that a file gets copies: a state that is also returned may be overwritten there.
    first_output = len(body.outputs)
    body.outputs.extend(BlockOutput(f"kept_{first_output + k}", value.type) for k, value in enumerate(values))
    for name in ("scan_output_axes", "scan_output_directions"):
        if op.attributes.get(name):
            op.attributes[name] = (*op.attributes[name], *[0] * len(values))
    first = len(op.results)
    return [b.result(op, first + index) for index in range(len(values))]


def _backward(step: Iteration, initial: list[Value], b: GradientBuilder) -> list[Adjoint]:
    """Build the backward Scan; the adjoints of the initial states and of the scanned operands."""
    refusal = _why_not(step)
    if refusal is not None:
        return [refusal] * (len(initial) + len(step.sources))
    return list(BackwardScan(step, initial, b).build())


class BackwardScan:
    """The Scan over the iterations from the last to the first.

    It carries the adjoints of the active states and the sums for what the body captures (`carried`); it reads the
    states that each iteration began with, what the iteration read, and the adjoints of what it gave (`read`).
    """

    def __init__(self, step: Iteration, initial: list[Value], b: GradientBuilder) -> None:
        self.step, self.initial, self.b = step, initial, b
        self.captured = _captured(step.op, b)
        self.active = _active_states(step, initial, self.captured, b)
        self.sources = [k for k, source in enumerate(step.sources) if b.needs(source)]
        pairs = list(zip(step.states, step.next_states, strict=True))
        self.variant = [state for state, after in pairs if after is not state]
        self.kept = _stack_also(step.op, self.variant, b)
        self.with_grads = [index for index, grad in enumerate(step.grads) if grad is not None]
        self.values: ValueMap = {}

    def build(self) -> list[Value | None]:
        step, b = self.step, self.b
        carried = [
            b.zeros_like(step.op.results[index]) if grad is None else grad
            for index, grad in ((index, step.state_grads[index]) for index in self.active)
        ]
        carried += [b.zeros_like(value) for value in self.captured]
        read = [*self.kept, *step.sources, *[grad for grad in step.grads if grad is not None]]
        block = Block([value.type for value in carried])
        results = self._body(block)
        directions = [1 - step.element_directions[index] for index in self.with_grads]
        attributes = {
            "num_scan_inputs": len(read),
            "scan_input_axes": [0] * len(self.kept) + step.axes + [step.element_axes[k] for k in self.with_grads],
            "scan_input_directions": [1] * len(self.kept) + [1 - d for d in step.directions] + directions,
            "scan_output_axes": [step.axes[k] for k in self.sources] or None,
            "scan_output_directions": [1 - step.directions[k] for k in self.sources] or None,
        }
        regions = {"body": Region(block)}
        found = b.create("scan", [*carried, *read], attributes, outputs=results, regions=regions).results
        return self._adjoints(list(found))

    def _adjoints(self, found: list[Value]) -> list[Value | None]:
        """The results of the Scan as adjoints: of states and sources to be returned, of captured values to be added."""
        adjoints: list[Value | None] = [None] * (len(self.initial) + len(self.step.sources))
        for index, grad in zip(self.active, found, strict=False):
            adjoints[index] = grad
        rest = found[len(self.active) :]
        for value, grad in zip(self.captured, rest, strict=False):
            self.b.add_adjoint(value, grad)
        for k, grad in zip(self.sources, rest[len(self.captured) :], strict=True):
            adjoints[len(self.initial) + k] = grad
        return adjoints

    def _here(self, value: Value) -> Value:
        """What a value of the forward body is in the backward body."""
        return self.values.get(value, value)

    def _body(self, block: Block) -> int:
        """Fill the body; how many values it returns."""
        step = self.step
        carried = list(block.arguments)
        for state in (*self.variant, *step.scanned):
            self.values[state] = block._add_argument(state.type)
        element_grads = [block._add_argument(step.elements[index].type) for index in self.with_grads]
        sweep = Sweep(block, self.b.symbols, self.b.sweep.findings)
        for state, first in zip(step.states, self.initial, strict=True):
            self.values.setdefault(state, first)  # one that goes on as it is keeps its first value
        for argument, array in step.fixed.items():
            self.values[argument] = sweep.builder.const(array)
        ops = _copy_body(step.body, block, self.values)
        sweep.active.update(self.captured)
        sweep.active.update(self._here(step.states[index]) for index in self.active)
        sweep.active.update(self._here(step.scanned[k]) for k in self.sources)
        sweep.spread(ops)
        for place, index in enumerate(self.active):
            if step.states[index] in self.variant:
                sweep.add(self._here(step.next_states[index]), carried[place])
        for grad, index in zip(element_grads, self.with_grads, strict=True):
            sweep.add(self._here(step.elements[index]), grad)
        sweep.run(ops)
        results = [
            self._next_adjoint(sweep, step.states[index], carry)
            for index, carry in zip(self.active, carried, strict=False)
        ]
        results += [
            _sum(sweep.builder, carry, sweep.total(value))
            for value, carry in zip(self.captured, carried[len(self.active) :], strict=True)
        ]
        results += [self._or_zeros(sweep, self._here(step.scanned[k])) for k in self.sources]
        close_block(sweep.builder, results)
        _erase_unused(block)
        return len(results)

    def _next_adjoint(self, sweep: Sweep, state: Value, carry: Value) -> Value:
        """The adjoint of a state before the iteration, given that after it."""
        here = self._here(state)
        if state in self.variant:
            return self._or_zeros(sweep, here)
        # What the body captures as well has its share there.
        return _sum(sweep.builder, carry, None if here in self.captured else sweep.total(here))

    def _or_zeros(self, sweep: Sweep, value: Value) -> Value:
        grad = sweep.total(value)
        return sweep.builder.zeros_like(value) if grad is None else _own(sweep.builder, grad)


def _sum(b: GradientBuilder, carry: Value, grad: Value | None) -> Value:
    result: Value = b.identity(carry) if grad is None else b.add(carry, grad)
    return result


def _own(b: GradientBuilder, grad: Value) -> Value:
    """`grad` as a value of the builder's block that is none of its arguments."""
    result: Value = grad if grad.block is b.block and not grad.is_argument else b.identity(grad)
    return result


def _why_not(step: Iteration) -> Refusal | None:
    for state, after in zip(step.states, step.next_states, strict=True):
        if not isinstance(state.type, TensorType) or not isinstance(after.type, TensorType):
            return Refusal("a state is no tensor")
        before, behind = state.type.shape, after.type.shape
        if before is None or behind is None:
            continue
        if len(before) != len(behind):
            return Refusal(f"its state %{state.name} changes its rank")
        if any(prove_equal(one, other) is False for one, other in zip(before, behind, strict=True)):
            return Refusal(f"its state %{state.name} changes its shape, from {state.type} to {after.type}")
    return None


def _active_states(step: Iteration, initial: list[Value], wanted: list[Value], b: GradientBuilder) -> list[int]:
    """The states that depend on something active, by way of other iterations too."""
    active = {state for state, first in zip(step.states, initial, strict=True) if b.needs(first)}
    active |= {argument for argument, source in zip(step.scanned, step.sources, strict=True) if b.needs(source)}
    ops = [op for op in step.body if not op.is_terminator]
    while True:
        sweep = Sweep(step.body, b.symbols, b.sweep.findings)
        sweep.active.update([*active, *wanted])
        sweep.spread(ops)
        more = {
            state
            for state, after in zip(step.states, step.next_states, strict=True)
            if after in sweep.active and state not in active
        }
        if not more:
            return [k for k, state in enumerate(step.states) if state in active and is_differentiable(state.type)]
        active |= more
