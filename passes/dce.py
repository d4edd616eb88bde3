"""dce: drop operations whose results nobody uses, optional results that nobody uses, and functions that nobody calls.
Takes and leaves any level.

Invariant: inputs, outputs, and operations with an effect stay; so do operators that nobody here knows and that are not
calls of a model-local function without effects.

    %0 = exp %x : f32[n]
    %1, %2 = dropout %x : f32[n], bool[n]         ->      %1 = dropout %x : f32[n]
    return %1                                             return %1
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph.core import Operation
from ..graph.module import FunctionKey
from ..graph.opdef import ParameterKind, Trait
from .base import Pass

if TYPE_CHECKING:
    from ..graph.module import Module
    from ..graph.rewriter import Rewriter
    from .context import PassContext


def is_removable(op: Operation) -> bool:
    """Whether `op` can go once nobody uses its results: it has no effect, and neither has anything in its regions."""
    if op.parent is None or not _is_free_of_effects(op):
        return False
    if not op.regions:
        return True
    nested = (each for region in op.regions.values() for each in region.walk())
    return all(each.is_terminator or _is_free_of_effects(each) for each in nested)


def is_unused(op: Operation) -> bool:
    if len(op.results) == 1:  # nearly always, and drivers ask this all the time
        return not op.results[0]._uses
    return not any(result._uses for result in op.results)


def is_trivially_dead(op: Operation) -> bool:
    """Whether nobody uses any result of `op` and it can go."""
    return is_unused(op) and is_removable(op)


def _is_free_of_effects(op: Operation) -> bool:
    # An unused random draw can go: ONNX gives no meaning to the order of draws of different nodes.
    definition = op.definition
    return definition.is_known and Trait.EFFECT not in definition.traits and not definition.is_terminator


class DeadCode(Pass):
    """Drop operations whose results nobody uses."""

    name = "dce"
    level_in = None
    level_out = None

    def run(self, module: Module, context: PassContext) -> bool:
        rewriter = context.rewriter(module)
        pure_calls = _pure_functions(module)
        removed = dropped = 0
        # Backwards, so that an operation is met after all its users, those in blocks nested below included.
        pending = [reversed(function.block) for function in module.all_functions()]
        while pending:
            op = next(pending[-1], None)
            if op is None:
                pending.pop()
                continue
            pure_call = (op.domain, op.op_type) in pure_calls and not op.definition.is_known
            if is_unused(op) and (pure_call or is_removable(op)):
                rewriter.erase(op)
                removed += 1
                continue
            dropped += _drop_unused_results(op, rewriter)
            pending.extend(reversed(region.block) for region in op.regions.values())
        if removed:
            context.count("operations removed", removed)
        if dropped:
            context.count("results dropped", dropped)
        return drop_unused_functions(module, context) or removed + dropped > 0


def _drop_unused_results(op: Operation, rewriter: Rewriter) -> int:
    """Leave out the optional results at the end that nobody uses; return how many."""
    parameters = op.definition.result_parameters
    count = len(op.results)
    if count > len(parameters) or not op.definition.is_known or op.definition.needs_all_results(op):
        return 0
    keep = count
    while keep > 1 and parameters[keep - 1].kind is ParameterKind.OPTIONAL and not op.results[keep - 1]._uses:
        keep -= 1
    if keep < count:
        rewriter.keep_results(op, range(keep))
    return count - keep


def drop_unused_functions(module: Module, context: PassContext) -> bool:
    """Remove the model-local functions that `main` calls neither directly nor through others."""
    reached: set[FunctionKey] = set()
    pending = [module.main]
    while pending:
        for op in pending.pop().walk():
            key = FunctionKey(op.domain, op.op_type, op.metadata.get("overload", ""))
            if key in module.functions and key not in reached:
                reached.add(key)
                pending.append(module.functions[key])
    unused = [key for key in module.functions if key not in reached]
    for key in unused:
        del module.functions[key]
    if unused:
        context.count("functions removed", len(unused))
    return bool(unused)


def _pure_functions(module: Module) -> set[tuple[str, str]]:
    """(domain, name) of the model-local functions that call nothing with an effect, directly or through others."""
    names = {(key.domain, key.name) for key in module.functions}
    impure: set[tuple[str, str]] = set()
    changed = True
    while changed:
        changed = False
        for key, function in module.functions.items():
            name = (key.domain, key.name)
            if name not in impure and any(_is_impure(op, names, impure) for op in function.walk()):
                impure.add(name)
                changed = True
    return names - impure


def _is_impure(op: Operation, functions: set[tuple[str, str]], impure: set[tuple[str, str]]) -> bool:
    name = (op.domain, op.op_type)
    if name in functions and not op.definition.is_known:
        return name in impure
    return not op.is_terminator and not _is_free_of_effects(op)
