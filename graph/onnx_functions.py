"""Function bodies of the ONNX standard as operations: what LayerNormalization or Gelu mean in simpler ones.

`onnx.defs` gives a body as a FunctionProto, either fixed or made for one node and its input types. It is built in place
with attribute references resolved; body nodes that are functions themselves stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import types
from .core import AttributeReference, AttributeValue, Block, BlockOutput, Region, Value
from .data import as_data
from .diagnostics import TypeInferenceError
from .dims import FreshSymbols, symbol
from .module import INTERNAL_OPSET
from .opdef import lookup

if TYPE_CHECKING:
    import onnx

    from .builder import OpBuilder
    from .core import Operation
    from .onnx_schema import Schema
    from .types import Type


def expand(schema: Schema, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
    """Build the function body of `op` with `builder` and return the values of `op`'s results, in order.

    None if the standard gives no body, none for these operand types, or if the body depends on a region of `op`.
    Raises TypeInferenceError if the operands do not fit the body.
    """
    if op.regions:
        return None
    body = _body(schema, op)
    return None if body is None else _Expansion(op, builder).run(body)


def _body(schema: Schema, op: Operation) -> onnx.FunctionProto | None:
    import onnx

    source: Any = schema.onnx  # its annotations leave out what concerns functions
    fixed = [v for v in source.function_opset_versions if v <= INTERNAL_OPSET]
    made = [v for v in source.context_dependent_function_opset_versions if v <= INTERNAL_OPSET]
    if fixed:
        text = source.get_function_with_opset_version(max(fixed))
    elif made and all(operand is None or operand.type is not types.UNKNOWN for operand in op.operands):
        text = source.get_context_dependent_function_with_opset_version(
            max(made), _node(op).SerializeToString(), _operand_types(op)
        )
    else:
        return None
    body = onnx.FunctionProto()
    body.ParseFromString(text)
    return body if body.node else None


def _node(op: Operation) -> onnx.NodeProto:
    """`op` as a node with invented value names, for ONNX to look at its attributes and which inputs are there."""
    import onnx

    from .onnx_values import attribute_proto

    node = onnx.NodeProto(op_type=op.op_type, domain=op.domain)
    node.input.extend("" if operand is None else f"i{index}" for index, operand in enumerate(op.operands))
    node.output.extend("" if result.name == "" else f"o{result.index}" for result in op.results)
    specs = op.definition.attribute_specs
    for name, value in op.attributes.items():
        node.attribute.append(attribute_proto(name, value, specs[name].kind if name in specs else None))
    return node


def _operand_types(op: Operation) -> list[bytes]:
    from .onnx_values import type_proto

    unset = types.UNKNOWN
    return [type_proto(unset if value is None else value.type).SerializeToString() for value in op.operands]


def _argument_types(
    op_type: str, operands: Sequence[Value | None], attributes: Mapping[str, AttributeValue]
) -> list[Type]:
    """What the operands of a Scan say about its body's inputs: states as they are, the others without the scanned
    axis. Empty for other operators."""
    if op_type != "Scan":
        return []
    scanned = attributes["num_scan_inputs"]
    axes = attributes.get("scan_input_axes") or (0,) * scanned
    first = len(operands) - scanned
    found: list[Type] = []
    for index, operand in enumerate(operands):
        type = types.UNKNOWN if operand is None else operand.type
        if index >= first and isinstance(type, types.TensorType) and type.shape is not None:
            dims = list(type.shape)
            del dims[axes[index - first]]
            type = type.with_shape(dims)
        found.append(type)
    return found


class _Expansion:
    """One body being built: what its names stand for so far."""

    def __init__(self, op: Operation, builder: OpBuilder) -> None:
        self.op = op
        self.builder = builder

    def run(self, body: onnx.FunctionProto) -> list[Value]:
        operands = list(self.op.operands) + [None] * len(body.input)
        values: dict[str, Value | None] = dict(zip(body.input, operands, strict=False))
        self.nodes(body.node, values, self.builder)
        results: list[Value] = []
        for name, result in zip(body.output, self.op.results, strict=False):
            value = values.get(name)
            if value is None and result.name == "" and results:
                value = results[0]  # the body does not compute what is left out, and nobody uses it
            assert value is not None, f"{self.op.name}: the function body returns {name!r}, which was left out"
            results.append(value)
        return results

    def nodes(self, nodes: Any, values: dict[str, Value | None], builder: OpBuilder) -> None:
        values[""] = None
        for node in nodes:
            attributes, graphs = self.attributes(node)
            operands = [values[name] for name in node.input]
            if node.op_type == "Constant":
                (value,) = attributes.values()
                values[node.output[0]] = builder.const(as_data(value))
                continue
            known = _argument_types(node.op_type, operands, attributes)
            regions = {name: self.region(graph, values, builder, known) for name, graph in graphs.items()}
            definition = lookup(node.domain, node.op_type)
            for name in [name for name in attributes if name not in definition.attribute_specs]:
                # Since the body was written, this attribute has become an input (Reduce*'s axes).
                position = definition.input_index(name)
                operands += [None] * (position + 1 - len(operands))
                operands[position] = builder.const(as_data(attributes.pop(name)))
            count = len(node.output)
            try:
                created = builder.create(definition, operands, attributes, outputs=count, regions=regions)
            except TypeInferenceError:
                if builder is self.builder:
                    raise
                # A branch that never runs for these operands may be ill-typed (AffineGrid's for 2 dims, given 3).
                unknown = [types.UNKNOWN] * count
                created = builder.create(definition, operands, attributes, result_types=unknown, regions=regions)
            values.update(zip(node.output, created.results, strict=True))

    def attributes(self, node: onnx.NodeProto) -> tuple[dict[str, AttributeValue], dict[str, onnx.GraphProto]]:
        """The node's attributes with references to the calling operation's resolved, and its graphs."""
        from onnx import AttributeProto

        from .onnx_values import attribute_value

        found: dict[str, AttributeValue] = {}
        graphs: dict[str, onnx.GraphProto] = {}
        for proto in node.attribute:
            if proto.type == AttributeProto.GRAPH:
                graphs[proto.name] = proto.g
                continue
            value = attribute_value(proto)
            if isinstance(value, AttributeReference):
                value = self.op.attr(value.name)
            if value is not None:
                found[proto.name] = value
        return found, graphs

    def region(
        self, graph: onnx.GraphProto, outer: dict[str, Value | None], builder: OpBuilder, known: Sequence[Type]
    ) -> Region:
        """A graph attribute of a body node; it sees the names around it. `known` types its inputs if it does not."""
        from .builder import OpBuilder
        from .onnx_values import tensor_data, type_from_proto

        symbols = FreshSymbols()
        declared = [type_from_proto(item.type, symbol, symbols) for item in graph.input]
        if len(known) == len(declared):
            declared = [b if a is types.UNKNOWN else a for a, b in zip(declared, known, strict=True)]
        block = Block(declared, [item.name for item in graph.input])
        inner = OpBuilder(block, builder.symbols, location=builder.location)
        values = dict(outer)
        values.update(zip((item.name for item in graph.input), block.arguments, strict=True))
        for tensor in graph.initializer:
            values[tensor.name] = inner.const(tensor_data(tensor), name=tensor.name)
        self.nodes(graph.node, values, inner)
        returned = [values[item.name] for item in graph.output]
        block.outputs = [BlockOutput(item.name, None) for item in graph.output]
        inner.returns([value for value in returned if value is not None])
        return Region(block)
