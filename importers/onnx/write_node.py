"""Write one operation as one node at the target opset, or, where no such form exists, as its decomposition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from onnx import AttributeProto, NodeProto

from ...graph.builder import OpBuilder
from ...graph.core import AttributeReference, AttributeValue, Block, Metadata, Operation, Value
from ...graph.data import SparseData, TensorData
from ...graph.diagnostics import TypeInferenceError
from ...graph.infer import InferenceContext
from ...graph.location import NodeLocation
from ...graph.onnx_values import attribute_kind, attribute_proto
from ...graph.opdef import OpDefinition
from . import versions
from .check import constant_may_be, kinds_of
from .constants import spelled
from .declared import keep_declared
from .facts import write_facts
from .read_node import Facts
from .runtime_support import has_kernel, why_in_parts

if TYPE_CHECKING:
    from .write_graph import BodyWriter, OpenGraph, WriteContext

# What makes operations that stand for one: a definition's `decompose` or `standard_form`.
Form: TypeAlias = Callable[[Operation, OpBuilder], "Sequence[Value] | None"]

# Decompositions within decompositions; more than this means that two of them lead to each other.
_MAX_EXPANSION = 12


class NodeWriter:
    """Writes the operations of one function at the operator set versions `opsets`."""

    def __init__(self, context: WriteContext, opsets: Mapping[str, int], bodies: BodyWriter) -> None:
        self.context = context
        self.opsets = opsets
        self.bodies = bodies
        self.names = bodies.names
        self._facts = Facts(InferenceContext(context.symbols), propagate=True)
        self._expanding = 0
        self._in_standard_form = False

    def write(self, op: Operation, graph: OpenGraph) -> None:
        """Append the node, or the nodes, of `op` to `graph`; an operator that cannot be written is logged."""
        if (op.domain, op.op_type) in self.context.calls:
            self._append(op, _node_of(op), graph)
            return
        if op.domain not in self.context.allowed and self._expand(op, graph):
            return
        if self._has_standard_form(op) and self._write_standard_form(op, graph):
            return
        reason = self._why_in_parts(op)
        if reason is not None and self._expand(op, graph):
            self.context.log.remark(
                "export/in-parts", f"{op.op_type} is written as its parts: ONNX Runtime {reason}", op.location
            )
            return
        try:
            node = versions.downgrade(_node_of(op), self.opsets.get(op.domain, 1), self._facts)
        except versions.CannotDowngrade as reason:
            if not self._expand(op, graph):
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

    # ---- decomposition -------------------------------------------------------------------------------------------

    def _why_in_parts(self, op: Operation) -> str | None:
        """Why an operator that could be written is not; one that is in the file as it is stays as it is."""
        if self.context.keep_fused or self._in_standard_form or isinstance(op.location, NodeLocation):
            return None
        return why_in_parts(op)

    def form(self, op: Operation) -> Form | None:
        """What makes the operations that `op` will be written as; None if it is written as it is."""
        if self._has_standard_form(op):
            return op.definition.standard_form
        if self._why_in_parts(op) is not None:
            return op.definition.decompose
        try:
            versions.downgrade(_node_of(op), self.opsets.get(op.domain, 1), self._facts)
        except versions.CannotDowngrade:
            return op.definition.decompose
        return None

    def _has_standard_form(self, op: Operation) -> bool:
        """Whether an operation that says more than its operator in the standard is to be written as that.

        It is if that takes fewer nodes than its parts, or fused operators are to be kept.
        """
        definition = op.definition
        if type(definition).standard_form is OpDefinition.standard_form:
            return False
        if self._expanding or isinstance(op.location, NodeLocation):
            return False
        if not self.context.keep_fused and self._loses_nan(op):
            return False
        if self.opsets.get(op.domain, 1) < min(versions.engine.versions(op.op_type, op.domain)):
            return False
        size = self._size(op, definition.standard_form)
        if size is None or self.context.keep_fused or not has_kernel(op):
            return size is not None and self.context.keep_fused
        parts = self._size(op, definition.decompose)
        return parts is None or size < parts

    def _write_standard_form(self, op: Operation, graph: OpenGraph) -> bool:
        """Write `op` by the standard's operator, in the form that ONNX Runtime runs."""
        self._in_standard_form = True
        if self._loses_nan(op):
            self.context.log.remark(
                "export/nan", f"{op.op_type} gives NaN for operands that are NaN, where its parts give 0", op.location
            )
        try:
            return self._expand(op, graph, op.definition.standard_form)
        finally:
            self._in_standard_form = False

    def _loses_nan(self, op: Operation) -> bool:
        """Whether the standard's operator differs where operands are NaN."""
        return bool(op.attr("masking") == "nan-to-zero")

    def _size(self, op: Operation, form: Form) -> int | None:
        """How many nodes `form` makes of `op`; None if it has no answer."""
        block = Block()
        try:
            values = form(op, OpBuilder(block, self.context.symbols, location=op.location))
            return None if values is None else sum(made.name != "const" for made in block)
        except TypeInferenceError:
            return None
        finally:
            for made in reversed(list(block)):
                made._erase()

    def _expand(self, op: Operation, graph: OpenGraph, form: Form | None = None) -> bool:
        """Write `op` as simpler operations, built in a block that is thrown away; False if it has no such form."""
        if self._expanding >= _MAX_EXPANSION:
            return False
        block = Block()
        builder = OpBuilder(block, self.context.symbols, location=op.location)
        try:
            values = (form or op.definition.decompose)(op, builder)
            if values is None:
                return False
            self._expanding += 1
            self._write_expansion(op, list(values), block, graph)
            self._expanding -= 1
        except TypeInferenceError:
            return False
        finally:
            for made in reversed(list(block)):
                made._erase()
        return True

    def _write_expansion(self, op: Operation, values: list[Value | None], block: Block, graph: OpenGraph) -> None:
        self.bodies.borrow(block, graph)
        values = self._share(values, block, graph)
        wanted = [
            (value, self.names.define(result, graph.scope))
            for result, value in zip(op.results, values, strict=False)
            if value is not None and (result.use_count or result.name or result in self.names)
        ]
        for value, name in wanted:
            if value.block is block and value not in self.names:
                self.names.settle(value, name)
        for made in block:
            for result in made.results:
                self.names.suggest(result)
            self.bodies.write(made, graph)
        for value, name in wanted:
            if self.bodies.use(value) != name:
                self.identity(value, name, graph)

    def _share(self, values: list[Value | None], block: Block, graph: OpenGraph) -> list[Value | None]:
        """Use earlier results, of this expansion or others, for equal operations: constants, caches, ..."""
        same: dict[Value, Value] = {}
        for made in list(block):
            key = _identity(made)
            if key is None:
                continue
            earlier = graph.expanded.get(key)
            if earlier is None or not all(result in self.names or result.block is block for result in earlier):
                graph.expanded[key] = made.results
                continue
            for old, new in zip(made.results, earlier, strict=True):
                same[old] = new
                for use in old.uses:
                    use.user._set_operand(use.position, new)
            made._erase()
        return [value if value is None else same.get(value, value) for value in values]


def _identity(op: Operation) -> tuple[object, ...] | None:
    """Equal for operations that compute the same; None for one that must not be shared."""
    if op.regions or not op.definition.is_pure or not op.results:
        return None
    if op.name == "const":
        data = op.attributes["value"]
        return (op.definition, data.sha256) if isinstance(data, TensorData) else None
    if any(isinstance(value, TensorData) for value in op.attributes.values()):
        return None
    return (op.definition, tuple(sorted(op.attributes.items())), op.operands, len(op.results))


def _node_of(op: Operation) -> versions.Node:
    return versions.Node(
        op.domain, op.op_type, dict(op.attributes), list(op.operands), len(op.results), op.definition.version,
        dict(op.metadata.get("legacy", {})), output_types=tuple(result.type for result in op.results),
    )  # fmt: skip
