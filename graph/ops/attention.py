"""Attention and what goes with it: rotary embedding, linear attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import types
from ..cached import cached_property
from ..diagnostics import TypeInferenceError
from ..dims import Dim, product
from ..opdef import AttributeSpec, OpDefinition, Parameter, ParameterKind, op
from ..types import TensorType, Type
from .attention_masks import has_further_masks
from .common import (
    SameShape,
    Shape,
    WithParts,
    broadcast,
    dtype_of,
    error,
    format_shape,
    operand_size,
    quotient,
    require_rank,
    same_dim,
    shape_of,
    times,
    unknown_dims,
)
from .rotary_parts import rotary_parts, with_expanded_caches

if TYPE_CHECKING:
    from ..builder import OpBuilder
    from ..core import Operation, Value
    from ..infer import InferenceContext


def _heads(op: Operation, index: int, heads: str, context: InferenceContext) -> Shape | None:
    """Operand `index` as [batch, heads, length, size]; a packed [batch, length, heads * size] is taken apart."""
    shape = shape_of(op, index)
    if shape is None or len(shape) == 4:
        return shape
    require_rank(op, index, shape, 3)
    count = op.attr(heads)
    if not count or count < 0:
        raise error("shape/attention", f"{op.name} needs {heads} for its input {index}, {format_shape(shape)}")
    return (shape[0], count, shape[1], quotient(shape[2], count, op, f"the last dim of input {index}"))


def _join_heads(shape: Shape, packed: bool) -> Shape:
    batch, heads, length, size = shape
    return (batch, length, heads * size) if packed else shape


@op("Attention")
class Attention(OpDefinition):
    """Vaswani et al. 2017 (arXiv 1706.03762): softmax(q @ k^T * scale + mask) @ v, per head.

    q, k and v are [batch, heads, length, size], or [batch, length, heads * size] with the numbers of heads as
    attributes. Past keys and values come before the new ones; the results hold both.

    With `masked_score`, a boolean mask puts that number in the place of each score that it rules out, so that a hidden
    key may hold anything. In the standard -inf is added, which NaN and infinity survive; kernels and parts choose
    there, too.

    Three attributes are ours, for attention that a model writes out, and so are operands after those of the standard:
    they are never written, an operation that has them is written as what it is made of (or as Attention, where that is
    the same for finite scores).

    masking: "standard": a query that the masks allow no key at all gives zeros, a mask with too few keys masks the
      others. "plain": the mask is broadcast, and there are no exceptions: such a query gives what a softmax over equal
      numbers gives, which is NaN for -inf. "nan-to-zero": as plain, but a weight that is NaN is 0.
    masked_score: the score of a key that a boolean mask rules out, -inf in the standard.
    further masks: operands 7, 8, ... are applied after the first, in order; the elements of `further_scores` are their
      `masked_score` (of one that is added, any number). `masking` is not "standard" then.
    """

    # Whether `decompose` may use what makes an operand instead of the operand.
    looks_through = True

    @cached_property
    def attribute_specs(self) -> dict[str, AttributeSpec]:
        return {
            **super().attribute_specs,
            "masking": AttributeSpec("masking", "string", default="standard"),
            "masked_score": AttributeSpec("masked_score", "float", default=float("-inf")),
            "further_scores": AttributeSpec("further_scores", "floats"),
        }

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        return (*super().parameters, Parameter("further_masks", ParameterKind.VARIADIC, minimum=0))

    def is_standard(self, op: Operation) -> bool:
        """Whether the operator of the standard says the same."""
        mask = op.input(3)
        if mask is None:
            return bool(op.attr("masking") != "nan-to-zero")
        is_own = op.attr("masking") != "standard" or has_further_masks(op)
        return not is_own and bool(op.attr("masked_score") == float("-inf"))

    def needs_all_results(self, op: Operation) -> bool:
        return op.input(4) is not None  # ONNX Runtime takes no past without giving the present

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        from ..evaluation import evaluate_by_decomposition

        # onnx.reference gives scores to which softcap was applied already where those before it are asked for.
        before_softcap = len(op.results) > 3 and op.attr("softcap") and op.attr("qk_matmul_output_mode") == 0
        if not before_softcap and not any(name in op.attributes for name in ("masking", "masked_score")):
            return super().evaluate(op, *operands)
        results = evaluate_by_decomposition(op, operands)
        assert results is not None
        return tuple(results)

    def decompose(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        from ..infer import InferenceContext
        from .attention_parts import AttentionParts

        parts = AttentionParts(op, builder, InferenceContext(builder.symbols)).build()
        if parts is not None or not self.is_standard(op):
            return parts
        return super().decompose(op, builder)

    def standard_form(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        """The same by the operator of the standard, in a form that ONNX Runtime runs; None if that is not possible.

        Weights that are NaN are taken for those of a query without keys, as `masking` "nan-to-zero" means them.
        """
        from ..infer import InferenceContext
        from .attention_standard import StandardAttention

        return StandardAttention(op, builder, InferenceContext(builder.symbols)).build()

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        q_dtype, v_dtype = dtype_of(op, 0, 1), dtype_of(op, 2)
        shapes = self.shapes(op, context)
        dtypes = (q_dtype, q_dtype, v_dtype or q_dtype, q_dtype)
        return [
            types.UNKNOWN if dtype is None else types.tensor(dtype, shape)
            for dtype, shape in zip(dtypes, shapes, strict=True)
        ]

    def shapes(self, op: Operation, context: InferenceContext) -> list[Shape | None]:
        """The shapes of the result, all keys, all values, and the scores."""
        query = shape_of(op, 0)
        q = _heads(op, 0, "q_num_heads", context)
        k, v = _heads(op, 1, "kv_num_heads", context), _heads(op, 2, "kv_num_heads", context)
        if query is None or q is None or k is None or v is None:
            rank = None if query is None else len(query)
            return [unknown_dims(rank, context), *[unknown_dims(4, context) for _ in range(3)]]
        self._check(q, k, v, context)
        past = _heads(op, 4, "kv_num_heads", context)
        total = k[2] if past is None else k[2] + past[2]
        if past is None and len(op.operands) > 4 and op.operands[4] is not None:
            total = context.fresh()
        mask = shape_of(op, 3)
        is_standard = op.attr("masking") == "standard"
        if is_standard and has_further_masks(op):
            raise error(
                "shape/attention", 'attention with several masks has no rule for queries without keys: masking="plain"'
            )
        if is_standard and mask and isinstance(mask[-1], int) and isinstance(total, int) and mask[-1] > total:
            raise error("shape/attention", f"attention has a mask for {mask[-1]} keys, but {total} keys")
        return [
            _join_heads((q[0], q[1], q[2], v[3]), len(query) == 3),
            (k[0], k[1], total, k[3]),
            (v[0], v[1], total, v[3]),
            (q[0], q[1], q[2], total),
        ]

    def _check(self, q: Shape, k: Shape, v: Shape, context: InferenceContext) -> None:
        def mismatch() -> TypeInferenceError:
            shown = ", ".join(map(format_shape, (q, k, v)))
            return error("shape/attention", f"attention of query, key and value {shown} (per head) does not fit")

        same_dim(q[0], k[0], context, mismatch)
        same_dim(k[0], v[0], context, mismatch)
        same_dim(q[3], k[3], context, mismatch)
        same_dim(k[1], v[1], context, mismatch)
        same_dim(k[2], v[2], context, mismatch)

    def flops(self, op: Operation) -> Dim | None:
        q, k, v, past = shape_of(op, 0), shape_of(op, 1), shape_of(op, 2), shape_of(op, 4)
        if q is None or k is None or v is None:
            return None
        length = k[-2] + (past[2] if past is not None else 0)
        value = v[-1] * q[1] if len(v) == 4 else v[-1] * (op.attr("q_num_heads") or 1) // (op.attr("kv_num_heads") or 1)
        # Two products over all pairs of places, and about five operations for each in the softmax.
        heads = q[1] if len(q) == 4 else op.attr("q_num_heads") or 1
        places = q[0] * q[-2] * length
        width = q[-1] * q[1] if len(q) == 4 else q[-1]
        return places * (2 * width + 2 * value + 5 * heads)


@op("RotaryEmbedding")
class RotaryEmbedding(WithParts, SameShape):
    """Su et al. 2021 (arXiv 2104.09864): pairs of elements rotated by an angle that grows with the position.

    x is [batch, heads, length, size] or packed [batch, length, heads * size], the caches [batch, length, size / 2].

    One attribute is ours and never written: `broadcast=1` says that batch and length of the caches need not be those of
    x, and are broadcast against them.
    """

    # Whether `decompose` may use what makes an operand instead of the operand.
    looks_through = True

    @cached_property
    def attribute_specs(self) -> dict[str, AttributeSpec]:
        return {**super().attribute_specs, "broadcast": AttributeSpec("broadcast", "int", default=0)}

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        shape = shape_of(op, 0)
        if shape is None or len(shape) not in (3, 4) or not op.attr("broadcast"):
            return shape
        length = len(shape) - 2
        dims = [(shape[0], shape[length])]
        for index in (1, 2):
            cache = shape_of(op, index)
            if cache is None or len(cache) != 3:
                return [context.fresh(), *shape[1:length], context.fresh(), shape[-1]]
            dims.append((cache[0], cache[1]))
        batch, places = broadcast(op, dims, context) or (context.fresh(), context.fresh())
        return [batch, *shape[1:length], places, shape[-1]]

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        return rotary_parts(op, builder)

    def standard_form(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        return with_expanded_caches(op, builder) if op.attr("broadcast") else None

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        from ..evaluation import evaluate_by_decomposition

        if "broadcast" not in op.attributes:
            return super().evaluate(op, *operands)
        results = evaluate_by_decomposition(op, operands)
        assert results is not None
        return results[0]

    def flops(self, op: Operation) -> Dim | None:
        return times(3, operand_size(op))


@op("LinearAttention")
class LinearAttention(OpDefinition):
    """Recurrent attention over packed [batch, length, heads * size]; the state is [batch, kv_heads, dk, dv]."""

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        dtype, state = dtype_of(op, 0, 1, 2), dtype_of(op, 3, 0)
        if dtype is None or state is None:
            return [types.UNKNOWN] * len(op.results)
        for index in (0, 1, 2):
            shape = shape_of(op, index)
            if shape is not None:
                require_rank(op, index, shape, 3)
        q, v = _heads(op, 0, "q_num_heads", context), _heads(op, 2, "kv_num_heads", context)
        if q is None or v is None:
            return [types.tensor(dtype, unknown_dims(3, context)), types.tensor(state, unknown_dims(4, context))]
        output: TensorType = types.tensor(dtype, [q[0], q[2], q[1] * v[3]])
        return [output, types.tensor(state, [q[0], v[1], q[3], v[3]])]

    def flops(self, op: Operation) -> Dim | None:
        q, v = shape_of(op, 0), shape_of(op, 2)
        if q is None or v is None:
            return None
        # Per place and head the state is updated and read: about four operations for each of its dk * dv elements.
        kv_heads: int = op.attr("kv_num_heads")
        return 4 * product(q) * (v[-1] // kv_heads)
