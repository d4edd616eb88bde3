"""ONNX's node tests, built with our own definitions and types inferred, to compare with the outputs they store."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import onnx

from tilewright.graph import opdef, types
from tilewright.graph.builder import OpBuilder
from tilewright.graph.core import Block, Region, Value
from tilewright.graph.data import ArrayData
from tilewright.graph.dims import Dim, DimExpr, FreshSymbols, evaluate, symbol, symbols_of
from tilewright.graph.dtypes import from_numpy
from tilewright.graph.module import INTERNAL_OPSET
from tilewright.graph.onnx_values import attribute_value, tensor_data, type_from_proto
from tilewright.graph.types import TensorType, Type


@cache
def node_cases() -> dict[str, Any]:
    """All node tests of the installed onnx, by name (collecting them takes seconds, so once per process)."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about infinities and NaNs, which the cases make on purpose
        return {case.name: case for case in collect_testcases(None)}


class OlderForm(Exception):
    """The model uses an operator in a form that is not today's; upgrading is the importer's business."""


class GraphBuilder:
    """Builds the nodes of a graph in a block; `values` maps tensor names to values of this and of outer graphs."""

    def __init__(self, opsets: Mapping[str, int], symbols: FreshSymbols, values: Mapping[str, Value]) -> None:
        self.opsets, self.symbols, self.values = opsets, symbols, dict(values)
        self.block = Block()
        self.builder = OpBuilder(self.block, symbols)

    def add_input(self, name: str, type: Type) -> None:
        self.values[name] = self.block._add_argument(type, name)

    def add_constant(self, name: str, array: np.ndarray) -> None:
        self.values[name] = self.builder.const(ArrayData(array))

    def add_nodes(self, graph: onnx.GraphProto) -> None:
        for tensor in graph.initializer:
            self.values[tensor.name] = self.builder.const(tensor_data(tensor))
        for node in graph.node:
            self._add_node(node)

    def _add_node(self, node: onnx.NodeProto) -> None:
        if node.op_type == "Constant" and node.domain == "":
            self._add_constant_node(node)
            return
        attributes, regions = {}, {}
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                regions[attribute.name] = self._region(attribute.g)
            else:
                attributes[attribute.name] = attribute_value(attribute)
        op = self.builder.create(
            self._definition(node.domain, node.op_type),
            [self.values[name] if name else None for name in node.input],
            attributes,
            outputs=len(node.output),
            regions=regions,
        )
        self.values.update(zip(node.output, op.results, strict=True))

    def _add_constant_node(self, node: onnx.NodeProto) -> None:
        attribute = node.attribute[0]
        value = onnx.helper.get_attribute_value(attribute)
        if attribute.name == "value":
            self.values[node.output[0]] = self.builder.const(tensor_data(value))
        elif attribute.name.startswith("value_string"):
            self.values[node.output[0]] = self.builder.const(np.array(value, object))
        else:
            dtype = np.float32 if "float" in attribute.name else np.int64
            self.values[node.output[0]] = self.builder.const(np.array(value, dtype))

    def _definition(self, domain: str, op_type: str) -> opdef.OpDefinition:
        then = onnx.defs.get_schema(op_type, self.opsets.get(domain, 1), domain)
        definition = opdef.lookup(domain, op_type)
        if definition.schema is None or not _same_form(then, definition.schema.onnx):
            raise OlderForm(f"{op_type}-{then.since_version}")
        return definition

    def _region(self, graph: onnx.GraphProto) -> Region:
        inner = GraphBuilder(self.opsets, self.symbols, self.values)
        for item in graph.input:
            inner.add_input(item.name, declared_type(item, self.symbols))
        inner.add_nodes(graph)
        inner.builder.returns([inner.values[item.name] for item in graph.output])
        return Region(inner.block)


def as_array(data: Any) -> Any:
    """Test data as numpy; low-precision types come as TensorProto, sequences stay lists."""
    if isinstance(data, onnx.TensorProto):
        return tensor_data(data).numpy()
    return data if isinstance(data, list) or data is None else np.asarray(data)


def declared_type(item: onnx.ValueInfoProto, symbols: FreshSymbols) -> Type:
    return type_from_proto(item.type, symbols.distinct, symbols)


def _same_form(then: onnx.defs.OpSchema, now: onnx.defs.OpSchema) -> bool:
    """Whether a node of schema `then` can be read as one of `now`, as far as its signature says."""
    names = [item.name for item in then.inputs]
    return names == [item.name for item in now.inputs][: len(names)] and set(then.attributes) <= set(now.attributes)


