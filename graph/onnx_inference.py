"""Result types of one operation by ONNX's own inference, for operators that have no rule here.

The operation is shown to ONNX as a lone node: its attributes, its operand types with every symbolic dim under a name
that is translated back, and the numbers of small constant operands.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx
import onnx.checker
import onnx.shape_inference

from . import types
from .core import AttributeReference, Operation
from .data import as_data
from .diagnostics import TypeInferenceError
from .dims import Dim, symbol
from .module import INTERNAL_OPSET
from .onnx_values import attribute_proto, tensor_proto, type_from_proto, type_proto
from .types import Type

if TYPE_CHECKING:
    from .infer import InferenceContext
    from .onnx_schema import Schema

# Operands up to this many elements may be shapes, axes, sizes or scales; only these are worth showing to ONNX.
MAX_CONSTANT_ELEMENTS = 64
# Lists up to this long, if they may be left out: no result type depends on the numbers of a tree ensemble.
MAX_ATTRIBUTE_ENTRIES = 1 << 12
# What ONNX raises for operands that do not fit; the plain ones come from its C++ code.
_REFUSALS = (
    onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError, ValueError, IndexError,
)  # fmt: skip


def infer(schema: Schema, op: Operation, context: InferenceContext) -> Sequence[Type]:
    """The types of `op`'s results; a dim that ONNX leaves open is fresh, a type it cannot tell is UNKNOWN.

    Raises TypeInferenceError with ONNX's message if it finds that the operands do not fit.
    """
    unknown: list[Type] = [types.UNKNOWN] * len(op.results)
    if op.regions or any(isinstance(value, AttributeReference) for value in op.attributes.values()):
        return unknown
    names = _DimNames()
    node = _node(schema, op)
    try:
        found = onnx.shape_inference.infer_node_outputs(
            schema.onnx,
            node,
            {f"x{i}": type_proto(names.encode(v.type)) for i, v in enumerate(op.operands) if v is not None},
            _constants(op, context),
            opset_imports=_opsets(schema),
        )
    except _REFUSALS as caught:
        # A number may be demanded where there is a symbol, which is no fault of the operands.
        if not all(_is_static(value.type) for value in op.operand_values):
            return unknown
        raise TypeInferenceError("infer/onnx", f"{op.name}: {_cleaned(str(caught))}") from None
    return [
        type_from_proto(found[name], lambda text: names.decode(text, context), context.symbols)
        if name in found
        else types.UNKNOWN
        for name in node.output
    ]


def _is_static(type: Type) -> bool:
    return isinstance(type, types.TensorType) and type.is_static


def _node(schema: Schema, op: Operation) -> onnx.NodeProto:
    node = onnx.NodeProto(op_type=op.op_type, domain=op.domain)
    node.input.extend(f"x{index}" if value is not None else "" for index, value in enumerate(op.operands))
    node.output.extend(f"y{index}" for index in range(len(op.results)))
    # Defaults are written out: where ONNX's inference has defaults of its own, they are not always the schema's.
    defaults = {name: spec.default for name, spec in schema.attributes.items() if spec.default is not None}
    for name, value in {**defaults, **op.attributes}.items():
        spec = schema.attributes.get(name)
        if spec is not None and not spec.required and isinstance(value, tuple) and len(value) > MAX_ATTRIBUTE_ENTRIES:
            continue
        node.attribute.append(attribute_proto(name, value, spec.kind if spec else None))
    return node


def _constants(op: Operation, context: InferenceContext) -> dict[str, onnx.TensorProto]:
    constants = {}
    for index, value in enumerate(op.operands):
        if value is None or not isinstance(value.type, types.TensorType):
            continue
        elements = value.type.elements
        if isinstance(elements, int) and elements <= MAX_CONSTANT_ELEMENTS and value.type.dtype.kind != "string":
            array = context.constant(value)
            if array is not None:
                constants[f"x{index}"] = tensor_proto(as_data(array, value.type.dtype), f"x{index}")
    return constants


def _opsets(schema: Schema) -> list[onnx.OperatorSetIdProto]:
    domain, since = schema.onnx.domain, schema.since_version
    opsets = [onnx.OperatorSetIdProto(domain="", version=INTERNAL_OPSET)]
    return opsets if domain == "" else [*opsets, onnx.OperatorSetIdProto(domain=domain, version=since)]


def _cleaned(message: str) -> str:
    """ONNX's message without the prefixes that name its own stages and the lone node."""
    message = re.sub(r"\[(Shape|Type)InferenceError\]\s*", "", message)
    message = re.sub(r"\(op_type:[^)]*\):?\s*", "", message)
    return " ".join(message.split())


class _DimNames:
    """Gives each symbolic dim a plain name for ONNX, equal dims one name, and translates back."""

    def __init__(self) -> None:
        self._names: dict[Dim, Dim] = {}
        self._dims: dict[str, Dim] = {}

    def encode(self, type: Type) -> Type:
        if isinstance(type, types.TensorType):
            return types.tensor(type.dtype, None if type.shape is None else [self._name(dim) for dim in type.shape])
        if isinstance(type, types.SparseTensorType):
            return types.sparse(type.dtype, None if type.shape is None else [self._name(dim) for dim in type.shape])
        if isinstance(type, types.SequenceType):
            return types.sequence(self.encode(type.element))
        if isinstance(type, types.OptionalType):
            return types.optional(self.encode(type.element))
        return type

    def _name(self, dim: Dim) -> Dim:
        if isinstance(dim, int):
            return dim
        if dim not in self._names:
            text = f"dim_{len(self._names)}"
            self._names[dim] = symbol(text)
            self._dims[text] = dim
        return self._names[dim]

    def decode(self, text: str, context: InferenceContext) -> Dim:
        return self._dims[text] if text in self._dims else context.fresh()
