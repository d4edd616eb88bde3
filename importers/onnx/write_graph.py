"""Write blocks as graphs and function bodies: inputs, initializers, nodes in order, outputs, value_info.

Nothing in the module changes: names and older forms exist only in the messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, SparseTensorProto, TensorProto, ValueInfoProto

from ...graph.core import AttributeValue, Block, Metadata, Operation, Value
from ...graph.data import SparseData, TensorData
from ...graph.diagnostics import DiagnosticLog
from ...graph.dims import FreshSymbols
from ...graph.module import Function
from ...graph.types import TensorType
from .declared import write_declaration
from .facts import write_facts
from .names import NameScope, NameTable
from .write_node import NodeWriter
from .write_tensors import TensorWriter


@dataclass
class WriteContext:
    """What the writers of one model share; `calls` are domain and name of the model-local functions."""

    log: DiagnosticLog
    tensors: TensorWriter
    symbols: FreshSymbols
    calls: frozenset[tuple[str, str]]
    ir_version: int
    with_shapes: bool = False


@dataclass
class OpenGraph:
    """A graph being written: where nodes go, and which constants are needed."""

    scope: NameScope
    only_nodes: bool  # constants are nodes, too: in function bodies
    # A constant that is a node is written only if it turns out to be needed, so its place is kept by its operation.
    nodes: list[NodeProto | Operation] = field(default_factory=list)
    constants: list[Operation] = field(default_factory=list)
    needed: set[Operation] = field(default_factory=set)
    defined: list[Value] = field(default_factory=list)

    def is_written(self, constant: Operation) -> bool:
        """Whether a constant goes to the file: if something written uses it, or nothing ever did."""
        is_of_model = constant.parent is not None and "from_attribute" not in constant.metadata
        unused = is_of_model and not constant.result.use_count
        return unused or constant in self.needed


class BodyWriter:
    """Writes the blocks of one function at the operator set versions `opsets`.

    `used_domains` are, afterwards, the domains of the nodes written.
    """

    def __init__(self, context: WriteContext, function: Function, opsets: Mapping[str, int]) -> None:
        self.context = context
        self.function = function
        self.names = NameTable(_known_names(function))
        self.names.know_nodes(function.walk())
        self.used_domains: dict[str, None] = {}
        self._open: dict[Block, OpenGraph] = {}
        self._output_names: dict[Block, list[str]] = {}
        self._nodes = NodeWriter(context, opsets, self)

    # ---- whole graphs --------------------------------------------------------------------------------------------

    def main(self, proto: GraphProto) -> None:
        """Fill in the model's graph."""
        block = self.function.block
        proto.name = block.metadata.get("name") or "main"
        graph = self._begin(block, None, self._interface(block))
        self._write_operations(block, graph)
        self._finish(proto, block, graph)
        inputs = {
            argument.name or "": write_declaration(self.names[argument], argument.type, argument.info)
            for argument in block.arguments
        }
        if self.context.ir_version < 4:
            inputs = _with_constants(inputs, proto, block)
        proto.input.extend(inputs.values())
        self._add_defaults(proto, block)

    def function_body(self, proto: FunctionProto) -> None:
        """Fill in the parts of a model-local function that come from its block."""
        block = self.function.block
        graph = self._begin(block, None, self._interface(block), only_nodes=True)
        self._write_operations(block, graph)
        proto.input.extend(self.names[argument] for argument in block.arguments)
        proto.output.extend(self._output_names[block])
        proto.node.extend(self._final_nodes(graph))
        graph.defined[:0] = block.arguments
        proto.value_info.extend(self._value_info(block, graph))

    def attribute(self, name: str, value: AttributeValue, info: Metadata) -> AttributeProto:
        """An attribute that is not one of a standard node."""
        return self._nodes.attribute(name, value, None, info)

    def subgraph(self, block: Block, outer: OpenGraph, name: str) -> GraphProto:
        """The graph of a region."""
        proto = GraphProto(name=block.metadata.get("name") or name)
        graph = self._begin(block, outer, {}, only_nodes=self.context.ir_version < 4)
        for argument in block.arguments:
            self.names.define(argument, graph.scope)
        self._write_operations(block, graph)
        self._finish(proto, block, graph)
        for argument in block.arguments:
            name = self.names[argument]
            untyped = (argument.info or {}).get("untyped") and not self._needs_type(block, argument, name)
            proto.input.append(write_declaration(name, None if untyped else argument.type, argument.info))
        return proto

    # ---- names ---------------------------------------------------------------------------------------------------

    def use(self, value: Value) -> str:
        """The name by which a node refers to `value`. A constant is written because of it."""
        producer = value.producer
        if producer is not None and producer.name == "const" and value.block is not None:
            graph = self._open[value.block]
            graph.needed.add(producer)
            return self.names.define(value, graph.scope) if value not in self.names else self.names[value]
        return self.names[value]

    def borrow(self, block: Block, graph: OpenGraph) -> None:
        """Write the operations of `block`, which exists only for writing, into `graph`."""
        self._open[block] = graph

    def _interface(self, block: Block) -> dict[Value, str]:
        """Names of a function's inputs: never changed."""
        return {argument: argument.name or self.names.fresh(f"input_{argument.index}") for argument in block.arguments}

    def _begin(
        self, block: Block, outer: OpenGraph | None, fixed: Mapping[Value, str], only_nodes: bool = False
    ) -> OpenGraph:
        """Open a graph and settle the names of its outputs, so that nothing else takes them."""
        graph = OpenGraph(NameScope(outer.scope if outer is not None else None), only_nodes)
        self._open[block] = graph
        for argument, name in fixed.items():
            self.names.set(argument, name, graph.scope)
        returned = block.terminator.operands
        wanted: list[str] = []
        for output, value in zip(block.outputs, returned, strict=True):
            name = output.name or self.names.fresh((value and value.name) or f"output_{len(wanted)}")
            hidden = outer is not None and not outer.scope.is_free(name) and (value is None or value.block is block)
            wanted.append(self.names.fresh(name) if hidden else name)
        graph.scope.reserved.update(wanted)
        pairs = [(value, name) for value, name in zip(returned, wanted, strict=True) if value is not None]
        claimed: set[str] = set()
        # A value that bears the name of one of its outputs keeps that one.
        for value, name in sorted(pairs, key=lambda pair: pair[0].name != pair[1]):
            if outer is not None and value.name != name and _must_be_copied(value, wanted.index(name)):
                continue
            if value.block is block and value not in self.names and name not in claimed:
                self.names.settle(value, name)
                claimed.add(name)
        self._output_names[block] = wanted
        return graph

    # ---- parts of a graph ----------------------------------------------------------------------------------------

    def _write_operations(self, block: Block, graph: OpenGraph) -> None:
        for op in block:
            self.write(op, graph)
        for value, name in zip(block.terminator.operands, self._output_names[block], strict=True):
            if value is not None and self.use(value) != name:
                self._nodes.identity(value, name, graph)

    def write(self, op: Operation, graph: OpenGraph) -> None:
        """Write one operation into `graph`."""
        if op.is_terminator:
            return
        if op.name != "const":
            self._nodes.write(op, graph)
            graph.defined.extend(op.results)
            return
        if op.result.name:
            self.names.define(op.result, graph.scope)
        graph.defined.append(op.result)
        is_node = "constant_node" in op.metadata and self._nodes.can_be_node(op.attributes["value"])
        if graph.only_nodes or is_node:
            graph.nodes.append(op)
        else:
            graph.constants.append(op)

    def _final_nodes(self, graph: OpenGraph) -> Iterator[NodeProto]:
        for item in graph.nodes:
            if isinstance(item, NodeProto):
                yield item
            elif graph.is_written(item):
                yield self._nodes.constant(item, graph)

    def _finish(self, proto: GraphProto, block: Block, graph: OpenGraph) -> None:
        """Everything but the inputs."""
        facts = block.metadata
        proto.node.extend(self._final_nodes(graph))
        for op in graph.constants:
            if graph.is_written(op):
                self._add_initializer(
                    proto, self.names.define(op.result, graph.scope), op.attributes["value"], op.metadata
                )
        for output, value, name in zip(
            block.outputs, block.terminator.operands, self._output_names[block], strict=True
        ):
            type = output.type
            if type is None and value is not None and self._needs_type(block, value, name):
                type = value.type
            proto.output.append(write_declaration(name, type, output.info))
        proto.value_info.extend(self._value_info(block, graph))
        write_facts(proto, facts)

    def _needs_type(self, block: Block, value: Value, name: str) -> bool:
        """Whether a type that the file did not write must be there now.

        ONNX infers the type of a body's output from the node that computes it, so an argument that has taken the place
        of such a node's result needs one.
        """
        took_over = value.owner is block and value.name != name
        return block is self.function.block or self.context.with_shapes or took_over

    def _add_initializer(self, proto: GraphProto, name: str, data: TensorData, facts: Metadata) -> None:
        if isinstance(data, SparseData):
            proto.sparse_initializer.append(self.context.tensors.sparse(data, name, facts))
        else:
            proto.initializer.append(self.context.tensors.tensor(data, name, facts))

    def _add_defaults(self, proto: GraphProto, block: Block) -> None:
        """The initializers that give inputs their defaults: before the others unless the file had another order."""
        if not self.function.defaults:
            return
        others: list[TensorProto] = list(proto.initializer)
        sparse: list[SparseTensorProto] = list(proto.sparse_initializer)
        del proto.initializer[:], proto.sparse_initializer[:]
        for argument, data in self.function.defaults.items():
            facts = (argument.info or {}).get("initializer", {})
            self._add_initializer(proto, self.names[argument], data, facts)
        proto.initializer.extend(others)
        proto.sparse_initializer.extend(sparse)
        order = {name: position for position, name in enumerate(block.metadata.get("initializer_order", ()))}
        if order:
            proto.initializer.sort(key=lambda tensor: order.get(tensor.name, len(order)))

    def _value_info(self, block: Block, graph: OpenGraph) -> list[ValueInfoProto]:
        entries: list[ValueInfoProto] = []
        outputs = set(self._output_names[block])
        for value in graph.defined:
            producer = value.producer
            is_constant = producer is not None and producer.name == "const"
            if value not in self.names or (producer is not None and is_constant and not graph.is_written(producer)):
                continue
            name = self.names[value]
            known = isinstance(value.type, TensorType) and value.type.shape is not None
            added = self.context.with_shapes and known and not is_constant and name not in outputs
            if value.info is not None or added:
                entries.append(write_declaration(name, value.type, value.info))
        for encoded in block.metadata.get("stale_value_info", ()):
            entries.append(ValueInfoProto.FromString(encoded))
        order = block.metadata.get("value_info_order")
        if order is None:
            return entries
        rest: dict[str, list[ValueInfoProto]] = {}
        for entry in entries:
            rest.setdefault(entry.name, []).append(entry)
        ordered = [rest[name].pop(0) for name in order if rest.get(name)]
        return ordered + [entry for entry in entries if any(entry is left for left in rest[entry.name])]


