"""Operators of ai.onnx.ml that onnx.reference leaves out (those about maps and categories), or does not do in full.

The values of a map are Python numbers or strings, as ONNX Runtime gives and takes them. The other operators of the
domain need nothing here: their meaning is onnx.reference's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..diagnostics import ExecutionError
from ..opdef import OpDefinition, op

if TYPE_CHECKING:
    from ..core import Operation

DOMAIN = "ai.onnx.ml"


@op("ZipMap", domain=DOMAIN)
class ZipMap(OpDefinition):
    """Each row of [n, classes] (or the one of [classes]) as a map from class labels to its numbers."""

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        labels = op.attr("classlabels_strings") or op.attr("classlabels_int64s") or ()
        rows = np.atleast_2d(operands[0])
        if rows.shape[1] != len(labels):
            raise ExecutionError("run/zip-map", f"there are {len(labels)} labels for {rows.shape[1]} columns")
        return [dict(zip(labels, row.tolist(), strict=True)) for row in rows]


@op("CastMap", domain=DOMAIN)
class CastMap(OpDefinition):
    """The numbers of a map with integer keys, in order of the keys: [1, n] of those that are there ("DENSE"), or
    [1, max_map] with each at its key and zero (or an empty string) elsewhere ("SPARSE")."""

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        (given,) = operands
        target, convert = _CONVERSIONS[op.attr("cast_to")]
        items = {int(key): convert(value) for key, value in sorted(given.items())}
        if op.attr("map_form") == "SPARSE":
            count = op.attr("max_map")
            beyond = [key for key in items if not 0 <= key < count]
            if beyond:
                raise ExecutionError("run/cast-map", f"the key {beyond[0]} does not lie in 0 to {count - 1}")
            items = {key: items.get(key, convert(0) if target is not object else "") for key in range(count)}
        return np.array([list(items.values())], target)


_CONVERSIONS: dict[str, tuple[Any, Any]] = {
    "TO_FLOAT": (np.float32, float),
    "TO_INT64": (np.int64, int),
    "TO_STRING": (object, str),
}


@op("CategoryMapper", domain=DOMAIN)
class CategoryMapper(OpDefinition):
    """Strings to integers or back, by two lists of equal length; what is in neither becomes the default."""

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        (given,) = operands
        strings, integers = op.attr("cats_strings") or (), op.attr("cats_int64s") or ()
        if given.dtype == object:
            numbers = dict(zip(strings, integers, strict=True))
            items = [numbers.get(item, op.attr("default_int64")) for item in given.flat]
            return np.array(items, np.int64).reshape(given.shape)
        texts = dict(zip(integers, strings, strict=True))
        items = [texts.get(int(item), op.attr("default_string")) for item in given.flat]
        return np.array(items, object).reshape(given.shape)


@op("Scaler", domain=DOMAIN)
class Scaler(OpDefinition):
    """(x - offset) * scale, per column or for all, as f32 whatever the operand is."""

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        offset, scale = [np.array(op.attr(name), np.float32) for name in ("offset", "scale")]
        return (operands[0].astype(np.float32) - offset) * scale


@op("Normalizer", domain=DOMAIN)
class Normalizer(OpDefinition):
    """Each row (a vector is one row) over its maximum, its sum of magnitudes, or its Euclidean length, as f32.

    A row whose norm is 0 stays as it is.
    """

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        x = operands[0].astype(np.float32)
        if op.attr("norm") == "MAX":
            norm = x.max(axis=-1, keepdims=True)
        elif op.attr("norm") == "L1":
            norm = np.abs(x).sum(axis=-1, keepdims=True)
        else:
            norm = np.sqrt((x * x).sum(axis=-1, keepdims=True))
        return np.divide(x, norm, out=x.copy(), where=norm != 0)


@op("FeatureVectorizer", domain=DOMAIN)
class FeatureVectorizer(OpDefinition):
    """The operands side by side, as f32; each is cut or filled with zeros to its entry in `inputdimensions`."""

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        parts = []
        for operand, width in zip(operands, op.attr("inputdimensions"), strict=True):
            rows = np.atleast_2d(operand).astype(np.float32)
            rows = rows.reshape(len(rows), -1)[:, :width]
            parts.append(np.pad(rows, [(0, 0), (0, width - rows.shape[1])]))
        return np.concatenate(parts, axis=1)
