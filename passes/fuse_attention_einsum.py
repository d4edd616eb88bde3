"""Attention whose products are written as Einsum: they become products of matrices, which the other rules read.

    einsum("bqhd,bkhd->bhqk", q, k)     ->     transpose(q, [0, 2, 1, 3]) @ transpose(k, [0, 2, 3, 1])
    einsum("bhqk,bkhd->bqhd", p, v)     ->     transpose(p @ transpose(v, [0, 2, 1, 3]), [0, 2, 1, 3])

Only the two products around a softmax are rewritten, so that an Einsum elsewhere stays one operation. The softmax may
run over another axis than the last, if nothing but factors is between it and the first product.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from ..graph.core import Operation, Value
from ..graph.dims import prove_equal
from ..graph.types import tensor
from .fuse_attention_scores import dtype_of
from .fuse_attention_views import scale_of, shape_of
from .rules import Match, Mismatch, OpRule, Verdict

if TYPE_CHECKING:
    from ..graph.builder import OpBuilder
    from ..graph.infer import InferenceContext
    from ..graph.rewriter import Rewriter

_MAX_STEPS = 8
# Between the scores and the softmax, or behind it; they keep all axes in their places.
_BETWEEN = ("mul", "div", "add", "where", "cast")


@dataclass(frozen=True)
class Equation:
    """An Einsum of two operands: the letters of their axes, and of the result's."""

    left: str
    right: str
    result: str

    @classmethod
    def of(cls, op: Operation) -> Equation | None:
        """None for an ellipsis, a letter that occurs twice in one tensor, or another number of operands."""
        text = str(op.attr("equation")).replace(" ", "")
        inputs, arrow, result = text.partition("->")
        letters = inputs.split(",")
        if not arrow or len(letters) != 2 or "." in text or any(len(set(x)) < len(x) for x in (*letters, result)):
            return None
        return cls(letters[0], letters[1], result)


@dataclass
class EinsumAttention:
    """What was read around a softmax. Letters: `batch` in the order of the scores, `query` and `key`; `size` is summed
    in the first product, `value` is the last axis of the second."""

    scores: Operation
    between: list[Operation]  # from the scores to the softmax
    behind: list[Operation]  # from the softmax to the second product
    context: Operation
    batch: str
    query: str
    key: str
    size: str
    value: str
    operands: tuple[tuple[Value, str], tuple[Value, str], tuple[Value, str]]  # query, key, value, with their letters
    result: str = ""
    reordered: bool = field(default=False)


def read(softmax: Operation, inference: InferenceContext) -> EinsumAttention | str:
    """The attention around `softmax`, or why there is none written so."""
    up = _upwards(softmax, inference)
    down = _downwards(softmax)
    if up is None or down is None:
        return "the softmax is not between two Einsums"
    (scores, between, only_factors), (context, behind, place) = up, down
    first, second = Equation.of(scores), Equation.of(context)
    if first is None or second is None:
        return "an Einsum has an ellipsis, or takes a diagonal"
    rank = len(first.result)
    axis = softmax.attr("axis", -1) % rank
    weights, others = (second.left, second.right) if place == 0 else (second.right, second.left)
    if len(weights) != rank:
        return "the scores change their rank"
    # The letters of the second equation as those of the first.
    renamed = dict(zip(weights, first.result, strict=True))
    fresh = iter("ABCDEFGH")
    values = "".join(renamed.get(each) or renamed.setdefault(each, next(fresh)) for each in others)
    if any(each not in renamed for each in second.result):
        return "the second Einsum makes an axis"
    result = "".join(renamed[each] for each in second.result)
    found = _roles(first, axis, values, result)
    if isinstance(found, str):
        return found
    batch, query, key, size, value, swapped = found
    reordered = first.result != f"{batch}{query}{key}"
    if reordered and not only_factors:
        return "the scores have another order of axes than [batch, heads, queries, keys], and a mask"
    operands = [(scores.operands[0], first.left), (scores.operands[1], first.right)]
    operands = operands[::-1] if swapped else operands
    operands.append((context.operands[1 - place], values))
    (q, q_letters), (k, k_letters), (v, v_letters) = operands
    assert q is not None
    assert k is not None
    assert v is not None
    whole = ((q, q_letters), (k, k_letters), (v, v_letters))
    return EinsumAttention(
        scores, between, behind, context, batch, query, key, size, value, whole, result, reordered
    )  # fmt: skip


