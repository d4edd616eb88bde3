"""Element types: one `DType` per ONNX tensor element type, with its numpy counterpart.

Low-precision types come from `ml_dtypes`; 4-bit and 2-bit types are unpacked to one element per byte in numpy and
packed only in storage (ONNX spec, "TensorProto.raw_data").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from .types import TensorType


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """An element type. `name` is its short text form, `onnx_code` its `TensorProto.DataType`, `bits` its storage
    width (0 for strings), `kind` one of "float", "int", "uint", "bool", "complex", "string"."""

    name: str
    onnx_code: int
    numpy: np.dtype
    bits: int
    kind: str

    def __getitem__(self, dims: object) -> TensorType:
        """`f32[2, "n"]` is a tensor type; `f32[()]` a scalar; `f32[...]` an unranked one. A str names a symbol."""
        from .types import tensor_type_of

        return tensor_type_of(self, dims)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (by_name, (self.name,))

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    def storage_bytes(self, elements: int) -> int:
        """Bytes that `elements` values take when packed as ONNX stores them."""
        return (elements * self.bits + 7) // 8


def _dtype(name: str, code: int, numpy_type: object, bits: int, kind: str) -> DType:
    return DType(name, code, np.dtype(numpy_type), bits, kind)  # type: ignore[call-overload]


f32 = _dtype("f32", 1, np.float32, 32, "float")
u8 = _dtype("u8", 2, np.uint8, 8, "uint")
i8 = _dtype("i8", 3, np.int8, 8, "int")
u16 = _dtype("u16", 4, np.uint16, 16, "uint")
i16 = _dtype("i16", 5, np.int16, 16, "int")
i32 = _dtype("i32", 6, np.int32, 32, "int")
i64 = _dtype("i64", 7, np.int64, 64, "int")
string = _dtype("string", 8, object, 0, "string")
bool_ = _dtype("bool", 9, np.bool_, 8, "bool")
f16 = _dtype("f16", 10, np.float16, 16, "float")
f64 = _dtype("f64", 11, np.float64, 64, "float")
u32 = _dtype("u32", 12, np.uint32, 32, "uint")
u64 = _dtype("u64", 13, np.uint64, 64, "uint")
c64 = _dtype("c64", 14, np.complex64, 64, "complex")
c128 = _dtype("c128", 15, np.complex128, 128, "complex")
bf16 = _dtype("bf16", 16, ml_dtypes.bfloat16, 16, "float")
f8e4m3fn = _dtype("f8e4m3fn", 17, ml_dtypes.float8_e4m3fn, 8, "float")
f8e4m3fnuz = _dtype("f8e4m3fnuz", 18, ml_dtypes.float8_e4m3fnuz, 8, "float")
f8e5m2 = _dtype("f8e5m2", 19, ml_dtypes.float8_e5m2, 8, "float")
f8e5m2fnuz = _dtype("f8e5m2fnuz", 20, ml_dtypes.float8_e5m2fnuz, 8, "float")
u4 = _dtype("u4", 21, ml_dtypes.uint4, 4, "uint")
i4 = _dtype("i4", 22, ml_dtypes.int4, 4, "int")
f4e2m1 = _dtype("f4e2m1", 23, ml_dtypes.float4_e2m1fn, 4, "float")
f8e8m0 = _dtype("f8e8m0", 24, ml_dtypes.float8_e8m0fnu, 8, "float")
u2 = _dtype("u2", 25, ml_dtypes.uint2, 2, "uint")
i2 = _dtype("i2", 26, ml_dtypes.int2, 2, "int")
f6e2m3 = _dtype("f6e2m3", 27, ml_dtypes.float6_e2m3fn, 6, "float")
f6e3m2 = _dtype("f6e3m2", 28, ml_dtypes.float6_e3m2fn, 6, "float")

ALL: tuple[DType, ...] = (
    f32, u8, i8, u16, i16, i32, i64, string, bool_, f16, f64, u32, u64, c64, c128, bf16,
    f8e4m3fn, f8e4m3fnuz, f8e5m2, f8e5m2fnuz, u4, i4, f4e2m1, f8e8m0, u2, i2,
    f6e2m3, f6e3m2,
)  # fmt: skip
BY_NAME: dict[str, DType] = {dtype.name: dtype for dtype in ALL}
BY_ONNX_CODE: dict[int, DType] = {dtype.onnx_code: dtype for dtype in ALL}
_BY_NUMPY: dict[np.dtype, DType] = {dtype.numpy: dtype for dtype in ALL if dtype is not string}


def by_name(name: str) -> DType:
    """The `DType` called `name`; raises KeyError for an unknown name."""
    return BY_NAME[name]


def from_numpy(dtype: np.dtype) -> DType:
    """The `DType` of a numpy dtype; any kind of string array counts as `string`. Raises TypeError for others."""
    if dtype.kind in "OUS" or dtype.kind == "T":
        return string
    found = _BY_NUMPY.get(dtype.newbyteorder("=") if dtype.byteorder in "<>" else dtype)
    if found is None:
        raise TypeError(f"numpy dtype {dtype} has no ONNX element type; cast the array to one of {list(BY_NAME)}")
    return found
