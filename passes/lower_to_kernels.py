"""lower-to-kernels: say in kernels what operations of ONNX say. Level onnx to level kernel.

Three kinds of operations stay as they are: shape arithmetic (whatever follows from shapes and constants alone: it is
worked out once for the sizes of a run), control flow, and what neither has a lowering nor consists of operations that
have. The latter run as host steps.

    %0 = matmul %x, %w : f32[n, 64]            %0 = kernel.gemm %x, %w : f32[n, 64]
    %1 = relu %0 : f32[n, 64]           ->     %1 = kernel.map %0 : f32[n, 64] body {
                                                 %2 = element.maximum %e, 0.0 ... }
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..graph.builder import OpBuilder
from ..graph.core import Block, Operation, Value
from ..graph.diagnostics import TypeInferenceError
from ..graph.dims import FreshSymbols
from ..graph.lowerings.builder import KernelBuilder
from ..graph.lowerings.expansions import expand
from ..graph.opdef import Trait
from ..graph.types import TensorType
from .base import Pass

if TYPE_CHECKING:
    from ..graph.module import Module
    from ..graph.rewriter import Rewriter
    from .context import PassContext


class LowerToKernels(Pass):
    """Say in kernels what operations of ONNX say."""

    name = "lower-to-kernels"
    level_in = "onnx"
    level_out = "kernel"
    exactness = "reassociates"

    def run(self, module: Module, context: PassContext) -> bool:
        before = context.applications
        for function in module.all_functions():
            self._block(function.block, set(), module, context)
        return context.applications > before

    def _block(self, block: Block, outer: set[Value], module: Module, context: PassContext) -> None:
        known = set(outer)
        for op in list(block):
            if is_planned(op, known.__contains__):
                known.update(op.results)
                continue
            for region in op.regions.values():
                self._block(region.block, known, module, context)
            if op.regions or op.is_terminator:
                continue
            if not context.may_apply:
                return
            if not self._lowered(op, known, module, context) and op.definition.is_known:
                context.remark("kernel/host", f"{op.name} has no kernel: it runs as a host step", op.location)

    def _lowered(self, op: Operation, known: set[Value], module: Module, context: PassContext) -> bool:
        with context.rewrite(module, self.name, op) as rewriter:
            values = lower(op, known, module.symbols, rewriter)
            if values is not None:
                rewriter.replace(op, values)
        return values is not None


def is_planned(op: Operation, is_known: Callable[[Value], bool]) -> bool:
    """Whether the results follow from shapes and from known values, so that they are known when a run is planned."""
    if op.regions or not op.definition.is_pure or not all(isinstance(r.type, TensorType) for r in op.results):
        return False
    return Trait.SHAPE_ONLY in op.definition.traits or all(is_known(value) for value in op.operand_values)


def lower(op: Operation, known: set[Value], symbols: FreshSymbols, rewriter: Rewriter) -> list[Value | None] | None:
    """Kernels before `op` that compute its results; None, and nothing built, if that cannot be."""
    assert op.parent is not None
    before = op.previous
    found = op.definition.lower(op, KernelBuilder(op.parent, symbols, op, op.location, rewriter.on_create))
    values: list[Value | None] | None = None if found is None else list(found)
    if values is None:
        _take_back(op, before, rewriter)
        values = _by_parts(op, known, symbols, rewriter)
    if values is None:
        _take_back(op, before, rewriter)
    return values


def _by_parts(op: Operation, known: set[Value], symbols: FreshSymbols, rewriter: Rewriter) -> list[Value | None] | None:
    """The expansion or decomposition of `op`, if all parts that need a kernel have one."""
    assert op.parent is not None
    parts: list[Operation] = []

    def created(new: Operation) -> None:
        parts.append(new)
        rewriter.on_create(new)

    try:
        found = expand(op, OpBuilder(op.parent, symbols, op, op.location, created))
    except TypeInferenceError:
        return None  # a body of the standard that is not written for these types
    if found is None:
        return None
    values: list[Value | None] = list(found)
    inside = set(known)
    for part in parts:
        if is_planned(part, inside.__contains__):
            inside.update(part.results)
            continue
        lowered = None if part.regions else lower(part, inside, symbols, rewriter)
        if lowered is None:
            return None
        values = [lowered[v.index] if v and v.producer is part else v for v in values]
        rewriter.replace(part, lowered)
    known |= inside
    return values


def _take_back(op: Operation, before: Operation | None, rewriter: Rewriter) -> None:
    """Erase what was built between `before` and `op`."""
    while (last := op.previous) is not before:
        assert last is not None
        rewriter.erase(last)
