"""collapse-batch: compute on matrices [rows, channels] instead of tensors [batch, length, channels]. Level onnx.

Products with a weight matrix, elementwise operations, layer normalization and softmax over the last axis treat every
row alike, so that all dims but the last can be one. Then a product and the bias after it are a Gemm, and the reshapes
that exporters put around each Gemm vanish. The pass finds islands of such operations, counts what rewriting one saves
(biases that fit into a Gemm, reshapes inside) and costs (reshapes at its border), and rewrites it if that pays.

Invariant: every value of an island keeps its elements in their order; only its dims change. Values that leave the
island are reshaped back.

    %0 = matmul %x, %w : f32[1, 128, 768]              %0 = reshape %x, [-1, 768] : f32[128, 768]
    %1 = add %0, %b : f32[1, 128, 768]          ->     %1 = matmul %0, %w : f32[128, 768]
    %2 = reshape %1, [1, 128, 12, 64] : ...            %2 = add %1, %b : f32[128, 768]
                                                       %3 = reshape %2, [1, 128, 12, 64] : ...
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..graph.core import Block, Operation, Value
from ..graph.data import TensorData, derived
from ..graph.dims import Dim
from ..graph.infer import InferenceContext
from ..graph.opdef import Trait
from ..graph.ops.attention_standard import RUNTIME_OPSETS
from ..graph.types import TensorType
from .base import Pass
from .proofs import made_by, normalized, reshape_target, same_dims

if TYPE_CHECKING:
    from ..graph.module import Module
    from ..graph.rewriter import Rewriter
    from .context import PassContext

_LAST_AXIS = ("softmax", "log_softmax", "layer_normalization", "split", "concat", "rms_normalization")
_REDUCTIONS = ("reduce_mean", "reduce_sum", "reduce_max", "reduce_min", "reduce_l2", "reduce_sum_square")


@dataclass(eq=False)
class Island:
    """Operations that can work on matrices, connected through their row values, in block order."""

    ops: dict[Operation, RowForm] = field(default_factory=dict)


@dataclass(frozen=True)
class RowForm:
    """Which operands of an operation are rows; the others stay. `vanishes`: a reshape that becomes nothing."""

    rows: tuple[int, ...]
    vanishes: bool = False


def row_form(op: Operation, inference: InferenceContext) -> RowForm | None:
    """How `op` works on rows; None if it does not."""
    shapes = [_shape(result) for result in op.results]
    if not shapes or any(shape is None or len(shape) < 2 for shape in shapes):
        return None
    shape = shapes[0]
    assert shape is not None
    if op.name == "reshape":
        return _reshape_form(op)
    if op.name in ("matmul", "gemm"):
        return _product_form(op)
    if op.name in _LAST_AXIS:
        return _last_axis_form(op, shape)
    if op.name in _REDUCTIONS:
        return _reduction_form(op, inference)
    if Trait.ELEMENTWISE in op.definition.traits and len(op.results) == 1 and not op.regions:
        return _elementwise_form(op, shape, inference)
    return None


def _shape(value: Value | None) -> tuple[Dim, ...] | None:
    return value.type.shape if value is not None and isinstance(value.type, TensorType) else None


def _reshape_form(op: Operation) -> RowForm | None:
    """A reshape that keeps the last dim moves no element out of its row."""
    before, after = _shape(op.operands[0]), _shape(op.results[0])
    if before is None or after is None or len(before) < 2 or before[-1:] != after[-1:] or before[-1] == 0:
        return None
    return RowForm((0,), vanishes=True)


def _product_form(op: Operation) -> RowForm | None:
    left, right = _shape(op.operands[0]), _shape(op.operands[1])
    if left is None or right is None or len(left) < 2 or len(right) != 2 or op.attr("transA", 0):
        return None
    addend = _shape(op.input(2)) if op.name == "gemm" else ()
    return RowForm((0,)) if addend is not None and (len(addend) < 2 or addend[0] == 1) else None


def _last_axis_form(op: Operation, shape: tuple[Dim, ...]) -> RowForm | None:
    """Operations along the last axis; a concatenation joins rows of equal number."""
    axis = op.attr("axis", 0 if op.name == "split" else -1)
    if axis not in (-1, len(shape) - 1) or (op.name == "layer_normalization" and len(op.results) > 1):
        return None
    if op.name != "concat":
        return RowForm((0,))
    operands = [_shape(operand) for operand in op.operands]
    if any(o is None or not same_dims(o[:-1], shape[:-1]) for o in operands):
        return None
    return RowForm(tuple(range(len(operands))))


def _reduction_form(op: Operation, inference: InferenceContext) -> RowForm | None:
    shape, axes = _shape(op.operands[0]), inference.constant(op.input(1))
    if shape is None or axes is None or not op.attr("keepdims", 1):
        return None
    last = normalized([int(axis) for axis in axes.ravel()], len(shape)) == [len(shape) - 1]
    return RowForm((0,)) if last else None


def _elementwise_form(op: Operation, shape: tuple[Dim, ...], inference: InferenceContext) -> RowForm | None:
    """Operands have the result's rows, or are the same for every row."""
    rows = []
    for index, operand in enumerate(op.operands):
        own = _shape(operand)
        if operand is None:
            continue
        if own is None:
            return None
        if len(own) == len(shape) and same_dims(own[:-1], shape[:-1]):
            rows.append(index)
        elif any(dim != 1 for dim in own[:-1]) or (len(own) > 2 and inference.data(operand) is None):
            return None
    return RowForm(tuple(rows)) if rows else None


