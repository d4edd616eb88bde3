"""The preset pipelines, as text: what `optimize -O LEVEL` runs. A preset's name can stand in any pipeline.

O0 leaves the model as it is. O1 makes only bit-exact rewrites. O2 also reassociates floating-point arithmetic (such as
folding a batch normalization into a convolution) and recomposes fused standard operations. O3 also makes rewrites with
a stated error, that take more time to compile, or that pay for some models only.
"""

from __future__ import annotations

from .base import Exactness

# Bit-exact: what depends on nothing that changes at run time, what gives back its operand, what is done twice.
_SIMPLIFY = (
    "fold,no-ops,merge-casts,merge-reshapes,merge-slices,merge-squeezes,simplify-shapes,simplify-arithmetic,"
    "drop-expands,drop-zero-states,cse,dce,infer-shapes"
)
_CLEANUP = (
    "inline-functions,expand-gradient,expand-legacy{only-single=true},infer-shapes,remove-identity,"
    f"repeat(max=8){{simplify-if,simplify-loops,unroll-loops,{_SIMPLIFY}}}"
)
_LAST = "share-initializers,dce"
# Bit-exact, too, but only worth a visit after the cleanup. Two transposes that cancel hide from others what they share.
_EXACT = "fold-pads,gathers-to-split,dce,merge-transposes,cancel-transposes,merge-transposes"
# Fused operators of the standard from what exporters make of them. Any order finds the same, but that what one pass
# makes another may read: normalizations before groups of them, bounds before the lines that they clip.
_RECOMPOSE = (
    "recompose-clip,recompose-layer-norm,recompose-group-norm,recompose-gelu,recompose-hard-swish,recompose-mish,"
    "recompose-swish,recompose-softmax,recompose-rotary,recompose-depth-to-space,recompose-mean,dce"
)
# Rounds differently: what constant factors and terms can be put into weights, and what row by row work is a Gemm.
# A factor may be 0, and leave a bias of zeros.
_FOLDING = (
    f"drop-zero-terms,{_RECOMPOSE},"
    "repeat(max=4){fold-batch-norm,fold-scale-shift,fold-pads,merge-products,drop-zero-terms},dce"
)
# A scale that Attention does not take is a factor of the queries.
_GEMM = "matmul-to-gemm,fold-scale-shift,merge-products,fuse-attention,fold-scale-shift,fold-into-gemm,dce"
_FUSION = f"{_FOLDING},collapse-batch,merge-reshapes,{_GEMM}"
# ONNX Runtime's products take any number of dims, and its fused operators the bias of the product before them.
_FUSION_FOR_ONNXRUNTIME = f"{_FOLDING},{_GEMM}"
# Functions that an earlier run made for the same opset are calls already.
_CLEANUP_FOR_FUNCTIONS = _CLEANUP.replace("inline-functions", "inline-functions{keep=tilewright}")
_FUSION_FOR_FUNCTIONS = _FUSION_FOR_ONNXRUNTIME.replace("fuse-attention", "fuse-attention{whole=true}")
_TIDY = "fold,merge-reshapes,merge-squeezes,simplify-shapes,cse,dce"


def _levels(suffix: str, cleanup: str, fusion: str, own: str = "", own_fast: str = "") -> dict[str, str]:
    """The pipelines of all levels. `own` is what level 2 does in the end, and `own_fast` level 3."""
    return {
        f"O0{suffix}": "",
        f"O1{suffix}": f"{cleanup},{_EXACT},{_LAST}",
        f"O2{suffix}": ",".join(filter(None, (cleanup, _EXACT, fusion, cleanup, own, _LAST))),
        f"O3{suffix}": ",".join(filter(None, (cleanup, _EXACT, fusion, "merge-siblings", cleanup, own_fast, _LAST))),
    }


PRESETS: dict[str, str] = {
    "recompose": _RECOMPOSE,
    # What fused operators became on writing, and what is around it; functions and control flow stay.
    "tidy": f"infer-shapes,remove-identity,repeat(max=8){{{_SIMPLIFY}}},merge-transposes,share-initializers,dce",
    **_levels("", _CLEANUP, _FUSION),
    **_levels(
        "-onnxruntime",
        _CLEANUP,
        _FUSION_FOR_ONNXRUNTIME,
        f"fuse-for-onnxruntime,{_TIDY}",
        f"fuse-for-onnxruntime{{fast=true}},{_TIDY}",
    ),
    **_levels(
        "-functions",
        _CLEANUP_FOR_FUNCTIONS,
        _FUSION_FOR_FUNCTIONS,
        f"fuse-for-onnxruntime{{functions=true}},{_TIDY}",
        f"fuse-for-onnxruntime{{fast=true functions=true}},{_TIDY}",
    ),
}


def preset(level: int, target: str = "onnx", functions: bool = False) -> str:
    """The name of the preset that `optimize` runs at a level for a target.

    With `functions`, those of ONNX Runtime are used for any target, as they become functions of the model.
    """
    named = "functions" if functions and target == "onnx" else target
    return f"O{level}" if named == "onnx" else f"O{level}-{named}"


# The least exact kind of rewrite that a level permits.
EXACTNESS: dict[int, Exactness] = {0: "bit-exact", 1: "bit-exact", 2: "reassociates", 3: "approximate"}
