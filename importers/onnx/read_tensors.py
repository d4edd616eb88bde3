"""Read tensors without copying them: a large content stays in the mapped file until somebody needs its numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.message import Message
from onnx import SparseTensorProto, TensorProto

from ...graph import dtypes
from ...graph.core import Metadata
from ...graph.data import ArrayData, MappedData, MappedFile, SparseData, TensorData, from_raw
from ...graph.diagnostics import ModelError
from ...graph.onnx_values import check_dims, sparse_data, tensor_data
from .external import ExternalFiles
from .residual import Modelled
from .wire import MARKER_BYTES, Buffer, Payload, marker_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_CONTENT = (
    "dims", "data_type", "float_data", "int32_data", "string_data", "int64_data", "raw_data", "external_data",
    "data_location", "double_data", "uint64_data", "name",
)  # fmt: skip
_USUAL_NUMBERS = Modelled(TensorProto, _CONTENT).numbers
_TENSOR = Modelled(TensorProto, (*_CONTENT, "doc_string", "metadata_props"))
# Dtypes whose elements lie in a packed typed field exactly as in raw_data.
_RAW_LIKE = {"float_data": (dtypes.f32, dtypes.c64), "double_data": (dtypes.f64, dtypes.c128)}


class TensorReader:
    """Makes `TensorData` of the tensors of one model.

    `buffer` is the model's encoding, from which `payloads` were cut (see wire.py), `file` the mapped file it lies in
    (None for a model that came as bytes), `external` where data files are looked for.
    """

    def __init__(
        self,
        external: ExternalFiles,
        payloads: Sequence[Payload] = (),
        buffer: Buffer = b"",
        file: MappedFile | None = None,
    ) -> None:
        self.external = external
        self.payloads = payloads
        self.file = file
        self._view = memoryview(buffer)
        self._mapped: dict[Path, MappedFile] = {}

    def tensor(self, proto: TensorProto) -> TensorData:
        """The constant that `proto` describes. Raises ModelError if it is malformed or its data cannot be found."""
        if proto.data_location != TensorProto.EXTERNAL:
            return tensor_data(proto)
        dtype = dtypes.BY_ONNX_CODE.get(proto.data_type)
        if dtype is None:
            raise ModelError(
                "onnx/tensor-dtype", f"tensor {proto.name!r} has the unknown element type {proto.data_type}"
            )
        shape = tuple(proto.dims)
        check_dims(proto.name, shape)
        if dtype is dtypes.string:
            raise ModelError("onnx/external-strings", f"tensor {proto.name!r}: strings are never external data")
        try:
            return self._located(proto, dtype, shape, dtype.storage_bytes(math.prod(shape)))
        except ModelError as error:
            if error.code == "onnx/tensor-size":
                raise ModelError("onnx/tensor-size", f"tensor {proto.name!r}: {error.diagnostics[0].message}") from None
            raise

    def sparse(self, proto: SparseTensorProto) -> SparseData:
        return sparse_data(proto, self.tensor)

    def filled(self, encoded: bytes, kind: type[Message]) -> bytes:
        """An encoded message in which tensors hold their content again, instead of a marker for what was cut out."""
        if MARKER_BYTES not in encoded:
            return encoded
        message = kind()
        message.ParseFromString(encoded)
        for tensor in _tensors_in(message):
            marker = marker_of(tensor)
            if marker is not None:
                payload = self.payloads[marker.payload]
                tensor.ClearField("external_data")
                tensor.ClearField("data_location")
                # The packed typed fields have raw_data's layout.
                tensor.raw_data = bytes(self._view[payload.offset : payload.offset + payload.length])
        return message.SerializeToString(deterministic=True)

    def _located(self, proto: TensorProto, dtype: dtypes.DType, shape: tuple[int, ...], expected: int) -> TensorData:
        marker = marker_of(proto)
        if marker is None:
            found = self.external.of_tensor(proto, expected)
            file = self._mapped.get(found.path)
            if file is None:
                file = self._mapped[found.path] = MappedFile.open(found.path)
            return MappedData(file, found.offset, found.length, dtype, shape)
        if marker.field in _RAW_LIKE and dtype not in _RAW_LIKE[marker.field]:
            raise ModelError(
                "onnx/tensor-field", f"tensor {proto.name!r} of {dtype} keeps its elements in {marker.field}"
            )
        payload = self.payloads[marker.payload]
        if self.file is not None:
            return MappedData(self.file, payload.offset, payload.length, dtype, shape)
        if payload.length != expected:
            raise ModelError("onnx/tensor-size", f"{list(shape)} of {dtype} is {expected} bytes, not {payload.length}")
        raw = self._view[payload.offset : payload.offset + payload.length]
        return ArrayData(from_raw(raw, dtype, shape), dtype)


def tensor_facts(proto: TensorProto, named: bool) -> Metadata:
    """What `proto` says besides its content: `doc_string`, `metadata_props`, `residual`, and, if `named`, its name."""
    facts: Metadata = {}
    if {field.number for field, _ in proto.ListFields()} <= _USUAL_NUMBERS and not (named and proto.name):
        return facts
    if named and proto.name:
        facts["name"] = proto.name
    if proto.doc_string:
        facts["doc_string"] = proto.doc_string
    if proto.metadata_props:
        facts["metadata_props"] = {entry.key: entry.value for entry in proto.metadata_props}
    rest = _TENSOR.leftover(proto, look_for_unknown=False)
    if rest:
        facts["residual"] = rest
    return facts


def _tensors_in(message: Message) -> Iterator[TensorProto]:
    """All tensors at any depth of `message`."""
    stack = [message]
    while stack:
        current = stack.pop()
        if isinstance(current, TensorProto):
            yield current
            continue
        for _, value in current.ListFields():
            if isinstance(value, Message):
                stack.append(value)
            elif hasattr(value, "extend") and len(value) and isinstance(value[0], Message):
                stack.extend(value)


def sparse_facts(proto: SparseTensorProto, named: bool) -> Metadata:
    """As `tensor_facts`; what concerns the indices is under "indices"."""
    facts = tensor_facts(proto.values, named)
    indices = tensor_facts(proto.indices, named=True)
    return {**facts, "indices": indices} if indices else facts
