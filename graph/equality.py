"""Structural equality and hash: whether two modules (or functions) say the same, without regard to object identity.

Both walk the same sequence of facts. With `names=True` everything counts that IR text shows: names, locations and
metadata too. With `names=False` only what is computed counts: operators, attributes, the flow of values, types,
constants and calls of functions.

Attributes are compared as they are set: an attribute set to its default differs from one left out. Floats agree if
they have the same bits (all NaNs are one), constants if dtype, shape and bits do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any, NamedTuple, TypeAlias

from .core import AttributeReference, Block, Operation, Value
from .data import SparseData, TensorData
from .location import Location
from .module import Function, Module
from .opdef import OpaqueDefinition, OpDefinition
from .printer import print_operation
from .value_text import value_text

Structure: TypeAlias = Module | Function


def structurally_equal(a: Structure, b: Structure, *, names: bool = True) -> bool:
    """Whether `a` and `b` say the same; `first_difference` tells where they do not."""
    return first_difference(a, b, names=names) is None


def first_difference(a: Structure, b: Structure, *, names: bool = True) -> str | None:
    """A sentence about the first place where `a` and `b` differ; None if they are structurally equal."""
    for mine, theirs in zip_longest(_facts(a, names), _facts(b, names)):
        if mine is None or theirs is None:
            longer, fact = ("second", theirs) if mine is None else ("first", mine)
            return f"only the {longer} has {fact.where()}"
        if mine.what != theirs.what:
            return f"{mine.where()} in the first, {theirs.where()} in the second"
        if not _same(mine.value, theirs.value):
            return (
                f"{mine.what} is {_shown(mine.value)} in the first, {_shown(theirs.value)} in the second\n"
                f"  first:  {mine.place()}\n  second: {theirs.place()}"
            )
    return None


def structural_hash(a: Structure, *, names: bool = True) -> str:
    """SHA-256 (hex) that is equal for structurally equal modules, in every process. Reads and hashes all constants."""
    digest = hashlib.sha256()
    for fact in _facts(a, names):
        digest.update(f"{fact.what}={_text(fact.value)}\n".encode(errors="surrogatepass"))
    return digest.hexdigest()


class _Fact(NamedTuple):
    owner: Module | Function | Block | Operation
    what: str
    value: Any

    def place(self) -> str:
        if isinstance(self.owner, Operation):
            return print_operation(self.owner)
        region = self.owner.parent if isinstance(self.owner, Block) else None
        if region is None:
            return repr(self.owner)
        owner = region.parent
        return f"{region.name} of {print_operation(owner)}" if isinstance(owner, Operation) else repr(owner)

    def where(self) -> str:
        return f"{self.what} of {self.place()}"


def _facts(structure: Structure, names: bool) -> Iterator[_Fact]:
    if isinstance(structure, Function):
        yield from _function_facts(structure, names)
        return
    yield _Fact(structure, "level", structure.level)
    yield _Fact(structure, "functions", tuple(str(key) for key in structure.functions))
    if names:
        yield _Fact(structure, "opsets", structure.opsets)
        yield _Fact(structure, "metadata", structure.metadata)
    for function in structure.all_functions():
        yield from _function_facts(function, names)


def _function_facts(function: Function, names: bool) -> Iterator[_Fact]:
    attributes = {
        name: _REQUIRED if value is Function.REQUIRED else value for name, value in function.attributes.items()
    }
    yield _Fact(function, "attributes", attributes)
    yield _Fact(function, "opsets", function.opsets)
    if names:
        yield _Fact(function, "key", tuple(function.key))
        yield _Fact(function, "metadata", function.metadata)
    numbers: dict[Value, int] = {}
    yield from _block_facts(function.block, names, numbers)
    defaults = sorted(((numbers.get(argument, -1), data) for argument, data in function.defaults.items()), key=_first)
    yield _Fact(function, "defaults", tuple(defaults))


def _first(pair: tuple[int, TensorData]) -> int:
    return pair[0]


def _block_facts(block: Block, names: bool, numbers: dict[Value, int]) -> Iterator[_Fact]:
    yield from _value_facts(block, "argument", block.arguments, names, numbers)
    yield _Fact(block, "output types", tuple(output.type for output in block.outputs))
    if names:
        yield _Fact(block, "output names", tuple(output.name for output in block.outputs))
        yield _Fact(block, "output metadata", tuple(output.info for output in block.outputs))
        yield _Fact(block, "metadata", block.metadata)
    for op in block:
        yield from _operation_facts(op, names, numbers)
    yield _Fact(block, "the end", len(block))


def _operation_facts(op: Operation, names: bool, numbers: dict[Value, int]) -> Iterator[_Fact]:
    yield _Fact(op, "operator", _operator(op.definition))
    yield _Fact(op, "operands", tuple(None if value is None else numbers.get(value, -1) for value in op.operands))
    yield _Fact(op, "attributes", op.attributes)
    if names:
        yield _Fact(op, "location", op.location)
        yield _Fact(op, "metadata", op.metadata)
    for name in sorted(op.regions):
        yield _Fact(op, "region", name)
        yield from _block_facts(op.regions[name].block, names, numbers)
    yield from _value_facts(op, "result", op.results, names, numbers)


def _operator(definition: OpDefinition) -> str:
    version = "" if definition.version is None else f" of version {definition.version}"
    opaque = ", opaque" if isinstance(definition, OpaqueDefinition) else ""
    return f"{definition.domain}::{definition.op_type}{version}{opaque}"


def _value_facts(
    owner: Block | Operation, what: str, values: Any, names: bool, numbers: dict[Value, int]
) -> Iterator[_Fact]:
    yield _Fact(owner, f"{what} types", tuple(value.type for value in values))
    if names:
        yield _Fact(owner, f"{what} names", tuple(value.name for value in values))
        yield _Fact(owner, f"{what} metadata", tuple(value.info for value in values))
    for value in values:
        numbers[value] = len(numbers)


# ---- facts of every kind: compared, hashed, shown --------------------------------------------------------------------

_REQUIRED = AttributeReference("", "required")


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if isinstance(a, tuple | list) and not isinstance(a, AttributeReference):
        sequence = isinstance(b, tuple | list) and not isinstance(b, AttributeReference)
        return sequence and len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(_same(value, b[key]) for key, value in a.items())
    if isinstance(a, SparseData):
        return (
            isinstance(b, SparseData)
            and a.shape == b.shape
            and a.values.same_as(b.values)
            and a.indices.same_as(b.indices)
        )
    if isinstance(a, TensorData):
        return isinstance(b, TensorData) and not isinstance(b, SparseData) and a.same_as(b)
    return not isinstance(b, TensorData) and _text(a) == _text(b)


def _text(value: Any, tensor: Callable[[TensorData], str] = lambda data: f"tensor {data.sha256}") -> str:
    """Text that two facts share only if they are the same. Raises TypeError for what the IR cannot hold."""
    if isinstance(value, Location):
        return f"@{value}"

    def text_of(data: TensorData) -> str:
        if not isinstance(data, SparseData):
            return tensor(data)
        return f"sparse {list(data.shape)} {_text((data.values, data.indices), tensor)}"

    return value_text(value, text_of, by_key=True)


def _shown(value: Any) -> str:
    text = _text(value, repr)
    return text if len(text) <= 200 else f"{text[:200]}..."
