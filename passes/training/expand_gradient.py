"""expand-gradient: put the backward graph in the place of ONNX's operator Gradient. Level onnx.

ai.onnx.preview.training.Gradient-1 names tensors of the graph around it: it differentiates `y` with respect to `xs`,
which (with `zs`) count as independent of each other, at the values that its operands have. Names can be lost to
rewriting, so this comes first.

    %c = add %a, %b : f32[]                                          %c = add %a, %b : f32[]
    %da, %db = ai.onnx.preview.training.Gradient %a, %b       ->     %da = const 1.0 : f32[]
        {xs=["a", "b"], y="c"} : f32[], f32[]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...graph.clone import ValueMap, clone_operations
from ...graph.core import Operation, Value
from ...graph.diagnostics import UsageError
from ...graph.evaluator import captures
from ...graph.gradients.sweep import Findings, Sweep
from ..base import Pass
from .derivation import GradientError

if TYPE_CHECKING:
    from ...graph.module import Module
    from ...graph.rewriter import Rewriter
    from ..context import PassContext

NAME = "ai.onnx.preview.training.Gradient"


def has_gradient(module: Module) -> bool:
    return any(op.name == NAME for op in module.main.block)


class ExpandGradient(Pass):
    """Put the backward graph in the place of ONNX's operator Gradient.

    Raises UsageError for names that the graph does not have, GradientError for what cannot be differentiated.
    """

    name = "expand-gradient"

    def run(self, module: Module, context: PassContext) -> bool:
        found = [op for op in module.main.block if op.name == NAME]
        for op in found:
            if not context.may_apply:
                break
            with context.rewrite(module, "expand-gradient", op) as rewriter:
                _expand(module, op, rewriter)
        return bool(found)


def _expand(module: Module, op: Operation, rewriter: Rewriter) -> None:
    block = module.main.block
    names = [str(name) for name in (*op.attr("xs"), *(op.attr("zs") or ()))]
    if len(names) != len(op.operands) or None in op.operands:
        raise UsageError("gradient/operands", f"{op.name} names {len(names)} tensors, it has {len(op.operands)} inputs")
    tensors = _tensors_before(module, op)
    missing = [name for name in (*names, str(op.attr("y"))) if name not in tensors]
    if missing:
        raise UsageError("gradient/unknown-tensor", f"{op.name} names {missing[0]!r}, which is not there", op.location)
    formal = [tensors[name] for name in names]
    actual = list(op.operand_values)
    target = tensors[str(op.attr("y"))]
    path = _path(formal, target, op)
    findings = Findings()
    sweep = Sweep(block, module.symbols, findings, before=op, on_create=rewriter.on_create)
    if formal != actual:
        # At other values than the graph computes with: the path is computed again for them.
        values: ValueMap = dict(zip(formal, actual, strict=True))
        path = clone_operations(path, values)
        for each in path:
            sweep.builder.insert(each)
        target = values.get(target, target)
    wrt = actual[: len(op.results)]
    seed = sweep.builder.expand_like(sweep.builder.number(target, 1.0), target)
    grads = sweep.differentiate(path, {target: seed}, wrt)
    if findings.errors:
        raise GradientError.collect(findings.errors)
    results = [sweep.builder.zeros_like(x) if grad is None else grad for grad, x in zip(grads, wrt, strict=True)]
    # They stay until all is expanded: another Gradient may name one that nothing uses yet.
    kept = rewriter.before(op)
    rewriter.replace(op, [kept.identity(value) for value in results])
    sweep.erase_dead()


def _tensors_before(module: Module, op: Operation) -> dict[str, Value]:
    """The tensors that are there when `op` runs, by name; outputs under their declared names."""
    block = module.main.block
    found = {argument.name: argument for argument in block.arguments if argument.name}
    there = set(block.arguments)
    for each in block:
        if each is op:
            break
        there.update(each.results)
        found |= {result.name: result for result in each.results if result.name}
    for output, value in zip(block.outputs, block.returned, strict=True):
        if value in there and output.name:
            found[output.name] = value
    return found


def _path(formal: Sequence[Value], target: Value, before: Operation) -> list[Operation]:
    """The operations, in order, by which `target` depends on `formal`; not those that make one of `formal` itself."""
    reached, path = set(formal), []
    block = before.parent
    assert block is not None
    for op in block:
        if op is before:
            break
        read = [*op.operand_values, *(captures(op) if op.regions else ())]
        if not any(result in formal for result in op.results) and any(value in reached for value in read):
            reached.update(op.results)
            path.append(op)
    needed, kept = {target}, []
    for op in reversed(path):
        if any(result in needed for result in op.results):
            needed.update([*op.operand_values, *(captures(op) if op.regions else ())])
            kept.append(op)
    return kept[::-1]
