"""Facts about a module, for people: interface, operators, parameters, arithmetic, element types, peculiarities.

Nothing is rewritten; arithmetic is counted on a copy whose types were inferred.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..graph.clone import clone_module
from ..graph.core import Block, Operation
from ..graph.data import TensorData
from ..graph.diagnostics import DiagnosticLog
from ..graph.dims import Dim, DimComplexityError, dim_max, label_of, symbols_of
from ..graph.module import Module
from ..graph.names import type_text
from ..graph.types import TensorType, Type
from .bind_dims import BindDims
from .context import PassContext
from .infer_shapes import InferShapes
from .inline_functions import InlineFunctions


@dataclass(frozen=True)
class PortFacts:
    """An input or output. `default` tells whether an input may be left out."""

    name: str
    type: str
    default: bool = False


@dataclass
class ModelFacts:
    """What `inspect_module` found; nodes count those of subgraphs and functions once, constants not at all.

    `parameters` counts the elements of floating-point constants of rank 1 and more, and of integer ones that are as
    large as a weight. `flops` is the arithmetic of one run, a number or an expression over `dims`; the branches of an
    If count as the larger one. It leaves out the operators in `unknown_flops`, loops among them, which run their
    bodies a number of times that nobody knows.
    """

    name: str
    producer: str
    ir_version: int | None
    opsets: dict[str, int]
    inputs: list[PortFacts]
    outputs: list[PortFacts]
    operators: Counter[str]
    dtypes: Counter[str]  # bytes of constants by element type
    constants: int = 0
    parameters: int = 0
    weight_bytes: int = 0
    file_bytes: int = 0
    flops: Dim | None = 0
    unknown_flops: Counter[str] = field(default_factory=Counter)
    unsized_dims: list[str] = field(default_factory=list)  # those of `dims` that were given no size
    dims: list[str] = field(default_factory=list)  # names of the inputs' open dims
    control_flow: Counter[str] = field(default_factory=Counter)
    functions: list[str] = field(default_factory=list)
    custom_operators: Counter[str] = field(default_factory=Counter)

    @property
    def nodes(self) -> int:
        return sum(self.operators.values())

    def to_dict(self) -> dict[str, Any]:
        """The facts as JSON values; `flops` is null if nothing of it is known, text if it depends on dims."""
        return {
            "name": self.name,
            "producer": self.producer,
            "ir_version": self.ir_version,
            "opsets": self.opsets,
            "inputs": [vars(port) for port in self.inputs],
            "outputs": [{"name": port.name, "type": port.type} for port in self.outputs],
            "nodes": self.nodes,
            "operators": dict(self.operators.most_common()),
            "constants": self.constants,
            "parameters": self.parameters,
            "weight_bytes": self.weight_bytes,
            "weight_bytes_by_dtype": dict(self.dtypes.most_common()),
            "file_bytes": self.file_bytes,
            "flops": self.flops if self.flops is None or isinstance(self.flops, int) else str(self.flops),
            "flops_unknown_for": dict(self.unknown_flops),
            "dims": self.dims,
            "control_flow": dict(self.control_flow),
            "functions": self.functions,
            "custom_operators": dict(self.custom_operators),
        }


# Bodies of functions are counted where they are called, up to so many operations of one.
MOST_INLINED = 1_000_000
# An integer constant of at least so many elements is a quantized weight, not a shape or a list of axes.
_WEIGHT_ELEMENTS = 64


def inspect_module(
    module: Module,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    file_bytes: int = 0,
) -> ModelFacts:
    """The facts of `module`; `dims` and `shapes` give sizes, by name, for counting arithmetic.

    Raises UsageError for a dim or input that does not exist.
    """
    main, metadata = module.main, module.metadata
    producer = f"{metadata.get('producer_name', '')} {metadata.get('producer_version', '')}".strip()
    outputs = zip(main.block.outputs, main.outputs, strict=True)
    facts = ModelFacts(
        name=main.block.metadata.get("name", ""),
        producer=producer,
        ir_version=metadata.get("ir_version"),
        opsets=dict(module.opsets),
        inputs=[PortFacts(v.name or "", type_text(v.type), v in main.defaults) for v in main.inputs],
        outputs=[PortFacts(declared.name or "", type_text(declared.type or value.type)) for declared, value in outputs],
        operators=Counter(),
        dtypes=Counter(),
        file_bytes=file_bytes,
        functions=[str(key) for key in module.functions],
    )
    called = {(key.domain, key.name) for key in module.functions}
    for op in module.walk():
        if op.is_terminator:
            continue
        if op.name == "const":
            _count_constant(facts, op.attributes.get("value"))
        else:
            _count_operation(facts, op, called)
    for function in module.all_functions():
        for data in function.defaults.values():
            _count_constant(facts, data)
    facts.dims = _labels(module)
    _count_flops(module, facts, dims or {}, shapes or {})
    return facts


def _labels(module: Module) -> list[str]:
    """The names of the dims of the inputs."""
    return sorted({label_of(s) for v in module.main.inputs for d in _dims(v.type) for s in symbols_of(d)})


def _dims(type: Type) -> tuple[Dim, ...]:
    return (type.shape or ()) if isinstance(type, TensorType) else ()


def _count_constant(facts: ModelFacts, data: Any) -> None:
    if not isinstance(data, TensorData):
        return
    facts.constants += 1
    facts.weight_bytes += data.nbytes
    facts.dtypes[data.dtype.name] += data.nbytes
    if (data.dtype.is_float and data.shape) or (data.dtype.is_integer and data.elements >= _WEIGHT_ELEMENTS):
        facts.parameters += data.elements


def _count_operation(facts: ModelFacts, op: Operation, functions: set[tuple[str, str]]) -> None:
    name = f"{op.domain}::{op.op_type}" if op.domain else op.op_type
    facts.operators[name] += 1
    if op.regions:
        facts.control_flow[name] += 1
    if not op.definition.is_known and (op.domain, op.op_type) not in functions:
        facts.custom_operators[name] += 1


def _count_flops(
    module: Module, facts: ModelFacts, dims: Mapping[str, int], shapes: Mapping[str, Sequence[int]]
) -> None:
    copy = clone_module(module)
    context = PassContext(log=DiagnosticLog())
    if dims or shapes:
        given = tuple(f"{name}:{','.join(map(str, shape))}" for name, shape in shapes.items())
        BindDims(tuple(f"{name}={size}" for name, size in dims.items()), given).run(copy, context)
    facts.unsized_dims = _labels(copy)
    InlineFunctions(max_body=MOST_INLINED).run(copy, context)  # a call is what its body computes
    InferShapes().run(copy, context)
    facts.flops = _flops_of(copy.main.block, facts.unknown_flops)


def _flops_of(block: Block, unknown: Counter[str]) -> Dim | None:
    """The arithmetic of a block; None if nothing of it is known."""
    total: Dim = 0
    known = False
    for op in block:
        if op.is_terminator or op.name == "const":
            continue
        try:
            flops = _flops_of_one(op, unknown)
            total = total if flops is None else total + flops
        except DimComplexityError:
            flops = None
        known |= flops is not None
        if flops is None:
            unknown[op.op_type] += 1
    return total if known else None


def _flops_of_one(op: Operation, unknown: Counter[str]) -> Dim | None:
    if op.name == "if":
        branches = [_flops_of(region.block, unknown) for region in op.regions.values()]
        known = [flops for flops in branches if flops is not None]
        return dim_max(*known) if known else 0
    return None if op.regions else op.definition.flops(op)
