"""How many bytes a module takes as an ONNX file, estimated from its parts, so that no pass makes a model larger.

Estimates lean to the large side where it matters: a file never holds more than they say for what passes add.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph.core import AttributeValue, Operation, Value
from ..graph.data import TensorData
from ..graph.types import TensorType
from ..graph.varints import encoded_bytes

if TYPE_CHECKING:
    from ..graph.module import Module

# Field tags and lengths of a TensorProto: data type, raw data, name.
TENSOR_OVERHEAD = 10
# Field tags and lengths of a NodeProto, and of one of its attributes.
NODE_OVERHEAD, ATTRIBUTE_OVERHEAD = 7, 7
# Of a ValueInfoProto with a tensor type, and of one of its dims.
DECLARATION_OVERHEAD, DIM_OVERHEAD = 12, 4
# So many entries speak for the rest of a list: a tree ensemble has millions.
SAMPLE = 256
# What a name that the writer makes up takes.
MADE_UP_NAME = 12


def constant_bytes(data: TensorData) -> int:
    """Bytes of a constant as an initializer."""
    return encoded_bytes(data) + 3 * len(data.shape) + TENSOR_OVERHEAD + MADE_UP_NAME


def operation_bytes(op: Operation) -> int:
    """Bytes of an operation as a node, its constants and nested graphs not counted."""
    size = NODE_OVERHEAD + len(op.op_type) + len(op.domain) + len(op.location.name)
    size += sum(_name_bytes(value) for value in (*op.operands, *op.results))
    for name, value in op.attributes.items():
        size += ATTRIBUTE_OVERHEAD + len(name) + _attribute_bytes(value)
    size += sum(ATTRIBUTE_OVERHEAD + len(name) for name in op.regions)
    return size + sum(_attribute_bytes(value) for value in op.metadata.values())


def written_bytes(module: Module) -> int:
    """Bytes of the whole module as a file."""
    size = 0
    # Before IR version 4, constants are also listed as inputs.
    listed = set(module.main.block.metadata.get("input_order", ()))
    for op in module.walk():
        data = op.attributes.get("value") if op.name == "const" else None
        if isinstance(data, TensorData):
            name = op.results[0].name or ""
            size += constant_bytes(data) - MADE_UP_NAME + len(name)
            size += _declaration_bytes(op.results[0]) if name in listed else 0
        elif not op.is_terminator:
            size += operation_bytes(op)
        size += sum(_declaration_bytes(result) for result in op.results if result.info is not None)
    for function in module.all_functions():
        size += sum(constant_bytes(data) for data in function.defaults.values())
        size += sum(_declaration_bytes(argument) for argument in function.inputs)
    return size + _attribute_bytes(module.metadata)


def structure_bytes(module: Module) -> int:
    """Bytes of the module as a file without the elements of its constants."""
    constants = [op.attributes.get("value") for op in module.walk() if op.name == "const"]
    return written_bytes(module) - sum(encoded_bytes(data) for data in constants if isinstance(data, TensorData))


def _name_bytes(value: Value | None) -> int:
    return 2 + len(value.name or "") if value is not None else 2


def _declaration_bytes(value: Value) -> int:
    size = DECLARATION_OVERHEAD + len(value.name or "")
    shape = value.type.shape if isinstance(value.type, TensorType) else None
    return size + sum(DIM_OVERHEAD + (0 if isinstance(dim, int) else len(str(dim))) for dim in shape or ())


def _attribute_bytes(value: AttributeValue) -> int:
    if isinstance(value, TensorData):
        return constant_bytes(value) - MADE_UP_NAME - ATTRIBUTE_OVERHEAD
    if isinstance(value, str | bytes):
        return len(value) + 2
    if isinstance(value, tuple | list):
        first = sum(map(_attribute_bytes, value[:SAMPLE]))
        return first if len(value) <= SAMPLE else first * len(value) // SAMPLE
    if isinstance(value, dict):
        return sum(len(str(key)) + _attribute_bytes(item) for key, item in value.items())
    if isinstance(value, int):
        return 1 + max(-(-value.bit_length() // 7), 1) if value >= 0 else 11
    return 5
