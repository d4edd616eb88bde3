"""The operators of ONNX Runtime (com.microsoft): what its offline optimizer and its quantizer write into files.

Types are inferred, and most decompose into standard operators, so that such a file runs, folds and can be written for
other runtimes. A node with inputs or attributes that are not known here is carried through untouched.
"""

from . import (
    activations,
    attention,
    blocked,
    convolution,
    data,
    grouped_attention,
    matmul,
    normalization,
    qlinear,
    quantized,
    weight_only,
)

__all__ = [
    "activations", "attention", "blocked", "convolution", "data", "grouped_attention", "matmul", "normalization",
    "qlinear", "quantized", "weight_only",
]  # fmt: skip
