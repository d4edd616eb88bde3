"""Constants that remember what they were folded from, so that their memory can be given back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..graph.builder import OpBuilder
from ..graph.clone import clone_operation
from ..graph.core import Block, Operation, Value
from ..graph.data import TensorData, computed
from ..graph.dims import FreshSymbols
from ..graph.evaluator import Evaluator
from ..graph.lowerings.builder import data_of


def recomputed(result: Value, array: np.ndarray, cone: Sequence[Operation]) -> TensorData:
    """`array`, the elements of `result`, as a constant that `cone` computes again if it must.

    `cone` is in reverse order, has no regions or calls, and its other operands are constants.
    """
    block = Block([])
    builder = OpBuilder(block, FreshSymbols())
    copies: dict[Value, Value] = {}
    sources: list[TensorData] = []
    for step in reversed(cone):
        for value in step.operand_values:
            data = None if value in copies else data_of(value)
            if data is not None:
                copies[value] = builder.const(data)
                sources.append(data)
        builder.insert(clone_operation(step, copies))
    builder.returns([copies[result]])

    def compute() -> np.ndarray:
        found: np.ndarray = Evaluator().run(block, [])[0]
        return found

    return computed(compute, sources, array)
