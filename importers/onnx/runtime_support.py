"""Which fused operators of the standard are better written as their parts: what ONNX Runtime does with each.

The facts were measured with ONNX Runtime 1.32 on a CPU (`benchmarks/fused_operators.py` repeats it). An operator without
a kernel is expanded there by its function body in the standard, into more operations than needed and without the
fusions that the parts would get; some bodies cannot be run at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from ...graph import dtypes
from ...graph.core import Operation
from ...graph.dims import prove_equal
from ...graph.dtypes import DType
from ...graph.types import TensorType

Objection: TypeAlias = Callable[[Operation], "str | None"]


@dataclass(frozen=True)
class Support:
    """What is known of one operator: the element types of its kernels, or why its parts run better than it.

    `objection` looks at one operation and says, as the end of a sentence, why the kernel does not take it.
    """

    dtypes: frozenset[DType] = field(default_factory=frozenset)
    without_kernel: str = ""
    objection: Objection | None = None

    def reason(self, op: Operation) -> str | None:
        if self.without_kernel:
            return self.without_kernel
        type = op.operands[0].type if op.operands and op.operands[0] is not None else None
        if not isinstance(type, TensorType):
            return None
        if type.dtype not in self.dtypes:
            return f"has no kernel of it for {type.dtype}"
        return self.objection(op) if self.objection is not None else None


def _batch_of_caches(op: Operation) -> str | None:
    """ONNX Runtime compares the batch of the caches with that of x, where the standard's reference broadcasts."""
    if len(op.operands) > 3 and op.operands[3] is not None:
        return None
    shapes = [
        value.type.shape if value is not None and isinstance(value.type, TensorType) else None
        for value in op.operands[:3]
    ]
    if any(shape is None or not shape for shape in shapes):
        return "wants to know the batch of its caches"
    batches = [shape[0] for shape in shapes if shape]
    fits = all(prove_equal(batches[0], batch) is True for batch in batches[1:])
    return None if fits else "does not broadcast its caches over the batch"


_FLOATS = frozenset({dtypes.f16, dtypes.f32, dtypes.f64})

SUPPORT: dict[tuple[str, str], Support] = {
    ("", "Gelu"): Support(frozenset({dtypes.f32})),
    ("", "RMSNormalization"): Support(_FLOATS),
    ("", "RotaryEmbedding"): Support(frozenset({dtypes.f16, dtypes.f32}), objection=_batch_of_caches),
    ("", "Swish"): Support(without_kernel="has no kernel of it and runs its parts twice as fast"),
    ("", "SwiGLU"): Support(without_kernel="cannot run it"),
    ("", "GroupNormalization"): Support(without_kernel="has no kernel of it and runs its parts twice as fast"),
}


def why_in_parts(op: Operation) -> str | None:
    """Why ONNX Runtime should be given the parts of `op`, as the end of a sentence; None if the operator is fine."""
    support = SUPPORT.get((op.domain, op.op_type))
    return None if support is None else support.reason(op)
