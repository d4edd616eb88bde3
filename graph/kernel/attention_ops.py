"""Attention as one kernel, so that the scores of all queries need never be in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..opdef import Trait, op
from ..ops.numeric import summable
from .kernel_base import KernelOp, Known
from .strided import broadcast_shapes

if TYPE_CHECKING:
    from ..core import Operation
    from .strided import Shape


@op("attention", domain="kernel")
class Attention(KernelOp):
    """softmax(q k^T * scale + mask) v, per head: q [batch, heads, queries, size], k and v [batch, heads of keys, keys,
    size], where each head of keys serves as many heads of queries as it takes.

    `mask`, which is broadcast to [batch, heads, queries, keys], is added; one of bools puts `masked_score` where it is
    false. With `softcap` c scores are c tanh(score / c) before that. `causal`: query i sees keys up to i + `offset`.
    A query that sees no key (all scores -infinity) gives NaN, as softmax has it ("plain"), or 0 ("zero"); also if a
    score is NaN or +infinity ("nan-to-zero").
    """

    inputs = ("q", "k", "v", "mask?")
    attributes: ClassVar[dict[str, Any]] = {
        "scale": 1.0, "softcap": 0.0, "causal": 0, "offset": 0, "masked_score": -math.inf, "masking": "plain",
    }  # fmt: skip
    traits = frozenset({Trait.CONTRACTION})
    fixed = 4

    def result_shapes(self, op: Operation, shapes: Sequence[Shape], known: Known) -> list[Shape]:
        q, k, v = shapes[:3]
        if q[3] != k[3] or k[2] != v[2] or k[:2] != v[:2] or q[0] != k[0] or not k[1] or q[1] % k[1]:
            raise ValueError(f"q {list(q)}, k {list(k)} and v {list(v)} do not go together")
        if op.input(3) is not None and broadcast_shapes(shapes[3], (*q[:3], k[2])) != (*q[:3], k[2]):
            raise ValueError(f"a mask of {list(shapes[3])} for scores of {[*q[:3], k[2]]}")
        return [(*q[:3], v[3])]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        q, k, v = (summable(operand) for operand in operands[:3])
        mask = operands[3] if len(operands) > 3 else None
        repeats = q.shape[1] // k.shape[1]
        k, v = np.repeat(k, repeats, 1), np.repeat(v, repeats, 1)
        with np.errstate(all="ignore"):
            scores = q @ np.swapaxes(k, 2, 3) * q.dtype.type(op.attr("scale"))
            if cap := op.attr("softcap"):
                scores = np.tanh(scores / q.dtype.type(cap)) * q.dtype.type(cap)
            if mask is not None and mask.dtype.kind == "b":
                scores = np.where(mask, scores, q.dtype.type(op.attr("masked_score")))
            elif mask is not None:
                scores = scores + mask
            if op.attr("causal"):
                seen = np.tri(scores.shape[2], scores.shape[3], int(op.attr("offset")), bool)
                scores = np.where(seen, scores, -np.inf)
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-np.inf))
            weights = weights / weights.sum(axis=-1, keepdims=True)
        if op.attr("masking") == "nan-to-zero":
            weights = np.where(np.isnan(weights), 0, weights)
        elif op.attr("masking") == "zero":
            weights = np.where((scores == -np.inf).all(axis=-1, keepdims=True), 0, weights)
        return np.asarray(weights @ v).astype(operands[0].dtype)
