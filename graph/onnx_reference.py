"""The numpy meaning of standard operators by `onnx.reference`: its class for one operator, never its evaluator.

`onnx.reference` is ONNX's own executable specification. Its classes work on one node; the ones that would run a graph
(operators with regions, and operators that only have a function body) are not used: those go through our own
decomposition and evaluator. Importing it takes about 0.1 s, so it happens on first use.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .data import TensorData
from .diagnostics import ExecutionError
from .evaluation import evaluate_by_decomposition
from .module import INTERNAL_OPSET

if TYPE_CHECKING:
    from .core import AttributeValue, Operation
    from .opdef import OpDefinition

_PACKAGES = {
    "": "onnx.reference.ops._op_list",
    "ai.onnx.ml": "onnx.reference.ops.aionnxml._op_list",
    "ai.onnx.preview.training": "onnx.reference.ops.aionnx_preview_training._op_list",
}


def evaluate(definition: OpDefinition, op: Operation, operands: Sequence[Any]) -> Any:
    """The results of `op` for numpy operands: a value, or a tuple for several results.

    Uses `onnx.reference`'s implementation of the operator at the definition's version; an operator that has none there
    is decomposed and the parts are evaluated. Raises ExecutionError if neither is possible, and whatever the
    implementation raises for operands it is not defined for.
    """
    found = find_implementation(definition.domain, definition.op_type, definition.version)
    # An old form (version set) may mean something else than the class that onnx.reference has for all versions.
    if found is None or definition.version is not None:
        results = evaluate_by_decomposition(op, operands)
        if results is not None:
            return tuple(results)
    if found is None:
        raise ExecutionError(
            "run/no-meaning",
            f"there is no numpy meaning for the operator {definition.name}",
            notes=["give its definition an `evaluate` or a `decompose` method, see docs/adding-an-op.md"],
        )
    attributes = {name: value for name, value in op.attributes.items() if value is not None}
    # Some implementations look at which outputs their node has.
    outputs = tuple("" if result.name == "" else f"o{result.index}" for result in op.results)
    if any(isinstance(value, TensorData) for value in attributes.values()):
        implementation = _instance(definition, attributes, outputs)  # not cached: that would keep the tensor alive
    else:
        implementation = _cached_instance(definition, tuple((n, _key(v), v) for n, v in attributes.items()), outputs)
    results = implementation.run(*operands)
    return results if len(results) > 1 else results[0]


@cache
def find_implementation(domain: str, op_type: str, version: int | None = None) -> type[Any] | None:
    """`onnx.reference`'s class for an operator as it was at `version` (None: today); None if it has none."""
    versions = _implementations(domain).get(op_type, {})
    ceiling = INTERNAL_OPSET if version is None else version
    fitting = [since for since in versions if since <= ceiling]
    return versions[max(fitting)] if fitting else None


@cache
def _implementations(domain: str) -> dict[str, dict[int, type[Any]]]:
    """Operator name -> first version -> class. Class names say both: `Cast_19`, or `Abs` for all versions."""
    if domain not in _PACKAGES:
        return {}
    from onnx.reference.op_run import OpFunction, OpRun

    found: dict[str, dict[int, type[Any]]] = {}
    for name, item in vars(import_module(_PACKAGES[domain])).items():
        if isinstance(item, type) and issubclass(item, OpRun) and not issubclass(item, OpFunction):
            parts = re.fullmatch(r"(\w+?)(?:_(\d+))?", name)
            if parts is not None:
                found.setdefault(parts[1], {})[int(parts[2] or 1)] = item
    return found


@lru_cache(maxsize=4096)
def _cached_instance(
    definition: OpDefinition, attributes: tuple[tuple[str, Any, AttributeValue], ...], outputs: tuple[str, ...]
) -> Any:
    return _instance(definition, {name: value for name, _, value in attributes}, outputs)


def _instance(definition: OpDefinition, attributes: Mapping[str, AttributeValue], outputs: tuple[str, ...]) -> Any:
    """The implementation for a node with these attributes. The node has no graph around it."""
    import onnx

    from .onnx_values import attribute_proto

    implementation = find_implementation(definition.domain, definition.op_type, definition.version)
    assert implementation is not None
    specs = definition.attribute_specs
    if definition.version is not None:
        # onnx.reference would take the defaults of the newest schema for an old form.
        defaults = {name: spec.default for name, spec in specs.items() if spec.default is not None}
        attributes = {**defaults, **attributes}
    node = onnx.NodeProto(op_type=definition.op_type, domain=definition.domain, output=outputs)
    for name, value in attributes.items():
        node.attribute.append(attribute_proto(name, value, specs[name].kind if name in specs else None))
    parameters = {"log": _no_log, "opsets": {"": INTERNAL_OPSET}, "verbose": 0, "new_ops": {}, "evaluator_cls": None}
    return implementation(node, parameters)


def _no_log(pattern: str, *arguments: Any) -> None:
    """`onnx.reference` reports each call; nobody listens here."""


def _key(value: AttributeValue) -> Any:
    """A key that also tells 0.0 from -0.0, and equal numbers of different types apart."""
    if isinstance(value, tuple):
        return tuple(map(_key, value))
    return (type(value), value.hex()) if isinstance(value, float) else (type(value), value)
