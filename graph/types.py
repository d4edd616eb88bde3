"""Types of values: interned, so two equal types are the same object and `is` compares them.

    f32[n, 768]   tensor with dims        f32[]   scalar tensor        f32[*]   rank unknown
    sequence<f32[*]>  optional<...>  map<i64, f32[]>  sparse<f32[3, 4]>  opaque<"domain", "Name">  unknown

`unknown` is the type of a result nobody can know, such as a custom operator's. Below tensors, where loops are written
out, values are

    scalar<f32>   one number       vector<16 x f32>   lanes of a register       buffer<f32>   elements in memory
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeVar

from . import dtypes
from .dims import Dim, DimExpr, format_dim, symbol
from .dtypes import DType

_Kind = TypeVar("_Kind", bound="Type")

_interned: dict[tuple[Any, ...], Any] = {}


class Type:
    """Base of all types. Build them with the functions below; never call a subclass's constructor directly."""

    __slots__ = ("__weakref__",)

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("types are interned and are not pickled; print and parse the IR instead")

    def __repr__(self) -> str:
        return str(self)


class TensorType(Type):
    """A dense tensor: element type and dims; `shape` is None when even the rank is unknown.

    `static_shape` has the dims as numbers; it is None if any is symbolic or the rank is unknown.
    """

    __slots__ = ("dtype", "shape", "static_shape")
    dtype: DType
    shape: tuple[Dim, ...] | None
    static_shape: tuple[int, ...] | None

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    @property
    def is_static(self) -> bool:
        """Whether every dim is a known number."""
        return self.static_shape is not None

    @property
    def elements(self) -> Dim | None:
        """The number of elements, possibly symbolic; None when the rank is unknown."""
        if self.shape is None:
            return None
        total: Dim = 1
        for dim in self.shape:
            total = total * dim
        return total

    def with_shape(self, shape: Sequence[Dim] | None) -> TensorType:
        return tensor(self.dtype, shape)

    def with_dtype(self, dtype: DType) -> TensorType:
        return tensor(dtype, self.shape)

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.dtype}[*]"
        return f"{self.dtype}[{', '.join(map(format_dim, self.shape))}]"


class SparseTensorType(Type):
    """A sparse tensor (ONNX `SparseTensorProto`): element type and dense dims."""

    __slots__ = ("dtype", "shape")
    dtype: DType
    shape: tuple[Dim, ...] | None

    def __str__(self) -> str:
        return f"sparse<{tensor(self.dtype, self.shape)}>"


class SequenceType(Type):
    __slots__ = ("element",)
    element: Type

    def __str__(self) -> str:
        return f"sequence<{self.element}>"


class OptionalType(Type):
    __slots__ = ("element",)
    element: Type

    def __str__(self) -> str:
        return f"optional<{self.element}>"


class MapType(Type):
    __slots__ = ("key", "value")
    key: DType
    value: Type

    def __str__(self) -> str:
        return f"map<{self.key}, {self.value}>"


class OpaqueType(Type):
    __slots__ = ("domain", "name")
    domain: str
    name: str

    def __str__(self) -> str:
        return f"opaque<{json.dumps(self.domain)}, {json.dumps(self.name)}>"


class UnknownType(Type):
    __slots__ = ()

    def __str__(self) -> str:
        return "unknown"


class ScalarType(Type):
    """One number of a register: what a loop computes with."""

    __slots__ = ("dtype",)
    dtype: DType

    def __str__(self) -> str:
        return f"scalar<{self.dtype}>"


class VectorType(Type):
    """`lanes` numbers of one register (or of several, where the machine's are narrower)."""

    __slots__ = ("dtype", "lanes")
    dtype: DType
    lanes: int

    def __str__(self) -> str:
        return f"vector<{self.lanes} x {self.dtype}>"


