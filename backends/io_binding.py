"""`IOBinding`: inputs and outputs named once for many runs, as `onnxruntime.IOBinding` does for host memory."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..graph.diagnostics import UsageError
from ..graph.dtypes import BY_ONNX_CODE, string
from .host_value import HostValue

if TYPE_CHECKING:
    from .executable import Executable


class IOBinding:
    """What a session reads and where it writes. Made by `InferenceSession.io_binding`.

    An output that is bound with memory is written there; one that is bound without gets a fresh array in each run.
    """

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, np.ndarray | None] = {}
        self._results: dict[str, Any] = {}

    def __repr__(self) -> str:
        given, wanted = ", ".join(self._inputs) or "nothing", ", ".join(self._outputs) or "nothing"
        return f"<IOBinding of {given} to {wanted}>"

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Give an input; the array is read when the session runs."""
        self._check(name, self._executable.inputs, "input")
        self._inputs[name] = arr_on_cpu

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Give an input as row-major memory at an address, which must stay valid while it is bound.

        `element_type` is a numpy type or a number of `TensorProto.DataType`. Raises UsageError for another device.
        """
        self.bind_cpu_input(name, _memory(device_type, element_type, shape, buffer_ptr))

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Ask for an output, into row-major memory at an address if one is given. Raises UsageError."""
        self._check(name, self._executable.outputs, "output")
        if buffer_ptr is None:
            _check_device(device_type)
            self._outputs[name] = None
            return
        if element_type is None or shape is None:
            raise UsageError("session/binding", f"memory for the output {name!r} needs its element_type and shape")
        self._outputs[name] = _memory(device_type, element_type, shape, buffer_ptr)

    def bind_cpu_output(self, name: str, array: np.ndarray) -> None:
        """Ask for an output in an array."""
        self._check(name, self._executable.outputs, "output")
        self._outputs[name] = array

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        """Give an input as an `OrtValue` of ONNX Runtime, or one of `get_outputs`; no element is copied."""
        self.bind_cpu_input(name, held(ortvalue))

    def bind_ortvalue_output(self, name: str, ortvalue: Any) -> None:
        """Ask for an output in the memory of an `OrtValue`."""
        self.bind_cpu_output(name, held(ortvalue))

    def clear_binding_inputs(self) -> None:
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        self._outputs.clear()
        self._results = {}

    def synchronize_inputs(self) -> None:
        """Nothing: host memory is always there."""

    def synchronize_outputs(self) -> None:
        """Nothing: a run has ended when it returns."""

    def get_outputs(self) -> list[HostValue]:
        """The outputs of the last run in the order in which they were bound, where they are."""
        types = {port.name: port.type for port in self._executable.outputs}
        return [HostValue(result, types[name]) for name, result in self._results.items()]

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The outputs of the last run in the order in which they were bound; what was bound to memory is copied."""
        return [
            np.array(result) if self._outputs.get(name) is not None else result
            for name, result in self._results.items()
        ]

    def run(self) -> None:
        """Run the model on what is bound. Raises as `Executable.run_into` does, UsageError if no output is bound."""
        if not self._outputs:
            raise UsageError("session/binding", "no output is bound: nothing says what to compute")
        self._results = self._executable.run_into(self._inputs, self._outputs)

    def _check(self, name: str, ports: Sequence[Any], kind: str) -> None:
        names = [port.name for port in ports]
        if name not in names:
            raise UsageError(
                "session/binding", f"the model has no {kind} {name!r}", notes=[f"it has {', '.join(names) or 'none'}"]
            )


def _check_device(device_type: str) -> None:
    if device_type != "cpu":
        raise UsageError("session/binding", f"memory is bound on the device 'cpu', not on {device_type!r}")


def held(ortvalue: Any) -> Any:
    """What an `OrtValue` of ONNX Runtime, or a `HostValue`, holds; no copy. Raises UsageError for another device."""
    if isinstance(ortvalue, HostValue):
        return ortvalue.value
    _check_device(ortvalue.device_name().lower())
    if not ortvalue.is_tensor() or ortvalue.element_type() == string.onnx_code:
        return ortvalue.numpy()
    return _memory("cpu", ortvalue.element_type(), ortvalue.shape(), ortvalue.data_ptr(), ortvalue)


def _memory(
    device_type: str, element_type: Any, shape: Sequence[int], address: int, owner: object = None
) -> np.ndarray:
    """The memory at `address` as an array, which keeps its owner."""
    _check_device(device_type)
    is_code = isinstance(element_type, int)
    if is_code and element_type not in BY_ONNX_CODE:
        raise UsageError("session/binding", f"{element_type} is no number of TensorProto.DataType")
    dtype = BY_ONNX_CODE[element_type].numpy if is_code else np.dtype(element_type)
    count = math.prod(shape) * dtype.itemsize
    if dtype.hasobject or min(shape, default=0) < 0 or (count and not address):
        raise UsageError("session/binding", f"there is no memory of {dtype} {list(shape)} at address {address}")
    if not count:
        return np.empty(shape, dtype)
    block: Any = (ctypes.c_byte * count).from_address(address)
    block.owner = owner
    return np.frombuffer(memoryview(block), dtype).reshape(shape)
