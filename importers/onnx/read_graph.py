"""Read one graph or function body into a block: scopes, initializers, nodes, outputs.

Everything that is wrong is logged, so that a user sees all of it at once; a value that cannot be made is replaced by
one of unknown type, of which nobody complains again.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

from onnx import FunctionProto, GraphProto, SparseTensorProto, TensorProto, ValueInfoProto

from ...graph import dtypes, opdef, types
from ...graph.builder import OpBuilder
from ...graph.core import Block, BlockOutput, Metadata, Operation, Value
from ...graph.data import TensorData
from ...graph.diagnostics import ModelError
from ...graph.infer import refine
from ...graph.location import Location, NodeLocation
from ...graph.types import TensorType, Type
from .context import ReadContext, Scope
from .declared import Declarations, properties, read_declaration, write_declaration
from .order import CyclicGraph, sorted_order
from .read_node import NodeReader, agree
from .read_tensors import sparse_facts, tensor_facts
from .residual import Modelled

_GRAPH = Modelled(
    GraphProto,
    (
        "node", "name", "initializer", "sparse_initializer", "doc_string", "input", "output", "value_info",
        "metadata_props",
    ),
)  # fmt: skip


class BodyReader:
    """Reads the graphs of one function. `typed` is False in model-local functions, whose values have no types."""

    def __init__(self, context: ReadContext, opsets: Mapping[str, int], typed: bool = True) -> None:
        self.context = context
        self.log = context.log
        self.nodes = NodeReader(context, opsets, self, typed)

    # ---- graphs and functions ------------------------------------------------------------------------------------

    def main(self, proto: GraphProto) -> tuple[Block, dict[Value, TensorData]]:
        """The block of a model's graph, and the defaults of those inputs that are initializers, too.

        Before IR version 4 such an input is a constant like any other (ONNX IR specification, "Graphs").
        """
        initializers = {tensor.name for tensor in proto.initializer}
        initializers.update(tensor.values.name for tensor in proto.sparse_initializer)
        overridable = self.context.ir_version >= 4
        block, scope = Block(), Scope()
        for declared in proto.input:
            self._check_interface(declared, "input")
            if overridable or declared.name not in initializers:
                self._argument(block, scope, declared)
        for declared in proto.output:
            self._check_interface(declared, "output")
        if not proto.output:
            self.log.error("onnx/empty-graph", "the graph has no outputs, so there is nothing to compute")
        defaults: dict[Value, TensorData] = {}
        if overridable:
            defaults = self._defaults(block, proto)
        elif initializers:
            block.metadata["input_order"] = tuple(declared.name for declared in proto.input)
        self._fill(block, proto, scope, None, {value.name or "" for value in defaults})
        if not overridable:
            self._keep_input_declarations(block, proto, scope)
        return block, defaults

    def function(self, proto: FunctionProto) -> Block:
        """The block of a model-local function."""
        block, scope = Block(), Scope()
        for name in proto.input:
            self.define(scope, name, block._add_argument(types.UNKNOWN, name), None)
        outputs = [ValueInfoProto(name=name) for name in proto.output]
        declared = Declarations(proto.value_info, outputs, self.context.symbols, self.context.look_for_unknown)
        for argument in block.arguments:
            argument.type = declared.type_of(argument.name or "") or types.UNKNOWN
        self._body(block, proto, scope, declared, None)
        declared.attach(block, scope.names.values())
        return block

    def subgraph(self, proto: GraphProto, scope: Scope, seeds: Sequence[Type], where: Location) -> Block:
        """The block of a graph attribute. `seeds` are the argument types that follow from the node's operands."""
        block, inner = Block(), Scope(scope)
        for index, declared in enumerate(proto.input):
            self._argument(block, inner, declared, seeds[index] if index < len(seeds) else types.UNKNOWN)
        self._fill(block, proto, inner, where, set())
        return block

    def _fill(
        self, block: Block, proto: GraphProto, scope: Scope, where: Location | None, with_default: set[str]
    ) -> None:
        """Read everything of a graph but its inputs. `with_default` names initializers that are read already."""
        _keep_graph_facts(block, proto, self.context)
        declared = Declarations(proto.value_info, proto.output, self.context.symbols, self.context.look_for_unknown)
        builder = OpBuilder(block, self.context.symbols)
        for tensor in proto.initializer:
            if tensor.name not in with_default:
                self._initializer(builder, scope, tensor.name, tensor)
        for sparse in proto.sparse_initializer:
            if sparse.values.name not in with_default:
                self._initializer(builder, scope, sparse.values.name, sparse)
        self._body(block, proto, scope, declared, where)
        declared.attach(block, (value for value in scope.names.values() if not value.is_argument))

    def _body(
        self,
        block: Block,
        proto: GraphProto | FunctionProto,
        scope: Scope,
        declared: Declarations,
        where: Location | None,
    ) -> None:
        builder = OpBuilder(block, self.context.symbols)
        for index in self._node_order(proto, scope, where):
            self.nodes.read(proto.node[index], index, scope, builder, declared)
        returned = [self._output(block, scope, *output, where) for output in declared.outputs]
        builder.insert(Operation(opdef.lookup("", "return"), returned))

    def _check_interface(self, declared: ValueInfoProto, what: str) -> None:
        """An input of the model needs a type; neither inputs nor outputs may have impossible ones."""
        kind = declared.type.WhichOneof("value")
        if kind is None:
            if what == "input":
                self.log.error("onnx/input-type", f"the input {declared.name!r} has no type")
            return
        if kind != "tensor_type":
            return
        tensor = declared.type.tensor_type
        if tensor.elem_type not in dtypes.BY_ONNX_CODE:
            self.log.error(
                "onnx/element-type", f"the {what} {declared.name!r} has the unknown element type {tensor.elem_type}"
            )
        # -1 is how several exporters write a dim that is not known.
        if any(dim.dim_value < -1 for dim in tensor.shape.dim):
            dims = [dim.dim_param or dim.dim_value for dim in tensor.shape.dim]
            self.log.error("onnx/negative-dim", f"the {what} {declared.name!r} has a negative dimension: {dims}")

    # ---- names ---------------------------------------------------------------------------------------------------

    def define(self, scope: Scope, name: str, value: Value, location: Location | None) -> None:
        """Make `name` mean `value` from here on."""
        if not name:
            self.log.error("onnx/unnamed-value", "an input or initializer has no name", location)
        elif name in scope.names:
            self.log.error("onnx/duplicate-value", f"the name {name!r} is given to a second value", location)
        else:
            if scope.outer is not None and scope.outer.find(name) is not None:
                self.log.warning(
                    "onnx/shadowed-value", f"a subgraph gives the name {name!r} a new meaning", location,
                    "ONNX wants names that are unique; the inner one is renamed when the model is written",
                )  # fmt: skip
            scope.names[name] = value

    def use(self, scope: Scope, name: str, location: Location | None, what: str) -> Value:
        """The value called `name`; an error is logged if there is none."""
        value = scope.find(name)
        if value is None:
            near = difflib.get_close_matches(name, list(scope.visible()), n=1)
            notes = [f"did you mean {near[0]!r}?"] if near else []
            self.log.error("onnx/undefined-value", f"{what} {name!r} is not defined anywhere", location, *notes)
            value = scope.names[name] = self.nodes.placeholder(name)
        return value

    # ---- parts of a graph ----------------------------------------------------------------------------------------

    def _argument(self, block: Block, scope: Scope, declared: ValueInfoProto, seed: Type = types.UNKNOWN) -> None:
        type, facts = read_declaration(declared, self.context.symbols, self.context.look_for_unknown)
        value = block._add_argument(seed if type is None else type, declared.name)
        value.info = facts or None
        self.context.check_shape(value.type, f"input {declared.name!r}", None)
        self.define(scope, declared.name, value, None)

    def _defaults(self, block: Block, proto: GraphProto) -> dict[Value, TensorData]:
        """The initializers that give inputs their defaults."""
        tensors: dict[str, TensorProto | SparseTensorProto] = {tensor.name: tensor for tensor in proto.initializer}
        tensors.update((tensor.values.name, tensor) for tensor in proto.sparse_initializer)
        defaults: dict[Value, TensorData] = {}
        for argument in block.arguments:
            tensor = tensors.get(argument.name or "")
            data = self._tensor(tensor) if tensor is not None else None
            if tensor is None or data is None:
                continue
            defaults[argument] = data
            facts = _initializer_facts(tensor)
            if facts:
                argument.info = {**(argument.info or {}), "initializer": facts}
            if refine(argument.type, data.type) is None:
                self.log.error(
                    "onnx/initializer-type",
                    f"the input {argument.name!r} is declared as {argument.type}, its initializer is {data.type}",
                )
        written = [tensor.name for tensor in proto.initializer]
        names = {argument.name for argument in defaults}
        natural = [a.name for a in defaults if a.name in written] + [name for name in written if name not in names]
        if natural != written:
            block.metadata["initializer_order"] = tuple(written)
        return defaults

    def _keep_input_declarations(self, block: Block, proto: GraphProto, scope: Scope) -> None:
        """Before IR version 4: what the file declares about constants that it lists as inputs."""
        kept: dict[str, bytes] = {}
        for declared in proto.input:
            value = scope.names.get(declared.name)
            if value is None or value.is_argument:
                continue
            type, _ = read_declaration(declared, self.context.symbols)
            if type is not None and refine(type, value.type) is None:
                self.log.error(
                    "onnx/initializer-type",
                    f"the input {declared.name!r} is declared as {type}, its initializer is {value.type}",
                )
            if write_declaration(declared.name, value.type, None) != declared:
                kept[declared.name] = declared.SerializeToString(deterministic=True)
        if kept:
            block.metadata["input_declarations"] = kept

    def _tensor(self, tensor: TensorProto | SparseTensorProto) -> TensorData | None:
        try:
            if isinstance(tensor, SparseTensorProto):
                return self.context.tensors.sparse(tensor)
            return self.context.tensors.tensor(tensor)
        except ModelError as error:
            self.context.report(error)
            return None

    def _initializer(
        self, builder: OpBuilder, scope: Scope, name: str, tensor: TensorProto | SparseTensorProto
    ) -> None:
        data = self._tensor(tensor)
        if data is None:
            scope.names.setdefault(name, self.nodes.placeholder(name))
            return
        metadata = _initializer_facts(tensor)
        op = self.nodes.constant(builder, data, name, metadata)
        self.define(scope, name, op.result, None)

    def _output(
        self, block: Block, scope: Scope, name: str, type: Type | None, facts: Metadata, where: Location | None
    ) -> Value:
        value = self.use(scope, name, where, "the output")
        if type is not None and not agree(type, value.type):
            differs_in_dtype = (
                not isinstance(type, TensorType) or not isinstance(value.type, TensorType)
                or type.dtype is not value.type.dtype
            )  # fmt: skip
            location = value.producer.location if value.producer is not None else where
            if differs_in_dtype:
                self.log.error(
                    "onnx/output-type", f"the output {name!r} is declared as {type}, it is {value.type}", location
                )
            else:
                self.log.warning(
                    "onnx/declared-shape", f"the output {name!r} is declared as {type}, it is {value.type}", location
                )
            type = value.type
        if type is not None:
            self.context.check_shape(type, f"output {name!r}", where)
        block.outputs.append(BlockOutput(name, type, facts or None))
        return value

    def _node_order(self, proto: GraphProto | FunctionProto, scope: Scope, where: Location | None) -> Iterable[int]:
        """Positions of the nodes in an order in which they can be read."""
        try:
            order = sorted_order(proto.node, lambda name: scope.find(name) is not None)
        except CyclicGraph as error:
            first = proto.node[error.cycle[0]]
            nodes = [(proto.node[index], index) for index in error.cycle]
            path = [f"{node.op_type} at {NodeLocation(node.name, index)}" for node, index in nodes]
            self.log.error(
                "onnx/cycle", "the graph has a cycle: these nodes need each other's results",
                NodeLocation(first.name, error.cycle[0]), " <- ".join([*path, path[0]][:12]),
            )  # fmt: skip
            self.log.raise_errors(ModelError)
            raise
        if order is None:
            return range(len(proto.node))
        moved = next(position for position, index in enumerate(order) if position != index)
        self.log.warning(
            "onnx/unsorted",
            "a node comes before a node whose result it uses; the nodes are sorted",
            NodeLocation(proto.node[moved].name, moved),
        )
        return order


def _keep_graph_facts(block: Block, proto: GraphProto, context: ReadContext) -> None:
    facts = block.metadata
    if proto.name:
        facts["name"] = proto.name
    if proto.doc_string:
        facts["doc_string"] = proto.doc_string
    if proto.metadata_props:
        facts["metadata_props"] = properties(proto.metadata_props)
    rest = _GRAPH.leftover(proto, context.look_for_unknown)
    if rest:
        facts["residual"] = rest


def _initializer_facts(tensor: TensorProto | SparseTensorProto) -> Metadata:
    return tensor_facts(tensor, False) if isinstance(tensor, TensorProto) else sparse_facts(tensor, False)
