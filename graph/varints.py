"""How ONNX files store integers: raw, or each in as many bytes as it needs (protobuf encoding, "Base 128 Varints").

A shape such as [2, 16, 4, 8] takes 32 bytes raw and 4 as varints.
"""

from __future__ import annotations

from . import dtypes
from .data import SparseData, TensorData, UnresolvedData

# Where onnx.proto has integers encoded by their size, and up to how many raw bytes counting is worth the time.
VARINT_FIELDS = {
    dtypes.i32: "int32_data",
    dtypes.i64: "int64_data",
    dtypes.u32: "uint64_data",
    dtypes.u64: "uint64_data",
}
MAX_VARINT_BYTES = 1024
# A negative number takes ten bytes, whatever its type.
NEGATIVE_BYTES = 10


def encoded_bytes(data: TensorData) -> int:
    """Bytes of the elements in the shorter of the two forms."""
    if data.dtype not in VARINT_FIELDS or data.nbytes > MAX_VARINT_BYTES:
        return data.nbytes
    if isinstance(data, SparseData | UnresolvedData):
        return data.nbytes
    return min(data.nbytes, sum(map(varint_bytes, data.numpy().ravel().tolist())))


def varint_bytes(value: int) -> int:
    """Bytes of one number as a varint."""
    return NEGATIVE_BYTES if value < 0 else max(-(-value.bit_length() // 7), 1)
