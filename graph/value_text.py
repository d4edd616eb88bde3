"""The text of an attribute or metadata value; `value_parser` reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .core import AttributeReference
from .data import TensorData
from .literals import bytes_text, float_text, quote
from .names import word
from .types import Type


def value_text(value: Any, tensor: Callable[[TensorData], str], by_key: bool = False) -> str:
    """`3`, `1.0`, `"text"`, `[1, 2]`, `{"a": none}`, `$alpha: float`, ...; tensors, sparse ones too, as `tensor` says.

    `by_key` sorts the entries of dicts. Values have the same text only if they are the same (all NaNs are one). Raises
    TypeError for a kind of value that the IR does not have.
    """
    if value is None:
        return "none"
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, int | np.integer):
        return str(int(value))
    if isinstance(value, float | np.floating):
        return float_text(float(value))
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, bytes):
        return bytes_text(value)
    if isinstance(value, AttributeReference):
        return f"${word(value.name)}: {value.kind}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(value_text(item, tensor, by_key) for item in value)}]"
    if isinstance(value, dict):
        keys = sorted(value) if by_key else value
        return f"{{{', '.join(f'{quote(key)}: {value_text(value[key], tensor, by_key)}' for key in keys)}}}"
    if isinstance(value, TensorData):
        return tensor(value)
    if isinstance(value, Type):
        return str(value)
    raise TypeError(f"{value!r} cannot be an attribute or metadata, it has no text form")
