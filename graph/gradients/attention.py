"""The derivative of Attention: `tilewright.AttentionGrad` where that says all, else through its parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .rules import Adjoint, gradient_of

if TYPE_CHECKING:
    from ..core import Operation, Value
    from .builder import GradientBuilder


@gradient_of("Attention")
def attention(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint] | None:
    query, key, value, mask, *others = (*op.operands, None, None)[: max(len(op.operands), 4)]
    others_given = any(operand is not None for operand in others)
    if others_given or grads[0] is None or any(grad is not None for grad in grads[1:]) or b.needs(mask):
        return None
    attributes = {name: item for name, item in op.attributes.items() if name != "qk_matmul_output_mode"}
    found = b.create("tilewright.AttentionGrad", [query, key, value, grads[0], mask], attributes, outputs=3)
    return list(found.results)
