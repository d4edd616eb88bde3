"""A cache of keys and values: concatenations before an attention become its past, and their results its present.

A decoder that makes one token at a time keeps the keys and values of those before, and gives them back longer by one.
Attention does both: it takes `past_key` and `past_value`, and gives `present_key` and `present_value`.

    %0 = concat %past_key, %key {axis=2} : f32[b, h, p + s, d]
    %1 = concat %past_value, %value {axis=2} : f32[b, h, p + s, d]       ->      %2, %0, %1 = attention %query, %key,
    %2 = attention %query, %0, %1 : f32[b, h, s, d]                                %value, none, %past_key, %past_value
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ..graph.core import Operation, Value
from ..graph.dims import prove_equal
from .fuse_attention_views import shape_of
from .proofs import made_by
from .rules import Match, Mismatch, OpRule, Replacement, Verdict

if TYPE_CHECKING:
    from ..graph.builder import OpBuilder
    from ..graph.rewriter import Rewriter


class AttentionPast(OpRule):
    """attention(q, concat(past_k, k), concat(past_v, v)) -> attention(q, k, v, past_k, past_v)"""

    exactness = "reassociates"
    root: ClassVar[str] = "attention"

    def when(self, m: Match) -> Verdict:
        op = m.root
        if op.input(4) is not None or len(op.results) > 1 or op.input(6) is not None:
            return m.fail("it has a past already", op)
        if op.attr("is_causal"):
            return m.fail("what is_causal means depends on the length of the past", op)
        concats = _concats(op)
        if concats is None:
            return m.fail("keys and values do not both come from a concatenation of two", op)
        for concat in concats:
            refusal = _refusal(m, op, concat)
            if refusal is not None:
                return refusal
        lengths = [[shape[2] for v in concat.operands if (shape := shape_of(v)) is not None] for concat in concats]
        # Of all keys there are as many as of all values: where the new ones are as many, so are those of the past.
        if not any(prove_equal(of_key, of_value) is True for of_key, of_value in zip(*lengths, strict=True)):
            return m.fail("the pasts are not shown to be of one length", *concats)
        return True

    def build(self, b: OpBuilder, m: Match) -> Replacement:
        op, rewriter = m.root, m.rewriter
        concats = _concats(op)
        assert concats is not None
        (past_key, key), (past_value, value) = (concat.operands for concat in concats)
        operands = [op.operands[0], key, value, op.input(3), past_key, past_value, *op.operands[6:]]
        new = b.create("attention", operands, op.attributes, outputs=3)
        for concat in concats:
            _erase_dead_users(concat, rewriter)
        for old, result in zip((op, *concats), new.results, strict=True):
            rewriter.set_type(result, old.result.type)
            rewriter.replace_uses(old.result, result)
        for old in (op, *concats):
            rewriter.erase(old)
        return None


def _concats(op: Operation) -> tuple[Operation, Operation] | None:
    """What makes keys and values, if both are concatenations of two tensors along the length."""
    key, value = (made_by(op.input(index), "concat") for index in (1, 2))
    if key is None or value is None or key is value:
        return None
    ranks = [len(shape_of(each.result) or ()) for each in (key, value)]
    fits = all(
        len(each.operands) == 2 and each.attr("axis") % 4 == 2 and rank == 4
        for each, rank in zip((key, value), ranks, strict=True)
    )
    return (key, value) if fits else None


def _refusal(m: Match, op: Operation, concat: Operation) -> Mismatch | None:
    """Why the result of `concat` cannot come out of the attention instead."""
    past, new = (shape_of(operand) for operand in concat.operands)
    if past is None or new is None:
        return m.fail("the rank of a past is not known", concat)
    # The standard wants batch, heads and sizes equal, which Concat does, too; types must show it to inference.
    if any(prove_equal(past[axis], new[axis]) is not True for axis in (0, 1, 3)):
        return m.fail("the dims of past and new are not shown to be equal", concat)
    if concat.parent is not op.parent:
        return m.fail("the concatenation lies in another block", concat)
    if all(user is op or _is_dead(user) for user in concat.result.users):
        # ONNX Runtime 1.32 takes no past without giving the present.
        return m.fail("all keys and values are not given back", concat)
    early = _user_before(concat.result, op)
    return m.fail(f"{early.name} needs all keys or values before the attention", early) if early is not None else None


def _user_before(value: Value, op: Operation) -> Operation | None:
    """A user of `value`, or an operation with one in its regions, that comes before `op`."""
    users = {_in_block_of(user, op) for user in value.users if not _is_dead(user)} - {op}
    each = op.previous
    while each is not None and users:
        if each in users:
            return each
        each = each.previous
    return None


def _is_dead(op: Operation, depth: int = 6) -> bool:
    """Whether nothing comes of `op`: the way to the repeated keys of a fused attention goes only later."""
    if op.is_terminator or op.regions or not op.definition.is_pure or not depth:
        return False
    return all(_is_dead(user, depth - 1) for result in op.results for user in result.users)


def _erase_dead_users(op: Operation, rewriter: Rewriter) -> None:
    """They come before the attention that is to give what they read."""
    for user in dict.fromkeys(each for result in op.results for each in result.users if _is_dead(each)):
        if user.parent is not None:  # else it was another one's user, too
            _erase_dead_users(user, rewriter)
            rewriter.erase(user)


def _in_block_of(user: Operation, op: Operation) -> Operation:
    """The operation of the block of `op` in which `user` lies, or which it is."""
    while user.parent is not op.parent:
        assert user.parent is not None
        assert user.parent.parent is not None
        owner = user.parent.parent.parent
        assert isinstance(owner, Operation)
        user = owner
    return user
