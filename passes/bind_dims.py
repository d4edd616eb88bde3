"""bind-dims: give symbolic dims of the inputs a size. Level onnx.

Invariant: the model computes the same for inputs of the bound sizes, and no longer takes others.

    bind-dims{dims=["batch=1"]}       func @main(%x: f32[batch, 8])    ->    func @main(%x: f32[1, 8])
    bind-dims{shapes=["x:1,8"]}       the same, naming an input instead of a dim

Only what follows is bound elsewhere: types that mention the inputs' own symbols, and declared outputs whose dims bear a
bound name. Names that the file repeats on other tensors are claims, and are left to type inference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..graph import types
from ..graph.core import Block, Value
from ..graph.diagnostics import UsageError
from ..graph.dims import Dim, DimExpr, is_symbol, label_of, substitute, symbols_of
from ..graph.types import TensorType, Type
from .base import Pass

if TYPE_CHECKING:
    from ..graph.module import Module
    from .context import PassContext


@dataclass(frozen=True)
class BindDims(Pass):
    """Give symbolic dims of the inputs a size."""

    name = "bind-dims"

    dims: tuple[str, ...] = ()  # "batch=1"
    shapes: tuple[str, ...] = ()  # "x:1,3,320,320"

    def run(self, module: Module, context: PassContext) -> bool:
        bindings = bindings_for(module, parse_dims(self.dims), parse_shapes(self.shapes))
        rewriter = context.rewriter(module)
        changed = False
        for argument in module.main.inputs:
            shape = bindings.shapes.get(argument.name or "")
            if shape is not None and isinstance(argument.type, TensorType):
                changed |= argument.type.static_shape != shape
                rewriter.set_type(argument, argument.type.with_shape(shape))
        if bindings.symbols:
            for value in _values(module.main.block):
                bound = with_symbols(value.type, bindings.symbols)
                changed |= bound is not value.type
                rewriter.set_type(value, bound)
        for output in module.main.block.outputs:
            if output.type is not None:
                bound = with_symbols(output.type, _by_label(output.type, bindings))
                changed |= bound is not output.type
                output.type = bound
        context.count("dims bound", len(bindings.symbols))
        return changed


@dataclass
class Bindings:
    """Sizes for the symbols of the inputs, for their names, and whole shapes for inputs by name."""

    symbols: dict[DimExpr, int] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)


def bindings_for(module: Module, dims: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]) -> Bindings:
    """What `dims` (by name) and `shapes` (by input) mean for this module's inputs.

    Raises UsageError for a dim or input that does not exist, and for sizes that contradict each other or the model.
    """
    inputs = {argument.name or "": argument for argument in module.main.inputs}
    bindings = Bindings(labels=dict(dims))
    for name, shape in shapes.items():
        if name not in inputs:
            known = ", ".join(inputs) or "none"
            raise UsageError("bind/unknown-input", f"there is no input {name!r}", notes=[f"the inputs are {known}"])
        _bind_shape(bindings, name, inputs[name].type, shape)
    symbols = sorted({s for v in inputs.values() for d in _dims(v.type) for s in symbols_of(d)}, key=str)
    labels = {label_of(symbol) for symbol in symbols}
    for label in dims:
        if label not in labels:
            named = sorted(each for each in labels if not each.startswith("?"))
            raise UsageError(
                "bind/unknown-dim",
                f"no input has a dim called {label!r}",
                notes=[f"the named dims are {', '.join(named) or 'none'}", "an input's whole shape can be given too"],
            )
    for symbol in symbols:
        if (size := bindings.labels.get(label_of(symbol))) is not None:
            bindings.symbols.setdefault(symbol, size)
    return bindings


def _bind_shape(bindings: Bindings, name: str, type: Type, shape: tuple[int, ...]) -> None:
    if not isinstance(type, TensorType):
        raise UsageError("bind/not-a-tensor", f"the input {name!r} is {type}, which has no shape to give")
    if type.shape is not None and len(type.shape) != len(shape):
        raise UsageError("bind/rank", f"the input {name!r} is {type}; {list(shape)} has another rank")
    bindings.shapes[name] = shape
    for axis, (dim, size) in enumerate(zip(type.shape or (), shape, strict=False)):
        if isinstance(dim, int):
            if dim != size:
                raise UsageError("bind/shape", f"dim {axis} of the input {name!r} is {dim} already, not {size}")
        elif is_symbol(dim):
            bindings.symbols[dim] = size
            label = label_of(dim)
            if not label.startswith("?") and bindings.labels.setdefault(label, size) != size:
                raise UsageError(
                    "bind/conflict", f"the dim {label!r} is {bindings.labels[label]} elsewhere, {size} in {name!r}"
                )


def parse_dims(items: Sequence[str]) -> dict[str, int]:
    """`batch=1`, ... as a dict. Raises UsageError."""
    found: dict[str, int] = {}
    for item in items:
        name, _, size = item.rpartition("=")
        if name and re.fullmatch(r"-\d+", size.strip()):
            raise UsageError("bind/size", f"the size of the dim {name!r} cannot be negative, but is {size.strip()}")
        if not name or not size.strip().isdecimal():
            raise UsageError("bind/syntax", f"a dim is given as NAME=SIZE, not {item!r}")
        if found.setdefault(name.strip(), int(size)) != int(size):
            raise UsageError("bind/conflict", f"the dim {name!r} is given two sizes")
    return found


def parse_shapes(items: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """`x:1,3,320,320`, ... as a dict; `x:` is a scalar. Raises UsageError."""
    found: dict[str, tuple[int, ...]] = {}
    for item in items:
        # The last colon: names such as `serving_default_x:0` hold one themselves.
        name, _, text = item.rpartition(":")
        sizes = [size.strip() for size in text.replace("x", ",").split(",")] if text.strip() else []
        if not name or not all(size.isdecimal() for size in sizes):
            raise UsageError("bind/syntax", f"a shape is given as INPUT:1,3,224,224, not {item!r}")
        shape = tuple(map(int, sizes))
        if found.setdefault(name, shape) != shape:
            raise UsageError("bind/conflict", f"the input {name!r} is given two shapes")
    return found


def _values(block: Block) -> Iterator[Value]:
    """All values of a function body, those of nested regions included."""
    yield from block.arguments
    for op in block.parent.walk() if block.parent is not None else ():
        yield from op.results
        for region in op.regions.values():
            yield from region.block.arguments


def _dims(type: Type) -> tuple[Dim, ...]:
    return (type.shape or ()) if isinstance(type, TensorType) else ()


def _by_label(type: Type, bindings: Bindings) -> dict[DimExpr, int]:
    symbols = [symbol for dim in _dims(type) for symbol in symbols_of(dim)]
    return {s: bindings.labels[label_of(s)] for s in symbols if label_of(s) in bindings.labels}


def with_symbols(type: Type, symbols: Mapping[DimExpr, Dim]) -> Type:
    """`type` with these symbols replaced in its dims."""
    if isinstance(type, TensorType) and type.shape is not None and symbols:
        return types.tensor(type.dtype, [substitute(dim, symbols) for dim in type.shape])
    if isinstance(type, types.SequenceType):
        return types.sequence(with_symbols(type.element, symbols))
    return types.optional(with_symbols(type.element, symbols)) if isinstance(type, types.OptionalType) else type
