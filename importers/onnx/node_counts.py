"""How many nodes an ONNX model has: the one way in which reports, benchmarks and tests count them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto


def count_operators(model: ModelProto) -> Counter[str]:
    """Nodes by operator (`Add`, `com.microsoft::Gelu`): those of graphs in attributes and of function bodies count,
    constants do not."""
    return _counted([*model.graph.node]) + count_in_functions(model)


def count_in_functions(model: ModelProto) -> Counter[str]:
    """Those of `count_operators` that lie in bodies of functions."""
    return _counted([node for function in model.functions for node in function.node])


def _counted(pending: list[NodeProto]) -> Counter[str]:
    operators: Counter[str] = Counter()
    while pending:
        node = pending.pop()
        if node.op_type != "Constant":
            operators[f"{node.domain}::{node.op_type}" if node.domain else node.op_type] += 1
        for attribute in node.attribute:
            graphs = [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]
            pending.extend(inner for graph in graphs for inner in graph.node)
    return operators
