"""Read one node into one operation: operands, attributes, regions, the step to today's opset, types.

One node becomes one operation, always. `versions.upgrade` takes it to the internal opset; constants that were
attributes in its old form become `const` operations in front of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from onnx import AttributeProto, NodeProto

from ...graph import opdef, types
from ...graph.builder import OpBuilder
from ...graph.core import AttributeReference, AttributeValue, Block, Metadata, Operation, Region, Value
from ...graph.data import TensorData
from ...graph.diagnostics import ModelError, TypeInferenceError
from ...graph.infer import InferenceContext, SymbolicArray, infer_types, refine
from ...graph.location import UNKNOWN, Location, NodeLocation
from ...graph.module import FunctionKey
from ...graph.onnx_values import attribute_kind, attribute_value
from ...graph.types import TensorType, Type
from . import versions
from .check import SchemaChecker, Signature, kind_of
from .constants import node_constant
from .context import ReadContext, Scope
from .declared import Declarations, declared_types, properties
from .read_tensors import sparse_facts, tensor_facts
from .region_types import argument_types
from .residual import Modelled

if TYPE_CHECKING:
    from .read_graph import BodyReader

_NODE = Modelled(
    NodeProto, ("input", "output", "name", "op_type", "domain", "overload", "attribute", "doc_string", "metadata_props")
)
_KIND_NAMES = {code: name.lower() for name, code in AttributeProto.AttributeType.items()}


class Facts:
    """What the opset steps may ask about inputs (see versions.Facts).

    With `propagate`, integers that follow from shapes count as constants: good for writing, where an older form may
    want a number; on reading a computed input stays one.
    """

    def __init__(self, inference: InferenceContext, propagate: bool = False) -> None:
        self._inference = inference
        self._propagate = propagate

    def type(self, value: Value) -> Type:
        return value.type

    def constant(self, value: Value) -> np.ndarray | None:
        if self._propagate:
            return self._inference.constant(value)
        data = self._inference.data(value)
        return data.numpy() if data is not None else None

    def elements(self, value: Value) -> SymbolicArray | None:
        return self._inference.symbolic(value)


class NodeReader:
    """Reads the nodes of one function's graphs; `bodies` reads the graphs in their attributes."""

    def __init__(self, context: ReadContext, opsets: Mapping[str, int], bodies: BodyReader, typed: bool) -> None:
        self.context = context
        self.log = context.log
        self.opsets = opsets
        self.bodies = bodies
        self.typed = typed
        self.checker = SchemaChecker(opsets, context.log)
        self.inference = InferenceContext(context.symbols)
        self.facts = Facts(self.inference)
        self.constant_definition = opdef.lookup("", "Constant")
        # Values that stand for something broken; what uses them is not complained about again.
        self.broken: set[Value] = set()
        self._branches = 0  # how many If nodes surround the current one

    def read(self, proto: NodeProto, index: int, scope: Scope, builder: OpBuilder, declared: Declarations) -> None:
        """Read `proto`, append its operation to the builder's block and define the names of its results."""
        location = NodeLocation(proto.name, index)
        what = f"{proto.op_type}'s input"
        operands = [self.bodies.use(scope, name, location, what) if name else None for name in proto.input]
        before = len(self.log.diagnostics)
        op = self._operation(proto, operands, scope, builder, declared, location)
        if op is None or self.log.errors_since(before):
            for name in filter(None, proto.output):
                self.bodies.define(scope, name, self.placeholder(name), location)
            return
        for result in op.results:
            if result.name:
                self.bodies.define(scope, result.name, result, location)

    def placeholder(self, name: str) -> Value:
        """A value that stands for one that cannot be made."""
        value = Value(types.UNKNOWN, Block(), 0, name)
        self.broken.add(value)
        return value

    def constant(
        self, builder: OpBuilder, data: TensorData, name: str | None, metadata: Metadata, location: Location = UNKNOWN
    ) -> Operation:
        """Append a constant."""
        op = Operation(
            self.constant_definition, (), {"value": data}, [data.type],
            result_names=[name], metadata=metadata, location=location,
        )  # fmt: skip
        return builder.insert(op)

    # ---- one node ------------------------------------------------------------------------------------------------

    def _operation(
        self,
        proto: NodeProto,
        operands: list[Value | None],
        scope: Scope,
        builder: OpBuilder,
        declared: Declarations,
        location: NodeLocation,
    ) -> Operation | None:
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        is_call = (domain, proto.op_type) in self.context.calls
        self.checker.check_import(domain, location)
        if is_call:
            self._check_call(proto, location)
        else:
            signature = self.checker.signature(domain, proto.op_type, location)
            sound = signature is None or self.checker.check(proto, signature, location)
            if not sound or (signature is None and self.checker.must_be_standard(domain, proto.op_type)):
                return None
            if signature is not None and not self._types_fit(operands, signature, location):
                return None
        metadata = self._metadata(proto)
        before = len(self.log.diagnostics)
        attributes, regions = self._attributes(proto, operands, scope, location, metadata)
        if self.log.errors_since(before):
            return None
        if domain == "" and proto.op_type == "Constant" and not is_call:
            return self._constant_node(proto, attributes, builder, metadata, location)
        node = versions.Node(domain, proto.op_type, attributes, list(operands), len(proto.output))
        if not is_call:
            node = versions.upgrade(node, self.opsets.get(domain, 1), self.facts)
        if node.legacy:
            metadata["legacy"] = node.legacy
        definition = opdef.opaque(domain, proto.op_type) if is_call else opdef.lookup(
            node.domain, node.op_type, node.version
        )  # fmt: skip
        values = [
            self.constant(builder, item, None, {"from_attribute": node.from_attribute[position]}, location).result
            if isinstance(item, TensorData) else item
            for position, item in enumerate(node.inputs)
        ]  # fmt: skip
        op = Operation(
            definition, values, node.attributes, [types.UNKNOWN] * node.output_count,
            result_names=list(proto.output), regions=regions, location=location, metadata=metadata,
        )  # fmt: skip
        self._set_types(op, declared, location)
        return builder.insert(op)

    def _check_call(self, proto: NodeProto, location: NodeLocation) -> None:
        """A call of a model-local function: the overload exists, and takes and gives as much."""
        key = FunctionKey(proto.domain, proto.op_type, proto.overload)
        function = self.context.functions.get(key)
        if function is None:
            self.log.error("onnx/unknown-function", f"the model has no function {key}", location)
        elif len(proto.input) > len(function.input) or len(proto.output) > len(function.output):
            self.log.error(
                "onnx/call",
                f"the function {key} takes {len(function.input)} inputs and gives {len(function.output)} outputs, the "
                f"call has {len(proto.input)} and {len(proto.output)}",
                location,
            )

    def _types_fit(self, operands: Sequence[Value | None], signature: Signature, location: NodeLocation) -> bool:
        if not self.typed or not self.broken.isdisjoint(operand for operand in operands if operand is not None):
            return True
        return self.checker.check_types(operands, signature, location)

    def _constant_node(
        self,
        proto: NodeProto,
        attributes: dict[str, AttributeValue],
        builder: OpBuilder,
        metadata: Metadata,
        location: NodeLocation,
    ) -> Operation | None:
        found = node_constant(attributes)
        if found is None:
            self.log.error("onnx/constant", "a Constant node has exactly one attribute that holds its value", location)
            return None
        spelling, data = found
        metadata["constant_node"] = spelling
        name = proto.output[0]
        if isinstance(data, TensorData):
            return self.constant(builder, data, name, metadata, location)
        op = Operation(
            self.constant_definition, (), {"value": data}, [types.UNKNOWN],
            result_names=[name], metadata=metadata, location=location,
        )  # fmt: skip
        return builder.insert(op)

    def _metadata(self, proto: NodeProto) -> Metadata:
        metadata: Metadata = {}
        if proto.doc_string:
            metadata["doc_string"] = proto.doc_string
        if proto.metadata_props:
            metadata["metadata_props"] = properties(proto.metadata_props)
        if proto.overload:
            metadata["overload"] = proto.overload
        if proto.domain == "ai.onnx":
            metadata["domain"] = "ai.onnx"
        rest = _NODE.leftover(proto, self.context.look_for_unknown)
        if rest:
            metadata["residual"] = rest
        return metadata

    # ---- attributes ----------------------------------------------------------------------------------------------

    def _attributes(
        self,
        proto: NodeProto,
        operands: Sequence[Value | None],
        scope: Scope,
        location: NodeLocation,
        metadata: Metadata,
    ) -> tuple[dict[str, AttributeValue], dict[str, Region]]:
        """The attributes, and the graphs among them as regions. Facts beside the values go to `metadata`."""
        attributes: dict[str, AttributeValue] = {}
        regions: dict[str, Region] = {}
        graphs: list[AttributeProto] = []
        infos: dict[str, Metadata] = {}
        for attribute in proto.attribute:
            name = attribute.name
            if name in attributes or any(name == other.name for other in graphs):
                self.log.error("onnx/duplicate-attribute", f"the attribute {name!r} is given twice", location)
                continue
            kind = _KIND_NAMES.get(attribute.type, "undefined")
            if kind == "undefined":
                attribute = _with_type(attribute)
                kind = _KIND_NAMES[attribute.type]
            if kind in ("graph", "graphs") and not attribute.ref_attr_name:
                graphs.append(attribute)
                continue
            try:
                attributes[name] = value = attribute_value(attribute, self.context.tensors.tensor, self.context.type_of)
            except ModelError as error:
                self.context.report(error, location)
                continue
            if self.typed and isinstance(value, AttributeReference):
                self.log.error(
                    "onnx/attribute-reference",
                    f"attribute {name!r} refers to {value.name!r}, but only a function's body can refer to attributes",
                    location,
                )
            info = attribute_info(attribute, kind, value)
            if info:
                infos[name] = info
        for attribute in graphs:
            info = {"doc_string": attribute.doc_string} if attribute.doc_string else {}
            several = attribute.type == AttributeProto.GRAPHS
            if several:
                info["graphs"] = len(attribute.graphs)
            if info:
                infos[attribute.name] = info
            version = self.opsets.get(proto.domain, 1)
            seeds = argument_types(proto.op_type, version, operands, attributes) if self.typed else []
            self._branches += proto.op_type == "If"
            for position, graph in enumerate(attribute.graphs if several else [attribute.g]):
                key = f"{attribute.name}.{position}" if several else attribute.name
                self.log.push(f"{key} of the {proto.op_type} {location}")
                regions[key] = Region(self.bodies.subgraph(graph, scope, seeds, location))
                self.log.pop()
            self._branches -= proto.op_type == "If"
        if infos:
            metadata["attribute_info"] = infos
        return attributes, regions

    # ---- types ---------------------------------------------------------------------------------------------------

    def _set_types(self, op: Operation, declared: Declarations, location: NodeLocation) -> None:
        """Give every result its declared type, where that is possible, else the inferred one."""
        claims = [declared.type_of(result.name) if result.name else None for result in op.results]
        tainted = any(operand in self.broken for operand in op.operand_values)
        inferred: Sequence[Type] = [types.UNKNOWN] * len(op.results)
        if self.typed and not tainted:
            try:
                inferred = infer_types(op, self.inference)
            except TypeInferenceError as error:
                # A branch that is never taken may be nonsense: exporters expand functions without simplifying them.
                self.context.report(error, location, "warning" if self._branches else "error")
        for result, claim, found in zip(op.results, claims, inferred, strict=True):
            result.type = found
            if claim is not None and agree(claim, found):
                result.type = claim
            elif claim is not None:
                self._contradiction(result, claim, found, declared, location)
            self.context.check_shape(result.type, f"the result {result.name!r}", location)
            if tainted:
                self.broken.add(result)

    def _contradiction(
        self, result: Value, claim: Type, found: Type, declared: Declarations, location: NodeLocation
    ) -> None:
        same_dtype = isinstance(claim, TensorType) and isinstance(found, TensorType) and claim.dtype is found.dtype
        if declared.is_output(result.name or ""):
            return  # reported, with the output's own declaration, when the outputs are read
        code = "onnx/declared-shape" if same_dtype else "onnx/declared-type"
        self.log.warning(code, f"{result.name!r} is declared as {claim}, it is {found}", location)


