"""An attention of ours as the operator of the standard, where that can be made to say the same.

ONNX Runtime 1.32 wants a mask of [..., queries, keys], and gives zeros for a query all of whose keys have the lowest
finite number added, or less; the standard does so for -inf alone. A softmax gives NaN for -inf, and weights for the
lowest number in which the scores are lost. So rows of a mask that may hide all keys are moved to where neither rule
holds and the softmax gives the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .. import dtypes
from ..dims import prove_equal
from ..types import TensorType
from .attention_masks import constant_sum, has_further_masks, masks_of, not_absorbing, sum_of_masks
from .attention_parts import dtype_of_value, shape_of_value
from .masked_rows import is_lower_triangular, lowest, rows_are_visible, rows_may_be_masked

if TYPE_CHECKING:
    from ..builder import OpBuilder
    from ..core import Operation, Value
    from ..dims import Dim
    from ..infer import InferenceContext

# The opsets that have Attention in a version of which ONNX Runtime 1.32 has a kernel. From 25 on it runs the function
# that the standard gives as the operator's meaning.
RUNTIME_OPSETS = range(23, 25)
# In these, half the lowest number still absorbs every score that is not huge itself. With the distance from 1 to the
# next number.
_STEPS = {dtypes.f32: 2.0**-23, dtypes.f64: 2.0**-52, dtypes.bf16: 2.0**-7}


class StandardAttention:
    """Builds Attention for one operation; `build` gives None if it cannot say the same."""

    def __init__(self, op: Operation, builder: OpBuilder, context: InferenceContext) -> None:
        self.op, self.b, self.context = op, builder, context
        query, key = op.input(0), op.input(1)
        assert query is not None
        assert key is not None
        self.query, self.key = query, key

    def build(self) -> list[Value] | None:
        op = self.op
        if op.input(6) is not None or len(op.results) > 3:
            return None
        own = ("masking", "masked_score", "further_scores")
        attributes = {name: value for name, value in op.attributes.items() if name not in own}
        mask = op.input(3)
        if has_further_masks(op):
            mask = self._sum()
            if mask is None:
                return None
        elif (
            mask is not None
            and op.attr("masked_score") <= lowest(dtype_of_value(self.query).numpy)
            and self._is_causal(mask)
        ):
            attributes["is_causal"] = 1
            mask = None
        elif mask is not None:
            mask = self._mask(mask)
            if mask is None:
                return None
        operands = [*op.operands[:3], mask, *op.operands[4:6]]
        return list(self.b.create("attention", operands, attributes, outputs=len(op.results)).results)

    # ---- masks -------------------------------------------------------------------------------------------------------

    def _lengths(self) -> tuple[Dim, Dim] | None:
        """The numbers of queries and of keys, those of the past included."""
        query, key, past = (shape_of_value(value) for value in (self.query, self.key, self.op.input(4)))
        if query is None or key is None or (past is None and self.op.input(4) is not None):
            return None
        return query[-2], key[-2] if past is None else past[2] + key[-2]

    def _is_causal(self, mask: Value) -> bool:
        """Whether the mask lets query i see keys 0 to i and has as many rows and columns."""
        lengths, shape = self._lengths(), shape_of_value(mask)
        if self.op.attr("is_causal") or lengths is None or shape is None or len(shape) < 2:
            return False
        if self.op.input(4) is not None:
            return False  # with a past, is_causal lets the first query see more than one key
        fits = all(prove_equal(a, b) is True for a, b in zip(shape[-2:], lengths, strict=True))
        return fits and is_lower_triangular(mask, self.context) and not any(dim != 1 for dim in shape[:-2])

    def _mask(self, mask: Value) -> Value | None:
        dtype = dtype_of_value(self.query)
        fill = self.op.attr("masked_score")
        safe = not rows_may_be_masked(mask, self.context, bool(self.op.attr("is_causal")))
        if dtype_of_value(mask) is dtypes.bool_:
            if fill != -np.inf and fill > lowest(dtype.numpy):
                return None
            if self.op.attr("masking") != "standard" and not safe:
                bias = self._chosen(mask, fill, dtype)
                return None if bias is None else self._expanded(bias)
            return self._expanded(mask)
        return self._added(mask, safe)

    def _sum(self) -> Value | None:
        """Several masks as one that is added; None if that leaves something of hidden scores."""
        dtype, masks = dtype_of_value(self.query), masks_of(self.op)
        if not_absorbing(masks, dtype) is not None:
            return None
        numbers = constant_sum(masks, dtype, self.context)
        return self._added(sum_of_masks(masks, dtype, self.b), numbers is not None and rows_are_visible(numbers))

    def _added(self, mask: Value, safe: bool) -> Value | None:
        """A mask that is added; `safe`: each query has a key."""
        if self.op.attr("masking") != "standard" and not safe:
            guarded = self._guarded(mask, dtype_of_value(self.query))
            return None if guarded is None else self._expanded(guarded)
        return self._expanded(mask)

    def _chosen(self, mask: Value, fill: float, dtype: dtypes.DType) -> Value | None:
        """A term to be added that does what the condition does, in rows without a key, too."""
        b = self.b
        if fill != -np.inf and dtype not in _STEPS:
            return None
        zero = b.const(np.zeros((), dtype.numpy))
        if fill != -np.inf:
            # A uniform row, as the lowest number gives it.
            uniform: Value = b.where(mask, zero, _number(b, lowest(dtype.numpy) / 2, dtype))
            return uniform
        if self.op.attr("masking") == "nan-to-zero":
            return mask
        bias = b.where(mask, zero, _number(b, -np.inf, dtype))
        # 0 where a key is visible; -inf - -inf, which is NaN, where none is.
        result: Value = b.sub(bias, b.reduce_max(bias, [-1]))
        return result

    def _guarded(self, mask: Value, dtype: dtypes.DType) -> Value | None:
        """The mask with other numbers in rows that hide all keys: as far from each other, and absorbing the scores."""
        if dtype not in _STEPS:
            return None
        b = self.b
        half = lowest(dtype.numpy) / 2
        if self.op.attr("masking") == "nan-to-zero":
            # Rows of -inf give zeros as they are; the lowest number only has to be another one, which absorbs, too.
            result: Value = b.mul(mask, _number(b, 1 - _STEPS[dtype], dtype))
            return result
        most = b.reduce_max(mask, [-1])
        if dtype is dtypes.f32:
            # What the greatest is below half the lowest number, so that this becomes the greatest; else 0.
            result = b.sub(mask, b.create("shrink", [most], {"lambd": -half, "bias": -half}).result)
            return result
        result = b.add(mask, b.relu(b.sub(_number(b, half, dtype), most)))
        return result

    def _expanded(self, mask: Value) -> Value:
        """The mask with all queries and keys."""
        lengths, shape = self._lengths(), shape_of_value(mask)
        b = self.b
        whole = lengths is not None and shape is not None and len(shape) >= 2
        if whole and all(prove_equal(a, c) is True for a, c in zip((shape or ())[-2:], lengths or (), strict=True)):
            return mask
        # The standard fills up a mask with too few keys; only others are broadcast along them.
        own = self.op.attr("masking") == "standard"
        if lengths is not None and all(isinstance(length, int) for length in lengths):
            wide: Value = b.expand(mask, [lengths[0], 1 if own else lengths[1]])
        else:
            rows = b.shape(self.query, start=-2, end=-1)
            square = lengths is not None and prove_equal(*lengths) is True
            keys = b.const([1]) if own else rows if square else self._key_count()
            wide = b.expand(mask, b.concat(rows, keys, axis=0))
        found = shape_of_value(wide)
        # A mask is broadcast to the scores, never the other way round.
        if lengths is not None and found is not None and isinstance(wide.type, TensorType):
            wide.type = wide.type.with_shape([*found[:-2], lengths[0], found[-1] if own else lengths[1]])
        return wide

    def _key_count(self) -> Value:
        """The number of keys, those of the past included, as a list of one."""
        b, past = self.b, self.op.input(4)
        count: Value = b.shape(self.key, start=-2, end=-1)
        if past is not None:
            count = b.add(b.shape(past, start=2, end=3), count)
        return count


def _number(builder: OpBuilder, value: float, dtype: dtypes.DType) -> Value:
    return builder.const(np.asarray(value, np.float64).astype(dtype.numpy))
