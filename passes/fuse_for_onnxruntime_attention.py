"""Attention as ONNX Runtime's operators. Rules of fuse-for-onnxruntime.

Attention does the projections of query, key and value too, MultiHeadAttention takes them, GroupQueryAttention has fewer
heads for keys, and a soft cap. They take f32 and [batch, length, heads * size].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np

from ..graph import dtypes
from ..graph.builder import OpBuilder
from ..graph.core import AttributeValue, Operation, Value
from ..graph.dims import Dim, prove_equal
from ..graph.opdef import lookup
from ..graph.ops.attention_masks import has_further_masks, replaces_scores
from ..graph.ops.attention_parts import Heads, heads_of
from ..graph.ops.attention_standard import RUNTIME_OPSETS
from .fuse_attention_scores import near
from .fuse_attention_views import shape_of
from .fuse_for_onnxruntime_activations import DOMAIN
from .fuse_for_onnxruntime_masks import RuntimeMask, all_keys, build_bias, read_mask, zeros_for_hidden
from .fuse_for_onnxruntime_operands import (
    HEADS_FIRST,
    LENGTH_FIRST,
    Packed,
    Projection,
    equal_by_count,
    pack,
    projection_of,
)
from .proofs import made_by, reshape_target, same_dims
from .rules import Match, Mismatch, OpRule, Verdict

# GroupQueryAttention wants heads of a multiple of this size.
_GROUPED_SIZE = 8


@dataclass(frozen=True)
class Plan:
    """How one attention is to be said: `operands` are query, key and value side by side, or `projections` the three
    that make them of one x. `last` is the operation whose result is replaced."""

    op: Operation
    heads: Heads
    batch: Dim
    length: Dim
    mask: RuntimeMask
    operands: tuple[Packed, ...]
    projections: tuple[Projection, ...]
    last: Operation

    @property
    def past(self) -> tuple[Value, Value] | None:
        """Keys and values that come before the new ones, [batch, heads, length, size] both."""
        key, value = self.op.input(4), self.op.input(5)
        return None if key is None or value is None else (key, value)

    @property
    def is_length_first(self) -> bool:
        """Whether the result is wanted as [length, batch, width]."""
        users = [] if self.last is self.op else list(self.op.results[0].users)
        return bool(users) and tuple(users[0].attr("perm") or ()) == LENGTH_FIRST

    @property
    def has_known_lengths(self) -> bool:
        past = shape_of(self.op.input(4))
        lengths = (self.batch, self.length, 0 if past is None else past[2])
        return all(isinstance(length, int) for length in lengths)

    @property
    def is_grouped(self) -> bool:
        return self.heads.repeats > 1 or bool(self.op.attr("softcap"))


class RuntimeAttention(OpRule):
    """attention(q, k, v, mask) -> Attention, MultiHeadAttention or GroupQueryAttention of com.microsoft"""

    name = "runtime-attention"
    exactness = "reassociates"
    root: ClassVar[str] = "attention"

    def __init__(self, opset: int = 1, only_projected: bool = False) -> None:
        self.opset, self.only_projected = opset, only_projected

    def when(self, m: Match) -> Verdict:
        found = plan(m)
        if isinstance(found, Mismatch):
            return near(found.reason, *found.culprits)  # it is an attention, so each refusal is a near miss
        if self.opset in RUNTIME_OPSETS and found.is_grouped and not found.has_known_lengths and is_standard(m.root):
            return m.fail("the standard's Attention needs no lengths as operands, and the opset has it", m.root)
        if self.only_projected and not found.projections:
            return m.fail("a function of Attention does as well", m.root)
        if self.only_projected and replaces_scores(m.root):
            return m.fail("a function of Attention does not add to scores that are replaced", m.root)
        return True

    def build(self, b: OpBuilder, m: Match) -> None:
        found = plan(m)
        assert isinstance(found, Plan)
        result, present = _Build(found, b).run()
        old = found.last.results[0]
        for value, new in zip(found.op.results[1:], present, strict=False):
            m.rewriter.set_type(new, value.type)
            m.rewriter.replace_uses(value, new)
        _remark_differences(m, found.op)
        if found.is_length_first:
            result = b.transpose(result, perm=[1, 0, 2])
        own, wanted = shape_of(result) or (), shape_of(old) or ()
        if found.last.name == "transpose":
            result = b.reshape(result, [0, 0, found.heads.queries, found.heads.value_size])
        elif not same_dims(own, wanted) and not equal_by_count(own, wanted):
            target = reshape_target(own, wanted, open_positions=range(len(wanted)))
            assert target is not None
            result = b.reshape(result, target)
        m.rewriter.set_type(result, old.type)
        m.rewriter.replace_uses(old, result)
        # Back to the attention, which would be found again.
        dead: Operation | None = found.last
        while dead is not None and not any(value.use_count for value in dead.results):
            before = dead.operands[0].producer if dead is not found.op and dead.operands[0] is not None else None
            m.rewriter.erase(dead)
            dead = before


def _remark_differences(m: Match, op: Operation) -> None:
    """What these operators do otherwise than `op` where operands are not finite."""
    if op.attr("masking") == "nan-to-zero":
        m.context.remark("fuse-for-onnxruntime/nan", "attention gives NaN where an operand is NaN, not 0", op.location)
        return
    code = "fuse-for-onnxruntime/hidden-keys"
    if replaces_scores(op) and not m.context.log.has(code):
        text = "adds to the scores of hidden keys, which the model replaces: one that holds NaN or infinity gives NaN"
        m.context.remark(code, f"attention {text}", op.location)


def plan(m: Match) -> Plan | Mismatch:
    """How the root is to be said; a Mismatch with the reason if it cannot be."""
    op = m.root
    heads = heads_of(op)
    if heads is None:
        return m.fail("heads or their sizes are not known", op)
    has_past = [op.input(index) is not None for index in (4, 5)]
    if op.input(6) is not None or any(has_past) != all(has_past) or any(r.use_count for r in op.results[3:]):
        return m.fail("it gives scores, or has a buffer for keys", op)
    if not any(has_past) and any(result.use_count for result in op.results[1:]):
        return m.fail("it gives keys and values without a past", op)
    if any(str(m.dtype(op.input(index))) != "f32" for index in range(3)):
        return m.fail("ONNX Runtime's kernels take f32", op)
    if op.attr("scale") == 0 or op.attr("softmax_precision") not in (None, 0, 1):
        return m.fail("scale or precision cannot be said", op)
    dims = [_dims(op.input(index), count) for index, count in enumerate((heads.queries, heads.keys, heads.keys))]
    query, key, value = dims
    if query is None or key is None or value is None:
        return m.fail("the shapes are not known", op)
    present = [result.use_count > 0 for result in op.results[1:3]]
    if any(has_past) and present != [True, True]:
        return m.fail("ONNX Runtime takes no past without giving the present, which nobody needs", op)
    if any(has_past) and heads.size != heads.value_size:
        return m.fail("ONNX Runtime wants keys and values of one size where they have a past", op)
    past = shape_of(op.input(4))
    if past is None and any(has_past):
        return m.fail("the shape of the past is not known", op)
    mask = read_mask(m, op, query[1], key[1] if past is None else key[1] + past[2])
    if isinstance(mask, Mismatch):
        return mask
    found = [pack(operand, each) for operand, each in zip(op.operand_values[:3], (query, key, value), strict=True)]
    is_one_shape = heads.repeats == 1 and heads.size == heads.value_size
    if found[1] is None and found[2] is None and is_one_shape and past is None and not op.attr("softcap"):
        # Keys and values may have heads first, if both have, and one shape.
        found[1:] = [Packed(partial(_itself, operand), operand) for operand in op.operand_values[1:3]]
    packed = tuple(operand for operand in found if operand is not None)
    if len(packed) < len(found):
        return m.fail("an operand has heads first, and was not made from one that has them side by side", op)
    last = _last(op, query[0], query[1], heads.queries * heads.value_size)
    if last is None:
        return m.fail("the result has heads first, and its user wants it so", op)
    made = Plan(op, heads, query[0], query[1], mask, packed, (), last)
    if made.is_grouped:
        wrong = _not_grouped(m, made, key[1])
        return made if wrong is None else wrong
    projections = _projections(m, packed, (query[0], query[1])) if past is None else ()
    return Plan(op, heads, query[0], query[1], mask, packed, projections, last)


def is_standard(op: Operation) -> bool:
    """Whether an attention is what the operator of the standard says."""
    is_own = op.attr("masking") != "standard" or has_further_masks(op)
    return not is_own and bool(op.attr("masked_score") == -np.inf)


def _itself(value: Value, b: OpBuilder) -> Value:
    return value


def _dims(value: Value | None, heads: int) -> tuple[Dim, Dim, int, int] | None:
    """An operand's dims as [batch, length, heads, size]."""
    shape = shape_of(value)
    if shape is None:
        return None
    size = shape[-1] if len(shape) == 4 else shape[-1] // heads
    if not isinstance(size, int):
        return None
    return (shape[0], shape[-2], heads, size)


