"""Copies of modules, functions, blocks and operations.

Every function here takes or makes a map from the values of the original to those of the copy. An operand that is not
in the map stays as it is: that is how a copied region keeps capturing values from around it, and how a caller of
`clone_operations` connects the copy to other values (map an argument to the value that replaces it).

Constants are immutable and shared, never copied. Names, locations and metadata are kept.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TypeAlias

from .core import Block, BlockOutput, Metadata, Operation, Region, Value
from .module import Function, Module

ValueMap: TypeAlias = dict[Value, Value]


def clone_module(module: Module, values: ValueMap | None = None) -> Module:
    """A module that shares nothing changeable with `module`; it hands out the same fresh symbols next.

    `values`, if given, receives what each value became.
    """
    values = {} if values is None else values
    clone = Module(clone_function(module.main, values), module.opsets, module.level)
    clone.functions = {key: clone_function(function, values) for key, function in module.functions.items()}
    clone.metadata = copy_metadata(module.metadata)
    clone.symbols = copy.deepcopy(module.symbols)
    clone.is_optimized = module.is_optimized
    return clone


def clone_function(function: Function, values: ValueMap | None = None) -> Function:
    values = {} if values is None else values
    clone = Function(function.key, clone_block(function.block, values))
    clone.attributes = dict(function.attributes)
    clone.opsets = dict(function.opsets)
    clone.defaults = {values[argument]: data for argument, data in function.defaults.items()}
    clone.metadata = copy_metadata(function.metadata)
    return clone


def clone_block(block: Block, values: ValueMap | None = None) -> Block:
    """A detached copy of `block` with arguments, operations and outputs of its own."""
    values = {} if values is None else values
    clone = Block([argument.type for argument in block.arguments], [argument.name for argument in block.arguments])
    _record(block.arguments, clone.arguments, values)
    for op in clone_operations(block, values):
        clone._insert(op, None)
    clone.outputs = [
        BlockOutput(output.name, output.type, None if output.info is None else copy_metadata(output.info))
        for output in block.outputs
    ]
    clone.metadata = copy_metadata(block.metadata)
    return clone


def clone_operations(ops: Iterable[Operation], values: ValueMap | None = None) -> list[Operation]:
    """Detached copies of `ops`, which must come in an order where definitions precede uses.

    Insert them with `OpBuilder.insert`, so that listeners hear of them.
    """
    values = {} if values is None else values
    return [clone_operation(op, values) for op in ops]


def clone_operation(op: Operation, values: ValueMap | None = None) -> Operation:
    """A detached copy of `op` and its regions."""
    values = {} if values is None else values
    clone = Operation(
        op.definition,
        [None if operand is None else values.get(operand, operand) for operand in op.operands],
        op.attributes,
        [result.type for result in op.results],
        result_names=[result.name for result in op.results],
        regions={name: Region(clone_block(region.block, values)) for name, region in op.regions.items()},
        location=op.location,
        metadata=copy_metadata(op.metadata),
    )
    _record(op.results, clone.results, values)
    return clone


def _record(originals: Iterable[Value], clones: Iterable[Value], values: ValueMap) -> None:
    for original, clone in zip(originals, clones, strict=True):
        values[original] = clone
        clone.info = None if original.info is None else copy_metadata(original.info)


def copy_metadata(metadata: Metadata) -> Metadata:
    """A copy down to nested dicts; everything else in metadata is immutable."""
    return {key: copy_metadata(value) if isinstance(value, dict) else value for key, value in metadata.items()}
