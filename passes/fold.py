"""fold: evaluate what follows from constants and shapes. Level onnx.

Three sources: elements that follow from shapes alone (`Shape` and `Gather` chains over known dims), operations whose
operands are constants or follow from constants, and whole `If`, `Loop` and function calls on constants.

Size and arithmetic are estimated before anything is evaluated, so that a small file of shapes never becomes a large
one of zeros. What is weighed is a *cone*: an operation that somebody needs, with all constant operations above it. Its
result may be larger than the operations and constants that become unused only by `max-growth` bytes, and only while
the model stays within the size of its file.

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
from ..graph.evaluation import evaluate_op
from ..graph.evaluator import Evaluator, captures
from ..graph.infer import InferenceContext, infer_types
from ..graph.types import TensorType, Type
from .base import Pass
from .inline_functions import key_of
from .recompute import recomputed
from .sizes import constant_bytes, operation_bytes, written_bytes

if TYPE_CHECKING:
    from ..graph.module import Function, Module
    from .context import PassContext

# A result whose size shows only when it is computed (NonZero, Unique, ...) is computed for operands up to this size.
MAX_OPEN_ELEMENTS = 1 << 14
# What one operation on the way to a result may give, if that is more than its constant operands hold.
MAX_INTERMEDIATE_BYTES = 1 << 26
# Sizes are estimates: so much of a model's size (at most 4 percent) is kept free.
MAX_MARGIN_BYTES = 1 << 13
# What takes more for each element is not computed a second time, but kept.
MAX_RECOMPUTED_OPERATIONS = 1 << 10
KEPT = frozenset({"quantize_linear", "dequantize_linear", "dynamic_quantize_linear"})


@dataclass(frozen=True)
class FoldConstants(Pass):
    """Evaluate what follows from constants and shapes."""

    name = "fold"

    max_growth: int = 1 << 16
    max_operations: int | None = None

    def run(self, module: Module, context: PassContext) -> bool:
        folding = _Folding(self, module, context)
        folding.run()
        if folding.folded:
            context.count("operations folded", folding.folded)
        return folding.folded > 0


class _Folding:
    """One run over a module: forwards, to find what is constant; backwards, to decide what to evaluate."""

    def __init__(self, options: FoldConstants, module: Module, context: PassContext) -> None:
        self.module, self.context = module, context
        self.max_growth = options.max_growth if context.may_grow else 0
        given = options.max_operations
        self.max_operations = context.limits.fold_operations if given is None else given
        # Replacing values by equal constants changes no answer, so one context serves the whole run.
        self.inference = InferenceContext(module.symbols)
        self.constant = opdef.lookup("", "Constant")
        self.candidates: dict[Operation, int] = {}  # follows from constants -> bytes of its results
        self.order: dict[Operation, int] = {}  # candidate -> position in the program
        self.folded = 0
        self._room: int | None = None

    def run(self) -> None:
        for function in self.module.all_functions():
            for op in function.region.operations():
                if not self.context.may_apply:
                    return
                self.find(op)
        for op in list(reversed(self.candidates)):
            if not self.context.may_apply:
                return
            self.decide(op)

    # ---- forwards ------------------------------------------------------------------------------------------------

    def find(self, op: Operation) -> None:
        """Replace results that follow from shapes; note an operation that follows from constants."""
        if op.parent is None or op.name == "const" or op.is_terminator or not _is_used(op) or not self._may_fold(op):
            return
        known = self._known_from_shapes(op)
        if known is not None:
            self._replace(op, known, [op])
        elif all(self._is_loaded(value) or value.producer in self.candidates for value in _inputs(op)):
            size = self._result_bytes(op)
            if size is not None:
                self.candidates[op] = size
                self.order[op] = len(self.order)

    def _may_fold(self, op: Operation) -> bool:
        if op.name in KEPT or any(isinstance(value, AttributeReference) for value in op.attributes.values()):
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

    def _known_from_shapes(self, op: Operation) -> list[TensorData | None] | None:
        """All used results, if each of them follows from shapes; nothing is computed."""
        found: list[TensorData | None] = []
        for result in op.results:
            if not result.use_count:
                found.append(None)
                continue
            if not isinstance(result.type, TensorType) or result.type.dtype.is_float:
                return None  # known floats are exact, where computed ones are rounded
            elements = self.inference.symbolic(result)
            if elements is None or not all(isinstance(item, int) for item in elements.flat):
                return None
            found.append(ArrayData(elements.astype(result.type.dtype.numpy), result.type.dtype))
        return found if self._fits(_total_bytes(found) - self._freed([op])) else None

    def _is_loaded(self, value: Value) -> bool:
        data = self.inference.data(value)
        return data is not None and not isinstance(data, UnresolvedData)

    def _result_bytes(self, op: Operation) -> int | None:
        """Bytes of the used results; None if that is not known and might be much, or if a result is no tensor."""
        total = 0
        for result, type in zip(op.results, self._result_types(op), strict=True):
            if not result.use_count:
                continue
            if not isinstance(type, TensorType):
                return None
            shape = type.static_shape
            elements = self._open_elements(op) if shape is None else int(np.prod(shape, dtype=object))
            if elements is None:
                return None
            total += type.dtype.storage_bytes(elements)
        return total

    def _result_types(self, op: Operation) -> Sequence[Type]:
        if op.regions or self._function(op) is not None:
            return [result.type for result in op.results]
        try:
            return infer_types(op, self.inference)
        except TypeInferenceError:
            return [result.type for result in op.results]

    def _open_elements(self, op: Operation) -> int | None:
        """An estimate of elements for a result that is known only when it is computed; None for large operands."""
        elements = 0
        for value in op.operand_values:
            count = value.type.elements if isinstance(value.type, TensorType) else None
            if not isinstance(count, int):
                return None
            elements += count
        return elements if elements <= MAX_OPEN_ELEMENTS else None

    # ---- backwards -----------------------------------------------------------------------------------------------

    def decide(self, op: Operation) -> None:
        """Evaluate `op` if somebody needs it and it is worth it; if not, what it uses is decided on by itself."""
        users = [use.user for result in op.results for use in result.uses]
        if op.parent is None or op not in self.candidates:
            return
        if all(_owner(user, self.candidates) is not None for user in users):
            return
        cone = self._cone(op)
        results = self._evaluated(op, cone) if cone is not None else None
        if results is None or cone is None:
            self.candidates.pop(op, None)
        else:
            self._replace(op, results, cone)

    def _cone(self, op: Operation) -> list[Operation] | None:
        """`op` and the candidates that it follows from, last first; None if one of them has been given up."""
        cone = {op: None}
        pending = [op]
        while pending:
            for value in _inputs(pending.pop()):
                producer = value.producer
                if producer is None or (producer.name != "const" and producer not in self.candidates):
                    return None
                if producer.name != "const" and producer not in cone:
                    cone[producer] = None
                    pending.append(producer)
        return sorted(cone, key=self.order.__getitem__, reverse=True)

    def _evaluated(self, op: Operation, cone: list[Operation]) -> list[TensorData | None] | None:
        """The results of `op`, if they are tensors and all stays within the limits; None otherwise."""
        freed = self._freed(cone)
        if not self._fits(self.candidates[op] - freed) or not self._is_affordable(cone):
            return None
        computed: dict[Value, Any] = {}
        for step in reversed(cone):
            try:
                values = self._compute(step, computed)
            except ExecutionError as error:
                reason = error.diagnostics[0].message
                self.context.remark("fold/failed", f"{step.name} was not folded: {reason}", step.location)
                self.candidates.pop(step, None)
                return None
            computed.update(zip(step.results, values, strict=True))
        found: list[TensorData | None] = []
        for result in op.results:
            if result.use_count and not isinstance(computed[result], np.ndarray):
                return None
            found.append(self._data(result, computed[result], cone) if result.use_count else None)
        # The estimate was one where the types leave the size open.
        return found if self._fits(_total_bytes(found) - freed) else None

    def _data(self, result: Value, array: np.ndarray, cone: Sequence[Operation]) -> TensorData:
        """A constant of these elements: a large one that took little time can be computed again."""
        is_plain = not any(step.regions or self._function(step) is not None for step in cone)
        is_cheap = sum(map(self._operations, cone)) <= MAX_RECOMPUTED_OPERATIONS * array.size
        return recomputed(result, array, cone) if is_plain and is_cheap else ArrayData(array)

    def _is_affordable(self, cone: Sequence[Operation]) -> bool:
        held = sum(data.nbytes for step in cone for data in map(self.inference.data, _inputs(step)) if data is not None)
        if any(self.candidates[step] > max(held, MAX_INTERMEDIATE_BYTES) for step in cone):
            return False
        return sum(map(self._operations, cone)) <= self.max_operations

    def _compute(self, op: Operation, computed: dict[Value, Any]) -> list[Any]:
        operands = [None if value is None else self._array(value, computed) for value in op.operands]
        if not op.regions and self._function(op) is None:
            return evaluate_op(op, operands)
        outside = {value: self._array(value, computed) for value in captures(op)}
        return Evaluator(self.module.functions).evaluate(op, operands, outside)

    def _array(self, value: Value, computed: dict[Value, Any]) -> Any:
        if value in computed:
            return computed[value]
        data = self.inference.data(value)
        assert data is not None
        return data.numpy()

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
        too_many = self.max_operations + 1
        if any(nested.regions for nested in _nested(op)):
            return too_many
        if op.name != "loop":
            return self._open_elements(op) or too_many
        count = self.inference.constant(op.operands[0])
        return max(int(count.reshape(())), 1) if count is not None and count.size == 1 else too_many

    # ---- sizes ---------------------------------------------------------------------------------------------------

    def _freed(self, cone: Sequence[Operation]) -> int:
        """Bytes of what becomes unused when the first of `cone` (which is in reverse order) is replaced."""
        dying = {cone[0]: None}
        for step in cone[1:]:
            if all(_owner(use.user, dying) is not None for result in step.results for use in result.uses):
                dying[step] = None
        freed = sum(map(operation_bytes, dying))
        for value in dict.fromkeys(value for step in dying for value in _inputs(step)):
            data = self.inference.data(value)
            if data is not None and all(_owner(use.user, dying) is not None for use in value.uses):
                freed += constant_bytes(data)
        return freed

    def _fits(self, growth: int) -> bool:
        return growth <= 0 or growth <= min(self.max_growth, self._room_left())

    def _room_left(self) -> int:
        """Bytes that the model may still grow by; where its original size is not known, what each constant may."""
        if self._room is None:
            original = self.context.original_bytes
            margin = min(original // 25, MAX_MARGIN_BYTES)
            self._room = original - margin - written_bytes(self.module) if original else 1 << 62
        return self._room

    # ---- replacing -----------------------------------------------------------------------------------------------

    def _replace(self, op: Operation, results: Sequence[TensorData | None], cone: Sequence[Operation]) -> None:
        growth = _total_bytes(results) - self._freed(cone)
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
            inputs = [value.producer for step in cone for value in _inputs(step)]
            rewriter.replace(op, values)
            for unused in (*cone[1:], *dict.fromkeys(inputs)):
                if unused is not None and unused.parent is not None and not _is_used(unused):
                    rewriter.erase(unused)
        self.folded += 1


def _is_used(op: Operation) -> bool:
    return any(result.use_count for result in op.results)


def _inputs(op: Operation) -> Sequence[Value]:
    """The operands of `op`, and what its regions use from outside."""
    return [*op.operand_values, *captures(op)] if op.regions else op.operand_values


def _owner(user: Operation, ops: dict[Operation, Any]) -> Operation | None:
    """The one of `ops` that is `user` or holds it in a region."""
    current: Operation | None = user
    while current is not None and current not in ops:
        current = current.parent_op
    return current


def _nested(op: Operation) -> Iterator[Operation]:
    return (nested for region in op.regions.values() for nested in region.walk())


def _total_bytes(results: Sequence[TensorData | None]) -> int:
    return sum(constant_bytes(data) for data in results if data is not None)


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