def _last(op: Operation, batch: Dim, length: Dim, width: int) -> Operation | None:
    """The operation that puts heads side by side again: the attention itself, or a reshape after a transpose.

    The transpose alone where the reshape is not known to do that.
    """
    shape = shape_of(op.results[0])
    if shape is not None and len(shape) == 3:
        return op
    transpose = _only_user(op.results[0], "transpose")
    perm = tuple(transpose.attr("perm") or ()) if transpose is not None else ()
    if transpose is None or perm not in (HEADS_FIRST, LENGTH_FIRST):
        return None
    if perm == LENGTH_FIRST:
        batch, length = length, batch
    reshape = _only_user(transpose.result, "reshape")
    found = shape_of(reshape.result) if reshape is not None else None
    if reshape is None or found is None:
        return transpose
    wanted = (batch, length, width)
    flat = len(found) == 2 and prove_equal(found[1], width) is True and prove_equal(found[0], batch * length) is True
    return reshape if same_dims(found, wanted) or equal_by_count(found, wanted) or flat else transpose


def _only_user(value: Value, name: str) -> Operation | None:
    users = list(value.users)
    return users[0] if len(users) == 1 and users[0].name == name and value.use_count == 1 else None


def _not_grouped(m: Match, made: Plan, keys: Dim) -> Mismatch | None:
    """Why GroupQueryAttention does not take it."""
    if made.heads.size % _GROUPED_SIZE or made.heads.size != made.heads.value_size:
        return m.fail(f"GroupQueryAttention takes heads of one size, a multiple of {_GROUPED_SIZE}", made.op)
    if prove_equal(made.length, keys) is not True:
        return m.fail("queries and keys are not known to be equally many", made.op)
    if made.past is not None and made.length != 1 and made.batch != 1:
        return m.fail("GroupQueryAttention takes a past for one query at a time, or for a batch of one", made.op)
    if (made.op.attr("softcap") or 0) < 0:
        return m.fail("the soft cap is negative", made.op)
    return None


