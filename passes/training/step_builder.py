"""`StepBuilder`: a `Builder` that goes on with a module that is there, before its terminator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ...graph.builder import OpBuilder
from ...graph.core import BlockOutput, Value
from ...graph.data import ArrayData, TensorData
from ...graph.location import UNKNOWN, Location
from ...graph.model_builder import Builder, Tensor
from ...graph.types import Type

if TYPE_CHECKING:
    from ...graph.core import Operation
    from ...graph.dtypes import DType
    from ...graph.module import Module


class StepBuilder(Builder):
    """Builds at the end of a module's main graph, on `Tensor`s; `location` names what new operations are for.

    `state(name, value)` is a tensor that a step reads and `update` is what the step makes of it: an input with a
    default, and an output `NAME_next`.
    """

    def __init__(self, module: Module) -> None:
        # Not Builder's own: the module is there already.
        self._module = module
        self.block = module.main.block
        self.defaults = module.main.defaults
        self._places = [OpBuilder(self.block, module.symbols, self.block.terminator)]
        self._returned = []
        self._finished = False
        self.location: Location = UNKNOWN
        self.updates: dict[str, tuple[str, Tensor]] = {}

    @property
    def _here(self) -> OpBuilder:
        self._places[-1].location = self.location
        return self._places[-1]

    def tensor(self, value: Value) -> Tensor:
        return Tensor(value, self)

    def before(self, op: Operation | None) -> None:
        """Go on before `op` (None: at the end)."""
        self._places[0].before = op or self.block.terminator

    def unused(self, name: str) -> str:
        """`name`, or with a number behind it if it is taken."""
        taken = set(self._names())
        candidate, number = name, 1
        while candidate in taken:
            number += 1
            candidate = f"{name}_{number}"
        return candidate

    def _names(self) -> Iterable[str | None]:
        yield from (argument.name for argument in self.block.arguments)
        yield from (output.name for output in self.block.outputs)
        yield from (result.name for op in self.block for result in op.results)
        yield from (output for output, _ in self.updates.values())

    def input(self, name: str, type: Type) -> Tensor:
        """A further input."""
        found = super().input(name, type)
        order = self.block.metadata.get("input_order")
        if order is not None:
            order.append(name)
        return found

    def state(self, name: str, initial: TensorData | np.ndarray) -> Tensor:
        """A further input, which has a default. `name` must be free (`unused`)."""
        data = initial if isinstance(initial, TensorData) else ArrayData(initial)
        found = self.input(name, data.type)
        self.defaults[found.value] = data
        return found

    def update(self, state: Tensor, new: Tensor) -> None:
        """`new` is the value of `state` after this step."""
        name = str(state.value.name)
        self.updates[name] = (self.unused(f"{name}_next"), new)

    def add_outputs(self, first: list[tuple[str, Value]], last: list[tuple[str, Value]]) -> None:
        """Further outputs, before and after those that are there."""
        terminator = self.block.terminator
        before, after = [value for _, value in first], [value for _, value in last]
        terminator._set_operands([*before, *terminator.operands, *after])
        declared = [BlockOutput(name, value.type) for name, value in first]
        self.block.outputs[:0] = declared
        self.block.outputs += [BlockOutput(name, value.type) for name, value in last]

    # ---- common steps --------------------------------------------------------------------------------------------

    def like(self, number: Tensor | float, tensor: Tensor) -> Tensor:
        """A scalar in the element type of `tensor`."""
        dtype = tensor.dtype
        assert dtype is not None
        if not isinstance(number, Tensor):
            return self.const(np.array(number, dtype.numpy))
        result: Tensor = number if number.dtype is dtype else self.cast(number, to=dtype)
        return result

    def as_dtype(self, tensor: Tensor, dtype: DType) -> Tensor:
        result: Tensor = tensor if tensor.dtype is dtype else self.cast(tensor, to=dtype)
        return result

    def sum_of_squares(self, tensors: Iterable[Tensor]) -> Tensor:
        """The squares of all elements of all tensors, summed up in the first one's type."""
        total: Any = None
        for tensor in tensors:
            square = self.reduce_sum_square(tensor, keepdims=0)
            total = square if total is None else total + self.like(square, total)
        found: Tensor = total
        return found
