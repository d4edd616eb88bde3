"""fold: evaluate what follows from constants and shapes. Level onnx.

Three sources: elements that follow from shapes alone (`Shape` and `Gather` chains over known dims), operations whose
operands are all constants, and whole `If`, `Loop` and function calls on constants. Size and arithmetic of the result
are estimated before anything is evaluated, so that a small file of shapes never becomes a large one of zeros: a result
may be larger than the constants it replaces only by `max-growth` bytes, and only while the model stays within the size
of its file.

Invariant: random draws, effects, inputs that have a default, and constants that are not loaded are never folded.
QuantizeLinear and DequantizeLinear stay: folding them would lose what the model says about its execution.

    %0 = shape %x : i64[2]                     // %x : f32[3, 4]
    %1 = gather %0, 1 : i64[]                  ->      %2 = const [8] : i64[1]
    %2 = mul %1, [2] : i64[1]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..graph import opdef
from ..graph.core import AttributeReference, Operation, Value
from ..graph.data import ArrayData, TensorData, UnresolvedData
from ..graph.diagnostics import ExecutionError, TypeInferenceError
from ..graph.dims import DimExpr
from ..graph.evaluation import evaluate_op
from ..graph.evaluator import Evaluator, captures
from ..graph.infer import InferenceContext, infer_types
from ..graph.types import TensorType, Type
from .base import Pass
from .inline_functions import key_of
from .sizes import constant_bytes, operation_bytes, written_bytes

if TYPE_CHECKING:
    from ..graph.module import Function, Module
    from ..graph.rewriter import Rewriter
    from .context import PassContext

# A result whose size shows only when it is computed (NonZero, Unique, ...) is computed for operands up to this size.
MAX_OPEN_ELEMENTS = 1 << 14
KEPT = frozenset({"quantize_linear", "dequantize_linear", "dynamic_quantize_linear"})


@dataclass(frozen=True)
class FoldConstants(Pass):
    """Evaluate what follows from constants and shapes."""

    name = "fold"

    max_growth: int = 1024
    max_operations: int | None = None

    def run(self, module: Module, context: PassContext) -> bool:
        folding = _Folding(self, module, context)
        for function in module.all_functions():
            for op in function.walk():
                if op.parent is not None and not context.may_apply:
                    return folding.folded > 0
                folding.visit(op)
        if folding.folded:
            context.count("operations folded", folding.folded)
        return folding.folded > 0


class _Folding:
    """One walk over a module."""

    def __init__(self, options: FoldConstants, module: Module, context: PassContext) -> None:
        self.module, self.context = module, context
        self.max_growth = options.max_growth
        given = options.max_operations
        self.max_operations = context.limits.fold_operations if given is None else given
        # Replacing values by equal constants changes no answer, so one context serves the whole walk.
        self.inference = InferenceContext(module.symbols)
        self.constant = opdef.lookup("", "Constant")
        self.folded = 0
        self._room: int | None = None

    def visit(self, op: Operation) -> None:
        if op.parent is None or op.name == "const" or op.is_terminator or not any(r.use_count for r in op.results):
            return
        if not self._may_fold(op):
            return
        results = self._known_from_shapes(op)
        if results is None and self._operands_are_constant(op):
            results = self._evaluated(op)
        if results is not None:
            self._replace(op, results)

    def _may_fold(self, op: Operation) -> bool:
        if op.name in KEPT:
            return False
        if any(isinstance(value, AttributeReference) for value in op.attributes.values()):
            return False
        return self._is_pure(op)

    def _is_pure(self, op: Operation, calls: int = 0) -> bool:
        """Whether `op` and all that it runs give the same results each time."""
        function = self._function(op)
        if function is not None:
            depth = calls + 1
            return depth <= len(self.module.functions) and all(self._is_pure(each, depth) for each in function.walk())
        return op.is_terminator or (op.definition.is_pure and all(self._is_pure(n, calls) for n in _nested(op)))

    def _function(self, op: Operation) -> Function | None:
        return None if op.definition.is_known else self.module.functions.get(key_of(op))

    # ---- finding values ------------------------------------------------------------------------------------------

    def _known_from_shapes(self, op: Operation) -> list[TensorData | None] | None:
        """All used results, if each of them follows from shapes; nothing is computed."""
        found: list[TensorData | None] = []
        for result in op.results:
            if not result.use_count:
                found.append(None)
                continue
            elements = self.inference.symbolic(result)
            if elements is None or any(isinstance(item, DimExpr) for item in elements.flat):
                return None
            assert isinstance(result.type, TensorType)
            found.append(ArrayData(elements.astype(result.type.dtype.numpy), result.type.dtype))
        growth = self._growth(op, sum(constant_bytes(data) for data in found if data is not None))
        return found if self._fits(growth) else None

    def _operands_are_constant(self, op: Operation) -> bool:
        return all(self._is_loaded(value) for value in self._inputs(op))

    def _inputs(self, op: Operation) -> Sequence[Value]:
        if not op.regions:
            return op.operand_values
        return [*op.operand_values, *captures(op)]

    def _is_loaded(self, value: Value) -> bool:
        data = self.inference.data(value)
        return data is not None and not isinstance(data, UnresolvedData)

    def _evaluated(self, op: Operation) -> list[TensorData | None] | None:
        """The results for constant operands, if they are tensors within the limits; None otherwise."""
        size = self._result_bytes(op)
        if size is None or not self._fits(self._growth(op, size)) or self._operations(op) > self.max_operations:
            return None
        try:
            values = self._compute(op)
        except ExecutionError as error:
            self.context.remark("fold/failed", f"{op.name} was not folded: {error.diagnostics[0].message}", op.location)
            return None
        if not all(isinstance(value, np.ndarray) for value, r in zip(values, op.results, strict=True) if r.use_count):
            return None
        found = [
            ArrayData(value) if result.use_count else None for value, result in zip(values, op.results, strict=True)
        ]
        # The estimate was one where the types left the size open.
        return found if self._fits(self._growth(op, sum(constant_bytes(d) for d in found if d is not None))) else None

    def _compute(self, op: Operation) -> list[Any]:
        operands = [None if value is None else self._array(value) for value in op.operands]
        if not op.regions and self._function(op) is None:
            return evaluate_op(op, operands)
        outside = {value: self._array(value) for value in captures(op)}
        return Evaluator(self.module.functions).evaluate(op, operands, outside)

    def _array(self, value: Value) -> np.ndarray:
        data = self.inference.data(value)
        assert data is not None
        return data.numpy()

    # ---- limits --------------------------------------------------------------------------------------------------

    def _result_bytes(self, op: Operation) -> int | None:
        """Bytes that the results will take as constants; None if that is open and might be much."""
        types = self._result_types(op)
        total = 0
        for result, type in zip(op.results, types, strict=True):
            if not result.use_count:
                continue
            if not isinstance(type, TensorType):
                return None
            shape = type.static_shape
            if shape is not None:
                total += type.dtype.storage_bytes(int(np.prod(shape, dtype=object)))
            elif self._operand_elements(op) > MAX_OPEN_ELEMENTS:
                return None
        return total

    def _result_types(self, op: Operation) -> Sequence[Type]:
        if op.regions or self._function(op) is not None:
            return [result.type for result in op.results]
        try:
            return infer_types(op, self.inference)
        except TypeInferenceError:
            return [result.type for result in op.results]

    def _operand_elements(self, op: Operation) -> int:
        return sum(data.elements for data in map(self.inference.data, op.operand_values) if data is not None)

    def _operations(self, op: Operation) -> int:
        """An upper estimate of the arithmetic: that of all iterations, for a loop of known length."""
        function = self._function(op)
        if function is None and not op.regions:
            return _flops(op)
        body = function.walk() if function is not None else _nested(op)
        return sum(_flops(nested) for nested in body) * self._iterations(op)

    def _iterations(self, op: Operation) -> int:
        if op.name == "if" or not op.regions:
            return 1
        if op.name == "loop" and any(nested.regions for nested in _nested(op)):
            return self.max_operations + 1
        count = self.inference.constant(op.operands[0]) if op.name == "loop" else None
        if count is not None and count.size == 1:
            return max(int(count.reshape(())), 1)
        return self._operand_elements(op) + 1 if op.name != "loop" else self.max_operations + 1

    def _growth(self, op: Operation, result_bytes: int) -> int:
        """Bytes by which the file grows if `op` gives way to constants of `result_bytes`."""
        freed = operation_bytes(op)
        for value in dict.fromkeys(op.operand_values):
            data = self.inference.data(value)
            if data is not None and all(use.user is op for use in value.uses):
                freed += constant_bytes(data)
        return result_bytes - freed

    def _fits(self, growth: int) -> bool:
        return growth <= 0 or (growth <= self.max_growth and growth <= self._room_left())

    def _room_left(self) -> int:
        """Bytes that the model may still grow by; unknown original sizes give `max_growth` for each constant."""
        if self._room is None:
            original = self.context.original_bytes
            self._room = original - written_bytes(self.module) if original else 1 << 62
        return self._room

    # ---- replacing -----------------------------------------------------------------------------------------------

    def _replace(self, op: Operation, results: Sequence[TensorData | None]) -> None:
        growth = self._growth(op, sum(constant_bytes(data) for data in results if data is not None))
        if self._room is not None:
            self._room -= growth
        with self.context.rewrite(self.module, "fold", op, "all it depends on is constant") as rewriter:
            builder = rewriter.before(op)
            values: list[Value | None] = []
            for data in results:
                if data is None:
                    values.append(None)
                    continue
                constant = builder.create(self.constant, (), {"value": data}, result_types=[data.type])
                values.append(constant.result)
            operands = self._inputs(op)
            rewriter.replace(op, values)
            self._drop_unused(rewriter, operands)
        self.folded += 1

    def _drop_unused(self, rewriter: Rewriter, values: Sequence[Value]) -> None:
        """Constants that only the folded operation used."""
        for value in dict.fromkeys(values):
            producer = value.producer
            if producer is not None and producer.name == "const" and not value.use_count:
                rewriter.erase(producer)


def _nested(op: Operation) -> Iterator[Operation]:
    return (nested for region in op.regions.values() for nested in region.walk())


def _flops(op: Operation) -> int:
    """The definition's count if it is a number, else one per element of operands and results."""
    counted = op.definition.flops(op)
    if isinstance(counted, int) and not isinstance(counted, bool):
        return counted
    elements = 0
    for value in (*op.operand_values, *op.results):
        count = value.type.elements if isinstance(value.type, TensorType) else 1
        elements += count if isinstance(count, int) else 1
    return elements
