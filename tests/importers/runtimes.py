"""Running a model by somebody else: ONNX Runtime, or onnx.reference for what that does not run."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.reference
import onnxruntime

OPTIONS = onnxruntime.SessionOptions()
OPTIONS.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
OPTIONS.log_severity_level = 4
OPTIONS.intra_op_num_threads = 1


def array_of(value: Any) -> Any:
    """The array of a tensor message; numpy's scalars, which runtimes do not take, as arrays."""
    if isinstance(value, np.generic):
        return np.asarray(value)
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def agree(found: list[Any], expected: list[Any]) -> bool:
    """Equal shapes, element types and (up to rounding) numbers, in sequences too."""
    for mine, theirs in zip(found, expected, strict=True):
        if isinstance(theirs, list):
            if not agree(mine, theirs):
                return False
            continue
        mine, theirs = np.asarray(mine), np.asarray(theirs)
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            return False
        if theirs.dtype.kind in "OUSb":
            if not bool((mine == theirs).all()):
                return False
        elif not np.allclose(widened(mine), widened(theirs), rtol=1e-3, atol=1e-4, equal_nan=True):
            return False
    return True


def widened(array: np.ndarray) -> np.ndarray:
    return array if array.dtype.kind == "c" else array.astype(np.float64)


def run(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    """By ONNX Runtime, or by onnx.reference what that does not run."""
    stored = {item.name for item in model.graph.initializer}
    fed = {item.name: feeds[item.name] for item in model.graph.input if item.name not in stored}
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), OPTIONS, providers=["CPUExecutionProvider"])
        return list(session.run(None, fed))
    except Exception:
        return list(onnx.reference.ReferenceEvaluator(model).run(None, fed))
