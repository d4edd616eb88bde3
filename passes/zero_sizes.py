"""Sizes that cannot be 0, because some operation that is always computed would fail: found by trying.

A 0 among the elements of a Reshape's target copies another dim. Beside a -1, what becomes of the rest then differs from
what it is for all other sizes, so nothing can be said of the result as long as the size may be 0. Mostly the model
cannot run with it: repeated keys, [n, 2, 2, length, 16] to [n, -1, length, 16], are [n, 0, 2, 16] where length is 0,
and no queries of 4 heads fit them. So the types of the whole graph are inferred once more with the size 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..graph import types
from ..graph.clone import clone_module
from ..graph.core import Operation
from ..graph.diagnostics import TypeInferenceError
from ..graph.dims import DimExpr, bounds, is_symbol, symbol, symbols_of
from ..graph.infer import InferenceContext, infer_types
from ..graph.opdef import Trait
from ..graph.ops.reshape import ambiguous_elements
from ..graph.rewriter import Rewriter
from ..graph.types import TensorType, Type
from .bind_dims import with_symbols

if TYPE_CHECKING:
    from ..graph.module import Module


def positive_by_trial(module: Module, inference: InferenceContext) -> dict[DimExpr, DimExpr]:
    """A symbol of the inputs that is at least 1 wherever the model runs, although that is not known, and what it
    becomes; empty if there is none."""
    for size in dict.fromkeys(_doubtful_sizes(module, inference)):
        if _fails_with_zero(module, size):
            return {size: symbol(size.label, size.ordinal, 1, bounds(size)[1])}
    return {}


def _doubtful_sizes(module: Module, inference: InferenceContext) -> Iterator[DimExpr]:
    block = module.main.block
    shapes = (value.type.shape or () for value in block.arguments if isinstance(value.type, TensorType))
    own = {each for shape in shapes for dim in shape if isinstance(dim, DimExpr) for each in symbols_of(dim)}
    for op in block:
        if op.name == "reshape" and op.results[0].use_count:
            for item in ambiguous_elements(op, inference):
                if isinstance(item, DimExpr) and is_symbol(item) and item in own and bounds(item)[0] == 0:
                    yield item


def _fails_with_zero(module: Module, size: DimExpr) -> bool:
    """Whether a product, a broadcast or a Reshape of the graph itself is an error where `size` is 0."""
    copy = clone_module(module)
    block, rewriter, inference = copy.main.block, Rewriter(copy.symbols), InferenceContext(copy.symbols)
    for value in block.arguments:
        rewriter.set_type(value, with_symbols(value.type, {size: 0}))
    for op in block:
        if op.is_terminator or op.name == "const":
            continue
        try:
            found = _claims_dropped(op) if op.regions else infer_types(op, inference)
        except TypeInferenceError:
            if _is_certain(op) and any(result.use_count for result in op.results):
                return True
            found = _claims_dropped(op)
        for result, inferred, dropped in zip(op.results, found, _claims_dropped(op), strict=False):
            rewriter.set_type(result, dropped if inferred is types.UNKNOWN else inferred)
    return False


def _is_certain(op: Operation) -> bool:
    """Whether all runtimes refuse what inference refuses."""
    return op.name in ("matmul", "gemm", "reshape") or Trait.BROADCAST in op.definition.traits


def _claims_dropped(op: Operation) -> list[Type]:
    """The result types without dims, which are what the file says or what other sizes gave."""
    return [each.type.with_shape(None) if isinstance(each.type, TensorType) else each.type for each in op.results]
