"""What another optimizer makes of a model; run by the Python of an environment that has it.

    python benchmarks/peer_nodes.py onnxsim MODEL.onnx OUT.onnx

Writes the nodes, without weights, for `node_counts.py` to count as it counts ours. Needs nothing of Tilewright.
"""

from __future__ import annotations

import sys
from pathlib import Path

import onnx

TOOLS = ("onnxsim", "onnxslim", "onnxscript")
# Tools that use the operators of ONNX Runtime.
RUNTIME_TOOLS = ("onnxscript-ort", "onnxruntime")
# What ONNX Runtime's optimizer of transformers may be told about a model.
MODEL_TYPES = ("bert", "vit", "gpt2", "clip")


def optimized_by(tool: str, path: str) -> onnx.ModelProto:
    """The model as `tool` optimizes it with its default settings."""
    if tool == "onnxruntime":
        return by_transformers_optimizer(path)
    model = onnx.load(path)
    if tool == "onnxsim":
        import onnxsim

        return onnxsim.simplify(model)[0]
    if tool == "onnxslim":
        import onnxslim

        return onnxslim.slim(model)
    if tool == "onnxscript":
        import onnxscript.optimizer

        return onnxscript.optimizer.optimize(model)
    if tool == "onnxscript-ort":
        import onnx_ir
        from onnxscript.rewriter.ort_fusions import optimize_for_ort

        optimized = optimize_for_ort(onnx_ir.serde.deserialize_model(model))
        return onnx_ir.serde.serialize_model(optimized[0] if isinstance(optimized, tuple) else optimized)
    raise SystemExit(f"there is no tool {tool!r}; there are {', '.join((*TOOLS, *RUNTIME_TOOLS))}")


def by_transformers_optimizer(path: str) -> onnx.ModelProto:
    """What onnxruntime.transformers.optimizer makes of a model: the shortest over the types of models and its levels.

    Level 1, which runs ONNX Runtime's own optimizer first, needs torch.
    """
    from onnxruntime.transformers import optimizer

    found = []
    for model_type in MODEL_TYPES:
        for level in (0, 1):
            try:
                made = optimizer.optimize_model(path, model_type, num_heads=0, hidden_size=0, opt_level=level)
            except Exception as error:
                print(f"{model_type}, level {level}: {error}", file=sys.stderr)
                continue
            found.append(made.model)
    return min(found, key=lambda model: len(model.graph.node))


def main() -> None:
    tool, path, out = sys.argv[1:]
    model = optimized_by(tool, path)
    del model.graph.initializer[:]
    Path(out).write_bytes(model.SerializeToString())


if __name__ == "__main__":
    main()
