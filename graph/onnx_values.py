"""Conversion between ONNX's protobuf messages and IR values: tensors, types, attributes. No graph structure here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, TypeProto

from . import dtypes, types
from .core import AttributeReference, AttributeValue
from .data import ArrayData, SparseData, TensorData, from_raw
from .diagnostics import ModelError
from .dims import Dim, FreshSymbols, is_symbol, label_of, symbol
from .types import Type
from .varints import VARINT_FIELDS, encoded_bytes

# Elements that no machine can address; a file that declares more is damaged or hostile.
MAX_ELEMENTS = 2**62
# numpy's limit.
MAX_RANK = 64

# ---- tensors ---------------------------------------------------------------------------------------------------------


def tensor_data(proto: TensorProto) -> TensorData:
    """The constant that `proto` stores inside itself. Raises ModelError if its content does not fit its dims."""
    dtype = dtypes.BY_ONNX_CODE.get(proto.data_type)
    if dtype is None:
        raise ModelError("onnx/tensor-dtype", f"tensor {proto.name!r} has element type {proto.data_type}, unknown here")
    shape = tuple(proto.dims)
    check_dims(proto.name, shape)
    if proto.data_location == TensorProto.EXTERNAL:
        raise ModelError(
            "onnx/external-without-folder",
            f"the data of tensor {proto.name!r} lies outside of the model, in a file that cannot be found from bytes",
            notes=["load the model by its path"],
        )
    if dtype is dtypes.string:
        return _string_data(proto, shape)
    if proto.HasField("raw_data"):
        _check_size(proto, dtype.storage_bytes(_elements(shape)), len(proto.raw_data), "bytes")
        return ArrayData(from_raw(proto.raw_data, dtype, shape), dtype)
    return ArrayData(_typed_array(proto, dtype, shape), dtype)


def check_dims(name: str, shape: tuple[int, ...]) -> None:
    """Raise ModelError for dims that no stored tensor can have."""
    if any(dim < 0 for dim in shape):
        raise ModelError("onnx/negative-dim", f"tensor {name!r} has a negative dimension: {list(shape)}")
    if len(shape) > MAX_RANK:
        raise ModelError(
            "onnx/tensor-rank", f"tensor {name!r} has {len(shape)} dims, more than the {MAX_RANK} possible"
        )
    # numpy counts bytes, and does so even where a dim is 0; the largest element has 16 = 2**4.
    if _elements(tuple(dim for dim in shape if dim)) > MAX_ELEMENTS >> 4:
        raise ModelError("onnx/huge-shape", f"tensor {name!r} has dims {list(shape)}: more elements than can exist")


def _string_data(proto: TensorProto, shape: tuple[int, ...]) -> TensorData:
    items = np.empty(len(proto.string_data), object)
    for index, item in enumerate(proto.string_data):
        try:
            items[index] = item.decode()
        except UnicodeDecodeError:
            items[index] = bytes(item)
    _check_size(proto, _elements(shape), len(items), "strings")
    return ArrayData(items.reshape(shape), dtypes.string)


# Where a tensor without raw data keeps its elements, and as what; other types are in int32_data.
_TYPED_FIELDS: dict[dtypes.DType, tuple[str, Any]] = {
    dtypes.f32: ("float_data", np.float32),
    dtypes.c64: ("float_data", np.float32),
    dtypes.f64: ("double_data", np.float64),
    dtypes.c128: ("double_data", np.float64),
    dtypes.i64: ("int64_data", np.int64),
    dtypes.u32: ("uint64_data", np.uint64),
    dtypes.u64: ("uint64_data", np.uint64),
}


def _typed_array(proto: TensorProto, dtype: dtypes.DType, shape: tuple[int, ...]) -> np.ndarray:
    """Elements from the typed fields (float_data, int32_data, ...; see TensorProto in onnx.proto)."""
    count = _elements(shape)
    if dtype.bits < 8 and dtype.bits in (2, 4):
        packed = np.array(proto.int32_data, np.int64).astype(np.uint8)
        _check_size(proto, dtype.storage_bytes(count), len(packed), "bytes")
        return from_raw(packed.tobytes(), dtype, shape)
    name, stored = _TYPED_FIELDS.get(dtype, ("int32_data", np.int32))
    field = getattr(proto, name)
    array = np.array(field, stored)
    if dtype.kind == "complex":
        array = array.view(dtype.numpy)
    _check_size(proto, count, array.size, "elements")
    if dtype.is_float and stored is np.int32:
        array = array.astype(np.uint16 if dtype.bits == 16 else np.uint8).view(dtype.numpy)
    return array.astype(dtype.numpy).reshape(shape)


def _elements(shape: tuple[int, ...]) -> int:
    total = 1
    for dim in shape:
        total *= dim
    return total


def _check_size(proto: TensorProto, wanted: int, found: int, unit: str) -> None:
    if wanted != found:
        raise ModelError(
            "onnx/tensor-size",
            f"tensor {proto.name!r} has dims {list(proto.dims)}, so {wanted} {unit}, but stores {found}",
        )


def sparse_data(proto: onnx.SparseTensorProto, tensor: Callable[[TensorProto], TensorData] = tensor_data) -> SparseData:
    """The sparse constant `proto`. Raises ModelError if its parts do not fit together."""
    values, indices, shape = tensor(proto.values), tensor(proto.indices), tuple(proto.dims)
    name, count = proto.values.name, values.elements
    check_dims(name, shape)
    if indices.dtype is not dtypes.i64 or indices.shape not in ((count,), (count, len(shape))):
        raise ModelError(
            "onnx/sparse-indices",
            f"sparse tensor {name!r} of shape {list(shape)} has {count} values and indices {indices.type}",
        )
    limits = np.array(shape if indices.shape == (count, len(shape)) and len(indices.shape) == 2 else _elements(shape))
    positions = indices.numpy()
    if positions.size and (positions.min() < 0 or (positions >= limits).any()):
        raise ModelError("onnx/sparse-indices", f"sparse tensor {name!r} has an index outside of {list(shape)}")
    return SparseData(values, indices, shape)


def tensor_proto(data: TensorData, name: str = "") -> TensorProto:
    """`data` as a TensorProto that holds its content (raw_data, if that is not longer)."""
    proto = TensorProto(data_type=data.dtype.onnx_code, dims=data.shape)
    if name:
        proto.name = name
    if data.dtype is dtypes.string:
        proto.string_data.extend(s if isinstance(s, bytes) else str(s).encode() for s in data.numpy().ravel())
    elif encoded_bytes(data) < data.nbytes:
        getattr(proto, VARINT_FIELDS[data.dtype]).extend(data.numpy().ravel().tolist())
    elif data.nbytes:
        proto.raw_data = bytes(data.raw())
    return proto


def sparse_proto(data: SparseData, name: str = "") -> onnx.SparseTensorProto:
    return onnx.SparseTensorProto(
        values=tensor_proto(data.values, name), indices=tensor_proto(data.indices), dims=data.shape
    )


# ---- types -----------------------------------------------------------------------------------------------------------


def type_from_proto(proto: TypeProto, named: Callable[[str], Dim], symbols: FreshSymbols) -> Type:
    """The type that `proto` declares.

    `named` gives the dim for a `dim_param`; an unset, empty, "?" or "None" name and a negative `dim_value` become
    fresh symbols, for such a file claims nothing.
    """
    kind = proto.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        body = proto.tensor_type if kind == "tensor_type" else proto.sparse_tensor_type
        dtype = dtypes.BY_ONNX_CODE.get(body.elem_type)
        if dtype is None:
            return types.UNKNOWN
        shape = [_dim(dim, named, symbols) for dim in body.shape.dim] if body.HasField("shape") else None
        return types.tensor(dtype, shape) if kind == "tensor_type" else types.sparse(dtype, shape)
    if kind == "sequence_type":
        return types.sequence(type_from_proto(proto.sequence_type.elem_type, named, symbols))
    if kind == "optional_type":
        return types.optional(type_from_proto(proto.optional_type.elem_type, named, symbols))
    if kind == "map_type":
        key = dtypes.BY_ONNX_CODE.get(proto.map_type.key_type)
        if key is None:
            return types.UNKNOWN
        return types.map_of(key, type_from_proto(proto.map_type.value_type, named, symbols))
    if kind == "opaque_type":
        return types.opaque(proto.opaque_type.domain, proto.opaque_type.name)
    return types.UNKNOWN


UNNAMED_DIMS = frozenset({"", "?", "None", "-1"})


def _dim(proto: Any, named: Callable[[str], Dim], symbols: FreshSymbols) -> Dim:
    if proto.HasField("dim_value"):
        return int(proto.dim_value) if proto.dim_value >= 0 else symbols.fresh()
    return symbols.fresh() if proto.dim_param in UNNAMED_DIMS else named(proto.dim_param)


def type_proto(type: Type, label: Callable[[Dim], str] = label_of) -> TypeProto:
    """`type` as ONNX writes it; an unnamed symbol becomes a dim without value, an unknown type an empty message."""
    proto = TypeProto()
    if isinstance(type, types.TensorType | types.SparseTensorType):
        body = proto.tensor_type if isinstance(type, types.TensorType) else proto.sparse_tensor_type
        body.elem_type = type.dtype.onnx_code
        if type.shape is not None:
            body.shape.SetInParent()
            for dim in type.shape:
                _write_dim(body.shape.dim.add(), dim, label)
    elif isinstance(type, types.SequenceType):
        proto.sequence_type.elem_type.CopyFrom(type_proto(type.element, label))
    elif isinstance(type, types.OptionalType):
        proto.optional_type.elem_type.CopyFrom(type_proto(type.element, label))
    elif isinstance(type, types.MapType):
        proto.map_type.key_type = type.key.onnx_code
        proto.map_type.value_type.CopyFrom(type_proto(type.value, label))
    elif isinstance(type, types.OpaqueType):
        proto.opaque_type.domain, proto.opaque_type.name = type.domain, type.name
    return proto


def _write_dim(proto: Any, dim: Dim, label: Callable[[Dim], str]) -> None:
    if isinstance(dim, int):
        proto.dim_value = dim
    elif is_symbol(dim) and not dim.label.startswith("?"):
        proto.dim_param = label(dim)


# ---- attributes ------------------------------------------------------------------------------------------------------

_SCALARS = {AttributeProto.FLOAT: "f", AttributeProto.INT: "i"}
_LISTS = {AttributeProto.FLOATS: "floats", AttributeProto.INTS: "ints"}


def _type_by_name(proto: TypeProto) -> Type:
    return type_from_proto(proto, symbol, FreshSymbols())


def attribute_value(
    proto: AttributeProto,
    tensor: Callable[[TensorProto], TensorData] = tensor_data,
    type_of: Callable[[TypeProto], Type] = _type_by_name,
) -> AttributeValue:
    """The Python value of an attribute that is not a graph. Strings are str, or bytes where they are not UTF-8; lists
    are tuples.

    `tensor` reads tensors (the importer maps them lazily), `type_of` types (alone, equal dim names are equal dims).
    """
    kind = proto.type
    if proto.ref_attr_name:
        return AttributeReference(proto.ref_attr_name, AttributeProto.AttributeType.Name(kind).lower())
    if kind in _SCALARS:
        return getattr(proto, _SCALARS[kind])
    if kind in _LISTS:
        return tuple(getattr(proto, _LISTS[kind]))
    if kind == AttributeProto.STRING:
        return _text(proto.s)
    if kind == AttributeProto.STRINGS:
        return _each_once(_text, proto.strings)
    if kind == AttributeProto.TENSOR:
        return tensor(proto.t)
    if kind == AttributeProto.TENSORS:
        return tuple(tensor(item) for item in proto.tensors)
    if kind == AttributeProto.SPARSE_TENSOR:
        return sparse_data(proto.sparse_tensor, tensor)
    if kind == AttributeProto.SPARSE_TENSORS:
        return tuple(sparse_data(item, tensor) for item in proto.sparse_tensors)
    if kind == AttributeProto.TYPE_PROTO:
        return type_of(proto.tp)
    if kind == AttributeProto.TYPE_PROTOS:
        return tuple(map(type_of, proto.type_protos))
    raise ModelError(
        "onnx/attribute-kind",
        f"attribute {proto.name!r} has type {AttributeProto.AttributeType.Name(kind)}, which is not supported here",
    )


def _each_once(function: Callable[[Any], Any], items: Iterable[Any]) -> tuple[Any, ...]:
    """`function` of each item, computed once for equal ones: a tree ensemble has millions of strings, few different."""
    items = tuple(items)
    results = {item: function(item) for item in set(items)}
    return tuple(map(results.__getitem__, items))


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return bytes(raw)


def attribute_proto(name: str, value: AttributeValue, kind: str | None = None) -> AttributeProto:
    """`value` as an AttributeProto; `kind` settles what an empty tuple or an int in a float's place means."""
    proto = AttributeProto(name=name)
    kind = kind or attribute_kind(value)
    proto.type = getattr(AttributeProto, kind.upper())
    if isinstance(value, AttributeReference):
        proto.ref_attr_name = value.name
    elif kind == "float":
        proto.f = value
    elif kind == "int":
        proto.i = int(value)
    elif kind == "string":
        proto.s = _raw(value)
    elif kind == "floats":
        proto.floats.extend(value)
    elif kind == "ints":
        proto.ints.extend(value if set(map(type, value)) == {int} else map(int, value))
    elif kind == "strings":
        proto.strings.extend(_each_once(_raw, value))
    elif kind == "tensor":
        proto.t.CopyFrom(tensor_proto(value))
    elif kind == "tensors":
        proto.tensors.extend(map(tensor_proto, value))
    elif kind == "sparse_tensor":
        proto.sparse_tensor.CopyFrom(sparse_proto(value))
    elif kind == "sparse_tensors":
        proto.sparse_tensors.extend(map(sparse_proto, value))
    elif kind == "type_proto":
        proto.tp.CopyFrom(type_proto(value))
    elif kind == "type_protos":
        proto.type_protos.extend(map(type_proto, value))
    else:
        raise TypeError(f"attribute {name!r}: {kind} is not written here")
    return proto


def attribute_kind(value: AttributeValue) -> str:
    """The ONNX attribute type of a Python value, in lower case."""
    if isinstance(value, AttributeReference):
        return value.kind
    if isinstance(value, tuple):
        return f"{attribute_kind(value[0])}s" if value else "ints"
    if isinstance(value, bool | int | np.integer):
        return "int"
    if isinstance(value, float | np.floating):
        return "float"
    if isinstance(value, str | bytes):
        return "string"
    if isinstance(value, SparseData):
        return "sparse_tensor"
    if isinstance(value, TensorData):
        return "tensor"
    if isinstance(value, Type):
        return "type_proto"
    raise TypeError(f"{value!r} cannot be an attribute")


def _raw(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()
