"""recompose-rotary: a written-out rotary position embedding becomes RotaryEmbedding. Level onnx.

Pairs of elements of each head turn by an angle that depends on the position (Su et al., 2021, arXiv 2104.09864): the
halves of a head (`x * cos + concat(-x2, x1) * sin`) or neighbours, for all of a head or its first part.

Invariant: x is [batch, heads, length, size], or [batch, length, heads, size] and transposed afterwards, or has the
heads in the batch; cosines and sines do not differ between heads, and both elements of a pair share one, which is found
through what computes them. Where their batch and length are not shown to be those of x, the operation says
`broadcast=1` and means what numpy does.

    %0 = slice %x, [0], [8], [3] : f32[n, 4, s, 8]        // %x : f32[n, 4, s, 16]
    %1 = slice %x, [8], [16], [3] : f32[n, 4, s, 8]
    %2 = neg %1 : f32[n, 4, s, 8]
    %3 = concat %2, %0 {axis=-1} : f32[n, 4, s, 16]
    %4 = mul %x, %cos : f32[n, 4, s, 16]                  // %cos = unsqueeze(concat(c, c), [1]), %sin likewise
    %5 = mul %3, %sin : f32[n, 4, s, 16]
    %6 = add %4, %5 : f32[n, 4, s, 16]       ->      %6 = rotary_embedding %x, %c, %s : f32[n, 4, s, 16]
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from ..graph.builder import OpBuilder
from ..graph.core import Value
from ..graph.location import fuse
from .base import RulePass
from .head_parts import Taken, are_private, first_and_rest, halves, neighbours, source_of
from .pattern import AnyValue, PatternBuilder, PatternValue
from .proofs import ints, normalized, same_dims
from .rotary_caches import CacheReader, Recipe, aligned, cache_of
from .rules import Match, Mismatch, Rule, Verdict

_DTYPES = ("f32", "f16", "bf16")
_HEADS_FIRST, _HEADS_LAST = 1, 2
_SWAP = (0, 2, 1, 3)


class _Plan(NamedTuple):
    """What a match becomes: the operand, how to make both caches, and the operations read beside the pattern."""

    x: Value
    cos: Recipe
    sin: Recipe
    attributes: dict[str, int]
    ops: Taken


class _Rotary(Rule):
    """What the written forms share.

    Captures: `a` and `b`, the two elements of each pair; `x`, what they are taken from, where the form has it;
    `cos` and `sin`; `rest`, the part of a head that does not turn.
    """

    exactness = "reassociates"
    interleaved: ClassVar[bool] = False

    def match(self, p: PatternBuilder) -> PatternValue:
        turned = self.turned(p)
        joined = p.concat(turned, AnyValue("rest"), axis=p.attr("join"))
        result: PatternValue = p.either(turned, p.transpose(turned, perm=_SWAP), p.transpose(joined, perm=_SWAP))
        return result

    def turned(self, p: PatternBuilder) -> PatternValue:
        """The pattern of the written form."""
        raise NotImplementedError(self.name)

    def whole(self, m: Match) -> Value | None:
        """What turns: the tensor that the pairs are taken from."""
        return source_of(m.a)

    def once(self, m: Match, value: Value, size: int) -> Recipe | None:
        """How to make cosines or sines with one element for each pair."""
        return CacheReader(m, self.interleaved).once(value) if _last_dim(m, value) == size else None

    def when(self, m: Match) -> Verdict:
        plan = self._plan(m)
        return plan if isinstance(plan, Mismatch) else True

    def build(self, b: OpBuilder, m: Match) -> Value:
        plan = self._plan(m)
        assert not isinstance(plan, Mismatch)
        b.location = fuse(self.name, [op.location for op in (*plan.ops, *m.ops)])
        x = b.transpose(plan.x, perm=_SWAP) if m.root.name == "transpose" else plan.x
        return b.create("rotary_embedding", [x, plan.cos(b), plan.sin(b)], plan.attributes).result

    def _plan(self, m: Match) -> _Plan | Mismatch:
        x = self.whole(m)
        shape = m.shape(x)
        if x is None or shape is None or str(m.dtype(x)) not in _DTYPES or len(shape) not in (3, 4):
            return m.fail("what turns is no f32, f16 or bf16 tensor of rank 3 or 4", m.root)
        size = shape[-1]
        if not isinstance(size, int) or size < 2 or size % 2:
            return m.fail("the size of a head is not known to be even", x)
        taken = self._pairs(m, x, len(shape), size)
        if isinstance(taken, Mismatch):
            return taken
        attributes = {"interleaved": int(self.interleaved), "num_heads": int(len(shape) == 3)}
        if m.rest is not None:
            found = _with_rest(m, x, m.rest)
            if isinstance(found, Mismatch):
                return found
            attributes["rotary_embedding_dim"] = size
            taken, x = (*found, *taken), source_of(x) or x
        shared = are_private(m, taken)
        return self._with_caches(m, x, size, attributes, taken) if shared is None else shared

    def _pairs(self, m: Match, x: Value, rank: int, size: int) -> Taken | Mismatch:
        """The operations that take x apart, once they are known to give both elements of each pair."""
        if self.interleaved:
            joined = m.axis % (rank + 1) == rank and all(
                _adds_last_dim(m, dims, rank) for dims in (m.dims, m.dims_again)
            )
            pairs = m.value if m.pairs is None else m.pairs  # at the root there is no name
            if not joined or not same_dims(m.shape(pairs), m.shape(x)):
                return m.fail("the pairs are not joined along the last dim", pairs)
            return neighbours(m, m.a, m.b, x, size)
        if m.axis % rank != rank - 1:
            return m.fail("the halves are not joined along the last dim", m.root)
        return halves(m, m.a, m.b, x, size)

    def _with_caches(self, m: Match, x: Value, size: int, attributes: dict[str, int], taken: Taken) -> _Plan | Mismatch:
        shape = m.shape(x)
        assert shape is not None
        heads_dim = _HEADS_LAST if m.root.name == "transpose" else _HEADS_FIRST
        if len(shape) == 3 and heads_dim == _HEADS_LAST:
            return m.fail("it has no dim for heads", x)
        recipes: list[Recipe] = []
        for value in (m.cos, m.sin):
            if m.dtype(value) is not m.dtype(x):
                return m.fail("the cosines or sines have another type", value)
            once = self.once(m, value, size)
            if once is None:
                return m.fail("the elements of a pair are not known to turn by one angle", value)
            cache = cache_of(m, value, once, heads_dim, len(shape))
            if isinstance(cache, Mismatch):
                return cache
            recipes.append(cache)
            dims = aligned(m.shape(value), len(shape)) or ()
            length_dim = 1 if len(shape) == 3 else 3 - heads_dim
            if not same_dims([dims[0], dims[length_dim]], [shape[0], shape[length_dim]]):
                attributes = {**attributes, "broadcast": 1}
        cos, sin = recipes
        return _Plan(x, cos, sin, {name: value for name, value in attributes.items() if value}, taken)


def _last_dim(m: Match, value: Value) -> object:
    shape = m.shape(value)
    return shape[-1] if shape else None


def _adds_last_dim(m: Match, dims: Value, rank: int) -> bool:
    axes = ints(m, dims)
    return axes is not None and normalized(axes, rank + 1) == [rank]


def _with_rest(m: Match, x: Value, rest: Value) -> Taken | Mismatch:
    """The operations that take what turns and the rest from one tensor, of which they are all."""
    whole, count = source_of(x), _last_dim(m, x)
    size = None if whole is None else _last_dim(m, whole)
    if whole is None or not isinstance(size, int) or not isinstance(count, int):
        return m.fail("it is not joined with the rest of its heads", rest)
    if m.join % (m.rank(whole) or 1) != (m.rank(whole) or 0) - 1:
        return m.fail("the rest is not joined along the last dim", rest)
    return first_and_rest(m, x, rest, whole, count, size)


class RotateHalves(_Rotary):
    """x * cos + concat(-second half, first half) * sin -> rotary_embedding(x, cos, sin)"""

    name = "recompose-rotary-halves"

    def turned(self, p: PatternBuilder) -> PatternValue:
        x, a, b = AnyValue("x"), AnyValue("a"), AnyValue("b")
        across = p.concat(p.either(p.neg(b), p.mul(b, -1.0)), a, axis=p.attr("axis"))
        result: PatternValue = p.add(p.mul(x, AnyValue("cos")), p.mul(across, AnyValue("sin")))
        return result

    def whole(self, m: Match) -> Value | None:
        return m.x  # type: ignore[no-any-return]


class RotateSplitHalves(_Rotary):
    """concat(a * cos - b * sin, b * cos + a * sin) for the halves a and b of x -> rotary_embedding(x, cos, sin)"""

    name = "recompose-rotary-split-halves"

    def turned(self, p: PatternBuilder) -> PatternValue:
        result: PatternValue = p.concat(*_real_and_imaginary(p), axis=p.attr("axis"))
        return result

    def once(self, m: Match, value: Value, size: int) -> Recipe | None:
        return (lambda b: value) if _last_dim(m, value) == size // 2 else None


class RotateNeighbours(_Rotary):
    """x * cos + pairs of (-odd, even) elements * sin -> rotary_embedding(x, cos, sin, interleaved=1)"""

    name = "recompose-rotary-neighbours"
    interleaved = True

    def turned(self, p: PatternBuilder) -> PatternValue:
        x, a, b = AnyValue("x"), AnyValue("a"), AnyValue("b")
        pairs = _pairs(p, p.either(p.neg(b), p.mul(b, -1.0)), a)
        result: PatternValue = p.add(p.mul(x, AnyValue("cos")), p.mul(pairs, AnyValue("sin")))
        return result

    def whole(self, m: Match) -> Value | None:
        return m.x  # type: ignore[no-any-return]


class RotateSplitNeighbours(_Rotary):
    """pairs of (a * cos - b * sin, b * cos + a * sin) -> rotary_embedding(x, cos, sin, interleaved=1)"""

    name = "recompose-rotary-split-neighbours"
    interleaved = True

    def turned(self, p: PatternBuilder) -> PatternValue:
        return _pairs(p, *_real_and_imaginary(p))

    def once(self, m: Match, value: Value, size: int) -> Recipe | None:
        return (lambda b: value) if _last_dim(m, value) == size // 2 else None


def _real_and_imaginary(p: PatternBuilder) -> tuple[PatternValue, PatternValue]:
    a, b, cos, sin = AnyValue("a"), AnyValue("b"), AnyValue("cos"), AnyValue("sin")
    return p.sub(p.mul(a, cos), p.mul(b, sin)), p.add(p.mul(b, cos), p.mul(a, sin))


def _pairs(p: PatternBuilder, first: PatternValue, second: PatternValue) -> PatternValue:
    """Two tensors with their elements side by side along the last dim."""
    left = p.unsqueeze(first, p.const("dims"))
    right = p.unsqueeze(second, p.const("dims_again"))
    result: PatternValue = p.named("pairs", p.reshape(p.concat(left, right, axis=p.attr("axis")), p.any_value))
    return result


class RotateFirstPart(Rule):
    """concat(rotary_embedding(first part of x), rest of x) -> rotary_embedding(x, rotary_embedding_dim=...)"""

    name = "recompose-rotary-first-part"
    exactness = "reassociates"

    def match(self, p: PatternBuilder, x: PatternValue, rest: PatternValue) -> PatternValue:
        turned = p.rotary_embedding(x, AnyValue("cos"), AnyValue("sin"), p.absent, rotary_embedding_dim=0)
        result: PatternValue = p.concat(turned, rest, axis=p.attr("join"))
        return result

    def when(self, m: Match) -> Verdict:
        if m.rank(m.x) != 4:
            return m.fail("it is not of rank 4", m.x)
        found = _with_rest(m, m.x, m.rest)
        if isinstance(found, Mismatch):
            return found
        shared = are_private(m, found)
        return True if shared is None else shared

    def build(self, b: OpBuilder, m: Match) -> Value:
        op, size = m.matched("rotary_embedding"), _last_dim(m, m.x)
        assert isinstance(size, int)
        attributes = {**op.attributes, "rotary_embedding_dim": size}
        return b.create("rotary_embedding", [source_of(m.x), m.cos, m.sin], attributes).result


class RecomposeRotary(RulePass):
    """Recompose RotaryEmbedding, of halves and of neighbours."""

    name = "recompose-rotary"
    exactness = "reassociates"
    fuses = True
    rules = (RotateHalves, RotateSplitHalves, RotateNeighbours, RotateSplitNeighbours, RotateFirstPart)
