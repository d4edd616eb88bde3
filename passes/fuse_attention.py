"""fuse-attention: attention that is written out becomes the operator Attention. Level onnx.

softmax(q @ k^T * scale + mask) @ v (Vaswani et al., 2017), as exporters write it: the scale on either operand, on both
as a square root, or on the product; the mask added or chosen by a condition; keys and values repeated for groups of
heads; heads split off and joined by reshapes and transposes, which vanish where they are those of Attention's form
[batch, length, heads * size].

Invariant: shapes, element types and numbers of uses are proven, not guessed from names. What a row gives in which no
key may be seen is kept: Attention of the standard gives zeros there, a softmax NaN (or a uniform row), so an operation
with such a mask says `masking="plain"`, and is written as Attention only where that is the same.

    %0 = transpose %k {perm=[0, 1, 3, 2]} : f32[b, h, d, s]
    %1 = matmul %q, %0 : f32[b, h, s, s]
    %2 = mul %1, 0.125 : f32[b, h, s, s]                 ->   %4 = attention %q, %k, %v {scale=0.125} : f32[b, h, s, d]
    %3 = softmax %2 {axis=-1} : f32[b, h, s, s]
    %4 = matmul %3, %v : f32[b, h, s, d]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..graph.builder import OpBuilder
from ..graph.core import Operation, Value
from ..graph.dims import prove_equal
from ..graph.infer import InferenceContext
from ..graph.location import fuse
from ..graph.ops.attention import Attention
from ..graph.ops.attention_masks import FIRST, FURTHER, has_further_masks
from ..graph.ops.attention_parts import heads_of
from ..graph.ops.attention_standard import RUNTIME_OPSETS
from ..graph.types import TensorType
from ..graph.written_forms import is_shorter_in_standard
from .base import RulePass
from .context import PassContext
from .driver import apply_rules
from .fold_scale_shift import scalable_behind_movement, scale_constants
from .fuse_attention_einsum import EinsumToProducts
from .fuse_attention_forms import Operands, choose_again, choose_operands
from .fuse_attention_masks import Mask, build_masks, choose_mask, is_neutral
from .fuse_attention_past import AttentionPast
from .fuse_attention_scores import NearMiss, Scores, dtype_of, near, read_scores
from .fuse_attention_views import shape_of
from .rules import Match, Mismatch, OpRule, Replacement, Verdict

if TYPE_CHECKING:
    from ..graph.dims import Dim, FreshSymbols
    from ..graph.module import Module
    from ..graph.rewriter import Rewriter

# Element types that Attention takes.
_FLOATS = ("f32", "f16", "bf16", "f64")


@dataclass
class Site:
    """One attention that can be fused: what was read, and what the new operation gets."""

    scores: Scores
    operands: Operands
    mask: Mask | None
    scale: float


def find_site(softmax: Operation, inference: InferenceContext, flat: bool = False) -> Site | Mismatch:
    """The attention around `softmax`; a NearMiss if there is one that cannot be fused, with the reason."""
    scores = read_scores(softmax, inference)
    if isinstance(scores, Mismatch):
        return scores
    values = scores.context.operands[1]
    types = {dtype_of(operand) for operand in (*scores.product.operands, values)}
    dtype = types.pop()
    if types or dtype is None or dtype.name not in _FLOATS:
        return near("query, key and value are not of one floating-point type", scores.product, scores.context)
    operands = choose_operands(scores, inference, flat)
    if isinstance(operands, Mismatch):
        return operands
    mask = choose_mask(scores, operands, inference, flat)
    if isinstance(mask, Mismatch):
        return mask
    scale = scores.scale * operands.scale
    # The scores may have been scaled where nothing overflows; it will be the queries, or both operands by its root.
    limits = np.finfo(np.float64 if dtype.name == "f64" else np.float32)
    if scale and not float(limits.tiny) ** 0.5 <= abs(scale) <= float(limits.max) ** 0.5:
        return near("the scale may take the queries beyond the range of their type", scores.product)
    return Site(scores, operands, mask, scale)


class FusedAttention(OpRule):
    """matmul(softmax(matmul(q, transpose(k)) * scale + mask), v) -> attention(q, k, v, mask)"""

    name = "attention"
    exactness = "reassociates"
    root: ClassVar[str] = "softmax"

    def __init__(self, flat: bool = False) -> None:
        self.flat = flat

    def when(self, m: Match) -> Verdict:
        found = find_site(m.root, m.inference, self.flat)
        return found if isinstance(found, Mismatch) else True

    def build(self, b: OpBuilder, m: Match) -> Replacement:
        site = find_site(m.root, m.inference, self.flat)
        assert isinstance(site, Site)
        _Fusion(site, m.rewriter, m.context).run()
        return None


class _Fusion:
    """Puts the new operation in the place of the old ones."""

    def __init__(self, site: Site, rewriter: Rewriter, context: PassContext) -> None:
        self.site, self.rewriter, self.context = site, rewriter, context
        location = fuse("attention", [op.location for op in site.scores.ops])
        self.b = rewriter.before(site.scores.context, location)

    def run(self) -> None:
        site, b = self.site, self.b
        query, key, value = (choice.build(b) for choice in site.operands.choices)
        if site.operands.broadcast:
            key, value = (self._for_batch_of(query, each) for each in (key, value))
        if site.mask is not None and site.mask.repeats_key:
            key = self._for_keys_of(site.mask.terms[0].value, key)
        else:
            for each in (key, value):
                self._give_length(each, site.operands.dims[-1])
        attributes: dict[str, object] = {"scale": _rounded(site.scale, query)}
        if not _is_usable_scale(site.scale, query):
            query = b.mul(query, b.const(np.asarray(site.scale, _dtype(query))))
            attributes["scale"] = 1.0
        if site.operands.packed is not None:
            attributes["q_num_heads"], attributes["kv_num_heads"] = site.operands.packed
        if site.scores.softcap:
            attributes["softcap"] = site.scores.softcap
        if site.scores.precision is not None:
            attributes["softmax_precision"] = site.scores.precision
        masks: list[Value] = []
        if site.mask is not None:
            inference = InferenceContext(self.rewriter.symbols)
            masks, said = build_masks(b, site.mask, _length(key), inference)
            attributes.update(said)
            if said.get("masking") == "plain":
                self.context.remark(
                    "fuse-attention/masked-rows",
                    "the mask may leave a query no key, or another number of keys: what it gives then is kept",
                    self.b.location,
                )
        if site.scores.guarded:
            attributes["masking"] = "nan-to-zero"
        operands: list[Value | None] = [query, key, value, masks[0] if masks else None]
        if len(masks) > 1:
            operands += [*[None] * (FURTHER - len(operands)), *masks[1:]]
        new = b.create("attention", operands, attributes).result
        self._replace(new)

    def _for_batch_of(self, query: Value, value: Value) -> Value:
        """Keys or values, which are for one of the batch or for all, for each of the batch."""
        b, shape, batch = self.b, shape_of(value) or (), (shape_of(query) or (1,))[0]
        ones = [1] * (len(shape) - 1)
        if isinstance(batch, int):
            wide: Value = b.expand(value, [batch, *ones])
        else:
            wide = b.expand(value, b.concat(b.shape(query, start=0, end=1), ones, axis=0))
        assert isinstance(value.type, TensorType)
        self.rewriter.set_type(wide, value.type.with_shape([batch, *shape[1:]]))
        return wide

    def _for_keys_of(self, mask: Value, key: Value) -> Value:
        """A single key as often as the mask has keys; otherwise as many keys as there are."""
        b, ones, rank = self.b, [1] * (len(shape_of(key) or ()) - 2), len(shape_of(mask) or ())
        length = b.shape(mask, start=rank - 1, end=rank)
        wide: Value = b.expand(key, b.concat(np.array(ones), length, np.array([1]), axis=0))
        return wide

    def _give_length(self, value: Value, length: Dim) -> None:
        """Keys and values have the length that the products take; a type may not show it yet."""
        shape = shape_of(value)
        if value.producer is None or shape is None or not isinstance(value.type, TensorType):
            return
        if prove_equal(shape[-2], length) is None:
            self.rewriter.set_type(value, value.type.with_shape([*shape[:-2], length, shape[-1]]))

    def _replace(self, new: Value) -> None:
        operands = self.site.operands
        _put_in_place(self.rewriter, self.b, operands, new)
        for op in reversed(self.site.scores.ops):
            if op is not self.site.scores.softmax and not any(result.use_count for result in op.results):
                self.rewriter.erase(op)


def _put_in_place(rewriter: Rewriter, b: OpBuilder, operands: Operands, new: Value) -> None:
    """Make what read the old result read `new`."""
    old, reshape = operands.result, operands.reshape
    if reshape is not None:
        target, allowzero = reshape.operands[1], reshape.attributes.get("allowzero")
        place = rewriter.before(reshape, b.location)
        new = place.create("reshape", [new, target], {"allowzero": allowzero}).result
    # The old type is what the model says of the result; the dims of the operands are equal to it where it runs.
    rewriter.set_type(new, old.type)
    rewriter.replace_uses(old, new)
    for op in reversed(operands.after):
        if not any(result.use_count for result in op.results):
            rewriter.erase(op)


def _dtype(value: Value) -> np.dtype:
    dtype = dtype_of(value)
    assert dtype is not None
    return dtype.numpy


def _length(key: Value) -> Dim:
    """The number of keys: the last dim but one, packed or per head."""
    shape = shape_of(key)
    assert shape is not None
    return shape[-2]


def _rounded(scale: float, query: Value) -> float:
    """The scale in f32, as the attribute is; a scale for f64 is used only if that and its root are exact."""
    return scale if str(dtype_of(query)) == "f64" else float(np.float32(scale))


def _is_usable_scale(scale: float, query: Value) -> bool:
    """Attention takes a positive f32 as its scale, of which it uses the square root, in f32 as well."""
    if not float(np.finfo(np.float32).tiny) <= scale <= float(np.finfo(np.float32).max):
        return False
    root = float(np.sqrt(np.float32(scale)))
    return str(dtype_of(query)) != "f64" or (float(np.float32(scale)) == scale and root * root == scale)


class AttentionOperands(OpRule):
    """attention(transpose(reshape(q)), ...) -> attention(q, ...), also for repeated keys and values"""

    exactness = "reassociates"
    root: ClassVar[str] = "attention"

    def __init__(self, flat: bool = False) -> None:
        self.flat = flat

    def when(self, m: Match) -> Verdict:
        found = choose_again(m.root, m.inference, self.flat)
        return found if isinstance(found, Mismatch) else True

    def build(self, b: OpBuilder, m: Match) -> Replacement:
        found = choose_again(m.root, m.inference, self.flat)
        assert isinstance(found, Operands)
        old, rewriter = m.root, m.rewriter
        attributes = dict(old.attributes)
        query, key, value = (choice.build(b) for choice in found.choices)
        if found.packed is not None:
            attributes["q_num_heads"], attributes["kv_num_heads"] = found.packed
        if found.scale != 1.0:
            size = (shape_of(old.operands[0]) or (0,))[-1]
            scale = old.attr("scale")
            if scale is None:
                scale = 1.0 / size**0.5 if isinstance(size, int) else 0.0
            scale *= found.scale
            if not _is_usable_scale(scale, query):
                return m.fail("the scale of the operands has no place in the attribute")
            attributes["scale"] = _rounded(scale, query)
        count = len(old.results)
        new = b.create("attention", [query, key, value, *old.operands[3:]], attributes, outputs=count)
        for before, result in zip(old.results[1:], new.results[1:], strict=True):
            rewriter.set_type(result, before.type)
            rewriter.replace_uses(before, result)
        _put_in_place(rewriter, b, found, new.results[0])
        return None


class NeutralMask(OpRule):
    """attention(q, k, v, 0) -> attention(q, k, v), likewise for a condition that is true everywhere"""

    exactness = "reassociates"  # only if the scores are asked for, too: a -0.0 among them stays
    root: ClassVar[str] = "attention"

    def when(self, m: Match) -> Verdict:
        op, mask = m.root, shape_of(m.root.input(FIRST))
        if mask is None or has_further_masks(op) or not is_neutral(op.input(FIRST), m.inference):
            return m.fail("it has no mask of zeros", op)
        assert isinstance(op.definition, Attention)
        scores = op.definition.shapes(op, m.inference)[3]
        # The standard fills up a mask for too few keys with -inf.
        if scores is None or not mask or prove_equal(mask[-1], scores[-1]) is not True:
            return m.fail("the mask may be for fewer keys than there are", op)
        own = scores[-len(mask) :]
        fits = len(own) == len(mask) and all(
            a == 1 or prove_equal(a, b) is True for a, b in zip(mask, own, strict=True)
        )
        return fits or m.fail("the mask may widen the scores", op)

    def build(self, b: OpBuilder, m: Match) -> Replacement:
        m.rewriter.set_operand(m.root, FIRST, None)
        return None


class ScaleIntoWeights(OpRule):
    """attention(reshape(matmul(x, w)), ...) that is written as its parts -> the same with the scale in w

    `may_stay`: the opset has the operator, and parts are written only where that takes no more nodes.
    """

    exactness = "reassociates"
    root: ClassVar[str] = "attention"

    def __init__(self, may_stay: bool = False) -> None:
        self.may_stay = may_stay

    def when(self, m: Match) -> Verdict:
        scale = self._scale(m.root)
        if scale is None or scale == 1.0:
            return m.fail("it does not scale", m.root)
        if self.may_stay and not is_better_in_parts(m.root, m.inference.symbols):
            return m.fail("it is written as one operator, which scales by itself", m.root)
        found = scalable_behind_movement(m, m.root.operands[0], scale)
        return found if isinstance(found, Mismatch) else True

    def build(self, b: OpBuilder, m: Match) -> Replacement:
        scale = self._scale(m.root)
        assert scale is not None
        found = scalable_behind_movement(m, m.root.operands[0], scale)
        assert not isinstance(found, Mismatch)
        scale_constants(m, found, scale)
        m.rewriter.set_attribute(m.root, "scale", 1.0)
        return None

    @staticmethod
    def _scale(op: Operation) -> float | None:
        """What the scores are multiplied by; None if that follows from a size which is not known."""
        given, heads = op.attr("scale"), heads_of(op)
        if given is not None:
            return float(given)
        return None if heads is None else heads.size**-0.5


def is_better_in_parts(op: Operation, symbols: FreshSymbols) -> bool:
    """Whether an attention is written as its parts although the opset has Attention: it says more than that does, and
    takes no more nodes so."""
    assert isinstance(op.definition, Attention)
    if op.definition.is_standard(op):
        return False
    return op.attr("masking") == "nan-to-zero" or not is_shorter_in_standard(op, symbols)


@dataclass(frozen=True)
class FuseAttention(RulePass):
    """Fuse attention that is written out."""

    name = "fuse-attention"
    exactness = "reassociates"
    fuses = True
    rules = (EinsumToProducts, FusedAttention, AttentionPast, AttentionOperands, NeutralMask, ScaleIntoWeights)

    whole: bool = False  # it will be written as one node, also where the opset has no Attention

    def run(self, module: Module, context: PassContext) -> bool:
        # Where Attention will be taken apart again, a Reshape of each operand would be one too many, and so is a scale.
        has_operator = module.opsets.get("", 0) in RUNTIME_OPSETS
        flat = self.whole or has_operator
        rules = [EinsumToProducts(flat), FusedAttention(flat), AttentionPast(), AttentionOperands(flat), NeutralMask()]
        if not self.whole:
            rules.append(ScaleIntoWeights(has_operator))
        changed = apply_rules(module, rules, context)
        inference = InferenceContext(module.symbols)
        for op in module.walk():
            found = find_site(op, inference) if op.name == "softmax" else None
            if isinstance(found, NearMiss):
                culprits = [c for c in found.culprits if isinstance(c, Operation)]
                notes = [f"{each.name} at {each.location}" for each in culprits]
                context.remark(
                    "fuse-attention/near-miss", f"attention is not fused: {found.reason}", op.location, *notes
                )
        return changed


__all__ = ["FuseAttention", "FusedAttention", "Site", "find_site"]
