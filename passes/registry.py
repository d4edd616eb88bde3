"""Names of passes. Built-in passes are a static table, so that naming one imports only its own module."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..graph.diagnostics import UsageError
from .base import Pass

if TYPE_CHECKING:
    from .rules import AnyRule

# name -> "module:Class", relative to this package; a test imports them all and compares names.
BUILTIN: dict[str, str] = {
    "bind-dims": "bind_dims:BindDims",
    "byte-tables": "byte_tables:ByteTables",
    "cancel-transposes": "cancel_transposes:CancelTransposes",
    "collapse-batch": "collapse_batch:CollapseBatch",
    "conv-to-gemm": "conv_to_gemm:ConvToGemm",
    "cse": "cse:CommonSubexpressions",
    "cut": "cut:Cut",
    "dce": "dce:DeadCode",
    "drop-expands": "drop_expands:DropExpands",
    "drop-zero-states": "drop_zero_states:DropZeroStates",
    "drop-zero-terms": "drop_zero_terms:DropZeroTerms",
    "expand-gradient": "training.expand_gradient:ExpandGradient",
    "expand-legacy": "expand_legacy:ExpandLegacy",
    "fold": "fold:FoldConstants",
    "fold-batch-norm": "fold_batch_norm:FoldBatchNorm",
    "fold-into-gemm": "fold_into_gemm:FoldIntoGemm",
    "fold-pads": "fold_pads:FoldPads",
    "fold-scale-shift": "fold_scale_shift:FoldScaleShift",
    "fuse-attention": "fuse_attention:FuseAttention",
    "fuse-for-onnxruntime": "fuse_for_onnxruntime:FuseForOnnxRuntime",
    "fuse-kernels": "fuse_kernels:FuseKernels",
    "fuse-rows": "fuse_rows:FuseRows",
    "gathers-to-split": "gathers_to_split:GathersToSplitPass",
    "gradient": "training.gradient:Gradient",
    "infer-shapes": "infer_shapes:InferShapes",
    "inline-functions": "inline_functions:InlineFunctions",
    "integer-products": "integer_products:IntegerProducts",
    "lower-to-kernels": "lower_to_kernels:LowerToKernels",
    "matmul-to-gemm": "matmul_to_gemm:MatMulToGemm",
    "merge-casts": "merge_casts:MergeCasts",
    "merge-products": "merge_products:MergeProducts",
    "merge-reshapes": "merge_reshapes:MergeReshapes",
    "merge-siblings": "merge_siblings:MergeSiblings",
    "merge-slices": "merge_slices:MergeSlices",
    "merge-squeezes": "merge_squeezes:MergeSqueezes",
    "merge-transposes": "merge_transposes:MergeTransposes",
    "no-ops": "no_ops:NoOps",
    "recompose-clip": "recompose_clip:RecomposeClip",
    "recompose-depth-to-space": "recompose_depth_to_space:RecomposeDepthToSpace",
    "recompose-gelu": "recompose_gelu:RecomposeGelu",
    "recompose-group-norm": "recompose_group_norm:RecomposeGroupNorm",
    "recompose-hard-swish": "recompose_hard_swish:RecomposeHardSwish",
    "recompose-layer-norm": "recompose_layer_norm:RecomposeLayerNorm",
    "recompose-mean": "recompose_mean:RecomposeMean",
    "recompose-mish": "recompose_mish:RecomposeMish",
    "recompose-rotary": "recompose_rotary:RecomposeRotary",
    "recompose-softmax": "recompose_softmax:RecomposeSoftmax",
    "recompose-swish": "recompose_swish:RecomposeSwish",
    "rematerialize": "training.rematerialize:Rematerialize",
    "remove-identity": "remove_identity:RemoveIdentity",
    "share-initializers": "share_initializers:ShareInitializers",
    "share-kernels": "share_kernels:ShareKernels",
    "simplify-arithmetic": "simplify_arithmetic:SimplifyArithmetic",
    "simplify-if": "simplify_if:SimplifyIf",
    "simplify-loops": "simplify_loops:SimplifyLoops",
    "simplify-shapes": "simplify_shapes:SimplifyShapes",
    "unroll-loops": "unroll_loops:UnrollLoops",
}

# A letter or two are in the name of almost every rule.
MOST_HINTS = 16

_registered: dict[str, type[Pass]] = {}


def register(cls: type[Pass]) -> type[Pass]:
    """Class decorator: make a pass of another package usable in pipeline text.

    Raises UsageError if its name is missing or taken.
    """
    if not cls.name:
        raise UsageError("pass/name", f"{cls.__name__} has no name")
    if cls.name in BUILTIN or cls.name in _registered:
        raise UsageError("pass/name", f"there is a pass called {cls.name!r} already")
    _registered[cls.name] = cls
    return cls


def unregister(name: str) -> None:
    """Forget a registered pass (for tests and interactive use)."""
    del _registered[name]


def pass_class(name: str) -> type[Pass]:
    """The pass called `name`. Raises UsageError, with the nearest names, if there is none."""
    if name in _registered:
        return _registered[name]
    target = BUILTIN.get(name)
    if target is None:
        near = difflib.get_close_matches(name, names(), 3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"the passes are: {', '.join(names())}"
        raise UsageError("pipeline/unknown-pass", f"there is no pass called {name!r}", notes=[hint])
    module_name, _, class_name = target.partition(":")
    found = getattr(importlib.import_module(f".{module_name}", __package__), class_name)
    assert isinstance(found, type)
    assert issubclass(found, Pass)
    return found


def rule_class(name: str) -> type[AnyRule]:
    """The rule called `name`, among those of all passes. Raises UsageError, with the nearest names, for another."""
    by_pass = {each: getattr(pass_class(each), "rules", ()) for each in names()}
    rules = {rule.name: rule for found in by_pass.values() for rule in found}
    if name not in rules and name in by_pass:
        own = ", ".join(rule.name for rule in by_pass[name])
        hint = f"its rules are: {own}" if own else "it has no rules"
        raise UsageError("rule/unknown", f"{name!r} is a pass, not a rule", notes=[hint])
    if name not in rules:
        near = _like(name, rules, by_pass)
        more = f" or one of {len(near) - MOST_HINTS} more" if len(near) > MOST_HINTS else ""
        hint = f"did you mean {' or '.join(near[:MOST_HINTS])}{more}?"
        if not near:
            hint = f"the rules are: {', '.join(sorted(rules))}"
        raise UsageError("rule/unknown", f"there is no rule called {name!r}", notes=[hint])
    found: type[AnyRule] = rules[name]
    return found


def _like(name: str, rules: Mapping[str, type[AnyRule]], by_pass: Mapping[str, Sequence[type[AnyRule]]]) -> list[str]:
    """Rules whose name, or whose pass's, has `name` in it, dashes aside, or is spelled like it; else those that speak
    of it."""
    word = _bare(name)
    if not word:
        return []
    within = [rule.name for each, found in by_pass.items() if word in _bare(each) for rule in found]
    within += [each for each in sorted(rules) if word in _bare(each)]
    near = list(dict.fromkeys([*within, *difflib.get_close_matches(name, rules, 3)]))
    return near or [each for each in sorted(rules) if word in _bare(rules[each].__doc__ or "")]


def _bare(text: str) -> str:
    return "".join(character for character in text.lower() if character.isalnum())


def names() -> list[str]:
    """The names of all passes, sorted."""
    return sorted((*BUILTIN, *_registered))
