"""Tile-1, Resize-10 and -11, and operators whose attribute values had other names (Cast-1, GridSample-16)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...dtypes import BY_ONNX_CODE, i64
from ..resize_numeric import resize
from .base import OldForm, known_elements, old_form, shape_of, today

if TYPE_CHECKING:
    from ...builder import OpBuilder
    from ...core import Operation, Value

# How GridSample calls its modes since opset 20, and before.
GRID_MODES = {"bilinear": "linear", "bicubic": "cubic"}

# How Resize rounds coordinates under `half_pixel`, to give what `tf_half_pixel_for_nn` (gone since opset 13) gave.
# With h = (x + 0.5) / scale - 0.5 that mode is h + 0.5: floor(h + 0.5) rounds h, the half up, and rounding h + 0.5
# with the half down is ceil(h).
TF_HALF_PIXEL_ROUNDING = {"floor": "round_prefer_ceil", "round_prefer_floor": "ceil"}


def type_code(name: object) -> int | None:
    """The code of the element type that Cast-1 calls `name` ("FLOAT", "INT64": the names of TensorProto.DataType)."""
    from onnx import TensorProto

    text = str(name).upper()
    code = TensorProto.DataType.Value(text) if text in TensorProto.DataType.keys() else 0  # noqa: SIM118
    return code if code in BY_ONNX_CODE else None


@old_form({"Cast": (1,)})
class NamedCast(OldForm):
    """The element type is given by name."""

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        code = type_code(op.attr("to"))
        return None if code is None else today(builder, op, attributes={"to": code})


@old_form({"GridSample": (16,)})
class GridSample(OldForm):
    """The modes are called bilinear and bicubic."""

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        mode = op.attr("mode")
        return today(builder, op, attributes={**op.attributes, "mode": GRID_MODES.get(mode, mode)})


@old_form({"Tile": (1,)})
class SingleAxisTile(OldForm):
    """Repeats one axis; the count and the axis are inputs, of the data's element type."""

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        data, tiles, axis = op.operands
        shape = shape_of(data)
        if shape is None:
            return None
        count, position = known_elements(tiles, builder), known_elements(axis, builder)
        if count is not None and position is not None:
            repeats = np.ones(len(shape), np.int64)
            repeats[int(position.item())] = int(count.item())
            return today(builder, op, [data, repeats])
        chosen = builder.equal(np.arange(len(shape)), self._index(axis, len(shape), builder))
        return today(builder, op, [data, builder.where(chosen, self._integer(tiles, builder), [1])])

    @staticmethod
    def _integer(value: Value | None, builder: OpBuilder) -> Value:
        result: Value = builder.reshape(builder.cast(value, to=i64), [1])
        return result

    def _index(self, axis: Value | None, rank: int, builder: OpBuilder) -> Value:
        result: Value = builder.mod(self._integer(axis, builder), [rank])
        return result


@old_form({"Resize": (10,)})
class PlainResize(OldForm):
    """Coordinates are divided by the scale; where nearest elements are taken they are rounded down in an axis that
    grows and up in one that shrinks (as ONNX Runtime and the tests of that opset have it).

    One Resize of today rounds one way in all axes, so growing and shrinking axes are resized one after the other.
    """

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        data, scales = op.operands
        mode = op.attr("mode")
        if mode != "nearest":
            return [self._resize(data, scales, mode, "floor", builder)]
        grown = self._resize(data, builder.max(scales, [1.0]), mode, "floor", builder)
        return [self._resize(grown, builder.min(scales, [1.0]), mode, "ceil", builder)]

    @staticmethod
    def _resize(data: Value | None, scales: Value | None, mode: str, rounding: str, builder: OpBuilder) -> Value:
        result: Value = builder.resize(
            data, None, scales, mode=mode, coordinate_transformation_mode="asymmetric", nearest_mode=rounding
        )
        return result


@old_form({"Resize": (11,)})
class TensorFlowResize(OldForm):
    """`coordinate_transformation_mode="tf_half_pixel_for_nn"`, or a mode that a function's caller gives."""

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        if op.attr("coordinate_transformation_mode") != "tf_half_pixel_for_nn":
            return super().evaluate(op, *operands)
        x, roi, scales, sizes, *_ = (*operands, None, None, None)
        return resize(op, x, roi, scales, sizes)

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        attributes = dict(op.attributes)
        if op.attr("coordinate_transformation_mode") == "tf_half_pixel_for_nn":
            rounding = TF_HALF_PIXEL_ROUNDING.get(op.attr("nearest_mode"))
            if rounding is None or op.attr("mode") != "nearest":
                return None
            attributes |= {"coordinate_transformation_mode": "half_pixel", "nearest_mode": rounding}
        return today(builder, op, attributes=attributes)
