"""ONNX Runtime as an independent witness: with all of its graph optimizations off, since those have known faults.

It is optional: `is_available` tells whether some build of it is installed (onnxruntime, onnxruntime-gpu, ...).
"""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ..graph import dtypes
from ..graph.data import from_raw
from ..graph.diagnostics import ExecutionError
from ..graph.module import Module

INSTALL_HINT = "install it with: pip install onnxruntime"


def is_available() -> bool:
    """Whether ONNX Runtime is installed; does not import it."""
    return find_spec("onnxruntime") is not None


def description() -> str:
    """`ONNX Runtime 1.32.0 with its optimizations off`."""
    import onnxruntime

    return f"{OnnxRuntime.name} {onnxruntime.__version__} with its optimizations off"


class OnnxRuntime:
    """A model in an ONNX Runtime session on the CPU, optimizations disabled.

    `source` is a path (external data is found beside it), the bytes of a model, or a Module, which is written at
    `opset` first. Raises ExecutionError, with ONNX Runtime's own reason, if it does not accept the model.
    """

    name = "ONNX Runtime"

    def __init__(self, source: str | os.PathLike[str] | bytes | Module, opset: int | None = None) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4  # errors come as exceptions; the log would repeat them
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        model = source if isinstance(source, bytes) else os.fspath(self._written(source, opset))
        try:
            self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise _refusal("onnxruntime/load", "ONNX Runtime does not load the model", error) from None
        ports = [*self._session.get_inputs(), *self._session.get_outputs()]
        # numpy has no such types of its own, so ONNX Runtime takes and gives them only as memory.
        self._by_memory = any(re.search(r"bfloat16|float8|float4|int[24]\)", port.type) for port in ports)

    def _written(self, source: str | os.PathLike[str] | Module, opset: int | None) -> Path:
        if not isinstance(source, Module):
            return Path(source)
        from ..importers.onnx import save

        self._folder = tempfile.TemporaryDirectory(prefix="tilewright-")
        path = Path(self._folder.name) / "model.onnx"
        save(source, path, opset=opset)
        return path

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """All outputs by name. Raises ExecutionError with ONNX Runtime's reason if the run fails."""
        given = {name: value for name, value in feeds.items() if value is not None}
        names = [port.name for port in self._session.get_outputs()]
        try:
            if self._by_memory:
                values = {name: _to_memory(value) for name, value in given.items()}
                results = [_from_memory(value) for value in self._session.run_with_ort_values(names, values)]
            else:
                results = self._session.run(names, given)
        except Exception as error:
            raise _refusal("onnxruntime/run", "ONNX Runtime does not run the model", error) from None
        return dict(zip(names, results, strict=True))


def _to_memory(value: Any) -> Any:
    import onnxruntime

    array = np.ascontiguousarray(value).reshape(np.shape(value))
    dtype = dtypes.from_numpy(array.dtype)
    if array.dtype.kind != "V":
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    raw = array.view(np.uint16 if dtype.bits == 16 else np.uint8)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, dtype.onnx_code)


def _from_memory(value: Any) -> Any:
    dtype = dtypes.BY_ONNX_CODE.get(value.element_type()) if value.is_tensor() else None
    if dtype is None or dtype.numpy.kind != "V":
        return value.numpy()
    shape = tuple(value.shape())
    raw = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes()) if 0 not in shape else b""
    return from_raw(raw, dtype, shape)


def _refusal(code: str, message: str, error: Exception) -> ExecutionError:
    return ExecutionError(code, message, notes=[f"it says: {reason_text(error)}"])


def reason_text(error: Exception) -> str:
    """ONNX Runtime's reason on one line, without its error numbers and source paths."""
    reason = " ".join(str(error).split())
    reason = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", reason)
    return re.sub(r"\S*/onnxruntime/\S+:\d+ [^)]*\)(?: \[\w+ = \w+\])? ?", "", reason)
