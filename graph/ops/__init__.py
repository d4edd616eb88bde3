"""The operators, one file per family. Importing this package registers them all; it must stay light (no numerics)."""

from . import structural

__all__ = ["structural"]