def islands(block: Block, inference: InferenceContext) -> Iterator[Island]:
    """The islands of `block`, in order of their first operation."""
    forms = {op: form for op in block if (form := row_form(op, inference)) is not None}
    seen: set[Operation] = set()
    for start in forms:
        if start in seen:
            continue
        members: set[Operation] = set()
        pending = [start]
        while pending:
            op = pending.pop()
            if op in members:
                continue
            members.add(op)
            pending.extend(_neighbours(op, forms))
        seen |= members
        yield Island({op: form for op, form in forms.items() if op in members})


def _neighbours(op: Operation, forms: dict[Operation, RowForm]) -> Iterator[Operation]:
    for index in forms[op].rows:
        operand = op.operands[index]
        if operand is not None and operand.producer in forms:
            yield operand.producer
    for result in op.results:
        for use in result.uses:
            if use.user in forms and use.position in forms[use.user].rows:
                yield use.user


def groups(found: list[Island]) -> list[list[Island]]:
    """The islands, those that read a value in common together."""
    result: list[list[Island]] = []
    readers: dict[Value, list[Island]] = {}
    for island in found:
        group = [island]
        for value in _read_rows(island):
            for other in list(readers.get(value, ())):
                if other not in group:
                    group.append(other)
        for merged in [g for g in result if any(member in group for member in g)]:
            result.remove(merged)
            group = [*merged, *(member for member in group if member not in merged)]
        result.append(group)
        for value in _read_rows(island):
            readers.setdefault(value, []).append(island)
    return result


def _read_rows(island: Island) -> Iterator[Value]:
    for op, form in island.ops.items():
        yield from (operand for index in form.rows if (operand := op.operands[index]) is not None)


def joined(group: list[Island]) -> Island:
    """One island of several, its operations in block order."""
    ops = {op: form for island in group for op, form in island.ops.items()}
    block = next(iter(ops)).parent
    assert block is not None
    return Island({op: ops[op] for op in block if op in ops})