def _roles(first: Equation, axis: int, values: str, result: str) -> tuple[str, str, str, str, str, bool] | str:
    """Batch, query, key, size and value as letters, and whether the keys are the first operand of the scores."""
    key = first.result[axis]
    swapped = key in first.left
    q, k = (first.right, first.left) if swapped else (first.left, first.right)
    if key in q or key not in k:
        return "queries have the axis of the keys"
    # Where keys and values have one head for all, heads are an axis of the queries only, too: the last one is theirs.
    queries = [each for each in first.result if each in q and each not in k and each not in values]
    if not queries:
        return "the scores have not one axis of queries"
    query = queries[-1]
    batch = "".join(each for each in first.result if each not in (query, key))
    summed = [each for each in q if each not in first.result]
    value = [each for each in values if each not in first.result]
    if len(summed) != 1 or any(each not in (*batch, *summed, key) for each in k) or summed[0] not in k:
        return "the scores are not sums over one axis of queries and keys"
    if len(value) != 1 or key not in values or any(each not in (*batch, key, *value) for each in values):
        return "the second Einsum is not a product of weights and values"
    if any(each not in q for each in batch) or sorted(result) != sorted([*batch, query, *value]):
        return "an Einsum sums over an axis that the other product keeps"
    return batch, query, key, summed[0], value[0], swapped


def _upwards(softmax: Operation, inference: InferenceContext) -> tuple[Operation, list[Operation], bool] | None:
    """The Einsum before the softmax, what is between, and whether those are factors only."""
    between: list[Operation] = []
    value, only_factors = softmax.operands[0], True
    for _ in range(_MAX_STEPS):
        op = value.producer if value is not None else None
        if op is None or value is None or value.use_count != 1 or op.parent is not softmax.parent:
            return None
        if op.name == "einsum":
            return op, between[::-1], only_factors
        if op.name not in _BETWEEN:
            return None
        scale = scale_of(op, inference)
        only_factors = only_factors and scale is not None
        candidates = [op.operands[scale[0]]] if scale is not None else [*op.operands]
        same = [each for each in candidates if each is not None and _from_einsum(each, inference)]
        if len(same) != 1:
            return None
        between.append(op)
        value = same[0]
    return None


def _from_einsum(value: Value, inference: InferenceContext, depth: int = _MAX_STEPS) -> bool:
    op = value.producer
    if op is None or not depth:
        return False
    if op.name == "einsum":
        return len(op.operands) == 2
    return op.name in _BETWEEN and any(_from_einsum(each, inference, depth - 1) for each in op.operand_values)


def _downwards(softmax: Operation) -> tuple[Operation, list[Operation], int] | None:
    """The Einsum after the softmax, casts between, and which of its operands the weights are."""
    behind: list[Operation] = []
    value = softmax.result
    for _ in range(_MAX_STEPS):
        if value.use_count != 1:
            return None
        user = value.users[0]
        if user.name == "einsum" and len(user.operands) == 2 and user.parent is softmax.parent:
            return user, behind, 0 if user.operands[0] is value else 1
        if user.name != "cast":
            return None
        behind.append(user)
        value = user.result
    return None


