"""`HostValue`: what a run gave, with the questions that `onnxruntime.OrtValue` answers; types in ONNX's words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..graph import types
from ..graph.dtypes import DType
from ..graph.types import TensorType, Type


@dataclass(frozen=True, eq=False)
class HostValue:
    """A value of a type, in host memory."""

    value: Any
    type: Type

    def __repr__(self) -> str:
        return f"<HostValue {self.data_type()}{f' {self.shape()}' if self.is_tensor() else ''}>"

    def numpy(self) -> Any:
        """The array itself, not a copy; a list for a sequence."""
        return self.value

    def data_type(self) -> str:
        return type_text(self.type)

    def element_type(self) -> int:
        """The number in `TensorProto.DataType`; 0 for what is no tensor."""
        return self.type.dtype.onnx_code if isinstance(self.type, TensorType) else 0

    def shape(self) -> list[int]:
        return list(self.value.shape)

    def data_ptr(self) -> int:
        return int(self.value.ctypes.data)

    def device_name(self) -> str:
        return "cpu"

    def has_value(self) -> bool:
        """Whether an optional value is there."""
        return self.value is not None

    def is_tensor(self) -> bool:
        return isinstance(self.value, np.ndarray)


def type_text(type: Type) -> str:
    """A type in the words of ONNX's operator specification: `tensor(float)`, `seq(tensor(int64))`."""
    if isinstance(type, TensorType):
        return f"tensor({_dtype_text(type.dtype)})"
    if isinstance(type, types.SparseTensorType):
        return f"sparse_tensor({_dtype_text(type.dtype)})"
    if isinstance(type, types.SequenceType):
        return f"seq({type_text(type.element)})"
    if isinstance(type, types.OptionalType):
        return f"optional({type_text(type.element)})"
    if isinstance(type, types.MapType):
        return f"map({_dtype_text(type.key)},{type_text(type.value)})"
    return str(type)


def _dtype_text(dtype: DType) -> str:
    from onnx import TensorProto

    return str(TensorProto.DataType.Name(dtype.onnx_code)).lower()
