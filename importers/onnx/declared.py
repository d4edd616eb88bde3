"""Read and write what a file declares about a tensor (ValueInfoProto): its type, and facts beside the type."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onnx import AttributeProto, StringStringEntryProto, TypeProto, ValueInfoProto

from ...graph import types
from ...graph.core import AttributeValue, Block, Metadata, Value
from ...graph.dims import FreshSymbols, is_symbol
from ...graph.onnx_values import type_from_proto, type_proto
from ...graph.types import Type
from .facts import write_facts
from .residual import Modelled

_MODELLED = Modelled(ValueInfoProto, ("name", "type", "doc_string", "metadata_props"))


def properties(entries: Iterable[StringStringEntryProto]) -> dict[str, str]:
    """`metadata_props` as a dict; of repeated keys the last counts."""
    return {entry.key: entry.value for entry in entries}


def read_declaration(
    proto: ValueInfoProto, symbols: FreshSymbols, look_for_unknown: bool = False
) -> tuple[Type | None, Metadata]:
    """The declared type (None if there is none), with a symbol of its own for every named dim, and other facts.

    Facts are `doc_string`, `metadata_props`, `residual`, and `declaration`: the encoded TypeProto where it says more
    than the type does (denotations, a dim called "?", a negative dim); `untyped` if there is no type.
    """
    facts: Metadata = {}
    if proto.doc_string:
        facts["doc_string"] = proto.doc_string
    if proto.metadata_props:
        facts["metadata_props"] = properties(proto.metadata_props)
    rest = _MODELLED.leftover(proto, look_for_unknown) if look_for_unknown else b""
    if rest:
        facts["residual"] = rest
    if not proto.HasField("type"):
        facts["untyped"] = True
        return None, facts
    type = type_from_proto(proto.type, symbols.distinct, symbols)
    if type is types.UNKNOWN or type_proto(type) != proto.type:
        facts["declaration"] = proto.type.SerializeToString(deterministic=True)
    return (None if type is types.UNKNOWN else type), facts


def write_declaration(name: str, type: Type | None, facts: Metadata | None) -> ValueInfoProto:
    """The inverse of `read_declaration`; what the file said about a dim stays as long as nobody knows better."""
    facts = facts or {}
    proto = ValueInfoProto(name=name)
    write_facts(proto, facts)
    declared = facts.get("declaration")
    if type is None or type is types.UNKNOWN:
        if declared is not None:
            proto.type.ParseFromString(declared)
            proto.type.SetInParent()
        return proto
    proto.type.CopyFrom(type_proto(type))
    if declared is not None:
        original = TypeProto()
        original.ParseFromString(declared)
        _keep_original(proto.type, original, type)
    return proto


def _keep_original(proto: TypeProto, original: TypeProto, type: Type) -> None:
    """Bring back into `proto`, the message for `type`, what only the file's own declaration says."""
    kind = proto.WhichOneof("value")
    if original.WhichOneof("value") != kind:
        return
    if original.denotation:
        proto.denotation = original.denotation
    if isinstance(type, types.SequenceType | types.OptionalType):
        field = "sequence_type" if kind == "sequence_type" else "optional_type"
        _keep_original(getattr(proto, field).elem_type, getattr(original, field).elem_type, type.element)
    elif isinstance(type, types.MapType):
        _keep_original(proto.map_type.value_type, original.map_type.value_type, type.value)
    elif isinstance(type, types.TensorType | types.SparseTensorType) and type.shape is not None:
        field = "tensor_type" if kind == "tensor_type" else "sparse_tensor_type"
        shape, before = getattr(proto, field).shape, getattr(original, field).shape
        if len(shape.dim) != len(before.dim):
            return
        for dim, old, new in zip(type.shape, before.dim, shape.dim, strict=True):
            unknown_before = not old.HasField("dim_value") or old.dim_value < 0
            if unknown_before and not isinstance(dim, int) and is_symbol(dim) and dim.label.startswith("?"):
                new.CopyFrom(old)
            elif old.denotation:
                new.denotation = old.denotation


def declared_types(attribute: AttributeProto, value: AttributeValue) -> tuple[bytes, ...]:
    """The encoded types of a type attribute if they say more than `value`, the types made of them; else nothing."""
    protos = list(attribute.type_protos) if attribute.type == AttributeProto.TYPE_PROTOS else [attribute.tp]
    values = value if isinstance(value, tuple) else (value,)
    if all(type_proto(type) == proto for type, proto in zip(values, protos, strict=True)):
        return ()
    return tuple(proto.SerializeToString(deterministic=True) for proto in protos)


def keep_declared(attribute: AttributeProto, value: AttributeValue, declared: tuple[bytes, ...]) -> None:
    """Bring back into a type attribute what only the file's own declarations say."""
    protos = list(attribute.type_protos) if attribute.type == AttributeProto.TYPE_PROTOS else [attribute.tp]
    values = value if isinstance(value, tuple) else (value,)
    for proto, type, original in zip(protos, values, declared, strict=True):
        if type is types.UNKNOWN:
            proto.ParseFromString(original)
        else:
            _keep_original(proto, TypeProto.FromString(original), type)


class Declarations:
    """What one graph or function declares about its values: the entries of `value_info`, and its outputs."""

    def __init__(
        self,
        value_info: Sequence[ValueInfoProto],
        outputs: Sequence[ValueInfoProto],
        symbols: FreshSymbols,
        look_for_unknown: bool = False,
    ) -> None:
        self._protos = value_info
        self._listed: dict[str, tuple[Type | None, Metadata]] = {}
        for proto in value_info:
            if proto.name not in self._listed:
                self._listed[proto.name] = read_declaration(proto, symbols, look_for_unknown)
        self.outputs = [(proto.name, *read_declaration(proto, symbols, look_for_unknown)) for proto in outputs]
        self._output_types = {name: type for name, type, _ in reversed(self.outputs)}

    def type_of(self, name: str) -> Type | None:
        """The declared type of the value called `name`."""
        listed = self._listed.get(name)
        if listed is not None and listed[0] is not None:
            return listed[0]
        return self._output_types.get(name)

    def is_output(self, name: str) -> bool:
        return name in self._output_types

    def attach(self, block: Block, values: Iterable[Value]) -> None:
        """Hand the facts of `value_info` to `values` of `block`, in order of definition.

        An entry that speaks of no such value is kept in `block.metadata["stale_value_info"]`, and the order of the
        entries in "value_info_order" where it is not that of the definitions.
        """
        order: list[str] = []
        for value in values:
            if value.name is not None and value.name in self._listed:
                value.info = self._listed[value.name][1]
                order.append(value.name)
        spoken_of = set(order)
        stale: list[ValueInfoProto] = []
        for proto in self._protos:
            if proto.name in spoken_of:
                spoken_of.discard(proto.name)
            else:
                stale.append(proto)
        order.extend(proto.name for proto in stale)
        if stale:
            block.metadata["stale_value_info"] = tuple(proto.SerializeToString(deterministic=True) for proto in stale)
        if order != [proto.name for proto in self._protos]:
            block.metadata["value_info_order"] = tuple(proto.name for proto in self._protos)
