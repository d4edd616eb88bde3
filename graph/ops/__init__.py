"""The operators, one file per family. Importing this package registers them all; it must stay light (no numerics)."""

from . import convolution, elementwise, matmul, movement, normalization, shape, structural

__all__ = ["convolution", "elementwise", "matmul", "movement", "normalization", "shape", "structural"]
