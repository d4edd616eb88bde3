"""Tilewright as an `onnx.backend.base` backend: `tilewright.backend.prepare(model).run(inputs)`.

ONNX's own test runner takes this module: `onnx.backend.test.BackendTest(tilewright.backend, __name__)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep, namedtupledict

from ..graph.diagnostics import UsageError
from ..graph.evaluation import type_of
from ..graph.module import INTERNAL_OPSET
from ..importers.onnx import load
from .executable import Executable
from .target import compile_module

# ONNX's name for a device -> our target.
_DEVICES = {"CPU": "reference"}


class TilewrightRep(BackendRep):
    """A prepared model. `executable` is what runs it."""

    def __init__(self, executable: Executable) -> None:
        self.executable = executable
        self._outputs = namedtupledict("Outputs", [port.name for port in executable.outputs])

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs for a list of inputs in order, one array, or `{name: array}`; also readable by output name.

        Raises ExecutionError if the inputs do not fit, UsageError for an option.
        """
        _no_options("run", kwargs)
        if isinstance(inputs, dict):
            feeds = inputs
        else:
            values = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
            required = [port.name for port in self.executable.inputs if port.required]
            names = required if len(values) == len(required) else [port.name for port in self.executable.inputs]
            if len(values) > len(names):
                raise UsageError("run/too-many-inputs", f"the model has {len(names)} inputs, got {len(values)}")
            feeds = dict(zip(names, values, strict=False))
        return self._outputs(*self.executable.run(feeds).values())


class TilewrightBackend(Backend):
    """`prepare`, `run_model`, `run_node` and `supports_device` as ONNX defines them."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        return cls.supports_device(device)

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> TilewrightRep:
        """Make `model` (a ModelProto, path or bytes) ready to run. Raises ModelError, or UsageError for a device."""
        _no_options("prepare", kwargs)
        return TilewrightRep(compile_module(load(model), target=_target(device)))

    @classmethod
    def run_model(cls, model: Any, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one node on its inputs in order. `opset_version` is that of the node's domain (default: the newest)."""
        version = kwargs.pop("opset_version", INTERNAL_OPSET if node.domain in ("", "ai.onnx") else 1)
        names = [name for name in node.input if name]
        values = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        model = _model_of(node, dict(zip(names, map(_as_array, values), strict=True)), version)
        return cls.run_model(model, values, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device.split(":")[0] in _DEVICES


def _target(device: str) -> str:
    name = device.split(":")[0]
    if name not in _DEVICES:
        raise UsageError(
            "backend/device", f"there is no device {device!r} here", notes=[f"the devices are {', '.join(_DEVICES)}"]
        )
    return _DEVICES[name]


def _no_options(call: str, options: dict[str, Any]) -> None:
    if options:
        raise UsageError("backend/option", f"{call} has no option {', '.join(map(repr, options))}")


def _as_array(value: Any) -> Any:
    return value if isinstance(value, list | dict) or value is None else np.asarray(value)


def _model_of(node: onnx.NodeProto, inputs: dict[str, Any], version: int) -> onnx.ModelProto:
    """A model of this one node, with inputs of the types that the given values have and outputs of unknown type."""
    from ..graph.onnx_values import type_proto

    graph = onnx.GraphProto(name=node.op_type, node=[node])
    for name, value in inputs.items():
        graph.input.add(name=name).type.CopyFrom(type_proto(type_of(value)))
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.output if name)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid(node.domain, version)])


is_compatible = TilewrightBackend.is_compatible
prepare = TilewrightBackend.prepare
run_model = TilewrightBackend.run_model
run_node = TilewrightBackend.run_node
supports_device = TilewrightBackend.supports_device