class EinsumToProducts(OpRule):
    """einsum(softmax(einsum(q, k)), v) -> matmul(softmax(matmul(q, k)), v), transposed as needed"""

    name = "attention-einsum"
    exactness = "reassociates"
    root: ClassVar[str] = "softmax"

    def __init__(self, may_transpose: bool = True) -> None:
        # Where attention is written as its parts, each transpose is one operation more than Einsum has.
        self.may_transpose = may_transpose

    def when(self, m: Match) -> Verdict:
        found = read(m.root, m.inference)
        if isinstance(found, str):
            return m.fail(found, m.root)
        if any(shape_of(value) is None for value, _ in found.operands) or shape_of(m.value) is None:
            return m.fail("a rank is not known", m.root)
        types = {dtype_of(value) for value, _ in found.operands[:2]}
        dtype = types.pop()
        if types or dtype is None or not dtype.is_float:
            return m.fail("the operands are not of one floating-point type", m.root)
        for letter in (*found.batch, found.size, found.key):
            dims = [(shape_of(v) or ())[letters.index(letter)] for v, letters in found.operands if letter in letters]
            if any(prove_equal(dims[0], dim) is not True for dim in dims[1:]):
                return m.fail(f"axis {letter!r} is not shown to be equally long in all operands", m.root)
        if not self.may_transpose and not _transposes_vanish(found):
            return m.fail("as products there would be more operations", m.root)
        return True

    def build(self, b: OpBuilder, m: Match) -> Mismatch | None:
        found = read(m.root, m.inference)
        assert isinstance(found, EinsumAttention)
        _rewrite(found, m.root, m.rewriter)
        return None


def _transposes_vanish(found: EinsumAttention) -> bool:
    """Whether all transposes that the products need meet another one."""
    batch, query, key, size, value = found.batch, found.query, found.key, found.size, found.value
    wanted = (f"{batch}{query}{size}", f"{batch}{size}{key}", f"{batch}{key}{value}")
    for (operand, letters), order in zip(found.operands, wanted, strict=True):
        own = [each for each in order if each in letters]
        if len(own) < len(order) or (own != list(letters) and not _is_single_transpose(operand)):
            return False
    users = found.context.result.users
    last = len(users) == 1 and users[0].name == "transpose"
    return found.result == f"{batch}{query}{value}" or last


def _is_single_transpose(value: Value) -> bool:
    return value.producer is not None and value.producer.name == "transpose" and value.use_count == 1


def _rewrite(found: EinsumAttention, softmax: Operation, rewriter: Rewriter) -> None:
    batch, query, key, size, value_letter = found.batch, found.query, found.key, found.size, found.value
    b = rewriter.before(found.scores)
    (q, q_letters), (k, k_letters), (v, v_letters) = found.operands
    left = _arranged(b, q, q_letters, f"{batch}{query}{size}")
    product = b.matmul(left, _arranged(b, k, k_letters, f"{batch}{size}{key}"))
    if found.reordered:
        b = rewriter.before(softmax)
        scores = product
        for op in found.between:
            operands = [scores if each in _chain(found) else each for each in op.operands]
            scores = b.create(op.definition, operands, op.attributes).result
        rewriter.set_operand(softmax, 0, scores)
        rewriter.set_attribute(softmax, "axis", -1)
        for value in (softmax.result, *(op.result for op in found.behind)):
            dtype = dtype_of(value)
            assert dtype is not None
            rewriter.set_type(value, tensor(dtype, shape_of(scores)))
        for op in reversed(found.between):
            rewriter.erase(op)
    else:
        rewriter.replace_uses(found.scores.result, product)
    weights = found.behind[-1].result if found.behind else softmax.result
    b = rewriter.before(found.context)
    result = b.matmul(weights, _arranged(b, v, v_letters, f"{batch}{key}{value_letter}"))
    whole = _arranged(b, result, f"{batch}{query}{value_letter}", found.result)
    rewriter.set_type(whole, found.context.result.type)
    rewriter.replace_uses(found.context.result, whole)
    # Dead, they would still be users of what the operands are made from.
    rewriter.erase(found.context)
    rewriter.erase(found.scores)


def _chain(found: EinsumAttention) -> list[Value]:
    """The scores as they are between the first product and the softmax."""
    return [found.scores.result, *(op.result for op in found.between)]


def _arranged(b: OpBuilder, value: Value, letters: str, wanted: str) -> Value:
    """`value` with its axes in the order of `wanted`; what it has not is 1, and broadcast."""
    own = [each for each in wanted if each in letters]
    perm = [letters.index(each) for each in own]
    if perm != list(range(len(perm))):
        value = b.transpose(value, perm=perm)
    missing = [place for place, each in enumerate(wanted) if each not in letters]
    return b.unsqueeze(value, missing) if missing else value
