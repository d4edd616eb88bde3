"""expand-legacy: replace old forms of operators by the operators of today that they consist of. Level onnx.

What the importer had to keep at an old version (see graph/ops/legacy) because its meaning takes several operators now,
or because it depended on what only a function's caller gives. An old form that still depends on something unknown
stays.

    %0 = softmax.v11 %x {axis=1} : f32[2, 3, 4]     ->     %0 = flatten %x {axis=1} : f32[2, 12]
                                                           %1 = softmax %0 {axis=-1} : f32[2, 12]
                                                           %2 = reshape %1, [2, 3, 4] {allowzero=1} : f32[2, 3, 4]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..graph.ops.legacy.base import OldForm
from .base import Pass

if TYPE_CHECKING:
    from ..graph.module import Module
    from .context import PassContext


@dataclass(frozen=True)
class ExpandLegacy(Pass):
    """Replace old forms of operators by the operators of today that they consist of."""

    name = "expand-legacy"
    # Training and per-position BatchNormalization, and pooling by a broken power, are written out as their formulas.
    exactness = "reassociates"

    only_single: bool = False  # replace only what one operation of today can stand for

    def run(self, module: Module, context: PassContext) -> bool:
        before = context.applications
        for function in module.all_functions():
            for op in function.region.operations():
                form = op.definition
                if not isinstance(form, OldForm) or op.parent is None or not context.may_apply:
                    continue
                count = form.count_parts(op, module.symbols)
                if count is None:
                    message = f"{op.name} stays: what its meaning depends on is not known"
                    context.remark("legacy/kept", message, op.location)
                if count is None or (self.only_single and count > 1):
                    continue
                with context.rewrite(module, self.name, op, f"the form of opset {form.version}") as rewriter:
                    values = form.decompose(op, rewriter.before(op))
                    assert values is not None
                    rewriter.replace(op, values)
        return context.applications > before