class Border:
    """What of an island has to be reshaped where it meets the rest of the graph."""

    def __init__(self, island: Island, inference: InferenceContext) -> None:
        self.island = island
        self.inference = inference
        self.entering: dict[Value, None] = {}
        self.leaving: dict[Value, None] = {}
        for op, form in island.ops.items():
            for index in form.rows:
                operand = op.operands[index]
                if operand is not None and operand.producer not in island.ops:
                    self.entering[operand] = None
            for result in op.results:
                if any(not self._is_inside(use.user, use.position) for use in result.uses):
                    self.leaving[result] = None

    def _is_inside(self, user: Operation, position: int) -> bool:
        form = self.island.ops.get(user)
        return form is not None and position in form.rows

    def cost(self) -> int:
        """Reshapes that have to be added."""
        entering = sum(self._entry_cost(value) for value in self.entering)
        return entering + sum(self._exit_cost(value) for value in self.leaving)

    def _entry_cost(self, value: Value) -> int:
        if len(_shape(value) or ()) == 2 or self.inference.data(value) is not None:
            return 0
        producer = value.producer
        replaced = producer is not None and producer.name == "reshape"
        return 0 if replaced and all(self._is_inside(use.user, use.position) for use in value.uses) else 1

    def _exit_cost(self, value: Value) -> int:
        if self.is_flat_anyway(value):
            return 0
        outside = [use for use in value.uses if not self._is_inside(use.user, use.position)]
        return 0 if all(self.reads_any_dims(use.user, use.position) for use in outside) else 1

    def absorbed(self) -> int:
        """Reshapes at the border that attention has in it: where heads are split off and where they are joined."""
        before = [op.operands[0] for value in self.entering if (op := made_by(value, "reshape")) is not None]
        after = [
            use.user for value in self.leaving for use in value.uses if not self._is_inside(use.user, use.position)
        ]
        splits = [op.result for op in after if op.name == "reshape" and _is_headed(op.result)]
        joins = sum(_is_headed(value) and made_by(value, "transpose") is not None for value in before)
        return joins + sum(all(user.name == "transpose" for user in result.users) for result in splits)

    def is_flat_anyway(self, value: Value) -> bool:
        """Whether the value is a matrix already; its new form is the same, unless a vanishing reshape made it."""
        return len(_shape(value) or ()) == 2

    def reads_any_dims(self, user: Operation, position: int) -> bool:
        """Whether `user` is a reshape to constant dims that do not refer to its operand's."""
        target = self.inference.data(user.operands[1]) if user.name == "reshape" and position == 0 else None
        return target is not None and 0 not in target.numpy()

    def is_possible(self) -> bool:
        """Whether every leaving value can be given its dims back by a constant target."""
        return all(back_target(value) is not None for value in self.leaving)


def _is_headed(value: Value | None) -> bool:
    """Whether a tensor may be [batch, heads, length, size] in some order."""
    return len(_shape(value) or ()) == 4


def back_target(value: Value) -> list[int] | None:
    """The operand of the Reshape that gives a leaving value its dims back; None if more than one dim is open."""
    shape = _shape(value) or ()
    flat_rows: Dim = 1
    for dim in shape[:-1]:
        flat_rows = flat_rows * dim
    return reshape_target((flat_rows, shape[-1]), shape)


def saving(island: Island) -> int:
    """Operations that rewriting makes unnecessary: vanishing reshapes, and biases that fit into a Gemm."""
    gain = 0
    for op, form in island.ops.items():
        if form.vanishes:
            gain += 1
        elif op.name == "add" and len(form.rows) == 1:
            product = made_by(op.operands[form.rows[0]], "matmul")
            if product is not None and len(_shape(product.result) or ()) > 2 and product.result.use_count == 1:
                gain += 1
    return gain


