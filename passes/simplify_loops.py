"""simplify-loops: drop what a Loop or Scan carries in vain, and what nobody reads. Level onnx.

A state that the body returns as it got it is a value from outside; a state or stacked result that neither the outside
nor a needed part of the body reads is dropped. Likewise results of an If that nobody uses.

Invariant: the body still runs as often, and effects in it stay.

    %0, %1 = loop 3, none, %a, %b : f32[n], f32[n]
      body(%i: i64[], %c: bool[], %s: f32[n], %t: f32[n]) -> (...) {
        %u = add %s, %t : f32[n]
        return %c, %u, %t                      ->      %0 = loop 3, none, %a : f32[n]    // %t is %b
      }
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph.core import Block, Operation, Value
from ..graph.rewriter import Rewriter
from .base import Pass
from .dce import is_removable, is_trivially_dead

if TYPE_CHECKING:
    from ..graph.module import Module
    from .context import PassContext


class SimplifyLoops(Pass):
    """Drop what a Loop or Scan carries in vain, and what nobody reads."""

    name = "simplify-loops"

    def run(self, module: Module, context: PassContext) -> bool:
        before = context.applications
        for function in module.all_functions():
            # An inner operation first: what it does not use need not be carried by the outer one.
            for op in reversed([op for op in function.region.operations() if op.regions]):
                if not context.may_apply:
                    return context.applications > before
                if op.name == "if":
                    _drop_unused_results(module, context, op)
                elif op.name in ("loop", "scan"):
                    _use_invariants(module, context, op)
                    _drop_unused_states(module, context, op)
        return context.applications > before


# ---- loops -----------------------------------------------------------------------------------------------------------


def _layout(op: Operation) -> tuple[int, int, int]:
    """Of a Loop or Scan: position of the first state among the operands, among what the body returns; how many."""
    if op.name == "loop":
        return 2, 1, len(op.operands) - 2
    return 0, 0, len(op.operands) - int(op.attr("num_scan_inputs"))


def _use_invariants(module: Module, context: PassContext, op: Operation) -> None:
    """Let the body and the outside use the initial value of a state that never changes."""
    body = op.regions["body"].block
    first_operand, first_returned, count = _layout(op)
    for index in range(count):
        argument, initial = body.arguments[first_operand + index], op.operands[first_operand + index]
        returned = body.returned[first_returned + index]
        if initial is None or returned not in (argument, initial) or not _is_read(argument, op.results[index], body):
            continue
        # The body may return the initial value itself, but must not have been given another one before.
        with context.rewrite(module, "use-loop-invariant", op, "the body returns the state as it got it") as rewriter:
            for use in argument.uses:
                if use.user is not body.terminator:
                    rewriter.set_operand(use.user, use.position, initial)
            rewriter.replace_uses(op.results[index], initial)


def _is_read(argument: Value, result: Value, body: Block) -> bool:
    return result.use_count > 0 or any(use.user is not body.terminator for use in argument.uses)


def _drop_unused_states(module: Module, context: PassContext, op: Operation) -> None:
    body = op.regions["body"].block
    first_operand, first_returned, count = _layout(op)
    returned = body.returned
    needed = _needed_outputs(op, body, first_operand, first_returned, count)
    unused = [index for index in range(len(op.results)) if first_returned + index not in needed]
    # An operation must keep a result.
    if len(unused) == len(op.results) or not unused:
        return
    with context.rewrite(module, "drop-loop-results", op, "nobody needs them") as rewriter:
        kept_results = [index for index in range(len(op.results)) if index not in unused]
        kept_returned = [i for i in range(len(returned)) if i < first_returned or i - first_returned not in unused]
        _keep_returned(rewriter, body, kept_returned)
        states = {first_operand + index for index in unused if index < count}
        for each in reversed(body):
            if is_trivially_dead(each):
                rewriter.erase(each)
        for position in sorted(states, reverse=True):
            body._remove_argument(position)
        rewriter.set_operands(op, [value for i, value in enumerate(op.operands) if i not in states])
        if op.name == "scan":
            _keep_scan_flags(rewriter, op, [index - count for index in kept_results if index >= count])
        rewriter.keep_results(op, kept_results)


def _needed_outputs(op: Operation, body: Block, first_operand: int, first_returned: int, count: int) -> set[int]:
    """Positions in what the body returns that somebody needs: the condition, used results, and the states they read."""
    needed = set(range(first_returned))
    needed.update(first_returned + index for index, result in enumerate(op.results) if result.use_count)
    while True:
        read = _read_by(body, [body.returned[position] for position in sorted(needed)])
        states = {first_returned + index for index in range(count) if body.arguments[first_operand + index] in read}
        if states <= needed:
            return needed
        needed |= states


def _read_by(body: Block, values: list[Value]) -> set[Value]:
    """`values` and all that they are computed from in `body`; with them what operations with an effect read."""
    read = set(values)
    for op in reversed(body):
        if op.is_terminator or (is_removable(op) and not any(result in read for result in op.results)):
            continue
        read.update(op.operand_values)
        for region in op.regions.values():
            for nested in region.walk():
                read.update(nested.operand_values)
    return read


def _keep_scan_flags(rewriter: Rewriter, op: Operation, kept: list[int]) -> None:
    for name in ("scan_output_axes", "scan_output_directions"):
        flags = op.attributes.get(name)
        if flags is not None:
            rewriter.set_attribute(op, name, tuple(flags[index] for index in kept) or None)


def _keep_returned(rewriter: Rewriter, block: Block, kept: list[int]) -> None:
    """Let `block` return only the values at positions `kept`."""
    returned = block.returned
    rewriter.set_operands(block.terminator, [returned[index] for index in kept])
    block.outputs = [block.outputs[index] for index in kept]


# ---- If --------------------------------------------------------------------------------------------------------------


def _drop_unused_results(module: Module, context: PassContext, op: Operation) -> None:
    kept = [index for index, result in enumerate(op.results) if result.use_count]
    if len(kept) == len(op.results) or not kept:
        return
    with context.rewrite(module, "drop-branch-results", op, "nobody uses them") as rewriter:
        for region in op.regions.values():
            _keep_returned(rewriter, region.block, kept)
        rewriter.keep_results(op, kept)
