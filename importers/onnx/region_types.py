"""Types of a body's arguments that follow from the operands of its node, for files that do not declare them.

ONNX lets a subgraph leave the types of its inputs out (operator specification of Loop, Scan, SequenceMap).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...graph import dtypes, types
from ...graph.core import AttributeValue, Value
from ...graph.types import TensorType, Type


def argument_types(
    op_type: str, opset: int, operands: Sequence[Value | None], attributes: Mapping[str, AttributeValue]
) -> list[Type]:
    """The argument types of the body of a standard node; empty where nothing follows from the operands."""
    given = [operand.type if operand is not None else types.UNKNOWN for operand in operands]
    if op_type == "Loop":
        return [types.tensor(dtypes.i64, ()), types.tensor(dtypes.bool_, ()), *map(_carried, given[2:])]
    if op_type == "Scan":
        return _scan(opset, given, attributes)
    if op_type == "SequenceMap":
        return [type.element if isinstance(type, types.SequenceType) else type for type in given]
    return []


def _scan(opset: int, given: list[Type], attributes: Mapping[str, AttributeValue]) -> list[Type]:
    count = attributes.get("num_scan_inputs")
    if not isinstance(count, int) or not 0 < count <= len(given):
        return []
    if opset < 9:
        # Axis 0 is the batch, axis 1 the sequence; operand 0 holds the sequences' lengths.
        states, scanned = given[1 : len(given) - count], given[len(given) - count :]
        return [
            *(_without_axis(_carried(type), 0) for type in states),
            *(_without_axis(_without_axis(type, 0), 0) for type in scanned),
        ]
    states, scanned = given[: len(given) - count], given[len(given) - count :]
    axes = attributes.get("scan_input_axes")
    if not isinstance(axes, tuple) or len(axes) != count:
        axes = (0,) * count
    return [*map(_carried, states), *(_without_axis(type, axis) for type, axis in zip(scanned, axes, strict=True))]


def _carried(type: Type) -> Type:
    """A carried value may change its shape from one iteration to the next, never its dtype."""
    return types.tensor(type.dtype, None) if isinstance(type, TensorType) else type


def _without_axis(type: Type, axis: int) -> Type:
    if not isinstance(type, TensorType):
        return types.UNKNOWN
    if type.shape is None or not -len(type.shape) <= axis < len(type.shape):
        return types.tensor(type.dtype, None)
    dims = list(type.shape)
    del dims[axis]
    return types.tensor(type.dtype, dims)
