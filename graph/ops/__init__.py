"""The operators, one file per family. Importing this package registers them all; it must stay light (no numerics)."""

from . import (
    attention,
    control,
    convolution,
    elementwise,
    generators,
    indexing,
    matmul,
    microsoft,
    ml,
    movement,
    normalization,
    quantize,
    recurrent,
    reduction,
    resample,
    sequence,
    shape,
    strings,
    structural,
)

__all__ = [
    "attention", "control", "convolution", "elementwise", "generators", "indexing", "matmul", "microsoft", "ml",
    "movement", "normalization", "quantize", "recurrent", "reduction", "resample", "sequence", "shape", "strings",
    "structural",
]  # fmt: skip
