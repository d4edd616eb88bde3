"""Write one operation as one node at the target opset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from onnx import AttributeProto, NodeProto

from ...graph.builder import OpBuilder
from ...graph.core import AttributeReference, AttributeValue, Block, Metadata, Operation, Value
from ...graph.data import SparseData, TensorData
from ...graph.infer import InferenceContext
from ...graph.onnx_values import attribute_kind, attribute_proto
from . import versions
from .check import constant_may_be, kinds_of
from .constants import spelled
from .declared import keep_declared
from .facts import write_facts
from .read_node import Facts

if TYPE_CHECKING:
    from .write_graph import BodyWriter, OpenGraph, WriteContext


class NodeWriter:
    """Writes the operations of one function at the operator set versions `opsets`."""

    def __init__(self, context: WriteContext, opsets: Mapping[str, int], bodies: BodyWriter) -> None:
        self.context = context
        self.opsets = opsets
        self.bodies = bodies
        self.names = bodies.names
        self._facts = Facts(InferenceContext(context.symbols), propagate=True)

    def write(self, op: Operation, graph: OpenGraph) -> None:
        """Append the node of `op` to `graph`; an operator that cannot be written is logged."""
        if (op.domain, op.op_type) in self.context.calls:
            self._append(op, versions.node_of(op), graph)
            return
        try:
            node = versions.downgrade(versions.node_of(op), self.opsets.get(op.domain, 1), self._facts)
        except versions.CannotDowngrade as reason:
            self.context.log.error(
                "export/opset",
                f"{op.op_type} cannot be written at opset {self.opsets.get(op.domain, 1)}: {reason}",
                op.location,
            )
            for result in op.results:
                self.names.define(result, graph.scope)  # so that its users do not fail, too
            return
        self._append(op, node, graph)

    def identity(self, value: Value, name: str, graph: OpenGraph) -> None:
        """Append a node that gives `value` the further name `name`."""
        block = Block()
        self.bodies.borrow(block, graph)
        copy = OpBuilder(block, self.context.symbols).create("identity", [value], result_types=[value.type])
        self.names.settle(copy.result, name)
        self.write(copy, graph)
        copy._erase()

    def constant(self, op: Operation, graph: OpenGraph) -> NodeProto:
        """The Constant node of a `const`."""
        data = op.attributes["value"]
        spelling = op.metadata.get("constant_node", "value")
        kinds = kinds_of("", "Constant", self.opsets.get("", 1))
        name, value = (spelling, data) if isinstance(data, AttributeReference) else spelled(data, spelling, kinds)
        proto = self._message(op, "", "Constant")
        proto.output.append(self.names.define(op.result, graph.scope))
        info = op.metadata.get("attribute_info", {}).get(name, {})
        proto.attribute.append(self.attribute(name, value, kinds.get(name), info))
        self.bodies.used_domains[""] = None
        return proto

    def can_be_node(self, data: object) -> bool:
        """Whether a Constant node may hold `data` at this opset."""
        if not isinstance(data, TensorData):
            return True
        opset = self.opsets.get("", 1)
        return constant_may_be(data.type, opset) and (
            not isinstance(data, SparseData) or "sparse_value" in kinds_of("", "Constant", opset)
        )

    # ---- one node ------------------------------------------------------------------------------------------------

    def _append(self, op: Operation, node: versions.Node, graph: OpenGraph) -> None:
        proto = self._message(op, node.domain, node.op_type)
        for item in node.inputs:
            proto.input.append("" if item is None else self._operand(item, graph))
        infos = op.metadata.get("attribute_info", {})
        kinds = self._kinds(op, node)
        for name, value in node.attributes.items():
            proto.attribute.append(self.attribute(name, value, kinds.get(name), infos.get(name, {})))
        for attribute in self._graphs(op, infos, graph):
            proto.attribute.append(attribute)
        for result in op.results:
            absent = result.name == "" and not result.use_count
            proto.output.append("" if absent else self.names.define(result, graph.scope))
        self.bodies.used_domains[node.domain] = None
        graph.nodes.append(proto)

    def _operand(self, item: Value | TensorData, graph: OpenGraph) -> str:
        """The name of an input. A constant that only the older form needs is written with it."""
        if isinstance(item, TensorData):
            block = Block()
            self.bodies.borrow(block, graph)
            made = OpBuilder(block, self.context.symbols).create("const", (), {"value": item}, result_types=[item.type])
            self.bodies.write(made, graph)
            item = made.result
        return self.bodies.use(item)

    def _message(self, op: Operation, domain: str, op_type: str) -> NodeProto:
        """A node without inputs, outputs and attributes."""
        facts = op.metadata
        proto = NodeProto(op_type=op_type)
        name = self.names.node(op)
        if name:
            proto.name = name
        spelled_domain = facts.get("domain", "") if domain == "" else domain
        if spelled_domain:
            proto.domain = spelled_domain
        if "overload" in facts:
            proto.overload = facts["overload"]
        write_facts(proto, facts)
        return proto

    def _kinds(self, op: Operation, node: versions.Node) -> Mapping[str, str]:
        """Attribute name -> ONNX type, as far as somebody defines it."""
        kinds = kinds_of(node.domain, node.op_type, self.opsets.get(node.domain, 1))
        if kinds or not op.definition.is_known:
            return kinds
        return {name: spec.kind for name, spec in op.definition.attribute_specs.items() if spec.kind != "any"}

    def attribute(self, name: str, value: AttributeValue, kind: str | None, info: Metadata) -> AttributeProto:
        kind = info.get("kind") or kind or attribute_kind(value)
        proto = AttributeProto(name=name, type=kind.upper())
        tensors = self.context.tensors
        if isinstance(value, AttributeReference):
            proto = attribute_proto(name, value)
        elif kind == "tensor" and isinstance(value, TensorData):
            proto.t.CopyFrom(tensors.tensor(value, "", info.get("tensor")))
        elif kind == "tensors":
            facts = info.get("tensors", ({},) * len(value))
            proto.tensors.extend(tensors.tensor(item, "", fact) for item, fact in zip(value, facts, strict=True))
        elif kind == "sparse_tensor" and isinstance(value, SparseData):
            proto.sparse_tensor.CopyFrom(tensors.sparse(value, "", info.get("tensor")))
        elif kind == "sparse_tensors":
            facts = info.get("tensors", ({},) * len(value))
            proto.sparse_tensors.extend(tensors.sparse(item, "", fact) for item, fact in zip(value, facts, strict=True))
        else:
            proto = attribute_proto(name, value, kind)
            if "declarations" in info:
                keep_declared(proto, value, info["declarations"])
        if "doc_string" in info:
            proto.doc_string = info["doc_string"]
        return proto

    def _graphs(self, op: Operation, infos: Mapping[str, Any], graph: OpenGraph) -> list[AttributeProto]:
        """The regions as attributes; several regions `name.0`, `name.1` ... may form one attribute."""
        found: dict[str, AttributeProto] = {}
        for key, region in op.regions.items():
            message = self.bodies.subgraph(region.block, graph, key)
            name, _, position = key.rpartition(".")
            if position.isdigit() and infos.get(name, {}).get("graphs"):
                found.setdefault(name, AttributeProto(name=name, type="GRAPHS")).graphs.append(message)
            else:
                found[key] = AttributeProto(name=key, type="GRAPH", g=message)
        for name, info in infos.items():
            if "graphs" in info:
                found.setdefault(name, AttributeProto(name=name, type="GRAPHS"))
            if name in found and "doc_string" in info:
                found[name].doc_string = info["doc_string"]
        return list(found.values())
