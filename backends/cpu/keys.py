"""Keys of kernels as texts, which lead to what is on disk."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np

from ...graph.dtypes import DType


def spelled(key: Any) -> str:
    """`key` as a text that no other one has; empty if something in it is not plain data."""
    if key is None or isinstance(key, bool | int | float | str | bytes | Enum):
        return f"{type(key).__name__}:{key!r}"
    if isinstance(key, np.integer):
        return f"int:{int(key)}"
    if isinstance(key, DType):
        return f"dtype:{key.name}"
    if isinstance(key, tuple):
        parts = [spelled(part) for part in key]
        return f"({','.join(parts)})" if all(parts) else ""
    if is_dataclass(key):
        parts = [spelled(getattr(key, each.name)) for each in fields(key)]
        return f"{type(key).__qualname__}({','.join(parts)})" if all(parts) else ""
    return ""
