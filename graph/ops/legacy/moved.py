"""Attributes that became inputs: axes of Squeeze, bounds of Slice, pads of Pad, ...

Such a node is one operator of today with a constant for the attribute, and is imported so. Only where the attribute's
value is a reference (inside a function body) or its element type is not known does the old form stay.
The table `MOVED` is also what the importer's and the writer's steps go by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...data import ArrayData
from ...dtypes import DType, f32, i64
from ...opdef import register
from ...types import TensorType
from .base import OldForm, today

if TYPE_CHECKING:
    from ...builder import OpBuilder
    from ...core import AttributeValue, Operation, Value


@dataclass(frozen=True)
class Moved:
    """The attribute `name` became the input at `position`.

    `dtype` None means that of input 0. `shape` is () for a number, (1,) for a number stored as a vector, None for a
    list. `implied` is the attribute's old default where the input's absence means something else.
    """

    name: str
    position: int
    dtype: DType | None = i64
    shape: tuple[int, ...] | None = None
    implied: float | int | None = None

    def data(self, value: Any, data_dtype: DType | None) -> ArrayData | None:
        """The attribute's value as a constant; None if its element type, that of input 0, is not known."""
        dtype = self.dtype or data_dtype
        if dtype is None:
            return None
        with np.errstate(over="ignore"):  # a bound of +-3.4e38 becomes infinite in f16
            array = np.array(value).astype(dtype.numpy)
        return ArrayData(array if self.shape is None else array.reshape(self.shape), dtype)


@dataclass(frozen=True)
class Group:
    """Operators whose attributes moved at opset `at`; `before` are the versions that still had them."""

    op_types: tuple[str, ...]
    at: int
    before: tuple[int, ...]
    moves: tuple[Moved, ...]


_AXES = (Moved("axes", 1),)

MOVED = (
    Group(("Squeeze", "Unsqueeze", "ReduceSum"), 13, (1, 11), _AXES),
    Group(("ReduceMax", "ReduceMin"), 18, (1, 11, 12, 13), _AXES),
    Group(
        ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceProd", "ReduceSumSquare"),
        18, (1, 11, 13), _AXES,
    ),
    Group(("Slice",), 10, (1,), (Moved("starts", 1), Moved("ends", 2), Moved("axes", 3))),
    Group(("Reshape",), 5, (1,), (Moved("shape", 1),)),
    Group(("Pad",), 11, (1, 2), (Moved("pads", 1), Moved("value", 2, None, ()))),
    Group(("Clip",), 11, (1, 6), (Moved("min", 1, None, ()), Moved("max", 2, None, ()))),
    Group(("TopK",), 10, (1,), (Moved("k", 1, i64, (1,)),)),
    Group(("Split",), 13, (1, 2, 11), (Moved("split", 1),)),
    Group(("Dropout",), 12, (1, 6, 7, 10), (Moved("ratio", 1, f32, ()),)),
    Group(("Upsample",), 9, (1, 7), (Moved("scales", 1, f32),)),
    # DFT-17's axis defaults to 1, DFT-20's input to -2.
    Group(("DFT",), 20, (17,), (Moved("axis", 2, i64, (), implied=1),)),
)  # fmt: skip


class MovedForm(OldForm):
    """Today's operator with constants for the attributes that became inputs. A subclass adapts what else differs."""

    moves: tuple[Moved, ...] = ()

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        attributes = self.adapted(op)
        operands: list[Value | ArrayData | None] = list(op.operands)
        for move in self.moves:
            value = attributes.pop(move.name, move.implied)
            if value is None:
                continue
            data = move.data(value, _data_dtype(op))
            if data is None:
                return None
            operands += [None] * (move.position + 1 - len(operands))
            operands[move.position] = data
        return self.built(op, operands, attributes, builder)

    def adapted(self, op: Operation) -> dict[str, AttributeValue]:
        """The attributes under the names that `moves` and today's operator use."""
        return dict(op.attributes)

    def built(
        self,
        op: Operation,
        operands: Sequence[Value | ArrayData | None],
        attributes: dict[str, AttributeValue],
        builder: OpBuilder,
    ) -> Sequence[Value] | None:
        return today(builder, op, operands, attributes)


def _data_dtype(op: Operation) -> DType | None:
    data = op.operands[0]
    return data.type.dtype if data is not None and isinstance(data.type, TensorType) else None


class Pad(MovedForm):
    """Pad-1 calls its pads `paddings`."""

    def adapted(self, op: Operation) -> dict[str, AttributeValue]:
        return {"pads" if name == "paddings" else name: value for name, value in op.attributes.items()}


class Split(MovedForm):
    """Split-1 may take its sizes as an input, of the data's element type; without sizes all parts are equal."""

    def built(
        self,
        op: Operation,
        operands: Sequence[Value | ArrayData | None],
        attributes: dict[str, AttributeValue],
        builder: OpBuilder,
    ) -> Sequence[Value] | None:
        data, sizes = operands[0], operands[1] if len(operands) > 1 else None
        if sizes is None:
            attributes["num_outputs"] = len(op.results)
        elif not isinstance(sizes, ArrayData):
            sizes = builder.cast(sizes, to=i64)
        return today(builder, op, [data, sizes], attributes)


class Dropout(MovedForm):
    """Without a way to ask for training (since opset 12), Dropout passes its data on.

    The mask keeps everything; before opset 10 it has the data's element type, then it is boolean.
    """

    def built(
        self,
        op: Operation,
        operands: Sequence[Value | ArrayData | None],
        attributes: dict[str, AttributeValue],
        builder: OpBuilder,
    ) -> Sequence[Value] | None:
        dtype, data = _data_dtype(op), op.operands[0]
        if dtype is None or data is None:
            return None
        passed = builder.create("dropout", operands, outputs=1).result
        if len(op.results) == 1:
            return [passed]
        before_ten = self.version is not None and self.version < 10
        kept = builder.const(np.ones((), dtype.numpy), dtype) if before_ten else builder.const(np.ones((), np.bool_))
        return [passed, builder.expand(kept, builder.shape(data))]


class Upsample(MovedForm):
    """Resize that maps coordinates by plain scaling and rounds down."""

    def adapted(self, op: Operation) -> dict[str, AttributeValue]:
        attributes = dict(op.attributes)
        if self.version == 1:
            attributes["scales"] = (1.0, 1.0, attributes.pop("height_scale"), attributes.pop("width_scale"))
        mode = attributes.get("mode", "nearest")
        attributes["mode"] = "linear" if mode == "bilinear" else mode
        return attributes

    def built(
        self,
        op: Operation,
        operands: Sequence[Value | ArrayData | None],
        attributes: dict[str, AttributeValue],
        builder: OpBuilder,
    ) -> Sequence[Value] | None:
        attributes |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return today(builder, op, [operands[0], None, operands[1]], attributes, "Resize")


_SPECIAL: dict[str, type[MovedForm]] = {"Pad": Pad, "Split": Split, "Dropout": Dropout, "Upsample": Upsample}


def _register_all() -> None:
    for group in MOVED:
        for op_type in group.op_types:
            base = _SPECIAL.get(op_type, MovedForm)
            cls = type(base.__name__, (base,), {"moves": group.moves, "__doc__": base.__doc__})
            for version in group.before:
                register(cls("", op_type, version))


_register_all()
