"""fuse-for-onnxruntime: operators of ONNX Runtime in the place of several of the standard. Level onnx.

Runs for the target "onnxruntime" only, after everything else: what is left is said in the operators of com.microsoft
that ONNX Runtime's CPU provider has kernels for, as far as these compute the same. What they take was measured with
ONNX Runtime 1.32; every rule is tested there.

Invariant: a rule proves the element type, the ranks and the dims that a kernel asks for; where a dim is not known to be
what it must be, the operators stay as they are.

Where rows are wide, and everywhere with `fast`, time counts for more than nodes: operators that are slower than their
parts are not used even where ONNX Runtime's own optimizer would put them in.

    %0 = add %x, %b : f32[n, 8]            // %b : f32[8]
    %1 = gelu %0 : f32[n, 8]               ->      %1 = com.microsoft.BiasGelu %x, %b : f32[n, 8]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .base import RulePass
from .driver import apply_rules
from .fuse_for_onnxruntime_activations import ACTIVATION_RULES, NEVER_WIDE, WIDE, OwnGelu, activation_rules
from .fuse_for_onnxruntime_attention import ATTENTION_RULES, RuntimeAttention
from .fuse_for_onnxruntime_norms import NORM_RULES, OwnRmsNorm, SumOfThree, norm_rules
from .fuse_for_onnxruntime_products import PREPARING_RULES, PRODUCT_RULES
from .fuse_for_onnxruntime_rotary import RuntimeRotary

if TYPE_CHECKING:
    from ..graph.module import Module
    from .context import PassContext


@dataclass(frozen=True)
class FuseForOnnxRuntime(RulePass):
    """Use the operators of ONNX Runtime."""

    name = "fuse-for-onnxruntime"
    exactness = "reassociates"
    fuses = True
    after = ("fuse-attention",)
    rules = (
        *PREPARING_RULES,
        *ATTENTION_RULES,
        *NORM_RULES,
        *ACTIVATION_RULES,
        *PRODUCT_RULES,
        SumOfThree,
        RuntimeRotary,
        OwnGelu,
        OwnRmsNorm,
    )

    fast: bool = False
    functions: bool = False  # what the opset lacks becomes a function, so what the standard names needs no other name

    def run(self, module: Module, context: PassContext) -> bool:
        # Attention first, for it takes projections apart; last what stands for one operator alone.
        changed = apply_rules(module, PREPARING_RULES, context)
        opset = module.opsets.get("", 1)
        changed |= apply_rules(module, (RuntimeAttention(opset, only_projected=self.functions),), context)
        # Functions are taken apart again, so there time is not the point.
        wide = 0 if self.fast else NEVER_WIDE if self.functions else WIDE
        fused = (*norm_rules(wide), *activation_rules(wide))
        changed |= apply_rules(module, (*PREPARING_RULES, *fused, *PRODUCT_RULES), context)
        own = () if self.functions else (RuntimeRotary(opset), OwnGelu(opset), OwnRmsNorm(opset))
        return apply_rules(module, (SumOfThree, *own), context) or changed


__all__ = ["FuseForOnnxRuntime"]
