"""Hashes of what passes can change, to catch rules and passes that lie about changing it. Valid within one process."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..graph.core import Block, Operation
    from ..graph.module import Module

# How far around an operation `local_fingerprint` looks, and at how many operations at most.
_DEPTH, _MOST = 4, 64


def fingerprint(module: Module) -> int:
    """Equal before and after if and only if (up to hash collisions) operations, operands, attributes and types are."""
    parts: list[object] = [module.level]
    for function in module.all_functions():
        parts.append(str(function.key))
        parts.extend(_block_parts(function.block))
        for op in function.walk():
            parts.extend(_operation_parts(op))
            for name, region in op.regions.items():
                parts.append(name)
                parts.extend(_block_parts(region.block))
    return hash(tuple(parts))


def local_fingerprint(op: Operation) -> int:
    """The same for an operation, its users, and what makes its operands, a few steps up."""
    near = dict.fromkeys((op, *(user for result in op.results for user in result.users)))
    level = [op]
    for _ in range(_DEPTH):
        level = [value.producer for each in level for value in each.operand_values if value.producer is not None]
        near.update(dict.fromkeys(level[:_MOST]))
        if len(near) > _MOST:
            break
    return hash(tuple(part for each in near for part in (id(each.parent), *_operation_parts(each))))


def _operation_parts(op: Operation) -> list[object]:
    return [
        (id(op), id(op.definition), tuple(id(operand) for operand in op.operands)),
        *((name, _attribute_key(value)) for name, value in op.attributes.items()),
        *((id(result), id(result.type)) for result in op.results),
    ]


def _block_parts(block: Block) -> list[object]:
    arguments: list[object] = [(id(argument), id(argument.type)) for argument in block.arguments]
    return [*arguments, *((output.name, id(output.type)) for output in block.outputs)]


def _attribute_key(value: object) -> object:
    return value if isinstance(value, int | float | str | bytes | bool) else (id(value), repr(value))
