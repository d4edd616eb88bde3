"""The operators, one file per family. Importing this package registers them all; it must stay light (no numerics).

Apart from them, and loaded when first asked for, are `legacy` (old forms of operators) and `microsoft` (operators of
ONNX Runtime).
"""

from . import (
    attention,
    control,
    convolution,
    elementwise,
    generators,
    indexing,
    matmul,
    ml,
    movement,
    normalization,
    quantize,
    recurrent,
    reduction,
    resample,
    reshape,
    sequence,
    shape,
    signal,
    strings,
    structural,
    training,
)

__all__ = [
    "attention", "control", "convolution", "elementwise", "generators", "indexing", "matmul", "ml", "movement",
    "normalization", "quantize", "recurrent", "reduction", "resample", "reshape", "sequence", "shape", "signal",
    "strings", "structural", "training",
]  # fmt: skip
