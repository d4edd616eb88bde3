"""Which fused operators of the standard are better written as their parts: what ONNX Runtime does with each.

The facts were measured with ONNX Runtime 1.32 on a CPU (`benchmarks/fused_operators.py` repeats it). An operator
without a kernel is expanded there by its function body in the standard, into more operations than needed and without
the fusions that the parts would get; some bodies cannot be run at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from ...graph import dtypes
from ...graph.core import Operation, Value
from ...graph.dims import Dim, bounds, prove_equal
from ...graph.dtypes import DType
from ...graph.ops.attention_standard import RUNTIME_OPSETS
from ...graph.types import TensorType

Objection: TypeAlias = Callable[[Operation], "str | None"]


@dataclass(frozen=True)
class Support:
    """What is known of one operator: the element types of its kernels, or why its parts run better than it.

    `objection` looks at one operation and says, as the end of a sentence, why the kernel does not take it.
    `opsets` are those whose version of the operator has a kernel; None if all are.
    """

    dtypes: frozenset[DType] = field(default_factory=frozenset)
    without_kernel: str = ""
    objection: Objection | None = None
    opsets: range | None = None

    def reason(self, op: Operation, opset: int) -> str | None:
        if self.without_kernel:
            return self.without_kernel
        if self.opsets is not None and opset not in self.opsets:
            return f"has kernels of it up to opset {self.opsets[-1]} and runs its parts faster"
        type = op.operands[0].type if op.operands and op.operands[0] is not None else None
        if not isinstance(type, TensorType):
            return None
        if type.dtype not in self.dtypes:
            return f"has no kernel of it for {type.dtype}"
        return self.objection(op) if self.objection is not None else None


def _caches_fit(op: Operation) -> str | None:
    """ONNX Runtime compares batch and length of the caches with those of x, and does not broadcast.

    The standard wants them equal, so only dims that certainly differ speak against the operator.
    """
    if op.input(3) is not None:
        return None
    shapes = [_shape(op.input(index)) for index in range(3)]
    x, caches = shapes[0], shapes[1:]
    if x is None or any(cache is None or len(cache) != 3 for cache in caches):
        return None
    pairs = [(x[place], cache[index]) for cache in caches if cache for index, place in enumerate((0, len(x) - 2))]
    differ = any(prove_equal(left, right) is False for left, right in pairs)
    return "does not broadcast its caches" if differ else None


def _shape(value: Value | None) -> tuple[Dim, ...] | None:
    return value.type.shape if value is not None and isinstance(value.type, TensorType) else None


def _mask_fits(op: Operation) -> str | None:
    """ONNX Runtime wants a mask of [..., queries, keys], where the standard's reference broadcasts."""
    mask = op.input(3)
    if mask is None:
        return None
    own, query, key, past = (_shape(op.input(index)) for index in (3, 0, 1, 4))
    if own is None or query is None or key is None or (past is None and op.input(4) is not None):
        return "wants to know the queries and keys of its mask"
    keys = key[-2] if past is None else key[-2] + past[2]
    fits = len(own) >= 2 and prove_equal(own[-2], query[-2]) is True and prove_equal(own[-1], keys) is True
    return None if fits else "does not broadcast its mask"


def _rows_have_elements(op: Operation) -> str | None:
    """ONNX Runtime refuses to normalize rows of no elements, of which the parts make nothing."""
    shape, axis = _shape(op.input(0)), op.attr("axis", -1)
    if shape is not None and all((bounds(dim)[0] or 0) >= 1 for dim in shape[axis:]):
        return None
    return "does not normalize rows without elements, as these may be"


_FLOATS = frozenset({dtypes.f16, dtypes.f32, dtypes.f64})

SUPPORT: dict[tuple[str, str], Support] = {
    ("", "Attention"): Support(_FLOATS, objection=_mask_fits, opsets=RUNTIME_OPSETS),
    ("", "LayerNormalization"): Support(_FLOATS | {dtypes.bf16}, objection=_rows_have_elements),
    ("", "Gelu"): Support(frozenset({dtypes.f32})),
    ("", "RMSNormalization"): Support(_FLOATS, objection=_rows_have_elements),
    ("", "RotaryEmbedding"): Support(frozenset({dtypes.f16, dtypes.f32}), objection=_caches_fit),
    ("", "Swish"): Support(without_kernel="has no kernel of it and runs its parts faster"),
    ("", "SwiGLU"): Support(without_kernel="cannot run it"),
    ("", "GroupNormalization"): Support(without_kernel="has no kernel of it and runs its parts faster"),
}


def has_kernel(op: Operation, opset: int) -> bool:
    """Whether ONNX Runtime has a kernel of this operator for its element type at `opset`, as far as is known."""
    support = SUPPORT.get((op.domain, op.op_type))
    type = op.operands[0].type if op.operands and op.operands[0] is not None else None
    if support is None or not isinstance(type, TensorType):
        return True
    if support.opsets is not None and opset not in support.opsets:
        return False
    return not support.without_kernel and type.dtype in support.dtypes


def why_in_parts(op: Operation, opset: int) -> str | None:
    """Why ONNX Runtime should be given the parts of `op`, as the end of a sentence; None if the operator is fine.

    `opset` is the version of the operator's domain in the file.
    """
    support = SUPPORT.get((op.domain, op.op_type))
    return None if support is None else support.reason(op, opset)
