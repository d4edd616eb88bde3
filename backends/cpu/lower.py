"""What runs as what: operations grouped into kernels, and those that have none.

A group is a tree of elementwise operations that ends in one result, perhaps with a matrix product at its root whose
sums the others are applied to while they are in cache. Groups follow from traits, types and uses alone; sizes come in
when a program is planned for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...graph.core import Block, Operation, Value
from ...graph.data import TensorData, UnresolvedData
from ...graph.dtypes import ALL, DType, f32, f64
from ...graph.kernel.loop_builder import LoopBuilder
from ...graph.kernel.scalar_emitter import ScalarEmitter
from ...graph.opdef import Trait
from ...graph.ops.elementwise import Elementwise
from ...graph.ops.scalar import count_operations
from ...graph.types import TensorType

# What kernels load, store and compute with.
NATIVE = frozenset(dtype for dtype in ALL if dtype.bits >= 8 and dtype.kind in ("int", "uint", "bool")) | {
    dtype for dtype in ALL if dtype.name in ("f16", "bf16", "f32", "f64")
}


@dataclass(eq=False)
class Group:
    """Operations that become one kernel, in order. `product` is the matrix product among them, `inputs` what they
    read of others."""

    ops: list[Operation] = field(default_factory=list)
    product: Operation | None = None

    @property
    def result(self) -> Value:
        return self.ops[-1].result

    @property
    def elementwise(self) -> list[Operation]:
        return [op for op in self.ops if op is not self.product]

    def inputs(self) -> list[Value]:
        """What the elementwise operations read, each once, but constants of one element and the product."""
        inside = {op.result for op in self.ops}
        read = (operand for op in self.elementwise for operand in op.operand_values)
        return [value for value in dict.fromkeys(read) if value not in inside and number_of(value) is None]

    def body(self, b: LoopBuilder, values: dict[Value, Any]) -> Any:
        """Build the elementwise operations on numbers; `values` gives `inputs` and the product's sum."""
        emitter = ScalarEmitter(b)
        known = dict(values)
        for op in self.elementwise:
            operands = [_operand(known, operand) for operand in op.operands]
            definition = op.definition
            assert isinstance(definition, Elementwise)
            known[op.result] = definition.scalar(op, emitter, *operands)
        return known[self.result]

    def cost(self) -> int:
        """About how many operations the body has for one element; a transcendental one counts 8."""
        return sum(_cost(op) for op in self.elementwise)


Step = Group | Operation


def lower(block: Block) -> list[Step]:
    """The steps of a block in order: groups, and operations without a kernel."""
    homes: dict[Operation, Group] = {}
    for op in reversed(block):
        if op.is_terminator or op.name == "const":
            continue
        if has_map(op):
            home = _home(op, homes)
            homes[op] = home if home is not None and _takes_map(home, op) else Group()
            homes[op].ops.insert(0, op)
        elif is_product(op):
            home = _home(op, homes)
            homes[op] = home if home is not None and _takes_product(home, op) else Group()
            homes[op].ops.insert(0, op)
            homes[op].product = op
    steps: list[Step] = []
    for op in block:
        group = homes.get(op)
        if group is None:
            if not op.is_terminator and op.name != "const":
                steps.append(op)
        elif op is group.ops[-1]:
            steps.append(group)
    return steps


def has_map(op: Operation) -> bool:
    """Whether `op` is an elementwise operation with a body, of types that kernels compute with."""
    definition = op.definition
    if not isinstance(definition, Elementwise) or definition.version is not None:
        return False
    if Trait.ELEMENTWISE not in definition.traits or len(op.results) != 1:
        return False
    if definition.body is None and type(definition).scalar is Elementwise.scalar:
        return False
    return all(_is_native(value) for value in (*op.operand_values, op.result))


def is_product(op: Operation) -> bool:
    """Whether `op` is a matrix product of floats."""
    if op.name not in ("matmul", "gemm") or op.definition.version is not None:
        return False
    return all(
        isinstance(value.type, TensorType) and value.type.dtype in (f32, f64) and value.type.shape is not None
        for value in (*op.operand_values, op.result)
    )


def _is_native(value: Value) -> bool:
    type = value.type
    return isinstance(type, TensorType) and type.shape is not None and type.dtype in NATIVE


def _home(op: Operation, homes: dict[Operation, Group]) -> Group | None:
    """The group of all users of `op`'s result, if they are in one and its result is of the same shape."""
    groups = {homes.get(user) for user in op.result.users}
    if len(groups) != 1:
        return None
    [group] = groups
    return group if group is not None and _shape(group.result) == _shape(op.result) else None


def _shape(value: Value) -> Sequence[Any] | None:
    return value.type.shape if isinstance(value.type, TensorType) else None


def _takes_map(group: Group, op: Operation) -> bool:
    """Whether an elementwise operation before `group` can be part of it: it is no factor of the group's product, and
    reads what a tile of that can read."""
    if group.product is None:
        return True
    if group.product in op.result.users:
        return False
    shape = _shape(group.result)
    assert shape is not None
    return all(number_of(value) is not None or _is_plain(_shape(value), shape) for value in op.operand_values)


def _takes_product(group: Group, op: Operation) -> bool:
    """Whether the operations of `group` can be applied to the sums of `op`: one product each, and whatever else they
    read is as large as its result, or one row, one column or one number."""
    if group.product is not None:
        return False
    shape = _shape(op.result)
    factors = [_shape(factor) for factor in op.operand_values[:2]]
    if shape is None or any(factor is None or len(factor) < 2 for factor in factors):
        return False
    if dtype_of(group.result) is not dtype_of(op.result):
        return False
    return all(value is op.result or _is_plain(_shape(value), shape) for value in group.inputs())


def _is_plain(shape: Sequence[Any] | None, whole: Sequence[Any]) -> bool:
    """Whether an operand of `shape` is read in one of the forms that a product's tile can read it."""
    if shape is None:
        return False
    if tuple(shape) == tuple(whole):
        return True
    outer = [dim for dim in shape[:-1] if dim != 1]
    if not outer:
        return not shape or shape[-1] in (1, whole[-1])
    return tuple(shape[:-1]) == tuple(whole[:-1]) and shape[-1] == 1


def data_of(value: Value) -> TensorData | None:
    """The constant behind a value, if it is one."""
    producer = value.producer
    if producer is None or producer.name != "const":
        return None
    data = producer.attributes.get("value")
    return data if isinstance(data, TensorData) and not isinstance(data, UnresolvedData) else None


def number_of(value: Value) -> float | int | bool | None:
    """The number of a constant of one element and no dims: it becomes part of the code."""
    data = data_of(value)
    if data is None or data.shape != () or data.dtype not in NATIVE:
        return None
    number = data.numpy().astype(np.float64) if data.dtype.is_float else data.numpy()
    return number.item()


def _operand(known: dict[Value, Any], operand: Value | None) -> Any:
    if operand is None:
        return None
    return known[operand] if operand in known else number_of(operand)


_HEAVY = 8


def _cost(op: Operation) -> int:
    definition = op.definition
    assert isinstance(definition, Elementwise)
    body = type(definition).body
    if body is None:
        return 1
    light = ("Add", "Sub", "Mul", "Relu", "Max", "Min", "Abs", "Neg", "Where", "Clip", "LeakyRelu", "Equal", "Less")
    count = count_operations(body, max(1, len(op.operands)), definition._attributes(op))
    return count if definition.op_type in light else count * _HEAVY


def dtype_of(value: Value) -> DType:
    assert isinstance(value.type, TensorType)
    return value.type.dtype
