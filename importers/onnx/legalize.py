"""Before a module is written: operations that the file cannot hold, or had better not, become ones that it can.

The result is a module like any other, so whatever cleans modules can clean it. The one that was given stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ...graph.builder import OpBuilder
from ...graph.clone import clone_module
from ...graph.core import Block, Operation, Value
from ...graph.diagnostics import DiagnosticLog, TypeInferenceError
from ...graph.module import Function, Module
from ...graph.rewriter import Rewriter
from ...graph.written_forms import discard
from .content import operation_content
from .forms import Choice, Forms

# Decompositions within decompositions; more than this means that two of them lead to each other.
_MAX_EXPANSION = 12

# Rewrites a module in place so that it has less to write.
Tidy: TypeAlias = Callable[[Module], object]


def legalized(
    module: Module, forms_for: Callable[[Module, Function], Forms], log: DiagnosticLog, tidy: Tidy | None = None
) -> Module:
    """`module`, or a copy of it in which every operation has a node of its own, as far as there is a way.

    `forms_for` gives what decides for a function, `log` receives a remark for each operation that is written as
    others, and `tidy` is run on the copy.
    """
    if not _needs_others(module, forms_for):
        return module
    clone = clone_module(module)
    for function in clone.all_functions():
        _Legalizer(forms_for(clone, function), log).run(function.block)
    if tidy is not None:
        tidy(clone)
        for function in clone.all_functions():
            _Legalizer(forms_for(clone, function), log, only_needed=True).run(function.block)
    return clone


def _needs_others(module: Module, forms_for: Callable[[Module, Function], Forms]) -> bool:
    for function in module.all_functions():
        forms = forms_for(module, function)
        if any(forms.first(op) is not None for op in function.walk()):
            return True
    return False


@dataclass
class _Plan:
    """What will stand in the place of `op`, built but not connected to the module: it must not change what others see.

    `made` are the operations with their operands, `values` what they give for the results of `op`.
    """

    op: Operation
    choice: Choice
    made: list[tuple[Operation, tuple[Value | None, ...]]]
    values: list[Value | None]


class _Legalizer:
    """Works through the blocks of one function."""

    def __init__(self, forms: Forms, log: DiagnosticLog, only_needed: bool = False) -> None:
        self.forms, self.log, self.only_needed = forms, log, only_needed
        self.rewriter = Rewriter(forms.symbols)
        # What expansions have put into a block, by what it computes: further ones use it again.
        self.made: dict[Block, dict[tuple[object, ...], tuple[Value, ...]]] = {}
        self.replaced: dict[Value, Value] = {}

    def run(self, block: Block) -> None:
        """Decide about all operations as they are, then replace them."""
        for op in block:
            for region in op.regions.values():
                self.run(region.block)
        plans = [plan for op in list(block) if (plan := self._plan(op)) is not None]
        operands = [value for plan in plans for value in plan.op.operand_values]
        for plan in plans:
            self._remark(plan)
            self._carry_out(plan, 0)
        self._erase_unused(operands)

    def _plan(self, op: Operation, depth: int = 0, is_settled: bool = False) -> _Plan | None:
        """The first way that there is; None for an operation that stays.

        `is_settled`: it is the operator of the standard that was wanted.
        """
        for choice in self.forms.choices(op, is_part=depth > 0, only_needed=self.only_needed or is_settled):
            scratch = Block()
            try:
                values = choice.form(op, OpBuilder(scratch, self.forms.symbols, location=op.location))
            except TypeInferenceError:
                values = None
            if values is None:
                discard(scratch)
                continue
            made = [(part, part.operands) for part in scratch]
            for part in reversed(list(scratch)):
                part._drop_operands()
                scratch._unlink(part)
            padded = [*values, *[None] * (len(op.results) - len(values))]
            return _Plan(op, choice, made, padded[: len(op.results)])
        return None

    def _remark(self, plan: _Plan) -> None:
        op = plan.op
        if not plan.choice.is_standard:
            text = f"{op.op_type} is written as its parts: {plan.choice.reason}"
            self.log.remark(plan.choice.code, text, op.location)
        elif self.forms.loses_nan(op):
            self.log.remark(
                "export/nan", f"{op.op_type} gives NaN for operands that are NaN, where its parts give 0", op.location
            )
        elif self.forms.shows_hidden_keys(op) and not self.log.has("export/hidden-keys"):
            text = (
                "adds to the scores of hidden keys, which the model replaces: NaN or infinity in such a key gives NaN"
            )
            self.log.remark("export/hidden-keys", f"{op.op_type} {text}", op.location)

    def _carry_out(self, plan: _Plan, depth: int) -> None:
        """Put what was planned in the place of an operation; its parts may have parts of their own."""
        op, block = plan.op, plan.op.parent
        assert block is not None
        for part, operands in plan.made:
            part._set_operands([None if value is None else self._current(value) for value in operands])
            block._insert(part, op)
        parts = self._share([part for part, _ in plan.made], block)
        for old, value in zip(op.results, plan.values, strict=True):
            if value is None:
                continue
            new = self._current(value)
            if new.producer in parts:
                self.rewriter.set_type(new, old.type)  # the model may say more of it than follows from the parts
            self._replace(old, new)
        self.rewriter.erase(op)
        for part in parts:
            inner = self._plan(part, depth + 1, plan.choice.is_standard) if depth < _MAX_EXPANSION else None
            if inner is not None:
                self._carry_out(inner, depth + 1)

    def _replace(self, old: Value, new: Value) -> None:
        self.rewriter.replace_uses(old, new)
        self.replaced[old] = new

    def _current(self, value: Value) -> Value:
        """What stands for `value` now."""
        while value in self.replaced:
            value = self.replaced[value]
        return value

    def _share(self, parts: list[Operation], block: Block) -> list[Operation]:
        """Those of `parts` that are left when equal ones were taken from this expansion or others."""
        earlier = self.made.setdefault(block, {})
        kept = []
        for part in parts:
            key = operation_content(part, lambda value: value) if part.definition.is_pure and part.results else None
            found = None if key is None else earlier.get(key)
            if found is not None and found[0].block is block:
                for old, new in zip(part.results, found, strict=True):
                    self._replace(old, new)
                self.rewriter.erase(part)
                continue
            if key is not None:
                earlier[key] = part.results
            kept.append(part)
        return kept

    def _erase_unused(self, values: Sequence[Value]) -> None:
        """Erase what made `values` where only the operation that is gone needed it."""
        pending = list(values)
        while pending:
            op = pending.pop().producer
            if op is None or op.parent is None or op.regions or not op.definition.is_pure:
                continue
            if any(result.use_count for result in op.results):
                continue
            pending.extend(op.operand_values)
            self.rewriter.erase(op)


__all__ = ["Tidy", "legalized"]
