"""The reverse sweep: adjoints of a block's values, from those of its results back to what they depend on.

For each operation, last first, the adjoints of its results are the sums over all uses; its rule gives what they
contribute to those of its operands (Griewank and Walther 2008, "Evaluating Derivatives", section 3.2). All that is
built are ordinary operations, so the result can be optimized, written and differentiated again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from .. import types
from ..core import Block, Operation, Value
from ..diagnostics import Diagnostic, TilewrightError, TypeInferenceError
from ..evaluator import captures
from ..infer import InferenceContext, infer_types
from ..location import fuse
from ..opdef import OpaqueDefinition, Trait
from ..types import TensorType, Type
from .builder import GradientBuilder
from .rules import QUANTIZED, Refusal, find_parts

if TYPE_CHECKING:
    from ..builder import OpBuilder
    from ..dims import FreshSymbols

# What happens where a path ends in an operation whose derivative is zero, such as Floor or a comparison.
Stops: TypeAlias = Literal["stop", "list", "error"]


@dataclass
class Findings:
    """What came up: operations that cannot be differentiated, and operations at which a path ends."""

    errors: list[Diagnostic] = field(default_factory=list)
    stops: dict[Operation, str] = field(default_factory=dict)

    def refuse(self, op: Operation, reason: str) -> None:
        found = Diagnostic("gradient/no-rule", f"{op.name} cannot be differentiated: {reason}", op.location)
        if found not in self.errors:
            self.errors.append(found)


def is_differentiable(type: Type) -> bool:
    """Whether a value of this type can carry a derivative."""
    if isinstance(type, types.SequenceType | types.OptionalType):
        return is_differentiable(type.element)
    if isinstance(type, TensorType):
        return type.dtype.kind in ("float", "complex")
    return type is types.UNKNOWN


class Sweep:
    """Accumulates adjoints over operations of one block; new operations go before `before` (or at the block's end)."""

    def __init__(
        self,
        block: Block,
        symbols: FreshSymbols,
        findings: Findings,
        before: Operation | None = None,
        on_create: Callable[[Operation], None] | None = None,
    ) -> None:
        self.findings = findings
        self._on_create = on_create
        self.created: list[Operation] = []
        self._own: set[Operation] = set()
        self.builder = GradientBuilder(block, symbols, self, before, on_create=self._created)
        self.active: set[Value] = set()
        self._partial: dict[Value, list[Value]] = {}
        self._masked: dict[Value, bool] = {}
        self._depth = 0  # within how many operators' parts the sweep is

    # ---- for callers ---------------------------------------------------------------------------------------------

    def differentiate(
        self, ops: Sequence[Operation], seeds: Mapping[Value, Value], wrt: Iterable[Value]
    ) -> list[Value | None]:
        """The adjoints of `wrt` (None: nothing depends on it), if those of results of `ops` are `seeds`."""
        wanted = list(wrt)
        self.active.update(wanted)
        self.spread(ops)
        self._note_stops(ops, seeds)
        for value, grad in seeds.items():
            self.add(value, grad)
        self.run(ops)
        return [self.total(value) for value in wanted]

    def _note_stops(self, ops: Sequence[Operation], seeds: Iterable[Value]) -> None:
        """Note the operations that what is differentiated needs, but whose results carry no derivative: ArgMax, ..."""
        needed = set(seeds)
        for op in reversed(ops):
            if not any(result in needed for result in op.results):
                continue
            needed.update(op.operand_values)
            needed.update(captures(op) if op.regions else ())
            ends = not any(is_differentiable(result.type) for result in op.results)
            if ends and Trait.SHAPE_ONLY not in op.definition.traits and self.is_reached(op):
                advice = f"; {QUANTIZED}" if op.name in ("quantize_linear", "qlinear_matmul", "qlinear_conv") else ""
                message = f"{op.name} has no derivative: its result is {op.results[0].type}{advice}"
                self.findings.stops[op] = message

    def erase_dead(self) -> None:
        """Erase what was built and is not used: parts that were computed again for nothing."""
        for op in reversed(self.created):
            if op.parent is not None and not any(result.use_count for result in op.results) and _is_pure(op):
                op._erase()

    # ---- activity ------------------------------------------------------------------------------------------------

    def spread(self, ops: Iterable[Operation]) -> None:
        """Mark the results of `ops` that depend on an active value in a differentiable way."""
        for op in ops:
            if self.is_reached(op):
                self.active.update(result for result in op.results if is_differentiable(result.type))

    def is_reached(self, op: Operation) -> bool:
        """Whether `op` reads an active value, in its regions too."""
        if any(operand in self.active for operand in op.operand_values):
            return True
        return bool(op.regions) and any(value in self.active for value in captures(op))

    # ---- adjoints ------------------------------------------------------------------------------------------------

    def add(self, value: Value, grad: Value) -> None:
        if value in self.active:
            self._partial.setdefault(value, []).append(grad)

    def total(self, value: Value) -> Value | None:
        """The adjoint so far: the sum over all uses that were met."""
        found = self._partial.get(value)
        if not found:
            return None
        if len(found) > 1:
            combine = self.builder.add if len(found) == 2 else self.builder.sum
            self._partial[value] = found = [combine(*found)]
        self._give_shape(found[0], value)
        return found[0]

    def _give_shape(self, grad: Value, value: Value) -> None:
        """An adjoint has the shape of its value, even where inference cannot tell: so rules need not ask the run."""
        have, want = grad.type, value.type
        if grad.producer not in self._own or not isinstance(have, TensorType) or not isinstance(want, TensorType):
            return
        if have.dtype is want.dtype and have.rank in (None, want.rank) and have.shape != want.shape:
            grad.type = want

    def run(self, ops: Sequence[Operation]) -> None:
        for op in reversed(ops):
            if op.parent is None or not self.is_reached(op):
                continue
            self.builder.location = fuse("gradient", [op.location])
            grads = [self.total(result) if result in self.active else None for result in op.results]
            if any(grad is not None for grad in grads):
                self._backward(op, grads)

    def _backward(self, op: Operation, grads: list[Value | None]) -> None:
        try:
            adjoints = op.definition.gradient(op, grads, self.builder)
            if adjoints is None:
                self._through_parts(op, grads)
                return
        except TilewrightError as error:
            self.findings.refuse(op, error.diagnostics[0].message)
            return
        for index, operand in enumerate(op.operands):
            if operand is None or operand not in self.active:
                continue
            adjoint = adjoints[index] if index < len(adjoints) else None
            if isinstance(adjoint, Refusal):
                self.findings.refuse(op, adjoint.reason)
            elif adjoint is not None:
                self.add(operand, adjoint)
            elif not op.regions and not self._depth:
                self.findings.stops.setdefault(op, f"{op.name} has no derivative with respect to its input {index}")

    def _through_parts(self, op: Operation, grads: list[Value | None]) -> None:
        """Build what `op` consists of once more, and differentiate that."""
        reason = _why_no_parts(op)
        if reason is not None:
            self.findings.refuse(op, reason)
            return
        first = len(self.created)
        parts = find_parts(op.definition)
        values = None if parts is None else parts(op, self.builder)
        if values is None:
            values = op.definition.decompose(op, self.builder)
        if values is None:
            self.findings.refuse(op, "it has no rule, and no parts that have one")
            return
        made = [each for each in self.created[first:] if each.parent is not None]
        self.spread(made)
        for value, grad in zip(values, grads, strict=False):
            if value is not None and grad is not None:
                self.add(value, grad)
        before = [len(self._partial.get(operand, ())) for operand in op.operand_values]
        self._depth += 1
        self.run(made)
        self._depth -= 1
        after = [len(self._partial.get(operand, ())) for operand in op.operand_values]
        if before == after and not self._depth:
            self.findings.stops.setdefault(op, f"{op.name} has no derivative")

    # ---- for rules -----------------------------------------------------------------------------------------------

    def result(self, op: Operation, index: int) -> Value:
        missing = index + 1 - len(op.results)
        if missing > 0:
            op._add_results([types.UNKNOWN] * missing)
            inferred = infer_types(op, InferenceContext(self.builder.symbols))
            for result, type in list(zip(op.results, inferred, strict=True))[-missing:]:
                result.type = type
        found = op.results[index]
        if found.name == "":
            found.name = None
        return found

    def mark_masked(self, value: Value) -> Value:
        self._masked[value] = True
        return value

    def is_masked(self, grad: Value) -> bool:
        """Whether `grad` comes from a choice, so that elements may be zero because their operand does not count."""
        pending = [grad]
        while pending:
            value = pending[-1]
            producer = value.producer
            if value in self._masked or producer is None or producer not in self._own:
                self._masked.setdefault(value, False)
                pending.pop()
                continue
            waiting = [operand for operand in producer.operand_values if operand not in self._masked]
            if waiting:
                pending.extend(waiting)
                continue
            self._masked[value] = any(self._masked[operand] for operand in producer.operand_values)
            pending.pop()
        return self._masked[grad]

    def _created(self, op: Operation) -> None:
        self.created.append(op)
        self._own.add(op)
        if self._on_create is not None:
            self._on_create(op)


def pulled_back(
    twin: Operation, grads: Sequence[Value | None], wrt: Sequence[Value], builder: OpBuilder
) -> list[Value] | None:
    """The adjoints of `wrt` through the parts of `twin`, a detached operation, built with `builder`; None if it has
    no parts. Raises TypeInferenceError where the parts cannot be differentiated."""
    findings = Findings()
    sweep = Sweep(builder.block, builder.symbols, findings, builder.before, builder.on_create)
    sweep.builder.location = builder.location
    sweep.active.update(wrt)
    values = twin.definition.decompose(twin, sweep.builder)
    if values is None:
        return None
    made = list(sweep.created)
    sweep.spread(made)
    for value, grad in zip(values, grads, strict=False):
        if grad is not None:
            sweep.add(value, grad)
    sweep.run(made)
    if findings.errors:
        raise TypeInferenceError.collect(findings.errors)
    found = [sweep.total(value) for value in wrt]
    return [sweep.builder.zeros_like(x) if grad is None else grad for grad, x in zip(found, wrt, strict=True)]


def _why_no_parts(op: Operation) -> str | None:
    definition = op.definition
    if isinstance(definition, OpaqueDefinition):
        return "nobody here knows this operator"
    if Trait.RANDOM in definition.traits:
        return "it draws at random, and a second draw would be another"
    untyped = [value.name for value in op.operand_values if value.type is types.UNKNOWN]
    return f"the type of %{untyped[0]} is not known; run infer-shapes first" if untyped else None


def _is_pure(op: Operation) -> bool:
    nested = [each for region in op.regions.values() for each in region.walk()]
    return all(each.is_terminator or Trait.EFFECT not in each.definition.traits for each in (op, *nested))
