"""Keys by which passes tell that two operations, or two blocks, compute the same.

Operands are compared by identity, what regions define by position, attributes as if those at their default were left
out, floats by their bits, small constants by their contents.
"""

from __future__ import annotations

from collections.abc import Hashable

from ..graph.core import Block, Operation, Value
from ..graph.data import TensorData, UnresolvedData
from ..graph.opdef import Trait

# Larger constants count as equal only if they are the same object.
SMALL_CONSTANT_BYTES = 4096
# So do lists of more entries: the trees of an ensemble.
LONG_LIST = 4096
# Metadata of an operation that `rematerialize` put there on purpose, although another one computes the same.
RECOMPUTED = "recomputed"


def operation_key(op: Operation, local: dict[Value, int] | None = None) -> Hashable | None:
    """What operations that compute the same have in common; None for one of which two runs may differ.

    `local` numbers the values of the region that holds `op`; it is for nested calls.
    """
    if not op.definition.is_pure or RECOMPUTED in op.metadata:
        return None
    local = {} if local is None else local
    operands: list[Hashable] = [_value_key(operand, local) for operand in op.operands]
    if Trait.COMMUTATIVE in op.definition.traits and len(operands) >= 2:
        operands[:2] = sorted(operands[:2], key=repr)
    attributes: list[tuple[str, Hashable]] = []
    for name in sorted(op.attributes):
        key = _attribute_key(op.attributes[name])
        if key != _attribute_key(op.definition.attribute_default(name)):
            attributes.append((name, key))
    regions: list[Hashable] = []
    for name in sorted(op.regions):
        block = block_key(op.regions[name].block, local)
        if block is None:
            return None
        regions.append((name, block))
    return (id(op.definition), tuple(operands), tuple(attributes), tuple(regions), len(op.results))


def block_key(block: Block, outer: dict[Value, int] | None = None) -> Hashable | None:
    """The same for blocks; None if something in it may differ from run to run."""
    local = dict(outer or {})
    for argument in block.arguments:
        local[argument] = len(local)
    keys: list[Hashable] = [tuple(str(argument.type) for argument in block.arguments)]
    for op in block:
        if op.is_terminator:
            keys.append(tuple(_value_key(operand, local) for operand in op.operands))
            continue
        key = operation_key(op, local)
        if key is None:
            return None
        keys.append(key)
        for result in op.results:
            local[result] = len(local)
    return tuple(keys)


def _value_key(value: Value | None, local: dict[Value, int]) -> Hashable:
    if value is None:
        return None
    return ("local", local[value]) if value in local else ("outer", id(value))


def _attribute_key(value: object) -> Hashable:
    if isinstance(value, TensorData):
        small = value.nbytes <= SMALL_CONSTANT_BYTES or isinstance(value, UnresolvedData)
        return value.sha256 if small else id(value)
    if isinstance(value, float):
        # Hex tells -0.0 from 0.0 and keeps nan equal to itself.
        return value.hex()
    if isinstance(value, tuple) and len(value) > LONG_LIST:
        return id(value)
    if isinstance(value, tuple):
        return tuple(map(_attribute_key, value))
    return (type(value).__name__, str(value)) if isinstance(value, int | str) else value
