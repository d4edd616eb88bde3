"""Generators of kernels: Python functions that build functions of the level "loop"."""