def _projections(m: Match, packed: tuple[Packed, ...], rows: tuple[Dim, Dim]) -> tuple[Projection, ...]:
    """The projections of query, key and value if all are of one x; none otherwise."""
    found = [projection_of(m, operand.flat) for operand in packed]
    projections = tuple(each for each in found if each is not None)
    turned = {operand.is_transposed for operand in packed}
    if len(projections) < len(packed) or any(each.x is not projections[0].x for each in projections):
        return ()
    if True in turned:
        # Rows are projected one by one, so they may be so before they are transposed.
        transpose = made_by(projections[0].x, "transpose")
        x = transpose.operands[0] if transpose is not None else None
        if len(turned) > 1 or transpose is None or x is None or tuple(transpose.attr("perm") or ()) != (1, 0, 2):
            return ()
        projections = tuple(replace(each, x=x) for each in projections)
    return projections if _rows_target(projections[0].x, rows) is not None else ()


def _rows_target(x: Value, rows: tuple[Dim, Dim]) -> list[int] | None:
    """The operand with which Reshape makes `x` [batch, length, width]; empty if it is that."""
    shape = shape_of(x)
    if not shape:
        return None
    wanted = (*rows, shape[-1])
    return [] if same_dims(shape, wanted) else reshape_target(shape, wanted) if len(shape) == 2 else None


