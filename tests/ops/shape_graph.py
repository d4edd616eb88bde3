"""A few lines to say "this operator on these types": arguments from types, constants from lists, types as text."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.graph.builder import OpBuilder
from tilewright.graph.core import Block, BlockOutput, Operation, Region, Value
from tilewright.graph.data import ArrayData
from tilewright.graph.dims import FreshSymbols
from tilewright.graph.infer import InferenceContext
from tilewright.graph.types import Type


class ShapeGraph:
    """Builds operations on arguments; `graph.relu(x)` is any operator by its IR name."""

    def __init__(self) -> None:
        self.symbols = FreshSymbols()
        self.block = Block()
        self.builder = OpBuilder(self.block, self.symbols)

    def argument(self, type: Type) -> Value:
        return self.block._add_argument(type)

    def ints(self, *items: int) -> Value:
        """An i64 vector."""
        return self.builder.const(ArrayData(np.array(items, np.int64)))

    def scalar(self, value: float | bool) -> Value:
        """An i64, f32 or bool scalar."""
        kinds = {bool: np.bool_, int: np.int64, float: np.float32}
        return self.builder.const(ArrayData(np.array(value, kinds[type(value)])))

    def create(self, name: str, *operands: Value | None, outputs: int = 1, **attributes: Any) -> Operation:
        regions = {key: attributes.pop(key) for key in list(attributes) if isinstance(attributes[key], Region)}
        return self.builder.create(name, operands, attributes, outputs=outputs, regions=regions)

    def __getattr__(self, name: str) -> Any:
        def call(*operands: Any, outputs: int = 1, **attributes: Any) -> Any:
            values = [self.argument(item) if isinstance(item, Type) else item for item in operands]
            op = self.create(name.rstrip("_"), *values, outputs=outputs, **attributes)
            return op.result if outputs == 1 else op.results

        return call

    def elements(self, value: Value) -> Any:
        """The known elements of a value, as nested lists of text; None if they are not known."""
        found = InferenceContext(self.symbols).symbolic(value)
        return None if found is None else np.vectorize(str, otypes=[object])(found).tolist()


def body(arguments: list[Type], build: Any, symbols: FreshSymbols) -> Region:
    """A region with these argument types; `build(graph, *arguments)` gives the returned values."""
    graph = ShapeGraph()
    graph.symbols = graph.builder.symbols = symbols
    returned = build(graph, *[graph.argument(type) for type in arguments])
    graph.builder.returns(returned)
    graph.block.outputs = [BlockOutput(None, None) for _ in returned]
    return Region(graph.block)


def text(*values: Value) -> str:
    """The types of the values."""
    return " ".join(str(value.type) for value in values)
