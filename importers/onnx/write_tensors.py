"""Write tensors: small ones inside the message, large ones as markers whose content is streamed later (stream.py)."""

from __future__ import annotations

from onnx import SparseTensorProto, TensorProto

from ...graph import dtypes
from ...graph.core import Metadata
from ...graph.data import SparseData, TensorData
from ...graph.onnx_values import tensor_proto
from . import wire
from .facts import write_facts


class TensorWriter:
    """Makes TensorProtos. With `inline`, all content is inside; else content above the threshold goes to `sources`.

    The marker in a message names the position of its content in `sources`, which holds each constant once.
    """

    def __init__(self, inline: bool) -> None:
        self.inline = inline
        self.sources: list[TensorData] = []
        self.dtypes: set[dtypes.DType] = set()
        self._indices: dict[int, int] = {}

    def tensor(self, data: TensorData, name: str = "", facts: Metadata | None = None) -> TensorProto:
        """`data` as a message; `facts` are what the file said besides (see read_tensors.tensor_facts)."""
        self.dtypes.add(data.dtype)
        if self.inline or data.dtype is dtypes.string or data.nbytes <= wire.THRESHOLD:
            proto = tensor_proto(data, name)
        else:
            proto = TensorProto(data_type=data.dtype.onnx_code, dims=data.shape)
            if name:
                proto.name = name
            wire.mark(proto, self._index(data))
        if facts:
            _add_facts(proto, facts)
        return proto

    def sparse(self, data: SparseData, name: str = "", facts: Metadata | None = None) -> SparseTensorProto:
        facts = facts or {}
        return SparseTensorProto(
            values=self.tensor(data.values, name, facts),
            indices=self.tensor(data.indices, "", facts.get("indices")),
            dims=data.shape,
        )

    def _index(self, data: TensorData) -> int:
        index = self._indices.get(id(data))
        if index is None:
            index = self._indices[id(data)] = len(self.sources)
            self.sources.append(data)
        return index


def _add_facts(proto: TensorProto, facts: Metadata) -> None:
    if facts.get("name"):
        proto.name = facts["name"]
    write_facts(proto, facts)