InputType: TypeAlias = Callable[[onnx.ValueInfoProto, Any], Type | None]


def build_case(case: Any, input_type: InputType) -> list[Type]:
    """The inferred types of the outputs of `case`, see `build_graph`."""
    graph = build_graph(case, input_type)
    return [graph.values[item.name].type for item in case.model.graph.output]


def build_graph(case: Any, input_type: InputType) -> GraphBuilder:
    """The model of `case`. An input for which `input_type` says None is a constant.

    Raises OlderForm for a model that has operators in a form that is not today's.
    """
    model = case.model
    opsets = {item.domain: item.version for item in model.opset_import}
    assert opsets.get("", 0) <= INTERNAL_OPSET
    graph = GraphBuilder(opsets, FreshSymbols(), {})
    names = [item.name for item in model.graph.input]
    data = dict(zip(names, map(as_array, case.data_sets[0][0]), strict=False))
    for item in model.graph.input:
        type = input_type(item, data.get(item.name))
        if type is None:
            graph.add_constant(item.name, data[item.name])
        else:
            graph.add_input(item.name, type)
    graph.add_nodes(model.graph)
    return graph


def actual_type(item: onnx.ValueInfoProto, data: Any) -> Type:
    """The declared type, with the dims that the data has."""
    declared = declared_type(item, FreshSymbols())
    return declared.with_shape(np.shape(data)) if isinstance(declared, TensorType) else declared


def small_as_constant(item: onnx.ValueInfoProto, data: Any) -> Type | None:
    """Inputs of few elements are constants, as shapes, axes and scales mostly are."""
    return None if isinstance(data, np.ndarray) and data.size <= 64 else actual_type(item, data)


class SymbolicInputs:
    """Gives dims of inputs symbols; `numbers` says what each stands for in the test.

    With `shared`, dims that are equal in the test have one symbol, and integer inputs of few elements are constants;
    otherwise every dim has a symbol of its own, and there are no constants.
    """

    def __init__(self, shared: bool) -> None:
        self.shared = shared
        self.numbers: dict[DimExpr, int] = {}

    def __call__(self, item: onnx.ValueInfoProto, data: Any) -> Type | None:
        if self.shared and isinstance(data, np.ndarray) and data.size <= 64 and data.dtype.kind in "iub":
            return None
        type = actual_type(item, data)
        if not isinstance(type, TensorType):
            return type
        dims: list[Dim] = []
        for axis, number in enumerate(np.shape(data)):
            dim = symbol(f"size_{number}" if self.shared else f"{item.name}_{axis}", 0, 0)
            assert isinstance(dim, DimExpr)
            self.numbers[dim] = number
            dims.append(dim)
        return type.with_shape(dims)


def mismatch(inferred: Type, data: Any, numbers: Mapping[DimExpr, int]) -> str | None:
    """Why `inferred` does not describe `data`; None if it does. Dims with symbols not in `numbers` fit anything."""
    if inferred is types.UNKNOWN:
        return None
    if isinstance(inferred, types.OptionalType):
        return None if data is None else mismatch(inferred.element, data, numbers)
    if isinstance(inferred, types.SequenceType):
        if not isinstance(data, list | tuple):
            return f"{inferred} for {type(data)}"
        return next(filter(None, (mismatch(inferred.element, item, numbers) for item in data)), None)
    if not isinstance(inferred, TensorType):
        return None if isinstance(inferred, types.MapType) else f"{inferred} for {type(data)}"
    array = as_array(data)
    if from_numpy(array.dtype) is not inferred.dtype:
        return f"dtype {inferred.dtype}, the data has {array.dtype}"
    if inferred.shape is None:
        return None
    if len(inferred.shape) != array.ndim:
        return f"{inferred}, the data has shape {array.shape}"
    for dim, number in zip(inferred.shape, array.shape, strict=True):
        if set(symbols_of(dim)) <= set(numbers) and evaluate(dim, numbers) != number:
            return f"{inferred}, the data has shape {array.shape}"
    return None


def open_dims(type: Type, numbers: Mapping[DimExpr, int]) -> int:
    """How much of a type is left open: 100 for an unknown type or rank, 1 for each dim that nothing determines."""
    if isinstance(type, types.SequenceType | types.OptionalType):
        return open_dims(type.element, numbers)
    if not isinstance(type, TensorType) or type.shape is None:
        return 100
    return sum(not set(symbols_of(dim)) <= set(numbers) for dim in type.shape)
