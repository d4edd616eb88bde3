"""A hash of everything a pass can change, to catch rules that lie about changing it. Valid within one process."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..graph.core import Block
    from ..graph.module import Module


def fingerprint(module: Module) -> int:
    """Equal before and after if and only if (up to hash collisions) operations, operands, attributes and types are."""
    parts: list[object] = [module.level]
    for function in module.all_functions():
        parts.append(str(function.key))
        parts.extend(_block_parts(function.block))
        for op in function.walk():
            parts.append((id(op), id(op.definition), tuple(id(operand) for operand in op.operands)))
            parts.extend((name, _attribute_key(value)) for name, value in op.attributes.items())
            parts.extend((id(result), id(result.type)) for result in op.results)
            for name, region in op.regions.items():
                parts.append(name)
                parts.extend(_block_parts(region.block))
    return hash(tuple(parts))


def _block_parts(block: Block) -> list[object]:
    arguments: list[object] = [(id(argument), id(argument.type)) for argument in block.arguments]
    return [*arguments, *((output.name, id(output.type)) for output in block.outputs)]


def _attribute_key(value: object) -> object:
    return value if isinstance(value, int | float | str | bytes | bool) else (id(value), repr(value))
