"""What another optimizer makes of a model; run by the Python of an environment that has it.

    python benchmarks/peer_nodes.py onnxsim MODEL.onnx OUT.onnx

Writes the nodes, without weights, for `node_counts.py` to count as it counts ours. Needs nothing of Tilewright.
"""

from __future__ import annotations

import sys
from pathlib import Path

import onnx

TOOLS = ("onnxsim", "onnxslim", "onnxscript")


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
    tool, path, out = sys.argv[1:]
    model = optimized_by(tool, onnx.load(path))
    del model.graph.initializer[:]
    Path(out).write_bytes(model.SerializeToString())


if __name__ == "__main__":
    main()
