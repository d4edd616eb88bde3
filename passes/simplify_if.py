"""simplify-if: take the branch that is known to be taken. Level onnx.

Inside its branches the condition of an If is known, so a nested If on the same condition is decided too. If only one
branch gives a tensor of a rank that the users of the result can take, every run that does not fail takes that branch.
Branches that compute the same, or return the same value from outside, need no If.

Invariant: what the If returned does not change; nothing that may differ from run to run is moved out of a branch.

    %c = const true : bool[]
    %0 = if %c : f32[n]
      then_branch() -> (%a: f32[n]) { %a = neg %x : f32[n]  return %a }      ->      %a = neg %x : f32[n]
      else_branch() -> (%b: f32[n]) { return %x }
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..graph.core import Block, Operation
from ..graph.data import ArrayData
from ..graph.infer import InferenceContext
from ..graph.rewriter import Rewriter
from ..graph.types import TensorType
from .base import Pass
from .keys import block_key
from .required_ranks import required_rank

if TYPE_CHECKING:
    from ..graph.module import Module
    from .context import PassContext


class SimplifyIf(Pass):
    """Take the branch that is known to be taken."""

    name = "simplify-if"

    def run(self, module: Module, context: PassContext) -> bool:
        before = context.applications
        # An outer If first, so that what leaves a branch is looked at where it ends up.
        pending = [op for function in module.all_functions() for op in reversed(function.block) if op.regions]
        while pending and context.may_apply:
            op = pending.pop()
            following = _simplify(module, context, op) if op.name == "if" else None
            if following is None:
                following = [nested for region in op.regions.values() for nested in region.block]
            pending.extend(nested for nested in reversed(following) if nested.regions)
        return context.applications > before


def _simplify(module: Module, context: PassContext, op: Operation) -> list[Operation] | None:
    """Simplify one If. Returns what has taken its place, or None if it is still there."""
    condition = InferenceContext(module.symbols).constant(op.operands[0])
    if condition is not None and condition.size == 1:
        taken = "then_branch" if bool(condition.reshape(())) else "else_branch"
        with context.rewrite(module, "take-branch", op, f"the condition is constant: {taken}") as rewriter:
            return _inline(rewriter, op, op.regions[taken].block)
    fitting = _fitting_branch(op)
    if fitting is not None:
        reason = f"only {fitting} gives a tensor of the rank that is needed"
        with context.rewrite(module, "take-fitting-branch", op, reason) as rewriter:
            _decide_elsewhere(rewriter, op, fitting == "then_branch")
            return _inline(rewriter, op, op.regions[fitting].block)
    then, otherwise = op.regions["then_branch"].block, op.regions["else_branch"].block
    key = block_key(then)
    if key is not None and key == block_key(otherwise):
        with context.rewrite(module, "merge-branches", op, "both branches compute the same") as rewriter:
            return _inline(rewriter, op, then)
    for result, one, other in zip(op.results, then.returned, otherwise.returned, strict=True):
        if one is other and result.use_count:
            with context.rewrite(module, "same-in-both-branches", op, "both branches return it") as rewriter:
                rewriter.replace_uses(result, one)
    _decide_in_branches(module, context, op)
    return None


def _inline(rewriter: Rewriter, op: Operation, block: Block) -> list[Operation]:
    """Put the operations of `block` in place of `op`; return them."""
    moved = [each for each in block if not each.is_terminator]
    returned = rewriter.inline_block(block, (), op)
    for value, result in zip(returned, op.results, strict=True):
        # The rest of the graph, or its interface, knows the name of the If's result.
        if value.producer in moved and not value.use_count:
            value.name, value.info = result.name, result.info
    rewriter.replace(op, returned)
    return moved


def _fitting_branch(op: Operation) -> str | None:
    """The branch that every successful run takes, because of the ranks of what the branches return; None if unknown."""
    then, otherwise = op.regions["then_branch"].block, op.regions["else_branch"].block
    for result, one, other in zip(op.results, then.returned, otherwise.returned, strict=True):
        first, second = (value.type.rank if isinstance(value.type, TensorType) else None for value in (one, other))
        needed = required_rank(result) if first != second else None
        if needed is None:
            continue
        if first is not None and first != needed:
            return "else_branch"
        if second is not None and second != needed:
            return "then_branch"
    return None


def _decide_elsewhere(rewriter: Rewriter, op: Operation, truth: bool) -> None:
    """Make the condition a constant for all that runs with `op`: its block, after it is computed."""
    condition = op.operands[0]
    if condition is None or condition.block is not op.parent or op.parent is None:
        return
    if not isinstance(condition.type, TensorType) or condition.type.static_shape is None:
        return
    known = rewriter.before(condition.producer) if condition.producer is not None else rewriter.at_start(op.parent)
    constant = known.const(ArrayData(np.full(condition.type.static_shape, truth, np.bool_)))
    for use in condition.uses:
        if not use.user.is_terminator or use.user.parent is not op.parent:
            rewriter.set_operand(use.user, use.position, constant)


def _decide_in_branches(module: Module, context: PassContext, op: Operation) -> None:
    """Make the condition a constant where the branches use it."""
    condition = op.operands[0]
    if condition is None or not isinstance(condition.type, TensorType) or condition.type.static_shape is None:
        return
    for name, truth in (("then_branch", True), ("else_branch", False)):
        block = op.regions[name].block
        uses = [use for use in condition.uses if _lies_in(use.user, block)]
        if not uses:
            continue
        with context.rewrite(module, "condition-in-branch", op, f"it is {truth} in {name}".lower()) as rewriter:
            known = rewriter.at_start(block, op.location).const(
                ArrayData(np.full(condition.type.static_shape, truth, np.bool_))
            )
            for use in uses:
                rewriter.set_operand(use.user, use.position, known)


def _lies_in(op: Operation, block: Block) -> bool:
    current: Operation | None = op
    while current is not None and current.parent is not block:
        current = current.parent_op
    return current is not None
