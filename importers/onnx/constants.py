"""The Constant node's eight spellings: from attribute to constant and back."""

from __future__ import annotations

from collections.abc import Container, Mapping

import numpy as np

from ...graph import dtypes
from ...graph.core import AttributeReference, AttributeValue
from ...graph.data import ArrayData, SparseData, TensorData

# Attribute of the Constant node -> dtype and rank of the constant it spells (None: the attribute is a tensor).
SPELLINGS: dict[str, tuple[dtypes.DType, int] | None] = {
    "value": None,
    "sparse_value": None,
    "value_float": (dtypes.f32, 0),
    "value_floats": (dtypes.f32, 1),
    "value_int": (dtypes.i64, 0),
    "value_ints": (dtypes.i64, 1),
    "value_string": (dtypes.string, 0),
    "value_strings": (dtypes.string, 1),
}


def node_constant(attributes: Mapping[str, AttributeValue]) -> tuple[str, TensorData | AttributeReference] | None:
    """The attribute that gives a Constant node its value, and that value; None if there is not exactly one."""
    given = [name for name in attributes if name in SPELLINGS]
    if len(given) != 1:
        return None
    name = given[0]
    value = attributes[name]
    spelling = SPELLINGS[name]
    if spelling is None or isinstance(value, AttributeReference):
        return name, value
    dtype, rank = spelling
    if dtype is dtypes.string:
        items = np.empty(1 if rank == 0 else len(value), object)
        items[:] = [value] if rank == 0 else list(value)
        return name, ArrayData(items.reshape(() if rank == 0 else (-1,)), dtype)
    return name, ArrayData(np.array(value, dtype.numpy), dtype)


def spelled(data: TensorData, spelling: str, allowed: Container[str]) -> tuple[str, AttributeValue]:
    """The attribute of a Constant node that holds `data`: `spelling` if it is allowed and still fits, else a tensor."""
    fits = SPELLINGS.get(spelling) if spelling in allowed else None
    if fits is not None and not isinstance(data, SparseData):
        dtype, rank = fits
        if data.dtype is dtype and len(data.shape) == rank:
            values = data.numpy()
            return spelling, (values.item() if rank == 0 else tuple(values.tolist()))
    return ("sparse_value" if isinstance(data, SparseData) else "value"), data