class _Build:
    """Makes the new operation."""

    def __init__(self, plan: Plan, b: OpBuilder) -> None:
        self.plan, self.b = plan, b

    def run(self) -> tuple[Value, Sequence[Value]]:
        """The result, and keys and values of past and present."""
        made = self.plan
        attributes: dict[str, AttributeValue] = {"num_heads": made.heads.queries}
        if made.op.attr("scale") is not None:
            attributes["scale"] = float(made.op.attr("scale"))
        if made.is_grouped:
            return self._guarded(*self._grouped(attributes))
        if made.mask.causal:
            attributes["unidirectional"] = 1
        if made.projections:
            return self._guarded(*self._projected(attributes))
        query, key, value = (operand.make(self.b) for operand in made.operands)
        past = made.past or (None, None)
        bias = build_bias(self.b, made.mask, query, key, past[0])
        operands = [query, key, value, None, None, bias, *past]
        return self._guarded(self._create("MultiHeadAttention", operands, attributes), bias)

    def _create(self, name: str, operands: list[Value | None], attributes: dict[str, AttributeValue]) -> Operation:
        while operands[-1] is None:
            operands.pop()
        # The kernels take no past without giving the present.
        count = 1 if self.plan.past is None else 3
        return self.b.create(lookup(DOMAIN, name), operands, attributes, outputs=count)

    def _guarded(self, op: Operation, bias: Value | None) -> tuple[Value, Sequence[Value]]:
        result = op.results[0]
        if self.plan.mask.guarded and bias is not None:
            result = zeros_for_hidden(self.b, bias, result)
        return result, op.results[1:]

    def _projected(self, attributes: dict[str, AttributeValue]) -> tuple[Operation, Value | None]:
        b, made = self.b, self.plan
        x = made.projections[0].x
        target = _rows_target(x, (made.batch, made.length))
        if target:
            x = b.reshape(x, target)
        weights = np.concatenate([each.weights for each in made.projections], axis=1)
        # One of zeros, too: ONNX Runtime before 1.32 ends the process without a bias.
        rows = [np.zeros(p.weights.shape[1], np.float32) if p.bias is None else p.bias for p in made.projections]
        row = b.const(np.concatenate(rows))
        if made.heads.size != made.heads.value_size:
            attributes["qkv_hidden_sizes"] = tuple(each.weights.shape[1] for each in made.projections)
        bias = build_bias(b, made.mask, x, x)
        return self._create("Attention", [x, b.const(weights), row, None, None, bias], attributes), bias

    def _grouped(self, attributes: dict[str, AttributeValue]) -> tuple[Operation, Value | None]:
        b, made = self.b, self.plan
        query, key, value = (operand.make(b) for operand in made.operands)
        past = made.past or (None, None)
        bias = build_bias(b, made.mask, query, key, past[0])
        attributes["kv_num_heads"] = made.heads.keys
        attributes["causal"] = int(made.mask.causal)
        if made.op.attr("softcap"):
            attributes["softcap"] = float(made.op.attr("softcap"))
        operands = [query, key, value, *past, *self._lengths(query, key), None, None, None, bias]
        return self._create("GroupQueryAttention", operands, attributes), bias

    def _lengths(self, query: Value, key: Value) -> tuple[Value, Value]:
        """The place of the last key for each element of the batch, and the number of keys."""
        b, made = self.b, self.plan
        past = None if made.past is None else made.past[0]
        length = made.length if past is None else made.length + (shape_of(past) or ())[2]
        if isinstance(length, int) and isinstance(made.batch, int):
            return b.const(np.full(made.batch, length - 1, np.int32)), b.const(np.asarray(length, np.int32))
        total = b.cast(all_keys(b, key, past), to=dtypes.i32)
        last: Value = b.sub(total, np.ones(1, np.int32))
        return b.expand(last, b.shape(query, start=0, end=1)), total


ATTENTION_RULES = (RuntimeAttention,)

__all__ = ["ATTENTION_RULES", "Plan", "RuntimeAttention", "plan"]