class BufferType(Type):
    """A flat range of elements in memory, of a length the type does not tell.

    `space` says which memory: "" for the main one, "stack" for a function's own.
    """

    __slots__ = ("dtype", "space")
    dtype: DType
    space: str

    def __str__(self) -> str:
        if not self.space:
            return f"buffer<{self.dtype}>"
        return f"buffer<{self.dtype}, {self.space if self.space.isidentifier() else json.dumps(self.space)}>"


def _intern(kind: type[_Kind], **fields: Any) -> _Kind:
    key = (kind, *fields.values())
    found: _Kind | None = _interned.get(key)
    if found is None:
        found = object.__new__(kind)
        for name, value in fields.items():
            setattr(found, name, value)
        _interned[key] = found
    return found


class NegativeDimError(ValueError):
    """A tensor cannot have a dimension below zero."""


def tensor(dtype: DType, shape: Sequence[Dim] | None) -> TensorType:
    """The tensor type of `dtype` and `shape` (None: unranked). Raises NegativeDimError for a negative dim."""
    dims = None if shape is None else tuple(shape)
    found = _interned.get((TensorType, dtype, dims))
    if isinstance(found, TensorType):
        return found
    numbers = tuple(dim for dim in dims or () if isinstance(dim, int))
    if any(dim < 0 for dim in numbers):
        shown = ", ".join(map(format_dim, dims or ()))
        raise NegativeDimError(f"a dimension is never negative, got {min(numbers)} in [{shown}]")
    result = _intern(TensorType, dtype=dtype, shape=dims)
    result.static_shape = numbers if dims is not None and len(numbers) == len(dims) else None
    return result


def sparse(dtype: DType, shape: Sequence[Dim] | None) -> SparseTensorType:
    return _intern(SparseTensorType, dtype=dtype, shape=None if shape is None else tuple(shape))


def sequence(element: Type) -> SequenceType:
    return _intern(SequenceType, element=element)


def optional(element: Type) -> OptionalType:
    return _intern(OptionalType, element=element)


def map_of(key: DType, value: Type) -> MapType:
    return _intern(MapType, key=key, value=value)


def opaque(domain: str, name: str) -> OpaqueType:
    return _intern(OpaqueType, domain=domain, name=name)


def scalar(dtype: DType) -> ScalarType:
    return _intern(ScalarType, dtype=dtype)


def vector(dtype: DType, lanes: int) -> VectorType:
    """The type of `lanes` numbers. Raises ValueError if there is not at least one."""
    if lanes < 1:
        raise ValueError(f"a vector has at least one lane, not {lanes}")
    return _intern(VectorType, dtype=dtype, lanes=lanes)


def buffer(dtype: DType, space: str = "") -> BufferType:
    return _intern(BufferType, dtype=dtype, space=space)


UNKNOWN = _intern(UnknownType)


def tensor_type_of(dtype: DType, dims: object) -> TensorType:
    """What `f32[dims]` means: ints, symbol names, dim expressions; `...` for an unknown rank."""
    if dims is Ellipsis:
        return tensor(dtype, None)
    items = dims if isinstance(dims, tuple) else (dims,)
    return tensor(dtype, [_dim_of(item) for item in items])


def _dim_of(item: object) -> Dim:
    if isinstance(item, str):
        return symbol(item)
    if isinstance(item, DimExpr) or (isinstance(item, int) and not isinstance(item, bool)):
        return item
    raise TypeError(f"a dim is an int, a name or a dim expression, not {item!r}")


def is_scalar_of(type: Type, dtype: DType | None = None) -> bool:
    """Whether `type` is a tensor of rank 0 (and of `dtype`, if given)."""
    return isinstance(type, TensorType) and type.shape == () and dtype in (None, type.dtype)


__all__ = [
    "UNKNOWN", "BufferType", "MapType", "OpaqueType", "OptionalType", "ScalarType", "SequenceType", "SparseTensorType",
    "TensorType", "Type", "UnknownType", "VectorType", "buffer", "dtypes", "is_scalar_of", "map_of", "opaque",
    "optional", "scalar", "sequence", "sparse", "tensor", "vector",
]  # fmt: skip
