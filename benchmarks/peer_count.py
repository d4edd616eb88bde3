"""How many nodes another optimizer leaves of a model; run by the Python of an environment that has it.

    python benchmarks/peer_count.py onnxsim MODEL.onnx

Prints one line, the number. Needs nothing of Tilewright; `node_counts.py` runs it, and counts with `count_nodes` too.
"""

from __future__ import annotations

import sys

import onnx

TOOLS = ("onnxsim", "onnxslim", "onnxscript")


def count_nodes(model: onnx.ModelProto) -> int:
    """Nodes of the graph, of graphs in attributes and of function bodies; constants do not count."""
    return _count(model.graph.node) + sum(_count(function.node) for function in model.functions)


def _count(nodes) -> int:
    total = 0
    for node in nodes:
        total += node.op_type != "Constant"
        for attribute in node.attribute:
            graphs = [*attribute.graphs, attribute.g] if attribute.HasField("g") else attribute.graphs
            total += sum(_count(graph.node) for graph in graphs)
    return total


def optimized_by(tool: str, model: onnx.ModelProto) -> onnx.ModelProto:
    """The model as `tool` optimizes it with its default settings."""
    if tool == "onnxsim":
        import onnxsim

        return onnxsim.simplify(model)[0]
    if tool == "onnxslim":
        import onnxslim

        return onnxslim.slim(model)
    if tool == "onnxscript":
        import onnxscript.optimizer

        return onnxscript.optimizer.optimize(model)
    raise SystemExit(f"there is no tool {tool!r}; there are {', '.join(TOOLS)}")


def main() -> None:
    tool, path = sys.argv[1:]
    print(count_nodes(optimized_by(tool, onnx.load(path))))


if __name__ == "__main__":
    main()