def agree(declared: Type, found: Type) -> bool:
    """Whether a declared type does not contradict the inferred one.

    A Loop may start from an absent optional and always end with its element (test_loop16_seq_none of ONNX).
    """
    if refine(declared, found) is not None:
        return True
    return isinstance(found, types.OptionalType) and refine(declared, found.element) is not None


def _with_type(attribute: AttributeProto) -> AttributeProto:
    """A copy of an attribute without a type that has one."""
    typed = AttributeProto(type=AttributeProto.AttributeType.Name(kind_of(attribute)))
    typed.MergeFrom(attribute)
    return typed


def attribute_info(attribute: AttributeProto, kind: str, value: AttributeValue) -> Metadata:
    """What an attribute says besides its value, and its kind where the value does not tell."""
    info: Metadata = {}
    if attribute.doc_string:
        info["doc_string"] = attribute.doc_string
    if not isinstance(value, AttributeReference):
        info.update(_tensor_info(attribute, kind))
    if kind in ("type_proto", "type_protos") and not isinstance(value, AttributeReference):
        declared = declared_types(attribute, value)
        if declared:
            info["declarations"] = declared
    if not isinstance(value, AttributeReference) and attribute_kind(value) != kind:
        info["kind"] = kind
    return info


def _tensor_info(attribute: AttributeProto, kind: str) -> Metadata:
    """What the tensors in an attribute say besides their content."""
    if kind in ("tensor", "sparse_tensor"):
        one = tensor_facts(attribute.t, True) if kind == "tensor" else sparse_facts(attribute.sparse_tensor, True)
        return {"tensor": one} if one else {}
    several: list[Metadata] = []
    if kind == "tensors":
        several = [tensor_facts(item, named=True) for item in attribute.tensors]
    elif kind == "sparse_tensors":
        several = [sparse_facts(item, named=True) for item in attribute.sparse_tensors]
    return {"tensors": tuple(several)} if any(several) else {}
