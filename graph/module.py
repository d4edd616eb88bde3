"""Functions and modules: what holds the blocks. A module is one model; `main` is the graph that runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from .core import Block, Metadata, Operation, Region, Value
from .dims import FreshSymbols

if TYPE_CHECKING:
    from .core import AttributeValue
    from .data import TensorData

# The opset at which operations of the default domain are held in memory, whatever the file they came from says.
INTERNAL_OPSET = 28


class FunctionKey(NamedTuple):
    """What names a model-local function (ONNX IR spec, "Functions"): domain, name and overload."""

    domain: str
    name: str
    overload: str = ""

    def __str__(self) -> str:
        text = f"{self.domain}::{self.name}" if self.domain else self.name
        return f"{text}:{self.overload}" if self.overload else text


class Function:
    """A named body. Its inputs are the block's arguments, its outputs the block's outputs.

    `attributes` maps the names of attributes a call may set to their defaults (`REQUIRED` if it must).
    `opsets` are the operator set versions that a model-local function imports itself (empty for `main`).
    `defaults` gives arguments that a caller may leave out: ONNX's initializers that are also inputs.
    """

    REQUIRED = object()

    def __init__(self, key: FunctionKey, block: Block) -> None:
        self.key = key
        self.region = Region(block, self)
        self.attributes: dict[str, AttributeValue] = {}
        self.opsets: dict[str, int] = {}
        self.defaults: dict[Value, TensorData] = {}
        self.metadata: Metadata = {}

    @property
    def block(self) -> Block:
        return self.region.block

    @property
    def inputs(self) -> tuple[Value, ...]:
        return tuple(self.block.arguments)

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The returned values; their names in the interface are in `block.outputs`."""
        return self.block.returned

    @property
    def output_names(self) -> tuple[str, ...]:
        return tuple(output.name or "" for output in self.block.outputs)

    def walk(self) -> Iterator[Operation]:
        return self.region.walk()

    def __repr__(self) -> str:
        return f"<Function @{self.key}>"


class Module:
    """One model: the main function, model-local functions, the opsets the file declared, and its metadata.

    `opsets` maps a domain to the version under which the model is written by default; in memory operations of the
    default domain are always at `INTERNAL_OPSET`. `level` names the legal operations ("onnx", later "core", "kernel",
    "loop"). `symbols` hands out dims nobody has used yet. `is_optimized` tells the writer to clean, too, what it has to
    write as parts.
    """

    def __init__(self, main: Function, opsets: dict[str, int] | None = None, level: str = "onnx") -> None:
        self.main = main
        self.functions: dict[FunctionKey, Function] = {}
        self.opsets: dict[str, int] = dict(opsets or {"": INTERNAL_OPSET})
        self.level = level
        self.metadata: Metadata = {}
        self.symbols = FreshSymbols()
        self.is_optimized = False

    def take_over(self, other: Module) -> None:
        """Become what `other` is, which must not be used any more."""
        self.main, self.functions = other.main, other.functions
        self.opsets, self.level, self.metadata, self.symbols = other.opsets, other.level, other.metadata, other.symbols
        self.is_optimized = other.is_optimized

    def all_functions(self) -> Iterator[Function]:
        """`main` first, then the model-local functions in order."""
        yield self.main
        yield from self.functions.values()

    def operations(self) -> list[Operation]:
        """All operations that functions have now, in the order of `walk`."""
        return [op for function in self.all_functions() for op in function.region.operations()]

    def walk(self) -> Iterator[Operation]:
        """All operations of all functions, safe while they change."""
        for function in self.all_functions():
            yield from function.walk()

    def dissolve(self) -> None:
        """Take the module apart, so that its memory is free at once and not when somebody looks for cycles. Nothing of
        it may be used any more."""
        ops = list(self.walk())
        regions = [function.region for function in self.all_functions()]
        regions += [region for op in ops for region in op.regions.values()]
        for region in regions:
            region.parent = None
            region.block._dissolve()
        for op in ops:
            op._dissolve()

    def __str__(self) -> str:
        from .printer import print_module

        return print_module(self, weights="none")

    def __repr__(self) -> str:
        return f"<Module {self.main.block.metadata.get('name', '')!r}: {sum(1 for _ in self.walk())} operations>"
