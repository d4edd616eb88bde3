"""Query, key, value and result of an attention in the form that Attention takes: [batch, heads, length, size] each, or
[batch, length, heads * size] with the numbers of heads beside.

Each operand is looked for among the values that it was made from by moving elements, so that the moves vanish. The same
goes for the result and what is made of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import TYPE_CHECKING

from ..graph.core import Operation, Value
from ..graph.dims import bounds, prove_equal
from .fuse_attention_scores import Scores, near
from .fuse_attention_views import Axes, Axis, Chain, follow, shape_of, size_of, trace
from .proofs import same_dims
from .rules import Mismatch

if TYPE_CHECKING:
    from ..graph.builder import OpBuilder
    from ..graph.dims import Dim
    from ..graph.infer import InferenceContext


@dataclass
class Choice:
    """Where an operand is taken from, and how it is transposed, or given other dims, first.

    `rotary` is done to it then, to `heads` heads side by side.
    """

    value: Value
    scale: float
    perm: tuple[int, ...] = ()
    reshape: tuple[int, ...] = ()
    rotary: Operation | None = None
    heads: int = 0

    def build(self, b: OpBuilder) -> Value:
        value = self.value
        if self.reshape:
            value = b.reshape(value, list(self.reshape))
        elif self.perm != tuple(range(len(self.perm))):
            value = b.transpose(value, perm=self.perm)
        if self.rotary is not None:
            attributes = {**self.rotary.attributes, "num_heads": self.heads}
            value = b.create(self.rotary.definition, [value, *self.rotary.operands[1:]], attributes).result
        return value


@dataclass
class Operands:
    """The operands of the new operation, and how its result becomes `result`, the value to be replaced.

    `dims` are batch, heads, number of queries and of keys. `after`: operations behind the second product that vanish.
    `reshape` is the last of those if it gives the result another shape than [batch, length, heads * size].
    """

    choices: tuple[Choice, Choice, Choice]
    packed: tuple[int, int] | None  # the numbers of heads of queries and of keys
    result: Value
    dims: tuple[Dim, ...]
    after: list[Operation] = field(default_factory=list)
    reshape: Operation | None = None
    # Whether keys, values and masks may be for one of the batch of the queries, or for all: they are repeated then.
    broadcast: bool = False

    @property
    def scale(self) -> float:
        return self.choices[0].scale * self.choices[1].scale


class _Operand:
    """One operand of a product: axes in front, length, size; `swapped` if size and length are exchanged.

    `takes_scale`: a scale on the way can become part of the attention's.
    """

    def __init__(self, value: Value, inference: InferenceContext, swapped: bool, takes_scale: bool) -> None:
        self.chain: Chain = trace(value, inference)
        self.swapped, self.takes_scale = swapped, takes_scale
        self.last = len(self.chain.values) - 1

    @property
    def lead(self) -> Axes:
        return self.chain.resolved_axes(self.last)[:-2]

    @property
    def tail(self) -> tuple[Axis, Axis]:
        """Length and size."""
        first, second = self.chain.resolved_axes(self.last)[-2:]
        return (second, first) if self.swapped else (first, second)

    def places(self, rank: int) -> Iterator[tuple[int, Axes]]:
        """Values of this rank that everything behind vanishes from if the operand is taken there, earliest first."""
        first = self.last
        while first > 0 and self.chain.values[first].use_count == 1:
            first -= 1
        for position in range(first, self.last + 1):
            axes = self.chain.resolved_axes(position)
            if len(axes) == rank and (self.takes_scale or self.chain.scale_after(position) == 1.0):
                yield position, axes

    def arranged(self, wanted: Axes) -> Choice | None:
        """The operand with the axes `wanted`: the earliest value that has them, else one to be transposed."""
        best: Choice | None = None
        for position, axes in self.places(len(wanted)):
            for perm in permutations(range(len(wanted))):
                if tuple(axes[axis] for axis in perm) == wanted:
                    choice = Choice(self.chain.values[position], self.chain.scale_after(position), perm)
                    if perm == tuple(range(len(wanted))):
                        return choice
                    best = best or choice
                    break
        return best

    def packed(self, batch: Axis, heads: Axis, flat: bool) -> Choice | None:
        """The operand as [batch, length, heads * size]; `flat`: a matrix of known size may be reshaped to that."""
        length, size = self.tail
        for position, axes in self.places(3):
            if axes == (batch, length, (*heads, *size)):
                return Choice(self.chain.values[position], self.chain.scale_after(position), (0, 1, 2))
        dims = [dim for axis in (batch, length, (*heads, *size)) if isinstance(dim := size_of(axis), int)]
        for position, axes in self.places(2) if flat and len(dims) == 3 else ():
            if axes == ((*batch, *length), (*heads, *size)):
                value = self.chain.values[position]
                return Choice(value, self.chain.scale_after(position), reshape=tuple(dims))
        return None


def _without_repeats(axis: Axis) -> Axis:
    """The axis before its elements were repeated one by one."""
    end = len(axis)
    while end and axis[end - 1].repeated:
        end -= 1
    return axis[:end]


def choose_operands(scores: Scores, inference: InferenceContext, flat: bool = False) -> Operands | Mismatch:
    """How the operands of the new operation are to be taken; a NearMiss if that is not possible.

    `flat`: also pack them where that takes a Reshape of each.
    """
    product, context = scores.product, scores.context
    values = [v for v in (product.operands[0], product.operands[1], context.operands[1]) if v is not None]
    shapes = [shape for value in values if (shape := shape_of(value)) is not None]
    if len(shapes) < 3:
        return near("the ranks of query, key and value are not known", product, context)
    rank = len(shapes[0])
    if not rank == len(shapes[1]) == len(shapes[2]) or not 3 <= rank <= 4:
        return near("query, key and value do not have one rank of 3 or 4", product, context)
    widened = shape_of(scores.softmax.results[0])
    if not scores.reshaped and (widened is None or len(widened) != rank):
        return near("the mask may widen the scores", *(term.op for term in scores.terms))
    # To repeat keys and values takes operations, fewer than Attention saves; its parts do without.
    broadcast = rank == 4 and _has_batch_of_query(scores, shapes, inference)
    objection = _product_objection(scores, 1 if broadcast else 0, *shapes)
    if objection is not None:
        return objection
    parts = [_Operand(value, inference, index == 1, index < 2) for index, value in enumerate(values)]
    found = None
    if rank == 4 and not scores.reshaped:
        leads = [(part.lead[0], part.lead[1]) for part in parts]
        dims = (shapes[0][0], *scores_dims(scores)[1:])
        found = _with_heads(context.results[0], dims, parts, leads, inference, flat)
        if found is not None:
            found.broadcast = broadcast
    elif rank == 3:
        found = _with_merged_heads(scores, parts, inference, flat)
    if found is not None:
        return found
    if scores.reshaped:
        return near("the scores are reshaped, but not from and to [batch * heads, queries, keys]", product)
    return _one_head(scores, parts, rank)


def choose_again(op: Operation, inference: InferenceContext, flat: bool = False) -> Operands | Mismatch:
    """Simpler operands for an Attention whose operands are [batch, heads, length, size].

    Packed ones, or keys and values before they were repeated for groups of heads. With `flat` pairs are turned while
    heads lie side by side, which is the same, if that packs the operands.
    """
    values = [v for v in op.operands[:3] if v is not None]
    shapes = [shape_of(value) for value in values]
    if any(shape is None or len(shape) != 4 for shape in shapes) or len(op.results) > 3:
        return Mismatch("the operands are not of rank 4", (op,))
    rotary = [_rotary_of(value) for value in values]
    found = None
    if flat and any(rotary):
        before = [value if r is None else r.operands[0] for value, r in zip(values, rotary, strict=True)]
        found = _again(op, [value for value in before if value is not None], inference, flat)
    if found is not None and found.packed is not None:
        numbers = (found.packed[0], found.packed[1], found.packed[1])
        query, key, value = (
            replace(choice, rotary=r, heads=number)
            for choice, r, number in zip(found.choices, rotary, numbers, strict=True)
        )
        found.choices = (query, key, value)
    else:
        found = _again(op, values, inference, flat)
    if found is None:
        return Mismatch("the layout of the operands is not understood", (op,))
    if found.packed is None and any(choice.perm != (0, 1, 2, 3) for choice in found.choices):
        return Mismatch("the operands come from another order of axes", (op,))
    if all(choice.value is value for choice, value in zip(found.choices, values, strict=True)):
        return Mismatch("the operands have the simplest form", (op,))
    heads = found.packed[1] if found.packed is not None else (shape_of(found.choices[1].value) or (None, None))[1]
    if _shows_keys(op) and heads != (shapes[1] or ())[1]:
        return Mismatch("the past has as many heads as are repeated", (op,))
    return found


def _again(op: Operation, values: Sequence[Value], inference: InferenceContext, flat: bool) -> Operands | None:
    """The operands of an attention taken again from what `values` were made from."""
    q, k, _ = (shape_of(value) or () for value in values)
    # A scale of the new keys is not one of those before them, and what is given back is scaled.
    scaled = 1 if _shows_keys(op) else 2
    parts = [_Operand(value, inference, False, index < scaled) for index, value in enumerate(values)]
    leads = [(part.lead[0], part.lead[1]) for part in parts]
    return _with_heads(op.results[0], (q[0], q[1], q[2], k[2]), parts, leads, inference, flat)


def _shows_keys(op: Operation) -> bool:
    """Whether keys and values join those of a past, or are given back."""
    return op.input(4) is not None or len(op.results) > 1


def _rotary_of(value: Value) -> Operation | None:
    """What turns the pairs of `value`, which nobody else uses, in place."""
    op = value.producer
    if op is None or op.name != "rotary_embedding" or value.use_count != 1:
        return None
    x = shape_of(op.operands[0])
    return op if x is not None and same_dims(x, shape_of(value)) else None


def _has_batch_of_query(scores: Scores, shapes: Sequence[tuple[Dim, ...]], inference: InferenceContext) -> bool:
    """Whether the result has the batch of the queries wherever it is computed, although keys may have another.

    What is made of the result says so: a reshape to the queries' batch and length. Then keys and values are for all of
    the batch, or for one, which the products broadcast.
    """
    batches = [shape[0] for shape in shapes]
    if all(prove_equal(batches[0], batch) is True for batch in batches[1:]):
        return False  # nothing is broadcast
    if any(prove_equal(batches[0], batch) is False and batch != 1 for batch in batches[1:]):
        return False
    if any((bounds(dim)[0] or 0) < 1 for dim in (shapes[0][-2], shapes[2][-1])):
        return False  # a reshape of no elements says nothing about their dims
    chain = follow(scores.context.results[0], inference)
    source = chain.resolved_axes(0)[0]
    for position, value in enumerate(chain.values):
        dims = shape_of(value) or ()
        for axis, dim in zip(chain.resolved_axes(position), dims, strict=False):
            if axis and axis == source and prove_equal(dim, batches[0]) is True:
                return True
    return False


def _product_objection(
    scores: Scores, first: int, q: tuple[Dim, ...], k: tuple[Dim, ...], v: tuple[Dim, ...]
) -> Mismatch | None:  # fmt: skip
    """Why the products do not fit Attention: from axis `first` on they may broadcast nothing but heads."""
    for axis in range(first, len(q) - 2):
        for other, value in ((k, scores.product.operands[1]), (v, scores.context.operands[1])):
            one_head = len(q) == 4 and axis == 1 and other[axis] == 1
            if prove_equal(q[axis], other[axis]) is not True and not one_head:
                assert value is not None
                return near(f"dim {axis} of the query and of the key or value are not shown to be equal", value)
    if len(q) == 4 and prove_equal(k[1], v[1]) is not True:
        return near("keys and values have different numbers of heads", scores.product, scores.context)
    if prove_equal(q[-1], k[-2]) is False:
        return near("the sizes of query and key differ", scores.product)
    return None


def scores_dims(scores: Scores) -> tuple[Dim, ...]:
    """The dims of the product of queries and keys."""
    shape = shape_of(scores.product.results[0])
    assert shape is not None
    return shape


def _with_heads(
    result: Value,
    dims: tuple[Dim, ...],
    parts: Sequence[_Operand],
    leads: Sequence[tuple[Axis, Axis]],
    inference: InferenceContext,
    flat: bool,
) -> Operands | None:
    """Operands with batch and heads apart, packed if possible; `leads` are both axes of each operand."""
    ends = _ends(result, leads[0], inference)
    joined = ends.flat if flat and ends.joined is None else ends.joined
    for grouped in (True, False):
        heads = [leads[0][1], *((_without_repeats(h) if grouped else h) for _, h in leads[1:])]
        if prove_equal(size_of(heads[1]), size_of(heads[2])) is not True:
            continue
        numbers = size_of(heads[0]), size_of(heads[1])
        are_known = all(isinstance(number, int) for number in numbers)
        if not are_known and numbers[1] != 1 and prove_equal(*numbers) is not True:
            continue  # how often keys are repeated would not be known
        batches = [batch for batch, _ in leads]
        if joined is not None:
            packed = [part.packed(b, h, flat) for part, b, h in zip(parts, batches, heads, strict=True)]
            if all(packed) and are_known:
                found = _operands(packed, dims, joined, numbers)
                found.reshape = None if joined is ends.joined else joined[-1]
                return found
        if ends.separate is not None:
            wanted = [(b, h, *part.tail) for part, b, h in zip(parts, batches, heads, strict=True)]
            choices = [part.arranged(axes) for part, axes in zip(parts, wanted, strict=True)]
            if all(choices):
                return _operands(choices, dims, ends.separate, None)
    return None


def _operands(
    choices: Sequence[Choice | None],
    dims: tuple[Dim, ...],
    end: list[Operation] | Value,
    numbers: tuple[Dim, Dim] | None,
) -> Operands:
    query, key, value = choices
    assert query is not None
    assert key is not None
    assert value is not None
    result = end if isinstance(end, Value) else end[-1].results[0]
    after = [] if isinstance(end, Value) else end
    heads = None
    if numbers is not None:
        first, second = numbers
        assert isinstance(first, int)
        assert isinstance(second, int)
        heads = (first, second)
    return Operands((query, key, value), heads, result, dims, after=after)


@dataclass
class _Ends:
    """What the new operation may replace: values with heads apart, with heads joined, and [batch * length, ...].

    A value that operations behind the second product make is given by those operations.
    """

    separate: list[Operation] | Value | None = None
    joined: list[Operation] | None = None
    flat: list[Operation] | None = None


def _ends(start: Value, lead: tuple[Axis, Axis], inference: InferenceContext) -> _Ends:
    chain = follow(start, inference)
    found = _Ends(start if len(chain.axes[0]) == 4 else None)
    for position in range(1, len(chain.values)):
        axes = chain.resolved_axes(position)
        ops = [op for value in chain.values[1 : position + 1] if (op := value.producer) is not None]
        first = chain.resolved_axes(0)
        batch, heads, length, size = first if len(first) == 4 else (*_divided(first[0], lead), *first[1:])
        if axes == (batch, heads, length, size) and found.separate is None:
            found.separate = ops
        if axes == (batch, length, (*heads, *size)) and found.joined is None:
            found.joined = ops
        if axes == ((*batch, *length), (*heads, *size)) and ops[-1].name == "reshape" and found.flat is None:
            found.flat = ops
    return found


def _divided(merged: Axis, lead: tuple[Axis, Axis]) -> tuple[Axis, Axis]:
    """`merged` as batch and heads of the sizes of `lead`, as far as it was taken apart so."""
    for cut in range(len(merged) + 1):
        sizes = zip((merged[:cut], merged[cut:]), lead, strict=True)
        if all(prove_equal(size_of(part), size_of(axis)) is True for part, axis in sizes):
            return merged[:cut], merged[cut:]
    return merged, ()


def _with_merged_heads(
    scores: Scores, parts: Sequence[_Operand], inference: InferenceContext, flat: bool
) -> Operands | None:
    """Operands [batch * heads, length, size] whose batch and heads are apart somewhere above."""
    merged = [part.lead[0] for part in parts]
    for cut in range(1, len(merged[0])):
        query = (merged[0][:cut], merged[0][cut:])
        leads = [query]
        for axis in merged[1:]:
            divided = _divided(axis, query)
            if divided[0] != axis:
                leads.append(divided)
        if len(leads) < 3:
            continue
        dims = (size_of(query[0]), size_of(query[1]), *scores_dims(scores)[1:])
        found = _with_heads(scores.context.results[0], dims, parts, leads, inference, flat)
        if found is not None and _domains_fit(scores, found):
            return found
    return None


def _domains_fit(scores: Scores, operands: Operands) -> bool:
    """Whether all that is done to the scores is done to [batch * heads, queries, keys], or with both apart."""
    own = scores_dims(scores)
    for op in scores.ops[1:-1]:
        shape = shape_of(op.results[0])
        if shape is None or not (same_dims(shape[:-1], own[:-1]) or same_dims(shape[:-1], operands.dims[:-1])):
            return False
    # A mask for [batch * heads, ...] has no form in which batch and heads are apart.
    return all(len(shape_of(term.op.results[0]) or ()) == 4 for term in scores.terms)


def _one_head(scores: Scores, parts: Sequence[_Operand], rank: int) -> Operands | Mismatch:
    """Operands of rank 3 are packed ones of one head."""
    if rank != 3:
        return near("the layout of the operands is not understood", scores.product, scores.context)
    choices = [part.arranged((*part.lead, *part.tail)) for part in parts]
    if not all(choices):
        return near("the layout of the operands is not understood", scores.product, scores.context)
    batch, *rest = scores_dims(scores)
    return _operands(choices, (batch, 1, *rest), scores.context.results[0], (1, 1))