def _must_be_copied(value: Value, position: int) -> bool:
    """Whether output `position` of a body is an input other than the state that goes on as it is: ONNX Runtime
    overwrites a state in place even if a further output is made of it, so that one has to be an Identity's."""
    region = value.owner.parent if isinstance(value.owner, Block) else None
    op = region.parent if region is not None else None
    if not isinstance(op, Operation) or op.name not in ("loop", "scan"):
        return False
    return position != (value.index - 1 if op.name == "loop" else value.index)


def _with_constants(inputs: dict[str, ValueInfoProto], proto: GraphProto, block: Block) -> dict[str, ValueInfoProto]:
    """Before IR version 4 every initializer is listed as an input, too, in the file's order where it had one."""
    from ...graph import dtypes, types

    declarations = block.metadata.get("input_declarations", {})
    listed: dict[str, ValueInfoProto] = {}
    for tensor in proto.initializer:
        if tensor.name in declarations:
            listed[tensor.name] = ValueInfoProto.FromString(declarations[tensor.name])
        else:
            type = types.tensor(dtypes.BY_ONNX_CODE[tensor.data_type], tensor.dims)
            listed[tensor.name] = write_declaration(tensor.name, type, None)
    everything = {**inputs, **listed}
    ordered = {name: everything[name] for name in block.metadata.get("input_order", ()) if name in everything}
    return {**ordered, **everything}


def _known_names(function: Function) -> set[str]:
    """Every name that occurs in a function: of values, outputs, and of entries that speak of neither."""
    known: set[str] = set()
    blocks = [function.block]
    for op in function.walk():
        known.update(result.name for result in op.results if result.name)
        blocks.extend(region.block for region in op.regions.values())
    for block in blocks:
        known.update(argument.name for argument in block.arguments if argument.name)
        known.update(output.name for output in block.outputs if output.name)
        known.update(ValueInfoProto.FromString(item).name for item in block.metadata.get("stale_value_info", ()))
    return known