class _Collapse:
    """Rewrites one island."""

    def __init__(self, island: Island, border: Border, rewriter: Rewriter) -> None:
        self.island, self.border, self.rewriter = island, border, rewriter
        self.flat: dict[Value, Value] = {}

    def run(self) -> None:
        for op, form in self.island.ops.items():
            self._rewrite(op, form)
        for value in self.border.leaving:
            self._give_back(value)
        for op in reversed(list(self.island.ops)):
            self.rewriter.erase(op)

    def _rewrite(self, op: Operation, form: RowForm) -> None:
        b = self.rewriter.before(op)
        operands = list(op.operands)
        for index in form.rows:
            operands[index] = self._flattened(operands[index], op)
        if form.vanishes:
            assert operands[0] is not None
            self.flat[op.results[0]] = operands[0]
            return
        operands = [value if i in form.rows else self._same_for_all_rows(value, op) for i, value in enumerate(operands)]
        attributes = dict(op.attributes)
        if op.name in _LAST_AXIS:
            attributes["axis"] = -1
        if op.name in _REDUCTIONS:
            operands[1] = b.const(np.array([-1], np.int64))
        made = b.create(op.definition, operands, attributes, outputs=len(op.results), location=op.location)
        self.flat.update(zip(op.results, made.results, strict=True))

    def _flattened(self, value: Value | None, user: Operation) -> Value | None:
        """The matrix that has the elements of `value`."""
        if value is None or value in self.flat:
            return self.flat.get(value) if value is not None else None
        shape = _shape(value) or ()
        data = self.border.inference.data(value)
        if len(shape) == 2:
            self.flat[value] = value
        elif data is not None:
            rows = derived(lambda array: array.reshape(-1, array.shape[-1]), data, dtype=data.dtype)
            self.flat[value] = self.rewriter.before(user).const(rows)
        else:
            producer = value.producer
            source = value if producer is None or producer.name != "reshape" else producer.operands[0]
            # The last dim may be 0 only in a model without elements; -1 could not be resolved there.
            b = self.rewriter.before(user)
            self.flat[value] = b.create("reshape", [source, np.array([-1, _last(value)], np.int64)]).result
        return self.flat[value]

    def _same_for_all_rows(self, value: Value | None, user: Operation) -> Value | None:
        """An operand that is no rows: one with leading ones loses them."""
        shape = _shape(value)
        if value is None or shape is None or len(shape) <= 2 or user.name in ("split", "reshape"):
            return value
        data = self.border.inference.data(value)
        return value if data is None else self.rewriter.before(user).const(_row_of(data), data.dtype)

    def _give_back(self, value: Value) -> None:
        """Give users outside what they read: the matrix itself where dims do not matter, else the old dims."""
        producer = value.producer
        assert producer is not None
        flat = self.flat[value]
        back: Value | None = flat if flat.type is value.type else None
        for use in value.uses:
            if use.user in self.island.ops and use.position in self.island.ops[use.user].rows:
                continue
            if self.border.reads_any_dims(use.user, use.position):
                self.rewriter.set_operand(use.user, use.position, flat)
                continue
            if back is None:
                target = np.array(back_target(value), np.int64)
                back = self.rewriter.before(producer).create("reshape", [flat, target]).result
                back.name, back.info, back.type = value.name, value.info, value.type
            self.rewriter.set_operand(use.user, use.position, back)


def _last(value: Value) -> int:
    last = (_shape(value) or ())[-1]
    assert isinstance(last, int)
    return last


def _row_of(data: TensorData) -> np.ndarray:
    return data.numpy().reshape(data.shape[-1:])


def _has_known_rows(border: Border) -> bool:
    """Whether every value that must be flattened has a known, nonzero last dim."""
    return all(
        len(shape := _shape(value) or ()) == 2 or (isinstance(shape[-1], int) and shape[-1] > 0)
        for value in border.entering
    )


class CollapseBatch(Pass):
    """Compute on matrices instead of tensors with batch dims, where that saves operations."""

    name = "collapse-batch"
    exactness = "reassociates"

    def run(self, module: Module, context: PassContext) -> bool:
        if not context.may_grow:  # the reshapes that are added take more bytes than the biases that are saved
            return False
        changed = False
        blocks = [function.block for function in module.all_functions()]
        blocks += [region.block for op in module.walk() for region in op.regions.values()]
        for block in blocks:
            inference = InferenceContext(module.symbols)
            promising = [island for island in islands(block, inference) if saving(island)]
            for group in groups(promising):
                # Together they share the reshapes of what all of them read; alone each must pay for its own.
                if len(group) > 1 and self._visit(joined(group), inference, module, context):
                    changed = True
                    continue
                for island in group:
                    changed |= self._visit(island, inference, module, context)
        return changed

    def _visit(self, island: Island, inference: InferenceContext, module: Module, context: PassContext) -> bool:
        gain = saving(island)
        if not gain or not context.may_apply:
            return False
        border = Border(island, inference)
        cost = border.cost()
        first = next(iter(island.ops))
        if module.opsets.get("", 0) in RUNTIME_OPSETS and cost + border.absorbed() > gain:
            return False  # Attention takes its operands as [batch, length, heads * size]
        if cost >= gain:
            added = "1 reshape" if cost == 1 else f"{cost} reshapes"
            saved = "1 operation" if gain == 1 else f"{gain} operations"
            context.remark("collapse-batch/no-gain", f"{added} would be added to save {saved}", first.location)
            return False
        if not _has_known_rows(border) or not border.is_possible():
            context.remark(
                "collapse-batch/open-dims", "dims at the border cannot be written as constants", first.location
            )
            return False
        with context.rewrite(module, self.name, first, f"saves {gain} operations for {cost} reshapes") as rewriter:
            _Collapse(island, border, rewriter).run()
        return True
